"""A column of an answer, declared once: name, title, unit, meaning, format, and its readers.

This module imports the standard library alone, so that verbs with small tables start fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Any, Literal

__all__ = ["GUESS", "Cell", "Column", "Form", "Spare", "TableKind", "To", "key", "plain", "share"]

Cell = str | int | float | bool | None
"""One value for people and programs; ``None`` where it is not known."""

Form = Literal["count", "percent", "decimal", "probability", "text", "flag"]
"""How values are written. ``percent``: a part of 1 as percent; ``decimal``: as it is; both with `Column.decimals`;
``probability``: in full, and for people with two digits."""

GUESS = 50.0
"""Percent mispredicted of a conditional branch whose directions come at random."""

Spare = str | Mapping[str, str]
"""A column that can be left out; or columns that are left out together, each with the one whose empty cells it fills.
"""


class To(Flag):
    """Who gets a column."""

    PEOPLE = auto()
    """In a table of the terminal."""
    PROGRAMS = auto()
    """In csv and json."""
    VIEWER = auto()
    """In answers to the viewer's page, and in a single file."""
    VERBS = PEOPLE | PROGRAMS
    ALL = PEOPLE | PROGRAMS | VIEWER


def _none(_rows: Any) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A declared column.

    ``name`` is what code calls it, and the viewer's answers; ``title`` what people see. ``value`` gives the `Values`
    (see `table`) of all rows from the rows of an answer, or ``None`` where nothing is known of any row.
    """

    name: str
    title: str
    meaning: str
    unit: str = ""
    form: Form = "count"
    decimals: int = 2
    """Decimals in csv and json; a terminal has no more than two."""
    value: Callable[[Any], Any] = _none
    to: To = To.VERBS
    heat: float | None = None
    """The value (in percent) that is as hot as can be, of a column that a terminal paints by its values."""
    rests_on: tuple[str, ...] = ()
    """Columns with numbers of observations: where the first of these that the table has is small, the value is mostly
    chance, and faint in a terminal."""
    may_lack: bool = False
    """Whether `top` shows a dash where a value is not known."""
    bar: bool = False
    """Whether a terminal draws bars for it: of the first such column of a table."""
    by_basis: str = ""
    """The title where counts follow time or executions, with ``{}`` for that word."""
    if_replaced: str = ""
    """The title where executions replace counts."""

    @property
    def key(self) -> str:
        """The name of the column in csv and json."""
        return key(self.title)

    def titled(self, basis: str, replaced: bool) -> Column:
        """The column with the title that it has where counts follow ``basis``, and where executions replace counts."""
        if replaced and self.if_replaced:
            return replace(self, title=self.if_replaced)
        if basis != "entries" and self.by_basis:
            return replace(self, title=self.by_basis.format(basis))
        return self


def key(title: str) -> str:
    """The key in csv and json of the column with this ``title``: ``share %`` is ``share_percent``."""
    return title.replace("%", "percent").replace(" ", "_")


def share(part: int, whole: int) -> float | None:
    """Percent with two decimals, ``None`` of nothing."""
    return round(100 * part / whole, 2) if whole else None


def plain(title: str) -> Column:
    """A column that is not declared: of a statement's result, or of one verb alone."""
    return Column(name=title, title=title, meaning="")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """A declared table. ``row`` is what a row is, as a noun."""

    name: str
    row: str
    columns: tuple[Column, ...]
    last: tuple[str, ...] = ()
    """Names of columns that come last in a terminal, in that order, and may be shortened."""
    spare: tuple[Spare, ...] = ()
    """Columns that a narrow terminal leaves out, the first ones first."""

    def without(self, *names: str) -> TableKind:
        """The table without some of its columns."""
        return replace(self, columns=tuple(c for c in self.columns if c.name not in names))

    def only(self, *names: str) -> TableKind:
        """The table with these columns alone, in this order."""
        return replace(self, columns=tuple(map(self.column, names)))

    def column(self, name: str) -> Column:
        """The column of that name; `KeyError` without one."""
        return {column.name: column for column in self.columns}[name]
