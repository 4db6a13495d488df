"""Counts by pseudo probe and calling context: how often each probe was executed for each path of calls to its function.

Contexts (`contexts`) become paths of functions and call probes, with what was inlined and what tail calls left out in
them. As llvm-profgen does it without its pre-inliner, contexts with few counts are added to those of the function by
itself, and the profile is written as functions that have their callees in them, as if these were inlined.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..analysis.branch_kinds import kinds_table
from ..binaries.pseudo_probes import ProbeKind, guid
from ..binaries.sections import Binary
from ..errors import SelectionError
from ..model import Array, counted
from ..symbols import FunctionTable, Symbolizer
from .contexts import CodeMap, Context, Contexts, Pair, count_contexts, without_repeats
from .interface import Exported, ExportOptions
from .line_samples import PART, Discriminators, chains_of, discriminators_of
from .modules import ModuleCounts
from .probe_samples import PlacedProbes, callee_names, stamp
from .sample_tree import FunctionSamples, Location, SampleTree

__all__ = ["tree_of"]

_Path = tuple[tuple[str, Location], ...]
"""Functions with the probe of the call in each, outermost first; that of the last one is `_HERE`."""
_HERE = (0, 0)


def tree_of(counts: ModuleCounts, options: ExportOptions, binary: Binary) -> tuple[SampleTree, Exported]:
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
        addresses, targets = _addresses(found)
        placed = PlacedProbes(binary, table, addresses)
        entries = callee_names(symbolizer, counts.row, table, targets, placed)
        flow = discriminators_of(symbolizer, counts.row) is Discriminators.FLOW
        notes = symbolizer.notes
    profile = _ByContext(placed, code, entries, _TailCalls(table, described, code, found))
    for context in found.ranges.keys() | found.branches.keys():
        profile.add(context, found.ranges.get(context, {}), found.branches.get(context, {}))
    tree = _nested(_without_cold(profile.samples))
    tree.flow = flow
    stamp(tree, placed)
    tree.finish(calls_count=False)
    return tree, Exported([*notes, *placed.notes, *_said(found)], found.samples, found.recorded)


def _addresses(found: Contexts) -> tuple[Array, Array]:
    """(all addresses, those that branches go to), each once."""
    calls = {address for context in found.ranges.keys() | found.branches.keys() for address in context}
    starts = {start for ranges in found.ranges.values() for start, _ in ranges}
    targets = {target for branches in found.branches.values() for _, target in branches}
    sources = {source for branches in found.branches.values() for source, _ in branches}
    return np.array(sorted(calls | starts | targets | sources), np.uint64), np.array(sorted(targets), np.uint64)


def _said(found: Contexts) -> list[str]:
    said = (
        (found.unset, "left out: taken where a function has not made its frame, or no longer has it"),
        (found.bare, "without a call chain"),
        (found.cut, "with a chain that ends at an address to which no call returns"),
    )  # fmt: skip
    return [f"{counted(n, 'sample')} {what}" for n, what in said if n]


# -- Tail calls, which leave no frame


_CALLS, _JUMPS, _INDIRECT = kinds_table("call", "ind_call"), kinds_table("uncond", "ind"), kinds_table("ind")
_DEEPEST = 200


class _TailCalls:
    """Finds the jumps from function to function between a call and the function that runs, where there is one way only.

    Only jumps and calls that were recorded count (MissingFrameInferrer of llvm-profgen).
    """

    def __init__(self, table: FunctionTable, described: Array, code: CodeMap, found: Contexts) -> None:
        names: dict[str, int] = {}
        self._of_row = [
            names.setdefault(PART.sub("", function.name), len(names)) if known else -1
            for function, known in zip(table.functions, described.tolist(), strict=True)
        ]
        self._table, self._rows = table, dict[int, int]()
        self._called: dict[int, set[int]] = defaultdict(set)
        self._jumped: dict[int, set[int]] = defaultdict(set)
        self._jumps_of: dict[int, list[int]] = defaultdict(list)
        pairs = sorted({pair for branches in found.branches.values() for pair in branches})
        source = np.array([s for s, _ in pairs], np.uint64)
        kinds = code.kind(source)
        is_call, is_jump, indirect = (t[kinds].tolist() for t in (_CALLS, _JUMPS, _INDIRECT))
        for i, (a, b) in enumerate(pairs):
            here, there = self._function(a), self._function(b)
            if here < 0 or there < 0:
                continue
            if is_call[i]:
                self._called[a].add(there)
            elif is_jump[i] and (here != there or (indirect[i] and self.row(a) != self.row(b))):
                if a not in self._jumped:
                    self._jumps_of[here].append(a)
                self._jumped[a].add(there)
        self._reached = {function for functions in self._jumped.values() for function in functions}
        self._one_way: dict[Pair, list[int]] = {}
        self._other: dict[Pair, int] = {}

    def row(self, address: int) -> int:
        """The row of the function that has ``address``, -1 where none has."""
        if address not in self._rows:
            self._rows[address] = int(self._table.at(np.array([address], np.uint64))[0])
        return self._rows[address]

    def _function(self, address: int) -> int:
        row = self.row(address)
        return self._of_row[row] if row >= 0 else -1

    def filled(self, context: Context, leaf: int) -> list[int]:
        """The calls and jumps of ``context``, in whose last function the address ``leaf`` is."""
        found = list[int]()
        for call, following in zip(context, [*context[1:], leaf][: len(context)], strict=True):
            found += [call, *self._between(call, self._function(following))]
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


# -- Probes by path


class _ByContext:
    """Adds up what was executed, by path."""

    def __init__(self, placed: PlacedProbes, code: CodeMap, entries: dict[int, str], tail_calls: _TailCalls) -> None:
        self.samples: dict[_Path, FunctionSamples] = {}
        self._placed, self._entries, self._tail_calls = placed, entries, tail_calls
        probes = placed.probes
        rows = np.flatnonzero(code.row(probes.address) >= 0)
        rows = rows[np.argsort(probes.address[rows], kind="stable")]
        self._rows, self._address = rows.tolist(), probes.address[rows]
        self._kind, self._node = probes.kind.tolist(), probes.node.tolist()
        self._where = list(zip(probes.index.tolist(), probes.discriminator.tolist(), strict=True))
        self._of_node: dict[int, list[int]] = defaultdict(list)
        for row, node in enumerate(self._node):
            self._of_node[node].append(row)
        self._within: dict[Pair, list[int]] = {}
        self._paths: dict[tuple[Context, int, int], _Path] = {}

    def add(self, context: Context, ranges: Mapping[Pair, int], branches: Mapping[Pair, int]) -> None:
        """Take in what was executed in a context."""
        executed = Counter[int]()
        for pair, times in ranges.items():
            for row in self._probes_in(pair):
                executed[row] += times
        seen: dict[int, set[_Path]] = defaultdict(set)
        for row, times in executed.items():
            if self._kind[row] == ProbeKind.BLOCK:
                path, samples = self._samples(context, row)
                seen[self._node[row]].add(path)
                _count(samples, self._where[row], times)
                if self._where[row][0] == 1:
                    self._enter(path, samples, times, inlined=self._placed.probes.parents[self._node[row]] >= 0)
        for node, paths in seen.items():  # probes that were not executed, unlike those that are no more
            for path in paths:
                for row in self._of_node[node]:
                    self.samples[path].lines.setdefault(self._where[row], 0)
        for (source, target), times in branches.items():
            call = self._placed.call_at(source)
            if call is not None:
                _, samples = self._samples(context, call)
                _count(samples, (self._where[call][0], 0), times)
                if target in self._entries:
                    samples.called(self._where[call], self._entries[target], times)

    def _enter(self, path: _Path, samples: FunctionSamples, times: int, inlined: bool) -> None:
        """A function was entered; where it is inlined, no branch shows that its caller called it."""
        samples.head += times
        if inlined and len(path) > 1:
            caller, site = path[-2]
            above = self.samples.setdefault((*path[:-2], (caller, _HERE)), FunctionSamples())
            _count(above, site, times)
            above.called(site, path[-1][0], times)

    def _probes_in(self, pair: Pair) -> list[int]:
        found = self._within.get(pair)
        if found is None:
            first, past = np.searchsorted(self._address, np.array([pair[0], pair[1] + 1], np.uint64)).tolist()
            found = self._within[pair] = self._rows[first:past]
        return found

    def _samples(self, context: Context, row: int) -> tuple[_Path, FunctionSamples]:
        """The path of a probe in a context, and its counts."""
        address, node = int(self._placed.probes.address[row]), self._node[row]
        key = context, node, self._tail_calls.row(address)
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = self._path(context, row, address)
        samples = self.samples.setdefault(path, FunctionSamples())
        if self._placed.probes.parents[node] >= 0:
            samples.attributes |= 1
        return path, samples

    def _path(self, context: Context, row: int, address: int) -> _Path:
        calls = list[int]()
        for call in reversed(self._tail_calls.filled(context, address)):
            probe = self._placed.call_at(call)
            if probe is None:  # what called this is of no use to a compiler, which would not find the call
                break
            calls.append(probe)
        frames = list[tuple[str, Location]]()
        for probe in reversed(calls):
            self._placed.extend(frames, probe)
        self._placed.extend(frames, row)
        leaf, _ = frames.pop()
        return (*without_repeats(frames), (leaf, _HERE))


def _count(samples: FunctionSamples, where: Location, times: int) -> None:
    samples.lines[where] = samples.lines.get(where, 0) + times
    samples.total += times


# -- What is written: contexts with few counts joined, the others nested


_HOT = 990_000
"""Millionths of all counts that the largest of them make up, down to the threshold (ProfileSummaryCutoffHot)."""


def _hot_threshold(samples: dict[_Path, FunctionSamples]) -> int:
    """The least count of a probe, over all its contexts, that is hot (ProfileSummaryBuilder)."""
    flat: Counter[tuple[str, Location]] = Counter()
    for path, one in samples.items():
        for where, times in one.lines.items():
            flat[path[-1][0], where] += times
    wanted, so_far, least = sum(flat.values()) * _HOT // 1_000_000, 0, 0
    for times, number in sorted(Counter(flat.values()).items(), reverse=True):
        if so_far >= wanted:
            break
        so_far, least = so_far + times * number, times
    return least


def _without_cold(samples: dict[_Path, FunctionSamples]) -> dict[_Path, FunctionSamples]:
    """Contexts with less than a hot count in all are added to the function without context."""
    least = _hot_threshold(samples)
    kept = {path: one for path, one in samples.items() if one.total >= least}
    for path, one in samples.items():
        if one.total < least:
            kept.setdefault((path[-1],), FunctionSamples()).add(one)
    return kept


@dataclass(slots=True)
class _Node:
    """A function called from a probe of its parent."""

    name: str
    site: Location
    samples: FunctionSamples | None = None
    children: dict[tuple[str, Location], _Node] = field(default_factory=dict)

    def nest(self, tree: SampleTree) -> None:
        """Put callees into this one; those of a function without counts stand by themselves."""
        for child in sorted(self.children.values(), key=_order):
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


def _order(node: _Node) -> int:
    """Children in llvm-profgen's order, which decides whose attributes a function keeps."""
    line, discriminator = node.site
    place = discriminator << 32 | line
    return guid(node.name) + (place << 5) + place & (1 << 64) - 1


def _nested(samples: dict[_Path, FunctionSamples]) -> SampleTree:
    """The contexts as functions, each with its callees in it."""
    root = _Node("", _HERE)
    for path, one in samples.items():
        node, site = root, _HERE
        for name, following in path:
            node = node.children.setdefault((name, site), _Node(name, site))
            site = following
        node.samples = one
    tree = SampleTree()
    root.nest(tree)
    return tree
