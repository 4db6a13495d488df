"""The hottest branches, and the hottest branch instructions with all of their targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..analysis import BranchTable, Estimate, branches, sites, without_binary
from ..analysis.statistics.share_noise import Noise, noise_of_branches
from ..analysis.statistics.significance import ENOUGH
from ..arrays import distinct
from ..lbr import type_name
from ..model import Array, SampleFilter
from .columns import Column, TableKind, To
from .estimates import estimate_notes
from .names import Names
from .sample_columns import MISPREDICTED
from .table import Known, Ratio, Table, make_table

if TYPE_CHECKING:
    from ..analysis import Namer, SiteTable

__all__ = ["BRANCHES", "ENOUGH", "SITES", "BranchRows", "branch_table", "hottest_branches", "noise_of_rows"]


@dataclass(slots=True)
class BranchRows:
    """Rows of `BRANCHES` or of `SITES`, whose shares are of ``total`` entries. ``noise`` is ``None`` where the capture
    was not recorded in bursts, or nobody asked for it."""

    namer: Namer
    table: BranchTable | SiteTable
    total: int
    noise: Noise | None = None
    replaced: bool = False
    """Whether executions replace counts: noise is that of observed shares."""

    @property
    def source(self) -> tuple[Array, Array]:
        """(int64 row of the module, uint64 address) of each branch."""
        if isinstance(self.table, BranchTable):
            return self.table.from_module, self.table.from_address
        return self.table.module, self.table.address

    @property
    def mispredicted(self) -> Array:
        return self.table.mispredicted

    @property
    def predicted(self) -> Array:
        return self.table.predicted

    @property
    def ends(self) -> list[tuple[Array, Array]]:
        """The places that distinguish the rows."""
        return [self.source, self.target] if isinstance(self.table, BranchTable) else [self.source]

    @property
    def target(self) -> tuple[Array, Array]:
        """The same of where it goes: of a site most often."""
        return self.table.to_module, self.table.to_address


def _end(name: str, title: str, end: str, which: str) -> tuple[Column, Column, Column]:
    """Columns of one end of a branch: the place for people, and its parts for programs."""

    def place(rows: BranchRows) -> list[str | None]:
        module, address = getattr(rows, end)
        profile = rows.namer.profile
        return [profile.place(row, at) for row, at in zip(module.tolist(), address.tolist(), strict=True)]

    def path(rows: BranchRows) -> list[str | None]:
        modules = rows.namer.profile.modules
        return [modules[row].name if row >= 0 else None for row in getattr(rows, end)[0].tolist()]

    def hexadecimal(rows: BranchRows) -> list[str | None]:
        return [f"{at:#x}" for at in getattr(rows, end)[1].tolist()]

    return (
        Column(
            name=name, title=title, meaning=f"{which}: module+address as linked", form="text", to=To.ALL, value=place
        ),
        Column(
            name=f"{name}_path",
            title=f"{name}_module",
            meaning=f"{which}: full path of the binary",
            form="text",
            to=To.PROGRAMS,
            value=path,
        ),
        Column(
            name=f"{name}_hex",
            title=f"{name}_address",
            meaning=f"{which}: address as linked, hexadecimal",
            form="text",
            to=To.PROGRAMS,
            value=hexadecimal,
        ),
    )


def _function(name: str, end: str, which: str) -> Column:
    def places(rows: BranchRows) -> list[str | None]:
        module, address = getattr(rows, end)
        return [name or None for name in rows.namer.places(module, address, rows.table.process)]

    return Column(
        name=f"{name}_function",
        title=f"{name} function",
        meaning=f"{which}: function+offset",
        form="text",
        to=To.ALL,
        value=places,
    )


def _types(rows: BranchRows) -> list[str | None]:
    names: dict[int, str | None] = {-1: "several", 0: None}
    kinds = rows.table.type.tolist()
    return [names.setdefault(kind, type_name(kind) if kind > 0 else "several") for kind in kinds]


def _positive(column: Array) -> Known:
    return Known(column, column != 0)


def _bursts(rows: BranchRows) -> Array | None:
    return None if rows.noise is None else rows.noise.observed


def _noise(rows: BranchRows) -> Array | None:
    return None if rows.noise is None or rows.replaced else rows.noise.error


def _total(rows: BranchRows) -> Ratio:
    return Ratio(rows.table.count, np.full(len(rows.table), rows.total))


COUNT = Column(
    name="count",
    title="count",
    meaning="how often it was taken",
    unit="entries",
    to=To.ALL,
    if_replaced="executions",
    value=lambda rows: rows.table.count,
)
_COUNTS = (
    COUNT,
    Column(
        name="share",
        title="share %",
        meaning="of all branch entries",
        unit="%",
        form="percent",
        to=To.ALL,
        heat=100.0,
        rests_on=("bursts", "count"),
        bar=True,
        by_basis="share of {} %",
        value=_total,
    ),
    Column(
        name="bursts",
        title="bursts",
        meaning="in how many bursts of a recording by software it was seen",
        unit="bursts",
        value=_bursts,
    ),
    Column(
        name="noise",
        title="noise",
        meaning="standard error of the share, in recordings in bursts",
        unit="points",
        form="percent",
        to=To.ALL,
        rests_on=("bursts", "samples", "count"),
        value=_noise,
    ),
)
_CYCLES = Column(
    name="cycles",
    title="cycles",
    meaning="since the branch before, on average",
    unit="cycles",
    form="decimal",
    to=To.ALL,
    rests_on=("bursts", "count"),
    may_lack=True,
    value=lambda rows: Ratio(rows.table.cycles, rows.table.timed),
)
_TYPE = Column(
    name="type",
    title="type",
    meaning="type of the branch; several: entries disagree",
    form="text",
    to=To.ALL,
    value=_types,
)

BRANCHES = TableKind(
    name="branches",
    row="a branch: a pair of source and target",
    columns=(
        *_end("from", "from", "source", "where it begins"),
        *_end("to", "to", "target", "where it goes"),
        *_COUNTS,
        MISPREDICTED,
        _CYCLES,
        _TYPE,
        Column(
            name="in_tx",
            title="in_tx",
            meaning="entries within a transaction",
            unit="entries",
            value=lambda rows: _positive(rows.table.in_tx),
        ),
        Column(
            name="aborts",
            title="aborts",
            meaning="entries of aborted transactions",
            unit="entries",
            value=lambda rows: _positive(rows.table.abort),
        ),
        _function("from", "source", "where it begins"),
        _function("to", "target", "where it goes"),
    ),
    last=("from", "to", "from_function", "to_function"),
    spare=("in_tx", "aborts", "bursts", {"from": "from_function", "to": "to_function"}, "type", "cycles", "noise"),
)
"""`branches`, and the viewer's branches."""

