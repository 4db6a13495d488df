"""The compiled count of branches and ranges against the NumPy form, over generated stacks."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.analysis.counting.count_stacks import EntryCounter, NativeStackCounter
from lastbranch.model import BRANCH, EntriesInPlace, SampleBatch

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")


class Spaces:
    """Every scope is a process, every 256 MiB a module."""

    def scopes(self, batch: SampleBatch) -> Any:
        return batch.pid.astype(np.int64)

    def locate(self, scope: Any, address: Any) -> Any:
        return (address >> np.uint64(28)).astype(np.int64), address

    def process_of(self, scope: Any) -> Any:
        return scope

    def weights_of(self, scope: Any) -> Any:
        return scope + 2


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
    offsets = np.cumsum([0, *map(len, stacks)])
    columns = {"time": np.zeros(len(stacks), np.int64), "pid": np.array(scope, np.int32)}
    if draw(st.booleans()):
        return SampleBatch(columns, {BRANCH: offsets}, in_records(entries, offsets))
    if draw(st.booleans()):  # as most readers give them: columns of one array of entries
        source, target, flags = entries.T
    else:
        source, target, flags = (np.ascontiguousarray(column) for column in entries.T)
    columns |= {"branch_from": source, "branch_to": target, "branch_flags": flags}
    return SampleBatch(columns, {BRANCH: offsets})


def in_records(entries: Any, offsets: Any) -> EntriesInPlace:
    """The entries of each sample after two words of its own, the last sample first."""
    words, first = [np.empty(0, np.uint64)], []
    for lo, hi in zip(offsets[-2::-1], offsets[:0:-1], strict=True):
        first.append(sum(map(len, words)) + 2)
        words += [np.full(2, 0x77, np.uint64), entries[lo:hi].reshape(-1)]
    return EntriesInPlace(np.concatenate(words), np.array(first[::-1], np.int64))


def counted(given: list[SampleBatch], ranges: bool, details: bool, kernel: bool, branches: bool = True) -> Any:
    counter = EntryCounter(Spaces(), branches=branches, ranges=ranges, details=details)  # type: ignore[arg-type]
    assert counter._kernel is not None
    if not kernel:
        counter._kernel = None
    for batch in given:
        counter.add(batch)
        if kernel:
            # as readers do, who reuse the memory of a batch
            (batch["branch_from"] if batch.in_place is None else batch.in_place.words)[...] = 0x30
    return asdict(counter.result(None))


def copies(given: list[SampleBatch]) -> list[SampleBatch]:
    return [
        SampleBatch(
            {n: c.copy() for n, c in batch.columns.items()},
            batch.offsets,
            batch.in_place and replace(batch.in_place, words=batch.in_place.words.copy()),
        )
        for batch in given
    ]


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
    columns = {
        "time": np.zeros(samples, np.int64),
        "pid": np.zeros(samples, np.int32),
        "branch_from": address,
        "branch_to": address + np.uint64(4),
        "branch_flags": address & np.uint64(3),
    }
    return SampleBatch(columns, {BRANCH: np.arange(samples + 1) * depth})


@pytest.mark.parametrize("details", [pytest.param(False, marks=pytest.mark.thorough), True])
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


def test_stacks_of_any_depth() -> None:
    """Deeper than what the kernel has room for at first, beside empty ones; tables grow while some are on their way."""
    random = np.random.default_rng(6)
    depth = np.concatenate([[0, 70, 0, 0, 1, 5000, 2, 0], random.integers(0, 40, 300)])
    entries = random.integers(1, 1 << 14, (int(depth.sum()), 3)).astype(np.uint64)
    columns = {"time": np.zeros(len(depth), np.int64), "pid": np.zeros(len(depth), np.int32)}
    offsets = np.append(0, np.cumsum(depth))
    batch = SampleBatch(columns, {BRANCH: offsets}, in_records(entries, offsets))
    compiled, numpy = both([batch, batch.select(np.arange(100, 20, -3))], True, False)
    assert compiled == numpy


def test_rows_come_out_by_scope() -> None:
    """Each change of the scope from one row to the next costs a step when they are bound."""
    random = np.random.default_rng(7)
    runs: list[int] = []

    def sink(scope: Any, a: Any, b: Any, sums: list[Any]) -> None:
        runs.append(1 + np.count_nonzero(np.diff(scope)))

    counter = NativeStackCounter.available(sink, sink, False)
    assert counter is not None
    batch = stacks_of(random.integers(1, 1 << 20, 32 * 300).astype(np.uint64), 32)
    assert counter.add(np.arange(len(batch)) % 3, batch) == len(batch)
    counter.flush()
    assert runs == [3, 3]
