"""Flag words and branch selections."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastbranch.lbr import (
    FLAG_FIELDS,
    PERF_SELECT,
    call_stack_mode,
    describe_perf,
    flag,
    no_ranges_because,
    repack_big_endian,
)

# As in include/uapi/linux/perf_event.h; big-endian C lays the same fields out from the top.
LITTLE = (
    ("mispred", 1),
    ("predicted", 1),
    ("in_tx", 1),
    ("abort", 1),
    ("cycles", 16),
    ("type", 4),
    ("spec", 2),
    ("new_type", 4),
    ("priv", 3),
)


def test_fields_cover_the_word_once() -> None:
    at = 0
    for shift, width in FLAG_FIELDS.values():
        assert shift == at
        at += width
    assert at == 64
    assert [(n, FLAG_FIELDS[n][1]) for n, _ in LITTLE] == list(LITTLE)


@given(st.lists(st.tuples(*(st.integers(0, (1 << w) - 1) for _, w in LITTLE)), min_size=1, max_size=5))
def test_big_endian_words_are_repacked_field_by_field(rows: list[tuple[int, ...]]) -> None:
    little, big = [], []
    for values in rows:
        low, top, word, mirrored = 0, 64, 0, 0
        for (_, width), value in zip(LITTLE, values, strict=True):
            word |= value << low
            low += width
            top -= width
            mirrored |= value << top
        little.append(word)
        big.append(mirrored)
    assert repack_big_endian(np.array(big, np.uint64)).tolist() == little
    for i, (name, _) in enumerate(LITTLE):
        assert flag(np.array(little, np.uint64), name).tolist() == [values[i] for values in rows]


def test_selection_bits_are_the_abi() -> None:
    assert [PERF_SELECT[n] for n in ("USER", "ANY", "CALL_STACK", "HW_INDEX", "COUNTERS")] == [
        1,
        8,
        0x800,
        1 << 17,
        1 << 19,
    ]
    assert describe_perf(0xC801) == "user,call_stack,no_flags,no_cycles"
    assert describe_perf(1 << 40 | 8) == "any,0x10000000000"
    assert describe_perf(0) == "none"


@pytest.mark.parametrize("options", [0x0, 0x1, 0x2, 0x100, 0x103, 0x400])
def test_etw_options_with_ranges(options: int) -> None:
    assert no_ranges_because("etw", options) is None


@pytest.mark.parametrize("options", [1 << b for b in (2, 3, 4, 5, 6, 7)] + [0x200, 0x3C4])
def test_etw_options_without_ranges(options: int) -> None:
    assert options & 0x2FC
    assert no_ranges_because("etw", options)
    assert call_stack_mode("etw", options) == bool(options & 0x200)
