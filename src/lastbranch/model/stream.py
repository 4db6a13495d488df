"""A stream: the samples of one record layout, read anew for each iteration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from .batch import SampleBatch
from .columns import ENTRY, column
from .order import by_time
from .timeline import Timeline

__all__ = [
    "IN_PLACE",
    "BatchDrawer",
    "BatchReader",
    "BlockReader",
    "Progress",
    "SampleStream",
    "StackWatcher",
    "Stages",
    "no_progress",
]

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
"""Given the wanted optional columns (``None``: all), yields ``(batch, watermark)`` in file order (see `order`)."""


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
        arriving = self._watched(self.reader(None if columns is None else frozenset(columns)))
        if ordered:
            return by_time(arriving)
        return (batch for batch, _ in arriving)

    def stacks(self) -> Iterator[SampleBatch]:
        """The stream in file order, of the optional columns those of branch entries: `ENTRY`.

        Batches can be ``in_place``, in a buffer of the reader, which saves a copy, if each batch is used only until the
        next batch.
        """
        return (batch for batch, _ in self._watched(self.reader(frozenset((*ENTRY, IN_PLACE)))))

    def _watched(self, arriving: Iterator[tuple[SampleBatch, int]]) -> Iterator[tuple[SampleBatch, int]]:
        done = 0
        for batch, watermark in arriving:
            yield batch, watermark
            done += len(batch)
            if self.progress is not None:
                self.progress(done, self.samples)
