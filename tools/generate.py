"""Write what is made from the code: in docs/reference command line, columns, Python API, and the types of the TBRW API.

    python tools/generate.py [--check]

``--check`` writes nothing and ends with 1 if a page is not what the code says.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path

import click

import lastbranch
from document_reference import document_reference
from etw_reference import etw_reference
from lastbranch import analysis, etw, fleet, model
from lastbranch.answers.catalogue import TABLE_KINDS
from lastbranch.answers.columns import To
from lastbranch.cli import VERBS, cli
from lastbranch.fleet import schema as store
from lastbranch.formats.etl import kernel_names
from lastbranch.formats.etl.kernel.layouts import LAYOUTS
from lastbranch.model import COLUMNS
from lastbranch.sql import TABLES
from tbrw_headers import exports, samprec_shared_h, tbrw_h, tbrw_types_h
from tbrw_types import stub

HERE = Path(__file__).parents[1] / "docs" / "reference"


def command_line() -> str:
    lines = ["# Command line", "", "Made from the help texts: `lastbranch VERB --help` prints the same.", ""]
    context = click.Context(cli, info_name="lastbranch", max_content_width=100, terminal_width=100)
    lines += ["```text", cli.get_help(context), "```", ""]
    for verb in VERBS:
        command = cli.get_command(context, verb)
        assert command is not None
        for name, text in _helps(command, verb, context):
            lines += [f"## {name}", "", "```text", text, "```", ""]
    return "\n".join(lines)


def _helps(command: click.Command, name: str, parent: click.Context) -> Iterator[tuple[str, str]]:
    """(name, help) of ``command`` and of the commands in it."""
    word = name.split()[-1]
    context = click.Context(command, info_name=word, parent=parent, max_content_width=100, terminal_width=100)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _helps(found, f"{name} {inner}", context)


def columns() -> str:
    lines = [
        "# Columns of a sample batch",
        "",
        "Made from `lastbranch.model.columns.COLUMNS`. A column belongs to a group: `sample` has one value a sample;",
        "each other group is ragged, with `batch.offsets[group]` (samples + 1) into its values. Columns that are not",
        "required are absent from a batch whose source lacks them.",
        "",
        "| column | dtype | unit | group | required | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for c in COLUMNS:
        lines.append(f"| `{c.name}` | {c.dtype} | {c.unit} | {c.group} | {'' if c.optional else 'yes'} | {c.meaning} |")
    lines += [
        "",
        "[Observed counts and executions](../concepts/executions.md#where) lists the columns `share of time %`,",
        "`share of executions %` and `executions` that verbs print, and their keys in csv and json.",
    ]
    return "\n".join([*lines, ""])


def answers() -> str:
    lines = [
        "# Columns of tables",
        "",
        "Made from the declarations in `lastbranch.answers`. A table in a terminal has the titles, csv and json have",
        "the keys. A dash means that the terminal lacks the column. A table leaves out columns that are empty in all",
        "rows. If a share is known to follow time or executions, its title and key say so: `share of time %`,",
        "`share_of_time_percent` ([observed counts and executions](../concepts/executions.md#where)).",
        "",
    ]
    for kind in TABLE_KINDS:
        lines += [f"## {kind.name[:1].upper()}{kind.name[1:]}", "", f"A row is {kind.row}.", ""]
        lines += ["| title | key | unit | meaning |", "|---|---|---|---|"]
        for c in kind.columns:
            if c.to & To.VERBS:
                title = f"`{c.title}`" if c.to & To.PEOPLE else "-"
                lines.append(f"| {title} | `{c.key}` | {c.unit} | {_cell(c.meaning)} |")
        lines.append("")
    return "\n".join(lines)


def api() -> str:
    lines = [
        "# Python API",
        "",
        "Made from the docstrings. A guide with examples: [Python](../guides/python.md). Every class and function",
        "is listed under the module that it is imported from.",
        "",
    ]
    for module, names in _PUBLIC.items():
        lines += [f"## {module.__name__}", ""]
        for name in names:
            lines += _described(name, getattr(module, name))
    return "\n".join(lines)


_PUBLIC = {
    lastbranch: [name for name in lastbranch.__all__ if not name.startswith("__")],
    analysis: [
        "names", "annotate", "call_stacks", "callers", "callees", "find_functions", "fold", "Annotation", "Blocks",
        "BranchTable", "CallStacks", "CallTable", "Edges", "Flow", "Label", "Loop", "NameTable", "Namer", "Place",
        "RangeTable", "WeightTable",
    ],
    model: [
        "Clock", "Cpu", "Event", "Machine", "Module", "ModuleKind", "Node", "Process", "SampleStream", "Segment",
        "Thread",
    ],
    fleet: [
        "Store", "Labels", "Selection", "StoreReader", "StoredCounts", "Saturation", "AddResult", "VerifyResult",
        "CaptureFile", "Part", "capture_file", "count_batch", "reduce_parts", "in_turn",
    ],
    etw: [
        "Session", "Provider", "sessions", "consume", "ConsumedEvent", "profile_sources", "profile_interval",
        "set_profile_interval", "configure_profile_sources", "provider_guid", "event_id_filter", "pid_filter",
        "EventDescriptor", "ProfileSource", "SessionRequest", "SessionState", "Filter", "EtwError",
    ],
}  # fmt: skip
"""Module -> its public names."""


def _described(name: str, thing: object) -> list[str]:
    """A section about a class or function."""
    if not inspect.isclass(thing):
        return [f"### {name}", "", "```python", f"{name}{inspect.signature(thing)}", "```", "", _doc(thing), ""]
    lines, notes = [f"### {name}", "", _doc(thing), ""], _notes(thing)
    declared = {f.name: str(f.type) for f in fields(thing)} if is_dataclass(thing) else {}
    if issubclass(thing, tuple):  # a named one: its annotations are forward references
        declared = {name: kind.__forward_arg__ for name, kind in thing.__annotations__.items()}
    named = {n: repr(m.value) for n, m in getattr(thing, "__members__", {}).items()}  # of an enumeration
    if declared or named:
        lines += [f"| {'field | type' if declared else 'name | value'} | |", "|---|---|---|"]
        for field, kind in (declared or named).items():
            lines.append(f"| `{field}` | `{_cell(kind)}` | {notes.get(field, '')} |")
        lines.append("")
    return lines + _members(name, thing)


def _notes(thing: type) -> dict[str, str]:
    """The texts that follow the fields of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    assert isinstance(tree, ast.ClassDef)
    notes = {}
    for one, following in pairwise(tree.body):
        match one, following:
            case (
                ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]),
                ast.Expr(ast.Constant(str(text))),
            ):
                notes[name] = " ".join(_cell(text.replace("``", "`")).split())
    return notes


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _members(name: str, thing: type) -> list[str]:
    lines = []
    for member, value in vars(thing).items():
        target = value.fget if isinstance(value, property) else value
        if member.startswith("_") or not inspect.isfunction(target) or not target.__doc__:
            continue
        head = member if isinstance(value, property) else f"{member}{inspect.signature(target)}"
        lines += [f"#### `{name}.{head}`", "", _doc(target), ""]
    return lines


