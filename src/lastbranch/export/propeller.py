"""``--to propeller``: how clang and the linker lay out a program that is built again.

The list of clusters, for ``clang -fbasic-block-sections=list=``, has the executed blocks of each function in their
best order (`block_layout`); clang puts the others into ``NAME.cold``. Version 1 (clang 18 and newer) has,
after a line ``v1``, lines ``f`` with the function's names and ``c`` with the ids of its blocks; version 0 (any clang)
has ``!NAME`` with aliases after slashes, and ``!!``. The second file is the order of symbols for lld's
``--symbol-ordering-file``: functions in the order of `block_layout`, then the cold parts of all of them.
(LLVM's BasicBlockSectionsProfileReader.cpp; lld's documentation.)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import IO

import numpy as np

from ..analysis.function.block_layout import BlockCounts, block_counts, function_order, layout
from ..arrays import Ints
from ..binaries.block_map import BlockMap, read_block_map
from ..errors import LastbranchError, UnavailableError
from ..model import Module, counted, word
from ..opening import code_of, open_image
from ..symbols import FunctionTable, Symbolizer
from .interface import ExportOptions, ExportResult
from .line_samples import hidden_names
from .modules import ModuleCounts, ModuleFormat

__all__ = ["FORMAT"]


@dataclass(slots=True)
class _Function:
    """An executed function: its ``names``, the ids of its executed blocks in order, and what is known of these."""

    row: int
    names: tuple[str, ...]
    order: list[int]
    cold: bool
    """Whether it has other blocks."""
    size: int
    weight: int
    """Bytes executed."""


def write(counts: ModuleCounts, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the layout of a module. Raises `UnavailableError` where its binary has no block map or no names."""
    blocks = _map_of(counts.module)
    code = code_of(counts.module)
    if code is None:
        raise UnavailableError(f"the code of {word(counts.module.name)} cannot be read")
    found = block_counts(
        blocks, code, (counts.start, counts.end, counts.times), (counts.source, counts.target, counts.taken)
    )
    with Symbolizer(counts.profile, options.symbols) as symbolizer:
        table = symbolizer.functions(counts.row)
        rows = np.flatnonzero(np.bincount(blocks.function[found.executed > 0], minlength=len(blocks.entry)))
        hidden = hidden_names(symbolizer.names(counts.row, blocks.entry[rows]).functions, table)
        names, notes = _names(blocks, rows, table, hidden, word(counts.module.name))
    functions = _functions(blocks, found, names)
    calls = zip(found.caller.tolist(), found.callee.tolist(), found.calls.tolist(), strict=True)
    place = {f.row: i for i, f in enumerate(functions)}
    order = function_order(
        [f.size for f in functions],
        [f.weight for f in functions],
        {(place[a], place[b]): n for a, b, n in calls if a in place and b in place},
    )
    _write_clusters(out, [functions[i] for i in order], options.list_version)
    if options.symbol_order is not None:
        _write_order(options.symbol_order, [functions[i] for i in order])
    ranges = int(found.ranges[list(place)].sum())
    why = "the rest is in code without a block map, or contradicts it"
    return counts.exported([*blocks.notes, *found.notes, *notes], ranges, why)


def _map_of(module: Module) -> BlockMap:
    if module.is_pe or not module.binary:
        raise UnavailableError(f"{word(module.name)}: Propeller is for ELF files whose binary is there")
    try:
        source, _ = open_image(module.binary)
    except (OSError, LastbranchError) as error:
        raise UnavailableError(f"{word(module.name)}: its binary cannot be read: {error}") from error
    try:
        blocks = read_block_map(source)
    finally:
        source.close()
    if blocks is None:
        raise UnavailableError(
            f"{word(module.name)} has no map of its blocks, .llvm_bb_addr_map",
            hint="build what is recorded with clang -fbasic-block-address-map, and do not strip it",
        )
    if not len(blocks):
        raise UnavailableError("; ".join(blocks.notes) or f"{word(module.name)}: its block map is empty")
    return blocks


