"""The compiled walk of perf's records and check of their samples against the NumPy form, over damaged captures too."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from any_perfdata import captures
from captures import FORMS
from lastbranch import native
from lastbranch.arrays import ranges, take_ranges
from lastbranch.errors import FormatError
from lastbranch.formats.perfdata import walk
from lastbranch.formats.perfdata.reader import Reader
from lastbranch.model import ENTRY, REQUIRED, BytesSource
from perfdata_writer import Builder

library = native.library()
REQUIRED_NAMES = [column.name for column in REQUIRED]
pytestmark = pytest.mark.skipif(library is None, reason="no compiled library")
slow = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """``raw`` with some of its 16-bit numbers (sizes, types, counts) changed, and perhaps cut short."""
    out = bytearray(raw)
    for _ in range(rng.randrange(1, 6)):
        at = 2 * rng.randrange(52, len(out) // 2)
        out[at : at + 2] = rng.choice([0, 8, 9, 24, 66, 71, 0xFFFF, rng.randrange(1 << 16)]).to_bytes(2, "little")
    return bytes(out[: rng.choice([len(out), rng.randrange(104, len(out) + 1)])])


def read(raw: bytes, form: str) -> Any:
    """Everything that a reader says of ``raw``, by the library (``1``) or NumPy (``0``)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LASTBRANCH_NATIVE", form)
        try:
            reader = Reader(BytesSource(raw))
            reader.index(None)
        except FormatError as error:
            return str(error)
        profile = reader.profile
        streams = [
            (
                s.samples,
                s.entries,
                s.deepest,
                s.columns,
                [
                    ({n: c.tolist() for n, c in b.columns.items()}, {n: c.tolist() for n, c in b.offsets.items()})
                    for b in s.batches()
                ],
                [
                    ([b[n].tolist() for n in (*REQUIRED_NAMES, *ENTRY)], b.depth.tolist())
                    for b in (s.stacks() if "branch_from" in s.columns else ())
                ],
            )
            for s in profile.streams
        ]
        times = profile.start, profile.first_time, profile.last_time
        return profile.damage, profile.lost, profile.records, times, profile.seen_threads, streams


@slow
@given(captures(), st.sampled_from(sorted(FORMS)), st.integers(0, 1 << 32))
def test_readers_agree(builder: Builder, form: str, seed: int) -> None:
    raw, rng = builder.build(**FORMS[form], chunk=997), random.Random(seed)
    assert read(raw, "1") == read(raw, "0")
    for _ in range(4):
        bad = damaged(raw, rng)
        assert read(bad, "1") == read(bad, "0")


@slow
@given(captures())
def test_stacks_in_place(builder: Builder) -> None:
    """They are the columns of branch entries, without a copy."""
    reader = Reader(BytesSource(builder.build()))
    reader.index(None)
    for stream in reader.profile.streams:
        if "branch_from" not in stream.columns:
            continue
        for batch, want in zip(stream.stacks(), stream.batches(ENTRY), strict=True):
            assert batch.in_place is not None
            assert not set(ENTRY) & batch.columns.keys()
            part = slice(len(batch) // 3, len(batch))
            for name in (*REQUIRED_NAMES, *ENTRY):
                assert (
                    batch.slice(part.start, part.stop)[name].tolist()
                    == want.slice(part.start, part.stop)[name].tolist()
                )
                assert batch[name].tolist() == want[name].tolist()
            assert batch.offsets["branch"].tolist() == want.offsets["branch"].tolist()


@slow
@given(captures(), st.booleans(), st.integers(0, 1 << 32))
def test_checks_agree(builder: Builder, big: bool, seed: int) -> None:
    """Of samples at the words of a block that do not fit their records: each field ends outside of one at some time."""
    rng = random.Random(seed)
    reader = Reader(BytesSource(builder.build(big=big)))
    reader.index(None)
    for block in reader.blocks():
        block.words = block.words.copy()
        for at, size in zip(block.at.tolist(), block.sizes(block.at).tolist(), strict=True):
            changed = rng.choice([size, size - 8 * rng.randrange(5), rng.randrange(8, 1 << 16)])
            size, kind = max(8, min(changed, 8 * (len(block.words) - at))), 9
            block.words[at] = kind << 32 | size if big else size << 48 | kind
            if size >= 16 and rng.random() < 0.3:
                block.words[at + rng.randrange(1, size >> 3)] = rng.choice([0, 1, 5, 40, 1 << 32, (1 << 64) - 1])
        for entry in reader.layouts:
            want = entry.layout._check(block, block.at)
            got = entry.layout._check_compiled(library, block, block.at)  # type: ignore[arg-type]
            assert got is not None
            assert got[:-1] == want[:-1]
            assert set(got.threads.tolist()) == set(want.threads.tolist())
        past = np.array([len(block.words) - 1])
        block.words[-1] = (1 << 64) - 1
        for entry in reader.layouts:
            assert entry.layout._check_compiled(library, block, past) is None  # type: ignore[arg-type]


def test_threads_whose_ids_are_equal_are_listed_once_each() -> None:
    """The main threads of processes, which take turns: pid and tid are one number."""
    builder, turns = Builder(), 300
    for turn in range(turns):
        builder.sample(pid=1000 + turn % 3, tid=1000 + turn % 3)
    reader = Reader(BytesSource(builder.build()))
    reader.index(None)
    (block,) = reader.blocks()
    at = block.at[block.types == 9]
    found = reader.layouts[0].layout._check_compiled(library, block, at)  # type: ignore[arg-type]
    assert len(at) == turns
    assert found is not None
    assert len(found.threads) == 3


HEADS = st.tuples(st.sampled_from([1, 9, 66, 68, 71, 81]), st.sampled_from([0, 7, 8, 16, 17, 24, 24, 24, 80, 0xFFF8]))


@settings(max_examples=300)
@given(st.lists(st.tuples(HEADS, st.integers(1, 40)), max_size=12), st.booleans(), st.integers(0, 24))
def test_chains_agree(heads: list[tuple[tuple[int, int], int]], big: bool, cut: int) -> None:
    words: list[int] = []
    for (kind, size), times in heads:
        record = [kind << 32 | size if big else size << 48 | kind, *[7] * (min(size, 80) - 1 >> 3)]
        words += record * times
    data = np.array(words, np.uint64)
    length = max(0, 8 * len(words) - cut)
    data = data[: length + 7 >> 3]
    at, types = walk._find_compiled(library, data, length, big)  # type: ignore[arg-type]
    want_at, want_types = walk._find_in_numpy(data, length, big)
    assert at.tolist() == want_at.tolist()
    assert types.tolist() == want_types.tolist()


def test_more_records_than_one_call_finds() -> None:
    data = np.full(2 * walk._ROOM + 5, 8 << 48 | 68, np.uint64)
    at, types = walk._find_compiled(library, data, 8 * len(data), False)  # type: ignore[arg-type]
    assert at.tolist() == list(range(len(data)))
    assert set(types.tolist()) == {68}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=9), st.sampled_from([np.uint8, np.uint64]))
def test_ranges_agree(runs: list[tuple[int, int]], kind: type[np.generic]) -> None:
    """What is outside repeats the last item, in both forms."""
    values = np.arange(30, 42, dtype=kind)
    first, count = (np.array(c, np.int64) for c in (zip(*runs, strict=True) if runs else ((), ())))
    assert take_ranges(values, first, count).tolist() == values.take(ranges(first, count), mode="clip").tolist()
