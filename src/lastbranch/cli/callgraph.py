"""What ``lastbranch callers`` and ``lastbranch callees`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .options import Capture
from .output import Cell, print_rows, share
from .symbols import chosen_function, module_of, symbol_notes

if TYPE_CHECKING:
    from ..symbols import SymbolOptions

__all__ = ["print_calls"]

_SPARE = ("jumps", "indirect", "calls", "samples")


def print_calls(
    capture: Capture, make_filter: Any, symbols: SymbolOptions, form: str, limit: int, wanted: str, direction: str
) -> int:
    """Print the functions at the other end of the calls of ``wanted`` and end the verb."""
    from ..analysis import callgraph
    from ..analysis.naming import Namer
    from ..symbols import Symbolizer

    profile = capture.open()
    chosen = make_filter(profile)
    symbolizer = Symbolizer(profile, symbols)
    namer = Namer(profile, symbolizer)
    place = chosen_function(profile, namer, wanted, chosen)
    find = {"caller": callgraph.callers, "callee": callgraph.callees}[direction]
    with capture.reading(profile):
        table = find(profile, namer, namer.row(place.label), sample_filter=chosen)
    rows: list[list[Cell]] = []
    every = int(table.calls.sum()) if table.calls is not None else 0
    for i, row in enumerate(table.function.tolist()[: limit or None]):
        label = table.labels[row]
        calls, indirect, jumps, wrong, right, samples = (
            None if column is None else int(column[i])
            for column in (table.calls, table.indirect, table.jumps, table.mispredicted, table.predicted, table.samples)
        )
        rows.append(
            [
                label.shown(profile), module_of(profile, label),
                calls, share(calls, every) if calls is not None else None, indirect, jumps or None,
                share(wrong, wrong + right) if wrong is not None and right is not None else None,
                samples, share(samples, table.in_stacks) if samples is not None else None,
                label.name or None,
            ]
        )  # fmt: skip
    columns = [direction, "module", "calls", "calls %", "indirect", "jumps", "mispredicted %", "samples", "samples %",
               "linkage name"]  # fmt: skip
    print_rows(columns, rows, form, machine_only=("linkage name",), names=(direction, "module"), spare=_SPARE)
    notes = [] if rows else [f"no {direction} of {place.label.shown(profile)} was seen"]
    notes += [f"samples: {source}" for source in table.stacks] + table.notes
    shown = {module_of(profile, table.labels[row]) for row in table.function[: limit or None].tolist()}
    shown.add(module_of(profile, place.label))
    return capture.finish(profile, notes + symbol_notes(profile, symbolizer, shown))
