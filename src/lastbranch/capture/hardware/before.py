"""What ran before recording began: its tasks and mappings, told in the records that the kernel writes of later ones.

Layouts: include/uapi/linux/perf_event.h; proc(5) for what is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...formats.perfdata.writer import SideRecords
from ..kernel import Kernel
from ..procfs import fields, mappings

__all__ = ["kernel_records", "process_records", "tasks_of"]


def tasks_of(kernel: Kernel, pid: int) -> list[int]:
    """Thread ids of a process; empty where it has ended."""
    return [int(name) for name in kernel.names(f"/proc/{pid}/task")]


def process_records(
    kernel: Kernel, pid: int, records: SideRecords, build_ids: dict[str, bytes], maps: bool
) -> Iterator[bytes]:
    """Fork and name of each thread of ``pid``, and (``maps``) what is mapped executable.

    ``build_ids`` remembers what was looked up, by path and process root.
    """
    parent = fields(kernel.text(f"/proc/{pid}/status") or "").get("PPid", "")
    for tid in sorted(tasks_of(kernel, pid), key=lambda t: t != pid):
        name = kernel.text(f"/proc/{pid}/task/{tid}/comm")
        if name is None:
            continue  # it has ended meanwhile
        by = int(parent) if tid == pid and parent.isdecimal() else pid
        yield records.fork(pid, by, tid, by)
        yield records.comm(pid, tid, name)
    for m in mappings(kernel.text(f"/proc/{pid}/maps") or "") if maps else ():
        yield records.mmap2(
            pid, m.start, m.end, m.offset, m.name, prot=m.prot, flags=m.flags,
            build_id=_build_id(kernel, pid, m.name, build_ids), inode=(m.major, m.minor, m.inode),
        )  # fmt: skip


def _build_id(kernel: Kernel, pid: int, path: str, known: dict[str, bytes]) -> bytes:
    """Of the file as the process sees it, which may have a root of its own."""
    if not path.startswith("/") or path.startswith("//") or path.endswith(" (deleted)"):
        return b""
    root = kernel.link(f"/proc/{pid}/root") or "/"
    key = f"{root}:{path}"
    if key not in known:
        known[key] = kernel.build_id(f"/proc/{pid}/root{path}")
    return known[key]


def kernel_records(kernel: Kernel, records: SideRecords) -> Iterator[bytes]:
    """Where the kernel and its modules lie. Nothing where kptr_restrict hides their addresses."""
    symbols = kernel.text("/proc/kallsyms") or ""
    start, end = _symbol(symbols, "_text"), _symbol(symbols, "_etext")
    if not start or not end:
        return
    yield records.kernel_mmap(start, end - start, start, "[kernel.kallsyms]_text")
    for line in (kernel.text("/proc/modules") or "").splitlines():
        name, size, _, _, _, at = line.split()[:6]
        if int(at, 16):
            yield records.kernel_mmap(int(at, 16), int(size), 0, f"[{name}]")


def _symbol(symbols: str, name: str) -> int:
    found = re.search(rf" T {name}$", symbols, re.M)  # a literal begin is found twenty times as fast
    return int(symbols[symbols.rfind("\n", 0, found.start()) + 1 : found.start()], 16) if found else 0
