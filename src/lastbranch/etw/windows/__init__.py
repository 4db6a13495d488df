"""The kernel of Windows: its DLLs through ctypes. Importable everywhere; functions that call a DLL work only on
Windows."""
