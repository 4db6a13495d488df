"""The recipe of the LBR document: the example's call sequence on Windows, and the same by the API's functions."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import ModuleType

import pytest

from lastbranch import etw
from windows_fake import LBR, TOOLKIT, FakeWindows, api_on, example, lbr_calls, stopped_sessions
from windows_memory import MODE, FakeEvent

PERFINFO = bytes.fromhex("b4bf1dce7e13a64d87b03f59aa102cbc")
FILE = "C:\\traces\\LbrProfile.etl"


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWindows]:
    """A Windows that the package's API runs on."""
    made = FakeWindows()
    api_on(monkeypatch, made)
    yield made
    assert made.failures == []
    assert made.open_tokens == 0


@pytest.fixture
def recipe() -> ModuleType:
    return example("lbr_recipe")


def test_the_example_makes_the_document_s_calls(
    windows: FakeWindows, recipe: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = stopped_sessions(monkeypatch, windows)
    state = recipe.record(FILE, 65536, "input()")
    handle = state.handle
    masks = [bytes(32), struct.pack("<8I", 7, 0x400, 0, 0, 0, 0, 0, 0)]
    assert lbr_calls(windows) == [
        ("TraceSetInformation", 0, 6, struct.pack("<I", 30)),  # the source is chosen by its name
        ("TraceSetInformation", 0, 5, struct.pack("<II", 30, 65536)),
        ("StartTraceW",),
        ("ControlTraceW", handle, 0),  # verified
        (LBR, handle, 0, PERFINFO + b"\x2f" + bytes(7)),
        ("TraceQueryInformation", handle, 4, masks[0]),
        ("TraceSetInformation", handle, 4, masks[1]),  # read, ORed, written back
        ("ControlTraceW", handle, 1),
    ]
    (session,) = sessions
    assert (session.name, session.file) == ("LbrLogger", FILE)
    assert session.numbers[MODE] == 0x02000001
    assert session.masks[:2] == [7, 0x400]  # process, thread and image events go on
    assert (session.lbr_hooks, session.lbr_flags) == ([0x0F2F], 0)
    assert windows.sessions == {}


def test_the_privilege_comes_first(windows: FakeWindows, recipe: ModuleType) -> None:
    recipe.record(FILE, 65536, "input()")
    names = [c.name for c in windows.calls]
    assert names.index("AdjustTokenPrivileges") < names.index("TraceQueryInformation")
    assert names.index("AdjustTokenPrivileges") < names.index("StartTraceW")


def test_the_example_on_an_older_windows(
    windows: FakeWindows, recipe: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows.missing.add(LBR)
    sessions = stopped_sessions(monkeypatch, windows)
    recipe.record(FILE, 65536, "input()")
    assert [c[2] for c in lbr_calls(windows) if c[0] == "TraceSetInformation"] == [6, 5, 21, 20, 21, 4]
    assert sessions[0].lbr_hooks == [0x0F2F]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["Timer", "BranchInstructions"], "BranchInstructions"),
        (["BranchInstructions", "BranchInstructionRetired"], "BranchInstructionRetired"),
        (["BranchInstructionRetired", "SoftwareBranches"], "SoftwareBranches"),  # counters, but no branch records
        (["Timer"], None),
    ],
)
def test_the_source_is_chosen_by_name(
    windows: FakeWindows, recipe: ModuleType, names: list[str], chosen: str | None
) -> None:
    windows.sources = [(40 + i, name, 4096, 2**31 - 1) for i, name in enumerate(names)]
    if chosen is None:
        with pytest.raises(SystemExit, match="there are: Timer"):
            recipe.chosen_source()
    else:
        assert recipe.chosen_source().name == chosen


def test_the_interval_is_one_that_the_source_takes(windows: FakeWindows, recipe: ModuleType) -> None:
    recipe.record(FILE, 10, "input()")
    assert windows.intervals[30] == 4096


