"""A TB5 file to a profile: a file of ours, with everything from its source, or a file with only the guide's
sections."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct
from ...errors import Damage, FormatError
from ...model import (
    COLUMNS,
    GROUPS,
    KERNEL,
    KERNEL_HALF,
    KERNEL_HALF_32,
    Array,
    Change,
    Clock,
    Cpu,
    Event,
    Module,
    ModuleKind,
    Node,
    Profile,
    Progress,
    SampleBatch,
    SampleStream,
    Source,
)
from .layout import (
    BATCH_TIMES,
    MODEL,
    NEVER,
    ArchType,
    DescSubtype,
    DescType,
    EventFlag,
    ModuleFlag,
    OsFamily,
    Scope,
    Section,
    StreamSection,
    StreamType,
    Table,
    describe,
)
from .model_section import read_model, restore
from .reader import Tb5File
from .sample_reader import SampleReader, SampleRecords, note

__all__ = ["ModuleLives", "module_lives", "read_tb5"]


# -- The time in which each module was loaded, and in which processes, from module load records (guide, 6.6 and 8.6)


@dataclass(frozen=True, slots=True)
class ModuleLives:
    """Columns over module records."""

    loads: NDArray[np.bool_]
    """Whether the record is a module in memory; else it is the notice of an unloading (TBRW_MODULE_UNLOADED without
    LOADED)."""
    everybodys: NDArray[np.bool_]
    """Whether it belongs to all processes: flagged as global, of process 0, or in the kernel's half."""
    timed: NDArray[np.bool_]
    """Whether its life is given in time stamps (TBRW_MODULE_TSC_USED); else in sample numbers: how many samples of a
    stream there were before."""
    since: NDArray[np.uint64]
    """First time, or number of the first sample; 0 is since before the start."""
    until: NDArray[np.uint64]
    """The time, or sample number, past it; all ones is for good."""


def module_lives(modules: Array) -> ModuleLives:
    """The lives of TBRW_MODULE records.

    They begin at module_event_when, and end at module_unload_tsc, or, without TBRW_MODULE_TSC_USED, at the sample
    number in reserved_for_legacy (0: none). A notice of unloading with the same clock ends the earlier load at its
    address in its process: earlier by time or number, then by the order of records.
    """
    flags, address = modules["module_flags"], modules["module_load_address"]
    timed = (flags & ModuleFlag.TSC_USED) != 0
    notice = (flags & (ModuleFlag.UNLOADED | ModuleFlag.LOADED)) == ModuleFlag.UNLOADED
    owner = modules["module_associated_pid"]
    everybodys = ((flags & ModuleFlag.GLOBAL_LOAD) != 0) | (owner == 0) | (address >= np.uint64(KERNEL_HALF))
    since, number = modules["module_event_when"], modules["reserved_for_legacy"].astype(np.uint64)
    until = np.where(timed, modules["module_unload_tsc"], np.where(number == 0, np.uint64(NEVER), number))
    if notice.any():
        key = np.where(everybodys, 0, owner).astype(np.int64) << 1 | timed
        until = np.minimum(until, _ends(key, address, since, notice))
    return ModuleLives(~notice, everybodys, timed, since, until)


def _ends(key: Array, address: Array, when: Array, notice: Array) -> NDArray[np.uint64]:
    """The time of the first notice after each record with the record's key and address; all bits set if there is no
    notice."""
    count = len(key)
    order = np.lexsort((np.arange(count), when, address, key))
    at = np.where(notice[order], np.arange(count), count)
    following = np.minimum.accumulate(at[::-1])[::-1]
    found = order[np.minimum(following, count - 1)]
    same = (following < count) & (key[found] == key[order]) & (address[found] == address[order])
    out = np.empty(count, np.uint64)
    out[order] = np.where(same, when[found], np.uint64(NEVER))
    return out


# -- the guide's sections alone, for files that another writer made

_LAST = (1 << 64) - 1
_MOST_EVENTS = 1 << 16


