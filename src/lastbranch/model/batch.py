"""A batch: a few thousand samples as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, offsets_of, ranges, take_ranges
from .columns import BRANCH, ENTRY, FRAME, REQUIRED, column

__all__ = [
    "Array",
    "EntriesInPlace",
    "MAX_ENTRIES",
    "MAX_SAMPLES",
    "SampleBatch",
    "SampleFilter",
    "concatenate",
    "cuts",
]


MAX_SAMPLES = 4096
MAX_ENTRIES = 128 * 1024
"""Largest batch that readers make. Larger blocks were slower and took twice the memory."""


_Index = Array | slice


@dataclass(slots=True)
class EntriesInPlace:
    """Branch entries where the reader found them: ``words`` (uint64) of its buffer, in which the newest entry of each
    sample is at word ``first`` (int64). An entry is the words from, to, flags; the next older one follows."""

    words: NDArray[np.uint64]
    first: NDArray[np.int64]

    def columns(self, depth: NDArray[np.int64]) -> dict[str, Array]:
        """Copied out as columns, where each sample has ``depth`` entries."""
        entries = take_ranges(self.words, self.first, depth * len(ENTRY)).reshape(-1, len(ENTRY))
        return {name: entries[:, word] for word, name in enumerate(ENTRY)}


class SampleBatch:
    """Columns of at most `MAX_SAMPLES` samples, in the order of their stream.

    ``batch["time"]`` is a column by the name that `lastbranch.model.columns` declares; required columns are attributes,
    too. Ragged groups have ``offsets``: sample *i* owns values ``offsets[g][i]:offsets[g][i + 1]``. Arrays may be views
    into one buffer; copy what should outlive the next batch.

    Batches of `SampleStream.stacks` can have their branch entries ``in_place``: ``columns`` has all of them once any
    was asked for by name.
    """

    __slots__ = ("columns", "in_place", "offsets")

    def __init__(
        self,
        columns: Mapping[str, Array],
        offsets: Mapping[str, NDArray[np.int64]] | None = None,
        in_place: EntriesInPlace | None = None,
    ) -> None:
        self.columns: dict[str, Array] = dict(columns)
        self.offsets: dict[str, NDArray[np.int64]] = dict(offsets or {})
        self.in_place = in_place

    def __len__(self) -> int:
        return len(self.columns["time"])

    def __getitem__(self, name: str) -> Array:
        if self.in_place is not None and name in ENTRY and name not in self.columns:
            self.columns |= self.in_place.columns(self.depth)
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __repr__(self) -> str:
        return f"SampleBatch({len(self)} samples, {self.entries} branch entries, columns {sorted(self.columns)})"

    @property
    def time(self) -> NDArray[np.int64]:
        return self.columns["time"]

    @property
    def ip(self) -> NDArray[np.uint64]:
        return self.columns["ip"]

    @property
    def pid(self) -> NDArray[np.int32]:
        return self.columns["pid"]

    @property
    def tid(self) -> NDArray[np.int32]:
        return self.columns["tid"]

    @property
    def cpu(self) -> NDArray[np.int32]:
        return self.columns["cpu"]

    @property
    def event(self) -> NDArray[np.int32]:
        return self.columns["event"]

    @property
    def period(self) -> NDArray[np.uint64]:
        return self.columns["period"]

    @property
    def mode(self) -> NDArray[np.uint8]:
        return self.columns["mode"]

    @property
    def entries(self) -> int:
        """Number of branch entries in the batch; 0 where it has none."""
        offsets = self.offsets.get(BRANCH)
        return 0 if offsets is None else int(offsets[-1])

    @property
    def depth(self) -> NDArray[np.int64]:
        """int64, a sample: number of branch entries."""
        offsets = self.offsets.get(BRANCH)
        return np.zeros(len(self), np.int64) if offsets is None else np.diff(offsets)

    def stack(self, i: int) -> tuple[Array, Array, Array]:
        """``(from, to, flags)`` of sample ``i``, uint64, newest first."""
        lo, hi = self.offsets[BRANCH][i : i + 2]
        return self["branch_from"][lo:hi], self["branch_to"][lo:hi], self["branch_flags"][lo:hi]

    def chain(self, i: int) -> Array:
        """uint64 call chain of sample ``i`` as recorded, context markers included."""
        lo, hi = self.offsets[FRAME][i : i + 2]
        return self["frame"][lo:hi]

    def select(self, rows: Array) -> SampleBatch:
        """The samples ``rows`` (a bool mask, or indices in the wanted order) as a new batch, ragged values included."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        offsets: dict[str, NDArray[np.int64]] = {}
        index: dict[str, _Index] = {"sample": rows}
        for group, old in self.offsets.items():
            length = old[1:][rows] - old[:-1][rows]
            offsets[group] = offsets_of(length)
            index[group] = ranges(old[:-1][rows], length)
        return self._index(index, offsets)

    def split(self, samples: int = MAX_SAMPLES) -> Iterator[SampleBatch]:
        """The batch in pieces of at most ``samples`` samples (views, no copy)."""
        for lo in range(0, len(self), samples):
            yield self.slice(lo, min(lo + samples, len(self)))

    def slice(self, lo: int, hi: int) -> SampleBatch:
        """Samples ``lo:hi`` as views into this batch's arrays."""
        offsets = {g: o[lo : hi + 1] - o[lo] for g, o in self.offsets.items()}
        index: dict[str, _Index] = {g: slice(o[lo], o[hi]) for g, o in self.offsets.items()}
        return self._index({"sample": slice(lo, hi), **index}, offsets)

    def replaced(self, **columns: Array) -> SampleBatch:
        """The batch with other ``columns`` in the place of its own, or beside them."""
        return SampleBatch({**self.columns, **columns}, self.offsets, self.in_place)

    def _index(self, index: dict[str, _Index], offsets: dict[str, NDArray[np.int64]]) -> SampleBatch:
        """A batch of the values of each group at its ``index``."""
        columns = {n: values[index[column(n).group]] for n, values in self.columns.items()}
        if self.in_place is None:
            return SampleBatch(columns, offsets)
        return SampleBatch(columns, offsets, replace(self.in_place, first=self.in_place.first[index["sample"]]))


