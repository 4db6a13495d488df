"""Call stacks as a tree, from the outermost caller."""

from __future__ import annotations

import numpy as np

from ...analysis import call_stacks, fold
from ...analysis.naming import View
from ..answer import Answer, texts
from ..loaded import Loaded, Parameters

__all__ = ["flame"]


def flame(loaded: Loaded, parameters: Parameters) -> Answer:
    """A row for each node, parents before their children: ``parent`` int32 (-1: a root), ``name`` int32 row of
    ``names``, ``samples`` and ``own`` int64 with the node anywhere in the stack, and at its end.

    ``names.function`` and ``names.module`` are texts. Header: ``sources`` of the stacks, ``bare`` samples without
    callers.
    """
    profile = loaded.profile
    stacks = call_stacks(profile, sample_filter=loaded.filter(parameters))
    view: View = "inline" if parameters.get("inline") else "function"
    folded = fold(stacks, loaded.namer, view)
    nodes: dict[tuple[int, int], int] = {}
    parent, name, samples, own = list[int](), list[int](), list[int](), list[int]()
    for (_process, path), weight in folded.items():
        at = -1
        for label in path:
            above, at = at, nodes.setdefault((at, label), len(nodes))
            if at == len(parent):
                parent.append(above)
                name.append(label)
                samples.append(0)
                own.append(0)
            samples[at] += weight
        if at >= 0:
            own[at] += weight
    labels = loaded.namer.labels
    used, which = np.unique(np.array(name, np.int64), return_inverse=True)
    return Answer(
        {"sources": texts(stacks.sources), "bare": stacks.bare, "samples": int(stacks.samples.sum())},
        {
            "parent": np.array(parent, np.int32), "name": which.reshape(-1).astype(np.int32),
            "samples": np.array(samples, np.int64), "own": np.array(own, np.int64),
            "names.function": texts(labels[row].shown(profile) for row in used.tolist()),
            "names.module": texts(_module(loaded, labels[row].module) for row in used.tolist()),
        },
    )  # fmt: skip


def _module(loaded: Loaded, row: int) -> str:
    return loaded.profile.modules[row].short if row >= 0 else ""
