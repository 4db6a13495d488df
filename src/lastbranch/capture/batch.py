"""System calls in a row by one call from Python, on x86-64.

Between two stops of a thread a tracer makes a handful of system calls. Each one from Python costs as much as the
kernel's part of it, and more just after a stop, when the interpreter is no longer in the processor's caches. Here they
are a table that a few instructions walk along.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache

__all__ = ["WORDS", "Batch"]

WORDS = 6
"""Of a row: number, four arguments, result."""
_RESULT = 5

# long run(uint64_t *row, int rows): how many rows are left, the first of them with the one that failed
#   0: push rbx    1: push rbp    2: mov rbx, rdi    5: mov ebp, esi
#   7: mov rax, [rbx]    a: mov rdi, [rbx+8]    e: mov rsi, [rbx+16]   12: mov rdx, [rbx+24]   16: mov r10, [rbx+32]
#  1a: syscall          1c: mov [rbx+40], rax  20: test rax, rax       23: js 0x2d
#  25: add rbx, 48      29: dec ebp            2b: jnz 7
#  2d: mov eax, ebp     2f: pop rbp            30: pop rbx             31: ret
_CODE = bytes.fromhex(
    "53" "55" "4889fb" "89f5" "488b03" "488b7b08" "488b7310" "488b5318" "4c8b5320" "0f05" "48894328" "4885c0" "7808"
    "4883c330" "ffcd" "75da" "89e8" "5d" "5b" "c3"
)  # fmt: skip


class Batch:
    """A table of ``rows`` system calls. `OSError` where no memory may be executed."""

    def __init__(self, rows: int) -> None:
        self.words = (ctypes.c_uint64 * (rows * WORDS))()
        """Of all rows, `WORDS` each: the number of the call, four arguments, its result."""
        at, size = ctypes.addressof(self.words), WORDS * 8
        self._rows = rows
        self._calls = [(ctypes.c_void_p(at + row * size), ctypes.c_int(rows - row)) for row in range(rows)]
        self._run, _ = _code()

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


@cache
def _code() -> tuple[Callable[[ctypes.c_void_p, ctypes.c_int], int], mmap.mmap]:
    """The instructions as a function, and the memory that must live as long as it does."""
    memory = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                       mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)  # fmt: skip
    memory.write(_CODE)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory))), memory
