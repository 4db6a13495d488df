"""Branch instructions and the branches of each of them, as `lastbranch branches` lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...analysis import sites, without_binary
from ...answers.branches import ENOUGH, BranchRows, branch_table, noise_of_rows
from ..answer import Answer, Column, counts_of, texts
from ..loaded import Loaded, Parameters, whole_number

if TYPE_CHECKING:
    from ...analysis import BranchTable, Estimate, SiteTable
    from ...model import Array, SampleFilter

__all__ = ["branches"]

_ROWS = 10_000
"""Branches that are sent, the hottest, and as many sites: the others are one sum in the header."""


def branches(loaded: Loaded, parameters: Parameters) -> Answer:
    """Rows by count: ``from``, ``to`` (places as linked), ``from_function``, ``to_function`` (name+offset, empty where
    none is known), ``from_module``, ``to_module`` int64 rows, ``from_address``, ``to_address`` uint64, ``from_start``,
    ``to_start`` uint64 (where the function begins, 0: not known), ``count`` int64, ``share``, ``mispredicted`` and
    ``cycles`` float64, ``type``; ``noise`` float64, the standard error of the share, NaN but for recordings in bursts;
    ``observed`` int64: bursts, or else entries, that shares and rates rest on. ``sites.`` are the rows of ``--by
    site``: the same of each branch instruction and of its most frequent target, with ``wrong`` float64 (entries that
    were mispredicted), ``targets`` int64, and ``to_share`` float64 of that target.

    ``limit`` is how many rows to send of each. Header: ``branches``, ``sites`` and ``count`` in all, ``shown`` entries
    of the branches that were sent, ``empty`` entries, ``columns`` and
    ``site_columns`` (`Table.declared`), ``counts`` (`counts_of`; ``estimate`` chooses them), ``enough``
    of them for rates to mean something, ``notes``.
    """
    limit = whole_number(parameters, "limit", _ROWS)
    chosen = loaded.filter(parameters)
    estimate = loaded.estimate(parameters)
    table = loaded.branches(chosen, estimate)
    every = table.take(table.recorded)
    by_site = loaded.once(("sites", chosen, estimate.replaced), lambda: sites(table))
    total = int(every.count.sum())
    shown, listed = every.take(slice(limit)), by_site.take(slice(limit))
    answer = Answer(
        {
            "branches": len(every),
            "sites": len(by_site),
            "count": total,
            "shown": int(shown.count.sum()),
            "empty": int(table.count.sum()) - total,
            "counts": counts_of(estimate),
            "enough": ENOUGH,
            "notes": texts(without_binary(loaded.profile, shown.from_module, shown.to_module)),
        }
    )
    columns, answer.header["columns"] = _columns(loaded, chosen, estimate, shown, total)
    of_sites, answer.header["site_columns"] = _columns(loaded, chosen, estimate, listed, total)
    answer.columns |= columns | {f"sites.{name}": column for name, column in of_sites.items()}
    return answer


def _columns(
    loaded: Loaded, chosen: SampleFilter | None, estimate: Estimate, table: BranchTable | SiteTable, total: int
) -> tuple[dict[str, Column], list[dict[str, str]]]:
    """(the declared columns, with what the page needs to lead to the code; `Table.declared`)."""
    rows = BranchRows(loaded.namer, table, total, replaced=estimate.replaced)
    key = "noise of branches", chosen, len(rows.ends), len(table), estimate.replaced
    rows.noise = loaded.once(key, lambda: noise_of_rows(rows, chosen))
    answer = branch_table(rows, estimate)
    columns: dict[str, Column] = {**answer.arrays()}
    columns |= {**_end(loaded, "from", *rows.source, table.process), **_end(loaded, "to", *rows.target, table.process)}
    return columns | {"observed": table.count if rows.noise is None else rows.noise.observed}, answer.declared


def _end(loaded: Loaded, end: str, module: Array, address: Array, process: Array) -> dict[str, Column]:
    """Where branches begin or end."""
    labels = [loaded.namer.labels[row] for row in loaded.namer.rows(process, module, address).tolist()]
    start = np.array([label.start for label in labels], np.uint64)
    return {f"{end}_start": start, f"{end}_module": module, f"{end}_address": address}
