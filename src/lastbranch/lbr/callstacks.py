"""Call stacks out of branch records.

A full record is replayed: each call pushes, each return pops (`open_calls`). A record of call-stack mode holds the open
calls already (`call_frames`).

Columns are ragged: stack ``s`` has the entries ``offsets[s]:offsets[s + 1]``, newest first, as in a sample batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .filters import CALL_STACK, CAPTURES, capture_mask
from .ring import ZERO_LENGTH
from .words import KIND

__all__ = ["ACTIONS", "Links", "call_frames", "follow_links", "no_call_stacks_because", "open_calls", "stitch"]


_NOTHING, _PUSH, _POP, _ENTER, _LEAVE = range(5)
ACTIONS = np.zeros(256, np.uint8)
for _action, _kinds in {
    _PUSH: ("call", "ind_call", "cond_call"),
    _POP: ("ret", "cond_ret"),
    _ENTER: ("syscall", "irq"),
    _LEAVE: ("sysret", "eret"),
}.items():
    ACTIONS[[KIND[name] for name in _kinds]] = _action
"""uint8[256]: what a branch of each type does to the stack."""
_HANDLER = 2
_STEP = np.array([0, 1, -1, _HANDLER, _HANDLER], np.int8)[ACTIONS].tobytes()
_BLOCK = 8192
"""Stacks whose matrices stay in the processor's caches."""
_PADDED = 4
"""So many times the entries the matrices may have: more, and stacks of very different sizes go the other way."""


def no_call_stacks_because(value: int, notation: str) -> str | None:
    """Why `open_calls` cannot work with records of that selection (see `convert`); ``None`` where it can."""
    word = capture_mask(value, notation)
    if word & CALL_STACK:
        return "call-stack mode records no returns: its entries already are the stack"
    missing = [n for n in ("NEAR_REL_CALL", "NEAR_IND_CALL", "NEAR_RET") if not word >> CAPTURES.index(n) & 1]
    return f"calls or returns were not recorded ({', '.join(missing)})" if missing else None


