"""The portable kernel: trace sessions of one user, each in a process of its own, on systems without ETW."""
