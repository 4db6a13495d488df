"""Profiles into TB5 files: streams of samples as they arrive, the tables at the end."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct
from ...closing import on_failure
from ...lbr import call_stack_mode, describe_perf
from ...model import (
    BRANCH,
    KERNEL_HALF,
    KERNEL_HALF_32,
    Array,
    Clock,
    Cpu,
    Event,
    Load,
    Machine,
    Mode,
    Module,
    ModuleKind,
    Process,
    Profile,
    Progress,
    SampleBatch,
    Thread,
)
from ..interface import Conversion
from .descriptors import Piece, RecordLayout, group_dtype, group_pieces
from .layout import (
    BATCH_TIMES,
    HEADS,
    IA64PC,
    MODEL,
    NEVER,
    PID_IS_RAW,
    SAMPLE_FILE_VERSION,
    TID_IS_RAW,
    UNKNOWN_DRIVER,
    AccessMethod,
    ArchType,
    CpuArchitecture,
    CpuMode,
    DescSubtype,
    EventFlag,
    ModuleFlag,
    OsFamily,
    Scope,
    Section,
    StreamSection,
    StreamType,
    Table,
    TaskFlag,
    empty_records,
)
from .model_section import write_model
from .writer import TableWriter, Tb5Writer

__all__ = ["ProfileWriter", "write_machine", "write_profile"]


# -- Batches to records of a sample stream, as they come


_LOW = np.uint64(0xFFFFFFFF)
_WORTH_HEADS = 4
"""Heads of records are kept apart as well where a record is so many times as large."""
_RPL = (3, 0, 3, 0, 0, 3)  # privilege level by Mode; a guest's is its own


class Processor:
    """The processor's part of the sample records: selectors of code and the form of addresses.

    ``x86`` puts the selectors of Linux and Windows into records (0x10 and 0x33, 32-bit 0x08 and 0x1B on Windows, 0x60
    and 0x73 on Linux), by the half of the address space; on other machines they are 0, which matches any module.
    """

    def __init__(self, x86: bool, bits: int, windows: bool) -> None:
        self.bits = bits
        table = {64: (0x10, 0x33), 32: (0x08, 0x1B) if windows else (0x60, 0x73)}
        self.selectors = table[32 if bits == 32 else 64] if x86 else (0, 0)
        self.code_mode = (CpuMode.BITS32 if bits == 32 else CpuMode.BITS64) if x86 else CpuMode.V86

    def is_kernel(self, ip: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether an address is in the kernel's half."""
        return np.asarray(ip >= np.uint64(KERNEL_HALF if self.bits == 64 else KERNEL_HALF_32))


