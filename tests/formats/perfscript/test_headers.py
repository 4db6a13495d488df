"""Fields in front of stacks, printed with perf's own format strings for random names, fields and values."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lastbranch.formats.perfscript.headers import Header, Headers

NAMES = [
    "ET_NET 3",
    "worker 3",
    "DOM Worker 12",
    "12 34",
    "tokio: x 7",
    "a;b c",
    "[vdso] 5",
    "kworker/0:1",
    "java",
    "3",
    "add",
]
IDS = ("", "pid/tid", "tid")


@dataclass(frozen=True)
class Fields:
    """The fields of ``-F``; ``chain``: the event has call chains."""

    comm: bool = True
    ids: str = "tid"
    cpu: bool = False
    time: bool = True
    period: bool = True
    event: bool = True
    ip: bool = False
    chain: bool = False

    def shown(self, header: Header) -> str:
        """``header`` as perf_sample__fprintf_start and process_event of Linux 6.18 print it."""
        text = ""
        if self.comm:
            text += f"{header.comm} " if self.chain else f"{header.comm:>16} "
        text += {"": "", "pid/tid": f"{header.pid:7d}/{header.tid:<7d} ", "tid": f"{header.tid:7d} "}[self.ids]
        if self.cpu:
            text += f"[{header.cpu:03d}] "
        if self.time:
            shown = f"{header.time // 10**9}.{header.time % 10**9 // 1000:06d}"
            text += f"{shown:>12}: "
        if self.period:
            text += f"{header.period:>10} "
        if self.event:
            text += f"{header.event:>12}: "
        if self.ip and not self.chain:
            text += f" {header.ip:16x} hot+0x13 (/opt/app 2/p)"
        return text

    def kept(self, header: Header) -> Header:
        """What a reader can know of ``header``."""
        return Header(
            header.comm if self.comm else None,
            header.pid if self.ids == "pid/tid" else None,
            header.tid if self.ids else None,
            header.cpu if self.cpu else None,
            header.time if self.time else None,
            header.period if self.period else None,
            header.event if self.event else None,
            header.ip if self.ip and not self.chain else None,
        )


names = st.sampled_from(NAMES) | st.text("abcXYZ019 ;:[]/-_.#", min_size=1, max_size=15).map(
    lambda name: " ".join(name.split())
).filter(bool)
headers = st.builds(
    Header,
    comm=names,
    pid=st.integers(1, 1 << 22),
    tid=st.integers(1, 1 << 22),
    cpu=st.integers(0, 300),
    time=st.integers(0, 10**10).map(lambda us: us * 1000),
    period=st.integers(1, 10**12),
    event=st.sampled_from(["cycles:HG", "cpu-clock", "sched:sched_switch", "cpu/event=0x3c/u"]),
    ip=st.integers(0, 2**64 - 1),
)
fields = st.builds(
    Fields,
    comm=st.booleans(),
    ids=st.sampled_from(IDS),
    cpu=st.booleans(),
    time=st.booleans(),
    period=st.booleans(),
    event=st.booleans(),
    ip=st.booleans(),
    chain=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(fields, st.lists(headers, min_size=1, max_size=12))
def test_fields_as_perf_prints_them(fields: Fields, printed: list[Header]) -> None:
    assume(fields.time or fields.ids or (not fields.chain and (fields.event or fields.ip)))
    lines = [fields.shown(header).encode() for header in printed]
    reader = Headers()
    reader.learn(lines, [], frozenset())
    assert [reader.read(line, certain=False) for line in lines] == [fields.kept(header) for header in printed], lines


def test_widths_may_be_lost() -> None:
    """Lines of a text whose blanks were collapsed: other lines tell the fields, COMM lines tell the threads."""
    lines = [b"worker 3 1004 12.000001: cycles: 7a0 hot", b"java 1005 12.000002: cycles: 7a0 hot"]
    reader = Headers()
    reader.learn(lines, [], {1004, 1005})
    assert [reader.read(line) for line in lines] == [
        Header("worker 3", None, 1004, None, 12_000_001_000, None, "cycles", 0x7A0),
        Header("java", None, 1005, None, 12_000_002_000, None, "cycles", 0x7A0),
    ]
    assert reader.unsure == 0


def test_events_have_fields_of_their_own() -> None:
    """perf's default fields: tracepoints have no period, and only one of the events has call chains."""
    lines = [
        b"        worker 3  1004 [001]    12.000001:      10101 cycles: ",
        b"        worker 3  1004 [001]    12.000002: sched:sched_switch: prev_comm=worker 3 prev_pid=1004",
        b"worker 3  1004 [001]    12.000003:      10101 instructions: ",
    ]
    reader = Headers()
    reader.learn([], lines * 9, frozenset())
    found = [reader.read(line) for line in lines]
    assert [header and header[:4] for header in found] == [("worker 3", None, 1004, 1)] * 3
    assert [header and header.event for header in found] == ["cycles", "sched:sched_switch", "instructions"]