@pytest.mark.parametrize(("export", "code"), [(LBR, 50), ("TraceQueryInformation", 0)])
def test_a_failure_stops_the_session_and_is_told(
    windows: FakeWindows, recipe: ModuleType, export: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if code:
        windows.codes[export] = code
        assert recipe.main([FILE]) == 1
        said = capsys.readouterr().err
        assert said.startswith("TraceConfigureLastBranchRecord: the request is not supported (code 50)")
        assert windows.sessions == {}
        assert windows.last("ControlTraceW").arguments[3] == 1
    else:
        windows.has_privilege = False
        assert recipe.main([FILE]) == 1
        assert "hint: run from an elevated prompt" in capsys.readouterr().err
        assert "StartTraceW" not in windows.names


def test_identities_are_merged_by_the_toolkit(
    windows: FakeWindows, recipe: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    windows.files["LbrProfile.etl"] = [FakeEvent(etw.SystemTraceControlGuid, 1, b"", 1)]
    assert recipe.with_identities("LbrProfile.etl") == "LbrProfile.etl"
    assert capsys.readouterr().err == "not merged: CreateMergedTraceFile gave 126\n"
    windows.toolkit = TOOLKIT
    assert recipe.with_identities("LbrProfile.etl") == "LbrProfile.merged.etl"
    assert windows.merged == [("LbrProfile.merged.etl", ["LbrProfile.etl"], 1)]


# -- the document's own program, by the functions of the API


def test_the_document_s_program(windows: FakeWindows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call for call, structures as the caller laid them out; Windows' kernel behind it."""
    sessions = stopped_sessions(monkeypatch, windows)
    size = 120 + 2 * 2 * 260
    memory = bytearray(size)
    properties = etw.EVENT_TRACE_PROPERTIES.from_buffer(memory)
    properties.Wnode.BufferSize, properties.Wnode.Flags = size, etw.WNODE_FLAG_TRACED_GUID
    properties.LogFileMode = etw.EVENT_TRACE_FILE_MODE_SEQUENTIAL | etw.EVENT_TRACE_SYSTEM_LOGGER_MODE
    properties.EnableFlags = 7
    properties.LoggerNameOffset, properties.LogFileNameOffset = 120, 120 + 520
    memory[640 : 640 + 2 * len(FILE)] = FILE.encode("utf-16-le")
    profile = etw.TRACE_PROFILE_INTERVAL(6, 65536)
    assert etw.TraceSetInformation(0, etw.TraceProfileSourceConfigInfo, struct.pack("<I", profile.Source), 4) == 0
    assert etw.TraceSetInformation(0, etw.TraceSampledProfileIntervalInfo, profile, 8) == 0
    status, handle = etw.StartTrace("LbrLogger", memory)
    assert status == 0
    assert handle == properties.Wnode.HistoricalContext
    assert properties.MinimumBuffers == 8
    assert memory[120:138].decode("utf-16-le") == "LbrLogger"
    event = etw.CLASSIC_EVENT_ID(etw.GUID.from_buffer_copy(PERFINFO), 0x2F)
    assert etw.TraceConfigureLastBranchRecord(handle, etw.TRACE_LBR_CONFIGURATION_NONE, event, 1) == 0
    masks = etw.PERFINFO_GROUPMASK()
    masks.Masks[1] = 0x400
    assert etw.TraceSetInformation(handle, etw.TraceSystemTraceEnableFlagsInfo, masks, 32) == 0
    assert etw.ControlTrace(handle, None, memory, etw.EVENT_TRACE_CONTROL_STOP) == 0
    assert sessions[0].masks[:2] == [0, 0x400]  # the page's program switches its other events off here
    assert sessions[0].lbr_hooks == [0x0F2F]


def test_a_code_without_a_name_comes_through(windows: FakeWindows) -> None:
    windows.codes["TraceSetInformation"] = 31337
    assert etw.TraceSetInformation(0, etw.TraceProfileSourceConfigInfo, struct.pack("<I", 6), 4) == 31337
    windows.codes["TraceQueryInformation"] = 31337
    assert etw.TraceQueryInformation(0, etw.TraceProfileSourceListInfo, None, 0)[0] == 31337


def test_an_update_keeps_the_events(windows: FakeWindows) -> None:
    """EnableFlags of 0 would switch all events of a system logger off."""
    mode = etw.LogFileMode.FILE_MODE_SEQUENTIAL | etw.LogFileMode.SYSTEM_LOGGER_MODE
    with etw.Session("LbrLogger", FILE, mode=mode, enable_flags=7) as session:
        session.update(flush_timer=5)
        assert session.log_files == [FILE]
        assert windows.sessions[session.handle].masks[0] == 7
