"""``lastbranch session`` and ``lastbranch sources``: options into requests, states into tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from etw_fake import FakeKernel
from etw_world import until
from lastbranch.cli import cli
from lastbranch.etw import LogFileMode, Provider, consume
from lastbranch.etw import session as profiling
from lastbranch.etw import session as session_module
from lastbranch.etw.flags import PERFINFO_PROVIDER, Info
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.status import EtwError
from private_registry import registry_at


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    made = FakeKernel()
    for module in (session_module, profiling):
        monkeypatch.setattr(module, "kernel", lambda: made)
    return made


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, arguments)
    if not isinstance(result.exception, EtwError):
        assert result.exit_code == code, result.output
    return result


def refused(*arguments: str) -> str:
    error = run(*arguments).exception
    assert isinstance(error, EtwError)
    return str(error)


class TestStart:
    def test_options_become_a_request(self, kernel: FakeKernel) -> None:
        run(
            "session",
            "start",
            "one",
            "-o",
            "x.etl",
            "--mode",
            "circular,no-per-processor-buffering",
            "--buffer-size",
            "8",
            "--minimum-buffers",
            "4",
            "--maximum-buffers",
            "9",
            "--maximum-size",
            "10",
            "--flush-timer",
            "2",
            "--clock",
            "system",
        )
        request = kernel.calls[0][1]
        assert request == SessionRequest(
            "one",
            file="x.etl",
            clock=2,
            buffer_size=8,
            minimum_buffers=4,
            maximum_buffers=9,
            maximum_file_size=10,
            flush_timer=2,
            mode=LogFileMode.FILE_MODE_CIRCULAR | LogFileMode.NO_PER_PROCESSOR_BUFFERING,
        )

    def test_flags_make_a_system_logger(self, kernel: FakeKernel) -> None:
        kernel.values[1, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO] = [0x80, 0x1, 0, 0, 0, 0, 0, 0]
        run("session", "start", "one", "-o", "x", "--flags", "process,image_load,pmc-profile")
        request = kernel.calls[0][1]
        assert (request.enable_flags, request.mode) == (5, LogFileMode.SYSTEM_LOGGER_MODE)
        words = kernel.values[1, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO]
        assert words[:2] == [0x85, 0x401], "masks are added to, not replaced"

    def test_providers(self, kernel: FakeKernel) -> None:
        run(
            "session",
            "start",
            "one",
            "-o",
            "x",
            "--enable",
            "01020304-0506-0708-090a-0b0c0d0e0f10:4:0x10",
            "--enable",
            "MyCompany.MyComponent",
        )
        enabled = [(str(c[2]), c[4], c[5]) for c in kernel.calls if c[0] == "enable"]
        assert enabled == [
            ("01020304-0506-0708-090a-0b0c0d0e0f10", 4, 0x10),
            ("ce5fa4ea-ab00-5402-8b76-9f76ac858fb5", 0, 0),
        ]

    def test_branch_records(self, kernel: FakeKernel) -> None:
        run(
            "session",
            "start",
            "one",
            "-o",
            "x",
            "--lbr",
            "--lbr-filter",
            "kernel",
            "--source",
            "softwarebranches:5000",
            "--target",
            "42",
        )
        assert kernel.values[0, Info.PROFILE_SOURCE_CONFIG_INFO] == [25]
        assert kernel.values[0, Info.SAMPLED_PROFILE_INTERVAL_INFO] == (25, 5000)
        assert kernel.calls[0][2] == (42,)
        assert ("lbr", 1, 1, [(PERFINFO_PROVIDER, 0x2F)]) in kernel.calls
        assert kernel.values[1, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO][1] == 0x400

    def test_a_failure_leaves_nothing(self, kernel: FakeKernel) -> None:
        refused("session", "start", "one", "-o", "x", "--lbr", "--lbr-filter", "kernel,user")
        assert kernel.running == {}

    def test_branch_records_are_of_software_where_hardware_has_none(self, kernel: FakeKernel) -> None:
        """Interrupts of other sources have no branches, whatever an earlier session was configured with."""
        run("session", "start", "one", "-o", "x", "--lbr", "--target", "42")
        assert kernel.values[0, Info.PROFILE_SOURCE_CONFIG_INFO] == [25]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--mode", "sidewards"), "there are: "),
            (("--flags", "proces"), "image-load"),
            (("--enable", "a:x"), "'x' is not a number"),
            (("--source", "Nothing"), "lastbranch sources"),
            (("--source", "Timer:x"), "is not an interval"),
            (("--lbr-filter", "up"), "near-ret"),
            (("--target", "0"), "0"),
            (("--enable", "a:256"), "256"),
            (("--enable", "a:-1"), "8 bits"),
            (("--enable", "a:4:-1"), "64 bits"),
            (("--mode", "0x100000001"), "32 bits"),
            (("--flags", "0x100000001"), "32 bits"),
        ],
    )
    def test_words_that_are_none(self, kernel: FakeKernel, arguments: tuple[str, ...], said: str) -> None:
        assert said in run("session", "start", "one", "-o", "x", *arguments, code=2).output
        assert kernel.calls == [], "nothing was started, and no file written over"


class TestOthers:
    @pytest.fixture(autouse=True)
    def started(self, kernel: FakeKernel) -> None:
        kernel.start(SessionRequest("one", file="/x.etl", mode=LogFileMode.FILE_MODE_SEQUENTIAL))

    def test_query(self, kernel: FakeKernel) -> None:
        kernel.running[1].events_lost = 3
        result = run("session", "query", "ONE")
        assert "events lost" in result.output
        assert "note: 3 events were lost" in result.output
        (row,) = json.loads(run("session", "query", "one", "--format", "json").stdout)
        assert (row["name"], row["mode"], row["buffers"], row["events_lost"]) == ("one", "sequential", 4, 3)
        assert "(code 4201)" in refused("session", "query", "two")

    def test_list(self, kernel: FakeKernel) -> None:
        kernel.start(SessionRequest("two", mode=LogFileMode.REAL_TIME_MODE))
        rows = json.loads(run("session", "list", "--format", "json").output)
        assert [(r["handle"], r["name"], r["mode"], r["file"]) for r in rows] == [
            (1, "one", "sequential", "/x.etl"),
            (2, "two", "real-time", None),
        ]

    def test_stop(self, kernel: FakeKernel) -> None:
        kernel.start(SessionRequest("two"))
        assert "buffers written" in run("session", "stop", "one").output
        assert list(kernel.running) == [2]
        assert "(code 4201)" in refused("session", "stop", "two", "three")
        assert list(kernel.running) == [2], "all that are named, or none"
        assert "two" in run("session", "stop", "two", "TWO").output, "one that is named twice is stopped once"
        kernel.start(SessionRequest("three"))
        run("session", "stop", "--all")
        assert kernel.running == {}
        for words in (("list",), ("stop", "--all")):
            assert "no session runs" in run("session", *words).output
        run("session", "stop", code=2)
        run("session", "stop", "x", "--all", code=2)

    def test_update_and_flush(self, kernel: FakeKernel) -> None:
        run(
            "session",
            "update",
            "one",
            "--flush-timer",
            "4",
            "--enable",
            "MyCompany.MyComponent:2",
            "--disable",
            "01020304-0506-0708-090a-0b0c0d0e0f10",
        )
        assert [c[3] for c in kernel.calls if c[0] == "enable"] == [1, 0]
        assert [c[3].flush_timer for c in kernel.calls if c[0] == "control" and c[1] == 2] == [4]
        run("session", "update", "one", "--flags", "process")
        assert kernel.values[1, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO][0] == 1
        run("session", "flush", "one", "-o", "snapshot.etl")
        assert kernel.calls[-1][3].file == "snapshot.etl"
        assert "note: -o is for sessions in buffering mode" in run("session", "flush", "one", "-o", "x.etl").output
        assert "note" not in run("session", "flush", "one").output


def test_sources(kernel: FakeKernel) -> None:
    rows = json.loads(run("sources", "--format", "json").output)
    assert [(r["source"], r["name"], r["interval"], r["minimum"]) for r in rows][1] == (
        6,
        "BranchInstructions",
        65536,
        4096,
    )
    assert "5000" in run("sources", "--set", "Timer=5000").output
    assert kernel.values[0, Info.SAMPLED_PROFILE_INTERVAL_INFO] == (0, 5000)
    run("sources", "--set", "Nothing=1", code=2)
    assert "2 more" in run("sources", "--limit", "1").output


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[None]:
    with registry_at(tmp_path / "registry"):
        yield


@pytest.mark.skipif(sys.platform != "linux", reason="the portable kernel runs on Linux")
@pytest.mark.usefixtures("registry")
def test_a_session_from_beginning_to_end(tmp_path: Path) -> None:
    """The verbs on a session that really runs."""
    path = str(tmp_path / "x.etl")
    run("session", "start", "one", "-o", path, "--buffer-size", "8", "--enable", "MyCompany.Shop:4")
    with Provider("MyCompany.Shop") as shop:
        until(lambda: shop.enabled)
        assert [shop.event(n, level=4) for n in range(1, 6)] == [0] * 5
        shop.event(9, level=5)
    (row,) = json.loads(run("session", "list", "--format", "json").stdout)
    assert (row["handle"], row["name"], row["mode"], row["file"]) == (1, "one", "sequential", path)
    run("session", "update", "one", "--flush-timer", "7", "--disable", "MyCompany.Shop")
    (row,) = json.loads(run("session", "query", "one", "--format", "json").stdout)
    assert (row["flush_timer"], row["buffer_KB"]) == (7, 8)
    run("session", "flush", "one")
    (row,) = json.loads(run("session", "stop", "one", "--format", "json").stdout)
    assert (row["events_lost"], row["buffers_written"]) == (0, 2)
    assert [e.event.id for e in consume(path) if e.event.id] == [1, 2, 3, 4, 5]
    assert "(code 4201)" in refused("session", "stop", "one")
    assert json.loads(run("sources", "--format", "json").stdout)[0]["name"] == "Timer"
