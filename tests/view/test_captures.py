"""The viewer of several captures: its answers are those about one recording of all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lastbranch
from captures import Data
from command_line import Ran
from concatenated import concatenated, moved
from lastbranch.bind import JoinedProfile
from lastbranch.demo import symfs
from lastbranch.errors import SelectionError, UnavailableError
from lastbranch.symbols import SymbolOptions
from lastbranch.view.loaded import Loaded
from lastbranch.view.questions import ask
from small_captures import build
from viewer import looking_at, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def shown(paths: list[str]) -> Loaded:
    profile = lastbranch.open(paths, symfs=symfs())
    return Loaded(profile, SymbolOptions(cache=None), tuple(c.name for c in profile.captures), symfs())


@pytest.fixture(scope="module")
def both(data: Data, tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, Loaded]:
    """(two captures, one with the records of both)."""
    folder = tmp_path_factory.mktemp("captures")
    one, other = data.path("demo_2proc").read_bytes(), data.path("demo_pie").read_bytes()
    other = moved(other, 1000, 10**10)
    files = [folder / name for name in ("one.data", "other.data", "whole.data")]
    for file, content in zip(files, (one, other, concatenated(one, other)), strict=True):
        file.write_bytes(content)
    *parts, whole = map(str, files)
    return shown(parts), shown([whole])


def plain(columns: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [repr(value) for value in np.asarray(column, object).tolist()] for name, column in columns.items()}


QUESTIONS: dict[str, dict[str, str]] = {
    "hot": {},
    "hot of a process": {"pid": "6001"},
    "hot of a module": {"module": "0"},
    "branches": {},
    "flame": {},
    "function": {"at_module": "0", "start": "0x1120"},
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_those_about_one_recording(both: tuple[Loaded, Loaded], question: str) -> None:
    one, other = (ask(each, question.partition(" ")[0], QUESTIONS[question]) for each in both)
    for answer in (one, other):
        answer.columns.pop("over_time", None)  # each counts from its own start
    assert plain(one.columns) == plain(other.columns)
    assert one.columns


def test_the_first_answer_counts_all(both: tuple[Loaded, Loaded]) -> None:
    one, other = (ask(each, "overview", {}) for each in both)
    assert one.header["samples"] == other.header["samples"]
    assert plain(one.columns) == plain(other.columns)


def test_findings_name_their_capture(tmp_path: Path) -> None:
    paths = [str(build(tmp_path / name)) for name in ("a.data", "b.data")]
    seen = ask(shown(paths), "findings", {}).columns["seen"]
    assert {str(text).partition(": ")[0] for text in seen} == set(paths)


def test_the_capture_screen_lists_the_captures_as_info_does(
    run: Callable[..., Ran], browser: Browser, both: tuple[Loaded, Loaded]
) -> None:
    joined, whole = both
    info = json.loads(run("info", *joined.paths, "--format", "json").out)
    with serving(joined) as at, looking_at(browser, f"{at}#/capture") as page:
        table = page.get_by_role("table", name="Captures", exact=True)
        table.wait_for()
        names, *shown = [row.locator("th, td").all_inner_texts() for row in table.locator("tr").all()]
        rows = [dict(zip(names, row, strict=True)) for row in shown]
        assert [row["file"] for row in rows] == [*joined.paths]
        for row, capture in zip(rows, info["captures"], strict=True):
            assert row["samples"] == f"{capture['samples']:,}"
            assert row["branch entries"] == f"{capture['branch_entries']:,}"
            assert row["weight"] == "1"
        assert page.locator(".file").inner_text() == "one.data and 1 more"
        assert f"{info['samples']:,}" in page.locator("dl.facts").first.inner_text()
    with serving(whole) as at, looking_at(browser, f"{at}#/capture") as page:
        page.get_by_role("heading", name="Streams").wait_for()
        assert page.get_by_role("table", name="Captures", exact=True).count() == 0  # of one it would say nothing


def test_times_are_those_from_the_start_of_each(both: tuple[Loaded, Loaded]) -> None:
    joined, _ = both
    header = ask(joined, "overview", {}).header
    assert isinstance(joined.profile, JoinedProfile)
    longest = max(m.profile.last_time - m.start for m in joined.profile.members)  # type: ignore[operator]
    assert header["time"]["to"] == longest
    chosen = ask(joined, "hot", {"to": str((header["time"]["from"] + longest) // 2)})
    assert 0 < sum(np.asarray(chosen.columns["samples"]).tolist()) < header["samples"]


def test_a_change_of_any_capture_is_seen(tmp_path: Path) -> None:
    paths = [str(build(tmp_path / name)) for name in ("a.data", "b.data")]
    viewed = shown(paths)
    viewed.check_unchanged()
    Path(paths[1]).unlink()
    with pytest.raises(UnavailableError, match=r"b\.data is not there any more"):
        viewed.check_unchanged()


def test_what_is_left_out_is_a_warning(tmp_path: Path) -> None:
    paths = [str(build(tmp_path / "a.data")), str(build(tmp_path / "b.data"))]
    (tmp_path / "empty.data").touch()
    warnings = ask(shown([*paths, str(tmp_path / "empty.data")]), "overview", {}).header["warnings"]
    assert any("empty.data" in warning for warning in warnings)


def test_different_events_are_chosen_between(tmp_path: Path) -> None:
    viewed = shown([str(build(tmp_path / "a.data")), str(build(tmp_path / "b.data", type=0, config=1))])
    with pytest.raises(SelectionError, match="different events"):
        ask(viewed, "branches", {})
    assert ask(viewed, "branches", {"event": "1"}).columns
    assert len(ask(viewed, "overview", {}).columns["events.name"]) == 2
