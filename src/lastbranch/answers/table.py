"""Rows of declared columns: arrays, which terminal, csv, json, viewer and notebooks get from the same `Table`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model import SHOWN, Array, frame_library, html_table, text_table, visible
from .columns import Cell, Column, TableKind, To

if TYPE_CHECKING:
    from ..analysis import Estimate

__all__ = ["Known", "Ratio", "Table", "Values", "make_table", "numbers", "ratio", "table_of_cells"]


class Ratio(NamedTuple):
    """Numbers, and what they are divided by, row by row: not known where that is 0."""

    part: Array
    whole: Array


class Known(NamedTuple):
    """Numbers, and in which rows (bool) they are known."""

    values: Array
    known: Array


Values = Array | Ratio | Known | Sequence[Cell]
"""The values of a column. A float NaN and ``None`` are not known."""


@dataclass(slots=True, repr=False)
class Table:
    """An answer: rows of ``columns``, and ``notes`` about them for the user, in sentences without their ends."""

    kind: TableKind
    columns: tuple[Column, ...]
    """The columns of the kind, with their titles in this answer."""
    values: dict[str, Values | None]
    """By the name of the column; ``None``: not known in any row."""
    size: int
    """How many rows it has."""
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return self.size

    def cells(self) -> list[list[Cell]]:
        """The rows, for those who see or read the columns of `To.VERBS` (`shown`)."""
        columns = [_cells(column, self.values[column.name], self.size) for column in self.shown]
        return [list(row) for row in zip(*columns, strict=True)]

    def texts(self) -> list[list[Cell]]:
        """`cells` as people see them: probabilities have two digits."""
        chances = {i for i, column in enumerate(self.shown) if column.form == "probability"}
        return [
            [f"{cell:.2g}" if i in chances and cell is not None else cell for i, cell in enumerate(row)]
            for row in self.cells()
        ]

    @property
    def shown(self) -> tuple[Column, ...]:
        """The columns that people or programs get."""
        return tuple(column for column in self.columns if column.to & To.VERBS)

    def without(self, *names: str) -> Table:
        """The table without some of its columns."""
        return replace(self, columns=tuple(column for column in self.columns if column.name not in names))

    def objects(self) -> list[dict[str, Cell]]:
        """The rows by `Column.key`, as csv and json have them."""
        keys = [column.key for column in self.shown]
        return [dict(zip(keys, row, strict=True)) for row in self.cells()]

    def df(self) -> Any:
        """As a pandas ``DataFrame``. Raises `UnavailableError` where pandas is not installed."""
        return frame_library("pandas").DataFrame(self.objects(), columns=[column.key for column in self.shown])

    def pl(self) -> Any:
        """As a Polars ``DataFrame``. Raises `UnavailableError` where Polars is not installed."""
        return frame_library("polars").DataFrame(self._by_key(), strict=False)

    def arrow(self) -> Any:
        """As a pyarrow ``Table``. Raises `UnavailableError` where pyarrow is not installed."""
        return frame_library("pyarrow").table(self._by_key())

    def _by_key(self) -> dict[str, list[Cell]]:
        rows = self.cells()
        return {column.key: [row[i] for row in rows] for i, column in enumerate(self.shown)}

    def __repr__(self) -> str:
        return text_table(self.kind.name, self.size, *self._heads_and_texts())

    def _repr_html_(self) -> str:
        return html_table(self.kind.name, self.size, *self._heads_and_texts())

    def _heads_and_texts(self) -> tuple[list[str], list[list[str]]]:
        """(titles, first rows) for notebooks: columns that people get and that have any value."""
        rows = self.texts()
        at = [
            i
            for i, column in enumerate(self.shown)
            if column.to & To.PEOPLE and any(row[i] is not None for row in rows)
        ]
        texts = [["" if row[i] is None else visible(str(row[i])) for i in at] for row in rows[:SHOWN]]
        return [self.shown[i].title for i in at], texts

    @property
    def declared(self) -> list[dict[str, str]]:
        """The declarations of the columns of `arrays`, for JSON: the page also shows columns that have no presentation
        of their own."""
        names = ("name", "title", "unit", "meaning", "form")
        return [{name: getattr(c, name) for name in names} for c in self.columns if c.to & To.VIEWER]

    def arrays(self) -> dict[str, Array | list[str]]:
        """The columns of the viewer by name: numbers of which NaN is not known, texts that are safe to show and empty
        where they are not known. Shares are parts of 1."""
        found: dict[str, Array | list[str]] = {}
        for column in self.columns:
            if column.to & To.VIEWER:
                values = self.values[column.name]
                is_text = column.form == "text" and values is not None
                found[column.name] = _safe_texts(values) if is_text else numbers(values, self.size)
        return found


def make_table(
    kind: TableKind, rows: Any, size: int, estimate: Estimate | None = None, *, notes: Sequence[str] = ()
) -> Table:
    """The table of ``kind`` of ``rows``, from which the columns take their values. ``estimate`` is what counts were
    made with, which titles say."""
    columns = _columns_for(kind, estimate)
    return Table(kind, columns, {column.name: column.value(rows) for column in columns}, size, list(notes))


def table_of_cells(kind: TableKind, rows: Iterable[Sequence[Cell]], estimate: Estimate | None = None) -> Table:
    """The table of ``kind`` of rows that are made already, cell by cell."""
    columns, cells = _columns_for(kind, estimate), list(rows)
    values = zip(*cells, strict=True) if cells else [() for _ in columns]
    return Table(kind, columns, {c.name: list(v) for c, v in zip(columns, values, strict=True)}, len(cells))


def _columns_for(kind: TableKind, estimate: Estimate | None) -> tuple[Column, ...]:
    if estimate is None:
        return kind.columns
    return tuple(column.titled(estimate.basis, estimate.replaced) for column in kind.columns)


def ratio(part: Array, whole: Array) -> NDArray[np.float64]:
    """float64: ``part / whole``, NaN (not known) where there is nothing to divide by."""
    out = np.full(len(whole), np.nan)
    np.divide(part, whole, out=out, where=whole != 0)
    return out


def _cells(column: Column, values: Values | None, size: int) -> list[Cell]:
    if values is None:
        return [None] * size
    scale = 100 if column.form == "percent" else 1
    match values:
        case Ratio(part, whole):
            return [
                round(scale * one / of, column.decimals) if of else None
                for one, of in zip(part.tolist(), whole.tolist(), strict=True)
            ]
        case Known(numbers, known):
            cells = _cells(column, numbers, size)
            return [cell if is_known else None for cell, is_known in zip(cells, known.tolist(), strict=True)]
        case np.ndarray() if values.dtype.kind == "f":
            return [None if one != one else _round(column, one * scale) for one in values.tolist()]
        case np.ndarray():
            return list(values.tolist())
    return list(values)


def _round(column: Column, value: float) -> float | int:
    if column.form == "probability":
        return value
    return round(value) if column.form == "count" else round(value, column.decimals)


def _safe_texts(values: Any) -> list[str]:
    return [visible(text or "") for text in values]


def numbers(values: Values | None, size: int) -> Array:
    """The numbers of a column: NaN is not known, shares are parts of 1."""
    match values:
        case None:
            return np.full(size, np.nan)
        case Ratio(part, whole):
            return ratio(part, whole)
        case Known(known_numbers, known):
            return np.where(known, known_numbers, np.nan)
    return np.asarray(values)
