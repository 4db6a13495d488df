"""Who calls a function, and whom it calls: by call branches and by call stacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..analysis import CallTable, Place, callees, callers
from ..model import Array, Profile, SampleFilter
from .columns import GUESS, Column, TableKind
from .names import FUNCTION, LINKAGE_NAME, MODULE, Names, module_of
from .table import Known, Ratio, Table, make_table

if TYPE_CHECKING:
    from ..analysis import Label

__all__ = ["CALLEES", "CALLERS", "call_partners"]


@dataclass(slots=True)
class _PartnerRows:
    """Rows of ``table``, all of which have so many ``calls``."""

    profile: Profile
    table: CallTable
    labels: list[Label]
    calls: int


def _part(values: Array | None, whole: int) -> Ratio | None:
    return None if values is None else Ratio(values, np.full(len(values), whole))


def _jumps(rows: _PartnerRows) -> Known | None:
    jumps = rows.table.jumps
    return None if jumps is None else Known(jumps, jumps != 0)


def _mispredicted(rows: _PartnerRows) -> Ratio | None:
    wrong, right = rows.table.mispredicted, rows.table.predicted
    return None if wrong is None or right is None else Ratio(wrong, wrong + right)


_COLUMNS = (
    Column(name="calls", title="calls", meaning="call branches", unit="entries", value=lambda rows: rows.table.calls),
    Column(
        name="calls_share",
        title="calls %",
        meaning="of all of these",
        unit="%",
        form="percent",
        heat=100.0,
        rests_on=("calls",),
        bar=True,
        value=lambda rows: _part(rows.table.calls, rows.calls),
    ),
    Column(
        name="indirect",
        title="indirect",
        meaning="of the calls, those through a pointer",
        unit="entries",
        value=lambda rows: rows.table.indirect,
    ),
    Column(
        name="jumps", title="jumps", meaning="jumps to the first instruction: tail calls", unit="entries", value=_jumps
    ),
    Column(
        name="mispredicted",
        title="mispredicted %",
        meaning="of the entries with a known outcome",
        unit="%",
        form="percent",
        heat=GUESS,
        rests_on=("bursts", "count"),
        value=_mispredicted,
    ),
    Column(
        name="samples",
        title="samples",
        meaning="samples with the call in their stack",
        unit="samples",
        value=lambda rows: rows.table.samples,
    ),
    Column(
        name="samples_share",
        title="samples %",
        meaning="of the samples with the function in their stack",
        unit="%",
        form="percent",
        heat=100.0,
        rests_on=("bursts", "samples"),
        value=lambda rows: _part(rows.table.samples, rows.table.in_stacks),
    ),
)


def _kind(direction: str, meaning: str) -> TableKind:
    return TableKind(
        name=f"{direction}s",
        row=f"a {direction} of a function",
        columns=(replace(FUNCTION, title=direction, meaning=meaning), MODULE, *_COLUMNS, LINKAGE_NAME),
        last=("function", "module"),
        spare=("jumps", "indirect", "calls", "samples"),
    )


CALLERS = _kind("caller", "function that calls it, demangled")
CALLEES = _kind("callee", "function that it calls, demangled")


def call_partners(
    names: Names, place: Place, direction: Literal["caller", "callee"], sample_filter: SampleFilter | None, limit: int
) -> Table:
    """The functions at the other end of the calls of the function at ``place``, in one pass; at most ``limit``, 0: all.
    Raises what `callers` raises."""
    profile, namer = names.profile, names.namer
    find: Any = {"caller": callers, "callee": callees}[direction]
    table: CallTable = find(profile, namer, namer.row(place.label), sample_filter=sample_filter)
    every, shown = 0 if table.calls is None else int(table.calls.sum()), table.take(slice(limit or None))
    labels = [table.labels[row] for row in shown.function.tolist()]
    answer = make_table(
        {"caller": CALLERS, "callee": CALLEES}[direction], _PartnerRows(profile, shown, labels, every), len(shown)
    )
    answer.notes = [] if len(shown) else [f"no {direction} of {place.label.shown(profile)} was seen"]
    answer.notes += [*(f"samples: {source}" for source in table.stacks), *table.notes]
    answer.notes += names.notes({module_of(profile, label) for label in [*labels, place.label]})
    return answer
