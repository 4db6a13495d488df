"""The software LBR as a source of sessions: what it takes and refuses, and a recording as events while it goes on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from command_line import run_cli
from lastbranch.capture.options import Targets
from lastbranch.capture.perf_events import linux_kernel
from lastbranch.capture.software import RECORDS
from lastbranch.capture.software.schedule import kinds_recorded
from lastbranch.etw.flags import LBR_PROVIDER, PERFINFO_PROVIDER, Info, LogFileMode, hook_ids
from lastbranch.etw.portable import lbr_configuration as lbr
from lastbranch.etw.portable.clock import FILETIME_EPOCH
from lastbranch.etw.portable.lbr.conversion import Conversion, Scope
from lastbranch.etw.portable.lbr.recording_process import options_of, targets_of
from lastbranch.etw.portable.profile_sources import SourceSettings
from lastbranch.etw.portable.protocol import unpack
from lastbranch.etw.portable.session.settings import Settings
from lastbranch.etw.portable.session_registry import Registry, write_state
from lastbranch.etw.portable.sources.configuration import SourceConfiguration
from lastbranch.etw.portable.sources.event_words import Events
from lastbranch.etw.portable.sources.perf_records import Ticks
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.status import EtwError, Status
from lastbranch.formats.etl import LogHeader, TraceFile, TraceLog, encode_event
from lastbranch.formats.etl.container.writer import Packer
from lastbranch.formats.tb5.profile_writer import write_profile
from lastbranch.lbr import KIND
from lastbranch.lbr.filters import capture_mask
from lastbranch.model import BytesSource
from lastbranch.opening import open_profile
from lbr_recordings import Recording, program

PMC = (PERFINFO_PROVIDER, 0x2F)
TARGET = 1


@pytest.fixture(autouse=True)
def no_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbr, "has_hardware", lambda: False)


# -- what is refused


SWITCH_END, OTHER = (PERFINFO_PROVIDER, 0x34), (UUID(int=5), 1)


@pytest.mark.parametrize(
    ("flags", "events", "status"),
    [
        (0, [PMC] * 5, Status.IMPLEMENTATION_LIMIT),
        (0, [PMC] * 4, None),
        (0x3, [PMC], Status.INVALID_PARAMETER),
        (0x3, [], Status.INVALID_PARAMETER),
        (0x3, [PMC] * 5, Status.IMPLEMENTATION_LIMIT),
        (0x2, [PMC], Status.NOT_SUPPORTED),
        (0x400, [PMC], Status.NOT_SUPPORTED),
        (0x200, [PMC], Status.INVALID_PARAMETER),  # call stacks need the other classes left out
        (0x3C5, [PMC], None),
        (0, [], None),
        (0x2, [], None),
        (0x1, [PMC], None),
        (0x4 | 0x100, [PMC, OTHER], None),
        (0, [OTHER], None),
        (0, [PMC, (PERFINFO_PROVIDER, 0x2E)], None),
        (0, [PMC, SWITCH_END], Status.NOT_SUPPORTED),
        (0, [(LBR_PROVIDER, 0x20)], Status.NOT_SUPPORTED),
    ],
)
def test_what_a_session_may_be_configured_with(
    flags: int, events: list[tuple[UUID, int]], status: Status | None
) -> None:
    if status is None:
        lbr.check_configuration(flags, hook_ids(events), len(events))
    else:
        with pytest.raises(EtwError) as caught:
            lbr.check_configuration(flags, hook_ids(events), len(events))
        assert (caught.value.status, caught.value.call) == (status, "TraceConfigureLastBranchRecord")


CALLS, WAITS = (PERFINFO_PROVIDER, 0x33), (UUID("3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c"), 0x24)


@pytest.mark.parametrize(
    ("folders", "status"), [({"/sys/kernel": ["tracing"]}, Status.PRIVILEGE_NOT_HELD), ({}, Status.NOT_SUPPORTED)]
)
def test_system_calls_need_tracepoints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folders: dict[str, list[str]], status: Status
) -> None:
    monkeypatch.setattr(lbr, "has_hardware", lambda: False)
    monkeypatch.setattr(linux_kernel.Kernel, "names", lambda self, path: folders.get(path, []))
    monkeypatch.setattr(linux_kernel.Kernel, "private_tracefs", lambda self: None)
    session = Settings(SessionRequest("s", mode=LogFileMode.SYSTEM_LOGGER_MODE), (), Registry(tmp_path))
    assert session.with_lbr(0, [PMC])
    for trigger in (CALLS, WAITS):
        with pytest.raises(EtwError) as caught:
            session.with_lbr(0, [trigger])
        assert (caught.value.status, caught.value.call) == (status, "TraceConfigureLastBranchRecord")


def test_which_call_triggers_are_on() -> None:
    hooks, both = (0x0F2F, 0x0F33, 0x0524), (0, 0x4, 0x40, 0, 0, 0, 0, 0)
    assert lbr.active_call_triggers(hooks, both) == (0x0F33, 0x0524)
    assert lbr.active_call_triggers(hooks, (0x90, 0, 0, 0, 0, 0, 0, 0)) == ()
    assert lbr.active_call_triggers(hooks[:2], both) == (0x0F33,)


def test_hardware_takes_its_own_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbr, "has_hardware", lambda: True)
    lbr.check_configuration(0x2, [0x0F2F], 1)
    with pytest.raises(EtwError):
        lbr.check_configuration(0x0, [0x0F2E], 1)
    assert lbr.software_source() == []


def test_hooks_of_events() -> None:
    """By the table of 32 GUIDs; others are left out in silence, as Windows does."""
    events = [PMC, (UUID(int=5), 1), (UUID("3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c"), 36)]
    assert hook_ids(events) == [0x0F2F, 0x0524]
    assert hook_ids([]) == []


ON = (0, 0x400, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("hooks", "masks", "sources", "trigger"),
    [
        ((0x0F2F,), ON, [], 0x0F2F),
        ((0x0F2F,), ON, [65, 6], 0x0F2F),
        ((0x0F2F,), (0x400, 0x2, 0, 0, 0, 0, 0, 0), [], 0),
        ((0x0F2F,), ON, [6], 0),
        ((0x0F2E,), ON, [], 0),
        ((0x0F2E, 0x0F2F), (0, 0x402, 0, 0, 0, 0, 0, 0), [], 0x0F2F),
        ((0x0F2E, 0x0F2F), (0, 0x402, 0, 0, 0, 0, 0, 0), [6], 0x0F2E),
        ((0x0F2E, 0x0F2F), (0, 0x2, 0, 0, 0, 0, 0, 0), [], 0x0F2E),
    ],
)
def test_when_branches_are_recorded(
    hooks: tuple[int, ...], masks: tuple[int, ...], sources: list[int], trigger: int, tmp_path: Path
) -> None:
    """The recorder runs as soon as a trigger is configured, and has targets while one is enabled."""
    registry = Registry(tmp_path)
    with registry.folder() as folder:
        write_state(folder, "profile", SourceSettings(sources=sources))
    request = SessionRequest("s", mode=LogFileMode.SYSTEM_LOGGER_MODE)
    settings = Settings(request, (TARGET, -TARGET), registry, masks)
    assert "branch" not in settings.commands("address")
    settings = replace(settings, information={Info.LBR_EVENT_LIST_INFO: hooks})
    assert "branch" in settings.commands("address")
    made = unpack(SourceConfiguration, settings.configuration())
    assert made.branch_hook == trigger
    assert made.targets == ((TARGET, -TARGET) if trigger else ())
    assert targets_of(made) == (Targets((TARGET,), (TARGET,)) if trigger else Targets())


def test_other_sources_trigger_nothing_without_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts of counters are logged as they are: asking the processor for branches would fail."""
    request = SessionRequest("s", mode=LogFileMode.SYSTEM_LOGGER_MODE)
    made = Settings(request, (TARGET,), Registry(tmp_path)).with_lbr(0x1, [PMC])
    assert unpack(SourceConfiguration, made.configuration()).lbr_hooks == ()
    monkeypatch.setattr(lbr, "has_hardware", lambda: True)
    assert unpack(SourceConfiguration, made.configuration()).lbr_hooks == (0x0F2F,)