def _global_records(file: Tb5File, section: Section, part: int = 0) -> Any:
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
    units: dict[int, int] = {DescSubtype.TS_NANOSECONDS: 10**9, DescSubtype.TS_MILLISECONDS: 1000}
    kinds = (time_kind(file, number) for number in range(file.streams))
    unit = units.get(next((kind for kind in kinds if kind is not None), -1))
    if unit:
        return unit
    speeds = [int(c["cpu_speed_mhz"]) for c in _global_records(file, Section.HARDWARE, 2)]
    return speeds[0] * 1_000_000 if speeds and 0 < speeds[0] < 1_000_000 else 0


def time_kind(file: Tb5File, stream: int) -> int | None:
    """The subtype (SST_) of the time stamps of a stream; ``None`` where its records have none."""
    if not file.has(Table(Scope.STREAM, stream, StreamSection.DATA_DESCRIPTION)):
        return None
    for entry in file.descriptors(stream):
        if entry["desc_type"] == DescType.TIME_STAMP:
            return int(entry["desc_subtype"])
    return None


def _read_machine(file: Tb5File, profile: Profile) -> None:
    machine = profile.machine
    for host in _global_records(file, Section.SOFTWARE):
        machine.host = file.text(int(host["host_name"]))
    for os_ in _global_records(file, Section.SOFTWARE, 1):
        platform = int(os_["os_platform"])
        windows = platform in (OsFamily.WIN32, OsFamily.WIN64, OsFamily.WINCE)
        machine.os = "Windows" if windows else file.text(int(os_["os_name"]))
        machine.os_release = file.text(int(os_["os_name_extra"]))
        machine.bits = 32 if platform in (OsFamily.WIN32, OsFamily.LINUX32) else 64
    for app in _global_records(file, Section.SOFTWARE, 2):
        machine.page_size = int(app["app_page_size"])
    arches = {int(a["arch_type"]) for a in _global_records(file, Section.HARDWARE, 3)}
    names = {int(ArchType.EM64T): "x86_64", int(ArchType.X86): "i686", int(ArchType.ITANIUM): "ia64"}
    machine.arch = next((name for number, name in names.items() if number in arches), "")
    nodes = _global_records(file, Section.HARDWARE, 1)
    cpus = _global_records(file, Section.HARDWARE, 2)
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
    timeline, records = profile.timeline, _global_records(file, Section.MODULE)
    half = KERNEL_HALF if profile.machine.bits == 64 else KERNEL_HALF_32
    lives = module_lives(records)
    moments = _moments(file, lives)
    columns = (c.tolist() for c in (lives.loads, lives.everybodys, *moments))
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
        owner = KERNEL if everybodys and (pid or start >= half) else _to_signed(pid)
        end, when = min(start + length, _LAST), _time(since)
        timeline.add(Change.MAP, when, owner, module=rows[key], start=start, end=end)
        if until != NEVER:
            timeline.add(Change.UNMAP, _time(until), owner, start=start, end=end)


def _moments(file: Tb5File, lives: ModuleLives) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """``since`` and ``until`` as times: a sample number is the time of that sample of the first sample stream."""
    bounds = np.concatenate([lives.since, lives.until])
    numbered = np.concatenate([~lives.timed] * 2) & (bounds != 0) & (bounds != np.uint64(NEVER))
    if numbered.any():
        wanted = distinct(bounds[numbered])
        times = np.full(len(wanted), np.iinfo(np.int64).max, np.uint64)  # of a sample that there is not: never
        stream = next((n for n in range(file.streams) if _type(file, n) == StreamType.SAMPLING), None)
        for first, batch in _times_of(file, stream):
            here = np.flatnonzero((wanted >= first) & (wanted < first + len(batch)))
            times[here] = batch[(wanted[here] - np.uint64(first)).astype(np.intp)]
        bounds[numbered] = times[np.searchsorted(wanted, bounds[numbered])]
    return bounds[: len(lives.since)], bounds[len(lives.since) :]


def _times_of(file: Tb5File, stream: int | None) -> Iterator[tuple[int, Array]]:
    """(number of the first, times) of the records of a stream in portions; records without times count themselves."""
    if stream is None or not file.has(Table(Scope.STREAM, stream, StreamSection.DATA)):
        return
    for first, records in SampleRecords(file, stream).blocks(frozenset({"time"}), []):
        numbers = np.arange(first, first + len(records))
        yield first, records["time"] if "time" in (records.dtype.names or ()) else numbers


