"""The bytes of a binary at link addresses: many ranges at once as one by one."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastbranch.binaries.image import Code, Segment, SegmentFlags
from lastbranch.model import BytesSource

DATA = bytes(range(256)) * 40


@given(st.lists(st.tuples(st.integers(0, 0x6000), st.integers(0, 9000)), max_size=8))
def test_many_ranges_are_those_read_one_by_one(wanted: list[tuple[int, int]]) -> None:
    """Segments overlap, one ends after the file, one begins there, one is at the top of the address space."""
    top = (1 << 64) - 0x100
    places = [
        (0x1000, 0, 0x800),
        (0x1400, 0x300, 0x2000),
        (0x4000, 0x2700, 0x1000),
        (0x5800, 1 << 63, 1 << 63),
        (top, 16, 0x100),
    ]
    segments = tuple(Segment(vaddr, size, offset, size, SegmentFlags.EXECUTE) for vaddr, offset, size in places)
    image = mock.Mock(segments=segments, executable_segments=segments, machine="x86_64")
    code = Code(BytesSource(DATA), image)
    asked = [*wanted, (top + 0x80, 0x200)]
    address, size = np.array([a for a, _ in asked], np.uint64), np.array([n for _, n in asked], np.int64)
    data, offsets = code.read_many(address, size)
    assert data.dtype == np.uint8
    found = [data[lo:hi].tobytes() for lo, hi in pairwise(offsets.tolist())]
    assert found == [code.read(*one) for one in asked]
