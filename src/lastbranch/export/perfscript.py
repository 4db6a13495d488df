"""``--to perfscript``: the text of ``perf script --show-mmap-events -F ip,brstack``, for llvm-profgen.

The text names no process, so all processes are moved into one address space first (`SingleAddressSpace`). With
``--binary`` the text has the mappings of this module only, and the samples with a branch from or to this module.

If call chains were recorded, all samples have the form that llvm-profgen reads for context-sensitive profiles: the
frames, one a line, then the branch stack. perf 6.1 prints offsets in the file for frames of user space, which
llvm-profgen takes to be addresses; these are addresses.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise
from typing import IO

import numpy as np

from ..analysis import BoundPairs, count_stacks, filtered_batches, how_to_record
from ..arrays import distinct_rows, offsets_of
from ..bind import place
from ..errors import NotRecordedError
from ..model import (
    BRANCH,
    FRAME,
    Array,
    Change,
    Module,
    ModuleKind,
    Profile,
    SampleBatch,
    SampleFilter,
    SampleStream,
    counted,
    kernel_start,
    word,
)
from .binary_choice import choose
from .brstack import CONTEXT_MAX, EntryText, with_frames
from .interface import ExportOptions, ExportResult

__all__ = ["export"]


# -- All processes in one address space: each module at one place, so that a text without processes is enough
#
# llvm-profgen keeps one base address for a binary and takes every sample to be of the process that mapped it last. Here
# a module keeps the addresses of its first mapping; another process's addresses in it are moved there. A module whose
# place is taken, by another module or by addresses of no module, gets a free place.


_PAGE = 0x1000
_CODE_OF_PE = 0x1000
"""Where the code of a PE file begins, in all that today's linkers write: its first section."""
_WORD = (1 << 64) - 1
_ONE_PID = 1
_MOVED = (ModuleKind.FILE, ModuleKind.VDSO)
_OUTSIDE = np.uint64(_WORD)
"""An address of no module, where only one module is wanted and another's address would be in it."""


