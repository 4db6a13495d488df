"""The stationary distribution of a sparse Markov chain, and its strongly connected parts.

States are eliminated one after the other (Grassmann, Taksar and Heyman 1985). That subtracts nothing, so that no digits
are lost however rare a transition is. Which states have neighbours when they are eliminated depends on where there are
transitions alone: `Elimination` finds it out once, for all chains with the same transitions.
"""

from __future__ import annotations

import weakref
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..arrays import offsets_of
from ..model import Array

__all__ = ["Elimination", "strong_components"]

_MOST = 1 << 26
"""Multiplications of an elimination, at most: 256 MB, and a tenth of a second."""


class Elimination:
    """How to eliminate the states of a chain with transitions from ``source`` to ``target`` (int64, each pair once,
    none to itself); ``last``, which every state must lead to and be reached from, is left.

    Raises `OverflowError` where that would take too long: the transitions fill up as states are eliminated.
    """

    def __init__(self, states: int, source: Array, target: Array, last: int) -> None:
        self._states, self._number, self._last = states, len(source), last
        library = native.library()
        self._native = None
        if library is not None:
            columns = np.ascontiguousarray(source, np.int64), np.ascontiguousarray(target, np.int64)
            plan = library.lb_elimination_new(states, *map(native.address, columns), len(source), last, _MOST)
            if not plan:
                raise OverflowError("too many transitions")
            self._native = library, plan
            weakref.finalize(self, library.lb_elimination_free, plan)
        else:
            self._plan, self._cells = _planned(states, source.tolist(), target.tolist(), last)

    def stationary(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64, a state: its probability. ``weight`` float64: the probability of each transition; what those out of
        a state lack to 1 stays in it. States that nothing leads to have 0."""
        if self._native is not None:
            library, plan = self._native
            given, found = np.ascontiguousarray(weight, np.float64), np.empty(self._states)
            if library.lb_elimination_run(plan, native.address(given), native.address(found)):
                raise MemoryError
        else:
            found = self._run(weight)
        found /= found.sum()
        return found

    def _run(self, weight: NDArray[np.float64]) -> NDArray[np.float64]:
        cell = np.zeros(self._cells)
        cell[1 : self._number + 1] = weight
        for _, _, into, out, product in self._plan:
            whole = cell[out].sum()
            cell[into] *= 1 / whole if whole else 0.0
            cell[product] += np.outer(cell[into], cell[out])
            cell[0] = 0.0  # what would lead from a state to itself
        found = np.zeros(self._states)
        found[self._last] = 1.0
        for state, sources, into, _, _ in reversed(self._plan):
            found[state] = found[sources] @ cell[into]
        return found


_Plan = list[tuple[int, Array, Array, Array, Array]]
"""State, which states led to it, and the cells of: these transitions, those out of it, the products of both."""


def _planned(states: int, source: list[int], target: list[int], last: int) -> tuple[_Plan, int]:
    """The states in the order in which they are eliminated, those with fewest neighbours first; the cells that are
    needed, of which the first is for what nobody wants."""
    out: list[dict[int, int]] = [{} for _ in range(states)]
    into: list[dict[int, int]] = [{} for _ in range(states)]
    cells = 1
    for one, other in zip(source, target, strict=True):
        out[one][other] = into[other][one] = cells
        cells += 1
    queue = [(len(out[state]) * len(into[state]), state) for state in range(states) if state != last]
    heapify(queue)
    plan: _Plan = []
    while queue:
        degree, state = heappop(queue)
        now = len(out[state]) * len(into[state])
        if now != degree:
            heappush(queue, (now, state))
            continue
        before, after = into[state], out[state]
        products = np.zeros((len(before), len(after)), np.int64)
        for i, one in enumerate(before):
            del out[one][state]
            for j, other in enumerate(after):
                if one == other:
                    continue
                if other not in out[one]:
                    out[one][other] = into[other][one] = cells
                    cells += 1
                products[i, j] = out[one][other]
        for other in after:
            del into[other][state]
        sources, cells_into, cells_out = (np.array([*c], np.int64) for c in (before, before.values(), after.values()))
        plan.append((state, sources, cells_into, cells_out, products))
    return plan, cells


def strong_components(states: int, source: Array, target: Array) -> NDArray[np.int64]:
    """int64, a state: the number of its strongly connected component, from 0 (Tarjan 1972). Transitions lead from
    ``source`` to ``target`` (int64)."""
    order = np.argsort(source, kind="stable")
    offsets = offsets_of(np.bincount(source, minlength=states))
    follows = np.ascontiguousarray(target[order], np.int64)
    library = native.library()
    if library is not None:
        found = np.empty(states, np.int64)
        if library.lb_strong_components(native.address(offsets), states, *map(native.address, (follows, found))):
            raise MemoryError
        return found
    return _components(states, offsets.tolist(), follows.tolist())


def _components(states: int, offsets: list[int], follows: list[int]) -> NDArray[np.int64]:
    found, number, low = [-1] * states, [0] * states, [0] * states
    next_edge, waiting, counted, components = offsets[:-1], list[int](), 0, 0
    for root in range(states):
        path = [root] if not number[root] else []
        while path:
            state = path[-1]
            if not number[state]:
                counted += 1
                number[state] = low[state] = counted
                waiting.append(state)
            if next_edge[state] < offsets[state + 1]:
                other = follows[next_edge[state]]
                next_edge[state] += 1
                if not number[other]:
                    path.append(other)
                elif found[other] < 0:
                    low[state] = min(low[state], number[other])
                continue
            path.pop()
            if path:
                low[path[-1]] = min(low[path[-1]], low[state])
            if low[state] == number[state]:
                while found[state] < 0:
                    found[waiting.pop()] = components
                components += 1
    return np.array(found, np.int64)
