"""Parts of a store: Parquet files, each with rows of one table, one day and (for counts) one bucket.

`count_batch` and `reduce_parts` are the two stages of a store, each a pure function: the same captures or parts make
the same bytes under the same name, wherever and however often the function runs. Parts that exist already are not made
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays import distinct
from ..closed_database import closed_database, first_line, text
from ..errors import FormatError, SelectionError, UnavailableError
from ..model import Array, Module, temporary_folder
from .counting import CaptureFile, CountRows, ModuleKey, count_captures
from .objects import MOST_JSON, Objects, open_objects
from .schema import BUCKETS, TABLES, VERSION, StoreTable, bucket_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

__all__ = [
    "DONE",
    "Amendment",
    "Part",
    "batch_key",
    "connect",
    "count_batch",
    "failures",
    "is_name",
    "is_number",
    "merged_key",
    "read_of",
    "read_parts",
    "reduce_parts",
]

_MEMORY = 256 << 20
"""Bytes that DuckDB keeps in memory before it spills to its folder."""


_NAME = re.compile(
    r"(?P<table>captures|modules|counts)/day=(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})/"
    r"(bucket=(?P<bucket>[0-9]{2})/)?[0-9a-f]{32}\.parquet"
)
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST = 1 << 63


@dataclass(frozen=True, slots=True)
class Part:
    """A part as the manifest lists it. ``name`` is ``TABLE/day=DAY/[bucket=NN/]KEY.parquet``."""

    name: str
    rows: int
    bytes: int
    sha256: str

    @classmethod
    def read(cls, found: object, file: str) -> Part:
        """The part that ``found`` in ``file`` describes. All descriptions of a store's parts come in here, and anyone
        who can write to the store may have written anything. Raises `FormatError` with the impossible field."""
        fields = found if isinstance(found, dict) else {}
        right: dict[str, Callable[[Any], bool]] = {
            "name": is_name,
            "rows": is_number,
            "bytes": is_number,
            "sha256": lambda value: isinstance(value, str) and bool(_DIGEST.fullmatch(value)),
        }
        for field, is_right in right.items():
            if not is_right(value := fields.get(field)):
                raise FormatError("damaged: a part cannot have this", file=file, field=field, value=value)
        if unknown := fields.keys() - right.keys():
            raise FormatError("damaged: a part has no such field", file=file, field=str(min(unknown, key=str)))
        return cls(**fields)

    @property
    def table(self) -> str:
        return self.name.partition("/")[0]

    @property
    def day(self) -> str:
        return self.name.split("/")[1].removeprefix("day=")

    @property
    def bucket(self) -> int | None:
        """The bucket of its modules; ``None`` of a table that has none."""
        word = self.name.split("/")[2]
        return int(word.removeprefix("bucket=")) if word.startswith("bucket=") else None

    @property
    def group(self) -> str:
        """The folder of the part: parts of one group can be merged."""
        return self.name.rpartition("/")[0]


def is_name(value: object) -> bool:
    """Whether a part can be called so: a real day and bucket, and nothing that leads out of the store."""
    known = _NAME.fullmatch(value) if isinstance(value, str) else None
    if known is None or (known["bucket"] is not None) != (known["table"] == "counts"):
        return False
    with suppress(ValueError):
        date.fromisoformat(known["day"])
        return int(known["bucket"] or 0) < BUCKETS
    return False


def is_number(value: object) -> bool:
    """Whether this can be a number of rows or bytes, or of a commit."""
    return type(value) is int and 0 <= value < _MOST


# -- DuckDB


@contextmanager
def connect(folder: str, files: Iterable[str] = (), store: str = "") -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that can reach only these ``files`` and its own ``folder``; rows beyond its memory limit
    spill to the folder. For ``store`` see `failures`."""
    settings = {"memory_limit": f"{_MEMORY >> 20}MiB", "threads": "1", "temp_directory": folder}
    with failures(store), closing(closed_database(settings, files=files, folders=[folder])) as database:
        yield database


