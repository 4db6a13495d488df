"""``lastbranch report --by function``, ``inline`` and ``line``."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .options import Capture
from .output import Cell, print_rows, share
from .symbols import brief, line_of, module_of, symbol_notes

if TYPE_CHECKING:
    from ..analysis.naming import Label, View
    from ..model import Profile, SampleFilter
    from ..symbols import SymbolOptions

__all__ = ["VIEWS", "report_names"]

VIEWS = ("function", "inline", "line")

_OTHERS = "--by shows the same by process, thread, module, inline or line"
_SPARE = ("total period", "period", "instructions", "total", "period %", "samples", "source", "total %")
_SPARE_BY_LINE = (*_SPARE, "module")
_MACHINE_ONLY = ("linkage name", "file", "line number")


def report_names(
    capture: Capture, profile: Profile, chosen: SampleFilter | None, form: str, limit: int, by: str | None,
    symbols: SymbolOptions, source_root: tuple[str, ...],
) -> int | list[str]:  # fmt: skip
    """Print the table and end the verb. Where ``by`` is not given, it is ``function``: if nothing has a name then,
    nothing is printed, and the notes that say why are returned."""
    from ..analysis.functions import names
    from ..analysis.sources import Sources
    from ..symbols import Symbolizer

    symbolizer = Symbolizer(profile, symbols)
    with capture.reading(profile):
        table = names(profile, cast("View", by or "function"), symbolizer, sample_filter=chosen)
    guessed = [] if by else [f"by function; {_OTHERS}"]
    if not by and not any(label.function for label in table.labels):
        return [f"by module, as no function has a name; {_OTHERS}", *brief(profile, symbolizer.notes)]
    by = by or "function"
    sources = Sources(profile, source_root)
    sums = [c.tolist() if c is not None else [None] * len(table) for c in (
        table.samples, table.period, table.total, table.total_period, table.instructions,
    )]  # fmt: skip
    events, kinds = table.event.tolist(), table.has_period.tolist()
    stacked, branching = table.has_total.tolist(), table.has_instructions.tolist()
    whole = [[0, 0, 0] for _ in profile.events]
    for event, samples, period, _, _, instructions in zip(events, *sums, strict=True):
        for i, value in enumerate((samples, period, instructions)):
            whole[event][i] += value or 0
    rows: list[list[Cell]] = []
    for i in range(len(table))[: limit or None]:
        label = table.labels[int(table.name[i])]
        samples, period, total, total_period, instructions = (column[i] for column in sums)
        all_samples, all_period, all_instructions = whole[events[i]]
        has_period = kinds[i]
        total, total_period = (total, total_period) if stacked[i] else (None, None)
        instructions = instructions if branching[i] else None
        rows.append(
            [
                profile.events[events[i]].name, *_name(profile, label, by), module_of(profile, label),
                samples, _share(samples, all_samples),
                *([period, _share(period, all_period)] if has_period else [None, None]),
                total, _share(total, all_samples),
                total_period if has_period else None,
                instructions, _share(instructions, all_instructions),
                label.name or None, label.file or None, label.line or None,
                sources.line(label.module, label.file, label.line) if by == "line" else None,
            ]
        )  # fmt: skip
    names_of = ["line", "function"] if by == "line" else ["function"]
    columns = ["event", *names_of, "module", "samples", "samples %", "period", "period %", "total", "total %",
               "total period", "instructions", "instructions %", *_MACHINE_ONLY, "source"]  # fmt: skip
    print_rows(
        columns,
        rows,
        form,
        machine_only=_MACHINE_ONLY,
        spare=_SPARE_BY_LINE if by == "line" else _SPARE,
        names=("event", *names_of, "module", "source"),
    )
    shown = {module_of(profile, table.labels[row]) for row in table.name[: limit or None].tolist()}
    named = symbol_notes(profile, symbolizer, shown, lines=by != "function")
    made = [*guessed, *(f"totals: {source}" for source in table.stacks)]
    return capture.finish(profile, [*capture.why_empty(profile, rows), *made, *table.notes, *sources.notes, *named])


def _share(part: int | None, whole: int) -> float | None:
    return None if part is None else share(part, whole)


def _name(profile: Profile, label: Label, by: str) -> list[Cell]:
    function = label.shown(profile)
    return [line_of(label), function] if by == "line" else [function]
