"""This capture against the one before: what `lastbranch diff` prints, call stacks side by side, and how a function's
blocks have changed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from ...analysis import CodeLocation, Difference, Matcher, Thing, call_stacks, fold
from ...analysis.statistics.significance import ENOUGH
from ...answers.differences import RATE, difference_table
from ...errors import SelectionError
from ...model import SampleFilter, visible
from ..answer import Answer, module_names, texts
from ..loaded import Loaded, Parameters, whole_number
from .function import place_asked

__all__ = ["diff", "diff_blocks", "diff_flame"]

_ROWS = 10_000


def diff(loaded: Loaded, parameters: Parameters) -> Answer:
    """A row for each event and thing, the surest differences first, as `diff --by` prints them: ``by`` is ``function``,
    ``edge`` or ``block``.

    ``event`` text; ``name`` and ``module`` texts, of an edge where it begins, and ``to_name`` and ``to_module``;
    ``before``, ``share`` (of this capture), ``change`` and ``noise`` float64, parts of 1; ``before_samples`` and
    ``samples`` int64; ``p`` float64, NaN where too few samples have it; ``significant`` bool. ``module_row`` int64 and
    ``start`` uint64 are the function in this capture (-1 and 0 where it has none).

    ``limit`` is how many rows to send. Header: ``before`` and ``after``, names of the captures, ``tested`` and
    ``found``: how many could be significant, and are; ``rows`` in all; ``rate``, ``notes``, ``enough`` samples,
    ``columns``: what the declared ones are (`Table.declared`).
    """
    by = parameters.get("by") or "function"
    if by not in get_args(Thing):
        raise SelectionError(f"by = {by[:40]!r}: choose from {', '.join(map(repr, get_args(Thing)))}")
    found = loaded.differences(cast("Thing", by), parameters)
    table = difference_table(found, cast("Thing", by), RATE, whole_number(parameters, "limit", _ROWS))
    places = _places(loaded, [ends[0] for ends in found.spots[: len(table)]])
    return Answer(
        {
            "before": texts([loaded.other.profile.name])[0],
            "after": texts([loaded.profile.name])[0],
            "tested": int((~np.isnan(found.probability)).sum()),
            "found": int(found.significant(RATE).sum()),
            "rows": len(found),
            "rate": RATE,
            "notes": texts(found.notes),
            "enough": ENOUGH,
            "columns": table.declared,
        },
        {
            **table.arrays(),
            "module_row": np.array([module for module, _ in places], np.int64),
            "start": np.array([start for _, start in places], np.uint64),
        },
    )


def _places(loaded: Loaded, spots: list[CodeLocation]) -> list[tuple[int, int]]:
    """(row of the module, address) of the function of each spot; (-1, 0) of those that are not in this capture. A
    program with a new name is called by its old one."""
    modules = loaded.profile.modules
    known = [label for label in loaded.namer.labels if label.function and label.start and label.module >= 0]
    here = {one.short for one in modules}
    places = {("", label.function): (label.module, label.start) for label in reversed(known)}
    places |= {(modules[label.module].short, label.function): (label.module, label.start) for label in reversed(known)}
    keys = ((spot.module if spot.module in here else "", spot.function) for spot in spots)
    return [places.get(key, (-1, 0)) for key in keys]


def diff_flame(loaded: Loaded, parameters: Parameters) -> Answer:
    """The call stacks of both captures as one tree, as the question ``flame`` has it: ``samples`` and ``own`` are of
    this capture, ``before`` and ``before_own`` int64 of the one before. Functions are the same as for `diff`;
    ``names.module_row`` is -1 for those that only the capture before has.

    ``limit`` is how many nodes to send, those with the largest shares of either side. Header: ``samples`` and
    ``before``, how many there are in all, ``left_out`` nodes, and ``enough``.
    """
    before, chosen = loaded.other, loaded.other.filter(loaded.translated(parameters))
    tree = _BothStacks(Matcher([before.namer, loaded.namer]))
    totals = tree.add(0, before, chosen), tree.add(1, loaded, loaded.filter(parameters))
    counts = np.array(tree.counts, np.int64).reshape(-1, 4).T  # of the one before, then of this one
    shares = np.maximum(counts[0] / max(1, totals[0]), counts[2] / max(1, totals[1]))
    # A child is never heavier than its parent, and comes after it.
    kept = np.sort(np.argsort(-shares, kind="stable")[: whole_number(parameters, "limit", _NODES)])
    row = np.full(len(shares) + 1, -1)
    row[kept] = np.arange(len(kept))
    here = [loaded.namer.labels[at] if (at := tree.labels[1].get(name)) is not None else None for name in tree.names]
    there = [before.namer.labels[at] if (at := tree.labels[0].get(name)) is not None else None for name in tree.names]
    shown = [(loaded.profile, a) if a is not None else (before.profile, b) for a, b in zip(here, there, strict=True)]
    return Answer(
        {"samples": totals[1], "before": totals[0], "left_out": len(shares) - len(kept), "enough": ENOUGH},
        {
            "parent": row[np.array(tree.parent, np.int64)[kept]].astype(np.int32),
            "name": np.array(tree.name, np.int32)[kept],
            "before": counts[0][kept],
            "before_own": counts[1][kept],
            "samples": counts[2][kept],
            "own": counts[3][kept],
            "names.function": texts(label.shown(profile) for profile, label in shown if label is not None),
            "names.module": [module_names(of, [label.module])[0] for of, label in shown if label is not None],
            "names.module_row": np.array([-1 if label is None else label.module for label in here], np.int64),
            "names.start": np.array([0 if label is None else label.start for label in here], np.uint64),
        },
    )


_NODES = 60_000


class _BothStacks:
    """The call stacks of two captures in one tree: ``parent`` (-1: a root) and ``name`` of each node, parents first,
    and its ``counts``: samples with it anywhere, and at the end, of the one side and of the other."""

    def __init__(self, matching: Matcher) -> None:
        self._matching = matching
        self._nodes: dict[tuple[int, int], int] = {}
        self._keys: dict[Hashable, int] = {}
        self.parent, self.name, self.counts = list[int](), list[int](), list[list[int]]()
        self.labels: tuple[dict[int, int], dict[int, int]] = {}, {}
        """Of each side, the label of a name that it has."""

    @property
    def names(self) -> range:
        return range(len(self._keys))

    def add(self, side: int, of: Loaded, chosen: SampleFilter | None) -> int:
        """Add the stacks of a side; how many samples have one."""
        stacks = of.once(("stacks", chosen), lambda: call_stacks(of.profile, sample_filter=chosen))
        name_of: dict[int, int] = {}
        for (_process, path), weight in fold(stacks, of.namer, "function").items():
            at = -1
            for label in path:
                if label not in name_of:
                    key = self._matching.same_function(side, of.namer.labels[label])
                    name_of[label] = self._keys.setdefault(key, len(self._keys))
                    self.labels[side].setdefault(name_of[label], label)
                above, at = at, self._nodes.setdefault((at, name_of[label]), len(self._nodes))
                if at == len(self.parent):
                    self.parent.append(above)
                    self.name.append(name_of[label])
                    self.counts.append([0] * 4)
                self.counts[at][2 * side] += weight
            if at >= 0:
                self.counts[at][2 * side + 1] += weight
        return int(stacks.samples.sum())


def diff_blocks(loaded: Loaded, parameters: Parameters) -> Answer:
    """The blocks of one function, as `diff --by block` compares them. ``at_module`` and ``start`` say which, as for the
    question ``function``.

    ``address`` uint64 as linked, where a block begins, or with ``after`` (bool) the instruction before it; ``event``
    text; ``before``, ``share``, ``change``, ``noise`` and ``p`` float64 and ``significant`` bool as of `diff`. Header:
    ``found`` and ``tested`` as of `diff`, of this function.
    """
    found = loaded.differences("block", parameters)
    place = place_asked(loaded, parameters)
    modules = loaded.profile.modules
    module, here = modules[place.module].short if place.module >= 0 else "", {one.short for one in modules}
    rows = np.array(  # a program with a new name is called by its old one
        [
            i
            for i, (spot,) in enumerate(found.spots)
            if spot.function == place.label.function and (spot.module == module or spot.module not in here)
        ],
        np.int64,
    )
    offsets = [_offset(found.spots[row][0]) for row in rows.tolist()]
    return Answer(
        {"tested": int((~np.isnan(found.probability[rows])).sum()), "found": int(_significant(found)[rows].sum())},
        {
            "address": np.array([place.label.start + offset for offset, _ in offsets], np.uint64),
            "after": np.array([after for _, after in offsets], bool),
            "event": texts(found.event[row] for row in rows.tolist()),
            "before": found.share[0, rows],
            "share": found.share[1, rows],
            "change": found.change[rows],
            "noise": found.noise[rows],
            "p": found.probability[rows],
            "significant": _significant(found)[rows],
        },
    )


def _significant(found: Difference) -> NDArray[np.bool_]:
    return found.significant(RATE)


def _offset(spot: CodeLocation) -> tuple[int, bool]:
    """Where in its function a block begins, and whether that is after the instruction there."""
    where = visible(spot.where)
    return int(where.removeprefix("behind ").removeprefix("+"), 16), where.startswith("behind ")
