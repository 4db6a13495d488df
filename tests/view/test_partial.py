"""Large captures: a first look at a part of the samples, then all of them, and no work for who has left."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pytest

import lastbranch
from captures import Data
from lastbranch import demo
from lastbranch.errors import NotRecordedError
from lastbranch.formats.perfdata import reader, walk
from lastbranch.model import SampleBatch, SampleStream
from lastbranch.opening import FileSource
from lastbranch.view import partial, server, wire
from lastbranch.view.answer import Answer
from lastbranch.view.loaded import Loaded
from lastbranch.view.partial import FirstLook
from lastbranch.view.questions import ask
from small_captures import build
from viewer import cells, frames, loaded, looking_at, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Parameters = Mapping[str, str]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every capture counts as a large one."""
    monkeypatch.setattr(partial, "_LARGE", 1)


def batch_of(times: range) -> SampleBatch:
    columns = {name: np.zeros(len(times), kind) for name, kind in (("pid", np.int32), ("event", np.int32))}
    return SampleBatch({**columns, "time": np.arange(times.start, times.stop)}, {})


@pytest.mark.parametrize("size", [1, 40, 1000, 100_000])
def test_a_part_is_drawn_from_all_over_the_stream(size: int) -> None:
    """Batches of any size, of which each twelfth part of the stream has one."""
    whole = 96_000

    def reader(_wanted: object) -> Iterator[tuple[SampleBatch, int]]:
        for first in range(0, whole, size):
            yield batch_of(range(first, min(whole, first + size))), 0

    stream = SampleStream(0, (), (0,), whole, 0, 0, reader)
    shown = loaded(demo.capture())
    shown.profile.streams = [stream]
    part = list(FirstLook(shown).part(stream).batches())
    times = np.concatenate([batch.time for batch in part])
    assert len(part) == min(12, -(-whole // size))
    assert len(times) == sum(map(len, part)) < whole or size == 100_000
    assert set((times * 12 // whole).tolist()) == set(range(12)) or size == 100_000


@pytest.mark.parametrize("places", [1, 5])
def test_places_of_a_file_are_read_alone(places: int, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of perf.data: samples as they are in the whole file, from each part of it, and nothing of what lies between."""
    monkeypatch.setattr(walk, "BLOCK_BYTES", walk.LONGEST)
    monkeypatch.setattr(reader, "_DRAWN_BYTES", 4096)
    path = data.root / "skx_6154_32deep_pie.perf.data"
    asked = list[int]()
    readinto = FileSource.readinto

    def counted(self: FileSource, offset: int, buffer: bytearray) -> int:
        asked.append(len(memoryview(buffer).cast("B")))
        return readinto(self, offset, buffer)

    profile = lastbranch.open(path)
    (stream,) = profile.streams
    whole = {name: np.concatenate([batch[name] for batch in stream.batches()]) for name in ("time", "ip")}
    monkeypatch.setattr(FileSource, "readinto", counted)
    assert stream.drawer is not None
    drawn = [(batch.time.copy(), batch.ip.copy()) for batch in stream.drawer(places, frozenset())]
    where = [int(np.flatnonzero(whole["time"] == times[0])[0]) for times, _ in drawn]
    assert [at * places // stream.samples for at in where] == list(range(places))
    for at, (times, ip) in zip(where, drawn, strict=True):
        assert times.tolist() == whole["time"][at : at + len(times)].tolist()
        assert ip.tolist() == whole["ip"][at : at + len(times)].tolist()
    assert sum(asked) < 2 * places * 4096 < path.stat().st_size


def test_the_first_part_says_what_it_has_seen_and_then_comes_the_whole(large: None, data: Data) -> None:
    shown = loaded(data.path("demo_pie"))
    with serving(shown) as at:
        (first, part), (last, whole) = frames(at, "watch/hot")
        assert (first, last) == (b"PART", b"DONE")
        answer = wire.decode(part)
        said = answer.header["part"]
        assert said["of"] == shown.profile.samples
        assert np.asarray(answer.columns["samples"]).sum() == said["samples"] <= said["of"]
        assert whole == wire.encode(ask(loaded(data.path("demo_pie")), "hot", {}))
        assert [kind for kind, _ in frames(at, "watch/hot")] == [b"DONE"]  # it is known now
        assert [kind for kind, _ in frames(at, "watch/capture")] == [b"DONE"]  # counts nothing


def test_a_question_without_an_answer_fails_once(large: None, tmp_path: Path) -> None:
    with serving(loaded(build(tmp_path / "x.data", stacks=False))) as at:
        ((kind, data),) = frames(at, "watch/branches")
        assert kind == b"FAIL"
        assert b"no branch stacks" in data


def test_a_small_capture_has_no_first_part(tmp_path: Path) -> None:
    with serving(loaded(build(tmp_path / "x.data"))) as at:
        assert [kind for kind, _ in frames(at, "watch/hot")] == [b"DONE"]


def test_an_answer_is_made_once(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    asked = list[tuple[str, Parameters]]()

    def counting(shown: Loaded, question: str, parameters: Parameters) -> Answer:
        asked.append((question, dict(parameters)))
        return Answer({})

    monkeypatch.setattr(server, "ask", counting)
    with serving(loaded(demo.capture())) as at:
        for path in ("ask/hot", "watch/hot", "ask/hot?pid=1", "watch/hot?pid=1", "ask/hot"):
            frames(at, path)
    assert asked == [("hot", {}), ("hot", {"pid": "1"})]


def test_who_leaves_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that would take for ever, of a page that is closed: the next question is answered."""
    began, ended = threading.Event(), threading.Event()

    def endless(shown: Loaded, _parameters: Parameters) -> Answer:
        try:
            while True:
                for _ in shown.profile.batches(()):
                    began.set()
        finally:
            ended.set()

    monkeypatch.setattr("lastbranch.view.questions.hot.hot", endless)
    with serving(loaded(demo.capture(), demo.symfs())) as at:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(at).port, timeout=60)
        connection.request("GET", urlsplit(at).path + "watch/hot")
        assert began.wait(30)
        connection.close()
        assert ended.wait(30)
        assert [kind for kind, _ in frames(at, "watch/capture")] == [b"DONE"]


def test_the_page_labels_the_first_part(large: None, monkeypatch: pytest.MonkeyPatch, browser: Browser) -> None:
    shown, go_on = loaded(demo.capture(), demo.symfs()), threading.Event()

    def waiting(asked: Loaded, question: str, parameters: Parameters) -> Answer:
        assert question != "hot" or go_on.wait(30)
        return ask(asked, question, parameters)

    monkeypatch.setattr(server, "ask", waiting)
    with serving(shown) as at, looking_at(browser, at) as page:
        try:
            label = page.locator(".part")
            label.wait_for()
            said = label.inner_text()
            assert said.startswith("A first look at ")
            assert f"of {shown.profile.samples:,})" in said
            assert cells(page, "Functions")
        finally:
            go_on.set()
        label.wait_for(state="detached")
        assert cells(page, "Functions")


def test_leaving_a_screen_ends_its_question(monkeypatch: pytest.MonkeyPatch, browser: Browser) -> None:
    began = threading.Event()

    def endless(shown: Loaded, _parameters: Parameters) -> Answer:
        while True:
            for _ in shown.profile.batches(()):
                began.set()

    monkeypatch.setattr("lastbranch.view.questions.flame.flame", endless)
    with serving(loaded(demo.capture(), demo.symfs())) as at, looking_at(browser, f"{at}#/flame") as page:
        assert began.wait(30)
        page.keyboard.press("1")
        assert cells(page, "Functions")


def test_a_part_with_nothing_in_it_is_left_to_the_whole(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: FirstLook, question: str, parameters: Parameters) -> Answer:
        raise NotRecordedError("nothing in this part")

    monkeypatch.setattr(FirstLook, "ask", refuses)
    with serving(loaded(demo.capture())) as at:
        assert [kind for kind, _ in frames(at, "watch/hot")] == [b"DONE"]


@pytest.mark.parametrize("parameters", [{}, {"event": "0"}])
def test_one_pass_feeds_the_first_screen(parameters: dict[str, str]) -> None:
    """The answers are those of a viewer that is asked nothing else."""
    shown, passes = loaded(demo.capture(), demo.symfs()), list[int]()
    for stream in shown.profile.streams:
        stream.progress = lambda done, in_all: passes.append(done) if done == in_all else None
    for question in ("hot", "branches", "timeline", *(["overview"] if not parameters else [])):
        alone = wire.encode(ask(loaded(demo.capture(), demo.symfs()), question, parameters))
        assert wire.encode(ask(shown, question, parameters)) == alone
    assert len(passes) == len(shown.profile.streams)
