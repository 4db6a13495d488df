"""Verbs over several captures: what they print is what they print for one recording of all."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from captures import Data
from command_line import Ran
from concatenated import concatenated, moved

Run = Callable[..., Ran]

VERBS: dict[str, tuple[list[str], list[str]]] = {
    "report by function": (["report", "--by", "function"], []),
    "report by line": (["report", "--by", "line"], []),
    "report by module": (["report", "--by", "module"], []),
    "report by process": (["report", "--by", "process"], []),
    "report by thread": (["report", "--by", "thread"], []),
    "branches": (["branches"], []),
    "sites": (["branches", "--by", "site"], []),
    "branches of a module": (["branches", "--module", "liblbrdemo.so"], []),
    "branches of a process": (["branches", "--pid", "6001"], []),
    "branches of an event": (["branches", "--event", "cyc*"], []),
    "annotate": (["annotate"], ["dispatch"]),
    "annotate a loop": (["annotate"], ["fib"]),
    "callers": (["callers"], ["dispatch"]),
    "callees": (["callees"], ["main"]),
    "stacks": (["stacks"], []),
    "stacks by period": (["stacks", "--count", "period", "--inline"], []),
    "query": (["query"], ["SELECT from_address, to_address, sum(count) FROM edges GROUP BY ALL ORDER BY ALL"]),
    "query of samples": (
        ["query"],
        ["SELECT ip, function, count(*) AS n FROM samples GROUP BY ALL ORDER BY ALL"],
    ),
}


@pytest.fixture(scope="module")
def recordings(data: Data, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """(two captures, one with the records of both)."""
    folder = tmp_path_factory.mktemp("captures")
    one = data.path("demo_2proc").read_bytes()
    other = moved(data.path("demo_pie").read_bytes(), 1000, 10**10)
    files = {"one.data": one, "other.data": other, "both/whole.data": concatenated(one, other)}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return [str(folder / "one.data"), str(folder / "other.data")], str(folder / "both" / "whole.data")


@pytest.fixture(scope="module")
def binaries(data: Data, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("symfs")
    (folder / "opt" / "lbrdemo").mkdir(parents=True)
    for binary in ("lbrdemo", "liblbrdemo.so"):
        shutil.copyfile(data.path("demo_pie").parent / binary, folder / "opt" / "lbrdemo" / binary)
    return str(folder)


def printed(run: Run, verb: str, captures: list[str], symfs: str, form: str, *more: str) -> Any:
    before, after = VERBS[verb]
    ran = run(*before, *captures, *after, "--symfs", symfs, "--format", form, *more)
    assert ran.code == 0, ran.err
    return json.loads(ran.out) if form == "json" else ran.out


def in_order(value: Any) -> Any:
    """Rows of a list of equal rank have no order of their own."""
    return sorted(value, key=json.dumps) if isinstance(value, list) else value


def counts_in_order(value: Any) -> Any:
    """Without sampling noise: a weight counts samples several times, which makes them no more observations."""
    if isinstance(value, list):
        value = [{name: cell for name, cell in row.items() if name != "noise"} for row in value]
    return in_order(value)


@pytest.mark.parametrize("verb", VERBS)
def test_captures_print_what_one_recording_does(
    run: Run, recordings: tuple[list[str], str], binaries: str, verb: str
) -> None:
    paths, whole = recordings
    found = printed(run, verb, paths, binaries, "json")
    assert found
    assert in_order(found) == in_order(printed(run, verb, [whole], binaries, "json"))
    forms = [printed(run, verb, captures, binaries, "csv") for captures in (paths, [whole])]
    assert sorted(forms[0].splitlines()) == sorted(forms[1].splitlines())


EXPORTS = ("counts", "brstack", "autofdo", "profgen", "bolt", "sampleprof", "perfscript", "folded", "gcov")


@pytest.mark.parametrize("form", EXPORTS)
def test_exports_of_captures_are_those_of_one_recording(
    run: Run, recordings: tuple[list[str], str], binaries: str, form: str
) -> None:
    paths, whole = recordings
    binary = ["--binary", "lbrdemo"] if form in ("autofdo", "profgen", "bolt", "sampleprof", "gcov") else []
    out = [run("export", "--to", form, *captures, "--symfs", binaries, *binary) for captures in (paths, [whole])]
    assert [one.code for one in out] == [0, 0], out[0].err
    one, other = (sorted(ran.raw.splitlines()) for ran in out)
    assert one == other
    assert one


def test_tables_say_which_capture_a_sample_is_of(run: Run, recordings: tuple[list[str], str], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ran = run("export", "--to", "parquet", "-o", tmp_path / "tables", *recordings[0])
    assert ran.code == 0, ran.err
    captures = parquet.read_table(tmp_path / "tables" / "captures.parquet").to_pylist()
    samples = parquet.read_table(tmp_path / "tables" / "samples.parquet").to_pydict()
    assert [samples["capture"].count(i) for i in range(2)] == [one["samples"] for one in captures]
    assert parquet.read_table(tmp_path / "tables" / "processes.parquet").to_pydict()["capture"] == [0, 0, 1]


@pytest.fixture(scope="module")
def forms(run: Run, recordings: tuple[list[str], str]) -> list[str]:
    """One recording as perf.data and as .tb5."""
    perf = recordings[0][1]
    tb5 = str(Path(perf).with_suffix(".tb5"))
    assert run("convert", perf, tb5).code == 0
    return [perf, tb5]


def test_a_capture_that_is_given_twice_counts_once_and_says_so(run: Run, recordings: tuple[list[str], str]) -> None:
    first, second = recordings[0]
    note = f"note: captures that were given twice count once: {first}"
    for others in ([], [second]):
        once, twice = (run("report", "--by", "module", first, *again, *others) for again in ([], [first]))
        assert (twice.code, twice.out) == (0, once.out)
        assert (note in twice.err, note in once.err) == (True, False)


@pytest.mark.parametrize("verb", ["branches", "report by module", "annotate", "query"])
def test_the_same_in_two_formats_counts_twice(run: Run, forms: list[str], binaries: str, verb: str) -> None:
    """And with a weight three times."""
    perf, tb5 = forms
    twice = printed(run, verb, [perf, tb5], binaries, "json")
    weighted = printed(run, verb, [perf], binaries, "json", "--weight", "other.data=2")
    assert counts_in_order(twice) == counts_in_order(weighted)
    assert twice != printed(run, verb, [perf], binaries, "json")
    more = printed(run, verb, [perf, tb5], binaries, "json", "--weight", "*.tb5=2")
    weighted = printed(run, verb, [perf], binaries, "json", "--weight", f"{perf}=3")
    assert counts_in_order(more) == counts_in_order(weighted)


def test_text_of_perf_script_joins_by_the_binary(
    run: Run, recordings: tuple[list[str], str], binaries: str, tmp_path: Path
) -> None:
    """It has no build ids: with --symfs the same files are found for both."""
    perf = recordings[0][1]
    text = tmp_path / "script.txt"
    assert run("export", "--to", "perfscript", perf, "--symfs", binaries, "-o", text).code == 0
    script = [
        "branches",
        "--module",
        "lbrdemo",
        "--no-symbols",
        "--format",
        "json",
        "--event",
        "*",
        "--symfs",
        binaries,
    ]

    def counts(*more: str) -> dict[tuple[str, str], int]:
        ran = run(*script, *more)
        assert ran.code == 0, ran.err
        return {(row["from"], row["to"]): row["count"] for row in json.loads(ran.out)}

    both, alone, weighed = counts(perf, str(text)), counts(perf), counts(perf, str(text), "--weight", "script.txt=3")
    inside = {pair for pair in alone if all(place.startswith("lbrdemo+") for place in pair)}
    assert inside
    assert {pair: both[pair] for pair in inside} == {pair: 2 * alone[pair] for pair in inside}
    assert {pair: weighed[pair] for pair in inside} == {pair: 4 * alone[pair] for pair in inside}


def test_what_is_no_capture_is_named_and_the_rest_is_done(
    run: Run, recordings: tuple[list[str], str], tmp_path: Path
) -> None:
    (tmp_path / "empty.data").write_bytes(b"")
    good = run("branches", *recordings[0], "--format", "csv")
    ran = run("branches", *recordings[0], tmp_path / "empty.data", "missing.data", "--format", "csv")
    assert (good.code, ran.code) == (0, 1)
    assert ran.out == good.out
    assert "left out: " in ran.err
    assert "empty.data: file is empty" in ran.err
    assert "missing.data" in ran.err
    assert "2 of 4 captures were left out" in ran.err


def test_damage_is_told_by_the_capture_that_has_it(run: Run, recordings: tuple[list[str], str], tmp_path: Path) -> None:
    one, other = recordings[0]
    cut = tmp_path / "cut.data"
    cut.write_bytes(Path(other).read_bytes()[:-20000])
    ran = run("report", one, cut, "--by", "module")
    assert ran.code == 1
    assert f"warning: {cut}: " in ran.err


def test_a_folder_is_the_captures_in_it(run: Run, recordings: tuple[list[str], str]) -> None:
    paths, _ = recordings
    folder = str(Path(paths[0]).parent)
    assert run("branches", f"{folder}/o*.data", "--format", "csv").out == run("branches", *paths, "--format", "csv").out


def test_weights_that_mean_nothing_are_refused(run: Run, recordings: tuple[list[str], str]) -> None:
    paths, _ = recordings
    for weight, why in (
        ("x.data=2", "no capture is called 'x.data'"),
        ("one.data", "is not CAPTURE=N"),
        ("one.data=0", "0"),
        ("one.data=1.5", "1.5"),
        ("=3", "is not CAPTURE=N"),
    ):
        ran = run("branches", *paths, "--weight", weight)
        assert ran.code == 2
        assert why in ran.err
    ran = run("export", "--to", "brstack", *paths, "--weight", "one.data=2")
    assert ran.code == 2
    assert "no weights" in ran.err


def test_info_lists_the_captures(run: Run, recordings: tuple[list[str], str]) -> None:
    paths, _ = recordings
    facts = json.loads(run("info", *paths, "--weight", "one.data=2", "--format", "json").out)
    assert [(one["file"], one["weight"]) for one in facts["captures"]] == [(paths[0], 2), (paths[1], 1)]
    assert facts["samples"] == sum(one["samples"] for one in facts["captures"])
    assert (
        f"{paths[0]}: 240 samples of synthetic, each counts 2 times"
        in run("info", *paths, "--weight", "o*e.data=2").out
    )


def test_diff_compares_groups(run: Run, recordings: tuple[list[str], str], binaries: str) -> None:
    paths, whole = recordings
    common = ["--symfs", binaries, "--format", "json"]

    def rows(*words: str) -> list[dict[str, Any]]:
        ran = run("diff", *words, *common)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    same = rows(*paths, "--against", whole)
    assert same
    assert all(row["change"] == 0 and row["A_samples"] == row["B_samples"] for row in same)
    assert in_order(rows(paths[0], "--against", whole)) == in_order(rows(paths[0], whole))
    pair = rows(whole, "--against", paths[0], "--against", paths[1], "--weight", "one.data=3")
    assert any(row["change"] != 0 for row in pair)
    assert run("diff", *paths, whole).code == 2
    assert run("diff", paths[0]).code == 2


def test_a_word_after_the_files_is_the_function(run: Run, recordings: tuple[list[str], str], binaries: str) -> None:
    paths, _ = recordings
    ran = run("annotate", *paths, "no_such_function", "--symfs", binaries)
    assert ran.code == 2
    assert "no function is called 'no_such_function'" in ran.err


WEIGHED = [verb for verb in VERBS if verb not in ("report by process", "report by thread", "query of samples")]


@pytest.fixture(scope="module")
def twins(recordings: tuple[list[str], str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two files with the same records."""
    copy = tmp_path_factory.mktemp("copy") / "copy.data"
    shutil.copyfile(recordings[0][1], copy)
    return [recordings[0][1], str(copy)]


