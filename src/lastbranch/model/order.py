"""Time order over batches that arrive in file order, in bounded memory.

A reader knows for each batch a *watermark*: no later batch of its stream holds an earlier time. Samples at or below the
watermark can go out; later samples wait. If too much waits it is sorted and spilled to a temporary file, and the sorted
runs are merged at the end. Equal times stay in file order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np
from numpy.typing import NDArray

from .atomic_output import temporary_file
from .batch import MAX_SAMPLES, Array, SampleBatch, concatenate

__all__ = ["SPILL_BYTES", "by_time", "merge", "watermarks"]

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
            if not waiting and not runs and _sorted(batch) and batch.time[-1] <= watermark:
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


def _sorted(batch: SampleBatch) -> bool:
    return bool((batch.time[1:] >= batch.time[:-1]).all())


def _bytes(batch: SampleBatch) -> int:
    return sum(a.nbytes for a in batch.columns.values()) + sum(a.nbytes for a in batch.offsets.values())


def _sort(batches: list[SampleBatch]) -> SampleBatch:
    whole = concatenate(batches)
    return whole if _sorted(whole) else whole.select(np.argsort(whole.time, kind="stable"))


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
