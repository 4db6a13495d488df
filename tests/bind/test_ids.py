"""Numbers of processes and threads by their ids: what they are, and what the tables take."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from lastbranch.bind.spaces import Ids

ABSENT = -7
EDGES = (0, 1, 511, 512, 513, (1 << 22) - 1, 1 << 22, (1 << 32) - 1)


@pytest.mark.parametrize(
    ("count", "past"), [(0, 1), (1, 1), (50, 100), (100, 1 << 20), (3000, 1 << 22), (500, 1 << 24), (100, 1 << 32)]
)
def test_each_id_has_its_number_and_others_have_none(count: int, past: int) -> None:
    draw = np.random.default_rng(count)
    ids = np.unique(draw.integers(0, past, count).astype(np.uint32))
    numbers = draw.permutation(len(ids))
    known = dict(zip(ids.tolist(), numbers.tolist(), strict=True))
    asked = np.concatenate([ids, draw.integers(0, past, 1000), EDGES]).astype(np.uint32)
    assert Ids(ids, numbers, ABSENT)(asked).tolist() == [known.get(one, ABSENT) for one in asked.tolist()]


def test_few_ids_take_little_memory_however_large_they_are() -> None:
    """Hundreds of captures are open together, and each has tables of its own."""
    ids = np.array([0, 1, 2_000_000, 4_000_000], np.uint32)
    tracemalloc.start()
    try:
        kept = Ids(ids, np.arange(len(ids)), ABSENT)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept(ids).tolist() == [0, 1, 2, 3]
    assert taken < 500_000
