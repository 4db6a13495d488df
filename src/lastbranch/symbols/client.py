"""The worker as its owner sees it: started when first needed, given time and memory, killed and started anew."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .columns import Columns, pack, unpack, unpack_functions, unpack_names
from .model import DebugFiles, FunctionTable, Names
from .options import SymbolOptions
from .worker import read_packed

if TYPE_CHECKING:  # imported where they are needed: often the cache knows everything
    import subprocess

__all__ = ["WorkerFailed", "WorkerClient"]

COMMAND = (sys.executable, "-P", "-B", "-m", "lastbranch.symbols.worker")
"""No module of the current folder is imported (-P), and nothing is written (-B)."""

_Answer = TypeVar("_Answer")

_NOT_FOR_WORKERS = ("DEBUGINFOD_URLS", "DEBUGINFOD_CACHE_PATH", "PYTHONSTARTUP", "PYTHONINSPECT")
"""No network, and nothing that changes what the interpreter does."""

_GRACE = 5
"""Seconds that pipes of a killed worker may take to end."""

_UNIT = 100 << 20
"""Bytes of symbol files that the time limit is for; larger ones get more."""


class WorkerFailed(Exception):
    """No names: the message says why. ``fatal``: the worker did not live to say it itself; ``late``: it was killed."""

    def __init__(self, why: str, *, fatal: bool, late: bool = False) -> None:
        super().__init__(why)
        self.fatal, self.late = fatal, late


class WorkerClient:
    """One worker process, and its restarts."""

    def __init__(self, options: SymbolOptions, command: Sequence[str] = COMMAND) -> None:
        self._options, self._command = options, command
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0
        """How many processes it took."""

    def names(self, files: DebugFiles, backend: str, address: NDArray[np.uint64]) -> Names:
        """The names of ``address`` (distinct, ascending). Raises `WorkerFailed`."""
        return self._checked(lambda c: unpack_names(c, len(address)), "names", files, backend, {"address": address})

    def functions(self, files: DebugFiles, backend: str) -> FunctionTable:
        """Every function. Raises `WorkerFailed`."""
        return self._checked(unpack_functions, "functions", files, backend, {})

    def jit_names(self, files: DebugFiles, address: NDArray[np.uint64], time: NDArray[np.uint64] | None) -> Names:
        """The names of ``address``, each at its ``time`` (ns; ``None``: in the end). Raises `WorkerFailed`."""
        columns = {"address": address} if time is None else {"address": address, "time": time}
        return self._checked(lambda c: unpack_names(c, len(address)), "jit", files, "", columns)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            _close(process)

    def _checked(
        self, read: Callable[[Columns], _Answer], verb: str, files: DebugFiles, backend: str, columns: Columns
    ) -> _Answer:
        try:
            return read(self._ask(verb, files, backend, columns))
        except (ValueError, RecursionError) as error:
            self.close()
            raise WorkerFailed(f"the worker's answer is not sound: {error}", fatal=True) from error

    def _ask(self, verb: str, files: DebugFiles, backend: str, columns: Columns) -> Columns:
        size = sum(os.path.getsize(p) for p in (files.binary, files.debug, files.dwp) if p and os.path.exists(p))
        seconds = self._options.seconds * max(1.0, size / _UNIT)
        limits = {"memory": self._options.memory + 2 * size, "seconds": int(seconds) + 1}
        request = pack({"verb": verb, "backend": backend, "files": asdict(files), **limits}, columns)
        try:
            said, answer = self._exchange(request, seconds)
        except WorkerFailed as failure:
            if failure.late:
                raise
            said, answer = self._exchange(request, seconds)  # perhaps it was the worker that had grown old
        if said.get("ok") is not True:
            raise WorkerFailed(str(said.get("why", "no reason"))[:2000], fatal=False)
        return answer

    def _exchange(self, request: bytes, seconds: float) -> tuple[dict[str, Any], Columns]:
        """Write, and read within ``seconds``. Both may block, on pipes that no system polls alike: so in a thread."""
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
            if not talking.is_alive():  # else somebody else holds the pipe: closing would wait for them
                _close(process)
            how = f"ran longer than {seconds:.0f} s" if late else f"died ({_end(process.returncode)})"
            raise WorkerFailed(f"the process that reads symbol files {how}", fatal=True, late=late)
        return unpack(got[0])

    def _start(self) -> subprocess.Popen[bytes]:
        import subprocess

        env = {k: v for k, v in os.environ.items() if k not in _NOT_FOR_WORKERS}
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        env["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [env.get("PYTHONPATH")])])
        env["OMP_NUM_THREADS"] = env["OPENBLAS_NUM_THREADS"] = "1"  # threads' stacks count as memory
        self.started += 1
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, start_new_session=True,
        )  # fmt: skip


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
        return "SIGSYS: a file led it to a system call that it must not make"
    if code is not None and code < 0:
        return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"exit code {code}"