def _read_tasks(file: Tb5File, profile: Profile) -> None:
    for p in _global_records(file, Section.PROCESS_THREAD):
        pid, name = _to_signed(int(p["pid_id"])), file.text(int(p["pid_name"])) or file.text(int(p["pid_path"]))
        profile.timeline.name(_time(int(p["pid_event_when"])), pid, pid, name)
    for t in _global_records(file, Section.PROCESS_THREAD, 1):
        if int(t["tid_name"]):
            pid, tid = _to_signed(int(t["tid_associated_pid"])), _to_signed(int(t["tid_id"]))
            profile.timeline.name(_time(int(t["tid_event_when"])), pid, tid, file.text(int(t["tid_name"])))


def _to_signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def _time(ticks: int) -> int:
    return min(ticks, (1 << 63) - 1)


def index_stream(file: Tb5File, reader: SampleReader, profile: Profile, number: int) -> dict[str, Any]:
    """Read a stream once: how many samples and entries, which threads and events. Its events join the profile's."""
    first_event = len(profile.events)
    for e in file.records(Table(Scope.STREAM, number, StreamSection.EVENT_DESCRIPTION)):
        timed = bool(int(e["event_flags"]) & EventFlag.TBS)
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
        events.update(distinct(batch.event).tolist())
        pair = distinct((batch.pid.astype(np.int64) << 32) | batch.tid.view(np.uint32).astype(np.int64))
        pairs.update(zip((pair >> 32).tolist(), pair.astype(np.uint32).view(np.int32).tolist(), strict=True))
        profile.extend_time_range(int(batch.time.min()), int(batch.time.max()))
    wrong = [e for e in events if not 0 <= e < first_event + _MOST_EVENTS]
    if wrong:
        raise FormatError(f"stream {number}: event out of range", file=file.name, field="eventIndex", value=wrong[0])
    while events and len(profile.events) <= max(events):
        profile.events.append(Event(f"event {len(profile.events) - first_event}"))
    profile.seen_threads |= pairs
    profile.records[f"stream {number}"] = samples
    return {"columns": columns, "events": sorted(events), "samples": samples, "entries": entries, "deepest": deepest}


_FOREVER = int(np.iinfo(np.int64).max)
_COMMENT = re.compile(r"(\w+) of stream (\d+)")


def read_tb5(source: Source, progress: Progress | None = None) -> Profile:
    """The profile in ``source``.

    Raises `FormatError` for a file without a readable commit or whose tables make no sense; damaged blocks of samples
    are stepped over and in ``profile.damage``. A file of ours is open at once; streams that other writers added are
    read once for their tables.
    """
    file = Tb5File(source)
    profile = Profile(source.name, "tb5")
    profile.damage = file.damage
    profile.memory = source.limits.memory_of(source.size)
    stored: dict[int, dict[str, Any]] = {}
    value = read_model(file)
    if value is not None:
        restore(profile, value, file)
        stored = _stored_streams(value, file)
    else:
        read_guide(file, profile)
    groups = _groups(file)
    profile.header["tables"] = ", ".join(f"{name}: {n}" for name, n in _table_sizes(file))
    for number in range(file.streams):
        if _type(file, number) == StreamType.SAMPLING and file.has(Table(Scope.STREAM, number, StreamSection.DATA)):
            _add_stream(file, profile, number, groups.get(str(number), {}), stored.get(number))
            _compare_times(file, profile, number)
        if progress:
            progress(number + 1, file.streams)
    profile.begin()  # the guide has no place for it
    return profile


def _table_sizes(file: Tb5File) -> Iterator[tuple[str, int]]:
    for key, entry in sorted(file.tables.items()):
        if key.scope is not Scope.STORE:
            yield describe(key), entry.count


_STREAM = {"number": int, "columns": list, "events": list, "samples": int, "entries": int, "deepest": int,
           "groups": dict}  # fmt: skip
"""What the model tables say of each stream."""


