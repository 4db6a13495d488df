"""Tables on standard output, in the requested format."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..answers.columns import Cell, Column, Spare, To, key, plain, share
from .terminal import FAINT, Style, bar, can_print, colours, emphasis, has_pager, heat, page, paint, terminal

if TYPE_CHECKING:
    from ..answers.table import Table
    from ..errors import Damage
    from ..model import Profile

__all__ = [
    "EXCEEDED",
    "Cell",
    "key",
    "print_damage",
    "print_json",
    "print_lines",
    "print_notes",
    "print_refused",
    "print_rows",
    "print_table",
    "row_lines",
    "share",
    "shorten",
    "table_lines",
    "terminal_options",
    "terminal_width",
    "wrap_text",
]

EXCEEDED = 6
"""Exit code where a limit was passed that the user set: --fail-over, --fail-under."""


# -- Tables for people: columns under each other, and as wide as the terminal where there is one
#
# Numbers come first. In a terminal that is too narrow, columns that can be spared are left out, and names are shortened
# in the middle; a file or a pipe gets all of it.


_Command = TypeVar("_Command", bound=Callable[..., Any])
_BAR = range(8, 21)
"""Columns of a terminal that a bar can take."""
_NARROWEST = 40
_LEAST = 24
"""A name is not made shorter than this while there are columns that can be spared."""
_GAP = 2
_WIDE = "lastbranch.wide"
_PAGER = "lastbranch.pager"
_SHORTENED = "lastbranch.shortened"


def _set_wide(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.meta[_WIDE] = value


def _set_pager(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.meta[_PAGER] = not value


def terminal_options(function: _Command) -> _Command:
    """--wide and --no-pager, which change what a terminal gets."""
    wide = click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_set_wide,
        help="Print all columns and full names, even if the terminal is narrower.",
    )
    no_pager = click.option(
        "--no-pager",
        is_flag=True,
        expose_value=False,
        callback=_set_pager,
        help="Do not show tables that are longer than the terminal in a pager ($PAGER, or less).",
    )
    return wide(no_pager(function))


def terminal_width() -> int | None:
    """How many columns standard output has; ``None`` where it is no terminal, or --wide was given."""
    context = click.get_current_context(silent=True)
    if not sys.stdout.isatty() or (context is not None and context.meta.get(_WIDE)):
        return None
    from shutil import get_terminal_size

    return max(_NARROWEST, get_terminal_size().columns)


def _lay_out(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    last: Sequence[str],
    spare: Sequence[Spare],
    wrap: bool,
    width: Callable[[], int | None],
    styled: bool = True,
) -> Iterator[str]:
    """The lines of a table in ``width`` columns. ``last`` are columns that come last, in that
    order, and may be shortened; without any, the order stays, and every column of text may be. ``spare`` are those that
    are left out first, in that order. ``wrap``: text continues in the next line instead."""
    where = {column.name: i for i, column in enumerate(columns)}
    ends = [where[name] for name in last if name in where]
    shown = [i for i in range(len(columns)) if i not in ends] + ends
    right = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    flexible = {i for i in ends or shown if not right[i]}
    texts = [[_text_of(cell) for cell in row] for row in rows]
    heads = [column.title for column in columns]
    widths = [_width(i, heads, texts) for i in range(len(columns))]
    room = width()
    if room is not None:
        left_out: list[str] = []
        for one in spare:
            if _total([min(widths[i], _LEAST) if i in flexible else widths[i] for i in shown]) <= room:
                break
            heirs = {one: one} if isinstance(one, str) else one
            if not all(name in where and heir in where for name, heir in heirs.items()):
                continue
            for name, heir in heirs.items():
                at, its = where[name], where[heir]
                shown.remove(at)
                left_out.append(heads[at])
                texts = [[row[at] if i == its and not t else t for i, t in enumerate(row)] for row in texts]
                widths[its] = _width(its, heads, texts)
        cut = _total([widths[i] for i in shown]) > room
        if cut:
            widths = _fit_widths(widths, shown, flexible, room)
        if cut and not wrap:
            texts = [[shorten(t, widths[i]) if i in flexible else t for i, t in enumerate(row)] for row in texts]
        if left_out or (cut and not wrap):
            _say(left_out)
        size = min(room - _total([widths[i] for i in shown]) - _GAP, _BAR[-1])
        share = next((i for i, column in enumerate(columns) if column.bar), None)
        if share in shown and size in _BAR and terminal():
            shown.insert(shown.index(share) + 1, len(columns))
            heads, widths, right = [*heads, ""], [*widths, size], [*right, False]
            shares = [_part(row[share], 100) or 0.0 for row in rows]
            most = max(shares, default=0) or 1
            bars = [bar(part / most, size) for part in shares]
            texts = [[*text, drawn] for text, drawn in zip(texts, bars, strict=True)]
    head = _row(heads, shown, widths, right)
    yield from map(emphasis, head) if styled else head
    styles = _styles(columns) if styled and colours() else None
    for text, row in zip(texts, rows, strict=True):
        yield from _row(text, shown, widths, right, styles(row) if styles else None)


def _styles(columns: Sequence[Column]) -> Callable[[Sequence[Cell]], dict[int, Style]]:
    """A function from a row to the styles of its cells."""
    from ..analysis.statistics.significance import ENOUGH

    where = {column.name: i for i, column in enumerate(columns)}
    whole = {i: column.heat for i, column in enumerate(columns) if column.heat is not None}
    rests_on = {i: [where[one] for one in c.rests_on if one in where] for i, c in enumerate(columns) if c.rests_on}

    def styles(row: Sequence[Cell]) -> dict[int, Style]:
        made = {i: heat(_part(row[i], all_of_it)) for i, all_of_it in whole.items()}
        counts = ((i, next((row[one] for one in of if row[one] is not None), None)) for i, of in rests_on.items())
        few = (i for i, count in counts if isinstance(count, int) and count < ENOUGH)
        return made | dict.fromkeys(few, FAINT)

    return styles


def _part(cell: Cell, whole: float) -> float | None:
    return cell / whole if isinstance(cell, int | float) and whole else None


def wrap_text(text: str, *, indent: int) -> str:
    """``text`` in lines of the terminal's width, all but the first indented; as it is where there is no terminal."""
    room = terminal_width()
    return text if room is None else "\n".join(_Wrapper(room, subsequent_indent=" " * indent).wrap(text))


