"""The cases of EVENT_TRACE_PROPERTIES_V2: what each statement of its table looks like on the portable kernel."""

from __future__ import annotations

import ctypes
import os
import stat

import pytest

from etw_properties import properties
from etw_world import PROVIDER, World, until
from lastbranch import etw
from lastbranch.etw.flags import Control
from lastbranch.etw.flags import LogFileMode as M
from lastbranch.etw.portable.request import Host, adjusted
from lastbranch.etw.properties import SessionRequest, read_properties
from lastbranch.etw.structures import guid_of, structure

PROCESSORS = os.cpu_count() or 1
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# -- the structure


def version_2_counts_with_its_flag(world: World) -> None:
    buffer = properties(version=2, V2Options=2)
    assert read_properties("StartTrace", "n", buffer).options == 2
    world.head(buffer).Wnode.Flags &= ~0x800000
    assert read_properties("StartTrace", "n", buffer).options == 0
    world.head(buffer).Wnode.Flags |= 0x800000
    world.head(buffer, 2).V2Control = 1
    assert read_properties("StartTrace", "n", buffer).options == 0


def both_versions_begin_alike(world: World) -> None:
    one, two = structure("EVENT_TRACE_PROPERTIES"), structure("EVENT_TRACE_PROPERTIES_V2")
    assert all(getattr(one, n).offset == getattr(two, n).offset for n in ("Wnode", "BufferSize", "LoggerNameOffset"))
    assert world.started(version=2, BufferSize=8).BufferSize == 8


def the_allocation_has_its_size(world: World) -> None:
    for size in (0, ctypes.sizeof(structure("EVENT_TRACE_PROPERTIES")) - 1):
        buffer = properties()
        world.head(buffer).Wnode.BufferSize = size
        assert etw.StartTrace("session", buffer) == (24, 0)


def the_flag_of_the_header(world: World) -> None:
    buffer = properties()
    world.head(buffer).Wnode.Flags = 0
    assert etw.StartTrace("session", buffer) == (87, 0)


def a_session_has_a_guid(world: World) -> None:
    assert bytes(world.started(name="a", file="a.etl").Wnode.Guid) != bytes(16)
    buffer = properties(file=world.file("b.etl"), room=1100)
    world.head(buffer).Wnode.Guid = guid_of(PROVIDER)
    assert etw.StartTrace("b", buffer)[0] == 0
    assert bytes(world.head(buffer).Wnode.Guid) == PROVIDER.bytes_le


def clocks(world: World) -> None:
    def code(clock: int) -> tuple[int, int]:
        buffer = properties(file=world.file(), room=1100)
        world.head(buffer).Wnode.ClientContext = clock
        status, handle = etw.StartTrace("session", buffer)
        if handle:
            world.stop(handle)
        return status, world.head(buffer).Wnode.ClientContext

    assert [code(n) for n in (0, 1, 2)] == [(0, 1), (0, 1), (0, 2)]
    assert code(3)[0] == 87


def start_copies_the_name(world: World) -> None:
    buffer = properties(file=world.file(), room=1100)
    assert etw.StartTrace("a name", buffer)[0] == 0
    text = bytes(buffer)[world.head(buffer).LoggerNameOffset :].decode("utf-16-le")
    assert text.startswith("a name\0")


def the_page_s_own_lines(world: World) -> None:
    """The page's example, line by line: the file's name is copied to its place, the session's is not."""

    class EventTracePropertyData2(ctypes.Structure):
        _fields_ = (
            ("Props", etw.EVENT_TRACE_PROPERTIES_V2), ("LoggerName", ctypes.c_uint16 * 128),
            ("LogFileName", ctypes.c_uint16 * 1024),
        )  # fmt: skip

    data = EventTracePropertyData2()
    data.Props.Wnode.BufferSize = ctypes.sizeof(data)
    data.Props.Wnode.Flags = etw.WNODE_FLAG_TRACED_GUID | etw.WNODE_FLAG_VERSIONED_PROPERTIES
    data.Props.LogFileNameOffset = EventTracePropertyData2.LogFileName.offset
    data.Props.LoggerNameOffset = EventTracePropertyData2.LoggerName.offset

    name = world.file().encode("utf-16-le")
    ctypes.memmove(data.LogFileName, name, len(name))
    status, handle = etw.StartTrace("a name", data)
    assert (status, handle > 0) == (0, True)
    assert bytes(data.LoggerName).decode("utf-16-le").rstrip("\0") == "a name"
    assert bytes(data.LogFileName)[: len(name)] == name
    assert (data.Props.BufferSize > 0, data.Props.LogFileMode) == (True, etw.EVENT_TRACE_FILE_MODE_SEQUENTIAL)
    assert etw.ControlTrace(handle, None, data, etw.EVENT_TRACE_CONTROL_STOP) == 0
    assert world.read() == []


