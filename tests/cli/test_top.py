"""`lastbranch top`: it shows what the other verbs print, ends when asked to, and leaves the program as it was."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import lastbranch
import perfdata_writer as pw
from capture_tools import FREESTANDING, build, needs_ptrace
from command_line import run_cli
from growing_files import GrowingFile
from lastbranch import demo
from lastbranch.cli import top_tables
from lastbranch.cli.top_tables import ORDERS, Session, View, chosen_functions, function_table, header
from lastbranch.opening import FileSource
from lastbranch.recording.live import LiveCapture, RecorderState
from lastbranch.symbols import SymbolOptions
from waiting import until

needs_textual = pytest.mark.skipif(find_spec("textual") is None, reason="Textual is not installed (the extra [tui])")
SECONDS = ("0.5", "3", "15")
"""How long to look: on a busy machine little comes of the first."""


@pytest.fixture
def file(tmp_path: Path) -> GrowingFile:
    growing = GrowingFile(demo.capture(), tmp_path / "growing.data")
    growing.add()
    return growing


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("top"), "branches", *FREESTANDING)


@pytest.fixture
def target(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([program, "100000000"], stdout=subprocess.DEVNULL) as process:
        yield process
        process.kill()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def rows(verb: str, file: Path, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_cli(verb, file, "--format", "json", "--limit", "0", *words).out)
    return found


def check_equal(seen: dict[str, Any], written: Path, *symfs: str) -> None:
    """Functions and branches that `top` printed are those of `report` and `branches` for the file that it wrote."""
    keys = ("event", "function", "module", "samples", "samples_percent")
    report = rows("report", written, "--by", "function", *symfs)
    mine, theirs = (
        {tuple(row[key] for key in keys) for row in one if row["samples"]} for one in (seen["functions"], report)
    )
    assert mine == theirs
    ends = ("from", "to", "count", "mispredicted_percent", "cycles", "type", "from_function", "to_function")
    assert sorted(str([row[key] for key in ends]) for row in seen["hottest_branches"]) == sorted(
        str([row[key] for key in ends]) for row in rows("branches", written, *symfs)
    )
    assert seen["branches"] == sum(row["count"] for row in seen["hottest_branches"])
    assert seen["samples"] == sum(row["samples"] for row in seen["functions"])


def test_once_is_what_report_and_branches_say_of_the_file_it_writes(file: GrowingFile, tmp_path: Path) -> None:
    out = tmp_path / "seen.tb5"
    words = ["--once", "--interval", "3600", "--format", "json", "--limit", "0", "--symfs", demo.symfs()]
    done = run_cli("top", *words, "--duration", "0.01", "-i", file.path, "-o", out)
    assert done.code == 0, done.err
    seen = json.loads(done.out)
    check_equal(seen, out, "--symfs", demo.symfs())
    assert seen["lost"] == {}
    assert any(row["mispredicted_percent"] for row in seen["functions"])
    assert seen["engine"] is None


def test_functions_are_sorted_by_each_order() -> None:
    columns = ("samples", "now_percent", "change", "branches", "mispredicted_percent", "cycles")
    with LiveCapture(FileSource(demo.capture()), SymbolOptions(), symfs=demo.symfs()) as live:
        session = Session(live, None)
        session.read()
        view = session.look()
        for order, name in zip(ORDERS, columns, strict=True):
            found = function_table(session, view, chosen_functions(session, view, event=0, order=order))
            values = [row[name] or 0 for row in found.objects()]
            assert len({*values}) > 1 or name == "change", "before the first interval there was nothing"
            assert values == sorted(values, reverse=True), order


def test_triggers_without_a_burst_are_losses() -> None:
    view = View(None, RecorderState(engine="software", skipped=3), 1, 1, 0, None)
    assert view.lost == {"triggers without a burst": 3}
    assert "lost: 3 triggers without a burst" in header(view)[-1]


def test_nothing_is_measured_in_no_time() -> None:
    view = View(None, RecorderState(), 0, 1e-6, 4000.0, 0.0)
    assert header(view)[-1] == "0 s: - samples/s, - branches/s; lost: nothing; cost: not known yet"


def test_a_pipe_gets_lines(file: GrowingFile) -> None:
    done = run_cli("top", "--interval", "0.1", "--duration", "0.15", "--limit", "3", "-i", file.path)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    first, *_ = done.out.split("\n\n")
    assert re.search(r"samples/s, [\d,]+ branches/s; lost: nothing; cost: top \d", first)
    assert done.out.count("samples/s") >= 2
    lines = done.out.splitlines()
    head = next(line for line in lines if "samples %" in line)
    assert {"now %", "change", "mispredicted %", "cycles", "function"} <= set(re.split(r"\s{2,}", head.strip()))


def test_a_stream_is_looked_at_until_it_ends(tmp_path: Path) -> None:
    stream = pw.to_pipe(pw.parse(Path(demo.capture()).read_bytes()))
    done = run_cli("top", "--once", "--format", "json", "-i", "-", "--duration", "600", stdin=stream)
    assert done.code == 0, done.err
    assert json.loads(done.out)["samples"] == lastbranch.open(demo.capture()).samples


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("-i", "-"), 3, "<stdin>: file is empty"),
        ((), 2, "give one of"),
        (("-p", "1", "ls"), 2, "give one of"),
        (("--format", "json", "ls"), 2, "--once"),
        (("-i", __file__), 3, "not a perf.data file"),
        (("-p", "2147483646"), 125, "process 2147483646 does not exist"),
        (("--once", "no-such-program"), 127, "no-such-program: not found in PATH"),
    ],
)
def test_what_cannot_be_looked_at(words: tuple[str, ...], code: int, message: str) -> None:
    done = run_cli("top", *words)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_time_that_names_take_is_part_of_the_next_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """As are the samples that come meanwhile."""
    now = 0.0

    class Slow:
        profile = None

        def read(self, last: bool) -> None: ...

        def turn(self) -> None:
            nonlocal now
            now += 4

    monkeypatch.setattr(top_tables, "time", SimpleNamespace(monotonic=lambda: now, process_time=lambda: 0.0))
    session = top_tables.Session(cast("Any", Slow()))
    session.read()
    intervals = []
    for _ in range(3):
        now += 1
        session.read()
        intervals.append(session.look().interval)
    assert intervals == [1, 5, 5]


@needs_ptrace
def test_a_process_is_looked_at_and_left_as_it_was(target: subprocess.Popen[bytes], tmp_path: Path) -> None:
    until(lambda: ticks(target.pid) > 0)
    before, out = state(target.pid), tmp_path / "seen.tb5"
    for seconds in SECONDS:
        words = ["--once", "--format", "json", "--limit", "0", "--engine", "software", "--duration", seconds, "-o", out]
        done = run_cli("top", *words, "-p", str(target.pid), alone=True)
        assert done.code == 0, done.err
        seen = json.loads(done.out)
        until(lambda: state(target.pid) == before)
        if seen["branches"]:
            break
    target.kill()  # what is compared below takes longer without the processor
    check_equal(seen, out)
    assert seen["branches"] > 0
    assert seen["engine"].startswith("software: ")
    assert seen["seconds"] >= float(seconds)
    assert seen["recorder_cpu_percent"] is not None
    assert all(row["mispredicted_percent"] is None and row["cycles"] is None for row in seen["functions"])
    assert "lastbranch software LBR" in run_cli("info", out).out


@needs_ptrace
def test_ctrl_c_at_the_terminal_does_not_reach_the_recorder(target: subprocess.Popen[bytes]) -> None:
    """It goes to a whole process group."""
    command = [sys.executable, "-m", "lastbranch", "top", "--once", "--engine", "software", "--duration", "600"]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen([*command, "-p", str(target.pid)], stdout=nowhere, stderr=nowhere) as top:
        tracer = until(lambda: int(state(target.pid)[1]))
        groups = os.getpgid(tracer), os.getpgid(top.pid)
        top.send_signal(signal.SIGINT)
    assert groups[0] != groups[1]


@needs_ptrace
def test_what_it_launched_runs_on_after_it(tmp_path: Path) -> None:
    done = run_cli(
        "top",
        "--once",
        "--engine",
        "software",
        "--duration",
        "0.3",
        "--program-output",
        tmp_path / "said",
        "sh",
        "-c",
        "echo $$; exec sleep 1000",
        alone=True,
    )
    assert done.code == 0, done.err
    pid = int((tmp_path / "said").read_text())
    try:
        until(lambda: state(pid)[:2] == ("S", "0"))
        assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull
    finally:
        os.kill(pid, 9)


@pytest.mark.thorough
@needs_ptrace
def test_it_ends_with_the_program() -> None:
    done = run_cli("top", "--once", "--engine", "software", "--duration", "600", "true", alone=True)
    assert done.code == 0, done.err


def ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as line:
        return int(line.read().rpartition(")")[2].split()[11])


def state(pid: int) -> tuple[str, ...]:
    """The state that must stay as it was: whether the process runs, who traces it, and its signals."""
    with open(f"/proc/{pid}/status") as lines:
        found = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return (
        found["State"][0],
        *(found[name] for name in ("TracerPid", "SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")),
    )


# -- the screen


def on_screen(
    file: GrowingFile, play: Callable[[Any, Any], Any], output: str | None = None, size: tuple[int, int] = (140, 30)
) -> None:
    """``play(app, pilot)`` with the screen over ``file``, which refreshes only when ``play`` asks for it."""
    from lastbranch.cli.top_screen import TopScreen

    async def run() -> None:
        symbols = SymbolOptions(cache=None)
        with LiveCapture(FileSource(str(file.path)), symbols, symfs=demo.symfs()) as live:
            app = TopScreen(Session(live, None), 1000, None, output)
            async with app.run_test(size=size) as pilot:
                await settled(app, pilot)
                await play(app, pilot)
            assert app.return_value is None

    with ThreadPoolExecutor(1) as thread:  # this one may have an event loop, of Playwright
        thread.submit(asyncio.run, run()).result()


async def settled(app: Any, pilot: Any) -> None:
    """Wait until all that runs beside the screen is done and shown."""
    await app.workers.wait_for_complete()
    await pilot.pause()


def shown(app: Any) -> list[str]:
    from lastbranch.cli.top_screen import Lines

    return list(app.query_one(Lines).lines)


async def press(app: Any, pilot: Any, *keys: str) -> list[str]:
    await pilot.press(*keys)
    await pilot.pause()
    await settled(app, pilot)
    return shown(app)


@needs_textual
def test_keys_of_the_screen(tmp_path: Path) -> None:
    file = GrowingFile(demo.capture(), tmp_path / "growing.data")
    file.add(60_000)

    async def play(app: Any, pilot: Any) -> None:
        from textual.widgets import Static

        def text(where: str) -> str:
            return str(app.query_one(where, Static).render())

        functions = shown(app)
        assert len(functions) > 3
        assert "samples %" in text("#head")
        counts = [int(line.split()[0]) for line in functions]
        assert counts == sorted(counts, reverse=True)
        # held still: what comes is counted and not shown
        await press(app, pilot, "p")
        file.add()
        app.turn()
        await settled(app, pilot)
        assert shown(app) == functions
        assert "paused" in text("#facts")
        await press(app, pilot, "p")
        app.turn()
        await settled(app, pilot)
        assert sum(int(line.split()[0]) for line in shown(app)) > sum(counts)
        # another order, and back
        assert "by now" in (await press(app, pilot, "greater_than_sign"), text("#facts"))[1]
        assert "by samples" in (await press(app, pilot, "less_than_sign"), text("#facts"))[1]
        # filter
        name = shown(app)[1].split()[-2]
        kept = await press(app, pilot, "slash", *name, "enter")
        assert kept
        assert all(name in line for line in kept)
        assert len(await press(app, pilot, "escape")) > len(kept)
        # branches
        branches = await press(app, pilot, "b")
        assert "share" in text("#head")
        assert len(branches) > 20
        await press(app, pilot, "b")
        # live code of a function that has a name
        lines = shown(app)
        row = next(i for i, line in enumerate(lines) if "collatz" in line or "main" in line or "fib" in line)
        code = await press(app, pilot, *["down"] * row, "enter")
        assert "instruction" in text("#head")
        assert any(re.search(r"\d+ .*0x[0-9a-f]+ ", line) for line in code)
        assert shown(app) != await press(app, pilot, "escape")
        await press(app, pilot, "w")
        await settled(app, pilot)
        assert "written to" in text("#facts")
        await pilot.press("q")

    on_screen(file, play, str(tmp_path / "seen.tb5"))
    assert sum(row["samples"] for row in rows("report", tmp_path / "seen.tb5")) > 0


@needs_textual
def test_a_narrow_screen_shows_names(file: GrowingFile) -> None:
    """Without the columns that are spared, a heading in more than one line, and lines that are too long."""

    async def play(app: Any, pilot: Any) -> None:
        from textual.widgets import Static

        from lastbranch.cli.top_screen import Lines

        def text(where: str) -> str:
            return str(app.query_one(where, Static).render())

        async def fits(*columns: str) -> list[str]:
            for line in [*text("#facts").splitlines(), text("#head"), *shown(app)]:
                assert len(line) <= app.size.width
            assert text("#head").split()[-len(columns) :] == list(columns)
            assert not app.query_one(Lines).show_horizontal_scrollbar
            return shown(app)

        functions = await fits("function")
        assert any(line.endswith("  cmp(void const*, void const*)") for line in functions)
        await press(app, pilot, "b")
        await fits("from", "function", "to", "function")
        await press(app, pilot, "b")
        row = next(i for i, line in enumerate(functions) if line.endswith("main"))
        await press(app, pilot, *["down"] * row, "enter")
        code = await fits("address", "instruction")
        assert any("0x" in line and "push" in line for line in code)
        assert text("#facts").splitlines()[-1] == "main"
        await press(app, pilot, "escape")
        assert "main" not in text("#facts")
        # a wider one has more at once
        await pilot.resize_terminal(140, 30)
        await settled(app, pilot)
        assert "module" in text("#head")

    on_screen(file, play, size=(60, 15))


def test_time_stands_still_when_the_recording_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now, stream = 10.0, SimpleNamespace(ended=False)
    monkeypatch.setattr(top_tables, "time", SimpleNamespace(monotonic=lambda: now, process_time=lambda: 0.0))
    session = Session(cast("Any", None), stream=cast("Any", stream))
    now = 13.0
    assert session.seconds == 3
    stream.ended = True
    assert session.seconds == 3
    now = 20.0
    assert session.seconds == 3


@needs_ptrace
@needs_textual
def test_q_leaves_the_terminal_and_the_process_as_they_were(sleeper: subprocess.Popen[bytes]) -> None:
    import pty
    import termios

    until(lambda: state(sleeper.pid)[0] == "S")
    before = state(sleeper.pid)
    main, side = pty.openpty()
    modes = termios.tcgetattr(side)
    words = [sys.executable, "-m", "lastbranch", "top", "--engine", "software", "-p", str(sleeper.pid)]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(words, stdin=side, stdout=side, stderr=side, env=env, start_new_session=True) as top:
        got = b""
        os.set_blocking(main, False)

        def has(sign: bytes) -> bool:
            nonlocal got
            with suppress(BlockingIOError):
                got += os.read(main, 1 << 16)
            assert top.poll() is None or sign in got, got
            return sign in got

        until(lambda: has(b"samples/s"))
        assert b"\x1b[?1049h" in got
        assert termios.tcgetattr(side) != modes
        os.write(main, b"q")
        until(lambda: has(b"\x1b[?1049l"))
        until(lambda: has(b"") and top.poll() is not None)
        assert top.returncode == 0
    assert termios.tcgetattr(side) == modes
    until(lambda: state(sleeper.pid) == before)
    os.close(main)
    os.close(side)
