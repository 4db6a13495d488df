"""TraceQueryInformation and TraceSetInformation: classes, order of checks, lengths, bytes. Cases cite their rules."""

from __future__ import annotations

import ctypes
import struct
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etw_fake import SOURCES, FakeKernel
from lastbranch.etw.flags import PERFINFO_PROVIDER, Info
from lastbranch.etw.information import QUERIES, SETS, decode, encode, query_information, set_information
from lastbranch.etw.interface import ProfileSource
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.status import EtwError, Status
from lastbranch.etw.structures import structure

MASKS, INTERVAL, LIST, VERSION, DISALLOWED = 4, 5, 7, 0x0B, 0x0E


@pytest.fixture
def kernel() -> FakeKernel:
    made = FakeKernel()
    made.start(SessionRequest("one"))
    return made


def set_code(kernel: FakeKernel, handle: int, info: int, data: bytes | None, length: int | None = None) -> int:
    try:
        set_information(kernel, handle, info, data, len(data or b"") if length is None else length)
    except EtwError as error:
        return error.status
    return 0


class TestQuery:
    def test_five_classes_and_no_other(self, kernel: FakeKernel) -> None:
        """ "Given any other, the function returns ERROR_NOT_SUPPORTED", whatever else is wrong."""
        assert sorted(QUERIES) == [4, 5, 7, 0x0B, 0x0E]
        for info in set(range(-1, 40)) - set(QUERIES):
            for handle in (0, 1):
                assert query_information(kernel, handle, info, None, 0) == (50, 0)

    @pytest.mark.parametrize("info", [INTERVAL, LIST, VERSION])
    def test_classes_of_the_machine_want_no_handle(self, kernel: FakeKernel, info: int) -> None:
        """ "SessionHandle ... must be zero, else ERROR_INVALID_PARAMETER": before the length is looked at."""
        for length in (0, 8, 4096):
            assert query_information(kernel, 1, info, bytearray(length), length) == (87, 0)

    @pytest.mark.parametrize("info", [MASKS, DISALLOWED])
    def test_classes_of_a_session_want_one(self, kernel: FakeKernel, info: int) -> None:
        assert query_information(kernel, 0, info, bytearray(64), 64)[0] == 87
        assert query_information(kernel, 9, info, bytearray(64), 64)[0] == Status.WMI_INSTANCE_NOT_FOUND

    @pytest.mark.parametrize(("length", "status"), [(0, 24), (31, 24), (32, 0), (33, 0), (500, 0)])
    def test_masks_fit_a_larger_buffer(self, kernel: FakeKernel, length: int, status: int) -> None:
        """Class 4: "sets the return length to the size of this structure"; "too small ... ERROR_BAD_LENGTH"."""
        kernel.values[1, 4] = [0x7, 0x400, 0x40, 0, 0, 0, 0, 0x80000000]
        buffer = bytearray(b"\xaa" * length)
        assert query_information(kernel, 1, MASKS, buffer, length) == (status, 32)
        expected = struct.pack("<8I", *kernel.values[1, 4]) + b"\xaa" * (length - 32)
        assert buffer == (b"\xaa" * length if status else expected)

    @pytest.mark.parametrize("info", [INTERVAL, VERSION])
    @pytest.mark.parametrize(("length", "status"), [(0, 24), (4, 24), (7, 24), (8, 0), (9, 24), (32, 24)])
    def test_exact_fits(self, kernel: FakeKernel, info: int, length: int, status: int) -> None:
        """Classes 5 and 0x0B: "not an exact fit: ERROR_BAD_LENGTH"; the return length is the size all the same."""
        assert query_information(kernel, 0, info, bytearray(length), length) == (status, 8)

    def test_the_interval_of_a_source(self, kernel: FakeKernel) -> None:
        """Source is input and stays, Interval is output."""
        made = structure("TRACE_PROFILE_INTERVAL")(6, 1)
        assert query_information(kernel, 0, INTERVAL, made, 8) == (0, 8)
        assert (made.Source, made.Interval) == (6, 65536)
        assert query_information(kernel, 0, INTERVAL, structure("TRACE_PROFILE_INTERVAL")(99, 0), 8) == (87, 8)

    def test_the_version(self, kernel: FakeKernel) -> None:
        """ "EtwTraceProcessingVersion ... Presently, this is 1. The Reserved member is ignored"."""
        buffer = bytearray(b"\x11" * 8)
        assert query_information(kernel, 0, VERSION, buffer, 8) == (0, 8)
        assert buffer == struct.pack("<I", 1) + b"\x11" * 4

    def test_the_list_of_sources(self, kernel: FakeKernel) -> None:
        """Irregular spacing, first by offset; the size without a buffer, its length ignored."""
        for length in (0, 5, 10**6):
            status, size = query_information(kernel, 0, LIST, None, length)
            assert (status, size) == (24, 0x28 + 0x40 + 0x40)
        assert query_information(kernel, 0, LIST, bytearray(size - 1), size - 1) == (24, size)
        buffer = bytearray(size + 100)
        assert query_information(kernel, 0, LIST, buffer, len(buffer)) == (0, size)
        kind, at, found = structure("PROFILE_SOURCE_INFO"), 0, []
        while True:
            one = kind.from_buffer(buffer, at)
            text = bytes(buffer[at + 0x18 :]).decode("utf-16-le", "replace").partition("\0")[0]
            found.append((one.Source, text, one.MinInterval, one.MaxInterval, one.Reserved))
            assert at % 8 == 0
            if not one.NextEntryOffset:
                break
            at += one.NextEntryOffset
        assert found == [(s.source, s.name, s.minimum, s.maximum, s.reserved) for s in SOURCES]
        assert buffer[size:] == bytes(100)

    def test_the_disallow_list(self, kernel: FakeKernel) -> None:
        guids = [UUID(int=n) for n in (1, 2 << 70)]
        assert set_code(kernel, 1, 10, b"".join(g.bytes_le for g in guids)) == 0
        assert query_information(kernel, 1, DISALLOWED, bytearray(16), 16) == (24, 32)
        buffer = bytearray(32)
        assert query_information(kernel, 1, DISALLOWED, buffer, 32) == (0, 32)
        assert buffer == b"".join(g.bytes_le for g in guids)
        assert set_code(kernel, 1, 10, b"") == 0
        assert query_information(kernel, 1, DISALLOWED, bytearray(0), 0) == (0, 0)

    @pytest.mark.parametrize(("handle", "info", "length"), [(1, MASKS, 32), (0, INTERVAL, 8), (0, VERSION, 8)])
    def test_no_buffer(self, kernel: FakeKernel, handle: int, info: int, length: int) -> None:
        assert query_information(kernel, handle, info, None, length) == (87, length)

    def test_a_length_that_the_buffer_does_not_have(self, kernel: FakeKernel) -> None:
        assert query_information(kernel, 1, MASKS, bytearray(4), 32) == (24, 32)
        assert query_information(kernel, 0, VERSION, bytearray(4), 8) == (24, 8)


