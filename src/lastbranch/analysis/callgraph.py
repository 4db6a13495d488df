"""Who calls a function and what it calls: by call branches (counted) and by call stacks (sampled)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import NotRecordedError
from ..lbr import KIND
from ..model import Array, Profile, SampleFilter
from .branch_kinds import CodeOf, is_call
from .counting import Bound, count_stacks, how_to_record, why_no_stacks
from .functions import named_stacks
from .naming import Label, Namer
from .stacks import call_stacks, why_no_call_stacks

__all__ = ["CallTable", "callees", "callers"]

_INDIRECT = KIND["ind_call"]
_JUMPS = np.zeros(256, bool)
_JUMPS[[KIND[name] for name in ("cond", "uncond", "ind")]] = True


@dataclass(slots=True)
class CallTable:
    """One row for each function at the other end, hottest first. Equal-length arrays.

    ``function`` int64 row of ``labels``. ``calls`` int64: entries of call branches, ``indirect`` of them through a
    pointer, ``mispredicted`` and ``predicted`` of those that tell; ``jumps`` int64: jumps to the first instruction of
    another function (tail calls, stubs of shared libraries). ``None`` where there are no branch stacks. ``samples``
    int64: samples that have the call in their stack, of ``in_stacks`` that have the function; ``None`` where there are
    no call stacks. ``stacks`` says what these were made from; ``notes`` what is missing.
    """

    function: Array
    calls: Array | None
    indirect: Array | None
    jumps: Array | None
    mispredicted: Array | None
    predicted: Array | None
    samples: Array | None
    in_stacks: int
    labels: list[Label]
    stacks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.function)


Direction = Literal["callers", "callees"]


def callers(profile: Profile, namer: Namer, function: int, *, sample_filter: SampleFilter | None = None) -> CallTable:
    """Who calls ``function``, a row of ``namer.labels``.

    Raises `NotRecordedError` where the capture has neither branch stacks with calls nor call stacks.
    """
    return _calls(profile, namer, function, "callers", sample_filter)


def callees(profile: Profile, namer: Namer, function: int, *, sample_filter: SampleFilter | None = None) -> CallTable:
    """What ``function`` calls; see `callers`."""
    return _calls(profile, namer, function, "callees", sample_filter)


def _calls(
    profile: Profile, namer: Namer, function: int, direction: Direction, sample_filter: SampleFilter | None
) -> CallTable:
    no_branches, no_stacks = why_no_stacks(profile, sample_filter), why_no_call_stacks(profile, sample_filter)
    counted: dict[int, Array] = {}
    if not no_branches:
        details = count_stacks(profile, ranges=False, details=True, sample_filter=sample_filter).branches
        counted, unknown = _counted(profile, namer, details, function, direction)
        if unknown:
            no_branches = f"{unknown} branches have no type, and their code is not at hand (see --symfs)"
    sampled: dict[int, int] = {}
    whole, sources = 0, list[str]()
    if not no_stacks:
        try:
            stacks = call_stacks(profile, sample_filter=sample_filter)
            sampled, whole = _sampled(*named_stacks(stacks, "function", namer), stacks.samples, function, direction)
            sources = stacks.sources
        except NotRecordedError as error:
            no_stacks = str(error)
    if why_no_stacks(profile, sample_filter) and no_stacks:
        raise NotRecordedError(f"there are no calls in it: {no_stacks}", hint=how_to_record(profile))
    none = np.zeros(5, np.int64)
    rows = sorted(
        counted.keys() | sampled.keys(),
        key=lambda row: (-int(counted.get(row, none)[:3:2].sum()), -sampled.get(row, 0), row),
    )
    sums = np.array([counted.get(row, none) for row in rows], np.int64).reshape(-1, 5)
    calls, indirect, jumps, wrong, right = [None] * 5 if why_no_stacks(profile, sample_filter) else list(sums.T)
    return CallTable(
        np.array(rows, np.int64), calls, indirect, jumps, wrong, right,
        None if no_stacks else np.array([sampled.get(row, 0) for row in rows], np.int64),
        whole, namer.labels, sources, [why for why in (no_branches, no_stacks) if why],
    )  # fmt: skip


def _counted(
    profile: Profile, namer: Namer, branches: Bound, function: int, direction: Direction
) -> tuple[dict[int, Array], int]:
    """(calls, indirect, jumps, mispredicted and predicted by row of the other function; entries without a type).

    Of a branch whose type is not known, one that begins a function is taken for a call.
    """
    source = namer.rows(branches.process, branches.a_module, branches.a)
    target = namer.rows(branches.process, branches.b_module, branches.b)
    here, other = (target, source) if direction == "callers" else (source, target)
    rows = np.flatnonzero(here == function)
    mine = branches.only(here == function)
    kind, unknown = _kinds(CodeOf(profile), mine)
    first = _begins(namer, mine.b_module, mine.b)
    call = is_call(kind) | ((kind == 0) & first & (source[rows] != target[rows]))
    jump = _JUMPS[kind] & first & (source[rows] != target[rows])
    entries = [call, call & (kind == _INDIRECT), jump]
    sums = np.stack([mine.count * chosen for chosen in entries] + [mine.mispredicted * call, mine.predicted * call])
    found: dict[int, Array] = {}
    for row in np.unique(other[rows][call | jump]).tolist():
        found[row] = sums[:, (other[rows] == row)].sum(axis=1)
    return found, int(mine.count[unknown & ~first].sum())


def _kinds(code_of: CodeOf, branches: Bound) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """(branch type of each branch: as its entries say, else as its instruction does; bool: neither tells)."""
    low, high = branches.values["type_low"], branches.values["type_high"]
    told = (low == high) & (low > 0)
    kind = np.where(told, low, 0).astype(np.uint8)
    kind[~told] = code_of.kinds(branches.a_module[~told], branches.a[~told])
    hidden = np.array([code_of(row) is None for row in branches.a_module.tolist()], bool)
    return kind, ~told & hidden


def _begins(namer: Namer, module: Array, address: Array) -> NDArray[np.bool_]:
    """Whether each address is the first of a function."""
    out = np.zeros(len(address), bool)
    for row in np.unique(module[module >= 0]).tolist():
        mine = np.flatnonzero(module == row)
        table = namer.table(row)
        at = table.at(address[mine])
        out[mine[at >= 0]] = table.start[at[at >= 0]] == address[mine[at >= 0]]
    return out


def _sampled(
    stack: Array, name: Array, samples: Array, function: int, direction: Direction
) -> tuple[dict[int, int], int]:
    """(samples by row of the other function, samples with the function in their stack), each stack counted once."""
    inside = np.unique(stack[name == function])
    inner, outer = name[:-1], name[1:]  # leaf first: the outer one calls
    here, other = (inner, outer) if direction == "callers" else (outer, inner)
    calls = (stack[:-1] == stack[1:]) & (here == function)
    pairs = np.unique(np.stack([stack[:-1][calls], other[calls]]), axis=1)
    found: dict[int, int] = {}
    for at, row in pairs.T.tolist():
        found[row] = found.get(row, 0) + int(samples[at])
    return found, int(samples[inside].sum())
