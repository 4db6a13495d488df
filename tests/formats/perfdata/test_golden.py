"""Real captures against what perf 6.12 and an exact aggregation said of them (``golden/`` of the test data)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lastbranch
import perfdata_writer as pw
from captures import REAL, SYNTHETIC, Data
from command_line import Ran
from lastbranch.model import Change, ModuleKind, Profile

WITH_TEXT = (*REAL, *(name for name in SYNTHETIC if "/" not in name))


def stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def with_frames(text: str) -> list[tuple[list[str], str]]:
    """(frames, stack line) of each sample of a capture with call chains: a blank line, the frames, the stack."""
    out: list[tuple[list[str], str]] = []
    lines = iter(stripped(text))
    for blank in lines:
        assert blank == ""
        frames = []
        while (line := next(lines)).startswith("\t"):
            frames.append(line)
        out.append((frames, line))
    return out


@pytest.mark.parametrize("name", sorted(set(WITH_TEXT) - {"cfl_9700_callgraph_lbr"}))
def test_brstack_text_is_that_of_perf(name: str, data: Data, run: Callable[..., Ran]) -> None:
    ran = run("export", "--to", "brstack", data.path(name))
    assert (ran.code, ran.err) == (0, "")
    assert stripped(ran.out) == stripped(data.golden(name, "perf612-script-brstack.txt.gz"))


def test_brstack_text_but_for_what_perf_reads_out_of_bounds(data: Data, run: Callable[..., Ran]) -> None:
    """The one exception: in LBR call-stack mode perf takes a frame out of stacks of 0 entries, that is, of what
    follows them in memory. In this file the last frame of the 8 such samples is such a word."""
    name = "cfl_9700_callgraph_lbr"
    golden = data.golden(name, "perf612-script-brstack.txt.gz")
    expected = with_frames(golden)
    (batch,) = lastbranch.open(data.path(name)).batches()
    assert int((batch.depth == 0).sum()) == 8
    for depth, (frames, stack) in zip(batch.depth.tolist(), expected, strict=True):
        if depth == 0:
            assert stack == ""
            del frames[-1]
    ran = run("export", "--to", "brstack", data.path(name))
    assert ran.code == 0
    assert with_frames(ran.out) == expected


def test_perf_caps_call_chains_and_so_do_we(data: Data) -> None:
    """Two samples have longer chains than perf prints; that the text is equal is tested above."""
    name = "snb_callchain_and_branch-3.4"
    printed = [len(frames) for frames, _ in with_frames(data.golden(name, "perf612-script-brstack.txt.gz"))]
    recorded = np.concatenate([np.diff(b.offsets["frame"]) for b in lastbranch.open(data.path(name)).batches()])
    assert int((recorded > 127).sum()) == 2
    assert max(printed) <= 127


@pytest.mark.parametrize("name", SYNTHETIC)
def test_counts_are_the_exact_ones(
    name: str, data: Data, run: Callable[..., Ran], symfs: Callable[[str], Path]
) -> None:
    ran = run("export", "--to", "counts", "--symfs", symfs(name), data.path(name))
    assert ran.code == 0
    ours, truth = ran.out.splitlines(), data.golden(name, "truth.txt").splitlines()
    assert Counter(ours) == Counter(truth)
    numbers = [[int(w, 16) if i % 2 else w for i, w in enumerate(x.split()[1:4])] for x in ours if x[0] == "R"]
    assert ours == sorted(ours, key=lambda x: x[0] != "R"), "R lines first"
    keys = [(m, s) for m, s, _ in numbers]
    assert keys == sorted(keys), "by module and numeric address"


def columns(profile: Profile, *names: str) -> list[np.ndarray]:
    batches = [b for b in profile.batches() if "branch_from" in b]
    return [np.concatenate([b[n] for b in batches]) for n in names]


@pytest.mark.parametrize("name", REAL)
def test_records_attributes_and_flags_are_as_counted_before(name: str, data: Data) -> None:
    said = json.loads(data.golden(name, "summary.json"))
    profile = lastbranch.open(data.path(name))
    assert profile.damage == []
    assert profile.records == {pw.RECORDS[int(kind)][0]: n for kind, n in said["records"].items()}
    programmed = [e.programming for e in profile.events]
    attrs = [[hex(p["sample_type"]), hex(p["branch_sample_type"]), p["size"]] for p in programmed]
    assert attrs == said["attrs"]
    assert (profile.samples, profile.entries) == (said["samples_br"], said["entries"])
    depth = Counter(np.concatenate([b.depth for b in profile.batches()]).tolist())
    assert {str(d): depth[d] for d in map(int, said["depth"])} == said["depth"], "the file may list the commonest only"
    assert profile.deepest == max(depth) >= max(map(int, said["depth"]))

    source, flags = columns(profile, "branch_from", "branch_flags")
    (pids,) = columns(profile, "pid")
    assert len(set(pids.tolist())) == said["npids"]
    ours: Counter[str] = Counter()
    ours["mispred"], ours["predicted"] = int((flags & 1).sum()), int((flags >> 1 & 1).sum())
    ours["noflag"] = int((flags & 3 == 0).sum())
    ours["in_tx"], ours["abort"] = int((flags >> 2 & 1).sum()), int((flags >> 3 & 1).sum())
    ours["cycles"] = int((flags >> 4 & 0xFFFF != 0).sum())
    ours.update({f"type{k}": n for k, n in Counter((flags >> 20 & 15).tolist()).items()})
    ours.update({f"spec{k}": n for k, n in Counter((flags >> 24 & 3).tolist()).items()})
    ours["kernel_from"], ours["zero_from"] = int((source >> 63).sum()), int((source == 0).sum())
    assert +ours == Counter(said["flags"])
    if said["hw"]:
        (index,) = columns(profile, "hw_idx")
        assert {str(k): n for k, n in Counter(index.tolist()).items()} == said["hw"]
    else:
        assert all("hw_idx" not in s.columns for s in profile.streams)


MAP_LINE = re.compile(
    r"(?P<time>\d+\.\d+): PERF_RECORD_MMAP2? (?P<pid>-?\d+)/(?P<tid>-?\d+): "
    r"\[(?P<start>\w+)\((?P<length>\w+)\) @ (?P<pgoff>\w+)(?: [^]]*)?\]: [rwxps-]+ (?P<name>.*)"
)


@pytest.mark.parametrize("name", REAL)
def test_mappings_are_those_that_perf_prints(name: str, data: Data) -> None:
    """Each with its start, length, file offset, process, thread, time (microseconds there) and name.

    Differences by intent: the kernel image is called ``[kernel.kallsyms]`` whatever symbol its mapping is anchored at,
    and where that is ``_stext`` the offset is that of ``_text``, the page before it. simpleperf has kernel
    modules at 0, up to all of the address space, where it does not know their place: those are none.
    """
    expected = Counter()
    for line in data.golden(name, "perf612-mmaps.txt.gz").splitlines():
        m = MAP_LINE.search(line)
        assert m is not None, line
        seconds, micro = m["time"].split(".")
        kernel = m["name"].startswith("[kernel.kallsyms]")
        numbers = [int(m[k], 16) for k in ("start", "length", "pgoff")]
        if m["name"].endswith("]_stext"):
            numbers[2] &= ~0xFFF
        module = "[kernel.kallsyms]" if kernel else m["name"]
        if module.endswith(".ko") and numbers[0] == 0:
            continue
        expected[int(m["pid"]), int(m["tid"]), int(seconds + micro), *numbers, module] += 1

    profile = lastbranch.open(data.path(name))
    c = profile.timeline.columns()
    rows = c["kind"] == Change.MAP
    symbols = rows & (c["pid"] == -1) & (c["tid"] == -1)  # from KSYMBOL records
    assert int(symbols.sum()) <= profile.records.get("KSYMBOL", 0)
    rows &= ~symbols
    ours = Counter(
        (pid, tid, time // 1000, start, end - start, offset, profile.modules[module].name)
        for pid, tid, time, start, end, offset, module in zip(
            *(c[n][rows].tolist() for n in ("pid", "tid", "time", "start", "end", "offset", "module")), strict=True
        )
    )
    assert ours - expected == Counter()
    assert expected - ours == Counter()


@pytest.mark.parametrize("name", ["wsm_x5660_16deep", "snb_raw_callchain_branch-3.4"])
def test_the_old_kernel_map_does_not_swallow_user_space(name: str, data: Data) -> None:
    profile = lastbranch.open(data.path(name))
    table = lastbranch.branches(profile)
    kernel = np.isin(table.from_module, [i for i, m in enumerate(profile.modules) if m.kind is ModuleKind.KERNEL])
    raw = columns(profile, "branch_from")[0]
    assert int(table.count.sum()) == len(raw)
    assert 0 < int(table.count[kernel].sum()) <= int((raw >> 63).sum())