def cuts(ends: NDArray[np.int64], limit: int) -> Iterator[tuple[int, int]]:
    """Runs ``(first, past)`` of at most `MAX_SAMPLES` samples whose sizes add up to ``limit``, or of one larger sample.

    ``ends`` int64: running sum of the samples' sizes, in any unit.
    """
    lo = 0
    while lo < len(ends):
        before = int(ends[lo - 1]) if lo else 0
        hi = int(np.searchsorted(ends, before + limit, side="right"))
        hi = max(lo + 1, min(hi, lo + MAX_SAMPLES))
        yield lo, hi
        lo = hi


def concatenate(batches: list[SampleBatch]) -> SampleBatch:
    """One batch of all ``batches``, which must have the same columns (batches of one stream have)."""
    if len(batches) == 1:
        return batches[0]
    names = [c.name for c in REQUIRED] if not batches else list(batches[0].columns)
    columns = {
        name: np.concatenate([b.columns[name] for b in batches]) if batches else np.empty(0, column(name).dtype)
        for name in names
    }
    offsets = {}
    for group in batches[0].offsets if batches else ():
        lengths = [np.diff(b.offsets[group]) for b in batches]
        offsets[group] = offsets_of(np.concatenate(lengths))
    return SampleBatch(columns, offsets)


# -- Which samples are wanted


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """Keep samples of these pids, tids and events (empty: all) with ``first <= time < last`` in clock ticks.

    ``modules`` are rows of the modules table. They need binding, so `analysis` applies them: to the address of a
    sample, or to both ends of a branch.
    """

    pids: frozenset[int] = frozenset()
    tids: frozenset[int] = frozenset()
    events: frozenset[int] = frozenset()
    first: int | None = None
    last: int | None = None
    modules: frozenset[int] = frozenset()

    @property
    def by_columns(self) -> bool:
        """Whether anything but ``modules`` is selected."""
        return bool(self.pids or self.tids or self.events or self.first is not None or self.last is not None)

    def __bool__(self) -> bool:
        return self.by_columns or bool(self.modules)

    def __call__(self, batch: SampleBatch) -> SampleBatch:
        """``batch`` itself if every row is wanted (but for ``modules``), else a smaller batch."""
        if not self.by_columns:
            return batch
        keep = np.ones(len(batch), bool)
        for ids, wanted in ((batch.pid, self.pids), (batch.tid, self.tids), (batch.event, self.events)):
            if wanted:
                keep &= np.isin(ids, list(wanted))
        if self.first is not None:
            keep &= batch.time >= self.first
        if self.last is not None:
            keep &= batch.time < self.last
        return batch if keep.all() else batch.select(keep)
