"""Tables of answers: a column is declared once, and everybody who shows the table has it."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import Ran
from lastbranch import demo
from lastbranch.answers import branches, differences, function_code, functions
from lastbranch.answers.catalogue import TABLE_KINDS
from lastbranch.answers.columns import Column, TableKind, To
from lastbranch.answers.table import Known, Ratio, make_table
from lastbranch.cli.top_tables import Session, branch_table
from lastbranch.opening import FileSource
from lastbranch.recording.live import LiveCapture
from lastbranch.symbols import SymbolOptions
from lastbranch.view.questions import ask
from viewer import loaded

Run = Callable[..., Ran]
ROOT = Path(__file__).parents[2]

NEW = Column(name="twice", title="twice %", meaning="made up", form="decimal", to=To.ALL)


def forms(run: Run, verb: str, *more: str) -> tuple[list[str], list[str], list[str]]:
    """Titles of the table, names in csv, and keys in json, of ``verb`` on the demo's capture."""
    words = (verb, demo.capture(), "--symfs", demo.symfs(), *more)
    table, rows, objects = (run(*words, "--format", form).out for form in ("table", "csv", "json"))
    return table.splitlines()[0].split("  "), next(csv.reader(io.StringIO(rows))), list(json.loads(objects)[0])


def test_a_new_column_of_functions_is_one_declaration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    column = replace(NEW, value=lambda rows: 2.0 * rows.samples)
    declared = replace(functions.FUNCTIONS, columns=(*functions.FUNCTIONS.columns, column))
    monkeypatch.setattr(functions, "FUNCTIONS", declared)
    titles, names, keys = forms(run, "report", "--by", "function")
    assert "twice %" in [title.strip() for title in titles]
    assert (names[-1], keys[-1]) == ("twice_percent", "twice_percent")
    answer = ask(loaded(demo.capture(), demo.symfs()), "hot", {})
    samples = np.asarray(answer.columns["samples"])
    assert np.asarray(answer.columns["twice"]).tolist() == (2.0 * samples).tolist()
    assert "made up" in [one["meaning"] for one in answer.header["columns"]], "the page shows what is declared"


def test_a_new_column_of_branches_is_one_declaration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    column = replace(NEW, value=lambda rows: 2.0 * rows.table.count)
    declared = replace(branches.BRANCHES, columns=(*branches.BRANCHES.columns, column))
    monkeypatch.setattr(branches, "BRANCHES", declared)
    titles, names, keys = forms(run, "branches")
    assert "twice %" in [title.strip() for title in titles]
    assert (names[-1], keys[-1]) == ("twice_percent", "twice_percent")
    answer = ask(loaded(demo.capture(), demo.symfs()), "branches", {})
    assert np.asarray(answer.columns["twice"]).tolist() == (2.0 * np.asarray(answer.columns["count"])).tolist()
    assert "made up" in [one["meaning"] for one in answer.header["columns"]], "the page shows what is declared"
    with LiveCapture(FileSource(demo.capture()), SymbolOptions(), symfs=demo.symfs()) as live:
        session = Session(live, None)
        session.read()
        assert branch_table(session, session.look(), 5).shown[-1] is column


def test_a_new_column_of_differences_is_one_declaration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    column = replace(NEW, value=lambda rows: 2.0 * rows.side(rows.found.samples, 1))
    declared = replace(differences.DIFFERENCES["function"])
    declared = replace(declared, columns=(*declared.columns, column))
    monkeypatch.setitem(differences.DIFFERENCES, "function", declared)
    titles, names, keys = forms(run, "diff", "--against", demo.capture())
    assert "twice %" in [title.strip() for title in titles]
    assert (names[-1], keys[-1]) == ("twice_percent", "twice_percent")
    shown = loaded(demo.capture(), demo.symfs())
    shown.before = loaded(demo.capture(), demo.symfs())
    answer = ask(shown, "diff", {})
    assert np.asarray(answer.columns["twice"]).tolist() == (2.0 * np.asarray(answer.columns["samples"])).tolist()
    assert "made up" in [one["meaning"] for one in answer.header["columns"]]


def test_a_new_column_of_code_is_one_declaration(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    column = replace(NEW, to=To.VERBS, value=lambda rows: 2.0 * rows.samples)
    declared = function_code.INSTRUCTIONS
    monkeypatch.setattr(function_code, "INSTRUCTIONS", replace(declared, columns=(*declared.columns, column)))
    words = ("annotate", demo.capture(), "main", "--symfs", demo.symfs(), "--format")
    rows = list(csv.DictReader(io.StringIO(run(*words, "csv").out)))
    assert [float(row["twice_percent"]) for row in rows] == [2.0 * int(row["samples"]) for row in rows]
    assert "twice_percent" in json.loads(run(*words, "json").out)["instructions"][0]


def test_reference_pages_are_made_from_the_declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("generate", ROOT / "tools" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    monkeypatch.setattr(generate, "TABLE_KINDS", [TableKind(name="made up", row="a thing", columns=(NEW,))])
    assert "| `twice %` | `twice_percent` |  | made up |" in generate.answers()


@pytest.mark.parametrize("kind", TABLE_KINDS, ids=[kind.name for kind in TABLE_KINDS])
def test_declarations_hold_together(kind: TableKind) -> None:
    names = [column.name for column in kind.columns]
    assert len(set(names)) == len(names)
    verbs = [column.key for column in kind.columns if column.to & To.VERBS]
    assert len(set(verbs)) == len(verbs)
    spare = [name for one in kind.spare for name in ([one] if isinstance(one, str) else one)]
    shared = {"bursts", "noise", "depth", "blocks", "longest", "trips_p90", "trips_p50"}  # of several tables at once
    assert set(kind.last) <= set(names)
    assert set(spare) - shared <= set(names)
    assert all(column.meaning for column in kind.columns)


def test_what_is_not_known_is_empty_for_people_and_nan_for_the_viewer() -> None:
    counts, whole = np.array([3, 0, 5]), np.array([8, 0, 8])
    kind = TableKind(
        name="t",
        row="a row",
        columns=(
            Column(
                name="share",
                title="share %",
                meaning="m",
                form="percent",
                to=To.ALL,
                value=lambda rows: Ratio(counts, whole),
            ),
            Column(name="few", title="few", meaning="m", to=To.ALL, value=lambda rows: Known(counts, counts > 0)),
            Column(
                name="text", title="text", meaning="m", form="text", to=To.ALL, value=lambda rows: ["a", None, "b\x1b"]
            ),
            Column(name="never", title="never", meaning="m", to=To.ALL),
        ),
    )
    table = make_table(kind, None, 3)
    assert table.cells() == [[37.5, 3, "a", None], [None, None, None, None], [62.5, 5, "b\x1b", None]]
    assert repr(table).splitlines()[-1].split() == ["62.5", "5", "b\\x1b"]
    assert "never" not in repr(table)
    assert "<td>b\\x1b</td>" in table._repr_html_()
    assert list(table.df()["share_percent"])[::2] == [37.5, 62.5]
    assert table.arrow().column("share_percent").to_pylist() == [37.5, None, 62.5]
    arrays = table.arrays()
    assert arrays["text"] == ["a", "", "b\\x1b"]
    assert np.asarray(arrays["share"])[[0, 2]].tolist() == [0.375, 0.625]
    assert np.isnan([np.asarray(arrays[name])[1] for name in ("share", "few", "never")]).all()
