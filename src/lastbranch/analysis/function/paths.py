"""A function's branch stacks, followed in order: how often its loops go round, and how long its blocks take, each time.

Counts of branches and ranges are sums, and give means. For distributions the entries of a stack are followed from the
oldest to the newest, block by block.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays import Table, distinct, distinct_rows, insertion_points, offsets_of, ranges
from ...model import AddressSpaces, Array
from ..counting.bound_pairs import cycles_of
from ..counting.branch_kinds import CALLS, JUMPS, kinds_table
from ..counting.executed import ends_range, straight
from .flow import Flow
from .loops import Loop

__all__ = [
    "BINS",
    "Bins",
    "Distribution",
    "KeptStacks",
    "NearbyStacks",
    "Path",
    "StackSample",
    "Trips",
    "distribution",
    "path_of",
]


_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
"""2**64 by the golden ratio: multiples of it are spread evenly, whatever the order of the samples."""


class StackSample:
    """Keeps the entries of some of the stacks, drawn from all over the capture: of all of them as long as there are at
    most so many entries, then of every second, fourth... stack.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stacks = self._entries = self._halvings = 0
        none = np.empty(0, np.int64)
        address = np.empty(0, np.uint64)
        self._parts: list[tuple[Array, ...]] = [(none, none, none, address, address, address)]

    def add(
        self, stacks: int, stack: Array, row: Array, scope: Array, source: Array, target: Array, flags: Array
    ) -> None:
        """Add entries of a batch of ``stacks``: the stack of each (ascending), its row among all entries (the newest of
        a stack first), its scope, and the columns of the entry."""
        stack = stack + self._stacks
        self._stacks += stacks
        entries: tuple[Array, ...] = (stack, row, scope, source, target, flags)
        if self._halvings:
            kept = self._chosen_entries(stack)
            entries = tuple(column.take(kept) for column in entries)
        self._parts.append(entries)
        self._entries += len(entries[0])
        while self._entries > self._most:
            self._halvings += 1
            chosen = ((part, self._chosen_entries(part[0])) for part in self._parts)
            self._parts = [tuple(column.take(kept) for column in part) for part, kept in chosen]
            self._entries = sum(len(part[0]) for part in self._parts)

    def _chosen_entries(self, stack: Array) -> NDArray[np.int64]:
        """The entries of the stacks that are kept."""
        spread = stack.astype(np.uint64) * _GOLDEN
        return np.flatnonzero(spread < np.uint64(1 << (64 - self._halvings)))

    def result(self) -> KeptStacks:
        """The kept stacks, the oldest entry of each stack first."""
        stack, row, *columns = (np.concatenate(column)[::-1] for column in zip(*self._parts, strict=True))
        return KeptStacks(0.5**self._halvings, stack, -row, *columns)


class KeptStacks(NamedTuple):
    """The entries of ``part`` (0 to 1) of the stacks, the oldest of each stack first: the number of its ``stack``, its
    ``row`` (int64), which ascends by 1 from an entry to the next, its ``scope`` and its columns as recorded."""

    part: float
    stack: Array
    row: Array
    scope: Array
    source: Array
    target: Array
    flags: Array

    def ends(self, binder: AddressSpaces) -> list[tuple[Array, Array]]:
        """(module, address) of the source and of the target of each entry."""
        return [binder.locate(self.scope, addresses) for addresses in (self.source, self.target)]

    def weight(self, binder: AddressSpaces) -> NDArray[np.int64]:
        """int64: how often the sample of each entry counts."""
        return np.broadcast_to(np.asarray(binder.weights_of(self.scope), np.int64), len(self.scope))


