"""profile.proto, decoded by what the published file declares: the stacks, sums and identities of the capture."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captures import REAL, Data
from lastbranch.export import pprof
from lastbranch.export.pprof import Message
from proto_profile import SCHEMA, fields, packed, read
from stack_truth import STACKED, Stacks, symfs_of, truth, two_threads


def labels(found: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    texts = found["string_table"]
    return {texts[label["key"]]: texts[label["str"]] if label["str"] else label["num"] for label in sample["label"]}


def stacks_of(found: dict[str, Any], column: int = 0) -> Stacks:
    """Process and functions, root first; code without a name by its module."""
    texts, tables, out = found["string_table"], found["tables"], Stacks()
    for sample in found["sample"]:
        names: list[str] = []
        for number in sample["location_id"]:
            location = tables["location"][number]
            lines = [texts[tables["function"][line["function_id"]]["name"]] for line in location["line"]]
            module = tables["mapping"].get(location["mapping_id"])
            path = texts[module["filename"]] if module else "unknown"
            names += lines or [f"[{path.rpartition('/')[2].strip('[]')}]"]
        if names:
            out[(labels(found, sample)["process"], *reversed(names))] += sample["value"][column]
    return out


@pytest.mark.parametrize("name", STACKED)
def test_stacks_threads_and_sums_are_those_of_the_capture(run, data: Data, symfs, tmp_path: Path, name: str) -> None:
    words = symfs_of(name, symfs)
    done = run("export", "--to", "pprof", "--no-symbol-cache", *words, "-o", tmp_path / "x", data.path(name))
    assert done.code == 0, done.err
    found, expected = read(tmp_path / "x"), truth(data.path(name), words[1] if words else None)
    texts = found["string_table"]
    assert stacks_of(found) == expected.stacks
    (event,) = expected.samples
    assert [texts[t["type"]] for t in found["sample_type"]] == [f"{event}_samples", event]
    sums = [sum(s["value"][i] for s in found["sample"]) for i in range(2)]
    assert sums == [expected.samples[event], expected.period[event]]
    threads = Counter[tuple[int, int]]()
    for sample in found["sample"]:
        known = labels(found, sample)
        threads[known["pid"], known["tid"]] += sample["value"][0]
    assert threads == expected.threads
    ids = {m.name: m.build_id.hex() for m in expected.profile.modules}
    assert found["mapping"]
    for mapping in found["mapping"]:
        assert texts[mapping["build_id"]] == ids[texts[mapping["filename"]]]
    span = (expected.profile.last_time or 0) - (expected.profile.first_time or 0)
    assert found["duration_nanos"] == expected.profile.clock.to_ns(span)
    if words:
        assert texts[found["mapping"][0]["filename"]] == "/opt/lbrdemo/lbrdemo"
        assert any(len(location["line"]) > 1 for location in found["location"])
        assert any(line["line"] for location in found["location"] for line in location["line"])


@pytest.mark.parametrize("name", [n for n in REAL if n not in STACKED])
def test_what_has_no_call_stacks_has_stacks_of_one_frame(run, data: Data, tmp_path: Path, name: str) -> None:
    done = run("export", "--to", "pprof", "--no-symbol-cache", "-o", tmp_path / "x", data.path(name))
    assert done.code == 0, done.err
    found = read(tmp_path / "x")
    rows = csv.DictReader(run("report", "--format", "csv", "--by", "process", data.path(name)).out.splitlines())
    assert sum(sum(s["value"][0::2]) for s in found["sample"]) == sum(int(row["samples"]) for row in rows) > 0
    assert "stacks: " in done.err


def test_events_have_columns_of_their_own(run, tmp_path: Path) -> None:
    done = run("export", "--to", "pprof", "--no-symbol-cache", "-o", tmp_path / "x", two_threads(tmp_path / "x.data"))
    assert done.code == 0, done.err
    found, expected = read(tmp_path / "x"), truth(tmp_path / "x.data")
    texts = found["string_table"]
    types = [texts[t["type"]] for t in found["sample_type"]]
    assert len(types) == 4
    for i, kind in enumerate(types):
        counter = expected.samples if kind.endswith("_samples") else expected.period
        assert sum(s["value"][i] for s in found["sample"]) == counter[kind.removesuffix("_samples")] > 0
    both = stacks_of(found) + stacks_of(found, 2)
    assert both == expected.stacks
    assert {labels(found, s)["process"] for s in found["sample"]} == {'m"\\x1b;ain'}
    assert {labels(found, s)["thread"] for s in found["sample"]} == {'m"\\x1b;ain', "worker"}
    assert "/opt/a b/p\\xffrog" in texts


def test_filters_hold_and_nothing_is_said_so(run, data: Data, tmp_path: Path) -> None:
    path = two_threads(tmp_path / "x.data")
    assert run("export", "--to", "pprof", "--tid", "8", "--no-symbol-cache", "-o", tmp_path / "x", path).code == 0
    assert {labels(found, s)["tid"] for found in [read(tmp_path / "x")] for s in found["sample"]} == {8}
    done = run("export", "--to", "pprof", "--tid", "9", "--no-symbol-cache", "--force", "-o", tmp_path / "x", path)
    assert done.code == 0
    assert "nothing passes the filters" in done.err
    assert read(tmp_path / "x")["sample"] == []


def test_the_same_capture_makes_the_same_bytes(run, tmp_path: Path) -> None:
    path = two_threads(tmp_path / "x.data")
    made = [run("export", "--to", "pprof", "--no-symbol-cache", path).raw for _ in range(2)]
    assert made[0] == made[1] != b""


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.lists(st.integers(0, (1 << 64) - 1)), st.text())
def test_messages_decode_to_what_went_in(number: int, numbers: list[int], text: str) -> None:
    both = Message(number=(15, "int"), numbers=(16, "ints"), text=(2047, "text"), inner=(1, "message"))
    made = both(number=number, numbers=numbers, text=text, inner=both(number=1))
    found = dict(fields(made))
    assert found.get(15, 0) == number & (1 << 64) - 1
    assert packed(found.get(16, b"")) == numbers  # type: ignore[arg-type]
    assert found[2047] == text.encode()
    assert list(fields(found[1])) == [(15, 1)]  # type: ignore[arg-type]


def test_every_field_has_the_published_number() -> None:
    for kind in ("ValueType", "Sample", "Label", "Mapping", "Location", "Line", "Function", "Profile"):
        name = {"ValueType": "VALUE_TYPE"}.get(kind, kind.upper())
        ours = {field: number for field, (number, _) in getattr(pprof, name)._fields.items()}
        assert ours.items() <= {field: number for number, (field, _) in SCHEMA[kind].items()}.items()
