"""Ranges and branches of a module by calling context, from samples with a branch stack and a call chain.

The call chain is that of the newest branch. Going back from it, branch by branch (`virtual_unwinding`), gives each
range between two branches, and each branch, a stack of its own. llvm-profgen's rules are followed to the letter where
they decide what is counted.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ..analysis import filtered_batches
from ..analysis.counting.branch_kinds import kinds_table
from ..arrays import Ints, RowNumbers, distinct, distinct_unordered, interval_of, offsets_of, sums, take_rows
from ..binaries.image import SegmentFlags
from ..errors import NotRecordedError, UnavailableError
from ..isa import UNDECODABLE, Decoder
from ..model import FRAME, Array, Profile, SampleBatch, SampleFilter, word
from ..opening import code_of
from ..symbols import FunctionTable
from .brstack import CONTEXT_MAX
from .virtual_unwinding import ROOT, Step, Steps, Unwound, new_unwinder

__all__ = [
    "OUTSIDE",
    "ByContext",
    "CodeMap",
    "Context",
    "Contexts",
    "SampleTotals",
    "count_contexts",
    "without_repeats",
]

OUTSIDE = 1
"""Address of everything that is not code of the module."""

Context = tuple[int, ...]
"""Addresses of the calls that led to a function, outermost first."""


@dataclass(slots=True)
class ByContext:
    """Ranges or branches, each once by context: row ``context`` int64 of `Contexts.stacks`, row ``pair`` int64
    of ``first`` and ``second``, and how many ``times`` int64.

    ``first`` and ``second`` are different pairs of uint64 link addresses: of the first and last instruction of a range,
    or of a branch and its target.
    """

    context: Ints
    pair: Ints
    times: Ints
    first: Array
    second: Array


@dataclass(slots=True)
class SampleTotals:
    """How many samples there are, and what was left out of them."""

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


@dataclass(slots=True)
class Contexts:
    """How often each range and each branch was executed, by the context of the function that it is in.

    A branch to the outside, or from there, is in no context.
    """

    stacks: list[Context]
    """Different, and sorted."""
    ranges: ByContext
    branches: ByContext
    samples: SampleTotals


_CALLS = kinds_table("call", "ind_call")
_RETURNS = kinds_table("ret")
_LEAVES = kinds_table("uncond", "call", "ind_call", "ret")
"""What no range leads across. An indirect jump may go to the next instruction."""


class CodeMap:
    """The instructions of the functions of a module, decoded when one of their addresses is looked up.

    Code between two functions belongs to the first: its last instruction can be a call that does not return.
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
    unwinder, samples = new_unwinder(), _Samples(profile, module, code)
    for stream in streams:
        batches = stream.batches(("branch_from", "branch_to", "frame"))
        for batch in filtered_batches(profile, batches, sample_filter):
            unwinder.add(*samples.prepared(batch), samples.steps)
    return _by_context(unwinder.rows(), samples.steps, samples.totals)


# -- What a sample says: the chain that it starts with, and steps back


