"""``lastbranch stacks``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from .naming import function_of
from .options import Capture, capture_options, filter_options
from .output import Cell, print_rows
from .symbol_options import symbol_options

if TYPE_CHECKING:
    from ..symbols import SymbolOptions


@click.command()
@capture_options
@filter_options
@symbol_options
@click.option("--inline", is_flag=True, help="A frame for each inlined function, too.")
@click.option(
    "--weight", type=click.Choice(["samples", "period"]), default="samples", show_default=True, help="What counts."
)
@click.option(
    "--format", "form", type=click.Choice(["folded", "table", "csv", "json"]), default="folded", show_default=True,
    help="How to print.",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=0), default=0, show_default=True, help="Stacks to print; 0 is all.")
def command(
    capture: Capture, make_filter: Any, symbols: SymbolOptions, inline: bool, weight: str, form: str, limit: int
) -> int:
    """Call stacks with their weights, the heaviest first: folded lines, as flame graphs are made from.

    A line is the process and its functions, root first, with ; between them, and the weight. Stacks are the best that
    the capture has: call chains, LBR call-stack mode, or rebuilt from the calls and returns of branch stacks (as deep
    as these reach). A note says which.
    """
    from ..analysis.folding import fold
    from ..analysis.naming import Namer
    from ..analysis.stacks import call_stacks
    from ..symbols import Symbolizer

    profile = capture.open()
    chosen = make_filter(profile)
    with capture.reading(profile):
        stacks = call_stacks(profile, sample_filter=chosen)
    symbolizer = Symbolizer(profile, symbols)
    namer = Namer(profile, symbolizer)
    folded = fold(stacks, namer, "inline" if inline else "function", weight)
    lines: list[tuple[list[str], int]] = []
    for (process, labels), count in list(folded.items())[: limit or None]:
        name = (profile.processes[process].name if process >= 0 else "") or "[unknown]"
        lines.append(([name, *(function_of(profile, namer.labels[row]) for row in labels)], count))
    if form == "folded":
        from ..model import visible

        sys.stdout.writelines(f"{';'.join(visible(n).replace(';', ':') for n in names)} {n}\n" for names, n in lines)
    else:
        rows: list[list[Cell]] = [[count, len(names) - 1, names[0], ";".join(names[1:])] for names, count in lines]
        print_rows([weight, "depth", "process", "stack"], rows, form)
    total = int(stacks.samples.sum())
    notes = [f"stacks: {source}" for source in stacks.sources]
    if stacks.bare:
        notes.append(f"{stacks.bare} of {total} samples have no caller in their stack")
    return capture.finish(profile, [*capture.why_empty(profile, lines), *notes, *symbolizer.notes])
