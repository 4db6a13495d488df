"""Reads a store: a selection of its captures and modules, and their counts."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..analysis import BoundPairs, StackCounts
from ..analysis.counting.count_stacks import SampledAddresses
from ..analysis.statistics.sample_sums import SampleSums, SummedThings
from ..analysis.statistics.significance import Totals
from ..answers.store_lists import STORE_LISTS
from ..bind import bind, with_binary
from ..closed_database import text
from ..errors import FormatError, NotRecordedError, SelectionError
from ..model import Array, Change, Event, Module, ModuleKind, Profile, check_utf8
from ..opening import attach_binaries, use_binary
from .counting import NOWHERE
from .objects import Objects
from .parts import Part, failures, read_of
from .schema import FOLDS, LABELS, TABLES, CountKind, bucket_of

if TYPE_CHECKING:
    import duckdb

    from ..symbols import SymbolOptions

__all__ = [
    "LISTED",
    "StoreReader",
    "Saturation",
    "Scale",
    "Selection",
    "StoredCounts",
]


@dataclass(frozen=True, slots=True)
class Selection:
    """The captures that match all of these fields; an empty field does not restrict. Texts are patterns: ``*`` is any
    text.

    ``days`` are the first and the last day (``YYYY-MM-DD``, UTC), either may be empty. ``modules`` are build ids (the
    beginning is enough, from four digits on), identities, paths, or the last parts of these. ``weights`` multiply the
    counts of services.
    """

    services: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    days: tuple[str, str] = ("", "")
    modules: tuple[str, ...] = ()
    weights: Mapping[str, int] = field(default_factory=dict)

    def has_day(self, day: str) -> bool:
        first, last = self.days
        return (not first or day >= first) and (not last or day <= last)

    def of_events(self, events: Iterable[str]) -> Selection:
        """The same of these events alone, by their names."""
        exactly = (e.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]") for e in events)
        return replace(self, events=tuple(exactly))

    @property
    def where(self) -> str:
        """A condition on the columns of labels and event: SQL."""
        columns = (*((name, getattr(self, f"{name}s")) for name in LABELS), ("event", self.events))
        said = [" OR ".join(f'"{name}" GLOB {text(p)}' for p in patterns) for name, patterns in columns if patterns]
        return " AND ".join(f"({part})" for part in said) or "true"

    @property
    def weight(self) -> str:
        """SQL of the weight of a row: an expression of the column of services."""
        cases = " ".join(f"WHEN {text(service)} THEN {weight}" for service, weight in sorted(self.weights.items()))
        return f"(CASE service {cases} ELSE 1 END)" if cases else "1"

    def weighted(self, value: str) -> str:
        """SQL of the sum of ``value``, an expression, with the weights: exact, wider than 64 bits."""
        return f"sum(({value})::HUGEINT * {self.weight})" if self.weights else f"sum({value})"

    def has_module(self, identity: str, name: str, build_id: str) -> bool:
        """Whether the modules that were asked for include this one."""
        short = name.replace("\\", "/").rpartition("/")[2]
        return not self.modules or any(
            wanted in (identity, name, short)
            or (len(wanted) >= _LEAST_DIGITS and build_id.startswith(wanted.lower()))
            or fnmatchcase(name, wanted)
            or fnmatchcase(short, wanted)
            for wanted in self.modules
        )


_LEAST_DIGITS = 4


# -- Reading them


_ROWS = 4096
_CAPTURES = ("captures", "refused", "samples", "entries", "lost", "damaged")


def _by(column: str) -> str:
    return (
        f"SELECT {column} AS said, count(DISTINCT digest) FILTER (NOT refused), "
        "count(DISTINCT digest) FILTER (refused), sum(samples)::UBIGINT, sum(entries)::UBIGINT, sum(lost)::UBIGINT, "
        "count(DISTINCT digest) FILTER (damage > 0) FROM {captures} GROUP BY said ORDER BY said"
    )


LISTED: dict[str, str] = {
    "capture": "SELECT file, service, version, host, strftime(time, '%Y-%m-%d %H:%M:%S'), event, samples, entries, "
    "lost, damage, refused, notes, digest FROM {captures} ORDER BY time, file, digest, event",
    "module": "SELECT (SELECT min(name) FROM {modules} m WHERE m.module = c.module), module, "
    "coalesce(sum(n) FILTER (kind = 'sample'), 0)::UBIGINT, "
    "coalesce(sum(n) FILTER (kind = 'branch'), 0)::UBIGINT AS branches, "
    "coalesce(sum(n) FILTER (kind = 'range'), 0)::UBIGINT FROM {counts} c GROUP BY module "
    "ORDER BY branches DESC, module",
    **{name: _by(name) for name in ("service", "version", "host", "event")},
    "day": _by("strftime(day, '%Y-%m-%d')"),
}
"""The SQL of the lists of `StoreReader.listed`; `STORE_LISTS` has their columns."""


class StoreReader:
    """A store at one moment, and a selection of its captures. See `Store.reading`."""

    def __init__(
        self,
        objects: Objects,
        parts: Sequence[Part],
        selection: Selection,
        database: duckdb.DuckDBPyConnection,
        scratch: str,
    ) -> None:
        self.url, self.selection = objects.url, selection
        self._objects, self._parts, self._database, self._scratch = objects, parts, database, scratch
        self._modules: dict[str, list[Module]] | None = None
        self._mappings: dict[str, set[tuple[int, int]]] = {}
        """Identity -> offset in the file and bytes of each mapping."""

    def relation(self, table: str, modules: Collection[str] | None = None) -> str:
        """SQL of the rows of ``table`` that are selected, with a column ``day`` before the others; of ``counts`` those
        of ``modules`` alone (identities; ``None``: of the modules that are selected)."""
        if table == "captures":
            return self._relation(table, self.selection.where)
        if modules is None:
            modules = self.modules() if self.selection.modules else None
        of_modules = "true" if modules is None else f"module IN ({', '.join(map(text, modules)) or 'NULL'})"
        if table == "modules":
            return self._relation(table, of_modules)
        buckets = None if modules is None else {bucket_of(module) for module in modules}
        return self._relation(table, f"{self.selection.where} AND {of_modules}", buckets)

    def _relation(self, table: str, where: str, buckets: Collection[int] | None = None) -> str:
        days: dict[str, list[str]] = {}
        for part in self._parts:
            if part.table == table and (buckets is None or part.bucket in buckets):
                days.setdefault(part.day, []).append(part.name)
        names = [name for found in days.values() for name in found]
        paths = dict(zip(names, self._objects.paths(names, self._scratch), strict=True))
        read = [
            f"SELECT DATE {text(day)} AS day, * FROM {read_of(TABLES[table], [paths[name] for name in found])}"
            for day, found in days.items()
        ] or [f"SELECT NULL::DATE AS day, * FROM {read_of(TABLES[table], [])}"]
        return f"(SELECT * FROM ({' UNION ALL '.join(read)}) WHERE {where})"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement of ours."""
        with failures(self.url):
            return self._database.execute(sql).fetchall()

    def columns(self, sql: str, **tables: dict[str, Array]) -> dict[str, Array]:
        """The columns of a statement of ours, which knows ``tables``, too."""
        for name, table in tables.items():
            self._database.register(name, table)
        with failures(self.url):
            return dict(self._database.execute(sql).fetchnumpy())

    def query(self, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """The columns of one SELECT statement and its rows; the tables are `schema.TABLES`, with the selected rows.

        It can read the parts of the store and nothing else, and write nothing (`closed_database`). Raises
        `SelectionError` for wrong SQL. Nothing else can be asked after it.
        """
        database = self._database
        check_utf8(sql, "the statement")
        with failures():
            kinds = [s.type.name for s in database.extract_statements(sql)]
        if kinds != ["SELECT"]:
            found = ", ".join(kind.lower() for kind in kinds) or "nothing"
            raise SelectionError(f"a query is one SELECT statement; this is {found}")
        for table in TABLES:
            if re.search(rf"\b{table}\b", sql, re.IGNORECASE):
                database.execute(f"CREATE VIEW {table} AS {self.relation(table)}").fetchall()
        with failures():
            database.execute(sql)
        columns = [str(column[0]) for column in database.description or ()]
        return columns, self._fetch_rows()

    def _fetch_rows(self) -> Iterator[tuple[Any, ...]]:
        while True:
            with failures():
                rows = self._database.fetchmany(_ROWS)
            if not rows:
                return
            yield from rows

    def listed(self, by: str = "capture") -> tuple[list[str], list[tuple[Any, ...]]]:
        """Columns and rows: each capture and event, or what there is of each module, service, host, version, day or
        event. Raises `ValueError` for another ``by``."""
        if by not in LISTED:
            raise ValueError(f"by = {by!r}: choose from {', '.join(LISTED)}")
        sql = LISTED[by]
        tables = {table: self.relation(table) for table in TABLES if f"{{{table}}}" in sql}
        return [column.title for column in STORE_LISTS[by].columns], self.rows(sql.format(**tables))

    def saturation(self) -> list[Saturation]:
        """How the shares of branches change as captures are added, for each service and module, most branches first.
        Raises as `one_event`."""
        where, folds = self.one_event(stacks=True).where, range(len(FOLDS) + 1)
        parts = ", ".join(f"sum(n) FILTER (fold >= {k}) AS n{k}" for k in folds)
        wholes = ", ".join(f"sum(n{k})::DOUBLE AS w{k}" for k in folds)
        # Without captures in a part its sum is NULL, which least() would pass over.
        overlaps = ", ".join(
            f"sum(CASE WHEN w{k} > 0 THEN least(coalesce(n{k}, 0) / w{k}, n0 / w0) END) AS o{k}" for k in folds[1:]
        )
        branch = "service, module, address, other_module, other_address"
        rows = self.rows(
            f"WITH c AS (SELECT {branch}, {parts} FROM {self.relation('counts')} "
            f"WHERE kind = 'branch' AND module <> '' AND {where} GROUP BY {branch}), "
            f"w AS (SELECT service, module, {wholes} FROM c GROUP BY service, module) "
            f"SELECT c.service, c.module, any_value(w0)::BIGINT AS branches, count(*), {overlaps} "
            "FROM c JOIN w ON c.service = w.service AND c.module = w.module GROUP BY c.service, c.module "
            "ORDER BY branches DESC, c.service, c.module"
        )
        counted = ", ".join(f"count(DISTINCT digest) FILTER (digest >= '{limit}')" for limit in ("", *FOLDS))
        of_services = self.rows(
            f"SELECT service, {counted} FROM {self.relation('captures')} WHERE {where} GROUP BY service"
        )
        captures, none = {service: numbers for service, *numbers in of_services}, [0] * len(folds)
        return [
            Saturation(service, module, branches, distinct, captures.get(service, none), [1.0, *overlap])
            for service, module, branches, distinct, *overlap in rows
        ]

    def events(self) -> dict[str, int]:
        """Event -> entries of branch stacks, of the captures that are selected."""
        captures = self.relation("captures")
        return dict(
            self.rows(
                f"SELECT event, sum(entries)::UBIGINT FROM {captures} WHERE event IS NOT NULL "
                "GROUP BY event ORDER BY event"
            )
        )

    def one_event(self, *, stacks: bool) -> Selection:
        """The selection with its events: the only event there is (with branch ``stacks``), or the events that were
        asked for. Raises `SelectionError` for several that nobody asked for, since counts of different events mean
        different things, and where no module is selected; `NotRecordedError` where there is no event."""
        return self.selection.of_events(self._one_event(stacks))

    def _one_event(self, stacks: bool) -> list[str]:
        wanted = self._each_event(stacks)
        if len(wanted) > 1 and not self.selection.events:
            hint = "choose one with --event NAME; to add up several, repeat --event or give --event '*'"
            raise SelectionError(f"the captures are of different events: {', '.join(wanted)}", hint=hint)
        return wanted

    def _each_event(self, stacks: bool) -> list[str]:
        """The events (``stacks``: only events with branch stacks) with counts of the selected modules."""
        if self.selection.modules and not self.modules():
            names = ", ".join(self.selection.modules)
            hint = "`lastbranch fleet list STORE --by module` lists them"
            raise SelectionError(f"no module is called {names}", hint=hint)
        found = self.events()
        wanted = [event for event, entries in found.items() if entries or not stacks]
        if len(wanted) > 1 and not self.selection.events and self.selection.modules:
            wanted = self._events_of(self.modules())
        if not wanted:
            why = "has branch stacks" if found else "passes the filters"
            raise NotRecordedError(f"no capture {why}")
        return wanted

    def _events_of(self, modules: Collection[str]) -> list[str]:
        """Events with counts in some of the modules, by their identities."""
        sql = f"SELECT DISTINCT event FROM {self.relation('counts', modules)} ORDER BY event"
        return [event for (event,) in self.rows(sql)]

    def scales(self) -> list[Scale]:
        """The counts that reports and exports scale, by day, service, host, version and event: those of agents."""
        group = ", ".join(("day", *LABELS, "event"))
        return [
            Scale(*row)
            for row in self.rows(
                f"SELECT {group}, sum(recorded), sum(stands_for) FROM {self.relation('captures')} "
                f"WHERE {self.selection.where} AND recorded > 0 GROUP BY {group} "
                f"HAVING sum(recorded) <> sum(stands_for) ORDER BY {group}"
            )
        ]

    def modules(self) -> dict[str, list[Module]]:
        """Identity -> the module under each of its names, of the modules that are selected."""
        if self._modules is None:
            self._modules = self._found_modules()
        return self._modules

    def _found_modules(self) -> dict[str, list[Module]]:
        names = ", ".join(f'"{name}"' for name in TABLES["modules"].keys)
        found: dict[str, list[Module]] = {}
        relation = self._relation("modules", "true")
        for values in self.rows(f"SELECT DISTINCT {names} FROM {relation} ORDER BY ALL"):
            row = dict(zip(TABLES["modules"].keys, values, strict=True))
            module = _module(row, self.url)
            known = found.setdefault(identity := row["module"], [])
            self._mappings.setdefault(identity, set()).add((row["mapped_offset"], row["mapped_size"]))
            if module not in known:  # of another mapping
                known.append(module)
        chosen = self.selection.has_module
        return {
            identity: modules
            for identity, modules in found.items()
            if any(chosen(identity, one.name, one.build_id.hex()) for one in modules)
        }

    def counts(self, *, stacks: bool = True) -> StoredCounts:
        """The counts of the selection, which are read on demand. Raises as `one_event`."""
        return self._counts_of(self._one_event(stacks))

    def counts_by_event(self) -> StoredCounts:
        """The same of any number of events, those of its ``profile``: `StoredCounts.counted` takes the name of one."""
        return self._counts_of(self._each_event(False))

    def _counts_of(self, names: Sequence[str]) -> StoredCounts:
        selection, modules = self.selection.of_events(names), self.modules()
        relation = self.relation("counts", modules if self.selection.modules else None)
        there = {module for (module,) in self.rows(f"SELECT DISTINCT module FROM {relation} WHERE {selection.where}")}
        counted = {identity: found for identity, found in modules.items() if identity in there}
        events = [Event(name, branch_select=0) for name in names]
        profile = Profile(self.url, "store of counts", events=events)
        profile.modules = [self._choose_named(found) for found in counted.values()]
        for row, identity in enumerate(counted):  # what symbols need of a debug file without its binary
            for offset, size in sorted(self._mappings[identity]):
                profile.timeline.add(Change.MAP, 0, 0, module=row, start=0, end=size, offset=offset)
        return StoredCounts(self, bind(profile), list(counted), selection)

    def _choose_named(self, modules: Sequence[Module]) -> Module:
        """A module under the name that was asked for, or else the first one."""
        asked = (one for one in modules if self.selection.modules and one.name in self.selection.modules)
        return next(asked, modules[0])


class Scale(NamedTuple):
    """Counts of some captures: an agent has ``recorded`` so many ns, which ``stands_for`` so many that the service
    ran."""

    day: date
    service: str
    host: str
    version: str
    event: str
    recorded: int
    stands_for: int

    @property
    def parts(self) -> int:
        """The weight of a count of one, in millionths. Raises `FormatError` if the weight is no number of 64 bits."""
        parts = (int(self.stands_for) * _PARTS + int(self.recorded) // 2) // int(self.recorded)
        if parts >= 1 << 63:
            raise FormatError("a capture stands for too much", field="stands_for", value=self.stands_for)
        return parts


_PARTS = 1_000_000
_ENDS = 4
"""Columns of both ends of a branch."""


def _scale_tables(scales: Sequence[Scale]) -> tuple[dict[str, dict[str, Array]], str]:
    """(tables, SQL that joins them to a relation ``c``): the parts of each row are ``s.parts``."""
    if not scales:
        return {}, ""
    group = ("day", *LABELS, "event")
    columns = {f"of_{name}": np.array([str(getattr(s, name)) for s in scales], object) for name in group}
    tables = {"scales": columns | {"parts": np.array([s.parts for s in scales], np.int64)}}
    return tables, "LEFT JOIN scales s ON " + " AND ".join(f's.of_{n} = c."{n}"::VARCHAR' for n in group)


def _between(least: float, most: float) -> str:
    few, many = f"{least:.4g}", f"{most:.4g}"
    return few if few == many else f"{few} to {many}"


_READ: dict[str, Callable[[str], object]] = {
    "kind": ModuleKind,
    "build_id": bytes.fromhex,
    "pdb_guid": lambda text: uuid.UUID(text) if text else None,
}
"""How texts of the modules table are read that are no names."""
_NOT_ITS = ("module", "mapped_offset", "mapped_size")


def _module(row: dict[str, Any], store: str) -> Module:
    """A row of the modules table. Raises `FormatError` for values that no module has."""
    facts: dict[str, Any] = {}
    for name, value in row.items():
        try:
            if value is None:
                raise ValueError
            facts[name] = _READ[name](value) if name in _READ else value
        except ValueError:
            said = "damaged: a module cannot have this"
            raise FormatError(said, file=f"{store}/modules", field=name, value=repr(value)) from None
    return Module(**{name: fact for name, fact in facts.items() if name not in _NOT_ITS})


@dataclass(slots=True)
class Saturation:
    """How much of a module's profile was there before the last captures came.

    ``branches`` in all, of so many ``distinct`` ones. For all captures, half of the captures, a quarter and an eighth:
    the number of ``captures`` (of the service), and the ``overlap`` of the shares of branches with the whole, from 0 to
    1; ``None`` if there are no captures.
    """

    service: str
    module: str
    branches: int
    distinct: int
    captures: list[int]
    overlap: list[float | None]


@dataclass(slots=True)
class StoredCounts:
    """Counts of a store: what `analysis` makes of captures, for modules of a profile that has no samples.

    ``identities`` are those of the rows of its modules table. Addresses are link addresses for modules whose binaries
    were found (`find_binaries`) before the counts are asked for.
    """

    reading: StoreReader
    profile: Profile
    identities: list[str]
    selection: Selection

    def find_binaries(self, symfs: str | None, options: SymbolOptions) -> list[str]:
        """Look for the binaries of all modules, by their identities: at their own paths or below ``symfs``, in the
        folders of ``options``, and, if these say so, at debuginfod's servers. Notes about what was refused."""
        folders = (*options.debug_dirs, *options.symbol_store)
        attach_binaries(self.profile.modules, "", symfs, folders)
        notes: list[str] = []
        if options.debuginfod and options.cache:
            from ..symbols import fetch

            for row, module in enumerate(self.profile.modules):
                if module.missing and module.build_id:
                    path = fetch(options.cache, module.build_id, "executable", notes, None)
                    if path is not None:
                        use_binary(self.profile, row, path)
        return notes

    def scale_notes(self) -> list[str]:
        """The factor from recorded numbers to counts, for each service."""
        found: dict[str, list[float]] = {}
        for scale in self.reading.scales():
            found.setdefault(scale.service, []).append(scale.parts / _PARTS)
        return [
            f"{service or 'no service'}: the counts are {_between(min(times), max(times))} times what was recorded: an "
            "agent recorded a part of the time"
            for service, times in found.items()
        ]

    def counted(self, rows: Sequence[int] = (), event: str = "") -> StackCounts:
        """The counts of the modules of these rows (no rows: all modules) and of the modules that they branch to; for
        one ``event``, or for all selected events together."""
        some = sorted(rows) or (range(len(self.identities)) if self.reading.selection.modules else [])
        # A branch that begins in one of the modules, or in none, is there as such; as an entry only where it does not.
        kinds = "a.chosen AND (kind <> 'entry' OR NOT coalesce(b.chosen, false))" if some else "kind <> 'entry'"
        names = ("n", "mispredicted", "predicted")
        scales = self.reading.scales()
        parts, half = f"coalesce(s.parts, {_PARTS})::HUGEINT", _PARTS // 2
        shape = f"(({{}} + {half}) // {_PARTS})" if scales else "({})"
        values = {name: f'c."{name}" * {parts}' if scales else f'c."{name}"' for name in names}
        weighted = (f'{shape.format(self.selection.weighted(values[name]))}::BIGINT AS "{name}"' for name in names)
        if event:
            kinds = f"({kinds}) AND {self.selection.of_events([event]).where}"
        found = self._columns(weighted, kinds, some, scales)
        kind, (a_module, a, b_module, b) = found["kind"], self._ends(found)
        entry, process = kind == CountKind.ENTRY, np.full(len(kind), -1)
        source = np.where(entry, b_module, a_module), np.where(entry, b, a)
        target = np.where(entry, a_module, b_module), np.where(entry, a, b)
        n, mispredicted, predicted = (np.asarray(found[name], np.int64) for name in names)
        if scales:  # each was rounded
            mispredicted = np.minimum(mispredicted, n)
            predicted = np.minimum(predicted, n - mispredicted)
        taken = (kind == CountKind.BRANCH) | entry
        branches = BoundPairs(process, *source, *target, n, mispredicted, predicted).take(taken)
        ranges = BoundPairs(process, a_module, a, a_module, b, n, mispredicted, predicted).take(kind == CountKind.RANGE)
        sampled = SampledAddresses(a_module, a, n).take(kind == CountKind.SAMPLE)
        sampled = sampled.take(np.lexsort((sampled.address, sampled.module)))
        samples, entries = int(sampled.count.sum()), int(branches.count.sum())
        return StackCounts(branches, ranges if len(ranges) else None, samples, entries, sampled=sampled)

    def sums(self) -> SampleSums:
        """The counts of all modules with their sums over samples, for `analysis.comparison.compare_sums`: samples have
        the same weights as in `counted`."""
        scales = self.reading.scales()
        times = f"({f'coalesce(s.parts, {_PARTS})' if scales else '1'}::HUGEINT * {self.selection.weight})"

        def weighted_sums(number: str, *sums: tuple[int, str]) -> list[str]:
            """The sum of a number, then those of others by the first or second power of what a sample stands for."""
            powers = (" * ".join([f"({value})::HUGEINT", *[times] * power]) for power, value in sums)
            return [f"coalesce(sum({number}), 0)::BIGINT", *(f"coalesce(sum({p}), 0)::DOUBLE" for p in powers)]

        of_sample = f"CASE kind WHEN '{CountKind.SAMPLE}' THEN n ELSE {{}} END".format
        present = of_sample("samples")
        sums = weighted_sums(present, (1, present), (1, "n"), (2, of_sample("squares")), (2, of_sample("crossed")))
        names = [f.name for f in fields(SummedThings)][_ENDS:]
        found = self._columns(
            (f'{value} AS "{name}"' for name, value in zip(names, sums, strict=True)),
            f"kind IN ('{CountKind.BRANCH}', '{CountKind.SAMPLE}')",
            scales=scales,
        )
        things = SummedThings(*self._ends(found), *(np.asarray(found[name]) for name in names))
        taken = found["kind"] == CountKind.BRANCH
        addresses = things.take(~taken)
        once, twice = float(addresses.part.sum()), float(addresses.part_squared.sum())
        tables, scaled = _scale_tables(scales)
        sums = weighted_sums("stacks", (1, "stacks"), (2, "stacks"), (1, "entries"), (2, "entries_squared"))
        columns = ", ".join(f"{value} AS of_{i}" for i, value in enumerate(sums))
        captures = f"{self.reading.relation('captures')} c {scaled} WHERE {self.selection.where}"
        stacks = self.reading.columns(f"SELECT {columns} FROM {captures}", **tables).values()
        number, *rest = (column[0].item() for column in stacks)
        samples = Totals(int(addresses.present.sum()), once, twice, once, twice)
        return SampleSums(things.take(taken), Totals(number, *rest), addresses, samples)

    def _columns(
        self, sums: Iterable[str], where: str, chosen: Sequence[int] = (), scales: Sequence[Scale] = ()
    ) -> dict[str, Array]:
        """``sums`` by kind and ends, of the modules in the rows ``chosen`` (all: none given)."""
        row = np.arange(len(self.identities) + 1)  # what is in no module is last
        identities = np.array([*self.identities, NOWHERE], object)
        known = {"module": identities, "row": row, "chosen": np.isin(row, list(chosen))}
        relation = self.reading.relation("counts", [self.identities[row] for row in chosen] or None)
        tables, scaled = _scale_tables(scales)
        found = self.reading.columns(
            f"SELECT kind, a.row AS a_module, address AS a, b.row AS b_module, other_address AS b, {', '.join(sums)} "
            f"FROM {relation} c JOIN known a ON a.module = c.module LEFT JOIN known b ON b.module = c.other_module "
            f"{scaled} WHERE {where} AND {self.selection.where} GROUP BY ALL",
            known=known,
            **tables,
        )
        return found | {"kind": np.asarray(found["kind"])}

    def _ends(self, found: dict[str, Array]) -> tuple[Array, Array, Array, Array]:
        """Columns ``a_module``, ``a``, ``b_module`` and ``b`` as analysis has them."""
        nowhere = len(self.identities)
        modules = (np.ma.filled(np.ma.asarray(found[name]), nowhere) for name in ("a_module", "b_module"))
        a_module, b_module = (np.where(rows == nowhere, -1, rows).astype(np.int64) for rows in modules)
        of_b = np.where(found["kind"] == CountKind.RANGE, a_module, b_module)
        return a_module, self._locate(a_module, found["a"]), b_module, self._locate(of_b, found["b"])

    def _locate(self, module: Array, address: Array) -> Array:
        """Addresses with the binaries that are known now."""
        out = np.array(np.ma.filled(np.ma.asarray(address), 0), np.uint64)
        for row, found in enumerate(self.profile.modules):
            if found.segments:
                mine = module == row
                out[mine] = with_binary(found, out[mine])
        return out
