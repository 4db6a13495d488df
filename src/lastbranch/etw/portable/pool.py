"""The shared memory of a session: a pool of slots and buffers for each process that writes.

::

    page 0           one word of the daemon, else zeros
    slot pages       one for each writer, of 64-bit words: its counters, and the ring of buffers for it
    buffers          WMI_BUFFER_HEADER and events, as in the file

Every process has a memfd of its own, so that no process can reach the events, counters or rings of another. All pools
of a session have the same layout, and a buffer number is used in one pool at a time. The sizes of the layout, its
geometry, are in a second memfd, which is sealed against writing (F_SEAL_WRITE).

The processes use no locks and no read-modify-write operations. Every word has one writer: the daemon puts buffers into
a ring; the writer finishes them in that order and counts them. A buffer's commit word, ``events << 32 | bytes``, is
stored after each event. A store of an aligned word is one instruction on every processor that Python runs on
(`memoryview` copies a fixed 8 bytes, which compilers turn into a move). x86-64 makes stores visible in their order: a
reader that sees a commit sees the event. Other processors (ARM) do not; there the daemon calls `read_barrier` after
reading commits and before reading events.

In buffering mode no buffer goes through a ring. Each writer has `Geometry.kept` buffers of its own, and takes the
oldest of them for its next events without asking anybody: a flight recorder, whatever the daemon does. The n-th buffer
that it fills, from 0, is n % kept of its own, and it clears the commit word of the next one before it counts one as
finished. So a reader that has copied buffer n, and then finds at most n + kept - 2 finished buffers, has a whole
buffer.

Memory that nobody has written to costs nothing, so a memfd has room for the largest pool that the session may get. The
daemon trusts nothing in it: a writer may be another program that stores anything anywhere. Whenever the daemon takes
buffers (`writers`), it compares its own words with what it stored, and checks each number of a writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from typing import TYPE_CHECKING, NamedTuple

from ...closing import on_failure
from ...formats.etl import BUFFER_HEADER, BUFFER_HEADER_SIZE, LogFileMode, offset_of
from ..status import EtwError, Status

if TYPE_CHECKING:
    from ..properties import SessionRequest

__all__ = [
    "ANY_PROCESSOR",
    "Attached",
    "BELL_AT",
    "COMMIT_AT",
    "DONE",
    "EVENT",
    "FULL",
    "LEAST_AHEAD",
    "LOST",
    "MOST_SLOTS",
    "PAGE",
    "REFUSED",
    "RING",
    "RING_SIZE",
    "SPARE",
    "Geometry",
    "Mapping",
    "geometry_for",
    "make_pool",
    "read_barrier",
]

PAGE = 4096
MOST_SLOTS = 1024
"""Most writers that a session has at a time."""
ANY_PROCESSOR = 0xFFFF
"""A writer leaves the choice of its ProcessorIndex to the daemon."""

FULL = 8
"""Word of page 0, stored by the daemon: 1 while a real-time backlog is full and no buffer gets free."""

# Words of a slot page. The writer's words and the daemon's words are in different cache lines.
DONE = 0
"""Stored by the writer: how many buffers it has finished."""
LOST = 1
"""Stored by the writer: events that it had no buffer for."""
REFUSED = 2
"""Stored by the writer's process: events of its threads that have no slot."""
BELL_AT = 8
"""Stored by the daemon: the value of `DONE` at which the writer rings the doorbell."""
RING = 256
"""Stored by the daemon: `RING_SIZE` entries ``number << 32 | buffer``; numbers begin at 1, and n is at (n - 1) %
`RING_SIZE`. An entry contains its number, so that the writer recognizes a stale one without a second counter. In
buffering mode the first entry is 1 for as long as the writer may go on."""
RING_SIZE = 256

COMMIT_AT = offset_of(BUFFER_HEADER, "Reserved")
"""Offset of the commit word in a buffer: the Reserved field of WMI_BUFFER_HEADER."""
EVENT = 1 << 32
"""The part of a commit word that counts events: one event."""

_MAGIC = b"LBPOOL2\0"
_GEOMETRY = struct.Struct("<8sIIIIIII")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_CONSTANT = _SEALS | fcntl.F_SEAL_WRITE
_BARRIER = {"aarch64": 283, "riscv64": 283, "ppc64le": 365}.get(os.uname().machine)
"""The system call membarrier, on machines whose processors may see stores out of order."""
_GLOBAL = 1


