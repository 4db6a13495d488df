"""Files, disks, sockets, interrupts and memory: events that several tracepoints make, by hand and of this machine."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_kernel import VM, FakeKernel
from lastbranch.capture.perf_events.linux_kernel import Kernel
from lastbranch.etw.portable.enable_map import kinds_of, normalised_masks
from lastbranch.etw.portable.sources import check
from lastbranch.etw.portable.sources.configuration import SourceConfiguration
from lastbranch.etw.portable.sources.joint_events import (
    BlockIo,
    Feed,
    Interrupts,
    Row,
    Sockets,
    TracepointFollower,
    operation,
)
from lastbranch.etw.portable.sources.kinds import Place, Raw
from lastbranch.etw.portable.sources.system_calls import CALLS, SystemCalls
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.status import EtwError
from lastbranch.formats.etl import Decoder, TraceLog
from lastbranch.model import SampleBatch
from lastbranch.opening import FileSource
from source_tools import record_log

ALL = 0x8 | 0x20 | 0x40 | 0x100 | 0x200 | 0x400 | 0x4000 | 0x8000 | 0x10000 | 0x200000 | 0x2000000 | 0x4000000
INTERRUPTS = 0x20 | 0x40


# -- by hand


def made(follower: TracepointFollower, *rows: Row) -> list[tuple[int, int, dict[str, Any]]]:
    """(hook, time, fields) of the events of a round."""
    follower.whole_round(rows)
    for row in rows:
        follower.row(row)
    follower.end_round()
    events, follower._events = follower._events, []
    decode = Decoder().decode
    return [(event.hook, event.time, decode(event).fields) for event in events]


def follower(kind: type[TracepointFollower], *kinds: str) -> Any:
    one = kind(FakeKernel(VM))
    one.kinds = frozenset(kinds)
    return one


def test_the_first_letters_of_a_request_say_what_it_is() -> None:
    found = {text: operation(text) for text in (b"R", b"RA\0\0", b"WS", b"FWFSM", b"FF", b"F", b"D", b"DE", b"N")}
    assert found == {b"R": 10, b"RA\0\0": 10, b"WS": 11, b"FWFSM": 11, b"FF": 14, b"F": 14, b"D": 0, b"DE": 0, b"N": 0}


def block(point: str, time: int, tid: int = 7, **values: Any) -> Row:
    return Row(f"block/block_{point}", time, 1, 6, tid, {"dev": 254 << 20, **values}, [])


def test_a_request_has_the_time_since_it_was_issued() -> None:
    one = follower(BlockIo, "disk", "disk init", "split")
    events = made(
        one,
        block("split", 5, sector=100, new_sector=108),
        block("rq_issue", 10, sector=100, bytes=4096, rwbs=b"WS"),
        block("rq_issue", 11, sector=108, bytes=512, rwbs=b"R"),
        block("rq_complete", 40, 0, sector=108, rwbs=b"R"),
        block("rq_complete", 50, 0, sector=100, rwbs=b"WS"),
        block("rq_complete", 60, 0, sector=9, rwbs=b"WS"),
    )
    assert [(hook, time) for hook, time, _ in events] == [
        (0x1B20, 5),
        (0x10D, 10),
        (0x10C, 11),
        (0x10A, 40),
        (0x10B, 50),
    ]
    split, write_init, read_init, read, write = (fields for _, _, fields in events)
    assert (split["ParentIrp"], split["ChildIrp"]) == (write["Irp"], read["Irp"])
    assert (write_init["Irp"], write_init["IssuingThreadID"]) == (write["Irp"], 7)
    assert read_init["Irp"] != write_init["Irp"]
    assert (write["HighResResponseTime"], write["ByteOffset"], write["TransferSize"]) == (40, 51200, 4096)
    assert (read["HighResResponseTime"], read["IssuingThreadID"]) == (29, 7)


def test_a_flush_is_known_by_its_device() -> None:
    """It has no sector: the kernel issues it with 0 and may complete it with -1."""
    events = made(
        follower(BlockIo, "disk"),
        block("rq_issue", 10, sector=0, bytes=0, rwbs=b"FF"),
        block("rq_complete", 25, 0, sector=(1 << 64) - 1, rwbs=b"FF"),
    )
    assert [(hook, time, fields["HighResResponseTime"]) for hook, time, fields in events] == [(0x10E, 25, 15)]


def state(key: int, old: int, new: int, sport: int, dport: int, pid: int, time: int = 0) -> Row:
    values = {
        "skaddr": key,
        "oldstate": old,
        "newstate": new,
        "sport": sport,
        "dport": dport,
        "family": 2,
        "protocol": 6,
        "saddr": bytes([10, 0, 0, 1]),
        "daddr": bytes([10, 0, 0, 2]),
        "saddr_v6": bytes(16),
        "daddr_v6": bytes(16),
    }
    return Row("sock/inet_sock_set_state", time, 0, pid, pid, values, [])


def test_a_connection_has_the_process_that_asked_for_it() -> None:
    """The kernel makes it in an interrupt, which any process may be running at."""
    sent = {"sk": 1, "family": 2, "protocol": 6, "ret": 99, "flags": 0}
    events = made(
        follower(Sockets, "tcp"),
        state(9, 7, 10, 80, 0, 40),
        state(1, 7, 2, 5000, 80, 50),
        state(1, 2, 1, 5000, 80, 0),
        state(2, 3, 1, 80, 5000, 0),
        Row("sock/sock_send_length", 1, 0, 50, 50, sent, []),
        Row("sock/sock_recv_length", 1, 0, 60, 60, {**sent, "sk": 77, "protocol": 17, "family": 10}, []),
        Row("sock/sock_recv_length", 1, 0, 60, 60, {**sent, "flags": 2}, []),
        state(1, 1, 7, 5000, 80, 0),
    )
    assert [hook for hook, _, _ in events] == [0x60C, 0x60F, 0x60A, 0x81B, 0x60D]
    connect, accept, send, old, _ = (fields for _, _, fields in events)
    assert (connect["ProcessID"], accept["ProcessID"], send["size"]) == (50, 40, 99)
    assert (send["saddr"], send["sport"], send["daddr"], send["dport"]) == ("10.0.0.1", 5000, "10.0.0.2", 80)
    assert (old["ProcessID"], old["daddr"], old["dport"]) == (60, "::", 0)


def test_interrupts_nest_and_each_has_its_begin() -> None:
    rows = [
        Row(f"irq/{name}", time, 0, 0, 0, values, [])
        for time, (name, values) in enumerate(
            [
                ("softirq_entry", {"vec": 3}),
                ("irq_handler_entry", {"irq": 36}),
                ("irq_handler_exit", {"irq": 36, "ret": 1}),
                ("softirq_exit", {"vec": 3}),
                ("softirq_exit", {"vec": 9}),
                ("softirq_entry", {"vec": 1}),
                ("softirq_exit", {"vec": 1}),
            ]
        )
    ]
    found = made(follower(Interrupts, "isr", "dpc"), *rows)
    assert [(hook, fields["InitialTime"], time) for hook, time, fields in found] == [
        (0x0F43, 1, 2),
        (0x0F44, 0, 3),
        (0x0F45, 5, 6),
    ]
    assert (found[0][2]["Vector"], found[0][2]["ReturnValue"], found[1][2]["Routine"]) == (36, 1, 3)


def call(name: str, time: int, result: int, *args: int) -> list[Row]:
    number, words = CALLS["x86_64"][name], struct.pack("<6Q", *args, *[0] * (6 - len(args)))
    return [
        Row("raw_syscalls/sys_enter", time, 0, 70, 71, {"id": number, "args": words}, []),
        Row("raw_syscalls/sys_exit", time + 1, 0, 70, 71, {"id": number, "ret": result}, []),
    ]


def test_memory_that_calls_returned() -> None:
    one = follower(SystemCalls, "memory")
    events = made(
        one,
        *[
            *call("brk", 1, 0x5000),
            *call("brk", 3, 0x9000, 0x9000),
            *call("brk", 5, 0x6000, 0x6000),
            *call("mmap", 7, 0x10000, 0, 5000, 3, 0x22),
            *call("mmap", 9, -12, 0, 5000, 3, 0x22),
            *call("munmap", 11, 0, 0x10000, 5000),
        ],
    )
    assert [time for _, time, _ in events] == [4, 6, 8, 12], "as they return"
    assert [(hook & 0xFF, f["BaseAddr"], f["Length"], int(f["Flags"])) for hook, _, f in events] == [
        (98, 0x5000, 0x4000, 0x1000),
        (99, 0x6000, 0x3000, 0x4000),
        (98, 0x10000, 0x2000, 0x3000),
        (99, 0x10000, 0x2000, 0x8000),
    ]


class Named(FakeKernel):
    def link(self, path: str) -> str | None:
        return "/a/file"


SENT = {"sk": 1, "family": 2, "protocol": 6, "ret": 99, "flags": 0}
EVERYTHING: dict[type[TracepointFollower], list[Row]] = {
    BlockIo: [
        block("split", 1, sector=100, new_sector=108), block("rq_issue", 2, sector=100, bytes=512, rwbs=b"R"),
        block("rq_issue", 3, sector=108, bytes=512, rwbs=b"W"), block("rq_issue", 4, sector=0, bytes=0, rwbs=b"FF"),
        block("rq_complete", 5, sector=100, rwbs=b"R"), block("rq_complete", 6, sector=108, rwbs=b"W"),
        block("rq_complete", 7, sector=0, rwbs=b"FF"),
    ],
    Sockets: [
        state(1, 7, 2, 5000, 80, 50, 1), state(1, 2, 1, 5000, 80, 50, 2), state(2, 3, 1, 80, 5000, 0, 3),
        Row("sock/sock_send_length", 4, 0, 50, 50, SENT, []), Row("sock/sock_recv_length", 5, 0, 50, 50, SENT, []),
        state(1, 1, 7, 5000, 80, 50, 6),
    ],
    Interrupts: [
        Row(f"irq/{name}", time, 0, 0, 0, values, []) for time, (name, values) in enumerate([
            ("irq_handler_entry", {"irq": 36}), ("irq_handler_exit", {"irq": 36, "ret": 1}),
            ("softirq_entry", {"vec": 3}), ("softirq_exit", {"vec": 3}), ("softirq_entry", {"vec": 1}),
            ("softirq_exit", {"vec": 1}),
        ])
    ],
    SystemCalls: [
        *call("openat", 1, 9, 0, 0, os.O_RDWR), *call("write", 3, 5, 9, 0, 5), *call("read", 5, 5, 9, 0, 5),
        *call("fsync", 7, 0, 9), *call("fstat", 9, 0, 9), *call("ftruncate", 11, 0, 9, 4),
        *call("getdents64", 13, 0, 9, 0, 4), *call("mmap", 15, 0x10000, 0, 4096, 1, 1, 9),
        *call("munmap", 17, 0, 0x10000, 4096), *call("mmap", 19, 0x20000, 0, 4096, 3, 0x22),
        *call("munmap", 21, 0, 0x20000, 4096), *call("unlink", 23, 0), *call("rename", 25, 0),
        *call("close", 27, 0, 10),
    ],
}  # fmt: skip


EVENTS: list[tuple[int, type[TracepointFollower], set[int]]] = [
    (0x20, Interrupts, {0x0F44, 0x0F45}), (0x40, Interrupts, {0x0F43}), (0x100, BlockIo, {0x10A, 0x10B, 0x10E}),
    (0x400, BlockIo, {0x10C, 0x10D, 0x10F}), (0x200000, BlockIo, {0x1B20}),
    (0x10000, Sockets, {0x60A, 0x60B, 0x60C, 0x60D, 0x60F}), (0x2000000, SystemCalls, {0x44C}),
    (0x4000000, SystemCalls, set(range(0x440, 0x44B))), (0x200, SystemCalls, {0x420, 0x424}),
    (0x4000, SystemCalls, {0x262, 0x263}), (0x8000, SystemCalls, {0x425, 0x426}),
]  # fmt: skip
"""Flags, and the events of their pages."""


@pytest.mark.parametrize(("flag", "kind", "hooks"), EVENTS)
def test_each_flag_turns_its_own_events_on(
    flag: int, kind: type[TracepointFollower], hooks: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them and no others."""
    monkeypatch.setattr(kind, "_take_events", lambda self: None)  # so that it keeps them
    one = kind(Named(VM))
    one.kinds = kinds_of(normalised_masks([flag]))
    tracepoints = {name for each in one.kinds for name in one.needs[each]}
    rows = [row for row in EVERYTHING[kind] if row.tracepoint in tracepoints]
    one.whole_round(rows)
    for row in rows:
        one.row(row)
    one.end_round()
    one.end(99)
    assert {event.hook for event in one._events} == hooks


