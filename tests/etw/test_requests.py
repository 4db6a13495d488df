"""Requests of trace sessions: properties in and out, adjustments, mode rules. Each case cites its sentence."""

from __future__ import annotations

import ctypes
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastbranch.etw.flags import ClientContext, LogFileMode, V2Option, WnodeFlag
from lastbranch.etw.portable.request import (
    BUFFER_KB,
    Host,
    adjusted,
    broken_rule,
    flush_seconds,
    normalised,
)
from lastbranch.etw.portable.request import RequestTrait as Trait
from lastbranch.etw.properties import MAX_NAME, SessionRequest, SessionState, read_properties, write_properties
from lastbranch.etw.status import EtwError, Status
from lastbranch.etw.structures import guid_of, structure

M = LogFileMode
HOST = Host(processors=4, memory=8 << 30)


def asked(**values: Any) -> SessionRequest:
    return adjusted(SessionRequest("name", **values), HOST)


class TestAdjustments:
    @pytest.mark.parametrize(("given_kb", "kb"), [(1, 4), (4, 4), (64, 64), (16384, 16384), (99999, 16384)])
    def test_buffer_sizes_have_limits(self, given_kb: int, kb: int) -> None:
        """ "The minimum buffer size is 4 KB ... the maximum 16384 KB"."""
        assert asked(buffer_size=given_kb).buffer_size == kb

    def test_a_file_gets_whole_blocks(self) -> None:
        """ "increase the buffer size to a multiple of the disk's physical block size"."""
        host = Host(2, 8 << 30, block=65536)
        assert adjusted(SessionRequest("n", buffer_size=65, file="x.etl"), host).buffer_size == 128
        assert adjusted(SessionRequest("n", buffer_size=65), host).buffer_size == 65

    def test_two_buffers_for_each_processor(self) -> None:
        """ "at least 2 buffers for each logical processor", and 2 without per-processor buffering."""
        assert asked().minimum_buffers == 8
        assert asked(minimum_buffers=30).minimum_buffers == 30
        assert asked(mode=M.NO_PER_PROCESSOR_BUFFERING).minimum_buffers == 2

    def test_the_maximum_is_no_less_than_the_minimum(self) -> None:
        made = asked(minimum_buffers=20, maximum_buffers=3)
        assert (made.minimum_buffers, made.maximum_buffers) == (20, 20)
        assert asked(minimum_buffers=8, maximum_buffers=50).maximum_buffers == 50

    def test_a_maximum_of_zero_leaves_room_beside_the_minimum(self) -> None:
        """Our choice of the "appropriate value equal to or greater than MinimumBuffers"."""
        assert (asked().minimum_buffers, asked().maximum_buffers) == (8, 28)

    def test_buffering_mode_ignores_the_maximum(self) -> None:
        """ "ETW ignores this field for buffering mode sessions"."""
        made = asked(mode=M.BUFFERING_MODE, minimum_buffers=30, maximum_buffers=90)
        assert (made.minimum_buffers, made.maximum_buffers) == (30, 30)

    def test_counts_have_an_upper_limit(self) -> None:
        """ "If this value is larger than the limit ... reduced to the limit"."""
        made = asked(buffer_size=1024, minimum_buffers=10**6, maximum_buffers=10**6)
        assert made.minimum_buffers == made.maximum_buffers == 2048

    @pytest.mark.parametrize(
        ("mode", "timer", "seconds"),
        [
            (M.FILE_MODE_SEQUENTIAL, 0, None),
            (M.FILE_MODE_SEQUENTIAL, 5, 5),
            (M.REAL_TIME_MODE, 0, 1),
            (M.REAL_TIME_MODE, 7, 7),
            (M.REAL_TIME_MODE | M.USE_MS_FLUSH_TIMER, 0, 1),
            (M.FILE_MODE_SEQUENTIAL | M.USE_MS_FLUSH_TIMER, 250, 0.25),
            (M.BUFFERING_MODE, 9, None),
        ],
    )
    def test_timers(self, mode: LogFileMode, timer: int, seconds: float | None) -> None:
        assert flush_seconds(asked(mode=mode, flush_timer=timer)) == seconds

    def test_modes_that_are_given_and_meant(self) -> None:
        """ "If LogFileMode is 0 and you give a file name, ETW also creates a sequential log file"."""
        assert asked(file="x.etl").mode == M.FILE_MODE_SEQUENTIAL
        assert asked(file="x.etl", mode=M.REAL_TIME_MODE).mode == M.REAL_TIME_MODE | M.FILE_MODE_SEQUENTIAL
        assert asked(mode=M.REAL_TIME_MODE).mode == M.REAL_TIME_MODE
        assert normalised(0x9, True) == M.FILE_MODE_NEWFILE
        assert asked(file="x.etl", mode=M.FILE_MODE_CIRCULAR).mode == M.FILE_MODE_CIRCULAR

    def test_the_clock_and_the_age_limit(self) -> None:
        assert asked().clock == ClientContext.QPC
        assert asked(clock=2).clock == ClientContext.SYSTEM_TIME
        assert asked(age_limit=15).age_limit == 15

    @given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(1, 512))
    def test_any_numbers_give_a_possible_pool(self, size: int, least: int, most: int, processors: int) -> None:
        host = Host(processors, 4 << 30)
        made = adjusted(SessionRequest("n", buffer_size=size, minimum_buffers=least, maximum_buffers=most), host)
        assert BUFFER_KB[0] <= made.buffer_size <= BUFFER_KB[1]
        assert 2 <= made.minimum_buffers <= made.maximum_buffers
        assert made.maximum_buffers * made.buffer_size * 1024 <= max(1 << 30, 2 * made.buffer_size * 1024)
        assert adjusted(made, host) == made