def _doc(thing: object) -> str:
    return (inspect.getdoc(thing) or "").replace("``", "`")


def etl_events() -> str:
    lines = [
        "# Kernel events that are decoded",
        "",
        "Made from the tables in `lastbranch.formats.etl.kernel.layouts`. Names are those of Microsoft's own reader",
        "where it prints the field. A version that is not listed is read as the newest lower one; bytes after the",
        "known fields are kept as `rest`. Self-describing (TraceLogging) events and events whose manifest is in the",
        "log, or is given (--manifest), are decoded by that; all others stay raw and are counted.",
        "",
        "| event | versions | fields of the newest |",
        "|---|---|---|",
    ]
    for key, versions in sorted(LAYOUTS.items(), key=lambda item: kernel_names(item[0])):
        newest = versions[max(versions)]
        number = f"{key[0]:#04x}/{key[1]:#04x}" if isinstance(key[0], int) else f"{key[1]}"
        fields = ", ".join(newest.names) or "none"
        lines.append(
            f"| `{'/'.join(kernel_names(key))}` ({number}) | {', '.join(map(str, sorted(versions)))} | {fields} |"
        )
    return "\n".join([*lines, ""])


def sql_tables() -> str:
    lines = [
        "# SQL",
        "",
        "Made from `lastbranch.sql.TABLES`: the tables of `lastbranch query FILE SQL`, of `profile.sql(SQL)` in",
        "Python, and of `lastbranch.query(profile, SQL)`, which has options. One SELECT statement is run by",
        "DuckDB, in its [dialect](https://duckdb.org/docs/stable/sql/introduction); only the columns that it",
        "reads are loaded. The database is in memory, spills to a private folder, and can neither read nor write",
        "files, nor load extensions.",
        "",
        "A unit like `modules.id` is a row of that table. Columns that the capture lacks are NULL. A table whose",
        "rows no sample of the capture can have is an error (exit code 4). Raw data, copies of the stack and AUX",
        "snapshots are in no table: the batches in Python have them.",
        "",
    ]
    for table in TABLES.values():
        lines += [f"## {table.name}", "", f"A row is {table.row}.", "", "| column | type | unit | meaning |"]
        lines += ["|---|---|---|---|"]
        lines += [f"| `{c.name}` | {c.type} | {c.unit} | {_cell(c.meaning)} |" for c in table.columns]
        lines.append("")
    return "\n".join(lines)


