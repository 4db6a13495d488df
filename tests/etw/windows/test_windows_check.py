"""examples/windows_check.py on the fake Windows: it makes every call, reports what fails, and leaves nothing behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import etl_builder as eb
from etl_kernel_logs import PAIR, WORLD, lbr, pmc
from lastbranch.etw.windows.libraries import FUNCTIONS
from lastbranch.recording import recorders
from windows_fake import LBR, TOOLKIT, FakeWindows, api_on, example
from windows_memory import FakeSession


def log_of(session: FakeSession) -> bytes:
    """The events of a session as a log; a system logger with PMC profiling has a branch record."""
    trace = eb.Trace()
    for event in session.events:
        kind = eb.full if event.classic else eb.manifest
        trace.add(0, kind(event.provider.bytes_le, event.id, 1_000_000 + event.time, event.data))
    if session.masks[1] & 0x400:
        for cpu, made in [*WORLD, (0, pmc(200, 0x140001010, 420, 6)), (0, lbr(200, 42, 420, 0, PAIR))]:
            trace.add(cpu, made)
    return bytes(trace)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWindows]:
    made = FakeWindows(toolkit=TOOLKIT)
    made.log_of = log_of
    api_on(monkeypatch, made)
    monkeypatch.setitem(recorders.RECORDERS, sys.platform, recorders.RECORDERS["win32"])
    yield made
    assert made.open_tokens == 0


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    made = example("windows_check")
    monkeypatch.setattr(made, "WORK", "pass")
    monkeypatch.setattr(made, "WAIT", 0.1)
    monkeypatch.setattr(made, "icacls", lambda *words: f"{words[0]} Everyone:(I)(R)")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return made


def ran(script: ModuleType, tmp_path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the steps of the report by their first word."""
    code = script.main([str(tmp_path / "report.json")])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["machine"]["lastbranch"]
    assert list((tmp_path / "temporary").iterdir()) == []
    return code, {step["step"]: step for step in report["steps"]}


def results(steps: dict[str, dict[str, Any]], result: str) -> dict[str, str]:
    return {name: step["why"] for name, step in steps.items() if step["result"] == result}


def test_every_call_is_made_and_passes(windows: FakeWindows, script: ModuleType, tmp_path: Path) -> None:
    code, steps = ran(script, tmp_path)
    assert results(steps, "FAIL") == results(steps, "skip") == {}
    assert code == 0
    assert windows.failures == []
    assert set(windows.counts()) == set(FUNCTIONS)
    assert windows.sessions == {}
    assert windows.intervals[30] == 65536
    assert {call.arguments[3] for call in windows.calls if call.name == "ControlTraceW"} == set(range(6))
    classes = {c.arguments[1] for c in windows.calls if c.name in ("TraceSetInformation", "TraceQueryInformation")}
    assert set(range(3, 30)) <= classes
    assert steps["the log with branch records, by lastbranch's reader"]["branches"] == len(PAIR)


def test_the_report_names_no_folder_and_no_user(windows: FakeWindows, script: ModuleType, tmp_path: Path) -> None:
    windows.codes["OpenTraceW"] = 2**64 - 1
    ran(script, tmp_path)
    text = (tmp_path / "report.json").read_text()
    assert str(tmp_path) not in text
    assert str(Path.home()) + "/" not in text


@pytest.mark.parametrize(
    ("export", "code", "step"),
    [
        ("StartTraceW", 1450, "StartTrace, ControlTrace"),
        ("QueryAllTracesW", 31337, "StartTrace, ControlTrace"),
        ("EventRegister", 31337, "StartTrace, ControlTrace"),
        ("OpenTraceW", 2**64 - 1, "OpenTrace, ProcessTrace, CloseTrace on a file"),
        ("ProcessTrace", 31337, "a session in real time"),
        ("TraceSetInformation", 31337, "branch records"),
        ("CreateMergedTraceFile", 31337, "CreateMergedTraceFile"),
    ],
)
def test_a_call_that_fails_is_a_step_that_fails(
    windows: FakeWindows, script: ModuleType, tmp_path: Path, export: str, code: int, step: str
) -> None:
    """The others go on, and no session is left, whatever fails."""
    windows.codes[export] = code
    failed, steps = ran(script, tmp_path)
    assert failed == 1
    assert any(name.startswith(step) for name in results(steps, "FAIL"))
    assert len(results(steps, "pass")) >= 5
    assert windows.sessions == {}


def test_without_rights_the_rest_is_tried(windows: FakeWindows, script: ModuleType, tmp_path: Path) -> None:
    windows.has_privilege = windows.admin = False
    code, steps = ran(script, tmp_path)
    assert code == 0
    assert results(steps, "FAIL") == {}
    assert "SeSystemProfilePrivilege" in results(steps, "skip")


def test_without_branch_records_the_rest_is_tried(windows: FakeWindows, script: ModuleType, tmp_path: Path) -> None:
    windows.codes[LBR], windows.toolkit = 50, None
    code, steps = ran(script, tmp_path)
    assert (code, len(results(steps, "skip"))) == (0, 4)
    assert windows.sessions == {}
