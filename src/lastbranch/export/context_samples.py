"""Counts by pseudo probe and calling context: how often each probe was executed for each path of calls to its function.

Contexts (`contexts`) become paths of functions and call probes, with what was inlined and what tail calls left out in
them. As in llvm-profgen without its pre-inliner, the counts of a rare context are added to the function's own counts,
and the callees are written inside their callers, as if they were inlined.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ..analysis.counting.branch_kinds import kinds_table
from ..arrays import Ints, distinct, distinct_unordered, group, ranges, sums
from ..binaries.pseudo_probes import ProbeKind, Probes, guid
from ..binaries.sections import Binary
from ..errors import SelectionError
from ..model import Array, counted
from ..symbols import FunctionTable, Symbolizer
from .contexts import ByContext, CodeMap, Context, SampleTotals, count_contexts, without_repeats
from .interface import ExportOptions, ExportResult
from .line_samples import PART, Discriminators, chains_of, discriminators_of
from .modules import ModuleCounts
from .probe_samples import PlacedProbes, callee_names, stamp
from .sample_tree import FunctionSamples, Location, SampleTree

__all__ = [
    "TailCalls",
    "tree_of",
]


_Path = tuple[tuple[str, Location], ...]
"""Functions with the probe of the call in each, outermost first; that of the last one is `_HERE`."""
_HERE = (0, 0)


def tree_of(counts: ModuleCounts, options: ExportOptions, binary: Binary) -> tuple[SampleTree, ExportResult]:
    """The counts of a module by context, and how many of the samples are in it.

    Raises `NotRecordedError` where the capture has no call chains, `UnavailableError` where the code cannot be read or
    no symbol says where its functions are, `SelectionError` for captures with weights.
    """
    if any(capture.weight != 1 for capture in counts.profile.captures):
        raise SelectionError("calling contexts are of samples, which have no weights", hint="leave out --weight")
    with Symbolizer(counts.profile, options.symbols) as symbolizer:
        table = symbolizer.functions(counts.row)
        chains, _, which = chains_of(symbolizer.names(counts.row, table.start), table)
        described = np.array([bool(chain) for chain in chains], bool)[which]
        code = CodeMap(counts.profile, counts.row, table, described)
        found = count_contexts(counts.profile, counts.row, code, options.sample_filter)
        calls = np.array(sorted({address for stack in found.stacks for address in stack}), np.uint64)
        source, target = found.branches.first, found.branches.second
        placed = PlacedProbes(binary, table, np.concatenate([calls, found.ranges.first, source, target]))
        entries = callee_names(symbolizer, counts.row, table, distinct(target), placed)
        flow = discriminators_of(symbolizer, counts.row) is Discriminators.FLOW
        notes = symbolizer.notes
    tail_calls = TailCalls(table, described, code, calls, source, target)
    executed = _Counts(placed, _Paths(placed, found.stacks, tail_calls))
    executed.add_ranges(found.ranges, code)
    executed.add_branches(found.branches, entries)
    tree = _nest_contexts(_without_cold(executed))
    tree.flow = flow
    stamp(tree, placed)
    tree.finish(calls_count=False)
    return tree, ExportResult(
        [*notes, *placed.notes, *_notes_of(found.samples)], found.samples.samples, found.samples.recorded
    )


def _notes_of(totals: SampleTotals) -> list[str]:
    said = (
        (totals.unset, "left out: taken where a function has not made its frame, or no longer has it"),
        (totals.bare, "without a call chain"),
        (totals.cut, "with a chain that ends at an address to which no call returns"),
    )
    return [f"{counted(n, 'sample')} {what}" for n, what in said if n]


# -- Which path a probe is in


class _Paths:
    """The paths of probes in contexts, numbered as they come."""

    def __init__(self, placed: PlacedProbes, stacks: list[Context], tail_calls: TailCalls) -> None:
        self.known: dict[_Path, int] = {}
        self._placed, self._stacks, self._tail_calls = placed, stacks, tail_calls
        function = tail_calls.functions(placed.probes.address)
        self._rows, self._kind = distinct_unordered(placed.probes.node.astype(np.int64), function)
        self._function = function[self._rows].tolist()

    def number(self, path: _Path) -> int:
        """The number of a path."""
        return self.known.setdefault(path, len(self.known))

    def of(self, context: Ints, probe: Ints) -> Ints:
        """int64: the number of the path of each probe (a row) in a context. The inline copy and the function that
        contains the code decide the context."""
        kinds = max(len(self._rows), 1)
        key = context * kinds + self._kind[probe]
        rows, which = distinct_unordered(key)
        order = np.argsort(key[rows])
        keys, place = key[rows[order]], np.empty_like(order)
        place[order] = np.arange(len(order))
        found, above, last = list[int](), list[tuple[str, Location]](), (-1, -1)
        every = self._rows.tolist()
        for stack, kind in zip(*(column.tolist() for column in np.divmod(keys, kinds)), strict=True):
            function = self._function[kind]
            if last != (stack, function):
                above, last = self._above(self._stacks[stack], function), (stack, function)
            frames = above.copy()
            self._placed.extend(frames, every[kind])
            leaf, _ = frames.pop()
            found.append(self.number((*without_repeats(frames), (leaf, _HERE))))
        numbers: Ints = np.array(found, np.int64)[place[which]]
        return numbers

    def _above(self, context: Context, function: int) -> list[tuple[str, Location]]:
        """The calls of a context that led to a function."""
        calls = list[int]()
        for call in reversed(self._tail_calls.filled(context, function)):
            probe = self._placed.call_at(call)
            if probe is None:  # what called this is of no use to a compiler, which would not find the call
                break
            calls.append(probe)
        frames = list[tuple[str, Location]]()
        for probe in reversed(calls):
            self._placed.extend(frames, probe)
        return frames


# -- What was executed, by path


class _Places:
    """The places that probes and calls have in their functions, numbered in their order."""

    def __init__(self, placed: PlacedProbes) -> None:
        probes = placed.probes
        index, discriminator = probes.index.astype(np.uint64) << _LOW, probes.discriminator.astype(np.uint64)
        sites = np.array(distinct(np.array(probes.sites, np.uint64)), np.uint64) << _LOW
        words = distinct(np.concatenate([index | discriminator, index, sites]))
        self.all: list[Location] = [(word >> 32, word & 0xFFFFFFFF) for word in words.tolist()]
        self.of_probe, self.of_call = np.searchsorted(words, index | discriminator), np.searchsorted(words, index)
        """int64 by probe: with its discriminator, and without."""
        self.number = {place: number for number, place in enumerate(self.all)}


_LOW = np.uint64(32)


class _Counts:
    """What was counted, by path: columns, with rows that are to be added up."""

    def __init__(self, placed: PlacedProbes, paths: _Paths) -> None:
        self.placed, self.paths, self.places = placed, paths, _Places(placed)
        self.nodes: tuple[Ints, Ints] = _NONE, _NONE
        """Path and node of the probes: inline copies of which a block was executed."""
        self._inlined: list[tuple[Ints]] = []
        self._lines: list[tuple[Ints, Ints, Ints]] = []
        self._heads: list[tuple[Ints, Ints]] = []
        self.callees: dict[str, int] = {}
        self._calls: list[tuple[Ints, Ints, Ints, Ints]] = []

    @property
    def lines(self) -> list[Ints]:
        """Path, place and times of probes."""
        return _join_columns(self._lines, 3)

    @property
    def heads(self) -> list[Ints]:
        """Path and times of entries."""
        return _join_columns(self._heads, 2)

    @property
    def calls(self) -> list[Ints]:
        """Path, place, row of `callees` and times of calls."""
        return _join_columns(self._calls, 4)

    @property
    def inlined(self) -> Ints:
        """Paths that end in an inline copy."""
        return _join_columns(self._inlined, 1)[0]

    def add_ranges(self, ranges: ByContext, code: CodeMap) -> None:
        """Count the blocks that ranges lead through."""
        probes = self.placed.probes
        context, probe, times = _executed_blocks(ranges, probes, code)
        path = self.paths.of(context, probe)
        self._lines.append((path, self.places.of_probe[probe], times))
        node = probes.node[probe].astype(np.int64)
        rows, _ = distinct_unordered(path, node)
        self.nodes = path[rows], node[rows]
        inlined = np.array(probes.parents, np.int64)[node] >= 0
        self._inlined.append((distinct(path[inlined]),))
        enters = probes.index[probe] == 1
        self._heads.append((path[enters], times[enters]))
        self._enter(path[enters & inlined], times[enters & inlined])

    def _enter(self, path: Ints, times: Ints) -> None:
        """No branch shows the call of a function that is inlined."""
        every, found = list(self.paths.known), list[tuple[int, int, int, int]]()
        for number, n in zip(path.tolist(), times.tolist(), strict=True):
            if len(every[number]) > 1:
                *above, (caller, site), (callee, _) = every[number]
                found.append(
                    (
                        self.paths.number((*above, (caller, _HERE))),
                        self.places.number[site],
                        self.callees.setdefault(callee, len(self.callees)),
                        n,
                    )
                )
        above, place, called, total = np.array(found, np.int64).reshape(-1, 4).T
        self._lines.append((above, place, total))
        self._calls.append((above, place, called, total))

    def add_branches(self, branches: ByContext, entries: dict[int, str]) -> None:
        """Count the calls that branches are, with the functions at whose entries they end."""
        none = -1
        calls = [self.placed.call_at(source) for source in branches.first.tolist()]
        call = np.array([none if found is None else found for found in calls], np.int64)[branches.pair]
        names = (entries.get(target) for target in branches.second.tolist())
        callees = [none if name is None else self.callees.setdefault(name, len(self.callees)) for name in names]
        callee = np.array(callees, np.int64)[branches.pair]
        rows = np.flatnonzero(call >= 0)
        call, callee, times = call[rows], callee[rows], branches.times[rows]
        path = self.paths.of(branches.context[rows], call)
        self._lines.append((path, self.places.of_call[call], times))
        inlined = np.array(self.placed.probes.parents, np.int64)[self.placed.probes.node[call]] >= 0
        self._inlined.append((distinct(path[inlined]),))
        named = callee >= 0
        self._calls.append((path[named], self.places.of_probe[call[named]], callee[named], times[named]))


_NONE = np.empty(0, np.int64)


def _join_columns(parts: Sequence[tuple[Ints, ...]], columns: int) -> list[Ints]:
    return [np.concatenate([_NONE, *(part[i] for part in parts)]) for i in range(columns)]


def _executed_blocks(ranges_: ByContext, probes: Probes, code: CodeMap) -> tuple[Ints, Ints, Ints]:
    """(context, row of a probe, times) of the blocks that ranges lead through, each once."""
    rows = np.flatnonzero((probes.kind == ProbeKind.BLOCK) & (code.row(probes.address) >= 0))
    rows = rows[np.argsort(probes.address[rows], kind="stable")]
    address = probes.address[rows]
    first = np.searchsorted(address, ranges_.first)
    count = (np.searchsorted(address, ranges_.second, "right") - first)[ranges_.pair]
    place = ranges(first[ranges_.pair], count)
    context = np.repeat(ranges_.context, count)
    kinds, which = distinct_unordered(context, place)
    return context[kinds], rows[place[kinds]], sums(which, np.repeat(ranges_.times, count), len(kinds))


# -- What is written: contexts with few counts joined, the others nested


_HOT = 990_000
"""Millionths of all counts that the largest of them make up, down to the threshold (ProfileSummaryCutoffHot)."""


def _hot_threshold(function: Ints, place: Ints, times: Ints) -> int:
    """The least count of a probe, over all its contexts, that is hot (ProfileSummaryBuilder)."""
    rows, which = distinct_unordered(function, place)
    flat = sums(which, times, len(rows))
    wanted, so_far, least = int(flat.sum()) * _HOT // 1_000_000, 0, 0
    values, numbers = np.unique(flat, return_counts=True)
    for times_, number in zip(values[::-1].tolist(), numbers[::-1].tolist(), strict=True):
        if so_far >= wanted:
            break
        so_far, least = so_far + times_ * number, times_
    return least


def _without_cold(counts: _Counts) -> dict[_Path, FunctionSamples]:
    """What was counted, by path. Contexts with less than a hot count in all are added to their function without one."""
    known, (path, place, times) = counts.paths.known, counts.lines
    leaves: dict[tuple[str, Location], int] = {}
    leaf = np.array([leaves.setdefault(each[-1], len(leaves)) for each in known], np.int64)
    total = sums(path, times, len(known))
    hot = total >= _hot_threshold(leaf[path], place, times)
    alone = np.array([counts.paths.number((each,)) for each in leaves], np.int64)
    goes_to = np.where(hot, np.arange(len(hot)), alone[leaf])
    total, head = sums(goes_to, total, len(known)), sums(goes_to[counts.heads[0]], counts.heads[1], len(known))
    attributes = np.zeros(len(known), np.int64)
    attributes[counts.inlined[hot[counts.inlined]]] = 1
    path, place, times = _lines(counts, goes_to)
    every, places, found = list(known), counts.places.all, dict[_Path, FunctionSamples]()
    kept = distinct(goes_to)
    bounds = np.searchsorted(path, np.append(kept, len(known))).tolist()
    where, values = [places[number] for number in place.tolist()], times.tolist()
    columns = zip(*(column.tolist() for column in (kept, total[kept], head[kept], attributes[kept])), strict=True)
    for (number, one, entered, bits), lo, hi in zip(columns, bounds, bounds[1:], strict=False):
        lines = dict(zip(where[lo:hi], values[lo:hi], strict=True))
        found[every[number]] = FunctionSamples(one, entered, lines, attributes=bits)
    callees, (path, place, callee, times) = list(counts.callees), counts.calls
    keys, (times,) = group([goes_to[path], place, callee], [times], [np.add])
    for number, at, name, n in zip(*(column.tolist() for column in (*keys, times)), strict=True):
        found[every[number]].calls.setdefault(places[at], {})[callees[name]] = n
    return found


def _lines(counts: _Counts, goes_to: Ints) -> tuple[Ints, Ints, Ints]:
    """(path, place, times) of all probes that are written, each once and sorted. ``goes_to`` int64 by path: what it is
    added to."""
    probes, size = counts.placed.probes, max(len(counts.places.all), 1)
    path, place, times = counts.lines
    called, called_at, *_ = counts.calls
    # Probes that were not executed are written, unlike those that are no more.
    whole, node = goes_to[counts.nodes[0]], counts.nodes[1]
    rows, _ = distinct_unordered(whole, node)
    whole, node = whole[rows], node[rows]
    by_node = np.argsort(probes.node, kind="stable")
    bounds = np.searchsorted(probes.node[by_node], np.arange(len(probes.guids) + 1))
    count = np.diff(bounds)[node]
    probe = by_node[ranges(bounds[:-1][node], count)]
    paths = goes_to[path], np.repeat(whole, count), goes_to[called]
    keys = np.concatenate(paths) * size + np.concatenate([place, counts.places.of_probe[probe], called_at])
    (keys,), (times,) = group([keys], [np.append(times, np.zeros(len(keys) - len(times), np.int64))], [np.add])
    return (*np.divmod(keys, size), times)


@dataclass(slots=True)
class _Node:
    """A function called from a probe of its parent."""

    name: str
    site: Location
    samples: FunctionSamples | None = None
    children: dict[tuple[str, Location], _Node] = field(default_factory=dict)

    def nest(self, tree: SampleTree) -> None:
        """Put callees into this function; callees of a function without counts stay at the top level."""
        for child in sorted(self.children.values(), key=_order) if len(self.children) > 1 else self.children.values():
            child.nest(tree)
            if child.samples is None:
                continue
            if self.samples is not None:
                self.samples.inlined.setdefault(child.site, {})[child.name] = child.samples
                self.samples.total += child.samples.total - self._not_called(child)
            else:
                tree.stand(child.name, child.samples)

    def _not_called(self, child: _Node) -> int:
        """Take the calls of what is inlined from the counts; returns how many these were."""
        assert self.samples is not None
        times = self.samples.calls.get(child.site, {}).pop(child.name, 0)
        if child.site in self.samples.lines:
            self.samples.lines[child.site] = max(self.samples.lines[child.site] - times, 0)
            if not self.samples.lines[child.site]:
                del self.samples.lines[child.site]
                self.samples.calls.pop(child.site, None)
        return times


_number = cache(guid)


def _order(node: _Node) -> int:
    """Children in llvm-profgen's order, which decides whose attributes a function keeps."""
    line, discriminator = node.site
    place = discriminator << 32 | line
    return _number(node.name) + (place << 5) + place & (1 << 64) - 1


def _nest_contexts(samples: dict[_Path, FunctionSamples]) -> SampleTree:
    """The contexts as functions, each with its callees in it."""
    root = _Node("", _HERE)
    for path, one in samples.items():
        node, site = root, _HERE
        for name, following in path:
            known = node.children
            node = known.get((name, site)) or known.setdefault((name, site), _Node(name, site))
            site = following
        node.samples = one
    tree = SampleTree()
    root.nest(tree)
    return tree


# -- Tail calls, which leave no frame: the jumps from function to function that a call stack lacks


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
