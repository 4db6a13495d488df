"""A stream: the samples of one record layout, read anew for each iteration, in file order or in time order.

Time order over batches that arrive in file order takes bounded memory. A reader knows for each batch a *watermark*: no
later batch of its stream holds an earlier time. Samples at or below the watermark can go out; later samples wait. If
too much waits it is sorted and spilled to a temporary file, and the sorted runs are merged at the end. Equal times stay
in file order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from .atomic_output import temporary_file
from .batch import MAX_SAMPLES, Array, SampleBatch, concatenate
from .columns import ENTRY, column
from .timeline import Timeline

__all__ = [
    "BatchDrawer",
    "BatchReader",
    "BlockReader",
    "IN_PLACE",
    "Progress",
    "SPILL_BYTES",
    "SampleStream",
    "StackWatcher",
    "Stages",
    "by_time",
    "merge",
    "no_progress",
    "watermarks",
]


# -- Time order


SPILL_BYTES = 64 << 20
"""Default limit of what waits in memory, in bytes of columns."""


def by_time(arriving: Iterator[tuple[SampleBatch, int]], *, spill_bytes: int = SPILL_BYTES) -> Iterator[SampleBatch]:
    """The batches of one stream, sorted by time.

    ``arriving`` yields ``(batch, watermark)``. Memory stays near ``spill_bytes`` whatever the disorder; a temporary
    file takes the rest.
    """
    waiting: list[SampleBatch] = []
    waiting_bytes = 0
    runs: list[IO[bytes]] = []
    try:
        for batch, watermark in arriving:
            if not len(batch):
                continue
            if not waiting and not runs and _is_sorted(batch) and batch.time[-1] <= watermark:
                yield batch
                continue
            waiting.append(batch)
            waiting_bytes += _bytes(batch)
            if not runs and watermark >= min(int(b.time.min()) for b in waiting):
                whole = _sort(waiting)
                ready = int(np.searchsorted(whole.time, watermark, side="right"))
                yield from whole.slice(0, ready).split()
                rest = whole.select(np.arange(ready, len(whole)))
                waiting, waiting_bytes = ([rest], _bytes(rest)) if len(rest) else ([], 0)
            if waiting_bytes > spill_bytes:
                runs.append(_spill(_sort(waiting)))
                waiting, waiting_bytes = [], 0
        parts = [_unspill(run) for run in runs]
        if waiting:
            parts.append(_sort(waiting).split())
        yield from merge(parts)
    finally:
        for run in runs:
            run.close()


def merge(parts: list[Iterator[SampleBatch]]) -> Iterator[SampleBatch]:
    """Merge iterators of batches that are each sorted by time; at equal times the earlier iterator goes first."""
    heads: list[tuple[SampleBatch, Iterator[SampleBatch]]] = []
    for part in parts:
        batch = next(part, None)
        if batch is not None:
            heads.append((batch, part))
    while heads:
        i = min(range(len(heads)), key=lambda k: int(heads[k][0].time[0]))
        batch, part = heads[i]
        ready = len(batch)
        for k, (other, _) in enumerate(heads):
            if k != i:
                side = "left" if k < i else "right"
                ready = min(ready, int(np.searchsorted(batch.time, other.time[0], side=side)))  # type: ignore[call-overload]
        yield batch.slice(0, ready)
        following = batch.slice(ready, len(batch)) if ready < len(batch) else next(part, None)
        if following is None:
            del heads[i]
        else:
            heads[i] = (following, part)


def _is_sorted(batch: SampleBatch) -> bool:
    return bool((batch.time[1:] >= batch.time[:-1]).all())


def _bytes(batch: SampleBatch) -> int:
    return sum(a.nbytes for a in batch.columns.values()) + sum(a.nbytes for a in batch.offsets.values())


def _sort(batches: list[SampleBatch]) -> SampleBatch:
    whole = concatenate(batches)
    return whole if _is_sorted(whole) else whole.select(np.argsort(whole.time, kind="stable"))


def _spill(batch: SampleBatch) -> IO[bytes]:
    """A temporary file of pieces: number of arrays, then each array with its name before it, in NumPy's own format."""
    run = temporary_file()  # lives until the merge has read it
    for piece in batch.split(MAX_SAMPLES):
        arrays = piece.columns | {_OFFSETS + g: o for g, o in piece.offsets.items()}
        for name in arrays:
            np.save(run, np.array(name))
            np.save(run, arrays[name])
        np.save(run, np.array(_END))
    return run


_OFFSETS, _END = "offsets:", "end"


def _unspill(run: IO[bytes]) -> Iterator[SampleBatch]:
    end = run.tell()
    run.seek(0)
    columns: dict[str, Array] = {}
    offsets: dict[str, NDArray[np.int64]] = {}
    while run.tell() < end:
        name = str(np.load(run))
        if name == _END:
            yield SampleBatch(columns, offsets)
            columns, offsets = {}, {}
        elif name.startswith(_OFFSETS):
            offsets[name.removeprefix(_OFFSETS)] = np.load(run)
        else:
            columns[name] = np.load(run)


