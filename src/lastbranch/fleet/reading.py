"""What a store says: captures, modules and counts of a selection."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis import Counted
from ..analysis.counting import Bound, Sampled
from ..bind import bind, with_binary
from ..errors import NotRecordedError, SelectionError
from ..model import Array, Event, Module, ModuleKind, Profile
from ..opening import attach_binaries, use_binary
from .counting import NOWHERE
from .manifest import State
from .objects import Objects
from .parts import failures, read_of
from .schema import TABLES, Kind, bucket_of
from .selection import Selection, text

if TYPE_CHECKING:
    import duckdb

    from ..symbols import SymbolOptions

__all__ = ["LISTED", "Reading", "StoredCounts"]


_ROWS = 4096
_CAPTURES = ("captures", "refused", "samples", "entries", "lost", "damaged")


def _by(column: str, name: str) -> tuple[tuple[str, ...], str]:
    return (name, *_CAPTURES), (
        f"SELECT {column} AS said, count(DISTINCT digest) FILTER (NOT refused), "
        "count(DISTINCT digest) FILTER (refused), sum(samples)::UBIGINT, sum(entries)::UBIGINT, sum(lost)::UBIGINT, "
        "count(DISTINCT digest) FILTER (damage > 0) FROM {captures} GROUP BY said ORDER BY said"
    )


LISTED: dict[str, tuple[tuple[str, ...], str]] = {
    "capture": (
        ("file", "service", "version", "host", "time", "event", "samples", "entries", "lost", "damaged places",
         "refused", "notes", "digest"),
        "SELECT file, service, version, host, strftime(time, '%Y-%m-%d %H:%M:%S'), event, samples, entries, lost, "
        "damage, refused, notes, digest FROM {captures} ORDER BY time, file, digest, event",
    ),
    "module": (
        ("name", "identity", "captured samples", "branches", "ranges"),
        "SELECT (SELECT min(name) FROM {modules} m WHERE m.module = c.module), module, "
        "coalesce(sum(n) FILTER (kind = 'sample'), 0)::UBIGINT, "
        "coalesce(sum(n) FILTER (kind = 'branch'), 0)::UBIGINT AS branches, "
        "coalesce(sum(n) FILTER (kind = 'range'), 0)::UBIGINT FROM {counts} c GROUP BY module "
        "ORDER BY branches DESC, module",
    ),
    **{name: _by(name, name) for name in ("service", "version", "host", "event")},
    "day": _by("strftime(day, '%Y-%m-%d')", "day"),
}  # fmt: skip
"""What `Reading.list` can list: columns, and SQL."""


class Reading:
    """A store at one moment, and a selection of it. See `Store.reading`."""

    def __init__(
        self, objects: Objects, state: State, selection: Selection, database: duckdb.DuckDBPyConnection, scratch: str
    ) -> None:
        self.url, self.selection = objects.url, selection
        self._objects, self._database, self._scratch = objects, database, scratch
        self._files: list[str] = []
        """What the relations were made of."""
        self._modules: dict[str, list[Module]] | None = None
        self._parts = [part for _, part in sorted(state.parts.items()) if selection.has_day(part.day)]

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
        self._files += paths.values()
        read = [
            f"SELECT DATE '{day}' AS day, * FROM {read_of(TABLES[table], [paths[name] for name in found])}"
            for day, found in days.items()
        ] or [f"SELECT NULL::DATE AS day, * FROM {read_of(TABLES[table], [])}"]
        return f"(SELECT * FROM ({' UNION ALL '.join(read)}) WHERE {where})"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement of ours."""
        with failures():
            return self._database.execute(sql).fetchall()

    def columns(self, sql: str, **tables: dict[str, Array]) -> dict[str, Array]:
        """The columns of a statement of ours, which knows ``tables``, too."""
        for name, table in tables.items():
            self._database.register(name, table)
        with failures():
            return dict(self._database.execute(sql).fetchnumpy())

    def query(self, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """The columns of one SELECT statement and its rows; tables are those of `schema.TABLES`, of what is selected.

        It can read these tables and nothing else. Raises `SelectionError` for wrong SQL. Nothing else can be asked
        after it.
        """
        database = self._database
        with failures():
            kinds = [s.type.name for s in database.extract_statements(sql)]
        if kinds != ["SELECT"]:
            found = ", ".join(kind.lower() for kind in kinds) or "nothing"
            raise SelectionError(f"a query is one SELECT statement; this is {found}")
        for table in TABLES:
            if re.search(rf"\b{table}\b", sql, re.IGNORECASE):
                database.execute(f"CREATE VIEW {table} AS {self.relation(table)}").fetchall()
        listed = ", ".join(map(text, self._files))
        for setting in (f"allowed_paths = [{listed}]", "enable_external_access = false", "lock_configuration = true"):
            database.execute(f"SET {setting}").fetchall()
        with failures():
            database.execute(sql)
        columns = [str(column[0]) for column in database.description or ()]
        return columns, self._fetched()

    def _fetched(self) -> Iterator[tuple[Any, ...]]:
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
        columns, sql = LISTED[by]
        tables = {table: self.relation(table) for table in TABLES if f"{{{table}}}" in sql}
        return list(columns), self.rows(sql.format(**tables))

    def events(self) -> dict[str, int]:
        """Event -> entries of branch stacks, of the captures that are selected."""
        captures = self.relation("captures")
        return dict(self.rows(f"SELECT event, sum(entries)::UBIGINT FROM {captures} WHERE event IS NOT NULL "
                              "GROUP BY event ORDER BY event"))  # fmt: skip

    def one_event(self, *, stacks: bool) -> Selection:
        """The selection with the events that it is about: the one there is (with branch ``stacks``), or those that were
        asked for. Raises `SelectionError` for several that nobody asked for: counts of different events mean different
        things. Raises `NotRecordedError` where there is none."""
        found = self.events()
        wanted = [event for event, entries in found.items() if entries or not stacks]
        if len(wanted) > 1 and not self.selection.events and self.selection.modules:
            wanted = self._events_of(self.modules())
        if not wanted:
            raise NotRecordedError("no capture that is selected has branch stacks" if found else "nothing is selected")
        if len(wanted) > 1 and not self.selection.events:
            hint = "choose with --event NAME; --event '*' adds them up"
            raise SelectionError(f"the captures are of different events: {', '.join(wanted)}", hint=hint)
        return self.selection.of_events(wanted)

    def _events_of(self, modules: Collection[str]) -> list[str]:
        """Events with counts in some of the modules, by their identities."""
        sql = f"SELECT DISTINCT event FROM {self.relation('counts', modules)} ORDER BY event"
        return [event for (event,) in self.rows(sql)]

    def modules(self) -> dict[str, list[Module]]:
        """Identity -> the module under each of its names, of the modules that are selected."""
        if self._modules is None:
            self._modules = self._found_modules()
        return self._modules

    def _found_modules(self) -> dict[str, list[Module]]:
        names = ", ".join(f'"{name}"' for name in TABLES["modules"].keys)
        found: dict[str, list[Module]] = {}
        relation = self._relation("modules", "true")
        for identity, *values in self.rows(f"SELECT DISTINCT {names} FROM {relation} ORDER BY ALL"):
            module = _module(dict(zip(TABLES["modules"].keys[1:], values, strict=True)))
            found.setdefault(identity, []).append(module)
        chosen = self.selection.has_module
        return {
            identity: modules for identity, modules in found.items()
            if any(chosen(identity, one.name, one.build_id.hex()) for one in modules)
        }  # fmt: skip

    def counts(self, *, stacks: bool = True) -> StoredCounts:
        """The counts of what is selected, which are read when they are asked for. Raises as `one_event`, and
        `SelectionError` where no module is selected."""
        selection = self.one_event(stacks=stacks)
        modules = self.modules()
        if not modules and self.selection.modules:
            wanted = ", ".join(self.selection.modules)
            raise SelectionError(f"no module is {wanted}", hint="`lastbranch fleet list STORE --by module` lists them")
        events = [Event(name, branch_select=0) for name in selection.events]
        profile = Profile(self.url, "store of counts", events=events)
        profile.modules = [self._named(found) for found in modules.values()]
        return StoredCounts(self, bind(profile), list(modules), selection)

    def _named(self, modules: Sequence[Module]) -> Module:
        """A module under the name that was asked for, or else the first one."""
        asked = (one for one in modules if self.selection.modules and one.name in self.selection.modules)
        return next(asked, modules[0])


def _module(row: dict[str, Any]) -> Module:
    guid, row["pdb_guid"] = row["pdb_guid"], None
    row |= {"kind": ModuleKind(row["kind"]), "build_id": bytes.fromhex(row["build_id"])}
    module = Module(**row)
    module.pdb_guid = uuid.UUID(guid) if guid else None
    return module


_SUMMED = ("n", "mispredicted", "predicted")


@dataclass(slots=True)
class StoredCounts:
    """Counts of a store: what `analysis` makes of captures, for modules of a profile that has no samples.

    ``identities`` are those of the rows of its modules table. Addresses are link addresses for modules whose binaries
    were found (`find_binaries`) before the counts are asked for.
    """

    reading: Reading
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
            from ..symbols.debuginfod import fetch

            for row, module in enumerate(self.profile.modules):
                if module.missing and module.build_id:
                    path = fetch(options.cache, module.build_id, "executable", notes, None)
                    if path is not None:
                        use_binary(self.profile, row, path)
        return notes

    def counted(self, rows: Sequence[int] = ()) -> Counted:
        """What was counted in the modules of these rows (all of them: none given), and in what they branch to."""
        some = sorted(rows) or (range(len(self.identities)) if self.reading.selection.modules else [])
        chosen = [self.identities[row] for row in some]
        relation = self.reading.relation("counts", chosen or None)
        # A branch that begins in one of the modules, or in none, is there as such; as an entry only where it does not.
        kinds = "a.chosen AND (kind <> 'entry' OR NOT coalesce(b.chosen, false))" if chosen else "kind <> 'entry'"
        sums = ", ".join(f'({self.selection.weighted(name)})::BIGINT AS "{name}"' for name in _SUMMED)
        known = np.arange(len(self.identities) + 1)  # what is in no module is last
        modules = {
            "module": np.array([*self.identities, NOWHERE], object),
            "row": known,
            "chosen": np.isin(known, some),
        }
        return self._assembled(self.reading.columns(
            f"SELECT kind, a.row AS a_module, address AS a, b.row AS b_module, other_address AS b, {sums} "
            f"FROM {relation} c JOIN known a ON a.module = c.module LEFT JOIN known b ON b.module = c.other_module "
            f"WHERE {kinds} AND {self.selection.where} GROUP BY ALL", known=modules,
        ))  # fmt: skip

    def _assembled(self, found: dict[str, Array]) -> Counted:
        kind = np.asarray(found["kind"])
        nowhere = len(self.identities)
        a_module, b_module = (np.ma.filled(np.ma.asarray(found[name]), nowhere) for name in ("a_module", "b_module"))
        a_module, b_module = (np.where(rows == nowhere, -1, rows).astype(np.int64) for rows in (a_module, b_module))
        entry, ranged = kind == Kind.ENTRY, kind == Kind.RANGE
        a, b = self._located(a_module, found["a"]), self._located(np.where(ranged, a_module, b_module), found["b"])
        source = np.where(entry, b_module, a_module), np.where(entry, b, a)
        target = np.where(entry, a_module, b_module), np.where(entry, a, b)
        n, mispredicted, predicted = (np.asarray(found[name], np.int64) for name in ("n", "mispredicted", "predicted"))
        process = np.full(len(n), -1)
        branch = (kind == Kind.BRANCH) | entry
        branches = Bound(process, *source, *target, n, mispredicted, predicted).take(branch)
        ranges = Bound(process, a_module, a, a_module, b, n, mispredicted, predicted).take(ranged)
        sampled = Sampled(a_module, a, n).take(kind == Kind.SAMPLE)
        samples, entries = int(sampled.count.sum()), int(branches.count.sum())
        sampled = sampled.take(np.lexsort((sampled.address, sampled.module)))
        return Counted(branches, ranges if len(ranges) else None, samples, entries, sampled=sampled)

    def _located(self, module: Array, address: Array) -> Array:
        """Addresses with the binaries that are known now."""
        out = np.array(np.ma.filled(np.ma.asarray(address), 0), np.uint64)
        for row, found in enumerate(self.profile.modules):
            if found.segments:
                mine = module == row
                out[mine] = with_binary(found, out[mine])
        return out
