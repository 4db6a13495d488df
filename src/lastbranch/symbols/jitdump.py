"""Jitdump: what a JIT says of its code while it runs (Linux, tools/perf/Documentation/jitdump-specification.txt).

A header, then records with a prefix of id, size and time stamp, in the byte order of the machine that wrote them. Code
is loaded, moved and, since its memory is used again, replaced: what stands at an address depends on the time.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..binaries.files import open_regular
from ..errors import FormatError
from .model import Chains, DebugFiles, Function, Names

__all__ = ["JitHeader", "names_in", "read_header"]

_MAGIC = 0x4A695444
_HEADER = "IIIIIIQQ"
"""magic, version, total size, ELF machine, pad, pid, time stamp, flags."""
_PREFIX = "IIQ"
_LOAD, _MOVE, _DEBUG_INFO, _CLOSE = range(4)
_LOAD_FIELDS = "IIQQQQ"
"""pid, tid, vma, code address, code size, code index; then the name, ended by a zero, and the code."""
_MOVE_FIELDS = "IIQQQQQ"
"""pid, tid, vma, old and new code address, code size, code index."""
_DEBUG_FIELDS = "QQ"
"""Code address, number of entries."""
_ENTRY = "Qii"
"""Address, line, discriminator; then the file's name, ended by a zero."""
_ARCH_TIMESTAMP = 1
_FOREVER = (1 << 64) - 1
_SAME_FILE = b"\xff"
"""An entry whose name is this byte alone is in the file of the entry before it."""


class JitHeader(NamedTuple):
    """What the header says."""

    order: str
    """As `struct` writes it."""
    size: int
    pid: int
    time: int
    processor_clock: bool
    """Time stamps are the processor's counter, not CLOCK_MONOTONIC."""


@dataclass(slots=True)
class _Code:
    """A function in memory from ``since`` until ``until``."""

    start: int
    size: int
    since: int
    until: int
    index: int
    name: str
    lines: list[tuple[int, int, str]] = field(default_factory=list)
    """(address, line, file), ascending."""


def read_header(data: bytes, name: str) -> JitHeader:
    """The header at the beginning of a jitdump. Raises `FormatError` that names the field for anything else."""
    if len(data) < struct.calcsize("<" + _HEADER):
        raise FormatError("too short for a jitdump", file=name, offset=0, field="magic", value=data[:8] or None)
    order = next((o for o in "<>" if struct.unpack_from(o + "I", data)[0] == _MAGIC), None)
    if order is None:
        raise FormatError("not a jitdump", file=name, offset=0, field="magic", value=data[:4])
    _, version, size, _, _, pid, time, flags = struct.unpack_from(order + _HEADER, data)
    if version != 1:
        raise FormatError("a version that is not known", file=name, offset=4, field="version", value=version)
    if size < struct.calcsize("<" + _HEADER):
        raise FormatError("the header is too small", file=name, offset=8, field="total_size", value=size)
    return JitHeader(order, size, pid, time, bool(flags & _ARCH_TIMESTAMP))


def names_in(files: DebugFiles, address: NDArray[np.uint64], time: NDArray[np.uint64] | None) -> Names:
    """Names of absolute addresses, each at its time (uint64[n], in the dump's clock; ``None``: when the dump ended).

    Raises `FormatError` for a file that is no jitdump, `OSError`. One that is cut short is read as far as it goes.
    """
    with os.fdopen(open_regular(files.binary, links=False), "rb") as file:
        data = file.read()
    codes = _codes(data, read_header(data, files.binary))
    from .demangle import demangle

    shown = demangle([c.name for c in codes])
    functions = [Function(c.name, s, c.start, c.size) for c, s in zip(codes, shown, strict=True)]
    owner = _owners(codes, address, time)
    chains = Chains()
    for a, row in zip(address.tolist(), owner.tolist(), strict=True):
        chains.add([(functions[row], *_line(codes[row], a))] if row >= 0 else [])
    return chains.names()


