"""The interface of the binder, for packages below `bind`: which mapping, process and thread an address belonged to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .batch import Array, SampleBatch
from .tables import Process, Thread
from .timeline import Load

__all__ = ["AddressSpaces"]


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
