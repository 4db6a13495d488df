"""``lastbranch query``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, islice
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from .options import Capture, Count, EstimateChoice, captures_and, estimate_option, table_options
from .output import Cell, key, print_rows
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..symbols import SymbolOptions


@click.command()
@captures_and("sql", "SQL")
@symbol_options
@click.option(
    "--memory",
    type=Count(32, 43),
    default=128,
    show_default=True,
    metavar="MIB",
    help="Memory that the database uses before it spills to a temporary folder.",
)
@table_options
@estimate_option
def command(
    capture: Capture, sql: str, symbols: SymbolOptions, memory: int, form: str, limit: int, counts: EstimateChoice
) -> int:
    """Run a SELECT statement over a capture, with DuckDB.

    Tables (docs: SQL): captures, modules, processes, threads, events, samples, branches, frames, counters,
    user_registers, interrupt_registers, edges, ranges, stacks, stack_frames. "describe branches" lists the columns of
    one. Only what the statement reads is loaded, and functions are named only if it asks for them. The statement can
    neither read nor write files, and loads no extensions. --estimate executions is for what edges and ranges count.
    """
    from ..analysis.counting.count_stacks import EarlyCounts
    from ..sql import count_request_of, query
    from ..symbols import Symbolizer

    counted = count_request_of(sql)
    profile = capture.open(EarlyCounts(**counted) if counted else None)
    symbolizer = Symbolizer(profile, symbols)
    estimate = counts.of(capture, profile, None) if counted else None
    with capture.reading(profile):
        result = query(profile, sql, symbols=symbolizer, memory=memory << 20, estimate=estimate)
    with result:
        print_result(result.columns, result, form, limit)
    return capture.finish(profile, [*(counts.notes(estimate) if estimate else []), *result.notes])


def print_result(columns: list[str], rows: Iterable[tuple[Any, ...]], form: str, limit: int) -> None:
    """Print what SQL gave."""
    # An empty cell, and not none: a column that was asked for is printed, though it be empty.
    none = "" if form == "table" else None
    print_rows(_distinct(columns), ([_cell(v, none) for v in row] for row in islice(rows, limit or None)), form)


def _distinct(names: list[str]) -> list[str]:
    """Names of columns, numbered where programs would get one again: JSON objects have each only once."""
    seen = set(map(key, names))
    out: list[str] = []
    for i, name in enumerate(names):
        again = key(name) in map(key, names[:i])
        numbered = (f"{name}:{n}" for n in count(1))
        out.append(next(n for n in numbered if key(n) not in seen) if again else name)
        seen.add(key(out[-1]))
    return out


def _cell(value: Any, none: Cell) -> Cell:
    if value is None:
        return none
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no numbers for these
    return value if isinstance(value, str | int | float) else str(value)