class TestModes:
    @pytest.mark.parametrize(
        ("mode", "traits", "code"),
        [
            (M.FILE_MODE_SEQUENTIAL | M.FILE_MODE_CIRCULAR, Trait.FILE | Trait.SIZE, 87),
            (M.FILE_MODE_CIRCULAR, Trait.FILE, 87),
            (M.FILE_MODE_CIRCULAR, Trait.FILE | Trait.SIZE, None),
            (M.FILE_MODE_APPEND | M.REAL_TIME_MODE, Trait.FILE, 87),
            (M.FILE_MODE_APPEND, Trait.FILE, None),
            (M.FILE_MODE_NEWFILE, Trait.FILE, 87),
            (M.FILE_MODE_NEWFILE, Trait.FILE | Trait.SIZE | Trait.SYSTEM, 87),
            (M.FILE_MODE_PREALLOCATE, Trait.FILE, 87),
            (M.FILE_MODE_PREALLOCATE, Trait.FILE | Trait.SIZE, None),
            (M.REAL_TIME_MODE | M.PRIVATE_LOGGER_MODE, Trait.NONE, 87),
            (M.BUFFERING_MODE | M.REAL_TIME_MODE, Trait.NONE, 87),
            (M.BUFFERING_MODE, Trait.NONE, None),
            (M.RELOG_MODE, Trait.FILE, 87),
            (M.RELOG_MODE | M.PRIVATE_LOGGER_MODE, Trait.FILE, None),
            (M.PRIVATE_IN_PROC, Trait.FILE, 87),
            (M.USE_PAGED_MEMORY, Trait.SYSTEM, 87),
            (M.USE_GLOBAL_SEQUENCE | M.USE_LOCAL_SEQUENCE, Trait.FILE, 87),
            (M.NONSTOPPABLE_MODE, Trait.FILE, 87),
            (M.USE_KBYTES_FOR_SIZE, Trait.FILE, 87),
        ],
    )
    def test_what_goes_together(self, mode: LogFileMode, traits: Trait, code: int | None) -> None:
        rule = broken_rule(mode, traits)
        assert (rule.code if rule else None) == code


def properties(
    name: str = "session", file: str = "", room: int = 64, version: int = 1, **values: Any
) -> ctypes.Array[Any]:
    kind = structure("EVENT_TRACE_PROPERTIES_V2" if version == 2 else "EVENT_TRACE_PROPERTIES")
    head = ctypes.sizeof(kind)
    buffer = (ctypes.c_ubyte * (head + 4 * room))()
    made = kind.from_buffer(buffer)
    made.Wnode.BufferSize, made.Wnode.Flags = len(buffer), WnodeFlag.TRACED_GUID
    made.LoggerNameOffset, made.LogFileNameOffset = head, head + 2 * room if file else 0
    if version == 2:
        made.Wnode.Flags |= WnodeFlag.VERSIONED_PROPERTIES
        made.V2Control = 2
    for field, value in values.items():
        setattr(made, field, value)
    text = file.encode("utf-16-le")
    memoryview(buffer).cast("B")[head + 2 * room : head + 2 * room + len(text)] = text
    return buffer


