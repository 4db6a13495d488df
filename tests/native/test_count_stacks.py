"""The compiled count of branches and ranges against the NumPy form, over generated stacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.analysis import native_counter
from lastbranch.analysis.counting import EntryCounter
from lastbranch.model import BRANCH, SampleBatch

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")


class Spaces:
    """Every scope is a process, every 256 MiB a module."""

    def scopes(self, batch: SampleBatch) -> Any:
        return batch.columns["scope"]

    def locate(self, scope: Any, address: Any) -> Any:
        return (address >> np.uint64(28)).astype(np.int64), address

    def process_of(self, scope: Any) -> Any:
        return scope


USER, KERNEL = 0x5555_5555_0000, 0xFFFF_FFFF_8100_0000
ADDRESSES = st.one_of(
    st.sampled_from([0, 0x10, USER, USER + 1, USER + 0x20, KERNEL, KERNEL + 8, (1 << 47) - 1, 0xFFFF_8000_0000_0000]),
    st.integers(0, 1 << 26),
)
WILD = st.sampled_from([1 << 47, 1 << 63, (1 << 64) - 1, 0x8000_FFFF_FFFF])
FLAGS = st.one_of(st.integers(0, 3), st.integers(0, (1 << 64) - 1))


@st.composite
def batches(draw: st.DrawFn, addresses: st.SearchStrategy[int] = ADDRESSES) -> SampleBatch:
    stacks = draw(st.lists(st.lists(st.tuples(addresses, addresses, FLAGS), max_size=8), min_size=1, max_size=6))
    scope = draw(st.lists(st.integers(-1, 3), min_size=len(stacks), max_size=len(stacks)))
    entries = np.array([entry for stack in stacks for entry in stack], np.uint64).reshape(-1, 3)
    if draw(st.booleans()):  # as most readers give them: columns of one array of entries
        source, target, flags = entries.T
    else:
        source, target, flags = (np.ascontiguousarray(column) for column in entries.T)
    columns = {"time": np.zeros(len(stacks), np.int64), "scope": np.array(scope, np.int64),
               "branch_from": source, "branch_to": target, "branch_flags": flags}  # fmt: skip
    return SampleBatch(columns, {BRANCH: np.cumsum([0, *map(len, stacks)])})


def counted(given: list[SampleBatch], ranges: bool, details: bool, kernel: bool, branches: bool = True) -> Any:
    counter = EntryCounter(Spaces(), branches=branches, ranges=ranges, details=details)  # type: ignore[arg-type]
    assert counter._kernel is not None
    if not kernel:
        counter._kernel = None
    for batch in given:
        counter.add(batch)
        if kernel:
            batch.columns["branch_from"][...] = 0x30  # as readers do, who reuse the memory of a batch
    return asdict(counter.result(None))


def copies(given: list[SampleBatch]) -> list[SampleBatch]:
    return [SampleBatch({n: c.copy() for n, c in batch.columns.items()}, batch.offsets) for batch in given]


@pytest.fixture(scope="module", params=[0, 1 << 60], ids=["another thread", "one thread"], autouse=True)
def worth_a_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_counter, "_WORTH_A_THREAD", request.param)
        patch.setattr(native_counter, "_PROCESSORS", 2)
        yield


def both(given: list[SampleBatch], ranges: bool, details: bool, branches: bool = True) -> tuple[Any, Any]:
    """What the kernel counts, and what the NumPy form does."""
    found = counted(copies(given), ranges, details, True, branches)
    return plain(found), plain(counted(given, ranges, details, False, branches))


def plain(value: Any) -> Any:
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else np.asarray(value).tolist()


@settings(max_examples=150)
@given(st.lists(batches(), max_size=4), st.booleans(), st.booleans())
def test_counts_equal_the_numpy_form(given: list[SampleBatch], ranges: bool, details: bool) -> None:
    compiled, numpy = both(given, ranges, details)
    assert compiled == numpy


@settings(max_examples=50)
@given(st.lists(batches(), max_size=4))
def test_ranges_alone(given: list[SampleBatch]) -> None:
    compiled, numpy = both(given, True, False, branches=False)
    assert compiled == numpy


@settings(max_examples=50)
@given(st.lists(batches(st.one_of(ADDRESSES, WILD)), min_size=1, max_size=4), st.booleans())
def test_batches_that_the_kernel_declines_are_counted(given: list[SampleBatch], details: bool) -> None:
    compiled, numpy = both(given, True, details)
    assert compiled == numpy


def stacks_of(address: np.ndarray[Any, Any], depth: int) -> SampleBatch:
    samples = len(address) // depth
    columns = {"time": np.zeros(samples, np.int64), "scope": np.zeros(samples, np.int64), "branch_from": address,
               "branch_to": address + np.uint64(4), "branch_flags": address & np.uint64(3)}  # fmt: skip
    return SampleBatch(columns, {BRANCH: np.arange(samples + 1) * depth})


@pytest.mark.parametrize("details", [False, True])
def test_tables_grow_and_are_handed_over(details: bool) -> None:
    """More pairs than a table starts with, and than it may have."""
    random = np.random.default_rng(5)
    given = [stacks_of(random.integers(0, 1 << 27, 1 << 16).astype(np.uint64), 32) for _ in range(10)]
    compiled, numpy = both(given, True, details)
    assert compiled == numpy


def test_more_regions_than_numbers() -> None:
    many = np.arange(300 * 32, dtype=np.uint64) << np.uint64(24)
    given = [stacks_of(many[:3200], 32), stacks_of(many, 32), stacks_of(many[:3200], 32)]
    compiled, numpy = both(given, True, True)
    assert compiled == numpy


def test_a_counter_that_is_given_up_while_it_counts() -> None:
    """Its memory lasts as long as the thread needs it."""
    address = np.arange(1 << 17, dtype=np.uint64) << np.uint64(2)
    for _ in range(4):
        counter = EntryCounter(Spaces(), ranges=True)  # type: ignore[arg-type]
        counter.add(stacks_of(address, 32))
