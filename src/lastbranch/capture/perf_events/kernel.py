"""All that the hardware collector asks of the machine, as one interface, so that a fake can stand in for it."""

from __future__ import annotations

import errno
import os
import select
import subprocess
from collections.abc import Callable, Iterable
from typing import Protocol

from ...binaries import read_image
from ...errors import LastbranchError
from ...opening import FileSource
from .. import ptrace
from . import syscall

__all__ = ["Kernel", "Linux", "RecordRing", "read_build_id"]


class RecordRing(Protocol):
    """A ring of records that is mapped from an event: see `syscall.Ring`."""

    def share(self, fd: int) -> None: ...
    def drain(self, write: Callable[[bytes], object]) -> int: ...
    def close(self) -> None: ...


class Kernel(Protocol):
    """Files are read through it, too: what a kernel offers stands in /proc and /sys. Calls raise `OSError`."""

    @property
    def release(self) -> str:
        """As ``uname -r`` has it."""

    @property
    def machine(self) -> str:
        """As ``uname -m`` has it."""

    def data(self, path: str) -> bytes | None:
        """The contents of a file; ``None`` where it cannot be read."""

    def text(self, path: str) -> str | None:
        """The same as text, without white space at the end."""

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder; none where it cannot be read."""

    def link(self, path: str) -> str | None:
        """Where a symbolic link leads."""

    def build_id(self, path: str) -> bytes:
        """The build id of the binary at ``path``; empty where there is none to be had."""

    def trace_child(self) -> None:
        """Trace a process made for that, and end it."""

    def open_event(self, attr: bytes, tid: int, cpu: int, group: int = -1) -> int:
        """perf_event_open: a descriptor. ``tid`` -1: everything on ``cpu``; ``group``: of the event that leads its
        group."""

    def event_id(self, fd: int) -> int:
        """The number that the event's records carry."""

    def lost(self, fd: int) -> int:
        """Records that found no room, of an event opened with read_format LOST alone."""

    def counts(self, fd: int) -> bool:
        """Whether a pinned event, opened without read_format, has found its counters, and those of its group."""

    def enable(self, fd: int) -> None: ...

    def disable(self, fd: int) -> None: ...

    def set_period(self, fd: int, period: int) -> None: ...

    def more_files(self) -> bool:
        """Raise this process's own limit of open descriptors as far as it may; whether there are more now."""

    def ring(self, fd: int, pages: int) -> RecordRing:
        """The event's ring. `UnavailableError` where no more memory may be locked."""

    def wait(self, fds: Iterable[int], seconds: float) -> set[int]:
        """Until a ring has so much as was asked for, or the time is over; those whose tasks have all ended."""

    def close(self, fd: int) -> None: ...


def read_build_id(path: str) -> bytes:
    """The build id of the binary at ``path``; empty where there is none to be had."""
    try:
        source = FileSource(path)
    except (OSError, LastbranchError):
        return b""
    try:
        return read_image(source).build_id or b""
    except (OSError, LastbranchError):
        return b""
    finally:
        source.close()


class Linux:
    """The kernel that runs this."""

    def __init__(self) -> None:
        names = os.uname()
        self.release, self.machine = names.release, names.machine

    def data(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError:
            return None

    def text(self, path: str) -> str | None:
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "surrogateescape").rstrip()

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def link(self, path: str) -> str | None:
        try:
            return os.readlink(path)
        except OSError:
            return None

    def build_id(self, path: str) -> bytes:
        return read_build_id(path)

    def trace_child(self) -> None:
        child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
        try:
            ptrace.seize(child.pid, ptrace.EXITKILL)
        except ptrace.Gone as gone:
            raise OSError(errno.ESRCH, "the process to trace is gone") from gone
        finally:
            child.kill()
            child.wait()

    def lost(self, fd: int) -> int:
        return int.from_bytes(os.read(fd, 16)[8:16], "little")  # u64 value, lost

    def counts(self, fd: int) -> bool:
        return bool(os.read(fd, 8))

    def wait(self, fds: Iterable[int], seconds: float) -> set[int]:
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        return {fd for fd, what in poll.poll(seconds * 1000) if what & select.POLLHUP}

    open_event = staticmethod(syscall.open_event)
    event_id = staticmethod(syscall.event_id)
    enable = staticmethod(syscall.enable)
    disable = staticmethod(syscall.disable)
    set_period = staticmethod(syscall.set_period)
    more_files = staticmethod(syscall.more_files)
    ring = syscall.Ring
    close = staticmethod(os.close)
