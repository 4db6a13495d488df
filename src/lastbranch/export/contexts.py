"""Ranges and branches of a module by calling context, from samples with a branch stack and a call chain.

The call chain is that of the newest branch. Going back from it, branch by branch, undoes what each of them did to the
stack: before a call there was a frame less, before a return a frame more. So each range between two branches, and each
branch, has a stack of its own (llvm-profgen calls this virtual unwinding; its rules are followed to the letter where
they decide what is counted).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import numpy as np

from ..analysis.branch_kinds import kinds_table
from ..analysis.sample_filtering import filtered_batches
from ..arrays import distinct, interval_of, numbered, offsets_of, take_rows
from ..binaries import SegmentFlags
from ..errors import NotRecordedError, UnavailableError
from ..isa import UNDECODABLE, Decoder
from ..model import FRAME, Array, Profile, SampleBatch, SampleFilter, word
from ..opening import code_of
from ..symbols import FunctionTable
from .brstack import CONTEXT_MAX

__all__ = ["OUTSIDE", "CodeMap", "Context", "Contexts", "Pair", "count_contexts", "without_repeats"]

OUTSIDE = 1
"""Address of everything that is not code of the module."""

Context = tuple[int, ...]
"""Addresses of the calls that led to a function, outermost first."""
Pair = tuple[int, int]


@dataclass(slots=True)
class Contexts:
    """How often each range and each branch was executed, by the context of the function that it is in.

    All addresses are link addresses. A branch to the outside, or from there, is in no context.
    """

    ranges: dict[Context, Counter[Pair]] = field(default_factory=dict)
    branches: dict[Context, Counter[Pair]] = field(default_factory=dict)
    samples: int = 0
    """Samples that were counted."""
    recorded: int = 0
    """Samples with a branch from or to the module."""
    unset: int = 0
    """Of these, samples taken in the first or last two instructions of a function, where the chain lacks a frame."""
    cut: int = 0
    """Chains that end at a return address which no call precedes."""
    bare: int = 0
    """Samples without a chain: their address is all there is."""


_CALLS = kinds_table("call", "ind_call")
_RETURNS = kinds_table("ret")
_LEAVES = kinds_table("uncond", "call", "ind_call", "ret")
"""What no range leads across. An indirect jump may go to the next instruction."""


class CodeMap:
    """The instructions of the functions of a module, decoded when one of their addresses is looked up.

    What is between two functions belongs to the first: a call that does not return can be the last of its function.
    ``own`` bool: functions of the table that the compiler made, whose first instructions build a frame.
    """

    def __init__(self, profile: Profile, row: int, table: FunctionTable, own: Array) -> None:
        module = profile.modules[row]
        code = code_of(module)
        if code is None:
            raise UnavailableError(f"the code of {word(module.name)} cannot be read")
        self._code, self._start, self._own, self._decoder = code, table.start, own, Decoder(code.arch)
        self._until = np.append(table.start[1:], table.end[-1:])[: len(table)]
        self._decoded = np.zeros(len(table), bool)
        for section in code.image.sections:
            if section.flags & SegmentFlags.EXECUTE:
                end = np.uint64(section.vaddr + section.size)
                inside = (table.start >= np.uint64(section.vaddr)) & (table.start < end)
                self._until[inside] = np.minimum(np.append(table.start[1:], end)[: len(table)], end)[inside]
                if section in code.image.linkage_stubs:
                    self._decoded |= inside
        self.address = np.empty(0, np.uint64)
        """uint64, ascending: first bytes of instructions."""
        self._length, self._kind = np.empty(0, np.uint64), np.empty(0, np.uint8)
        self._leaving = self._unset = np.empty(0, np.uint64)

    def know(self, address: Array) -> None:
        """Decode the functions that these addresses (uint64) are in, or just past."""
        rows = distinct(interval_of(self._start, self._until, np.concatenate([address, address - np.uint64(1)])))
        rows = rows[rows >= 0]
        rows = rows[~self._decoded[rows]]
        if not len(rows):
            return
        self._decoded[rows] = True
        start, size = self._start[rows], (self._until[rows] - self._start[rows]).astype(np.int64)
        found, _ = self._decoder.classify(*self._code.read_many(start, size), start, size)
        good = found.kind != UNDECODABLE
        address = np.concatenate([self.address, found.address[good]])
        order = np.argsort(address, kind="stable")
        self.address = address[order]
        self._length = np.concatenate([self._length, found.length[good].astype(np.uint64)])[order]
        self._kind = np.concatenate([self._kind, found.kind[good]])[order]
        self._leaving = self.address[_LEAVES[self._kind]]
        returns = np.flatnonzero(_RETURNS[self._kind])
        heads = np.searchsorted(self.address, self._start[self._decoded & self._own])
        rows = np.concatenate([heads, heads + 1, returns, returns - 1])
        self._unset = distinct(self.address[rows[(rows >= 0) & (rows < len(self.address))]])

    def row(self, address: Array) -> Array:
        """int64: which instruction begins at each address, -1 where none does."""
        if not len(self.address):
            return np.full(len(address), -1, np.int64)
        row = np.minimum(np.searchsorted(self.address, address), len(self.address) - 1)
        return np.where(self.address[row] == address, row, -1)

    def kind(self, address: Array) -> Array:
        """uint8 branch type of the instruction at each address, 0 where there is none."""
        row = self.row(address)
        return np.where(row >= 0, self._kind[row] if len(self._kind) else 0, 0)

    def call_before(self, address: Array) -> Array:
        """uint64: the call that ends where each address begins, 0 if what ends there is none; `OUTSIDE` stays."""
        if not len(self.address):
            return np.where(address == OUTSIDE, address, np.uint64(0))
        row = np.maximum(np.searchsorted(self.address, address) - 1, 0)
        found = self.address[row]
        is_call = (found + self._length[row] == address) & _CALLS[self._kind[row]]
        return np.where(address == OUTSIDE, address, np.where(is_call, found, np.uint64(0)))

    def straight(self, start: Array, end: Array) -> Array:
        """bool: no branch that always leaves is from ``start`` on before ``end``."""
        first, past = np.searchsorted(self._leaving, start), np.searchsorted(self._leaving, end)
        return np.asarray((start <= end) & (first >= past))

    def frame_unset(self, address: Array) -> Array:
        """bool: addresses at which a function's own frame is not yet, or no longer there."""
        return np.isin(address, self._unset)


