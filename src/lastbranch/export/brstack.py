"""``--to brstack``: the text of ``perf script -F ip,brstack`` of perf 6.12, in time order.

A sample is one line: its address, then ``0xFROM/0xTO/mispredicted/in_tx/abort/cycles/type/spec`` for each entry, newest
first. If call chains were recorded, the frames come first, one a line (`docs/reference/brstack.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ..analysis import filtered_batches, how_to_record
from ..errors import NotRecordedError
from ..lbr import BRANCH_TYPES, NEW_TYPES, SPEC, branch_type, call_stack_mode, flag
from ..model import BRANCH, Profile, SampleBatch, counted
from .binary_choice import limit_to_binary
from .interface import ExportOptions, ExportResult

__all__ = ["CONTEXT_MAX", "EntryText", "export", "with_frames"]

CONTEXT_MAX = (1 << 64) - 4095
"""The lowest value that is a context marker (PERF_CONTEXT_MAX), and no frame."""
_CONTEXT_USER = (1 << 64) - 512
_MAX_FRAMES = 127
_TYPES = [n.upper().encode() if n not in ("unknown", "extended") else b"" for n in BRANCH_TYPES]
_TYPES += [n.upper().encode() for n in NEW_TYPES] + [b""] * (16 - len(NEW_TYPES))
_SPEC = [s.upper().encode() or b"-" for s in SPEC]
_PREDICTION = b"-MPP"  # by mispred | predicted << 1
_REMEMBERED = 1 << 18


def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write every sample of ``profile`` that has a branch stack.

    Raises `NotRecordedError` where no event has branch stacks.
    """
    streams = [s for s in profile.streams if "branch_from" in s.columns]
    if not streams:
        raise NotRecordedError("the capture has no branch stacks", hint=how_to_record(profile))
    columns = ("branch_from", "branch_to", "branch_flags", "frame")
    frames_from_stack = np.array(
        [e.branch_select is not None and call_stack_mode(e.branch_select_kind, e.branch_select) for e in profile.events]
    )
    text, samples = EntryText(), 0
    batches = profile.batches(columns, ordered=True, having="branch_from")
    for batch in filtered_batches(profile, batches, limit_to_binary(profile, options)):
        lines = text.lines(batch)
        samples += len(batch)
        if "frame" in batch:
            out.writelines(with_frames(_chains(batch, frames_from_stack), lines))
        else:
            out.writelines(b" %16x%s\n" % row for row in zip(batch.ip.tolist(), lines, strict=True))
    left = profile.samples - sum(s.samples for s in streams)
    notes = [f"{counted(left, 'sample')} of events without branch stacks left out"] if left else []
    return ExportResult(notes, samples, samples)


class _Memory(dict[int, bytes]):
    """Text of values, made when it is first asked for: a capture has few distinct addresses and flag words."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        self._make = make

    def __missing__(self, value: int) -> bytes:
        if len(self) > _REMEMBERED:
            self.clear()
        text = self[value] = self._make(value)
        return text


class EntryText:
    def __init__(self) -> None:
        self._source = _Memory(lambda a: b" 0x%x/0x" % a)
        self._target = _Memory(lambda a: b"%x/" % a)
        self._flags = _Memory(_flag_text)

    def lines(self, batch: SampleBatch) -> list[bytes]:
        """The branch stack of each sample, without an end of line."""
        columns = zip(
            map(self._source.__getitem__, batch["branch_from"].tolist()),
            map(self._target.__getitem__, batch["branch_to"].tolist()),
            map(self._flags.__getitem__, batch["branch_flags"].tolist()),
            strict=True,
        )
        parts = list(chain.from_iterable(columns))
        return [b"".join(parts[3 * lo : 3 * hi]) for lo, hi in pairwise(batch.offsets[BRANCH].tolist())]


def _flag_text(word: int) -> bytes:
    flags = np.array([word], np.uint64)
    in_tx, abort, cycles, spec = (int(flag(flags, n)[0]) for n in ("in_tx", "abort", "cycles", "spec"))
    kind = _TYPES[int(branch_type(flags)[0])]
    fields = (_PREDICTION[word & 3], b"-X"[in_tx], b"-A"[abort], cycles, kind, _SPEC[spec])
    return b"%c/%c/%c/%d/%s/%s " % fields


def with_frames(chains: Iterable[list[int]], lines: Iterable[bytes]) -> Iterator[bytes]:
    """The text of samples with the call chains ``chains``, leaf first, and the branch stacks ``lines``."""
    for frames, line in zip(chains, lines, strict=True):
        yield b"\n" + b"".join(b"\t%16x\n" % f for f in frames) + line + b"\n"


def _chains(batch: SampleBatch, frames_from_stack: NDArray[np.bool_]) -> Iterator[list[int]]:
    for i, event in enumerate(batch.event.tolist()):
        yield _frames(batch, i, bool(frames_from_stack[event]))


def _frames(batch: SampleBatch, i: int, from_stack: bool) -> list[int]:
    """The frames of sample ``i``, leaf first, without context markers.

    In LBR call-stack mode the user frames are the branch stack's: where its newest call went, then each call site.
    """
    chain = batch.chain(i).tolist()
    if from_stack and _CONTEXT_USER in chain:
        chain = chain[: chain.index(_CONTEXT_USER)]
        source, target, _ = batch.stack(i)
        chain += target[:1].tolist() + source.tolist()
    return [f for f in chain if f < CONTEXT_MAX][:_MAX_FRAMES]
