"""Counts by pseudo probe: each probe counts as often as the instruction at its address, in the inline context that the
probes themselves give, so the profile fits code whose lines have moved. A function's head samples are those of its
first probe; a branch to the entry of a function is a call of the probe of the calling instruction.
"""

from __future__ import annotations

import numpy as np

from ..analysis.counting.executed import row_of
from ..arrays import distinct
from ..binaries.pseudo_probes import DESCRIPTORS, PROBES, ProbeKind, Probes, guid, read_probes
from ..binaries.sections import Binary, open_binary
from ..errors import LastbranchError, UnavailableError
from ..model import Array, Module, counted, visible, word
from ..symbols import FunctionTable, Symbolizer
from .interface import ExportOptions, ExportResult
from .line_samples import PART, Discriminators, Instructions, chains_of, discriminators_of, entry_names
from .modules import ModuleCounts
from .sample_tree import FunctionSamples, Location, SampleTree, canonical

__all__ = ["PlacedProbes", "callee_names", "probed_binary", "stamp", "tree_of"]


def probed_binary(module: Module) -> Binary | None:
    """The binary of ``module`` if it has pseudo probes; ``None`` if it has none or cannot be read."""
    if not module.binary:
        return None
    try:
        binary = open_binary(module.binary)
    except (OSError, LastbranchError):
        return None
    return binary if binary.has(DESCRIPTORS) and binary.has(PROBES) else None


class PlacedProbes:
    """The probes of the functions of a module that have one of the addresses in ``used`` (uint64).

    Code can have probes of an inlined function without the record of the inlining. llvm-profgen leaves such probes out
    unless the inlined function was executed, too.
    """

    def __init__(self, binary: Binary, table: FunctionTable, used: Array) -> None:
        """Raises `UnavailableError` where the table has none of their functions."""
        numbers = [[guid(name) for name in names_of(table, row)] for row in range(len(table))]
        starts = {n: start for each, start in zip(numbers, table.start.tolist(), strict=True) for n in each}
        found = read_probes(binary, starts)
        assert found is not None, "the caller has seen the sections"
        self.notes = found.notes
        if found.unplaced and not len(found):
            reason = f"{word(binary.name)} has pseudo probes, but is stripped of the symbols of their functions"
            raise UnavailableError(reason, hint="give a binary with its symbol table, or --debug-dir DIR")
        rows = distinct(table.at(used))
        executed = {n for row in rows[rows >= 0].tolist() for n in numbers[row]}
        executed |= {guid(PART.sub("", table.functions[row].name)) for row in rows[rows >= 0].tolist()}
        kept = np.zeros(len(found.guids), bool)
        for node, (function, parent) in enumerate(zip(found.guids, found.parents, strict=True)):
            kept[node] = function in executed if parent < 0 else kept[parent]
        self.probes: Probes = found.take(kept[found.node])
        self._names = {g: visible(d.name) for g, d in found.descriptors.items()}
        self._calls: dict[int, int] | None = None
        self._calls_of: dict[int, tuple[bool, list[tuple[str, Location]]]] = {}
        self._chain_of: dict[int, tuple[bool, list[tuple[str, Location]]]] = {}

    def call_at(self, address: int) -> int | None:
        """The row of the first probe of the call at ``address``."""
        if self._calls is None:
            rows = np.flatnonzero(self.probes.kind != ProbeKind.BLOCK)[::-1]
            self._calls = dict(zip(self.probes.address[rows].tolist(), rows.tolist(), strict=True))
        return self._calls.get(address)

    def name(self, node: int) -> str:
        """The function that a node is of."""
        return self._names[self.probes.guids[node]]

    def chain(self, row: int) -> list[tuple[str, Location]]:
        """The calls that a probe was inlined through, outermost first, then its own function and index."""
        frames = list[tuple[str, Location]]()
        self.extend(frames, row)
        return frames

    def extend(self, frames: list[tuple[str, Location]], row: int) -> None:
        """Append the `chain` of a probe; the chain replaces ``frames`` if one of its calls has no probe."""
        found = self._chain_of.get(row)
        if found is None:
            node = int(self.probes.node[row])
            whole, calls = self._inline_calls(node)
            found = self._chain_of[row] = whole, [*calls, (self.name(node), (int(self.probes.index[row]), 0))]
        if not found[0]:
            frames.clear()
        frames += found[1]

    def _inline_calls(self, node: int) -> tuple[bool, list[tuple[str, Location]]]:
        """(whether all calls on a node's inline chain have probes, the calls after the last call without a probe)."""
        found = self._calls_of.get(node)
        if found is None:
            parent, site = self.probes.parents[node], self.probes.sites[node]
            if parent < 0:
                found = True, []
            elif not site:
                found = False, []
            else:
                whole, calls = self._inline_calls(parent)
                found = whole, [*calls, (self.name(parent), (site, 0))]
            self._calls_of[node] = found
        return found

    def checksums(self) -> dict[str, int]:
        """The hash of the control flow of each function by name."""
        return {self._names[g]: d.hash for g, d in self.probes.descriptors.items()}


