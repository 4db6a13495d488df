"""The facts about a capture as one structure of plain values, which `info` prints for people and programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import distinct_rows
from ..errors import Damage
from ..lbr import describe_perf, recorded_classes
from ..model import Change, Event, Machine, Module, Profile, SampleStream

__all__ = ["summarize"]


def summarize(profile: Profile) -> dict[str, Any]:
    """``profile`` as dicts, lists, text and integers, ready for JSON; ``None`` (and 0 of a size) means not known.

    The keys are in `docs/reference/info.md`. Bytes are hexadecimal text, times nanoseconds.
    """
    return {
        "file": profile.name,
        "format": profile.format,
        "recorder": profile.recorder or None,
        "header": dict(profile.header),
        "machine": _machine(profile.machine),
        "clock": {"name": profile.clock.name, "frequency": profile.clock.frequency},
        "time": _time(profile),
        "events": [_event(event) for event in profile.events],
        "samples": profile.samples,
        "branch_entries": profile.entries,
        "deepest_stack": profile.deepest,
        "streams": [_stream(stream) for stream in profile.streams],
        "processes": len(profile.processes),
        "threads": len(profile.threads),
        "cpu_ns": _cpu_time(profile),
        "records": dict(profile.records),
        "lost": dict(profile.lost),
        "undecoded_bytes": {name: len(raw) for name, raw in profile.raw_features.items()},
        "captures": [_fields(one, _CAPTURE) for one in profile.captures],
        "modules": _modules(profile),
        "damage": [_damage(damage) for damage in profile.damage],
    }


def _cpu_time(profile: Profile) -> int | None:
    """CPU time in ns of all processes whose time is known; ``None`` if no time is known."""
    known = [process.cpu_ns for process in profile.processes if process.cpu_ns is not None]
    return sum(known) if known else None


_CAPTURE = "file=name format host samples branch_entries=entries weight"


def _fields(row: object, names: str) -> dict[str, Any]:
    """Attributes of ``row``; ``key=attribute`` where programs know one by another name."""
    pairs = (name.partition("=") for name in names.split())
    return {key: getattr(row, attribute or key) for key, _, attribute in pairs}


def _machine(m: Machine) -> dict[str, Any]:
    facts = _fields(
        m,
        "host os os_release arch bits byte_order hypervisor cpu=cpu_description cpuid cpus_online cpus_available "
        "memory_bytes=memory page_size",
    )
    known = {name: None if value == "" else value for name, value in facts.items()}
    return {**known, "numa_nodes": len(m.nodes), "pmu_caps": {pmu: dict(caps) for pmu, caps in m.pmu_caps.items()}}


def _time(p: Profile) -> dict[str, int | None]:
    """All ``None`` where the source has no time stamps or no samples."""
    first, last = p.first_time, p.last_time
    if first is None or last is None or not p.clock.has_time:
        return {"first_sample_ns": None, "span_ns": None, "first_sample_unix_ns": None}
    start = first if p.start is None else p.start
    return {
        "first_sample_ns": p.clock.to_ns(first - start),
        "span_ns": p.clock.to_ns(last - first),
        "first_sample_unix_ns": p.clock.wall_ns(first),
    }


def _event(e: Event) -> dict[str, Any]:
    select, kind = e.branch_select, e.branch_select_kind
    return {
        **_fields(e, "name period frequency branch_select"),
        "branch_select_kind": None if select is None else kind,
        "branches": None if select is None else _branches(kind, select),
        "callchains": e.has_callchain,
        "programming": dict(e.programming),
    }


def _branches(kind: str, select: int) -> str:
    return describe_perf(select) if kind == "perf" else ",".join(recorded_classes(select, kind)).lower()


def _stream(s: SampleStream) -> dict[str, Any]:
    facts = _fields(s, "number events samples branch_entries=entries deepest_stack=deepest columns")
    return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}


def _modules(profile: Profile) -> list[dict[str, Any]]:
    """Each module once, however often it was mapped."""
    columns = profile.timeline.columns()
    maps = np.flatnonzero((columns["kind"] == Change.MAP) & (columns["module"] >= 0))
    pid, module, start, end = (columns[name][maps] for name in ("pid", "module", "start", "end"))
    rows, _ = distinct_rows(module, pid, start, end)
    module, start, end = module[rows], start[rows], end[rows]
    times = np.bincount(module, minlength=len(profile.modules))
    first, past = np.full(len(times), _TOP), np.zeros(len(times), np.uint64)
    np.minimum.at(first, module, start)
    np.maximum.at(past, module, end)
    mapped = zip(times.tolist(), first.tolist(), past.tolist(), strict=True)
    return [
        _module(one) | {"mappings": n, "addresses": [f"{low:#x}", f"{high:#x}"] if n else None}
        for one, (n, low, high) in zip(profile.modules, mapped, strict=False)
    ]


_TOP = np.uint64((1 << 64) - 1)


def _module(m: Module) -> dict[str, Any]:
    pdb = {"name": m.pdb_name, "guid": str(m.pdb_guid), "age": m.pdb_age} if m.pdb_guid is not None else None
    return {
        "name": m.name,
        "kind": str(m.kind),
        "build_id": m.build_id.hex() or None,
        "pdb": pdb,
        "binary": m.binary or None,
        "missing": m.missing or None,
    }


def _damage(d: Damage) -> dict[str, Any]:
    value = d.value if d.value is None or isinstance(d.value, int) else str(d.value)
    return {
        "reason": d.reason,
        "offset": d.offset,
        "field": d.field,
        "value": value,
        "bytes_skipped": d.lost,
        "file": d.file,
    }
