"""``lastbranch callers`` and ``lastbranch callees``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import Capture, captures_and, filter_options, table_options
from .output import Cell, print_rows, share
from .symbols import chosen_function, module_of, symbol_notes, symbol_options

if TYPE_CHECKING:
    from ..analysis import CallTable
    from ..model import Profile
    from ..symbols import SymbolOptions

_SPARE = ("jumps", "indirect", "calls", "samples")
_HELP = """

    FUNC is a name, a pattern with *, or MODULE+0xADDRESS. calls counts call branches, indirect the calls through a
    pointer, and jumps the jumps to a function's first instruction (tail calls). samples counts the samples with the
    call in their stack, and samples % is their share of the samples with FUNC in the stack. A call through a stub of
    the linkage table (f@plt) counts as a call of the function itself.
    """


def _verb(direction: str, summary: str) -> click.Command:
    """The verb that prints the functions at the other end of the calls of FUNC, each a ``direction``."""

    @click.command(f"{direction}s", help=summary + _HELP)
    @captures_and("function", "FUNC")
    @filter_options
    @symbol_options
    @table_options
    def command(
        capture: Capture, function: str, make_filter: Any, symbols: SymbolOptions, form: str, limit: int
    ) -> int:
        from ..analysis.naming import Namer
        from ..analysis.stacks import callgraph
        from ..symbols import Symbolizer

        profile = capture.open()
        chosen = make_filter(profile)
        symbolizer = Symbolizer(profile, symbols)
        namer = Namer(profile, symbolizer)
        place = chosen_function(profile, namer, function, chosen)
        find = {"caller": callgraph.callers, "callee": callgraph.callees}[direction]
        with capture.reading(profile):
            table = find(profile, namer, namer.row(place.label), sample_filter=chosen)
        rows = _rows(profile, table, limit)
        columns = [direction, "module", "calls", "calls %", "indirect", "jumps", "mispredicted %", "samples",
                   "samples %", "linkage name"]  # fmt: skip
        print_rows(columns, rows, form, machine_only=("linkage name",), names=(direction, "module"), spare=_SPARE)
        notes = [] if rows else [f"no {direction} of {place.label.shown(profile)} was seen"]
        notes += [f"samples: {source}" for source in table.stacks] + table.notes
        shown = {module_of(profile, table.labels[row]) for row in table.function[: limit or None].tolist()}
        shown.add(module_of(profile, place.label))
        return capture.finish(profile, notes + symbol_notes(profile, symbolizer, shown))

    return command


def _rows(profile: Profile, table: CallTable, limit: int) -> list[list[Cell]]:
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
    return rows


callers = _verb("caller", "List the callers of a function, from calls and call stacks.")
callees = _verb("callee", "List the callees of a function, from calls and call stacks.")
