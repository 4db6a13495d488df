"""What stands in the lines of ``perf script`` besides branch entries: who was sampled, call chains, event records."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Header", "Map", "RECORD", "Task", "header_of", "parse_record"]

RECORD = b"PERF_RECORD_"
"""Mark of a line that is a record beside the samples."""

_HEADER = re.compile(
    rb"""\s*
    (?:(?P<comm>\S.*?)\s+)??
    (?:(?P<pid>-?\d+)(?:/(?P<tid>-?\d+))?\s+)?
    (?:\[(?P<cpu>\d+)\]\s+)?
    (?:(?P<seconds>\d+)\.(?P<fraction>\d{1,9}):\s*)?
    (?:(?P<period>\d+)\s+)?
    (?:(?P<event>[^\s:][^\s]*):\s*)?
    (?:(?P<ip>[0-9a-f]{1,16})(?:\s.*)?)?
    $""",
    re.VERBOSE | re.DOTALL,
)
"""Fields of ``perf script -F`` in the order in which it prints them; each may be missing."""


class Header(NamedTuple):
    """What was printed about a sample; ``None`` where it was not."""

    comm: str | None
    pid: int | None
    tid: int | None
    cpu: int | None
    time: int | None
    """Nanoseconds."""
    period: int | None
    event: str | None
    ip: int | None


NOTHING = Header(None, None, None, None, None, None, None, None)


def header_of(text: bytes) -> Header | None:
    """The fields in front of a branch stack or a call chain; ``None`` for a line of another kind."""
    match = _HEADER.match(text)
    if match is None:
        return None
    found = match.groupdict()
    pid, ip = _number(found["pid"]), found["ip"]
    if ip is None and pid is not None and found["tid"] is None and found["event"] is None:
        ip, pid = found["pid"], None  # one number alone is an address
    time = None
    if found["seconds"] is not None:
        time = int(found["seconds"]) * 1_000_000_000 + int(found["fraction"].ljust(9, b"0"))
    return Header(
        _name(found["comm"]), pid, _number(found["tid"]), _number(found["cpu"]), time, _number(found["period"]),
        _name(found["event"]), int(ip, 16) if ip else None,
    )  # fmt: skip


def _number(text: bytes | None) -> int | None:
    return None if text is None else int(text)


def _name(text: bytes | None) -> str | None:
    return None if text is None else text.decode("utf-8", "surrogateescape")


class Map(NamedTuple):
    """A mapping: ``size`` bytes at ``start`` of a file from ``offset`` on."""

    pid: int
    tid: int
    start: int
    size: int
    offset: int
    build_id: bytes
    name: str


class Task(NamedTuple):
    """COMM (``name``; ``parent`` 1: by exec), FORK (of ``parent``) or EXIT of a thread."""

    kind: str
    pid: int
    tid: int
    parent: int
    name: str


_MAP = re.compile(
    rb"MMAP2? (?P<pid>-?\d+)/(?P<tid>-?\d+): "
    rb"\[(?P<start>0x[0-9a-f]{1,16}|0)\((?P<size>0x[0-9a-f]{1,16}|0)\) @ (?P<offset>0x[0-9a-f]{1,16}|0)"
    rb"(?: <(?P<id>[0-9a-f]{2,40})>| [^]]*)?\]: \S+ (?P<name>.*)$",
    re.DOTALL,
)
_TASK = re.compile(rb"(?P<kind>FORK|EXIT)\((?P<pid>-?\d+):(?P<tid>-?\d+)\):\((?P<parent>-?\d+):-?\d+\)")
_COMM = re.compile(rb"COMM(?P<exec> exec)?: (?P<name>.*):(?P<pid>-?\d+)/(?P<tid>-?\d+)\s*$", re.DOTALL)


def parse_record(text: bytes) -> Map | Task | None:
    """The record in ``text``, a line from behind `RECORD` on; ``None`` for other kinds.

    Raises `ValueError` for one whose fields cannot be read. Formats: perf_event__fprintf_mmap2 and its neighbours in
    Linux tools/perf/util/event.c.
    """
    if text.startswith(b"MMAP"):
        match = _MAP.match(text)
        if match is None:
            raise ValueError("mapping that cannot be read")
        build_id = bytes.fromhex((match["id"] or b"").decode()) if len(match["id"] or b"") % 2 == 0 else b""
        pid, tid, start, size, offset = (int(match[n], 0) for n in ("pid", "tid", "start", "size", "offset"))
        return Map(pid, tid, start, size, offset, build_id, match["name"].decode("utf-8", "surrogateescape"))
    if match := _TASK.match(text):
        return Task(match["kind"].decode(), int(match["pid"]), int(match["tid"]), int(match["parent"]), "")
    if match := _COMM.match(text):
        name = match["name"].decode("utf-8", "surrogateescape")
        return Task("COMM", int(match["pid"]), int(match["tid"]), int(match["exec"] is not None), name)
    if text.startswith((b"FORK", b"EXIT", b"COMM")):
        raise ValueError("task record that cannot be read")
    return None
