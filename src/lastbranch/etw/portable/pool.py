"""The shared memory of a session: for each process that writes, a pool with slots and buffers.

::

    page 0           a word of the daemon's, else zeros
    slot pages       one a writer, of 64-bit words: its counters, and the ring of buffers that it is given
    buffers          WMI_BUFFER_HEADER and events, as they will stand in the file

Every process has a memfd of its own, so that no process can reach the events, the counters or the rings of another.
All pools of a session have the same layout, and a buffer number is in use in one of them at a time. How large
everything is, the geometry, is in a second memfd that nobody can write to: it is sealed (F_SEAL_WRITE).

Between the processes there are no locks and no read-modify-write operations. Every word has one writer: the daemon
gives buffers in a ring, the writer finishes them in that order and counts how many. What a buffer holds is one word of
its header, the commit word ``events << 32 | bytes``, stored after the event. A store of an aligned word is one
instruction on every processor that Python runs on (`memoryview` copies a fixed 8 bytes, which compilers make a move).
x86-64 makes stores visible in their order, so that who sees a commit sees the event. Elsewhere (ARM) it does not; there
the daemon calls `settle` between reading commits and reading events.

Memory that nobody has written to costs nothing, so a memfd has room for the largest pool that the session may get.
Nothing in it is believed: a writer may be another program, and put anything anywhere. The daemon compares its own words
with what it stored whenever it takes buffers (`slots`, `writers`), and checks each number of a writer's.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from typing import NamedTuple

from ...formats.etl.layout import BUFFER_HEADER_SIZE
from ..status import EtwError, Status

__all__ = [
    "ANY_PROCESSOR", "Attached", "BELL_AT", "COMMIT_AT", "DONE", "EVENT", "FULL", "LOST", "MOST_SLOTS", "PAGE",
    "REFUSED", "RING", "RING_SIZE", "Geometry", "Mapping", "make_pool", "settle",
]  # fmt: skip

PAGE = 4096
MOST_SLOTS = 1024
"""Writers of a session at a time."""
ANY_PROCESSOR = 0xFFFF
"""A writer asks for no ProcessorIndex of its own choice."""

FULL = 8
"""Word of page 0. Daemon: 1 while the backlog of a session in real time is full, so that no buffer becomes free."""

# Words of a slot page. The writer's and the daemon's have cache lines of their own.
DONE = 0
"""Writer: how many buffers it has finished."""
LOST = 1
"""Writer: events that it had no buffer for."""
REFUSED = 2
"""Writer's process: events of its threads that got no slot of their own."""
BELL_AT = 8
"""Daemon: the value of `DONE` at which the writer is to ring the doorbell."""
RING = 256
"""Daemon: `RING_SIZE` entries ``number << 32 | buffer``, the one of number n at (n - 1) % `RING_SIZE`; from 1.

An entry says its own number, so that a stale one is known without a second counter."""
RING_SIZE = 256

COMMIT_AT = 0x38
"""Of a buffer: the commit word lies where WMI_BUFFER_HEADER has its Reserved field."""
EVENT = 1 << 32
"""One event in a commit word."""

_MAGIC = b"LBPOOL1\0"
_GEOMETRY = struct.Struct("<8sIIIIII")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_CONSTANT = _SEALS | fcntl.F_SEAL_WRITE
_BARRIER = {"aarch64": 283, "riscv64": 283, "ppc64le": 365}.get(os.uname().machine)
"""The system call membarrier where other processors may see stores out of order, which x86-64 and s390x never do."""
_GLOBAL = 1


