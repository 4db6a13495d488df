"""The contents of a store of counts: captures, modules, services..., and whether there are enough captures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from .columns import Column, Form, TableKind
from .table import Table, make_table

__all__ = ["SATURATION", "STORE_LISTS", "saturation_table", "store_list"]


def _columns(*declared: tuple[str, str, str] | tuple[str, str, str, Form]) -> tuple[Column, ...]:
    """Columns of rows that are made already, cell by cell: (title, unit, meaning, form)."""
    return tuple(
        Column(
            name=title.replace(" ", "_"),
            title=title,
            unit=unit,
            meaning=meaning,
            form=form[0] if form else "text",
            value=partial(_cells_of, number),
        )
        for number, (title, unit, meaning, *form) in enumerate(declared)
    )


def _cells_of(number: int, rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [row[number] for row in rows]


_SUMS = (
    ("captures", "captures", "captures that are counted"),
    ("refused", "captures", "captures that could not be read"),
    ("samples", "samples", "samples of the captures"),
    ("entries", "entries", "entries of their branch stacks"),
    ("lost", "records", "records that the captures lack"),
    ("damaged", "captures", "captures that are damaged"),
)


def _sums(name: str, meaning: str) -> TableKind:
    return TableKind(
        name=f"store by {name}",
        row=f"an {name}" if name == "event" else f"a {name}",
        columns=_columns((name, "", meaning), *_SUMS),
        spare=("lost",),
    )


STORE_LISTS: dict[str, TableKind] = {
    "capture": TableKind(
        name="captures of a store",
        row="a capture and an event",
        columns=_columns(
            ("file", "", "name of the capture"),
            ("service", "", "service that the captured programs are a part of"),
            ("version", "", "version of the service"),
            ("host", "", "host that the programs ran on"),
            ("time", "", "when it was recorded (UTC)"),
            ("event", "", "name of the sampled event"),
            ("samples", "samples", "samples of the event"),
            ("entries", "entries", "entries of their branch stacks"),
            ("lost", "records", "records that the capture lacks"),
            ("damaged places", "", "places that could not be read"),
            ("refused", "", "whether the capture could not be read"),
            ("notes", "", "why the capture was refused, or what is damaged"),
            ("digest", "", "identity of the capture: a hash of its contents"),
        ),
        last=("notes", "digest"),
        spare=("digest", "lost", "damaged_places", "time", "host"),
    ),
    "module": TableKind(
        name="modules of a store",
        row="a module",
        columns=_columns(
            ("name", "", "path of the binary, the first in alphabetical order"),
            ("identity", "", "build id, PDB, or time stamp and size"),
            ("captured samples", "samples", "samples in it, before weights"),
            ("branches", "entries", "entries of branch stacks that begin there"),
            ("ranges", "ranges", "ranges that begin there"),
        ),
        last=("name", "identity"),
    ),
    "service": _sums("service", "name of the service"),
    "version": _sums("version", "version of the services"),
    "host": _sums("host", "host that programs ran on"),
    "event": _sums("event", "name of the sampled event"),
    "day": _sums("day", "day of the captures (UTC)"),
}
"""`fleet list`, by what a row is. The columns are those of the rows of `StoreReader.listed`, in their order."""

_PARTS = ("half", "quarter", "eighth")
SATURATION = TableKind(
    name="saturation of a store",
    row="a service and a module",
    columns=_columns(
        ("service", "", "name of the service"),
        ("module", "", "file name of its binary"),
        ("branches", "entries", "entries of branch stacks that begin there"),
        ("distinct", "branches", "how many different branches these are"),
        ("captures", "captures", "captures of the service"),
        *((part, "captures", f"captures in the {part}") for part in _PARTS),
        *(
            (f"{part} %", "%", f"overlap of the branch shares of the {part} with those of all captures")
            for part in _PARTS
        ),
        ("identity", "", "build id, PDB, or time stamp and size"),
    ),
    last=("service", "module", "identity"),
    spare=("identity", *_PARTS, "distinct"),
)
"""`fleet report --saturation`."""


def store_list(by: str, rows: Sequence[Sequence[Any]], limit: int) -> Table:
    """The first ``limit`` of the ``rows`` of `StoreReader.listed`, 0: all. A note says how many more there are."""
    shown = [[value or None if value is False else value for value in row] for row in rows[: limit or None]]
    left = len(rows) - len(shown)
    return make_table(
        STORE_LISTS[by], shown, len(shown), notes=[f"{left} more rows; --limit 0 prints all"] if left else []
    )


def saturation_table(found: Sequence[Any], names: Sequence[str | None]) -> Table:
    """A row for each `Saturation` of ``found``, whose modules have these ``names``."""
    rows = [
        [
            one.service,
            name,
            one.branches,
            one.distinct,
            *one.captures,
            *(None if part is None else round(100 * part, 2) for part in one.overlap[1:]),
            one.module,
        ]
        for one, name in zip(found, names, strict=True)
    ]
    return make_table(SATURATION, rows, len(rows))
