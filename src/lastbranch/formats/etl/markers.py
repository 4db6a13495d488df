"""What the first word of an event says, by its marker: tables with a place for each value of its bits 16 to 31.

These are the header type and the bits that tell a header from other bytes; with them the word tells the event's size.
"""

from __future__ import annotations

import struct

import numpy as np

from .layout import HEADERS, MESSAGE, MESSAGE_FIELDS, MESSAGE_FLAG

__all__ = ["HEADER_BYTES", "KIND", "LIKELY", "MESSAGE_BYTES", "SHIFT", "WORDS"]

KIND = np.zeros(1 << 16, np.uint8)
"""By marker: the header type, 0 for what is no event."""
SHIFT = np.full(1 << 16, 64, np.uint64)
"""By marker: how far Size is shifted in the first word. A shift by 64 makes the size of what is no event 0."""
for _marker in range(0xC0, 0x100):  # bits 31 and 30
    for _type, _kind in HEADERS.items():
        KIND[_marker << 8 | _type] = _type
        SHIFT[_marker << 8 | _type] = 32 if _kind.is_system else 0
for _marker in range(0x90, 0xA0):  # bits 31 and 28, not 30 and 29
    KIND[_marker << 8 : (_marker + 1) << 8] = MESSAGE
    SHIFT[_marker << 8 : (_marker + 1) << 8] = 0

LIKELY = np.uint16(0xC000 + min(HEADERS)), np.uint16(0xC000 + max(HEADERS))
"""The markers, from and to, that nearly all events have and other bytes hardly ever look like."""

WORDS = (np.arange(1 << 16) + 7) >> 3
"""By Size: how many words on the next event is."""

HEADER_BYTES = np.zeros(256, np.int64)
"""By header type: bytes of the header without what its flags add."""
for _type, _kind in HEADERS.items():
    HEADER_BYTES[_type] = _kind.size
HEADER_BYTES[MESSAGE] = 8


def _message_bytes(options: int) -> int:
    at = 8
    for flag, (name, form) in MESSAGE_FIELDS:
        if options & flag and not (name == "MessageGuid" and options & MESSAGE_FLAG.COMPONENTID):
            at += struct.calcsize("<" + form)
    return at


MESSAGE_BYTES = np.array([_message_bytes(options) for options in range(256)], np.int64)
"""By the low byte of a message's OptionFlags: bytes of its header."""
