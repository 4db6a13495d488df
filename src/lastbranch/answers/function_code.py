"""An annotation as rows: one per instruction, block, edge, arc, indirect target, loop and source line, with names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..analysis import Estimate
from .columns import Cell, Column, TableKind, To
from .estimates import estimate_notes
from .names import Names, module_of
from .sample_columns import MISPREDICTED
from .table import Ratio, Table, Values, make_table

if TYPE_CHECKING:
    from ..analysis import Annotation, BlockGraph, Blocks, Flow, Label, Loop, Namer, Place
    from ..analysis.counting.mispredictions import Mispredictions
    from ..analysis.function.paths import Distribution, Trips
    from ..model import Array, Profile, SampleFilter

__all__ = [
    "ARCS",
    "BLOCKS",
    "COSTLY",
    "COSTS",
    "EDGES",
    "INSTRUCTIONS",
    "LINES",
    "LOOPS",
    "TARGETS",
    "FunctionCode",
    "count_function",
]


def _column(name: str, title: str, meaning: str, unit: str = "", **more: Any) -> Column:
    return Column(name=name, title=title, meaning=meaning, unit=unit, **more)


def _hexadecimal(addresses: Array) -> list[str]:
    return [f"{at:#x}" for at in addresses.tolist()]


# Rows of blocks and of instructions are a `FunctionCode`, whose columns `FunctionCode.each` brings to their rows; rows
# of edges, loops... are in classes of their own.

_FEW = ("bursts", "count")
_COUNT = _column(
    "count",
    "count",
    "how often it ran, or was taken",
    "executions",
    if_replaced="executions",
    value=lambda rows: rows.count,
)
_BURSTS = _column(
    "bursts", "bursts", "bursts of a recording by software that saw it", "bursts", value=lambda rows: rows.bursts
)
_MISPREDICTED = replace(MISPREDICTED, to=To.VERBS)
_PART_OF_BRANCH = _column(
    "share",
    "share %",
    "of the ways out of its branch",
    "%",
    form="percent",
    heat=100.0,
    rests_on=_FEW,
    bar=True,
    value=lambda rows: rows.share,
)
_NOISE = _column(
    "noise",
    "noise",
    "standard error of share %",
    "points",
    form="percent",
    rests_on=("bursts", "samples", "count"),
    value=lambda rows: rows.noise,
)
_COUNT_NOISE = _column(
    "noise",
    "noise %",
    "standard error of the count, in percent of it",
    "%",
    form="percent",
    value=lambda rows: rows.count_noise,
)
_CYCLES = _column(
    "cycles", "cycles", "on average, each time", "cycles", form="decimal", rests_on=_FEW, value=lambda rows: rows.cycles
)
_IPC = _column("ipc", "ipc", "instructions per cycle", form="decimal", value=lambda rows: rows.ipc)
_FROM = _column("from", "from", "where it begins", value=lambda rows: rows.source)
_TO = _column("to", "to", "where it goes", value=lambda rows: rows.target)
_FIRST = _column("from", "from", "address of its first instruction", value=lambda rows: _hexadecimal(rows.first))
_LAST = _column("to", "to", "address of its last instruction", value=lambda rows: _hexadecimal(rows.last))
_KIND = _column("kind", "kind", "type of the branch", value=lambda rows: rows.kind)
_BRANCH = _column("branch", "branch", "where the branch is", value=lambda rows: rows.source)
_FILE = _column("file", "file", "source file", value=lambda rows: rows.file)
_LINE = _column("line", "line", "number of the line in the source file", value=lambda rows: rows.line)

INSTRUCTIONS = TableKind(
    name="instructions of a function",
    row="an instruction",
    columns=(
        _column("address", "address", "as linked, hexadecimal", value=lambda rows: _hexadecimal(rows.flow.address)),
        _column("instruction", "instruction", "its text", value=lambda rows: rows.texts),
        _column("samples", "samples", "samples at its address", "samples", value=lambda rows: rows.samples),
        _column("block", "block", "number of its block", value=lambda rows: rows.block),
        _COUNT,
        _BURSTS,
        _COUNT_NOISE,
        _column(
            "taken",
            "taken %",
            "of the executions of a conditional branch",
            "%",
            form="percent",
            value=lambda rows: rows.taken,
        ),
        _column(
            "taken_noise",
            "taken noise",
            "standard error of taken %",
            "points",
            form="percent",
            value=lambda rows: rows.taken_noise,
        ),
        _MISPREDICTED,
        _CYCLES,
        _IPC,
        _column("loop", "loop", "number of the innermost loop", value=lambda rows: rows.loop),
        _FILE,
        _LINE,
        _column("source", "source", "text of the line", value=lambda rows: rows.source),
    ),
)
"""`annotate`. The values of a block are in each of its rows, those of its branch in the last."""
COSTS = (
    _column(
        "mispredictions",
        "mispredictions",
        "entries that were mispredicted",
        "entries",
        value=lambda rows: rows.mispredictions,
    ),
    _column(
        "cycles_lost",
        "cycles lost",
        "how much longer the code after them took",
        "cycles",
        value=lambda rows: rows.cycles_lost,
    ),
)
"""Columns of instructions, where they are asked for."""
_COSTLY_INSTRUCTIONS = replace(INSTRUCTIONS, columns=(*INSTRUCTIONS.columns, *COSTS))

_BELOW = ("depth", "blocks", "longest", "trips_p90", "trips_p50", "bursts", "noise")
"""Columns of the tables below the listing that are left out before places are shortened."""
EDGES = TableKind(
    name="edges of a function",
    row="a taken branch, or the fall-through of a conditional branch",
    columns=(
        _FROM,
        _TO,
        _KIND,
        _COUNT,
        replace(_PART_OF_BRANCH, meaning="of all edges", by_basis="share of {} %"),
        _BURSTS,
        _NOISE,
        _MISPREDICTED,
    ),
    last=("kind", "from", "to"),
    spare=_BELOW,
)
TARGETS = TableKind(
    name="indirect targets of a function",
    row="an indirect branch and one of its targets",
    columns=(_BRANCH, _TO, _COUNT, _PART_OF_BRANCH, _BURSTS, _NOISE, _MISPREDICTED),
    last=("branch", "to"),
    spare=_BELOW,
)


def _of_loop(name: str, title: str, meaning: str, value: Callable[[Loop, Trips], Cell], **more: Any) -> Column:
    return _column(
        name,
        title,
        meaning,
        value=lambda rows: [value(loop, trips) for loop, trips in zip(rows.loops, rows.trips, strict=True)],
        **more,
    )


LOOPS = TableKind(
    name="loops of a function",
    row="a loop",
    columns=(
        _column("loop", "loop", "its number", value=lambda rows: rows.number),
        _FIRST,
        _LAST,
        _of_loop("depth", "depth", "1 for a loop in no other one", lambda loop, _: loop.depth),
        _of_loop("blocks", "blocks", "how many it has", lambda loop, _: len(loop.blocks)),
        _of_loop(
            "iterations",
            "iterations",
            "how often its first block ran",
            lambda loop, _: loop.iterations,
            unit="executions",
        ),
        _BURSTS,
        _of_loop(
            "trips",
            "trips",
            "iterations each time the loop was entered, on average",
            lambda loop, _: _round(loop.trips),
            rests_on=("bursts",),
        ),
        _of_loop(
            "trips_p50",
            "trips p50",
            "half of the visits have at most so many",
            lambda _, trips: _quantile(trips.of_visit, 0.5),
            rests_on=("bursts",),
        ),
        _of_loop(
            "trips_p90",
            "trips p90",
            "nine tenths of the visits have at most so many",
            lambda _, trips: _quantile(trips.of_visit, 0.9),
            rests_on=("bursts",),
        ),
        _of_loop("longest", "longest", "most iterations seen in one visit", lambda _, trips: trips.longest or None),
        replace(_CYCLES, value=lambda rows: [_round(loop.cycles) for loop in rows.loops]),
    ),
    spare=_BELOW,
)
BLOCKS = TableKind(
    name="blocks of a function",
    row="a block",
    columns=(
        _column("block", "block", "its number", value=lambda rows: rows.block),
        _FIRST,
        _LAST,
        _COUNT,
        _BURSTS,
        _COUNT_NOISE,
        _column("came", "came", "recorded arrivals at the block", value=lambda rows: rows.came),
        _column("went", "went", "recorded departures from the block", value=lambda rows: rows.went),
        _CYCLES,
        _column(
            "cycles_p50",
            "cycles p50",
            "half of its executions take at most so many",
            "cycles",
            value=lambda rows: [_quantile(spent, 0.5) for spent in rows.found.cycles],
        ),
        _column(
            "cycles_p90",
            "cycles p90",
            "nine tenths of its executions take at most so many",
            "cycles",
            value=lambda rows: [_quantile(spent, 0.9) for spent in rows.found.cycles],
        ),
        _IPC,
    ),
)
ARCS = TableKind(
    name="jumps within a function",
    row="a jump within the function, seen or not",
    columns=(_FROM, _TO, _COUNT, _PART_OF_BRANCH, _MISPREDICTED),
)
LINES = TableKind(
    name="source lines of a function",
    row="a source line",
    columns=(
        _FILE,
        _LINE,
        _column("samples", "samples", "samples in its code", "samples", value=lambda rows: rows.samples),
        _COUNT,
    ),
)
COSTLY = TableKind(
    name="costliest mispredictions of a function",
    row="a branch that was mispredicted",
    columns=(
        _BRANCH,
        _KIND,
        _column("count", "count", "entries with a known outcome", "entries", value=lambda rows: rows.count),
        COSTS[0],
        _MISPREDICTED,
        COSTS[1],
    ),
    last=("branch", "kind"),
    spare=_BELOW,
)


@dataclass(slots=True)
class _PerBlock:
    """Rows of `INSTRUCTIONS` or of `BLOCKS`: the numbers of ``block`` (a row of the blocks for each row); ``last``
    says which rows end their block."""

    code: FunctionCode
    block: Array
    ends: Array

    @property
    def flow(self) -> Flow:
        return self.code.flow

    @property
    def found(self) -> Annotation:
        return self.code.found

    @property
    def blocks(self) -> Blocks:
        return self.flow.blocks

    def if_counted(self, values: Array) -> Array | None:
        """The values of all blocks at their rows; ``None`` where nothing was counted."""
        return values[self.block] if self.found.missing is None else None

    @property
    def count(self) -> Array | None:
        return self.if_counted(self.blocks.count)

    @property
    def bursts(self) -> Array | None:
        noise = self.found.noise
        return None if noise is None else noise.blocks[self.block]

    @property
    def count_noise(self) -> Array | None:
        noise = self.found.noise
        return None if noise is None else noise.count[self.block]

    @property
    def cycles(self) -> Ratio:
        return Ratio(self.blocks.cycles[self.block], self.blocks.timed[self.block])

    @property
    def ipc(self) -> Ratio:
        sizes = self.blocks.last - self.blocks.first + 1
        return Ratio((sizes * self.blocks.timed)[self.block], self.blocks.cycles[self.block])


@dataclass(slots=True)
class _Instructions(_PerBlock):
    """Rows of `INSTRUCTIONS`, and of these with `COSTS`."""

    @property
    def texts(self) -> list[str]:
        calls = self.code.call_names()
        return [text + calls.get(row, "") for row, text in enumerate(self.flow.text)]

    @property
    def samples(self) -> Array:
        return self.found.samples

    @property
    def decides(self) -> Array:
        """bool: rows of conditional branches at the end of their block that went on or were taken."""
        from ..lbr import KIND

        executed = (self.blocks.ended + self.blocks.through)[self.block]
        decides: Array = self.ends & (self.flow.kind == KIND["cond"]) & (executed > 0)
        return decides

    @property
    def taken(self) -> Ratio:
        ended, through = self.blocks.ended[self.block], self.blocks.through[self.block]
        return Ratio(ended, np.where(self.decides, ended + through, 0))

    @property
    def taken_noise(self) -> Array | None:
        noise = self.found.noise
        return None if noise is None else np.where(self.decides, noise.taken[self.block], np.nan)

    @property
    def mispredicted(self) -> Array:
        return np.where(self.ends, self.blocks.mispredicted[self.block], 0)

    @property
    def predicted(self) -> Array:
        return np.where(self.ends, self.blocks.predicted[self.block], 0)

    @property
    def loop(self) -> list[int | None]:
        return [self.code.loop_of[block] for block in self.block.tolist()]

    @property
    def file(self) -> list[str | None]:
        return [line.label.file or None if line else None for line in self.code.lines]

    @property
    def line(self) -> list[int | None]:
        return [line.label.line or None if line else None for line in self.code.lines]

    @property
    def source(self) -> list[str | None]:
        return [line.text if line else None for line in self.code.lines]

    @property
    def mispredictions(self) -> list[Cell]:
        return [None if cost is None else cost[0] for cost in self._costs()]

    @property
    def cycles_lost(self) -> list[Cell]:
        return [None if cost is None else cost[1] for cost in self._costs()]

    def _costs(self) -> list[tuple[int, int | None] | None]:
        costs = self.code.costs
        if costs is None:
            return [None] * len(self.block)
        cost_of = dict(zip(costs.address.tolist(), _cost_cells(costs), strict=True))
        return [cost_of.get(address) for address in self.flow.address.tolist()]


@dataclass(slots=True)
class _Blocks(_PerBlock):
    """Rows of `BLOCKS`."""

    graph: BlockGraph

    @property
    def first(self) -> Array:
        return self.flow.address[self.blocks.first]

    @property
    def last(self) -> Array:
        return self.flow.address[self.blocks.last]

    @property
    def bursts(self) -> Array | None:
        noise = self.found.noise
        return None if noise is None else self.if_counted(noise.blocks)

    @property
    def count_noise(self) -> Array | None:
        noise = self.found.noise
        return None if noise is None else self.if_counted(noise.count)

    @property
    def came(self) -> Array | None:
        return self.if_counted(self.graph.came)

    @property
    def went(self) -> Array | None:
        return self.if_counted(self.graph.went)


@dataclass(slots=True)
class _Ways:
    """Rows of `EDGES`, `TARGETS`, `ARCS` and `COSTLY`: ``source`` and ``target`` by name, and what is known of each."""

    source: list[str]
    target: list[str]
    count: Array | None
    share: Values | None
    mispredicted: Array
    predicted: Array
    kind: list[str | None] = field(default_factory=list)
    bursts: Array | None = None
    noise: Array | None = None
    mispredictions: list[Cell] = field(default_factory=list)
    cycles_lost: list[Cell] = field(default_factory=list)


@dataclass(slots=True)
class _Loops:
    """Rows of `LOOPS`: loops of ``code`` by their ``number``, from 1."""

    code: FunctionCode
    number: list[int]

    @property
    def loops(self) -> list[Loop]:
        return [self.code.found.loops[number - 1] for number in self.number]

    @property
    def trips(self) -> list[Trips]:
        return [self.code.found.trips[number - 1] for number in self.number]

    @property
    def first(self) -> Array:
        flow = self.code.flow
        return flow.address[flow.blocks.first[[loop.header for loop in self.loops]]]

    @property
    def last(self) -> Array:
        flow = self.code.flow
        return flow.address[flow.blocks.last[[loop.blocks[-1] for loop in self.loops]]]

    @property
    def bursts(self) -> Array | None:
        noise = self.code.found.noise
        return None if noise is None else noise.blocks[[loop.header for loop in self.loops]]


@dataclass(slots=True)
class _Lines:
    """Rows of `LINES`."""

    file: list[str]
    line: Array
    samples: Array
    count: Array | None


_NEAR = ("cond", "uncond", "ind", "call", "ind_call", "ret")


class Line(NamedTuple):
    """The source of an instruction: innermost function, file and line, and the line's text if it is available."""

    label: Label
    text: str | None


