"""The compiled reading of branch records of trace logs against the NumPy form, and against a loop over the entries."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.formats.etl.profile.samples import BranchRecords
from lastbranch.lbr import FLAG_FIELDS, flags, flags_from_info
from lastbranch.lbr.words import KIND

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")

RECORDS = st.lists(st.tuples(st.sampled_from([8, 4]), st.integers(0, 5), st.integers(0, 4)), max_size=8)
"""Size of a word, entries, words between this record and the one before."""
TYPES = ["cond", "ind", "uncond", "ind_call", "call", "ret", *["unknown"] * 10]


def records_of(parts: list[tuple[int, int, int]]) -> tuple[BranchRecords, Any]:
    """Records in a block of numbered 32-bit words."""
    first, at = [], 0
    for size, count, gap in parts:
        first.append(at := at + 8 * gap)
        at += 3 * size * count + 7 & -8
    raw = np.arange(at // 4, dtype=np.uint32).view(np.uint8)
    columns: list[Any] = [np.array(column, np.int64).reshape(-1) for column in (first, [part[1] for part in parts])]
    none = np.zeros(len(parts), np.int64)
    wide = np.array([part[0] for part in parts], np.uint8)
    block = SimpleNamespace(raw=raw, words=raw.view(np.uint64))
    return BranchRecords(none, none, none.astype(np.int32), columns[0], columns[1], wide, 0), block


@given(RECORDS, st.booleans())
def test_entries(parts: list[tuple[int, int, int]], strided: bool) -> None:
    records, block = records_of(parts)
    if strided:
        records.first = np.repeat(records.first, 2)[::2]
    found = records.entries(block)
    assert found.tolist() == records._in_numpy(block, np.empty_like(found)).tolist()
    one_by_one = [
        entry
        for first, (size, count, _) in zip(records.first.tolist(), parts, strict=True)
        for entry in struct.iter_unpack("<3Q" if size == 8 else "<3I", block.raw[first : first + 3 * size * count])
    ]
    assert list(zip(*found.tolist(), strict=True)) == one_by_one


@pytest.mark.parametrize(
    "damage",
    [{"first": -8}, {"first": 1 << 62}, {"first": 8}, {"count": 1 << 61}, {"count": -1}, {"pointer_size": 0}],
)
def test_records_outside_of_the_block_are_declined(damage: dict[str, int]) -> None:
    records, block = records_of([(8, 2, 0)])
    for name, value in damage.items():
        getattr(records, name)[0] = value
    library, address, out = native.library(), native.address, np.zeros((3, 2), np.uint64)
    assert library is not None
    given = (records.first, records.count, records.pointer_size)
    assert library.lb_branch_entries(address(block.raw), len(block.raw), *map(address, given), 1, address(out), 2) == 1
    assert not out.any()


@pytest.mark.parametrize("room", [1, 3])
def test_another_number_of_entries_is_declined(room: int) -> None:
    records, block = records_of([(8, 2, 0)])
    library, address, out = native.library(), native.address, np.zeros((3, room), np.uint64)
    assert library is not None
    given = (records.first, records.count, records.pointer_size)
    assert library.lb_branch_entries(address(block.raw), len(block.raw), *map(address, given), 1, address(out), room)


def flag_word(info: int) -> int:
    """By the words of the Intel SDM, of one LBR_INFO."""
    architectural = info >> 56 & 31 != 0
    fields = {
        "mispred": info >> 63,
        "predicted": 1 - (info >> 63),
        "in_tx": info >> 62 & 1,
        "abort": info >> 61 & 1,
        "cycles": info & 0xFFFF if not architectural or info >> 60 & 1 else 0,
        "type": KIND[TYPES[info >> 56 & 15]] if architectural else 0,
    }
    return sum(value << FLAG_FIELDS[name][0] for name, value in fields.items()) if info else 0


WORD = st.builds(lambda top, low: top << 56 | low, st.integers(0, 255), st.sampled_from([0, 1, 0xFFFF, (1 << 56) - 1]))


@given(st.lists(WORD, max_size=20), st.booleans())
@example([1 << 60, 1 << 56, 1, 0, 1 << 63], False)
def test_flag_words(words: list[int], strided: bool) -> None:
    info = np.array(words, np.uint64)
    if strided:
        info = np.repeat(info, 2)[::2]
    found = flags_from_info(info).tolist()
    assert found == flags._flags_in_numpy(info).tolist()
    assert found == [flag_word(word) for word in words]
