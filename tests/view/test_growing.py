"""The viewer of a recording that grows: what it shows at each moment, who hears of it, and how `record --live` ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch
from urllib.parse import urlsplit

import numpy as np
import pytest

import lastbranch
import perfdata_writer as pw
from capture_tools import FREESTANDING, build, children, needs_ptrace
from command_line import run_cli
from growing_files import GrowingFile
from lastbranch import demo
from lastbranch.analysis.statistics import bursts
from lastbranch.opening import FileSource
from lastbranch.symbols import FunctionTable, Symbolizer, SymbolOptions
from lastbranch.view import function_counts, wire
from lastbranch.view.growing import GrowingCapture
from lastbranch.view.loaded import Loaded
from lastbranch.view.questions import ask
from viewer import cells, loaded, looking_at, serving, settled
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ADDRESS = r"http://127\.0\.0\.1:\d+/[\w-]{20,}/(?=\n)"
HALF = 0.4
"""Of the records: a first part that has most functions, and ends within a record."""


Open = Callable[[Path], AbstractContextManager[GrowingCapture]]


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory) -> SymbolOptions:
    """Names that are looked for once."""
    return SymbolOptions(cache=tmp_path_factory.mktemp("names"))


@pytest.fixture
def opened(symbols: SymbolOptions) -> Open:
    """Opens what is there of a growing file."""

    @contextmanager
    def begin(path: Path) -> Iterator[GrowingCapture]:
        with (
            closing(FileSource(str(path))) as source,
            GrowingCapture(source, "run.tb5", symbols, demo.symfs(), patience=600) as growing,
        ):
            yield growing

    return begin


@pytest.fixture
def file(tmp_path: Path) -> GrowingFile:
    """The demo's capture, a part of it."""
    growing = GrowingFile(demo.capture(), tmp_path / "growing.data")
    growing.add(int(len(growing.records) * HALF) | 1)
    return growing


def same(one: Loaded, other: Loaded, question: str) -> None:
    """Two captures have the same answer."""
    first, second = (ask(each, question, {}) for each in (one, other))
    assert first.columns.keys() == second.columns.keys()
    for name, values in first.columns.items():
        np.testing.assert_array_equal(np.asarray(values), np.asarray(second.columns[name]), name)


def test_answers_are_those_about_the_same_bytes(file: GrowingFile, opened: Open, symbols: SymbolOptions) -> None:
    def whole(path: str | Path) -> Loaded:
        return Loaded(lastbranch.open(path, symfs=demo.symfs()), symbols)

    with opened(file.path) as growing:
        first = growing.loaded
        assert ask(first, "overview", {}).header["recording"] == "live"
        assert ask(first, "overview", {}).header["warnings"] == []  # a record that is not whole is no damage
        assert not growing.refresh()
        file.add()
        assert growing.refresh()
        assert growing.loaded is not first
        written = whole(file.path)
        assert 0 < first.profile.samples < growing.loaded.profile.samples == written.profile.samples
        for question in ("hot", "branches", "flame", "overview"):
            same(growing.loaded, written, question)
        growing.finish(demo.capture())
        assert (growing.recording, growing.revision) == ("ended", 2)
        same(growing.loaded, whole(demo.capture()), "hot")
        file.append(bytes(8))
        assert not growing.refresh()


def test_what_was_seen_stays_where_there_is_no_complete_file(file: GrowingFile, opened: Open, tmp_path: Path) -> None:
    with opened(file.path) as growing:
        samples = growing.loaded.profile.samples
        growing.finish(str(tmp_path / "missing.tb5"))
        assert (growing.recording, growing.loaded.profile.samples) == ("ended", samples)


