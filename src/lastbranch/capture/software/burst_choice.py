"""When the bursts of a recording end, and how long they are: what its options make of them."""

from __future__ import annotations

from dataclasses import replace

from ...lbr import CALL_STACK, KIND, convert
from ..options import DEFAULT_SELECT, Options
from .bursts import BurstLimits
from .schedule import BurstLengths

__all__ = ["is_ring", "kinds_recorded", "limits_of"]


def is_ring(options: Options, select: int) -> bool:
    """Whether a burst makes one record, as a processor's ring delivers it."""
    return options.ring is not None or select != convert(DEFAULT_SELECT, "perf", "msr").value


def kinds_recorded(select: int) -> frozenset[int]:
    """perf's branch types that MSR_LBR_SELECT ``select`` records; of call-stack mode, before returns delete calls."""
    import numpy as np

    from ...lbr import ring_contents

    one, far = np.ones(1, np.uint64), np.full(1, 256, np.uint64)
    return frozenset(
        kind
        for kind in KIND.values()
        if len(ring_contents(one, far, np.array([kind], np.uint8), depth=1, select=select & ~CALL_STACK))
    )


_IN_PLACE = 0.002
"""Seconds of a burst that is followed where others are foreseen: about as long as these may take."""
_UP_TO_A_CALL = 1 << 20
"""Branches of a burst that only a system call, or the number of stops, is to end."""


def limits_of(options: Options, select: int, *, cheap: bool = False) -> tuple[BurstLimits, BurstLengths]:
    """When bursts end, and who draws their lengths. ``cheap``: a branch costs next to nothing. A ring is read when
    one to two times ``depth`` branches have passed its filter, in call-stack mode, where returns delete calls, two to
    three times: at a fixed number a loop would show one of its branches as the newest in all records."""
    if not is_ring(options, select):
        lengths = BurstLengths(options.burst, cheap=cheap)
        return BurstLimits(lengths.most, stops=64 + 16 * lengths.most, in_place=_IN_PLACE), lengths
    least = options.depth * 2 if select & CALL_STACK else options.depth
    lengths = BurstLengths((least, least + options.depth))
    limits = BurstLimits(lengths.most, stops=64 + 16 * lengths.most, in_place=_IN_PLACE)
    if select != convert(DEFAULT_SELECT, "perf", "msr").value:
        limits = replace(limits, counted=kinds_recorded(select), stops=64 + 32 * lengths.most)
    if options.calls:
        limits = replace(limits, depth=_UP_TO_A_CALL, stops=64 + 32 * lengths.most)
    return limits, lengths
