"""One function in full: its code with execution counts, its loops, its indirect targets and its source lines."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..arrays import Table, distinct, distinct_rows
from ..binaries import Code
from ..errors import SelectionError, UnavailableError
from ..isa import Decoder
from ..lbr import KIND
from ..model import BRANCH, Array, ModuleKind, Profile, SampleBatch, SampleFilter, counted
from .branch_kinds import CodeOf
from .counting import Bound, PairTable, cycles_of, how_to_record, why_no_ranges, why_no_stacks
from .executed import leaves
from .flow import Flow, Loop, flow_of, loops
from .naming import Namer, Place
from .sample_filtering import filtered_batches

__all__ = ["Annotation", "SourceLines", "annotate", "source_lines"]


# -- What branch stacks say about one function: only entries near it are bound and counted, so that a pass is quick


_FEW = 4
"""So many intervals are compared with one by one, which is quicker than a search for each address."""


class Nearby:
    """Counts branches with an end, and ranges with a part, from ``start`` up to ``end`` (module addresses of a row of
    the modules table), and the samples whose instruction is there.

    Ranges have the values ``cycles`` and ``timed``: those of an entry were spent between its branch and the older one.
    """

    def __init__(self, profile: Profile, module: int, start: int, end: int) -> None:
        self._binder, self._module = profile.binder, module
        self._start, self._end = np.uint64(start), np.uint64(end)
        bias = self._binder.mapping_bias[self._binder.mapping_module == module]
        self._at: NDArray[np.uint64] = distinct(bias + self._start)  # where it was mapped at any time, by anybody
        self._branches, self._ranges = PairTable(self._binder), PairTable(self._binder, ("cycles", "timed"))
        self._samples = [np.empty(0, np.uint64)]

    def add(self, batch: SampleBatch) -> None:
        """Count a batch; without branch stacks its samples."""
        scope = self._binder.scopes(batch)
        rows = np.flatnonzero(self._inside(batch.ip))
        self._samples.append(self._own(*self._binder.locate(scope[rows], batch.ip[rows])))
        if BRANCH not in batch.offsets or not batch.entries:
            return
        offsets, source, target = batch.offsets[BRANCH], batch["branch_from"], batch["branch_to"]

        flags = batch["branch_flags"]
        rows, stack, ends, end_stack = self._near(offsets, source, target)
        tag = (flags[rows] & np.uint64(3)).astype(np.int64)
        self._branches.add((scope[stack], source[rows], target[rows], tag, [np.ones(len(rows), np.int64)]))
        values = [np.ones(len(ends), np.int64), *cycles_of(flags[ends])]
        zeros = np.zeros(len(ends), np.int64)
        self._ranges.add((scope[end_stack], target[ends + 1], source[ends], zeros, values))

    def _near(self, offsets: Array, source: Array, target: Array) -> tuple[Array, Array, Array, Array]:
        """(entries with an end in the code and their stacks, entries that end a range with a part in it and theirs)."""
        library = native.library()
        if library is None:
            rows, ends = self._branch_rows(source, target), self._range_rows(offsets, source, target)
            stacks = (np.searchsorted(offsets, entries, side="right") - 1 for entries in (rows, ends))
            return rows, next(stacks), ends, next(stacks)
        bounds, found = np.ascontiguousarray(offsets, np.int64), np.empty(2, np.int64)
        out = [np.empty(len(source), np.int64) for _ in range(4)]
        entries = [word for column in (source, target) for word in (native.address(column), column.strides[0])]
        code = native.address(self._at), len(self._at), int(self._end - self._start)
        library.lb_near_entries(
            native.address(bounds), len(bounds) - 1, *entries, *code, *map(native.address, (*out, found))
        )
        branches, ranges = found.tolist()
        rows, stack, ends, end_stack = out
        return rows[:branches], stack[:branches], ends[:ranges], end_stack[:ranges]

    def _branch_rows(self, source: Array, target: Array) -> Array:
        rows: Array = np.flatnonzero(self._inside(source) | self._inside(target))
        return rows

    def _range_rows(self, offsets: Array, source: Array, target: Array) -> Array:
        # Between neighbours of one stack, as in `counting`: entry i + 1 is the older one.
        found = self._inside(target)[1:] | self._between(target[1:], source[:-1])
        firsts = offsets[1:-1]
        found[firsts[(firsts > 0) & (firsts < len(source))] - 1] = False
        rows = np.flatnonzero(found)
        older, newer = target[rows + 1], source[rows]
        whole = (older <= newer) & (older != 0) & (source[rows + 1] != 0) & (target[rows] != 0)
        return np.asarray(rows[whole])

    def result(self) -> tuple[Bound, Bound, Array]:
        """(branches, ranges, uint64 module address of each sample)."""
        branches, ranges = self._branches.result(), self._ranges.result()
        branches = branches.take(
            self._is_own(branches.a_module, branches.a) | self._is_own(branches.b_module, branches.b)
        )
        within = (ranges.a_module == self._module) & (ranges.b_module == self._module) & (ranges.a <= ranges.b)
        return branches, ranges.take(within), np.concatenate(self._samples)

    def _is_own(self, module: Array, address: Array) -> Array:
        return np.asarray((module == self._module) & (address >= self._start) & (address < self._end))

    def _own(self, module: Array, address: Array) -> Array:
        return address[self._is_own(module, address)]

    def _inside(self, address: Array) -> Array:
        size = self._end - self._start
        if len(self._at) > _FEW:
            nearest = np.maximum(np.searchsorted(self._at, address, side="right"), 1) - 1
            return np.asarray(address - self._at[nearest] < size)
        out = np.zeros(len(address), bool)
        for at in self._at:
            out |= address - at < size  # modulo 2**64: what lies before it is far away
        return out

    def _between(self, low: Array, high: Array) -> Array:
        """Whether the code begins after ``low``, and at ``high`` or before."""
        if len(self._at) > _FEW:
            before = (np.searchsorted(self._at, address, side="right") for address in (low, high))
            return np.less(*before)
        out = np.zeros(len(low), bool)
        for at in self._at:
            out |= (low < at) & (high >= at)
        return out


_WINDOW = 1 << 16
"""Bytes that a function without a known end is looked for in."""
_JUMPS = (KIND["cond"], KIND["uncond"])
_COLUMNS = ("branch_from", "branch_to", "branch_flags")


@dataclass(slots=True)
class Annotation:
    """What is known of the code of ``place``.

    ``samples`` int64: samples with the address of each instruction. ``missing`` says why there are no execution counts,
    else ``None``; ``hint`` what to do about it; ``notes`` what else a reader should know.
    """

    place: Place
    flow: Flow
    loops: list[Loop]
    samples: Array
    missing: str | None = None
    hint: str | None = None
    notes: list[str] = field(default_factory=list)


def annotate(profile: Profile, place: Place, *, sample_filter: SampleFilter | None = None) -> Annotation:
    """Count what ran of ``place``; the filter's modules do not matter.

    Without ranges the samples are still counted. Raises `UnavailableError` where the code is not available,
    `SelectionError` where a module has no code at the given address.
    """
    found = CodeOf(profile)(place.module)
    name = profile.place(place.module, place.start)
    if found is None:
        module = profile.modules[place.module]
        if module.kind is ModuleKind.ANONYMOUS:
            raise UnavailableError(
                f"{name} is code generated at run time (JIT): no capture holds it, so it cannot be annotated",
                hint="`lastbranch branches`, `report --by function` and `stacks` show its name",
            )
        why = f"binary {module.missing}" if module.missing else "no binary was found"
        raise UnavailableError(
            f"the code of {name} is not available: {why}",
            hint="pass the folder of the capture's binaries with --symfs; `lastbranch branches` needs no binaries",
        )
    code, decoder = found
    missing = why_no_stacks(profile, sample_filter) or why_no_ranges(profile, sample_filter)
    end = place.end or _end(code, decoder, place.start)
    nearby = Nearby(profile, place.module, place.start, end)
    for stream in profile.streams:
        columns = [c for c in _COLUMNS if c in stream.columns] if missing is None else ()
        for batch in filtered_batches(profile, stream.batches(columns), sample_filter, by_address=False):
            nearby.add(batch)
    branches, ranges, samples = nearby.result()
    data = code.read(place.start, end - place.start)
    if not data:
        kind = UnavailableError if place.end else SelectionError  # a function of this name, or an address as given
        raise kind(f"no code lies at {name}", hint="addresses are link addresses, as `objdump` prints them")
    patched = profile.modules[place.module].kind in (ModuleKind.KERNEL, ModuleKind.KERNEL_MODULE)
    flow = flow_of(branches, ranges, decoder, data, place.module, place.start, patched=patched)
    out = Annotation(place, flow, loops(flow), _by_row(flow, samples), missing)
    out.hint = how_to_record(profile) if missing else None
    out.notes += [
        f"{counted(number, 'range')} {reason}: left out" for reason, number in flow.left_out.items() if number
    ]
    if not place.end:
        out.notes.append(f"no function is known at {name}: this is the code reached from there")
    return out


def _end(code: Code, decoder: Decoder, start: int) -> int:
    """Behind the last instruction that jumps lead to from ``start``, within a window."""
    data = code.read(start, _WINDOW)
    todo, done, end = [start], set[int](), start + 1
    while todo:
        at = todo.pop()
        while at not in done and 0 <= at - start < len(data):
            done.add(at)
            found = decoder.one(data[at - start : at - start + decoder.arch.longest], at)
            at += found.length
            end = max(end, at)
            if found.kind in _JUMPS and found.target:
                todo.append(found.target)
            if leaves(found.kind) and found.kind not in (KIND["call"], KIND["ind_call"]):
                break
    return end


def _by_row(flow: Flow, samples: Array) -> Array:
    """int64: samples of each instruction."""
    row = flow.row_of(samples)
    return np.bincount(row[row >= 0], minlength=len(flow))


# -- what ran of each of its source lines


@dataclass(slots=True)
class SourceLines(Table):
    """Source lines that a function has code of, by file and line; equal-length arrays.

    ``file`` int64: row of ``files``, in which that with the most instructions is the first. ``line`` int64, from 1.
    ``samples`` int64: of its instructions. ``count`` int64: executions of the instruction of it that ran most often.
    ``of`` int64: the row of each instruction of the function, by the innermost of its inlined functions; -1 where debug
    information has none.
    """

    file: Array
    line: Array
    samples: Array
    count: Array
    files: list[str] = field(default_factory=list)
    of: list[int] = field(default_factory=list)


def source_lines(namer: Namer, found: Annotation) -> SourceLines:
    """The lines of ``found``, as the debug information of its module has them."""
    flow = found.flow
    module = np.full(len(flow), flow.module)
    rows, offsets = namer.chains("line", np.full(len(flow), -1), module, flow.address)
    labels = [namer.labels[row] for row in rows[offsets[:-1]].tolist()]
    names = [label.file if label.line > 0 else "" for label in labels]
    frequency = {name: names.count(name) for name in dict.fromkeys(names) if name}
    files = sorted(frequency, key=lambda name: -frequency[name])
    number = {name: i for i, name in enumerate(files)}
    file = np.array([number.get(name, -1) for name in names], np.int64)
    line = np.array([label.line if name else 0 for label, name in zip(labels, names, strict=True)], np.int64)
    blocks = flow.blocks
    count = np.repeat(blocks.count, blocks.last - blocks.first + 1)
    known = np.flatnonzero(file >= 0)
    firsts, which = distinct_rows(file[known], line[known])
    order = np.lexsort((line[known][firsts], file[known][firsts]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    samples, most = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    np.add.at(samples, place[which], found.samples[known])
    np.maximum.at(most, place[which], count[known])
    of = np.full(len(flow), -1)
    of[known] = place[which]
    return SourceLines(file[known][firsts][order], line[known][firsts][order], samples, most, files, of.tolist())
