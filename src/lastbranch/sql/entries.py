"""Samples and what they hold, batch after batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..analysis import how_to_record, why_no_stacks
from ..errors import NotRecordedError
from ..lbr import branch_type, flag, flag_known, type_name
from ..model import BRANCH, FRAME, Array, SampleBatch, column
from .database import Chunk
from .schema import UNKNOWN

if TYPE_CHECKING:
    from .loading import Loading

__all__ = ["GROUP_OF", "TYPE_NAMES", "entries", "samples"]

GROUP_OF = {
    "branches": BRANCH, "frames": FRAME, "counters": "read", "user_registers": "user_regs",
    "interrupt_registers": "intr_regs",
}  # fmt: skip
"""Table -> group of ragged columns that it shows."""

TYPE_NAMES = np.array([None, *(type_name(code) for code in range(1, 256))], object)
"""Names of the types of branches by their code; 0 is that of records that do not tell."""


def samples(loading: Loading, wanted: frozenset[str]) -> Iterator[Chunk]:
    """The table ``samples``."""
    profile = loading.profile
    first = 0
    for stream in profile.streams:
        needed = {name for name in wanted if name in stream.columns}
        if "depth" in wanted:
            needed.update(stream.for_depth)
        for batch in stream.batches(needed):
            made = _Samples(loading, batch, first, stream.number)
            yield {name: value for name in wanted | {"sample"} if (value := made.column(name)) is not None}
            first += len(batch)


def entries(loading: Loading, table: str, wanted: frozenset[str]) -> Iterator[Chunk]:
    """A table of what samples hold several of. Raises `NotRecordedError` where no sample can have any."""
    profile, group = loading.profile, GROUP_OF[table]
    if group == BRANCH and (reason := why_no_stacks(profile)):
        raise NotRecordedError(reason, hint=how_to_record(profile))
    own = {c for stream in profile.streams for c in stream.columns if column(c).group == group}
    if not own:
        raise NotRecordedError(f"there is nothing in the table {table}: the samples have no {_WHAT[table]}")
    needed = {_FROM.get(name, name) for name in wanted} & own or {min(own)}
    first = 0
    for stream in profile.streams:
        mine = needed & set(stream.columns)
        if not mine:
            first += stream.samples
            continue
        for batch in stream.batches(mine):
            if group in batch.offsets and batch.offsets[group][-1]:
                made = _Entries(loading, batch, first, stream.number, group)
                yield {name: value for name in wanted | {"sample"} if (value := made.column(name)) is not None}
            first += len(batch)


_WHAT = {
    "branches": "branch stacks", "frames": "call chains", "counters": "counter values",
    "user_registers": "user registers", "interrupt_registers": "registers",
}  # fmt: skip
_FROM = {
    **{f"from_{part}": "branch_from" for part in ("module", "address", "function")},
    **{f"to_{part}": "branch_to" for part in ("module", "address", "function")},
    **dict.fromkeys(("module", "address", "function"), "frame"),
    **dict.fromkeys(("mispredicted", "predicted", "in_tx", "abort", "cycles", "type"), "branch_flags"),
}
"""Column that is made here -> recorded column that it is made from."""


@dataclass
class _Samples:
    """Columns of a batch: the recorded ones, and those of `_MADE`."""

    loading: Loading
    batch: SampleBatch
    first: int
    stream: int

    def column(self, name: str) -> Array | None:
        """``None`` for what the batch does not have."""
        make = _MADE.get(name)
        return make(self) if make else self.batch.columns.get(name)

    @cached_property
    def scope(self) -> NDArray[np.int64]:
        return self.loading.binder.scopes(self.batch)

    @cached_property
    def process(self) -> NDArray[np.int64]:
        return self.loading.binder.process_of(self.scope)

    @cached_property
    def place(self) -> tuple[Array, Array]:
        return self.loading.binder.locate(self.scope, self.batch.ip)

    @property
    def time_ns(self) -> NDArray[np.int64]:
        profile = self.loading.profile
        return profile.clock.to_ns_array(self.batch.time - (profile.start or 0))


_MADE: dict[str, Callable[[_Samples], Array]] = {
    "sample": lambda s: np.arange(s.first, s.first + len(s.batch)),
    "stream": lambda s: np.full(len(s.batch), s.stream),
    "time_ns": lambda s: s.time_ns,
    "process": lambda s: s.process,
    "thread": lambda s: s.loading.binder.threads_of(s.batch, s.scope),
    "module": lambda s: s.place[0],
    "address": lambda s: s.place[1],
    "function": lambda s: s.loading.functions(s.process, *s.place),
    "depth": lambda s: s.batch.depth,
}


@dataclass
class _Entries:
    """Columns of the entries of a batch in ``group``."""

    loading: Loading
    batch: SampleBatch
    first: int
    stream: int
    group: str

    def column(self, name: str) -> Array | None:
        """``None`` for what the batch does not have."""
        if name in _OF_ENTRY:
            return _OF_ENTRY[name](self)
        source, _, part = _FROM.get(name, ""), *name.rpartition("_")[1:]
        if name in ("event", "process", "thread"):
            of_sample = self.samples.column(name) if name != "event" else self.batch.event
            assert of_sample is not None
            return np.asarray(of_sample[self.owner])
        if source == "branch_flags":
            return _flag_column(name, self.batch[source]) if source in self.batch else None
        if source:
            return self._place(source, part)
        return self.batch.columns.get(name)

    @cached_property
    def samples(self) -> _Samples:
        return _Samples(self.loading, self.batch, self.first, self.stream)

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """Sample of each entry, by its row in the batch."""
        return np.repeat(np.arange(len(self.batch)), np.diff(self.batch.offsets[self.group]))

    @cached_property
    def _places(self) -> dict[str, tuple[Array, Array]]:
        return {}

    def _place(self, source: str, part: str) -> Array | None:
        if source not in self.batch:
            return None
        if source not in self._places:
            self._places[source] = self.loading.binder.locate(self.samples.scope[self.owner], self.batch[source])
        module, address = self._places[source]
        if part == "function":
            return self.loading.functions(self.samples.process[self.owner], module, address)
        return module if part == "module" else address


_OF_ENTRY: dict[str, Callable[[_Entries], Array]] = {
    "sample": lambda e: e.owner + e.first,
    "position": lambda e: np.arange(len(e.owner)) - e.batch.offsets[e.group][e.owner],
}


def _flag_column(name: str, flags: Array) -> Array:
    match name:
        case "mispredicted" | "predicted":
            field = "mispred" if name == "mispredicted" else name
            return np.where(flag_known(flags, field), flag(flags, field), UNKNOWN).astype(np.uint8)
        case "cycles":
            return flag(flags, "cycles").view(np.int64)
        case "type":
            return np.asarray(TYPE_NAMES[branch_type(flags)])
        case _:
            return flag(flags, name).astype(bool)
