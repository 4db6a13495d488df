"""What is in the single file, and what is not: all that fits, the sum of the rest, and no name if none is wanted."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest

import lastbranch
from captures import Data
from command_line import Ran
from lastbranch import demo
from lastbranch.analysis import summary
from lastbranch.model import ModuleKind
from lastbranch.view import single_file, wire
from lastbranch.view.answer import Answer
from lastbranch.view.loaded import Loaded
from lastbranch.view.questions import ask
from small_captures import build
from viewer import loaded

Run = Callable[..., Ran]
Key = frozenset[tuple[str, str]]
PUBLIC = {"6.6.0", "clock", "error"}
"""Names, and the version of perf, that are also words of what the page says."""


def parts(page: bytes) -> tuple[dict, dict[Key, Answer | dict]]:
    """(what the file says of itself; by question and parameters its answers, or the reasons why there is none)."""
    facts, found = {}, dict[Key, Answer | dict]()
    tags = re.findall(rb'<script type="application/x-lastbranch-(\w+)"(?: data-key="([^"]*)")?>([^<]*)<', page)
    for kind, key, text in tags:
        data = base64.b64decode(text)
        pairs = frozenset(parse_qsl(html.unescape(key.decode())))
        if kind == b"file":
            facts = json.loads(data)
        else:
            found[pairs] = wire.decode(gzip.decompress(data)) if kind == b"answer" else json.loads(data)
    return facts, found


def of(found: dict[Key, Answer | dict], question: str, **parameters: str) -> Answer:
    answer = found[frozenset({("question", question), *parameters.items()})]
    assert isinstance(answer, Answer)
    return answer


def functions(found: dict[Key, Answer | dict]) -> int:
    return sum(("question", "function") in key for key in found)


def texts(value: object) -> list[str]:
    """Every text in it, at any depth."""
    match value:
        case str():
            return [value]
        case dict():
            return [text for pair in value.items() for text in texts(list(pair))]
        case list():
            return [text for one in value for text in texts(one)]
    return []


def words(found: dict[Key, Answer | dict], facts: dict) -> str:
    every = texts(facts)
    for answer in found.values():
        columns = answer.columns if isinstance(answer, Answer) else {}
        every += texts(answer.header if isinstance(answer, Answer) else answer)
        every += [text for column in columns.values() if not isinstance(column, np.ndarray) for text in column]
    return "\n".join(every)


def test_the_file_has_what_the_questions_are_answered_with() -> None:
    shown = loaded(demo.capture(), demo.symfs())
    facts, found = parts(single_file.single_file(shown, {}))
    assert facts["filters"] == {}
    code = {key for key, answer in found.items() if ("question", "function") in key and isinstance(answer, Answer)}
    assert facts["notes"][0].startswith(f"This file has the code of {len(code)} functions; ")
    for question in ("overview", "hot", "branches", "capture"):
        assert wire.encode(of(found, question)) == wire.encode(ask(shown, question, {}))
    assert functions(found) > 1


@pytest.mark.thorough
def test_a_file_that_is_too_small_keeps_the_heaviest_and_sums_the_rest() -> None:
    shown = loaded(demo.capture(), demo.symfs())
    whole = ask(shown, "hot", {})
    samples = np.asarray(whole.columns["samples"])
    empty = len(single_file._page("", ""))
    seen = set()
    for room in (76_000, 100_000):
        page = single_file.single_file(shown, {}, largest=empty + room)
        assert len(page) <= empty + room
        facts, found = parts(page)
        seen.add(functions(found))
        assert facts["notes"][0].startswith("This file has the code of ")
    assert len(seen) > 1  # the more room, the more functions
    for limit in (1, 3):
        cut = ask(shown, "hot", {"limit": str(limit)})
        kept = np.asarray(cut.columns["samples"])
        assert sorted(kept.tolist()) == sorted(samples.tolist())[-limit:]
        assert cut.header["other"]["samples"] == samples.sum() - kept.sum()
        assert cut.header["other"]["rows"] == len(samples) - limit
        parts_of_time = np.asarray(cut.columns["over_time"]).reshape(limit, -1)
        assert parts_of_time.sum(1).tolist() == kept.tolist()
    assert whole.header["other"] == {"rows": 0, "samples": 0, "share": 0.0}


def secrets(path: Path, symfs: Path | None) -> set[str]:
    """Names that must not be in an anonymous file, and parts of paths."""
    shown = loaded(path, symfs)
    profile = shown.profile
    modules = [m for m in profile.modules if m.kind in (ModuleKind.FILE, ModuleKind.KERNEL_MODULE)]
    names = {p.name for p in profile.processes} | {t.name for t in profile.threads} | {m.short for m in modules}
    names |= {p.command_line for p in profile.processes} | {m.name for m in modules} | {m.pdb_name for m in modules}
    names |= {m.build_id.hex() for m in profile.modules} | {str(m.pdb_guid) for m in modules if m.pdb_guid}
    names |= {profile.machine.host, profile.machine.os_release, path.name, str(path), *profile.header.values()}
    for row in range(len(profile.modules)):
        names |= {one for f in shown.symbolizer.functions(row).functions for one in (f.name, f.shown, f.file)}
    common = re.compile(r"[\w ]{0,4}|perf(\.data)?|\d+|call|taken|branch(es)?|count(er|s)?|entry|record|start|yes|main")
    return {name for name in names if not common.fullmatch(name)}


@pytest.mark.parametrize("name", ["demo", "etl", "own"])
def test_an_anonymous_file_has_no_name_in_it(name: str, data: Data, tmp_path: Path) -> None:
    path, symfs = {
        "demo": lambda: (Path(demo.capture()), Path(demo.symfs())),
        "etl": lambda: (data.root.parent / "etl" / "net.4.5.2.x64.etl", None),
        "own": lambda: (build(tmp_path / "secret-project.data", name="/home/someone/secret/prog"), None),
    }[name]()
    shown = loaded(path, symfs)
    before = summary.summarize(shown.profile)
    facts, found = parts(single_file.single_file(shown, {}, anonymise=True))
    text = words(found, facts)
    there = set(re.findall(r"\w+", text))
    possible = (one for one in secrets(path, symfs) if there.issuperset(re.findall(r"\w+", one)))
    leaked = {one for one in possible if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", text)}
    assert leaked - PUBLIC == set()
    assert str(Path.home()) not in text
    assert "Names are hashes" in " ".join(facts["notes"])
    named = ask(loaded(path, symfs), "hot", {}).columns
    columns = of(found, "hot").columns
    for column in ("samples", "start", "module_row", "instructions", "mispredicted"):
        assert np.array_equal(np.asarray(columns[column]), np.asarray(named[column]), equal_nan=column[0] in "im")
    hashed = dict(zip(named["function"], columns["function"], strict=True))
    assert len(set(hashed.values())) == len(hashed)
    assert summary.summarize(shown.profile) == before  # the capture that is open keeps its names


def test_an_anonymous_file_of_several_captures_has_no_name_of_any(run: Run, data: Data, tmp_path: Path) -> None:
    """Neither their hosts, nor those of the files that were left out; that their events differ does not prevent it."""
    out, empty = tmp_path / "out.html", tmp_path / "secret-project.data"
    empty.touch()
    captures = [data.path("demo_2proc"), data.path("cfl_9700_callgraph_lbr"), build(tmp_path / "c.data", type=0)]
    assert run("view", *captures, empty, "--anonymise", "--html", out).code == 1  # for what was left out
    facts, found = parts(out.read_bytes())
    text = words(found, facts)
    for name in (*map(str, captures), str(tmp_path), empty.name, "pc-ubuntu", "synthetic", "lbrdemo", "vector_static"):
        assert name not in text, name
    shown = of(found, "capture").header["captures"]
    assert [one["samples"] for one in shown] == [lastbranch.open(path).samples for path in captures]


def test_hashes_of_two_files_cannot_be_compared(tmp_path: Path) -> None:
    path = build(tmp_path / "x.data")
    one, two = (of(parts(single_file.single_file(loaded(path), {}, anonymise=True))[1], "overview") for _ in range(2))
    assert one.columns["modules.samples"].tolist() == two.columns["modules.samples"].tolist()  # type: ignore[union-attr]
    assert set(one.columns["modules.name"]).isdisjoint(two.columns["modules.name"])


@pytest.mark.parametrize(("source", "anonymise"), [(False, False), (True, False), (True, True), (False, True)])
def test_source_is_in_the_file_only_by_consent(
    source: bool, anonymise: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read = list[str]()
    text = "int secret;\n"
    (tmp_path / "x.c").write_text(text)
    shown = loaded(demo.capture(), demo.symfs())
    shown.source_roots = (str(tmp_path),)
    ask_as_it_is = single_file.ask

    def ask_and_read(loaded: Loaded, question: str, parameters: Mapping[str, str]) -> Answer:
        read.append(loaded.sources.line(0, "/src/x.c", 1) or "")
        return ask_as_it_is(loaded, question, parameters)

    monkeypatch.setattr(single_file, "ask", ask_and_read)
    facts, _ = parts(single_file.single_file(shown, {}, source=source, anonymise=anonymise))
    allowed = source and not anonymise
    assert set(read) == ({text.strip()} if allowed else {""})
    assert ("no source text" in " ".join(facts["notes"])) is not allowed


def test_what_only_a_file_can_leave_out_needs_one(run: Run) -> None:
    for option in ("--no-source", "--anonymise"):
        done = run("view", demo.capture(), "--no-open", option)
        assert done.code == 2
        assert "add --html" in done.err