def watermarks(earliest: Sequence[int]) -> NDArray[np.int64]:
    """For each block of samples, the earliest time in all later blocks, from the ``earliest`` time in each block."""
    times = np.array([*earliest, np.iinfo(np.int64).max], np.int64)
    return np.minimum.accumulate(times[::-1])[::-1][1:]


# -- Streams


Progress = Callable[[int, int], None]
"""Called with (done, in all): bytes of a file, or samples."""
Stages = Callable[[str], AbstractContextManager[Progress | None]]
"""Begins a stage of something that takes long, by its name; what the ``with`` block gets is called meanwhile."""


def no_progress(_stage: str) -> nullcontext[None]:
    """The `Stages` that nobody watches."""
    return nullcontext()


IN_PLACE = "in place"
"""Beside the columns of branch entries: a `BatchReader` may leave these where they are."""
BatchReader = Callable[[frozenset[str] | None], Iterator[tuple[SampleBatch, int]]]
"""Given the wanted optional columns (``None``: all), yields ``(batch, watermark)`` in file order (see `by_time`)."""


BatchDrawer = Callable[[int, frozenset[str] | None], Iterator[SampleBatch]]
"""Given how many places, and the wanted optional columns: batches from places all over the stream, at equal distances,
without reading what lies between."""
BlockReader = Callable[[Collection[int]], Iterator[tuple[int, SampleBatch]]]
"""Given numbers of blocks, as a `StackWatcher` saw them: (number, batch as of `SampleStream.stacks`) in their order; a
block can come in several batches."""


class StackWatcher(Protocol):
    """Sees the branch stacks when a reader indexes a file, which saves reading them again.

    Not all is known then: what follows in the file can say that mappings changed before. `SampleStream.blocks` reads
    some blocks again. A reader that knows nothing of watchers leaves them without any batch.
    """

    def add(self, batch: SampleBatch, block: int, first: int, last: int, known: Timeline) -> None:
        """All samples of a block, of times from ``first`` to ``last``. ``batch`` is as of `SampleStream.stacks`, with
        the columns time, ip, pid, event and mode at least. ``known`` is the timeline up to the end of the block."""

    def end(self, whole: bool) -> None:
        """The index is complete. ``whole``: all samples were seen, each once. Readers without progress do not call
        it."""


@dataclass(slots=True)
class SampleStream:
    """Samples that share one record layout (TB5's data stream: ``columns`` are its data descriptors).

    Nothing is kept in memory: `batches` reads the file anew.
    """

    number: int
    columns: tuple[str, ...]
    """Every column that its batches can have."""
    events: tuple[int, ...]
    """Rows of the events table that it has samples of."""
    samples: int
    entries: int
    """Branch entries in all."""
    deepest: int
    """The deepest branch stack."""
    reader: BatchReader
    for_depth: tuple[str, ...] = ("branch_from",)
    """What to ask `batches` for where only the depths of the branch stacks matter: nothing, if they come anyway."""
    capture: int = 0
    """Row of the captures table."""
    drawer: BatchDrawer | None = None
    """``None`` where the file can only be read from its front."""
    blocks: BlockReader | None = None
    """``None`` where the file can only be read from its front."""
    progress: Progress | None = None
    """Called with (samples read, samples in all) while `batches` goes on."""

    def batches(self, columns: Collection[str] | None = None, *, ordered: bool = False) -> Iterator[SampleBatch]:
        """Iterate over the stream in file order, or by time.

        ``columns`` names the wanted optional columns (``None``: all); required columns are always present.
        ``ordered=True`` sorts by time in bounded memory, spilling to a temporary file where the disorder is large.
        Raises `KeyError` for a name that `COLUMNS` does not declare; a column that the stream lacks is just absent.
        """
        for name in columns or ():
            column(name)
        arriving = self._watch(self.reader(None if columns is None else frozenset(columns)))
        if ordered:
            return by_time(arriving)
        return (batch for batch, _ in arriving)

    def stacks(self) -> Iterator[SampleBatch]:
        """The stream in file order, of the optional columns those of branch entries: `ENTRY`.

        Batches can be ``in_place``, in a buffer of the reader, which saves a copy, if each batch is used only until the
        next batch.
        """
        return (batch for batch, _ in self._watch(self.reader(frozenset((*ENTRY, IN_PLACE)))))

    def _watch(self, arriving: Iterator[tuple[SampleBatch, int]]) -> Iterator[tuple[SampleBatch, int]]:
        done = 0
        for batch, watermark in arriving:
            yield batch, watermark
            done += len(batch)
            if self.progress is not None:
                self.progress(done, self.samples)
