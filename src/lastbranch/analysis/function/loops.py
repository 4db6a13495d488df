"""Loops of a function: found in its control flow, with how often they were entered and went round."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...isa import UNDECODABLE
from ...lbr import KIND
from ..counting.branch_kinds import JUMPS
from ..counting.executed import leaves
from .flow import Flow

__all__ = ["Loop", "loops"]

_CALLS = (KIND["call"], KIND["ind_call"])


class Loop(NamedTuple):
    """A natural loop: ``header`` (a row of the blocks) dominates all ``blocks``, which lead back to it.

    ``iterations`` is how often the header ran, ``trips`` is the number of iterations for each entry into the loop
    (``None``: no entry was seen), ``depth`` is 1 for an outermost loop. ``cycles`` (a float) are those of its blocks
    for each iteration, ``None`` where none are known.
    """

    header: int
    blocks: tuple[int, ...]
    depth: int
    iterations: int
    trips: float | None
    cycles: float | None


def loops(flow: Flow) -> list[Loop]:
    """The loops of ``flow``: outer before inner loops, else by address.

    Edges come from the code and from recorded branches, so that a jump table has the targets that ran. A cycle with two
    entries (irreducible flow) has no header and is not found. Code that nothing leads to and that was not seen to run
    (padding before a loop, targets of a jump table) enters no loop.
    """
    follows = _successors(flow)
    live = _reachable_blocks(follows, [0, *np.flatnonzero(flow.blocks.count).tolist()])
    follows = [[to for to in targets if block in live or to not in live] for block, targets in enumerate(follows)]
    parents, order = _dominators(follows)
    bodies: dict[int, set[int]] = {}
    leads: list[list[int]] = [[] for _ in follows]
    for block, targets in enumerate(follows):
        for target in targets:
            leads[target].append(block)
    for block, targets in enumerate(follows):
        for header in targets:
            if _dominates(parents, order, header, block):
                bodies.setdefault(header, {header}).update(_body(leads, order, header, block))
    found = [_loop(flow, header, body, bodies) for header, body in bodies.items()]
    return sorted(found, key=lambda loop: (loop.depth, loop.header))


def _successors(flow: Flow) -> list[list[int]]:
    """For each block, the blocks that can follow within the function: calls come back."""
    blocks, edges = flow.blocks, flow.edges
    block_of = np.repeat(np.arange(len(blocks)), blocks.last - blocks.first + 1)
    follows: list[set[int]] = [set() for _ in range(len(blocks))]
    kinds = flow.kind[blocks.last]
    for i, (kind, row) in enumerate(zip(kinds.tolist(), flow.row_of(flow.target[blocks.last]).tolist(), strict=True)):
        if JUMPS[kind] and row >= 0 and flow.target[blocks.last[i]]:
            follows[i].add(int(block_of[row]))
        if i + 1 < len(blocks) and kind != UNDECODABLE and (not leaves(kind) or kind in _CALLS or blocks.through[i]):
            follows[i].add(i + 1)
    inside = (edges.source >= 0) & (edges.target >= 0) & JUMPS[flow.kind[edges.source]]
    for source, target in zip(edges.source[inside].tolist(), edges.target[inside].tolist(), strict=True):
        follows[block_of[source]].add(int(block_of[target]))
    return [sorted(f) for f in follows]


def _reachable_blocks(follows: list[list[int]], todo: list[int]) -> set[int]:
    found = set[int]()
    while todo:
        block = todo.pop()
        if block < len(follows) and block not in found:
            found.add(block)
            todo += follows[block]
    return found


def _dominators(follows: list[list[int]]) -> tuple[dict[int, int], dict[int, int]]:
    """(immediate dominator of each block, its number in reverse postorder), by the iteration of Cooper, Harvey and
    Kennedy. Blocks that nothing leads to (targets of jump tables that were not seen) hang below a root, -1."""
    postorder: list[int] = []
    entries, seen = [], [False] * len(follows)
    for root in range(len(follows)):
        if seen[root]:
            continue
        entries.append(root)
        seen[root] = True
        path = [(root, iter(follows[root]))]
        while path:
            block, rest = path[-1]
            target = next((t for t in rest if not seen[t]), None)
            if target is None:
                postorder.append(block)
                path.pop()
            else:
                seen[target] = True
                path.append((target, iter(follows[target])))
    order = {block: i for i, block in enumerate([-1, *reversed(postorder)])}
    leads: dict[int, list[int]] = {block: [] for block in order}
    for block, targets in enumerate(follows):
        for target in targets:
            leads[target].append(block)
    for root in entries:
        leads[root].append(-1)
    parents = {-1: -1}
    changed = True
    while changed:
        changed = False
        for block in reversed(postorder):
            known = [p for p in leads[block] if p in parents]
            parent = known[0]
            for other in known[1:]:
                parent = _common(parents, order, parent, other)
            if parents.get(block) != parent:
                parents[block] = parent
                changed = True
    return parents, order


def _common(parents: dict[int, int], order: dict[int, int], a: int, b: int) -> int:
    while a != b:
        while order[a] > order[b]:
            a = parents[a]
        while order[b] > order[a]:
            b = parents[b]
    return a


def _dominates(parents: dict[int, int], order: dict[int, int], header: int, block: int) -> bool:
    while order[block] > order[header]:
        block = parents[block]
    return block == header


def _body(leads: list[list[int]], order: dict[int, int], header: int, block: int) -> set[int]:
    """The blocks that reach ``block`` without going through ``header``."""
    body, todo = {header}, [block]
    while todo:
        one = todo.pop()
        if one not in body:
            body.add(one)
            todo += leads[one]
    return body


def _loop(flow: Flow, header: int, body: set[int], bodies: dict[int, set[int]]) -> Loop:
    blocks = flow.blocks
    members = np.array(sorted(body))
    iterations = int(blocks.count[header])
    entered = iterations - _went_round(flow, header, body)
    timed = int(blocks.timed[header])
    return Loop(
        header,
        tuple(members.tolist()),
        sum(header in other for other in bodies.values()),
        iterations,
        iterations / entered if iterations and entered > 0.5 else None,
        float(blocks.cycles[members].sum()) / timed if timed else None,
    )


def _went_round(flow: Flow, header: int, body: set[int]) -> float:
    """How many executions of the header came from within the loop.

    Two parts: the share of ranges beginning at the header whose branch came from within (a call's return comes from its
    call), and the ranges that ran into the header from the block before.
    """
    blocks, edges, row = flow.blocks, flow.edges, int(flow.blocks.first[header])
    members = np.zeros(len(flow), bool)
    for block in body:
        members[blocks.first[block] : blocks.last[block] + 1] = True
    there = edges.target == row
    inside = there & (edges.source >= 0) & members[edges.source]
    before = header - 1
    if before in body and flow.kind[blocks.last[before]] in _CALLS:
        inside |= there & (edges.source < 0)
    every = int(edges.count[there].sum())
    share = int(edges.count[inside].sum()) / every if every else 0.0
    fell = int(blocks.through[before]) if before in body else 0
    return int(flow.arrivals[row]) * share + fell
