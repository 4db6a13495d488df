"""Counts by source line. An instruction counts as often as the ranges that hold the instruction; a line counts as often
as its most frequent instruction, in the inline context of the debugging information. Branches to the entry of a
function are its head samples, and the callee's count at the line that calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from enum import Enum, auto
from itertools import pairwise

import numpy as np

from ..analysis.counting.executed import row_of
from ..arrays import distinct, distinct_rows, distinct_stacks, sum_covering, take_rows
from ..binaries.sections import open_binary
from ..errors import LastbranchError, UnavailableError
from ..isa import Decoder
from ..model import Array, Module, Profile, counted, visible, word
from ..opening import code_of
from ..symbols import Function, FunctionTable, Names, Symbolizer, SymbolOptions
from ..symbols.backends.symbol_tables import defines_data
from .interface import ExportOptions, ExportResult
from .modules import ModuleCounts
from .sample_tree import Location, SampleTree, base_discriminator, canonical, duplication, source_name

__all__ = [
    "PART",
    "Discriminators",
    "Instructions",
    "chains_of",
    "discriminators_of",
    "entry_names",
    "hidden_names",
    "source_lines",
    "tree_of",
]


PART = re.compile(r"\.cold(\.\d+)?$")
"""End of the name of a symbol that is a part of a function that is placed apart."""
_COPY = re.compile(r"(\.(isra|constprop|lto_priv)\.\d+|\.cold)+$")
"""End of the name of a copy that gcc made, or of a part that was set apart: the lines know both by the function's."""
_REMEDY = "build with -g (clang: and -fdebug-info-for-profiling), or give --debug-dir DIR"
_REMEDY_PE = "build with DWARF: clang -g -gdwarf -fdebug-info-for-profiling, or mingw-w64's gcc -g"
_WHOLE = re.compile(r"[CD]1(?=E)")
_FLOW_VARIABLE = b"__llvm_fs_discriminator__"
_Chain = Sequence[tuple[str, Location]]


class Discriminators(Enum):
    """How a compiler makes the numbers that tell the blocks of a line apart."""

    PARTS = auto()
    """clang: a block, copies of it, and more, in one number."""
    FLOW = auto()
    """clang with ``-enable-fs-discriminator``: passes that copy blocks add bits of their own, and all of them count."""
    PLAIN = auto()
    """gcc: a number."""


_BLOCK: dict[Discriminators, Callable[[int], int]] = {
    Discriminators.PARTS: base_discriminator,
    Discriminators.FLOW: int,
    Discriminators.PLAIN: lambda discriminator: discriminator & 0xFFFF,
}
"""What of a discriminator is in a profile."""


def tree_of(counts: ModuleCounts, options: ExportOptions, plain: bool = False) -> tuple[SampleTree, ExportResult]:
    """The counts of a module by function and line, and how many of its ranges begin at a line that is known.

    ``plain``: discriminators are numbers, as gcc writes them, and not made of several parts, as clang's are.
    Raises `UnavailableError` where its code cannot be read or its functions have no lines.
    """
    recorded = counts
    counts, notes = counts.straight()
    with Symbolizer(counts.profile, options.symbols) as symbolizer:
        table = symbolizer.functions(counts.row)
        scheme = discriminators_of(symbolizer, counts.row, plain)
        code = Instructions(counts, table)
        called = counts.to_here & np.isin(counts.target, table.start)
        source = counts.source[called & counts.from_here]
        names = symbolizer.names(counts.row, np.concatenate([code.address, source, table.start]))
        notes += symbolizer.notes
    pe = counts.module.is_pe
    chains, duplicated, which = chains_of(names, table, scheme)
    if not any(chains):
        raise _without_lines(counts.module, names, notes)
    tree = SampleTree(scheme is Discriminators.FLOW)
    of_code = which[: len(code.address)]
    total, most = np.zeros(len(chains), np.int64), np.full(len(chains), -1)
    np.add.at(total, of_code, code.times * code.size)
    np.maximum.at(most, of_code[code.known], (code.times * duplicated[of_code])[code.known])
    for chain, bytes_counted, count in zip(chains, total.tolist(), most.tolist(), strict=True):
        if chain and count >= 0:
            tree.leaf(chain, bytes_counted).raise_to(chain[-1][1], count)
    others = [chains[i] for i in which[len(code.address) :].tolist()]
    _calls(tree, counts, entry_names(table, list(range(len(table))), others[len(source) :]), called, others)
    tree.finish(calls_count=not plain)
    lined = np.array([bool(chain) for chain in chains], bool)[of_code]
    row = row_of(code.address, counts.start)
    in_functions = row >= 0
    written = int(counts.times[in_functions & lined[row]].sum()) if len(lined) else 0
    lineless, outside = int(counts.times[in_functions].sum()) - written, int(counts.times[~in_functions].sum())
    places = {
        f"in code without line numbers ({_REMEDY_PE if pe else _REMEDY})": lineless,
        "outside all known functions": outside,
    }
    reasons = [f"{counted(n, 'range begins', 'ranges begin')} {place}" for place, n in places.items() if n]
    return tree, recorded.exported(notes, written, "; ".join(reasons + notes))