# -- how it is recorded


def test_options_of_a_session() -> None:
    made = options_of(SourceConfiguration(lbr_flags=0, intervals={65: 5_000_000, 6: 1}))
    assert (made.depth, made.period) == (32, 5_000_000)
    assert capture_mask(made.select, "perf") == capture_mask(0x1, "etw")
    assert options_of(SourceConfiguration()).period == 0
    with pytest.raises(EtwError) as caught:
        options_of(SourceConfiguration(lbr_flags=0x200))  # call stacks need the other classes left out
    assert caught.value.status == Status.INVALID_PARAMETER


@pytest.mark.parametrize(
    ("flags", "out"),
    [
        (0, ()),
        (0x4, ("cond",)),
        (0x8, ("call",)),
        (0x10, ("ind_call",)),
        (0x20, ("ret",)),
        (0x40, ("ind",)),
        (0x80, ("uncond",)),
        (0x4 | 0x20, ("cond", "ret")),
    ],
)
def test_each_flag_leaves_its_class_out(flags: int, out: tuple[str, ...]) -> None:
    near = ("cond", "uncond", "ind", "call", "ind_call", "ret")
    recorded = kinds_recorded(options_of(SourceConfiguration(lbr_flags=flags)).ring or 0)
    assert [name for name in near if KIND[name] not in recorded] == [n for n in near if n in out]


