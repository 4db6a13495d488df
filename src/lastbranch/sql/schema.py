"""The tables that SQL sees, declared as data: the database and the documentation are made from `TABLES`.

The columns of a sample come from `lastbranch.model.COLUMNS`; the columns that binding, counting and naming add are
declared here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model import BRANCH, COLUMNS, FRAME

__all__ = ["GROUPS", "TABLES", "UNKNOWN", "SqlColumn", "SqlTable"]

_TYPES = {
    "int64": "BIGINT",
    "uint64": "UBIGINT",
    "int32": "INTEGER",
    "uint8": "UTINYINT",
    "bool": "BOOLEAN",
    "text": "VARCHAR",
    "label": "VARCHAR",
}


UNKNOWN = 2
"""Means NULL among the truth values that are loaded."""


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column: ``kind`` is a NumPy dtype, ``text``, or ``label`` (a row of the names that are met; SQL sees the name).

    ``none`` is the number that means NULL in what is loaded.
    """

    name: str
    kind: str
    unit: str
    meaning: str
    none: int | None = None

    @property
    def type(self) -> str:
        """Its type in SQL."""
        return _TYPES[self.kind]

    @property
    def stored(self) -> str:
        """Its type as it is loaded."""
        return "INTEGER" if self.kind == "label" or self.unit.endswith(".id") else self.type


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table: ``row`` says what one row is."""

    name: str
    row: str
    columns: tuple[SqlColumn, ...]


def _row(name: str, table: str, what: str) -> SqlColumn:
    return SqlColumn(name, "int64", table, what, none=-1)


def _text(name: str, meaning: str) -> SqlColumn:
    return SqlColumn(name, "text", "", meaning)


def _count(name: str, meaning: str, unit: str = "entries") -> SqlColumn:
    return SqlColumn(name, "int64", unit, meaning)


def _address(name: str, meaning: str) -> SqlColumn:
    return SqlColumn(name, "uint64", "address", meaning)


def _function(name: str, of: str) -> SqlColumn:
    return SqlColumn(name, "label", "", f"demangled name of the function of {of}; NULL if unknown")


def _recorded_columns(group: str) -> tuple[SqlColumn, ...]:
    """Columns of a sample batch. Rows of the events table, which -1 never is, stay as they are."""
    return tuple(SqlColumn(c.name, c.dtype, c.unit, c.meaning) for c in COLUMNS if c.group == group)


_TIMES = (
    SqlColumn("start_time", "int64", "ticks", "when it began; NULL: before the capture"),
    SqlColumn("end_time", "int64", "ticks", "when it ended; NULL: after the capture"),
)
_ID = SqlColumn("id", "int64", "row", "row number, from 0, which other tables refer to")
_OWNER = (
    SqlColumn("sample", "int64", "samples.sample", "its sample"),
    SqlColumn("position", "int32", "index", "place within the sample, from 0"),
    SqlColumn("event", "int32", "events.id", "event of the sample"),
    _row("process", "processes.id", "process that the sample was taken in; NULL unknown"),
    _row("thread", "threads.id", "thread that the sample was taken in; NULL unknown"),
)
_PLACE = (
    _row("module", "modules.id", "module that owned the address then; NULL: nothing was mapped"),
    _address("address", "address within the module: the link address where the binary is available"),
)
_ENDS = (
    _row("from_module", "modules.id", "module of the branch instruction; NULL: nothing was mapped"),
    _address("from_address", "its address within that module"),
    _row("to_module", "modules.id", "module of the branch target; NULL: nothing was mapped"),
    _address("to_address", "the address within that module"),
    _function("from_function", "the branch"),
    _function("to_function", "its target"),
)
_TYPE = _text("type", "type of the branch: cond, call, ret...; NULL where not recorded")
_PROCESS = _row("process", "processes.id", "process; NULL unknown")

_ALL = (
    SqlTable("captures", "a file that was opened; several can be opened together", (
        _ID,
        _text("name", "name of the file"),
        _text("format", "its format"),
        _text("recorder", "what recorded it"),
        _text("host", "where it was recorded"),
        _count("start_unix_ns", "when its first event was, since 1970-01-01 UTC; NULL unknown", "ns"),
        _count("samples", "its samples", "samples"),
        _count("entries", "its branch entries"),
        _count("weight", "how often its samples count in edges, ranges and stacks; elsewhere each is a row", ""),
    )),
    SqlTable("modules", "a binary, or other memory with code, that was mapped", (
        _ID,
        _text("name", "full path as recorded"),
        _text("short", "last part of the name"),
        _text("kind", "file, kernel, kernel module, vdso, anonymous"),
        _text("build_id", "ELF build id, hexadecimal"),
        _text("pdb_guid", "GUID of the PDB"),
        _count("pdb_age", "age of the PDB", ""),
        _text("pdb_name", "name of the PDB"),
        _count("timestamp", "PE TimeDateStamp", "s"),
        _count("checksum", "PE checksum", ""),
        _count("size", "size of its address range; 0 unknown", "bytes"),
        _address("image_base", "preferred base of a PE"),
        _text("binary", "file that is used for it"),
        _text("missing", "why no binary is used"),
    )),
    SqlTable("processes", "one life of a process id", (
        _ID,
        _count("pid", "process id", "id"),
        _text("name", "name of its program"),
        _count("parent", "pid of its parent; -1 unknown", "id"),
        *_TIMES,
        _text("command_line", "its arguments"),
        _count("exit_code", "how it ended", ""),
        _count("cpu_ns", "CPU time in the recording; NULL unknown", "ns"),
        SqlColumn("capture", "int64", "captures.id", "the capture that has it"),
    )),
    SqlTable("threads", "one thread of a process", (
        _ID,
        _count("tid", "thread id", "id"),
        _row("process", "processes.id", "its process"),
        _text("name", "its name"),
        *_TIMES,
        _count("cpu_ns", "CPU time in the recording; NULL unknown", "ns"),
    )),
    SqlTable("events", "one event that triggered samples", (
        _ID,
        _text("name", "name of the event"),
        _count("period", "events between two samples; 0 with a frequency", "events"),
        _count("frequency", "requested samples per second; 0: a fixed period", "Hz"),
        SqlColumn("branch_select", "uint64", "bits", "requested branches; NULL: no branch stacks"),
        _text("branch_select_kind", "notation of branch_select: perf, etw"),
        SqlColumn("has_callchain", "bool", "", "samples have call chains"),
        SqlColumn("has_period", "bool", "", "samples have periods of their own"),
    )),
    SqlTable("samples", "one sample, in file order", (
        SqlColumn("sample", "int64", "row", "number of the sample, from 0"),
        SqlColumn("stream", "int64", "index", "its stream of the profile"),
        *_recorded_columns("sample"),
        SqlColumn("time_ns", "int64", "ns", "when, since the first event of the capture"),
        *_OWNER[3:],
        *_PLACE,
        _function("function", "ip"),
        SqlColumn("depth", "int32", "entries", "depth of its branch stack"),
    )),
    SqlTable("branches", "one entry of the branch stack of a sample, newest first", (
        *_OWNER, *_recorded_columns(BRANCH), *_ENDS,
        SqlColumn("mispredicted", "bool", "", "the prediction was wrong; NULL where not recorded", none=UNKNOWN),
        SqlColumn("predicted", "bool", "", "the prediction was right; NULL where not recorded", none=UNKNOWN),
        SqlColumn("in_tx", "bool", "", "in a transaction"),
        SqlColumn("abort", "bool", "", "aborted a transaction"),
        SqlColumn("cycles", "int64", "cycles", "cycles since the previous branch; NULL where not recorded", none=0),
        _TYPE,
    )),
    SqlTable("frames", "one frame of the call chain of a sample, leaf first", (
        *_OWNER, *_recorded_columns(FRAME), *_PLACE, _function("function", "the frame"),
    )),
    SqlTable("counters", "one counter value that was read with a sample", (*_OWNER, *_recorded_columns("read"))),
    SqlTable("user_registers", "one user register of a sample", (*_OWNER, *_recorded_columns("user_regs"))),
    SqlTable("interrupt_registers", "one register of a sample at the interrupt", (
        *_OWNER, *_recorded_columns("intr_regs"),
    )),
    SqlTable("edges", "one distinct branch of a process, counted", (
        _PROCESS, *_ENDS,
        _count("count", "number of its entries in the branch stacks"),
        SqlColumn("mispredicted", "int64", "entries", "of these, mispredicted; NULL if no entry records it", none=-1),
        SqlColumn("predicted", "int64", "entries", "of these, predicted correctly; NULL if no entry records "
            "it", none=-1),
        SqlColumn("cycles", "int64", "cycles", "sum over the timed entries; NULL if there are none", none=0),
        _count("timed", "entries with recorded cycles"),
        _count("in_tx", "entries in transactions"),
        _count("aborts", "entries that aborted a transaction"),
        _text("type", "type of the branch; NULL where it is not recorded, or entries disagree"),
    )),
    SqlTable("ranges", "one distinct range of code of a process that ran without a taken branch, counted", (
        _PROCESS,
        _row("module", "modules.id", "its module; NULL: nothing was mapped"),
        _address("start_address", "address of its first instruction"),
        _address("end_address", "address of its last instruction, a branch that was taken"),
        _function("function", "its first instruction"),
        _count("count", "how often it ran, from the branch stacks", "times"),
    )),
    SqlTable("stacks", "one distinct call stack of an event and process", (
        _ID,
        SqlColumn("event", "int64", "events.id", "event of the samples"),
        _PROCESS,
        _count("samples", "samples that have it", "samples"),
        SqlColumn("period", "uint64", "events", "events that these represent"),
        _count("depth", "its frames", "frames"),
    )),
    SqlTable("stack_frames", "one frame of a distinct call stack", (
        SqlColumn("stack", "int64", "stacks.id", "its stack"),
        SqlColumn("position", "int64", "index", "place within the stack: 0 is the leaf"),
        *_PLACE, _function("function", "the frame"),
    )),
)  # fmt: skip

TABLES: dict[str, SqlTable] = {table.name: table for table in _ALL}
"""Tables by name."""

GROUPS = {
    "samples": "sample",
    "branches": BRANCH,
    "frames": FRAME,
    "counters": "read",
    "user_registers": "user_regs",
    "interrupt_registers": "intr_regs",
}
"""Table -> group of the columns of batches that it shows. Its rows may be too many for memory."""
