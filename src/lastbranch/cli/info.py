"""``lastbranch info``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from .options import Capture, capture_options
from .output import print_rows

if TYPE_CHECKING:
    from ..model import Profile


@click.command()
@capture_options
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", help="How to print.")
def command(capture: Capture, form: str) -> int:
    """What a capture is: recorder, machine, clock, events, records, losses, fields, binaries at hand."""
    profile = capture.open()
    print_rows(("what", "value"), ((what, str(value)) for what, value in _rows(profile)), form)
    return capture.finish(profile)


def _rows(p: Profile) -> Iterator[tuple[str, str | int | None]]:
    from ..lbr import describe_perf
    from ..model import ModuleKind

    yield "file", p.name
    yield "format", f"{p.format}, {p.machine.byte_order}-endian"
    yield "recorder", p.recorder
    yield from p.header.items()
    m = p.machine
    described = {
        "host": m.host, "system": f"{m.os} {m.os_release}".strip(), "architecture": m.arch,
        "processor": m.cpu_description,
        "cpuid": m.cpuid, "processors": _online(m.cpus_online, m.cpus_available), "memory": _bytes(m.memory),
        "numa nodes": len(m.nodes) or None,
    }  # fmt: skip
    yield from ((k, v) for k, v in described.items() if v)
    for pmu, caps in m.pmu_caps.items():
        yield f"pmu {pmu}", ", ".join(f"{k}={v}" for k, v in caps.items())
    yield "clock", p.clock.name
    if p.first_time is not None and p.last_time is not None and p.clock.has_time:
        span = p.clock.to_ns(p.last_time - p.first_time)
        yield "time span", f"{span // 1_000_000_000}.{span % 1_000_000_000:09d} s"
        wall = p.clock.wall_ns(p.first_time)
        if wall is not None:
            yield "first sample at", _utc(wall)
    for i, e in enumerate(p.events):
        rate = f"{e.frequency} Hz" if e.frequency else f"period {e.period}"
        stacks = "" if e.branch_select is None else f", branch stacks: {describe_perf(e.branch_select)}"
        yield f"event {i}", f"{e.name}, {rate}{stacks}"
    yield "samples", p.samples
    yield "branch entries", p.entries
    yield "deepest stack", p.deepest
    for s in p.streams:
        yield f"fields of stream {s.number}", ", ".join(s.columns)
    yield "processes", len(p.processes)
    yield "threads", len(p.threads)
    for name, count in p.records.items():
        yield f"{name} records", count
    for name, count in p.lost.items():
        yield f"lost: {name}", count
    for name, raw in p.raw_features.items():
        yield f"feature {name}", f"{len(raw)} bytes, not decoded"
    for module in p.modules:
        if module.kind in (ModuleKind.FILE, ModuleKind.KERNEL):
            identity = f" build id {module.build_id.hex()}," if module.build_id else ""
            yield f"module {module.name}", f"{identity} {module.binary or 'binary ' + module.missing}".strip()
    for damage in p.damage:
        yield "damage", str(damage)


def _online(online: int, available: int) -> str:
    return f"{online} of {available}" if available and online != available else str(online or "")


def _bytes(n: int) -> str:
    return f"{n / (1 << 30):.1f} GiB" if n else ""


def _utc(ns: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