def source_lines(
    profile: Profile, module: int, wanted: Set[str], options: SymbolOptions | None, plain: bool = False
) -> tuple[set[tuple[str, Location]], list[str]]:
    """(function, line) of all code of the functions called ``wanted``, their own and what is inlined in them, and notes
    for the user; ``module`` is a row of the modules table. Arguments and errors are those of `tree_of`."""

    def callee_name(name: str) -> str:
        name = visible(canonical(_COPY.sub("", name)))
        return source_name(name) if plain else name

    with Symbolizer(profile, options) as symbolizer:
        table = symbolizer.functions(module)
        rows = [
            i
            for i, f in enumerate(table.functions)
            if not wanted.isdisjoint(map(callee_name, (f.name, *table.aliases.get(i, ()))))
        ]
        address, _, _ = _decode_functions(profile.modules[module], table, rows)
        names = symbolizer.names(module, address)
        scheme = discriminators_of(symbolizer, module, plain)
        notes = symbolizer.notes
    chains, _, _ = chains_of(names, table, scheme, callee_name)
    if rows and not any(chains):
        raise _without_lines(profile.modules[module], names, notes)
    return {frame for chain in chains for frame in chain}, notes


def _without_lines(module: Module, names: Names, notes: list[str]) -> UnavailableError:
    lacking = (
        "does not say on which lines functions begin (as with -g1, PDB)"
        if names.frame_line.any()
        else "has no line numbers"
    )
    hint = "; ".join([*notes, _REMEDY_PE if module.is_pe else _REMEDY])
    return UnavailableError(f"{word(module.name)} {lacking}", hint=hint)


class Instructions:
    """The instructions of every function that was executed: ``address``, ``size`` in bytes, ``kind`` of branch (`isa`),
    ``times`` executed. ``known``: what no range holds was executed 0 times, if a range begins in its function.

    The compiler takes 0 for cold, and no line for not known.
    """

    def __init__(self, counts: ModuleCounts, table: FunctionTable) -> None:
        self.address, self.size, self.kind = _decode_functions(counts.module, table, _executed_functions(counts, table))
        begun = np.zeros(len(table) + 1, bool)
        begun[_with_parts(table, distinct(table.at(counts.start)))] = True
        begun[-1] = False
        order = np.argsort(counts.end)
        self._starts, self._begun = counts.start, np.cumsum(np.append(0, counts.times))  # sorted by their starts
        self._ends, self._until = counts.end[order], np.cumsum(np.append(0, counts.times[order]))
        self.times = self.holding(self.address, self.address)
        self.known = (self.times > 0) | begun[table.at(self.address)]

    def holding(self, first: Array, last: Array) -> Array:
        """int64: how many ranges hold the instructions ``first`` and ``last``, neighbours or the same."""
        begun = self._begun[np.searchsorted(self._starts, first, side="right")]
        ended: Array = begun - self._until[np.searchsorted(self._ends, last, side="left")]
        return ended