def names_of(table: FunctionTable, row: int) -> tuple[str, ...]:
    """The linkage names of a function."""
    return (table.functions[row].name, *table.aliases.get(row, ()))


def callee_names(
    symbolizer: Symbolizer, row: int, table: FunctionTable, target: Array, placed: PlacedProbes
) -> dict[int, str]:
    """The names of functions that a branch goes to (``target`` uint64), by the address of their entry."""
    rows = np.flatnonzero(np.isin(table.start, target)).tolist()
    names = symbolizer.names(row, table.start[rows])
    chains, _, which = chains_of(names, table)
    found = entry_names(table, rows, [chains[i] for i in which.tolist()])
    for one in rows:  # without debugging information the symbol has to do
        for name in names_of(table, one):
            if guid(name) in placed.probes.descriptors:
                found.setdefault(int(table.start[one]), visible(canonical(name)))
    return found


def tree_of(counts: ModuleCounts, options: ExportOptions, binary: Binary) -> tuple[SampleTree, ExportResult]:
    """The counts of a module by function and probe, and how many of its ranges begin in a function with probes.

    Raises `UnavailableError` where its code cannot be read, or no symbol says where its functions are.
    """
    recorded = counts
    counts, notes = counts.straight()
    with Symbolizer(counts.profile, options.symbols) as symbolizer:
        table = symbolizer.functions(counts.row)
        left, reached = counts.source[counts.from_here], counts.target[counts.to_here]
        placed = PlacedProbes(binary, table, np.concatenate([counts.start, left, reached]))
        code = Instructions(counts, table)
        entries = callee_names(symbolizer, counts.row, table, reached, placed)
        flow = discriminators_of(symbolizer, counts.row) is Discriminators.FLOW
        notes += symbolizer.notes
    tree, probes = SampleTree(flow), placed.probes
    at = row_of(code.address, probes.address)
    executed = np.flatnonzero(at >= 0)
    columns = executed, probes.node[executed], probes.index[executed], probes.discriminator[executed]
    of_node: dict[int, list[FunctionSamples]] = {}
    for row, node, index, discriminator, times in zip(
        *(c.tolist() for c in columns), code.times[at[executed]].tolist(), strict=True
    ):
        nested = of_node.get(node)
        if nested is None:
            nested = of_node[node] = tree.along(placed.chain(row))
        for samples in nested:
            samples.total += times
        samples, where = nested[-1], (index, discriminator)
        samples.lines[where] = samples.lines.get(where, 0) + times
        if index == 1:
            samples.head += times
    called = counts.to_here & counts.from_here
    branches = counts.source[called], counts.target[called], counts.taken[called]
    for source, target, taken in zip(*(c.tolist() for c in branches), strict=True):
        callee, call = entries.get(target), placed.call_at(source)
        if callee is not None and call is not None:
            chain = placed.chain(call)
            tree.leaf(chain, 0).called(chain[-1][1], callee, taken)
    tree.finish()
    stamp(tree, placed)
    notes += placed.notes + _torn(table, code, probes.address)
    return tree, recorded.exported(notes, *_written_ranges(counts, table, placed))


def stamp(tree: SampleTree, placed: PlacedProbes) -> None:
    """Give every function of ``tree`` the hash of its control flow."""
    checksums = placed.checksums()
    for name, samples in tree.each():
        samples.checksum = checksums.get(name, 0)


def _written_ranges(counts: ModuleCounts, table: FunctionTable, placed: PlacedProbes) -> tuple[int, str]:
    """How many ranges begin in functions with probes, and where the others do."""
    row = table.at(counts.start)
    has = np.isin(row, table.at(placed.probes.address)) & (row >= 0)
    places = {
        "in functions without pseudo probes (build with -fpseudo-probe-for-profiling)": ~has & (row >= 0),
        "outside all known functions": row < 0,
    }
    reasons = [
        f"{counted(n, 'range begins', 'ranges begin')} {place}"
        for place, rows in places.items()
        if (n := int(counts.times[rows].sum()))
    ]
    return int(counts.times[has].sum()), "; ".join(reasons)


def _torn(table: FunctionTable, code: Instructions, address: Array) -> list[str]:
    """A note if the probes, at ``address``, are not all at instructions of the code that was decoded."""
    decoded = np.isin(table.at(address), distinct(table.at(code.address)))
    torn = int((row_of(code.address, address[decoded]) < 0).sum())
    if not torn:
        return []
    return [f"{counted(torn, 'pseudo probe is', 'pseudo probes are')} at no instruction: they do not fit this code"]