class FunctionCode:
    """``found`` with names from ``namer``, source lines below ``source_roots`` if it is not ``None``, and what
    mispredictions of its branches cost, if that is given. ``estimate`` is what counts were made with: titles say it."""

    def __init__(
        self,
        profile: Profile,
        namer: Namer,
        found: Annotation,
        source_roots: Sequence[str] | None = None,
        costs: Mispredictions | None = None,
        estimate: Estimate | None = None,
    ) -> None:
        from ..lbr import KIND

        self.profile, self.namer, self.found, self.flow = profile, namer, found, found.flow
        self.estimate, self.notes = estimate or Estimate.observed(profile), list[str]()
        """Notes for the user about the source text."""
        self.kinds = {KIND[name]: name for name in _NEAR}
        self.has_lines = source_roots is not None
        self.lines = [None] * len(self.flow) if source_roots is None else self._lines(source_roots)
        blocks = self.flow.blocks
        self.block_of = np.repeat(np.arange(len(blocks)), blocks.last - blocks.first + 1)
        self.costs = costs if costs is None else _of_function(costs, self.flow)
        self.loop_of: list[int | None] = [None] * len(blocks)
        for number, loop in enumerate(found.loops, 1):  # inner ones come later
            for block in loop.blocks:
                self.loop_of[block] = number

    @property
    def title(self) -> str:
        """The function as people see it."""
        return self.found.place.label.shown(self.profile)

    def _lines(self, roots: Sequence[str]) -> list[Line | None]:
        from ..analysis import Sources

        flow, sources = self.flow, Sources(self.profile, roots)
        module = np.full(len(flow), flow.module)
        rows, offsets = self.namer.chains("line", np.full(len(flow), -1), module, flow.address)
        labels = [self.namer.labels[row] for row in rows[offsets[:-1]].tolist()]
        lines: list[Line | None] = [Line(label, sources.line(label.module, label.file, label.line)) for label in labels]
        self.notes += sources.notes
        return lines

    def places(self, module: Array, address: Array) -> list[str]:
        """``function+0x12`` for each place, ``module+0x12`` where no name is known."""
        named = zip(self.namer.places(module, address), module.tolist(), address.tolist(), strict=True)
        return [name or self.profile.place(row, at) for name, row, at in named]

    def instructions(self) -> Table:
        """Rows of `INSTRUCTIONS`, with `COSTS` if these are known. The values of a block are in each of its rows, those
        of its branch in the last."""
        kind = INSTRUCTIONS if self.costs is None else _COSTLY_INSTRUCTIONS
        ends = np.arange(len(self.flow)) == self.flow.blocks.last[self.block_of]
        return make_table(kind, _Instructions(self, self.block_of, ends), len(self.flow), self.estimate)

    def costly(self, limit: int) -> Table:
        """Rows of `COSTLY`: the function's mispredicted branches, the most costly first."""
        if self.costs is None:
            return make_table(COSTLY, _Ways([], [], _NONE, _NONE, _NONE, _NONE), 0, self.estimate)
        costs = self.costs.take(slice(limit or None))
        cells = _cost_cells(costs)
        rows = _Ways(
            self.places(costs.module, costs.address),
            [],
            costs.count,
            None,
            costs.mispredicted,
            costs.predicted,
            [self.kinds.get(kind) for kind in self.flow.kind[self.flow.row_of(costs.address)].tolist()],
            mispredictions=[wrong for wrong, _ in cells],
            cycles_lost=[lost for _, lost in cells],
        )
        return make_table(COSTLY, rows, len(cells), self.estimate)

    def call_names(self) -> dict[int, str]:
        """Row -> `` <function>`` for direct branches that leave the function."""
        flow = self.flow
        away = np.flatnonzero((flow.target != 0) & (flow.row_of(flow.target) < 0))
        names = self.places(np.full(len(away), flow.module), flow.target[away])
        return {row: f" <{name}>" for row, name in zip(away.tolist(), names, strict=True)}

    def edges(self, limit: int) -> Table:
        """Rows of `EDGES`: taken branches that begin or end in the function, and ways past conditional ones."""
        from ..analysis.counting.branch_kinds import CodeOf
        from ..lbr import KIND

        flow, edges, blocks, noise = self.flow, self.flow.edges, self.flow.blocks, self.found.noise
        passed = np.flatnonzero((blocks.through != 0) & (flow.kind[blocks.last] == KIND["cond"]))
        none = np.zeros(len(passed), np.int64)
        here = np.full(len(passed), flow.module)
        count = np.concatenate([edges.count, blocks.through[passed]])
        first = np.lexsort((np.arange(len(count)) >= len(edges), -count))[: limit or None]  # taken ones before others

        def both(taken: Array, through: Array) -> Array:
            return np.concatenate([taken, through])[first]

        branches = first[first < len(edges)]
        codes = CodeOf(self.profile).kinds(edges.from_module[branches], edges.from_address[branches])
        kinds = dict(zip(branches.tolist(), codes.tolist(), strict=True))
        rows = _Ways(
            self.places(both(edges.from_module, here), both(edges.from_address, flow.address[blocks.last[passed]])),
            self.places(both(edges.to_module, here), both(edges.to_address, flow.address[blocks.last[passed] + 1])),
            count[first],
            Ratio(count[first], np.full(len(first), int(count.sum()))),
            both(edges.mispredicted, none),
            both(edges.predicted, none),
            [self.kinds.get(kinds[row]) if row in kinds else "fall through" for row in first.tolist()],
            None if noise is None else both(noise.edges, noise.through[passed]),
            None if noise is None else both(noise.share, noise.share_through[passed]),
        )
        return make_table(EDGES, rows, len(first), self.estimate)

    def targets(self, limit: int) -> Table:
        """Rows of `TARGETS`: for each indirect jump and call, hottest first, where it went, most often first."""
        from ..analysis.function.annotation import indirect_targets

        found, edges, noise = indirect_targets(self.flow), self.flow.edges, self.found.noise
        shown, before, listed = list[int](), -1, 0
        for row, site in enumerate(found.site.tolist()):
            before, listed = site, listed + 1 if site == before else 1
            if not limit or listed <= limit:
                shown.append(row)
        at = found.edge[shown]
        rows = _Ways(
            self.places(edges.from_module[at], edges.from_address[at]),
            self.places(edges.to_module[at], edges.to_address[at]),
            edges.count[at],
            found.share[shown],
            edges.mispredicted[at],
            edges.predicted[at],
            bursts=None if noise is None else noise.edges[at],
            noise=None if noise is None else noise.target[at],
        )
        return make_table(TARGETS, rows, len(shown), self.estimate)

    def loops(self, every: bool = True) -> Table:
        """Rows of `LOOPS`, those that ran unless ``every``; ``from`` and ``to`` are the header and the last
        instruction, cycles are of an iteration."""
        numbers = [number for number, loop in enumerate(self.found.loops, 1) if loop.iterations or every]
        return make_table(LOOPS, _Loops(self, numbers), len(numbers), self.estimate)

    def blocks(self) -> Table:
        """Rows of `BLOCKS`; what came and went are the edges into and out of it that were seen."""
        from ..analysis import block_graph

        size = len(self.flow.blocks)
        rows = _Blocks(self, np.arange(size), np.ones(size, bool), block_graph(self.flow))
        return make_table(BLOCKS, rows, size, self.estimate)

    def arcs(self) -> Table:
        """Rows of `ARCS`: jumps within the function, also those that were not seen to be taken, hottest first."""
        from ..analysis.function.flow import arcs_of

        arcs, address, counted = arcs_of(self.flow), self.flow.address, self.found.missing is None
        rows = _Ways(
            _hexadecimal(address[arcs.source]),
            _hexadecimal(address[arcs.target]),
            arcs.count if counted else None,
            arcs.share if counted else None,
            arcs.mispredicted,
            arcs.predicted,
        )
        return make_table(ARCS, rows, len(arcs), self.estimate)

    def source_lines(self) -> Table:
        """Rows of `LINES`: source lines that the function has code of; ``count`` as in `analysis.SourceLines`."""
        from ..analysis.function.annotation import source_lines

        if not self.has_lines:
            return make_table(LINES, _Lines([], _NONE, _NONE, _NONE), 0, self.estimate)
        found = source_lines(self.namer, self.found)
        files = [found.files[file] for file in found.file.tolist()]
        count = found.count if self.found.missing is None else None
        return make_table(LINES, _Lines(files, found.line, found.samples, count), len(files), self.estimate)

    def summary(self) -> dict[str, Cell]:
        """The function as a whole."""
        flow, place = self.flow, self.found.place
        return {
            "function": self.title,
            "linkage_name": place.label.name or None,
            "module": module_of(self.profile, place.label),
            "start": f"{flow.start:#x}",
            "end": f"{flow.end:#x}",
            "samples": int(self.found.samples.sum()),
            "instructions_executed": flow.executed if self.found.missing is None else None,
            "ipc": _round(flow.ipc),
        }


