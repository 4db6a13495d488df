"""Comparisons: false alarms over many pairs of one population, changes that are there, code matched across builds."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pytest

import lastbranch
from captures import Data
from command_line import Ran
from lastbranch.analysis.comparison import CodeLocation, Difference, Thing, compare
from lastbranch.analysis.naming import Namer
from lastbranch.analysis.statistics.significance import (
    FEWEST,
    Clusters,
    _fisher,
    _student,
    adjust_probabilities,
    probabilities,
)
from lastbranch.bind import bind
from lastbranch.errors import NotRecordedError
from lastbranch.lbr import PERF_SELECT
from lastbranch.model import Change, Event, Module, Profile, SampleBatch, SampleFilter, SampleStream, Timeline
from lastbranch.symbols import Function, FunctionTable, Names
from view_truth import NmSymbols

DEPTH = 32


def part(profile: Profile, chosen: np.ndarray) -> Profile:
    """``profile`` with the samples of a bool mask only."""
    out, first = copy.copy(profile), 0
    out.streams = []
    for stream in profile.streams:

        def read(
            columns: frozenset[str] | None, stream: SampleStream = stream, at: int = first
        ) -> Iterator[tuple[SampleBatch, int]]:
            for batch, mark in stream.reader(columns):
                yield batch.select(chosen[at : at + len(batch)]), mark
                at += len(batch)

        out.streams.append(replace(stream, reader=read))
        first += stream.samples
    return out


def plain(*profiles: Profile) -> list[Namer]:
    return [Namer(profile, None) for profile in profiles]


# -- what chance does


@pytest.mark.parametrize("of_a", [7, 12])
def test_fisher_against_exact_fractions(of_a: int) -> None:
    of_b = 9
    for a in range(of_a + 1):
        for b in range(of_b + 1):
            all_ways = comb(of_a + of_b, a + b)
            ways = {x: comb(of_a, x) * comb(of_b, a + b - x) for x in range(min(of_a, a + b) + 1) if a + b - x <= of_b}
            low = sum(n for x, n in ways.items() if x <= a)
            high = sum(n for x, n in ways.items() if x >= a)
            more = a * of_b >= b * of_a
            exact = min(Fraction(1), 2 * Fraction(high if more else low, all_ways))
            assert _fisher(a, of_a, b, of_b) == pytest.approx(float(exact), rel=1e-9)


def test_student_against_integration() -> None:
    """The density of t, summed up numerically."""
    for freedom in (3, 10, 50):
        scale = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)
        x = np.linspace(0, 60, 600_001)
        density = scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
        below = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(x))])
        for t in (0.5, 1, 2, 3, 5):
            exact = 1 - 2 * float(np.interp(t, x, below))
            assert _student(t, freedom) == pytest.approx(exact, rel=0.1, abs=1e-7)


def test_rates_are_those_of_benjamini_and_hochberg() -> None:
    given = np.array([0.01, np.nan, 0.04, 0.03, 0.5, 0.001])
    order = [5, 0, 3, 2, 4]
    expected = {i: min(given[j] * 5 / (k + 1) for k, j in enumerate(order) if k >= at) for at, i in enumerate(order)}
    found = adjust_probabilities(given)
    assert math.isnan(found[1])
    assert [found[i] for i in order] == pytest.approx([min(1, expected[i]) for i in order])


def drawn(rng: np.random.Generator, samples: int, chance: np.ndarray) -> Clusters:
    """Samples of stacks in a loop: all entries of a sample are of the one thing it was in."""
    thing = rng.choice(len(chance), samples, p=chance)
    out = Clusters(len(chance))
    out.add(np.full(samples, DEPTH), np.repeat(np.arange(samples), DEPTH), np.repeat(thing, DEPTH))
    return out


@pytest.mark.parametrize(("of_a", "of_b"), [(400, 400), (1500, 100)])
def test_pairs_of_one_population_raise_few_alarms(of_a: int, of_b: int) -> None:
    """200 pairs of recordings that do not differ; and what entries as the unit would have said of them."""
    rng = np.random.default_rng(20)
    chance = np.array([0.4, 0.2, 0.1, *[0.3 / 60] * 60])
    alarms = below = tested = naive = 0
    for _ in range(200):
        a, b = drawn(rng, of_a, chance), drawn(rng, of_b, chance)
        p = probabilities(a, b)
        alarms += bool(np.nanmin(adjust_probabilities(p)) <= 0.05)
        tested += int((~np.isnan(p)).sum())
        below += int((p <= 0.05).sum())
        common = (a.part + b.part) / (a.weight + b.weight)
        spread = np.sqrt(common * (1 - common) * (1 / a.weight + 1 / b.weight))
        naive += int(abs(a.share[0] - b.share[0]) > 1.96 * spread[0])
    assert alarms <= 0.05 * 200
    assert below <= 0.05 * tested
    assert naive > 0.5 * 200


@pytest.mark.parametrize("scaled", [True, False])
def test_other_rates_of_recording_are_no_difference(scaled: bool) -> None:
    """Two services run the same on both sides, but the one that was recorded at a tenth of the rate is the other one.
    Only samples that count for what they stand for say so."""
    rng = np.random.default_rng(23)
    services = np.array([0.6, 0.1, *[0.3 / 30] * 30]), np.array([0.1, 0.6, *[0.3 / 30] * 30])
    alarms = 0
    for _ in range(100):
        sides = []
        for rates in ((1000, 100), (100, 1000)):
            out = Clusters(32)
            for samples, chance in zip(rates, services, strict=True):
                thing = rng.choice(32, samples, p=chance)
                whole, each = np.full(samples, DEPTH), np.arange(samples)
                times = 1000 // samples if scaled else 1
                out.add(whole, np.repeat(each, DEPTH), np.repeat(thing, DEPTH), times=times)
            sides.append(out)
        alarms += bool(np.nanmin(adjust_probabilities(probabilities(*sides))) <= 0.05)
    assert alarms <= 5 if scaled else alarms == 100


def test_what_all_samples_stand_for_changes_nothing() -> None:
    rng = np.random.default_rng(24)
    chance = np.array([0.5, 0.3, 0.19, 0.01])
    thing, whole = [rng.choice(4, 700, p=chance) for _ in range(2)], np.ones(700)
    found = []
    for times in (1, 100):
        sides = Clusters(4), Clusters(4)
        for side, things in zip(sides, thing, strict=True):
            side.add(whole, np.arange(700), things, times=times)
        found.append(probabilities(*sides))
    assert found[0] == pytest.approx(found[1])


def test_a_change_of_the_population_is_found() -> None:
    rng = np.random.default_rng(21)
    before, after = np.array([0.5, 0.3, 0.2]), np.array([0.42, 0.38, 0.2])
    found = [
        adjust_probabilities(probabilities(drawn(rng, 2000, before), drawn(rng, 2000, after))) <= 0.05
        for _ in range(40)
    ]
    assert np.mean(found, axis=0)[:2].min() > 0.95
    assert np.mean(found, axis=0)[2] < 0.15


def test_more_of_it_in_as_many_samples_is_found() -> None:
    """Presence says nothing here: every sample has both things."""
    rng = np.random.default_rng(22)
    sides = []
    for mean in (10, 11):
        count, out = rng.poisson(mean, 500).clip(1, 31), Clusters(2)
        entries = np.arange(DEPTH) < count[:, None]
        out.add(np.full(500, DEPTH), np.repeat(np.arange(500), DEPTH), np.where(entries, 0, 1).reshape(-1))
        sides.append(out)
    assert (sides[0].present == sides[1].present).all()
    assert probabilities(*sides).max() < 1e-4


def test_what_few_samples_have_is_not_judged() -> None:
    a, b = Clusters(2), Clusters(2)
    a.add(np.ones(50), np.arange(50), np.repeat([0, 1], [50 - FEWEST + 1, FEWEST - 1]))
    b.add(np.ones(50), np.arange(50), np.zeros(50, np.int64))
    p = probabilities(a, b)
    assert math.isnan(p[1])
    assert not math.isnan(p[0])
    assert np.isnan(probabilities(a, Clusters(2))).all()


@pytest.mark.parametrize("by", ["function", "edge", "block"])
def test_halves_of_one_recording_raise_few_alarms(data: Data, symfs: Callable[[str], Path], by: Thing) -> None:
    """Its stacks are 32 deep, of loops: a real population of clusters."""
    profile = lastbranch.open(data.path("demo_pie"), symfs=str(symfs("demo_pie")))
    pairs, alarms, below, tested = 24, 0, 0, 0
    for seed in range(pairs):
        chosen = np.random.default_rng(seed).random(profile.samples) < (0.5 if seed % 2 else 0.25)
        found = compare(plain(part(profile, chosen), part(profile, ~chosen)), by)
        told = found.probability[~np.isnan(found.probability)]
        alarms += bool(found.significant().any())
        tested, below = tested + len(told), below + int((told <= 0.05).sum())
    assert alarms <= 2  # of 24; with entries as the unit all of them have some
    assert below <= 0.05 * tested
    assert tested > 2 * pairs


# -- counts and matching, on captures made here

ANY = PERF_SELECT["ANY"]
Stack = Sequence[tuple[int, int]]


def made(
    stacks: Sequence[tuple[int, Stack]], name: str = "/bin/app", build: bytes = b"", event: str = "cycles"
) -> Profile:
    """A profile of one module at 0x400000; samples are (ip, stack of (from, to), newest first)."""
    entries = [e for _, stack in stacks for e in stack]
    offsets = np.cumsum([0, *(len(stack) for _, stack in stacks)])
    n = len(stacks)
    columns = {
        "time": np.arange(n),
        "ip": np.array([ip for ip, _ in stacks], np.uint64),
        "pid": np.full(n, 1, np.int32),
        "tid": np.full(n, 1, np.int32),
        "cpu": np.zeros(n, np.int32),
        "event": np.zeros(n, np.int32),
        "period": np.full(n, 5, np.uint64),
        "mode": np.full(n, 2, np.uint8),
        "branch_from": np.array([f for f, _ in entries], np.uint64),
        "branch_to": np.array([t for _, t in entries], np.uint64),
        "branch_flags": np.zeros(len(entries), np.uint64),
    }
    batch = SampleBatch(columns, {"branch": offsets})
    stream = SampleStream(
        0,
        ("branch_from", "branch_to", "branch_flags"),
        (0,),
        n,
        len(entries),
        DEPTH,
        lambda _wanted: iter([(batch, 0)]),
    )
    timeline = Timeline()
    timeline.add(Change.MAP, 0, 1, module=0, start=0x400000, end=0x500000)
    profile = Profile(
        name,
        "test",
        modules=[Module(name, build_id=build)],
        streams=[stream],
        timeline=timeline,
        events=[Event(event, branch_select=ANY, has_period=True)],
        seen_threads={(1, 1)},
    )
    return bind(profile)


def loop(ip: int, start: int, end: int, n: int = 8) -> tuple[int, Stack]:
    return ip, [(end, start)] * n


class Made:
    """Names of one module: functions at module addresses, and a line for each address."""

    def __init__(self, functions: Sequence[tuple[str, int, int, int]], lines: dict[int, int] | None = None) -> None:
        self.known = [Function(n, n, start, end - start, "/src/app.c", line) for n, start, end, line in functions]
        self.lines, self.notes = lines or {}, list[str]()

    def functions(self, module: int) -> FunctionTable:
        start = np.array([f.start for f in self.known], np.uint64)
        return FunctionTable(start, start + np.array([f.size for f in self.known], np.uint64), self.known)

    def names(self, module: int, address: np.ndarray) -> Names:
        found = Names.of_functions(self.functions(module).at(address), self.known)
        found.files = ["/src/app.c"]
        found.frame_file = np.zeros(len(found.frame_function), np.int32)
        found.frame_line = np.array([self.lines.get(a, 0) for a in address.tolist()], np.uint32)
        return found


def by_spot(found: Difference) -> dict[tuple[str, ...], tuple[float, float]]:
    return {
        tuple(f"{s.function}{s.where}" for s in spots): (float(a), float(b))
        for spots, a, b in zip(found.spots, *found.share, strict=True)
    }


SAME = [loop(0x400010, 0x400010, 0x400018)] * 30 + [loop(0x400110, 0x400110, 0x400120)] * 10
OLD = Made([("f", 0x0, 0x100, 10), ("g", 0x100, 0x200, 20)], {0x10: 11, 0x18: 12, 0x110: 21, 0x120: 22})


def named(profile: Profile, symbols: object) -> Namer:
    return Namer(profile, symbols)  # type: ignore[arg-type]


def test_shares_of_functions_edges_and_blocks() -> None:
    sides = [named(made(SAME), OLD), named(made(SAME[::-1] * 2), OLD)]
    found = compare(sides)
    assert by_spot(found) == {("f",): (0.75, 0.75), ("g",): (0.25, 0.25)}
    assert found.samples.tolist() == [[30, 10], [60, 20]]
    assert not found.significant().any()
    assert found.noise == pytest.approx(math.sqrt(0.75 * 0.25 / 39 + 0.75 * 0.25 / 79))
    assert by_spot(compare(sides, "edge")) == {("f+0x18", "f+0x10"): (0.75, 0.75), ("g+0x20", "g+0x10"): (0.25, 0.25)}
    blocks = by_spot(compare(sides, "block"))
    assert blocks[("f+0x10",)] == (0.75, 0.75)
    assert blocks[("fbehind +0x18",)] == (0, 0)


def test_blocks_that_only_one_recording_saw_begin() -> None:
    """Ten ranges run from 0x10 to 0x30; in the second recording a branch at 0x20 is taken at times."""
    straight = loop(0x400010, 0x400010, 0x400030)
    taken = loop(0x400010, 0x400010, 0x400020)
    found = compare([named(made([straight] * 20), OLD), named(made([straight] * 15 + [taken] * 5), OLD)], "block")
    assert by_spot(found) == {
        ("f+0x10",): (1, 1),
        ("fbehind +0x20",): (1, 0.75),
        ("fbehind +0x30",): (0, 0),
    }


def test_other_builds_match_by_name_offset_and_line() -> None:
    """f moved and is the same; g grew, lines came in above both, and the program has a new name."""
    moved = [(ip + 0x40, [(f + 0x40, t + 0x40) for f, t in stack]) for ip, stack in SAME[:30]]
    grown = [loop(0x400154, 0x400154, 0x400168)] * 10
    lines = {0x50: 16, 0x58: 17, 0x154: 26, 0x168: 27}
    new = Made([("f", 0x40, 0x140, 15), ("g.llvm.123", 0x140, 0x260, 25)], lines)
    new.known[1] = new.known[1]._replace(shown="g")
    old = Made([("f", 0x0, 0x100, 10), ("g.llvm.9", 0x100, 0x200, 20)], OLD.lines)
    old.known[1] = old.known[1]._replace(shown="g")
    sides = [named(made(SAME, build=b"1"), old), named(made(moved + grown, "/bin/app-2", build=b"2"), new)]
    assert by_spot(compare(sides)) == {("f",): (0.75, 0.75), ("g",): (0.25, 0.25)}
    edges = by_spot(compare(sides, "edge"))
    assert edges == {("f+0x18", "f+0x10"): (0.75, 0.75), ("g app.c:22", "g app.c:21"): (0.25, 0.25)}
    assert {spots[0].function for spots in compare(sides, "block").spots} == {"f"}


def test_the_same_build_matches_without_names() -> None:
    other = [loop(0x400110, 0x400110, 0x400120)] * 40
    found = compare(plain(made(SAME, build=b"1"), made(other, "/elsewhere/app", build=b"1")), "edge")
    assert by_spot(found) == {("0x18", "0x10"): (0.75, 0), ("0x120", "0x110"): (0.25, 1)}
    assert found.significant().all()
    assert {spots[0] for spots in found.spots} == {CodeLocation("app", "", "0x18"), CodeLocation("app", "", "0x120")}


def test_filters_choose_the_samples() -> None:
    late = SampleFilter(first=30)
    found = compare([named(made(SAME), OLD)] * 2, sample_filters=(None, late))
    assert by_spot(found) == {("f",): (0.75, 0), ("g",): (0.25, 1)}


def test_what_cannot_be_compared_is_told() -> None:
    with pytest.raises(NotRecordedError, match="have no event in common: cycles against clock"):
        compare(plain(made(SAME), made(SAME, event="clock")))
    bare = made(SAME)
    bare.events[0].branch_select = None
    with pytest.raises(NotRecordedError, match="no branch stacks"):
        compare(plain(made(SAME), bare), "edge")
    with pytest.raises(ValueError, match="by = 'line'"):
        compare(plain(bare, bare), "line")  # type: ignore[arg-type]
    nothing = compare(plain(made(SAME), made([])))
    assert not nothing.significant().any()


def test_every_pair_of_two_real_recordings_can_be_compared(data: Data, symfs: Callable[[str], Path]) -> None:
    names = ("demo_pie", "demo_hwidx", "demo_2proc")
    namers = []
    for name in names:
        profile = lastbranch.open(data.path(name), symfs=str(symfs("demo_pie")))
        namers.append(named(profile, NmSymbols(profile)))
    for pair in combinations(namers, 2):
        found = compare(pair)
        assert found.share.sum(axis=1) == pytest.approx([1, 1])
        assert found.samples.sum(axis=1).tolist() == [namer.profile.samples for namer in pair]


# -- the command line


def test_the_verb(data: Data, run: Callable[..., Ran], tmp_path: Path) -> None:
    before, quick = data.path("demo_pie"), ("--no-symbol-cache", "--symbol-backend", "tables")
    ran = run("diff", before, before, "--format", "json", "--fail-over", "0", *quick)
    found = json.loads(ran.out)
    assert ran.code == 0
    assert all(row["change"] == 0 and not row["significant"] for row in found)
    assert ran.err.startswith("note: 0 of ")
    ran = run("diff", before, before, "--by", "edge", "--limit", "3", *quick)
    assert [ran.code, len(ran.out.splitlines())] == [0, 4]
    assert run("diff", before, tmp_path / "nothing").code == 3


def test_a_true_change_ends_with_its_own_exit_code(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    grown = [loop(0x400010, 0x400010, 0x400018)] * 5 + [loop(0x400110, 0x400110, 0x400120)] * 35
    profiles = iter([made(SAME), made(grown)] * 2)
    monkeypatch.setattr("lastbranch.cli.options.Capture.open", lambda _self: next(profiles))
    ran = run("diff", "a", "b", "--by", "edge", "--fail-over", "60", "--no-symbol-cache")
    assert ran.code == 6
    assert "1 share grew significantly by more than 60 points" in ran.err
    assert run("diff", "a", "b", "--by", "edge", "--fail-over", "63", "--no-symbol-cache").code == 0


def test_code_without_a_function_is_called_after_its_module() -> None:
    """As in `report`."""
    assert [CodeLocation(module, "").called for module in ("gzip", "[vdso]", "")] == ["[gzip]", "[vdso]", "[unknown]"]
    assert CodeLocation("gzip", "", "0x401136").called == "0x401136"
