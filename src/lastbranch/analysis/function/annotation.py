"""One function in full: its code with execution counts, its loops, its indirect targets and its source lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import native
from ...arrays import StackSums, Sums, Table, distinct_rows
from ...binaries.image import Code
from ...errors import SelectionError, UnavailableError
from ...isa import Decoder
from ...lbr import KIND, flag
from ...model import BRANCH, PATCHED, AddressSpaces, Array, ModuleKind, Profile, SampleBatch, SampleFilter, counted
from ..counting.availability import how_to_record, why_no_ranges, why_no_stacks
from ..counting.bound_pairs import BoundPairs, PairTable, cycles_of
from ..counting.branch_kinds import CodeOf, kinds_table
from ..counting.count_stacks import Replacement, StackCounts, add_runs_of_code, runs_of, without_entries
from ..counting.executed import leaves
from ..naming import Namer, Place
from ..samples import check_events, filtered_batches
from ..statistics.bursts import share_bursts, whole_bursts
from .flow import Flow, flow_of
from .loops import Loop, loops
from .noise import BurstSums, FunctionNoise
from .paths import Distribution, NearbyStacks, StackSample, Trips

__all__ = [
    "Annotation",
    "IndirectTargets",
    "SourceLines",
    "annotate",
    "annotate_counts",
    "annotate_each",
    "indirect_targets",
    "source_lines",
]


# -- One function in branch stacks: only entries near the function are bound and counted, so that a pass is quick


_FEW = 8
"""So many bounds are compared with one by one, which is quicker than a search for each address."""
_KEPT = 1 << 17
"""Entries that are kept for a function: thousands of stacks, of which no more would change a quantile that is shown."""
_FUNCTIONS = 8
"""So many times as many are kept, at most, for several functions together."""


class Nearby:
    """Counts branches with an end, and ranges with a part, in pieces of ``code``, and the samples whose instruction is
    there. A piece is a row of the modules table and the module addresses from which and up to which it lies.

    Ranges have the values ``cycles`` and ``timed``: cycles of an entry were spent between its branch and the older
    branch.
    """

    def __init__(self, profile: Profile, code: Sequence[tuple[int, int, int]]) -> None:
        self._profile, self._binder = profile, profile.binder
        self._bounds = _bounds(self._binder, code)
        self._branches, self._ranges = PairTable(self._binder), PairTable(self._binder, ("cycles", "timed"))
        self._not_taken = PairTable(self._binder)
        self._samples = StackSums(1, 1)  # of one frame
        self._stacks = StackSample(_KEPT * min(len(code), _FUNCTIONS))
        self._bursts = BurstSums(profile) if share_bursts(profile).any() else None

    def add(self, batch: SampleBatch) -> None:
        """Count a batch; without branch stacks its samples. If samples share bursts, pass batches of `whole_bursts`."""
        scope = self._binder.scopes(batch)
        rows = np.flatnonzero(self._bounds_passed(batch.ip) & 1)
        once = np.full(len(rows), self._profile.weight_of(batch))
        self._samples.add([scope[rows]], batch.ip[rows], np.arange(len(rows) + 1), [once])
        if BRANCH not in batch.offsets or not batch.entries:
            return
        if "previous_target" in batch:
            batch = self._add_single(scope, batch)
        offsets, source, target = batch.offsets[BRANCH], batch["branch_from"], batch["branch_to"]

        flags = batch["branch_flags"]
        rows, stack, ends, end_stack = self._near(offsets, source, target)
        entries = scope[stack], source[rows], target[rows]
        self._branches.add_each(*entries, flags[rows], [])
        self._stacks.add(len(batch), stack, rows, *entries, flags[rows])
        zeros = np.zeros(len(ends), np.uint64)
        self._ranges.add_each(scope[end_stack], target[ends + 1], source[ends], zeros, cycles_of(flags[ends]))
        if self._bursts is not None:
            branches = stack, source[rows], target[rows]
            self._bursts.add(batch, branches, (end_stack, target[ends + 1], source[ends]))

    def _add_single(self, scope: Array, batch: SampleBatch) -> SampleBatch:
        """Count the code runs and the branches not taken in records of single branches; return the batch with only
        taken branches."""
        row, start, end = runs_of(batch)
        near = (self._bounds_passed(start) & 1 > 0) | (self._bounds_passed(start) < self._bounds_passed(end))
        zeros = np.zeros(int(near.sum()), np.uint64)
        self._ranges.add_each(scope[row[near]], start[near], end[near], zeros, cycles_of(zeros))
        source, target, flags = (batch[name] for name in _COLUMNS)
        passed = flag(flags, "not_taken") != 0
        near = passed & (self._bounds_passed(source) & 1 > 0)
        tag = flags[near] & np.uint64(3)
        self._not_taken.add_each(np.repeat(scope, batch.depth)[near], source[near], target[near], tag, [])
        return without_entries(batch, passed)

    def _near(self, offsets: Array, source: Array, target: Array) -> tuple[Array, Array, Array, Array]:
        """(entries with an end in the code; their stacks; entries that end a range with a part in the code; their
        stacks)."""
        library = native.library()
        if library is None:
            left, arrived = self._bounds_passed(source), self._bounds_passed(target)
            rows, ends = np.flatnonzero((left | arrived) & 1), _range_rows(offsets, source, target, left, arrived)
            stacks = (np.searchsorted(offsets, entries, side="right") - 1 for entries in (rows, ends))
            return rows, next(stacks), ends, next(stacks)
        stack_bounds, found = np.ascontiguousarray(offsets, np.int64), np.empty(2, np.int64)
        out = [np.empty(len(source), np.int64) for _ in range(4)]
        entries = [word for column in (source, target) for word in (native.address(column), column.strides[0])]
        code = native.address(self._bounds), len(self._bounds)
        library.lb_near_entries(
            native.address(stack_bounds), len(stack_bounds) - 1, *entries, *code, *map(native.address, (*out, found))
        )
        branches, ranges = found.tolist()
        rows, stack, ends, end_stack = out
        return rows[:branches], stack[:branches], ends[:ranges], end_stack[:ranges]

    def _bounds_passed(self, address: Array) -> NDArray[np.int64]:
        """How many bounds are not above each address: an odd number within the code."""
        if len(self._bounds) > _FEW:
            return np.searchsorted(self._bounds, address, side="right")
        out = np.zeros(len(address), np.int64)
        for bound in self._bounds:
            out += bound <= address
        return out

    def result(self, estimate: Replacement | None) -> NearbyCounts:
        """The counts; with an ``estimate``, branches and ranges count by executions."""
        ranges = self._ranges.result()
        within = (ranges.a_module == ranges.b_module) & (ranges.a <= ranges.b)
        (scope,), ip, _, (samples,) = self._samples.take()
        sums = Sums([np.int64, np.uint64], [np.int64])
        sums.add(*self._binder.locate(scope, ip), samples)
        module, address, samples = sums.result()
        ranges, branches = ranges.take(within), self._branches.result()
        if estimate:
            ranges, branches = estimate.ranges(ranges), estimate.branches(branches)
        stacks = NearbyStacks(self._stacks.result(), self._binder)
        counted = StackCounts(branches, ranges, not_taken=self._not_taken.result())
        if any("previous_target" in stream.columns for stream in self._profile.streams):
            add_runs_of_code(self._profile, counted)
        ranges, not_taken = counted.ranges or ranges, counted.not_taken
        return NearbyCounts(branches, ranges, not_taken, module, address, samples, stacks, self._bursts)


class NearbyCounts(NamedTuple):
    """Counts that `Nearby` has made; ``not_taken`` as in `StackCounts`. ``samples`` int64 by ``module`` (int64 row) and
    ``address`` (uint64 module address). At addresses of the code that other modules had at other times, there is some
    of these modules, too."""

    branches: BoundPairs
    ranges: BoundPairs
    not_taken: BoundPairs | None
    module: Array
    address: Array
    samples: Array
    stacks: NearbyStacks
    bursts: BurstSums | None = None
    """``None`` where each sample is an observation of its own, or that is not known."""


def _bounds(binder: AddressSpaces, code: Iterable[tuple[int, int, int]]) -> NDArray[np.uint64]:
    """The first and last bounds of the pieces of ``code`` in all mappings of all processes, ascending; pieces that
    touch have no bound between them."""
    parts = []
    for module, start, end in code:
        first = binder.mapping_bias[binder.mapping_module == module] + np.uint64(start)
        size = np.minimum(np.uint64(end - start), np.uint64(_TOP) - first)  # modulo 2**64 it would begin anew
        parts.append(np.stack([first, first + size]))
    begin, past = np.concatenate(parts, axis=1) if parts else np.empty((2, 0), np.uint64)
    steps, at = np.repeat([1, -1], len(begin)), np.concatenate([begin, past])
    order = np.lexsort((-steps, at))  # at one address pieces begin before others end
    depth = np.cumsum(steps[order])
    return np.asarray(at[order][(depth == 0) | (depth == 1) & (steps[order] > 0)])


_TOP = (1 << 64) - 1


def _range_rows(offsets: Array, source: Array, target: Array, left: Array, arrived: Array) -> Array:
    # A range lies between neighbours of one stack, as in `counting`: entry i + 1 is older.
    found = ((arrived[1:] & 1) > 0) | (arrived[1:] < left[:-1])
    firsts = offsets[1:-1]
    found[firsts[(firsts > 0) & (firsts < len(source))] - 1] = False
    rows = np.flatnonzero(found)
    older, newer = target[rows + 1], source[rows]
    whole = (older <= newer) & (older != 0) & (source[rows + 1] != 0) & (target[rows] != 0)
    return np.asarray(rows[whole])


_WINDOW = 1 << 16
"""Bytes that a function without a known end is looked for in."""
_JUMPS = (KIND["cond"], KIND["uncond"])
_COLUMNS = ("branch_from", "branch_to", "branch_flags")


@dataclass(slots=True)
class Annotation:
    """The annotated code of ``place``.

    ``samples`` int64: samples with the address of each instruction. ``trips`` of each loop and ``cycles`` of each block
    are made of ``part`` (0 to 1) of the branch stacks: of all of them unless there are very many. ``missing`` says why
    there are no execution counts, ``no_cycles`` why there are no cycles, else ``None``; ``hint`` what to do about it;
    ``notes`` what else a reader should know. ``noise`` is the noise of a recording in bursts, else ``None``; estimated
    counts have no errors in ``noise``.
    """

    place: Place
    flow: Flow
    loops: list[Loop]
    samples: Array
    trips: list[Trips]
    cycles: list[Distribution]
    part: float = 1.0
    missing: str | None = None
    no_cycles: str | None = None
    hint: str | None = None
    notes: list[str] = field(default_factory=list)
    noise: FunctionNoise | None = None

    @property
    def observed(self) -> NDArray[np.int64]:
        """int64, a block: the observations that its counts and rates rest on, bursts or else executions."""
        return self.flow.blocks.count if self.noise is None else self.noise.blocks


def annotate(
    profile: Profile, place: Place, *, sample_filter: SampleFilter | None = None, estimate: Replacement | None = None
) -> Annotation:
    """Count what ran of ``place``; the filter's modules do not matter. With an ``estimate`` (`estimate_executions`)
    branches and blocks are counted by executions.

    Without ranges the samples are still counted. Raises `UnavailableError` where the code is not available,
    `SelectionError` where a module has no code at the given address, and where the captures of a joined profile have
    branch stacks of different events.
    """
    return annotate_each(profile, [place], sample_filter=sample_filter, estimate=estimate)(place)


def annotate_each(
    profile: Profile,
    places: Sequence[Place],
    *,
    sample_filter: SampleFilter | None = None,
    estimate: Replacement | None = None,
) -> Callable[[Place], Annotation]:
    """Count for all ``places`` in one pass; return a function that gives the annotation of a place, and raises what
    `annotate` raises."""
    check_events(profile, sample_filter, lambda event: event.branch_select is not None)
    code_of = CodeOf(profile)
    missing = why_no_stacks(profile, sample_filter) or why_no_ranges(profile, sample_filter)
    ends = {
        place: place.end or _end(*found, place.start)
        for place in places
        if (found := code_of(place.module)) is not None
    }
    in_bursts = bool(share_bursts(profile).any())
    nearby = Nearby(profile, [(place.module, place.start, end) for place, end in ends.items()])
    for stream in profile.streams if ends else ():
        wanted = (*_COLUMNS, "previous_target") if missing is None else ()
        columns = [c for c in wanted if c in stream.columns]
        batches = filtered_batches(profile, stream.batches(columns), sample_filter, by_address=False)
        for batch in whole_bursts(profile, batches) if in_bursts else batches:
            nearby.add(batch)
    counts = nearby.result(estimate)

    def annotation(place: Place) -> Annotation:
        if (found := code_of(place.module)) is None:
            raise _no_code(profile, place)
        code, decoder = found
        data = code.read(place.start, ends[place] - place.start)
        made = _annotation(profile, place, data, decoder, counts, missing)
        if estimate is not None and estimate.replaced and made.noise is not None:
            made.noise = made.noise.without_errors()
        return made

    return annotation


def annotate_counts(
    profile: Profile,
    place: Place,
    branches: BoundPairs,
    ranges: BoundPairs,
    samples: tuple[Array, Array, Array],
    missing: str | None,
) -> Annotation:
    """`annotate` from counts that are there already: ``branches``, ``ranges`` with the values ``cycles`` and ``timed``,
    ``samples`` by (module, address, count). Whole stacks are not, so nothing is known of trips and of cycles of blocks.
    ``missing`` says why there are no counts. Raises `UnavailableError` and `SelectionError` as `annotate` does."""
    code_of = CodeOf(profile)
    if (found := code_of(place.module)) is None:
        raise _no_code(profile, place)
    code, decoder = found
    data = code.read(place.start, (place.end or _end(code, decoder, place.start)) - place.start)
    within = (ranges.a_module == ranges.b_module) & (ranges.a <= ranges.b)
    stacks = NearbyStacks(StackSample(0).result(), profile.binder)
    module, address, count = samples
    counts = NearbyCounts(branches, ranges.take(within), None, module, address, count, stacks)
    return _annotation(profile, place, data, decoder, counts, missing)


def _annotation(
    profile: Profile, place: Place, data: bytes, decoder: Decoder, counts: NearbyCounts, missing: str | None
) -> Annotation:
    if not data:
        kind = UnavailableError if place.end else SelectionError  # a function of this name, or an address as given
        name = profile.place(place.module, place.start)
        raise kind(f"no code lies at {name}", hint="addresses are link addresses, as `objdump` prints them")
    patched = profile.modules[place.module].kind in PATCHED
    flow = flow_of(
        counts.branches,
        counts.ranges,
        decoder,
        data,
        place.module,
        place.start,
        patched=patched,
        not_taken=counts.not_taken,
    )
    path, found_loops = counts.stacks.path(flow, patched=patched), loops(flow)
    out = Annotation(
        place,
        flow,
        found_loops,
        _by_row(flow, counts),
        [path.trips(loop) for loop in found_loops],
        path.block_cycles(),
        counts.stacks.part,
        missing,
        hint=how_to_record(profile) if missing else None,
    )
    if counts.bursts is not None and missing is None:
        out.noise = counts.bursts.of(flow, patched=patched)
    if not flow.blocks.timed.any():
        out.no_cycles = missing or "no branch record of it has cycles: the processor or the recorder did not time them"
    out.notes += [
        f"{counted(number, 'range')} {reason}: left out" for reason, number in flow.left_out.items() if number
    ]
    if not place.end:
        name = profile.place(place.module, place.start)
        out.notes.append(f"no function is known at {name}: this is the code reached from there")
    return out


def _no_code(profile: Profile, place: Place) -> UnavailableError:
    module, name = profile.modules[place.module], profile.place(place.module, place.start)
    if module.kind is ModuleKind.ANONYMOUS:
        return UnavailableError(
            f"{name} is code generated at run time (JIT): no capture holds it, so it cannot be annotated",
            hint="`lastbranch branches`, `report --by function` and `stacks` show its name",
        )
    why = f"binary {module.missing}" if module.missing else "no binary was found"
    return UnavailableError(
        f"the code of {name} is not available: {why}",
        hint="pass the folder of the capture's binaries with --symfs; `lastbranch branches` needs no binaries",
    )


def _end(code: Code, decoder: Decoder, start: int) -> int:
    """Behind the last instruction that jumps lead to from ``start``, within a window."""
    data = code.read(start, _WINDOW)
    todo, done, end = [start], set[int](), start + 1
    while todo:
        at = todo.pop()
        while at not in done and 0 <= at - start < len(data):
            done.add(at)
            found = decoder.one(data[at - start : at - start + decoder.arch.longest], at)
            at += found.length
            end = max(end, at)
            if found.kind in _JUMPS and found.target:
                todo.append(found.target)
            if leaves(found.kind) and found.kind not in (KIND["call"], KIND["ind_call"]):
                break
    return end


def _by_row(flow: Flow, counts: NearbyCounts) -> Array:
    """int64: samples of each instruction."""
    row = np.where(counts.module == flow.module, flow.row_of(counts.address), -1)
    return np.bincount(row[row >= 0], counts.samples[row >= 0], len(flow)).astype(np.int64)


# -- what ran of each of its source lines


@dataclass(slots=True)
class SourceLines(Table):
    """Source lines that a function has code of, by file and line; equal-length arrays.

    ``file`` int64: row of ``files``, in which that with the most instructions is the first. ``line`` int64, from 1.
    ``samples`` int64: of its instructions. ``count`` int64: executions of the line's most executed instruction. ``of``
    int64: the row of each instruction of the function, by the innermost of its inlined functions; -1 where debug
    information has none.
    """

    file: Array
    line: Array
    samples: Array
    count: Array
    files: list[str] = field(default_factory=list)
    of: list[int] = field(default_factory=list)


def source_lines(namer: Namer, found: Annotation) -> SourceLines:
    """The lines of ``found``, as the debug information of its module has them."""
    flow = found.flow
    module = np.full(len(flow), flow.module)
    rows, offsets = namer.chains("line", np.full(len(flow), -1), module, flow.address)
    labels = [namer.labels[row] for row in rows[offsets[:-1]].tolist()]
    names = [label.file if label.line > 0 else "" for label in labels]
    frequency = {name: names.count(name) for name in dict.fromkeys(names) if name}
    files = sorted(frequency, key=lambda name: -frequency[name])
    number = {name: i for i, name in enumerate(files)}
    file = np.array([number.get(name, -1) for name in names], np.int64)
    line = np.array([label.line if name else 0 for label, name in zip(labels, names, strict=True)], np.int64)
    blocks = flow.blocks
    count = np.repeat(blocks.count, blocks.last - blocks.first + 1)
    known = np.flatnonzero(file >= 0)
    firsts, which = distinct_rows(file[known], line[known])
    order = np.lexsort((line[known][firsts], file[known][firsts]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    samples, most = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    np.add.at(samples, place[which], found.samples[known])
    np.maximum.at(most, place[which], count[known])
    of = np.full(len(flow), -1)
    of[known] = place[which]
    return SourceLines(file[known][firsts][order], line[known][firsts][order], samples, most, files, of.tolist())


# -- where its indirect jumps and calls went


_INDIRECT = kinds_table("ind", "ind_call")


@dataclass(slots=True)
class IndirectTargets(Table):
    """The cells of the matrix that are not empty; equal-length arrays. Branches with the most entries come first, of
    each the target that it went to most often.

    ``edge`` int64: row of the edges of the function, which has the ends, ``count`` and predictions. ``site`` int64: row
    of the branch among the instructions. ``share`` float64: of the entries of the branch. ``column`` int64: number of
    the target; 0 is the most frequent target of all branches together.
    """

    edge: Array
    site: Array
    share: Array
    column: Array


def indirect_targets(flow: Flow) -> IndirectTargets:
    """The targets of the indirect branches of ``flow`` that were seen to be taken."""
    edges = flow.edges
    edge = np.flatnonzero(edges.source >= 0)
    edge = edge[_INDIRECT[flow.kind[edges.source[edge]]]]
    site, count = edges.source[edge], edges.count[edge]
    of_site = np.bincount(site, count, len(flow))[site]
    rows, target = distinct_rows(edges.to_module[edge], edges.to_address[edge])
    rank = np.empty(len(rows), np.int64)
    rank[np.argsort(-np.bincount(target, count, len(rows)), kind="stable")] = np.arange(len(rows))
    order = np.lexsort((-count, site, -of_site))
    return IndirectTargets(edge, site, count / of_site, rank[target]).take(order)
