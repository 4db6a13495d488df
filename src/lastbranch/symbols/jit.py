"""Code that programs generated at run time (JIT): perf maps and jitdumps of the processes of a capture.

Both are in folders where everybody can write, under names that everybody can guess. So they are used only if the
capture was made on this machine, and if they are regular files, not links, of the user who ran the process. Files in a
folder that the user passes (``--debug-dir``) are trusted.
"""

from __future__ import annotations

import os
import platform
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import distinct
from ..binaries.files import below, open_regular, whole_file
from ..errors import FormatError, LastbranchError
from ..model import Process, Profile
from .demangle import demangle
from .model import DebugFiles, Frame, Function, FunctionTable, Names, NamesBuilder
from .options import SymbolOptions
from .symbol_lists import lines_of

__all__ = ["JitSource", "find_jit", "names_in", "read_header", "read_perfmap"]


# -- Jitdump: the log of a JIT (Linux, tools/perf/Documentation/jitdump-specification.txt)
#
# A header, then records with a prefix of id, size and time stamp, in the byte order of the machine that wrote them.
# Code is loaded, moved and, as its memory is reused, replaced: the code at an address depends on the time.


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
"""The name of an entry that is in the file of the entry before it."""


class JitHeader(NamedTuple):
    """The header of a jitdump."""

    order: str
    """``<`` or ``>``."""
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
        raise FormatError("an unknown version", file=name, offset=4, field="version", value=version)
    if size < struct.calcsize("<" + _HEADER):
        raise FormatError("the header is too small", file=name, offset=8, field="total_size", value=size)
    return JitHeader(order, size, pid, time, bool(flags & _ARCH_TIMESTAMP))


def names_in(files: DebugFiles, address: NDArray[np.uint64], time: NDArray[np.uint64] | None) -> Names:
    """Names of absolute addresses, each at its time (uint64[n], in the dump's clock; ``None``: when the dump ended).

    Raises `FormatError` for a file that is no jitdump, `OSError`. A file that is cut short is read to its end.
    """
    data = whole_file(files.binary, links=False)
    codes = _codes(data, read_header(data, files.binary))
    shown = demangle([c.name for c in codes])
    functions = [Function(c.name, s, c.start, c.size) for c, s in zip(codes, shown, strict=True)]
    owner = _owners(codes, address, time)
    builder = NamesBuilder()
    for a, row in zip(address.tolist(), owner.tolist(), strict=True):
        builder.add([Frame(functions[row], *_line(codes[row], a))] if row >= 0 else [])
    return builder.names()


def _owners(codes: list[_Code], address: NDArray[np.uint64], time: NDArray[np.uint64] | None) -> NDArray[np.int64]:
    """The row of the code at each address, -1 for none; of several the one that was loaded last."""
    order = np.argsort(address, kind="stable")
    sorted_address = address[order]
    when = np.full(len(address), _FOREVER - 1, np.uint64) if time is None else time[order]
    starts = np.array([c.start for c in codes], np.uint64)
    ends = np.array([min(c.start + c.size, _FOREVER) for c in codes], np.uint64)
    first = np.searchsorted(sorted_address, starts).tolist()
    last = np.searchsorted(sorted_address, ends).tolist()
    found = np.full(len(address), -1, np.int64)
    for row in sorted(range(len(codes)), key=lambda r: codes[r].since):
        a, b = first[row], last[row]
        if a < b:
            found[a:b][(when[a:b] >= codes[row].since) & (when[a:b] < codes[row].until)] = row
    out = np.empty(len(address), np.int64)
    out[order] = found
    return out


def _line(code: _Code, address: int) -> tuple[str, int]:
    at = bisect_right(code.lines, (address, 1 << 62, "")) - 1
    return (code.lines[at][2], code.lines[at][1]) if at >= 0 else ("", 0)


def _codes(data: bytes, header: JitHeader) -> list[_Code]:
    """All code that was ever loaded, in the order of the file."""
    out: list[_Code] = []
    by_index: dict[int, _Code] = {}
    lines: dict[int, list[tuple[int, int, str]]] = {}  # by code address; precedes the load
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


PERF_MAPS = "/tmp"
"""Where JITs write their perf maps (Linux, tools/perf/Documentation/jit-interface.txt)."""

_DUMP = re.compile(r"(?:.*/)?jit-(\d+)\.dump").fullmatch
_HEAD = 64


@dataclass(slots=True)
class JitSource:
    """The files of one process. A jitdump, which has times and lines, comes before a perf map."""

    dump: DebugFiles | None = None
    header: JitHeader | None = None
    perfmap: DebugFiles | None = None
    notes: list[str] = field(default_factory=list)


