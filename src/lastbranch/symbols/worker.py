"""A separate process reads symbol files: a damaged file costs its names and nothing else.

`WorkerClient` starts the worker when it first needs it, limits its time, kills it and starts it again. The worker
(`main`) reads requests from standard input and answers on standard output, both packed by `columns`. It limits its own
memory and ends when its input does.

On a system with fork, the worker is two processes: the reader reads files and can do nothing else (`sandbox`); the
other process passes requests to the reader and runs programs for the reader (`tools.delegate`).
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import LastbranchError
from . import tools
from .backends import backend_of
from .breakpad import Breakpad
from .demangle import demangle
from .jit import names_in, read_perfmap
from .model import Backend, DebugFiles, FunctionTable, Names
from .options import SymbolOptions
from .sandbox import confine_reader, restrict_tools
from .symbol_lists import TableReader, read_kallsyms
from .table_bytes import (
    Columns,
    pack,
    pack_functions,
    pack_names,
    read_packed,
    texts_column,
    texts_of,
    unpack,
    unpack_functions,
    unpack_names,
)

if TYPE_CHECKING:  # imported where it is needed: often the cache knows all names
    import subprocess

__all__ = ["WorkerClient", "WorkerFailed", "main"]


# -- The worker


def main() -> None:
    """Answer requests until the input ends."""
    gc.disable()  # tables of a hundred thousand names would be searched for cycles, of which there are none
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    restrict_tools()
    work = _ReaderProcess(answers).work if hasattr(os, "fork") else _answer
    while packed := read_packed(requests):
        answers.write(work(packed))
        answers.flush()


class _ReaderProcess:
    """The confined process, forked so that it has all imported modules. ``other`` is a stream that it must not have."""

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
        """The answer to a request. If the reader ends instead, this process ends in the same way."""
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
            packed = _ask_program(head["ask"], _files(meta), columns)

    def _end_alike(self) -> NoReturn:
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if code < 0:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code if code > 0 else 1)


def _read_confined(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests in the confined process until the input ends."""

    def ask(meta: dict[str, Any], columns: Columns) -> tuple[dict[str, Any], Columns]:
        answers.write(pack(meta, columns))
        answers.flush()
        return unpack(read_packed(requests))

    confine_reader()
    tools.delegate = ask
    while packed := read_packed(requests):
        answers.write(_answer(packed))
        answers.flush()


def _answer(packed: bytes) -> bytes:
    def read() -> Columns:
        meta, columns = unpack(packed)
        _limit(meta["memory"], meta["seconds"])
        return _VERBS[meta["verb"]](meta["backend"], _files(meta), columns)

    return _pack(read)


def _pack(make: Callable[[], Columns]) -> bytes:
    """The columns of ``make``, or the reason why it failed, as an answer."""
    try:
        return pack({"ok": True}, make())
    except (LastbranchError, OSError, ValueError, MemoryError, RecursionError, OverflowError, IndexError) as error:
        said = "its memory limit" if isinstance(error, MemoryError) else str(error) or type(error).__name__
        return pack({"ok": False, "why": said}, {})


def _ask_program(what: str, files: DebugFiles, columns: Columns) -> bytes:
    """Run a program for the confined process, on the files of the request and no others. Returns the answer."""
    if what == "llvm":
        from .backends import llvm

        return _pack(lambda: pack_names(llvm.symbolize(files, columns["address"])))
    return pack({"ok": True}, {"shown": texts_column(demangle(texts_of(columns, "name")))})


def _files(meta: dict[str, Any]) -> DebugFiles:
    return DebugFiles(**{**meta["files"], "dwo": tuple(meta["files"]["dwo"])})


def _limit(memory: int, seconds: int) -> None:
    """Limit this process to ``memory`` bytes, and to ``seconds`` more of processor time in case its client is gone."""
    try:
        import resource
    except ImportError:  # Windows: only the client limits its time
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


READERS: dict[str, Callable[[], Backend]] = {
    "breakpad": Breakpad,
    "kallsyms": lambda: TableReader(read_kallsyms),
    "perfmap": lambda: TableReader(read_perfmap),
}
"""Kinds of files that have only one reader."""


def _backend(name: str, files: DebugFiles) -> Backend:
    return READERS[files.kind]() if files.kind in READERS else backend_of(name)


_VERBS: dict[str, Callable[[str, DebugFiles, Columns], Columns]] = {
    "names": lambda name, files, c: pack_names(_backend(name, files).symbolize(files, c["address"])),
    "functions": lambda name, files, _: pack_functions(_backend(name, files).functions(files)),
    "jit": lambda _, files, c: pack_names(names_in(files, c["address"], c.get("time"))),
}


# -- The client


COMMAND = (sys.executable, "-P", "-B", "-m", "lastbranch.symbols.worker")
"""No module of the current folder is imported (-P), and nothing is written (-B)."""

_Answer = TypeVar("_Answer")

