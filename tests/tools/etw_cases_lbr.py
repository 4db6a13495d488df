"""The cases of TraceConfigureLastBranchRecord: what each statement of its table looks like with software LBR."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from etw_properties import properties
from etw_world import World, until
from lastbranch import etw
from lastbranch.etw import control_api
from lastbranch.etw.flags import LBR_PROVIDER, MAX_LBR_EVENTS, PERFINFO_PROVIDER, Control
from lastbranch.etw.flags import LogFileMode as M
from lastbranch.etw.portable.lbr_configuration import SOURCE, software_source
from lastbranch.etw.structures import guid_of, structure

PMC_INTERRUPT, LBR = 0x0F2F, 0x0C20
_BUSY = "import itertools\nfor n in itertools.count(): sum(map(abs, range(1000)))"
_TRIGGER = (PERFINFO_PROVIDER, 0x2F)
_PMC_PROFILE = 0x400

configure = etw.TraceConfigureLastBranchRecord


def _events(*kinds: int) -> object:
    kind = structure("CLASSIC_EVENT_ID")
    return (kind * len(kinds))(*(kind(guid_of(PERFINFO_PROVIDER), number) for number in kinds))


@contextmanager
def _busy() -> Iterator[int]:
    """A process that computes. If no process can be traced, the case is skipped."""
    if not software_source():
        pytest.skip("no process can be traced here, or the processor records branches itself")
    with subprocess.Popen([sys.executable, "-c", _BUSY]) as child:
        try:
            yield child.pid
        finally:
            child.kill()


def _name_targets(handle: int, *targets: int) -> int:
    data = struct.pack(f"<{len(targets)}i", *targets)
    return etw.TraceSetInformation(handle, etw.TraceSoftwareBranchTargetsInfo, data, len(data))


@contextmanager
def _system_logger(world: World) -> Iterator[tuple[int, int]]:
    """(handle, target) of a system logger that may record a busy process."""
    with _busy() as pid:
        status, handle, _ = world.start(LogFileMode=M.SYSTEM_LOGGER_MODE)
        assert status == 0
        assert _name_targets(handle, pid) == 0
        yield handle, pid


def _profile(handle: int) -> None:
    """Sample by software branches, as often as that goes; the masks are read, changed and written."""
    assert etw.TraceSetInformation(0, 6, struct.pack("<I", SOURCE.source), 4) == 0
    assert etw.TraceSetInformation(0, 5, struct.pack("<2I", SOURCE.source, SOURCE.minimum), 8) == 0
    masks = structure("PERFINFO_GROUPMASK")()
    assert etw.TraceQueryInformation(handle, 4, masks, 32) == (0, 32)
    masks.Masks[1] |= _PMC_PROFILE
    assert etw.TraceSetInformation(handle, 4, masks, 32) == 0


def _recorded(world: World, handle: int) -> list[etw.ConsumedEvent]:
    """Stops the session when its file has the first branches, and reads the triggers and the records."""

    def read() -> list[etw.ConsumedEvent]:
        return [e for e in etw.consume(world.file()) if e.event.hook in (PMC_INTERRUPT, LBR)]

    def has_branches() -> bool:
        world.flush(handle)
        time.sleep(0.1)  # each look flushes the session: without a pause it would do nothing else
        return any(e.event.hook == LBR for e in read())

    until(has_branches, 300)
    world.stop(handle)
    return read()


def a_session_is_configured(world: World) -> None:
    with _system_logger(world) as (handle, _):
        assert configure(handle, 0, _events(0x2F), 1) == 0
        assert configure(62, 0, _events(0x2F), 1) == 4201


def filters_leave_branches_out(world: World) -> None:
    """Kernel branches, calls and returns left out: each record says so."""
    with _system_logger(world) as (handle, _):
        assert configure(handle, 0x1 | 0x8 | 0x10 | 0x20, _events(0x2F), 1) == 0
        _profile(handle)
        found = _recorded(world, handle)
    options = {struct.unpack_from("<I", e.event.payload, 16)[0] for e in found if e.event.hook == LBR}
    assert options == {0x39}


def flags_of_other_processors(world: World) -> None:
    with _system_logger(world) as (handle, _):
        assert configure(handle, etw.EVNTRACE_LBR_SAMPLED, _events(0x2F), 1) == 50
        assert configure(handle, etw.EVNTRACE_LBR_FILTER_USER, _events(0x2F), 1) == 50


def triggers_that_are_not_enabled(world: World) -> None:
    with _system_logger(world) as (handle, _):
        assert configure(handle, 0, _events(0x2F), 1) == 0
        world.stop(handle)
    assert [e for e in etw.consume(world.file()) if e.event.hook == LBR] == []


def a_count_of_0_ends_it(world: World) -> None:
    with _system_logger(world) as (handle, _):
        assert configure(handle, 0, _events(0x2F), 1) == 0
        assert configure(handle, 0, None, 0) == 0
        _profile(handle)
        world.stop(handle)
    assert [e for e in etw.consume(world.file()) if e.event.hook == LBR] == []


def four_triggers(world: World) -> None:
    with _system_logger(world) as (handle, _):
        assert configure(handle, 0, _events(*[0x2F] * 4), MAX_LBR_EVENTS) == 0
        assert configure(handle, 0, _events(*[0x2F] * 5), 5) == 1292
        assert configure(handle, 0, _events(0x2F, 0x34), 2) == 50, "the end of a system call triggers nothing"


def the_order_of_the_checks(world: World) -> None:
    _, handle, _ = world.start(LogFileMode=M.SYSTEM_LOGGER_MODE)
    both = etw.EVNTRACE_LBR_FILTER_KERNEL | etw.EVNTRACE_LBR_FILTER_USER
    assert configure(handle, both, None, 5) == 1292
    assert configure(handle, both, None, 1) == 87
    assert configure(handle, both, _events(0x2F), 1) == 87
    assert configure(handle, both, None, 0) == 87
    assert configure(handle, 0, None, 0) == 0


def a_record_for_each_trigger(world: World) -> None:
    with _system_logger(world) as (handle, pid):
        assert configure(handle, 1, _events(0x2F), 1) == 0
        _profile(handle)
        found = _recorded(world, handle)
    triggers, records = found[::2], found[1::2]
    assert len(records) == len(triggers) > 0
    for trigger, record in zip(triggers, records, strict=True):
        assert (trigger.event.hook, record.event.hook) == (PMC_INTERRUPT, LBR)
        assert trigger.event.time == record.event.time == struct.unpack_from("<Q", record.event.payload)[0]
        assert struct.unpack_from("<I", record.event.payload, 8)[0] == pid
    assert etw.GROUPS["PMC_PROFILE"].bits == _PMC_PROFILE
    assert LBR >> 8 == 0x0C, f"the group of {LBR_PROVIDER}"
    assert LBR & 0xFF == 0x20, "its opcode"


def what_a_record_holds(world: World) -> None:
    with _system_logger(world) as (handle, _):
        assert configure(handle, 1, _events(0x2F), 1) == 0
        _profile(handle)
        found = [e.event.payload for e in _recorded(world, handle) if e.event.hook == LBR]
    head, entry = structure("LBR_TRACE_EVENT_DATA").Entries.offset, structure("ETW_LBR_ENTRY")
    for payload in found:
        count, rest = divmod(len(payload) - head, 24)
        assert rest == 0
        assert count > 0
        entries = [entry.from_buffer_copy(payload, head + 24 * n) for n in range(count)]
        assert all(e.FromAddress and e.ToAddress for e in entries)


def rights_for_counters(world: World) -> None:
    """Counters of the processor: 1314 without the right, 50 where there are none, else they count."""
    _, handle, _ = world.start(LogFileMode=M.SYSTEM_LOGGER_MODE)
    masks = structure("PERFINFO_GROUPMASK")()
    masks.Masks[1] = _PMC_PROFILE
    assert etw.TraceSetInformation(0, 6, struct.pack("<I", 0), 4) in (0, 87)
    assert etw.TraceSetInformation(handle, 4, masks, 32) in (0, 50, 1314)


def merging_adds_identities(world: World) -> None:
    with _system_logger(world) as (handle, _):
        assert configure(handle, 1, _events(0x2F), 1) == 0
        _profile(handle)
        _recorded(world, handle)
    out = world.file("merged.etl")
    assert etw.CreateMergedTraceFile(out, [world.file()], etw.MergeFlag.IMAGEID) == 0
    assert os.path.getsize(out) > 0
    assert any(e.event.hook == LBR for e in etw.consume(out))


def the_example(world: World) -> None:
    """The calls of the document's example, in its order, with masks that are changed and not replaced."""
    assert control_api.StartTrace.__name__ == "StartTrace"
    with _busy() as pid:
        assert etw.TraceSetInformation(0, etw.TraceProfileSourceConfigInfo, struct.pack("<I", SOURCE.source), 4) == 0
        interval = structure("TRACE_PROFILE_INTERVAL")(SOURCE.source, SOURCE.minimum)
        assert etw.TraceSetInformation(0, etw.TraceSampledProfileIntervalInfo, interval, 8) == 0
        buffer = properties(
            file=world.file(),
            room=1100,
            LogFileMode=etw.EVENT_TRACE_FILE_MODE_SEQUENTIAL | etw.EVENT_TRACE_SYSTEM_LOGGER_MODE,
        )
        status, handle = etw.StartTrace("LbrLogger", buffer)
        assert status == 0
        assert _name_targets(handle, pid) == 0
        assert configure(handle, etw.TRACE_LBR_CONFIGURATION_NONE, _events(0x2F), 1) == 0
        _profile(handle)
        assert _recorded(world, handle)
    assert etw.ControlTrace(handle, None, buffer, Control.STOP) == 4201