def count_function(
    names: Names,
    place: Place,
    sample_filter: SampleFilter | None,
    estimate: Estimate,
    *,
    costs: bool,
    source_roots: Sequence[str] | None,
) -> FunctionCode:
    """Count the function at ``place``; with ``costs`` also what its mispredictions cost, in a pass of its own."""
    from ..analysis import annotate
    from ..analysis.counting.mispredictions import cost_note, mispredictions

    profile = names.profile
    found = annotate(profile, place, sample_filter=sample_filter, estimate=estimate)
    lost = mispredictions(profile, sample_filter=sample_filter)[0] if costs else None
    code = FunctionCode(profile, names.namer, found, source_roots, lost, estimate)
    notes = [*found.notes, *(found.noise.notes if found.noise is not None else []), *estimate_notes(estimate)]
    notes += [] if lost is None else [cost_note(lost)]
    modules = [module_of(profile, place.label)]
    code.notes = [*notes, *code.notes, *names.notes(modules, lines=source_roots is not None)]
    return code


def _of_function(costs: Mispredictions, flow: Flow) -> Mispredictions:
    """The mispredicted branches of ``flow``, the most costly first."""
    from ..analysis.counting.mispredictions import cost_order

    inside = (costs.module == flow.module) & (costs.mispredicted > 0)
    costs = costs.take(inside)
    costs = costs.take(flow.row_of(costs.address) >= 0)
    return costs.take(cost_order(costs.estimated(), costs.timed, costs.mispredicted))


def _cost_cells(costs: Mispredictions) -> list[tuple[int, int | None]]:
    """Mispredictions and cycles lost of each branch; ``None`` where these are not known."""
    lost = costs.estimated()
    return [
        (wrong, None if np.isnan(cycles) else round(max(0.0, cycles)))
        for wrong, cycles in zip(costs.mispredicted.tolist(), lost.tolist(), strict=True)
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _quantile(found: Distribution, part: float) -> Cell:
    """The least number that so many of the observations do not exceed."""
    value = found.quantile(part)
    return int(value) if value is not None and value.is_integer() else _round(value)


_NONE = np.empty(0, np.int64)
