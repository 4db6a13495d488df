"""System calls in a row: all are made, up to the one that fails."""

from __future__ import annotations

import errno
import os

from capture_tools import needs_ptrace, needs_walk
from lastbranch import native
from lastbranch.capture.ptrace import WORDS, SyscallBatch

pytestmark = [needs_ptrace, needs_walk]
_CLOSE, _GETPID = 3, 39


def test_rows_are_run_in_order_until_one_fails() -> None:
    read, write = os.pipe()
    library = native.library()
    assert library is not None
    batch = SyscallBatch(library, 4)
    batch.set(0, _GETPID)
    batch.set(1, _CLOSE, write)
    batch.set(2, _CLOSE, write)
    batch.set(3, _CLOSE, read)
    assert batch.run(0) == 2
    assert batch.words[WORDS - 1] == os.getpid()
    assert batch.error(2) == errno.EBADF
    assert os.read(read, 1) == b"", "row 1 closed the only writer"
    assert batch.run(3) == 4, "row 3 was not run before"
