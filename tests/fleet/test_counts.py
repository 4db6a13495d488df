"""A store gives the same sums as its captures, to the byte if the bytes are defined."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import perfdata_writer as pw
from captures import REAL, Data
from command_line import Ran
from export_tools import BINARIES, binary_of, tool
from lastbranch.analysis.statistics.sample_sums import BranchSums
from lastbranch.export import COUNTED
from lastbranch.opening import open_source, read_profile
from perfdata_writer import Builder
from small_captures import build

Run = Callable[..., Ran]
Lines = Counter[tuple[str, ...]]
BY_MODULE = ("autofdo", "gcov", "profgen", "bolt", "sampleprof")


def added(run: Run, store: Path, *words: str | Path) -> Path:
    done = run("fleet", "add", store, *words)
    assert done.code == 0, done.err
    return store


def lines(text: str) -> tuple[Lines, Lines]:
    """(ranges, branches with their mispredictions) of counts as text. Addresses in no module count as one."""
    ranges, branches = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for line in text.splitlines():
        kind, *words = line.split()
        if kind == "R":
            if words[0] != "-":  # memory without a file
                ranges[tuple(words[:3])] += int(words[3])
        else:
            ends = [(m, "0" if m == "-" else a) for m, a in (words[:2], words[2:4])]
            key = tuple(part for end in ends for part in end)
            branches[(*key, "taken")] += int(words[4])
            branches[(*key, "mispredicted")] += int(words[5])
    return ranges, branches


def text_of(done: Ran) -> str:
    assert done.code in (0, 1), done.err
    return done.out


@pytest.fixture(scope="module", params=["demo_pie", "demo_2proc", "lldlayout/demo_pie"])
def of_one(request: pytest.FixtureRequest, run: Run, data: Data, tmp_path_factory: pytest.TempPathFactory):
    """(name of a capture, a store of it)."""
    return request.param, added(run, tmp_path_factory.mktemp("one") / "store", data.path(request.param))


@pytest.mark.parametrize("form", BY_MODULE)
def test_exports_are_those_of_the_capture(run: Run, data: Data, of_one: tuple[str, Path], form: str) -> None:
    name, store = of_one
    for binary in BINARIES:
        path = binary_of(data, name, binary)
        words = ("--to", form, "--binary", path)
        stored, plain = run("fleet", "export", store, *words), run("export", data.path(name), *words)
        assert stored.code == plain.code == 0, stored.err
        assert stored.raw == plain.raw


def test_one_module_is_found_by_its_build_id(run: Run, data: Data, symfs, tmp_path: Path) -> None:
    capture, folder = data.path("demo_pie"), symfs("demo_pie")
    store = added(run, tmp_path / "store", capture)
    identity = re.search(r"build-id:(\w+)", run("fleet", "list", store, "--by", "module", "--module", "lbrdemo").out)
    assert identity is not None
    words = ("--symfs", folder, "--to", "bolt")
    stored = run("fleet", "export", store, "--module", identity[1][:8], *words)
    assert stored.code == 0, stored.err
    assert stored.raw == run("export", capture, *words, "--binary", "lbrdemo").raw
    missing = run("fleet", "export", store, "--module", identity[1][:8], "--to", "counts")
    assert f"binary not found ({identity[0]}" in missing.err


def test_a_folder_of_exports_is_that_of_the_capture(run: Run, data: Data, symfs, tmp_path: Path) -> None:
    capture, words = data.path("demo_pie"), ("--symfs", symfs("demo_pie"), "--to", "autofdo", "-o")
    store = added(run, tmp_path / "store", capture)
    assert run("fleet", "export", store, *words, tmp_path / "stored").code == 0
    assert run("export", capture, *words, tmp_path / "plain").code == 0
    plain, stored = ({p.name: p.read_text() for p in (tmp_path / x).iterdir()} for x in ("plain", "stored"))
    for found in (plain, stored):  # modules of a store are in the order of their identities
        found["index.tsv"] = "".join(sorted(found["index.tsv"].splitlines(keepends=True)))
    assert stored == plain


_EVERY_THIRD = [pytest.param(name, marks=[] if i % 3 == 1 else pytest.mark.thorough) for i, name in enumerate(REAL)]


@pytest.mark.parametrize("name", _EVERY_THIRD)
def test_counts_of_real_captures(run: Run, data: Data, tmp_path: Path, name: str) -> None:
    plain = run("export", data.path(name), "--to", "counts")
    store = added(run, tmp_path / "store", data.path(name))
    stored = run("fleet", "export", store, "--to", "counts", "--event", "*")
    assert stored.code == plain.code
    assert lines(stored.out) == lines(plain.out)


def test_captures_add_up(run: Run, data: Data, tmp_path: Path) -> None:
    names = ("demo_pie", "demo_2proc", "demo_hwidx")
    store = added(run, tmp_path / "store", *map(data.path, names))
    want: tuple[Lines, Lines] = Counter(), Counter()
    for name in names:
        for whole, part in zip(want, lines(text_of(run("export", data.path(name), "--to", "counts"))), strict=True):
            whole.update(part)
    before = run("fleet", "export", store, "--to", "counts").raw
    assert lines(before.decode()) == want
    more = data.path("demo_features")
    assert run("fleet", "add", store, more).code == 0
    for whole, part in zip(want, lines(text_of(run("export", more, "--to", "counts"))), strict=True):
        whole.update(part)
    apart = run("fleet", "export", store, "--to", "counts").raw
    assert lines(apart.decode()) == want
    assert run("fleet", "compact", store).code == 0
    assert run("fleet", "export", store, "--to", "counts").raw == apart


def test_weights_multiply(run: Run, data: Data, tmp_path: Path) -> None:
    store = added(run, tmp_path / "store", data.path("demo_pie"), "--service", "a")
    added(run, store, data.path("demo_2proc"), "--service", "b")
    a, b = (lines(text_of(run("export", data.path(name), "--to", "counts"))) for name in ("demo_pie", "demo_2proc"))
    done = run("fleet", "export", store, "--to", "counts", "--weight", "a=3", "--weight", "b=0")
    want = tuple(Counter({key: 3 * one[key] for key in one | other}) for one, other in zip(a, b, strict=True))
    assert lines(done.out) == want
    assert run("fleet", "export", store, "--to", "counts", "--weight", "a").code == 2


# -- sums over samples


def test_sums_over_samples_are_those_of_each_sample(tmp_path: Path) -> None:
    """Held against a count of one sample after the other."""
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    b.comm(pid=7, name="prog", time=1, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name="/bin/prog", time=2)
    stacks = [
        [(0x400100 + 16 * (i * j % 5), 0x400200 + 8 * (j % 3), (i + j) % 2 | 3 << 4 * (j % 2)) for j in range(i % 7)]
        for i in range(100)
    ]
    for i, stack in enumerate(stacks):
        b.sample(ip=0x400000 + i, pid=7, tid=7, time=1000 * (i + 1), branches=stack)
    (tmp_path / "x").write_bytes(b.build())
    profile = read_profile(open_source(str(tmp_path / "x")))
    sums = BranchSums(profile.binder)
    for batch in profile.batches():
        sums.add(batch)
    found = sums.result()
    want: dict[tuple[int, int], list[int]] = {}
    for stack in stacks:
        inside = Counter((a - 0x400000, b - 0x400000) for a, b, _ in stack)
        for key, n in inside.items():
            row = want.setdefault(key, [0] * 4)
            for i, value in enumerate((n, 1, n * n, n * len(stack))):
                row[i] += value
    columns = (found.a, found.b, found.count, found.samples, found.squares, found.crossed)
    rows = zip(*(c.tolist() for c in columns), strict=True)
    assert {(a, b): list(values) for a, b, *values in rows} == want


# -- which captures


def test_captures_are_selected_by_what_is_said_of_them(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for i, (service, version, host, day) in enumerate(
        [("web", "1", "h1", "2026-01-01"), ("web", "2", "h2", "2026-01-02"), ("db", "2", "h1", "2026-01-03")]
    ):
        capture = build(tmp_path / f"{i}", name=f"/bin/prog{i}")
        words = ("--service", service, "--version", version, "--host", host, "--time", day)
        added(run, store, capture, *words)

    def chosen(*words: str) -> list[str]:
        done = run("fleet", "list", store, *words, "--format", "csv")
        return [line.split(",")[0] for line in done.out.splitlines()[1:]]

    assert chosen() == ["0", "1", "2"]
    assert chosen("--service", "web") == ["0", "1"]
    assert chosen("--service", "w*", "--version", "2") == ["1"]
    assert chosen("--host", "h1", "--host", "h2", "--since", "2026-01-02") == ["1", "2"]
    assert chosen("--until", "2026-01-01") == ["0"]
    assert chosen("--version", "3") == []
    counts = run("fleet", "export", store, "--to", "counts", "--version", "2").out
    assert set(re.findall("prog.", counts)) == {"prog1", "prog2"}
    by = run("fleet", "list", store, "--by", "service", "--format", "csv").out.splitlines()
    assert [line.split(",")[:2] for line in by[1:]] == [["db", "1"], ["web", "2"]]
    assert run("fleet", "list", store, "--since", "yesterday").code == 2


def test_different_events_are_not_added_up_unasked(run: Run, data: Data, tmp_path: Path) -> None:
    names = ("demo_pie", "wsm_x5660_16deep")
    store = added(run, tmp_path / "store", *map(data.path, names))
    done = run("fleet", "export", store, "--to", "counts")
    assert done.code == 2
    assert "br_inst_exec:taken, cycles" in done.err
    assert "--event" in done.err
    one = run("fleet", "export", store, "--to", "counts", "--event", "cycles").out
    assert lines(one) == lines(run("export", data.path("demo_pie"), "--to", "counts").out)
    whole = [run("export", data.path(name), "--to", "counts").out for name in names]
    assert lines(run("fleet", "export", store, "--to", "counts", "--event", "*").out) == lines("".join(whole))
    # A module that was counted under one event alone needs no choice.
    assert run("fleet", "export", store, "--to", "counts", "--module", "lbrdemo").code == 0


def test_a_report_has_rows_for_each_event(run: Run, data: Data, tmp_path: Path) -> None:
    captures = {"cycles": data.path("demo_pie"), "br_inst_exec:taken": data.path("wsm_x5660_16deep")}
    store = added(run, tmp_path / "store", *captures.values())
    words = ("fleet", "report", store, "--by", "module", "--format", "json")
    rows = rows_of(run(*words, "--limit", "0"))
    for event, capture in captures.items():
        own = [row for row in rows if row["event"] == event]
        (one,) = json.loads(run("info", capture, "--format", "json").out)["events"]
        assert one["name"] == event
        wanted = rows_of(run("report", capture, "--by", "module", "--format", "json", "--limit", "0"))
        assert sum(int(str(row["samples"])) for row in own) == sum(int(str(row["samples"])) for row in wanted)
        assert sum(float(str(row["samples_percent"])) for row in own if row["samples"]) == pytest.approx(100, abs=0.5)
        assert rows_of(run(*words, "--limit", "0", "--event", event)) == own
    assert [row["event"] for row in rows_of(run(*words, "--limit", "1"))] == sorted(captures)


def test_two_builds_under_one_path_stay_apart(run: Run, tmp_path: Path) -> None:
    for number in (1, 2):
        b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
        b.mmap2(
            pid=7,
            addr=0x400000 * number,
            length=0x10000,
            pgoff=0,
            name="/bin/prog",
            time=2,
            build_id=bytes([number] * 20),
        )
        at = 0x400000 * number
        b.sample(ip=at, pid=7, tid=7, time=9, branches=[(at + 0x10, at + 0x20, 1)] * 2)
        (tmp_path / f"{number}").write_bytes(b.build())
    store = added(run, tmp_path / "store", tmp_path / "1", tmp_path / "2")
    done = run("fleet", "export", store, "--to", "counts")
    names = {line.split()[1] for line in done.out.splitlines()}
    assert names == {f"/bin/prog@build-id:{'01' * 20}", f"/bin/prog@build-id:{'02' * 20}"}
    one = run("fleet", "export", store, "--to", "counts", "--module", "0101")
    assert one.out.splitlines()[-1] == "B /bin/prog 10 /bin/prog 20 2 2"
    both = run("fleet", "export", store, "--to", "counts", "--module", "prog")
    assert both.out == done.out


# -- reports


def rows_of(done: Ran) -> list[dict[str, object]]:
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_functions_are_those_of_the_capture(run: Run, data: Data, symfs, tmp_path: Path) -> None:
    capture, words = data.path("demo_pie"), ("--symfs", symfs("demo_pie"), "--format", "json")
    store = added(run, tmp_path / "store", capture)
    own = {"lbrdemo", "liblbrdemo.so"}  # names of others depend on the machine
    plain = rows_of(run("report", capture, "--by", "function", *words))
    stored = [row for row in rows_of(run("fleet", "report", store, *words)) if row["module"] in own]
    want = {row["function"]: row["samples"] for row in plain if row["samples"] and row["module"] in own}
    assert {row["function"]: row["samples"] for row in stored if row["samples"]} == want
    taken = Counter[object]()
    for row in rows_of(run("branches", capture, *words)):
        taken[str(row["from_function"]).partition("+0x")[0]] += int(str(row["count"]))
    assert [row["branches"] for row in stored] == [taken[row["function"]] for row in stored]
    by_module = rows_of(run("fleet", "report", store, "--by", "module", *words))
    assert sum(int(str(row["samples"])) for row in by_module) == 403
    assert sum(int(str(row["branches"])) for row in by_module) == 12825


def test_debug_files_have_names_where_the_binary_is_missing(run: Run, data: Data, symfs, tmp_path: Path) -> None:
    capture = data.path("demo_pie")
    store = added(run, tmp_path / "store", capture, data.path("demo_2proc"))
    found = run("fleet", "list", store, "--by", "module", "--module", "lbrdemo").out
    (build_id,) = re.findall(r"build-id:(\w+)", found)
    (debug := tmp_path / "debug" / ".build-id" / build_id[:2]).mkdir(parents=True)
    file = debug / f"{build_id[2:]}.debug"
    subprocess.run([tool("objcopy"), "--only-keep-debug", binary_of(data, "demo_pie", "lbrdemo"), file], check=True)
    words = ("fleet", "report", store, "--module", "lbrdemo", "--format", "json")
    reports = [
        rows_of(run(*words, *more)) for more in (("--symfs", symfs("demo_pie")), ("--debug-dir", tmp_path / "debug"))
    ]
    # Stubs of the linkage table have names by their code alone, which a debug file lacks.
    by_binary, by_debug_file = (
        {str(row["function"]): row for row in rows if not re.search(r"@plt|\.plt|^\[", str(row["function"]))}
        for rows in reports
    )
    assert by_debug_file.keys() > {"main", "cmp(void const*, void const*)"}
    assert by_debug_file == by_binary


def recorded(path: Path, seed: int, build_id: bytes = b"\7" * 20) -> Path:
    """500 samples of a program whose branches have other frequencies with another seed."""
    b, random = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.PERIOD | pw.BRANCH_STACK), Random(seed)
    b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name="/bin/prog", time=2, build_id=build_id)
    weights = [random.random() ** 2 for _ in range(12)]
    for i in range(500):
        edges = random.choices(range(12), weights, k=random.randrange(9))
        stack = [(0x400100 + 16 * edge, 0x400800 + 8 * (edge % 5), 1) for edge in edges]
        b.sample(
            ip=0x400000 + random.choices(range(12), weights)[0], pid=7, tid=7, time=9 + i, period=100, branches=stack
        )
    path.write_bytes(b.build())
    return path


def compared(done: Ran, by: str) -> dict[tuple[object, ...], list[object]]:
    ends = ("from", "to") if by == "edge" else ("function",)
    values = ("A_percent", "B_percent", "A_samples", "B_samples", "p")
    return {tuple(row[key] for key in ends): [row[name] for name in values] for row in rows_of(done)}


@pytest.mark.parametrize("by", ["function", pytest.param("edge", marks=pytest.mark.thorough)])
def test_differences_are_those_of_the_captures(run: Run, tmp_path: Path, by: str) -> None:
    """The sums over samples say what the samples do: also of two captures on a side, and of merged parts."""
    a, b, more = (recorded(tmp_path / str(seed), seed) for seed in range(3))
    words = ("--format", "json", "--by", by)
    store = added(run, tmp_path / "store", a, "--version", "1")
    added(run, store, b, "--version", "2")
    sides = ("version=1", "version=2")
    plain, stored = run("diff", a, b, *words), run("fleet", "diff", store, *sides, *words)
    assert stored.err == plain.err
    want = compared(plain, by)
    assert compared(stored, by) == {key: pytest.approx(values, nan_ok=True) for key, values in want.items()}
    added(run, store, more, "--version", "2", "--service", "more")
    before = compared(run("fleet", "diff", store, *sides, *words), by)
    assert before != compared(stored, by)
    plain = run("diff", a, "--against", b, "--against", more, "--weight", f"{more.name}=3", *words)
    stored = run("fleet", "diff", store, *sides, "--weight", "more=3", *words)
    assert stored.err == plain.err
    want = compared(plain, by)
    assert compared(stored, by) == {key: pytest.approx(values, nan_ok=True) for key, values in want.items()}
    assert run("fleet", "compact", store).code == 0
    assert compared(run("fleet", "diff", store, *sides, *words), by) == before
    assert run("fleet", "diff", store, *sides, *words, "--fail-over", "0.1").code == (6 if by == "edge" else 0)


def test_what_samples_have_in_common_is_not_underestimated(run: Run, tmp_path: Path) -> None:
    """Of another build without names only the module is the same: its branches are one thing, of unknown spread."""
    a, b = recorded(tmp_path / "a", 1), recorded(tmp_path / "b", 2, b"\10" * 20)
    store = added(run, tmp_path / "store", a, "--version", "1")
    added(run, store, b, "--version", "2")
    words = ("--format", "json", "--by", "edge")
    plain = compared(run("diff", a, b, *words), "edge")
    stored = compared(run("fleet", "diff", store, "version=1", "version=2", *words), "edge")
    assert len(stored) == len(plain) == 1
    ((_, _, _, _, p),), ((*_, least),) = stored.values(), plain.values()
    assert p is not None
    assert least is not None
    assert p >= least


def test_differences_need_two_sides_of_one_event(run: Run, data: Data, tmp_path: Path) -> None:
    store = added(run, tmp_path / "store", data.path("demo_pie"), "--version", "1")
    added(run, store, data.path("wsm_x5660_16deep"), "--version", "2")
    done = run("fleet", "diff", store, "version=1", "version=2")
    assert done.code == 2
    assert "different events" in done.err
    assert run("fleet", "diff", store, "version=1", "version=3").code == 4
    assert run("fleet", "diff", store, "version", "version=3").code == 2
    assert run("fleet", "diff", store, "day=soon", "version=3").code == 2


def test_saturation_is_the_overlap_with_parts_of_the_captures(run: Run, tmp_path: Path) -> None:
    """Counted again here from the captures, whose digests say which part they are of."""
    paths = [tmp_path / f"{i:02}" for i in range(24)]
    taken: list[Counter[int]] = []
    for i, path in enumerate(paths):
        b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
        b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name="/bin/prog", time=2, build_id=b"\7" * 20)
        stack = [(0x400000 + 16 * (i * j % 7), 0x400800, 1) for j in range(i % 5 + 1)]
        b.sample(ip=0x400000, pid=7, tid=7, time=9 + i, branches=stack)
        path.write_bytes(b.build())
        taken.append(Counter(a for a, _, _ in stack))
    store = added(run, tmp_path / "store", *paths, "--service", "s")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    parts = [[c for c, d in zip(taken, digests, strict=True) if d >= limit] for limit in ("", "80", "c0", "e0")]
    sums = [sum(part, Counter()) for part in parts]
    (row,) = rows_of(run("fleet", "report", store, "--saturation", "--format", "json"))
    assert row["service"] == "s"
    assert row["module"] == "prog"
    assert row["branches"] == sums[0].total()
    assert row["distinct"] == len(sums[0])
    assert [row[name] for name in ("captures", "half", "quarter", "eighth")] == [len(part) for part in parts]
    for name, part in zip(("half", "quarter", "eighth"), sums[1:], strict=True):
        overlap = sum(min(n / sums[0].total(), part[key] / part.total()) for key, n in sums[0].items())
        assert row[f"{name}_percent"] == pytest.approx(100 * overlap, abs=0.01)
    assert run("fleet", "compact", store).code == 0
    assert rows_of(run("fleet", "report", store, "--saturation", "--format", "json")) == [row]


# -- several captures, joined


@pytest.fixture(scope="module")
def apart_and_merged(run: Run, data: Data, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    """(captures, stores of them: in three parts, and in one)."""
    folder = tmp_path_factory.mktemp("merged")
    captures = [data.path(name) for name in ("demo_pie", "demo_2proc", "demo_hwidx")]
    for capture in captures:
        added(run, folder / "apart", capture)
    shutil.copytree(folder / "apart", folder / "one")
    assert run("fleet", "compact", folder / "one").code == 0
    return captures, [folder / "apart", folder / "one"]


@pytest.mark.parametrize("form", [form for form in COUNTED if form != "propeller"])  # which needs a block map
def test_merged_exports_are_those_of_the_captures_together(
    run: Run, apart_and_merged: tuple[list[Path], list[Path]], symfs, form: str
) -> None:
    captures, stores = apart_and_merged
    words = ("--symfs", symfs("demo_pie"), "--to", form, "--binary", "lbrdemo")
    plain = run("export", *captures, *words)
    assert plain.code == 0, plain.err
    for store in stores:
        assert run("fleet", "export", store, *words).raw == plain.raw
