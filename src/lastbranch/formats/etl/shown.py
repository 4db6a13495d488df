"""Columns as texts for `dump`: what `Form.value` makes of each value, without making most of the values."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ..rows import Form
from .field_columns import Blobs, Column, Floats, Lists, Numbers, Texts
from .field_values import Hex

__all__ = ["shown"]


class _Memo(dict[Any, str]):
    """Texts by what they are made of: the values of one column are often few."""

    def __init__(self, make: Callable[[Any], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> str:
        made = self[key] = self._make(key)
        return made


def shown(column: Column, form: Form) -> list[str]:
    """The text of each value."""
    if isinstance(column, Texts):
        return list(map(form.string, column.tolist()))
    if isinstance(column, Lists):
        texts, bounds = _numbers(column.values.tolist(), column.wrap, form), column.offsets.tolist()
        join = form.between.join
        return [form.limited(f"[{join(texts[begin:end])}]") for begin, end in pairwise(bounds)]
    if isinstance(column, Numbers) and not isinstance(column, Floats):
        return _numbers(column.values.tolist(), column.wrap, form)
    if isinstance(column, Blobs):
        type_, size, pointer = column.type, column.values.dtype.itemsize, column.pointer
        memo = _Memo(lambda raw: form.value(type_.decode(raw, 0, size, pointer)[0]))
        raw = column.values.tobytes()
        return [memo[raw[at : at + size]] for at in range(0, len(raw), size)]
    return list(map(form.value, column.tolist()))


def _numbers(values: list[Any], wrap: Callable[[Any], Any] | None, form: Form) -> list[str]:
    if wrap is None:
        return list(map(str, values))
    if wrap is Hex:
        return list(map(form.quoted, map(hex, values)))
    memo = _Memo(lambda value: form.value(wrap(value)))
    return [memo[value] for value in values]
