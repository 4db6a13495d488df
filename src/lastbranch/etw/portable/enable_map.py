"""EnableFlags and group masks: which events of Linux each bit enables, or why it enables none.

`flags` declares bits and names. `sources.kinds` and `sources.tasks` translate each kind of event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..flags import GROUPS, EnableFlag

__all__ = ["ALIASES", "ROWS", "WORDS", "Row", "kinds_of", "rows_of", "normalised_masks", "find_unmapped"]

WORDS = 8
"""u32 words of PERFINFO_GROUPMASK."""


class Row(NamedTuple):
    """A bit, and the ``kinds`` of events that the bit enables. If it enables none, ``why`` is the reason, which is
    empty for a bit that enables none on Windows either."""

    word: int
    bits: int
    name: str
    kinds: tuple[str, ...] = ()
    linux: str = ""
    """Source of the events."""
    why: str = ""


_F = EnableFlag
_NO_COUNTERPART = "Linux has no equivalent"

_MAPPED: dict[EnableFlag | str, tuple[tuple[str, ...], str]] = {
    _F.PROCESS: (("process",), "PERF_RECORD_FORK, EXIT, COMM; /proc"),
    _F.THREAD: (("thread",), "PERF_RECORD_FORK, EXIT, COMM; /proc"),
    _F.IMAGE_LOAD: (("image",), "PERF_RECORD_MMAP2 of executable mappings; /proc"),
    _F.CSWITCH: (("switch",), "sched:sched_switch, or PERF_RECORD_SWITCH_CPU_WIDE"),
    _F.SYSTEMCALL: (("enter", "exit"), "raw_syscalls:sys_enter, raw_syscalls:sys_exit"),
    _F.DISPATCHER: (("ready",), "sched:sched_waking"),
    _F.MEMORY_PAGE_FAULTS: (("soft", "hard"), "minor-faults, major-faults"),
    _F.MEMORY_HARD_FAULTS: (("read",), "major-faults"),
    _F.PROFILE: (("timer",), "cpu-clock"),
    _F.PROCESS_COUNTERS: (("process counters",), "/proc"),
    _F.DISK_IO: (("disk",), "block:block_rq_issue, block:block_rq_complete"),
    _F.DISK_FILE_IO: (("file name",), "raw_syscalls:sys_enter, raw_syscalls:sys_exit; /proc"),
    _F.DISK_IO_INIT: (("disk init",), "block:block_rq_issue"),
    _F.SPLIT_IO: (("split",), "block:block_split"),
    _F.FILE_IO: (("file",), "raw_syscalls:sys_enter, raw_syscalls:sys_exit"),
    _F.FILE_IO_INIT: (("file init",), "raw_syscalls:sys_enter, raw_syscalls:sys_exit; /proc"),
    _F.NETWORK_TCPIP: (("tcp",), "sock:sock_send_length, sock:sock_recv_length, sock:inet_sock_set_state"),
    _F.VIRTUAL_ALLOC: (("memory",), "raw_syscalls:sys_enter, raw_syscalls:sys_exit"),
    _F.VAMAP: (("mapping",), "raw_syscalls:sys_enter, raw_syscalls:sys_exit; /proc"),
    _F.DPC: (("dpc",), "irq:softirq_entry, irq:softirq_exit"),
    _F.INTERRUPT: (("isr",), "irq:irq_handler_entry, irq:irq_handler_exit"),
    "PMC_PROFILE": (("pmc",), "events of the processor's counters"),
}

_TWINS: dict[EnableFlag, str] = {
    _F.CSWITCH: "CONTEXT_SWITCH", _F.DPC: "DPC", _F.INTERRUPT: "INTERRUPT", _F.DISPATCHER: "DISPATCHER",
    _F.DRIVER: "DRIVERS", _F.VIRTUAL_ALLOC: "VIRTUAL_ALLOC", _F.PROFILE: "PROFILE", _F.SYSTEMCALL: "SYSCALL",
}  # fmt: skip
ALIASES: dict[int, tuple[int, int]] = {int(f): (GROUPS[g].word, GROUPS[g].bits) for f, g in _TWINS.items()}
"""Bits of word 0 that the kernel replaces by a bit of another word: bit -> (word, bit)."""

_REASONS: dict[EnableFlag | str, str] = {
    _F.REGISTRY: "Linux has no registry",
    _F.FORWARD_WMI: "Linux has no WMI to forward to",
    _F.EXTENSION: "EnableFlags as the offset of an extension is not supported",
    "COMPACT_CSWITCH": "context switches are written one by one: CONTEXT_SWITCH",
}
_SILENT = _F.NO_SYSCONFIG | _F.ENABLE_RESERVE
"""Bits that change how a session runs and enable no events."""


def _rows() -> Iterator[Row]:
    for flag in EnableFlag:
        mapped, reason = _MAPPED.get(flag), _REASONS.get(flag, _NO_COUNTERPART)
        yield Row(0, int(flag), str(flag.name), *(mapped or ((), "")), why="" if mapped or flag & _SILENT else reason)
    twin = {group: flag for flag, group in _TWINS.items()}
    for name, group in GROUPS.items():
        same: EnableFlag | str = twin.get(name, name)
        mapped, reason = _MAPPED.get(same), _REASONS.get(same, _NO_COUNTERPART)
        yield Row(group.word, group.bits, name, *(mapped or ((), "")), why="" if mapped else reason)


ROWS: tuple[Row, ...] = tuple(_rows())


def normalised_masks(masks: Sequence[int]) -> list[int]:
    """The eight words as a session stores them: padded with 0, aliases replaced by the bits of their own words."""
    words = [*masks, *[0] * WORDS][:WORDS]
    for bit, (word, twin) in ALIASES.items():
        if words[0] & bit:
            words[0] &= ~bit
            words[word] |= twin
    return words


def rows_of(masks: Sequence[int]) -> list[Row]:
    """The rows of the bits that are set. A bit without a row gets one that names its number."""
    found = [row for row in ROWS if row.word < len(masks) and masks[row.word] & row.bits]
    for word, bits in enumerate(masks):
        left = bits & ~sum(row.bits for row in ROWS if row.word == word)
        found += [
            Row(word, 1 << n, f"bit {1 << n:#x} of mask {word}", why=_NO_COUNTERPART)
            for n in range(32)
            if left >> n & 1
        ]
    return found


def kinds_of(masks: Sequence[int]) -> frozenset[str]:
    """The kinds of events that are enabled."""
    return frozenset(kind for row in rows_of(masks) for kind in row.kinds)


def find_unmapped(masks: Sequence[int]) -> list[Row]:
    """The rows of bits that enable no events of Linux, each with its reason."""
    return [row for row in rows_of(masks) if row.why]