def room_for_the_name(world: World) -> None:
    assert etw.StartTrace("x" * 64, properties(room=64, file="f"))[0] == 24
    _, handle, _ = world.start(name="a long name")
    assert etw.ControlTrace(handle, None, properties(room=4), Control.STOP) == 234
    assert etw.sessions() == []


def offsets_are_inside(world: World) -> None:
    for change in ({"LogFileNameOffset": 8}, {"LogFileNameOffset": 1 << 20}, {"LoggerNameOffset": 119}):
        assert etw.StartTrace("session", properties(**change))[0] == 87


def options_are_kept(world: World) -> None:
    world.started(version=2, V2Options=0xB)
    assert etw.sessions()[0].request.options == 0xB
    buffer = properties(room=1100, version=2)
    assert etw.ControlTrace(0, "session", buffer, Control.QUERY) == 0
    assert world.head(buffer, 2).V2Options == 0xB


def options_are_bit_fields(world: World) -> None:
    """VersionNumber, Wow, QpcDeltaTracking, LargeMdlPages, ExcludeKernelStack, each at its bit; others do not exist."""
    made = structure("EVENT_TRACE_PROPERTIES_V2")()
    made.VersionNumber = 2
    assert made.V2Control == 2
    for bit, name in enumerate(("Wow", "QpcDeltaTracking", "LargeMdlPages", "ExcludeKernelStack")):
        setattr(made, name, 1)
        assert made.V2Options == 1 << bit
        setattr(made, name, 0)
    with pytest.raises(AttributeError):
        made.ExcludeUserStack = 1
    assert world.code(version=2, V2Options=0x4) == 50
    assert world.code(version=2, V2Options=0x10) == 87


# -- names


def session_names_have_a_limit(world: World) -> None:
    assert world.code(name="x" * 1024) == 0
    assert world.code(name="x" * 1025) == 123
    assert world.code(name="\U0001f600" * 512) == 0
    assert world.code(name="\U0001f600" * 513) == 123, "characters are those of UTF-16"


def one_session_of_a_name(world: World) -> None:
    world.started(name="Session")
    assert world.code(name="sESSION", file="y.etl") == 183
    assert len(etw.sessions()) == 1


def folders_must_exist(world: World) -> None:
    assert world.code(file=world.file("none/x.etl")) == 161
    assert not (world.folder / "none").exists()


def relative_paths(world: World) -> None:
    world.monkeypatch.chdir(world.folder)
    assert world.code(file="./x.etl") == 0
    assert (world.folder / "x.etl").exists()


def variables_are_not_expanded(world: World) -> None:
    world.monkeypatch.setenv("NOWHERE", str(world.folder))
    assert world.code(file="$NOWHERE/x.etl") == 161
    assert world.code(file="%NOWHERE%.etl") == 0
    assert (world.folder / "%NOWHERE%.etl").exists()


def folders_must_be_writable(world: World) -> None:
    """Even root cannot write a file into /proc."""
    assert world.code(file="/proc/x.etl") in (5, 161)


def file_names_have_a_limit(world: World) -> None:
    world.monkeypatch.chdir(world.folder)
    assert world.code(file="./" * 510 + "xxxx") == 0
    assert world.code(file="./" * 510 + "xxxxx") == 161


def private_files_have_a_pid(world: World) -> None:
    world.started(file="private.etl", LogFileMode=M.PRIVATE_LOGGER_MODE | M.FILE_MODE_SEQUENTIAL)
    (state,) = etw.sessions()
    provider = world.provider(state.handle)
    assert world.write(provider, 3) == [0, 0, 0]
    world.stop()
    found = [p.name for p in world.folder.glob("private*")]
    assert found == [f"private.etl_{os.getpid()}"]
    assert world.read(found[0]) == [0, 1, 2]


def rows_of_files_get_numbers(world: World) -> None:
    fields = {"LogFileMode": M.FILE_MODE_NEWFILE, "MaximumFileSize": 1}
    assert world.code(file="none.etl", **fields) == world.code(file="two%d%d.etl", **fields) == 123
    _, handle, _ = world.start(file="row%d.etl", **fields)
    provider = world.provider(handle)
    world.write(provider, 5)
    world.control(Control.INCREMENT_FILE, handle)
    world.write(provider, 5, first=5)
    world.stop(handle)
    names = sorted(p.name for p in world.folder.glob("row*"))
    assert len(names) == 2
    assert [n for name in names for n in world.read(name)] == list(range(10))


def files_are_private(world: World) -> None:
    world.started()
    mode = stat.S_IMODE((world.folder / "x.etl").stat().st_mode)
    assert mode == 0o600
    (world.folder / "link.etl").symlink_to(world.folder / "other.etl")
    assert world.code(name="b", file="link.etl") in (5, 161)
    assert not (world.folder / "other.etl").exists()


