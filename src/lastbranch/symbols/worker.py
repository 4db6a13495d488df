"""The process that reads symbol files, so that a damaged one costs its names and nothing else.

Reads requests from standard input and answers on standard output, both as `columns`. It limits itself to the memory
that a request allows, and ends when its input does. `lastbranch.symbols.client` starts it and watches its time.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import LastbranchError
from .columns import HEAD_SIZE, Columns, pack, pack_functions, pack_names, sizes, unpack
from .files import DebugFiles
from .model import FunctionTable, Names

__all__ = ["Backend", "main"]


class Backend(Protocol):
    """Who reads the symbol files of one module. Raises `LastbranchError` or `OSError` for what cannot be read."""

    def resolve(self, files: DebugFiles, address: NDArray[np.uint64]) -> Names:
        """The names of ``address`` (ascending, distinct; link addresses, in PE from the image's base)."""

    def functions(self, files: DebugFiles) -> FunctionTable:
        """Every function of the module."""


def main() -> None:
    """Answer requests until the input ends."""
    gc.disable()  # tables of a hundred thousand names would be searched for cycles, of which there are none
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while packed := read_packed(requests):
        meta, columns = unpack(packed)
        answers.write(_answer(meta, columns))
        answers.flush()


def read_packed(stream: IO[bytes], limit: int = 1 << 40) -> bytes:
    """The next columns in ``stream``, empty at its end. Raises `ValueError` for other bytes or more than ``limit``."""
    head = stream.read(HEAD_SIZE)
    if not head:
        return b""
    length = sum(sizes(head))
    if length > limit:
        raise ValueError(f"an answer of {length} bytes")
    rest = stream.read(length)
    if len(rest) != length:
        raise ValueError("cut short")
    return head + rest


def _answer(meta: dict[str, Any], columns: Columns) -> bytes:
    try:
        _limit(meta["memory"], meta["seconds"])
        files = DebugFiles(**{**meta["files"], "dwo": tuple(meta["files"]["dwo"])})
        return pack({"ok": True}, _VERBS[meta["verb"]](meta["backend"], files, columns))
    except (LastbranchError, OSError, ValueError, MemoryError, RecursionError, OverflowError, IndexError) as error:
        said = "its memory limit" if isinstance(error, MemoryError) else str(error) or type(error).__name__
        return pack({"ok": False, "why": said}, {})


def _limit(memory: int, seconds: int) -> None:
    """Limit this process to ``memory`` bytes, and to ``seconds`` more of processor time should nobody watch it."""
    try:
        import resource
    except ImportError:  # Windows: the time limit of the client has to do
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime) + seconds,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in wanted.items():
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _backend(name: str, files: DebugFiles) -> Backend:
    from .readers import READERS

    if files.kind in READERS:
        return READERS[files.kind]()
    from .backends import backend_of

    return backend_of(name)


def _names(backend: str, files: DebugFiles, columns: Columns) -> Columns:
    return pack_names(_backend(backend, files).resolve(files, columns["address"]))


def _functions(backend: str, files: DebugFiles, _columns: Columns) -> Columns:
    return pack_functions(_backend(backend, files).functions(files))


def _jit(_backend: str, files: DebugFiles, columns: Columns) -> Columns:
    from .jitdump import names_in

    return pack_names(names_in(files, columns["address"], columns.get("time")))


_VERBS: dict[str, Callable[[str, DebugFiles, Columns], Columns]] = {
    "names": _names, "functions": _functions, "jit": _jit,
}  # fmt: skip


if __name__ == "__main__":
    main()
