"""Address spaces: where the kernel's addresses begin, and the interface of the binder for packages below `bind`.

64-bit systems that record branches give the kernel the upper half. 32-bit Windows does, too. 32-bit Linux has a
configured split (3 GiB for the user, or 1, 2 or 2.75; Arm's modules lie 16 MiB below). On a few machines (s390,
sparc64) the kernel has a whole space of its own. The place where the kernel was mapped shows which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .batch import Array, SampleBatch
from .tables import Process, Thread
from .timeline import KERNEL, Change, Load

__all__ = [
    "AddressSpaces",
    "KERNEL_HALF",
    "KERNEL_HALF_32",
    "guest_host",
    "guest_kernel",
    "guest_user",
    "kernel_map_start",
    "kernel_start",
    "kernel_starts",
]


# -- The kernel's part of the addresses, and the spaces of guests


KERNEL_HALF = 1 << 63
"""Addresses from here on belong to the kernel, on every 64-bit system that records branches."""
KERNEL_HALF_32 = 1 << 31
"""The same on 32-bit Windows."""
_PAGE = 0x1000
_GUEST_USERS = 1 << 32


def guest_kernel(machine: int) -> int:
    """The ``pid`` of a `Change` in the kernel of a guest: ``machine`` is the process of the host that runs it, 0 if not
    recorded.
    """
    return -2 - machine


def guest_user(pid: int) -> int:
    """The ``pid`` of a `Change` in a process inside a guest: ``pid`` is what samples of it have."""
    return guest_kernel(pid) - _GUEST_USERS


def guest_host(owner: int) -> int:
    """The process of the host that runs the guest of ``owner`` (of `guest_kernel`, `guest_user`); 0: not known."""
    return (-2 - owner) % _GUEST_USERS


def kernel_map_start(start: int, end: int, offset: int) -> int:
    """The true start of the kernel's mapping ``start:end``: an old recorder's mapping covers user space, too.

    ``offset`` is then the address of the kernel's first symbol.
    """
    if end >= KERNEL_HALF:
        return max(start, KERNEL_HALF)
    return offset & -_PAGE if start == 0 and offset < end else start


def kernel_starts(changes: Mapping[str, Array]) -> dict[int, int]:
    """The lowest kernel address of the host (`KERNEL`) and of each guest (`guest_kernel`), by the mappings of their
    kernels in ``changes`` (`Timeline.columns`): `KERNEL_HALF` where one of them lies there. Empty mappings say nothing:
    recorders write them of modules whose addresses they may not see."""
    pid, real = changes["pid"], changes["start"] < changes["end"]
    maps = np.flatnonzero((changes["kind"] == Change.MAP) & real & (pid <= KERNEL) & (pid > guest_user(0)))
    if not len(maps):
        return {}
    maps = maps[np.argsort(pid[maps], kind="stable")]
    owner, start, end, offset = (changes[name][maps] for name in ("pid", "start", "end", "offset"))
    start = np.where((start == 0) & (offset < end), offset & np.uint64(-_PAGE & (1 << 64) - 1), start)
    owners, first = np.unique(owner, return_index=True)
    low, high = np.minimum.reduceat(start, first), np.maximum.reduceat(end, first)
    starts = np.where(high >= np.uint64(KERNEL_HALF), np.uint64(KERNEL_HALF), low)
    return dict(zip(owners.tolist(), starts.tolist(), strict=True))


def kernel_start(changes: Mapping[str, Array]) -> int:
    """The lowest kernel address of the host; `KERNEL_HALF` where nothing is mapped in its kernel."""
    return kernel_starts(changes).get(KERNEL, KERNEL_HALF)


# -- Address spaces over time


class AddressSpaces(Protocol):
    """The address spaces of a profile over time, as `lastbranch.bind.Binder` answers for them."""

    processes: Sequence[Process]
    threads: Sequence[Thread]
    mapping_module: Array
    """int64: row of the modules table of each mapping."""
    mapping_bias: Array
    """uint64: module address = address - bias, of each mapping."""

    def scopes(self, batch: SampleBatch) -> NDArray[np.int64]:
        """int64 scope of each sample: a process life, while its mappings stay as they are, in one processor mode."""

    def process_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 row of the processes table for each scope, -1 unknown."""

    def weights_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64] | int:
        """The weight of each sample of these scopes (int64), or one number for all."""

    def threads_of(self, batch: SampleBatch, scope: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 row of the threads table for each sample, -1 unknown."""

    def find(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> NDArray[np.int64]:
        """int64 mapping that owns each address in each scope, -1 where nothing is mapped."""

    def in_kernel(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool: whether each address is one of the kernel of the machine that ran, the host or a guest."""

    def locate(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Array]:
        """(int64 module row or -1, uint64 module address) of each address; unmapped ones keep their own address."""

    def loads(self) -> Iterator[Load]:
        """Every mapping in every process that saw it; a mapping that a child inherits is the child's own."""