@contextmanager
def failures(store: str = "") -> Iterator[None]:
    """DuckDB's errors as ours, in one line. With a ``store`` the statement is our own, over parts of the store:
    DuckDB's complaint is then about the parts."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        line = first_line(error)
        missing = duckdb.OutOfMemoryException, duckdb.IOException, duckdb.InternalException
        if isinstance(error, missing):
            raise UnavailableError(line) from None
        if isinstance(error, duckdb.ConversionException | duckdb.OutOfRangeException):
            raise FormatError(f"a sum does not fit in 64 bits: {line}", file=store or None) from None
        if store:
            raise FormatError(f"its parts cannot be read: {line}", file=store) from None
        raise SelectionError(line) from None


def read_of(table: StoreTable, paths: Sequence[str]) -> str:
    """SQL that reads the files at ``paths``: a relation of ``table``'s columns, which is empty without files."""
    if not paths:
        columns = ", ".join(f'NULL::{c.type} AS "{c.name}"' for c in table.columns)
        return f"(SELECT {columns} WHERE false)"
    listed = ", ".join(map(text, paths))
    columns = ", ".join(f'"{c.name}"::{c.type} AS "{c.name}"' for c in table.columns)
    files = f"read_parquet([{listed}], hive_partitioning = false, union_by_name = {not table.sums})"
    if not table.sums:  # parts of an older version lack columns
        files = f"({read_of(table, ())} UNION ALL BY NAME SELECT * FROM {files})"
    return f"(SELECT {columns} FROM {files})"


# -- writing


def _write(
    database: duckdb.DuckDBPyConnection, folder: str, objects: Objects, select: str, group: str, key: str
) -> Part:
    """Write the rows of a SELECT statement as a part, by way of the ``folder`` of the database."""
    path = os.path.join(folder, "part.parquet")
    version = f"KV_METADATA {{lastbranch_fleet: '{VERSION}'}}"
    ((rows,),) = database.execute(
        f"COPY ({select}) TO {text(path)} (FORMAT parquet, COMPRESSION zstd, {version})"
    ).fetchall()
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    part = Part(f"{group}/{key}.parquet", rows, len(data), hashlib.sha256(data).hexdigest())
    objects.put(part.name, data)
    return part


def _merge_sql(table: StoreTable, relation: str) -> str:
    """SQL of the rows of ``relation``, those with equal keys added up, in the order of parts."""
    keys = ", ".join(f'"{name}"' for name in table.keys)
    sums = "".join(f', sum("{name}")::UBIGINT AS "{name}"' for name in table.sums)
    return f"SELECT {keys}{sums} FROM {relation} GROUP BY ALL ORDER BY {keys}"


def _merged_counts(database: duckdb.DuckDBPyConnection, relation: str) -> str:
    """`_merge_sql` of the counts table, whose few texts come in all rows: grouped and sorted as numbers of their words,
    they take half the time."""
    table = TABLES["counts"]
    texts = " UNION ALL ".join(f'SELECT DISTINCT "{name}" AS word FROM {relation}' for name in _TEXTS)
    words = f"SELECT DISTINCT word FROM ({texts}) WHERE word IS NOT NULL ORDER BY word"
    database.execute(f"CREATE TYPE word AS ENUM ({words})")  # their order is that of the list
    numbered = _columns(table, lambda name: f'"{name}"::word' if name in _TEXTS else f'"{name}"')
    said = _columns(table, lambda name: f'"{name}"::VARCHAR' if name in _TEXTS else f'"{name}"')
    return f"SELECT {said} FROM ({_merge_sql(table, f'(SELECT {numbered} FROM {relation})')})"


_TEXTS = frozenset(c.name for c in TABLES["counts"].columns if c.type == "VARCHAR")


def _columns(table: StoreTable, expression: Callable[[str], str]) -> str:
    """SQL of all columns of ``table``, by an expression for each name."""
    return ", ".join(f'{expression(c.name)} AS "{c.name}"' for c in table.columns)


