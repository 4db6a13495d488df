"""--event: perf's syntax against the words that perf itself would put into the attribute."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fake_kernel as fake
from fake_kernel import FakeKernel, Machine, cpu_pmu
from lastbranch.capture.perf_events.event_names import Pmu, parse_event, read_pmus
from lastbranch.capture.procfs import cpu_list
from lastbranch.errors import SelectionError


def parsed(text: str, machine: Machine = fake.SKYLAKE) -> list[tuple[object, ...]]:
    """(name, type, config, config1, excluded, precise) of each choice."""
    found = parse_event(text, read_pmus(FakeKernel(machine)))
    return [(c.name, c.type, c.config, c.config1, "".join(sorted(e[8] for e in c.exclude)), c.precise) for c in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cycles", ("cycles", 0, 0, 0, "", 0)),
        ("branch-instructions:u", ("branch-instructions", 0, 4, 0, "hk", 0)),
        ("cpu-clock:k", ("cpu-clock", 1, 0, 0, "hu", 0)),
        ("page-faults:uk", ("page-faults", 1, 2, 0, "h", 0)),
        ("r20c4", ("r20c4", 4, 0x20C4, 0, "", 0)),
        ("r20C4:upp", ("r20C4", 4, 0x20C4, 0, "hk", 2)),
        ("cycles:P", ("cycles", 0, 0, 0, "", None)),
        ("cpu/event=0xc4,umask=0x20/", ("cpu/event=0xc4,umask=0x20/", 4, 0x20C4, 0, "", 0)),
        ("cpu/event=0xc4,umask=0x20,name=taken/ppp", ("taken", 4, 0x20C4, 0, "", 3)),
        ("cpu/event=196,umask=32/:u", ("cpu/event=196,umask=32/", 4, 0x20C4, 0, "hk", 0)),
        ("cpu/slots/", ("cpu/slots/", 4, 0x400, 0, "", 0)),
        ("slots", ("slots", 4, 0x400, 0, "", 0)),
        ("cpu/event=0xcd,umask=1,ldlat=30/", ("cpu/event=0xcd,umask=1,ldlat=30/", 4, 0x1CD, 30, "", 0)),
        ("cpu/event=1,inv/", ("cpu/event=1,inv/", 4, 0x800001, 0, "", 0)),
        ("cpu/wide=0xab/", ("cpu/wide=0xab/", 4, 0xA_0000_000B, 0, "", 0)),
        ("cpu/config=0x20c4,config1=7/", ("cpu/config=0x20c4,config1=7/", 4, 0x20C4, 7, "", 0)),
    ],
)
def test_words_of_an_event(text: str, expected: tuple[object, ...]) -> None:
    assert parsed(text) == [expected]


def test_guest_and_host_modifiers_exclude_each_other() -> None:
    pmus = read_pmus(FakeKernel(fake.SKYLAKE))
    assert parse_event("cycles:G", pmus)[0].exclude == {"exclude_host"}
    assert parse_event("cycles:H", pmus)[0].exclude == {"exclude_guest"}
    assert parse_event("cycles:GH", pmus)[0].exclude == frozenset()


def test_period_and_frequency_may_stand_among_the_terms() -> None:
    pmus = read_pmus(FakeKernel(fake.SKYLAKE))
    (choice,) = parse_event("cpu/event=0xc4,period=5003/", pmus)
    assert (choice.config, choice.period, choice.frequency) == (0xC4, 5003, None)
    assert parse_event("cpu/event=0xc4,freq=99/", pmus)[0].frequency == 99


def test_a_hybrid_processor_has_one_choice_for_each_kind_of_core() -> None:
    assert parsed("cycles", fake.ALDER_LAKE) == [
        ("cpu_atom/cycles/", 0, 10 << 32, 0, "", 0),
        ("cpu_core/cycles/", 0, 4 << 32, 0, "", 0),
    ]
    assert parsed("r20c4:u", fake.ALDER_LAKE) == [
        ("cpu_atom/r20c4/", 10, 0x20C4, 0, "hk", 0),
        ("cpu_core/r20c4/", 4, 0x20C4, 0, "hk", 0),
    ]
    assert parsed("cpu_atom/event=0xc4,umask=0xc0/", fake.ALDER_LAKE)[0][1:3] == (10, 0xC0C4)
    assert [row[1] for row in parsed("cpu/event=0xc4/", fake.ALDER_LAKE)] == [10, 4]
    assert [row[0] for row in parsed("slots", fake.ALDER_LAKE)] == ["cpu_atom/slots/", "cpu_core/slots/"]


def test_cores_that_are_all_offline_are_no_source() -> None:
    offline = {**fake.ALDER_LAKE.pmus, "cpu_atom": {**fake.ALDER_LAKE.pmus["cpu_atom"], "cpus": ""}}
    assert [row[:3] for row in parsed("r20c4", replace(fake.ALDER_LAKE, pmus=offline))] == [("r20c4", 4, 0x20C4)]


def test_names_of_other_machines_are_found_in_their_folders() -> None:
    assert parsed("branch-brs", fake.ZEN3) == [("branch-brs", 4, 0xC4, 0, "", 0)]
    assert parsed("br_retired:u", fake.ARM) == [("br_retired", 8, 0x21, 0, "hk", 0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "no event 'nonsense'"),
        ("r20c4:z", "modifier 'z'"),
        ("cycles:pppp", "modifier 'pppp'"),
        ("cpu/event=0xc4", "do not end with a slash"),
        ("cpu/event=0x1c4/", "does not fit its bits"),
        ("cpu/frobnicate=1/", "no term 'frobnicate'"),
        ("cpu/event=x/", "'x' is not a number"),
        ("gpu/event=1/", "no PMU 'gpu'"),
        ("cycles,instructions", "more than one event"),
        ("{cycles,instructions}", "groups of events"),
        ("", "no event ''"),
        ("r12345678901234567", "no event"),
    ],
)
def test_what_is_not_understood_is_named(text: str, said: str) -> None:
    with pytest.raises(SelectionError, match=said):
        parsed(text)


def test_generic_names_need_no_counters_to_be_understood() -> None:
    assert parsed("cycles", fake.VM) == [("cycles", 0, 0, 0, "", 0)]


@given(st.integers(0, 255), st.lists(st.tuples(st.integers(0, 59), st.integers(1, 4)), min_size=1, max_size=4))
def test_a_value_is_spread_over_the_bits_of_its_format(value: int, places: list[tuple[int, int]]) -> None:
    text = "config:" + ",".join(f"{low}-{low + width - 1}" if width > 1 else str(low) for low, width in places)
    pmu = Pmu("cpu", 4, {"term": text}, {}, {})
    bits = [low + i for low, width in places for i in range(width)]
    if value >> len(bits):
        with pytest.raises(SelectionError, match="does not fit"):
            pmu.encode("term", value)
        return
    expected = 0
    for i, bit in enumerate(bits):  # overlapping places hold the or of both
        expected |= (value >> i & 1) << bit
    assert pmu.encode("term", value)["config"] == expected


def test_lists_of_processors() -> None:
    assert cpu_list("0-3,8,10-11") == (0, 1, 2, 3, 8, 10, 11)
    assert cpu_list("") == ()


def test_files_that_only_say_how_to_read_an_event_are_no_events() -> None:
    (pmu,) = (p for p in read_pmus(FakeKernel(Machine(pmus={"cpu": cpu_pmu()}))).values() if p.core)
    assert sorted(pmu.events) == ["branch-instructions", "cpu-cycles", "slots"]
