"""Sampling noise against the bootstrap: bursts drawn again, with replacement."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastbranch
import perfdata_writer as pw
from lastbranch.analysis import branches
from lastbranch.analysis.stacks.call_stacks import CallStacks
from lastbranch.analysis.statistics.bursts import BurstCount, bursts_of, whole_bursts
from lastbranch.analysis.statistics.share_noise import ShareNoise, noise_of_branches
from lastbranch.bind.joined import OpenedCapture, join
from lastbranch.model import Clock, Profile, SampleBatch
from lastbranch.opening import open_source, read_profile

KEYS = 4
RECORDS = "software-lbr"


def profile_of(*events: str) -> Any:
    named = [SimpleNamespace(name=e) for e in events]
    return SimpleNamespace(events=named, weight_of=lambda batch: 1, clock=Clock(), tick=1)


def batch_of(
    event: list[int], time: list[int], tid: list[int], key: list[int], cpu: list[int] | None = None
) -> SampleBatch:
    columns = {"event": np.array(event, np.int32), "time": np.array(time, np.int64), "tid": np.array(tid, np.int32)}
    cpus = np.zeros(len(event), np.int32) if cpu is None else np.array(cpu, np.int32)
    return SampleBatch({**columns, "ip": np.array(key, np.uint64), "cpu": cpus})


def noise(profile: Any, *batches: SampleBatch) -> ShareNoise:
    sums = ShareNoise(profile, lambda batch: (batch.ip,), 1)
    for batch in batches:
        sums.add(batch)
    return sums


def by_bootstrap(bursts: list[list[int]], rounds: int = 2000) -> np.ndarray:
    chance = np.random.default_rng(1)
    counts = np.array([np.bincount(burst, minlength=KEYS) for burst in bursts])
    drawn = chance.integers(0, len(bursts), (rounds, len(bursts)))
    sums = counts[drawn].sum(1)
    return np.std(sums / sums.sum(1, keepdims=True), axis=0)


@pytest.mark.parametrize("name", [RECORDS, "cycles"])
@pytest.mark.parametrize("sticky", [0.0, 0.9])
def test_the_standard_error_is_that_of_the_bootstrap(name: str, sticky: float) -> None:
    """Of bursts of several records, which mostly stay where they are, and of samples that are alone."""
    chance = np.random.default_rng(7)
    bursts = []
    for _ in range(400):
        burst = [int(chance.choice(KEYS, p=[0.5, 0.3, 0.15, 0.05]))]
        while chance.random() < 0.8:
            burst.append(burst[-1] if chance.random() < sticky else int(chance.choice(KEYS, p=[0.5, 0.3, 0.15, 0.05])))
        bursts.append(burst)
    key = [place for burst in bursts for place in burst]
    time = [number * 10**7 for number, burst in enumerate(bursts) for _ in burst]
    whole = batch_of([0] * len(key), time, [1] * len(key), key)
    units = bursts if name == RECORDS else [[place] for place in key]
    cut = int(np.flatnonzero(np.diff(np.array(time)))[100]) + 1
    parts = whole.slice(0, cut), whole.slice(cut, len(key))
    asked = np.arange(KEYS)
    found = noise(profile_of(name), *parts).of(
        np.zeros(KEYS, np.int64), asked, np.bincount(key, minlength=KEYS), lambda place: place
    )
    assert found.bursts == len(units)
    assert found.observed.tolist() == [sum(place in unit for unit in units) for place in range(KEYS)]
    assert found.seconds == pytest.approx(3.99)
    np.testing.assert_allclose(found.error, by_bootstrap(units), rtol=0.1)
    unit = "bursts" if name == RECORDS else "samples"
    assert found.notes[0].endswith(f"from {len(units)} {unit}; 12 s more of recording would halve it")


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_settled_counts_as_before(seed: int) -> None:
    """Whenever that was, in the middle of a burst or not, and whatever is asked between."""
    chance = np.random.default_rng(seed)
    places, names = 12, 4
    starts = np.cumsum(chance.integers(0, 2, 500)) * 100
    event, tid = chance.integers(0, 2, 500).tolist(), [1] * 500
    whole = batch_of(event, starts.tolist(), tid, chance.integers(0, places, 500).tolist())
    asked = np.repeat([0, 1], names), np.tile(np.arange(names), 2)
    samples = np.bincount(whole.event * names + whole.ip.astype(np.int64) // 3, minlength=2 * names)

    def name_of(place: Any) -> Any:
        return place // 3

    once, parts = noise(profile_of(RECORDS, "cycles"), whole), noise(profile_of(RECORDS, "cycles"))
    for first, last in pairwise([0, *np.sort(chance.choice(np.arange(1, 500), 9, replace=False)).tolist(), 500]):
        parts.add(whole.slice(first, last))
        parts.of(*asked, samples, name_of)
        parts.settle(name_of, lambda place: place < 9)
    found, expected = (sums.of(*asked, samples, name_of) for sums in (parts, once))
    assert found.observed.tolist() == expected.observed.tolist()
    assert found.error.tolist() == expected.error.tolist()
    assert (found.bursts, found.seconds) == (expected.bursts, expected.seconds)


def test_events_have_shares_of_their_own() -> None:
    """The closed form of samples that are alone: the root of p (1 - p) / (n - 1), and at least half a sample."""
    batch = batch_of([0, 1] * 50, list(range(100)), [1] * 100, [0, 1, 1, 1] * 25)
    found = noise(profile_of("cycles", "instructions"), batch)
    error = found.of(np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([25, 25, 50]), lambda place: place).error
    np.testing.assert_allclose(error, [np.sqrt(0.25 / 49)] * 2 + [1 / 102], atol=1e-9)


def test_a_burst_is_records_of_one_thread_and_moment() -> None:
    """A tick apart in trace logs."""
    batch = batch_of([0] * 7 + [1, 1], [5, 5, 5, 6, 7, 9, 8, 8, 8], [1, 1, 2, 2, 2, 2, 2, 2, 2], [0] * 9)
    profile = profile_of(RECORDS, "cycles")
    assert bursts_of(profile, batch).tolist() == [0, 0, 1, 1, 1, 2, 3, 4, 5]
    profile.clock = Clock("file order", 0)  # times only order records there
    assert bursts_of(profile, batch).tolist() == [*range(9)]


@pytest.mark.parametrize("seed", range(8))
def test_bursts_are_whole_wherever_a_file_cuts_them(seed: int) -> None:
    """Bursts of three threads in pieces, with records of others between them, and batches that end anywhere."""
    chance = np.random.default_rng(seed)
    rows = []
    for number in range(60):
        tid, pieces = int(chance.integers(1, 4)), int(chance.integers(1, 6))
        for piece in range(pieces):
            rows += [(1, number * 100, int(chance.integers(1, 4)), 1000, 0)] * int(chance.integers(0, 3))
            rows.append((0, number * 100 + piece, tid, number, 0))
    # Buffers of another processor, which lie in between, have bursts of another thread and of this one.
    for number, other in ((500, 9), (501, 1)):
        at = next(i for i, row in enumerate(rows) if row[0] == 0 and row[2] == 1 and row[1] % 100 and row[1] > number)
        rows[at:at] = [(0, 70_000 * number, other, number, 1)] * 3
    cut = sorted({0, len(rows), *chance.integers(0, len(rows), 25).tolist()})
    batches = [batch_of(*map(list, zip(*rows[a:b], strict=True))) for a, b in pairwise(cut)]
    profile, seen, all_rows = profile_of(RECORDS, "cpu-clock"), list[set[int]](), list[tuple[int, ...]]()
    for batch in whole_bursts(profile, iter(batches)):
        burst = bursts_of(profile, batch)
        for which in range(int(burst[-1]) + 1):
            part = batch.select(burst == which)
            if part.event[0] == 0:
                seen.append(set(part.ip.tolist()))
        all_rows += zip(*(batch[name].tolist() for name in ("event", "time", "tid", "ip", "cpu")), strict=True)
    assert sorted(all_rows) == sorted(rows)
    assert sorted(map(sorted, seen)) == [[number] for number in [*range(60), 500, 501]]
    counted = BurstCount(profile)
    for batch in batches:
        counted.add(batch)
    assert counted.result() == 62 + sum(row[0] for row in rows)


CLOCKS = st.sampled_from([10**7, 10**9, 3_312_000_000])


@settings(max_examples=24)
@given(
    clocks=st.tuples(CLOCKS, CLOCKS),
    pieces=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=12),
    chance=st.randoms(use_true_random=False),
)
def test_bursts_stay_whole_where_captures_with_other_clocks_are_joined(
    clocks: tuple[int, int], pieces: list[tuple[int, int]], chance: Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A tick of a slow clock is up to 332 of the common one, so bursts of a thread are further apart. ``pieces`` are
    (records, thread) of each burst."""
    path = tmp_path_factory.mktemp("clocks") / "made.data"
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    b.sample(ip=1, pid=7, tid=99, time=1)
    for number in range(0, len(pieces), 3):  # pieces of bursts of three threads lie between each other
        left = [
            [(1000 * (number + at) + piece, thread + 10 * at) for piece in range(many)]
            for at, (many, thread) in enumerate(pieces[number : number + 3])
        ]
        while left := [burst for burst in left if burst]:
            time, tid = chance.choice(left).pop(0)
            b.sample(ip=1, pid=7, tid=tid, time=1000 + time)
    path.write_bytes(b.build())
    opened = []
    for frequency in clocks:
        profile = read_profile(open_source(str(path)), binaries=False)
        profile.clock, profile.events[0].name = Clock("made", frequency), RECORDS
        opened.append(OpenedCapture(profile))
    joined = join(opened, lambda profile, modules: None)
    counted = BurstCount(joined)
    for batch in joined.batches(()):
        counted.add(batch)
    assert counted.result() == 2 * (1 + len(pieces))


