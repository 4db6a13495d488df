"""Call stacks out of branch records: by replaying calls and returns, or as call-stack mode left them.

Columns are ragged: stack ``s`` has the entries ``offsets[s]:offsets[s + 1]``, newest first, as in a sample batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .filters import CALL_STACK, CAPTURES, captured
from .ring import ZERO_LENGTH
from .words import KIND

__all__ = ["call_frames", "no_call_stacks_because", "open_calls"]

_NOTHING, _PUSH, _POP, _ENTER, _LEAVE = range(5)
_ACTION = np.zeros(256, np.uint8)
for _action, _kinds in {
    _PUSH: ("call", "ind_call", "cond_call"),
    _POP: ("ret", "cond_ret"),
    _ENTER: ("syscall", "irq"),
    _LEAVE: ("sysret", "eret"),
}.items():
    _ACTION[[KIND[name] for name in _kinds]] = _action
_HANDLER = 2
_STEP = np.array([0, 1, -1, _HANDLER, _HANDLER], np.int8)[_ACTION].tobytes()
_BLOCK = 8192
"""Stacks whose matrices stay in the processor's caches."""
_PADDED = 4
"""So many times the entries the matrices may have: more, and stacks of very different sizes go the other way."""


def no_call_stacks_because(value: int, notation: str) -> str | None:
    """Why `open_calls` cannot work with records of that selection (see `convert`); ``None`` where it can."""
    word = captured(value, notation)
    if word & CALL_STACK:
        return "call-stack mode has no returns: its entries are the stack already"
    missing = [n for n in ("NEAR_REL_CALL", "NEAR_IND_CALL", "NEAR_RET") if not word >> CAPTURES.index(n) & 1]
    return f"branches that make or end calls were not recorded ({', '.join(missing)})" if missing else None


def open_calls(
    source: NDArray[np.uint64], target: NDArray[np.uint64], kind: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which entries are calls that had not returned when the sample was taken, and returns without a call.

    ``kind`` is perf's branch type (`branch_type`). Entries are replayed oldest to newest: a call is pushed, a return
    pops, jumps (tail calls among them) change nothing, zero-length calls are passed over. A system call or interrupt is
    pushed too; returning from it drops it with all calls made inside, and a near return never pops it. Where it
    was not recorded, nothing happens.

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
    action = _ACTION[kind]
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
