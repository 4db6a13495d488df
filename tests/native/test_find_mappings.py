"""The compiled lookup of addresses against the NumPy form, and against a scan of all pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.bind import SpaceIndex
from lastbranch.bind.binder import _module_addresses, module_addresses
from lastbranch.bind.spaces import BY_ADDRESS, RUN

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")

KERNEL_BASE = 0xFFFF_8000_0000_0000
MOMENTS, PAGES = 8, 12


@st.composite
def indexes(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], bool]:
    """Pieces (space, lo, hi, first, last) that do not overlap, and whether an address has more than 48 bits."""
    pieces: list[tuple[int, ...]] = []
    wide = draw(st.booleans())
    for _ in range(draw(st.integers(0, 12))):
        space, lo, first = draw(st.integers(0, 2)), draw(st.integers(0, PAGES)), draw(st.integers(0, MOMENTS))
        hi, last = draw(st.integers(lo + 1, PAGES + 1)), draw(st.sampled_from([first + 1, first + 3, 1 << 40]))
        base = KERNEL_BASE if space == 0 else (1 << 50) * wide
        one = (space, base + lo * 4096, base + hi * 4096, first, last)
        if all(one[0] != p[0] or one[2] <= p[1] or p[2] <= one[1] or one[4] <= p[3] or p[4] <= one[3] for p in pieces):
            pieces.append(one)
    return pieces, wide


@st.composite
def asked(draw: st.DrawFn) -> tuple[Any, Any]:
    lengths = draw(st.lists(st.integers(0, 5), max_size=6))
    runs = np.zeros(len(lengths), RUN)
    runs["end"] = np.cumsum(lengths)
    for run in runs:
        run["kernel_start"] = draw(st.sampled_from([1 << 63, 6 * 4096]))
        run["side"] = draw(st.sampled_from([0, 1, BY_ADDRESS]))
        run["space"] = draw(st.integers(-1, 3)), draw(st.sampled_from([-1, 0, 1]))
        run["moment"] = draw(st.integers(0, MOMENTS + 4)), draw(st.sampled_from([0, 3, (1 << 62)]))
    address = st.builds(
        lambda base, page, offset: min(base + page * 4096 + offset, (1 << 64) - 1),
        st.sampled_from([0, 1 << 50, KERNEL_BASE, 1 << 48]),
        st.integers(0, PAGES + 2),
        st.sampled_from([0, 1, 4095]),
    )
    total = sum(lengths)
    values = draw(st.lists(address, min_size=total, max_size=total))
    return runs, np.array(values, np.uint64).reshape(-1)


def index_of(pieces: list[tuple[int, ...]]) -> SpaceIndex:
    kinds = (np.int64, np.uint64, np.uint64, np.int64, np.int64)
    space, lo, hi, first, last = (np.array([p[k] for p in pieces], kind) for k, kind in enumerate(kinds))
    return SpaceIndex(space, lo, hi, first, last, np.arange(len(pieces)) * 7)


def scanned(pieces: list[tuple[int, ...]], runs: Any, address: Any) -> list[int]:
    def at(side: int, run: Any, a: int) -> int:
        space, moment = int(run["space"][side]), int(run["moment"][side])
        found = [i for i, p in enumerate(pieces) if p[0] == space and p[1] <= a < p[2] and p[3] <= moment < p[4]]
        return found[0] * 7 if found else -1

    out: list[int] = []
    for run in runs:
        for a in address[len(out) : int(run["end"])].tolist():
            above = int(a >= int(run["kernel_start"]))
            side = above if run["side"] == BY_ADDRESS else int(run["side"])
            found = at(side, run, a)
            out.append(at(above, run, a) if found < 0 else found)
    return out


@settings(max_examples=300, deadline=None)
@given(indexes(), asked(), st.booleans())
def test_equals_the_numpy_form_and_a_scan(index: Any, runs_and_addresses: Any, strided: bool) -> None:
    pieces, _ = index
    runs, address = runs_and_addresses
    if strided:  # as columns of branch entries are
        address = np.column_stack([address, address ^ np.uint64(1)])[:, 0]
    made = index_of(pieces)
    assert made.find_runs(runs, address).tolist() == scanned(pieces, runs, address)
    assert made._find_runs(runs, address).tolist() == scanned(pieces, runs, address)


def test_declines_runs_of_other_addresses() -> None:
    library = native.library()
    assert library is not None
    made = index_of([(1, 0, 4096, 0, 9)])
    slabs, rows = made._slabs, made._rows
    arrays = map(native.address, (slabs, slabs, rows, made._row_last, made._row_value))
    index = np.array([*arrays, len(slabs), -1, len(rows), int(made._moment_bits)], np.int64)
    address, out = np.zeros(4, np.uint64), np.empty(4, np.int64)
    for ends in ([3], [5], [2, 1], [-1], []):
        runs = np.zeros(len(ends), RUN)
        runs["end"] = ends
        words = native.address(runs), len(runs), native.address(address), 8, 4, native.address(out)
        assert library.lb_find_mappings(native.address(index), *words) == 1, ends


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, (1 << 64) - 1)), min_size=1, max_size=4), st.data())
def test_addresses_in_modules_are_those_of_the_numpy_form(mappings: Any, data: Any) -> None:
    module, bias = np.array([m for m, _ in mappings], np.int64), np.array([b for _, b in mappings], np.uint64)
    asked = st.tuples(st.integers(-1, len(mappings) - 1), st.integers(0, (1 << 64) - 1))
    mapping, address = np.array(data.draw(st.lists(asked, min_size=1)), object).T
    mapping, address = mapping.astype(np.int64), np.repeat(address.astype(np.uint64), 3)[::3]
    for expected, found in zip(
        _module_addresses(mapping, address, module, bias),
        module_addresses(mapping.copy(), address, module, bias),
        strict=True,
    ):
        assert (expected.dtype, expected.tolist()) == (found.dtype, found.tolist())


def test_mappings_that_do_not_exist_are_declined() -> None:
    library = native.library()
    assert library is not None
    value, address = np.array([0, 1, -1]), np.zeros(3, np.uint64)
    given = native.address(address), 8, 3, native.address(np.zeros(2, np.int64)), native.address(address)
    for worst, number, declined in ((1, 2, 0), (1, 1, 1), (-2, 2, 1)):
        value[1] = worst
        out = native.address(value.copy()), native.address(np.empty(3, np.uint64))
        assert library.lb_module_addresses(*given, number, *out) == declined
