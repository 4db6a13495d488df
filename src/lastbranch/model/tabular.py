"""Tables that show themselves, and convert to pandas, Polars and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Self

import numpy as np

from ..arrays import Array, Table
from ..errors import SelectionError, UnavailableError
from .safe_text import visible

__all__ = ["Columns", "RowNames", "Tabular", "frame_library", "html_table", "text_table"]

RowNames = Mapping[str, Callable[[], Sequence[str]]]
"""Column of row numbers -> a function that returns the names of those rows."""
SHOWN = 10
"""Rows that `repr` shows."""
_ADDRESSES = ("address", "start", "end", "ip", "branch_from", "branch_to")
"""Endings of the columns that are shown in hexadecimal."""


class Tabular(Table):
    """A table of columns, which are arrays of equal length. A dataclass that derives from it has a column per array.

    ``repr`` and notebooks show the first rows. `df`, `pl` and `arrow` convert to pandas, Polars and Arrow, where these
    are installed. A column of row numbers that ``row_names`` knows is shown and converted as names, -1 as ``None``.
    """

    __slots__ = ()
    row_names: RowNames

    def rows(self, count: int | None = None) -> Iterator[dict[str, Any]]:
        """The first ``count`` rows (all of them by default), each a dict of Python values."""
        columns = {name: column[:count].tolist() for name, column in self._named_columns(count).items()}
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))

    def top(self, count: int = 10, by: str | None = None) -> Self:
        """The ``count`` rows with the largest values in column ``by``; the first rows (the hottest) without it.

        Raises `SelectionError` where there is no column of that name.
        """
        columns = self.arrays()
        if by is not None and by not in columns:
            raise SelectionError(f"no column {by!r}", hint=f"choose from {', '.join(columns)}")
        order = slice(count) if by is None else np.argsort(columns[by], kind="stable")[::-1][:count]
        return self.take(order)

    def df(self) -> Any:
        """As a pandas ``DataFrame``. Raises `UnavailableError` where pandas is not installed."""
        return frame_library("pandas").DataFrame(self._named_columns())

    def pl(self) -> Any:
        """As a Polars ``DataFrame``. Raises `UnavailableError` where Polars is not installed."""
        library = frame_library("polars")
        columns = self._named_columns()
        return library.DataFrame({n: c.tolist() if c.dtype == object else c for n, c in columns.items()}, strict=False)

    def arrow(self) -> Any:
        """As a pyarrow ``Table``. Raises `UnavailableError` where pyarrow is not installed."""
        return frame_library("pyarrow").table(self._named_columns())

    def __repr__(self) -> str:
        columns = self._named_columns(SHOWN)
        size = len(next(iter(self.arrays().values()), ()))
        return text_table(type(self).__name__, size, list(columns), _cells(columns))

    def _repr_html_(self) -> str:
        columns = self._named_columns(SHOWN)
        size = len(next(iter(self.arrays().values()), ()))
        return html_table(type(self).__name__, size, list(columns), _cells(columns))

    def _named_columns(self, count: int | None = None) -> dict[str, Array]:
        """The columns, their first ``count`` rows, with names in place of row numbers."""
        columns = {name: column[:count] for name, column in self.arrays().items()}
        for name, names in getattr(self, "row_names", {}).items():
            rows, texts = columns[name], np.array([*names(), None], object)  # -1 is the last one
            columns[name] = texts[rows]
        return columns


class Columns(dict[str, Array], Tabular):
    """A table as a dict of arrays by column."""

    __slots__ = ()

    def arrays(self) -> dict[str, Array]:
        return dict(self)

    def take(self, rows: Array | slice) -> Self:
        return type(self)({name: column[rows] for name, column in self.items()})

    __repr__ = Tabular.__repr__


def frame_library(name: str) -> Any:
    """The module ``name``. Raises `UnavailableError` where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UnavailableError(f"{name} is not installed", hint=f"pip install {name}") from error


# -- Text and HTML


def _cells(columns: Mapping[str, Array]) -> list[list[str]]:
    shown = [[_cell(name, value) for value in column.tolist()] for name, column in columns.items()]
    return [list(row) for row in zip(*shown, strict=True)]


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    return f"{value:#x}" if column.endswith(_ADDRESSES) and isinstance(value, int) else visible(str(value))


def text_table(title: str, size: int | None, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first `SHOWN` of ``rows`` under ``names``, and a headline with the number of rows; ``None``: not counted."""
    more, rows = (len(rows) if size is None else size) > SHOWN, rows[:SHOWN]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (names, *rows)]
    return "\n".join([_headline(title, size), *lines, *["..."] * more])


def html_table(title: str, size: int | None, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as an HTML table; every text of a capture is escaped."""
    from html import escape

    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[:SHOWN])
    return f"<p>{escape(_headline(title, size))}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _headline(title: str, size: int | None) -> str:
    return title if size is None else f"{title}: {size:,} row{'s' * (size != 1)}"
