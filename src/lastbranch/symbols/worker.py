"""The process that reads symbol files, so that a damaged one costs its names and nothing else.

Reads requests from standard input and answers on standard output, both as `columns`. It limits itself to the memory
that a request allows, and ends when its input does. `lastbranch.symbols.client` starts it and watches its time.

It is two processes where the system has fork: one reads the files and can do nothing but that (`sandbox`), the other
hands it the requests, and runs the programs that it asks for (`outside`).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import IO, Any, NoReturn

from ..errors import LastbranchError
from . import outside
from .columns import (
    HEAD_SIZE,
    Columns,
    pack,
    pack_functions,
    pack_names,
    sizes,
    texts_column,
    texts_of,
    unpack,
)
from .model import Backend, DebugFiles
from .sandbox import confine_reader, restrict_tools

__all__ = ["main"]


def main() -> None:
    """Answer requests until the input ends."""
    gc.disable()  # tables of a hundred thousand names would be searched for cycles, of which there are none
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    restrict_tools()
    work = _Reader(answers).work if hasattr(os, "fork") else _answer
    while packed := read_packed(requests):
        answers.write(work(packed))
        answers.flush()


class _Reader:
    """The confined process, by fork, so that it has what is imported already. ``other`` is what it must not have."""

    def __init__(self, other: IO[bytes]) -> None:
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        self._pid = os.fork()
        if not self._pid:
            status = 1
            try:
                for fd in (ours_out, ours_in, other.fileno()):
                    os.close(fd)
                os.dup2(2, 0)
                _read_confined(os.fdopen(theirs_in, "rb"), os.fdopen(theirs_out, "wb"))
                status = 0
            finally:
                os._exit(status)
        os.close(theirs_in)
        os.close(theirs_out)
        self._requests, self._answers = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")

    def work(self, packed: bytes) -> bytes:
        """The answer to a request. Where the reader ends instead, this process ends as it did."""
        meta, _ = unpack(packed)
        _limit(meta["memory"], meta["seconds"])
        while True:
            try:
                self._requests.write(packed)
                self._requests.flush()
                said = read_packed(self._answers, meta["memory"])
            except (OSError, ValueError):
                said = b""
            if not said:
                self._end_alike()
            head, columns = unpack(said)
            if "ask" not in head:
                return said
            packed = _asked(head["ask"], _files(meta), columns)

    def _end_alike(self) -> NoReturn:
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if code < 0:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code if code > 0 else 1)


def _read_confined(requests: IO[bytes], answers: IO[bytes]) -> None:
    """What the confined process does, until the input ends."""

    def ask(meta: dict[str, Any], columns: Columns) -> tuple[dict[str, Any], Columns]:
        answers.write(pack(meta, columns))
        answers.flush()
        return unpack(read_packed(requests))

    confine_reader()
    outside.asked = ask
    while packed := read_packed(requests):
        answers.write(_answer(packed))
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


def _answer(packed: bytes) -> bytes:
    def read() -> Columns:
        meta, columns = unpack(packed)
        _limit(meta["memory"], meta["seconds"])
        return _VERBS[meta["verb"]](meta["backend"], _files(meta), columns)

    return _packed(read)


def _packed(make: Callable[[], Columns]) -> bytes:
    """The columns that ``make`` gives, or why it gives none, as an answer."""
    try:
        return pack({"ok": True}, make())
    except (LastbranchError, OSError, ValueError, MemoryError, RecursionError, OverflowError, IndexError) as error:
        said = "its memory limit" if isinstance(error, MemoryError) else str(error) or type(error).__name__
        return pack({"ok": False, "why": said}, {})


def _asked(what: str, files: DebugFiles, columns: Columns) -> bytes:
    """The answer to what the confined process asks, which runs programs: on the files of the request, and no others."""
    if what == "llvm":
        from .backends import llvm

        return _packed(lambda: pack_names(llvm.resolve(files, columns["address"])))
    from .demangle import demangle

    return pack({"ok": True}, {"shown": texts_column(demangle(texts_of(columns, "name")))})


def _files(meta: dict[str, Any]) -> DebugFiles:
    return DebugFiles(**{**meta["files"], "dwo": tuple(meta["files"]["dwo"])})


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
        resource.RLIMIT_FSIZE: memory,  # copies and lists for programs
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
    from .jit import names_in

    return pack_names(names_in(files, columns["address"], columns.get("time")))


_VERBS: dict[str, Callable[[str, DebugFiles, Columns], Columns]] = {
    "names": _names, "functions": _functions, "jit": _jit,
}  # fmt: skip


if __name__ == "__main__":
    main()