@pytest.mark.parametrize("verb", WEIGHED)
def test_a_weight_of_two_is_the_capture_twice(run: Run, twins: list[str], binaries: str, verb: str) -> None:
    twice = printed(run, verb, twins, binaries, "json")
    weighed = printed(run, verb, twins[:1], binaries, "json", "--weight", "other.data=2")
    if "stacks" in verb:  # by process, of which there are two
        for rows in (twice, weighed):
            sums: dict[str, int] = {}
            for row in rows:
                value = row.get("samples", row.get("period"))
                sums[row["stack"]] = sums.get(row["stack"], 0) + value
            rows[:] = [sums]
    assert counts_in_order(twice) == counts_in_order(weighed)


@pytest.mark.parametrize("form", ["counts", "autofdo", "profgen", "bolt", "sampleprof", "gcov"])
def test_exports_take_weights(run: Run, twins: list[str], binaries: str, form: str) -> None:
    words = ["export", "--to", form, "--symfs", binaries, *(["--binary", "lbrdemo"] if form != "counts" else [])]
    out = [run(*words, *more) for more in (twins, [twins[0], "--weight", "other.data=2"])]
    assert [ran.code for ran in out] == [0, 0], out[1].err
    assert out[0].raw == out[1].raw
    assert out[0].raw != run(*words, twins[0]).raw