def test_ticks_of_both_clocks() -> None:
    import time

    ns = np.array([time.monotonic_ns()])
    assert Ticks(1)(ns).tolist() == ns.tolist()
    wall = FILETIME_EPOCH + time.time_ns() // 100
    assert abs(int(Ticks(2)(ns)[0]) - wall) < 100_000_000


# -- events while it goes on


def converted(data: bytes, sizes: Sequence[int], scope: Scope | None = None) -> tuple[Conversion, list[Events]]:
    """The events of a recording that comes in pieces of ``sizes``."""
    conversion, at, parts = Conversion(scope or Scope()), 0, []
    for size in sizes:
        parts.append(conversion.feed(data[at : at + size]))
        at += size
    parts.append(conversion.feed(data[at:]))
    parts.append(conversion.finish(50_000_000))
    return conversion, parts


def by_processor(parts: Sequence[Events]) -> dict[int, list[bytes]]:
    """The events of each processor, in the order in which they are written."""
    found: dict[int, list[bytes]] = {}
    for part in parts:
        data, ends = part.words.tobytes(), np.cumsum(part.size) * 8
        for cpu, begin, end in zip(part.cpu.tolist(), (ends - part.size * 8).tolist(), ends.tolist(), strict=True):
            found.setdefault(cpu, []).append(data[begin:end])
    return found


def log_of(parts: Sequence[Events], path: Path) -> Path:
    times = np.concatenate([part.time for part in parts])
    header = LogHeader(timestamp=int(times.min()), perf_freq=1_000_000_000, processors=3)
    file = TraceFile(path, header, [])
    packer = Packer(file)
    for part in parts:
        ends, data = np.cumsum(part.size) * 8, part.words.tobytes()
        for i, end in enumerate(ends.tolist()):
            packer.add(int(part.cpu[i]), data[end - int(part.size[i]) * 8 : end], int(part.time[i]))
    packer.flush()
    file.close()
    return path


