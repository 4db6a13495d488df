"""The guide's sections from the tables of a profile, for readers that know nothing of lastbranch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...lbr import call_stack_mode, describe_perf
from ...model import Array, Clock, Event, Load, Machine, Module, ModuleKind, Process, Profile, Thread
from . import constants as k
from .columns import Piece
from .encoding import Processor
from .layout import Scope, Table
from .records import empty_records
from .writing import Tb5Writer

__all__ = ["branches_text", "processor_of", "time_subtype", "write_descriptor", "write_events",
           "write_modules", "write_stream_info", "write_tasks"]  # fmt: skip

_FILETIME_EPOCH = 11_644_473_600 * 10_000_000
_MASK32, _MASK64 = (1 << 32) - 1, (1 << 64) - 1


def processor_of(machine: Machine) -> Processor:
    windows = machine.os.startswith("Windows")
    x86 = machine.arch in ("x86_64", "i386", "i686") or (windows and not machine.arch)
    return Processor(x86, machine.bits, windows)


# -- global sections


def write_modules(writer: Tb5Writer, modules: Sequence[Module], loads: Iterable[Load], processor: Processor) -> None:
    """The module section: one record for each time that a module was mapped."""
    loads = sorted(loads, key=lambda m: (m.first or 0, m.pid, m.start))
    rows = empty_records("TBRW_MODULE", len(loads))
    if not loads:
        writer.put(Table(Scope.GLOBAL, 0, k.Section.MODULE), rows)
        return
    pid, module = (np.array([m[i] for m in loads], np.int64) for i in range(2))
    start, end = (np.array([m[i] for m in loads], np.uint64) for i in (2, 3))
    first = np.array([(m.first or 0) & _MASK64 for m in loads], np.uint64)
    last = np.array([k.NEVER if m.last is None else m.last & _MASK64 for m in loads], np.uint64)
    kernel = pid == -1
    exe = _executables(modules, loads)
    flag = k.ModuleFlag
    flags = np.full(len(loads), flag.TSC_USED | flag.LOADED)
    flags |= np.where(kernel, flag.GLOBAL_LOAD, 0) | np.where(exe, flag.IS_EXE | flag.FIRST_MODULE_REC_IN_PROCESS, 0)
    rows["module_associated_pid"] = np.where(kernel, 0, pid).astype(np.uint32)
    rows["module_flags"], rows["module_event_when"], rows["module_unload_tsc"] = flags, first, last
    rows["module_segment_type_word"] = processor.code_mode
    rows["module_code_selector"] = np.where(processor.is_kernel(start), *processor.selectors)
    rows["module_load_address"], rows["module_length"] = start, end - start
    paths = np.array([writer.string(m.name) for m in modules], np.uint64)
    names = np.array([writer.string(m.short) for m in modules], np.uint64)
    rows["module_path"], rows["module_name"] = paths[module], names[module]
    writer.put(Table(Scope.GLOBAL, 0, k.Section.MODULE), rows)


def _executables(modules: Sequence[Module], loads: Sequence[Load]) -> Array:
    """The first binary of each process is taken for its program."""
    seen: set[int] = set()
    out = np.zeros(len(loads), bool)
    for i, load in enumerate(loads):
        if load.pid >= 0 and load.pid not in seen and modules[load.module].kind is ModuleKind.FILE:
            seen.add(load.pid)
            out[i] = True
    return out


def write_tasks(writer: Tb5Writer, processes: Sequence[Process], threads: Sequence[Thread]) -> None:
    """The process/thread section."""
    pids, tids = empty_records("TBRW_PID", len(processes)), empty_records("TBRW_TID", len(threads))
    flags = k.TaskFlag.CREATED | k.TaskFlag.TSC_USED
    for row, p in zip(pids, processes, strict=True):
        row["pid_id"], row["pid_flags"], row["pid_event_when"] = p.pid & _MASK32, flags, (p.start or 0) & _MASK64
        row["pid_name"] = _text(writer, p.name)
    for row, t in zip(tids, threads, strict=True):
        row["tid_associated_pid"], row["tid_id"] = processes[t.process].pid & _MASK32, t.tid & _MASK32
        row["tid_flags"], row["tid_event_when"] = flags, (t.start or 0) & _MASK64
        row["tid_name"] = _text(writer, t.name)
    for part, rows in enumerate((pids, tids)):
        writer.put(Table(Scope.GLOBAL, 0, k.Section.PROCESS_THREAD, part), rows)


def _text(writer: Tb5Writer, text: str) -> int:
    return writer.string(text or None)


# -- stream sections


def write_events(writer: Tb5Writer, stream: int, events: Sequence[Event]) -> None:
    """The event description: a detail for each word of programming, and one for the branches that were asked for."""
    rows = empty_records("TBRW_EVENT", len(events))
    details: list[tuple[int, int, int]] = []
    for i, (row, e) in enumerate(zip(rows, events, strict=True)):
        mine = [(n, v & _MASK64) for n, v in enumerate(e.programming.values())]
        if e.branch_select is not None:
            mine.append((1 << 32, e.branch_select & _MASK64))
        row["event_id"], row["event_num_details"], row["event_detail_array"] = i, len(mine), len(details)
        row["event_flags"] = k.EventFlag.TBS if e.frequency else k.EventFlag.EBS
        row["event_sav"] = (e.frequency or e.period) & _MASK64
        row["event_name"] = _text(writer, e.name)
        details += [(i, n, v) for n, v in mine]
    out = empty_records("TBRW_EVENT_DETAIL", len(details))
    for row, (_, number, value) in zip(out, details, strict=True):
        row["detail_access_size"], row["detail_method"], row["detail_access"] = 64, k.AccessMethod.OTHER, 1
        row["detail_address"], row["detail_value"] = number, value
    writer.put(Table(Scope.STREAM, stream, k.StreamSection.EVENT_DESCRIPTION), rows)
    writer.put(Table(Scope.STREAM, stream, k.StreamSection.EVENT_DESCRIPTION, 1), out)


def branches_text(events: Sequence[Event]) -> str:
    """Which branches the stacks hold, in words: filter and mode of each event that has them."""
    words = []
    for e in events:
        if e.branch_select is None:
            continue
        mode = "call-stack mode" if call_stack_mode(e.branch_select_kind, e.branch_select) else "newest branches"
        which = describe_perf(e.branch_select) if e.branch_select_kind == "perf" else f"{e.branch_select:#x}"
        words.append(f"{e.branch_select_kind} filter {which}, {mode}")
    return "; ".join(dict.fromkeys(words)) or "filter not known"


def time_subtype(clock: Clock) -> int:
    """SST_ of the time stamps."""
    if not clock.has_time:
        return k.DescSubtype.TS_SAMPLE_COUNT
    if clock.name == "TSC":
        return k.DescSubtype.TSC
    return k.DescSubtype.TS_NANOSECONDS if clock.frequency == 1_000_000_000 else k.DescSubtype.TS_OTHER


def write_descriptor(writer: Tb5Writer, stream: int, pieces: Sequence[Piece]) -> None:
    rows = empty_records("TBRW_SAMPREC_DESC_ENTRY", len(pieces))
    for row, p in zip(rows, pieces, strict=True):
        row["desc_offset"], row["desc_type"], row["desc_subtype"] = p.offset, p.type, p.subtype
        row["desc_data_size"], row["desc_name"] = p.size, writer.string(p.name)
    writer.put(Table(Scope.STREAM, stream, k.StreamSection.DATA_DESCRIPTION), rows)


def write_stream_info(
    writer: Tb5Writer,
    stream: int,
    kind: k.StreamType,
    comment: str,
    profile: Profile,
    span: tuple[int | None, int | None],
) -> None:
    """The stream information: its type, when it was (``span``, clock ticks), and what it is."""
    first, last = span
    row = empty_records("TBRW_STREAM_INFO", 1)
    row["stream_type"], row["comment"] = kind, writer.string(comment)
    row["command_line"] = _text(writer, profile.header.get("command line", ""))
    if first is not None and last is not None:
        row["sampling_duration"] = min(profile.clock.to_ns(last - first) // 1_000_000, _MASK32)
        for name, ticks in (("start", first), ("end", last)):
            wall = profile.clock.wall_ns(ticks)
            filetime = 0 if wall is None else (wall // 100 + _FILETIME_EPOCH) & _MASK64
            row[f"sampling_{name}_time_low"] = filetime & _MASK32
            row[f"sampling_{name}_time_high"] = filetime >> 32
    writer.put(Table(Scope.STREAM, stream, k.StreamSection.STREAM_INFO), row)
