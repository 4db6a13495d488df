"""What ran before recording began: its tasks and mappings, told in the records that the kernel writes of later ones.

Layouts: include/uapi/linux/perf_event.h; proc(5) for what is read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator

from ...formats.perfdata.layout import MISC
from ..kernel import Kernel
from .perf_file import record

__all__ = ["kernel_build_id", "kernel_records", "process_records", "tasks_of"]

_USER, _KERNEL = 2, 1  # PERF_RECORD_MISC_*
_PROT = {"r": 1, "w": 2, "x": 4}
_MAP_SHARED, _MAP_PRIVATE = 1, 2
_NT_GNU_BUILD_ID = 3

Trailer = Callable[[int, int], bytes]
"""(pid, tid) -> the sample_id trailer of a record with time 0."""


def tasks_of(kernel: Kernel, pid: int) -> list[int]:
    """Thread ids of a process; empty where it has ended."""
    return [int(name) for name in kernel.names(f"/proc/{pid}/task")]


def process_records(
    kernel: Kernel, pid: int, trailer: Trailer, build_ids: dict[str, bytes], maps: bool
) -> Iterator[bytes]:
    """Fork and name of each thread of ``pid``, and (``maps``) what is mapped executable.

    ``build_ids`` remembers what was looked up, by path and process root.
    """
    status = kernel.text(f"/proc/{pid}/status") or ""
    parent = re.search(r"^PPid:\s*(\d+)", status, re.M)
    for tid in sorted(tasks_of(kernel, pid), key=lambda t: t != pid):
        name = kernel.text(f"/proc/{pid}/task/{tid}/comm")
        if name is None:
            continue  # it has ended meanwhile
        by = int(parent.group(1)) if tid == pid and parent else pid
        yield record("FORK", struct.pack("=iiiiQ", pid, by, tid, by, 0) + trailer(pid, tid))
        yield record("COMM", struct.pack("=ii", pid, tid) + _name(name) + trailer(pid, tid))
    if maps:
        for line in (kernel.text(f"/proc/{pid}/maps") or "").splitlines():
            mapping = _mapping(kernel, pid, line, build_ids)
            if mapping:
                misc, body = mapping
                yield record("MMAP2", body + trailer(pid, pid), misc)


_LINE = re.compile(r"(\w+)-(\w+) (....) (\w+) (\w+):(\w+) (\d+) *(.*)")


def _mapping(kernel: Kernel, pid: int, line: str, build_ids: dict[str, bytes]) -> tuple[int, bytes] | None:
    found = _LINE.fullmatch(line)
    if found is None or found[3][2] != "x":
        return None
    start, end, offset, major, minor = (int(found[i], 16) for i in (1, 2, 4, 5, 6))
    path = found[8] or "//anon"
    prot = sum(bit for letter, bit in _PROT.items() if letter in found[3])
    flags = _MAP_SHARED if found[3][3] == "s" else _MAP_PRIVATE
    build_id = _build_id(kernel, pid, path, build_ids)
    if build_id:
        identity, misc = struct.pack("=BBH20s", len(build_id), 0, 0, build_id), _USER | MISC.MMAP_BUILD_ID
    else:
        identity, misc = struct.pack("=IIQQ", major, minor, int(found[7]), 0), _USER
    head = struct.pack("=iiQQQ", pid, pid, start, end - start, offset)
    return misc, head + identity + struct.pack("=II", prot, flags) + _name(path)


def _build_id(kernel: Kernel, pid: int, path: str, known: dict[str, bytes]) -> bytes:
    """Of the file as the process sees it, which may have a root of its own."""
    if not path.startswith("/") or path.startswith("//") or path.endswith(" (deleted)"):
        return b""
    root = kernel.link(f"/proc/{pid}/root") or "/"
    key = f"{root}:{path}"
    if key not in known:
        known[key] = kernel.build_id(f"/proc/{pid}/root{path}")[:20]
    return known[key]


def kernel_records(kernel: Kernel, trailer: Trailer) -> Iterator[bytes]:
    """Where the kernel and its modules lie. Nothing where kptr_restrict hides their addresses."""
    symbols = kernel.text("/proc/kallsyms") or ""
    start, end = _symbol(symbols, "_text"), _symbol(symbols, "_etext")
    if not start or not end:
        return
    yield _kernel_map(start, end - start, start, "[kernel.kallsyms]_text", trailer)
    for line in (kernel.text("/proc/modules") or "").splitlines():
        name, size, _, _, _, at = line.split()[:6]
        if int(at, 16):
            yield _kernel_map(int(at, 16), int(size), 0, f"[{name}]", trailer)


def _symbol(symbols: str, name: str) -> int:
    found = re.search(rf" T {name}$", symbols, re.M)  # a literal begin is found twenty times as fast
    return int(symbols[symbols.rfind("\n", 0, found.start()) + 1 : found.start()], 16) if found else 0


def _kernel_map(start: int, size: int, offset: int, name: str, trailer: Trailer) -> bytes:
    return record("MMAP", struct.pack("=iiQQQ", -1, 0, start, size, offset) + _name(name) + trailer(-1, 0), _KERNEL)


def kernel_build_id(kernel: Kernel) -> bytes:
    """From the notes that the running kernel shows: u32 name size, description size, type; both padded to words."""
    notes, at = kernel.data("/sys/kernel/notes") or b"", 0
    while at + 12 <= len(notes):
        name, size, kind = struct.unpack_from("=III", notes, at)
        body = at + 12 + (name + 3 & ~3)
        if kind == _NT_GNU_BUILD_ID and notes[at + 12 : at + 16] == b"GNU\0":
            return notes[body : body + size]
        at = body + (size + 3 & ~3)
    return b""


def _name(name: str) -> bytes:
    """NUL-terminated, padded to words."""
    raw = name.encode("utf-8", "surrogateescape") + b"\0"
    return raw + bytes(-len(raw) % 8)