def test_stacks_of_system_calls_are_those_of_their_events() -> None:
    """The set decides whether call stacks are recorded."""
    assert SystemCalls.hooks == {hook for _, kind, hooks in EVENTS if kind is SystemCalls for hook in hooks}


def test_a_thread_that_has_ended_has_no_ids() -> None:
    """The kernel samples it with -1, in headers and in payloads."""
    none = np.array([-1], np.int32)
    columns = dict.fromkeys(("pid", "tid"), none)
    batch = SampleBatch(
        {
            "time": np.array([5]),
            "ip": np.zeros(1, np.uint64),
            "cpu": np.zeros(1, np.int32),
            **columns,
            "event": np.zeros(1, np.int32),
            "period": np.ones(1, np.uint64),
            "mode": np.zeros(1, np.uint8),
        }
    )
    raw = Raw(batch, {name: Place(0, 8, True) for name in ("dev", "sector", "bytes", "rwbs")})
    one = follower(BlockIo, "disk init")
    (row,) = one._rows(Feed("block/block_rq_issue", batch, batch.time, raw))
    assert (row.pid, row.tid) == (0xFFFFFFFF, 0xFFFFFFFF)
    one.row(row._replace(values={**row.values, "rwbs": b"R"}))
    words = one._take_events().words.tobytes()
    assert struct.unpack_from("<2i", words, 8) == (-1, -1)
    assert struct.unpack_from("<I", words, 32 + 8) == (0xFFFFFFFF,)


