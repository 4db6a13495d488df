"""One function: its instructions with what ran of them, its blocks, edges and loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...analysis import Annotation, BlockGraph, EdgeKind, Estimate, Place, block_graph, find_functions, place_of
from ...analysis.function.annotation import SourceLines, indirect_targets, source_lines
from ...analysis.function.flow import arcs_of
from ...analysis.function.paths import Distribution
from ...analysis.statistics.significance import ENOUGH, time_to_halve
from ...errors import SelectionError
from ...lbr import type_name
from ..answer import Answer, Column, counts_of, ratio, texts
from ..loaded import Loaded, Parameters, whole_number

__all__ = ["function", "place_asked"]

_LISTED = 20
_LANES = 16
"""Arcs that can lie beside each other."""
_AROUND = 6
"""Source lines before and after one with code."""
_WIDEST = 500
"""Letters of a source line that are sent."""


def function(loaded: Loaded, parameters: Parameters) -> Answer:
    """``at_module`` (a row) and ``start`` (an address as linked) say which function, or ``name``, as for `annotate`.

    Columns ``instructions.`` address uint64, text, kind, block and samples int64; ``blocks.`` first and last (rows of
    instructions), count, ended, through, ``taken`` and ``mispredicted`` shares, ``cycles`` of one execution, ``ipc``,
    NaN where not known, and of recordings in bursts the standard errors ``noise`` (of count, as a part of it) and
    ``taken_noise``; ``edges.`` source and target (rows, -1 outside), from, to (texts), count, mispredicted;
    ``observed`` of blocks and edges int64: what their rates rest on, in the unit ``rests_on`` of the header;
    ``arcs.`` source and target (rows), count, ``share`` of the executions of the source, mispredicted, lane;
    ``lines.`` with code and ``source.`` texts by file (row of ``files.``) and line, ``instructions.line`` a row of
    ``lines.`` or -1; ``loops.`` header (a block), depth, blocks, iterations, trips, cycles, and of `Trips` trips_p50,
    trips_p90, visits, cut, unstarted, longest. Of the graph of the blocks ``block_edges.`` source and target (blocks,
    -1 outside), kind, count, probability, mispredicted, decided (executions of its branch that say whether it was
    mispredicted), and ``blocks.`` came, went. Histograms: ``trips.`` loop, and ``cycles.`` block, with low, below,
    count, cut. The matrix of indirect branches: ``targets.`` edge, site (a row), share, column, and by column
    ``columns.`` edge (one to it) and count.
    """
    place = place_asked(loaded, parameters)
    estimate = loaded.estimate(parameters)
    found = loaded.annotate(place, loaded.filter(parameters), estimate)
    flow, lines = found.flow, source_lines(loaded.namer, found)
    sources = _source(loaded, place.module, lines)
    graph = block_graph(flow)
    answer = Answer(_header(loaded, place, found, estimate))
    tables: dict[str, dict[str, Column]] = {
        "instructions": {**_instructions(found), "line": np.array(lines.of, np.int64)},
        "blocks": _blocks(found) | {"came": graph.came, "went": graph.went},
        "edges": _edges(loaded, found),
        "arcs": _arcs(found),
        "block_edges": _block_edges(graph),
        "loops": _loops(found),
        "trips": _histograms("loop", [trips.of_visit for trips in found.trips]),
        "cycles": _histograms("block", found.cycles),
        **_matrix(found),
        "lines": _lines(lines, bool(found.missing)),
        "files": {"name": texts(lines.files)},
        "source": sources,
    }
    for table, columns in tables.items():
        answer.columns |= {f"{table}.{name}": column for name, column in columns.items()}
    return answer


def _header(loaded: Loaded, place: Place, found: Annotation, estimate: Estimate) -> dict[str, Any]:
    profile, flow = loaded.profile, found.flow
    return {
        "function": texts([place.label.shown(profile)])[0],
        "module": texts([profile.modules[place.module].short])[0],
        "module_row": place.module,
        "start": f"{flow.start:#x}",
        "end": f"{flow.end:#x}",
        "samples": int(found.samples.sum()),
        "executed": None if found.missing else flow.executed,
        "ipc": flow.ipc,
        "missing": found.missing,
        "hint": found.hint,
        "notes": texts(found.notes + loaded.sources.notes),
        "distributions_of": found.part,
        "no_cycles": found.no_cycles,
        "enough": ENOUGH,
        "arch": profile.machine.arch,
        "rests_on": "executions" if found.noise is None else "bursts",
        "halving": time_to_halve(found.noise.seconds) if found.noise else "",
        "counts": counts_of(estimate),
    }


def _instructions(found: Annotation) -> dict[str, Column]:
    flow = found.flow
    kinds = {kind: "" if kind in (0, 255) else type_name(kind) for kind in set(flow.kind.tolist())}
    return {
        "address": flow.address,
        "text": texts(flow.text),
        "kind": [kinds[kind] for kind in flow.kind.tolist()],
        "block": np.repeat(np.arange(len(flow.blocks)), flow.blocks.last - flow.blocks.first + 1),
        "samples": found.samples,
    }


def _blocks(found: Annotation) -> dict[str, Column]:
    blocks, noise = found.flow.blocks, found.noise
    sizes, unknown = blocks.last - blocks.first + 1, np.full(len(blocks), np.nan)
    return {
        "first": blocks.first,
        "last": blocks.last,
        "count": np.full(len(blocks), np.nan) if found.missing else blocks.count.astype(np.float64),
        "ended": blocks.ended,
        "through": blocks.through,
        "taken": ratio(blocks.ended, blocks.ended + blocks.through),
        "mispredicted": ratio(blocks.mispredicted, blocks.mispredicted + blocks.predicted),
        "cycles": ratio(blocks.cycles, blocks.timed),
        "ipc": ratio(sizes * blocks.timed, blocks.cycles),
        "observed": found.observed,
        "noise": unknown if noise is None else noise.count,
        "taken_noise": unknown if noise is None else noise.taken,
        **_quantiles("cycles", found.cycles),
    }


def _edges(loaded: Loaded, found: Annotation) -> dict[str, Column]:
    edges, noise = found.flow.edges, found.noise
    return {
        "source": edges.source,
        "target": edges.target,
        "from": _names_of(loaded, edges.from_module, edges.from_address),
        "to": _names_of(loaded, edges.to_module, edges.to_address),
        "count": edges.count,
        "observed": edges.count if noise is None else noise.edges,
        "mispredicted": ratio(edges.mispredicted, edges.mispredicted + edges.predicted),
    }


def _arcs(found: Annotation) -> dict[str, Column]:
    arcs = arcs_of(found.flow, _LANES)
    return {
        "source": arcs.source,
        "target": arcs.target,
        "count": np.full(len(arcs), np.nan) if found.missing else arcs.count.astype(np.float64),
        "share": np.full(len(arcs), np.nan) if found.missing else arcs.share,
        "mispredicted": ratio(arcs.mispredicted, arcs.mispredicted + arcs.predicted),
        "lane": arcs.lane,
    }


def _lines(lines: SourceLines, missing: bool) -> dict[str, Column]:
    """Lines with code, by file and line: ``samples`` and ``count`` (NaN: not known)."""
    count = np.full(len(lines), np.nan) if missing else lines.count.astype(np.float64)
    return {"file": lines.file, "line": lines.line, "samples": lines.samples, "count": count}


def _source(loaded: Loaded, module: int, lines: SourceLines) -> dict[str, Column]:
    """The text of these lines and of those around them, where it was found: ``file``, ``line``, ``text``."""
    file, line, text = list[int](), list[int](), list[str]()
    for row, name in enumerate(lines.files):
        near = set[int]()
        for number in lines.line[lines.file == row].tolist():
            near.update(range(max(1, number - _AROUND), number + _AROUND + 1))
        for number in sorted(near):
            if (found := loaded.sources.line(module, name, number)) is not None:
                file.append(row)
                line.append(number)
                text.append(found.expandtabs(4)[:_WIDEST])
    return {"file": np.array(file, np.int64), "line": np.array(line, np.int64), "text": texts(text)}


def _block_edges(graph: BlockGraph) -> dict[str, Column]:
    edges = graph.edges
    decided = edges.mispredicted + edges.predicted
    return {
        "source": edges.source,
        "target": edges.target,
        "kind": [EdgeKind(kind).name.lower().replace("_", " ") for kind in edges.kind.tolist()],
        "count": edges.count,
        "probability": edges.probability,
        "mispredicted": ratio(edges.mispredicted, decided),
        "decided": decided,
    }


def _loops(found: Annotation) -> dict[str, Column]:
    return {
        "header": np.array([loop.header for loop in found.loops], np.int64),
        "depth": np.array([loop.depth for loop in found.loops], np.int64),
        "blocks": np.array([len(loop.blocks) for loop in found.loops], np.int64),
        "iterations": np.array([loop.iterations for loop in found.loops], np.int64),
        "trips": np.array([loop.trips for loop in found.loops], np.float64),
        "cycles": np.array([loop.cycles for loop in found.loops], np.float64),
        **_quantiles("trips", [trips.of_visit for trips in found.trips]),
        "visits": np.array([(t.of_visit.count + t.of_visit.cut).sum() for t in found.trips], np.int64),
        "cut": np.array([trips.of_visit.cut.sum() for trips in found.trips], np.int64),
        "unstarted": np.array([trips.unstarted for trips in found.trips], np.int64),
        "longest": np.array([trips.longest for trips in found.trips], np.int64),
    }


def _quantiles(name: str, found: list[Distribution]) -> dict[str, Column]:
    parts = {"p50": 0.5, "p90": 0.9}
    return {f"{name}_{key}": np.array([one.quantile(part) for one in found], np.float64) for key, part in parts.items()}


def _histograms(of: str, found: list[Distribution]) -> dict[str, Column]:
    """The bins of each, one after the other: ``of`` is its row."""
    bins = [one.bins() for one in found]
    rows = np.repeat(np.arange(len(bins)), [len(one) for one in bins])
    names = ("low", "below", "count", "cut")
    kinds = (np.float64, np.float64, np.int64, np.int64)
    columns: dict[str, Column] = {
        name: np.concatenate([np.empty(0, kind), *(getattr(one, name) for one in bins)])
        for name, kind in zip(names, kinds, strict=True)
    }
    return {of: rows, **columns}


def _matrix(found: Annotation) -> dict[str, dict[str, Column]]:
    cells, edges = indirect_targets(found.flow), found.flow.edges
    columns = int(cells.column.max(initial=-1)) + 1
    first = np.zeros(columns, np.int64)
    first[cells.column] = cells.edge
    count = np.bincount(cells.column, edges.count[cells.edge], columns).astype(np.int64)
    return {"targets": {**cells.arrays()}, "columns": {"edge": first, "count": count}}


def _names_of(loaded: Loaded, module: np.ndarray, address: np.ndarray) -> list[str]:
    """``function+0x12``, ``module+0x12`` where no name is known."""
    names = loaded.namer.places(module, address)
    rows = zip(names, module.tolist(), address.tolist(), strict=True)
    return texts(name or loaded.profile.place(row, at) for name, row, at in rows)


def place_asked(loaded: Loaded, parameters: Parameters) -> Place:
    """The function that is asked for. Raises `SelectionError` where that is none, or several."""
    profile = loaded.profile
    name = parameters.get("name", "")
    if not name:
        module, start = whole_number(parameters, "at_module"), parameters.get("start", "")
        if not 0 <= module < len(profile.modules) or not start.isascii() or not start.isalnum() or len(start) > 18:
            raise SelectionError(f"at_module = {module}, start = {start[:18]!r}: no such place")
        return place_of(loaded.namer, module, _address(start))
    found = find_functions(profile, loaded.namer, name)
    if not found:
        raise SelectionError(f"no function is called {name[:100]!r}", hint="Hot lists those that have samples")
    if len(found) != 1:
        places = [f"{profile.place(p.module, p.start)} {p.label.shown(profile)}" for p in found[:_LISTED]]
        raise SelectionError(f"{name[:100]!r} means {len(found)} functions", hint="; ".join(texts(places)) or None)
    return found[0]


def _address(text: str) -> int:
    try:
        address = int(text, 0)
    except ValueError:
        address = -1
    if not 0 <= address < 1 << 64:
        raise SelectionError(f"start = {text!r}: not an address")
    return address