class SampleWriter:
    """One stream of samples, written batch after batch, with a custom stream for each ragged column group.

    ``samples``, ``entries``, ``deepest``, ``first_time``, ``last_time``, ``events`` and ``threads`` describe the
    samples so far.
    """

    def __init__(self, writer: Tb5Writer, columns: Collection[str], depth: int, processor: Processor) -> None:
        self.layout, self._processor = RecordLayout(columns, depth), processor
        self.number = writer.next_stream
        self._data = writer.table(Table(Scope.STREAM, self.number, StreamSection.DATA), self.layout.dtype.itemsize)
        self._heads: TableWriter | None = None
        if self.layout.head * _WORTH_HEADS <= self.layout.dtype.itemsize:
            self._heads = writer.table(Table(Scope.STORE, self.number, HEADS), self.layout.head)
        self.groups: dict[str, tuple[int, TableWriter]] = {}
        for group in self.layout.groups:
            number = writer.next_stream
            table = writer.table(
                Table(Scope.STREAM, number, StreamSection.DATA), group_dtype(group, self.layout.columns).itemsize
            )
            self.groups[group] = number, table
        self._times = writer.table(Table(Scope.STORE, self.number, MODEL, 5), BATCH_TIMES.itemsize)
        self.samples = self.entries = self.deepest = 0
        self.first_time: int | None = None
        self.last_time: int | None = None
        self.events: set[int] = set()
        self._threads: list[NDArray[np.int64]] = []

    def write(self, batch: SampleBatch) -> None:
        """Add samples. `ValueError` for a branch stack that is deeper than the stream's records."""
        n = len(batch)
        if not n:
            return
        records = np.zeros(n, self.layout.dtype)
        self._sample_record(records, batch)
        for name in self.layout.alone:
            if name in batch:
                records[name] = batch[name]
        if self.layout.branches:
            self._branches(records, batch)
        for group in self.layout.groups:
            self._group(records, batch, group)
        records["time"] = batch.time
        self._data.write(records)
        if self._heads is not None:
            self._heads.write(records.view(np.uint8).reshape(n, -1)[:, : self.layout.head])
        self._count(batch)

    def _sample_record(self, records: Array, batch: SampleBatch) -> None:
        processor, ip, mode = self._processor, batch.ip, np.minimum(batch.mode, Mode.GUEST_USER)
        kernel = processor.is_kernel(ip)
        narrow = (ip <= _LOW) & (processor.bits == 32)
        level = np.array(_RPL, np.uint64)[mode]
        records["iip"] = ip  # the 32-bit form has eip and no eflags in the same place
        records["ipsr"] = np.where(narrow, _descriptor(level), level << np.uint64(32))
        records["cs"] = np.where(kernel, *processor.selectors)
        cpu = np.where((batch.cpu >= 0) & (batch.cpu < 1 << 12), batch.cpu, 0).astype(np.uint16)
        records["cpuAndOS"] = cpu | np.uint16(processor.code_mode << 13)
        records["tid"], records["pidRecIndex"] = batch.tid.view(np.uint32), batch.pid.view(np.uint32)
        event = np.where(batch.event < 1 << 8, batch.event, 0).astype(np.uint32) << np.uint32(20)
        records["bitFields2"] = event | TID_IS_RAW | PID_IS_RAW | np.where(narrow, np.uint32(0), IA64PC)

    def _branches(self, records: Array, batch: SampleBatch) -> None:
        depth = batch.depth
        if len(depth) and int(depth.max()) > self.layout.depth:
            raise ValueError(f"a branch stack of {int(depth.max())} entries; records have room for {self.layout.depth}")
        records["branch count"] = depth
        if not self.layout.depth or BRANCH not in batch.offsets:
            return
        full = bool((depth == self.layout.depth).all())
        filled = None if full else np.arange(self.layout.depth) < depth[:, None]
        names = records.dtype.names or ()
        for name in self.layout.branches:
            if name not in batch:
                continue
            if name in ("branch_from", "branch_to"):
                if "branch" not in names:
                    continue
                place = records["branch"][:, :, int(name == "branch_to")]
            else:
                place = records[name]
            if filled is None:
                place[...] = batch[name].reshape(len(batch), -1)
            else:
                place[filled] = batch[name]

    def _group(self, records: Array, batch: SampleBatch, group: str) -> None:
        table = self.groups[group][1]
        offsets = batch.offsets.get(group)
        if offsets is None:
            return
        records[f"{group} first"] = table.count + offsets[:-1]
        records[f"{group} count"] = np.diff(offsets)
        rows = np.zeros(int(offsets[-1]), group_dtype(group, self.layout.columns))
        for name in rows.dtype.names or ():
            if name in batch:
                rows[name] = batch[name]
        table.write(rows)

    def _count(self, batch: SampleBatch) -> None:
        first, last = int(batch.time.min()), int(batch.time.max())
        self._times.write(np.array([(self.samples, first)], BATCH_TIMES))
        self.samples += len(batch)
        self.entries += batch.entries
        self.deepest = max(self.deepest, int(batch.depth.max(initial=0)))
        self.first_time = first if self.first_time is None else min(first, self.first_time)
        self.last_time = last if self.last_time is None else max(last, self.last_time)
        self.events.update(distinct(batch.event).tolist())
        pair = (batch.pid.astype(np.int64) << 32) | batch.tid.view(np.uint32).astype(np.int64)
        self._threads.append(distinct(pair))
        if len(self._threads) > 256:
            self._threads = [distinct(np.concatenate(self._threads))]

    @property
    def threads(self) -> NDArray[np.int32]:
        """int32 (pairs, 2): pid and tid of every sample, each pair once."""
        pairs = distinct(np.concatenate([np.empty(0, np.int64), *self._threads]))
        return np.stack([pairs >> 32, pairs & 0xFFFFFFFF], axis=1).astype(np.uint32).view(np.int32)

    def done(self) -> None:
        """Complete the stream's data; its descriptor and information are the profile writer's."""
        self._data.done()
        if self._heads is not None:
            self._heads.done()
        for _, table in self.groups.values():
            table.done()
        self._times.done()