def test_shares_of_stacks_mean_something_from_a_hundred_bursts_on() -> None:
    none = np.zeros(0, np.int64)
    stacks = CallStacks(*[none] * 2, np.array([1000, 101]), *[none] * 5, bursts=300)
    assert stacks.enough == 367  # of 1101 samples
    assert replace(stacks, bursts=1101).enough == 100
    assert replace(stacks, bursts=0).enough == 100


def recorded(path: Path, bursts: list[list[int]]) -> Profile:
    """A capture of ``bursts`` in records of two branches each: of each branch the number of its place."""
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    b.comm(pid=7, name="prog", time=1, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name="/bin/prog", time=2)
    for number, burst in enumerate(bursts):
        ends = [(0x400000 + 0x100 * place, 0x400010 + 0x100 * place, 1 << 20) for place in burst]
        for at in range(0, len(ends), 2):
            b.sample(ip=0x400010, pid=7, tid=7, time=10**6 * (number + 1), branches=ends[at : at + 2])
    path.write_bytes(b.build())
    profile = lastbranch.open(path)
    profile.events[0].name = RECORDS
    return profile


def test_branches_of_a_burst_are_one_observation(tmp_path: Path) -> None:
    chance = np.random.default_rng(3)
    bursts = [[int(place)] * int(chance.integers(1, 9)) for place in chance.choice(KEYS, 300, p=[0.5, 0.3, 0.15, 0.05])]
    bursts += [[0, 1, 2, 3]] * 10
    profile = recorded(tmp_path / "made.data", bursts)
    table = branches(profile)
    place = ((table.from_address - table.from_address.min()) // 0x100).astype(int)
    for rows in (table, table.take(slice(2))):
        sites, edges = (
            noise_of_branches(profile, None, ends)
            for ends in (
                [(rows.from_module, rows.from_address)],
                [(rows.from_module, rows.from_address), (rows.to_module, rows.to_address)],
            )
        )
        for found in (sites, edges):
            assert found is not None
            where = place[: len(found.error)]
            assert found.observed.tolist() == [sum(one in burst for burst in bursts) for one in where]
            np.testing.assert_allclose(found.error, by_bootstrap(bursts)[where], rtol=0.1)
            assert found.bursts == len(bursts)
            assert found.notes[0].startswith(
                f"noise is the standard error of share of time %, in points, from {len(bursts)}"
            )
    profile.events[0].name = "cycles"
    assert noise_of_branches(profile, None, [(table.from_module, table.from_address)]) is None
