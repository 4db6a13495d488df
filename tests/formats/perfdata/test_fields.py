"""Every field of every sample, and every record beside them, against the independent reader of the tests."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import perfdata_writer as pw
from any_perfdata import SIZES, captures, sample_values
from captures import FORMS, REAL, SYNTHETIC, Data
from lastbranch.formats.perfdata.reader import read_perfdata
from lastbranch.model import (
    COLUMNS,
    MAX_ENTRIES,
    MAX_SAMPLES,
    REQUIRED,
    BytesSource,
    Profile,
    SampleBatch,
    column,
)
from perfdata_writer import Attr, Builder, Capture

WORDS = {  # column -> (bit of sample_type, field of the witness)
    "addr": (pw.ADDR, "addr"), "stream_id": (pw.STREAM_ID, "stream_id"), "data_src": (pw.DATA_SRC, "data_src"),
    "weight": (pw.WEIGHT | pw.WEIGHT_STRUCT, "weight"), "transaction": (pw.TRANSACTION, "transaction"),
    "phys_addr": (pw.PHYS_ADDR, "phys_addr"), "cgroup": (pw.CGROUP, "cgroup"),
    "data_page_size": (pw.DATA_PAGE_SIZE, "data_page_size"), "code_page_size": (pw.CODE_PAGE_SIZE, "code_page_size"),
    "user_regs_abi": (pw.REGS_USER, "regs_user_abi"), "intr_regs_abi": (pw.REGS_INTR, "regs_intr_abi"),
}  # fmt: skip
BYTES = {"raw": pw.RAW, "aux": pw.AUX, "user_stack": pw.STACK_USER}
REGISTERS = {"user_reg": (pw.REGS_USER, "regs_user"), "intr_reg": (pw.REGS_INTR, "regs_intr")}
ALWAYS = {c.name for c in REQUIRED}


def expected_sample(attr: Attr, event: int, f: dict[str, Any], misc: int) -> dict[str, Any]:
    """What the columns must hold of one sample: a number, or a list for a ragged one."""
    kinds, form = attr["sample_type"], attr["read_format"]
    out: dict[str, Any] = {n: f.get(n, 0) for n in ("ip", "period")}
    out |= {n: f.get(n, -1) for n in ("pid", "tid", "cpu")}
    out |= {"event": event, "mode": misc & 7}
    if kinds & pw.TIME:
        out["time"] = f["time"]
    if kinds & (pw.ID | pw.IDENTIFIER):
        out["id"] = f["identifier"] if kinds & pw.IDENTIFIER else f["id"]
    out |= {name: f[key] for name, (bit, key) in WORDS.items() if kinds & bit}
    out |= {name: list(f["stack" if name == "user_stack" else name]) for name, bit in BYTES.items() if kinds & bit}
    out |= {name: f[key] for name, (bit, key) in REGISTERS.items() if kinds & bit}
    if kinds & pw.STACK_USER:
        out["user_stack_size"] = (f["stack_dyn_size"] or [0])[0]
    if kinds & pw.READ:
        values = f["read_values"] if form & pw.FORMAT_GROUP else [f]
        out["read_value"] = [v["value"] for v in values]
        for bit, name in ((pw.FORMAT_ID, "read_id"), (pw.FORMAT_LOST, "read_lost")):
            if form & bit:
                out[name] = [v[name] for v in values]
        for bit, name in ((pw.FORMAT_ENABLED, "time_enabled"), (pw.FORMAT_RUNNING, "time_running")):
            if form & bit:
                out[name] = f[name]
    if kinds & pw.CALLCHAIN:
        out["frame"] = f["callchain"]
    if kinds & pw.BRANCH_STACK:
        for part in ("from", "to", "flags"):
            out[f"branch_{part}"] = [b[part] for b in f["branches"]]
        out |= {"hw_idx": f["hw_idx"]} if attr["branch_sample_type"] & pw.BRANCH_HW_INDEX else {}
        out |= {"branch_counters": f["counters"]} if attr["branch_sample_type"] & pw.BRANCH_COUNTERS else {}
    return out


def expected_of(capture: Capture) -> list[tuple[int, dict[str, Any]]]:
    """(offset, columns) of each sample in file order."""
    out = []
    for record in capture.records:
        if record.type == 9:
            attr = pw.attr_of(capture.attrs, 9, record.body)
            event = next(i for i, a in enumerate(capture.attrs) if a is attr)
            fields = record.fields or pw.record_walk(capture.attrs, record)[0]
            out.append((record.offset, expected_sample(attr, event, fields, record.misc)))
    return out


def words(values: Iterable[int]) -> np.ndarray:
    """Any integers as 64-bit words, so that signs do not matter."""
    return np.array([v & (1 << 64) - 1 for v in values], np.uint64)


def compare(name: str, batches: list[SampleBatch], wanted: list[Any]) -> None:
    declared = column(name)
    got = np.concatenate([b[name] for b in batches])
    assert got.dtype == declared.dtype, name
    if declared.group != "sample":
        lengths = np.concatenate([np.diff(b.offsets[declared.group]) for b in batches])
        assert lengths.tolist() == [len(v) for v in wanted], f"lengths of {name}"
        assert [int(b.offsets[declared.group][-1]) for b in batches] == [len(b[name]) for b in batches]
        wanted = [v for values in wanted for v in values]
    assert np.array_equal(got.astype(np.int64).view(np.uint64), words(wanted)), name


def check(profile: Profile, expected: list[tuple[int, dict[str, Any]]], *, positions: bool) -> None:
    """Streams hold exactly ``expected``: no sample, column or value more or less."""
    assert profile.damage == []
    assert profile.samples == len(expected)
    seen = 0
    for stream in profile.streams:
        mine = [(at, s) for at, s in expected if s["event"] in stream.events]
        batches = list(stream.batches())
        seen += len(mine)
        assert stream.samples == len(mine) == sum(map(len, batches))
        if not mine:
            continue
        assert all(len(b) <= MAX_SAMPLES and b.entries <= MAX_ENTRIES for b in batches)
        present = set(mine[0][1]) | ALWAYS | {"position"}
        assert {frozenset(b.columns) for b in batches} == {frozenset(present)}
        assert set(stream.columns) == present
        for name in set(mine[0][1]):
            compare(name, batches, [s[name] for _, s in mine])
        position = np.concatenate([b["position"] for b in batches])
        assert (np.diff(position) > 0).all()
        if positions:
            assert position.tolist() == [at for at, _ in mine]
        if "time" not in mine[0][1]:
            assert np.array_equal(np.concatenate([b.time for b in batches]), position), "file order stands in for time"
        depths = [len(s.get("branch_from", ())) for _, s in mine]
        assert (stream.entries, stream.deepest) == (sum(depths), max(depths))
    assert seen == len(expected)


@pytest.mark.parametrize("name", [*REAL, *SYNTHETIC])
def test_real_captures_field_by_field(name: str, data: Data) -> None:
    raw = data.path(name).read_bytes()
    check(read_perfdata(BytesSource(raw)), expected_of(pw.parse(raw)), positions=True)


# -- captures of any shape


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(captures(), st.sampled_from(sorted(FORMS)), st.sampled_from([61, 997, 20011]))
def test_any_layout_in_any_form(builder: Builder, form: str, chunk: int) -> None:
    raw = builder.build(**FORMS[form], chunk=chunk)
    check(read_perfdata(BytesSource(raw)), expected_of(builder.capture), positions=False)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(captures(), st.sets(st.sampled_from([c.name for c in COLUMNS if c.optional])))
def test_only_the_wanted_columns(builder: Builder, wanted: set[str]) -> None:
    profile = read_perfdata(BytesSource(builder.build()))
    for stream in profile.streams:
        for whole, some in zip(stream.batches(), stream.batches(wanted), strict=True):
            assert set(some.columns) == ALWAYS | (wanted & set(whole.columns))
            for name, values in some.columns.items():
                assert np.array_equal(values, whole[name])
                group = column(name).group
                if group != "sample":
                    assert np.array_equal(some.offsets[group], whole.offsets[group])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(captures(), st.sampled_from(sorted(FORMS)))
def test_attributes_come_back_as_they_were_put_in(builder: Builder, form: str) -> None:
    profile = read_perfdata(BytesSource(builder.build(**FORMS[form])))
    for event, attr in zip(profile.events, builder.capture.attrs, strict=True):
        expected = {name: attr[name] for name in event.programming}
        assert event.programming == expected
        assert set(attr.fields) <= set(event.programming)
        assert event.ids == tuple(attr.ids)
        stacks = attr["sample_type"] & pw.BRANCH_STACK
        assert event.branch_select == (attr["branch_sample_type"] if stacks else None)
        assert event.has_callchain == bool(attr["sample_type"] & pw.CALLCHAIN)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("precise", range(4))
@pytest.mark.parametrize("frequency", [False, True])
def test_flags_of_an_attribute(big: bool, precise: int, frequency: bool) -> None:
    builder = Builder(flags=precise << 15 | frequency << 10 | 1 << 63, sample_period=77)
    (event,) = read_perfdata(BytesSource(builder.build(big=big))).events
    assert event.programming["flags"] == builder.capture.attrs[0]["flags"]
    assert (event.period, event.frequency) == ((0, 77) if frequency else (77, 0))


@pytest.fixture(scope="module")
def large() -> tuple[Capture, list[tuple[int, dict[str, Any]]]]:
    builder = Builder()
    for time in range(2 * MAX_SAMPLES + 5):
        builder.sample(ip=time, pid=1, time=time)
    for time in range(50):
        builder.sample(ip=time, pid=2, time=10_000 + time, branches=[(i, i + 1, 0) for i in range(2700)])
    return builder.capture, expected_of(builder.capture)


@pytest.mark.parametrize("form", ["file", "pipe zstd81"])
def test_batches_stay_small(form: str, large: tuple[Capture, list[tuple[int, dict[str, Any]]]]) -> None:
    capture, expected = large
    assert MAX_ENTRIES < 50 * 2700
    check(read_perfdata(BytesSource(pw.encode(capture, **FORMS[form]))), expected, positions=False)


def test_each_field_alone_and_both_weights_left_out() -> None:
    """One bit of sample_type at a time: no field can hide behind another's absence."""
    rng = random.Random(5)
    for bit in range(25):
        builder = Builder(
            sample_type=1 << bit,
            read_format=15,
            sample_regs_user=7,
            sample_regs_intr=9,
            branch_sample_type=pw.BRANCH_ANY | pw.BRANCH_HW_INDEX | pw.BRANCH_COUNTERS,
        )
        for _ in range(20):
            builder.sample(**sample_values(rng, builder.capture.attrs[0]))
        for form in FORMS.values():
            check(read_perfdata(BytesSource(builder.build(**form))), expected_of(builder.capture), positions=False)


@pytest.mark.parametrize("form", [f for f in FORMS if "pipe" in f])
def test_a_pipe_may_have_attributes_of_many_sizes(form: str) -> None:
    b = Builder(size=64, sample_type=pw.IP | pw.IDENTIFIER)
    for size in SIZES[1:]:
        b.attr(size=size, sample_type=pw.IP | pw.IDENTIFIER)
    for event in range(len(SIZES)):
        b.sample(event=event, ip=event)
    profile = read_perfdata(BytesSource(b.build(**FORMS[form])))
    check(profile, expected_of(b.capture), positions=False)
    assert [e.programming["size"] for e in profile.events] == list(SIZES)