# -- buffers


def smallest_buffers(world: World) -> None:
    assert world.started(file=None, LogFileMode=M.BUFFERING_MODE, BufferSize=1).BufferSize == 4


def largest_buffers(world: World) -> None:
    assert world.started(file=None, LogFileMode=M.BUFFERING_MODE, BufferSize=99999).BufferSize == 16384


def buffers_are_whole_blocks(world: World) -> None:
    assert adjusted(SessionRequest("n", buffer_size=65, file="f"), Host(2, 8 << 30, 65536)).buffer_size == 128
    block = os.statvfs(world.folder).f_frsize
    assert world.started(BufferSize=5).BufferSize * 1024 % block == 0


def events_larger_than_a_buffer(world: World) -> None:
    _, handle, _ = world.start(BufferSize=4)
    provider = world.provider(handle)
    assert world.write(provider, 1, size=5000) == [234]
    assert world.write(provider, 1, size=3000) == [0]
    ended = world.stop(handle)
    assert world.read() == [0]
    assert ended.EventsLost == 1


def events_larger_than_64_kb(world: World) -> None:
    _, handle, _ = world.start(BufferSize=1024)
    provider = world.provider(handle)
    assert world.write(provider, 1, size=65536) == [534]
    assert world.write(provider, 1, size=65000) == [0]
    assert world.write(provider, 1, size=65536) == [534], "where the buffer that is begun has room for it, too"
    assert world.write(provider, 3, size=65537 - 80) == [534] * 3
    assert world.stop(handle).EventsLost == 5
    assert world.read() == [0]


def two_buffers_a_processor(world: World) -> None:
    assert world.started(MinimumBuffers=1).MinimumBuffers == 2 * PROCESSORS


def two_buffers_in_one_stream(world: World) -> None:
    made = world.started(MinimumBuffers=1, LogFileMode=M.FILE_MODE_SEQUENTIAL | M.NO_PER_PROCESSOR_BUFFERING)
    assert made.MinimumBuffers == 2


def counts_have_a_limit(world: World) -> None:
    made = world.started(BufferSize=1024, MinimumBuffers=10**6, MaximumBuffers=10**6)
    assert made.MinimumBuffers == made.MaximumBuffers < 10**6
    assert made.MaximumBuffers << 20 <= MEMORY


def the_minimum_is_reserved(world: World) -> None:
    made = world.started(MinimumBuffers=40, MaximumBuffers=60)
    assert (made.MinimumBuffers, made.NumberOfBuffers) == (40, 40)


def the_maximum_is_no_less_than_the_minimum(world: World) -> None:
    made = world.started(MinimumBuffers=40, MaximumBuffers=3)
    assert (made.MinimumBuffers, made.MaximumBuffers) == (40, 40)


def the_pool_grows_to_the_maximum(world: World) -> None:
    """Events that are written faster than a reader takes them make the pool grow, to the maximum and no further."""
    _, handle, made = world.start(BufferSize=4, MinimumBuffers=1, MaximumBuffers=2 * PROCESSORS + 40)
    provider = world.provider(handle)

    def buffers() -> int:
        world.write(provider, 1000, size=500)
        return int(world.query(handle).NumberOfBuffers)

    until(lambda: buffers() > made.MinimumBuffers)
    assert buffers() <= made.MaximumBuffers


def a_buffering_pool_does_not_grow(world: World) -> None:
    _, handle, made = world.start(
        file=None, LogFileMode=M.BUFFERING_MODE, BufferSize=4, MinimumBuffers=20, MaximumBuffers=90
    )
    assert (made.MinimumBuffers, made.MaximumBuffers, made.NumberOfBuffers) == (20, 20, 20)
    world.write(world.provider(handle), 2000, size=500)
    assert world.query(handle).NumberOfBuffers == 20


def the_oldest_buffer_is_used_again(world: World) -> None:
    _, handle, _ = world.start(file=None, LogFileMode=M.BUFFERING_MODE, BufferSize=4, MinimumBuffers=20)
    provider = world.provider(handle)
    world.write_all(provider, 2000, size=500)
    world.flush(handle, world.file("snapshot.etl"))
    found = world.read("snapshot.etl")
    assert found[-1] == 1999, "the newest are there"
    assert found == sorted(found)
    assert 0 < len(found) <= 20 * 4096 // 500, "and no more than the buffers hold"


def the_age_limit_is_kept_and_unused(world: World) -> None:
    _, handle, made = world.start(AgeLimit=15, BufferSize=4, MinimumBuffers=1, MaximumBuffers=64)
    assert made.AgeLimit == 15
    world.write(world.provider(handle), 2000, size=500)
    grown = world.query(handle).NumberOfBuffers
    world.flush(handle)
    assert world.query(handle).NumberOfBuffers >= grown, "buffers that are not used are not freed"
