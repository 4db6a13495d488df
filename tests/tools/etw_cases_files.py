"""More cases of EVENT_TRACE_PROPERTIES_V2: files, where events go, flushing, flags, filters, statistics."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from etw_world import PROVIDER, World, until
from lastbranch import etw
from lastbranch.etw.flags import KERNEL_LOGGER_NAME, EnableFlag
from lastbranch.etw.flags import LogFileMode as M
from lastbranch.etw.kernel_choice import kernel
from lastbranch.etw.portable.request import Host, adjusted
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.structures import structure

_TRACED_GUID = 0x20000

# -- files


def files_without_a_limit(world: World) -> None:
    _, handle, made = world.start(MaximumFileSize=0)
    provider = world.provider(handle)
    lost = world.write(provider, 100, size=30000).count(8)
    assert (made.MaximumFileSize, world.stop(handle).EventsLost) == (0, lost)
    assert len(world.read()) == 100 - lost


def files_have_their_size(world: World) -> None:
    _, handle, _ = world.start(MaximumFileSize=1, BufferSize=64)
    provider = world.provider(handle)
    for _ in range(60):  # 1.8 MB
        world.write(provider, 1, size=30000)
        world.flush(handle)
    world.stop(handle)
    assert (world.folder / "x.etl").stat().st_size <= 1 << 20


def circular_files_have_their_size(world: World) -> None:
    _, handle, _ = world.start(MaximumFileSize=1, BufferSize=64, MaximumBuffers=64, LogFileMode=M.FILE_MODE_CIRCULAR)
    provider, refused = world.provider(handle), 0
    for first in range(0, 100, 4):  # 3 MB
        refused += world.write_all(provider, 4, size=30000, first=first)
        world.flush(handle)
    ended = world.stop(handle)
    assert (world.folder / "x.etl").stat().st_size <= 1 << 20
    found = world.read()
    assert found[-1] == 99
    assert found == sorted(found)
    assert ended.EventsLost == refused, "what is written over is not lost"


def preallocated_files_need_a_size(world: World) -> None:
    mode = M.FILE_MODE_PREALLOCATE | M.FILE_MODE_SEQUENTIAL
    assert world.code(LogFileMode=mode) == 87
    world.started(LogFileMode=mode, MaximumFileSize=2)
    assert (world.folder / "x.etl").stat().st_size == 2 << 20


def circular_files_need_a_size(world: World) -> None:
    assert world.code(LogFileMode=M.FILE_MODE_CIRCULAR) == 87
    assert world.code(LogFileMode=M.FILE_MODE_CIRCULAR, MaximumFileSize=1) == 0


def rows_of_files_need_a_size(world: World) -> None:
    assert world.code(file="x%d.etl", LogFileMode=M.FILE_MODE_NEWFILE) == 87
    assert world.code(file="x%d.etl", LogFileMode=M.FILE_MODE_NEWFILE, MaximumFileSize=1) == 0


def the_reserve_on_the_disk(world: World) -> None:
    from lastbranch.etw import EtwError
    from lastbranch.etw.portable.session.log_file import Disk, check_room

    def code(free_mb: int, system: bool, most_mb: int = 100) -> int:
        try:
            check_room(world.file(), most_mb << 20, Disk(lambda _: free_mb << 20, lambda _: system))
        except EtwError as error:
            return error.status
        return 0

    assert [code(299, True), code(300, True), code(10, False)] == [112, 0, 0]
    assert [code(199, True, 0), code(200, True, 0)] == [112, 0], "whether or not the file has a limit"


# -- where events go


def where_events_go(world: World) -> None:
    assert world.code(file=None) == 161
    assert world.code(file=None, LogFileMode=M.REAL_TIME_MODE) == 0
    assert world.code(file=None, LogFileMode=M.BUFFERING_MODE) == 0
    assert world.code(LogFileMode=M.FILE_MODE_SEQUENTIAL) == 0


def mode_0_with_a_file(world: World) -> None:
    _, handle, made = world.start(LogFileMode=0)
    assert made.LogFileMode == M.FILE_MODE_SEQUENTIAL
    world.write(world.provider(handle), 5)
    world.stop(handle)
    assert world.read() == list(range(5))


def real_time_and_a_file(world: World) -> None:
    _, handle, made = world.start(LogFileMode=M.REAL_TIME_MODE)
    assert made.LogFileMode == M.REAL_TIME_MODE | M.FILE_MODE_SEQUENTIAL
    events = etw.consume("session", real_time=True)
    world.write(world.provider(handle), 5)
    world.flush(handle)
    live = _take(events, 5)
    world.stop(handle)
    assert live == world.read() == list(range(5))


def a_backlog_is_played_first(world: World) -> None:
    _, handle, _ = world.start(file=None, LogFileMode=M.REAL_TIME_MODE)
    provider = world.provider(handle)
    world.write(provider, 5)
    world.flush(handle)
    events = etw.consume("session", real_time=True)
    world.write(provider, 5, first=5)
    world.flush(handle)
    assert _take(events, 10) == list(range(10))


def _take(events: Any, number: int) -> list[int]:
    found = [_number(event) for event in islice(_ours(events), number)]
    events.close()
    return found


def _ours(events: Any) -> Iterator[Any]:
    return (event for event in events if event.event.provider == PROVIDER.bytes_le)


def _number(event: Any) -> int:
    return int.from_bytes(event.event.payload[:4], "little")


def a_backlog_has_a_limit(world: World) -> None:
    """Nobody reads: the backlog fills, then events are refused, each counted once. Who reads gets all others."""
    _, handle, _ = world.start(
        file=None, LogFileMode=M.REAL_TIME_MODE, BufferSize=1024, MinimumBuffers=2, MaximumBuffers=4
    )
    provider, taken, offered = world.provider(handle), list[int](), 0

    def full() -> bool:
        nonlocal taken, offered
        statuses = world.write(provider, 20, size=60000, first=offered)
        assert set(statuses) <= {0, etw.Status.NOT_ENOUGH_MEMORY, etw.Status.LOG_FILE_FULL}
        taken += [offered + n for n, status in enumerate(statuses) if not status]
        offered += len(statuses)
        assert len(taken) < 10_000, "the backlog has no limit"
        return set(statuses) == {etw.Status.LOG_FILE_FULL}

    until(full)
    classic = bytes(structure("EVENT_TRACE_HEADER")(Size=48))[:44] + _TRACED_GUID.to_bytes(4, "little")
    for size in (4, 60000):
        assert world.write(provider, 1, size) == [etw.Status.LOG_FILE_FULL]
    assert etw.TraceEvent(handle, classic) == etw.Status.LOG_FILE_FULL
    lost = offered + 3 - len(taken)
    assert world.query(handle).EventsLost == lost

    events = etw.consume("session", real_time=True)
    ours = _ours(events)
    assert [_number(event) for event in islice(ours, len(taken))] == taken
    lost += world.write_all(provider, 1, first=offered)
    assert _number(next(ours)) == offered
    events.close()
    assert world.stop(handle).EventsLost == lost


def what_nobody_reads_is_lost(world: World) -> None:
    _, handle, _ = world.start(file=None, LogFileMode=M.REAL_TIME_MODE)
    world.write(world.provider(handle), 5)
    assert world.query(handle).RealTimeBuffersLost == 0
    state = world.stop(handle)
    assert state.RealTimeBuffersLost >= 1
    assert state.EventsLost == 5


# -- flushing


def timers_of_files(world: World) -> None:
    from lastbranch.etw.portable.request import flush_seconds

    host = Host(2, 8 << 30)
    seconds = {n: flush_seconds(adjusted(SessionRequest("n", file="f", flush_timer=n), host)) for n in (0, 1, 5)}
    assert seconds == {0: None, 1: 1, 5: 5}
    assert world.started(FlushTimer=0).FlushTimer == 0


def timers_in_real_time(world: World) -> None:
    assert world.started(file=None, LogFileMode=M.REAL_TIME_MODE).FlushTimer == 1
    made = world.started(name="b", file=None, LogFileMode=M.REAL_TIME_MODE, FlushTimer=7)
    assert made.FlushTimer == 7


def timers_flush(world: World) -> None:
    _, handle, _ = world.start(LogFileMode=M.FILE_MODE_SEQUENTIAL | M.USE_MS_FLUSH_TIMER, FlushTimer=50)
    before = world.query(handle).BuffersWritten
    world.write(world.provider(handle), 1)
    until(lambda: world.query(handle).BuffersWritten > before)


def flushes_without_a_timer(world: World) -> None:
    _, handle, _ = world.start(FlushTimer=0, BufferSize=4)
    provider = world.provider(handle)
    world.write(provider, 1)
    before = world.query(handle).BuffersWritten
    world.flush(handle)
    after_flush = world.query(handle).BuffersWritten
    assert after_flush > before, "on demand"
    world.write_all(provider, 60, size=500, first=1)
    until(lambda: world.query(handle).BuffersWritten > after_flush)
    world.write_all(provider, 1, first=61)
    assert world.stop(handle).BuffersWritten > after_flush
    assert world.read()[-1] == 61, "at the stop"


def buffering_flushes_on_demand(world: World) -> None:
    from lastbranch.etw.portable.request import flush_seconds

    assert flush_seconds(SessionRequest("n", mode=M.BUFFERING_MODE, flush_timer=1)) is None
    _, handle, made = world.start(file=None, LogFileMode=M.BUFFERING_MODE, FlushTimer=1)
    world.write(world.provider(handle), 5)
    assert not list(world.folder.glob("*.etl"))
    world.flush(handle, world.file("a.etl"))
    assert world.read("a.etl") == list(range(5))
    assert made.LogFileMode == M.BUFFERING_MODE


# -- EnableFlags


def flags_are_for_system_loggers(world: World) -> None:
    assert world.code(EnableFlags=EnableFlag.PROCESS) == 87
    assert world.code(EnableFlags=EnableFlag.PROCESS, LogFileMode=M.SYSTEM_LOGGER_MODE) in (0, 1314)


def what_makes_a_system_logger(world: World) -> None:
    from lastbranch.etw.flags import GLOBAL_LOGGER, KERNEL_LOGGER

    kinds = {
        SessionRequest("a"): False,
        SessionRequest("a", mode=M.SYSTEM_LOGGER_MODE): True,
        SessionRequest(KERNEL_LOGGER_NAME.upper()): True,
        SessionRequest("a", KERNEL_LOGGER): True,
        SessionRequest("a", GLOBAL_LOGGER): True,
    }
    assert all(request.system == system for request, system in kinds.items())
    assert world.code(name=KERNEL_LOGGER_NAME, EnableFlags=EnableFlag.NO_SYSCONFIG) in (0, 1314)


def configuration_is_logged(world: World) -> None:
    def configured(name: str, flags: int) -> int | None:
        status, handle, _ = world.start(
            name=name, file=f"{name}.etl", EnableFlags=flags, LogFileMode=M.SYSTEM_LOGGER_MODE
        )
        if status:
            return None
        world.stop(handle)
        return sum(e.event.hook >> 8 == 0x0B for e in etw.consume(world.file(f"{name}.etl")))

    plain = configured("a", EnableFlag.PROCESS)
    assert plain is None or plain > 0
    assert not configured("b", EnableFlag.PROCESS | EnableFlag.NO_SYSCONFIG)


def flags_turn_events_on(world: World) -> None:
    """Process events with the flag, none without; every flag has a row that says what it is here."""
    from lastbranch.etw.portable.enable_map import ROWS

    named = {row.name for row in ROWS if row.word == 0}
    assert {str(flag.name) for flag in EnableFlag} <= named

    def hooks(name: str, flags: int) -> set[int] | None:
        status, handle, _ = world.start(
            name=name, file=f"{name}.etl", EnableFlags=flags, LogFileMode=M.SYSTEM_LOGGER_MODE
        )
        if status:
            assert status == 1314
            return None
        world.stop(handle)
        return {e.event.hook >> 8 for e in etw.consume(world.file(f"{name}.etl"))}

    processes, threads = hooks("a", EnableFlag.PROCESS), hooks("b", EnableFlag.THREAD)
    if processes is not None and threads is not None:
        assert (0x03 in processes, 0x05 in processes) == (True, False)
        assert (0x03 in threads, 0x05 in threads) == (False, True)


def disk_file_io_needs_disk_io(world: World) -> None:
    assert world.code(EnableFlags=EnableFlag.DISK_FILE_IO, LogFileMode=M.SYSTEM_LOGGER_MODE) == 87


# -- filters


def _filters(*kinds: tuple[int, bytes]) -> tuple[dict[str, int], Any]:
    descriptor = structure("EVENT_FILTER_DESCRIPTOR")
    datas = [ctypes.create_string_buffer(data, len(data)) for _, data in kinds]
    array = (descriptor * len(kinds))(
        *(descriptor(ctypes.addressof(d), len(d), kind) for d, (kind, _) in zip(datas, kinds, strict=True))
    )
    return {"FilterDescCount": len(kinds), "FilterDesc": ctypes.addressof(array)}, (datas, array)


_PID, _NAME = 0x80000004, 0x80000008
_PRIVATE = M.PRIVATE_LOGGER_MODE | M.FILE_MODE_SEQUENTIAL


def filters_are_for_private_sessions(world: World) -> None:
    fields, _alive = _filters((_PID, os.getpid().to_bytes(4, "little")))
    assert world.code(version=2, **fields) == 87
    assert world.code(version=2, LogFileMode=_PRIVATE, **fields) == 0
    assert world.code(version=2, FilterDescCount=1) == 87


def one_filter_of_a_kind(world: World) -> None:
    fields, _alive = _filters((_PID, b"\1\0\0\0"), (_PID, b"\2\0\0\0"))
    assert world.code(version=2, LogFileMode=_PRIVATE, **fields) == 87
    fields, _alive = _filters((0x80000200, b"\1\0\0\0"))
    assert world.code(version=2, LogFileMode=_PRIVATE, **fields) == 87


def filters_by_process(world: World) -> None:
    mine = Path("/proc/self/exe").resolve().name.encode("utf-16-le") + b"\0\0"
    cases = [
        (_PID, os.getpid().to_bytes(4, "little"), True),
        (_PID, (1).to_bytes(4, "little"), False),
        (_NAME, mine, True),
        (_NAME, "nothing.exe\0".encode("utf-16-le"), False),
    ]
    for number, (kind, data, taken) in enumerate(cases):
        fields, _alive = _filters((kind, data))
        status, handle, _ = world.start(
            name=str(number), file=f"{number}.etl", version=2, LogFileMode=_PRIVATE, **fields
        )
        assert status == 0
        assert etw.EnableTraceEx2(handle, PROVIDER, 1, 0, 0, 0, 0, None) == 0
        provider = world.provider()
        if taken:
            until(lambda provider=provider: provider.enabled)
        world.write(provider, 3)
        provider.close()
        world.stop(handle)
        written = [n for path in world.folder.glob(f"{number}.etl*") for n in world.read(path.name)]
        assert written == ([0, 1, 2] if taken else []), (kind, data)


# -- statistics


def statistics_of_the_pool(world: World) -> None:
    _, handle, _ = world.start(MinimumBuffers=30, MaximumBuffers=60)
    world.write(world.provider(handle), 5)
    state = world.query(handle)
    assert state.NumberOfBuffers >= 30
    assert 0 <= state.FreeBuffers < state.NumberOfBuffers
    assert (state.MinimumBuffers, state.EventsLost) == (30, 0)


def losses_are_counted(world: World) -> None:
    """More than the pool holds: what was refused is what EventsLost says, the rest is in the file, and another session
    has counts of its own."""
    _, handle, _ = world.start(BufferSize=4, MinimumBuffers=1, MaximumBuffers=1)
    _, other, _ = world.start(name="other", file="y.etl")
    provider, codes = world.provider(handle), list[int]()

    def refused() -> bool:
        codes.extend(world.write(provider, 1000, size=1000, first=len(codes)))
        return 8 in codes

    until(refused)
    codes += [8] * world.write_all(provider, 1, first=len(codes)) + [0]
    assert set(codes) == {0, 8}
    assert world.query(other).EventsLost == 0
    ended = world.stop(handle)
    assert ended.EventsLost == codes.count(8)
    assert len(world.read()) == codes.count(0)
    assert world.stop(other).EventsLost == 0


def buffers_written(world: World) -> None:
    _, handle, made = world.start(BufferSize=4)
    before = made.BuffersWritten
    provider = world.provider(handle)
    for first in range(3):
        world.write(provider, 1, first=first)
        world.flush(handle)
    assert world.query(handle).BuffersWritten == before + 3 or world.query(handle).BuffersWritten == 4
    assert (world.folder / "x.etl").stat().st_size == world.stop(handle).BuffersWritten * 4096


def log_buffers_lost(world: World) -> None:
    """The file reaches its size: buffers behind it are not written, and their events are lost."""
    _, handle, _ = world.start(MaximumFileSize=64, BufferSize=16, LogFileMode=M.USE_KBYTES_FOR_SIZE)
    provider = world.provider(handle)
    for first in range(0, 80, 4):
        world.write(provider, 4, size=3000, first=first)
        world.flush(handle)
    ended = world.stop(handle)
    assert (world.folder / "x.etl").stat().st_size <= 64 << 10
    assert ended.LogBuffersLost > 0
    assert len(world.read()) + ended.EventsLost == 80


def the_thread_of_the_session(world: World) -> None:
    made = world.started()
    assert made.LoggerThreadId > 0
    assert Path(f"/proc/{made.LoggerThreadId}").exists()
    assert made.LoggerThreadId != os.getpid()
    assert kernel().name == "portable"