def _names(
    blocks: BlockMap, rows: Ints, table: FunctionTable, hidden: dict[int, str], module: str
) -> tuple[dict[int, tuple[str, ...]], list[str]]:
    """The names of the executed functions (``rows`` of the entries) that have a unique name, and notes about the other
    functions.

    clang applies a line of the list to every function of the name, so a local function would be laid out by the profile
    of another local function of the same name. ``hidden`` are `hidden_names`.
    """
    several = Counter(
        name for row, f in enumerate(table.functions) for name in {f.name, *table.aliases.get(row, ())} if name
    )
    several.update(hidden.values())
    at = np.searchsorted(table.start, blocks.entry[rows])
    names, unnamed, shared = dict[int, tuple[str, ...]](), 0, Counter[str]()
    for function, row in zip(rows.tolist(), at.tolist(), strict=True):
        if row == len(table) or int(table.start[row]) != int(blocks.entry[function]):
            unnamed += 1
            continue
        entry = int(blocks.entry[function])
        known = dict.fromkeys((table.functions[row].name, *table.aliases.get(row, ()), hidden.get(entry, "")))
        own = tuple(name for name in known if name and several[name] == 1 and not set(name) & set(" /\n\r\t"))
        if own:
            names[function] = own
        else:
            shared[table.functions[row].name] += 1
    if not names:
        raise UnavailableError(
            f"{module}: no executed function of its block map has a name",
            hint="record a binary that is not stripped, or pass its debug file with --debug-dir",
        )
    notes = []
    if unnamed:
        notes.append(f"{counted(unnamed, 'executed function')} left out: without a symbol")
    if shared:
        most = ", ".join(word(name) for name, _ in shared.most_common(3))
        notes.append(
            f"{counted(shared.total(), 'executed function')} left out: others have the same name ({most}); "
            "build with -funique-internal-linkage-names"
        )
    return names, notes


def _functions(blocks: BlockMap, counts: BlockCounts, names: dict[int, tuple[str, ...]]) -> list[_Function]:
    """The functions with ``names``, each with its blocks in their best order."""
    rows = np.argsort(blocks.function, kind="stable")
    first = np.searchsorted(blocks.function[rows], np.arange(len(blocks.entry) + 1)).tolist()
    edge_of = blocks.function[counts.source]
    by_function = np.argsort(edge_of, kind="stable")
    edges = np.searchsorted(edge_of[by_function], np.arange(len(blocks.entry) + 1)).tolist()
    return [
        _lay_out(blocks, counts, names[f], rows[first[f] : first[f + 1]], by_function[edges[f] : edges[f + 1]])
        for f in sorted(names)
    ]


def _lay_out(blocks: BlockMap, counts: BlockCounts, names: tuple[str, ...], rows: Ints, edges: Ints) -> _Function:
    """A function of these blocks (rows of the map) and edges (of the counts)."""
    entry = blocks.start[rows] == blocks.entry[blocks.function[rows[0]]]
    head = int(rows[np.argmax(entry)])
    hot = [head, *(row for row in rows[counts.executed[rows] > 0].tolist() if row != head)]
    place = {row: i for i, row in enumerate(hot)}
    sizes = (blocks.end[hot] - blocks.start[hot]).astype(np.int64)
    executed = counts.executed[hot]
    between = zip(*(column[edges].tolist() for column in (counts.source, counts.target, counts.edge)), strict=True)
    weights = {(place[a], place[b]): n for a, b, n in between if a in place and b in place}
    order = layout(sizes.tolist(), executed.tolist(), weights)
    ids = blocks.id[hot]
    return _Function(
        int(blocks.function[head]),
        names,
        ids[order].tolist(),
        len(hot) < len(rows),
        int(sizes.sum()),
        int((sizes * executed).sum()),
    )


def _write_clusters(out: IO[bytes], functions: list[_Function], version: int) -> None:
    if version:
        out.write(b"v1\n")
    for function in functions:
        names = [name.encode("utf-8", "surrogateescape") for name in function.names]
        ids = b" ".join(b"%d" % i for i in function.order)
        if version:
            out.write(b"f %b\nc %b\n" % (b" ".join(names), ids))
        else:
            out.write(b"!%b\n!!%b\n" % (b"/".join(names), ids))


def _write_order(out: IO[bytes], functions: list[_Function]) -> None:
    out.writelines(f"{f.names[0]}\n".encode("utf-8", "surrogateescape") for f in functions)
    out.writelines(f"{f.names[0]}.cold\n".encode("utf-8", "surrogateescape") for f in functions if f.cold)


FORMAT = ModuleFormat("cc_prof.txt", write, second="ld_prof.txt")
