"""Functions and modules of a store of counts, event by event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..analysis import Namer, StackCounts
from ..analysis.stacks.functions import NamedCounts, counts_by_function
from ..model import Array, Profile
from .columns import Column, TableKind
from .names import FUNCTION, MODULE_OR_UNKNOWN, Names, module_of
from .sample_columns import MISPREDICTED, SAMPLES, SAMPLES_SHARE
from .table import Ratio, Table, make_table

if TYPE_CHECKING:
    from ..analysis import Label

__all__ = ["STORED_FUNCTIONS", "stored_functions"]


@dataclass(slots=True)
class _StoredRows:
    """Rows of several events: each ``event`` by its name; ``all_samples`` and ``all_branches`` are sums of the event.
    Other columns are those of `NamedCounts`."""

    profile: Profile
    labels: list[Label]
    events: list[str]
    samples: Array
    branches: Array
    mispredicted: Array
    predicted: Array
    ranges: Array
    all_samples: Array
    all_branches: Array


STORED_FUNCTIONS = TableKind(
    name="functions of a store",
    row="an event and a function",
    columns=(
        Column(name="event_name", title="event", meaning="name of the sampled event", value=lambda rows: rows.events),
        FUNCTION,
        MODULE_OR_UNKNOWN,
        SAMPLES,
        SAMPLES_SHARE,
        Column(
            name="branches",
            title="branches",
            meaning="entries of branch stacks that begin there",
            unit="entries",
            value=lambda rows: rows.branches,
        ),
        Column(
            name="branches_share",
            title="branches %",
            meaning="of all branch entries of the event",
            unit="%",
            form="percent",
            value=lambda rows: Ratio(rows.branches, rows.all_branches),
        ),
        MISPREDICTED,
        Column(
            name="ranges",
            title="ranges",
            meaning="ranges that begin there",
            unit="ranges",
            value=lambda rows: rows.ranges,
        ),
    ),
    last=("event_name", "function", "module"),
    spare=("ranges", "samples", "branches"),
)
"""`fleet report`."""


def stored_functions(names: Names, counted: Mapping[str, StackCounts], by: str | None, limit: int) -> Table:
    """The functions of what was ``counted`` for each event; ``by`` ``None``: function, or module if no function has a
    name. The first ``limit`` rows of each event, 0: all."""
    profile, namer, notes = names.profile, names.namer, list[str]()
    tables = {event: counts_by_function(of_event, namer) for event, of_event in counted.items()}
    named = any(label.function for label in namer.labels)
    if by is None and not named:
        namer = Namer(profile, None)
        tables = {event: counts_by_function(of_event, namer) for event, of_event in counted.items()}
        notes.append("by module, because no function has a name")
    kind = STORED_FUNCTIONS if named and by != "module" else STORED_FUNCTIONS.without("function")
    rows = _rows(profile, namer, tables, limit)
    shown = {module_of(profile, namer.labels[row]) for table in tables.values() for row in table.name.tolist()}
    return make_table(kind, rows, len(rows.labels), notes=[*notes, *names.notes(shown)])


def _rows(profile: Profile, namer: Namer, tables: Mapping[str, NamedCounts], limit: int) -> _StoredRows:
    first = {event: table.take(slice(limit or None)) for event, table in tables.items()}
    events = [event for event, table in first.items() for _ in range(len(table))]

    def column(name: str) -> Array:
        return np.concatenate([np.empty(0, np.int64), *(getattr(table, name) for table in first.values())])

    def whole(name: str) -> Array:
        sums = {event: int(getattr(table, name).sum()) for event, table in tables.items()}
        return np.array([sums[event] for event in events], np.int64)

    labels = [namer.labels[row] for row in column("name").tolist()]
    return _StoredRows(
        profile,
        labels,
        events,
        column("samples"),
        column("branches"),
        column("mispredicted"),
        column("predicted"),
        column("ranges"),
        whole("samples"),
        whole("branches"),
    )
