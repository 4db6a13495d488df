"""`diff` as Markdown and SARIF, and the action that gates a pull request by it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfdata_writer as pw
from capture_tools import FREESTANDING, build, needs_ptrace
from command_line import Ran
from lastbranch.analysis.comparison import CodeLocation, Difference
from lastbranch.answers.differences import Comparison
from lastbranch.cli.diff import command as diff_verb
from lastbranch.cli.diff import sarif
from lastbranch.cli.view import command as view_verb
from perfdata_writer import Builder

SCHEMA = Path(__file__).parents[1] / "data" / "sarif.json"
ACTION = Path(__file__).parents[2] / ".github" / "actions" / "compare" / "action.yml"
NAME = "odd|name`s"


def capture(path: Path, first: int, second: int) -> Path:
    """Samples in two modules, so many in each."""
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.PERIOD)
    b.comm(pid=7, name="prog", time=1, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x1000, pgoff=0, name="/bin/one", time=2)
    b.mmap2(pid=7, addr=0x600000, length=0x1000, pgoff=0, name=f"/bin/{NAME}", time=3)
    for i in range(first + second):
        b.sample(ip=0x400010 if i < first else 0x600010, pid=7, tid=7, time=1000 * (i + 1), period=100)
    path.write_bytes(b.build())
    return path


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The second module has a quarter of the samples, then half of them."""
    folder = tmp_path_factory.mktemp("differences")
    return capture(folder / "before.data", 300, 100), capture(folder / "after.data", 200, 200)


QUICK = ("--no-symbol-cache",)


def test_markdown_is_a_table_with_its_sentence(run: Callable[..., Ran], captures: tuple[Path, Path]) -> None:
    ran = run("diff", *captures, *QUICK, "--format", "markdown", "--fail-over", "10")
    assert ran.code == 6
    said, grown, empty, head, rule, *rows = ran.out.splitlines()
    assert said == "**2 of 2 differ significantly (false discovery rate 0.05).**"
    assert grown == "**1 share grew significantly by more than 10 points.**"
    assert empty == ""
    cells = [re.split(r"(?<!\\)\|", row)[1:-1] for row in (head, rule, *rows)]
    assert {len(row) for row in cells} == {len(cells[0])} == {10}
    of = [dict(zip((c.strip() for c in cells[0]), (c.strip() for c in row), strict=True)) for row in cells[2:]]
    by_module = {row["function module"]: row for row in of}
    assert by_module["`one`"]["change"] == "**-25.00**"
    (odd,) = by_module.keys() - {"`one`"}
    assert odd == "`` odd\\|name`s ``"
    assert (by_module[odd]["A %"], by_module[odd]["B %"], by_module[odd]["change"]) == ("25.00", "50.00", "**+25.00**")
    same = run("diff", captures[0], captures[0], *QUICK, "--format", "markdown").out
    assert same.startswith("**0 of 2 differ significantly")
    assert "**+" not in same


