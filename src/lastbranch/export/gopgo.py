"""``--to gopgo``: the profile that ``go build -pgo`` reads, a profile.proto of calls.

Go's compiler keeps of a profile how often a function called another one, by names and by the line of the call within
the caller (cmd/internal/pgo/pprof.go). Branch records hold these counts. A sample here is one such call of two frames:
the callee on the line of its declaration, and the calling line. An inlined call has both frames in one location; its
count is the sum of the ways into its instructions.
"""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import dataclass, field
from typing import IO

import numpy as np

from ..analysis.counting.branch_kinds import CALLS
from ..analysis.counting.executed import row_of
from ..arrays import Sums, distinct, distinct_rows, distinct_stacks
from ..errors import UnavailableError
from ..model import Array, counted, visible, word
from ..symbols import FunctionTable, Names, Symbolizer
from .interface import ExportOptions, ExportResult
from .line_samples import Instructions
from .modules import ModuleCounts, ModuleFormat
from .pprof import FUNCTION, LINE, LOCATION, MAPPING, PROFILE, SAMPLE, VALUE_TYPE

__all__ = ["FORMAT", "Call", "Calls", "calls_of", "write_calls"]

_OTHER_ABI = ".abi0"
"""What Go's linker appends to the name of an assembler function; the compiler knows it without."""

Call = tuple[str, int, str, bool]
"""(caller, line of the call counted from the line where the caller is declared, callee, whether it was inlined)."""
_Frame = tuple[str, int]
"""(function, line counted from that of its declaration)."""
_Chain = tuple[_Frame, ...]
"""The frames of an instruction, outermost first; empty where lines are not known."""


@dataclass(slots=True)
class Calls:
    """How often each call was made. ``declared`` is where functions are: name -> (file, line)."""

    times: Counter[Call] = field(default_factory=Counter)
    declared: dict[str, tuple[str, int]] = field(default_factory=dict)


