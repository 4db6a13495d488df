"""Functions by their samples, and what to look at first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...analysis import why_no_stacks
from ...answers.estimates import basis_of_samples
from ...answers.functions import ENOUGH, FUNCTIONS, FunctionRows, function_table, where_to_start
from ...answers.table import numbers
from ..answer import Answer, counts_of, texts
from ..loaded import Loaded, Parameters, whole_number

if TYPE_CHECKING:
    from ...analysis import Estimate, NameTable
    from ...analysis.counting.over_time import Shares
    from ...model import SampleFilter

__all__ = ["PARTS", "hot"]

PARTS = 32
"""Parts of the time in the small chart of each row."""


def hot(loaded: Loaded, parameters: Parameters) -> Answer:
    """A row for each event and function, as `report --by function` prints them, the heaviest of each event first.

    ``event`` int64 row, ``function`` and ``module`` texts, ``module_row`` int64 and ``start`` uint64 (0: not known),
    ``samples``, ``share`` of the event's samples (of its instructions, where executions are estimated),
    ``instructions``, ``branches`` taken in it, ``mispredicted`` share of them, ``cycles`` a branch; ``noise``, the
    standard error of the share of samples, and the ``bursts`` that have samples there in a recording in bursts; NaN
    where that is not known. ``over_time`` unsigned: `PARTS` numbers a row, none where the source has no time stamps.

    ``limit`` is how many rows to send, those with most samples (0: all). Header: ``first``, a sentence, ``notes``,
    ``counts`` (`counts_of`; ``estimate`` chooses them), ``share_of``: what shares follow (`estimate.Basis`),
    ``columns``: what the declared ones are (`Table.declared`), ``enough`` samples or branches for their shares to mean
    something, and ``other``: ``rows``, ``samples`` and
    ``share`` (of all samples) of what was not sent.
    """
    chosen, limit = loaded.filter(parameters), whole_number(parameters, "limit", 0)
    estimate = loaded.estimate(parameters)
    found = loaded.once(("hot", chosen, estimate.replaced), lambda: _count(loaded, chosen, estimate))
    samples = found.rows.samples
    rows = np.sort(np.argsort(-samples, kind="stable")[: limit or len(samples)])
    left = int(samples.sum() - samples[rows].sum())
    other = {"rows": len(samples) - len(rows), "samples": left, "share": left / max(1, int(samples.sum()))}
    header = {
        "first": found.first,
        "notes": found.notes,
        "parts": PARTS,
        "enough": ENOUGH,
        "other": other,
        "counts": counts_of(estimate),
        "share_of": found.share_of,
    }
    shown = found.rows.take(rows)
    table = function_table(shown, estimate)
    header["columns"] = table.declared
    over_time = found.over_time.reshape(len(samples), -1)[rows] if len(found.over_time) else found.over_time
    return Answer(
        header,
        {
            "event": shown.event,
            "module_row": np.array([label.module for label in shown.labels], np.int64),
            "start": np.array([label.start for label in shown.labels], np.uint64),
            "share": found.share[rows],
            **table.arrays(),
            "over_time": over_time.reshape(-1),
        },
    )


@dataclass(slots=True)
class _Counted:
    """All rows, and what is not in them."""

    rows: FunctionRows
    share: NDArray[np.float64]
    share_of: str
    over_time: NDArray[np.unsignedinteger]
    first: str
    notes: list[str]


def _count(loaded: Loaded, chosen: SampleFilter | None, estimate: Estimate) -> _Counted:
    table, times, noise, *_ = loaded.functions(chosen, PARTS, estimate)
    rows = FunctionRows.of(loaded.profile, table, noise, loaded.namer)
    share = "instructions_share" if estimate.replaced else "samples_share"
    why = why_no_stacks(loaded.profile, chosen)
    return _Counted(
        rows,
        numbers(FUNCTIONS.column(share).value(rows), len(table)),
        "executions" if estimate.replaced else basis_of_samples(loaded.profile, table.event),
        _over_time(times, table),
        where_to_start(rows),
        texts([*table.notes, *([f"no branches: {why}"] if why else [])]),
    )


def _over_time(found: Shares | None, table: NameTable) -> NDArray[np.unsignedinteger]:
    """`PARTS` numbers of samples for each row of ``table``, one row after the other."""
    if found is None:
        return np.empty(0, np.uint8)
    row_of = np.full((int(found.event.max(initial=0)) + 1, len(found.labels)), -1)
    row_of[table.event, table.name] = np.arange(len(table))
    at = row_of[found.event, found.name]
    out = np.zeros((len(table), PARTS), np.int32)
    out[at[at >= 0], found.part[at >= 0]] = found.samples[at >= 0]
    return out.reshape(-1).astype(np.min_scalar_type(out.max(initial=0)))  # most of the answer's bytes