class NearbyStacks:
    """The entries near some functions of ``part`` (0 to 1) of the stacks, the oldest of each stack first.

    ``row`` int64 ascends by 1 from an entry of a stack to the next, by more where others are between; ``weight`` int64
    is how often the sample counts. ``source`` and ``target`` are bound: rows of modules, and addresses in them.
    """

    def __init__(self, kept: KeptStacks, binder: AddressSpaces) -> None:
        self.part, self.stack, self.row = kept.part, kept.stack, kept.row
        self.cycles, self.weight = cycles_of(kept.flags)[0], kept.weight(binder)
        self._ends = kept.ends(binder)
        self._orders = [np.lexsort((address, module)) for module, address in self._ends]
        ordered = zip(self._ends, self._orders, strict=True)
        self._sorted = [(module[order], address[order]) for (module, address), order in ordered]

    def path(self, flow: Flow, *, patched: bool = False) -> Path:
        """The way of the stacks through ``flow``; ``patched`` as in `flow_of`."""
        near = distinct(np.concatenate([self._inside(flow, end) for end in range(2)]))
        source, target = (self._rows(flow, module[near], address[near]) for module, address in self._ends)
        columns = self.stack[near], self.row[near], source, target, self.cycles[near], self.weight[near]
        return path_of(flow, *columns, patched=patched)

    def _inside(self, flow: Flow, end: int) -> NDArray[np.int64]:
        """The entries of which this end is in ``flow``."""
        bounds = np.array([flow.start, flow.end], np.uint64)
        low, high = insertion_points(*self._sorted[end], np.full(2, flow.module), bounds)
        return self._orders[end][low:high]

    def _rows(self, flow: Flow, module: Array, address: Array) -> NDArray[np.int64]:
        """int64: the instruction at each address, `_OUTSIDE` or `_TORN`."""
        mine = (module == flow.module) & (address >= np.uint64(flow.start)) & (address < np.uint64(flow.end))
        row = flow.row_of(address)
        return np.where(mine, np.where(row >= 0, row, _TORN), _OUTSIDE)


_OUTSIDE, _TORN = -1, -2
"""Not in the function, and in it but within an instruction."""
_RETURNS = kinds_table("ret")


@dataclass(slots=True)
class Trips:
    """How often a loop went round each time that it was entered.

    ``of_visit`` has the iterations of each visit (from the entry of the loop until it is left) whose entry is in a
    stack, cut where the stack ends first. ``unstarted`` is the number of visits whose entry is not in the stack;
    ``longest`` the most iterations of any visit in a stack, with or without its ends.
    """

    of_visit: Distribution
    unstarted: int
    longest: int


@dataclass(slots=True)
class Path:
    """The blocks that ran, in order, stack after stack, and the cycles of the ranges between branches.

    ``blocks`` int64: rows of the blocks, with `left` and `cut` (numbers above them) between; ``weight`` int64: how
    often each counts. Ranges: ``first``, ``last`` int64 rows of instructions, their recorded ``cycles`` int64, and how
    ``often`` each counts, int64.
    """

    flow: Flow
    blocks: Array
    weight: Array
    first: Array
    last: Array
    cycles: Array
    often: Array

    @property
    def left(self) -> int:
        """Between two blocks: the function was left, so all its loops were."""
        return len(self.flow.blocks)

    @property
    def cut(self) -> int:
        """Between two blocks: what ran there is not known, as a stack begins or ends."""
        return len(self.flow.blocks) + 1

    def trips(self, loop: Loop) -> Trips:
        """The visits of ``loop``."""
        member = np.zeros(self.cut + 1, bool)
        member[list(loop.blocks)] = True
        inside = member[self.blocks]
        turns = np.flatnonzero(inside[1:] != inside[:-1]) + 1  # a path begins and ends with `cut`
        start, past = turns[::2], turns[1::2]
        heads = np.flatnonzero(self.blocks == loop.header)
        iterations = np.searchsorted(heads, past) - np.searchsorted(heads, start)
        started = (self.blocks[start] == loop.header) & (self.blocks[start - 1] != self.cut)
        ended, weight = (self.blocks[past] != self.cut)[started], self.weight[start]
        return Trips(
            distribution(iterations[started], ended * weight[started], ~ended * weight[started]),
            int(weight[~started].sum()),
            int(iterations.max(initial=0)),
        )

    def block_cycles(self) -> list[Distribution]:
        """For each block the cycles of its executions: its share of the cycles of a range, by instructions."""
        blocks = self.flow.blocks
        sizes = blocks.last - blocks.first + 1
        block_of = np.repeat(np.arange(len(blocks)), sizes)
        rows, which = distinct_rows(self.first, self.last, self.cycles)
        first, last, cycles = (column[rows] for column in (self.first, self.last, self.cycles))
        begin, times = block_of[first], np.bincount(which, self.often, len(rows))
        number = block_of[last] - begin + 1
        block = ranges(begin, number)
        value = sizes[block] * np.repeat(cycles / (last - first + 1), number)
        count = np.repeat(times, number)
        order = np.argsort(block, kind="stable")
        bounds = offsets_of(np.bincount(block, minlength=len(blocks)))
        out = []
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            mine = order[low:high]
            out.append(distribution(value[mine], count[mine], np.zeros(len(mine))))
        return out


