"""Where fields of variable place are in events: those of messages, and what stands between header and payload."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .layout import MESSAGE_FLAG
from .markers import MESSAGE_BYTES

__all__ = ["Ints", "behind_items", "message_field"]

Ints = NDArray[np.int64]

_EVENT_HEADER = 0x50
_TOO_FAR = 1 << 20  # more than any event's size
_EARLIER = {MESSAGE_FLAG.GUID: 0x01, MESSAGE_FLAG.TIMESTAMP: 0x07, MESSAGE_FLAG.SYSTEMINFO: 0x0F}  # fields before it


def message_field(
    raw: NDArray[np.uint8], at: Ints, options: NDArray[np.uint16], flag: int, count: int
) -> NDArray[np.uint8]:
    """``count`` bytes of the field of ``flag`` of the messages at words ``at``, as (n, count): none is aligned."""
    place = at * 8 + MESSAGE_BYTES.take(options.astype(np.int64) & _EARLIER[flag])
    found: NDArray[np.uint8] = raw[place[:, None] + np.arange(count)]
    return found


def behind_items(words: NDArray[np.uint64], at: Ints, sizes: Ints) -> Ints:
    """Bytes from the begin of the EVENT_HEADER events at words ``at`` to behind their last extended items.

    More than an event's size where the items do not fit in it.
    """
    behind = np.full(len(at), _EVENT_HEADER, np.int64)
    live = np.arange(len(at))
    while len(live):
        item = words.take(at[live] + (behind[live] >> 3))
        length = (item & np.uint64(0xFFFF)).astype(np.int64)
        fits = (length >= 8) & (length & 7 == 0) & (behind[live] + length <= sizes[live])
        behind[live] = np.where(fits, behind[live] + length, _TOO_FAR)
        live = live[fits & (item >> np.uint64(32) & np.uint64(1) != 0)]
    return behind
