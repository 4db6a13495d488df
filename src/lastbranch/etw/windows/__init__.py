"""The kernel of Windows: its DLLs by ctypes. Importable everywhere; what calls a DLL works on Windows only."""
