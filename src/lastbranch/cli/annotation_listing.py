"""Print an annotation: as text for people, as rows of instructions, or as one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from .annotated import EDGES, INSTRUCTIONS, LOOPS, TARGETS, Annotated
from .output import Cell, key, print_json, print_rows, shorten, terminal_width

__all__ = ["print_annotated"]

_COLUMNS = ("samples", "count", "taken %", "mispredicted %", "cycles", "ipc", "loop", "address")
"""Of the listing, before the instruction."""
_ITERATIONS = LOOPS.index("iterations")
_LEAST = 24
"""Letters of the name of the function that are always printed."""
_BLOCK = ("count", "cycles", "ipc", "loop")
"""What is printed only at the first instruction of a block."""


def print_annotated(shown: Annotated, form: str, limit: int, every: bool) -> None:
    """Print all of it; ``limit`` is for edges and targets, ``every`` includes what was not seen to run."""
    if form == "csv":
        print_rows(INSTRUCTIONS, shown.instructions(), "csv")
    elif form == "json":
        print_json(_object(shown, limit))
    else:
        for line in _text(shown, limit, every):
            sys.stdout.write(line + "\n")


def _object(shown: Annotated, limit: int) -> dict[str, object]:
    parts = {
        "instructions": (INSTRUCTIONS, shown.instructions()), "loops": (LOOPS, list(shown.loops())),
        "edges": (EDGES, shown.edges(limit)), "indirect_targets": (TARGETS, shown.targets(limit)),
    }  # fmt: skip
    tables = {
        name: [dict(zip(map(key, columns), row, strict=True)) for row in rows]
        for name, (columns, rows) in parts.items()
    }
    return {**shown.summary(), **tables}


def _text(shown: Annotated, limit: int, every: bool) -> Iterator[str]:
    from ..model import counted, visible

    facts = shown.summary()
    where = f"  {facts['module']} {facts['start']}..{facts['end']}, {facts['samples']} samples"
    if facts["instructions_executed"] is not None:
        where += f", {counted(int(facts['instructions_executed']), 'instruction')} seen"
    where = visible(where + (f", {facts['ipc']:.2f} IPC" if facts["ipc"] is not None else ""))
    room = terminal_width()
    yield shorten(visible(str(facts["function"])), None if room is None else max(_LEAST, room - len(where))) + where
    yield ""
    yield from map(visible, _listing(shown, every))
    for title, columns, rows, names in (
        ("Loops", LOOPS, [row for row in shown.loops() if row[_ITERATIONS] or every], ()),
        ("Hottest edges", EDGES, shown.edges(limit), ("kind", "from", "to")),
        ("Indirect targets", TARGETS, shown.targets(limit), ("branch", "to")),
    ):
        if rows:
            yield ""
            yield title
            print_rows(columns, rows, "table", names=names)


def _listing(shown: Annotated, every: bool) -> Iterator[str]:
    """Instructions, each block's values at its beginning; what was not seen to run is one line unless ``every``.

    Branch records are samples: code that is not in them may have run."""
    from ..model import counted

    rows = [dict(zip(INSTRUCTIONS, row, strict=True)) for row in shown.instructions()]
    firsts = set(shown.flow.blocks.first.tolist())
    cold = [row["count"] == 0 and not row["samples"] and not every for row in rows]
    used = [c for c in _COLUMNS if c == "address" or any(row[c] for row in rows)]
    for row in rows:
        row["samples"] = row["samples"] or None
    texts = [[_cell(row[c]) if i in firsts or c not in _BLOCK else "" for c in used] for i, row in enumerate(rows)]
    width = [max([len(c), *(len(t[n]) for t in texts)]) for n, c in enumerate(used)]
    indent = sum(width) + 2 * len(width)
    room = terminal_width()
    room = None if room is None else max(0, room - indent)
    yield "  ".join([*(c.rjust(w) for c, w in zip(used, width, strict=True)), "instruction"])
    skipped, before = 0, None
    for i, row in enumerate(rows):
        if cold[i]:
            skipped += 1
        if skipped and (not cold[i] or i + 1 == len(rows)):
            yield f"{'':{indent}}... {counted(skipped, 'instruction')} not seen"
            skipped, before = 0, None
        if cold[i]:
            continue
        line = shown.lines[i]
        if line is not None and line.label.line and line != before:
            place = f"{line.label.file.replace(chr(92), '/').rpartition('/')[2]}:{line.label.line}"
            source = f"; {place}  {(line.text or '').strip()}".rstrip()
            yield f"{'':{indent}}{shorten(source, room)}"
        before = line
        cells = [t.rjust(w) for t, w in zip(texts[i], width, strict=True)]
        yield "  ".join([*cells, _instruction(str(row["instruction"]), room)]).rstrip()


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