class TestSet:
    def test_ten_classes(self, kernel: FakeKernel) -> None:
        assert sorted(SETS) == [3, 4, 5, 6, 8, 9, 10, 20, 21, 0x10000]
        for info in set(range(-1, 40)) - set(SETS):
            assert set_code(kernel, 1, info, bytes(8)) == 50

    @pytest.mark.parametrize("info", sorted(SETS))
    def test_handles(self, kernel: FakeKernel, info: int) -> None:
        """5 and 6 are the machine's, all others a session's."""
        assert set_code(kernel, 1 if info in (5, 6) else 0, info, bytes(7)) == 87

    @pytest.mark.parametrize(
        ("info", "good", "bad"),
        [
            (3, (0, 24, 24 * 256), {1: 24, 23: 24, 25: 24, 24 * 257: 87}),
            (4, (4, 8, 32), {0: 24, 3: 24, 6: 24, 36: 24}),
            (5, (8,), {0: 24, 4: 24, 9: 24, 16: 24}),
            (6, (0, 4, 16), {1: 24, 6: 24}),
            (8, (0, 24, 48), {8: 24}),
            (9, (0, 4, 8), {3: 24}),
            (10, (0, 16, 160), {15: 24}),
            (20, (4,), {0: 24, 3: 24, 8: 24}),
            (21, (0, 4, 16), {2: 24, 20: 1292}),
        ],
    )
    def test_lengths(self, kernel: FakeKernel, info: int, good: tuple[int, ...], bad: dict[int, int]) -> None:
        handle = 0 if info in (5, 6) else 1
        assert {n: set_code(kernel, handle, info, bytes(n)) for n in good} == dict.fromkeys(good, 0)
        assert {n: set_code(kernel, handle, info, bytes(n)) for n in bad} == bad

    def test_no_buffer_and_a_short_one(self, kernel: FakeKernel) -> None:
        assert set_code(kernel, 1, 20, None, 4) == 87
        assert set_code(kernel, 1, 20, b"\0\0", 4) == 24
        assert set_code(kernel, 1, 3, None, 0) == 0, "length 0 ends stack tracing"

    def test_values(self, kernel: FakeKernel) -> None:
        """The bytes of the structures become values: CLASSIC_EVENT_ID, masks with fewer words, pairs."""
        event = structure("CLASSIC_EVENT_ID")()
        event.EventGuid = structure("GUID").from_buffer_copy(PERFINFO_PROVIDER.bytes_le)
        event.Type = 0x2F
        for info in (3, 8):
            assert set_code(kernel, 1, info, event, ctypes.sizeof(event)) == 0
            assert kernel.values[1, info] == [(PERFINFO_PROVIDER, 0x2F)]
        assert set_code(kernel, 1, 4, struct.pack("<2I", 7, 0x400)) == 0
        assert kernel.values[1, 4] == [7, 0x400, 0, 0, 0, 0, 0, 0]
        assert set_code(kernel, 0, 5, struct.pack("<2I", 6, 65536)) == 0
        assert kernel.values[0, 5] == (6, 65536)
        assert set_code(kernel, 0, 6, struct.pack("<2I", 6, 10)) == 0
        assert kernel.values[0, 6] == [6, 10]
        assert set_code(kernel, 1, 20, struct.pack("<I", 0x1)) == 0
        assert kernel.values[1, 20] == 1
        assert set_code(kernel, 1, 21, struct.pack("<I", 0xF2F)) == 0
        assert kernel.values[1, 21] == [0xF2F]


