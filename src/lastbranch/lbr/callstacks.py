"""Call stacks out of branch records: by replaying calls and returns, or as call-stack mode left them.

Columns are ragged: stack ``s`` has the entries ``offsets[s]:offsets[s + 1]``, newest first, as in a sample batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .filters import CALL_STACK, CAPTURES, captured
from .flags import KIND
from .ring import ZERO_LENGTH

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
    segment = np.repeat(np.arange(len(sizes)), sizes)
    action = _ACTION[kind]
    action[(kind == KIND["call"]) & (target - source == ZERO_LENGTH)] = _NOTHING
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