def path_of(
    flow: Flow,
    stack: Array,
    row: Array,
    source: Array,
    target: Array,
    cycles: Array,
    weight: Array,
    *,
    patched: bool = False,
) -> Path:
    """The path of entries through ``flow``, stack after stack, the oldest of each first.

    ``row`` int64 ascends by 1 from an entry to the next of a stack; where it does by more, what lies between is
    outside. ``source`` and ``target`` are rows of instructions, `_OUTSIDE` or `_TORN`.
    """
    blocks, kinds, n = flow.blocks, flow.kind, len(stack)
    if not n or not len(blocks):
        none = np.empty(0, np.int64)
        return Path(flow, np.full(2, len(blocks) + 1), np.ones(2, np.int64), none, none, none, none)
    left, cut = len(blocks), len(blocks) + 1
    block_of = np.append(np.repeat(np.arange(left), blocks.last - blocks.first + 1), [cut, cut])  # torn: not known
    behind = np.append(False, stack[1:] == stack[:-1])  # there is an older entry of the stack
    older_source, older_target = np.append(_OUTSIDE, source[:-1]), np.append(_OUTSIDE, target[:-1])
    stop = np.zeros(len(flow), bool) if patched else ends_range(flow.address, flow.length, kinds, flow.target)
    linked = behind & (np.append(0, np.diff(row)) == 1) & (older_target >= 0) & (source >= older_target)
    at = np.flatnonzero(linked)
    good, _ = straight(stop, older_target[at], source[at], np.ones(len(at), np.int64))
    linked[at[~good]] = False
    at = at[good]
    timed = cycles[at] > 0
    first, last = older_target[at][timed], source[at][timed]

    # The cut between an entry's source and its target, if any: how the run before ended, and how the next run began.
    kind, older_kind = kinds[source.clip(0)], kinds[older_source.clip(0)]
    departed = behind & (older_source >= 0) & (older_target == _OUTSIDE)
    arrives = (source < 0) & (target >= 0) & ~(departed & _comes_back(flow, older_source, target))
    within = (source >= 0) & (target >= 0)
    moves = arrives | (within & ~JUMPS[kind] & ~(CALLS[kind] & (target == source + 1)))
    ended = np.where(arrives & departed & JUMPS[older_kind], left, cut)
    began = np.where(target == 0, left, cut)

    newest = np.append(~behind[1:], True)
    unread = (target >= 0) & np.append(~linked[1:], True)  # where it went on from its target is not known
    from_block = np.where(linked, block_of[older_target], block_of[source])
    slots = (
        (cut, ~behind | ((source >= 0) & ~linked)),
        (from_block, np.where(source >= 0, block_of[source] - from_block + 1, 0)),
        (ended, moves),
        (began, moves),
        (block_of[target], unread),
        (cut, newest),
    )
    begin = np.column_stack([np.broadcast_to(slot, n) for slot, _ in slots])
    number = np.column_stack([number.astype(np.int64) for _, number in slots])
    passed, each = ranges(begin.reshape(-1), number.reshape(-1)), np.repeat(weight, number.sum(axis=1))
    return Path(flow, passed, each, first, last, cycles[at][timed], weight[at][timed])