def test_a_note_says_how_much_longer_to_record(run: Callable[..., Ran], tmp_path: Path) -> None:
    """Three times as long again as each side took, or what --time leaves of it."""
    paths = []
    for name, seconds in (("a", 2), ("b", 4)):
        b = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
        b.mmap2(pid=7, addr=0x400000, length=0x1000, pgoff=0, name="/bin/one", time=1)
        for i in range(9):
            b.sample(ip=0x400010, pid=7, tid=7, time=1 + i * seconds * 10**9 // 8)
        (path := tmp_path / f"{name}.data").write_bytes(b.build())
        paths.append(path)
    noise = "noise is the standard error of change, in points; "
    assert f"{noise}6 s more of A and 12 s more of B would halve it" in run("diff", *paths, *QUICK).err
    cut = run("diff", *paths, *QUICK, "--time", "0..1").err
    assert f"{noise}3 s more of A and 3 s more of B would halve it" in cut


@cache
def schema() -> Any:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    return jsonschema.Draft4Validator(
        json.loads(SCHEMA.read_text()), format_checker=jsonschema.Draft4Validator.FORMAT_CHECKER
    )


def required(log: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of a log, which is as the schema of SARIF 2.1.0 and code scanning require it."""
    assert [(list(error.path), error.message) for error in schema().iter_errors(log)] == []
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("/sarif-schema-2.1.0.json")
    (one,) = log["runs"]
    driver = one["tool"]["driver"]
    assert driver["name"] == "lastbranch"
    rules = [rule["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    for result in one["results"]:
        assert result["message"]["text"]
        assert result["level"] in ("error", "warning", "note")
        assert rules[result["ruleIndex"]] == result["ruleId"]
        for place in (*result["locations"], *result.get("relatedLocations", ())):
            assert place["physicalLocation"]["artifactLocation"]["uri"]
    results: list[dict[str, Any]] = one["results"]
    return results


def test_sarif_has_the_significant_ones(run: Callable[..., Ran], captures: tuple[Path, Path]) -> None:
    words = ("diff", *captures, *QUICK)
    rows = {row["function_module"]: row for row in json.loads(run(*words, "--format", "json").out)}
    for limit, level in (("10", "error"), ("30", "warning")):
        ran = run(*words, "--format", "sarif", "--fail-over", limit)
        assert ran.code == (6 if level == "error" else 0)
        results = {result["level"]: result for result in required(json.loads(ran.out))}
        assert results.keys() == {level, "note"}
        assert results[level]["ruleId"] == "larger-share"
        assert NAME in results[level]["message"]["text"]
        facts, row = results["note"]["properties"], rows["one"]
        assert facts["change"] == pytest.approx(row["change"])
        assert facts["probability"] == pytest.approx(row["p"])
    assert required(json.loads(run("diff", captures[0], *words[1:2], *QUICK, "--format", "sarif").out)) == []


def test_places_are_source_lines_where_they_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    here = CodeLocation("app", "f", "+0x8", f"{tmp_path}/src/a file.c", 12)
    away = CodeLocation("app", "g", "+0x4", "/usr/include/b.h", 3)
    made = Difference(
        ["cycles", "cycles"],
        [(here, away), (CodeLocation("app", "h"), here)],
        np.array([[0.1, 0.5], [0.3, 0.4]]),
        np.array([[10, 50], [30, 40]]),
        np.array([0.001, 0.9]),
        np.array([0.002, 0.9]),
        np.array([0.01, 0.01]),
    )
    (result,) = required(sarif(Comparison(made, "edge", 0.05), 0, None))
    assert result["message"]["text"].startswith("f+0x8 (app) to g+0x4 (app) has 30.00 % of the branch entries of")
    (place,) = result["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "src/a%20file.c", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 12},
    }
    assert place["logicalLocations"] == [{"fullyQualifiedName": "f+0x8", "kind": "function"}]
    (target,) = result["relatedLocations"]
    assert target["physicalLocation"]["artifactLocation"] == {"uri": "file:///usr/include/b.h"}
    for spot, place in (
        (CodeLocation("my lib", "h"), {"artifactLocation": {"uri": "my%20lib"}}),
        (CodeLocation("", ""), None),
    ):
        made.spots[0] = (spot, here)
        (result,) = required(sarif(Comparison(made, "edge", 0.05), 0, None))
        assert [one["physicalLocation"] for one in result["locations"]] == ([place] if place else [])
    for name, value in (("version", "2.0.0"), ("runs", [{}]), ("more", 1)):
        assert list(schema().iter_errors({**sarif(Comparison(made, "edge", 0.05), 0, None), name: value}))


# -- the action


def run_action(here: Path, /, first_on_path: str = "", **inputs: str) -> tuple[int, str, str, str]:
    """(exit code, log, step summary, outputs) of the shell steps, as the runner runs them, without the installation."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    action = yaml.safe_load(ACTION.read_text())
    assert action["runs"]["using"] == "composite"
    values = {name: str(one.get("default", "")) for name, one in action["inputs"].items()}
    assert inputs.keys() <= values.keys()
    values |= {"install": "false", **inputs}
    summary, outputs, log = here / "summary.md", here / "outputs", ""
    path = os.pathsep.join(filter(None, (first_on_path, str(Path(sys.executable).parent), os.environ["PATH"])))
    for step in action["runs"]["steps"]:
        given = {"if": step.get("if", "true"), "run": step["run"], **step.get("env", {})}
        known = {f"inputs.{name}": value for name, value in values.items()}
        known |= {f"steps.compare.outputs.{line.partition('=')[0]}": line.partition("=")[2] for line in lines(outputs)}
        given = {name: filled(text, known) for name, text in given.items()}
        condition, _, wanted = given.pop("if").partition(" == ")
        if wanted and known[condition] != wanted.strip("'"):
            continue
        env = {
            **os.environ,
            **given,
            "PATH": path,
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_OUTPUT": str(outputs),
            "XDG_CACHE_HOME": str(here / "cache"),
        }
        assert step["shell"] == "bash"
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", env.pop("run")]
        done = subprocess.run(command, env=env, cwd=here, capture_output=True, text=True, timeout=300)
        log += done.stdout + done.stderr
        if done.returncode:
            break
    return done.returncode, log, summary.read_text() if summary.exists() else "", "\n".join(lines(outputs))


def filled(text: str, known: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: known[found[1]], text)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_the_action_fails_where_a_share_grew(captures: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = map(str, captures)
    code, log, summary, outputs = run_action(tmp_path, before=before, after=after)
    assert code == 6, log
    assert "::error::" in log
    assert summary.startswith(f"### Shares of {after} against {before}\n\n**2 of 2 differ")
    assert "regressed=true" in outputs
    levels = {one["level"] for one in required(json.loads((tmp_path / "lastbranch-compare/compare.sarif").read_text()))}
    assert levels == {"error", "note"}
    assert (tmp_path / "lastbranch-compare/compare.html").read_bytes().startswith(b"<!doctype html>")


def test_the_action_passes_where_none_grew_by_more(captures: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = map(str, captures)
    code, log, summary, outputs = run_action(
        tmp_path, **{"before": before, "after": after, "fail-over": "40", "picture": "false"}
    )
    assert code == 0, log
    assert "`one`" in summary
    assert "regressed=false" in outputs
    assert run_action(tmp_path, before=before)[:2] == (2, "::error::give after (a capture) or after-command\n")


def test_the_picture_has_the_options_of_the_table(tmp_path: Path) -> None:
    """All but those that are about the table alone: the program that both call writes down what it was given."""
    (bin_ := tmp_path / "bin").mkdir()
    (bin_ / "lastbranch").write_text('#!/bin/sh\necho "$@" >> said\n')
    (bin_ / "lastbranch").chmod(0o755)
    known, shown = ({name: p for p in verb.params for name in p.opts} for verb in (diff_verb, view_verb))
    table = {name: p for name, p in sorted(known.items()) if name.startswith("-") and name not in shown}
    words = [name if getattr(p, "is_flag", False) else f"{name} x {name}=x" for name, p in table.items()]
    options = " ".join(["--symfs root", *words, "--debug-dir=debug", "--no-symbol-cache"])
    code, log, *_ = run_action(
        tmp_path, first_on_path=str(bin_), before="a", after="b", **{"diff-options": options, "folder": "."}
    )
    assert code == 0, log
    assert (tmp_path / "said").read_text().splitlines()[-1].split() == [
        *("view", "--diff", "a", "b", "--symfs", "root", "--debug-dir=debug", "--no-symbol-cache"),
        *("--html", "./compare.html", "--force"),
    ]


@needs_ptrace
def test_the_action_records_commands(tmp_path: Path) -> None:
    program = build(tmp_path, "branches", *FREESTANDING)
    code, log, summary, outputs = run_action(
        tmp_path,
        **{
            "before-command": f"{program} 6000 > said; echo before >> said",
            "after-command": f'"{program}" 6000',
            "record-options": "--engine software --duration 60",
            "diff-options": "--no-symbol-cache",
            "fail-over": "",
            "picture": "false",
            "folder": "a folder",
        },
    )
    assert code == 0, log
    folder = Path("a folder")
    assert summary.startswith(f"### Shares of {folder}/after.tb5 against {folder}/before.tb5\n")
    assert (tmp_path / "said").read_text().endswith("before\n")
    assert {path.name for path in (tmp_path / folder).iterdir()} == {
        "before.tb5",
        "after.tb5",
        "compare.md",
        "compare.sarif",
    }
    required(json.loads((tmp_path / folder / "compare.sarif").read_text()))
    assert outputs == "regressed=false"