def count_contexts(profile: Profile, module: int, code: CodeMap, sample_filter: SampleFilter | None) -> Contexts:
    """The contexts of what was executed in ``module``, from one pass over the samples.

    Raises `NotRecordedError` where no sample has both branches and a call chain.
    """
    streams = [s for s in profile.streams if "branch_from" in s.columns and "frame" in s.columns]
    if not streams:
        hint = "record with --call-graph (perf: --call-graph fp -b)"
        raise NotRecordedError("the capture has no call chains with its branch stacks", hint=hint)
    unwinder, found = _Unwinder(), Contexts()
    for stream in streams:
        batches = stream.batches(("branch_from", "branch_to", "frame"))
        for batch in filtered_batches(profile, batches, sample_filter):
            unwinder.unwind(*_prepared(profile, module, code, batch, found, unwinder.numbers))
    unwinder.into(found)
    return found


# -- What a sample says: the chain that it starts with, and steps back


Step = tuple[int, int, int, int, int]
"""A branch and the range after it, in numbers: how (below), the range's end, source, target (the range's start), and
the call that ends at the target."""

_NONE, _STRAIGHT, _BROKEN = 0, 1, 2
"""The range: of the newest branch or all outside; one to count; one that cannot have been executed."""
_RANGE = 3
_CALL, _RETURN, _OTHER = 0, 4, 8
"""Added to that: what the branch does to the stack."""


def _prepared(
    profile: Profile, module: int, code: CodeMap, batch: SampleBatch, found: Contexts, known: dict[tuple[int, ...], int]
) -> tuple[Array, Array, Array, Array]:
    """(uint64 frames, leaf first, and int64 offsets of each sample's; int64 numbers of its steps, newest first, and
    their offsets) of the samples that can be unwound. All are counted in ``found``, steps numbered in ``known``."""
    scope, every = profile.binder.scopes(batch), np.arange(len(batch))
    owner = np.repeat(every, batch.depth)
    source, target = (_inside(profile, module, scope[owner], batch[name]) for name in ("branch_from", "branch_to"))
    frame, chains, bare = _chains(batch)
    frame = _inside(profile, module, np.repeat(scope, np.diff(chains)), frame)
    code.know(distinct(np.concatenate([source, target, frame])))
    source, target, frame = (np.where(code.row(a) >= 0, a, np.uint64(OUTSIDE)) for a in (source, target, frame))
    kept = (source != OUTSIDE) | (target != OUTSIDE)
    source, target, owner = source[kept], target[kept], owner[kept]
    steps = numbered(known, *_steps(code, source, target, owner))
    ends = offsets_of(np.bincount(owner, minlength=len(batch)))
    leaf, touched = frame[chains[:-1]], np.diff(ends) > 0
    unset = touched & code.frame_unset(leaf)
    rows = np.flatnonzero(touched & ~unset)
    found.recorded += int(touched.sum())
    found.unset += int(unset.sum())
    found.samples += len(rows)
    found.bare += int(bare[rows].sum())
    calls, chains = take_rows(code.call_before(frame), chains, rows)
    calls, chains, cut = _shortened(calls, chains, leaf[rows], target[ends[rows]])
    found.cut += cut
    return (calls, chains, *take_rows(steps, ends, rows))


