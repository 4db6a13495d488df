"""The hottest branches, as `lastbranch branches` lists them."""

from __future__ import annotations

import numpy as np

from ...analysis import without_binary
from ...lbr import type_name
from ..answer import Answer, ratio, texts
from ..loaded import Loaded, Parameters, whole_number

__all__ = ["branches"]

_ROWS = 10_000
"""Branches that are sent, the hottest: the others are one sum in the header."""


def branches(loaded: Loaded, parameters: Parameters) -> Answer:
    """Rows by count: ``from``, ``to`` (places as linked), ``from_function``, ``to_function`` (name+offset, empty where
    none is known), ``from_module``, ``to_module`` int64 rows, ``from_address``, ``to_address`` uint64, ``count`` int64,
    ``share``, ``mispredicted`` and ``cycles`` float64, ``type``.

    ``limit`` is how many rows to send. Header: ``branches`` and ``count`` in all, ``empty`` entries, ``notes``.
    """
    profile, table = loaded.profile, loaded.branches(loaded.filter(parameters))
    recorded = (table.from_address != 0) | (table.to_address != 0) | (table.from_module >= 0)
    total, every = int(table.count[recorded].sum()), int(np.count_nonzero(recorded))
    shown = table.take(np.flatnonzero(recorded)[: whole_number(parameters, "limit", _ROWS)])
    ends: dict[str, tuple[np.ndarray, np.ndarray]] = {
        "from": (shown.from_module, shown.from_address), "to": (shown.to_module, shown.to_address),
    }  # fmt: skip
    answer = Answer({
        "branches": every, "count": total, "shown": int(shown.count.sum()),
        "empty": int(table.count[~recorded].sum()),
        "notes": texts(without_binary(profile, shown.from_module, shown.to_module)),
    })  # fmt: skip
    for end, (module, address) in ends.items():
        places = zip(module.tolist(), address.tolist(), strict=True)
        answer.columns[end] = texts(profile.place(row, at) for row, at in places)
        answer.columns[f"{end}_function"] = texts(loaded.namer.places(module, address, shown.process))
        answer.columns[f"{end}_module"], answer.columns[f"{end}_address"] = module, address
    names = {kind: "several" if kind < 0 else type_name(kind) if kind else "" for kind in set(shown.type.tolist())}
    answer.columns |= {
        "count": shown.count,
        "share": ratio(shown.count, np.full(len(shown.count), total)),
        "mispredicted": ratio(shown.mispredicted, shown.mispredicted + shown.predicted),
        "cycles": ratio(shown.cycles, shown.timed),
        "type": [names[kind] for kind in shown.type.tolist()],
    }
    return answer