def shorten(text: str, width: int | None) -> str:
    """``text`` in ``width`` columns, without its middle if need be; ``None``: all of it."""
    if width is None or _cells(text) <= width:
        return text
    mark = "…" if can_print("…") else ".."
    brief = _without_arguments(text, mark)
    if _cells(brief) <= width:
        return brief
    kept = max(0, width - len(mark))
    end = kept // 2
    cut = _start(brief, kept - end) + mark + _start(brief[::-1], end)[::-1]
    return cut.replace(mark * 2, mark)


def _without_arguments(name: str, mark: str) -> str:
    """A C++ or Rust name without what is in its brackets; any other text as it is."""
    if any(sign in name for sign in _CODE):
        return name
    out, depth = [], 0
    for part in _BRACKETS.split(name):
        opens, closes = part in ("<", "("), part in (">", ")")
        depth = max(0, depth - closes)
        if depth == 0 and part:
            out.append(part)
        if opens and (out != ["<"] or depth):  # what a Rust name begins with is its type
            depth += 1
            out += [mark] if depth == 1 else []
    return "".join(out) if depth == 0 else name


_CODE = (";", " = ", "{ ")
"""What a name does not have in it, and a line of code does."""
_BRACKETS = re.compile(r"(operator(?:\(\)|<=>|<<=?|>>=?|[<>]=?|->\*?)|->|[<>()])")


def _start(text: str, width: int) -> str:
    """As much of ``text`` as fits in ``width`` columns."""
    if text.isascii():
        return text[:width]
    at = 0
    for i, letter in enumerate(text):
        at += _cells(letter)
        if at > width:
            return text[:i]
    return text


