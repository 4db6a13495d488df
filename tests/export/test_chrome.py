"""Trace events: the published fields, and the same stacks in both of its forms as the capture has."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import perfdata_writer as pw
from captures import Data
from json_shapes import check
from lastbranch.lbr import PERF_SELECT
from lastbranch.model import Profile
from lastbranch.model.batch import concatenate
from stack_truth import OTHERS, Stacks, symfs_of, truth, two_threads

NAMED = {"ph": "M", "pid": int, "tid": int, "ts": 0, "name": ("process_name", "thread_name"), "args": {"name": str}}
V8 = {"ph": "P", "cat": str, "pid": int, "tid": int, "id": str, "ts": int}
FRAME = {"functionName": str, "url": str, "scriptId": int, "lineNumber": int, "columnNumber": int}
STARTED = {**V8, "name": "Profile", "args": {"data": {"startTime": int}}}
CHUNK = {
    **V8, "name": "ProfileChunk",
    "args": {
        "data": {
            "cpuProfile": {"nodes": [{"id": int, "callFrame": FRAME, "parent?": int}], "samples": [int]},
            "timeDeltas": [int],
        }
    },
}  # fmt: skip
SAMPLE = {"cpu": int, "pid": int, "tid": int, "ts": float, "name": str, "sf?": int, "weight": int}
"""Trace Event Format: metadata events, global samples, stack frames; V8's profile events as Perfetto's
src/trace_processor/importers/json reads them."""


def read(text: str | bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    assert list(found) == ["displayTimeUnit", "traceEvents", "stackFrames", "samples"]
    for event in found["traceEvents"]:
        check(event, (NAMED, STARTED, CHUNK))
    for number, frame in found["stackFrames"].items():
        check(frame, {"name": str, "category": str, "parent?": int})
        assert 0 < frame.get("parent", 0.5) < int(number)
    assert "0" not in found["stackFrames"]
    for sample in found["samples"]:
        check(sample, SAMPLE)
        assert "sf" not in sample or str(sample["sf"]) in found["stackFrames"]
    named = [(e["name"], e["pid"], e["tid"]) for e in found["traceEvents"] if e["ph"] == "M"]
    assert {("thread_name", s["pid"], s["tid"]) for s in found["samples"]} <= set(named)
    return found


def sampled(found: dict[str, Any]) -> tuple[Stacks, Counter[tuple[int, int, int]]]:
    """(stacks, samples with a stack by pid, tid and whole microsecond), from ``samples``."""
    processes = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"}
    stacks, times = Stacks(), Counter[tuple[int, int, int]]()
    for sample in found["samples"]:
        names, number = [], sample.get("sf", 0)
        while number:
            names.append(found["stackFrames"][str(number)]["name"])
            number = found["stackFrames"][str(number)].get("parent", 0)
        if names:
            stacks[(processes[sample["pid"]], *reversed(names))] += sample["weight"]
            times[sample["pid"], sample["tid"], int(sample["ts"])] += 1
    return stacks, times


def profiled(found: dict[str, Any]) -> tuple[Stacks, Counter[tuple[int, int, int]]]:
    """The same from V8's events: a node has to come before what refers to it."""
    processes = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"}
    stacks, times = Stacks(), Counter[tuple[int, int, int]]()
    clocks: dict[tuple[int, str], int] = {}
    paths: dict[tuple[int, str], dict[int, tuple[str, ...]]] = {}
    for event in found["traceEvents"]:
        session = event["pid"], event.get("id", "")
        if event["name"] == "Profile":
            assert session not in clocks
            clocks[session], paths[session] = event["args"]["data"]["startTime"], {}
        elif event["name"] == "ProfileChunk":
            data, known = event["args"]["data"], paths[session]
            for node in data["cpuProfile"]["nodes"]:
                assert node["id"] not in known
                above = known[node["parent"]] if "parent" in node else ()
                known[node["id"]] = (*above, node["callFrame"]["functionName"])
            for node, delta in zip(data["cpuProfile"]["samples"], data["timeDeltas"], strict=True):
                clocks[session] += delta
                stacks[(processes[event["pid"]], *known[node])] += 1
                times[event["pid"], event["tid"], clocks[session]] += 1
    return stacks, times


@pytest.mark.parametrize("name", ["cfl_9700_callgraph_lbr", "demo_2proc"])
def test_stacks_and_threads_are_those_of_the_capture(run, data: Data, symfs, name: str) -> None:
    words = symfs_of(name, symfs)
    done = run("export", "--to", "chrome", "--no-symbol-cache", *words, data.path(name))
    assert done.code == 0, done.err
    found, expected = read(done.out), truth(data.path(name), words[1] if words else None)
    assert sampled(found)[0] == expected.stacks
    assert profiled(found) == sampled(found)
    threads = Counter((s["pid"], s["tid"]) for s in found["samples"])
    assert threads == expected.threads


def test_chunks_bring_what_is_new(run, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastbranch.export.stack_pass._WAITING", 10)
    monkeypatch.setattr("lastbranch.model.batch.MAX_SAMPLES", 16)
    found = read(run("export", "--to", "chrome", "--no-symbol-cache", data.path("snb_callchain_and_branch-3.4")).out)
    assert sum(e["name"] == "ProfileChunk" for e in found["traceEvents"]) > 18
    assert profiled(found) == sampled(found)


def test_times_are_microseconds_since_the_first_event(run, tmp_path: Path) -> None:
    found = read(run("export", "--to", "chrome", "--no-symbol-cache", two_threads(tmp_path / "x.data")).out)
    times = sorted((s["tid"], s["ts"], s["name"]) for s in found["samples"])
    assert times == [
        (7, 1500.0, "cycles"),
        (7, 2500.0, "instructions"),
        (7, 3500.0, "cycles"),
        (8, 1000.0, "instructions"),
        (8, 2000.0, "cycles"),
        (8, 3000.0, "cycles"),
    ]
    assert profiled(found) == sampled(found)


@pytest.mark.parametrize("name", OTHERS)
def test_every_capture_has_its_samples(run, data: Data, name: str) -> None:
    found = read(run("export", "--to", "chrome", "--no-symbol-cache", data.path(name)).out)
    info = json.loads(run("info", "--format", "json", data.path(name)).out)
    assert len(found["samples"]) == info["samples"] > 0
    assert profiled(found) == sampled(found)


def test_a_thread_is_in_time_order_whatever_its_stacks_are_made_of(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event's branches have calls and returns, the other's do not: its samples are stacks of one frame. A batch
    may have both."""
    batches = Profile.batches
    monkeypatch.setattr(Profile, "batches", lambda *a, **k: iter([concatenate(list(batches(*a, **k)))]))
    base = pw.IP | pw.TID | pw.TIME | pw.ID | pw.BRANCH_STACK
    b = pw.Builder(sample_type=base)
    b.attr(sample_type=base, config=1, branch_sample_type=PERF_SELECT["COND"])
    b.comm(pid=7, tid=7, name="prog", time=0)
    for i in range(8):
        b.sample(ip=0x1000, pid=7, time=1000 * i, branches=[(0x2000, 0x1000, 0)], event=i % 2)
    (tmp_path / "x.data").write_bytes(b.build())
    found = read(run("export", "--to", "chrome", "--no-symbol-cache", tmp_path / "x.data").out)
    assert [s["ts"] for s in found["samples"]] == list(range(8))
    assert [s["name"] for s in found["samples"]] == ["cycles", "instructions"] * 4
    assert profiled(found) == sampled(found)
