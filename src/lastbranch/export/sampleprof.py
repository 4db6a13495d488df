"""``--to sampleprof``: LLVM's text sample profile, for ``clang -fprofile-sample-use``.

Each instruction counts as often as the ranges that hold it; a line as often as the most frequent of its instructions,
in the inline context given by the debugging information. Branches to the entry of a function are its head samples,
and the callee's count at the line that calls. The same counts give the text that llvm-profgen makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import IO

import numpy as np

from ..arrays import covered, distinct_rows, distinct_stacks
from ..errors import UnavailableError
from ..isa import Decoder
from ..model import Array, Module, Profile, counted, visible, word
from ..opening import code_of
from ..symbols import FunctionTable, Names, Symbolizer, SymbolOptions
from .interface import Exported, ExportOptions
from .modules import ModuleCounts, ModuleFormat

__all__ = [
    "FORMAT", "FunctionSamples", "Location", "SampleTree", "base_discriminator", "canonical", "duplication",
    "source_lines", "source_name", "tree_of",
]  # fmt: skip


# -- LLVM's sample profile as a tree of functions and what is inlined in them, and its text form
#
# The text (llvm/ProfileData/SampleProfReader.h): a function is ``name:total:head``, its lines ``offset[.discriminator]:
# count [callee:count]...``, one column in; what is inlined is in its caller as ``offset[.discriminator]:
# name:total`` with its own lines one column further in.


Location = tuple[int, int]
"""(lines from the start of the function, modulo 2**16; base discriminator)."""

_SUFFIXES = (".llvm.", ".part.")
_AMBIGUOUS = ("__cxx_global_var_init", "__tls_init")
"""Several functions of a program have these names, so counts for them mean nothing."""


def canonical(name: str) -> str:
    """``name`` without what LLVM appends to copies of a function (FunctionSamples::getCanonicalFnName)."""
    for suffix in _SUFFIXES:
        stem, found, number = name.rpartition(suffix)
        if found and "." not in number:
            name = stem
    return name


def source_name(name: str) -> str:
    """gcc knows copies and parts of a function (``.constprop.0``, ``.cold``) by the name before the first dot."""
    return name.partition(".")[0] or name


def _component(word: int) -> int:
    """The number at the low end of a discriminator: 5 or 12 bits after a 0, or nothing (a 1)."""
    if word & 1:
        return 0
    word >>= 1
    return (word >> 1) & 0xFE0 | word & 0x1F if word & 0x20 else word & 0x1F


def base_discriminator(word: int) -> int:
    """Which of the basic blocks of a line (DILocation::getBaseDiscriminatorFromDiscriminator).

    Pseudo probes end in three ones: they have the number of the probe from bit 3 on, or the discriminator from bit 16.
    """
    if word & 7 == 7 and word > 7:
        return (word >> 16) & 7 if word & 1 << 28 else (word >> 3) & 0xFFFF
    return _component(word)


def duplication(word: int) -> int:
    """Into how many copies the optimiser made the instruction: unrolled or vectorised loops."""
    following = word >> 1 if word & 1 else word >> (14 if word & 0x40 else 7)
    return _component(following) or 1


@dataclass(slots=True)
class FunctionSamples:
    """Counts of one function, or of one inlined copy."""

    total: int = 0
    """Counts of all instructions, times their bytes."""
    head: int = 0
    """Branches to its entry."""
    lines: dict[Location, int] = field(default_factory=dict)
    calls: dict[Location, dict[str, int]] = field(default_factory=dict)
    inlined: dict[Location, dict[str, FunctionSamples]] = field(default_factory=dict)

    def raise_to(self, where: Location, count: int) -> None:
        """A line counts as often as the most frequent of its instructions."""
        self.lines[where] = max(self.lines.get(where, 0), count)

    def called(self, where: Location, callee: str, count: int) -> None:
        """``count`` calls of ``callee`` from a line."""
        self.lines.setdefault(where, 0)
        targets = self.calls.setdefault(where, {})
        targets[callee] = targets.get(callee, 0) + count

    def add(self, other: FunctionSamples) -> None:
        """Take in the counts of another copy."""
        self.total += other.total
        self.head += other.head
        for where, count in other.lines.items():
            self.lines[where] = self.lines.get(where, 0) + count
        for where, targets in other.calls.items():
            for callee, count in targets.items():
                self.called(where, callee, count)
        for where, callees in other.inlined.items():
            for name, samples in callees.items():
                self.inlined.setdefault(where, {}).setdefault(name, FunctionSamples()).add(samples)

    def text(self, depth: int = 1) -> Iterator[str]:
        """Its lines, ``depth`` columns in."""
        blanks = " " * depth
        for where in sorted(self.lines):
            targets = sorted(self.calls.get(where, {}).items(), key=lambda t: (-t[1], t[0]))
            calls = "".join(f" {name}:{count}" for name, count in targets)
            yield f"{blanks}{_location(where)}: {self.lines[where]}{calls}\n"
        for where in sorted(self.inlined):
            for name, samples in sorted(self.inlined[where].items()):
                yield f"{blanks}{_location(where)}: {name}:{samples.total}\n"
                yield from samples.text(depth + 1)

    def without_ambiguous(self) -> None:
        """Drop inlined functions whose name says nothing."""
        for callees in self.inlined.values():
            for name in [n for n in callees if n.startswith(_AMBIGUOUS)]:
                del callees[name]
            for samples in callees.values():
                samples.without_ambiguous()


class SampleTree:
    """All functions of a module."""

    def __init__(self) -> None:
        self.functions: dict[str, FunctionSamples] = {}

    def top(self, name: str) -> FunctionSamples:
        """The function called ``name``, itself and not inlined."""
        return self.functions.setdefault(name, FunctionSamples())

    def leaf(self, chain: Iterable[tuple[str, Location]], bytes_counted: int) -> FunctionSamples:
        """The innermost function of ``chain`` (outermost first), all of which get ``bytes_counted`` more in total."""
        samples, before = None, (0, 0)
        for name, where in chain:
            if samples is None:
                samples = self.top(name)
            else:
                samples = samples.inlined.setdefault(before, {}).setdefault(name, FunctionSamples())
            samples.total += bytes_counted
            before = where
        assert samples is not None
        return samples

    def finish(self, calls_count: bool = True) -> None:
        """At the end: leave out what says nothing, and with ``calls_count`` lines count at least as their calls."""
        self.functions = {n: s for n, s in self.functions.items() if not n.startswith(_AMBIGUOUS)}
        for samples in self.functions.values():
            samples.without_ambiguous()
            for where, targets in samples.calls.items() if calls_count else ():
                samples.raise_to(where, sum(targets.values()))

    def text(self) -> Iterator[str]:
        """The whole profile, the largest function first."""
        for name, samples in sorted(self.functions.items(), key=lambda item: (-item[1].total, item[0])):
            yield f"{name}:{samples.total}:{samples.head}\n"
            yield from samples.text()


def _location(where: Location) -> str:
    offset, discriminator = where
    return f"{offset}.{discriminator}" if discriminator else f"{offset}"


_PART = re.compile(r"\.cold(\.\d+)?$")
"""End of the name of a symbol that is a part of a function that is placed apart."""
_COPY = re.compile(r"(\.(isra|constprop|lto_priv)\.\d+|\.cold)+$")
"""End of the name of a copy that gcc made, or of a part that was set apart: the lines know both by the function's."""
_REMEDY = "build with -g (clang: and -fdebug-info-for-profiling), or give --debug-dir DIR"
_REMEDY_PE = "build with DWARF: clang -g -gdwarf -fdebug-info-for-profiling, or mingw-w64's gcc -g"
_WHOLE = re.compile(r"[CD]1(?=E)")
_Chain = Sequence[tuple[str, Location]]