def batch_key(captures: Iterable[CaptureFile]) -> str:
    """The name of the parts of these captures: by contents and labels of the captures, in any order."""
    said = sorted((c.digest, c.certain, *map(str, asdict(c.labels).values())) for c in captures)
    return _key("batch", said)


def merged_key(parts: Sequence[Part]) -> str:
    """The name of the part that ``parts``, in any order, are merged to."""
    return _key("merged", sorted((p.name, p.sha256) for p in parts))


def _key(what: str, contents: object) -> str:
    return hashlib.sha256(json.dumps([what, VERSION, contents]).encode()).hexdigest()[:32]


DONE = "done"
"""Folder of what says which parts were written: they need not be made again."""


def _once(objects: Objects, key: str, make: Callable[[], list[Part]]) -> list[Part]:
    """The parts that ``make`` writes, or has written before."""
    name = f"{DONE}/{key}.json"
    known = objects.get(name, MOST_JSON)
    if known is not None:
        return read_parts(known, f"{objects.url}/{name}")
    parts = make()
    objects.put(name, json.dumps([asdict(part) for part in parts]).encode())
    return parts


def read_parts(data: bytes, file: str) -> list[Part]:
    """The parts that a ``file`` of JSON lists. Raises `FormatError`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"damaged: {error}", file=file) from None
    if not isinstance(found, list):
        raise FormatError("damaged: no list of parts", file=file)
    return [Part.read(one, file) for one in found]


def count_batch(store: str, captures: Sequence[CaptureFile]) -> list[Part]:
    """Count captures, and write the counts as parts of the store at the address ``store``.

    They are of the store once its manifest lists them. Raises `UnavailableError` and `OSError` where they cannot be
    written; a capture that cannot be read has a row that says so.
    """
    objects, key = open_objects(store), batch_key(captures)

    def make() -> list[Part]:
        ordered = sorted(captures, key=lambda capture: capture.digest)
        found = []
        for number, (day, rows) in enumerate(count_captures(ordered)):
            with temporary_folder("lastbranch-part") as folder, connect(folder.path) as database:
                found += _write_rows(database, folder.path, objects, rows, day, _key(key, number))
        return found

    return _once(objects, key, make)


def _write_rows(
    database: duckdb.DuckDBPyConnection, folder: str, objects: Objects, rows: CountRows, day: str, key: str
) -> list[Part]:
    """The parts with the counts of one day."""
    parts, words = [], _objects(rows.words)
    counts, bucket = _sort_counts(rows.counts, words)
    word = "getvariable('words')[{} + 1]".format  # NULL of -1. Joins instead took a third of the time of writing
    columns = _columns(TABLES["counts"], lambda name: word(name) if name in _TEXTS else f"{name}::UBIGINT")
    select = f"SELECT {columns} FROM counted"
    bounds = np.flatnonzero(np.append(True, bucket[1:] != bucket[:-1])).tolist() if len(bucket) else []
    for low, high in pairwise([*bounds, len(bucket)]):
        piece = {name: column[low:high] for name, column in counts.items()}
        used = distinct(np.concatenate([distinct(piece[name]) for name in sorted(_TEXTS)]))
        used = used[used >= 0]
        database.execute("SET VARIABLE words = ?", [words[used].tolist()])
        place = np.full(len(words) + 1, -1, np.int32)  # -1 is the last one, and stays -1
        place[used] = np.arange(len(used), dtype=np.int32)
        piece |= {name: place[piece[name]] for name in _TEXTS}
        database.register("counted", piece)
        parts.append(_write(database, folder, objects, select, f"counts/day={day}/bucket={bucket[low]:02d}", key))
    lists: dict[str, list[dict[str, Any]]] = {
        "captures": [one | {"time": one["time"].replace(tzinfo=None)} for one in rows.captures],
        "modules": [_module_row(key, module) for key, module in rows.modules.items()],
    }
    for name, found in lists.items():
        if found:
            table = TABLES[name]
            declared = ", ".join(f'"{c.name}" {c.type}' for c in table.columns)
            database.execute(f"CREATE TABLE {name} ({declared})")
            marks = ", ".join("?" * len(table.columns))
            database.executemany(
                f"INSERT INTO {name} VALUES ({marks})", [[one[c.name] for c in table.columns] for one in found]
            )
            parts.append(_write(database, folder, objects, _merge_sql(table, name), f"{name}/day={day}", key))
    return parts


def _sort_counts(counts: dict[str, Array], words: Array) -> tuple[dict[str, Array], Array]:
    """The rows of the counts table, whose texts are numbers of ``words``, by bucket and then in the order of parts; and
    the bucket of each."""
    table, rank = TABLES["counts"], np.empty(len(words) + 1, np.int32)
    rank[np.argsort(words)] = np.arange(len(words), dtype=np.int32)
    rank[-1] = len(words)  # NULL comes last
    bucket = (
        np.array([*map(bucket_of, words)], np.uint8)[counts["module"]] if len(counts["n"]) else np.empty(0, np.uint8)
    )
    texts = {c.name for c in table.columns if c.type == "VARCHAR"}
    by = [rank[counts[name]] if name in texts else counts[name] for name in table.keys]
    order = np.lexsort((*by[::-1], bucket))
    return {name: column[order] for name, column in counts.items()}, bucket[order]


def _objects(words: Sequence[str]) -> Array:
    """Texts as DuckDB takes them: what is no Unicode is made visible."""
    out = np.empty(len(words), object)
    out[:] = [_unicode(word) for word in words]
    return out


def _unicode(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _module_row(key: ModuleKey, module: Module) -> dict[str, Any]:
    identity, _, offset, size = key
    known = {c.name: getattr(module, c.name, None) for c in TABLES["modules"].columns}
    texts = {"kind": str(module.kind), "build_id": module.build_id.hex(), "name": _unicode(module.name)}
    guid = str(module.pdb_guid) if module.pdb_guid else ""
    texts |= {"module": _unicode(identity), "pdb_guid": guid, "pdb_name": _unicode(module.pdb_name)}
    return known | texts | {"mapped_offset": offset, "mapped_size": size}


class Amendment(NamedTuple):
    """The final ``stands_for`` (ns) of a row of the captures table, and a further ``note``, if not empty."""

    stands_for: int
    note: str = ""


def reduce_parts(store: str, parts: Sequence[Part], amendments: Mapping[str, Amendment] | None = None) -> Part:
    """Merge parts of one group to a single part, which has the sums of the rows with the same keys. ``amendments`` are
    for the captures table, by digest.

    Raises `FormatError` where a sum does not fit in 64 bits, or a part is not as the manifest says.
    """
    objects = open_objects(store)
    key = _key("amended", [merged_key(parts), sorted(amendments.items())]) if amendments else merged_key(parts)

    def make() -> list[Part]:
        with temporary_folder("lastbranch-parts") as folder:
            paths = objects.paths([part.name for part in parts], folder.path)
            table = TABLES[parts[0].table]
            relation = read_of(table, paths)
            with connect(folder.path, paths, store) as database:
                if amendments:
                    relation = _amend_sql(database, relation, amendments)
                merged = _merged_counts(database, relation) if table.sums else _merge_sql(table, relation)
                return [_write(database, folder.path, objects, merged, parts[0].group, key)]

    (part,) = _once(objects, key, make)
    return part


def _amend_sql(database: duckdb.DuckDBPyConnection, captures: str, amendments: Mapping[str, Amendment]) -> str:
    """SQL of rows of the captures table with their amendments."""
    database.execute("CREATE TABLE amended (digest VARCHAR, stands_for UBIGINT, note VARCHAR)")
    database.executemany("INSERT INTO amended VALUES (?, ?, ?)", [[key, *one] for key, one in amendments.items()])
    notes = "concat_ws('; ', nullif(c.notes, ''), nullif(a.note, '')) AS notes"
    said = f"coalesce(a.stands_for, c.stands_for) AS stands_for, {notes}"
    return f"(SELECT c.* REPLACE ({said}) FROM {captures} c LEFT JOIN amended a USING (digest))"
