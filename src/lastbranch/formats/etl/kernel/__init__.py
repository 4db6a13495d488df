"""Events of the Windows kernel: the layouts of their payloads by group, one table of them all (`layouts`), and the
GUIDs and names of their providers (`providers`)."""
