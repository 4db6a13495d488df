"""The compiled text of lists of addresses, against Python's own hexadecimal numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.formats.dump import JSON, TEXT
from lastbranch.formats.etl.dump import _hex_lists, shown
from lastbranch.formats.etl.payload.payload_columns import Lists
from lastbranch.formats.etl.payload.types import Hex

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")

BORDERS = [n for bits in range(65) for n in ((1 << bits) - 1, 1 << bits) if n < 1 << 64]
ROWS = st.lists(st.lists(st.one_of(st.integers(0, (1 << 64) - 1), st.sampled_from(BORDERS)), max_size=40), max_size=20)


def lists(rows: list[list[int]], dtype: str = "<u8") -> Lists:
    values = np.array([value for row in rows for value in row], dtype)
    return Lists(values, np.cumsum([0, *map(len, rows)]), Hex)


@settings(deadline=None, max_examples=200)
@given(ROWS)
def test_the_same_text(rows: list[list[int]]) -> None:
    column = lists(rows)
    assert _hex_lists(column, TEXT) == [f"[{','.join(map(hex, row))}]" for row in rows]
    made = _hex_lists(column, JSON)
    assert made == [json.dumps([hex(value) for value in row]) for row in rows]


def test_columns_of_32_bits_and_of_a_table() -> None:
    assert shown(lists([[1, 0xFFFF_FFFF], []], "<u4"), TEXT) == ["[0x1,0xffffffff]", "[]"]
    table = np.array([(1, 2), (3, 4)], [("a", "<u8"), ("b", "<u8")])
    assert shown(Lists(table["b"], np.array([0, 2]), Hex), TEXT) == ["[0x2,0x4]"]


def test_long_lists_are_cut_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    column = lists([list(range(1 << 60, (1 << 60) + 3000))])
    compiled = shown(column, TEXT)
    monkeypatch.setenv("LASTBRANCH_NATIVE", "0")
    assert compiled == shown(column, TEXT)
    assert compiled[0].endswith(" more)")


@pytest.mark.parametrize("offsets", [[0, 4], [0, 1 << 60], [2, 1], [-1, 2]])
def test_rows_beyond_the_values_are_refused(offsets: list[int]) -> None:
    assert _hex_lists(Lists(np.arange(3, dtype="<u8"), np.array(offsets), Hex), TEXT) is None
