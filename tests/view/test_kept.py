"""Kept answers: the same as counted ones, never those of something else, and bounded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from command_line import Ran
from lastbranch import demo
from lastbranch.symbols.cache import Cache
from lastbranch.view import kept, partial, wire
from lastbranch.view.kept import KIND, KeptAnswers, kept_answers
from lastbranch.view.questions import ask
from small_captures import build
from viewer import frames, loaded, serving

OLD = 1_600_000_000
RESULTS = "cache/lastbranch/results"


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every capture counts as a large one; the cache is empty."""
    monkeypatch.setattr(partial, "_LARGE", 1)
    monkeypatch.setattr(kept, "_SETTLED", -1 << 62)  # files that were written just now can be told apart, too
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return build(tmp_path / "x.data")


def opened(path: Path, said: list[str] | None = None) -> KeptAnswers:
    made = kept_answers(loaded(path), (said if said is not None else []).append)
    assert made is not None
    return made


def keep(path: Path, question: str = "hot") -> bytes:
    """Count and keep an answer, as the server does."""
    answers = opened(path)
    answer = wire.encode(ask(answers._loaded, question, {}))
    answers.keep(question, {}, answer)
    return answer


def kept_files(tmp_path: Path, kind: str = KIND) -> list[Path]:
    return sorted((tmp_path / RESULTS).glob(f"*.{kind}"))


def test_an_answer_comes_back_as_it_was(capture: Path) -> None:
    assert opened(capture).get("hot", {}) is None
    answers = {question: keep(capture, question) for question in ("hot", "overview", "branches", "time")}
    again = opened(capture)
    for question, answer in answers.items():
        assert again.may_have(question, {})
        assert again.get(question, {}) == answer
    assert again.get("hot", {"pid": "1"}) is None
    assert again.get("capture", {}) is None
    assert opened(capture).get("hot", {}) == answers["hot"]


def test_the_digest_decides_and_not_the_name_or_the_time(capture: Path, tmp_path: Path) -> None:
    answer = keep(capture)
    os.utime(capture, (OLD, OLD))
    assert opened(capture).get("hot", {}) == answer  # the same bytes
    data = bytearray(capture.read_bytes())
    capture.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(capture, (OLD, OLD))
    assert opened(capture).get("hot", {}) is None


def test_the_digest_of_what_may_still_be_written_is_not_remembered(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could change again and have the same size and times."""
    monkeypatch.setattr(kept, "_SETTLED", 1 << 62)
    answer = keep(capture)
    assert kept_files(tmp_path, "digest") == []
    assert opened(capture).get("hot", {}) == answer


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_counted_anew_and_said(capture: Path, tmp_path: Path, damage: str) -> None:
    answer = keep(capture)
    (path,) = kept_files(tmp_path)
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        {
            "cut": data[:middle],
            "empty": b"",
            "changed": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        }[damage]
    )
    said = list[str]()
    assert opened(capture, said).get("hot", {}) is None
    assert said == [f"a kept result is not used: it is damaged ({path})"]
    assert keep(capture) == answer
    assert opened(capture).get("hot", {}) == answer


def test_another_version_or_another_binary_is_counted_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    symfs = tmp_path / "symfs"
    shutil.copytree(demo.symfs(), symfs)
    said = list[str]()

    def look() -> tuple[KeptAnswers, bytes | None]:
        answers = kept_answers(loaded(demo.capture(), symfs), said.append)
        assert answers is not None
        return answers, answers.get("hot", {})

    answers, nothing = look()
    assert nothing is None
    answer = wire.encode(ask(answers._loaded, "hot", {}))
    answers.keep("hot", {}, answer)
    assert look()[1] == answer
    with monkeypatch.context() as patch:
        patch.setattr(kept, "_code", lambda: ["0.0", 1, 1])
        assert look()[1] is None
    binary = next(module.binary for module in answers._loaded.profile.modules if module.binary)
    os.utime(binary, (OLD, OLD))
    assert look()[1] is None
    assert [one.partition(": ")[2].partition(" (")[0] for one in said] == [
        "another version of lastbranch has counted it",
        "a binary was changed",
    ]


def test_small_captures_several_and_damaged_ones_are_not_kept(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "damaged.data"
    damaged.write_bytes(build(tmp_path / "small.data").read_bytes()[:-64])
    shown = loaded(damaged)
    answers = kept_answers(shown, [].append)
    answer = wire.encode(ask(shown, "hot", {}))
    if shown.profile.damage and answers is not None:
        answers.keep("hot", {}, answer)
    assert shown.profile.damage
    assert kept_files(tmp_path) == []
    monkeypatch.setattr(partial, "_LARGE", 1 << 40)
    assert kept_answers(loaded(capture), [].append) is None


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    folder = tmp_path / "bounded"
    folder.mkdir(mode=0o700)
    cache = Cache(str(folder), limit=4096)
    column = {"answer": np.zeros(1000, np.uint8)}
    for number in range(3):
        cache.write([number], KIND, column)
        os.utime(cache.path([number], KIND), (OLD + number, OLD + number))
    assert cache.read([0], KIND, len) == 1  # used just now
    cache.write([3], KIND, column)
    assert [cache.read([number], KIND, len) for number in range(4)] == [1, None, 1, 1]


def test_the_server_keeps_and_takes_them_and_the_verb_lists_them(
    capture: Path, tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = loaded(capture)
    with serving(shown, kept_answers(shown, [].append)) as at:
        (_, first), (kind, whole) = frames(at, "watch/hot")
        frames(at, "watch/overview")  # comes after what was to be kept
        frames(at, "watch/timeline")
    assert (kind, len(first) > 0) == (b"DONE", True)
    again = loaded(capture)
    monkeypatch.setattr("lastbranch.view.server.ask", lambda *_: pytest.fail("it was counted again"))
    with serving(again, kept_answers(again, [].append)) as at:
        assert frames(at, "watch/hot") == [(b"DONE", whole)]
    listed = run("cache", "--format", "csv").out.splitlines()
    assert listed[0] == "last_used,bytes,kept,of"
    assert any(line.endswith(",hot,x.data") for line in listed)
    size = {row.split(",")[0]: row.split(",") for row in run("cache", "size", "--format", "csv").out.splitlines()}
    assert int(size["results"][2]) == sum(path.stat().st_size for path in (tmp_path / RESULTS).iterdir())
    assert str(tmp_path / RESULTS) in run("cache", "path").out
    assert "were removed" in run("cache", "clear").err
    assert kept_files(tmp_path) == []
    assert run("cache").err == "note: nothing is kept\n"
