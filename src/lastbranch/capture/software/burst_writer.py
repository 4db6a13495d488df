"""Writes a burst: its records as branch rings of the recording's depth and filter deliver them."""

from __future__ import annotations

from collections.abc import Sequence

from ...lbr import CALL_STACK
from ..options import Options, Summary
from .bursts import Burst, BurstLimits
from .call_chains import CallChains
from .control_flow import CALLS, Edge
from .instructions import LONGEST
from .record_writer import BurstSample, RecordWriter, now
from .run_ahead import Foreseen
from .schedule import is_ring
from .successors import Successors
from .tree import Call, Thread

__all__ = ["BurstWriter"]


class BurstWriter:
    """Writes bursts to ``out`` and counts what it writes in ``summary``."""

    def __init__(
        self,
        options: Options,
        select: int,
        limits: BurstLimits,
        chains: CallChains,
        out: RecordWriter,
        summary: Summary,
    ) -> None:
        """``select`` is the ring's (MSR_LBR_SELECT notation)."""
        self._options, self._select, self._limits = options, select, limits
        self._chains, self._out, self._summary = chains, out, summary
        self._is_ring = is_ring(options, select)

    def write_call(self, thread: Thread, call: Call, when: int, code: Successors | None) -> None:
        burst = call.burst
        stack = self._records(burst.edges, self._call_lengths(burst, code))[-1] if burst.edges else []
        if stack:
            self._out.sample(
                BurstSample(when, thread.process.pid, thread.tid, call.cpu, burst.start, burst.end, 0), stack, call=True
            )
            self._summary.calls += 1

    def write_left_call(self, thread: Thread) -> None:
        """The thread is not in a recorded system call any more, or stopped in it for another reason."""
        call, thread.call = thread.call, None
        if call is not None and call.entered:
            self._out.sample(BurstSample(now(), thread.process.pid, thread.tid, call.cpu, 0, 0, 0), (), call=True)

    def write(self, thread: Thread, burst: Burst, when: int, weight: int, cpu: int, length: int) -> None:
        """All records of a burst, oldest first: they have its time and its start, and share its weight."""
        if isinstance(burst, Foreseen):
            if not self._is_ring:
                self._write_foreseen(thread, burst, when, weight, cpu)
                return
            burst.read_edges()
            self._chains.follow(thread, burst)
        else:
            self._chains.unwind(thread, burst)
        # The last stop may reveal more than `length`. A ring is read after exactly that many, since the newest that a
        # stop reveals is never a direct jump.
        kept = self._cut(burst.edges, length) if self._is_ring else burst.edges[-length:]
        records = self._records(kept, self._call_lengths(burst, thread.process.successors))
        last = len(records) - 1
        every, cut = len(burst.edges), self._is_ring and len(kept) < len(burst.edges)
        places = [len(kept), every] if cut else [every - self._options.depth * n for n in range(last, -1, -1)]
        chains = self._chains.of(burst.edges, places)[: len(records)]
        for number, (stack, frames) in enumerate(zip(records, chains, strict=True)):
            end = stack[0][1] if number < last else kept[-1][1] if cut else burst.end
            part = weight * (number + 1) // len(records) - weight * number // len(records)
            sample = BurstSample(when, thread.process.pid, thread.tid, cpu, burst.start, end, part)
            self._out.sample(sample, stack, frames)
            self._summary.branches += len(stack)
            self._summary.full += len(stack) == self._options.depth
        self._summary.bursts += 1

    def _write_foreseen(self, thread: Thread, burst: Foreseen, when: int, weight: int, cpu: int) -> None:
        depth, count, pid = self._options.depth, len(burst), thread.process.pid
        records = self._chains.records(thread, burst, depth)
        for number, (end, stacks) in enumerate(records):
            part = weight * (number + 1) // len(records) - weight * number // len(records)
            self._out.sample_packed(BurstSample(when, pid, thread.tid, cpu, burst.start, end, part), stacks)
        self._summary.branches += count
        self._summary.full += count // depth
        self._summary.bursts += 1

    def _cut(self, edges: list[Edge], length: int) -> list[Edge]:
        """The oldest of ``edges`` up to that with which ``length`` have passed the filter."""
        passed = 0
        for number, edge in enumerate(edges, 1):
            passed += self._limits.kinds >> edge[2] & 1
            if passed == length:
                return edges[:number]
        return edges

    def _call_lengths(self, burst: Burst, code: Successors | None) -> list[int]:
        """For call-stack mode, bytes of each branch of ``burst`` that may be a call of the next instruction, else 0."""
        if not self._select & CALL_STACK:
            return []
        if isinstance(burst, Foreseen):
            return burst.lengths
        return [_length_of_call(edge, code) for edge in burst.edges]

    def _records(self, edges: Sequence[Edge], lengths: Sequence[int]) -> list[list[Edge]]:
        """The branches of a burst as rings of the recording's depth and filter deliver them, each newest first.
        ``lengths``: `_call_lengths`, of ``edges`` and maybe more."""
        depth = self._options.depth
        if self._select & CALL_STACK:
            import numpy as np

            from ...lbr import ring_contents

            columns = (np.array(c, t) for c, t in zip(zip(*edges, strict=True), ("u8", "u8", "u1"), strict=True))
            length = np.array(lengths[: len(edges)], np.uint64)
            kept = ring_contents(*columns, depth=depth, select=self._select, length=length)
            return [[edges[i] for i in kept.tolist()]]
        counted = self._limits.counted  # for a filter this is faster
        newest_first = [edge for edge in reversed(edges) if edge[2] in counted]
        if self._is_ring:
            return [newest_first[:depth]]
        return [newest_first[at : at + depth] for at in range(0, len(newest_first), depth)][::-1]


def _length_of_call(edge: Edge, code: Successors | None) -> int:
    """Bytes of the instruction of a call that may be one of the next instruction; 0 for any other branch."""
    source, target, kind = edge
    if kind not in CALLS or not 0 < target - source <= LONGEST or code is None:
        return 0
    branch = code.line(source)
    return branch.length if branch is not None and branch.address == source else 0