class _Samples:
    """The samples of batch after batch, as they are unwound. Few of their branches and frames differ: what each is, is
    worked out once."""

    def __init__(self, profile: Profile, module: int, code: CodeMap) -> None:
        self.totals, self.steps = SampleTotals(), Steps.empty()
        self._profile, self._module, self._code = profile, module, code
        self._recorded, self._frames = RowNumbers(3), RowNumbers(2)
        """Numbers of scope, source and target as they were recorded; of scope and frame."""
        self._branch = np.empty(0, np.int64)
        """The branch that each recorded one is."""
        self._branches, self._step_numbers = RowNumbers(2), RowNumbers(2)
        """Numbers of source and target in the module; of the end of a range and the branch before it."""
        self._source, self._target = np.empty(0, np.uint64), np.empty(0, np.uint64)
        self._frame, self._call = np.empty(0, np.uint64), np.empty(0, np.uint64)

    def prepared(self, batch: SampleBatch) -> tuple[Array, Ints, Ints, Ints]:
        """(uint64 frames, leaf first, and int64 offsets of each sample's; int64 numbers of its `steps`, newest first,
        and their offsets) of the samples that can be unwound. All are counted in `totals`."""
        scope, every = self._profile.binder.scopes(batch), np.arange(len(batch))
        owner = np.repeat(every, batch.depth)
        frame, chains, bare = _chains(batch)
        recorded, place = self._look_up(
            (scope[owner], batch["branch_from"], batch["branch_to"]), (np.repeat(scope, np.diff(chains)), frame)
        )
        branch = self._branch[recorded]
        kept = ((self._source != OUTSIDE) | (self._target != OUTSIDE))[branch]
        branch, owner = branch[kept], owner[kept]
        steps, ends = self._number_steps(branch, owner), offsets_of(np.bincount(owner, minlength=len(batch)))
        leaf, touched = self._frame[place[chains[:-1]]], np.diff(ends) > 0
        unset = touched & self._code.frame_unset(leaf)
        rows, totals = np.flatnonzero(touched & ~unset), self.totals
        totals.recorded += int(touched.sum())
        totals.unset += int(unset.sum())
        totals.samples += len(rows)
        totals.bare += int(bare[rows].sum())
        place, chains = take_rows(place, chains, rows)
        calls, chains, cut = _shorten_chains(self._call[place], chains, leaf[rows], self._target[branch[ends[rows]]])
        totals.cut += cut
        return (calls, chains, *take_rows(steps, ends, rows))

    def _look_up(self, branches: tuple[Array, Array, Array], frames: tuple[Array, Array]) -> tuple[Ints, Ints]:
        """The numbers of branches (scope, source, target) and of frames (scope, address)."""
        recorded, new = self._recorded.of(*branches)
        place, fresh = self._frames.of(*frames)
        if not len(new) and not len(fresh):
            return recorded, place
        scope, *ends = (column[new] for column in branches)
        found = [self._inside(scope, end) for end in ends] + [self._inside(*(column[fresh] for column in frames))]
        self._code.know(distinct(np.concatenate(found)))
        source, target, frame = (np.where(self._code.row(a) >= 0, a, np.uint64(OUTSIDE)) for a in found)
        branch, new = self._branches.of(source, target)
        self._branch = np.append(self._branch, branch)
        self._source, self._target = np.append(self._source, source[new]), np.append(self._target, target[new])
        self._frame = np.append(self._frame, frame)
        self._call = np.append(self._call, self._code.call_before(frame))
        return recorded, place

    def _inside(self, scope: Array, address: Array) -> Array:
        """uint64 module addresses, `OUTSIDE` for an address in another module or in none."""
        row, at = self._profile.binder.locate(scope, address)
        return np.where(row == self._module, at, np.uint64(OUTSIDE))

    def _number_steps(self, branch: Ints, owner: Ints) -> Ints:
        """The numbers of the steps back over the branches of samples ``owner``."""
        end = np.append(_NEWEST, self._source[branch[:-1]])[: len(branch)]
        end[np.append(True, owner[1:] != owner[:-1])[: len(owner)]] = _NEWEST
        numbers, new = self._step_numbers.of(end, branch)
        if len(new):
            end, branch = end[new], branch[new]
            self.steps = self.steps.and_then(_steps(self._code, end, self._source[branch], self._target[branch]))
        return numbers


_NEWEST = np.uint64((1 << 64) - 1)
"""In place of the end of a range: there is none after the newest branch."""


def _shorten_chains(calls: Array, chains: Array, leaf: Array, target: Array) -> tuple[Array, Array, int]:
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


