"""System calls in a row by one call from Python, on x86-64.

Between two stops of a thread a tracer makes a handful of system calls. Each one from Python costs as much as the
kernel's part of it, and more just after a stop, when the interpreter is no longer in the processor's caches. Here they
are a table that machine code walks along.
"""

from __future__ import annotations

import ctypes

from .native import CALLS, function

__all__ = ["WORDS", "Batch"]

WORDS = 6
"""Of a row: number, four arguments, result."""
_RESULT = 5


class Batch:
    """A table of ``rows`` system calls. `OSError` where no memory may be executed."""

    def __init__(self, rows: int) -> None:
        self.words = (ctypes.c_uint64 * (rows * WORDS))()
        """Of all rows, `WORDS` each: the number of the call, four arguments, its result."""
        at, size = ctypes.addressof(self.words), WORDS * 8
        self._rows = rows
        self._calls = [(ctypes.c_void_p(at + row * size), ctypes.c_int(rows - row)) for row in range(rows)]
        self._run = function(CALLS)

    def set(self, row: int, number: int, *arguments: int) -> None:
        """Make ``row`` the call ``number`` with up to four ``arguments``."""
        start = row * WORDS
        self.words[start : start + 1 + len(arguments)] = [number, *arguments]

    def run(self, first: int) -> int:
        """Make the calls from row ``first`` on; the row of the one that failed, or the number of rows."""
        start, rows = self._calls[first]
        return self._rows - self._run(start, rows)

    def error(self, row: int) -> int:
        """The errno of the call that failed."""
        return -ctypes.c_int64(self.words[row * WORDS + _RESULT]).value
