"""Branch instructions and the branches of each of them, as `lastbranch branches` lists them."""

from __future__ import annotations

import numpy as np

from ...analysis import BranchTable, Estimate, SiteTable, sites, without_binary
from ...analysis.statistics.share_noise import noise_of_branches
from ...analysis.statistics.significance import ENOUGH
from ...lbr import type_name
from ...model import Array, SampleFilter
from ..answer import Answer, Column, counts_of, ratio, texts
from ..loaded import Loaded, Parameters, whole_number

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
    of the branches that were sent, ``empty`` entries, ``counts`` (`counts_of`; ``estimate`` chooses them), ``enough``
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
    answer = Answer({
        "branches": len(every), "sites": len(by_site), "count": total, "shown": int(shown.count.sum()),
        "empty": int(table.count.sum()) - total, "counts": counts_of(estimate),
        "enough": ENOUGH, "notes": texts(without_binary(loaded.profile, shown.from_module, shown.to_module)),
    })  # fmt: skip
    answer.columns |= _end(loaded, "from", shown.from_module, shown.from_address, shown.process)
    answer.columns |= _end(loaded, "to", shown.to_module, shown.to_address, shown.process)
    answer.columns |= _counts(shown, total)
    ends = [(shown.from_module, shown.from_address), (shown.to_module, shown.to_address)]
    answer.columns |= _noise(loaded, chosen, estimate, shown, ends)
    of_sites = _end(loaded, "from", listed.module, listed.address, listed.process)
    of_sites |= _end(loaded, "to", listed.to_module, listed.to_address, listed.process)
    of_sites |= _counts(listed, total)
    of_sites |= _noise(loaded, chosen, estimate, listed, [(listed.module, listed.address)])
    of_sites |= {
        "wrong": np.where(listed.mispredicted + listed.predicted > 0, listed.mispredicted, np.nan),
        "targets": listed.targets,
        "to_share": ratio(listed.to_count, listed.count),
    }
    answer.columns |= {f"sites.{name}": column for name, column in of_sites.items()}
    return answer


def _end(loaded: Loaded, end: str, module: Array, address: Array, process: Array) -> dict[str, Column]:
    """Where branches begin or end."""
    namer = loaded.namer
    places = zip(module.tolist(), address.tolist(), strict=True)
    labels = [namer.labels[row] for row in namer.rows(process, module, address).tolist()]
    return {
        end: texts(loaded.profile.place(row, at) for row, at in places),
        f"{end}_function": texts(namer.places(module, address, process)),
        f"{end}_start": np.array([label.start for label in labels], np.uint64),
        f"{end}_module": module,
        f"{end}_address": address,
    }


def _noise(
    loaded: Loaded, chosen: SampleFilter | None, estimate: Estimate, table: BranchTable | SiteTable,
    ends: list[tuple[Array, Array]],
) -> dict[str, Column]:  # fmt: skip
    key = "noise of branches", chosen, len(ends), len(table), estimate.replaced
    found = loaded.once(key, lambda: noise_of_branches(loaded.profile, chosen, ends))
    unknown = np.full(len(table), np.nan)
    if found is None:
        return {"noise": unknown, "observed": table.count}
    return {"noise": unknown if estimate.replaced else found.error, "observed": found.observed}


def _counts(table: BranchTable | SiteTable, total: int) -> dict[str, Column]:
    names = {kind: "several" if kind < 0 else type_name(kind) if kind else "" for kind in set(table.type.tolist())}
    return {
        "count": table.count,
        "share": ratio(table.count, np.full(len(table), total)),
        "mispredicted": ratio(table.mispredicted, table.mispredicted + table.predicted),
        "cycles": ratio(table.cycles, table.timed),
        "type": [names[kind] for kind in table.type.tolist()],
    }