def _steps(code: CodeMap, end: Array, source: Array, target: Array) -> Steps:
    newest, before, behind = end == _NEWEST, target == OUTSIDE, end == OUTSIDE
    good = ~before & ~behind & code.straight(target, end)
    how = np.where(newest | (before & behind), Step.NO_RANGE, np.where(good, Step.STRAIGHT, Step.BROKEN))
    kind, call = code.kind(source), code.call_before(target)
    from_outside = source == OUTSIDE
    is_call = _CALLS[kind] | (from_outside & (call == 0))
    is_return = _RETURNS[kind] | (from_outside & (call != 0))
    how += np.where(is_call, Step.CALL, np.where(is_return, Step.RETURN, Step.OTHER))
    return Steps(how.astype(np.uint8), end, source, target, call)


# -- The contexts of stacks


def _by_context(unwound: Unwound, steps: Steps, totals: SampleTotals) -> Contexts:
    """Ranges and branches added up by the context of the stack that they are in."""
    how, source, target = steps.how[unwound.step], steps.source[unwound.step], steps.target[unwound.step]
    ranges = np.flatnonzero(how & Step.RANGE == Step.STRAIGHT)
    branches = np.flatnonzero((source != OUTSIDE) & (target != OUTSIDE))
    callers = [unwound.parent[state >> 1] for state in (unwound.state[ranges], unwound.after[branches])]
    stacks, context = _contexts(unwound, distinct(np.concatenate(callers)))
    ends = (target[ranges], steps.end[unwound.step[ranges]]), (source[branches], target[branches])
    straight, taken = (
        _add_up(context[caller], *pair, unwound.times[rows])
        for caller, pair, rows in zip(callers, ends, (ranges, branches), strict=True)
    )
    return Contexts(stacks, straight, taken, totals)


def _add_up(context: Ints, first: Array, second: Array, times: Ints) -> ByContext:
    rows, pair = distinct_unordered(first, second)
    kinds, which = distinct_unordered(context, pair)
    return ByContext(context[kinds], pair[kinds], sums(which, times, len(kinds)), first[rows], second[rows])


def _contexts(unwound: Unwound, nodes: Ints) -> tuple[list[Context], Ints]:
    """(the distinct contexts of these stacks, sorted; int64 the context of each stack, -1 for stacks that were not
    asked for)."""
    parent, address, of_node = unwound.parent.tolist(), unwound.address.tolist(), dict[int, Context]()
    for node in nodes.tolist():
        calls, at = list[int](), node
        while at != ROOT and address[at] != OUTSIDE:  # down to a node, from the last one that came from the outside
            if address[at]:  # 0: a return to where no call was
                calls.append(address[at])
            at = parent[at]
        of_node[node] = tuple(without_repeats(calls[::-1]))
    stacks = sorted(set(of_node.values()))
    number, context = {stack: i for i, stack in enumerate(stacks)}, np.full(len(parent), -1, np.int64)
    context[nodes] = [number[stack] for stack in of_node.values()]
    return stacks, context


_Frame = TypeVar("_Frame", bound=Hashable)


def without_repeats(frames: list[_Frame]) -> list[_Frame]:
    """``frames`` with one in place of each run of equal sequences side by side, shorter sequences first: what recursion
    leaves of a stack (compressRecursionContext of llvm-profgen)."""
    if len(set(frames)) == len(frames):
        return frames
    size, most = 1, len(frames) // 2
    while size <= most:
        frames = _merge_repeats(frames, size)
        size, most = size + 1, min(len(frames) // 2, most)
    return frames


def _merge_repeats(frames: list[_Frame], size: int) -> list[_Frame]:
    """`without_repeats` for sequences of one length."""
    kept, last, bound = frames[:size], size - 1, 0
    while last + size < len(frames):
        same = last  # the next frames are equal to the frames ``size`` further on
        while same >= bound and frames[same] == frames[same + size]:
            same -= 1
        repeated, bound = same < bound, last + 1
        following = last + size if repeated else same + size
        if not repeated:
            kept += frames[last + 1 : following + 1]
        last = following
    return kept + frames[last + 1 :]
