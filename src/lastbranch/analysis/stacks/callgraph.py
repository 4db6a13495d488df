"""Callers and callees of a function, from call branches (counted) and from call stacks (sampled).

A call of another module's function goes through a stub (``f@plt``), which is looked through: who calls the stub calls
the function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...arrays import Table, distinct, distinct_rows, group
from ...errors import NotRecordedError
from ...lbr import KIND
from ...model import Array, Profile, SampleFilter
from ..counting.availability import how_to_record, why_no_stacks
from ..counting.bound_pairs import BoundPairs
from ..counting.branch_kinds import CALLS, JUMPS, CodeOf
from ..counting.count_stacks import count_stacks
from ..naming import Label, Namer
from .call_stacks import call_stacks, why_no_call_stacks
from .functions import named_stacks

__all__ = ["CallTable", "callees", "callers"]

_INDIRECT = KIND["ind_call"]


@dataclass(slots=True)
class CallTable(Table):
    """One row for each function at the other end, hottest first. Equal-length arrays.

    ``function`` int64 row of ``labels``. ``calls`` int64: entries of call branches; ``indirect`` int64: calls through a
    pointer; ``mispredicted`` and ``predicted`` int64: calls that are recorded so; ``jumps`` int64: jumps to the first
    instruction of another function (tail calls). ``None`` where there are no branch stacks. ``samples`` int64: samples
    that have the call in their stack, of ``in_stacks`` that have the function; ``None`` where there are no call stacks.
    ``stacks`` says what these were made from; ``notes`` what is missing.
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


Direction = Literal["callers", "callees"]


def callers(profile: Profile, namer: Namer, function: int, *, sample_filter: SampleFilter | None = None) -> CallTable:
    """Who calls ``function``, a row of ``namer.labels``.

    Raises `NotRecordedError` where the capture has neither branch stacks with calls nor call stacks.
    """
    return _calls(profile, namer, function, "callers", sample_filter)


def callees(profile: Profile, namer: Namer, function: int, *, sample_filter: SampleFilter | None = None) -> CallTable:
    """The functions that ``function`` calls; see `callers`."""
    return _calls(profile, namer, function, "callees", sample_filter)


def _calls(
    profile: Profile, namer: Namer, function: int, direction: Direction, sample_filter: SampleFilter | None
) -> CallTable:
    no_branches, no_stacks = why_no_stacks(profile, sample_filter), why_no_call_stacks(profile, sample_filter)
    counted: dict[int, Array] = {}
    jumped: dict[int, int] = {}
    if not no_branches:
        details = count_stacks(profile, ranges=False, details=True, sample_filter=sample_filter).branches
        counted, unknown, jumped = _count_partners(profile, namer, details, function, direction)
        if unknown:
            no_branches = f"{unknown} branches have no type, and their code is not available (see --symfs)"
    sampled: dict[int, int] = {}
    whole, sources = 0, list[str]()
    if not no_stacks:
        try:
            stacks = call_stacks(profile, sample_filter=sample_filter)
            stack, name = named_stacks(stacks, "function", namer)
            name = _through(namer, function, jumped, name[:-1][name[1:] == function])[name]
            sampled, whole = _count_samples(stack, name, stacks.samples, function, direction)
            sources = stacks.sources
        except NotRecordedError as error:
            no_stacks = str(error)
    if why_no_stacks(profile, sample_filter) and no_stacks:
        raise NotRecordedError(f"it contains no calls: {no_stacks}", hint=how_to_record(profile))
    none = np.zeros(5, np.int64)
    rows = sorted(
        counted.keys() | sampled.keys(),
        key=lambda row: (-int(counted.get(row, none)[:3:2].sum()), -sampled.get(row, 0), row),
    )
    sums = np.array([counted.get(row, none) for row in rows], np.int64).reshape(-1, 5)
    calls, indirect, jumps, wrong, right = [None] * 5 if why_no_stacks(profile, sample_filter) else list(sums.T)
    return CallTable(
        np.array(rows, np.int64),
        calls,
        indirect,
        jumps,
        wrong,
        right,
        None if no_stacks else np.array([sampled.get(row, 0) for row in rows], np.int64),
        whole,
        namer.labels,
        sources,
        [why for why in (no_branches, no_stacks) if why],
    )


def _count_partners(
    profile: Profile, namer: Namer, branches: BoundPairs, function: int, direction: Direction
) -> tuple[dict[int, Array], int, dict[int, int]]:
    """(calls, indirect, jumps, mispredicted and predicted by row of the other function; entries without a type;
    what stubs were seen to jump to).

    A branch of unknown type to the beginning of a function counts as a call.
    """
    source = namer.rows(branches.process, branches.a_module, branches.a)
    target = namer.rows(branches.process, branches.b_module, branches.b)
    jumped = _stub_targets(namer, source, target, branches.count)
    through = _through(namer, function, jumped, target[source == function])
    source, target = through[source], through[target]
    here, other = (target, source) if direction == "callers" else (source, target)
    rows = np.flatnonzero(here == function)
    mine = branches.take(here == function)
    kind, unknown = _kinds(CodeOf(profile), mine)
    first = _begins(namer, mine.b_module, mine.b)
    call = CALLS[kind] | ((kind == 0) & first & (source[rows] != target[rows]))
    jump = JUMPS[kind] & first & (source[rows] != target[rows])
    entries = [call, call & (kind == _INDIRECT), jump]
    sums = np.stack([mine.count * chosen for chosen in entries] + [mine.mispredicted * call, mine.predicted * call])
    found: dict[int, Array] = {}
    for row in distinct(other[rows][call | jump]).tolist():
        found[row] = sums[:, (other[rows] == row)].sum(axis=1)
    return found, int(mine.count[unknown & ~first].sum()), jumped


