"""The cases of TraceQueryInformation: what each statement of its table looks like on the portable kernel."""

from __future__ import annotations

import struct

from etw_fake import FakeKernel
from etw_world import PROVIDER, World
from lastbranch import etw
from lastbranch.etw.flags import EnableFlag, Info
from lastbranch.etw.flags import LogFileMode as M
from lastbranch.etw.information import query_information
from lastbranch.etw.status import EtwError, Status
from lastbranch.etw.structures import structure

ask = etw.TraceQueryInformation


def _system_logger(world: World) -> int:
    status, handle, _ = world.start(LogFileMode=M.SYSTEM_LOGGER_MODE, EnableFlags=EnableFlag.NO_SYSCONFIG)
    assert status == 0
    return handle


def five_classes(world: World) -> None:
    handle = _system_logger(world)
    size = ask(0, 7, None, 0)[1]
    wanted = {4: (handle, 32), 5: (0, 8), 7: (0, size), 0x0B: (0, 8), 0x0E: (handle, 0)}
    for info, (session, length) in wanted.items():
        assert ask(session, info, bytearray(length), length) == (0, length)


def every_other_class(world: World) -> None:
    handle = _system_logger(world)
    for info in set(range(40)) - {4, 5, 7, 0x0B, 0x0E}:
        assert ask(handle, info, bytearray(64), 64) == ask(0, info, None, 0) == (50, 0)


def classes_of_the_machine(world: World) -> None:
    handle = _system_logger(world)
    for info in (5, 7, 0x0B):
        assert ask(handle, info, bytearray(8), 8) == (87, 0)


def masks_of_a_system_logger(world: World) -> None:
    handle = _system_logger(world)
    buffer = structure("PERFINFO_GROUPMASK")()
    assert ask(handle, 4, buffer, 32) == (0, 32)
    assert list(buffer.Masks) == [EnableFlag.NO_SYSCONFIG, 0, 0, 0, 0, 0, 0, 0]


def masks_of_another_session(world: World) -> None:
    _, handle, _ = world.start()
    assert ask(handle, 4, bytearray(32), 32)[0] == 87
    assert ask(63, 4, bytearray(32), 32)[0] == Status.WMI_INSTANCE_NOT_FOUND


def masks_and_their_buffer(world: World) -> None:
    handle = _system_logger(world)
    for length, status in ((0, 24), (31, 24), (32, 0), (33, 0), (4096, 0)):
        buffer = bytearray(b"\xee" * length)
        assert ask(handle, 4, buffer, length) == (status, 32)
        masks = b"\0\0\0\x10".ljust(32, b"\0") if not status else b"\xee" * length
        assert buffer == masks.ljust(length, b"\xee"), "what does not fit is not begun"


def lengths_of_failed_queries(world: World) -> None:
    handle = _system_logger(world)
    assert ask(handle, 4, bytearray(8), 8) == (24, 32)
    assert ask(0, 5, bytearray(9), 9) == (24, 8)
    status, size = ask(0, 7, bytearray(3), 3)
    assert (status, size) == (24, ask(0, 7, None, 0)[1])


def exact_fits(world: World) -> None:
    for info in (5, 0x0B):
        codes = [ask(0, info, bytearray(length), length) for length in (0, 7, 8, 9, 16)]
        assert codes == [(24, 8), (24, 8), (0, 8), (24, 8), (24, 8)]


def intervals(world: World) -> None:
    made = structure("TRACE_PROFILE_INTERVAL")(0, 0)
    assert ask(0, 5, made, 8) == (0, 8)
    assert (made.Source, made.Interval) == (0, 10000)
    source = etw.profile_sources()[-1]
    assert etw.TraceSetInformation(0, 5, struct.pack("<2I", source.source, source.minimum + 1), 8) == 0
    made = structure("TRACE_PROFILE_INTERVAL")(source.source, 0)
    assert ask(0, 5, made, 8) == (0, 8)
    assert made.Interval == source.minimum + 1
    assert ask(0, 5, structure("TRACE_PROFILE_INTERVAL")(24, 0), 8)[0] == 87


def a_chain_of_sources(world: World) -> None:
    _, size = ask(0, 7, None, 0)
    buffer = bytearray(size)
    assert ask(0, 7, buffer, size) == (0, size)
    kind, at, names = structure("PROFILE_SOURCE_INFO"), 0, {}
    while True:
        one = kind.from_buffer(buffer, at)
        end = at + one.NextEntryOffset if one.NextEntryOffset else size
        names[one.Source] = bytes(buffer[at + 0x18 : end]).decode("utf-16-le").partition("\0")[0]
        assert one.MinInterval <= one.MaxInterval
        if not one.NextEntryOffset:
            break
        at += one.NextEntryOffset
    assert names[0] == "Timer"
    assert names == {s.source: s.name for s in etw.profile_sources()}


def the_size_of_the_chain(world: World) -> None:
    sizes = {ask(0, 7, None, length) for length in (0, 1, 10**6)}
    assert len(sizes) == 1
    ((status, size),) = sizes
    assert status == 24
    assert size >= 0x20


def no_memory(world: World) -> None:
    class Poor(FakeKernel):
        def query_information(self, handle: int, info: Info, value: object) -> object:
            raise EtwError("TraceQueryInformation", Status.OUTOFMEMORY)

    assert query_information(Poor(), 0, 7, None, 0)[0] == 14


def the_version(world: World) -> None:
    buffer = bytearray(b"\xee" * 8)
    assert ask(0, 0x0B, buffer, 8) == (0, 8)
    assert buffer == b"\1\0\0\0" + b"\xee" * 4


def the_disallow_list(world: World) -> None:
    _, handle, _ = world.start()
    assert etw.TraceSetInformation(handle, 10, PROVIDER.bytes_le, 16) == 0
    buffer = bytearray(16)
    assert ask(handle, 0x0E, buffer, 16) == (0, 16)
    assert buffer == PROVIDER.bytes_le
    assert etw.EnableTraceEx2(handle, PROVIDER, 1, 0, 0, 0, 0, None) == Status.ACCESS_DENIED
    assert etw.TraceSetInformation(handle, 10, None, 0) == 0
    assert etw.EnableTraceEx2(handle, PROVIDER, 1, 0, 0, 0, 0, None) == 0