def _shortened(calls: Array, chains: Array, leaf: Array, target: Array) -> tuple[Array, Array, int]:
    """(calls, offsets of each sample's, how many were cut) of chains that end at a frame which no call precedes, with
    one frame for several outside in a row, and none outside at the end. The first frame is where the newest branch
    went; it was ``leaf``."""
    owner, first = np.repeat(np.arange(len(leaf)), np.diff(chains)), chains[:-1]
    calls[first] = leaf
    before = np.append(np.uint64(0), calls[:-1])[: len(calls)]
    later = np.ones(len(calls), bool)
    later[first] = False
    stops = np.cumsum(later & (calls == 0))
    stopped = stops - np.append(0, stops)[first][owner] > 0
    kept = ~stopped & ~(later & (calls == OUTSIDE) & (before == OUTSIDE))
    calls[first] = target
    cut = int((np.bincount(owner[stopped], minlength=len(leaf)) > 0).sum())
    calls, owner = calls[kept], owner[kept]
    chains = offsets_of(np.bincount(owner, minlength=len(leaf)))
    last = chains[1:] - 1
    ends_outside = last[(calls[last] == OUTSIDE) & (np.diff(chains) > 1)]
    left = np.ones(len(calls), bool)
    left[ends_outside] = False
    return calls[left], offsets_of(np.bincount(owner[left], minlength=len(leaf))), cut


def _chains(batch: SampleBatch) -> tuple[Array, Array, Array]:
    """(uint64 frames, int64 offsets of each sample's, bool samples that have none: their own address stands there)."""
    every = np.arange(len(batch))
    owner, known = np.repeat(every, np.diff(batch.offsets[FRAME])), batch["frame"] < CONTEXT_MAX
    owner = owner[known]
    bare = np.bincount(owner, minlength=len(batch)) == 0
    owner = np.concatenate([owner, every[bare]])
    order = np.argsort(owner, kind="stable")
    frame = np.concatenate([batch["frame"][known], batch.ip[bare]])[order]
    return frame, offsets_of(np.bincount(owner, minlength=len(batch))), bare


def _inside(profile: Profile, module: int, scope: Array, address: Array) -> Array:
    """uint64 module addresses, `OUTSIDE` for those in none or another one."""
    row, at = profile.binder.locate(scope, address)
    return np.where(row == module, at, np.uint64(OUTSIDE))


def _steps(code: CodeMap, source: Array, target: Array, owner: Array) -> tuple[Array, ...]:
    """The columns of `Step` for the branches of samples ``owner``."""
    newest = np.append(True, owner[1:] != owner[:-1])[: len(owner)]
    end = np.where(newest, np.uint64(0), np.append(np.uint64(0), source[:-1])[: len(source)])
    before, behind = target == OUTSIDE, end == OUTSIDE
    good = ~before & ~behind & code.straight(target, end)
    how = np.where(newest | (before & behind), _NONE, np.where(good, _STRAIGHT, _BROKEN))
    kind, call = code.kind(source), code.call_before(target)
    from_outside = source == OUTSIDE
    is_call = _CALLS[kind] | (from_outside & (call == 0))
    is_return = _RETURNS[kind] | (from_outside & (call != 0))
    how += np.where(is_call, _CALL, np.where(is_return, _RETURN, _OTHER))
    return how, end, source, target, call


# -- Going back


_ROOT = 0