def _decode_functions(module: Module, table: FunctionTable, rows: list[int]) -> tuple[Array, Array, Array]:
    """(address uint64, bytes int64, kind uint8) of the instructions of these functions."""
    code = code_of(module)
    if code is None:
        raise UnavailableError(f"the code of {word(module.name)} cannot be read")
    start, size = table.start[rows], (table.end[rows] - table.start[rows]).astype(np.int64)
    found, _ = Decoder(code.arch).classify(*code.read_many(start, size), start, size)
    return found.address, found.length.astype(np.int64), found.kind


def _executed_functions(counts: ModuleCounts, table: FunctionTable) -> list[int]:
    """Rows of the functions that a range begins in or goes through, and of their parts that are placed apart."""
    if not len(table) or not len(counts.start):
        return []
    begin = np.searchsorted(table.end, counts.start, side="right")
    past = np.searchsorted(table.start, counts.end, side="right")
    some = begin < past
    return _with_parts(
        table, np.flatnonzero(sum_covering(begin[some], past[some], np.ones(some.sum(), np.int64), len(table)))
    )


def _with_parts(table: FunctionTable, rows: Array) -> list[int]:
    """The functions in ``rows`` (-1 is none) and their parts that are placed apart."""
    functions = [row for row in rows.tolist() if row >= 0]
    names = {PART.sub("", table.functions[row].name) for row in functions}
    parts = (i for i, f in enumerate(table.functions) if ".cold" in f.name and PART.sub("", f.name) in names)
    return sorted({*functions, *parts})


def _compiled_names(names: Names, table: FunctionTable) -> list[str]:
    """The compiler's names of the functions of ``names``.

    A function with an alias (``__x64_sys_fork`` of ``__do_sys_fork``) has the name that DWARF gives it. DWARF's name is
    one of several symbols of the address, or no symbol at all: clang drops the symbol of a local function that has an
    alias. DWARF's short name of a mangled symbol does not count. Nor does the name of a function that has a symbol
    elsewhere: this symbol is then a label in that function. If DWARF's name is not known: a constructor or destructor
    may have one code for its two forms (C1, D1: of the complete object; C2, D2: as a base). The compiler then compiled
    the second form, and the first form is an alias.
    """
    rows = table.at(np.array([f.start for f in names.functions], np.uint64)).tolist()
    hidden = hidden_names(names.functions, table)
    found = []
    for function, row in zip(names.functions, rows, strict=True):
        others = table.aliases.get(row, ()) if function.start else ()
        callee, compiled = function.name, function.compiled
        if compiled in others or (_is_renamed(function) and hidden.get(function.start) == compiled):
            name = compiled
        else:
            second = {f"{callee[: m.end() - 1]}2{callee[m.end() :]}" for m in _WHOLE.finditer(callee) if others}
            name = next((other for other in others if other in second), callee)
        found.append(visible(canonical(_COPY.sub("", name))))  # a line break in it would begin a line of the profile
    return found


def hidden_names(functions: Sequence[Function], table: FunctionTable) -> dict[int, str]:
    """DWARF's names of ``functions``, by address, as far as no symbol of ``table`` has that name."""
    renamed = [function for function in functions if _is_renamed(function)]
    if not renamed:
        return {}
    symbols = {f.name for f in table.functions}.union(*table.aliases.values())
    return {function.start: function.compiled for function in renamed if function.compiled not in symbols}


def _is_renamed(function: Function) -> bool:
    """Whether DWARF has another name for a symbol that is neither mangled nor a copy or part (``f.isra.0``)."""
    plain = function.shown == function.name
    return bool(function.compiled) and plain and not function.name.startswith(f"{function.compiled}.")


