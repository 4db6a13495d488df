"""Firefox Profiler files: the published types at their version, and the stacks, times and identities of the capture."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from captures import Data
from json_shapes import check
from stack_truth import OTHERS, Stacks, symfs_of, truth, two_threads

NUMBER, TEXT = (None, int), (None, str)
TABLES = {
    "stackTable": {"frame": [int], "prefixOffset": [int]},
    "frameTable": {
        "address": [int], "lib": [int], "inlineDepth": [int], "category": [NUMBER], "subcategory": [NUMBER],
        "func": [int], "nativeSymbol": [NUMBER], "innerWindowID": [NUMBER], "line": [NUMBER], "column": [NUMBER],
        "originalLocation": [NUMBER],
    },
    "funcTable": {
        "name": [int], "isJS": [bool], "relevantForJS": [bool], "resource": [int], "source": [NUMBER],
        "lineNumber": [NUMBER], "columnNumber": [NUMBER], "originalLocation": [NUMBER],
    },
    "nativeSymbols": {"libIndex": [int], "address": [int], "name": [int], "functionSize": [NUMBER]},
    "resourceTable": {"name": [int], "host": [NUMBER], "type": [int]},
    "sources": {
        "id": [TEXT], "filename": [int], "startLine": [int], "startColumn": [int], "sourceMapURL": [NUMBER],
        "content": [TEXT],
    },
    "sourceLocationTable": {"source": [int], "line": [int], "column": [int]},
}  # fmt: skip
COLORS = ("transparent", "purple", "green", "orange", "yellow", "lightblue", "blue", "brown", "magenta", "red",
          "lightred", "darkgrey", "grey")  # fmt: skip
PROFILE = {
    "meta": {
        "interval": float, "startTime": float, "endTime?": float, "processType": int, "product": str,
        "stackwalk": (0, 1), "debug?": bool, "version": int, "preprocessedProfileVersion": 70, "abi?": str,
        "oscpu?": str, "mainMemory?": int, "logicalCPUs?": int, "CPUName?": str, "symbolicated?": bool,
        "importedFrom?": str, "markerSchema": [{}], "usesOnlyOneStackType?": bool,
        "sourceCodeIsNotOnSearchfox?": bool,
        "categories?": [{"name": str, "color": COLORS, "subcategories": [str]}],
    },
    "libs": [
        {
            "arch": str, "name": str, "path": str, "debugName": str, "debugPath": str, "breakpadId": str,
            "codeId": TEXT,
        }
    ],
    "shared": {"stringArray": [str], **{name: {"length": int, **columns} for name, columns in TABLES.items()}},
    "threads": [
        {
            "processType": str, "processStartupTime": float, "processShutdownTime": (None, float),
            "registerTime": float, "unregisterTime": (None, float), "pausedRanges": [{}], "name": str,
            "isMainThread": bool, "processName?": str, "pid": str, "tid": (int, str),
            "samples": {
                "stack": [NUMBER], "time": [float], "weight": (None, [float]),
                "weightType": ("samples", "tracing-ms", "bytes"), "length": int,
            },
            "markers": {
                "data": [{}], "name": [int], "startTime": [(None, float)], "endTime": [(None, float)],
                "phase": [int], "category": [int], "length": int,
            },
        }
    ],
}  # fmt: skip
"""``Profile`` of src/types/profile.ts (github.com/firefox-devtools/profiler), the fields that are not of browsers."""

ROWS_OF = {
    ("stackTable", "frame"): "frameTable", ("frameTable", "func"): "funcTable",
    ("frameTable", "nativeSymbol"): "nativeSymbols", ("funcTable", "resource"): "resourceTable",
    ("funcTable", "source"): "sources",
}  # fmt: skip


def read(text: str | bytes) -> dict[str, Any]:
    """A profile that has been checked against `PROFILE`, with all references in range."""
    found: dict[str, Any] = json.loads(text)
    check(found, PROFILE)
    shared, libs = found["shared"], found["libs"]
    lengths = {name: shared[name]["length"] for name in TABLES}
    for name, columns in TABLES.items():
        assert {len(shared[name][column]) for column in columns} == {lengths[name]}, name
    for (table, column), other in ROWS_OF.items():
        assert all(row is None or -1 <= row < lengths[other] for row in shared[table][column]), (table, column)
    for column in (shared["frameTable"]["lib"], shared["nativeSymbols"]["libIndex"]):
        assert all(-1 <= lib < len(libs) for lib in column)
    for table, column in (("funcTable", "name"), ("nativeSymbols", "name"), ("resourceTable", "name")):
        assert all(0 <= row < len(shared["stringArray"]) for row in shared[table][column])
    assert all(0 <= offset <= i for i, offset in enumerate(shared["stackTable"]["prefixOffset"]))
    assert any(category["color"] == "grey" for category in found["meta"]["categories"])
    for thread in found["threads"]:
        samples = thread["samples"]
        assert len(samples["stack"]) == len(samples["time"]) == samples["length"] > 0
        assert samples["time"] == sorted(samples["time"])
        assert all(row is None or 0 <= row < lengths["stackTable"] for row in samples["stack"])
    ids = [(thread["pid"], thread["tid"]) for thread in found["threads"]]
    assert len(set(ids)) == len(ids)
    return found


def frames_of(found: dict[str, Any], stack: int | None) -> list[int]:
    """Rows of the frame table, root first."""
    table, out = found["shared"]["stackTable"], []
    while stack is not None:
        out.append(table["frame"][stack])
        stack = stack - table["prefixOffset"][stack] if table["prefixOffset"][stack] else None
    return out[::-1]


def name_of(found: dict[str, Any], frame: int) -> str:
    shared = found["shared"]
    name: str = shared["stringArray"][shared["funcTable"]["name"][shared["frameTable"]["func"][frame]]]
    return name


def check_inlining(found: dict[str, Any]) -> None:
    """Inlined frames follow the one that they are in, at the same place."""
    table = found["shared"]["frameTable"]
    assert max(table["inlineDepth"]) > 0
    for stack in {stack for thread in found["threads"] for stack in thread["samples"]["stack"]}:
        before, last = (-1, -1), 0
        for frame in frames_of(found, stack):
            depth, place = table["inlineDepth"][frame], (table["lib"][frame], table["address"][frame])
            assert depth == 0 or (place == before and depth == last + 1)
            before, last = place, depth


@pytest.mark.parametrize("name", ["snb_callchain_and_branch-3.4", "demo_2proc"])
def test_stacks_threads_and_libraries_are_those_of_the_capture(run, data: Data, symfs, name: str) -> None:
    words = symfs_of(name, symfs)
    done = run("export", "--to", "firefox", "--no-symbol-cache", *words, data.path(name))
    assert done.code == 0, done.err
    found, expected = read(done.out), truth(data.path(name), words[1] if words else None)
    stacks, threads = Stacks(), Counter[tuple[int, int]]()
    for thread in found["threads"]:
        threads[int(thread["pid"]), int(thread["tid"])] += thread["samples"]["length"]
        for stack in thread["samples"]["stack"]:
            frames = frames_of(found, stack)
            if frames:
                stacks[(thread["processName"], *(name_of(found, f) for f in frames))] += 1
    assert stacks == expected.stacks
    assert threads == expected.threads
    known = {m.name: m.build_id.hex() for m in expected.profile.modules}
    assert all((lib["codeId"] or "") == known[lib["path"]] for lib in found["libs"])
    table = found["shared"]["frameTable"]
    if words:
        check_inlining(found)
        assert {"/opt/lbrdemo/lbrdemo", "/opt/lbrdemo/liblbrdemo.so"} <= {lib["path"] for lib in found["libs"]}
    for depth, address, symbol, lib in zip(
        *(table[c] for c in ("inlineDepth", "address", "nativeSymbol", "lib")), strict=True
    ):
        assert depth == 0 or symbol is not None
        if symbol is not None:
            symbols = found["shared"]["nativeSymbols"]
            size = symbols["functionSize"][symbol]
            assert symbols["libIndex"][symbol] == lib
            assert 0 <= address - symbols["address"][symbol] < (size or 1 << 64)


def test_times_events_and_threads(run, tmp_path: Path) -> None:
    found = read(run("export", "--to", "firefox", "--no-symbol-cache", two_threads(tmp_path / "x.data")).out)
    known = {(t["name"].rpartition(": ")[2], t["tid"]): t for t in found["threads"]}
    assert known["cycles", "7-0"]["samples"]["time"] == [1.5, 3.5]  # the first event of the capture is at 1 ms
    assert known["cycles", "8-0"]["samples"]["time"] == [2.0, 3.0]
    assert known["instructions", "7-1"]["samples"]["time"] == [2.5]
    assert [t["isMainThread"] for t in found["threads"]] == [True, False, False, False]
    assert {t["pid"] for t in found["threads"]} == {"7"}
    table = found["shared"]["frameTable"]
    names = [found["meta"]["categories"][c]["name"] for c in table["category"]]
    assert {(names[f], table["lib"][f] >= 0) for f in range(table["length"])} == {("Kernel", False), ("User", True)}


@pytest.mark.parametrize("name", OTHERS)
def test_every_capture_has_its_samples(run, data: Data, name: str) -> None:
    found = read(run("export", "--to", "firefox", "--no-symbol-cache", data.path(name)).out)
    info = json.loads(run("info", "--format", "json", data.path(name)).out)
    assert sum(t["samples"]["length"] for t in found["threads"]) == info["samples"] > 0