_LINKAGE = frozenset({".plt", ".plt.sec", ".plt.got", ".iplt"})
"""The names of the linker's own code between stubs."""


def _stub_of(label: Label) -> str:
    """The function whose stub it is; empty for what is none."""
    return label.name.removesuffix("@plt") if label.name.endswith("@plt") else ""


def _stub_targets(namer: Namer, source: Array, target: Array, count: Array) -> dict[int, int]:
    """Stub -> the function that it was most often seen to jump to (rows of labels). At the first call it goes to the
    dynamic linker instead, by the linker's own code."""
    stub, own = (np.zeros(len(namer.labels), bool) for _ in range(2))
    for row, label in enumerate(namer.labels):
        stub[row], own[row] = bool(_stub_of(label)), label.name in _LINKAGE
    jumps = np.flatnonzero(stub[source] & ~stub[target] & ~own[target])
    (stubs, called), (taken,) = group([source[jumps], target[jumps]], [count[jumps]], [np.add])
    return {int(stubs[i]): int(called[i]) for i in np.argsort(taken, kind="stable").tolist()}


def _through(namer: Namer, function: int, jumped: dict[int, int], called: Array) -> NDArray[np.int64]:
    """int64[labels]: the row that calls of each are calls of: that of the function for a stub, but not for ``function``
    itself. For a stub without a recorded jump its name decides, if only one function has this name; ``called`` are the
    rows for which to search."""
    through = np.arange(len(namer.labels))
    names = _names_of(namer, namer.labels[function])
    for row, label in enumerate(namer.labels):
        if row != function and (name := _stub_of(label)):
            through[row] = jumped.get(row, function if name in names else row)
    lost: dict[str, list[int]] = {}
    for row in distinct(called).tolist():
        if through[row] == row and (name := _stub_of(namer.labels[row])):
            lost.setdefault(name, []).append(row)
    found: dict[str, set[int]] = {}
    for module in range(len(namer.profile.modules)) if lost else ():
        table = namer.table(module)
        places = [(name, i) for i, f in enumerate(table.functions) for name in (f.name, *table.aliases.get(i, ()))]
        places = [(name, i) for name, i in places if name in lost]
        where = table.start[[i for _, i in places]] if places else np.empty(0, np.uint64)
        rows = namer.rows(np.full(len(where), -1), np.full(len(where), module), where)
        for (name, _), row in zip(places, rows.tolist(), strict=True):
            found.setdefault(name, set()).add(row)
    for name, rows_of in found.items():
        if len(rows_of) == 1:
            through[lost[name]] = min(rows_of)
    return through


def _names_of(namer: Namer, label: Label) -> set[str]:
    """All that the linker knows a function by."""
    table = namer.table(label.module)
    row = int(table.at(np.array([label.start], np.uint64))[0]) if label.function else -1
    return {label.name, *(table.aliases.get(row, ()) if row >= 0 else ())}


def _kinds(code_of: CodeOf, branches: BoundPairs) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """(branch type of each branch: as its entries say, else as its instruction does; bool: neither does)."""
    low, high = branches.values["type_low"], branches.values["type_high"]
    known = (low == high) & (low > 0)
    kind = np.where(known, low, 0).astype(np.uint8)
    kind[~known] = code_of.kinds(branches.a_module[~known], branches.a[~known])
    hidden = np.array([code_of(row) is None for row in branches.a_module.tolist()], bool)
    return kind, ~known & hidden


def _begins(namer: Namer, module: Array, address: Array) -> NDArray[np.bool_]:
    """Whether each address is the first of a function."""
    out = np.zeros(len(address), bool)
    for row in distinct(module[module >= 0]).tolist():
        mine = np.flatnonzero(module == row)
        table = namer.table(row)
        at = table.at(address[mine])
        out[mine[at >= 0]] = table.start[at[at >= 0]] == address[mine[at >= 0]]
    return out


def _count_samples(
    stack: Array, name: Array, samples: Array, function: int, direction: Direction
) -> tuple[dict[int, int], int]:
    """(samples by row of the other function, samples with the function in their stack), each stack counted once."""
    inside = distinct(stack[name == function])
    inner, outer = name[:-1], name[1:]  # leaf first: the outer one calls
    here, other = (inner, outer) if direction == "callers" else (outer, inner)
    calls = (stack[:-1] == stack[1:]) & (here == function)
    once, _ = distinct_rows(stack[:-1][calls], other[calls])
    (rows,), (sums,) = group([other[calls][once]], [samples[stack[:-1][calls][once]]], [np.add])
    return dict(zip(rows.tolist(), sums.tolist(), strict=True)), int(samples[inside].sum())