def _owners(codes: list[_Code], address: NDArray[np.uint64], time: NDArray[np.uint64] | None) -> NDArray[np.int64]:
    """Which code stood at each address; of several the one that came last."""
    order = np.argsort(address, kind="stable")
    sorted_address = address[order]
    when = np.full(len(address), _FOREVER, np.uint64) if time is None else time[order]
    starts = np.array([c.start for c in codes], np.uint64)
    ends = np.array([min(c.start + c.size, _FOREVER) for c in codes], np.uint64)
    first = np.searchsorted(sorted_address, starts).tolist()
    last = np.searchsorted(sorted_address, ends).tolist()
    found = np.full(len(address), -1, np.int64)
    for row in sorted(range(len(codes)), key=lambda r: codes[r].since):
        a, b = first[row], last[row]
        if a < b:
            there = (when[a:b] >= codes[row].since) & (when[a:b] < codes[row].until)
            if time is None:
                there = np.full(b - a, codes[row].until == _FOREVER)
            found[a:b][there] = row
    out = np.empty(len(address), np.int64)
    out[order] = found
    return out


def _line(code: _Code, address: int) -> tuple[str, int]:
    at = bisect_right(code.lines, (address, 1 << 62, "")) - 1
    return (code.lines[at][2], code.lines[at][1]) if at >= 0 else ("", 0)


def _codes(data: bytes, header: JitHeader) -> list[_Code]:
    """All code that was ever there, in the order of the file."""
    out: list[_Code] = []
    by_index: dict[int, _Code] = {}
    lines: dict[int, list[tuple[int, int, str]]] = {}  # by code address: stands in front of its load
    for kind, time, body in _records(data, header):
        try:
            if kind == _LOAD:
                code = _load(header, time, body, lines)
                out.append(code)
                by_index[code.index] = code
            elif kind == _MOVE:
                _, _, _, _, new, size, index = struct.unpack_from(header.order + _MOVE_FIELDS, body)
                moved = by_index.get(index)
                if moved is not None:
                    moved.until = time
                    shifted = [(a - moved.start + new, line, file) for a, line, file in moved.lines]
                    by_index[index] = _Code(new, size, time, _FOREVER, index, moved.name, shifted)
                    out.append(by_index[index])
            elif kind == _DEBUG_INFO:
                start, entries = _debug_info(header, body)
                lines[start] = entries
        except struct.error:
            continue
    return out


def _records(data: bytes, header: JitHeader) -> Iterator[tuple[int, int, memoryview]]:
    """(id, time, body) of each whole record, until the close record or the end."""
    at, prefix = header.size, struct.calcsize("<" + _PREFIX)
    view = memoryview(data)
    while at + prefix <= len(data):
        kind, size, time = struct.unpack_from(header.order + _PREFIX, data, at)
        if size < prefix or at + size > len(data) or kind == _CLOSE:
            return
        yield kind, time, view[at + prefix : at + size]
        at += size


def _load(header: JitHeader, time: int, body: memoryview, lines: dict[int, list[tuple[int, int, str]]]) -> _Code:
    _, _, _, start, size, index = struct.unpack_from(header.order + _LOAD_FIELDS, body)
    name = _text(body, struct.calcsize("<" + _LOAD_FIELDS))[0]
    return _Code(start, size, time, _FOREVER, index, name, lines.pop(start, []))


def _debug_info(header: JitHeader, body: memoryview) -> tuple[int, list[tuple[int, int, str]]]:
    start, count = struct.unpack_from(header.order + _DEBUG_FIELDS, body)
    at, fixed = struct.calcsize("<" + _DEBUG_FIELDS), struct.calcsize("<" + _ENTRY)
    out: list[tuple[int, int, str]] = []
    file = ""
    for _ in range(min(count, len(body) // (fixed + 1))):
        if at + fixed > len(body):
            break
        address, line, _ = struct.unpack_from(header.order + _ENTRY, body, at)
        text, at = _text(body, at + fixed)
        file = text if text.encode("utf-8", "surrogateescape") != _SAME_FILE else file
        out.append((address, line, file))
    return start, sorted(out)


def _text(body: memoryview, at: int) -> tuple[str, int]:
    """The text at ``at``, and where it ends."""
    data = body[at:].tobytes()
    end = data.find(b"\0")
    end = len(data) if end < 0 else end
    return data[:end].decode("utf-8", "surrogateescape"), at + end + 1