SITES = TableKind(
    name="branch sites",
    row="a branch instruction",
    columns=(
        *_end("from", "from", "source", "where it is"),
        *_COUNTS,
        Column(
            name="not_taken",
            title="not taken",
            meaning="how often it was not taken, where that is recorded",
            unit="entries",
            value=lambda rows: rows.table.not_taken if rows.table.not_taken.any() else None,
        ),
        Column(
            name="wrong",
            title="mispredictions",
            meaning="entries that were mispredicted",
            unit="entries",
            to=To.ALL,
            value=lambda rows: Known(rows.table.mispredicted, rows.table.mispredicted + rows.table.predicted > 0),
        ),
        MISPREDICTED,
        _CYCLES,
        _TYPE,
        Column(
            name="targets",
            title="targets",
            meaning="how many different targets the branch went to",
            to=To.ALL,
            value=lambda rows: rows.table.targets,
        ),
        *_end("to", "most often to", "target", "where it went most often"),
        Column(
            name="to_share",
            title="most often %",
            meaning="of the entries of the branch, those to the most frequent target",
            unit="%",
            form="percent",
            to=To.ALL,
            rests_on=("bursts", "count"),
            value=lambda rows: Ratio(rows.table.to_count, rows.table.count),
        ),
        _function("from", "source", "where it is"),
        _function("to", "target", "where it went most often"),
    ),
    last=("from", "to", "from_function", "to_function"),
    spare=("bursts", {"from": "from_function", "to": "to_function"}, "type", "cycles", "noise"),
)
"""`branches --by site`, and the viewer's branch instructions."""


def branch_table(rows: BranchRows, estimate: Estimate | None = None) -> Table:
    """The table of ``rows``, counted as ``estimate`` says."""
    return make_table(BRANCHES if isinstance(rows.table, BranchTable) else SITES, rows, len(rows.table), estimate)


def noise_of_rows(rows: BranchRows, sample_filter: SampleFilter | None) -> Noise | None:
    """The noise of the shares of ``rows`` among the samples that the filter keeps, in a pass of its own."""
    return noise_of_branches(rows.namer.profile, sample_filter, rows.ends)


def hottest_branches(
    names: Names, sample_filter: SampleFilter | None, estimate: Estimate, limit: int, *, by_site: bool = False
) -> Table:
    """The first ``limit`` branches, or branch instructions, 0: all, counted in one pass as ``estimate`` says."""
    profile = names.profile
    table = branches(profile, sample_filter=sample_filter, estimate=estimate)
    empty, total = int(table.count[~table.recorded].sum()), int(table.count[table.recorded].sum())
    shown = (sites(table) if by_site else table.take(table.recorded)).take(slice(limit or None))
    rows = BranchRows(names.namer, shown, total, replaced=estimate.replaced)
    rows.noise = noise_of_rows(rows, sample_filter)
    answer = branch_table(rows, estimate)
    modules = rows.source[0], rows.target[0]
    answer.notes = [*without_binary(profile, *modules), *estimate_notes(estimate)]
    if rows.noise is not None and not estimate.replaced:
        answer.notes += rows.noise.notes
    if table.not_taken is not None and not by_site:
        passed, wrong = (int(column.sum()) for column in (table.not_taken.count, table.not_taken.mispredicted))
        answer.notes.append(
            f"{passed} entries are of branches that were not taken, {wrong} of them mispredicted: --by site counts them"
        )
    if empty:
        answer.notes.append(f"{empty} entries are empty")
    used = {row for column in modules for row in distinct(column).tolist() if row >= 0}
    named = [profile.modules[row] for row in sorted(used)]
    said = {f"{module.short}: no names: {module.missing}" for module in named}  # with the addresses already
    answer.notes += [note for note in names.notes([module.short for module in named]) if note not in said]
    return answer