def test_answers_add_up_over_many_increments(file: GrowingFile, opened: Open, symbols: SymbolOptions) -> None:
    """Whatever was counted for earlier states, which end anywhere in a record."""
    steps = 5
    with opened(file.path) as growing:
        for step in range(steps):
            if step != 2:  # one state that nobody asks about
                ask(growing.loaded, "hot", {})
            file.add(len(file.records) // 10 if step < steps - 1 else None)
            assert growing.refresh()
            assert growing.loaded.growth is not None
            whole = Loaded(lastbranch.open(file.path, symfs=demo.symfs()), symbols)
            for question in ("hot", "overview", "timeline", "branches") if step in (1, 3, steps - 1) else ():
                same(growing.loaded, whole, question)


def eventful(path: Path, seed: int, *, late: int) -> GrowingFile:
    """Processes begin, execute and map libraries while samples come, some of them of one burst. The records of such
    changes have times that are up to ``late`` ticks ago."""
    chance = np.random.default_rng(seed)
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    pids, now = [7], 1000
    b.comm(pid=7, name="first", time=1, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name="/bin/first", time=2)
    for number in range(300):
        what = int(chance.integers(0, 60))
        now += 1 if what < 5 else int(chance.choice([0, 1, 40]))
        pid, when = int(chance.choice(pids)), now - int(chance.integers(0, late + 1))
        match what:
            case 0:
                pids.append(pid + number + 1)
                b.fork(pid=pids[-1], ppid=pid, time=when)
            case 1:
                b.comm(pid=pid, name=f"other{number}", time=when, exec=True)
                b.mmap2(pid=pid, addr=0x400000, length=0x20000, pgoff=0, name=f"/bin/other{number}", time=when)
            case 2 | 3:
                start = int(chance.choice([0x400000, 0x500000]))
                b.mmap2(pid=pid, addr=start, length=0x8000, pgoff=0, name=f"/lib/{number}", time=when)
            case 4:
                b.fork(pid=pid, ppid=pid, tid=pid + 5000 + number, time=when)
        at = [0x400000 + 0x10 * int(place) for place in chance.integers(0, 0x14000, 3)]
        b.sample(ip=at[0], pid=pid, tid=pid, time=now, branches=[(at[0], at[1], 1), (at[1], at[2], 2)])
    (path / "whole.data").write_bytes(b.build())
    return GrowingFile(path / "whole.data", path / "growing.data")


@pytest.mark.parametrize(("seed", "late"), [(1, 0), (3, 100)])
def test_samples_stay_with_what_they_belonged_to(
    seed: int, late: int, tmp_path: Path, symbols: SymbolOptions, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where changes of address spaces, and of the tables, come between them: late ones have all counted anew."""
    monkeypatch.setattr(bursts, "_IN_RECORDS", "")  # no event has a name
    made = Mock(wraps=function_counts.FunctionCounts)
    monkeypatch.setattr(function_counts, "FunctionCounts", made)
    file = eventful(tmp_path, seed, late=late)
    file.add(len(file.records) // 4)
    with opened(file.path) as growing:
        for _ in range(7):
            file.add(len(file.records) // 10)
            growing.refresh()
            same(growing.loaded, Loaded(lastbranch.open(file.path, symfs=demo.symfs()), symbols), "hot")
            same(growing.loaded, Loaded(lastbranch.open(file.path, symfs=demo.symfs()), symbols), "overview")
    assert (made.call_count > 1) == (late > 0)


def test_names_are_kept_but_those_of_a_jit_are_looked_for_again(file: GrowingFile, tmp_path: Path) -> None:
    options, address = SymbolOptions(cache=None, debug_dirs=(str(tmp_path),)), np.array([1], np.uint64)
    with (
        closing(FileSource(str(file.path))) as source,
        GrowingCapture(source, "run.tb5", options, demo.symfs()) as growing,
    ):
        symbolizer, pid = growing.loaded.symbolizer, growing.loaded.profile.processes[0].pid
        assert not symbolizer.names_at(0, address).functions
        (tmp_path / f"perf-{pid}.map").write_text("1 10 one\n")
        file.add(64)
        assert growing.refresh()
        assert growing.loaded.symbolizer is symbolizer
        assert [one.name for one in symbolizer.names_at(0, address).functions] == ["one"]
        symbolizer.close()


def test_names_that_take_long_are_not_waited_for(file: GrowingFile, symbols: SymbolOptions) -> None:
    """The first picture has none of them, and a later one has all, without more samples."""
    release, functions = threading.Event(), Symbolizer.functions

    def slow(self: Symbolizer, module: int) -> FunctionTable:
        release.wait()
        return functions(self, module)

    def names(growing: GrowingCapture) -> set[str]:
        return set(ask(growing.loaded, "hot", {}).columns["function"])

    with (
        closing(FileSource(str(file.path))) as source,
        patch.object(Symbolizer, "functions", slow),
        GrowingCapture(source, "run.tb5", symbols, demo.symfs(), patience=0) as growing,
    ):
        assert all(name.startswith("[") for name in names(growing))
        assert not growing.refresh()
        file.add(64)
        assert growing.refresh()
        assert all(name.startswith("[") for name in names(growing))
        release.set()
        until(growing.refresh)
        whole = Loaded(lastbranch.open(file.path, symfs=demo.symfs()), symbols)
        until(lambda: (growing.refresh(), names(growing) == set(ask(whole, "hot", {}).columns["function"]))[1])
        for question in ("hot", "branches"):
            same(growing.loaded, whole, question)


def test_a_look_that_fails_is_not_the_last(
    file: GrowingFile, opened: Open, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whatever a record is that came in between."""
    refresh, looks = GrowingCapture.refresh, 0

    def odd(self: GrowingCapture) -> bool:
        nonlocal looks
        looks += 1
        if looks < 3:
            raise KeyError("odd")
        return refresh(self)

    monkeypatch.setattr(GrowingCapture, "refresh", odd)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # for the report of the bug
    monkeypatch.setattr("lastbranch.view.growing.PAUSE", 0.01)
    monkeypatch.setattr("lastbranch.view.growing.FIRST_PAUSE", 0.01)
    with opened(file.path) as growing, growing.watched(lambda: None):
        growing.follow()
        until(lambda: looks > 3)
    assert capfd.readouterr().err.count("this is a bug in lastbranch: KeyError: 'odd'") == 1


def test_a_module_that_fails_keeps_no_other_waiting(
    file: GrowingFile, symbols: SymbolOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # for the report of the bug
    functions, failed = Symbolizer.functions, list[int]()

    def odd(self: Symbolizer, module: int) -> FunctionTable:
        if not failed:
            failed.append(module)
            raise KeyError("odd")
        return functions(self, module)

    with (
        closing(FileSource(str(file.path))) as source,
        patch.object(Symbolizer, "functions", odd),
        GrowingCapture(source, "run.tb5", symbols, demo.symfs(), patience=600) as growing,
    ):
        shown = ask(growing.loaded, "hot", {}).columns["function"]
    assert len(failed) == 1
    assert len(shown) > 1
    assert any(not name.startswith("[") for name in shown)


# -- Server-sent events


class Listener(threading.Thread):
    """Reads the events of a viewer until they end."""

    def __init__(self, address: str) -> None:
        super().__init__()
        at = urlsplit(address)
        self.connection = http.client.HTTPConnection("127.0.0.1", at.port, timeout=60)
        self.connection.request("GET", f"{at.path}events")
        self.response = self.connection.getresponse()
        self.states: list[dict[str, Any]] = []
        self.start()

    def run(self) -> None:
        while line := self.response.readline():
            if line.startswith(b"data: "):
                self.states.append(json.loads(line[6:]))
        self.connection.close()


def overview(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}ask/overview", timeout=60) as answer:
        return wire.decode(answer.read()).header


def samples(address: str) -> int:
    number: int = overview(address)["samples"]
    return number


def test_pages_hear_of_more_and_of_the_end(file: GrowingFile, opened: Open) -> None:
    with opened(file.path) as growing, serving(growing.loaded, growing=growing) as address:
        listener = Listener(address)
        assert listener.response.headers["content-type"].startswith("text/event-stream")
        assert listener.response.headers["cache-control"] == "no-store"
        until(lambda: listener.states)
        assert growing.is_watched
        before = samples(address)
        file.add()
        growing.refresh()
        until(lambda: len(listener.states) == 2)
        assert before < samples(address) == loaded(demo.capture()).profile.samples
        growing.finish(demo.capture())
        until(lambda: len(listener.states) == 3)
        growing.close()
        listener.join(60)
        assert not listener.is_alive()
        until(lambda: not growing.is_watched)
    assert listener.states == [
        {"revision": 0, "recording": "live"},
        {"revision": 1, "recording": "live"},
        {"revision": 2, "recording": "ended"},
    ]


def test_strangers_hear_nothing(file: GrowingFile, opened: Open, address: str) -> None:
    with opened(file.path) as growing, serving(growing.loaded, growing=growing) as at:
        root = re.sub(r"/[^/]+/$", "/", at)
        for path, headers, status in (
            (f"{root}events", {}, 404),
            (f"{at}events", {"Sec-Fetch-Site": "cross-site"}, 403),
            (f"{at}events", {"Origin": "http://evil.example"}, 403),
            (f"{at}events", {"Host": "localhost"}, 421),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(path, headers=headers), timeout=60)
            assert refused.value.code == status
        assert not growing.is_watched
    with urllib.request.urlopen(f"{address}events", timeout=60) as none:  # of a file there are none
        assert none.status == 204


# -- In a browser


def test_the_screen_grows_and_what_is_chosen_stays(file: GrowingFile, opened: Open, browser: Browser) -> None:
    with opened(file.path) as growing:
        growing.follow()
        with serving(growing.loaded, growing=growing) as address:
            with looking_at(browser, address) as page:
                before = cells(page, "Functions")
                page.get_by_text("Live", exact=True).wait_for()
                grid = page.get_by_role("grid", name="Functions")
                grid.focus()
                for _ in range(3):
                    page.keyboard.press("ArrowDown")
                chosen = page.locator("[role=row][aria-selected=true]")
                name = chosen.locator("[data-column=function]").inner_text()
                assert name == before[3]["function"]
                was = {row["function"]: int(row["samples"].replace(",", "")) for row in before}
                file.add()
                page.wait_for_function(
                    "before => { const row = document.querySelector('.body [role=row] [data-column=samples]');"
                    " return row && row.innerText !== before; }",
                    arg=before[0]["samples"],
                )
                settled(page)
                now = {row["function"]: int(row["samples"].replace(",", "")) for row in cells(page, "Functions")}
                assert all(now[one] >= was[one] for one in was.keys() & now.keys())
                assert sum(now.values()) > sum(was.values())
                assert chosen.locator("[data-column=function]").inner_text() == name
                choose_to_the_end(page)
                growing.finish(demo.capture())
                page.get_by_text("Recording ended", exact=True).wait_for()
            growing.close()


def test_a_page_that_nobody_sees_does_not_follow(file: GrowingFile, opened: Open, browser: Browser) -> None:
    with (
        opened(file.path) as growing,
        serving(growing.loaded, growing=growing) as address,
        looking_at(browser, address) as page,
    ):
        before = cells(page, "Functions")
        page.get_by_text("Live", exact=True).wait_for()
        assert growing.is_watched
        page.evaluate(SEEN, False)
        until(lambda: not growing.is_watched)
        file.add()
        growing.refresh()
        page.evaluate(SEEN, True)
        until(lambda: growing.is_watched)
        page.wait_for_function(
            "before => document.querySelector('.body [data-column=samples]').innerText !== before",
            arg=before[0]["samples"],
        )
        growing.close()


SEEN = """seen => {
    Object.defineProperty(document, "hidden", { value: !seen, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Have the page find that it is seen, or that it is not."""


def choose_to_the_end(page: Page) -> None:
    """Drag over the second half of the time, past its end: what comes later is in it, too."""
    box = page.get_by_role("img", name="Samples over time", exact=True).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] + 20, box["y"] + 5)
    page.mouse.up()
    page.locator(".chips").get_by_text("Time from").wait_for()
    assert "&to=" not in page.url


def test_without_samples_the_screens_wait_for_the_first_ones(tmp_path: Path, opened: Open, browser: Browser) -> None:
    file = GrowingFile(demo.capture(), tmp_path / "growing.data")
    with (
        opened(file.path) as growing,
        serving(growing.loaded, growing=growing) as address,
        looking_at(browser, address) as page,
    ):
        page.get_by_text("Waiting for the first samples").wait_for()
        assert page.get_by_text("No time stamps").count() == page.get_by_role("grid").count() == 0
        file.add()
        growing.refresh()
        assert cells(page, "Functions")
        growing.close()


# -- The recorder


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("live"), "branches", *FREESTANDING)


