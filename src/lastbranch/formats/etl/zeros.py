"""Zeros where buffers should be: room that was never written to, or damage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage
from .view import View

__all__ = ["end_zeros", "lost_zeros", "zeroed"]


def zeroed(view: View, at: int, written: NDArray[np.bool_]) -> None:
    """Keep where a run of zeros begins in the places from ``at`` on; one that a buffer follows is damage."""
    for row in np.flatnonzero(np.diff(written, prepend=view.zeros_at is None)).tolist():
        if written[row]:
            lost_zeros(view, at + row * view.stride)
        else:
            view.zeros_at = view.base + at + row * view.stride


def end_zeros(view: View, at: int) -> None:
    """Zeros before ``at``, with no buffer of the session behind them, may be room that was never written to."""
    if view.reserved and view.zeros_at is not None:
        view.unwritten += -(-(view.base + at - view.zeros_at) // view.stride)
        view.zeros_at = None
    lost_zeros(view, at)


def lost_zeros(view: View, at: int) -> None:
    """Say that what there is of zeros before ``at`` is damage."""
    if view.zeros_at is None:
        return
    begin, end, view.zeros_at = view.zeros_at, view.base + at, None
    note = Damage("zeros where a buffer should be", begin, "BufferSize", 0, end - begin)
    for skipped in range(begin, end, view.stride):
        view.damage.add(note, skipped=skipped)