def _stored_streams(value: dict[str, Any], file: Tb5File) -> dict[int, dict[str, Any]]:
    streams = value.get("streams")
    for one in streams if isinstance(streams, list) else [{}]:
        whole = isinstance(one, dict) and all(type(one.get(n)) is kind for n, kind in _STREAM.items())
        if not whole or {type(c) for c in one["columns"]} - {str} or {type(e) for e in one["events"]} - {int}:
            raise FormatError("model tables: streams are not described", file=file.name, field="streams")
    return {one["number"]: one for one in value["streams"]}


def _type(file: Tb5File, number: int) -> int:
    info = file.records(Table(Scope.STREAM, number, StreamSection.STREAM_INFO))
    return int(info[0]["stream_type"]) if len(info) else 0


def _groups(file: Tb5File) -> dict[str, dict[str, int]]:
    """Number of a stream, as text -> ragged group -> the custom stream of its rows, by their comments."""
    found: dict[str, dict[str, int]] = {}
    for number in range(file.streams):
        if _type(file, number) == StreamType.CUSTOM:
            info = file.records(Table(Scope.STREAM, number, StreamSection.STREAM_INFO))
            matched = _COMMENT.fullmatch(file.text(int(info[0]["comment"])))
            if matched and matched[1] in GROUPS and matched[2] != str(number):
                found.setdefault(matched[2], {})[matched[1]] = number
    return found


def _add_stream(
    file: Tb5File, profile: Profile, number: int, groups: dict[str, int], facts: dict[str, Any] | None
) -> None:
    reader = SampleReader(file, number, groups)
    if facts is None:
        facts = index_stream(file, reader, profile, number)
    columns = tuple(facts["columns"])
    unknown = set(columns) - {c.name for c in COLUMNS}
    if unknown:
        raise FormatError(f"stream {number}: no such column", file=file.name, field="columns", value=min(unknown))
    later = _later(file, number)
    damage, described = profile.damage, profile.events  # not the profile, which has the stream: they would be a cycle

    def batches(wanted: frozenset[str] | None) -> Iterator[tuple[SampleBatch, int]]:
        known = len(described)
        for first, batch, rest in reader.batches(wanted, columns, damage):
            later_times = min(rest, later(first + len(batch)))
            strange = (batch.event < 0) | (batch.event >= known)
            if strange.any():
                reason = f"stream {number}: samples of events that the file does not describe"
                note(damage, Damage(reason, 0, "event", int(batch.event[strange][0])))
                yield batch.select(~strange), later_times
            else:
                yield batch, later_times

    events = tuple(facts["events"])
    samples, entries, deepest = (int(facts[n]) for n in ("samples", "entries", "deepest"))
    if events and not 0 <= min(events) <= max(events) < len(profile.events):
        raise FormatError(f"stream {number}: event out of range", file=file.name, field="events", value=max(events))
    profile.streams.append(SampleStream(number, columns, events, samples, entries, deepest, batches, ()))


def _compare_times(file: Tb5File, profile: Profile, number: int) -> None:
    """A profile has one clock: note a stream whose time stamps are of another kind than those of the first stream."""
    first, kind = (time_kind(file, n) for n in (profile.streams[0].number, number))
    if kind != first:
        names = [f"SST_{DescSubtype(k).name}" if k in set(DescSubtype) else str(k) for k in (kind, first)]
        reason = f"stream {number}: its time stamps are {names[0]}, the first stream's {names[1]}; read as one clock"
        note(profile.damage, Damage(reason, 0, "desc_subtype", -1 if kind is None else kind))


def _later(file: Tb5File, number: int) -> Callable[[int], int]:
    """record -> a time that no record from it on is earlier than."""
    key = Table(Scope.STORE, number, MODEL, 5)
    if not file.has(key) or file.record_size(key) != BATCH_TIMES.itemsize:
        return lambda _: -_FOREVER
    rows = file.read(key).reshape(-1).view(BATCH_TIMES)
    start: NDArray[np.int64] = rows["first_record"].astype(np.int64)
    earliest = np.minimum.accumulate(np.append(rows["earliest"], _FOREVER)[::-1])[::-1]

    def later(record: int) -> int:
        if not len(start) or record >= file.count(key._replace(scope=Scope.STREAM, section=StreamSection.DATA, part=0)):
            return _FOREVER
        return int(earliest[max(0, int(np.searchsorted(start, record, side="right")) - 1)])

    return later