@pytest.fixture
def target(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    """It computes until it is killed, and lets others go first."""
    with subprocess.Popen(["nice", "-n", "19", program, str(10**15)], stdout=subprocess.DEVNULL) as process:
        yield process
        process.kill()


@needs_ptrace
def test_record_live_serves_while_it_records_and_until_ctrl_c(target: subprocess.Popen[bytes], tmp_path: Path) -> None:
    out, said = tmp_path / "run.tb5", list[str]()
    words = ["--live", "--no-open", "--no-progress", "--engine", "software", "-o", str(out), "-p", str(target.pid)]
    with recording(*words, said=said) as recorder:
        address = until(lambda: re.search(ADDRESS, "".join(said)))[0]
        listener = Listener(address)
        until(lambda: listener.states and samples(address) > 0)
        assert listener.states[-1]["recording"] == "live"
        (viewer,) = (pid for pid in children(recorder.pid) if b"live_process" in command_line(pid))
        assert os.getpgid(viewer) == viewer, "Ctrl-C at the terminal does not reach it"
        lower = min(os.getpriority(os.PRIO_PROCESS, recorder.pid) + 10, 19)
        until(lambda: {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads(viewer)} == {lower})
        recorder.send_signal(signal.SIGINT)  # ends the recording: the program is not ours
        until(lambda: listener.states[-1]["recording"] == "ended")
        assert target.poll() is None
        target.kill()
        shown = samples(address)
        recorder.send_signal(signal.SIGINT)
        assert recorder.wait(60) == 0
        listener.join(60)
    assert 0 < shown == loaded(out).profile.samples
    with pytest.raises(OSError, match="refused"):
        samples(address)
    assert [path.name for path in tmp_path.iterdir()] == ["run.tb5"]


@needs_ptrace
def test_a_recording_that_ends_by_itself_is_served_until_the_recorder_goes(tmp_path: Path) -> None:
    out, said = tmp_path / "run.data", list[str]()
    words = ["--live", "--no-open", "--no-progress", "--engine", "software", "-o", str(out), "--duration", "0.1"]
    with recording(*words, "--", "sh", "-c", "exec 2>/dev/null; exec sleep 2", said=said) as recorder:
        until(lambda: "the viewer goes on; Ctrl-C ends it\n" in said)
        address = until(lambda: re.search(ADDRESS, "".join(said)))[0]
        until(lambda: overview(address)["recording"] == "ended")
        assert overview(address)["file"] == str(out)
        recorder.kill()  # nothing stays behind of it
        until(lambda: is_gone(address))


@contextmanager
def recording(*words: str, said: list[str]) -> Iterator[subprocess.Popen[str]]:
    """`lastbranch record` in a process of its own; ``said`` gets the lines that it prints."""
    command = [sys.executable, "-m", "lastbranch", "record", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as recorder:
        assert recorder.stderr is not None
        reader = threading.Thread(target=said.extend, args=(iter(recorder.stderr.readline, ""),))
        reader.start()
        try:
            yield recorder
        finally:
            recorder.kill()
            reader.join(60)
    assert "Traceback" not in "".join(said)


def threads(pid: int) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def command_line(pid: int) -> bytes:
    """Empty for a process that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def is_gone(address: str) -> bool:
    try:
        overview(address)
    except OSError:
        return True
    return False


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--live", "--view", "ls"), 2, "--view is not needed"),
        (("--no-open", "ls"), 2, "add --live or --view"),
        (("--live", "-o", "x.etl", "ls"), 2, "cannot be read while"),
        (("--live", "--no-open", "no-such-program"), 127, "no-such-program: not found in PATH"),
    ],
)
def test_what_cannot_be_recorded_live(words: tuple[str, ...], code: int, message: str) -> None:
    done = run_cli("record", *words)
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err
