"""Call stacks deeper than the ring: each sample of a thread continued with what the one before it still knew.

In call-stack mode calls keep their slots while they are open, so a call that two consecutive samples of a thread have
in the same slot, with the same addresses and flags, is taken for the same call; the older calls of the earlier sample,
overwritten since, then belong below it. The rule is that of perf's ``--stitch-lbr`` (tools/perf/util/machine.c). It can
be wrong: the same call, made again out of another caller, may land in the same slot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Links", "joined", "stitch"]


class Links(NamedTuple):
    """What stitches each stack to an earlier one; one value a stack.

    ``previous`` int64: the stack that it goes on with, -1 none. ``cut`` int64: the first entry of that stack, counted
    from its newest, that follows the last entry of this one.
    """

    previous: NDArray[np.int64]
    cut: NDArray[np.int64]


def stitch(
    source: NDArray[np.uint64],
    target: NDArray[np.uint64],
    flags: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    hw_idx: NDArray[np.int64],
    thread: NDArray[np.int64],
    depth: int,
) -> Links:
    """Link every stack to the one before it of the same ``thread`` where the two belong together.

    Entries are ragged, newest first; stacks in time order. ``hw_idx`` is the slot of the newest entry (-1 unknown: not
    stitched), ``thread`` any number that is the same for the stacks of one life of a thread, ``depth`` the slots of
    the ring.
    """
    sizes = np.diff(offsets)
    before = _before(thread)
    link = np.flatnonzero((before >= 0) & (hw_idx >= 0) & (sizes > 0))
    link = link[(hw_idx[before[link]] >= 0) & (sizes[before[link]] > 0)]
    earlier = before[link]
    # The slot of this stack's oldest entry, as an index into the earlier stack.
    base = hw_idx[link] - sizes[link] + 1
    same_slot = (hw_idx[earlier] - base) % depth
    there = same_slot < sizes[earlier]
    link, earlier, same_slot = link[there], earlier[there], same_slot[there]
    mine, theirs = offsets[link + 1] - 1, offsets[earlier] + same_slot
    same = np.ones(len(link), bool)
    for column in (source, target, flags):
        same &= column[mine] == column[theirs]
    previous, cut = np.full(len(sizes), -1, np.int64), np.zeros(len(sizes), np.int64)
    previous[link[same]] = earlier[same]
    cut[link[same]] = same_slot[same] + 1
    return Links(previous, cut)


def joined(stack: int, links: Links, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The entries of ``stack`` continued through its links: indices into the entry columns, newest first."""
    pieces, first = [], 0
    while stack >= 0:
        pieces.append(np.arange(offsets[stack] + first, offsets[stack + 1]))
        stack, first = int(links.previous[stack]), int(links.cut[stack])
    return np.concatenate(pieces)


def _before(thread: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row before each one that has the same thread, -1 where it is the first."""
    order = np.argsort(thread, kind="stable")
    before = np.full(len(thread), -1, np.int64)
    same = thread[order[1:]] == thread[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before
