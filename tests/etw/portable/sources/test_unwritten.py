"""What a program does may be odd: its event is written as the bits that it has, or lost and counted by its kind."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from fake_kernel import VM, FakeKernel
from lastbranch.etw.portable.lbr.conversion import Conversion, Scope
from lastbranch.etw.portable.sources import event_words
from lastbranch.etw.portable.sources.configuration import SourceConfiguration
from lastbranch.etw.portable.sources.event_words import Events, encode_events, unwritten_name
from lastbranch.etw.portable.sources.joint_events import Row, Sockets, TracepointFollower
from lastbranch.etw.portable.sources.process import Output
from lastbranch.etw.portable.sources.recorder import Recorder
from lastbranch.etw.portable.sources.system_calls import CALLS, SystemCalls
from lastbranch.etw.status import EtwError, Status
from lastbranch.formats.etl import Decoder, TraceLog, read_etl
from lastbranch.formats.etl.kernel.hooks import FILE_IO, PROCESS
from lastbranch.formats.etl.kernel.layouts import kernel_event
from lastbranch.formats.etl.profile.supplement import segment_fields, supplement_event
from lastbranch.formats.etl.single_event import Event, encode_event
from lastbranch.model import Segment
from lastbranch.opening import FileSource
from lbr_recordings import Recording, program
from source_tools import Kept, Log, SourceKernel

ROOT = replace(VM, paranoid=-1)
SENT = {"sk": 1, "family": 2, "protocol": 6, "ret": 99, "flags": 0}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_words, "_said", set())


def fields_of(follower: TracepointFollower) -> list[tuple[int, dict[str, Any]]]:
    """(hook, fields) of the events so far."""
    events, follower._events = follower._events, []
    return [(event.hook, Decoder().decode(event).fields) for event in events]


def enter(name: str, *args: int) -> Row:
    words = struct.pack("<6Q", *(value & (1 << 64) - 1 for value in (*args, *[0] * 6)[:6]))
    values = {"id": CALLS["x86_64"][name], "args": words}
    return Row("raw_syscalls/sys_enter", 1, 0, 70, 71, values, [])


@pytest.mark.parametrize("offset", [-4096, -1, 1 << 63, (1 << 63) - 1, 0])
def test_an_offset_has_its_bits(offset: int) -> None:
    one = SystemCalls(FakeKernel(VM))
    one.kinds = frozenset({"file init"})
    one._last_use["fd", 70, 3] = 0
    one.row(enter("pread64", 3, 0, 16, offset))
    ((hook, fields),) = fields_of(one)
    assert (hook, fields["IoSize"]) == (0x443, 16)
    assert fields["Offset"] & (1 << 64) - 1 == offset & (1 << 64) - 1


@pytest.mark.parametrize("name", sorted(CALLS["x86_64"]))
def test_every_call_takes_every_argument(name: str) -> None:
    one = SystemCalls(FakeKernel(VM))
    one.kinds = frozenset(SystemCalls.needs)
    for value in (0, 1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 4096, (1 << 64) - 1):
        for result in (0, value - (value >> 63 << 64), -1):
            one.row(enter(name, *[value] * 6))
            one.row(Row("raw_syscalls/sys_exit", 2, 0, 70, 71, {"id": CALLS["x86_64"][name], "ret": result}, []))
    made = one._take_events()
    assert made.unwritten == Counter()


def test_a_socket_that_changes_its_family_keeps_its_address() -> None:
    """setsockopt(IPV6_ADDRFORM) makes one of IPv6 one of IPv4."""
    mapped = bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1])
    state = {
        "skaddr": 1,
        "oldstate": 2,
        "newstate": 1,
        "sport": 5,
        "dport": 6,
        "family": 10,
        "protocol": 6,
        "saddr": bytes(4),
        "daddr": bytes(4),
        "saddr_v6": mapped,
        "daddr_v6": mapped,
    }
    one = Sockets(FakeKernel(VM))
    one.kinds = frozenset({"tcp"})
    one.row(Row("sock/inet_sock_set_state", 1, 0, 7, 7, state, []))
    one.row(Row("sock/sock_send_length", 2, 0, 7, 7, SENT, []))
    one.row(Row("sock/sock_send_length", 3, 0, 7, 7, {**SENT, "sk": 2, "family": 10}, []))
    _, sent, unknown = fields_of(one)
    assert (sent[0], sent[1]["saddr"], sent[1]["dport"]) == (0x60A, "127.0.0.1", 6)
    assert (unknown[0], unknown[1]["saddr"]) == (0x61A, "::")


def test_an_address_that_is_none_costs_nothing_else() -> None:
    one = Sockets(FakeKernel(VM))
    one.kinds = frozenset({"tcp"})
    one.row(
        Row(
            "sock/inet_sock_set_state",
            1,
            0,
            7,
            7,
            {
                "skaddr": 1,
                "oldstate": 2,
                "newstate": 1,
                "sport": 5,
                "dport": 6,
                "family": 2,
                "protocol": 6,
                "saddr": b"",
                "daddr": b"\1",
                "saddr_v6": b"",
                "daddr_v6": b"",
            },
            [],
        )
    )
    one.row(Row("sock/sock_send_length", 2, 0, 7, 7, {**SENT, "family": 10}, []))
    assert [fields["saddr"] for _, fields in fields_of(one)] == ["0.0.0.0", "::"]


class Odd(TracepointFollower):
    needs: ClassVar[dict[str, tuple[str, ...]]] = {}
    fields: ClassVar[dict[str, tuple[str, ...]]] = {}
    hooks: ClassVar[frozenset[int]] = frozenset()

    def _rows(self, feed: Any) -> Any:
        return iter(feed)

    def row(self, row: Row) -> None:
        if row.pid == 13:
            raise KeyError("a fault of ours")
        name = "a\0b" if row.pid == 14 else "file"
        self.log((FILE_IO, 0), row, 2, {"FileKey": row.pid, "FileName": name})


def test_a_row_that_fails_is_counted_and_the_others_are_written(capfd: pytest.CaptureFixture[str]) -> None:
    rows = [Row("a/point", time, 0, pid, 1, {}, []) for time, pid in enumerate((12, 13, 13, 14, 15))]
    made = Odd(FakeKernel(VM)).events([rows])  # type: ignore[list-item]
    assert len(made) == 2
    assert made.unwritten == {"a/point": 2, "Windows Kernel/FileIO/Name": 1}
    said = capfd.readouterr().err
    assert said.count("Traceback") == said.count("KeyError: 'a fault of ours'") == 1, "once, with where it is"
    assert "Windows Kernel/FileIO/Name: not written: a field cannot be written: FileName" in said


def too_long() -> Event:
    return kernel_event((FILE_IO, 0), 5, 8, {"FileKey": 1, "FileName": "x" * 40_000}, version=2)


def test_an_event_of_more_than_64_kb_is_counted() -> None:
    short = kernel_event((PROCESS, 32), 6, 8, {"ProcessID": 7}, version=2)
    made = encode_events([too_long(), short], 0)
    assert (len(made), made.time.tolist()) == (1, [6])
    assert made.unwritten == {"Windows Kernel/FileIO/Name": 1}
    assert Events.join([made, made]).unwritten == {"Windows Kernel/FileIO/Name": 2}


def test_segments_fit_an_event() -> None:
    """Any program can map a library of thousands of segments; their addresses need those that are executed."""
    many = [Segment(n << 12, n << 12, 4096, n % 2 == 0) for n in range(20_000)]
    fields = segment_fields(3, many)
    assert set(fields["Executable"]) == {1}
    assert len(encode_event(supplement_event("Segments", 1, fields))) < 1 << 16
    assert segment_fields(3, many[:5])["Address"] == [n << 12 for n in range(5)]


def test_the_log_says_what_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a stream fails as a whole: the others go on, to the end."""
    log = Log(tmp_path / "x.etl")
    recorder = Recorder(SourceConfiguration(masks=(1, *[0] * 7)), log, SourceKernel(ROOT))
    recorder.begin()
    recorder._write(encode_events([too_long()] * 3, 0))
    assert recorder._tasks is not None
    monkeypatch.setattr(recorder._tasks, "of", lambda took, floor: [][1])
    recorder.round()
    recorder.end()
    log.close()
    assert log.lost_events == 3
    profile = read_etl(FileSource(str(tmp_path / "x.etl")))
    assert profile.lost == {unwritten_name("Windows Kernel/FileIO/Name"): 3}
    assert 0x0304 in {event.hook for event in TraceLog(FileSource(str(tmp_path / "x.etl"))).events()}


