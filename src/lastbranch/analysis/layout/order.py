"""In which order the blocks of a function, and functions, are best laid out.

Blocks: extended travelling salesman (ext-TSP). The objective is that of A. Newell and S. Pupyrev, "Improved Basic Block
Reordering" (IEEE Transactions on Computers, 2020): the `score` of a layout is the sum over the edges of the count times
what the edge is worth, 1 for a fall-through and at most 0.1 for a jump, less with its length and nothing from 1,024
bytes forward or 640 bytes backward. The best layout is NP-hard to find; chains of blocks are merged greedily, as that
paper does.

Functions: call-chain clustering (C3). G. Ottoni and B. Maher, "Optimizing Function Placement for Large-Scale
Data-Center Applications" (CGO 2017): from the most executed function on, each is appended to the cluster of the
function that calls it most; then the clusters are sorted by their executions per byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain

__all__ = ["function_order", "layout", "score"]

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
