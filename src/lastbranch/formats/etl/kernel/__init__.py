"""Events of the Windows kernel: hook ids and their names (`hooks`), layouts of their payloads (`layouts`)."""
