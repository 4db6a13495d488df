"""Facts about a capture, for `info`, and findings about its faults, for `check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from .columns import Cell, Column, TableKind, To
from .table import Table, make_table

if TYPE_CHECKING:
    from ..analysis.checks.findings import Finding
    from ..formats.etl import Reading
    from ..model import Profile
    from ..symbols import SymbolOptions

__all__ = ["FACTS", "FINDINGS", "MODULES", "CaptureFacts", "find_faults"]


def _text(name: str, title: str, meaning: str, value: Callable[[Any], Cell], to: To = To.PEOPLE) -> Column:
    """A column of texts, each made of one row."""
    return Column(name=name, title=title, meaning=meaning, form="text", to=to, value=lambda rows: [*map(value, rows)])


FACTS = TableKind(
    name="facts about a capture",
    row="a fact",
    columns=(
        _text("what", "what", "name of the fact", itemgetter(0)),
        _text("value", "value", "value as people write it", itemgetter(1)),
    ),
)
"""`info`, for people; programs get one object (docs/reference/info.md)."""


def _addresses(module: dict[str, Any]) -> str | None:
    return module["addresses"] and "-".join(module["addresses"])


def _identity(module: dict[str, Any]) -> str | None:
    pdb = module["pdb"]
    return module["build_id"] or (pdb and f"{pdb['name']} {pdb['guid']} {pdb['age']}")


MODULES = TableKind(
    name="modules of a capture",
    row="a module",
    columns=(
        _text("mappings", "mappings", "how often it was mapped", itemgetter("mappings")),
        _text("addresses", "addresses", "lowest and highest address", _addresses),
        _text("name", "module", "full path of the binary", itemgetter("name")),
        _text("kind", "kind", "file, kernel, vdso...", itemgetter("kind")),
        _text("identity", "identity", "build id, or name, GUID and age of the PDB", _identity),
        _text(
            "binary", "binary", "path of the binary, or why there is none", lambda one: one["binary"] or one["missing"]
        ),
    ),
    spare=("addresses", "mappings"),
)
"""`info`, for people."""

FINDINGS = TableKind(
    name="findings about a capture",
    row="a finding",
    columns=(
        _text("severity", "severity", "error, warning or info", lambda one: str(one.severity), To.ALL),
        _text("name", "finding", "name of the finding", attrgetter("name"), To.ALL),
        _text("means", "means", "consequence for the capture", attrgetter("means"), To.ALL),
        _text("seen", "seen", "evidence in the capture", attrgetter("seen"), To.ALL),
        _text("remedy", "remedy", "how to fix it", attrgetter("remedy"), To.ALL),
    ),
)
"""`check`, and the viewer's findings."""


# -- check


def find_faults(
    paths: Sequence[str],
    symbols: SymbolOptions,
    *,
    symfs: str | None = None,
    folders: Sequence[str] = (),
    reading: Reading | None = None,
) -> Table:
    """The findings of `analysis.checks.check` about the captures at ``paths``, which are read again, the worst of each
    first; of several, each names its capture."""
    from ..analysis.checks import check

    found: list[Finding] = [
        one._replace(seen=f"{path}: {one.seen}") if len(paths) > 1 else one
        for path in paths
        for one in check(path, symfs=symfs, folders=folders, symbols=symbols, reading=reading)
    ]
    return make_table(FINDINGS, found, len(found))


# -- info


@dataclass(slots=True)
class CaptureFacts:
    """Facts about a capture, as `analysis.summarize` makes them: ``facts`` has the first ``limit`` modules (0: all)."""

    facts: dict[str, Any]
    limit: int = 0
    left_out: int = 0
    """Modules that are not there."""

    @classmethod
    def of(cls, profile: Profile, limit: int = 0) -> CaptureFacts:
        from ..analysis import summarize

        facts = summarize(profile)
        modules = facts["modules"]
        facts["modules"] = modules[: limit or None]
        return cls(facts, limit, len(modules) - len(facts["modules"]))

    def leaves(self) -> Iterator[tuple[str, Cell]]:
        """``machine.host``, ``events.0.name``... and their values."""
        return _leaves(self.facts)

    def table(self) -> Table:
        """Rows of `FACTS`: the known ones."""
        rows = [(what, str(value)) for what, value in _facts(self.facts, self.limit) if value != ""]
        return make_table(FACTS, rows, len(rows))

    def modules(self) -> Table:
        """Rows of `MODULES`."""
        modules = self.facts["modules"]
        return make_table(MODULES, modules, len(modules))


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Cell]]:
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            yield from _leaves(part, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _facts(t: dict[str, Any], limit: int) -> Iterator[tuple[str, str | int]]:
    from ..model import THROTTLES, counted

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
    frequent = sorted(t["records"].items(), key=lambda item: -item[1])
    for name, count in frequent[: limit or None]:
        yield "records", f"{name}: {count}"
    if rest := frequent[limit or len(frequent) :]:
        yield "records", f"{len(rest)} more kinds: {sum(n for _, n in rest)}; --limit 0 names all"
    for name, count in t["lost"].items():
        yield ("throttled", counted(count, "time")) if name == THROTTLES else ("lost", f"{name}: {count}")
    for name, size in t["undecoded_bytes"].items():
        yield "not decoded", f"feature {name}: {size} bytes"


def _online(online: int, available: int) -> str:
    return f"{online} of {available}" if available and online != available else str(online or "")


def _utc(ns: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
