"""An annotation as rows: one per instruction, block, edge, arc, indirect target, loop and source line, with names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..analysis import Estimate
from .columns import GUESS, Cell, Column, TableKind, share
from .estimates import estimate_notes
from .names import Names, module_of
from .table import Table, table_of_cells

if TYPE_CHECKING:
    from ..analysis import Annotation, Flow, Label, Namer, Place
    from ..analysis.counting.mispredictions import Mispredictions
    from ..analysis.function.paths import Distribution
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


_COUNT = _column("count", "count", "how often it ran, or was taken", "executions", if_replaced="executions")
_BURSTS = _column("bursts", "bursts", "bursts of a recording by software that saw it", "bursts")
_FEW = ("bursts", "count")
_MISPREDICTED = _column(
    "mispredicted",
    "mispredicted %",
    "of the entries with a known outcome",
    "%",
    form="percent",
    heat=GUESS,
    rests_on=_FEW,
    may_lack=True,
)
_CYCLES = _column("cycles", "cycles", "on average, each time", "cycles", form="decimal", rests_on=_FEW)
_IPC = _column("ipc", "ipc", "instructions per cycle", form="decimal")
_PART_OF_BRANCH = _column(
    "share", "share %", "of the ways out of its branch", "%", form="percent", heat=100.0, rests_on=_FEW, bar=True
)
_NOISE = _column(
    "noise",
    "noise",
    "standard error of the share before it",
    "points",
    form="percent",
    rests_on=("bursts", "samples", "count"),
)
_COUNT_NOISE = _column("noise", "noise %", "standard error of the count, in percent of it", "%", form="percent")
_FROM, _TO = _column("from", "from", "where it begins"), _column("to", "to", "where it goes")
_FIRST = _column("from", "from", "address of its first instruction")
_LAST = _column("to", "to", "address of its last instruction")
_KIND = _column("kind", "kind", "type of the branch")
_BRANCH = _column("branch", "branch", "where the branch is")

INSTRUCTIONS = TableKind(
    name="instructions of a function",
    row="an instruction",
    columns=(
        _column("address", "address", "as linked, hexadecimal"),
        _column("instruction", "instruction", "its text"),
        _column("samples", "samples", "samples at its address", "samples"),
        _column("block", "block", "number of its block"),
        _COUNT,
        _BURSTS,
        _COUNT_NOISE,
        _column("taken", "taken %", "of the executions of a conditional branch", "%", form="percent"),
        _column("taken_noise", "taken noise", "standard error of taken %", "points", form="percent"),
        _MISPREDICTED,
        _CYCLES,
        _IPC,
        _column("loop", "loop", "number of the innermost loop"),
        _column("file", "file", "source file"),
        _column("line", "line", "line in it"),
        _column("source", "source", "text of the line"),
    ),
)
"""`annotate`. The values of a block are in each of its rows, those of its branch in the last."""
COSTS = (
    _column("mispredictions", "mispredictions", "entries that were mispredicted", "entries"),
    _column("cycles_lost", "cycles lost", "how much longer the code after them took", "cycles"),
)
"""Columns of instructions, where they are asked for."""
_COSTLY_INSTRUCTIONS = replace(INSTRUCTIONS, columns=(*INSTRUCTIONS.columns, *COSTS))

_BELOW = ("depth", "blocks", "longest", "trips_p90", "trips_p50", "bursts", "noise")
"""Columns of the tables below the listing that are left out before places are shortened."""
_TRIPS = tuple(
    _column(name, title, meaning, rests_on=("bursts",))
    for name, title, meaning in (
        ("trips", "trips", "times round for each time it was entered, on average"),
        ("trips_p50", "trips p50", "half of the visits have at most so many"),
        ("trips_p90", "trips p90", "nine tenths of the visits have at most so many"),
    )
)
EDGES = TableKind(
    name="edges of a function",
    row="a taken branch, or a way past a conditional one",
    columns=(
        _FROM,
        _TO,
        _KIND,
        _COUNT,
        _column(
            "share",
            "share %",
            "of all edges",
            "%",
            form="percent",
            heat=100.0,
            rests_on=_FEW,
            bar=True,
            by_basis="share of {} %",
        ),
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
LOOPS = TableKind(
    name="loops of a function",
    row="a loop",
    columns=(
        _column("loop", "loop", "its number"),
        _FIRST,
        _LAST,
        _column("depth", "depth", "1 for a loop in no other one"),
        _column("blocks", "blocks", "how many it has"),
        _column("iterations", "iterations", "how often its first block ran", "executions"),
        _BURSTS,
        *_TRIPS,
        _column("longest", "longest", "most times round that were seen"),
        _CYCLES,
    ),
    spare=_BELOW,
)
BLOCKS = TableKind(
    name="blocks of a function",
    row="a block",
    columns=(
        _column("block", "block", "its number"),
        _FIRST,
        _LAST,
        _COUNT,
        _BURSTS,
        _COUNT_NOISE,
        _column("came", "came", "of its executions, those that edges explain"),
        _column("went", "went", "of its executions, those that edges go on from"),
        _CYCLES,
        _column("cycles_p50", "cycles p50", "half of its executions take at most so many", "cycles"),
        _column("cycles_p90", "cycles p90", "nine tenths of its executions take at most so many", "cycles"),
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
        _column("file", "file", "source file"),
        _column("line", "line", "line in it"),
        _column("samples", "samples", "samples in its code", "samples"),
        _COUNT,
    ),
)
COSTLY = TableKind(
    name="costliest mispredictions of a function",
    row="a branch that was mispredicted",
    columns=(
        _BRANCH,
        _KIND,
        _column("count", "count", "entries with a known outcome", "entries"),
        COSTS[0],
        _MISPREDICTED,
        COSTS[1],
    ),
    last=("branch", "kind"),
    spare=_BELOW,
)

_QUANTILES = (0.5, 0.9)

_NEAR = ("cond", "uncond", "ind", "call", "ind_call", "ret")


class Line(NamedTuple):
    """Where an instruction comes from: innermost function, file and line, and the line's text if it is available."""

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
        return table_of_cells(
            INSTRUCTIONS if self.costs is None else _COSTLY_INSTRUCTIONS, self._instructions(), self.estimate
        )

    def _instructions(self) -> list[list[Cell]]:
        flow, blocks, counted = self.flow, self.flow.blocks, self.found.missing is None
        calls, noise = self._call_names(), self.found.noise
        costs = [] if self.costs is None else _cost_cells(self.costs)
        cost_of = {} if self.costs is None else dict(zip(self.costs.address.tolist(), costs, strict=True))
        rows: list[list[Cell]] = []
        for i, block in enumerate(self.block_of.tolist()):
            last, line = i == blocks.last[block], self.lines[i]
            taken, through = int(blocks.ended[block]), int(blocks.through[block])
            wrong, right = int(blocks.mispredicted[block]), int(blocks.predicted[block])
            cycles, timed = float(blocks.cycles[block]), int(blocks.timed[block])
            size = int(blocks.last[block] - blocks.first[block]) + 1
            decides = last and self.kinds.get(int(flow.kind[i])) == "cond"
            rows.append(
                [
                    f"{int(flow.address[i]):#x}",
                    flow.text[i] + calls.get(i, ""),
                    int(self.found.samples[i]),
                    block,
                    int(blocks.count[block]) if counted else None,
                    *self._bursts(block),
                    share(taken, taken + through) if decides else None,
                    _percent(noise.taken[block]) if decides and noise and taken + through else None,
                    share(wrong, wrong + right) if last else None,
                    round(cycles / timed, 2) if timed else None,
                    round(size * timed / cycles, 2) if cycles else None,
                    self.loop_of[block],
                    (line.label.file or None) if line else None,
                    (line.label.line or None) if line else None,
                    line.text if line else None,
                    *(cost_of.get(int(flow.address[i]), (None, None)) if self.costs is not None else ()),
                ]
            )
        return rows

    def _bursts(self, block: int) -> tuple[Cell, Cell]:
        """The bursts that saw a block, and the standard error of its count in percent of it."""
        noise = self.found.noise
        return (None, None) if noise is None else (int(noise.blocks[block]), _percent(noise.count[block]))

    def costly(self, limit: int) -> Table:
        """Rows of `COSTLY`: its branches that were mispredicted, those that cost most first."""
        return table_of_cells(COSTLY, self._costly(limit), self.estimate)

    def _costly(self, limit: int) -> list[list[Cell]]:
        if self.costs is None:
            return []
        costs = self.costs.take(slice(limit or None))
        kinds = self.flow.kind[self.flow.row_of(costs.address)].tolist()
        names = self.places(costs.module, costs.address)
        columns = (names, kinds, costs.count.tolist(), costs.predicted.tolist(), _cost_cells(costs))
        return [
            [name, self.kinds.get(kind), count, wrong, share(wrong, wrong + right), lost]
            for name, kind, count, right, (wrong, lost) in zip(*columns, strict=True)
        ]

    def _call_names(self) -> dict[int, str]:
        """Row -> `` <function>`` for direct branches that leave the function."""
        flow = self.flow
        away = np.flatnonzero((flow.target != 0) & (flow.row_of(flow.target) < 0))
        names = self.places(np.full(len(away), flow.module), flow.target[away])
        return {row: f" <{name}>" for row, name in zip(away.tolist(), names, strict=True)}

    def edges(self, limit: int) -> Table:
        """Rows of `EDGES`: taken branches that begin or end in the function, and ways past conditional ones."""
        return table_of_cells(EDGES, self._edges(limit), self.estimate)

    def _edges(self, limit: int) -> list[list[Cell]]:
        from ..analysis.counting.branch_kinds import CodeOf
        from ..lbr import KIND

        flow, edges, blocks, noise = self.flow, self.flow.edges, self.flow.blocks, self.found.noise
        passed = np.flatnonzero((blocks.through != 0) & (flow.kind[blocks.last] == KIND["cond"]))
        total = int(edges.count.sum() + blocks.through[passed].sum())
        found = [(count, i, True) for i, count in enumerate(edges.count.tolist())]
        found += [(int(blocks.through[b]), b, False) for b in passed.tolist()]
        found = sorted(found, key=lambda edge: (-edge[0], not edge[2]))[: limit or None]
        rows: list[list[Cell]] = []
        branches = np.array([i for _, i, taken in found if taken], np.int64)
        codes = CodeOf(self.profile).kinds(edges.from_module[branches], edges.from_address[branches])
        kinds = dict(zip(branches.tolist(), codes.tolist(), strict=True))
        for count, i, taken in found:
            if taken:
                source, target, mispredicted = self._edge(i)
                kind = self.kinds.get(kinds[i])
                bursts = (int(noise.edges[i]), _percent(noise.share[i])) if noise else (None, None)
                rows.append([source, target, kind, count, share(count, total), *bursts, mispredicted])
            else:
                ends = flow.address[[blocks.last[i], blocks.last[i] + 1]]
                source, target = self.places(np.full(2, flow.module), ends)
                bursts = (int(noise.through[i]), _percent(noise.share_through[i])) if noise else (None, None)
                rows.append([source, target, "fall through", count, share(count, total), *bursts, None])
        return rows

    def targets(self, limit: int) -> Table:
        """Rows of `TARGETS`: for each indirect jump and call, hottest first, where it went, most often first."""
        return table_of_cells(TARGETS, self._targets(limit), self.estimate)

    def _targets(self, limit: int) -> list[list[Cell]]:
        from ..analysis.function.annotation import indirect_targets

        found, noise = indirect_targets(self.flow), self.found.noise
        out: list[list[Cell]] = []
        before, listed = -1, 0
        for edge, site, part in zip(found.edge.tolist(), found.site.tolist(), found.share.tolist(), strict=True):
            before, listed = site, listed + 1 if site == before else 1
            if not limit or listed <= limit:
                source, target, mispredicted = self._edge(edge)
                bursts = (int(noise.edges[edge]), _percent(noise.target[edge])) if noise else (None, None)
                count = int(self.flow.edges.count[edge])
                out.append([source, target, count, round(100 * part, 2), *bursts, mispredicted])
        return out

    def _edge(self, i: int) -> tuple[str, str, float | None]:
        """Both ends of an edge, and the share of mispredictions."""
        edges = self.flow.edges
        module = np.array([edges.from_module[i], edges.to_module[i]])
        source, target = self.places(module, np.array([edges.from_address[i], edges.to_address[i]]))
        wrong, right = int(edges.mispredicted[i]), int(edges.predicted[i])
        return source, target, share(wrong, wrong + right)

    def loops(self, every: bool = True) -> Table:
        """Rows of `LOOPS`; ``from`` and ``to`` are the header and the last instruction, cycles are of an iteration."""
        rows = self._loops()
        at = [column.name for column in LOOPS.columns].index("iterations")
        return table_of_cells(LOOPS, (row for row in rows if row[at] or every), self.estimate)

    def _loops(self) -> Iterator[list[Cell]]:
        flow, blocks = self.flow, self.flow.blocks
        for number, (loop, trips) in enumerate(zip(self.found.loops, self.found.trips, strict=True), 1):
            last = int(blocks.last[loop.blocks[-1]])
            first = int(blocks.first[loop.header])
            yield [
                number,
                f"{int(flow.address[first]):#x}",
                f"{int(flow.address[last]):#x}",
                loop.depth,
                len(loop.blocks),
                loop.iterations,
                self._bursts(loop.header)[0],
                _rounded(loop.trips),
                *_quantiles(trips.of_visit),
                trips.longest or None,
                _rounded(loop.cycles),
            ]

    def blocks(self) -> Table:
        """Rows of `BLOCKS`; what came and went are the edges into and out of it that were seen."""
        return table_of_cells(BLOCKS, self._blocks(), self.estimate)

    def _blocks(self) -> Iterator[list[Cell]]:
        from ..analysis import block_graph

        flow, blocks, graph = self.flow, self.flow.blocks, block_graph(self.flow)
        counted = self.found.missing is None
        for i, spent in enumerate(self.found.cycles):
            first, last = int(blocks.first[i]), int(blocks.last[i])
            cycles, timed = float(blocks.cycles[i]), int(blocks.timed[i])
            ran = (int(blocks.count[i]), *self._bursts(i), int(graph.came[i]), int(graph.went[i]))
            yield [
                i,
                f"{int(flow.address[first]):#x}",
                f"{int(flow.address[last]):#x}",
                *(ran if counted else [None] * len(ran)),
                _rounded(cycles / timed if timed else None),
                *_quantiles(spent),
                _rounded((last - first + 1) * timed / cycles if cycles else None),
            ]

    def arcs(self) -> Table:
        """Rows of `ARCS`: jumps within the function, also those that were not seen to be taken, hottest first."""
        return table_of_cells(ARCS, self._arcs(), self.estimate)

    def _arcs(self) -> Iterator[list[Cell]]:
        from ..analysis.function.flow import arcs_of

        arcs, address, counted = arcs_of(self.flow), self.flow.address.tolist(), self.found.missing is None
        columns = (arcs.source, arcs.target, arcs.count, arcs.share, arcs.mispredicted, arcs.predicted)
        for source, target, count, part, wrong, right in zip(*(c.tolist() for c in columns), strict=True):
            known = counted and not np.isnan(part)
            yield [
                f"{address[source]:#x}",
                f"{address[target]:#x}",
                count if counted else None,
                round(100 * part, 2) if known else None,
                share(wrong, wrong + right),
            ]

    def source_lines(self) -> Table:
        """Rows of `LINES`: source lines that the function has code of; ``count`` as in `analysis.SourceLines`."""
        return table_of_cells(LINES, self._source_lines(), self.estimate)

    def _source_lines(self) -> Iterator[list[Cell]]:
        from ..analysis.function.annotation import source_lines

        if not self.has_lines:
            return
        found = source_lines(self.namer, self.found)
        for file, line, samples, count in zip(*(column.tolist() for column in found.arrays().values()), strict=True):
            yield [found.files[file], line, samples, count if self.found.missing is None else None]

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
            "ipc": _rounded(flow.ipc),
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
    """Those of ``flow`` that were mispredicted, those that cost most first."""
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


def _percent(part: float) -> float | None:
    return None if np.isnan(part) else round(100 * float(part), 2)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _quantiles(found: Distribution) -> list[Cell]:
    """Half of the observations, and nine tenths, are at most that."""
    values = map(found.quantile, _QUANTILES)
    return [int(value) if value is not None and value.is_integer() else _rounded(value) for value in values]
