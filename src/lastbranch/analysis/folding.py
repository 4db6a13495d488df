"""Call stacks by name: equal ones are one, with their weight."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from .functions import named_stacks
from .naming import Namer, View
from .same import distinct_stacks, taken
from .stacks import CallStacks

__all__ = ["Folded", "fold"]

Folded = dict[tuple[int, tuple[int, ...]], int]
"""(row of the process, rows of labels from the root to the leaf) -> weight."""


def fold(stacks: CallStacks, namer: Namer, view: View = "function", weight: str = "samples") -> Folded:
    """Sum ``stacks`` over events by process and names, heaviest first.

    ``view`` ``function`` gives one name a frame, ``inline`` each inlined function its own. ``weight`` is ``samples`` or
    ``period``. Raises `ValueError` for another.
    """
    if weight not in ("samples", "period"):
        raise ValueError(f"weight = {weight!r}: there are 'samples', 'period'")
    stack, name = named_stacks(stacks, view, namer)
    offsets = np.searchsorted(stack, np.arange(len(stacks) + 1))
    rows, which = distinct_stacks([stacks.process], name, offsets)
    sums = np.zeros(len(rows), np.uint64)
    np.add.at(sums, which, stacks.samples.astype(np.uint64) if weight == "samples" else stacks.period)
    labels, bounds = taken(name, offsets, rows)
    names, (process, weights) = labels.tolist(), (stacks.process[rows].tolist(), sums.tolist())
    folded = {
        (owner, tuple(reversed(names[lo:hi]))): total
        for owner, total, (lo, hi) in zip(process, weights, pairwise(bounds.tolist()), strict=True)
    }
    return dict(sorted(folded.items(), key=lambda item: -item[1]))