def discriminators_of(symbolizer: Symbolizer, module: int, plain: bool = False) -> Discriminators:
    """How the discriminators of a module are made. A binary built with ``-enable-fs-discriminator`` has a variable that
    says so (createFSDiscriminatorVariable in LLVM), which llvm-profgen looks for, too."""
    if plain:
        return Discriminators.PLAIN
    files = symbolizer.files(module)
    for path in (files.binary, files.debug) if files is not None and files.kind == "elf" else ():
        with suppress(OSError, LastbranchError):
            if path and defines_data(open_binary(path), _FLOW_VARIABLE):
                return Discriminators.FLOW
    return Discriminators.PARTS


def chains_of(
    names: Names,
    table: FunctionTable,
    scheme: Discriminators = Discriminators.PARTS,
    callee_name: Callable[[str], str] = str,
) -> tuple[list[_Chain], Array, Array]:
    """(the different inline chains of addresses, outermost first, empty where no lines are known; int64 how often an
    instruction of each was duplicated; int64 row of the chain of each address).

    ``callee_name`` makes the name that is used of the linkage name of a function.
    """
    functions = [callee_name(name) for name in _compiled_names(names, table)]
    # A name with a dot in front is a section's: code of an assembler that has no functions.
    # A function that is declared in no line counts from line 0, as llvm-profgen has it, unless none is (-g1).
    declares = any(f.line > 0 for f in names.functions)
    known = [(f.line > 0 or bool(f.file) or (f.described and declares)) and f.name[:1] != "." for f in names.functions]
    declared = np.array([f.line for f in names.functions], np.int64)
    columns = names.frame_function.astype(np.int64), names.frame_line.astype(np.int64), names.frame_discriminator
    rows, frame = distinct_rows(*columns)
    function, line, discriminator = (column[rows] for column in columns)
    offset, words = ((line - declared[function]) & 0xFFFF).tolist(), discriminator.tolist()
    base = {w: _BLOCK[scheme](w) for w in set(words)}
    frames = [(functions[f], (o, base[w])) for f, o, w in zip(function.tolist(), offset, words, strict=True)]
    has_lines = [known[f] for f in function.tolist()]  # not padding, which has only the line of what is before it
    first, which = distinct_stacks([], frame, names.offsets)
    chains, duplicated = list[_Chain](), np.ones(len(first), np.int64)
    taken, bounds = (column.tolist() for column in take_rows(frame, names.offsets, first))
    for i, (begin, end) in enumerate(pairwise(bounds)):
        mine = taken[begin:end]
        use = mine and has_lines[mine[-1]]
        chains.append([frames[one] for one in reversed(mine)] if use else ())
        duplicated[i] = duplication(words[mine[0]]) if use and scheme is Discriminators.PARTS else 1
    return chains, duplicated, which


def entry_names(table: FunctionTable, rows: list[int], chains: list[_Chain]) -> dict[int, str]:
    """The names of the functions in ``rows`` of the table by the address of their entry; ``chains`` are those of these
    addresses. A part that is placed apart has no entry."""
    return {
        start: chain[0][0]
        for row, start, chain in zip(rows, table.start[rows].tolist(), chains, strict=True)
        if chain and not PART.search(table.functions[row].name)
    }


def _calls(
    tree: SampleTree, counts: ModuleCounts, entries: dict[int, str], called: Array, chains: list[_Chain]
) -> None:
    """Head samples of functions that were branched to, and call targets where the branch has a line.

    ``chains`` are those of the sources in this module.
    """
    source = iter(chains)
    columns = (counts.from_here[called], counts.target[called], counts.taken[called])
    for here, target, taken in zip(*(c.tolist() for c in columns), strict=True):
        chain = next(source) if here else ()
        callee = entries.get(target)
        if callee is None:
            continue
        if chain:
            tree.leaf(chain, 0).called(chain[-1][1], callee, taken)
        tree.top(callee).head += taken