def _comes_back(flow: Flow, source: Array, arrived: Array) -> NDArray[np.bool_]:
    """bool: an arrival from outside continues the path that left the function at ``source``: a call returns behind
    itself, an interrupt to the interrupted instruction, a jump out comes back by a jump (code split off as cold)."""
    kind = flow.kind[source.clip(0)]
    calls, jumps = CALLS[kind], JUMPS[kind]
    after_call = CALLS[flow.kind[(arrived - 1).clip(0)]]
    behind = arrived == source + 1
    interrupted = ~(calls | jumps | _RETURNS[kind]) & (behind | (arrived == source))
    return np.asarray((calls & behind) | (jumps & (arrived > 0) & ~after_call) | interrupted)


# -- The distribution of observed numbers, where some of them are only known to be at least something


BINS = 24
"""Bins of a picture, at most."""
_TAIL = 0.99
"""The part of the observations that has bins of equal width: rare large numbers share one more."""
_STEPS = (1, 2, 5, 10)
_FINEST = 0.1
_ROUNDING = 1e-9


@dataclass(slots=True)
class Bins(Table):
    """Bins of equal width, ascending, without gaps; the first bin may begin later, the last bin is as wide as need be.

    ``low``, ``below`` float64: a number is in it from ``low`` on, and below ``below``. ``count``, ``cut`` int64 as in
    `Distribution`.
    """

    low: Array
    below: Array
    count: Array
    cut: Array


@dataclass(slots=True)
class Distribution(Table):
    """Observations by their number; equal-length arrays.

    ``value`` float64, ascending. ``count`` int64: observations of exactly that. ``cut`` int64: observations that ended
    there before they were complete: what they would have come to is that or more.
    """

    value: Array
    count: Array
    cut: Array

    def quantile(self, part: float) -> float | None:
        """The least number that ``part`` of the observations do not exceed; ``None`` where too many were cut to know.

        Cut observations count as far as they were seen (Kaplan and Meier, J. Am. Stat. Assoc. 53, 1958). The estimate
        is right if the cause of a cut does not depend on the full value of the observation.
        """
        from_here = np.cumsum((self.count + self.cut)[::-1])[::-1]
        over = np.cumprod(1 - self.count / np.maximum(from_here - self.cut, 1))
        reached = np.flatnonzero(over <= 1 - part + _ROUNDING)
        return float(self.value[reached[0]]) if len(reached) else None

    def bins(self, most: int = BINS) -> Bins:
        """A histogram of up to ``most`` bins, whose edges are round numbers; whole ones for whole numbers."""
        if not len(self):
            none = np.empty(0)
            return Bins(none, none, none.astype(np.int64), none.astype(np.int64))
        every = np.cumsum(self.count + self.cut)
        least, tail = float(self.value[0]), float(self.value[np.searchsorted(every, _TAIL * every[-1])])
        finest = 1.0 if (self.value == np.floor(self.value)).all() else _FINEST
        width = max(finest, _round_up((tail - least) / max(1, most - 3)))
        first = floor(least / width + _ROUNDING)
        place = np.floor(self.value / width + _ROUNDING).astype(np.int64) - first
        number = min(most, int(place[-1]) + 1, floor(tail / width + _ROUNDING) - first + 2)
        low = (first + np.arange(number)) * width
        below = np.append(low[1:], (first + place[-1] + 1) * width)
        low[0] = least if finest == 1 else low[0]
        place = np.minimum(place, number - 1)
        count, cut = (np.bincount(place, column, number).astype(np.int64) for column in (self.count, self.cut))
        return Bins(low, below, count, cut)


def distribution(value: Array, count: Array, cut: Array) -> Distribution:
    """Observations with equal numbers made one row."""
    found = distinct(np.asarray(value, np.float64))
    place = np.searchsorted(found, value)
    counts, cuts = (np.bincount(place, column, len(found)).astype(np.int64) for column in (count, cut))
    return Distribution(found, counts, cuts)


def _round_up(width: float) -> float:
    """The least of 1, 2, 5, 10, 20... that is not below ``width``; 0 for 0."""
    if width <= 0:
        return 0.0
    unit = 10.0 ** floor(log10(width))
    steps = (step * unit for step in _STEPS)
    return float(next((step for step in steps if step >= width * (1 - _ROUNDING)), ceil(width)))
