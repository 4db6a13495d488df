"""One function in full: its code with what ran of it, loops, indirect targets, and the lines that it was made from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..errors import SelectionError, UnavailableError
from ..images import Code
from ..isa import Decoder
from ..lbr import KIND
from ..model import Array, ModuleKind, Profile, SampleFilter, counted
from .branch_kinds import CodeOf
from .counting import how_to_record, why_no_ranges, why_no_stacks
from .finding import Place
from .flow import Flow, flow_of
from .loops import Loop, loops
from .nearby import Nearby
from .select import kept
from .straight import leaves

__all__ = ["Annotation", "annotate"]

_WINDOW = 1 << 16
"""Bytes that a function without a known end is looked for in."""
_JUMPS = (KIND["cond"], KIND["uncond"])
_COLUMNS = ("branch_from", "branch_to", "branch_flags")


@dataclass(slots=True)
class Annotation:
    """What is known of the code of ``place``.

    ``samples`` int64: samples with the address of each instruction. ``missing`` says why there are no execution counts,
    ``None`` where there are; ``hint`` what to do about it; ``notes`` what else a reader should know.
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

    Without ranges the samples are still counted. Raises `UnavailableError` where the code is not at hand,
    `SelectionError` where a module has none at the address that was given.
    """
    found = CodeOf(profile)(place.module)
    name = profile.place(place.module, place.start)
    if found is None:
        module = profile.modules[place.module]
        if module.kind is ModuleKind.ANONYMOUS:
            raise UnavailableError(
                f"{name} is code that was made at run time (JIT): no capture holds it, so it cannot be annotated",
                hint="`lastbranch branches`, `report --by function` and `stacks` name it",
            )
        why = f"binary {module.missing}" if module.missing else "there is no binary of it"
        raise UnavailableError(
            f"the code of {name} is not at hand: {why}",
            hint="give the folder that holds the capture's binaries with --symfs; `lastbranch branches` needs none",
        )
    code, decoder = found
    missing = why_no_stacks(profile, sample_filter) or why_no_ranges(profile, sample_filter)
    end = place.end or _end(code, decoder, place.start)
    nearby = Nearby(profile, place.module, place.start, end)
    for stream in profile.streams:
        columns = [c for c in _COLUMNS if c in stream.columns] if missing is None else ()
        for batch in kept(profile, stream.batches(columns), sample_filter, by_address=False):
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
        out.notes.append(f"no function is known at {name}: this is the code that is reached from there")
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
