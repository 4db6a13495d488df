"""An annotation as rows: one per instruction, edge, indirect target and loop, with names and source lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .output import Cell, share
from .symbols import module_of

if TYPE_CHECKING:
    from ..analysis.annotation import Annotation
    from ..analysis.naming import Label, Namer
    from ..model import Array, Profile

__all__ = ["EDGES", "INSTRUCTIONS", "LOOPS", "TARGETS", "Annotated"]

INSTRUCTIONS = ("address", "instruction", "samples", "block", "count", "taken %", "mispredicted %", "cycles", "ipc",
                "loop", "file", "line", "source")  # fmt: skip
EDGES = ("from", "to", "kind", "count", "share %", "mispredicted %")
TARGETS = ("branch", "to", "count", "share %", "mispredicted %")
LOOPS = ("loop", "from", "to", "depth", "blocks", "iterations", "trips", "cycles")

_NEAR = ("cond", "uncond", "ind", "call", "ind_call", "ret")


class Line(NamedTuple):
    """Where an instruction comes from: innermost function, file and line, and the line's text if it is available."""

    label: Label
    text: str | None


class Annotated:
    """``found`` with names from ``namer``, and source lines below ``roots`` if ``source`` asks for them."""

    def __init__(self, profile: Profile, namer: Namer, found: Annotation, source: bool, roots: tuple[str, ...]) -> None:
        from ..lbr import KIND

        self.profile, self.namer, self.found, self.flow = profile, namer, found, found.flow
        self.notes: list[str] = []
        """Notes for the user about the source text."""
        self.kinds = {KIND[name]: name for name in _NEAR}
        self.lines = self._lines(roots) if source else [None] * len(self.flow)
        blocks = self.flow.blocks
        self.block_of = np.repeat(np.arange(len(blocks)), blocks.last - blocks.first + 1)
        self.loop_of: list[int | None] = [None] * len(blocks)
        for number, loop in enumerate(found.loops, 1):  # inner ones come later
            for block in loop.blocks:
                self.loop_of[block] = number

    @property
    def title(self) -> str:
        """The function as people see it."""
        return self.found.place.label.shown(self.profile)

    def _lines(self, roots: tuple[str, ...]) -> list[Line | None]:
        from ..analysis.sources import Sources

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

    def instructions(self) -> list[list[Cell]]:
        """Rows of `INSTRUCTIONS`; the values of a block are in each of its rows, those of its branch in the last."""
        flow, blocks, counted = self.flow, self.flow.blocks, self.found.missing is None
        calls = self._call_names()
        rows: list[list[Cell]] = []
        for i, block in enumerate(self.block_of.tolist()):
            last, line = i == blocks.last[block], self.lines[i]
            taken, through = int(blocks.ended[block]), int(blocks.through[block])
            wrong, right = int(blocks.mispredicted[block]), int(blocks.predicted[block])
            cycles, timed = float(blocks.cycles[block]), int(blocks.timed[block])
            size = int(blocks.last[block] - blocks.first[block]) + 1
            rows.append(
                [
                    f"{int(flow.address[i]):#x}", flow.text[i] + calls.get(i, ""), int(self.found.samples[i]), block,
                    int(blocks.count[block]) if counted else None,
                    share(taken, taken + through) if last and self.kinds.get(int(flow.kind[i])) == "cond" else None,
                    share(wrong, wrong + right) if last else None,
                    round(cycles / timed, 2) if timed else None,
                    round(size * timed / cycles, 2) if cycles else None,
                    self.loop_of[block],
                    (line.label.file or None) if line else None, (line.label.line or None) if line else None,
                    line.text if line else None,
                ]
            )  # fmt: skip
        return rows

    def _call_names(self) -> dict[int, str]:
        """Row -> `` <function>`` for direct branches that leave the function."""
        flow = self.flow
        away = np.flatnonzero((flow.target != 0) & (flow.row_of(flow.target) < 0))
        names = self.places(np.full(len(away), flow.module), flow.target[away])
        return {row: f" <{name}>" for row, name in zip(away.tolist(), names, strict=True)}

    def edges(self, limit: int) -> list[list[Cell]]:
        """Rows of `EDGES`: taken branches that begin or end in the function, and ways past conditional ones."""
        from ..lbr import KIND

        flow, edges, blocks = self.flow, self.flow.edges, self.flow.blocks
        passed = np.flatnonzero((blocks.through != 0) & (flow.kind[blocks.last] == KIND["cond"]))
        total = int(edges.count.sum() + blocks.through[passed].sum())
        found = [(count, i, True) for i, count in enumerate(edges.count.tolist())]
        found += [(int(blocks.through[b]), b, False) for b in passed.tolist()]
        found = sorted(found, key=lambda edge: (-edge[0], not edge[2]))[: limit or None]
        rows: list[list[Cell]] = []
        for count, i, taken in found:
            if taken:
                source, target, mispredicted = self._edge(i)
                row = int(edges.source[i])
                kind = self.kinds.get(int(flow.kind[row])) if row >= 0 else None
                rows.append([source, target, kind, count, share(count, total), mispredicted])
            else:
                ends = flow.address[[blocks.last[i], blocks.last[i] + 1]]
                source, target = self.places(np.full(2, flow.module), ends)
                rows.append([source, target, "fall through", count, share(count, total), None])
        return rows

    def targets(self, limit: int) -> list[list[Cell]]:
        """Rows of `TARGETS`: for each indirect jump and call, hottest first, where it went, most often first."""
        edges = self.flow.edges
        inside = np.flatnonzero(edges.source >= 0)
        kinds = self.flow.kind[edges.source[inside]]
        rows = inside[np.isin(kinds, [k for k, name in self.kinds.items() if name in ("ind", "ind_call")])]
        sums = {row: int(edges.count[edges.source == row].sum()) for row in set(edges.source[rows].tolist())}
        ordered = sorted(rows.tolist(), key=lambda i: (-sums[int(edges.source[i])], int(edges.source[i])))
        out: list[list[Cell]] = []
        for row, every in groupby(ordered, key=lambda i: int(edges.source[i])):
            for i in list(every)[: limit or None]:
                source, target, mispredicted = self._edge(i)
                count = int(edges.count[i])
                out.append([source, target, count, share(count, sums[row]), mispredicted])
        return out

    def _edge(self, i: int) -> tuple[str, str, float | None]:
        """Both ends of an edge, and the share of mispredictions."""
        edges = self.flow.edges
        module = np.array([edges.from_module[i], edges.to_module[i]])
        source, target = self.places(module, np.array([edges.from_address[i], edges.to_address[i]]))
        wrong, right = int(edges.mispredicted[i]), int(edges.predicted[i])
        return source, target, share(wrong, wrong + right)

    def loops(self) -> Iterator[list[Cell]]:
        """Rows of `LOOPS`; ``from`` and ``to`` are the header and the last instruction, cycles are of an iteration."""
        flow, blocks = self.flow, self.flow.blocks
        for number, loop in enumerate(self.found.loops, 1):
            last = int(blocks.last[loop.blocks[-1]])
            first = int(blocks.first[loop.header])
            yield [
                number, f"{int(flow.address[first]):#x}", f"{int(flow.address[last]):#x}", loop.depth,
                len(loop.blocks), loop.iterations, None if loop.trips is None else round(loop.trips, 2),
                None if loop.cycles is None else round(loop.cycles, 2),
            ]  # fmt: skip

    def summary(self) -> dict[str, Cell]:
        """The function as a whole."""
        flow, place = self.flow, self.found.place
        return {
            "function": self.title, "linkage_name": place.label.name or None,
            "module": module_of(self.profile, place.label), "start": f"{flow.start:#x}", "end": f"{flow.end:#x}",
            "samples": int(self.found.samples.sum()),
            "instructions_executed": flow.executed if self.found.missing is None else None,
            "ipc": None if flow.ipc is None else round(flow.ipc, 2),
        }  # fmt: skip