class _Unwinder:
    """Replays branches backwards. Stacks are nodes of a tree, each with the address of its last frame, so a stack is a
    number; what a step does to a stack is worked out once, then looked up."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, ...], int] = {}
        """The number of each `Step`."""
        self._steps: list[tuple[int, ...]] = []
        self._parent, self._address = [_ROOT], [0]
        self._children: dict[Pair, int] = {}
        self._after: dict[int, int] = {}
        self._times: Counter[int] = Counter()
        """Of each stack and step: times 2**32 the stack, plus the number of the step."""

    def unwind(self, calls: Array, chains: Array, steps: Array, ends: Array) -> None:
        """Take in samples, as `_prepared` has them: all of them frame by frame, then step by step."""
        self._steps += islice(self.numbers, len(self._steps), None)
        rows, place = np.unique(calls, return_inverse=True)
        addresses, depth = rows.tolist(), np.diff(chains)
        state = np.zeros(len(depth), np.int64)
        for k in range(int(depth.max(initial=0))):  # the outermost frame is the last one
            deep = np.flatnonzero(depth > k)
            keys, which = np.unique(state[deep] << 32 | place[chains[1:][deep] - 1 - k], return_inverse=True)
            nodes = [self._child(key >> 32, addresses[key & 0xFFFFFFFF]) for key in keys.tolist()]
            state[deep] = np.array(nodes, np.int64)[which]
        state <<= 1
        depth, after, times = np.diff(ends), self._after, self._times
        for k in range(int(depth.max(initial=0))):
            deep = np.flatnonzero(depth > k)
            keys, which, number = np.unique(
                state[deep] << 32 | steps[ends[:-1][deep] + k], return_inverse=True, return_counts=True
            )
            following = []
            for key, n in zip(keys.tolist(), number.tolist(), strict=True):
                times[key] += n
                found = after.get(key)
                if found is None:
                    found = after[key] = self._before(key >> 32, self._steps[key & 0xFFFFFFFF])
                following.append(found)
            state[deep] = np.array(following, np.int64)[which]

    def _child(self, node: int, address: int) -> int:
        found = self._children.get((node, address))
        if found is None:
            found = self._children[node, address] = len(self._parent)
            self._parent.append(node)
            self._address.append(address)
        return found

    def _before(self, state: int, step: tuple[int, ...]) -> int:
        """The stack before a step. The lowest bit: the stack was lost, and only its last frame is known."""
        how, _, source, _, call = step
        leaf, parent = state >> 1, self._parent[state >> 1]
        if state & 1 or how & _RANGE == _BROKEN:
            return self._child(_ROOT, source) << 1 | 1
        does = how & ~_RANGE
        if does == _CALL and parent != _ROOT and self._address[parent] == source:
            return parent << 1
        if does == _RETURN:
            leaf = self._child(parent, call)
            return self._child(leaf, source) << 1
        return self._child(parent, source) << 1

    def into(self, found: Contexts) -> None:
        """Add up ranges and branches by context."""
        contexts: dict[int, Context] = {}

        def context(state: int) -> Context:
            node = self._parent[state >> 1]
            if node not in contexts:
                contexts[node] = self._context(node)
            return contexts[node]

        for key, times in self._times.items():
            state, (how, end, source, target, _) = key >> 32, self._steps[key & 0xFFFFFFFF]
            if how & _RANGE == _STRAIGHT:
                found.ranges.setdefault(context(state), Counter())[target, end] += times
            if OUTSIDE not in (source, target):
                found.branches.setdefault(context(self._after[key]), Counter())[source, target] += times

    def _context(self, node: int) -> Context:
        """The calls down to a node, from the last one that came from the outside."""
        calls = []
        while node != _ROOT and self._address[node] != OUTSIDE:
            if self._address[node]:  # 0: a return to where no call was
                calls.append(self._address[node])
            node = self._parent[node]
        return tuple(without_repeats(calls[::-1]))


_Frame = TypeVar("_Frame")


def without_repeats(frames: list[_Frame]) -> list[_Frame]:
    """``frames`` with one in place of each run of equal sequences side by side, shorter sequences first: what recursion
    leaves of a stack (compressRecursionContext of llvm-profgen)."""
    size, most = 1, len(frames) // 2
    while size <= most:
        frames = _merged(frames, size)
        size, most = size + 1, min(len(frames) // 2, most)
    return frames


def _merged(frames: list[_Frame], size: int) -> list[_Frame]:
    """`without_repeats` for sequences of one length."""
    kept, last, bound = frames[:size], size - 1, 0
    while last + size < len(frames):
        same = last  # the frames after it are equal to those ``size`` further on
        while same >= bound and frames[same] == frames[same + size]:
            same -= 1
        repeated, bound = same < bound, last + 1
        following = last + size if repeated else same + size
        if not repeated:
            kept += frames[last + 1 : following + 1]
        last = following
    return kept + frames[last + 1 :]
