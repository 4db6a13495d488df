"""Comparison of two recordings: what gained or lost share, and whether that could be chance."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..arrays import distinct, group, ranges
from ..errors import NotRecordedError
from ..model import Array, Module, ModuleKind, Profile, SampleBatch, SampleFilter
from .counting.bound_pairs import BoundPairs
from .counting.count_stacks import count_stacks
from .naming import Label, Namer, name_of_unnamed
from .samples import filtered_batches, period_of, wanted_events
from .statistics.bursts import bursts_of, whole_bursts
from .statistics.sample_sums import SampleSums
from .statistics.significance import Clusters, adjust_probabilities, probabilities

__all__ = ["Difference", "CodeLocation", "Thing", "compare", "compare_sums"]


# -- The same code in two recordings, whose programs may have been built anew in between


_SHIFTING = re.compile(r"\.(llvm|lto_priv|__uniq)\.\d+")
"""Suffixes of linkage names that change from build to build."""


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """A place in code: its ``function`` (empty where none is known) and the ``module``, as people know them, and
    ``where`` in it: an offset (``+0x12``), an address (``0x401136``), a source line, or nothing for all of it.

    ``file`` and ``line`` are its place in the source (in the second recording's, if both know the source): the line of
    the place itself if lines were asked for, else the line of the function's declaration. Empty and 0 if not known.
    """

    module: str
    function: str
    where: str = ""
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def called(self) -> str:
        """For people: ``function+0x12``, or ``behind function+0x12`` for what follows a place."""
        place = self.where.removeprefix("behind ")
        text = f"{self.function}{place}" if self.function else place or name_of_unnamed(self.module)
        return f"behind {text}" if place != self.where else text


class CodeLocations:
    """Distinct addresses of a profile, each with a row: int64 ``process`` and ``module`` rows, uint64 ``address``."""

    def __init__(self, profile: Profile, process: Array, module: Array, address: Array) -> None:
        self.profile = profile
        # Memory of a process: processes have different code at the same address.
        self._own = np.array([m.kind is ModuleKind.ANONYMOUS for m in profile.modules] + [True], bool)
        owner = self._owner(process, module)
        self._owners = distinct(owner)
        code = self._code(owner, address)
        self.codes, first = np.unique(code, return_index=True)
        self.process, self.module, self.address = process[first], module[first], address[first]

    def __len__(self) -> int:
        return len(self.codes)

    def rows(self, process: Array, module: Array, address: Array) -> NDArray[np.int64]:
        """int64: the row of each, -1 where it has none."""
        if not len(self):
            return np.full(len(address), -1, np.int64)
        owner = self._owner(process, module)
        code = self._code(owner, address)
        row = np.minimum(np.searchsorted(self.codes, code), len(self) - 1)
        known = np.isin(owner, self._owners) & (self.codes[row] == code)
        return np.where(known, row, -1)

    def _owner(self, process: Array, module: Array) -> Array:
        return (np.where(self._own[module], process, -1) + 1) * (len(self.profile.modules) + 1) + module + 1

    def _code(self, owner: Array, address: Array) -> NDArray[np.uint64]:
        """Owner and address in one number, in this order: 48 bits of an address matter, and one bit stays free."""
        rank = np.searchsorted(self._owners, owner).astype(np.uint64)
        return (rank << np.uint64(48)) | (address & np.uint64((1 << 48) - 1))


class Matcher:
    """Matches the things of two profiles, by keys that are equal on both sides.

    A module is the same by its build identity, else by its last name; what is left on either side counts as one module,
    since programs get new names. A function is the same by its linkage name (by its address, too, in a module of the
    same build). A place in it is the same by address in the same build, by offset where the function has the same size,
    else by source line, else not distinguished within the function.
    """

    def __init__(self, namers: Sequence[Namer], lines: bool = False) -> None:
        self.namers, self._lines_wanted = namers, lines
        modules = [namer.profile.modules for namer in namers]
        self._same = set.intersection(*({_identity(m) for m in side} for side in modules)) - {None}
        self._named = set.intersection(*({m.short for m in side} for side in modules))
        self._sizes: list[dict[Hashable, set[int]]] = [{}, {}]

    def functions(self, side: int, spots: CodeLocations) -> tuple[list[Hashable], list[Label]]:
        """(key, label) of the function at each spot."""
        namer = self.namers[side]
        rows = namer.rows(spots.process, spots.module, spots.address)
        keys = {row: self.same_function(side, namer.labels[row]) for row in distinct(rows).tolist()}
        return [keys[row] for row in rows.tolist()], [namer.labels[row] for row in rows.tolist()]

    def measure(self, side: int, spots: CodeLocations, keys: Sequence[Hashable]) -> None:
        """Learn the sizes of the functions at ``spots``, before `places` are requested on either side."""
        sizes = self._sizes[side]
        for module in distinct(spots.module).tolist():
            table, mine = self.namers[side].table(module), np.flatnonzero(spots.module == module)
            for i, row in zip(mine.tolist(), table.at(spots.address[mine]).tolist(), strict=True):
                if row >= 0:
                    sizes.setdefault(keys[i], set()).add(int(table.end[row] - table.start[row]))

    def places(self, side: int, spots: CodeLocations) -> tuple[list[Hashable], list[CodeLocation]]:
        """(key, what to call it) of each spot."""
        functions, labels = self.functions(side, spots)
        lines = self._lines(side, spots, functions, labels)
        sources = self._sources(side, spots, labels)
        modules, out = self.namers[side].profile.modules, list[tuple[Hashable, CodeLocation]]()
        for i, (function, label, address) in enumerate(zip(functions, labels, spots.address.tolist(), strict=True)):
            module = modules[label.module].short if label.module >= 0 else ""
            where = f"+{address - label.start:#x}" if label.function else f"{address:#x}"
            key: Hashable = address - label.start
            if not self.same_code(side, function, label):
                key, where = lines.get(i, (None, ""))
            out.append(((function, key), CodeLocation(module, label.function, where, *sources[i])))
        return [key for key, _ in out], [spot for _, spot in out]

    def same_code(self, side: int, function: Hashable, label: Label) -> bool:
        """Whether the function is the same code on both sides, so that offsets in it mean the same."""
        module = self.namers[side].profile.modules[label.module] if label.module >= 0 else None
        if module is None or _identity(module) in self._same:
            return True
        if not label.function:
            return _identity(module) is None  # nothing says that it is another build
        a, b = (sizes.get(function, set()) for sizes in self._sizes)
        return a == b and len(a) == 1

    def same_function(self, side: int, label: Label) -> Hashable:
        """The key of a function: equal for the same one on both sides."""
        module = self.namers[side].profile.modules[label.module] if label.module >= 0 else None
        name = _SHIFTING.sub("", label.name) or label.function
        if module is None:
            return None, name, 0
        identity = _identity(module)
        if identity in self._same:
            return identity, name, label.start
        return module.short if module.short in self._named else "", name, 0

    def _sources(self, side: int, spots: CodeLocations, labels: Sequence[Label]) -> list[tuple[str, int]]:
        """(file, line) of each spot, if lines were asked for; of its function where that is all that is known."""
        declared = [(label.file, label.line) for label in labels]
        if not self._lines_wanted:
            return declared
        namer = self.namers[side]
        found, offsets = namer.chains("line", spots.process, spots.module, spots.address)
        exact = [namer.labels[row] for row in found[offsets[:-1]].tolist()]
        return [(at.file, at.line) if at.line else known for at, known in zip(exact, declared, strict=True)]

    def _lines(
        self, side: int, spots: CodeLocations, functions: Sequence[Hashable], labels: Sequence[Label]
    ) -> dict[int, tuple[Hashable, str]]:
        """Row -> (key, text) of the source line of the spots that have nothing better, where one is known."""
        each = enumerate(zip(functions, labels, strict=True))
        wanted = [i for i, (function, label) in each if label.function and not self.same_code(side, function, label)]
        namer, rows = self.namers[side], np.array(wanted, np.int64)
        found, offsets = namer.chains("line", spots.process[rows], spots.module[rows], spots.address[rows])
        own = namer.rows(spots.process[rows], spots.module[rows], spots.address[rows])
        out: dict[int, tuple[Hashable, str]] = {}
        for i, row, function in zip(wanted, found[offsets[:-1]].tolist(), own.tolist(), strict=True):
            line, declared = namer.labels[row], namer.labels[function]
            if not line.line:
                continue
            file = line.file.replace("\\", "/").rpartition("/")[2]
            # Lines of the function count from its own first line: changes above the function do not move them.
            inside = line.name == declared.name and 0 < declared.line <= line.line
            out[i] = ((file, line.line - declared.line if inside else line.line, inside), f" {file}:{line.line}")
        return out


def _identity(module: Module) -> Hashable | None:
    if module.build_id:
        return module.build_id
    return (module.pdb_guid, module.pdb_age) if module.pdb_guid else None


# -- What occurs in the samples of a profile, for comparison: functions, edges, blocks. Each takes two passes: the first
# finds all things, to name and match them; the second adds up each thing's part of each sample.


Named = list[tuple[Hashable, tuple[CodeLocation, ...]]]
"""(key that is the same in the other profile, what to call it) of each distinct thing."""


Points = set[tuple[Hashable, int, bool]]
"""The beginnings of blocks: function, offset in the function, and whether the block begins after the instruction
there."""


class Counter(ABC):
    """Things of one kind. ``spots`` are the addresses that they are made of."""

    spots: CodeLocations

    def points(self, matching: Matcher, side: int) -> Points:
        """The points that this side has seen and the other side must look for, too."""
        return set()

    def adopt(self, matching: Matcher, side: int, points: Points) -> None:
        """Look for the ``points`` of the other side, too."""
        return  # only blocks have points

    @abstractmethod
    def distinct_keys(self, matching: Matcher, side: int) -> Named:
        """The distinct things."""

    @abstractmethod
    def count(self, rows: NDArray[np.int64], into: Clusters) -> None:
        """Add all samples; thing ``i`` counts as ``rows[i]``."""


def _function_at(modules: Sequence[Module], label: Label) -> CodeLocation:
    module = modules[label.module].short if label.module >= 0 else ""
    return CodeLocation(module, label.function, "", label.file, label.line)


class _Functions(Counter):
    """By the address of the sample; a sample weighs its period."""

    def __init__(self, profile: Profile, only: SampleFilter) -> None:
        self._profile, self._only, self._binder = profile, only, profile.binder
        found = [_distinct(*self._places(batch)) for batch in self._batches()]
        self.spots = CodeLocations(profile, *_distinct(*_joined_places(found)))

    def _batches(self) -> Iterator[SampleBatch]:
        batches = filtered_batches(self._profile, self._profile.batches(()), self._only)
        return whole_bursts(self._profile, batches)

    def _places(self, batch: SampleBatch) -> tuple[Array, Array, Array]:
        scope = self._binder.scopes(batch)
        return self._binder.process_of(scope), *self._binder.locate(scope, batch.ip)

    def distinct_keys(self, matching: Matcher, side: int) -> Named:
        keys, labels = matching.functions(side, self.spots)
        modules = self._profile.modules
        return [(key, (_function_at(modules, label),)) for key, label in zip(keys, labels, strict=True)]

    def count(self, rows: NDArray[np.int64], into: Clusters) -> None:
        events = (self._profile.events[i] for i in self._only.events)
        weighed = all(e.has_period or e.period for e in events)
        for batch in self._batches():
            weight = period_of(self._profile, batch) if weighed else np.ones(len(batch))
            key, burst, some = rows[self.spots.rows(*self._places(batch))], bursts_of(self._profile, batch), weight != 0
            whole = np.bincount(burst, weight)
            into.add(whole, burst[some], key[some], weight[some], self._profile.weight_of(batch))


class _Edges(Counter):
    """By the entries of branch stacks; a sample weighs the entries that it has."""

    ranges = False

    def __init__(self, profile: Profile, only: SampleFilter) -> None:
        self._profile, self._only, self._binder = profile, only, profile.binder
        counted = count_stacks(profile, ranges=self.ranges, details=False, sample_filter=only)
        found = counted.branches if counted.ranges is None else counted.ranges
        found = found.take((found.a != 0) | (found.b != 0) | (found.a_module >= 0))
        process, module = np.tile(found.process, 2), np.concatenate([found.a_module, found.b_module])
        places = _distinct(process, module, np.concatenate([found.a, found.b]))
        self.spots = CodeLocations(profile, *places)
        self._learn(found)

    def _learn(self, found: BoundPairs) -> None:
        self._pairs = distinct(self._pair(found.process, found.a_module, found.a, found.b_module, found.b))

    def _pair(self, process: Array, a_module: Array, a: Array, b_module: Array, b: Array) -> NDArray[np.int64]:
        """One number for both ends, -1 if either end is not known."""
        source, target = self.spots.rows(process, a_module, a), self.spots.rows(process, b_module, b)
        return np.where((source >= 0) & (target >= 0), source * len(self.spots) + target, -1)

    def distinct_keys(self, matching: Matcher, side: int) -> Named:
        keys, spots = matching.places(side, self.spots)
        ends = zip(*(part.tolist() for part in np.divmod(self._pairs, max(len(self.spots), 1))), strict=True)
        return [((keys[a], keys[b]), (spots[a], spots[b])) for a, b in ends]

    def count(self, rows: NDArray[np.int64], into: Clusters) -> None:
        for batch in self._stacks():
            each = np.repeat(np.arange(len(batch)), batch.depth)
            pair = self._pair(*self._bind_entries(batch, each, batch["branch_from"], batch["branch_to"]))
            sample, key = self._known_pairs(each, pair, rows)
            burst = bursts_of(self._profile, batch)[sample]
            into.add(np.bincount(burst), burst, key, times=self._profile.weight_of(batch))

    def _known_pairs(self, sample: Array, pair: Array, rows: Array) -> tuple[Array, Array]:
        """(sample, key) of the pairs that were learned: others pass no filter of modules, or are empty."""
        at = np.minimum(np.searchsorted(self._pairs, pair), max(len(self._pairs) - 1, 0))
        good = (self._pairs[at] == pair) & (pair >= 0) if len(self._pairs) else np.zeros(len(pair), bool)
        return sample[good], rows[at[good]]

    def _stacks(self) -> Iterator[SampleBatch]:
        for stream in self._profile.streams:
            if "branch_from" in stream.columns:
                batches = stream.batches(("branch_from", "branch_to"))
                kept = filtered_batches(self._profile, batches, self._only, by_address=False)
                for batch in whole_bursts(self._profile, kept):
                    if batch.entries:
                        yield batch

    def _bind_entries(
        self, batch: SampleBatch, each: Array, a: Array, b: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        scope = self._binder.scopes(batch)
        process = self._binder.process_of(scope)[each]
        scope = scope[each]
        return process, *self._binder.locate(scope, a), *self._binder.locate(scope, b)


class _Blocks(_Edges):
    """By the ranges between branch entries; a sample weighs the ranges that it has.

    A block begins where a branch went to, or after a branch that was taken: no code is needed to see these. A range
    runs its first block and each block after a branch that the range runs past. A block that begins in one recording
    may lie inside a range of the other, so each side looks for the blocks of both. This comparison needs functions
    whose code is the same on both sides.
    """

    ranges = True

    def _learn(self, found: BoundPairs) -> None:
        super()._learn(found)
        self._found = found
        first = self.spots.rows(found.process, found.a_module, found.a)
        last = self.spots.rows(found.process, found.b_module, found.b)
        # Even numbers are spots where a block begins; odd numbers are the instructions that follow a spot.
        self._points = distinct(np.concatenate([first * 2, last * 2 + 1]))

    def points(self, matching: Matcher, side: int) -> Points:
        functions, labels = matching.functions(side, self.spots)
        offsets = [a - label.start for a, label in zip(self.spots.address.tolist(), labels, strict=True)]
        return {(functions[spot], offsets[spot], bool(after)) for spot, after in self._split()}

    def adopt(self, matching: Matcher, side: int, points: Points) -> None:
        functions, labels = matching.functions(side, self.spots)
        spots, known = self.spots, {function: i for i, function in enumerate(functions)}
        here = [(known[f], offset, after) for f, offset, after in points if f in known]
        here = [p for p in here if matching.same_code(side, functions[p[0]], labels[p[0]])]
        rows = np.array([row for row, _, _ in here], np.int64)
        at = np.array([labels[row].start + offset for row, offset, _ in here], np.uint64)
        after = np.array([after for _, _, after in here], np.int64)
        process, module = spots.process[rows], spots.module[rows]
        places = [(spots.process, spots.module, spots.address), (process, module, at)]
        self.spots = CodeLocations(self._profile, *_distinct(*_joined_places(places)))
        self._learn(self._found)
        more = self.spots.rows(process, module, at) * 2 + after
        self._points = distinct(np.concatenate([self._points, more]))

    def distinct_keys(self, matching: Matcher, side: int) -> Named:
        functions, labels = matching.functions(side, self.spots)
        numbers: dict[Hashable, int] = {}
        self._within = np.array([numbers.setdefault(key, len(numbers)) for key in functions], np.int64)
        keys, spots = matching.places(side, self.spots)
        usable = [matching.same_code(side, f, label) for f, label in zip(functions, labels, strict=True)]
        self._points = self._points[np.array(usable, bool)[self._points // 2]]
        out: Named = []
        for spot, after in self._split():
            at = spots[spot]
            where = f"behind {at.where}" if after else at.where
            out.append(((keys[spot], after), (replace(at, where=where),)))
        return out

    def _split(self) -> list[tuple[int, int]]:
        """(row of the spot, 1 if after it) of each point."""
        spot, after = np.divmod(self._points, 2)
        return list(zip(spot.tolist(), after.tolist(), strict=True))

    def count(self, rows: NDArray[np.int64], into: Clusters) -> None:
        for batch in self._stacks():
            each = np.repeat(np.arange(len(batch)), batch.depth)
            source, target = batch["branch_from"], batch["branch_to"]
            empty = (source == 0) | (target == 0)
            inner = np.flatnonzero((each[1:] == each[:-1]) & ~empty[1:] & ~empty[:-1])
            # Entry i + 1 is older: the range goes from its target to the source of the next branch.
            pair = self._pair(*self._bind_entries(batch, each[inner], target[1:][inner], source[:-1][inner]))
            learned, _ = self._known_pairs(np.arange(len(pair)), pair, np.arange(len(self._pairs)))
            first, last = np.divmod(pair[learned], max(len(self.spots), 1))
            straight = self._within[first] == self._within[last]  # in one function
            sample, first, last = each[inner][learned][straight], first[straight], last[straight]
            low = np.searchsorted(self._points, first * 2)
            sizes = np.searchsorted(self._points, last * 2, side="right") - low
            point = ranges(low, sizes)
            burst = bursts_of(self._profile, batch)[sample]
            into.add(np.bincount(burst), np.repeat(burst, sizes), rows[point], times=self._profile.weight_of(batch))


class _SummedCounter(Counter):
    """Functions or edges of samples that are no more."""

    def __init__(self, profile: Profile, sums: SampleSums, by: Thing) -> None:
        self._profile = profile
        self._of_functions = by == "function"
        found, self.totals = sums.addresses, sums.samples
        if not self._of_functions:
            found, self.totals = sums.branches, sums.stacks
            found = found.take((found.a_module >= 0) | (found.b_module >= 0))
        ends = [(found.a_module, found.a), (found.b_module, found.b)][: 1 if self._of_functions else 2]
        self._values = [found.present, found.present_for, found.part, found.part_squared, found.part_weight]
        places = _joined_places([(np.full(len(module), -1), module, address) for module, address in ends])
        self.spots = CodeLocations(profile, *_distinct(*places))
        self._ends = [self.spots.rows(np.full(len(module), -1), module, address) for module, address in ends]

    def distinct_keys(self, matching: Matcher, side: int) -> Named:
        if self._of_functions:
            keys, labels = matching.functions(side, self.spots)
            modules = self._profile.modules
            spots = [_function_at(modules, label) for label in labels]
        else:
            keys, spots = matching.places(side, self.spots)
        found: Named = []
        for ends in zip(*(end.tolist() for end in self._ends), strict=True):
            key = keys[ends[0]] if self._of_functions else tuple(keys[end] for end in ends)
            found.append((key, tuple(spots[end] for end in ends)))
        return found

    def count(self, rows: NDArray[np.int64], into: Clusters) -> None:
        values = self._values
        if self._of_functions:  # a sample has one address, so these add up
            values = [np.bincount(rows, column, into.keys).astype(column.dtype) for column in values]
            rows = np.arange(into.keys)
        into.add_sums(self.totals, rows, *values)


def _joined_places(parts: list[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    none = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64)
    process, module, address = (np.concatenate(c) for c in zip(none, *parts, strict=True))
    return process, module, address


def _distinct(process: Array, module: Array, address: Array) -> tuple[Array, Array, Array]:
    (process, module, address), _ = group([process, module, address], [], [])
    return process, module, address


COUNTERS: dict[str, Callable[[Profile, SampleFilter], Counter]] = {
    "function": _Functions,
    "edge": _Edges,
    "block": _Blocks,
}
"""The kinds of things that `comparison.compare` can compare."""


Thing = Literal["function", "edge", "block"]


@dataclass(slots=True)
class Difference:
    """One row for each event and thing, the surest differences first. Equal-length arrays.

    ``event`` is the name of the event of each; ``spots`` what it is: a function, both ends of an edge, or where a block
    begins. ``share`` float64 [2, n]: its part of all samples by their periods (functions), of all branch entries
    (edges), or of all ranges (blocks), from 0 to 1. ``samples`` int64 [2, n]: samples that have it. ``probability``
    float64 that chance alone makes a difference as large, not a number if too few samples have the thing; ``rate``
    float64 the false discovery rate at which it is significant, over all things of an event; ``noise`` float64 the
    standard error of the change of its share; ``notes`` what cannot be compared.
    """

    event: list[str]
    spots: list[tuple[CodeLocation, ...]]
    share: NDArray[np.float64]
    samples: NDArray[np.int64]
    probability: NDArray[np.float64]
    rate: NDArray[np.float64]
    noise: NDArray[np.float64]
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.event)

    @property
    def change(self) -> NDArray[np.float64]:
        """float64: the second share less the first."""
        change: NDArray[np.float64] = self.share[1] - self.share[0]
        return change

    def significant(self, rate: float = 0.05) -> NDArray[np.bool_]:
        """bool: differences that stay significant with all things together."""
        with np.errstate(invalid="ignore"):
            found: NDArray[np.bool_] = self.rate <= rate
        return found


def compare(
    namers: Sequence[Namer],
    by: Thing = "function",
    *,
    sample_filters: Sequence[SampleFilter | None] = (None, None),
    lines: bool = False,
) -> Difference:
    """Compare two profiles, each with its `Namer`, event by event: events are the same by name. ``lines``: find the
    source lines of edges and blocks, too.

    Functions are counted by the samples' own addresses. The unit of chance is the sample: see `significance`. Raises
    `NotRecordedError` where there is nothing to compare: no event in common, no branch stacks, no ranges.
    """
    if by not in get_args(Thing):
        raise ValueError(f"by = {by!r}: choose from {', '.join(map(repr, get_args(Thing)))}")
    profiles = [namer.profile for namer in namers]
    pairs, notes = _common_events(profiles, sample_filters, by)
    parts = []
    for rows in pairs:
        only = [
            replace(f or SampleFilter(), events=frozenset([row])) for f, row in zip(sample_filters, rows, strict=True)
        ]
        counters = [COUNTERS[by](profile, chosen) for profile, chosen in zip(profiles, only, strict=True)]
        parts.append(_compare_counts(profiles[0].events[rows[0]].name, Matcher(namers, lines), counters))
    return _join_differences(parts, notes)


def compare_sums(
    namers: Sequence[Namer], sums: Sequence[SampleSums], event: str, by: Thing = "function", *, lines: bool = False
) -> Difference:
    """`compare` of two sides whose samples are no more, of the event ``event``; functions weigh their samples. Raises
    `NotRecordedError` where a side has nothing to compare, and `ValueError` for blocks, which take samples."""
    if by == "block":
        raise ValueError("by = 'block': choose from 'function', 'edge'")
    counters = [_SummedCounter(namer.profile, side, by) for namer, side in zip(namers, sums, strict=True)]
    if not all(counter.totals.samples for counter in counters):
        what, side = "samples" if by == "function" else "branch stacks", "B" if counters[0].totals.samples else "A"
        raise NotRecordedError(f"there are no {what} to compare on {side}'s side")
    return _join_differences([_compare_counts(event, Matcher(namers, lines), counters)], [])


def _common_events(
    profiles: Sequence[Profile], filters: Sequence[SampleFilter | None], by: Thing
) -> tuple[list[tuple[int, int]], list[str]]:
    """Rows of events that both have, and notes about the others."""
    sides: list[dict[str, int]] = []
    for profile, chosen in zip(profiles, filters, strict=True):
        wanted = wanted_events(profile, chosen)
        if by != "function":
            wanted = {i: event for i, event in wanted.items() if event.branch_select is not None} or wanted
        sides.append({event.name: i for i, event in reversed(wanted.items())})
    a, b = sides
    common = [(row, b[name]) for name, row in sorted(a.items(), key=lambda item: item[1]) if name in b]
    if not common:
        listed = (", ".join(side) or "none" for side in sides)
        raise NotRecordedError(
            "the captures have no event in common: {} against {}".format(*listed),
            hint="shares of different events mean different things: record both with the same event",
        )
    alone = sorted(a.keys() ^ b.keys())
    return common, [f"event {name} is in only one of the two captures and is left out" for name in alone]


def _compare_counts(event: str, matching: Matcher, counters: Sequence[Counter]) -> Difference:
    for side, counter in enumerate(counters):
        matching.measure(side, counter.spots, matching.functions(side, counter.spots)[0])
    seen = [counter.points(matching, side) for side, counter in enumerate(counters)]
    for side, counter in enumerate(counters):
        counter.adopt(matching, side, seen[1 - side])
    numbers: dict[Hashable, int] = {}
    called: list[tuple[CodeLocation, ...]] = []
    rows = []
    for side, counter in enumerate(counters):
        found = counter.distinct_keys(matching, side)
        rows.append(np.array([numbers.setdefault(key, len(numbers)) for key, _ in found], np.int64))
        for key, spots in found:
            number = numbers[key]
            if number == len(called):
                called.append(spots)
            elif side and all(spot.line for spot in spots):  # the source as it is now
                called[number] = tuple(
                    replace(old, file=new.file, line=new.line) for old, new in zip(called[number], spots, strict=True)
                )
    clusters = [Clusters(len(numbers)) for _ in counters]
    for counter, row, cluster in zip(counters, rows, clusters, strict=True):
        counter.count(row, cluster)
    a, b = clusters
    chance = probabilities(a, b)
    return Difference(
        [event] * len(called),
        called,
        np.stack([a.share, b.share]),
        np.stack([a.present, b.present]),
        chance,
        adjust_probabilities(chance),
        np.sqrt(a.variance(a.share) + b.variance(b.share)),
    )


def _join_differences(parts: Sequence[Difference], notes: list[str]) -> Difference:
    event, spots = [e for p in parts for e in p.event], [s for p in parts for s in p.spots]
    share, samples = (np.concatenate([getattr(p, name) for p in parts], axis=1) for name in ("share", "samples"))
    chance, rate, noise = (
        np.concatenate([getattr(p, name) for p in parts]) for name in ("probability", "rate", "noise")
    )
    unsure: Array = np.where(np.isnan(chance), 2, chance)
    order = np.lexsort((-np.abs(share[1] - share[0]), unsure))
    return Difference(
        [event[i] for i in order.tolist()],
        [spots[i] for i in order.tolist()],
        share[:, order],
        samples[:, order],
        chance[order],
        rate[order],
        noise[order],
        notes,
    )