class SingleAddressSpace:
    """The places of the modules of ``profile`` that have addresses in ``used`` (the module row and the uint64 module
    address of each); if ``only`` is given, the places of this row only."""

    def __init__(self, profile: Profile, used: tuple[Array, Array], only: int | None = None) -> None:
        self._profile, self._binder, self._only = profile, profile.binder, only
        self._used_addresses = _by_module(*used)
        self._taken: list[tuple[int, int]] = []
        fixed = self._used_addresses.get(-1, np.empty(0, np.uint64))
        self._fixed = np.sort(fixed[fixed < np.uint64(kernel_start(profile.timeline.columns()))])
        self.lines: list[bytes] = []
        """MMAP2 lines, one for each mapping that code was sampled in."""
        self._bias: dict[int, int] = {}
        pieces = self._pieces()
        for row, parts in pieces.items():
            self._settle(row, parts)
        delta = [
            (self._bias[m] - b) & _WORD if (m := int(module)) in self._bias else 0
            for module, b in zip(self._binder.mapping_module, self._binder.mapping_bias.tolist(), strict=True)
        ]
        self._delta = np.array([*delta, 0], np.uint64)
        module = [*self._binder.mapping_module.tolist(), -1]
        self._foreign = np.array([only is not None and m != only for m in module], bool)

    def _pieces(self) -> dict[int, list[tuple[int, int, int, int]]]:
        """By module: its mappings that are used as (start, end, bias, offset in the file), each once."""
        timeline = self._profile.timeline.columns()
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        seen: set[tuple[int, int, int]] = set()
        for i in np.flatnonzero(timeline["kind"] == Change.MAP).tolist():
            row, first, last = (int(timeline[n][i]) for n in ("module", "start", "end"))
            used, offset = self._used_addresses.get(row), int(timeline["offset"][i])
            if used is None or self._only not in (None, row):
                continue
            module = self._profile.modules[row]
            for start, end, bias in place(module, first, last, offset):
                key = (row, (start - bias) & _WORD, end - start)
                if key in seen or not _any_in(used, (start - bias) & _WORD, (end - bias) & _WORD):
                    continue
                seen.add(key)
                found.setdefault(row, []).append((start, end, bias, offset + start - first))
        return found

    def _settle(self, row: int, parts: list[tuple[int, int, int, int]]) -> None:
        """Give module ``row`` its one place, and write its lines."""
        module, first_bias = self._profile.modules[row], parts[0][2]
        # As they would be beside the first of them, wherever the others were mapped.
        parts = [(s - b + first_bias, e - b + first_bias, first_bias, o) for s, e, b, o in parts]
        low, high = min(s for s, _, _, _ in parts), max(e for _, e, _, _ in parts)
        move = 0
        if module.kind in _MOVED:
            move = self._free(low, high) - low
            insort(self._taken, (low + move, high + move))
        self._bias[row] = (first_bias + move) & _WORD
        for start, end, _, offset in parts:
            self.lines.append(_line(module, start + move, end - start, offset))

    def _free(self, low: int, high: int) -> int:
        """``low``, or else the first free place for as much."""
        low, high = low & -_PAGE, -(-high // _PAGE) * _PAGE
        size, start = high - low, low
        while (end := self._in_the_way(start, start + size)) is not None:
            start = -(-end // _PAGE) * _PAGE
        return start

    def _in_the_way(self, low: int, high: int) -> int | None:
        """The end of something that is in ``low:high`` already."""
        at = bisect_left(self._taken, (low, 0))
        for start, end in self._taken[max(at - 1, 0) : at + 1]:
            if start < high and low < end:
                return end
        inside = int(np.searchsorted(self._fixed, np.uint64(high)))
        if inside and int(self._fixed[inside - 1]) >= low:
            return int(self._fixed[inside - 1]) + 1
        return None

    def moved(self, scope: Array, address: Array) -> Array:
        """Each address (uint64) of samples with ``scope`` in the one space."""
        mapping = self._binder.find(scope, address)
        out: Array = address + self._delta[mapping]
        foreign = self._foreign[mapping]
        if foreign.any():
            inside = np.zeros(len(out), bool)
            for low, high in self._taken:
                inside |= (out >= np.uint64(low)) & (out < np.uint64(high))
            out[foreign & inside] = _OUTSIDE
        return out


def _by_module(module: Array, address: Array) -> dict[int, Array]:
    """The addresses of each module, in order."""
    order = np.lexsort((address, module))
    module, address = module[order], address[order]
    rows, first = np.unique(module, return_index=True)
    return dict(zip(rows.tolist(), np.split(address, first[1:]), strict=True)) if len(rows) else {}


def _any_in(addresses: Array, low: int, high: int) -> bool:
    if high <= low:  # the bias of kernel text wraps around
        return len(addresses) > 0
    first, past = np.searchsorted(addresses, np.array([low, high - 1], np.uint64), side="left").tolist()
    return bool(past > first or (past < len(addresses) and int(addresses[past]) == high - 1))


def _line(module: Module, start: int, size: int, offset: int) -> bytes:
    """As perf script prints a MMAP2 record; the kernel's and old ones as MMAP."""
    name = module.name.replace("\n", " ").encode("utf-8", "surrogateescape")
    if module.kind in (ModuleKind.KERNEL, ModuleKind.KERNEL_MODULE):
        text = b"_text" if module.kind is ModuleKind.KERNEL else b""
        return b"PERF_RECORD_MMAP -1/0: [0x%x(0x%x) @ %s]: x %s%s\n" % (start, size, _hex(offset), name, text)
    if module.is_pe:
        offset = _CODE_OF_PE
    build_id = b"<%s>" % module.build_id.hex().encode() if module.build_id else b"00:00 0 0"
    fields = (_ONE_PID, _ONE_PID, start, size, _hex(offset), build_id, name)
    return b"PERF_RECORD_MMAP2 %d/%d: [0x%x(0x%x) @ %s %s]: r-xp %s\n" % fields


def _hex(number: int) -> bytes:
    return b"0x%x" % number if number else b"0"


def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the samples of ``profile`` that have branch stacks.

    Raises `NotRecordedError` if there are no branch stacks, if no stack touches the chosen module, or if there are no
    ranges between branches: the text does not say which branches were recorded, and its readers assume that all were.
    """
    only = choose(profile, options.binary) if options.binary is not None else None
    found = count_stacks(profile, ranges=True, details=False, sample_filter=options.sample_filter).branches
    chained = any(FRAME in stream.columns for stream in _streams(profile))
    space = SingleAddressSpace(profile, _used_addresses(profile, found, options.sample_filter, chained), only)
    if not len(found.count) or (only is not None and not space.lines):
        what = "branches" if only is None else f"branches in {word(profile.modules[only].name)}"
        raise NotRecordedError(f"the capture has no {what}", hint=how_to_record(profile))
    out.writelines(space.lines)
    text, samples, bare = EntryText(), 0, 0
    for batch in _wanted_batches(profile, options.sample_filter, only):
        moved = _move_batch(profile, space, batch)
        samples += len(batch)
        lines = text.lines(moved)
        if chained:
            chains = _chains(moved)
            bare += sum(len(chain) == 1 for chain in chains)
            out.writelines(with_frames(chains, lines))
        else:
            out.writelines(b" %16x %s\n" % row for row in zip(moved.ip.tolist(), lines, strict=True))
    notes = [f"{counted(bare, 'sample')} without callers"] if bare else []
    return ExportResult(notes, samples, samples)


def _streams(profile: Profile) -> list[SampleStream]:
    return [s for s in profile.streams if "branch_from" in s.columns]


def _used_addresses(
    profile: Profile, branches: BoundPairs, sample_filter: SampleFilter | None, chained: bool
) -> tuple[Array, Array]:
    """(module row, module address) of all ``branches``, and where chains were recorded of all their frames."""
    modules, addresses = [branches.a_module, branches.b_module], [branches.a, branches.b]
    for batch in _wanted_batches(profile, sample_filter, None) if chained else ():
        if FRAME in batch:
            frame, owner = _frames(batch)
            module, address = profile.binder.locate(profile.binder.scopes(batch)[owner], frame)
            rows, _ = distinct_rows(module, address)
            modules.append(module[rows])
            addresses.append(address[rows])
    return np.concatenate(modules), np.concatenate(addresses)


def _frames(batch: SampleBatch) -> tuple[Array, Array]:
    """(uint64 frame, int64 sample that it is of) for the call chains of ``batch``, without context markers."""
    owner, known = np.repeat(np.arange(len(batch)), np.diff(batch.offsets[FRAME])), batch["frame"] < CONTEXT_MAX
    return batch["frame"][known], owner[known]


def _chains(batch: SampleBatch) -> list[list[int]]:
    """The frames of each sample, leaf first; its address alone where it has no chain."""
    frame, offsets = batch["frame"].tolist(), batch.offsets[FRAME].tolist()
    return [frame[lo:hi] or [ip] for (lo, hi), ip in zip(pairwise(offsets), batch.ip.tolist(), strict=True)]


def _wanted_batches(profile: Profile, sample_filter: SampleFilter | None, only: int | None) -> Iterator[SampleBatch]:
    """The samples with branch entries, in file order; if ``only`` is given, the samples with an entry of this
    module."""
    binder = profile.binder
    columns = ("branch_from", "branch_to", "branch_flags", "frame")
    for stream in _streams(profile):
        for batch in filtered_batches(profile, stream.batches(columns), sample_filter):
            keep = batch.depth > 0
            if only is not None:
                owner, scope = (
                    np.repeat(np.arange(len(batch)), batch.depth),
                    np.repeat(binder.scopes(batch), batch.depth),
                )
                touches = np.zeros(len(scope), bool)
                for name in columns[:2]:
                    touches |= binder.locate(scope, batch[name])[0] == only
                keep = np.bincount(owner[touches], minlength=len(batch)) > 0
            yield batch if keep.all() else batch.select(keep)


def _move_batch(profile: Profile, space: SingleAddressSpace, batch: SampleBatch) -> SampleBatch:
    """``batch`` with its addresses in the one space."""
    scope = profile.binder.scopes(batch)
    columns: dict[str, Array] = {**batch.columns, "ip": space.moved(scope, batch.ip)}
    each = np.repeat(scope, batch.depth)
    for name in ("branch_from", "branch_to"):
        columns[name] = space.moved(each, batch[name])
    frame, owner = _frames(batch) if FRAME in batch else (np.empty(0, np.uint64), np.empty(0, np.int64))
    columns["frame"] = space.moved(scope[owner], frame)
    chains = offsets_of(np.bincount(owner, minlength=len(batch)))
    return SampleBatch(columns, {BRANCH: batch.offsets[BRANCH], FRAME: chains})
