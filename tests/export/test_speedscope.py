"""speedscope files: the published format, and the stacks, threads and sums of the capture in time order."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfdata_writer as pw
from captures import Data
from json_shapes import check
from lastbranch.export import stack_pass as spool_module
from lastbranch.export.stack_pass import ROW, RowSpool
from stack_truth import OTHERS, Stacks, symfs_of, truth, two_threads

UNITS = ("none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes")
FILE = {
    "$schema": "https://www.speedscope.app/file-format-schema.json",
    "shared": {"frames": [{"name": str, "file?": str, "line?": float, "col?": float}]},
    "profiles": [
        {
            "type": "sampled", "name": str, "unit": UNITS, "startValue": float, "endValue": float,
            "samples": [[int]], "weights": [float],
        }
    ],
    "name?": str, "activeProfileIndex?": int, "exporter?": str,
}  # fmt: skip
"""``FileFormat.File`` with sampled profiles: src/lib/file-format-spec.ts (github.com/jlfwong/speedscope)."""


def read(text: str | bytes) -> dict[str, Any]:
    """A file that has been checked against `FILE` and the rules in the comments of that specification."""
    found: dict[str, Any] = json.loads(text)
    check(found, FILE)
    frames = found["shared"]["frames"]
    assert len({json.dumps(f) for f in frames}) == len(frames)
    for profile in found["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"]) > 0
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        assert all(0 <= f < len(frames) for stack in profile["samples"] for f in stack)
    return found


@pytest.mark.parametrize("name", ["snb_callchain_and_branch-3.4", "demo_2proc"])
def test_stacks_and_threads_are_those_of_the_capture(run, data: Data, symfs, name: str) -> None:
    words = symfs_of(name, symfs)
    done = run("export", "--to", "speedscope", "--no-symbol-cache", *words, data.path(name))
    assert done.code == 0, done.err
    found, expected = read(done.out), truth(data.path(name), words[1] if words else None)
    names = [f["name"] for f in found["shared"]["frames"]]
    stacks, threads = Stacks(), Counter[tuple[int, int]]()
    for profile in found["profiles"]:
        process, _, rest = profile["name"].partition(" (pid ")
        pid, _, tid = rest.partition(") / ")
        threads[int(pid), int(tid.rpartition(" (tid ")[2].rstrip(")"))] += sum(profile["weights"])
        for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
            if stack:
                stacks[(process, *(names[f] for f in stack))] += weight
    assert stacks == expected.stacks
    assert threads == expected.threads
    if words:
        assert any(f.get("line") and f.get("file") for f in found["shared"]["frames"])


def test_samples_of_a_thread_and_event_are_in_time_order(run, tmp_path: Path) -> None:
    """Records stand backwards in this file."""
    found = read(run("export", "--to", "speedscope", "--no-symbol-cache", two_threads(tmp_path / "x.data")).out)
    assert [p["name"].rpartition(": ")[0] for p in found["profiles"]] == [
        'm"\\x1b;ain (pid 7) / m"\\x1b;ain (tid 7)'
    ] * 2 + ['m"\\x1b;ain (pid 7) / worker (tid 8)'] * 2
    depths = [[len(stack) for stack in p["samples"]] for p in found["profiles"]]
    assert depths == [[2, 1], [3], [1, 2], [3]]


def test_a_sample_without_an_address_has_the_empty_stack(run, tmp_path: Path) -> None:
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    for ip in (0x1000, 0, 0x2000):
        b.sample(ip=ip, pid=7, time=1)
    (tmp_path / "x.data").write_bytes(b.build())
    (profile,) = read(run("export", "--to", "speedscope", tmp_path / "x.data").out)["profiles"]
    assert profile["samples"] == [[0], [], [0]]


@pytest.mark.parametrize("name", OTHERS)
def test_every_capture_has_its_samples(run, data: Data, name: str) -> None:
    found = read(run("export", "--to", "speedscope", "--no-symbol-cache", data.path(name)).out)
    info = json.loads(run("info", "--format", "json", data.path(name)).out)
    assert sum(len(p["samples"]) for p in found["profiles"]) == info["samples"] > 0


@given(st.lists(st.lists(st.integers(0, 4), max_size=20), max_size=20), st.integers(0, 30))
def test_a_spool_gives_each_lane_what_was_added(lanes: list[list[int]], waiting: int) -> None:
    import numpy as np

    expected: dict[int, list[int]] = {}
    with pytest.MonkeyPatch.context() as patch, RowSpool() as spool:
        patch.setattr(spool_module, "_WAITING", waiting)
        number = 0
        for piece in lanes:
            rows = np.zeros(len(piece), ROW)
            rows["lane"] = piece
            rows["time"] = np.arange(number, number + len(piece))
            for lane in piece:
                expected.setdefault(lane, []).append(number)
                number += 1
            spool.add(rows)
        assert spool.lanes() == sorted(expected)
        for lane, times in expected.items():
            assert [t for rows in spool.of(lane) for t in rows["time"].tolist()] == times
        assert list(spool.of(9)) == []