_NOT_FOR_WORKERS = ("DEBUGINFOD_URLS", "DEBUGINFOD_CACHE_PATH", "PYTHONSTARTUP", "PYTHONINSPECT")
"""No network, and no change of the interpreter."""

_GRACE = 5
"""Seconds to wait for the pipes of a killed worker."""

_UNIT = 100 << 20
"""Bytes of symbol files for one time limit; larger files get more time."""


class WorkerFailed(Exception):
    """No names, for the reason in the message. ``fatal``: the worker ended; ``late``: it was killed for its time."""

    def __init__(self, why: str, *, fatal: bool, late: bool = False) -> None:
        super().__init__(why)
        self.fatal, self.late = fatal, late


class WorkerClient:
    """One worker process, and its restarts."""

    def __init__(self, options: SymbolOptions, command: Sequence[str] = COMMAND) -> None:
        self._options, self._command = options, command
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0
        """Number of processes so far."""

    def names(self, files: DebugFiles, backend: str, address: NDArray[np.uint64]) -> Names:
        """The names of ``address`` (distinct, ascending). Raises `WorkerFailed`."""
        return self._check(lambda c: unpack_names(c, len(address)), "names", files, backend, {"address": address})

    def functions(self, files: DebugFiles, backend: str) -> FunctionTable:
        """Every function. Raises `WorkerFailed`."""
        return self._check(unpack_functions, "functions", files, backend, {})

    def jit_names(self, files: DebugFiles, address: NDArray[np.uint64], time: NDArray[np.uint64] | None) -> Names:
        """The names of ``address``, each at its ``time`` (ns; ``None``: in the end). Raises `WorkerFailed`."""
        columns = {"address": address} if time is None else {"address": address, "time": time}
        return self._check(lambda c: unpack_names(c, len(address)), "jit", files, "", columns)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            _close(process)

    def _check(
        self, read: Callable[[Columns], _Answer], verb: str, files: DebugFiles, backend: str, columns: Columns
    ) -> _Answer:
        try:
            return read(self._ask(verb, files, backend, columns))
        except (ValueError, RecursionError) as error:
            self.close()
            raise WorkerFailed(f"the worker's answer is invalid: {error}", fatal=True) from error

    def _ask(self, verb: str, files: DebugFiles, backend: str, columns: Columns) -> Columns:
        size = sum(os.path.getsize(p) for p in (files.binary, files.debug, files.dwp) if p and os.path.exists(p))
        seconds = self._options.seconds * max(1.0, size / _UNIT)
        limits = {"memory": self._options.memory + 2 * size, "seconds": int(seconds) + 1}
        request = pack({"verb": verb, "backend": backend, "files": files._asdict(), **limits}, columns)
        try:
            said, answer = self._exchange(request, seconds)
        except WorkerFailed as failure:
            if failure.late:
                raise
            said, answer = self._exchange(request, seconds)  # perhaps an earlier request had damaged the worker
        if said.get("ok") is not True:
            raise WorkerFailed(str(said.get("why", "no reason"))[:2000], fatal=False)
        return answer

    def _exchange(self, request: bytes, seconds: float) -> tuple[dict[str, Any], Columns]:
        """Write, and read within ``seconds``: in a thread, as both block and pipes cannot be polled on all systems."""
        import threading

        try:
            process = self._process = self._process or self._start()
        except OSError as error:
            raise WorkerFailed(f"the process that reads symbol files did not start: {error}", fatal=True) from error
        got: list[bytes] = []

        def talk(out: IO[bytes], back: IO[bytes]) -> None:
            with contextlib.suppress(OSError, ValueError, MemoryError):
                out.write(request)
                out.flush()
                got.append(read_packed(back, self._options.memory))

        assert process.stdin is not None
        assert process.stdout is not None
        talking = threading.Thread(target=talk, args=(process.stdin, process.stdout), daemon=True)
        talking.start()
        talking.join(seconds)
        late = talking.is_alive()
        if late or not got or not got[0]:
            self._process = None
            _kill(process)
            talking.join(_GRACE)
            if not talking.is_alive():  # else another process holds the pipe: closing would wait for it
                _close(process)
            how = f"ran longer than {seconds:.0f} s" if late else f"died ({_end(process.returncode)})"
            raise WorkerFailed(f"the process that reads symbol files {how}", fatal=True, late=late)
        return unpack(got[0])

    def _start(self) -> subprocess.Popen[bytes]:
        import subprocess

        env = {k: v for k, v in os.environ.items() if k not in _NOT_FOR_WORKERS}
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        env["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [env.get("PYTHONPATH")])])
        env["OMP_NUM_THREADS"] = env["OPENBLAS_NUM_THREADS"] = "1"  # stacks of threads count as memory
        self.started += 1
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and what it started."""
    import signal

    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _end(code: int | None) -> str:
    import signal

    if code is not None and code == -getattr(signal, "SIGSYS", 0):
        return "SIGSYS: a file made it attempt a forbidden system call"
    if code is not None and code < 0:
        return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"exit code {code}"


if __name__ == "__main__":
    main()