def fleet_store() -> str:
    counts = "counts/day=YYYY-MM-DD/bucket=NN/KEY.parquet"
    lines = [
        "# The store of counts",
        "",
        "Made from `lastbranch.fleet.schema`. A store is a folder of Parquet files, on a disk or in a bucket: any",
        f"program that reads Parquet can read a store. This is version {store.VERSION} of the layout; lastbranch",
        "refuses a store of a newer version, and reads a store of an older version.",
        "",
        "| object | what it is |",
        "|---|---|",
        "| `manifest/NUMBER.json` | a commit: the added and the removed parts. A commit gets the next number, and only "
        "one writer can create that file; other writers start again. Every 32nd commit lists all parts (`whole`) |",
        f"| `{counts}` | a part of `counts`: of captures of one day (UTC), and of the modules of one bucket: CRC-32 of "
        f"the identity (UTF-8), modulo {store.BUCKETS} |",
        "| `captures/day=.../KEY.parquet`, `modules/day=.../KEY.parquet` | parts of the other tables |",
        "| `done/KEY.json` | parts that are written and not committed yet: the same work is not done again |",
        "",
        "A part belongs to the store if the newest state of the manifest lists it, whatever else the folders hold. KEY",
        "depends on the counted or merged inputs, and the same work gives the same bytes. A commit lists for each part",
        "its rows, bytes and SHA-256. Rows are sorted by the columns, in the order of these tables.",
        "",
        "All numbers of `counts` after `fold` are sums. Rows whose other columns are the same can be in several parts:",
        "add them up. A sum that does not fit in 64 bits is an error.",
        "",
    ]
    for table in store.TABLES.values():
        lines += [
            f"## {table.name}",
            "",
            f"A row is {table.row}.",
            "",
            "| column | type | | meaning |",
            "|---|---|---|---|",
        ]
        lines += [f"| `{c.name}` | {c.type} | {'' if c.key else 'sum'} | {_cell(c.meaning)} |" for c in table.columns]
        lines.append("")
    lines += [
        "## Read it with DuckDB",
        "",
        "`lastbranch fleet query STORE SQL` shows these tables, with a column `day`. Without lastbranch:",
        "",
        "```sql",
        "SELECT module, sum(n) FROM read_parquet('STORE/counts/*/*/*.parquet') WHERE kind = 'branch' GROUP BY module",
        "```",
        "",
        "This statement counts merged parts twice until they are deleted (`fleet compact --keep 0` deletes them",
        "at once): only the manifest's list of parts is right.",
        "",
        "## Who can write to it",
        "",
        "Whoever can write to a store can put anything into it, so lastbranch treats a store as untrusted input.",
        "Names, sizes, checksums and times of a commit must be as this page says; otherwise lastbranch refuses the",
        "commit, with the field and its value. Names never lead out of the store, and a store in a folder has neither",
        "symbolic links nor devices (the folder itself may be a link). SQL, also that of `fleet query`, runs in a",
        "database that can read the parts of this store and nothing else: no other files, no network, no",
        "extensions. Counts and names of modules are not checked: give write access only to people whose counts you",
        "trust.",
        "",
    ]
    return "\n".join(lines)


PAGES = {
    "cli.md": command_line, "columns.md": columns, "answers.md": answers, "api.md": api, "etl-events.md": etl_events,
    "../../src/lastbranch/tbrw/__init__.pyi": stub,
    "../../src/lastbranch/tbrw/c/tbrw.h": tbrw_h, "../../src/lastbranch/tbrw/c/tbrw_types.h": tbrw_types_h,
    "../../src/lastbranch/tbrw/c/samprec_shared.h": samprec_shared_h, "../../src/lastbranch/tbrw/c/exports.h": exports,
    "sql.md": sql_tables, "fleet-store.md": fleet_store, "etw.md": etw_reference,
    "documents.md": document_reference,
}  # fmt: skip


def main() -> int:
    stale = []
    for name, make in PAGES.items():
        path, text = HERE / name, make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if stale:
        print(("not up to date: " if "--check" in sys.argv else "written: ") + ", ".join(stale))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