def test_events_do_not_depend_on_how_the_bytes_come() -> None:
    recording = Recording()
    program(recording)
    _, whole = converted(recording.data, ())
    expected, draw = by_processor(whole), random.Random(5)
    for longest in (300, 2000, 9000):
        sizes = [draw.randint(1, longest) for _ in range(len(recording.data) // longest)]
        _, parts = converted(recording.data, sizes)
        assert by_processor(parts) == expected
        assert sum(len(part) > 0 for part in parts) > 1


def test_the_events_of_a_processor_are_in_the_order_of_time() -> None:
    recording = Recording()
    program(recording)
    _, parts = converted(recording.data, [3000] * 40)
    last: dict[int, int] = {}
    for part in parts:
        for cpu, time in zip(part.cpu.tolist(), part.time.tolist(), strict=True):
            assert time >= last.get(cpu, 0)
            last[cpu] = time
    assert set(last) == {0, 1, 2}


def test_records_that_come_late_wait_for_their_round() -> None:
    """The kernel's rings are emptied one after the other: what is younger than the round before may not be all."""
    recording = Recording()
    recording.out.write(RECORDS.comm(40, 40, "prog", 1000))
    recording.round(2000)
    recording.time(5000, 0x10, 40, 40, 0)
    recording.round(6000)
    before = len(recording.data)
    recording.time(3000, 0x20, 40, 40, 0)
    recording.time(6500, 0x30, 40, 40, 0)
    recording.round(7000)
    conversion = Conversion(Scope())
    parts = [
        conversion.feed(recording.data[:before]),
        conversion.feed(recording.data[before:]),
        conversion.finish(8000),
    ]
    interrupts = [[int(t) for t, e in zip(p.time, _hooks(p), strict=True) if e == 0x0F2F] for p in parts]
    assert interrupts == [[], [3000, 5000], [6500]]


def _hooks(part: Events) -> list[int]:
    """Hooks of PERFINFO events, -1 of the others."""
    at = np.cumsum(part.size) - part.size
    heads = part.words[at]
    is_perf = (heads >> np.uint64(16)) & np.uint64(0xFF) == 17
    return np.where(is_perf, (heads >> np.uint64(48)).astype(np.int64), -1).tolist()


VERBS = [["branches"], ["branches", "--format", "csv"]] + [
    ["report", "--by", by, "--format", "json"] for by in ("process", "thread", "module")
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_followed_recording_is_the_one_that_is_written_at_the_end(tmp_path: Path, verb: list[str]) -> None:
    """The same output from the .etl of a session, a .tb5, and the recording itself."""
    recording = Recording()
    program(recording)
    _, parts = converted(recording.data, [5000] * 30)
    (tmp_path / "prog.data").write_bytes(recording.data)
    write_profile(open_profile(tmp_path / "prog.data"), tmp_path / "prog.tb5")
    log_of(parts, tmp_path / "prog.etl")
    answers = [run_cli(*verb, tmp_path / f"prog.{ending}") for ending in ("data", "tb5", "etl")]
    assert {a.code for a in answers} == {0}
    assert answers[0].out == answers[1].out == answers[2].out
    assert len(answers[0].out) > 200


def test_a_recording_that_breaks_off_keeps_what_is_complete(tmp_path: Path) -> None:
    recording = Recording()
    program(recording)
    for length in (10, 300, 2000, 15_000):
        _, parts = converted(recording.data[:length], ())
        if any(len(part) for part in parts):
            profile = open_profile(log_of(parts, tmp_path / "cut.etl"))
            assert not profile.damage
            assert profile.samples > 0


def test_bursts_alone() -> None:
    """What a session with other sources gets: interrupts with their records, and how the source was programmed."""
    recording = Recording()
    program(recording)
    _, whole = converted(recording.data, ())
    conversion, parts = converted(recording.data, (), Scope(whole=False, flags=0x4, name="SoftwareBranches"))
    hooks = [hook for part in parts for hook in _hooks(part)]
    assert set(hooks) == {0x0F2F, 0x0C20, -1}
    bursts = sum(hook == 0x0C20 for part in whole for hook in _hooks(part))
    assert hooks.count(0x0F2F) >= bursts > 40
    log = TraceLog(BytesSource(log_bytes(parts)))
    stamps: dict[int, list[int]] = {0x0F2F: [], 0x0C20: []}
    for event in log.events():
        if event.hook in stamps:
            stamps[event.hook].append(event.time)
    assert set(stamps[0x0C20]) <= set(stamps[0x0F2F])
    assert conversion.recorded


def log_bytes(parts: Sequence[Events]) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return log_of(parts, Path(folder, "it.etl")).read_bytes()


def test_what_was_configured_and_not_enabled_is_found(tmp_path: Path) -> None:
    from lastbranch.analysis.checks import check
    from lastbranch.formats.etl import TraceWriter
    from lastbranch.formats.etl.profile.supplement import supplement_event

    for hooks, names in (([0x0F2F, 0x0524], ["trigger off", "trigger off"]), ([], [])):
        path = tmp_path / f"{len(hooks)}.etl"
        with TraceWriter(path, LogHeader(timestamp=1)) as writer:
            writer.add(supplement_event("Triggers", 5, {"Flags": 0, "Hooks": [0x0F2F]}))
            writer.add(supplement_event("Triggers", 9, {"Flags": 0, "Hooks": hooks}))  # the last one holds
        found = [f for f in check(str(path)) if f.name == "trigger off"]
        assert [f.name for f in found] == names
        assert all("hook 0x" in f.seen for f in found)
    assert encode_event(supplement_event("Triggers", 5, {"Flags": 0, "Hooks": []}))