def write(counts: ModuleCounts, out: IO[bytes], options: ExportOptions) -> Exported:
    """Write the counts of a module. Raises as `tree_of`."""
    tree, exported = tree_of(counts, options)
    out.writelines(line.encode("utf-8", "surrogateescape") for line in tree.text())
    return exported


def tree_of(counts: ModuleCounts, options: ExportOptions, plain: bool = False) -> tuple[SampleTree, Exported]:
    """The counts of a module by function and line, and how many of its ranges begin at a line that is known.

    ``plain``: discriminators are numbers, as gcc writes them, and not made of several parts, as clang's are.
    Raises `UnavailableError` where its code cannot be read or its functions have no lines.
    """
    recorded = counts
    counts, notes = counts.straight()
    with Symbolizer(counts.profile, options.symbols) as symbolizer:
        table = symbolizer.functions(counts.row)
        code = _Instructions(counts, table)
        called = counts.to_here & np.isin(counts.target, table.start)
        source = counts.source[called & counts.from_here]
        names = symbolizer.names(counts.row, np.concatenate([code.address, source, table.start]))
        notes += symbolizer.notes
    pe = counts.module.is_pe
    chains, duplicated, which = _chains(names, _compiled_names(names, table), plain)
    if not any(chains):
        raise _without_lines(counts.module, names, notes)
    tree = SampleTree()
    of_code = which[: len(code.address)]
    total, most = np.zeros(len(chains), np.int64), np.full(len(chains), -1)
    np.add.at(total, of_code, code.times * code.size)
    np.maximum.at(most, of_code, code.times * duplicated[of_code])
    for chain, bytes_counted, count in zip(chains, total.tolist(), most.tolist(), strict=True):
        if chain and count >= 0:
            tree.leaf(chain, bytes_counted).raise_to(chain[-1][1], count)
    _calls(tree, counts, table, called, [chains[i] for i in which[len(code.address) :].tolist()])
    tree.finish(calls_count=not plain)
    lined = np.array([bool(chain) for chain in chains], bool)[of_code]
    in_functions = np.isin(counts.start, code.address)
    written = int(counts.times[np.isin(counts.start, code.address[lined])].sum())
    lineless, outside = int(counts.times[in_functions].sum()) - written, int(counts.times[~in_functions].sum())
    places = {f"in code without line numbers ({_REMEDY_PE if pe else _REMEDY})": lineless,
              "outside all known functions": outside}  # fmt: skip
    reasons = [f"{counted(n, 'range begins', 'ranges begin')} {place}" for place, n in places.items() if n]
    return tree, recorded.exported(notes, written, "; ".join(reasons + notes))


