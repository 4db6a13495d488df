"""A profile of the guide's sections alone, for files that another writer made."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import FormatError
from ...model import KERNEL, KERNEL_HALF, KERNEL_HALF_32, Change, Clock, Cpu, Event, Module, ModuleKind, Node, Profile
from . import constants as k
from .decoding import SampleReader
from .layout import Scope, Table
from .module_lives import module_lives
from .reading import Tb5File

__all__ = ["index_stream", "read_guide", "time_kind"]

_LAST = (1 << 64) - 1
_MOST_EVENTS = 1 << 16


def _records(file: Tb5File, section: k.Section, part: int = 0) -> Any:
    return file.records(Table(Scope.GLOBAL, 0, section, part))


def read_guide(file: Tb5File, profile: Profile) -> None:
    """Machine, modules with their lives, processes, threads and clock of ``file``; events come with the streams."""
    profile.recorder = "TBRW"
    profile.clock = Clock("TSC", _frequency(file))
    _read_machine(file, profile)
    _read_modules(file, profile)
    _read_tasks(file, profile)


def _frequency(file: Tb5File) -> int:
    """Ticks a second of the time stamps: the unit of the first stream that has some, or the speed of the first
    processor."""
    units: dict[int, int] = {k.DescSubtype.TS_NANOSECONDS: 10**9, k.DescSubtype.TS_MILLISECONDS: 1000}
    kinds = (time_kind(file, number) for number in range(file.streams))
    unit = units.get(next((kind for kind in kinds if kind is not None), -1))
    if unit:
        return unit
    speeds = [int(c["cpu_speed_mhz"]) for c in _records(file, k.Section.HARDWARE, 2)]
    return speeds[0] * 1_000_000 if speeds and 0 < speeds[0] < 1_000_000 else 0


def time_kind(file: Tb5File, stream: int) -> int | None:
    """The subtype (SST_) of the time stamps of a stream; ``None`` where its records have none."""
    if not file.has(Table(Scope.STREAM, stream, k.StreamSection.DATA_DESCRIPTION)):
        return None
    for entry in file.descriptors(stream):
        if entry["desc_type"] == k.DescType.TIME_STAMP:
            return int(entry["desc_subtype"])
    return None


def _read_machine(file: Tb5File, profile: Profile) -> None:
    machine = profile.machine
    for host in _records(file, k.Section.SOFTWARE):
        machine.host = file.text(int(host["host_name"]))
    for os_ in _records(file, k.Section.SOFTWARE, 1):
        platform = int(os_["os_platform"])
        windows = platform in (k.OsFamily.WIN32, k.OsFamily.WIN64, k.OsFamily.WINCE)
        machine.os = "Windows" if windows else file.text(int(os_["os_name"]))
        machine.os_release = file.text(int(os_["os_name_extra"]))
        machine.bits = 32 if platform in (k.OsFamily.WIN32, k.OsFamily.LINUX32) else 64
    for app in _records(file, k.Section.SOFTWARE, 2):
        machine.page_size = int(app["app_page_size"])
    arches = {int(a["arch_type"]) for a in _records(file, k.Section.HARDWARE, 3)}
    names = {int(k.ArchType.EM64T): "x86_64", int(k.ArchType.X86): "i686", int(k.ArchType.ITANIUM): "ia64"}
    machine.arch = next((name for number, name in names.items() if number in arches), "")
    nodes = _records(file, k.Section.HARDWARE, 1)
    cpus = _records(file, k.Section.HARDWARE, 2)
    starts = [*np.maximum.accumulate(nodes["cpu_array"]).tolist(), len(cpus)]  # each processor is in one node
    for i, node in enumerate(nodes):
        inside = cpus[starts[i] : starts[i + 1]]
        numbers = tuple(int(c["cpu_number"]) for c in inside)
        number = int(node["node_id"])
        machine.nodes.append(Node(number, numbers, int(node["node_physical_memory"])))
        machine.cpus += [
            Cpu(int(c["cpu_number"]), int(c["cpu_core_num"]), -1, int(c["cpu_package_num"]), number) for c in inside
        ]
        machine.cpus_available += int(node["node_num_available"])
        machine.cpus_online += int(node["node_num_used"])


def _read_modules(file: Tb5File, profile: Profile) -> None:
    """Each record that is a load maps its module for its life."""
    rows: dict[tuple[int, int, int, bool], int] = {}
    timeline, records = profile.timeline, _records(file, k.Section.MODULE)
    half = KERNEL_HALF if profile.machine.bits == 64 else KERNEL_HALF_32
    lives = module_lives(records)
    columns = (c.tolist() for c in (lives.loads, lives.everybodys, lives.since, lives.until))
    for m, load, everybodys, since, until in zip(records, *columns, strict=True):
        if not load:
            continue
        pid, selector = int(m["module_associated_pid"]), int(m["module_code_selector"])
        start, length = int(m["module_load_address"]), int(m["module_length"])
        key = (int(m["module_path"]), int(m["module_name"]), selector, everybodys)
        if key not in rows:
            rows[key] = len(profile.modules)
            name = file.text(key[0]) or file.text(key[1])
            kind = ModuleKind.KERNEL_MODULE if everybodys else ModuleKind.FILE
            profile.modules.append(Module(name or "//anon", kind, size=length, code_selector=selector))
        owner = KERNEL if everybodys and (pid or start >= half) else _signed(pid)
        end, when = min(start + length, _LAST), _time(since)
        timeline.add(Change.MAP, when, owner, module=rows[key], start=start, end=end)
        if until != k.NEVER:
            timeline.add(Change.UNMAP, _time(until), owner, start=start, end=end)


def _read_tasks(file: Tb5File, profile: Profile) -> None:
    for p in _records(file, k.Section.PROCESS_THREAD):
        pid, name = _signed(int(p["pid_id"])), file.text(int(p["pid_name"])) or file.text(int(p["pid_path"]))
        profile.timeline.name(_time(int(p["pid_event_when"])), pid, pid, name)
    for t in _records(file, k.Section.PROCESS_THREAD, 1):
        if int(t["tid_name"]):
            pid, tid = _signed(int(t["tid_associated_pid"])), _signed(int(t["tid_id"]))
            profile.timeline.name(_time(int(t["tid_event_when"])), pid, tid, file.text(int(t["tid_name"])))


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def _time(ticks: int) -> int:
    return min(ticks, (1 << 63) - 1)


def index_stream(file: Tb5File, reader: SampleReader, profile: Profile, number: int) -> dict[str, Any]:
    """Read a stream once: how many samples and entries, which threads and events. Its events join the profile's."""
    first_event = len(profile.events)
    for e in file.records(Table(Scope.STREAM, number, k.StreamSection.EVENT_DESCRIPTION)):
        timed = bool(int(e["event_flags"]) & k.EventFlag.TBS)
        sav = int(e["event_sav"])
        name = file.text(int(e["event_name"])) or f"event {int(e['event_id'])}"
        select = 0 if reader.has_stacks else None
        period, frequency = (0, sav) if timed else (sav, 0)
        profile.events.append(Event(name, period, frequency, select, has_period=reader.has_periods))
    reader.first_event = first_event
    samples = entries = deepest = 0
    events: set[int] = set()
    pairs: set[tuple[int, int]] = set()
    columns = reader.columns
    for _, batch, _ in reader.batches(frozenset(("branch_from",)), columns, profile.damage):
        samples, entries = samples + len(batch), entries + batch.entries
        deepest = max(deepest, int(batch.depth.max(initial=0)))
        events.update(np.unique(batch.event).tolist())
        pair = np.unique((batch.pid.astype(np.int64) << 32) | batch.tid.view(np.uint32).astype(np.int64))
        pairs.update(zip((pair >> 32).tolist(), pair.astype(np.uint32).view(np.int32).tolist(), strict=True))
        low, high = int(batch.time.min()), int(batch.time.max())
        profile.first_time = low if profile.first_time is None else min(low, profile.first_time)
        profile.last_time = high if profile.last_time is None else max(high, profile.last_time)
    wrong = [e for e in events if not 0 <= e < first_event + _MOST_EVENTS]
    if wrong:
        raise FormatError(f"stream {number}: event out of range", file=file.name, field="eventIndex", value=wrong[0])
    while events and len(profile.events) <= max(events):
        profile.events.append(Event(f"event {len(profile.events) - first_event}"))
    profile.seen_threads |= pairs
    profile.records[f"stream {number}"] = samples
    return {"columns": columns, "events": sorted(events), "samples": samples, "entries": entries, "deepest": deepest}