def test_branches_that_cannot_be_converted_cost_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording()
    program(recording)
    conversion = Conversion(Scope())
    samples, calls = Conversion._samples, 0

    def failing(self: Conversion, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OverflowError("odd")
        return samples(self, batch)

    monkeypatch.setattr(Conversion, "_samples", failing)
    data = recording.data
    parts = [conversion.feed(data[at : at + 512]) for at in range(0, len(data), 512)] + [conversion.finish(50_000_000)]
    unwritten = sum((part.unwritten for part in parts), Counter[str]())
    assert unwritten.total() > 0
    assert set(unwritten) == {"Windows Kernel/LastBranchRecording/Sample"}
    assert sum(len(part) for part in parts) > 0
    assert conversion._profile.lost[unwritten_name(*unwritten)] == unwritten.total()


def test_a_processor_without_room_loses_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[int] = []

    class Writer:
        patience = 0.0

        def write_many(self, data: bytes, sizes: Any) -> int:
            return len(sizes)

        def count_lost(self, number: int) -> None:
            lost.append(number)

        def close(self) -> None:
            pass

    def connect(path: str, cpu: int) -> Writer:
        if cpu == 1:
            raise EtwError("attach", Status.NO_SYSTEM_RESOURCES, "no room")
        return Writer()

    monkeypatch.setattr("lastbranch.etw.portable.sources.process.connect_writer", connect)
    output = Output("socket", (0,), patience=0.0)
    event = kernel_event((PROCESS, 32), 6, 8, {"ProcessID": 7}, version=2)
    both = Events.join([encode_events([event], 0), encode_events([event, event, too_long()], 1)])
    output.put(both)
    assert lost == [3]


def test_what_programs_make_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastbranch.etw.portable.sources.system_calls._MOST_KEYS", 8)
    one = SystemCalls(FakeKernel(VM))
    one.kinds = frozenset(SystemCalls.needs)
    for number in range(100):
        one._key(f"/file{number}", enter("close", 1))
        one._views[number, 0] = 1, 2, 3
        one.row(enter("read", number)._replace(tid=number))
        one.end_round()
    assert max(map(len, (one._keys, one._views, one._calls, one._files))) <= 9
    keys = [fields["FileKey"] for hook, fields in fields_of(one) if hook == 0x420]
    assert len(set(keys)) == len(keys) >= 100, "no two paths have one key"


def test_kept_counts_as_the_session_does() -> None:
    kept = Kept()
    kept.put(encode_events([too_long()], 0))
    assert kept.lost_events == 1
    assert np.size(encode_events([], 0).words) == 0
