"""Tail calls, which leave no frame: the jumps from function to function that a call stack lacks."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..analysis.counting.branch_kinds import kinds_table
from ..arrays import Ints
from ..model import Array
from ..symbols import FunctionTable
from .contexts import CodeMap, Context
from .line_samples import PART

__all__ = ["TailCalls"]

_CALLS, _JUMPS, _INDIRECT = kinds_table("call", "ind_call"), kinds_table("uncond", "ind"), kinds_table("ind")
_DEEPEST = 200


class TailCalls:
    """Finds the jumps from function to function between a call and the function that runs, where there is one way only.

    Only jumps and calls that were recorded count: branches from ``source`` to ``target`` (uint64). ``described`` bool:
    the functions of the table that count; functions with the same name count as one. ``calls`` uint64: what contexts
    consist of. (MissingFrameInferrer of llvm-profgen)
    """

    def __init__(
        self, table: FunctionTable, described: Array, code: CodeMap, calls: Array, source: Array, target: Array
    ) -> None:
        names: dict[str, int] = {}
        numbers = [
            names.setdefault(PART.sub("", function.name), len(names)) if known else -1
            for function, known in zip(table.functions, described.tolist(), strict=True)
        ]
        self._table, self._of_row = table, np.array([*numbers, -1], np.int64)
        self._of_call = dict(zip(calls.tolist(), self.functions(calls).tolist(), strict=True))
        self._called: dict[int, set[int]] = defaultdict(set)
        self._jumped: dict[int, set[int]] = defaultdict(set)
        self._jumps_of: dict[int, list[int]] = defaultdict(list)
        order = np.lexsort((target, source))
        source, target = source[order], target[order]
        here, there, kinds = self.functions(source), self.functions(target), code.kind(source)
        between = (here != there) | (_INDIRECT[kinds] & (table.at(source) != table.at(target)))
        is_call, is_jump = _CALLS[kinds], _JUMPS[kinds] & between
        rows = np.flatnonzero((here >= 0) & (there >= 0) & (is_call | is_jump))
        columns = (column[rows].tolist() for column in (source, here, there, is_call))
        for a, function, reached, calls in zip(*columns, strict=True):
            if calls:
                self._called[a].add(reached)
                continue
            if a not in self._jumped:
                self._jumps_of[function].append(a)
            self._jumped[a].add(reached)
        self._reached = {function for functions in self._jumped.values() for function in functions}
        self._one_way: dict[tuple[int, int], list[int]] = {}
        self._other: dict[tuple[int, int], int] = {}

    def functions(self, address: Array) -> Ints:
        """int64: the number of the function that has each address, -1 where none does."""
        return self._of_row[self._table.at(address)]

    def filled(self, context: Context, function: int) -> list[int]:
        """The calls and jumps of ``context``, whose last call led to ``function``."""
        if not self._reached:
            return list(context)
        found = list[int]()
        following = [*map(self._of_call.__getitem__, context[1:]), function]
        for call, reached in zip(context, following[: len(context)], strict=True):
            found += [call, *self._between(call, reached)]
        return found

    def _between(self, call: int, function: int) -> list[int]:
        called = self._called.get(call)
        if function < 0 or called is None or function in called or function not in self._reached:
            return []
        path, ways = list[int](), 0
        for one in called:
            ways += self._ways(one, function, path, set())
            if ways > 1:
                break
        return path if ways == 1 else []

    def _ways(self, function: int, to: int, path: list[int], visiting: set[int]) -> int:
        """How many ways of jumps lead from a function to another one: 0, 1 or more. The one is appended to ``path``."""
        if function == to:
            return 1
        if function in visiting:
            return 0
        known = self._one_way.get((function, to))
        if known is not None:
            path += known
            return 1
        if (function, to) in self._other:
            return self._other[function, to]
        if function not in self._jumps_of or len(visiting) >= _DEEPEST:
            return 0
        begin, ways = len(path), 0
        visiting.add(function)
        for jump in self._jumps_of[function]:
            ways += self._ways_of_jump(jump, to, path, visiting)
            if ways > 1:
                break
        visiting.discard(function)
        if ways == 1:
            self._one_way[function, to] = path[begin:]
        else:
            del path[begin:]
            self._other[function, to] = ways
        return ways

    def _ways_of_jump(self, jump: int, to: int, path: list[int], visiting: set[int]) -> int:
        begin, ways = len(path), 0
        path.append(jump)
        for function in self._jumped[jump]:
            ways += self._ways(function, to, path, visiting)
            if ways > 1:
                break
        if ways != 1:
            del path[begin:]
        return ways