class Geometry(NamedTuple):
    """Layout of the pools: bytes of a buffer, numbers of buffers and slots; session, and clock (ClientContext)."""

    buffer_size: int
    buffers: int
    slots: int
    handle: int
    clock: int
    blocking: int = 0
    """1 if writers wait for a free buffer (BLOCKING_MODE) instead of losing events."""
    kept: int = 0
    """In buffering mode, how many buffers each writer has of its own; else 0. Buffers of slot s begin at s * kept."""

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
        """Bytes of events that fit into a buffer."""
        return self.buffer_size - BUFFER_HEADER_SIZE

    @property
    def is_possible(self) -> bool:
        """Whether the sizes agree with each other."""
        fits = 0 < self.slots <= MOST_SLOTS and 0 <= self.kept * self.slots <= self.buffers
        return fits and self.buffer_size % 1024 == 0 < self.capacity

    def pack(self) -> bytes:
        return _GEOMETRY.pack(_MAGIC, *self)

    def sealed(self) -> int:
        """A new memfd with the geometry, which nobody can change. Raises `EtwError` 8 if there is no memory."""
        return _memfd("lastbranch-geometry", self.pack(), _GEOMETRY.size, _CONSTANT)

    @classmethod
    def read(cls, fd: int) -> Geometry:
        """The geometry in ``fd``. Raises `EtwError` 13 for anything else, and if somebody could change it."""
        with contextlib.suppress(OSError):
            head = os.pread(fd, _GEOMETRY.size, 0)
            if len(head) == _GEOMETRY.size and _has_seals(fd, _CONSTANT):
                magic, *fields = _GEOMETRY.unpack(head)
                found = cls(*fields)
                if magic == _MAGIC and found.is_possible:
                    return found
        raise EtwError("attach", Status.INVALID_DATA, "not the geometry of a session's pools")


# -- how large pools are


LEAST_AHEAD = 2
"""Buffers that every writer has for any MaximumBuffers, as Windows has two for each processor."""
SPARE = 2
"""In buffering mode, buffers of a writer beyond MinimumBuffers: it may be about to begin the next but one while the
session copies."""
_MOST_ADDRESSES = 64 << 30  # bytes of a pool in buffering mode, most of which never get memory
_MOST_FOR_WRITERS = 4 << 30  # bytes of the pool beyond its clamp, for two buffers a writer
_LEAST_SLOTS = 64


def geometry_for(request: SessionRequest, handle: int, clock: int) -> Geometry:
    """The layout of the pools for ``request``, with room for the largest MaximumBuffers of a later update, or in
    buffering mode for MinimumBuffers of each writer: there MaximumBuffers does not count."""
    from .request import MEMORY_SHARE  # a provider, which asks for no session, does without its rules

    size = request.buffer_size * 1024
    if request.mode & LogFileMode.BUFFERING_MODE:
        kept = request.minimum_buffers + SPARE
        slots = max(_LEAST_SLOTS, min(MOST_SLOTS, _MOST_ADDRESSES // (kept * size)))
        return Geometry(size, kept * slots, slots, handle, clock, kept=kept)
    slots = max(_LEAST_SLOTS, min(MOST_SLOTS, _MOST_FOR_WRITERS // (LEAST_AHEAD * size)))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    buffers = max(request.maximum_buffers, memory // MEMORY_SHARE // size) + LEAST_AHEAD * slots
    return Geometry(size, buffers, slots, handle, clock, bool(request.mode & LogFileMode.BLOCKING_MODE))


class Attached(NamedTuple):
    """The answer to ATTACH. The descriptors of geometry, pool and doorbell come with it."""

    slot: int
    cpu: int
    """ProcessorIndex of its buffers."""


class Mapping:
    """The pool in ``fd``, mapped: ``memory`` are its bytes, ``words`` the same as unsigned 64-bit words.

    Raises `EtwError` 13 for a descriptor of another size or one that could shrink, 8 if there is no memory for it.
    """

    def __init__(self, fd: int, geometry: Geometry) -> None:
        self.geometry = geometry
        if os.fstat(fd).st_size < geometry.size or not _has_seals(fd, _SEALS):
            raise EtwError("attach", Status.INVALID_DATA, "not a pool of a session")
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
        """Return the memory of a buffer to the system, and lose its content."""
        begin = self.geometry.buffer(index)
        first, end = begin + -begin % mmap.PAGESIZE, (begin + self.geometry.buffer_size) & -mmap.PAGESIZE
        if first < end:
            with contextlib.suppress(OSError):  # without it, the system keeps the memory until the writer has gone
                self.memory.madvise(mmap.MADV_REMOVE, first, end - first)


def make_pool(geometry: Geometry) -> int:
    """A new pool: its descriptor, sealed against changes of size. Raises `EtwError` 8 if there is no memory for it."""
    return _memfd("lastbranch-pool", b"", geometry.size, _SEALS)


def _memfd(name: str, content: bytes, size: int, seals: int) -> int:
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with on_failure(os.close, fd):
            os.truncate(fd, size)
            os.pwrite(fd, content, 0)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
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


def read_barrier() -> None:
    """Order reads: stores that preceded, in another process, a store that was read before are visible afterwards.

    Calls membarrier(MEMBARRIER_CMD_GLOBAL) where processors may reorder stores.
    """
    if _BARRIER is not None:
        import ctypes

        ctypes.CDLL(None).syscall(_BARRIER, _GLOBAL, 0)