def write(counts: ModuleCounts, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the counts of a module. Raises as `calls_of`."""
    calls, exported = calls_of(counts, options)
    write_calls(counts.module.name, counts.module.build_id, calls, out)
    return exported


def write_calls(name: str, build_id: bytes, calls: Calls, out: IO[bytes]) -> None:
    """Write ``calls`` of the binary called ``name``."""
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed:
        packed.write(_profile(name, build_id, calls))


# -- Counts of calls


def calls_of(counts: ModuleCounts, options: ExportOptions) -> tuple[Calls, ExportResult]:
    """The calls within a module, and how many of those recorded are on lines that are known.

    Raises `UnavailableError` where its code cannot be read or its functions have no lines.
    """
    counts, notes = counts.straight()
    with Symbolizer(counts.profile, options.symbols) as symbolizer:
        table = symbolizer.functions(counts.row)
        code = Instructions(counts, table)
        made = counts.from_here & counts.to_here & _calls(counts, code, table)
        source, target, taken = (c[made] for c in (counts.source, counts.target, counts.taken))
        inner = counts.from_here & ~made
        asked = np.concatenate([code.address, source, target, counts.source[inner]])
        names = symbolizer.names(counts.row, asked)
        notes += symbolizer.notes
    chains, which = _chains(names)
    if not any(chains):
        hint = "; ".join([*notes, "link without -ldflags=-w or -s, which leave out debugging information"])
        raise UnavailableError(f"{word(counts.module.name)} has no line numbers", hint=hint)
    of_code, of_source, of_target, of_others = np.split(which, np.cumsum([len(code.address), len(source), len(target)]))
    calls = Calls(declared=_declarations(names))
    written = 0
    symbols = table.at(target).tolist()
    for caller, callee, symbol, n in zip(of_source.tolist(), of_target.tolist(), symbols, taken.tolist(), strict=True):
        if chain := chains[caller]:
            entered = chains[callee][0][0] if chains[callee] else _plain(table.functions[symbol].name)
            calls.times[*chain[-1], entered, False] += n
            written += n
    come_from = np.full(len(counts.source), -1)
    come_from[made], come_from[inner] = of_source, of_others
    calls.times += _count_inlined_calls(counts, code, chains, of_code, come_from)
    recorded = int(taken.sum())
    lost = f"{counted(recorded - written, 'call')} from code without line numbers"
    why = [lost] if written < recorded else [] if calls.times else ["no calls were recorded"]
    entries = calls.times.total() - written
    return calls, ExportResult(notes, written + entries, recorded + entries, "calls", "; ".join(why + notes))


def _calls(counts: ModuleCounts, code: Instructions, table: FunctionTable) -> Array:
    """bool: branches that enter a function at its beginning: call instructions, and jumps from another function. A jump
    within a function is a loop, or goes back from `runtime.morestack`."""
    row = row_of(code.address, counts.source)
    is_call = (row >= 0) & CALLS[code.kind[row]] if len(code.kind) else row >= 0
    found: Array = np.isin(counts.target, table.start) & (
        is_call | (table.at(counts.source) != table.at(counts.target))
    )
    return found


def _plain(name: str) -> str:
    return visible(name.removesuffix(_OTHER_ABI))


def _declarations(names: Names) -> dict[str, tuple[str, int]]:
    """File and line of the functions that are declared in a line."""
    return {_plain(f.name): (visible(f.file), f.line) for f in names.functions if f.line > 0}


def _chains(names: Names) -> tuple[list[_Chain], Array]:
    """(the different chains of frames, int64 row of the chain of each address)."""
    rows, frame = distinct_rows(names.frame_function.astype(np.int64), names.frame_line.astype(np.int64))
    function, line = names.frame_function[rows].tolist(), names.frame_line[rows].astype(np.int64).tolist()
    functions = [(_plain(f.name), f.line) for f in names.functions]
    frames = [
        (functions[f][0], n - functions[f][1]) if functions[f][1] and n else None
        for f, n in zip(function, line, strict=True)
    ]
    first, which = distinct_stacks([], frame, names.offsets)
    chains = list[_Chain]()
    for row in first.tolist():
        mine = [frames[one] for one in frame[names.offsets[row] : names.offsets[row + 1]].tolist()]
        known = [one for one in reversed(mine) if one is not None]
        chains.append(tuple(known) if len(known) == len(mine) else ())
    return chains, which


# -- Inlined functions


def _bodies(chain: _Chain) -> list[_Chain]:
    """The inlined functions of an instruction, outermost first: the frames up to the caller, and the function's
    name."""
    return [(*chain[:depth], (chain[depth][0], 0)) for depth in range(1, len(chain))]


def _count_inlined_calls(
    counts: ModuleCounts, code: Instructions, chains: list[_Chain], of_code: Array, come_from: Array
) -> Counter[Call]:
    """How often inlined functions were entered.

    An instruction was entered from the previous instruction as often as ranges hold both, and by branches. This way
    enters each inlined function of the instruction to which the other instruction does not belong. Return to an
    instruction behind a call enters nothing that the call belongs to. This sum is too large if the compiler mixed the
    instructions of caller and callee; so a function's entries are limited by the count of its most frequent
    instruction.

    ``of_code`` and ``come_from`` are rows of ``chains``: of the instructions, and of the sources of branches, -1 where
    they are elsewhere.
    """
    if not len(code.address):
        return Counter()
    follows = np.append(False, code.address[:-1] + code.size[:-1].astype(np.uint64) == code.address[1:])
    before = np.where(follows, np.roll(of_code, 1), -1)
    ways = Sums([np.int64] * 3, [np.int64])  # from, from as well, to: rows of chains
    nowhere = np.full(len(of_code), -1)
    ways.add(before, nowhere, of_code, np.where(follows, code.holding(np.roll(code.address, 1), code.address), 0))
    row = row_of(code.address, counts.target)
    to = counts.to_here & (row >= 0)
    behind_call = follows & CALLS[np.roll(code.kind, 1)]
    back = np.where(behind_call, before, -1)
    ways.add(come_from[to], back[row[to]], of_code[row[to]], counts.taken[to])
    bodies = [_bodies(chain) for chain in chains] + [[]]
    entered, most = Counter[_Chain](), Counter[_Chain]()
    for one, other, target, n in zip(*(column.tolist() for column in ways.result()), strict=True):
        for body in bodies[target]:
            if body not in bodies[one] and body not in bodies[other]:
                entered[body] += n
    times = np.zeros(len(chains), np.int64)
    np.maximum.at(times, of_code, code.times)
    for row_of_chain in distinct(of_code).tolist():
        for body in bodies[row_of_chain]:
            most[body] = max(most[body], int(times[row_of_chain]))
    found = Counter[Call]()
    for body, n in entered.items():
        if number := min(n, most[body]):
            found[*body[-2], body[-1][0], True] += number
    return found


# -- profile.proto


def _profile(name: str, build_id: bytes, calls: Calls) -> bytes:
    """A Profile with a sample for each call, the most frequent first."""
    strings: dict[str, int] = {"": 0}
    functions: dict[str, int] = {}
    locations: dict[tuple[_Frame, ...], int] = {}

    def text(string: str) -> int:
        return strings.setdefault(string, len(strings))

    def location(*frames: _Frame) -> int:
        for function, _ in frames:
            functions.setdefault(function, len(functions) + 1)
        return locations.setdefault(frames, len(locations) + 1)

    kind = VALUE_TYPE(type=text("samples"), unit=text("count"))  # the name that Go's compiler looks for
    parts = [PROFILE(sample_type=[kind], period_type=VALUE_TYPE(type=text("calls"), unit=text("count")), period=1)]
    for (caller, line, callee, inlined), n in sorted(calls.times.items(), key=lambda item: (-item[1], item[0])):
        pair = (callee, 0), (caller, line)
        stack = [location(*pair)] if inlined else [location(frame) for frame in pair]
        parts.append(PROFILE(sample=[SAMPLE(location_id=stack, value=[n])]))
    parts.append(
        PROFILE(
            mapping=[
                MAPPING(
                    id=1,
                    filename=text(visible(name)),
                    build_id=text(build_id.hex()),
                    has_functions=1,
                    has_filenames=1,
                    has_line_numbers=1,
                    has_inline_frames=1,
                )
            ]
        )
    )
    for frames, number in locations.items():
        lines = [LINE(function_id=functions[f], line=calls.declared.get(f, ("", 0))[1] + n) for f, n in frames]
        parts.append(PROFILE(location=[LOCATION(id=number, line=lines)]))
    for function, number in functions.items():
        file, line = calls.declared.get(function, ("", 0))
        parts.append(
            PROFILE(
                function=[
                    FUNCTION(
                        id=number, name=text(function), system_name=text(function), filename=text(file), start_line=line
                    )
                ]
            )
        )
    return b"".join([*parts, *(PROFILE(string_table=string) for string in strings)])


FORMAT = ModuleFormat("pgo", write)
