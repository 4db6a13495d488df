"""Call stacks as a tree, from the outermost caller, as `lastbranch stacks` counts them."""

from __future__ import annotations

import numpy as np

from ...analysis import CallStacks, View, call_stacks, fold
from ...analysis.stacks.call_stacks import REBUILT
from ...analysis.stacks.functions import Folded
from ...model import Array, Profile, visible
from ..answer import Answer, module_names, texts
from ..loaded import Loaded, Parameters, whole_number

__all__ = ["flame"]

_NODES = 60_000
"""Nodes that are sent, the heaviest."""
_OTHER = "[other]"


def flame(loaded: Loaded, parameters: Parameters) -> Answer:
    """A row for each node, parents before their children: ``parent`` int32 (-1: a root), ``name`` int32 row of
    ``names``, ``samples`` and ``own`` int64 with the node anywhere in the stack, and at its end.

    ``names.function`` and ``names.module`` are texts, ``names.module_row`` int64 (-1: nothing was mapped) and
    ``names.start`` uint64 (0: not known) the place of the code. ``inline`` asks for a frame for each inlined function.

    ``limit`` is how many nodes to send, the heaviest. What lies below a node and was not sent is one child of it, whose
    name is the row ``other.name`` of the header (-1: all was sent), with ``other.nodes`` and ``other.samples`` in all.
    Other facts in the header: ``samples``, ``events`` (name and samples of each that has stacks, where the capture has
    several), ``sources`` of the stacks, ``rebuilt`` where branch stacks are one of them, ``bare`` samples without
    callers, and ``enough`` of them for a share to mean something (`CallStacks.enough`).
    """
    profile, chosen = loaded.profile, loaded.filter(parameters)
    view: View = "inline" if parameters.get("inline") else "function"
    stacks = loaded.once(("stacks", chosen), lambda: call_stacks(profile, sample_filter=chosen))
    tree = _tree(fold(stacks, loaded.namer, view))
    parent, name, samples, own = _heaviest(*tree, whole_number(parameters, "limit", _NODES))
    cut = len(tree[0]) - int(np.count_nonzero(name >= 0))
    labels = [loaded.namer.labels[row] for row in np.unique(name[name >= 0]).tolist()]
    used, which = np.unique(name, return_inverse=True)
    other = int(len(used) > 0 and used[0] < 0)
    names = [_OTHER] * other + [label.shown(profile) for label in labels]
    rows = [-1] * other + [label.module for label in labels]
    return Answer(
        {
            "samples": int(stacks.samples.sum()),
            "events": _events(profile, stacks),
            "sources": texts(stacks.sources),
            "bare": stacks.bare,
            "rebuilt": REBUILT in stacks.sources,
            "enough": stacks.enough,
            "other": {"name": other - 1, "nodes": cut, "samples": int(samples[name < 0].sum())},
        },
        {
            "parent": parent.astype(np.int32),
            "name": which.reshape(-1).astype(np.int32),
            "samples": samples,
            "own": own,
            "names.function": texts(names),
            "names.module": module_names(profile, rows),
            "names.module_row": np.array(rows, np.int64),
            "names.start": np.array([0] * other + [label.start for label in labels], np.uint64),
        },
    )


def _events(profile: Profile, stacks: CallStacks) -> list[tuple[str, int]]:
    if len(profile.events) < 2:
        return []
    samples = np.bincount(stacks.event, stacks.samples, len(profile.events)).astype(np.int64)
    return [(visible(profile.events[row].name), int(samples[row])) for row in np.flatnonzero(samples).tolist()]


def _tree(folded: Folded) -> tuple[Array, Array, Array, Array]:
    """(parent, row of the label, samples, own samples) of each node, parents first, of all processes."""
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
    return np.array(parent, np.int64), np.array(name, np.int64), np.array(samples, np.int64), np.array(own, np.int64)


def _heaviest(parent: Array, name: Array, samples: Array, own: Array, limit: int) -> tuple[Array, Array, Array, Array]:
    """The ``limit`` heaviest nodes, in their order, and after them a node of the label -1 below each whose children
    are not all there, with their samples. A parent has no fewer samples than its children and comes first, so that it
    stays where they do."""
    kept = np.sort(np.argsort(-samples, kind="stable")[: max(0, limit)])
    if len(kept) == len(parent):
        return parent, name, samples, own
    row = np.full(len(parent) + 1, -1)  # the last is the root's, which has no row
    row[kept] = np.arange(len(kept))
    left = np.ones(len(parent), bool)
    left[kept] = False
    heads = np.flatnonzero(left & ((parent < 0) | ~left[parent]))
    above, which = np.unique(row[parent[heads]], return_inverse=True)
    rest = np.bincount(which.reshape(-1), samples[heads], len(above)).astype(np.int64)
    columns = (
        (row[parent[kept]], above),
        (name[kept], np.full(len(above), -1)),
        (samples[kept], rest),
        (own[kept], rest),
    )
    made = [np.concatenate(parts) for parts in columns]
    return made[0], made[1], made[2], made[3]
