"""Tables that show themselves and convert: against the arrays that they were made from."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np
import pytest

import lastbranch
from lastbranch import demo
from lastbranch.errors import SelectionError, UnavailableError
from lastbranch.model import Array, Columns, Profile, RowNames, Tabular


@dataclass(repr=False)
class Made(Tabular):
    module: Array
    start: Array
    count: Array
    row_names: RowNames = field(default_factory=dict)


@pytest.fixture
def made() -> Made:
    columns = np.array([0, -1, 1]), np.array([16, 32, 48], np.uint64), np.array([5, 9, 7])
    return Made(*columns, {"module": lambda: ["app", "<lib>"]})


@pytest.fixture(scope="module")
def profile() -> Profile:
    return lastbranch.open(demo.capture(), symfs=demo.symfs())


def test_rows_have_names(made: Made) -> None:
    assert list(made.rows(2)) == [
        {"module": "app", "start": 16, "count": 5},
        {"module": None, "start": 32, "count": 9},
    ]


def test_top_keeps_row_numbers(made: Made) -> None:
    assert made.top(2, by="count").module.tolist() == [-1, 1]
    assert made.top(1).count.tolist() == [5]
    with pytest.raises(SelectionError, match="no column 'nothing'"):
        made.top(1, by="nothing")


def test_text_and_html(made: Made) -> None:
    assert repr(made).splitlines() == [
        "Made: 3 rows",
        "module  start  count",
        "   app   0x10      5",
        "         0x20      9",
        " <lib>   0x30      7",
    ]
    assert "<td>&lt;lib&gt;</td><td>0x30</td><td>7</td>" in made._repr_html_()


def test_long_tables_are_cut() -> None:
    table = Columns({"n": np.arange(11)})
    assert repr(table).splitlines()[-2:] == ["9", "..."]
    assert repr(table.top(10)).splitlines()[-1] == "9"
    assert table._repr_html_().count("<tr>") == 11


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_conversions_are_equal_to_the_rows(library: str, profile: Profile) -> None:
    pytest.importorskip(library)
    for table in (lastbranch.branches(profile), lastbranch.ranges(profile), lastbranch.weights(profile, "thread")):
        convert = {
            "pandas": lambda t: t.df().to_dict("records"),
            "polars": lambda t: t.pl().to_dicts(),
            "pyarrow": lambda t: t.arrow().to_pylist(),
        }[library]
        rows = [{n: None if v != v else v for n, v in row.items()} for row in convert(table)]
        assert rows == list(table.rows())


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_missing_library_is_named(library: str, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    method = {"pandas": made.df, "polars": made.pl, "pyarrow": made.arrow}[library]
    with pytest.raises(UnavailableError, match=f"{library} is not installed"):
        method()


def test_a_profile_shows_its_sizes(profile: Profile) -> None:
    assert "240 samples, 3,840 branch entries, 2 processes, 4 modules" in repr(profile)
    assert "<td>240</td>" in profile._repr_html_()
    assert repr(profile.table("processes")).startswith("Columns: 2 rows\n")


def test_open_is_called_open() -> None:
    assert lastbranch.open.__name__ == "open"
    assert lastbranch.record.__module__ == "lastbranch.recording.recorders"


def test_record_takes_words() -> None:
    with pytest.raises(SelectionError, match="not a sequence of words"):
        lastbranch.record("ls")