def source_lines(
    profile: Profile, module: int, wanted: Set[str], options: SymbolOptions | None, plain: bool = False
) -> tuple[set[tuple[str, Location]], list[str]]:
    """(function, line) of all code of the functions called ``wanted``, their own and what is inlined in them, and notes
    for the user; ``module`` is a row of the modules table. Arguments and errors are those of `tree_of`."""

    def called(name: str) -> str:
        name = visible(canonical(_COPY.sub("", name)))
        return source_name(name) if plain else name

    with Symbolizer(profile, options) as symbolizer:
        table = symbolizer.functions(module)
        rows = [i for i, f in enumerate(table.functions)
                if not wanted.isdisjoint(map(called, (f.name, *table.aliases.get(i, ()))))]  # fmt: skip
        address, _ = _decoded(profile.modules[module], table, rows)
        names = symbolizer.names(module, address)
        notes = symbolizer.notes
    chains, _, _ = _chains(names, [called(name) for name in _compiled_names(names, table)], plain)
    if rows and not any(chains):
        raise _without_lines(profile.modules[module], names, notes)
    return {frame for chain in chains for frame in chain}, notes


def _without_lines(module: Module, names: Names, notes: list[str]) -> UnavailableError:
    lacking = (
        "does not say on which lines functions begin (as with -g1, PDB)"
        if names.frame_line.any() else "has no line numbers"
    )  # fmt: skip
    hint = "; ".join([*notes, _REMEDY_PE if module.is_pe else _REMEDY])
    return UnavailableError(f"{word(module.name)} {lacking}", hint=hint)


class _Instructions:
    """The instructions of every function that was executed: ``address``, ``size`` in bytes, ``times`` executed.

    What no range holds was executed 0 times: the compiler takes that for cold, and no line for not known.
    """

    def __init__(self, counts: ModuleCounts, table: FunctionTable) -> None:
        self.address, self.size = _decoded(counts.module, table, _executed(counts, table))
        order = np.argsort(counts.end)
        ends, until = counts.end[order], np.cumsum(np.append(0, counts.times[order]))
        begun = np.cumsum(np.append(0, counts.times))  # ranges are sorted by their starts
        started = np.searchsorted(counts.start, self.address, side="right")
        self.times: Array = begun[started] - until[np.searchsorted(ends, self.address, side="left")]


def _decoded(module: Module, table: FunctionTable, rows: list[int]) -> tuple[Array, Array]:
    """(address uint64, bytes int64) of the instructions of these functions."""
    code = code_of(module)
    if code is None:
        raise UnavailableError(f"the code of {word(module.name)} cannot be read")
    start, size = table.start[rows], (table.end[rows] - table.start[rows]).astype(np.int64)
    found, _ = Decoder(code.arch).classify(*code.read_many(start, size), start, size)
    return found.address, found.length.astype(np.int64)


