"""perf_event_open(2) through ctypes: attributes, counters, and ring buffers of records.

Numbers: Linux include/uapi/linux/perf_event.h. Attributes have the 136 bytes of PERF_ATTR_SIZE_VER8; older kernels
accept them while the fields that they do not know are 0.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import struct
import time
from _thread import allocate_lock
from collections.abc import Callable

from ...errors import UnavailableError
from ...formats.perfdata.layout import ATTR_FIELDS, ATTR_FLAGS, TYPE

__all__ = [
    "CLOCK",
    "CPU_CLOCK",
    "FLAG",
    "Ring",
    "USER_ONLY",
    "attribute",
    "disable",
    "enable",
    "event_id",
    "modify",
    "more_files",
    "open_event",
    "read_count",
    "set_filter",
    "set_period",
    "signal_thread",
    "sparing",
]


_NR_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_FLAG_FD_CLOEXEC = 8
CLOCK = time.CLOCK_MONOTONIC
"""Clock of all records."""
CPU_CLOCK = {"type": int(TYPE.SOFTWARE), "config": 0}
"""PERF_COUNT_SW_CPU_CLOCK: an hrtimer, which every machine has."""

_UNSET = {name: 0 for name, _ in ATTR_FIELDS if name != "config4"}
_ATTR = struct.Struct("=" + "".join(code for name, code in ATTR_FIELDS if name in _UNSET))

FLAG = {name: 1 << bit for bit, name in enumerate(ATTR_FLAGS)}
"""The bit field of perf_event_attr."""
USER_ONLY = FLAG["exclude_kernel"] | FLAG["exclude_hv"]

_ENABLE, _DISABLE = 0x2400, 0x2401
_PERIOD, _SET_OUTPUT, _ID, _MODIFY = 0x40082404, 0x2405, 0x80082407, 0x4008240B
_FILTER = 0x40082406
_F_SETSIG, _F_SETOWN_EX, _F_OWNER_TID = 10, 15, 0
_HEAD, _TAIL = 1024, 1032
"""Offsets of data_head and data_tail in struct perf_event_mmap_page."""

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def attribute(flags: int, **fields: int) -> bytes:
    """struct perf_event_attr with these `ATTR_FIELDS`, the others 0. A breakpoint has bp_addr in ``config1`` and bp_len
    in ``config2``. Raises `struct.error` for an unknown field."""
    values = _UNSET | {"size": _ATTR.size, "flags": flags} | fields
    return _ATTR.pack(*values.values())


def open_event(attr: bytes, tid: int, cpu: int = -1, group: int = -1) -> int:
    """A file descriptor that counts on thread ``tid`` (-1: everything on ``cpu``), in the group of the event ``group``.

    Raises the kernel's `OSError`.
    """
    number = _NR_PERF_EVENT_OPEN.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"perf_event_open: no known system call number for {os.uname().machine}")
    fd: int = _syscall(number, ctypes.c_char_p(attr), tid, cpu, group, _FLAG_FD_CLOEXEC)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"perf_event_open: {os.strerror(code)}")
    return fd


def signal_thread(fd: int, tid: int, signal: int) -> None:
    """Make each overflow send ``signal`` to ``tid``, with the descriptor in its siginfo (``si_code`` POLL_IN). 0: send
    none."""
    others = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_ASYNC
    if signal:
        fcntl.fcntl(fd, _F_SETSIG, signal)
        fcntl.fcntl(fd, _F_SETOWN_EX, struct.pack("=ii", _F_OWNER_TID, tid))
    fcntl.fcntl(fd, fcntl.F_SETFL, others | os.O_ASYNC if signal else others)


def read_count(fd: int) -> int:
    """The count of an event, opened without read_format or with LOST alone; of a clock event, ns of CPU time."""
    return int.from_bytes(os.read(fd, 16)[:8], "little")


def enable(fd: int) -> None:
    fcntl.ioctl(fd, _ENABLE, 0)


def disable(fd: int) -> None:
    fcntl.ioctl(fd, _DISABLE, 0)


def more_files() -> bool:
    """Raise this process's soft limit of open descriptors to the hard one; whether that allows more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True


_SPARE, _LAST = 16, 4
"""Descriptors for what is open for a moment only, and those of them without which nothing of /proc can be read."""


def sparing(fd: int, *, useful: bool = False) -> int:
    """``fd``, a new descriptor that shall stay open. Raises `OSError` EMFILE where few others are left then, and closes
    it; one that is ``useful`` may take all but the last ones. The kernel gives the lowest number that is free."""
    if fd < resource.getrlimit(resource.RLIMIT_NOFILE)[0] - (_LAST if useful else _SPARE):
        return fd
    os.close(fd)
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def set_period(fd: int, period: int) -> None:
    fcntl.ioctl(fd, _PERIOD, struct.pack("=Q", period))


def modify(fd: int, attr: bytes) -> None:
    """Change a breakpoint event, such as its address (Linux 4.17)."""
    fcntl.ioctl(fd, _MODIFY, attr)


def set_filter(fd: int, text: str) -> None:
    """Record only the samples of a tracepoint for which ``text`` holds. Source: Documentation/trace/events.rst."""
    fcntl.ioctl(fd, _FILTER, text.encode() + b"\0")


def event_id(fd: int) -> int:
    """The id in the event's records."""
    return int.from_bytes(fcntl.ioctl(fd, _ID, bytes(8)), "little")


_FENCE = allocate_lock()
_FENCE.acquire()


def _order() -> None:
    """A memory barrier: earlier reads and writes happen before later ones, also on processors that reorder. Releases
    and then acquires a lock."""
    _FENCE.release()
    _FENCE.acquire()


class Ring:
    """The ring buffer of one processor, mapped from its first event. Others write into it after `share`."""

    def __init__(self, fd: int, pages: int) -> None:
        """``pages`` (a power of two) of data. Raises `UnavailableError` where the kernel locks no more memory for this
        user."""
        self.fd = fd
        self._size = pages * mmap.PAGESIZE
        try:
            self._map = mmap.mmap(fd, self._size + mmap.PAGESIZE)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOMEM):
                raise
            hint = "raise kernel.perf_event_mlock_kb, or end other recordings"
            raise UnavailableError(f"no memory for a ring buffer of {pages} pages: {error}", hint=hint) from error

    def share(self, fd: int) -> None:
        """Have the event ``fd`` of the same processor write into this ring."""
        fcntl.ioctl(fd, _SET_OUTPUT, self.fd)

    def drain(self, write: Callable[[bytes], object]) -> int:
        """Pass the new records, all whole, to ``write``; the number of bytes."""
        head, tail = struct.unpack_from("=QQ", self._map, _HEAD)
        if head == tail:
            return 0
        _order()
        start, end = tail % self._size, head % self._size
        base = mmap.PAGESIZE
        if start < end:
            write(self._map[base + start : base + end])
        else:
            write(self._map[base + start : base + self._size] + self._map[base : base + end])
        _order()
        struct.pack_into("=Q", self._map, _TAIL, head)
        return int(head - tail)

    def close(self) -> None:
        self._map.close()
