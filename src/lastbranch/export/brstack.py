"""``--to brstack``: the text of ``perf script -F ip,brstack`` of perf 6.12, in time order.

A sample is one line: its address, then ``0xFROM/0xTO/mispredicted/in_tx/abort/cycles/type/spec`` for each entry, newest
first. Where call chains were recorded the frames come first, a line each (`docs/reference/brstack.md`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ..analysis.select import kept
from ..errors import NotRecordedError
from ..lbr import BRANCH_TYPES, NEW_TYPES, SPEC, branch_type, call_stack_mode, flag
from ..model import Profile, SampleBatch, SampleFilter, merge
from .cells import Cells, choice, constant, decimal, hexadecimal, join

__all__ = ["export"]

_CONTEXT_MAX = (1 << 64) - 4095
_CONTEXT_USER = (1 << 64) - 512
_MAX_FRAMES = 127
_TYPES = [n.upper().encode() if n not in ("unknown", "extended") else b"" for n in BRANCH_TYPES]
_TYPES += [n.upper().encode() for n in NEW_TYPES] + [b""] * (16 - len(NEW_TYPES))
_SPEC = [s.upper().encode() or b"-" for s in SPEC]
_PREDICTION = (b"-", b"M", b"P", b"P")  # by mispred | predicted << 1
_CHUNK = 256  # samples at a time: their text stays in the cache


def export(profile: Profile, out: IO[bytes], sample_filter: SampleFilter | None = None) -> list[str]:
    """Write every sample of ``profile`` that has a branch stack; returns what a user should be told.

    Raises `NotRecordedError` where no event has branch stacks.
    """
    streams = [s for s in profile.streams if "branch_from" in s.columns]
    if not streams:
        raise NotRecordedError("the capture has no branch stacks", hint="record them with `perf record -b`")
    columns = ("branch_from", "branch_to", "branch_flags", "frame")
    frames_from_stack = np.array(
        [e.branch_select is not None and call_stack_mode(e.branch_select_kind, e.branch_select) for e in profile.events]
    )
    batches = merge([s.batches(columns, ordered=True) for s in streams])
    for batch in kept(profile, batches, sample_filter):
        for part in batch.split(_CHUNK):
            if "frame" in part:
                out.write(b"".join(_with_frames(part, frames_from_stack)))
            else:
                out.write(_lines(part, address=True))
    left = profile.samples - sum(s.samples for s in streams)
    return [f"{left} samples of events without branch stacks are left out"] if left else []


def _lines(batch: SampleBatch, address: bool) -> bytes:
    """One line for each sample. A sample without entries takes a row too, for its address and line end."""
    depth = batch.depth
    rows = np.maximum(depth, 1)
    ends = np.cumsum(rows)
    starts = ends - rows
    real = np.ones(int(ends[-1]), bool)
    real[starts[depth == 0]] = False
    first, last = np.zeros(len(real), bool), np.zeros(len(real), bool)
    first[starts], last[ends - 1] = True, True

    def spread(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        whole = np.zeros(len(real), np.uint64)
        whole[real] = values
        return whole

    cells: list[Cells] = []
    if address:
        text, mask = hexadecimal(np.repeat(batch.ip, rows), pad=True)
        cells += [constant(b" ", first), (text, mask & first[:, None])]
    entry = _entry_cells(*(spread(batch[n]) for n in ("branch_from", "branch_to", "branch_flags")))
    cells += [(text, mask & real[:, None]) for text, mask in entry]
    cells.append(constant(b"\n", last))
    return join(cells)


def _entry_cells(source: NDArray[np.uint64], target: NDArray[np.uint64], flags: NDArray[np.uint64]) -> list[Cells]:
    every = np.ones(len(source), bool)
    slash = constant(b"/", every)
    return [
        constant(b" 0x", every), hexadecimal(source), constant(b"/0x", every), hexadecimal(target),
        slash, choice((flags & np.uint64(3)).astype(np.intp), _PREDICTION),
        slash, choice(flag(flags, "in_tx").astype(np.intp), (b"-", b"X")),
        slash, choice(flag(flags, "abort").astype(np.intp), (b"-", b"A")),
        slash, decimal(flag(flags, "cycles"), 5),
        slash, choice(branch_type(flags), _TYPES),
        slash, choice(flag(flags, "spec").astype(np.intp), _SPEC), constant(b" ", every),
    ]  # fmt: skip


def _with_frames(batch: SampleBatch, frames_from_stack: NDArray[np.bool_]) -> Iterator[bytes]:
    stacks = _lines(batch, address=False).split(b"\n")
    for i, event in enumerate(batch.event.tolist()):
        frames = _frames(batch, i, bool(frames_from_stack[event]))
        yield b"\n" + b"".join(b"\t%16x\n" % f for f in frames) + stacks[i] + b"\n"


def _frames(batch: SampleBatch, i: int, from_stack: bool) -> list[int]:
    """The frames of sample ``i``, leaf first, without context markers.

    In LBR call-stack mode the user frames are the branch stack's: where its newest call went, then each call site.
    """
    chain = batch.chain(i).tolist()
    if from_stack and _CONTEXT_USER in chain:
        chain = chain[: chain.index(_CONTEXT_USER)]
        source, target, _ = batch.stack(i)
        chain += target[:1].tolist() + source.tolist()
    return [f for f in chain if f < _CONTEXT_MAX][:_MAX_FRAMES]