def find_jit(profile: Profile, process: Process, options: SymbolOptions) -> JitSource:
    """The jitdump and the perf map of ``process``."""
    out = JitSource()
    owners = _trusted_users(profile, process)
    for root, name in _dumps(profile, process, options):
        path = _usable(root, name, owners, out)
        header = _header(path, out) if path else None
        if path and header and header.pid == process.pid:
            out.dump, out.header = DebugFiles("jitdump", path), header
            break
        if path and header:
            out.notes.append(f"{path} belongs to process {header.pid}, not to {process.pid}")
    name = f"perf-{process.pid}.map"
    for root in (*options.debug_dirs, ""):
        path = _usable(root, name if root else os.path.join(PERF_MAPS, name), owners, out)
        if path:
            out.perfmap = DebugFiles("perfmap", path)
            break
    return out


def _dumps(profile: Profile, process: Process, options: SymbolOptions) -> list[tuple[str, str]]:
    """(folder that the user passed or nothing, name) of possible jitdumps of ``process``.

    A JIT maps its dump executable, so that the capture has its path.
    """
    name = f"jit-{process.pid}.dump"
    mapped = [m.name for m in profile.modules if (found := _DUMP(m.name)) and int(found[1]) == process.pid]
    return [*((root, name) for root in options.debug_dirs), *(("", m) for m in mapped)]


def _usable(root: str, name: str, owners: frozenset[int], out: JitSource) -> str | None:
    """The path of a file that may be read: a file below ``root``, or, without root, a file of one of ``owners``."""
    if root:
        return below(root, name)
    if not owners or not os.path.isabs(name) or ".." in name.split("/"):
        return None
    try:
        fd = open_regular(name, links=False)
    except OSError as error:
        if os.path.lexists(name):
            out.notes.append(f"{name} is not used: {error.strerror or 'not a regular file'}")
        return None
    state = os.fstat(fd)
    os.close(fd)
    if state.st_uid not in owners:
        out.notes.append(
            f"{name} is not used: it belongs to user {state.st_uid}, the process to {min(owners)}; if you trust it, "
            f"copy it to a folder and pass that with --debug-dir"
        )
        return None
    return name


def _trusted_users(profile: Profile, process: Process) -> frozenset[int]:
    """The users whose files describe ``process``: the process' user, or the current user once the process has ended.

    Empty where the capture is from another machine, or where files have no such owners.
    """
    here = (profile.machine.host, profile.machine.os_release) == (platform.node(), platform.release())
    if not here or not hasattr(os, "geteuid"):
        return frozenset()
    if process.end is None:
        try:
            with open(f"/proc/{process.pid}/status", encoding="utf-8", errors="replace") as status:
                uids = next(line for line in status if line.startswith("Uid:"))
            return frozenset([int(uids.split()[2])])
        except (OSError, StopIteration):
            pass
    return frozenset([os.geteuid()])


def _header(path: str, out: JitSource) -> JitHeader | None:
    try:
        return read_header(whole_file(path, _HEAD, links=False), path)
    except (OSError, LastbranchError) as error:
        out.notes.append(f"{path} is not used: {error}")
        return None


# -- Perf maps: functions of a JIT (Linux, tools/perf/Documentation/jit-interface.txt)
#
# Lines of ``START SIZE NAME``, numbers in hexadecimal, names with blanks in them. Of overlapping lines, the later line
# counts: a JIT reuses the memory of dropped code.


_LINE = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16}) (?:0x)?([0-9a-fA-F]{1,16}) (.+)").fullmatch


def read_perfmap(files: DebugFiles) -> FunctionTable:
    """The functions of the perf map ``files.binary``, at absolute addresses. Other lines are left out."""
    entries = [(int(m[1], 16), int(m[2], 16), m[3]) for m in map(_LINE, lines_of(files.binary, links=False)) if m]
    names = [name.rstrip("\r") for *_, name in entries]
    start = np.array([a for a, *_ in entries], np.uint64)
    size = np.array([s for _, s, _ in entries], np.uint64)
    size = np.minimum(size, ~start)  # up to the last address
    functions = [
        Function(n, s, a, z) for n, s, a, z in zip(names, demangle(names), start.tolist(), size.tolist(), strict=True)
    ]
    return disjoint(start, start + size, functions)


def disjoint(start: np.ndarray, end: np.ndarray, functions: list[Function]) -> FunctionTable:
    """Disjoint pieces of ``start:end``, uint64[n] each, where later rows cover earlier ones; empty rows are left out.

    A function that is cut in two has two rows.
    """
    borders = distinct(np.concatenate([start, end]))
    owner = np.full(max(len(borders) - 1, 0), -1, np.int64)
    first, last = np.searchsorted(borders, start).tolist(), np.searchsorted(borders, end).tolist()
    for row, (a, b) in enumerate(zip(first, last, strict=True)):
        owner[a:b] = row
    begins = np.flatnonzero(np.diff(owner, prepend=-2))  # neighbouring pieces of one owner are merged
    ends = np.append(begins[1:], len(owner))
    kept = owner[begins] >= 0
    rows = owner[begins[kept]].tolist()
    return FunctionTable(borders[begins[kept]], borders[ends[kept]], [functions[r] for r in rows])
