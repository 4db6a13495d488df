"""Mispredicted branches and their cost by function, inlined function, line or module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..analysis import Sources
from ..analysis.counting.mispredictions import NamedMispredictions, cost_note, mispredictions, sum_by_name
from ..model import Array, Profile, SampleFilter
from .columns import GUESS, Column, TableKind
from .names import FILE, FUNCTION, LINE, LINE_NUMBER, LINKAGE_NAME, MODULE_OR_UNKNOWN, SOURCE, Names, module_of
from .table import Known, Ratio, Table, make_table

if TYPE_CHECKING:
    from ..analysis import Label, View

__all__ = ["MISPREDICTIONS", "misprediction_costs"]


@dataclass(slots=True)
class _CostRows:
    profile: Profile
    table: NamedMispredictions
    labels: list[Label]
    all_mispredictions: int
    all_cycles: int
    sources: Sources | None

    def of_all(self, part: Array, whole: int) -> Ratio:
        return Ratio(part, np.full(len(part), whole))


_COLUMNS = (
    Column(
        name="branches",
        title="branches",
        meaning="entries of branch stacks whose outcome is known",
        unit="entries",
        value=lambda rows: rows.table.count,
    ),
    Column(
        name="mispredictions",
        title="mispredictions",
        meaning="of these, those that were mispredicted",
        unit="entries",
        value=lambda rows: rows.table.mispredicted,
    ),
    Column(
        name="share",
        title="share %",
        meaning="of all mispredictions",
        unit="%",
        form="percent",
        heat=100.0,
        rests_on=("bursts", "count"),
        bar=True,
        value=lambda rows: rows.of_all(rows.table.mispredicted, rows.all_mispredictions),
    ),
    Column(
        name="mispredicted",
        title="mispredicted %",
        meaning="of the branches with a known outcome",
        unit="%",
        form="percent",
        heat=GUESS,
        rests_on=("bursts", "count"),
        value=lambda rows: Ratio(rows.table.mispredicted, rows.table.mispredicted + rows.table.predicted),
    ),
    Column(
        name="cycles_lost",
        title="cycles lost",
        unit="cycles",
        value=lambda rows: _cycles_lost(rows),
        meaning="how much longer code took after mispredicted branches than after predicted ones",
    ),
    Column(
        name="lost_share",
        title="lost %",
        meaning="of all cycles of the branch entries",
        unit="%",
        form="percent",
        value=lambda rows: Ratio(_cycles_lost(rows).values, np.where(rows.table.timed > 0, rows.all_cycles, 0)),
    ),
)


def _cycles_lost(rows: _CostRows) -> Known:
    """Whole cycles, not below 0: where chance outweighs the cost, nothing is known to be lost."""
    return Known(np.rint(np.maximum(0.0, rows.table.lost)).astype(np.int64), rows.table.timed > 0)


MISPREDICTIONS = TableKind(
    name="mispredictions",
    row="a function (or an inlined one)",
    columns=(FUNCTION, MODULE_OR_UNKNOWN, *_COLUMNS, LINKAGE_NAME, FILE, LINE_NUMBER, SOURCE),
    last=("function", "module", "source"),
    spare=("branches", "lost_share", "share", "source"),
)
"""`report --mispredictions`."""
_KINDS = {
    "line": replace(
        MISPREDICTIONS,
        name="mispredictions by line",
        row="a source line",
        columns=(LINE, *MISPREDICTIONS.columns),
        last=("line", *MISPREDICTIONS.last),
    ),
    "module": replace(
        MISPREDICTIONS.without("function"), name="mispredictions by module", row="a module", last=("module", "source")
    ),
}


def misprediction_costs(
    names: Names,
    by: View | Literal["module"] | None,
    sample_filter: SampleFilter | None,
    limit: int,
    source_roots: Sequence[str],
) -> Table:
    """Count mispredicted branches in one pass; ``by`` `None`: function, or module if no function has a name.

    ``names`` has no symbols where rows are modules. Raises what `mispredictions` raises.
    """
    profile, namer = names.profile, names.namer
    found, cycles = mispredictions(profile, sample_filter=sample_filter)
    table = sum_by_name(found, None if by == "module" else by or "function", namer)
    if not by and not any(namer.labels[row].function for row in table.name.tolist()):
        by, table = "module", sum_by_name(found, None, namer)
    sources, total = Sources(profile, source_roots), int(table.mispredicted.sum())
    table = table.take(slice(limit or None))
    labels = [namer.labels[row] for row in table.name.tolist()]
    rows = _CostRows(profile, table, labels, total, cycles, sources if by == "line" else None)
    answer = make_table(_KINDS.get(by or "", MISPREDICTIONS), rows, len(table))
    shown = {module_of(profile, label) for label in labels}
    answer.notes = [cost_note(found), *sources.notes, *names.notes(shown, lines=by in ("line", "inline"))]
    return answer