# -- of this machine

PROGRAM = """
import mmap, os, socket, sys
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
os.write(fd, b"x" * 5000); os.fsync(fd); os.pread(fd, 100, 1000); os.ftruncate(fd, 9000)
other = os.open(path + "3", os.O_WRONLY | os.O_CREAT, 0o600)
for at in range(0, 40000, 10000): os.pwrite(other, b"z" * 9000, at); os.fsync(other)
mmap.mmap(fd, 9000).close()
mmap.mmap(-1, 123 * 4096).close()
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
client.sendall(b"y" * 777); peer.recv(777); client.close(); peer.close()
print(server.getsockname()[1], flush=True)
sys.stdin.readline()
os.close(fd); os.rename(path, path + "2"); os.unlink(path + "2")
"""


SPINNER = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"


@contextmanager
def busy_processors() -> Iterator[None]:
    """Runs programs that leave no processor idle, and give way to every other program.

    A kernel may drop samples of interrupts of an idle processor, such as the end of a request: of 53 softirqs that
    Linux 6.18 counted on one processor, its ring had none, and of 88 on the other processor all.
    """
    with ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            spinner = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", SPINNER]))
            stack.callback(spinner.kill)
        yield


def refusal() -> str:
    try:
        check(SessionRequest("NT Kernel Logger"), normalised_masks([ALL]))
    except EtwError as error:
        return error.reason
    return ""


