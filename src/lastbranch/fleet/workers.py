"""Who does the work of a store: processes of this machine, or a cluster of Dask's.

    with Processes(8) as run:
        Store("counts", run).add(["logs"])

Both are a `Run`. A task whose worker dies is done again by another one, which changes nothing: the stages of a store
(`parts`) write the same bytes under the same names, and what is written is not made again.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from ..closing import Closing, on_failure
from ..errors import SelectionError, UnavailableError
from ..model import PartFolder, temporary_folder
from ..version import __version__

__all__ = ["Certificates", "Cluster", "Processes"]

ATTEMPTS = 4
"""Workers that may die at a task before it is given up: it may be what kills them."""
_LOST = "the worker died {} times at the same task"
_HINT = "was it out of memory? the same command goes on with what is done"


# -- processes of this machine
#
# Not `concurrent.futures`: its pool is broken for good when one process is killed. Not `multiprocessing`: forking a
# process with threads can hang, and its other start methods run the caller's main module again. A worker is a plain
# interpreter that reads tasks from its standard input and ends when that is closed, which the operating system does if
# this process dies. Pickle is safe here: each end reads only what the other wrote, and the other was started by us.


_START = "import sys; sys.path[:] = {path!r}; from lastbranch.fleet.workers import serve; serve({scratch!r})"


class _Worker:
    def __init__(self, scratch: str) -> None:
        path = [entry or os.getcwd() for entry in sys.path]
        command = [sys.executable, "-c", _START.format(path=path, scratch=scratch)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # NumPy's threads for matrices would only spin
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)

    def ask(self, function: Callable[[Any], Any], argument: Any) -> tuple[bool, Any]:
        """Whether it was done, and the result or the reason. Raises `EOFError` and `OSError` where the worker died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump((function, argument), self.process.stdin)
        self.process.stdin.flush()
        done, result = pickle.load(self.process.stdout)
        return done, result

    def end(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.process.wait()


class Processes(Closing):
    """``number`` processes of this machine (one for each CPU that we may use: not given), which start when there are so
    many tasks. A single task is done here.

    Their temporary files are in one folder, which is removed with the processes; folders of killed processes are
    removed when the next folder is made. Raises what a task raised, and `UnavailableError` where workers die `ATTEMPTS`
    times at the same one.
    """

    def __init__(self, number: int | None = None) -> None:
        self._number = number or _cpus()
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []
        self._scratch: PartFolder | None = None
        self._open = True

    def __call__(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        number = min(self._number, len(arguments))
        if number < 2:
            yield from map(function, arguments)
            return
        self._scratch = self._scratch or temporary_folder("lastbranch-workers")
        with ThreadPoolExecutor(number, "fleet") as pool, on_failure(self._kill):
            futures = [pool.submit(self._do_apart, function, argument) for argument in arguments]
            with on_failure(lambda: [future.cancel() for future in futures]):
                for future in futures:
                    yield future.result()

    def _do_apart(self, function: Callable[[Any], Any], argument: Any) -> Any:
        for _ in range(ATTEMPTS):
            worker = self._take()
            try:
                done, result = worker.ask(function, argument)
            except (EOFError, OSError, pickle.UnpicklingError):
                worker.end()
                continue
            self._idle.append(worker)
            if done:
                return result
            raise result
        raise UnavailableError(_LOST.format(ATTEMPTS), hint=_HINT)

    def _take(self) -> _Worker:
        with self._lock:
            if not self._open:
                raise CancelledError
            if self._idle:
                return self._idle.pop()
            assert self._scratch is not None
            self._all.append(worker := _Worker(self._scratch.path))
            return worker

    def _kill(self) -> None:
        """End the processes, even at work; the threads that wait for these processes notice."""
        with self._lock:
            self._open = False
        for worker in self._all:
            worker.process.kill()

    def close(self) -> None:
        """End the processes and delete their files."""
        self._kill()
        for worker in self._all:
            worker.end()
        if self._scratch is not None:
            self._scratch.discard()


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def serve(scratch: str) -> None:
    """Do the tasks that come by standard input, with temporary files in a folder in ``scratch``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process that asks
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(dir=scratch) as tempfile.tempdir, suppress(BrokenPipeError):
        while True:
            try:
                function, argument = pickle.load(sys.stdin.buffer)
            except EOFError:
                break
            try:
                answer = pickle.dumps((True, function(argument)))
            except Exception as error:
                answer = _pack_failure(error)
            answers.write(answer)
            answers.flush()
    with suppress(OSError):  # who asked was killed, and this is the last worker
        os.rmdir(scratch)


def _pack_failure(error: Exception) -> bytes:
    """A failure as one that can be sent."""
    try:
        pickle.loads(answer := pickle.dumps((False, error)))
    except Exception:
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    return answer


# -- a cluster


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM: the authority that signed the certificates of all members of a cluster, our certificate and its
    key."""

    authority: str
    certificate: str
    key: str


_HERE = ("127.0.0.1", "::1", "localhost")
_WAIT = 60
"""Seconds in which a cluster has to answer, and to have a worker."""


class Cluster(Closing):
    """The workers of the Dask scheduler at ``address``: ``tls://HOST:PORT`` with certificates, or ``tcp://`` of this
    machine. All of them must reach captures and store under the paths that tasks name, and have this lastbranch.

    Members of a cluster send each other Python's pickle, so anyone who can connect runs programs as a member: without
    TLS we speak to no other machine (`SelectionError`). Raises `UnavailableError` where there is no scheduler or no
    worker, one has another version, or the cluster is lost at work.
    """

    def __init__(self, address: str, certificates: Certificates | None = None) -> None:
        self._address = address
        _check(address, certificates)
        dask, security = _dask(address), None
        if certificates is not None:
            security = dask.Security(
                tls_ca_file=certificates.authority,
                tls_client_cert=certificates.certificate,
                tls_client_key=certificates.key,
                require_encryption=True,
            )
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is raised
        with _Failures(address, OSError):
            self._client = dask.Client(address, security=security, timeout=_WAIT, set_as_default=False)
        with on_failure(self.close), _Failures(address, OSError):
            self._client.wait_for_workers(1, timeout=_WAIT)
            for worker, version in self._client.run(_version).items():
                if version != __version__:
                    raise UnavailableError(f"{worker} has lastbranch {version}, this is {__version__}")

    def __call__(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
        tasks = [(function, argument) for argument in arguments]
        with _Failures(self._address):
            futures = self._client.map(_in_scratch, tasks, pure=False)
        with on_failure(self._client.cancel, futures):
            for future in futures:
                with _Failures(self._address):
                    result = future.result()
                yield result

    def close(self) -> None:
        """Leave the cluster."""
        with suppress(OSError, TimeoutError):
            self._client.close(timeout=2)


def _dask(address: str) -> Any:
    try:
        return import_module("distributed")
    except ImportError:
        raise UnavailableError(f"{address} needs Dask", hint="pip install 'lastbranch[fleet]'") from None


class _Failures:
    """Turns errors of Dask, and ``others``, into our errors of one line; errors of tasks pass unchanged."""

    def __init__(self, address: str, *others: type[BaseException]) -> None:
        self._address, self._others = address, others

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from asyncio import CancelledError as Stopped

        dask = _dask(self._address)
        if isinstance(error, dask.KilledWorker):
            raise UnavailableError(f"{self._address}: {_LOST.format(ATTEMPTS)}", hint=_HINT) from None
        lost = dask.comm.CommClosedError, CancelledError, Stopped, TimeoutError, *self._others
        if isinstance(error, lost):
            line = " ".join(str(error).split())[:300] or type(error).__name__
            hint = "does the scheduler run, and has it workers? the same command goes on with what is done"
            raise UnavailableError(f"{self._address}: {line}", hint=hint) from None


def _check(address: str, certificates: Certificates | None) -> None:
    """Raises `SelectionError` for what is not safe, and `UnavailableError` for certificates that cannot be read."""
    there = urlsplit(address)
    try:
        known = bool(there.hostname and there.port)
    except ValueError:
        known = False
    if there.scheme not in ("tls", "tcp") or not known:
        raise SelectionError(f"{address} is no address of a scheduler", hint="tls://HOST:PORT")
    if there.scheme == "tcp":
        if there.hostname not in _HERE:
            raise SelectionError(
                f"{address}: without TLS anyone who can connect runs programs here and there",
                hint="tls://HOST:PORT with certificates (docs: fleet on a cluster)",
            )
        return
    if certificates is None:
        raise SelectionError(f"{address} needs the certificate of the authority, ours and its key")
    import ssl

    try:
        context = ssl.create_default_context(cafile=certificates.authority)
        context.load_cert_chain(certificates.certificate, certificates.key)
    except OSError as error:
        raise UnavailableError(f"{address}: certificates cannot be used: {error.strerror or error}") from None


def _version() -> str:
    return __version__


def _in_scratch(task: tuple[Callable[[Any], Any], Any]) -> Any:
    """Do a task with temporary files in the folder of Dask's worker: a dead worker's files are removed when the next
    starts."""
    function, argument = task
    tempfile.tempdir = _dask("this worker").get_worker().local_directory
    return function(argument)