def _cells(text: str) -> int:
    """How many columns of a terminal ``text`` takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _width(column: int, names: Sequence[str], texts: Sequence[Sequence[str]]) -> int:
    return max([_cells(names[column]), *(_cells(row[column]) for row in texts)])


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _fit_widths(widths: Sequence[int], shown: Sequence[int], flexible: Collection[int], room: int) -> list[int]:
    """``widths`` with the widest of the ``flexible`` ones as narrow as it takes, all of these alike."""
    room -= _total([0 if i in flexible else widths[i] for i in shown])
    out, left = list(widths), sorted((i for i in shown if i in flexible), key=lambda i: widths[i])
    while left:
        each = max(1, room // len(left))
        out[left[0]] = min(widths[left[0]], each)
        room -= out[left.pop(0)]
    return out


def _say(left_out: Sequence[str]) -> None:
    """Once: that there is more than the terminal shows."""
    context = click.get_current_context(silent=True)
    if context is None or context.meta.setdefault(_SHORTENED, False):
        return
    context.meta[_SHORTENED] = True
    more = (
        f"left out to fit the terminal: {', '.join(left_out)}"
        if left_out
        else "names are shortened to fit the terminal"
    )
    click.echo(f"note: {more}; --wide prints all", err=True)


def _row(
    row: Sequence[str],
    shown: Sequence[int],
    widths: Sequence[int],
    right: Sequence[bool],
    styles: Mapping[int, Style] | None = None,
) -> Iterator[str]:
    """The lines of a row: one, unless a cell is wider than its column. ``styles`` are of its cells."""
    parts = [_Wrapper(widths[i]).wrap(text) if _cells(text) > widths[i] else [text] for i, text in enumerate(row)]
    for n in range(max(len(parts[i]) for i in shown)):
        yield _line([part[n] if n < len(part) else "" for part in parts], shown, widths, right, styles or {})


class _Wrapper(TextWrapper):
    """Breaks lines at spaces, and after commas: lists of names have no spaces."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=,)(?=\S))")

    def __init__(self, width: int, *, subsequent_indent: str = "") -> None:
        super().__init__(max(1, width), subsequent_indent=subsequent_indent, break_on_hyphens=False)


def _line(
    row: Sequence[str], shown: Sequence[int], widths: Sequence[int], right: Sequence[bool], styles: Mapping[int, Style]
) -> str:
    cells = []
    for i in shown:
        fill, text = " " * (widths[i] - _cells(row[i])), paint(row[i], styles.get(i, {}))
        cells.append(fill + text if right[i] else text + fill)
    return (" " * _GAP).join(cells).rstrip()


def _text_of(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else ""
    if isinstance(cell, float):
        return f"{cell:.2f}"
    return str(cell)


_DAMAGE_SHOWN = 5


def print_table(table: Table, form: str, *, wrap: bool = False) -> None:
    """Print an answer as ``table``, ``csv`` (header line first) or ``json`` (a list of objects); ``wrap``: text that
    does not fit goes on in the next line."""
    rows = table.texts() if form == "table" else table.cells()
    print_rows(table.shown, rows, form, last=table.kind.last, spare=table.kind.spare, wrap=wrap)


def table_lines(
    table: Table,
    *,
    spare: Sequence[Spare] | None = None,
    width: Callable[[], int | None] | None = None,
    styled: bool = True,
    unknown: str = "",
) -> Iterator[str]:
    """The lines of the table that `print_table` prints for people. ``spare`` replaces
    that of its kind. ``unknown`` is written where a value of `Column.may_lack` is not known."""
    cells = table.texts()
    if unknown:
        places = {i for i, column in enumerate(table.shown) if column.may_lack}
        cells = [[unknown if cell is None and i in places else cell for i, cell in enumerate(row)] for row in cells]
    return row_lines(
        table.shown,
        cells,
        last=table.kind.last,
        spare=table.kind.spare if spare is None else spare,
        width=width or terminal_width,
        styled=styled,
    )


def print_rows(
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[Cell]],
    form: str,
    *,
    last: Sequence[str] = (),
    spare: Sequence[Spare] = (),
    wrap: bool = False,
) -> None:
    """Print ``rows`` as ``table``, ``csv`` or ``json``; a column that is not declared is its title.

    ``None`` is an empty cell (``null`` in JSON). Text out of files is made visible here. Programs get each column by
    its `Column.key`; people do not get those of `To.PROGRAMS` alone, nor those without a value in any row. The rest is
    how `_lay_out` lays out a table.
    """
    keys = [column.key for column in map(_as_column, columns)]
    if form == "json":
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    if form == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(keys)
        writer.writerows(_safe(rows))  # as they come
    else:
        print_lines(row_lines(columns, rows, last=last, spare=spare, wrap=wrap))


