"""The basic blocks of functions: where they are in the code, how often each was executed, and their best order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain

import numpy as np

from ...arrays import Ints, distinct, group, sum_covering
from ...binaries.block_map import BlockFlags, BlockMap
from ...binaries.image import Code, Image
from ...isa import Decoder, Instructions
from ...lbr import KIND
from ...model import Array, Source, counted, read_at
from ...x86 import UD2, Opcode, Prefix
from ..counting.branch_kinds import CALLS, JUMPS, kinds_table

__all__ = [
    "BlockCounts",
    "block_counts",
    "code_blocks",
    "function_order",
    "layout",
    "score",
]


# -- The basic blocks of x86-64 functions, found in their code as BOLT 19 finds them (BinaryFunction::buildCFG)
#
# A block begins at the entry of a function; where a direct branch of any function goes, an exception continues or a
# symbol is; at the targets of jump tables; and after each branch that is no call, also where only padding is left. An
# unconditional jump within the function stays in the block of the conditional jump before it. Calls do not end
# blocks.


_DIRECT = kinds_table("cond", "uncond") | CALLS
_ENDS = kinds_table("uncond", "ind", "ret", "eret", "sysret")
_LONGEST_TABLE = 1 << 16


def code_blocks(source: Source, image: Image, start: Array, end: Array, leaders: Array) -> BlockMap:
    """The blocks of the functions at ``start`` to ``end`` (uint64 link addresses, ascending and disjoint).

    ``leaders`` (uint64) are addresses where blocks begin besides those that the code itself says. Ids are places within
    a function, by address. Raises `UnavailableError` where instructions cannot be decoded.
    """
    code = Code(source, image)
    size = (end - start).astype(np.int64)
    raw, offsets = code.read_many(start, size)
    found, each = Decoder(code.arch).classify(raw, offsets, start, size)
    if not len(found.address):
        none, nowhere = np.empty(0, np.int64), np.empty(0, np.uint64)
        return BlockMap(nowhere, nowhere, none, none.astype(np.uint8), none, none, start)
    function = np.repeat(np.arange(len(start)), each)
    address, length, kind, target = found
    at = address - start[function] + offsets[:-1].astype(np.uint64)[function]
    begins = _table_targets(source, image, raw, at, found, function, len(start))
    leader = np.isin(address, distinct(np.concatenate([start, leaders, target[_DIRECT[kind]], begins])))
    own = (target >= start[function]) & (target < end[function])
    # Nothing runs on after ud2.
    trap = (length == 2) & (raw[np.minimum(at.astype(np.int64), len(raw) - 1)] == UD2[0])
    trap[trap] = raw[at[trap].astype(np.int64) + 1] == UD2[1]
    ends = _ENDS[kind] | trap
    conditional = kind == KIND["cond"]
    joined = (kind == KIND["uncond"]) & own & ~leader
    joined[1:] &= conditional[:-1] & own[:-1]
    joined[:1] = False
    new = leader.copy()
    new[1:] |= (ends[:-1] | conditional[:-1]) & ~joined[1:]
    row = np.flatnonzero(new)
    last = np.append(row[1:], len(address)) - 1
    f = function[row]
    first = np.searchsorted(f, np.arange(len(start)))
    # The next block can be the target of a jump, which a record that compares addresses does not see as taken.
    after = address[last] + length[last]
    ahead = (target[last] == after) | ((kind[last] == KIND["ind"]) & np.isin(after, begins))
    flags = np.where(ends[last] & ~ahead, 0, BlockFlags.FALL_THROUGH).astype(np.uint8)
    return BlockMap(address[row], after, np.arange(len(row)) - first[f], flags, f, f, start)


def _table_targets(
    source: Source, image: Image, raw: Array, at: Array, found: Instructions, function: Ints, functions: int
) -> Array:
    """uint64: where the jump tables of functions with indirect jumps lead.

    A table is where an address is taken relative to the instruction, and its first words (4 bytes) are distances from
    there to instructions of the function; or where an operand with an index of 8 bytes points to addresses of it.
    """
    address, length, kind, _ = found
    jumps = np.zeros(functions, bool)
    jumps[function[kind == KIND["ind"]]] = True
    targets = list[int]()
    place = at.astype(np.int64)
    for f in np.flatnonzero(jumps).tolist():
        rows = slice(*np.searchsorted(function, [f, f + 1]).tolist())
        known = set(address[rows].tolist())
        relative, absolute = list[int](), list[int]()
        for i, a, n in zip(place[rows].tolist(), address[rows].tolist(), length[rows].tolist(), strict=True):
            code = raw[i : i + n].tobytes()
            here = code[1:] if code[:1] and code[0] & 0xF0 == Prefix.REX else code
            if n >= 7 and len(here) >= 6 and here[0] == Opcode.LEA and here[1] & 0xC7 == 5:  # lea r, [rip + disp32]
                relative.append(a + n + int.from_bytes(here[2:6], "little", signed=True))
            elif (
                len(here) >= 7
                and here[0] in (Opcode.GROUP_5, Opcode.LOAD)
                and here[1] & 0xC7 == 4
                and here[2] & 0xC7 == 0xC5
            ):
                absolute.append(int.from_bytes(here[3:7], "little", signed=True))  # [r * 8 + disp32]
        for width, tables in ((4, relative), (8, absolute)):
            for table in tables:
                targets += _entries(source, image, table, width, known, {*relative, *absolute} - {table})
    return np.array(targets, np.uint64)


def _entries(source: Source, image: Image, table: int, width: int, known: set[int], others: set[int]) -> list[int]:
    """The targets in a table up to the first word that leads elsewhere, or the next table."""
    section = next((s for s in image.sections if s.vaddr <= table < s.vaddr + s.file_size and s.flags), None)
    if section is None:
        return []
    at = section.offset + table - section.vaddr
    words = read_at(source, at, min(section.vaddr + section.file_size - table, _LONGEST_TABLE))
    found = list[int]()
    for i in range(0, len(words) - width + 1, width):
        word = int.from_bytes(words[i : i + width], "little", signed=width == 4)
        target = table + word if width == 4 else word
        if target not in known or (i and table + i in others):
            break
        found.append(target)
    return found


# -- Counts of branches and ranges, mapped onto the machine blocks of `binaries.block_map`


@dataclass(slots=True)
class BlockCounts:
    """Executions of the blocks of a map, and the edges between them; counts are int64.

    ``executed``: of each block. ``source``, ``target``, ``edge``: edges within functions by their rows in the map, each
    once, sorted. ``caller``, ``callee``, ``calls``: calls and tail calls by functions (rows of `BlockMap.entry`), each
    pair once, none of a function by itself. ``ranges``: executions of ranges in each function.
    """

    executed: Array
    source: Ints
    target: Ints
    edge: Array
    caller: Ints
    callee: Ints
    calls: Array
    ranges: Array
    notes: list[str] = field(default_factory=list)
    """For the user: which counts contradict the map."""


def block_counts(
    blocks: BlockMap, code: Code, ranges: tuple[Array, Array, Array], branches: tuple[Array, Array, Array]
) -> BlockCounts:
    """The counts of the ``blocks`` of a binary with this ``code``.

    ``ranges`` (start, end, times) and ``branches`` (source, target, taken) have link addresses of instructions (uint64)
    and int64 counts. A block runs on into the next block if a range leads through both, or if a return arrives at the
    beginning of the next block (a call was the last instruction). Ranges that lead out of a function, or on from a
    block that cannot run on, are left out with a note. Raises `UnavailableError` where instructions cannot be decoded.
    """
    n = len(blocks)
    runs_on = _runs_on(blocks)
    start, end, times = ranges
    first, last = blocks.at(start), blocks.at(end)
    known = (first >= 0) & (last >= first)
    stops = np.concatenate([[0], np.cumsum(~runs_on)])
    good = known & (stops[last] == stops[first])
    notes = []
    if wrong := int(times[known & ~good].sum()):
        notes.append(f"{counted(wrong, 'range')} left out: no block runs on there")
    through = sum_covering(first[good], last[good], times[good], n)
    touched = sum_covering(first[good], last[good] + 1, times[good], n) > 0

    source, target, taken = branches
    at, to = blocks.at(source), blocks.at(target)
    kind = _kinds(code, source, at >= 0)
    head = (to >= 0) & (blocks.start[to] == target) if n else to >= 0
    entry = head & (blocks.entry[blocks.function[to]] == target) if n else head
    same = (at >= 0) & (to >= 0) & (blocks.function[at] == blocks.function[to]) if n else head
    jump = JUMPS[kind] & same & head
    # A return to the beginning of a block: the block before it ended with the call.
    back = (kind == KIND["ret"]) & head & ~entry & (to > 0)
    back[back] = runs_on[to[back] - 1]
    np.add.at(through, to[back] - 1, taken[back])
    on = np.flatnonzero(through)
    (a, b), (edge,) = group(
        [np.concatenate([at[jump], on]), np.concatenate([to[jump], on + 1])],
        [np.concatenate([taken[jump], through[on]])],
        [np.add],
    )
    called = (CALLS[kind] | (JUMPS[kind] & ~same)) & (at >= 0) & entry
    executed = _block_executions(n, a, b, edge, (to[called], taken[called]))
    np.maximum(executed, touched, out=executed)
    for row in (at[at >= 0], to[to >= 0]):
        executed[row] = np.maximum(executed[row], 1)
    caller, callee = blocks.function[at[called]], blocks.function[to[called]]
    other = caller != callee
    (caller, callee), (calls,) = group([caller[other], callee[other]], [taken[called][other]], [np.add])
    each = np.zeros(len(blocks.entry), np.int64)
    np.add.at(each, blocks.function[first[good]], times[good])
    return BlockCounts(executed, a, b, edge, caller, callee, calls, each, notes)


def _runs_on(blocks: BlockMap) -> Array:
    """Which blocks can run on into that of the next row."""
    out = (blocks.flags & BlockFlags.FALL_THROUGH) != 0
    out[-1:] = False
    out[:-1] &= blocks.range[1:] == blocks.range[:-1]
    return np.asarray(out)


def _kinds(code: Code, address: Array, wanted: Array) -> Array:
    """uint8: the kind of branch at each address, 0 where it is not ``wanted``."""
    kind = np.zeros(len(address), np.uint8)
    decoder = Decoder(code.arch)
    if wanted.any():
        at = address[wanted]
        size = np.full(len(at), decoder.arch.longest, np.int64)
        found, each = decoder.classify(*code.read_many(at, size), at, np.ones(len(at), np.int64))
        kind[np.flatnonzero(wanted)[each > 0]] = found.kind
    return kind


def _block_executions(n: int, source: Ints, target: Ints, edge: Array, called: tuple[Ints, Array]) -> Array:
    """Executions of each block: what came, or what went, whichever is more."""
    came, went = np.zeros(n, np.int64), np.zeros(n, np.int64)
    np.add.at(came, target, edge)
    np.add.at(came, called[0], called[1])
    np.add.at(went, source, edge)
    return np.maximum(came, went)


# -- The order in which the blocks of a function, and functions, are best laid out
#
# Blocks: extended travelling salesman (ext-TSP). The objective is that of A. Newell and S. Pupyrev, "Improved Basic
# Block Reordering" (IEEE Transactions on Computers, 2020): the `score` of a layout is the sum over the edges of the
# count times what the edge is worth, 1 for a fall-through and at most 0.1 for a jump, less with its length and
# nothing from 1,024 bytes forward or 640 bytes backward. The best layout is NP-hard to find; chains of blocks are
# merged greedily, as that paper does.
#
# Functions: call-chain clustering (C3). G. Ottoni and B. Maher, "Optimizing Function Placement for Large-Scale
# Data-Center Applications" (CGO 2017): from the most executed function on, each is appended to the cluster of the
# function that calls it most; then the clusters are sorted by their executions per byte.


_JUMP = 0.1
_FORWARD, _BACKWARD = 1024, 640
_SPLIT = 128
"""Longest chain that is split to put another one into it."""
_SPLIT_ANYWHERE = 16
"""Longest chain that is tried at each of its blocks; longer ones where a fall-through comes of it."""

_LEAST = 1e-9
"""Gains that differ by less are equal."""

Edges = Mapping[tuple[int, int], int]
"""Counts of edges, by their blocks."""
_Pieces = tuple[list[int], ...]


def score(order: Sequence[int], sizes: Sequence[int], edges: Edges) -> float:
    """The score of the ``edges`` with the blocks in this ``order``; edges of other blocks score nothing.

    ``sizes`` are bytes of each block.
    """
    return _score(order, sizes, [(a, b, n) for (a, b), n in edges.items()])


def _score(order: Iterable[int], sizes: Sequence[int], edges: Iterable[tuple[int, int, int]]) -> float:
    place, at = dict[int, int](), 0
    for block in order:
        place[block] = at
        at += sizes[block]
    return sum(n * _worth(place[b] - place[a] - sizes[a]) for a, b, n in edges if a in place and b in place)


def _worth(distance: int) -> float:
    """The score of one jump over ``distance`` bytes."""
    if distance == 0:
        return 1.0
    if 0 < distance < _FORWARD:
        return _JUMP * (1 - distance / _FORWARD)
    return _JUMP * (1 + distance / _BACKWARD) if -_BACKWARD < distance < 0 else 0.0


def layout(sizes: Sequence[int], counts: Sequence[int], edges: Edges) -> list[int]:
    """An order of the blocks ``0..n-1`` with a high `score`, block 0 first.

    ``sizes`` are bytes and ``counts`` executions of each block. Chains that no edge connects follow by their executions
    per byte, most first. Equal gains are resolved by the blocks' numbers: equal input makes equal output.
    """
    chains = _Chains(sizes, counts, edges)
    chains.merge_forced()
    chains.merge_best()
    return chains.joined()


class _Chains:
    """Sequences of blocks that will stay together, each known by its lowest block."""

    def __init__(self, sizes: Sequence[int], counts: Sequence[int], edges: Edges) -> None:
        self.sizes, self.counts = sizes, counts
        self.blocks = {block: [block] for block in range(len(sizes))}
        self.of = list(range(len(sizes)))
        self.inside: dict[int, list[tuple[int, int, int]]] = {block: [] for block in self.blocks}
        """Edges within each chain."""
        self.between: dict[int, dict[int, list[tuple[int, int, int]]]] = {block: {} for block in self.blocks}
        """Edges between two chains, at both."""
        for (a, b), n in sorted(edges.items()):
            if a != b and n > 0:
                for one, other in ((a, b), (b, a)):
                    self.between[one].setdefault(other, []).append((a, b, n))
        self.place, self.length = [0] * len(sizes), list(sizes)
        """Bytes before each block in its chain, and of each chain."""

    def merge_forced(self) -> None:
        """Merge pairs of blocks whose only edge out, and only edge in, is the edge between the two."""
        edges = {(a, b): n for near in self.between.values() for found in near.values() for a, b, n in found}
        after, before = dict[int, list[int]](), dict[int, list[int]]()
        for a, b in sorted(edges):
            after.setdefault(a, []).append(b)
            before.setdefault(b, []).append(a)
        for a, following in after.items():
            b = following[0]
            one, other = self.of[a], self.of[b]
            if len(following) == 1 and len(before[b]) == 1 and b != 0 and one != other:
                self._merge(one, other, self.blocks[one] + self.blocks[other])

    def merge_best(self) -> None:
        """Merge the two chains whose merging gains most, again and again, until none gains."""
        orders = dict[tuple[int, int], tuple[int, _Pieces]]()
        queue, made = list[tuple[float, int, int, int]](), 0

        def weigh(one: int, other: int) -> None:
            nonlocal made
            gain, order = self._gain(one, other)
            made += 1
            orders[one, other] = made, order
            if order:
                heappush(queue, (-gain, one, other, made))

        for one, near in self.between.items():
            for other in near:
                if one < other:
                    weigh(one, other)
        while queue:
            _, one, other, number = heappop(queue)
            if orders.get((one, other), (0,))[0] != number:
                continue  # one of the two has changed since
            order = list(chain.from_iterable(orders[one, other][1]))
            for merged in (one, other):
                for far in self.between[merged]:
                    orders.pop((min(merged, far), max(merged, far)), None)
            kept = self._merge(one, other, order)
            for far in self.between[kept]:
                weigh(min(kept, far), max(kept, far))

    def joined(self) -> list[int]:
        """All blocks: the chain of block 0, then the others by executions per byte."""

        def rank(name: int) -> tuple[bool, float, int]:
            executions = sum(self.counts[block] for block in self.blocks[name])
            return name != self.of[0], -executions / max(self.length[name], 1), name

        return [block for name in sorted(self.blocks, key=rank) for block in self.blocks[name]]

    def _merge(self, one: int, other: int, order: list[int]) -> int:
        """Replace two chains by one chain of their blocks in this ``order``; return the number of the merged chain."""
        kept, gone = min(one, other), max(one, other)
        self.inside[kept] += self.inside.pop(gone) + self.between[kept].pop(gone, [])
        self.between[gone].pop(kept, None)
        for far, found in self.between.pop(gone).items():
            self.between[kept].setdefault(far, []).extend(found)
            self.between[far].setdefault(kept, []).extend(self.between[far].pop(gone))
        for block in self.blocks.pop(gone):
            self.of[block] = kept
        self.blocks[kept] = order
        at = 0
        for block in order:
            self.place[block] = at
            at += self.sizes[block]
        self.length[kept] = at
        return kept

    def _gain(self, one: int, other: int) -> tuple[float, _Pieces]:
        """The gain of the best way to merge two chains, and the pieces of both in their new order."""
        x, y, edges = self.blocks[one], self.blocks[other], self.between[one][other]
        best, found = 0.0, _Pieces()
        for first, second in ((one, other), (other, one)):
            if self._may_begin(self.blocks[first][0], one, other):
                gain = sum(n * _worth(self._distance(a, b, first, second)) for a, b, n in edges)
                if gain > best + _LEAST:
                    best, found = gain, (self.blocks[first], self.blocks[second])
        now, touched = -1.0, list[tuple[int, int, int]]()
        for pieces in _ways(x, y, edges):
            if self._may_begin(pieces[0][0], one, other):
                if now < 0:
                    touched = self.inside[one] + self.inside[other] + edges
                    now = _score(x, self.sizes, self.inside[one]) + _score(y, self.sizes, self.inside[other])
                gain = _score(chain.from_iterable(pieces), self.sizes, touched) - now
                if gain > best + _LEAST:
                    best, found = gain, pieces
        return best, found

    def _may_begin(self, block: int, one: int, other: int) -> bool:
        """Whether the merged chain may begin with ``block``: if block 0 is in either chain, only block 0 may be
        first."""
        return block == 0 or self.of[0] not in (one, other)

    def _distance(self, a: int, b: int, first: int, second: int) -> int:
        """How far the jump from block ``a`` to ``b`` is with a chain put after the ``first``."""
        to = self.place[b] + (self.length[first] if self.of[b] == second else 0)
        return to - (self.place[a] + (self.length[first] if self.of[a] == second else 0) + self.sizes[a])


def _ways(x: list[int], y: list[int], edges: list[tuple[int, int, int]]) -> Iterator[_Pieces]:
    """The ways to merge two chains in which one of them is cut."""
    for whole, part in ((x, y), (y, x)):
        for at in _cuts(whole, part, edges):
            head, tail = whole[:at], whole[at:]
            yield head, part, tail
            yield part, tail, head
            yield tail, head, part


def _cuts(whole: list[int], part: list[int], edges: list[tuple[int, int, int]]) -> list[int]:
    """The places at which to try to cut the chain ``whole`` and insert ``part``."""
    if len(whole) <= _SPLIT_ANYWHERE:
        return list(range(1, len(whole)))
    if len(whole) > _SPLIT:
        return []
    place = {block: i for i, block in enumerate(whole)}
    into = {place[a] + 1 for a, b, _ in edges if b == part[0] and a in place}
    out = {place[b] for a, b, _ in edges if a == part[-1] and b in place}
    return sorted((into | out) - {0, len(whole)})


# -- Functions


_LARGEST = 2 << 20
"""Most bytes of a cluster: a large page."""
_SELDOM = 0.1
"""A function stays where it is if even its most frequent caller makes less than this part of its recorded calls."""
_THINNER = 8
"""A cluster takes no function that would leave it less than an eighth of its executions per byte."""


def function_order(sizes: Sequence[int], weights: Sequence[int], calls: Mapping[tuple[int, int], int]) -> list[int]:
    """An order of the functions ``0..n-1``.

    ``sizes`` are bytes, ``weights`` bytes executed of each; ``calls`` counts calls, by (caller, callee). Equal
    functions keep their order.
    """
    clusters = {f: [f] for f in range(len(sizes))}
    of, size, weight = list(clusters), list(sizes), list(weights)  # of a cluster, which its first function names
    callers = dict[int, list[tuple[int, int]]]()
    for (caller, callee), n in calls.items():
        if caller != callee and n > 0:
            callers.setdefault(callee, []).append((-n, caller))

    def density(cluster: int) -> float:
        return weight[cluster] / max(size[cluster], 1)

    for f in sorted(clusters, key=lambda f: (-weights[f], f)):
        most, caller = min(callers.get(f, [(0, f)]))
        into = of[caller]
        if into == of[f] or -most < _SELDOM * -sum(n for n, _ in callers[f]) or size[into] + size[f] > _LARGEST:
            continue
        if (weight[into] + weight[f]) / max(size[into] + size[f], 1) < density(into) / _THINNER:
            continue
        for moved in clusters.pop(f):
            of[moved] = into
            clusters[into].append(moved)
        size[into] += size[f]
        weight[into] += weight[f]
    return [f for cluster in sorted(clusters, key=lambda c: (-density(c), c)) for f in clusters[cluster]]