class TestBytes:
    @given(
        st.lists(
            st.builds(
                ProfileSource,
                st.integers(0, 2**32 - 1),
                st.text(st.characters(exclude_characters="\0"), max_size=40),
                st.integers(0, 2**32 - 1),
                st.integers(0, 2**32 - 1),
                st.just(0),
                st.integers(0, 2**64 - 1),
            ),
            max_size=8,
        )
    )
    def test_chains_come_back(self, sources: list[ProfileSource]) -> None:
        data = encode(Info.PROFILE_SOURCE_LIST_INFO, sources)
        assert len(data) % 8 == 0
        assert decode(Info.PROFILE_SOURCE_LIST_INFO, data) == sources

    @given(st.binary(max_size=200))
    def test_any_bytes_are_read_or_refused(self, data: bytes) -> None:
        with suppress(EtwError):
            assert all(isinstance(s, ProfileSource) for s in decode(Info.PROFILE_SOURCE_LIST_INFO, data))

    @pytest.mark.parametrize(
        ("info", "value"),
        [
            (3, [(UUID(int=5), 9)]),
            (4, list(range(8))),
            (5, (1, 2)),
            (6, [3]),
            (9, [1, 2]),
            (10, [UUID(int=7)]),
            (20, 0x200),
            (21, [0xF2F, 0x524]),
        ],
    )
    def test_values_come_back(self, info: int, value: Any) -> None:
        assert decode(Info(info), encode(Info(info), value)) == value

    @given(st.integers(0, 40), st.integers(0, 2), st.integers(0, 300), st.booleans())
    def test_no_arguments_escape(self, info: int, handle: int, length: int, given_buffer: bool) -> None:
        """Any call has a status of the documents, and never writes behind the length."""
        kernel = FakeKernel()
        kernel.start(SessionRequest("one"))
        buffer = bytearray(b"\xcc" * (length + 16)) if given_buffer else None
        status, needed = query_information(kernel, handle, info, buffer, length)
        assert status in {0, 24, 50, 87, 4201}
        assert needed <= length or status
        if buffer is not None:
            assert buffer[length:] == b"\xcc" * 16
        assert set_code(kernel, handle, info, bytes(length)) in {0, 24, 50, 87, 1292, 4201}