def row_lines(
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[Cell]],
    *,
    last: Sequence[str] = (),
    spare: Sequence[Spare] = (),
    wrap: bool = False,
    width: Callable[[], int | None] | None = None,
    styled: bool = True,
) -> Iterator[str]:
    """The lines of the table that `print_rows` prints, in as many columns as ``width`` says (by default those of the
    terminal), ``None`` for any."""
    safe, declared = list(_safe(rows)), [*map(_as_column, columns)]
    shown = [
        i
        for i, column in enumerate(declared)
        if column.to & To.PEOPLE and (not safe or any(row[i] is not None for row in safe))
    ]
    cells = [[row[i] for i in shown] for row in safe]
    left = [declared[i] for i in shown]
    return _lay_out(left, cells, last=last, spare=spare, wrap=wrap, width=width or terminal_width, styled=styled)


def _as_column(column: str | Column) -> Column:
    return plain(column) if isinstance(column, str) else column


def _safe(rows: Iterable[Sequence[Cell]]) -> Iterator[list[Cell]]:
    """Rows with the text out of files made visible."""
    from ..model import visible

    return ([visible(c) if isinstance(c, str) else c for c in row] for row in rows)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines for people, which may have styles; in a pager, where they are more than the terminal has."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_PAGER) and has_pager():
        lines = list(lines)
        if not _fit(lines) and page(lines):
            return
    write = click.echo if terminal() else lambda line: sys.stdout.write(line + "\n")  # some terminals need click's help
    for line in lines:
        write(line)


def _fit(lines: Sequence[str]) -> bool:
    """Whether the terminal shows all lines at once, with one more for its prompt."""
    from shutil import get_terminal_size

    size = get_terminal_size()
    return sum(max(1, -(-_cells(click.unstyle(line)) // size.columns)) for line in lines) < size.lines


def print_json(value: Any) -> None:
    """Print ``value`` as JSON, with text out of files made visible."""
    import json

    json.dump(_printable(value), sys.stdout, indent=1)
    print()


def _printable(value: Any) -> Any:
    from ..model import visible

    if isinstance(value, dict):
        return {visible(key): _printable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(part) for part in value]
    return visible(value) if isinstance(value, str) else value


def print_notes(notes: Iterable[str], severity: str = "note") -> None:
    """Print sentences on standard error, each once."""
    from ..model import visible

    for note in dict.fromkeys(notes):
        click.echo(f"{severity}: {visible(note)}", err=True)


def print_damage(damage: Sequence[tuple[str, Damage]]) -> int:
    """Print the first damaged places of files (by name) on standard error, and how many more. 1 if any, else 0."""
    from ..model import visible

    for name, one in damage[:_DAMAGE_SHOWN]:
        click.echo(f"warning: {visible(f'{name}: {one}')}", err=True)
    if len(damage) > _DAMAGE_SHOWN:
        click.echo(f"warning: {len(damage) - _DAMAGE_SHOWN} more; `lastbranch verify` lists them", err=True)
    return 1 if damage else 0


def print_refused(profile: Profile) -> None:
    """Print which captures could not be opened, and why, on standard error."""
    from ..model import visible

    for name, error in profile.refused:
        text = str(error)
        click.echo(f"warning: left out: {visible(text if text.startswith(name) else f'{name}: {text}')}", err=True)
    if profile.refused:
        click.echo(
            f"warning: {len(profile.refused)} of {len(profile.refused) + len(profile.captures)} captures were left out",
            err=True,
        )