class Geometry(NamedTuple):
    """Sizes of the pools: bytes of a buffer, how many buffers and slots; the session, its clock (ClientContext)."""

    buffer_size: int
    buffers: int
    slots: int
    handle: int
    clock: int
    blocking: int = 0
    """1 if writers wait for a free buffer (BLOCKING_MODE) instead of losing events."""

    @property
    def size(self) -> int:
        """Bytes of a whole pool."""
        return PAGE * (1 + self.slots) + self.buffer_size * self.buffers

    def slot(self, number: int) -> int:
        """Word index of a slot."""
        return PAGE * (1 + number) // 8

    def buffer(self, index: int) -> int:
        """Byte offset of a buffer."""
        return PAGE * (1 + self.slots) + self.buffer_size * index

    @property
    def capacity(self) -> int:
        """Bytes of events that a buffer takes."""
        return self.buffer_size - BUFFER_HEADER_SIZE

    def pack(self) -> bytes:
        return _GEOMETRY.pack(_MAGIC, *self)

    def sealed(self) -> int:
        """A new descriptor to read the geometry from, which nobody can change. `EtwError` 8 if there is no memory."""
        return _memfd("lastbranch-geometry", self.pack(), _GEOMETRY.size, _CONSTANT)

    @classmethod
    def read(cls, fd: int) -> Geometry:
        """The geometry in ``fd``. `EtwError` 13 for anything else, and where somebody could change it."""
        with contextlib.suppress(OSError):
            head = os.pread(fd, _GEOMETRY.size, 0)
            if len(head) == _GEOMETRY.size and _has_seals(fd, _CONSTANT):
                magic, *fields = _GEOMETRY.unpack(head)
                found = cls(*fields)
                if magic == _MAGIC and found.slots <= MOST_SLOTS and found.buffer_size % 1024 == 0 < found.capacity:
                    return found
        raise EtwError("attach", Status.INVALID_DATA, "this is no geometry of a session's pools")


class Attached(NamedTuple):
    """The answer to a writer that attaches, beside the descriptors of geometry, pool and doorbell."""

    slot: int
    cpu: int
    """ProcessorIndex of its buffers."""


class Mapping:
    """The pool in ``fd`` in this process's memory: ``memory`` its bytes, ``words`` the same as unsigned 64-bit words.

    `EtwError` 13 for a descriptor of another size, or one that could become smaller, 8 if there is no memory for it.
    """

    def __init__(self, fd: int, geometry: Geometry) -> None:
        self.geometry = geometry
        if os.fstat(fd).st_size < geometry.size or not _has_seals(fd, _SEALS):
            raise EtwError("attach", Status.INVALID_DATA, "this is no pool of a session")
        try:
            self.memory = mmap.mmap(fd, self.geometry.size)
        except (OSError, ValueError, OverflowError) as error:
            reason = f"{self.geometry.size} bytes cannot be mapped: {error}"
            raise EtwError("attach", Status.NOT_ENOUGH_MEMORY, reason) from error
        if hasattr(mmap, "MADV_DONTDUMP"):
            self.memory.madvise(mmap.MADV_DONTDUMP)
        self.bytes = memoryview(self.memory)
        self.words = self.bytes.cast("Q")

    def forget(self, index: int) -> None:
        """Give the memory of a buffer back to the system. What is in it is gone."""
        begin = self.geometry.buffer(index)
        first, end = begin + -begin % mmap.PAGESIZE, (begin + self.geometry.buffer_size) & -mmap.PAGESIZE
        if first < end:
            with contextlib.suppress(OSError):  # a system without it keeps the memory until the writer has gone
                self.memory.madvise(mmap.MADV_REMOVE, first, end - first)


def make_pool(geometry: Geometry) -> int:
    """A new pool: its descriptor, sealed against every change of size. `EtwError` 8 if there is no memory for it."""
    return _memfd("lastbranch-pool", b"", geometry.size, _SEALS)


def _memfd(name: str, content: bytes, size: int, seals: int) -> int:
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(fd, size)
            os.pwrite(fd, content, 0)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise EtwError(
            "StartTrace", Status.NOT_ENOUGH_MEMORY, f"no memory of {size} bytes to share: {error}"
        ) from error
    return fd


def _has_seals(fd: int, seals: int) -> bool:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals
    except OSError:  # it is no memfd
        return False


def settle() -> None:
    """What other processes stored before what has been read here is visible after this.

    Where the processor may reorder stores: membarrier(MEMBARRIER_CMD_GLOBAL), after which the memory accesses of every
    running thread are in program order.
    """
    if _BARRIER is not None:
        import ctypes

        ctypes.CDLL(None).syscall(_BARRIER, _GLOBAL, 0)
