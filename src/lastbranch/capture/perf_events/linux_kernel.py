"""The interface of recorders to the running kernel and its files: a class, which tests replace with a model machine."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import subprocess
from collections.abc import Iterable
from functools import cache

from ...binaries import read_image
from ...errors import LastbranchError
from ...model import OpenFile
from .. import ptrace
from ..procfs import open_regular
from . import syscall

__all__ = ["Kernel"]

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same on all architectures
_CREATE = 6  # FSCONFIG_CMD_CREATE
_CLOEXEC = 1  # of fsopen and fsmount


@cache
def _private_tracefs() -> str | None:
    """The folder of a tracefs that this process has mounted for itself; ``None`` if it may not, which takes
    CAP_SYS_ADMIN. The mount has no place in the tree of files (Linux 5.2), and ends with its descriptor."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    context = call(_FSOPEN, b"tracefs", _CLOEXEC)
    if context < 0:
        return None
    try:
        if call(_FSCONFIG, context, _CREATE, None, None, 0) < 0:
            return None
        mount = call(_FSMOUNT, context, _CLOEXEC, 0)
        return f"/proc/self/fd/{mount}" if mount >= 0 else None
    finally:
        os.close(context)


class Kernel:
    """Calls raise `OSError`; reads of /proc and /sys return nothing for what cannot be read."""

    def __init__(self) -> None:
        names = os.uname()
        self.release, self.machine = names.release, names.machine
        """``uname -r`` and ``uname -m``."""

    def data(self, path: str) -> bytes | None:
        """The contents of a file."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError:
            return None

    def text(self, path: str) -> str | None:
        """The contents of a file as text, without white space at the end."""
        data = self.data(path)
        return None if data is None else data.decode("utf-8", "surrogateescape").rstrip()

    def names(self, path: str) -> list[str]:
        """The sorted names in a folder."""
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def link(self, path: str) -> str | None:
        """The target of a symbolic link."""
        try:
            return os.readlink(path)
        except OSError:
            return None

    def trace_child(self) -> None:
        """Start, trace and end a process."""
        child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
        try:
            ptrace.seize(child.pid, ptrace.EXITKILL)
        except ptrace.Gone as gone:
            raise OSError(errno.ESRCH, "the process to trace has ended") from gone
        finally:
            child.kill()
            child.wait()

    def lost(self, fd: int) -> int:
        """Records that did not fit the ring, for an event opened with read_format LOST alone."""
        return int.from_bytes(os.read(fd, 16)[8:16], "little")  # u64 value, lost

    def read_count(self, fd: int) -> int:
        """`syscall.read_count`."""
        return syscall.read_count(fd)

    def counts(self, fd: int) -> bool:
        """Whether a pinned event, opened without read_format, and its group have their counters."""
        return bool(os.read(fd, 8))

    def wait(self, fds: Iterable[int], seconds: float) -> set[int]:
        """Wait until a ring reaches its wakeup, at most ``seconds``; the events whose tasks have all ended."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        return {fd for fd, what in poll.poll(seconds * 1000) if what & select.POLLHUP}

    def build_id(self, path: str) -> bytes:
        """The build id of the binary at ``path``; empty where there is no such file, or it has none."""
        try:
            with open_regular(path) as file:
                return read_image(OpenFile(file, path)).build_id or b""
        except (OSError, LastbranchError):
            return b""

    def inode(self, path: str) -> int | None:
        """The number of the file at ``path``; ``None`` where there is none."""
        try:
            return os.stat(path).st_ino
        except (OSError, ValueError):
            return None

    open_event = staticmethod(syscall.open_event)
    event_id = staticmethod(syscall.event_id)
    enable = staticmethod(syscall.enable)
    disable = staticmethod(syscall.disable)
    set_period = staticmethod(syscall.set_period)
    set_filter = staticmethod(syscall.set_filter)
    private_tracefs = staticmethod(_private_tracefs)
    more_files = staticmethod(syscall.more_files)
    ring = syscall.Ring
    close = staticmethod(os.close)
