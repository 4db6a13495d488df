"""TB5 files, the native format: our own container for the model of the TBRW guide (docs/reference/tb5-format.md).

Everything but `is_tb5` is loaded at first use.
"""
