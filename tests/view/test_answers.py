"""What the answers hold is what the verbs print, on captures of every kind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import lastbranch
import perfdata_writer as pw
from captures import REAL, Data
from command_line import Ran
from lastbranch import demo
from lastbranch.analysis.counting.over_time import over_time, samples_over_time
from lastbranch.analysis.naming import Namer
from lastbranch.errors import LastbranchError, NotRecordedError, SelectionError
from lastbranch.model import SampleFilter
from lastbranch.symbols import SymbolOptions
from lastbranch.view import wire
from lastbranch.view.answer import Answer
from lastbranch.view.loaded import Loaded, Parameters, parameters_of
from lastbranch.view.questions import QUESTIONS, ask
from lastbranch.view.questions.hot import PARTS
from small_captures import build
from viewer import loaded

Run = Callable[..., Ran]
NONE: Parameters = {}


def rows(run: Run, *words: str | Path) -> list[dict]:
    done = run(*words, "--format", "json")
    return json.loads(done.out)


def percent(values: object) -> list[float | None]:
    return [None if np.isnan(value) else round(100 * value, 2) for value in np.asarray(values).tolist()]


def known(values: object) -> list[float | None]:
    return [None if np.isnan(value) else value for value in np.asarray(values).tolist()]


def check_hot(run: Run, shown: Loaded, *words: str | Path, chosen: Parameters = NONE) -> None:
    """Rows of report, but for functions that are only callers of what was sampled."""
    answer = wire.decode(wire.encode(ask(shown, "hot", chosen)))
    columns = {name: values for name, values in answer.columns.items() if name != "over_time"}
    found = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    keys = [(shown.profile.events[row["event"]].name, row["function"], row["module"]) for row in found]
    numbers = [(int(row["samples"]), *percent([row["share"]]), *known([row["instructions"]])) for row in found]
    table = rows(run, "report", shown.paths[0], "--by", "function", "--no-symbol-cache", *words)
    seen = [row for row in table if row["samples"] or row["instructions"]]
    names = [(row["event"], row["function"], row["module"] or "") for row in seen]
    wanted = Counter(
        (name, (row["samples"], row["samples_percent"], row["instructions"]))
        for name, row in zip(names, seen, strict=True)
    )
    assert Counter(pair for pair in zip(keys, numbers, strict=True) if pair[1][0] or pair[1][2]) == wanted
    by_time = np.asarray(answer.columns["over_time"]).reshape(-1, PARTS)
    if len(by_time):
        assert by_time.sum(1).tolist() == [row["samples"] for row in found]


def check_branches(run: Run, shown: Loaded, *words: str | Path, chosen: Parameters = NONE) -> None:
    done = run("branches", shown.paths[0], "--no-symbol-cache", "--format", "json", *words)
    if done.code == NotRecordedError.exit_code:
        with pytest.raises(NotRecordedError) as refusal:
            ask(shown, "branches", chosen)
        assert str(refusal.value) in done.err
        return
    answer = ask(shown, "branches", chosen)
    table = json.loads(done.out)[: len(answer.columns["count"])]
    for name in ("from", "to", "count", "type"):
        values = answer.columns[name]
        listed = values.tolist() if isinstance(values, np.ndarray) else [value or None for value in values]
        assert listed == [row[name] for row in table]
    assert percent(answer.columns["share"]) == [share_of(row) for row in table]
    assert percent(answer.columns["mispredicted"]) == [row["mispredicted_percent"] for row in table]
    cycles = known(answer.columns["cycles"])
    assert [value and round(value, 2) for value in cycles] == [row["cycles"] for row in table]
    check_sites(
        answer, rows(run, "branches", shown.paths[0], "--no-symbol-cache", "--by", "site", "--limit", "0", *words)
    )


def check_sites(answer: Answer, table: list[dict]) -> None:
    assert answer.header["sites"] == len(table)
    assert answer.header["count"] == sum(row["count"] for row in table)
    listed = len(answer.columns["sites.count"])
    assert listed == min(10_000, len(table))
    for name, key, made in (
        ("from", "from", list),
        ("to", "most_often_to", list),
        ("to_share", "most_often_percent", percent),
        ("count", "count", list),
        ("targets", "targets", list),
        ("mispredicted", "mispredicted_percent", percent),
        ("wrong", "mispredictions", known),
    ):
        assert made(answer.columns[f"sites.{name}"]) == [row[key] for row in table[:listed]], name
    assert percent(answer.columns["sites.share"]) == [share_of(row) for row in table[:listed]]


def share_of(row: dict) -> float:
    """Whatever it is a share of."""
    return next(value for name, value in row.items() if name.startswith("share_"))


@pytest.mark.parametrize("name", [*REAL, "demo_pie", "demo_2proc"])
def test_real_captures(name: str, run: Run, data: Data) -> None:
    shown = loaded(data.path(name))
    check_hot(run, shown)
    check_branches(run, shown)


def test_the_demo_with_its_binaries(run: Run) -> None:
    shown = loaded(demo.capture(), demo.symfs())
    check_hot(run, shown, "--symfs", demo.symfs())
    check_branches(run, shown, "--symfs", demo.symfs())


def test_a_trace_log(run: Run, data: Data) -> None:
    shown = loaded(data.root.parent / "etl" / "net.4.5.2.x64.etl")
    check_hot(run, shown)
    check_branches(run, shown)
    assert np.isnan(np.asarray(ask(shown, "hot", {}).columns["mispredicted"])).all()  # not known, and not 0


def test_branches_of_a_function_are_those_that_begin_in_it(run: Run) -> None:
    shown = loaded(demo.capture(), demo.symfs())
    columns = ask(shown, "hot", {}).columns
    taken: Counter[str] = Counter()
    for row in rows(run, "branches", demo.capture(), "--symfs", demo.symfs(), "--no-symbol-cache"):
        taken[(row["from_function"] or "").partition("+")[0]] += row["count"]
    found = dict(zip(columns["function"], np.asarray(columns["branches"]).tolist(), strict=True))
    assert found["main"] == taken["main"] > 0
    assert found["fib(unsigned int)"] == taken["fib(unsigned int)"] > 0


def test_over_time_is_what_a_loop_counts(tmp_path: Path) -> None:
    profile = lastbranch.open(build(tmp_path / "x.data"))
    first, last = profile.first_time, profile.last_time
    assert first is not None
    assert last is not None
    for chosen in (None, SampleFilter(pids=frozenset([7])), SampleFilter(first=first + 5000, last=first + 20_000)):
        found = over_time(profile, Namer(profile, None), 4, sample_filter=chosen)
        assert found is not None
        start = first if chosen is None or chosen.first is None else chosen.first
        end = last if chosen is None or chosen.last is None else chosen.last - 1
        wanted: Counter[int] = Counter()
        for batch in profile.batches(()):
            for time in (chosen(batch) if chosen else batch).time.tolist():
                wanted[(time - start) * 4 // (end - start + 1)] += 1
        sums = {part: int(found.samples[found.part == part].sum()) for part in set(found.part.tolist())}
        assert sums == dict(wanted)
        whole = samples_over_time(profile, 4, sample_filter=chosen)
        assert whole is not None
        assert whole.tolist() == [wanted[part] for part in range(4)]


def test_filters_of_the_verb_are_those_of_the_page(tmp_path: Path) -> None:
    shown = loaded(build(tmp_path / "x.data"))
    first = shown.profile.first_time
    assert first is not None
    chosen = SampleFilter(
        pids=frozenset([7]),
        tids=frozenset([7, 8]),
        events=frozenset([0]),
        modules=frozenset([1]),
        first=first + 1000,
        last=first + 9000,
    )
    assert shown.filter(parameters_of(shown.profile, chosen)) == chosen
    assert shown.filter({}) is None
    assert shown.filter({"pid": "7,8", "find": "x"}) == SampleFilter(pids=frozenset([7, 8]))
    for wrong in ({"pid": "7;8"}, {"event": "1"}, {"module": "99"}, {"from": "1.5"}, {"to": "1" * 40}, {"tid": ""}):
        if wrong == {"tid": ""}:
            assert shown.filter(wrong) is None
        else:
            with pytest.raises(SelectionError):
                shown.filter(wrong)


@pytest.mark.parametrize("filter_by", ["pid", "tid", "module", "event", "time", "all"])
def test_filters_give_the_numbers_of_the_verbs(filter_by: str, run: Run, data: Data) -> None:
    shown = loaded(data.path("demo_2proc"))
    profile = shown.profile
    time = ask(shown, "overview", {}).header["time"]
    begin, end = ((time["from"] * (4 - part) + time["to"] * part) // 4 for part in (1, 3))
    listed = ask(shown, "overview", {}).columns
    pid, module = listed["processes.pid"][0], listed["modules.row"][0]
    thread = next(one for one in profile.threads if profile.processes[one.process].pid == pid)
    every: dict[str, tuple[Parameters, list[str]]] = {
        "pid": ({"pid": str(pid)}, ["--pid", str(pid)]),
        "tid": ({"tid": str(thread.tid)}, ["--tid", str(thread.tid)]),
        "module": ({"module": str(module)}, ["--module", profile.modules[int(module)].name]),
        "event": ({"event": "0"}, ["--event", "0"]),
        "time": ({"from": str(begin), "to": str(end)}, ["--time", f"{begin / 1e9:.9f}..{end / 1e9:.9f}"]),
    }
    used = [*every.values()] if filter_by == "all" else [every[filter_by]]
    chosen = {name: value for parameters, _ in used for name, value in parameters.items()}
    words = [word for _, part in used for word in part]
    check_hot(run, shown, *words, chosen=chosen)
    check_branches(run, shown, *words, chosen=chosen)
    hot = ask(shown, "hot", chosen).columns["samples"]
    others = {name: value for name, value in chosen.items() if name not in ("from", "to")}
    by_time = np.asarray(ask(shown, "timeline", chosen).columns["samples"])
    assert by_time.sum() == sum(ask(shown, "hot", others).columns["samples"])
    assert 0 < sum(hot) <= by_time.sum()


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_capture_without_samples_or_stacks_is_answered_or_refused(question: str, tmp_path: Path) -> None:
    for path in (build(tmp_path / "x.data", stacks=False), build(tmp_path / "y.data")):
        shown = Loaded(lastbranch.open(path), SymbolOptions(cache=None), (str(path),))
        for parameters in ({"name": "main"}, {"name": "main", "to": "1"}):  # the latter leaves no sample
            with suppress(LastbranchError):  # and nothing else
                wire.encode(ask(shown, question, parameters))


def test_the_first_sentence_speaks_of_what_there_is(tmp_path: Path) -> None:
    shown = loaded(build(tmp_path / "x.data"))
    assert str(ask(shown, "hot", {}).header["first"]).startswith("Only 30 samples")
    assert ask(shown, "hot", {"to": "1"}).header["first"] == "No sample passes the filters."
    assert "Start with" in str(ask(loaded(demo.capture(), demo.symfs()), "hot", {}).header["first"])


def paths(answer: Answer) -> Counter[tuple[str, ...]]:
    """Samples by the functions of their stacks, as the nodes of the tree have them."""
    columns = {key: np.asarray(answer.columns[key]).tolist() for key in ("parent", "name", "samples", "own")}
    names, found, made = answer.columns["names.function"], Counter[tuple[str, ...]](), list[tuple[str, ...]]()
    below = Counter[int]()
    for parent, name, samples, own in zip(*columns.values(), strict=True):
        made.append(((*made[parent],) if parent >= 0 else ()) + (names[name],))
        found[made[-1]] += own
        below[parent] += samples
    whole, own_of = columns["samples"], columns["own"]
    assert below[-1] == sum(own_of)
    assert all(whole[node] == own_of[node] + below[node] for node in range(len(whole)))
    return +found


FLAMES = {
    "": "rebuilt from branch stacks",  # the demo
    "cfl_9700_callgraph_lbr": "LBR call-stack mode",
    "snb_callchain_and_branch-3.4": "call chains",
}


def check_flame(run: Run, shown: Loaded, *words: str | Path, chosen: Parameters = NONE) -> Answer:
    """The answer, whose stacks are those of `stacks`."""
    done = run("stacks", *shown.paths, *(["--symfs", shown.symfs] if shown.symfs else []), "--no-symbol-cache", *words)
    wanted = Counter[tuple[str, ...]]()
    for line in done.out.splitlines():
        stack, _, weight = line.rpartition(" ")
        wanted[tuple(stack.split(";")[1:])] += int(weight)
    answer = ask(shown, "flame", {"limit": "1000000", **chosen})
    found = Counter[tuple[str, ...]]()
    for stack, weight in paths(answer).items():
        found[tuple(frame.replace(";", ":") for frame in stack)] += weight
    assert found == wanted
    assert answer.header["samples"] == wanted.total()
    return answer


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", FLAMES)
def test_flame_has_the_stacks_of_the_verb(name: str, inline: bool, run: Run, data: Data) -> None:
    shown = loaded(data.path(name)) if name else loaded(demo.capture(), demo.symfs())
    words, chosen = (["--inline"], {"inline": "1"}) if inline else ([], {})
    answer = check_flame(run, shown, *words, chosen=chosen)
    assert answer.header["sources"] == [FLAMES[name]]


def test_flame_says_how_many_samples_of_each_event_it_has(tmp_path: Path) -> None:
    file = pw.Builder(sample_type=pw.IDENTIFIER | pw.IP | pw.TID | pw.TIME | pw.CALLCHAIN)
    other = file.attr(sample_type=pw.IDENTIFIER | pw.IP | pw.TID | pw.TIME | pw.CALLCHAIN, type=1, config=2)
    for i in range(5):
        file.sample(ip=0x400000, pid=7, tid=7, time=i, callchain=[0x400000], event=other if i < 2 else 0)
    (tmp_path / "x.data").write_bytes(file.build())
    header = ask(loaded(tmp_path / "x.data"), "flame", {}).header
    assert sorted(number for _, number in header["events"]) == [2, 3]
    assert len({name for name, _ in header["events"]}) == 2


def check_function(run: Run, shown: Loaded, name: str, *words: str | Path, chosen: Parameters = NONE) -> Answer:
    """The answer, which has the numbers of `annotate`."""
    symfs = ["--symfs", shown.symfs] if shown.symfs else []
    said = json.loads(run("annotate", *shown.paths, name, *symfs, *words, "--format", "json", "--limit", "0").out)
    answer = ask(shown, "function", {"name": name, **chosen})
    columns, lines, blocks = answer.columns, said["instructions"], said["blocks"]
    assert [f"{at:#x}" for at in np.asarray(columns["instructions.address"]).tolist()] == [r["address"] for r in lines]
    assert np.asarray(columns["instructions.samples"]).tolist() == [row["samples"] for row in lines]
    assert (answer.header["samples"], answer.header["executed"]) == (said["samples"], said["instructions_executed"])
    for key in ("count", "came", "went", "cycles_p50", "cycles_p90"):
        assert known(columns[f"blocks.{key}"]) == [row[key] for row in blocks], key
    taken = [row for row in said["edges"] if row["kind"] != "fall through"]
    for table, rows in (("edges", taken), ("arcs", said["arcs"])):
        found = zip(known(columns[f"{table}.count"]), percent(columns[f"{table}.mispredicted"]), strict=True)
        assert Counter(found) == Counter((row["count"], row["mispredicted_percent"]) for row in rows), table
    return answer


FILTERED: dict[str, tuple[Parameters, list[str]]] = {
    "process": ({"pid": "5001"}, ["--pid", "5001"]),
    "module": ({"module": "0"}, ["--module", "lbrdemo"]),
    "time": ({"from": "1000050000", "to": "1000200000"}, ["--time", "1.00005..1.0002"]),
    "both": ({"tid": "5002", "to": "1000150000"}, ["--tid", "5002", "--time", "..1.00015"]),
}
"""Parts of the demo: as the page asks for them, and as a verb does."""


@pytest.mark.parametrize("part", FILTERED)
def test_flame_and_function_hold_to_the_filters(part: str, run: Run) -> None:
    chosen, words = FILTERED[part]
    shown = loaded(demo.capture(), demo.symfs())
    for inline in ({}, {"inline": "1"}):
        flame = check_flame(run, shown, *words, *(["--inline"] if inline else []), chosen={**chosen, **inline})
        assert 0 < flame.header["samples"] < shown.profile.samples
    whole = ask(shown, "function", {"name": "dispatch"}).header["executed"]
    assert 0 < check_function(run, shown, "dispatch", *words, chosen=chosen).header["executed"] <= whole


@pytest.mark.parametrize("limit", [0, 1, 3, 7])
def test_frames_that_are_not_sent_are_summed(limit: int) -> None:
    shown = loaded(demo.capture(), demo.symfs())
    every, cut = (ask(shown, "flame", {"limit": str(count)}) for count in (1000, limit))
    other = cut.header["other"]
    sent = np.asarray(cut.columns["name"]) != other["name"]
    assert np.count_nonzero(sent) == limit
    assert other["nodes"] == len(every.columns["name"]) - limit
    assert other["samples"] == np.asarray(cut.columns["samples"])[~sent].sum() > 0
    assert paths(cut).total() == paths(every).total() == every.header["samples"]
    assert every.header["other"] == {"name": -1, "nodes": 0, "samples": 0}
    heaviest = sorted(np.asarray(every.columns["samples"]).tolist(), reverse=True)[:limit]
    assert sorted(np.asarray(cut.columns["samples"])[sent].tolist(), reverse=True) == heaviest
