"""The payloads of many events of one layout at once, to columns: the second way to run a `payloads.Layout`.

Numbers side by side are one gather of as many bytes for all events; strings and arrays move each event's position on
by offset arithmetic. Where payloads hold different prefixes of the layout, or more than it, the events part ways and
come back as several sets of columns. What the layout does not fit at all is left to `Layout.decode`, which is also what
the tests hold this against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from .field_columns import Bytes, Column, Ints
from .field_groups import Array
from .field_readers import NEAR_TOGETHER, READERS, one_by_one
from .fields import Scalar
from .payload_runs import Payloads, Read, Run, code_of
from .payloads import REST, Field, Layout

__all__ = ["Payloads", "decode_columns"]


class _Single:
    """A field whose size its bytes tell."""

    def __init__(self, field: Field, read: Callable[[Field, Payloads], Read]) -> None:
        self.field, self._read = field, read
        self.least = 0 if field.type.empty else 1

    def prefix(self, room: int) -> None:
        """No part of it can be had."""

    def read(self, payloads: Payloads) -> Read:
        return self._read(self.field, payloads)


def _is_gathered(array: Array) -> bool:
    return type(array.item) is Scalar and array.item.order == "<" and not isinstance(array.count, int)


@lru_cache(2048)
def _plan(layout: Layout, pointer: int) -> tuple[list[Run | _Single], bool]:
    """The steps, and whether they need the payloads copied together."""
    steps: list[Run | _Single] = []
    run: list[tuple[Field, str]] = []
    together = False
    for field in (*layout.fields, None):
        code = code_of(field.type, pointer) if field is not None else ""
        if field is not None and code:
            run.append((field, code))
            continue
        if run:
            steps.append(Run(run, pointer))
            run = []
        if field is not None:
            read = READERS.get(type(field.type), one_by_one)
            if isinstance(field.type, Array) and not _is_gathered(field.type):
                read = one_by_one
            together |= read in NEAR_TOGETHER
            steps.append(_Single(field, read))
    return steps, together


def decode_columns(layout: Layout, payloads: Payloads) -> Iterator[tuple[Ints, dict[str, Column] | None]]:
    """Sets of (row numbers, columns by name) that have every payload once; for None the caller decodes it by itself."""
    steps, together = _plan(layout, payloads.pointer)
    if together:
        payloads = payloads.apart()
    todo: list[tuple[int, Ints, Payloads, dict[str, Column]]] = [(0, np.arange(len(payloads.at)), payloads, {})]
    while todo:
        number, rows, here, columns = todo.pop()
        while number < len(steps) and len(rows):
            step = steps[number]
            room = here.end - here.at
            short = room < step.least
            if short.any():
                for size in np.unique(room[short]).tolist():
                    mine = np.flatnonzero(room == size)
                    part = step.prefix(size)
                    if size and part is None:
                        yield rows[mine], None
                    else:
                        yield rows[mine], _taken(columns, mine) | (part.read(here.take(mine)).columns if part else {})
                kept = np.flatnonzero(~short)
                rows, here, columns = rows[kept], here.take(kept), _taken(columns, kept)
                continue
            made, after, good = step.read(here)
            columns = columns | made
            here = here.moved(after)
            if good is not None and not good.all():
                yield rows[~good], None
                rows, here, columns = rows[good], here.take(good), _taken(columns, good)
            number += 1
        yield from _ended(rows, here, columns)


def _taken(columns: dict[str, Column], rows: Any) -> dict[str, Column]:
    return {name: column.take(rows) for name, column in columns.items()}


def _ended(rows: Ints, here: Payloads, columns: dict[str, Column]) -> Iterator[tuple[Ints, dict[str, Column]]]:
    """Behind the last field: those that are at their ends, and those that have more."""
    more = here.at < here.end
    if not len(rows):
        return
    if not more.any():
        yield rows, columns
        return
    if not more.all():
        yield rows[~more], _taken(columns, ~more)
        rows, here, columns = rows[more], here.take(more), _taken(columns, more)
    yield rows, columns | {REST: Bytes.gather(here.raw, here.at, here.end)}