def _executed(counts: ModuleCounts, table: FunctionTable) -> list[int]:
    """Rows of the functions that a range begins in or goes through, and of their parts that are placed apart."""
    if not len(table) or not len(counts.start):
        return []
    begin = np.searchsorted(table.end, counts.start, side="right")
    past = np.searchsorted(table.start, counts.end, side="right")
    some = begin < past
    rows = np.flatnonzero(covered(begin[some], past[some], np.ones(some.sum(), np.int64), len(table))).tolist()
    names = {_PART.sub("", table.functions[row].name) for row in rows}
    parts = (i for i, f in enumerate(table.functions) if ".cold" in f.name and _PART.sub("", f.name) in names)
    return sorted({*rows, *parts})


def _compiled_names(names: Names, table: FunctionTable) -> list[str]:
    """What compilers call the functions of ``names``: of a constructor or destructor whose two forms (C1, D1: of the
    complete object; C2, D2: as a base) are one code, the second one was compiled, and the first is another name of it.
    """
    rows = table.at(np.array([f.start for f in names.functions], np.uint64)).tolist()
    found = []
    for function, row in zip(names.functions, rows, strict=True):
        others = table.aliases.get(row, ()) if function.start else ()
        called = function.name
        second = {f"{called[: m.end() - 1]}2{called[m.end() :]}" for m in _WHOLE.finditer(called) if others}
        name = next((other for other in others if other in second), called)
        found.append(visible(canonical(_COPY.sub("", name))))  # a line break in it would begin a line of the profile
    return found


def _chains(names: Names, functions: list[str], plain: bool) -> tuple[list[_Chain], Array, Array]:
    """(the different inline chains of addresses, outermost first, empty where no lines are known; int64 how often an
    instruction of each was duplicated; int64 row of the chain of each address)."""
    # A name with a dot in front is a section's: code of an assembler that has no functions.
    # A function that is declared in no line counts from line 0, as llvm-profgen has it, unless none is (-g1).
    declares = any(f.line > 0 for f in names.functions)
    known = [(f.line > 0 or bool(f.file) or (f.described and declares)) and f.name[:1] != "." for f in names.functions]
    declared = np.array([f.line for f in names.functions], np.int64)
    columns = names.frame_function.astype(np.int64), names.frame_line.astype(np.int64), names.frame_discriminator
    rows, frame = distinct_rows(*columns)
    function, line, discriminator = (column[rows] for column in columns)
    offset, words = ((line - declared[function]) & 0xFFFF).tolist(), discriminator.tolist()
    base = {w: w & 0xFFFF if plain else base_discriminator(w) for w in set(words)}
    frames = [(functions[f], (o, base[w])) for f, o, w in zip(function.tolist(), offset, words, strict=True)]
    has_lines = [known[f] for f in function.tolist()]  # not padding, which has only the line of what is before it
    first, which = distinct_stacks([], frame, names.offsets)
    chains, duplicated = list[_Chain](), np.ones(len(first), np.int64)
    for i, row in enumerate(first.tolist()):
        mine = frame[names.offsets[row] : names.offsets[row + 1]].tolist()
        use = mine and has_lines[mine[-1]]
        chains.append([frames[one] for one in reversed(mine)] if use else ())
        duplicated[i] = duplication(words[mine[0]]) if use and not plain else 1
    return chains, duplicated, which


def _calls(tree: SampleTree, counts: ModuleCounts, table: FunctionTable, called: Array, chains: list[_Chain]) -> None:
    """Head samples of functions that were branched to, and call targets where the branch has a line.

    ``chains`` are those of the sources in this module, then those of the functions' entries.
    """
    inside = int((called & counts.from_here).sum())
    entries = {
        start: chain[0][0]
        for start, function, chain in zip(table.start.tolist(), table.functions, chains[inside:], strict=True)
        if chain and not _PART.search(function.name)
    }
    source = iter(chains[:inside])
    columns = (counts.from_here[called], counts.target[called], counts.taken[called])
    for here, target, taken in zip(*(c.tolist() for c in columns), strict=True):
        chain = next(source) if here else ()
        callee = entries.get(target)
        if callee is None:
            continue
        if chain:
            tree.leaf(chain, 0).called(chain[-1][1], callee, taken)
        tree.top(callee).head += taken


FORMAT = ModuleFormat("prof", write)
