"""The tables of a store, declared as data: its Parquet files, the views that SQL sees and the documentation are made of
`TABLES`.

All numbers of `counts` are sums, so parts of a store are merged by adding up what has the same keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

__all__ = [
    "BUCKETS",
    "FOLDS",
    "LABELS",
    "TABLES",
    "VERSION",
    "CountKind",
    "StoreColumn",
    "StoreTable",
    "bucket_of",
    "fold_of",
]

VERSION = 2
"""The version of the layout. A store of a newer version is refused; version 1 had no ``recorded`` and
``stands_for``."""
BUCKETS = 64
"""Counts of a day are in so many groups of modules: a module's are in one of them."""
LABELS = ("service", "host", "version")
"""The labels that a user gives to added captures."""


class CountKind:
    """The kind of a row of `counts`."""

    BRANCH = "branch"
    ENTRY = "entry"
    RANGE = "range"
    SAMPLE = "sample"


@dataclass(frozen=True, slots=True)
class StoreColumn:
    """A column: its type in SQL, and whether rows that differ in this column stay apart (``key``) or are added up."""

    name: str
    type: str
    meaning: str
    key: bool = True


@dataclass(frozen=True, slots=True)
class StoreTable:
    """A table: ``row`` says what one row is. Parts are sorted by the columns, in their order."""

    name: str
    row: str
    columns: tuple[StoreColumn, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns whose values no two rows share."""
        return tuple(c.name for c in self.columns if c.key)

    @property
    def sums(self) -> tuple[str, ...]:
        """The columns that are added up where the keys are the same."""
        return tuple(c.name for c in self.columns if not c.key)


def _text(name: str, meaning: str) -> StoreColumn:
    return StoreColumn(name, "VARCHAR", meaning)


def _number(name: str, meaning: str) -> StoreColumn:
    return StoreColumn(name, "UBIGINT", meaning)


def _sum(name: str, meaning: str) -> StoreColumn:
    return StoreColumn(name, "UBIGINT", meaning, key=False)


_LABELS = (
    _text("service", "the service of the program, as given when the capture was added; empty: not given"),
    _text("host", "the host: as given when the capture was added, else from the capture"),
    _text("version", "the version of the service; empty: not given"),
)
_FOLD = _number("fold", "part of the captures, by digest: 0 is half of them, 1 a quarter, 2 an eighth, 3 the rest")
_EVENT = _text("event", "name of the event whose samples these are")
_MODULE = _text(
    "module",
    "identity of the module: build-id:HEX, pdb:GUID:AGE, pe:TIMESTAMP:SIZE; path:DIGEST:NAME for a module without "
    "identity, which belongs to its capture only",
)

_COUNTS = StoreTable(
    "counts", "a branch, an entry, a range or a sampled address of a module, with its counts",
    (
        _MODULE,
        _text("kind", "branch: a taken branch in the module; entry: a branch from elsewhere into the module, "
              "also a branch of another module; range: code run without a taken branch; sample: a sampled address"),
        _number("address", "of the branch, of the target of an entry, of the first instruction of a range, of the "
                "sample: offset in the file of an ELF module, from the base of a PE, from _text of a kernel, from the "
                "start of any other"),
        _text("other_module", "branch: module of the target; entry: module of the branch; NULL: memory without a file, "
              "or none, and for other kinds"),
        _number("other_address", "address in other_module, 0 if it is NULL; range: address of the last instruction"),
        *_LABELS,
        _EVENT,
        _FOLD,
        _sum("n", "how often: entries of branch stacks, ranges between them, samples"),
        _sum("mispredicted", "mispredicted branches"),
        _sum("predicted", "correctly predicted branches; 0 in both columns: not recorded"),
        _sum("cycles", "cycles since the previous branch, over the branches with recorded cycles"),
        _sum("timed", "branches with recorded cycles"),
        _sum("samples", "samples whose branch stack has the branch, entry or range"),
        _sum("squares", "sum over the samples: n of the sample, squared"),
        _sum("crossed", "sum over the samples: n of the sample times the entries of the sample's branch stack"),
    ),
)  # fmt: skip

_CAPTURES = StoreTable(
    "captures", "an event of a capture that was added; one row without an event where a capture was refused",
    (
        _text("digest", "SHA-256 of the file, hexadecimal"),
        _EVENT,
        *_LABELS,
        StoreColumn("time", "TIMESTAMP", "time of the recording (UTC): as given when the capture was added, else from "
                    "the capture, else the file's last change"),
        _text("file", "name of the file when it was added"),
        _text("format", "format of the file"),
        _number("bytes", "size of the file"),
        _number("period", "events between two samples; 0: sampled by frequency"),
        _number("recorded", "ns for which an agent recorded; 0 where the capture was added by `fleet add`"),
        _number("stands_for", "part of the service's run time that the recording represents, in ns. Reports, "
                "exports and diff scale counts by stands_for / recorded, each summed over the captures of a day, host, "
                "service, version and event"),
        _number("samples", "samples of the event"),
        _number("stacks", "of these, with branch entries"),
        _number("entries", "entries of their branch stacks"),
        _number("entries_squared", "sum over the samples of the square of their entries"),
        _number("outside", "of these entries, with an end in no module, or in memory without a file"),
        _number("lost", "samples and records that the recorder says were lost"),
        _number("damage", "places of the file that could not be read"),
        _text("notes", "damage, missing ranges, or why the capture was refused"),
        StoreColumn("refused", "BOOLEAN", "whether the capture was refused, so that nothing of it was counted"),
    ),
)  # fmt: skip

_MODULES = StoreTable(
    "modules",
    "a module with one of its names and one of its mappings",
    (
        _MODULE,
        _text("name", "full path as recorded"),
        _text("kind", "file, kernel, kernel module, vdso"),
        _text("build_id", "ELF build id, hexadecimal"),
        _text("pdb_guid", "GUID of the PDB"),
        _number("pdb_age", "age of the PDB"),
        _text("pdb_name", "name of the PDB"),
        _number("timestamp", "PE TimeDateStamp"),
        _number("checksum", "PE checksum"),
        _number("size", "bytes of its address range, of a PE; 0 unknown"),
        _number("image_base", "preferred base of a PE"),
        _number("mapped_offset", "ELF with a build id: offset in the file at which the mapping begins"),
        _number("mapped_size", "bytes of this mapping; lets a debug file give names if the binary is missing"),
    ),
)

TABLES: dict[str, StoreTable] = {table.name: table for table in (_COUNTS, _CAPTURES, _MODULES)}
"""Tables by name. A part of `counts` is of one day and bucket, one of another table of a day."""


FOLDS = ("80", "c0", "e0")
"""The lower bounds of the folds' digests: captures of fold ``k`` and of later folds together are one in 2**k."""


def fold_of(digest: str) -> int:
    """The fold of a capture."""
    return sum(digest >= limit for limit in FOLDS)


def bucket_of(module: str) -> int:
    """The bucket that the counts of a module are in."""
    return crc32(module.encode()) % BUCKETS
