"""What tracepoints are called: out of the tracing data that perf copies from the kernel's tracefs.

The container is that of trace.dat (manual page trace.dat(5) of trace-cmd; perf's writer is trace-event-info.c): a
magic, a version, byte order, size of a long and of a page, then sections: header_page and header_event, ftrace's own
event formats, and the formats of each subsystem. A format begins with ``name: sched_switch`` and ``ID: 316``; the ID
is the event's ``config``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..numbers import unpack

__all__ = ["tracepoint_names"]

_MAGIC = b"\x17\x08\x44tracing"
_NAME, _ID = re.compile(rb"^name: *(\S+)", re.MULTILINE), re.compile(rb"^ID: *(\d{1,9})\s", re.MULTILINE)


def tracepoint_names(data: bytes) -> dict[int, str]:
    """Id -> ``system:name`` of every event format in ``data``.

    Raises `ValueError` for what is no tracing data, or breaks off.
    """
    if not data.startswith(_MAGIC):
        raise ValueError(f"tracing data begin with {data[:10].hex(' ')}")
    found: dict[int, str] = {}
    for system, text in _formats(data):
        name, number = _NAME.search(text), _ID.search(text)
        if name and number:
            found[int(number[1])] = f"{system}:{name[1].decode('utf-8', 'replace')}"
    return found


def _formats(data: bytes) -> Iterator[tuple[str, bytes]]:
    """(system, text) of each event format."""
    _, at = _text(data, len(_MAGIC))
    order = ">" if data[at : at + 1] == b"\1" else "<"
    at += 1 + 1 + 4  # byte order, size of a long, size of a page
    for _ in ("header_page", "header_event"):
        _, at = _text(data, at)
        _, at = _block(data, at, order)
    (count,), at = unpack(order + "I", data, at), at + 4
    for _ in range(count):
        text, at = _block(data, at, order)
        yield "ftrace", text
    (systems,), at = unpack(order + "I", data, at), at + 4
    for _ in range(systems):
        system, at = _text(data, at)
        (count,), at = unpack(order + "I", data, at), at + 4
        for _ in range(count):
            text, at = _block(data, at, order)
            yield system, text


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    if end < 0:
        raise ValueError(f"the text at byte {at} of the tracing data has no end")
    return data[at:end].decode("utf-8", "replace"), end + 1


def _block(data: bytes, at: int, order: str) -> tuple[bytes, int]:
    """The bytes behind their u64 size."""
    (size,) = unpack(order + "Q", data, at)
    if size > len(data) - at - 8:
        raise ValueError(f"{size} bytes of tracing data at byte {at + 8}, and {len(data) - at - 8} are left")
    return data[at + 8 : at + 8 + size], at + 8 + size