class TestProperties:
    def test_in_and_out(self) -> None:
        guid = UUID("11111111-2222-3333-4444-555555555555")
        buffer = properties(file="trace.etl", BufferSize=8, MinimumBuffers=3, FlushTimer=2, AgeLimit=-1, LogFileMode=1)
        structure("EVENT_TRACE_PROPERTIES").from_buffer(buffer).Wnode.Guid = guid_of(guid)
        request = read_properties("StartTrace", "name", buffer)
        assert (request.name, request.file, request.guid, request.mode) == ("name", "trace.etl", guid, 1)
        assert (request.buffer_size, request.minimum_buffers, request.age_limit) == (8, 3, -1)
        state = SessionState(request, handle=7, events_lost=5, buffers_written=9, logger_thread=11)
        assert write_properties("StartTrace", buffer, state) == Status.SUCCESS
        made = structure("EVENT_TRACE_PROPERTIES").from_buffer(buffer)
        assert (made.Wnode.HistoricalContext, made.EventsLost, made.BuffersWritten) == (7, 5, 9)
        assert read_properties("StartTrace", None, buffer) == request

    def test_a_name_without_room(self) -> None:
        """Stop with too little room for the names: the session is stopped, and 234 says so."""
        buffer = properties(room=4)
        assert (
            write_properties("ControlTrace", buffer, SessionState(SessionRequest("a longer name"))) == Status.MORE_DATA
        )

    @pytest.mark.parametrize(
        "change", [{"LogFileNameOffset": 1 << 20}, {"LoggerNameOffset": 8}, {"LoggerNameOffset": 121}]
    )
    def test_offsets_outside(self, change: dict[str, int]) -> None:
        with pytest.raises(EtwError) as caught:
            read_properties("StartTrace", None, properties(**change))
        assert caught.value.status == Status.INVALID_PARAMETER

    @pytest.mark.parametrize("size", [0, 119, 10**6])
    def test_sizes_that_are_not(self, size: int) -> None:
        buffer = properties()
        structure("EVENT_TRACE_PROPERTIES").from_buffer(buffer).Wnode.BufferSize = size
        with pytest.raises(EtwError) as caught:
            read_properties("StartTrace", "n", buffer)
        assert caught.value.status == Status.BAD_LENGTH

    def test_nothing_and_no_flag(self) -> None:
        buffer = properties()
        structure("EVENT_TRACE_PROPERTIES").from_buffer(buffer).Wnode.Flags = 0
        for bad in (None, buffer):
            with pytest.raises(EtwError) as caught:
                read_properties("StartTrace", "n", bad)
            assert caught.value.status == Status.INVALID_PARAMETER

    def test_a_name_that_is_too_long(self) -> None:
        buffer = properties(file="x" * (MAX_NAME + 1), room=MAX_NAME + 20)
        with pytest.raises(EtwError) as caught:
            read_properties("StartTrace", "n", buffer)
        assert caught.value.status == Status.BAD_PATHNAME
        assert read_properties("StartTrace", "n", properties(file="x" * MAX_NAME, room=MAX_NAME + 20)).file

    @pytest.mark.parametrize("cut", [1, 2, 3])
    def test_what_stands_behind_a_name_is_not_read(self, cut: int) -> None:
        """An odd size cuts a character in two, and memory behind the nul may hold anything."""
        buffer = properties(file="x.etl")
        buffer[-20:] = [0xD8] * 20
        structure("EVENT_TRACE_PROPERTIES").from_buffer(buffer).Wnode.BufferSize = len(buffer) - cut
        assert read_properties("StartTrace", "n", buffer).file == "x.etl"

    def test_options_are_told_to_a_structure_that_has_them(self) -> None:
        state = SessionState(SessionRequest("n", options=V2Option.EXCLUDE_KERNEL_STACK))
        for flags, told in ((WnodeFlag.VERSIONED_PROPERTIES, 8), (WnodeFlag.TRACED_GUID, 0)):
            buffer = properties(version=2)
            made = structure("EVENT_TRACE_PROPERTIES_V2").from_buffer(buffer)
            made.Wnode.Flags = flags
            write_properties("ControlTrace", buffer, state)
            assert made.V2Options == told

    def test_version_2_counts_only_with_its_flag(self) -> None:
        descriptor = structure("EVENT_FILTER_DESCRIPTOR")
        data = ctypes.create_string_buffer(b"\x2a\0\0\0", 4)
        one = (descriptor * 1)(descriptor(ctypes.addressof(data), 4, 0x80000004))
        fields = {"V2Options": 2, "FilterDescCount": 1, "FilterDesc": ctypes.addressof(one)}
        buffer = properties(version=2, **fields)
        request = read_properties("StartTrace", "n", buffer)
        assert request.options == V2Option.QPC_DELTA_TRACKING
        assert [(f.kind, f.data) for f in request.filters] == [(0x80000004, b"\x2a\0\0\0")]
        structure("EVENT_TRACE_PROPERTIES").from_buffer(buffer).Wnode.Flags = WnodeFlag.TRACED_GUID
        plain = read_properties("StartTrace", "n", buffer)
        assert (plain.options, plain.filters) == (V2Option.NONE, ())

    def test_a_count_without_filters(self) -> None:
        with pytest.raises(EtwError) as caught:
            read_properties("StartTrace", "n", properties(version=2, FilterDescCount=3))
        assert caught.value.status == Status.INVALID_PARAMETER
