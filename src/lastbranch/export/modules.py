"""Counts by module, from one pass over the capture: the basis of the compiler formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from ..analysis import StackCounts, count_stacks, merge_processes
from ..analysis.counting.executed import decode_ranges
from ..arrays import distinct
from ..errors import NotRecordedError, UnavailableError
from ..isa import Decoder
from ..model import PATCHED, Array, Change, Module, ModuleKind, Profile, counted, visible, word
from ..opening import code_of
from .binary_choice import choose
from .interface import Exporter, ExportOptions, ExportResult

__all__ = ["ModuleCounts", "ModuleFormat", "count_modules", "exporter_of", "first_code", "unverified_notes"]


@dataclass(slots=True)
class ModuleCounts:
    """The counts of one module. Addresses (uint64) are link addresses; offsets in the file without a binary.

    Ranges ``start``..``end``, both first bytes of instructions, with ``times`` (int64), sorted. Branches ``source`` to
    ``target``, with at least one in the module (bool ``from_here``, ``to_here``; the other's address belongs to
    another module or none), ``taken`` and ``mispredicted`` times (int64). ``sampled`` addresses of samples and how
    often, if the format requests them.
    """

    profile: Profile
    row: int
    module: Module
    start: Array
    end: Array
    times: Array
    source: Array
    target: Array
    from_here: Array
    to_here: Array
    taken: Array
    mispredicted: Array
    sampled: Array
    sampled_times: Array

    @property
    def empty(self) -> bool:
        """Whether nothing was counted."""
        return not len(self.times) and not len(self.taken)

    def straight(self) -> tuple[ModuleCounts, list[str]]:
        """These counts without ranges that lead across a branch which always leaves, and a note if there were any.

        Some processors write an entry twice: a range then seems to lead from one branch far past others. llvm-profgen
        leaves such ranges out when it reads a capture (``rangeCrossUncondBranch``), but not when it reads counts. All
        ranges stay if the code is not available, and all ranges of a kernel stay: a kernel patches jumps of its code
        while it runs.
        """
        code = code_of(self.module) if self.module.kind not in PATCHED else None
        if code is None or not len(self.start):
            return self, []
        address, stop = decode_ranges(code, Decoder(code.arch), self.start, self.end)
        first, last = np.searchsorted(address[stop], [self.start, self.end], side="left")
        straight = first == last
        if straight.all():
            return self, []
        left = counted(int(self.times[~straight].sum()), "range is", "ranges are")
        note = f"{left} left out: no code runs past an unconditional branch"
        start, end, times = self.start[straight], self.end[straight], self.times[straight]
        return replace(self, start=start, end=end, times=times), [note]

    def exported(self, notes: list[str], ranges: int | None = None, why: str = "") -> ExportResult:
        """How much of these counts a format wrote: ``ranges`` (None: all), or the branches if there are no ranges.

        ``why`` says why it left some out."""
        times = self.times if len(self.times) else self.taken
        recorded = int(times.sum())
        return ExportResult(
            notes,
            recorded if ranges is None or not len(self.times) else ranges,
            recorded,
            "ranges" if len(self.times) else "branches",
            why,
        )

    def file_offset(self, address: Array) -> Array:
        """The offset in the file of the code at each address."""
        out = address.copy()
        for s in self.module.segments:
            if s.executable:
                inside = (address >= np.uint64(s.address)) & (address - np.uint64(s.address) < np.uint64(s.size))
                out[inside] = address[inside] - np.uint64(s.address) + np.uint64(s.offset)
        return out


def first_code(module: Module) -> int:
    """The address that llvm-profgen counts from: the first page of code of an ELF file, the base of a PE file."""
    code = [s.address for s in module.segments if s.executable]
    if module.is_pe:
        return module.image_base if code else 0  # without its binary they count from there already
    return code[0] & ~0xFFF if code else 0


@dataclass(frozen=True, slots=True)
class ModuleFormat:
    """A format that speaks of one module.

    ``write`` puts out the counts of a module. ``linked``: it needs link addresses, and so the binary. ``sampled``: it
    needs the addresses of samples, too. ``second`` is the suffix of the file that ``write`` makes from
    `ExportOptions.symbol_order`; a format of one file has an empty suffix. ``relocatable``: it can be of kernel
    modules. ``count`` counts what the format has in the place of ranges, of the modules of these rows; ``None``: ranges
    and branches.
    """

    suffix: str
    write: Callable[[ModuleCounts, IO[bytes], ExportOptions], ExportResult]
    linked: bool = True
    sampled: bool = False
    second: str = ""
    relocatable: bool = True
    count: Callable[[Profile, ExportOptions, list[int]], StackCounts] | None = None


def why_not(module: Module, form: ModuleFormat) -> str | None:
    """Why ``form`` cannot be made of the module."""
    if module.kind not in (ModuleKind.FILE, *PATCHED):
        return f"{module.kind}: not a binary that can be rebuilt"
    needed = form.linked or module.kind in PATCHED
    if needed and not module.segments and not module.is_pe:
        return f"link addresses are not known, binary {module.missing or 'not found'}"
    if module.kind is ModuleKind.KERNEL_MODULE and not form.relocatable:
        return "BOLT rewrites no kernel modules"
    return None


def exporter_of(form: ModuleFormat) -> Exporter:
    """An exporter of ``form`` for the one module that the options name."""

    def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> ExportResult:
        assert options.binary is not None, "a folder is written by `folder.export_folder`"
        row = choose(profile, options.binary)
        module = profile.modules[row]
        if reason := why_not(module, form):
            hint = f"give the file itself with --binary PATH/{module.short}, or --symfs DIR"
            raise UnavailableError(f"{word(module.name)}: {reason}", hint=hint)
        (counts,), notes = count_modules(profile, options, form, [row])
        if counts.empty:
            raise NotRecordedError(
                f"nothing was recorded in {word(module.name)}", hint="see `lastbranch report FILE --by module`"
            )
        written = form.write(counts, out, options)
        return written._replace(notes=notes + unverified_notes(counts) + written.notes)

    return export


def unverified_notes(counts: ModuleCounts) -> list[str]:
    """A note where nothing recorded identifies the binary; the size of its code may still show that it is another."""
    module = counts.module
    if not module.unverified or module.is_pe:
        return []
    name, file = word(module.short), visible(module.binary)
    why = f"{file} has no build id to compare" if module.build_id else f"{name} was recorded without a build id"
    code, mapped = _sizes_of_code(counts)
    if mapped and code != mapped:
        more = f"it has {code} bytes of code in whole pages, and {mapped} were mapped"
        return [f"{why}, and {file} is probably another build than the one that ran: {more}"]
    shows = "only the size of its code shows" if mapped else "nothing shows"
    return [f"{why}: {shows} that {file} is the binary that ran"]


def _sizes_of_code(counts: ModuleCounts) -> tuple[int, int]:
    """(bytes of code in the binary, bytes of it that were mapped), in whole pages; 0 where that is not recorded."""
    page = np.uint64(counts.profile.machine.page_size)
    changes = counts.profile.timeline.columns()
    rows = (changes["kind"] == Change.MAP) & (changes["module"] == counts.row)
    start, end, offset = (changes[name][rows].astype(np.uint64) for name in ("start", "end", "offset"))
    code = mapped = 0
    for segment in counts.module.segments:
        first = np.uint64(segment.offset) // page * page
        past = -(-(segment.offset + segment.size) // int(page)) * int(page)
        here = (offset >= first) & (offset < np.uint64(past))
        if segment.executable and here.any():
            code += past - int(first)
            mapped += int((offset + end - start)[here].max()) - int(offset[here].min())
    return code, mapped


def count_modules(
    profile: Profile, options: ExportOptions, form: ModuleFormat, rows: list[int]
) -> tuple[list[ModuleCounts], list[str]]:
    """The counts of the modules ``rows``, in that order, and notes for the user.

    Raises `NotRecordedError` where there are no branch stacks, or no ranges between them.
    """
    if form.count:
        found = form.count(profile, options, rows)
    else:
        found = options.counted(rows) if options.counted else _count(profile, options, form)
    if found.ranges is None:
        raise NotRecordedError("the captures have no fall-through ranges")
    (r_module, start, _, end), (times, _, _) = merge_processes(found.ranges)
    (f_module, source, t_module, target), (taken, mispredicted, _) = merge_processes(found.branches)
    s_module, sampled, sampled_times = found.sampled.arrays().values()
    by_target = np.argsort(t_module, kind="stable")
    modules = []
    for row in rows:
        mine = _rows_of(row, r_module)
        leaving = np.arange(len(taken))[_rows_of(row, f_module)]
        ends = distinct(np.concatenate([leaving, by_target[_rows_of(row, t_module[by_target])]]))
        at = _rows_of(row, s_module)
        modules.append(
            ModuleCounts(
                profile,
                row,
                profile.modules[row],
                start[mine],
                end[mine],
                times[mine],
                source[ends],
                target[ends],
                f_module[ends] == row,
                t_module[ends] == row,
                taken[ends],
                mispredicted[ends],
                sampled[at],
                sampled_times[at],
            )
        )
    broken = ", ".join(f"{n} {reason}" for reason, n in found.broken.items() if n)
    return modules, [f"not ranges: {broken}"] if broken else []


def _count(profile: Profile, options: ExportOptions, form: ModuleFormat) -> StackCounts:
    """The counts that the format needs, from one pass over the samples."""
    return count_stacks(
        profile,
        ranges=True,
        details=False,
        sample_filter=options.sample_filter,
        sampled=form.sampled,
        by_process=False,
        estimate=options.estimate,
    )


def _rows_of(row: int, modules: Array) -> slice:
    """The position of ``row`` in a sorted column."""
    return slice(*np.searchsorted(modules, [row, row + 1]).tolist())
