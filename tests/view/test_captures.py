"""The viewer of several captures: its answers are those about one recording of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lastbranch
from captures import Data
from concatenated import concatenated, moved
from lastbranch.bind import JoinedProfile
from lastbranch.demo import symfs
from lastbranch.errors import SelectionError, UnavailableError
from lastbranch.symbols import SymbolOptions
from lastbranch.view.answers import ask
from lastbranch.view.loaded import Loaded
from small_captures import build


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


def test_capture_lists_the_captures_and_findings_name_them(both: tuple[Loaded, Loaded]) -> None:
    joined, _ = both
    assert [c["file"] for c in ask(joined, "capture", {}).header["captures"]] == [*joined.paths]
    seen = ask(joined, "findings", {}).columns["seen"]
    assert all(text.startswith(joined.paths) for text in seen)


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
