"""Call stacks by name: equal ones are one, with their weight."""

from __future__ import annotations

import numpy as np

from .functions import named_stacks
from .naming import Namer, View
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
    bounds = np.searchsorted(stack, np.arange(len(stacks) + 1)).tolist()
    rows, weights = name.tolist(), (stacks.samples if weight == "samples" else stacks.period).tolist()
    sums: Folded = {}
    for i, process in enumerate(stacks.process.tolist()):
        key = (process, tuple(reversed(rows[bounds[i] : bounds[i + 1]])))
        sums[key] = sums.get(key, 0) + weights[i]
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