def open_calls(
    source: NDArray[np.uint64], target: NDArray[np.uint64], kind: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which entries are calls that had not returned when the sample was taken, and returns without a call.

    ``kind`` is perf's branch type (`branch_type`). Entries are replayed oldest to newest: a call is pushed, a return
    pops, jumps (tail calls among them) change nothing, zero-length calls are passed over. A system call or interrupt is
    pushed too. The return from a handler drops the handler with all calls made inside; a near return never pops a
    handler. Nothing happens if the handler's entry was not recorded.

    Returns a mask over the entries, whose ``source`` addresses are the frames of the callers (leaf side first), and
    the number of near returns of each stack, outside of handlers, that found no call, int64: the window began that
    many frames deeper.
    """
    sizes = np.diff(offsets)
    direct = np.flatnonzero(kind == KIND["call"])
    passed_over = direct[target[direct] - source[direct] == ZERO_LENGTH]
    longest = int(sizes.max(initial=0))
    if longest * len(sizes) <= _PADDED * len(kind):
        step = np.frombuffer(kind.tobytes().translate(_STEP), np.int8).copy()  # three times as fast as an index
        step[passed_over] = 0
        if not (step == _HANDLER).any():
            return _open_calls_in_columns(step, offsets, longest)
    action = ACTIONS[kind]
    action[passed_over] = _NOTHING
    segment = np.repeat(np.arange(len(sizes)), sizes)
    enters = action == _ENTER
    if enters.any():
        height = _height(enters.astype(np.int64) - (action == _LEAVE), segment)
        height -= np.minimum(_lowest_older(height, segment), 0)  # a way back without the way in changes nothing
        done = height > _lowest_newer(height, segment)  # inside of a handler that has returned
        action[done] = _NOTHING
        enters &= ~done
        segment += np.cumsum(enters)  # handlers that still run: what is newer cannot return from what is older
    calls = action == _PUSH
    height = _height(calls.astype(np.int64) - (action == _POP), segment)
    lowest = _lowest_newer(height, segment)
    keep = enters | (calls & (height <= lowest))  # the height has not fallen below the call since
    unmatched = np.zeros(len(sizes), np.int64)
    unmatched[sizes > 0] = -np.minimum(lowest[offsets[1:][sizes > 0] - 1], 0)
    return keep, unmatched


def _open_calls_in_columns(
    step: NDArray[np.int8], offsets: NDArray[np.int64], longest: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """`open_calls` where there are no handlers: all stacks of a block at once, from entry to entry.

    ``step`` is 1 for a call, -1 for a return. Each row of the matrices has one entry of every stack, the newest first.
    """
    count = len(offsets) - 1
    keep, unmatched = np.empty(len(step), bool), np.zeros(count, np.int64)
    for first in range(0, count, _BLOCK):
        last = min(first + _BLOCK, count)
        begin, end = int(offsets[first]), int(offsets[last])
        sizes = np.diff(offsets[first : last + 1])
        shape = (longest, last - first)
        regular = end - begin == longest * (last - first)
        if regular:
            steps = np.ascontiguousarray(step[begin:end].reshape(shape[::-1]).T)
        else:
            stack = np.repeat(np.arange(last - first), sizes)
            place = (np.arange(begin, end) - offsets[first:last][stack]) * shape[1] + stack
            steps = np.zeros(shape, np.int8)
            steps.reshape(-1)[place] = step[begin:end]
        height = np.empty(shape, np.int8 if longest < 128 else np.int32)
        np.copyto(height[-1:], steps[-1:])
        for row in range(longest - 2, -1, -1):
            np.add(height[row + 1], steps[row], out=height[row])
        lowest = np.full(shape[1], np.iinfo(height.dtype).max, height.dtype)
        still = np.empty(shape, bool)
        for row in range(longest):
            np.minimum(lowest, height[row], out=lowest)
            np.less_equal(height[row], lowest, out=still[row])
        still &= steps == 1
        keep[begin:end] = still.T.reshape(-1) if regular else still.reshape(-1)[place]
        unmatched[first:last] = -np.minimum(lowest, 0).astype(np.int64) if longest else 0
    return keep, unmatched


def _height(step: NDArray[np.int64], segment: NDArray[np.int64]) -> NDArray[np.int64]:
    """Behind each entry, the sum of the steps of its segment (a run of equal numbers) up to it, oldest first."""
    newer = np.cumsum(step)
    oldest = np.flatnonzero(np.diff(segment, append=-1))
    return np.repeat(newer[oldest], np.diff(oldest, prepend=-1)) - newer + step


def _lowest_newer(height: NDArray[np.int64], segment: NDArray[np.int64]) -> NDArray[np.int64]:
    """The lowest height from each entry to the newest of its segment: segments are moved apart, then one pass."""
    apart = segment * (2 * len(height) + 1)
    lowest: NDArray[np.int64] = np.minimum.accumulate(height - apart) + apart
    return lowest


def _lowest_older(height: NDArray[np.int64], segment: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same from each entry to the oldest of its segment."""
    return _lowest_newer(height[::-1], -segment[::-1])[::-1]


def call_frames(
    source: NDArray[np.uint64], target: NDArray[np.uint64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The frames of stacks of call-stack mode, leaf first: ``target`` of the newest entry, then each ``source``.

    The sample's own address is not used: the processor ran on between the record and the interrupt. A stack without
    entries has no frames. Returns frames (uint64) and their offsets (stacks + 1).
    """
    sizes = np.diff(offsets)
    frame_offsets = np.concatenate(([0], np.cumsum(sizes + (sizes > 0)))).astype(np.int64)
    frames = np.empty(int(frame_offsets[-1]), np.uint64)
    leaf = np.zeros(len(frames), bool)
    leaf[frame_offsets[:-1][sizes > 0]] = True
    frames[leaf] = target[offsets[:-1][sizes > 0]]
    frames[~leaf] = source
    return frames, frame_offsets


# -- Call stacks deeper than the ring: each sample of a thread continued with what the one before it still knew
#
# In call-stack mode calls keep their slots while they are open, so a call that two consecutive samples of a thread have
# in the same slot, with the same addresses and flags, is taken for the same call; the older calls of the earlier
# sample, overwritten since, then belong below it. The rule is that of perf's ``--stitch-lbr``
# (tools/perf/util/machine.c). It can be wrong: the same call, made again out of another caller, may land in the same
# slot.


class Links(NamedTuple):
    """The join of each stack to an earlier stack; one value a stack.

    ``previous`` int64: the stack that it goes on with, -1 none. ``cut`` int64: the entry of the earlier stack, counted
    from its newest, that follows the last entry of this stack.
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


def follow_links(stack: int, links: Links, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The entries of ``stack`` continued through its links: indices into the entry columns, newest first."""
    pieces, first = [], 0
    while stack >= 0:
        pieces.append(np.arange(offsets[stack] + first, offsets[stack + 1]))
        stack, first = int(links.previous[stack]), int(links.cut[stack])
    return np.concatenate(pieces)


def _before(thread: NDArray[np.int64]) -> NDArray[np.int64]:
    """The previous row of the same thread, -1 for a thread's first row."""
    order = np.argsort(thread, kind="stable")
    before = np.full(len(thread), -1, np.int64)
    same = thread[order[1:]] == thread[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before
