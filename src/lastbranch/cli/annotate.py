"""``lastbranch annotate``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import click

from ..answers.columns import GUESS, Cell
from .options import (
    Capture,
    Count,
    EstimateChoice,
    captures_and,
    estimate_option,
    filter_options,
    format_option,
    source_root_option,
)
from .output import print_json, print_lines, print_table, shorten, table_lines, terminal_options, terminal_width
from .symbols import chosen_function, symbol_options
from .terminal import FAINT, can_print, colours, emphasis, heat, paint, terminal

if TYPE_CHECKING:
    from ..analysis import Flow
    from ..analysis.function.paths import Distribution
    from ..answers.function_code import FunctionCode
    from ..symbols import SymbolOptions


@click.command()
@captures_and("function", "FUNC")
@filter_options
@symbol_options
@click.option("--source", is_flag=True, help="Print source lines between the instructions.")
@source_root_option
@click.option(
    "--mispredictions",
    "cost",
    is_flag=True,
    help="Also print how often each branch was mispredicted and the cycles that it cost, and the costliest branches.",
)
@click.option("--all", "every", is_flag=True, help="Also print instructions that were not seen to run.")
@format_option("table", "csv", "json", help="Output format; csv has one row per instruction.")
@terminal_options
@click.option(
    "--limit",
    type=Count(),
    default=20,
    show_default=True,
    help="Edges and indirect targets to print; 0 prints all.",
)
@estimate_option
def command(
    capture: Capture,
    function: str,
    make_filter: Any,
    symbols: SymbolOptions,
    source: bool,
    source_root: tuple[str, ...],
    cost: bool,
    every: bool,
    form: str,
    limit: int,
    counts: EstimateChoice,
) -> int:
    """Show the code of a function and how often it ran.

    Its loops, its hottest edges and the targets of its indirect branches follow.

    FUNC is a name, a pattern with *, or MODULE+0xADDRESS. The first instruction of a block shows how often the block
    ran, its cycles and its instructions per cycle. Its last instruction shows how often its branch was taken, and
    how often the taken branch was mispredicted. All these counts come from the ranges between the entries of branch
    stacks (docs: hot code). They follow time; --estimate executions corrects that.

    In recordings by software, bursts counts the bursts that saw a block or an edge, noise % is the standard error
    of count in percent of it, and the other columns of noise are the standard error of the share before them, in
    percentage points. What fewer than 100 bursts saw is faint: it is mostly chance.

    With --mispredictions, cycles lost is how much longer the code after mispredictions of a branch took than the same
    code after predicted branches, where the processor times branches.
    """
    from ..answers.function_code import count_function
    from ..answers.names import Names
    from ..errors import NotRecordedError

    profile = capture.open()
    chosen = make_filter(profile)
    names = Names(profile, symbols)
    place = chosen_function(names, function, chosen)
    estimate = counts.of(capture, profile, chosen)
    with capture.reading(profile):
        shown = count_function(names, place, chosen, estimate, costs=cost, source_roots=source_root if source else None)
    print_annotated(shown, form, limit, every)
    code = capture.finish(profile, shown.notes)
    if shown.found.missing:
        raise NotRecordedError(
            f"only samples are shown, without executions: {shown.found.missing}", hint=shown.found.hint
        )
    return code


# -- how an annotation is printed: as text for people, as rows of instructions, or as one JSON object

_COLUMNS = (
    "samples",
    "count",
    "bursts",
    "noise",
    "taken",
    "taken_noise",
    "mispredicted",
    "mispredictions",
    "cycles_lost",
    "cycles",
    "ipc",
    "loop",
    "address",
)
"""Columns of the listing, before the instruction."""
_RATES = ("noise", "taken", "taken_noise", "mispredicted", "cycles", "ipc")
"""Columns that are faint where few bursts or executions support them."""
_SPARE = ("taken_noise", "noise", "bursts")
"""Left out first where the terminal is too narrow for the instructions."""
_INSTRUCTION = 40
"""Columns that instructions have before anything is left out."""
_ARROWS = 8
"""Columns for jumps beside the code, at most."""
_LEAST = 24
"""Letters of the name of the function that are always printed."""
_BLOCK = ("count", "bursts", "noise", "cycles", "ipc", "loop")
"""Columns that are printed only at the first instruction of a block."""


def print_annotated(shown: FunctionCode, form: str, limit: int, every: bool) -> None:
    """Print all of it; ``limit`` is for edges and targets, ``every`` includes what was not seen to run."""
    if form == "csv":
        print_table(shown.instructions(), "csv")
    elif form == "json":
        print_json(_object(shown, limit))
    else:
        print_lines(_text(shown, limit, every))


def _object(shown: FunctionCode, limit: int) -> dict[str, object]:
    found = shown.found
    tables: dict[str, list[dict[str, object]]] = {
        name: [{**row} for row in table.objects()]
        for name, table in (
            ("instructions", shown.instructions()),
            ("blocks", shown.blocks()),
            ("loops", shown.loops()),
            ("edges", shown.edges(limit)),
            ("arcs", shown.arcs()),
            ("indirect_targets", shown.targets(limit)),
            ("source_lines", shown.source_lines()),
        )
    }
    if shown.costs is not None:
        tables["costly"] = [{**row} for row in shown.costly(limit).objects()]
    for row, spent in zip(tables["blocks"], found.cycles, strict=True):
        row["cycles_histogram"] = _histogram(spent)
    for row, trips in zip(tables["loops"], found.trips, strict=True):
        row |= {
            "visits": int(trips.of_visit.count.sum() + trips.of_visit.cut.sum()),
            "cut": int(trips.of_visit.cut.sum()),
            "unstarted": trips.unstarted,
            "trips_histogram": _histogram(trips.of_visit),
        }
    facts = {
        "distributions_percent": round(100 * found.part, 4),
        "no_cycles": found.no_cycles,
        "counts_follow": shown.estimate.basis,
    }
    return {**shown.summary(), **facts, **tables}


def _histogram(found: Distribution) -> list[dict[str, object]]:
    """Bins from a number on and below another one; ``cut`` are observations that were at least as large."""
    columns = (column.tolist() for column in found.bins().arrays().values())
    return [dict(zip(("from", "below", "count", "cut"), row, strict=True)) for row in zip(*columns, strict=True)]


def _text(shown: FunctionCode, limit: int, every: bool) -> Iterator[str]:
    from ..model import counted, visible

    facts = shown.summary()
    where = f"  {facts['module']} {facts['start']}..{facts['end']}, {facts['samples']} samples"
    if facts["instructions_executed"] is not None:
        where += f", {counted(int(facts['instructions_executed']), 'instruction')} "
        where += "executed" if shown.estimate.replaced else "seen"
    where = visible(where + (f", {facts['ipc']:.2f} IPC" if facts["ipc"] is not None else ""))
    room = terminal_width()
    yield shorten(visible(str(facts["function"])), None if room is None else max(_LEAST, room - len(where))) + where
    yield ""
    yield from _list_instructions(shown, every)
    for title, table in (
        ("Loops", shown.loops(every)),
        ("Hottest edges", shown.edges(limit)),
        ("Indirect targets", shown.targets(limit)),
        ("Costliest mispredictions", shown.costly(limit)),
    ):
        if len(table):
            yield ""
            yield title
            yield from table_lines(table)


def _list_instructions(shown: FunctionCode, every: bool) -> Iterator[str]:
    """Instructions, each block's values at its beginning; what was not seen to run is one line unless ``every``.

    Branch records are samples: code that is not in them may have run."""
    from ..model import counted, visible

    table = shown.instructions()
    titles = {column.name: column.title for column in table.columns}
    rows = [dict(zip(titles, row, strict=True)) for row in table.cells()]
    firsts = set(shown.flow.blocks.first.tolist())
    cold = [row["count"] == 0 and not row["samples"] and not every for row in rows]
    used = [c for c in _COLUMNS if c == "address" or any(row.get(c) for row in rows)]
    for row in rows:
        row["samples"] = row["samples"] or None
    room = terminal_width()
    while True:
        texts = [[_cell(row[c]) if i in firsts or c not in _BLOCK else "" for c in used] for i, row in enumerate(rows)]
        width = [max([len(titles[c]), *(len(t[n]) for t in texts)]) for n, c in enumerate(used)]
        indent = sum(width) + 2 * len(width)
        spared = next((c for c in _SPARE if c in used), None)
        if spared is None or room is None or room - indent >= _INSTRUCTION:
            break
        used.remove(spared)
    room = None if room is None else max(0, room - indent)
    at: Callable[[int], str] = _nothing
    """Arrows beside an instruction."""
    before_it: Callable[[int], str] = _nothing
    """Arrows beside a line between it and the one before."""
    if terminal():
        listed = {i for i, hidden in enumerate(cold) if not hidden}
        arrows = Arrows(shown.flow, listed, every, _ARROWS if room is None else min(_ARROWS, room // 8))
        at, before_it = arrows.at, arrows.before
        room = None if room is None else max(0, room - arrows.width)
    parts, few = _parts(shown), _few(shown)
    heading = [*(titles[c].rjust(w) for c, w in zip(used, width, strict=True)), at(-1) + "instruction"]
    yield emphasis("  ".join(heading))
    skipped, before = 0, None
    for i, row in enumerate(rows):
        if cold[i]:
            skipped += 1
        if skipped and (not cold[i] or i + 1 == len(rows)):
            unseen = f"... {counted(skipped, 'instruction')} not seen"
            yield f"{'':{indent}}{before_it(i)}{shorten(unseen, room)}"
            skipped, before = 0, None
        if cold[i]:
            continue
        line = shown.lines[i]
        if line is not None and line.label.line and line != before:
            place = f"{line.label.file.replace(chr(92), '/').rpartition('/')[2]}:{line.label.line}"
            source = f"; {place}  {(line.text or '').strip()}".rstrip()
            yield f"{'':{indent}}{before_it(i)}{shorten(visible(source), room)}"
        before = line
        cells = [
            paint(t.rjust(w), FAINT if few[i] and c in _RATES else heat(parts[c][i] if c in parts else None))
            for c, t, w in zip(used, texts[i], width, strict=True)
        ]
        yield "  ".join([*cells, at(i) + _instruction(visible(str(row["instruction"])), room)]).rstrip()


def _nothing(_row: int) -> str:
    return ""


def _parts(shown: FunctionCode) -> dict[str, list[float]]:
    """How hot each cell of a column is, by instruction: its share of all samples, of the cycles of all blocks, and of
    the count of the block that ran most often; how near mispredictions are to a guess. Nothing without colours."""
    import numpy as np

    if not colours():
        return {}
    blocks, samples = shown.flow.blocks, shown.found.samples
    known = np.maximum(blocks.mispredicted + blocks.predicted, 1)
    by_block = {
        "count": blocks.count / max(1, blocks.count.max(initial=0)),
        "cycles": blocks.cycles / (blocks.cycles.sum() or 1),
        "mispredicted": 100 * blocks.mispredicted / known / GUESS,
    }
    parts = {name: column[shown.block_of].tolist() for name, column in by_block.items()}
    return parts | {"samples": (samples / max(1, samples.sum())).tolist()}


def _few(shown: FunctionCode) -> list[bool]:
    """By instruction: whether its block was seen so seldom that the rates of it are mostly chance."""
    from ..analysis.statistics.significance import ENOUGH

    few: list[bool] = (shown.found.observed < ENOUGH)[shown.block_of].tolist()
    return few


def _instruction(text: str, room: int | None) -> str:
    """``text``, with the name of its target shortened if need be."""
    head, sign, target = text.partition(" <")
    if room is None or not sign:
        return shorten(text, room)
    return f"{head}{sign}{shorten(target.removesuffix('>'), max(0, room - len(head) - 3))}>"


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


# -- jumps as arrows beside the lines, in boxes' characters or in ASCII

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_BOXES = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"
_ASCII = " |||-+++-+++-+++"
"""A character for each sum of directions in which a line leaves it."""


class Arrows:
    """The jumps of ``flow`` between instructions (rows) that are ``listed``; the hottest ones have precedence.

    ``every``: also those that were not seen. They take up to ``most`` columns beside each other; `width` is what they
    take here, 0 without any.
    """

    def __init__(self, flow: Flow, listed: Collection[int], every: bool, most: int) -> None:
        from ..analysis.function.flow import arcs_of, lanes

        arcs = arcs_of(flow)
        ends = zip(arcs.source.tolist(), arcs.target.tolist(), arcs.count.tolist(), strict=True)
        kept = [i for i, (a, b, count) in enumerate(ends) if a in listed and b in listed and (count or every)]
        source, target, count = arcs.source[kept], arcs.target[kept], arcs.count[kept]
        lane = lanes(source, target, most)
        self._lanes = int(lane.max(initial=-1)) + 1
        self.width = self._lanes + 2 if self._lanes else 0
        self._lines: dict[int, list[int]] = {}
        """Row -> directions, by lane."""
        self._heads: dict[int, str] = {}
        self._heat: dict[tuple[int, int], float] = {}
        """(row, lane; -1: the head) -> share of the hottest jump."""
        self._signs = _BOXES if can_print(_BOXES) else _ASCII
        most_often = max(count.tolist(), default=0) or 1
        columns = (source.tolist(), target.tolist(), lane.tolist(), (count / most_often).tolist())
        for start, end, at, part in reversed(list(zip(*columns, strict=True))):
            if at >= 0:
                self._draw(start, end, at, part)

    def _draw(self, source: int, target: int, lane: int, part: float) -> None:
        low, high = sorted((source, target))
        for row in range(low, high + 1):
            self._mark(row, lane, (row > low) * _UP | (row < high) * _DOWN | (row in (low, high)) * _RIGHT, part)
        for row in {low, high}:
            for nearer in range(lane):
                self._mark(row, nearer, _LEFT | _RIGHT, part)
            self._heat[row, -1] = part
        self._heads.setdefault(source, self._signs[_LEFT | _RIGHT])
        self._heads[target] = ">"

    def _mark(self, row: int, lane: int, directions: int, part: float) -> None:
        self._lines.setdefault(row, [0] * self._lanes)[lane] |= directions
        self._heat[row, lane] = part

    def at(self, row: int) -> str:
        """What belongs beside an instruction."""
        return self._text(row, self._lines.get(row, []), self._heads.get(row, " "))

    def before(self, row: int) -> str:
        """What belongs beside a line between an instruction and the one before it."""
        passing = [(_UP | _DOWN) * bool(directions & _UP) for directions in self._lines.get(row, [])]
        return self._text(row, passing, " ")

    def _text(self, row: int, directions: list[int], head: str) -> str:
        if not directions:
            return " " * self.width
        signs = [(self._signs[one], lane) for lane, one in enumerate(directions)]
        return (
            "".join(paint(sign, heat(self._heat.get((row, lane)))) for sign, lane in [*signs[::-1], (head, -1)]) + " "
        )
