"""The host of an agent: the clock, signals, and separate processes for work that needs much memory.

An agent waits nearly always. Recording, counting and shipping import NumPy and DuckDB, and would keep 150 MB: so a
process is forked for each such piece of work and ends with the work. If this process is killed, the agent lives on.
"""

from __future__ import annotations

import os
import pickle  # the answers of our own children, and of nobody else
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TypeVar

from ..errors import LastbranchError, UnavailableError

__all__ = ["Host"]

_T = TypeVar("_T")
_READ = 1 << 16


class Host:
    """This machine. Tests have another one, whose week takes a second."""

    def __init__(self) -> None:
        self.stopping = False
        """Somebody wants the agent to end: SIGTERM or SIGINT came, once `watch_signals` was called."""
        self._child = 0
        self._wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def now(self) -> float:
        """Seconds on a clock that only runs forward, also while the machine sleeps; it begins anew with each `boot`."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Seconds since 1970, as far as this machine knows: anybody can set that."""
        return time.time()

    def boot(self) -> str:
        """Which run of the machine this is."""
        with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
        return ""

    def sleep(self, seconds: float) -> None:
        """Wait so long, or until the agent is to end."""
        if not self.stopping:
            select.select([self._wakes], [], [], max(0.0, seconds))

    def watch_signals(self) -> None:
        """Have SIGTERM and SIGINT end the agent in order: a recording is cut short, and counted."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True
        with suppress(BlockingIOError):
            os.write(self._wake, b"s")
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGTERM)

    def apart(self, function: Callable[[], _T]) -> _T:
        """The result of ``function``, which runs in a process of its own and ends with this one.

        Raises the function's `LastbranchError` and `OSError` as `UnavailableError`, and an `UnavailableError` if the
        process was killed.
        """
        reads, writes = os.pipe()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(reads)
                # A recording takes them while they are blocked, and ends. The counting that follows takes little time.
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                from ..capture import end_with_parent

                end_with_parent()
                if os.getppid() == parent:
                    with open(writes, "wb") as out:
                        out.write(_run_pickled(function))
                    status = 0
            finally:
                os._exit(status)
        os.close(writes)
        self._child = child
        try:
            if self.stopping:  # it came before there was a child
                os.kill(child, signal.SIGTERM)
            with open(reads, "rb") as answer:
                data = answer.read()
        finally:
            self._child = 0
            _, status = os.waitpid(child, 0)
        if not data or status:
            ended = os.waitstatus_to_exitcode(status)
            why = f"by signal {-ended}: was it out of memory?" if ended < 0 else f"(exit code {ended})"
            raise UnavailableError(f"the process that did it ended {why}")
        done, result = pickle.loads(data)  # safe: it is what our own child wrote
        if not done:
            raise UnavailableError(*result[:1], hint=result[1])
        return result  # type: ignore[no-any-return]


def _run_pickled(function: Callable[[], object]) -> bytes:
    """The result of ``function``, or the reason of its failure, for `Host.apart`."""
    try:
        return pickle.dumps((True, function()))
    except LastbranchError as error:
        return pickle.dumps((False, (str(error), error.hint)))
    except OSError as error:
        return pickle.dumps((False, (str(error), None)))
    except Exception as error:
        from ..crashes import crash_line

        return pickle.dumps((False, (crash_line(error), None)))