def _descriptor(level: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Code segment descriptor of a flat 32-bit segment (the guide's example: 0xFFFF, 0xCF9B00) of a privilege level."""
    return np.uint64(0x00CF9B00 << 32 | 0xFFFF) | level << np.uint64(32 + 13)


# The guide's sections come first, for readers that know nothing of lastbranch.

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
        writer.put(Table(Scope.GLOBAL, 0, Section.MODULE), rows)
        return
    pid, module = (np.array([m[i] for m in loads], np.int64) for i in range(2))
    start, end = (np.array([m[i] for m in loads], np.uint64) for i in (2, 3))
    first = np.array([(m.first or 0) & _MASK64 for m in loads], np.uint64)
    last = np.array([NEVER if m.last is None else m.last & _MASK64 for m in loads], np.uint64)
    kernel = pid == -1
    exe = _executables(modules, loads)
    flag = ModuleFlag
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
    writer.put(Table(Scope.GLOBAL, 0, Section.MODULE), rows)


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
    flags = TaskFlag.CREATED | TaskFlag.TSC_USED
    for row, p in zip(pids, processes, strict=True):
        row["pid_id"], row["pid_flags"], row["pid_event_when"] = p.pid & _MASK32, flags, (p.start or 0) & _MASK64
        row["pid_name"] = _text(writer, p.name)
    for row, t in zip(tids, threads, strict=True):
        row["tid_associated_pid"], row["tid_id"] = processes[t.process].pid & _MASK32, t.tid & _MASK32
        row["tid_flags"], row["tid_event_when"] = flags, (t.start or 0) & _MASK64
        row["tid_name"] = _text(writer, t.name)
    for part, rows in enumerate((pids, tids)):
        writer.put(Table(Scope.GLOBAL, 0, Section.PROCESS_THREAD, part), rows)


def _text(writer: Tb5Writer, text: str) -> int:
    return writer.string(text or None)


# -- stream sections


def write_events(writer: Tb5Writer, stream: int, events: Sequence[Event]) -> None:
    """The event description: a detail for each word of programming, and one for the requested branches."""
    rows = empty_records("TBRW_EVENT", len(events))
    details: list[tuple[int, int, int]] = []
    for i, (row, e) in enumerate(zip(rows, events, strict=True)):
        mine = [(n, v & _MASK64) for n, v in enumerate(e.programming.values())]
        if e.branch_select is not None:
            mine.append((1 << 32, e.branch_select & _MASK64))
        row["event_id"], row["event_num_details"], row["event_detail_array"] = i, len(mine), len(details)
        row["event_flags"] = EventFlag.TBS if e.frequency else EventFlag.EBS
        row["event_sav"] = (e.frequency or e.period) & _MASK64
        row["event_name"] = _text(writer, e.name)
        details += [(i, n, v) for n, v in mine]
    out = empty_records("TBRW_EVENT_DETAIL", len(details))
    for row, (_, number, value) in zip(out, details, strict=True):
        row["detail_access_size"], row["detail_method"], row["detail_access"] = 64, AccessMethod.OTHER, 1
        row["detail_address"], row["detail_value"] = number, value
    writer.put(Table(Scope.STREAM, stream, StreamSection.EVENT_DESCRIPTION), rows)
    writer.put(Table(Scope.STREAM, stream, StreamSection.EVENT_DESCRIPTION, 1), out)


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
        return DescSubtype.TS_SAMPLE_COUNT
    if clock.name == "TSC":
        return DescSubtype.TSC
    return DescSubtype.TS_NANOSECONDS if clock.frequency == 1_000_000_000 else DescSubtype.TS_OTHER


def write_descriptor(writer: Tb5Writer, stream: int, pieces: Sequence[Piece]) -> None:
    rows = empty_records("TBRW_SAMPREC_DESC_ENTRY", len(pieces))
    for row, p in zip(rows, pieces, strict=True):
        row["desc_offset"], row["desc_type"], row["desc_subtype"] = p.offset, p.type, p.subtype
        row["desc_data_size"], row["desc_name"] = p.size, writer.string(p.name)
    writer.put(Table(Scope.STREAM, stream, StreamSection.DATA_DESCRIPTION), rows)


def write_stream_info(
    writer: Tb5Writer,
    stream: int,
    kind: StreamType,
    comment: str,
    profile: Profile,
    span: tuple[int | None, int | None],
) -> None:
    """The stream information: its type, its time (``span``, clock ticks), and its content."""
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
    writer.put(Table(Scope.STREAM, stream, StreamSection.STREAM_INFO), row)


# -- hardware, software and version information

_UNKNOWN32 = 0xFFFFFFFF
_UNKNOWN16 = 0xFFFF
_MOST_CPUS = 4096


def write_machine(writer: Tb5Writer, machine: Machine) -> None:
    """Hardware, software and version information."""
    _write_hardware(writer, machine)
    numbers = [int(n) for n in re.findall(r"\d+", machine.os_release)[:4]] + [0] * 4
    windows = machine.os.startswith("Windows")
    families = OsFamily
    family = {
        ("Linux", 32): families.LINUX32,
        ("Linux", 64): families.LINUX64,
        ("Windows", 32): families.WIN32,
        ("Windows", 64): families.WIN64,
    }.get((machine.os, machine.bits), families.OTHER)
    host, os_, app = empty_records("TBRW_HOST", 1), empty_records("TBRW_OS", 1), empty_records("TBRW_APPLICATION", 1)
    host["host_name"] = writer.string(machine.host or "unknown")  # a host has a name (NOT_EMPTY)
    os_["os_platform"] = family
    for name, value in zip(("os_major", "os_minor", "os_build"), numbers, strict=False):
        os_[name] = value & _MASK32
    os_["os_name"], os_["os_name_extra"] = (writer.string(text or None) for text in (machine.os, machine.os_release))
    app["app_page_size"] = machine.page_size & _MASK32
    app["app_alloc_granularity"] = 65536 if windows else machine.page_size & _MASK32
    app["app_max_app_addr"] = {32: _MASK32}.get(machine.bits, (1 << 47) - 1)
    for part, rows in enumerate((host, os_, app)):
        writer.put(Table(Scope.GLOBAL, 0, Section.SOFTWARE, part), rows)
    version = empty_records("TBRW_VERSION_INFO", 1)
    version["sampling_driver_version"], version["sample_file_version"] = UNKNOWN_DRIVER, SAMPLE_FILE_VERSION
    writer.put(Table(Scope.GLOBAL, 0, Section.VERSION_INFO), version)


def _write_hardware(writer: Tb5Writer, machine: Machine) -> None:
    """Nodes, the processors of each, and one architecture a processor, with its signature where that is known."""
    cpus = machine.cpus or [Cpu(i) for i in range(min(machine.cpus_available or machine.cpus_online, _MOST_CPUS))]
    nodes = [(n.index, n.memory, set(n.cpus)) for n in machine.nodes] or [(0, machine.memory, {c.index for c in cpus})]
    anywhere = set().union(*(inside for _, _, inside in nodes))
    stray = [c for c in cpus if c.index not in anywhere]
    nodes[0][2].update(c.index for c in stray)
    system, node_rows = empty_records("TBRW_SYSTEM", 1), empty_records("TBRW_NODE", len(nodes))
    system["system_num_nodes"] = len(nodes)
    by_index: dict[int, list[Cpu]] = {}
    for cpu in cpus:
        by_index.setdefault(cpu.index, []).append(cpu)
    placed = [[c for index in sorted(inside) for c in by_index.get(index, ())] for _, _, inside in nodes]
    ordered = [c for inside in placed for c in inside]
    cpu_rows, arch_rows = empty_records("TBRW_CPU", len(ordered)), empty_records("TBRW_CPU_ARCH", len(ordered))
    first = 0
    for row, (index, memory, _), inside in zip(node_rows, nodes, placed, strict=True):
        row["node_id"], row["node_physical_memory"], row["cpu_array"] = index & _MASK32, memory & _MASK64, first
        row["node_num_available"], row["node_num_used"] = len(inside), sum(c.online for c in inside)
        first += len(inside)
    siblings = Counter((c.core, c.package) for c in ordered)
    x86 = {"x86_64": ArchType.EM64T, "i386": ArchType.X86, "i686": ArchType.X86}
    for i, (row, cpu) in enumerate(zip(cpu_rows, ordered, strict=True)):
        row["cpu_number"] = cpu.index & _MASK32
        row["cpu_native_arch_type"] = CpuArchitecture.IA32 if machine.arch in x86 else CpuArchitecture.UNKNOWN
        for name in ("cpu_intel_processor_number", "cpu_speed_mhz", "cpu_fsb_mhz", "cpu_cache_L2", "cpu_cache_L3"):
            row[name] = _UNKNOWN32
        row["cpu_package_num"] = cpu.package & _UNKNOWN16
        row["cpu_core_num"], row["cpu_hardware_thread_num"] = cpu.core & _UNKNOWN16, _UNKNOWN16
        row["cpu_threads_per_core"] = siblings[cpu.core, cpu.package] & _UNKNOWN16
        row["num_cpu_arch_array"], row["cpu_arch_array"] = 1, i
    arch_rows["arch_type"] = x86.get(machine.arch, ArchType.UNKNOWN)
    signature = cpuid_signature(machine.cpuid)
    leaves = empty_records("TBRW_CPUID_IA32", 0 if signature is None else len(ordered))
    if signature is not None:
        leaves["cpuid_eax_input"], leaves["cpuid_eax"] = 1, signature
        arch_rows["arch_num_cpuid"], arch_rows["cpuid_array"] = 1, np.arange(len(ordered))
    for part, rows in enumerate((system, node_rows, cpu_rows, arch_rows, leaves)):
        writer.put(Table(Scope.GLOBAL, 0, Section.HARDWARE, part), rows)


def cpuid_signature(cpuid: str) -> int | None:
    """eax of cpuid leaf 1 from ``vendor,family,model,stepping`` (perf's CPUID feature on x86), ``None`` for another
    text and for numbers that no signature gives.

    The inverse of Intel's SDM, volume 2A, CPUID, figure 3-6, as Linux reads it: the extended family counts from family
    15 on, the extended model from family 6 on.
    """
    matched = re.fullmatch(r"[^,]+,(\d{1,3}),(\d{1,3}),(\d{1,2})", cpuid)
    if matched is None:
        return None
    family, model, stepping = map(int, matched.groups())
    base = min(family, 15)
    if family > 15 + 0xFF or model > (0xFF if base >= 6 else 0xF) or stepping > 0xF:
        return None
    return (family - base) << 20 | (model >> 4) << 16 | base << 8 | (model & 0xF) << 4 | stepping


class ProfileWriter:
    """Writes a TB5 file from batches as they come. The file appears as ``path`` when it is finished."""

    def __init__(self, path: str | os.PathLike[str], machine: Machine | None = None) -> None:
        """``machine`` is the machine of the samples, by default this machine."""
        self.writer = Tb5Writer.create(path)
        self._processor: Processor = processor_of(machine or Machine(arch=platform.machine()))
        self._streams: list[SampleWriter] = []

    def stream(self, columns: Collection[str], *, depth: int = 32) -> SampleWriter:
        """Start a stream of samples that have ``columns`` (the model's names) and at most ``depth`` branch entries.

        Its ``write`` raises `ValueError` for a deeper stack.
        """
        made = SampleWriter(self.writer, columns, depth, self._processor)
        self._streams.append(made)
        return made

    def finish(self, profile: Profile) -> None:
        """Complete the file with the tables of ``profile``; its streams are not read."""
        writer, binder = self.writer, profile.binder
        for stream in self._streams:
            stream.done()
            self._describe(stream, profile)
        write_machine(writer, profile.machine)
        write_modules(writer, profile.modules, binder.loads(), self._processor)
        write_tasks(writer, binder.processes, binder.threads)
        if profile.streams:  # it was read from somewhere, and knows
            pairs = [np.array(sorted(profile.seen_threads), np.int32).reshape(-1, 2)]
        else:
            pairs = [s.threads for s in self._streams]
            for one in self._streams:
                if one.first_time is not None and one.last_time is not None:
                    profile.extend_time_range(one.first_time, one.last_time)
        facts = [_facts(s) for s in self._streams]
        write_model(writer, profile, facts, np.concatenate([np.empty((0, 2), np.int32), *pairs]))
        writer.close()

    def abort(self) -> None:
        """Give up: an older file of the name stays untouched."""
        self.writer.abort()

    def _describe(self, stream: SampleWriter, profile: Profile) -> None:
        writer, number = self.writer, stream.number
        which = branches_text([e for i, e in enumerate(profile.events) if i in stream.events])
        write_descriptor(writer, number, stream.layout.descriptor(number, time_subtype(profile.clock), which))
        write_events(writer, number, profile.events)
        span = stream.first_time, stream.last_time
        write_stream_info(writer, number, StreamType.SAMPLING, f"samples of {profile.name}", profile, span)
        for group, (custom, _) in stream.groups.items():
            write_descriptor(writer, custom, group_pieces(group_dtype(group, stream.layout.columns)))
            write_stream_info(writer, custom, StreamType.CUSTOM, f"{group} of stream {number}", profile, span)


def write_profile(profile: Profile, path: str | os.PathLike[str], *, progress: Progress | None = None) -> Conversion:
    """Write all of ``profile`` as a TB5 file, which appears at ``path`` when it is complete.

    ``progress`` is called with (samples written, samples in all).
    """
    file, written = ProfileWriter(path, profile.machine), 0
    with on_failure(file.abort):
        for stream in profile.streams:
            out = file.stream(stream.columns, depth=stream.deepest)
            for batch in stream.batches():
                out.write(batch)
                written += len(batch)
                if progress:
                    progress(written, profile.samples)
        file.finish(profile)
    return Conversion(f"{profile.samples} samples, {profile.entries} branch entries written")


def _facts(stream: SampleWriter) -> dict[str, object]:
    """The facts that `profile_reader` finds without reading the stream."""
    return {
        "number": stream.number,
        "columns": list(stream.layout.columns),
        "events": sorted(stream.events),
        "samples": stream.samples,
        "entries": stream.entries,
        "deepest": stream.deepest,
        "groups": {group: number for group, (number, _) in stream.groups.items()},
    }
