"""``lastbranch info``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from .options import Capture, captures_options, table_options
from .output import Cell, print_json, print_rows


@click.command()
@captures_options
@table_options
def command(capture: Capture, form: str, limit: int) -> int:
    """Describe a capture: recorder, machine, events, losses, binaries.

    It also shows the clock, the records, the fields, and which binaries were found.

    json is one object (docs: info); csv is the same with one key and value per line. --limit applies to modules and, in
    a table, to kinds of records, the most frequent first.
    """
    from ..analysis import summarize

    profile = capture.open()
    facts = summarize(profile)
    modules = facts["modules"]
    facts["modules"] = modules[: limit or None]
    if form == "json":
        print_json(facts)
    elif form == "csv":
        print_rows(("key", "value"), _leaves(facts), form)
    else:
        rows = [(what, str(value)) for what, value in _rows(facts, limit) if value != ""]
        print_rows(("what", "value"), rows, form, wrap=True)
        if modules:
            click.echo()
            print_rows(_MODULE, [_module_row(m) for m in facts["modules"]], form, spare=("addresses", "mappings"))
        if len(modules) > len(facts["modules"]):
            click.echo(f"{len(modules) - len(facts['modules'])} more modules; --limit 0 prints all")
    return capture.finish(profile)


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Cell]]:
    """``machine.host``, ``events.0.name``... and their values."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            yield from _leaves(part, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


# -- for people


def _rows(t: dict[str, Any], limit: int) -> Iterator[tuple[str, str | int]]:
    m = t["machine"]
    yield "file", t["file"]
    for i, c in enumerate(t["captures"] if len(t["captures"]) > 1 else ()):
        host = f" of {c['host']}" if c["host"] else ""
        weight = f", each counts {c['weight']} times" if c["weight"] > 1 else ""
        yield f"capture {i}", f"{c['file']}: {c['samples']} samples{host}{weight}"
    yield "format", f"{t['format']}, {m['byte_order']}-endian"
    yield "recorder", t["recorder"] or ""
    yield from t["header"].items()
    yield "host", m["host"] or ""
    yield "system", " ".join(filter(None, (m["os"], m["os_release"])))
    yield "architecture", m["arch"] or ""
    yield "processor", m["cpu"] or ""
    yield "cpuid", m["cpuid"] or ""
    yield "processors", _online(m["cpus_online"], m["cpus_available"])
    yield "memory", f"{m['memory_bytes'] / (1 << 30):.1f} GiB" if m["memory_bytes"] else ""
    yield "numa nodes", m["numa_nodes"] or ""
    for pmu, caps in m["pmu_caps"].items():
        yield f"pmu {pmu}", ", ".join(f"{name}={value}" for name, value in caps.items())
    yield "clock", t["clock"]["name"]
    if (span := t["time"]["span_ns"]) is not None:
        yield "time span", f"{span // 1_000_000_000}.{span % 1_000_000_000:09d} s"
    if (wall := t["time"]["first_sample_unix_ns"]) is not None:
        yield "first sample at", _utc(wall)
    for i, e in enumerate(t["events"]):
        rate = f"{e['frequency']} Hz" if e["frequency"] else f"period {e['period']}"
        stacks = "" if e["branches"] is None else f", branch stacks: {e['branches']}"
        yield f"event {i}", f"{e['name']}, {rate}{stacks}"
    for name in ("samples", "branch_entries", "deepest_stack"):
        yield name.replace("_", " "), t[name]
    for s in t["streams"]:
        yield f"stream {s['number']}", ", ".join(s["columns"])
    yield "processes", t["processes"]
    yield "threads", t["threads"]
    yield "cpu time", f"{t['cpu_ns'] / 1e9:.3f} s" if t["cpu_ns"] is not None else ""
    from ..model import THROTTLES, counted

    frequent = sorted(t["records"].items(), key=lambda item: -item[1])
    for name, count in frequent[: limit or None]:
        yield "records", f"{name}: {count}"
    if rest := frequent[limit or len(frequent) :]:
        yield "records", f"{len(rest)} more kinds: {sum(n for _, n in rest)}; --limit 0 names all"
    for name, count in t["lost"].items():
        yield ("throttled", counted(count, "time")) if name == THROTTLES else ("lost", f"{name}: {count}")
    for name, size in t["undecoded_bytes"].items():
        yield "not decoded", f"feature {name}: {size} bytes"


_MODULE = ("mappings", "addresses", "module", "kind", "identity", "binary")


def _module_row(module: dict[str, Any]) -> list[Cell]:
    pdb, addresses = module["pdb"], module["addresses"]
    identity = module["build_id"] or (pdb and f"{pdb['name']} {pdb['guid']} {pdb['age']}")
    return [
        module["mappings"],
        addresses and "-".join(addresses),
        module["name"],
        module["kind"],
        identity,
        module["binary"] or module["missing"],
    ]


def _online(online: int, available: int) -> str:
    return f"{online} of {available}" if available and online != available else str(online or "")


def _utc(ns: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