def test_pprof_takes_weights(run: Run, twins: list[str], binaries: str, tmp_path: Path) -> None:
    folded = ["stacks", "--symfs", binaries, "--format", "json"]
    assert json.loads(run(*folded, *twins).out)
    for name, words in (("twice", twins), ("weighed", [twins[0], "--weight", "other.data=2"]), ("once", twins[:1])):
        assert run("export", "--to", "pprof", "-o", tmp_path / name, "--symfs", binaries, *words).code == 0
    sums = [sum(samples_of((tmp_path / name).read_bytes())) for name in ("once", "weighed", "twice")]
    assert sums[1] == sums[2] == 2 * sums[0]


def samples_of(pprof: bytes) -> list[int]:
    """The first value of each sample of a profile.proto: field 2, in which field 2 are packed integers."""
    return [numbers(dict(fields(body))[2])[0] for number, body in fields(gzip.decompress(pprof)) if number == 2]


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, content) of the fields of a protobuf message that have a length."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value


def numbers(packed: bytes) -> list[int]:
    out, at = [], 0
    while at < len(packed):
        value, at = varint(packed, at)
        out.append(value)
    return out


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def test_diff_takes_weights(run: Run, recordings: tuple[list[str], str], twins: list[str], binaries: str) -> None:
    """A capture that is given twice counts twice."""
    one = recordings[0][0]
    for by in ("function", "edge", "block"):
        common = ["--by", by, "--symfs", binaries, "--format", "json", "--against", recordings[1]]
        ends = [end for end in ("function", "from", "to", "block") if end != "function" or by == "function"]
        sides = ([one, *twins], [one, twins[0], "--weight", "other.data=2"], [one, twins[0]])
        rows = [
            {
                tuple(row.get(end) for end in ends): row["A_percent"]
                for row in json.loads(run("diff", *side, *common).out)
            }
            for side in sides
        ]
        assert rows[0] == rows[1]
        assert rows[0] != rows[2]
