"""``lastbranch consume``: files as `dump` prints them, sessions of real daemons as they come."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import etl_builder as build
from command_line import Ran, run_cli, time_limit
from etl_oracle import GUID, real, some_trace
from etw_world import PROVIDER, World, until
from etw_world import world as world
from lastbranch.etw.events import consume
from lastbranch.etw.flags import Control, LogFileMode
from lastbranch.etw.kernel_choice import kernel
from lastbranch.etw.session import provider_guid
from lastbranch.formats.dump import TEXT, Wanted
from lastbranch.formats.etl import TraceLog, dump_live
from lastbranch.model import BytesSource
from late_manifests import late_manifest

REAL_TIME = int(LogFileMode.REAL_TIME_MODE)


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    with time_limit(100):
        yield


def run(*arguments: str | Path) -> Ran:
    return run_cli(*arguments)


def code_of(ran: Ran) -> int:
    """The code that an error names."""
    assert ran.code == 5
    return int(ran.err.partition("(code ")[2].partition(")")[0])


# -- files


@pytest.mark.parametrize("form", ["table", "csv", "json"])
@pytest.mark.parametrize(
    "options", [[], ["--event", "Process,Image"], ["--pid", "4"], ["--time", "0.5..1"], ["--limit", "3"]]
)
def test_a_file_is_printed_as_by_dump(form: str, options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.etl"
    path.write_bytes(real("gcevents.PerfViewData.etl"))
    mine, theirs = (run(verb, str(path), "--format", form, *options) for verb in ("consume", "dump"))
    assert mine.code == theirs.code == 0
    assert mine.out == theirs.out
    assert mine.out


def test_a_provider_by_name_or_guid(tmp_path: Path) -> None:
    trace = build.Trace()
    mine = provider_guid("My.Company").bytes_le
    for n, guid in enumerate((GUID, mine, GUID, mine)):
        trace.add(0, build.manifest(guid, n, trace.begin + n, b"x"))
    path = tmp_path / "x.etl"
    path.write_bytes(bytes(trace))
    for name in ("my.company", str(provider_guid("My.Company"))):
        rows = list(csv.DictReader(run("consume", str(path), "--provider", name, "--format", "csv").out.splitlines()))
        assert [row["event"].partition("/")[2] for row in rows] == ["EventID(1)", "EventID(3)"]


def test_damage_and_what_is_not_there(tmp_path: Path) -> None:
    data = bytearray(bytes(some_trace(300)))
    data[4096 + 72 : 4096 + 80] = b"\x01" * 8
    path = tmp_path / "x.etl"
    path.write_bytes(data)
    result = run("consume", str(path))
    assert result.code == 1
    assert "warning: " in result.err
    none = run("consume", tmp_path / "none")
    assert code_of(none) == 4201
    assert "hint: nor is there a file of that name" in none.err


# -- sessions


@contextmanager
def consuming(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program, reading session "session"; ends with the block at the latest."""
    command = [sys.executable, "-B", "-m", "lastbranch", "consume", "session", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def started(world: World) -> tuple[int, Any]:
    """A session in real time that flushes often, and a provider that it takes the events of."""
    status, handle, _ = world.start(
        file=None, LogFileMode=REAL_TIME | int(LogFileMode.USE_MS_FLUSH_TIMER), FlushTimer=50
    )
    assert status == 0
    return handle, world.provider(handle)


def lines(process: subprocess.Popen[str], number: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(number)]


def rest(process: subprocess.Popen[str]) -> str:
    """What it still prints until it ends, which is without an error."""
    assert process.stdout is not None
    out = process.stdout.read()
    assert process.wait(60) == 0
    return out


def test_a_session_as_it_comes(world: World) -> None:
    """Rows are there while the session runs; with its end the list is complete."""
    handle, provider = started(world)
    with consuming("--format", "json", "--provider", str(PROVIDER)) as process:
        assert world.write(provider, 20) == [0] * 20
        first = lines(process, 20)  # the bracket and rows; the comma of the last one is still to come
        assert world.write(provider, 5, first=20) == [0] * 5
        world.stop(handle)
        rows = json.loads("".join(first) + rest(process))
    assert [int.from_bytes(bytes.fromhex(row["fields"]["payload"])[:4], "little") for row in rows] == list(range(25))
    assert {(row["event"], row["pid"], row["size"]) for row in rows} == {(f"{PROVIDER}/EventID(7)", os.getpid(), 16)}


def test_the_head_is_there_before_the_first_event(world: World) -> None:
    started(world)
    for form, head in (("csv", "time_ms,pid,tid,cpu,event,size,fields\n"), ("table", "time ms  ")):
        with consuming("--format", form) as process:
            assert head in lines(process, 1)[0]
            process.send_signal(signal.SIGINT)
            assert rest(process) == ""


def test_interrupt_ends_the_list_and_not_the_session(world: World) -> None:
    handle, provider = started(world)
    with consuming("--format", "json") as process:
        world.write(provider, 3)
        first = lines(process, 3)
        process.send_signal(signal.SIGINT)
        assert len(json.loads("".join(first) + rest(process))) == 3
    assert world.query(handle).EventsLost == 0
    with consuming("--limit", "2", "--format", "csv") as process:  # the next one begins where that one ended
        world.write(provider, 4, first=3)
        payloads = [row["fields"] for row in csv.DictReader(rest(process).splitlines())]
        assert [int(text.partition("=")[2][:2], 16) for text in payloads] == [3, 4]
    world.stop(handle)


def test_a_killed_daemon_ends_it(world: World) -> None:
    handle, provider = started(world)
    pid = world.query(handle).LoggerThreadId
    with consuming("--format", "csv") as process:
        world.write(provider, 3)
        lines(process, 4)
        os.kill(pid, signal.SIGKILL)
        rest(process)
    assert code_of(run("consume", "session")) == 4201


def test_what_came_before_the_first_reader_is_first(world: World) -> None:
    handle, provider = started(world)
    world.write(provider, 100)
    until(lambda: world.query(handle).BuffersWritten > 0)
    events = consume("session", real_time=True)
    found = [next(events) for _ in range(100)]
    assert [int.from_bytes(event.payload[:4], "little") for event in found] == list(range(100))
    assert {event.pid for event in found} == {os.getpid()}
    assert abs(found[0].time.timestamp() - time.time()) < 3600
    world.write(provider, 1, first=100)
    assert int.from_bytes(next(events).payload[:4], "little") == 100
    world.stop(handle)
    assert list(events) == []


def test_a_reader_that_stands_still_costs_only_its_own_events(world: World) -> None:
    """A full backlog: the provider is never held up, the file has everything, offered = read + lost for the readers."""
    status, handle, _ = world.start(
        LogFileMode=REAL_TIME, BufferSize=64, MinimumBuffers=64, MaximumBuffers=64, FlushTimer=1
    )
    assert status == 0
    provider = world.provider(handle)
    stuck: socket.socket = kernel().consume("session")  # type: ignore[attr-defined]
    offered = 0
    size = 30_000
    while not world.query(handle).RealTimeBuffersLost:
        world.write(provider, 400, size, offered)
        offered += 400
        assert offered * size < 1 << 29
    final = world.stop(handle)
    stuck.close()
    kept = world.read()
    assert len(kept) + final.EventsLost == offered
    assert kept == sorted(kept)
    assert final.RealTimeBuffersLost > 0


def test_only_real_time_offered_is_read_or_lost(world: World) -> None:
    """Without a file what is not read counts as lost, that of a reader which never reads, too."""
    handle, provider = started(world)
    offered = 0
    for _ in range(20):
        offered += len(world.write(provider, 200, 300, offered))
    until(lambda: world.query(handle).BuffersWritten > 0)
    assert world.stop(handle).EventsLost == offered


def test_what_came_before_describes_events_of_sessions() -> None:
    """`dump_live` of blocks that come one after the other: raw before the manifest, with fields after it."""
    made = late_manifest()
    log = TraceLog(BytesSource(bytes(made)))
    blocks = list(log.ordered_blocks())
    single = [block.take(slice(n, n + 1)) for block in blocks for n in range(len(block))]
    rows = list(dump_live("x", log.header, single, Wanted()).cells(TEXT))
    assert [(row[4], row[6]) for row in rows[1::2]] == [
        (f"{UUID(bytes_le=GUID)}/EventID(7)", "payload=29000000"),
        ("Late/Seven", "Count=43"),
    ]


def test_sessions_that_cannot_be_read(world: World) -> None:
    status, handle, _ = world.start()
    assert status == 0
    for name, code in (("session", 87), ("other", 4201)):
        assert code_of(run("consume", name)) == code
    world.stop(handle)


def test_a_file_session_goes_on_in_real_time(world: World) -> None:
    """CONVERT_TO_REALTIME: the file has what came before, readers get what comes after."""
    status, handle, _ = world.start(FlushTimer=1)
    assert status == 0
    provider = world.provider(handle)
    world.write(provider, 10)
    world.control(Control.CONVERT_TO_REALTIME, handle)
    assert world.read() == list(range(10))
    events = consume("session", real_time=True)
    world.write(provider, 10, first=10)
    assert [int.from_bytes(next(events).payload[:4], "little") for _ in range(10)] == list(range(10, 20))
    world.stop(handle)
    assert list(events) == []
    assert world.read() == list(range(10))


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of docs/guides/consume.md that needs no session runs as it stands there."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "consume.md").read_text(encoding="utf-8")
    first, functions = (block.partition("```")[0] for block in page.split("```python\n")[1:])
    monkeypatch.chdir(tmp_path)
    Path("trace.etl").write_bytes(bytes(some_trace(3)))
    printed: list[Any] = []
    made = {"print": lambda *words: printed.append(words)}
    exec(first.partition("with ")[0], made)
    assert [words[1] for words in printed] == ["EventTrace", *["PerfInfo/Sample"] * 3]
    printed.clear()
    exec(functions, made)
    assert (made["status"], len(printed), printed[1][1]) == (0, 4, 0x2E)
