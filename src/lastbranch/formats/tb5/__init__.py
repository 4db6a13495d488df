"""TB5 files, the native format: our own container for the model of the TBRW guide (docs/reference/tb5-format.md).

The rest is loaded at first use, so recognizing a file costs no further imports.
"""

from __future__ import annotations

__all__ = ["MAGIC", "is_tb5"]

MAGIC = b"lastbranch TB5\r\n"
"""16 bytes; the line end shows a copy in text mode."""


def is_tb5(start: bytes) -> bool:
    """Whether a file that begins with ``start`` (16 bytes or more) is one of ours."""
    return start.startswith(MAGIC)