class Recorded:
    def __init__(self, folder: Path, flags: int) -> None:
        self.file = folder / "file"
        path = folder / "x.etl"
        for _ in range(3):  # other programs may fill the rings
            with busy_processors():
                self.log = record_log(path, SourceConfiguration(masks=tuple(normalised_masks([flags]))), self._run)
            if not self.log.lost_events:
                break
        log = TraceLog(FileSource(str(path)))
        decode = Decoder().decode
        self.events = [(event, decode(event).fields) for event in log.events()]
        assert not log.damage

    def _run(self, recorder: Any) -> None:
        command = [sys.executable, "-S", "-c", textwrap.dedent(PROGRAM), str(self.file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            self.port = int(child.stdout.readline())
            recorder.round()
            recorder.round()
            child.stdin.write("\n")
            child.stdin.close()
            child.wait()
        self.pid = child.pid

    def of(self, hook: int, **values: object) -> list[dict[str, Any]]:
        return [f for e, f in self.events if e.hook == hook and all(f.get(n) == v for n, v in values.items())]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    if why := refusal():
        pytest.skip(f"tracepoints: {why}")
    made = Recorded(tmp_path_factory.mktemp("joint"), ALL & ~INTERRUPTS)
    if made.log.lost_events:
        pytest.skip("other programs make more system calls than the rings hold")
    return made


def test_a_file_is_seen_from_its_open_to_its_end(recorded: Recorded) -> None:
    (create,) = [f for f in recorded.of(0x0440) if f["FileName"] == str(recorded.file)]
    assert create["CreateDisposition"] == 5
    mine = {"FileObject": create["FileObject"]}
    (write,) = recorded.of(0x0444, **mine)
    assert (write["Offset"], write["IoSize"]) == (0, 5000)
    (read,) = recorded.of(0x0443, **mine)
    assert (read["Offset"], read["IoSize"]) == (1000, 100)
    (cut,) = recorded.of(0x0445, **mine)
    assert (cut["ExtraInfo"], cut["InfoClass"]) == (9000, 20)
    assert [len(recorded.of(hook, **mine)) for hook in (0x0441, 0x0442, 0x0449)] == [1, 1, 1]
    ends = {f["IrpPtr"]: f for f in recorded.of(0x044C)}
    assert (ends[write["IrpPtr"]]["ExtraInfo"], ends[read["IrpPtr"]]["ExtraInfo"]) == (5000, 100)
    (name,) = [f for f in recorded.of(0x0424) if f["FileName"] == str(recorded.file)]
    (view,) = recorded.of(0x0425, FileKey=name["FileKey"])
    assert (write["FileKey"], view["ProcessID"], view["ViewSize"]) == (name["FileKey"], recorded.pid, 12288)
    assert recorded.of(0x0426, ViewBase=view["ViewBase"], ProcessID=recorded.pid)


def test_a_failed_open_has_its_status(recorded: Recorded) -> None:
    assert recorded.of(0x044C, NtStatus=0xC0000034), "the interpreter looks for files that do not exist"


def test_memory_is_allocated_and_freed(recorded: Recorded) -> None:
    (made,) = recorded.of(0x0262, Length=123 * 4096, ProcessID=recorded.pid)
    assert recorded.of(0x0263, BaseAddr=made["BaseAddr"], Length=123 * 4096, ProcessID=recorded.pid)


def test_a_connection_and_what_goes_over_it(recorded: Recorded) -> None:
    client, server = {"dport": recorded.port}, {"sport": recorded.port}
    (connect,) = recorded.of(0x060C, **client)
    (accept,) = recorded.of(0x060F, **server)
    assert (connect["ProcessID"], accept["ProcessID"]) == (recorded.pid, recorded.pid)
    (sent,) = recorded.of(0x060A, **client)
    (received,) = recorded.of(0x060B, **server)
    assert (sent["size"], received["size"], sent["daddr"], received["saddr"]) == (777, 777, "127.0.0.1", "127.0.0.1")
    assert len(recorded.of(0x060D, **client)) == 1


def test_softirqs_take_time(tmp_path: Path) -> None:
    if why := refusal():
        pytest.skip(f"tracepoints: {why}")
    recorded = Recorded(tmp_path, INTERRUPTS)  # a kernel may drop some of these on any machine
    found = [(e.time, f) for e, f in recorded.events if e.hook in (0x0F44, 0x0F45)]
    assert found, "a connection to this machine needs one"
    assert all(f["InitialTime"] <= time for time, f in found)


def test_what_was_synced_is_written_to_the_disk(recorded: Recorded) -> None:
    device = os.stat(recorded.file.parent).st_dev
    if os.major(device) == 0:
        pytest.skip("the temporary folder is on no disk")
    writes = recorded.of(0x010B)
    seen = [(hex(event.hook), fields) for event, fields in recorded.events if event.hook >> 8 == 0x01]
    assert sum(f["TransferSize"] for f in writes) >= 4096, seen
    started = {f["Irp"] for f in recorded.of(0x010D)}
    assert {f["Irp"] for f in writes} <= started
    disks = Kernel().names("/sys/block")
    assert all(f["DiskNumber"] < len(disks) for f in writes)


def test_counters_of_a_process_that_ended(recorded: Recorded) -> None:
    (last,) = recorded.of(0x0320, ProcessID=recorded.pid)
    assert last["PeakVirtualSize"] >= last["WorkingSetSize"] > 4096 * 100
    (own, *_) = recorded.of(0x0321, ProcessID=os.getpid())
    assert own["HandleCount"] > 2
