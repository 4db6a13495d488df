"""Time stamps of encoded events: where they are, and that they do not go back.

Words are the events' bytes as uint64, each event at a word of its own; positions are counted in words.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...formats.etl.events.walk import KIND
from ...formats.etl.layout import HEADERS, MESSAGE, MESSAGE_FLAG

__all__ = ["at_least", "times"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_TIME_WORD = np.zeros(256, np.int64)
"""By header type: in which word the time stamp is; 0 where there is none at a fixed place."""
for _type, _kind in HEADERS.items():
    _offset = 0
    for _name, _form in _kind.fields:
        if _name == "TimeStamp":
            _TIME_WORD[_type] = _offset // 8
        _offset += {"B": 1, "H": 2, "I": 4, "i": 4, "q": 8, "Q": 8}.get(_form, 16)


def at_least(least: int, words: Words, at: Ints) -> int:
    """Raise the times of the events at ``at`` (in order) to ``least`` where they are below; gives the last one.

    For sessions in system time: a writer of its own stands still when that is set back (`clock`), and one that comes
    later in its place goes on there.
    """
    _, word = _kinds(words, at)
    place = (at + word)[word > 0]
    found: Ints = words.take(place).view(np.int64)
    low = found < least
    words[place[low]] = np.uint64(least)
    return max(least, int(found.max(initial=least)))


def times(words: Words, at: Ints) -> Ints:
    """Time stamps of the events at ``at``; one without has that of the event before it."""
    kind, word = _kinds(words, at)
    timed = word > 0
    time: Ints = words.take(np.minimum(at + word, len(words) - 1)).view(np.int64)
    message = np.flatnonzero(kind == MESSAGE)
    for i in message.tolist():  # what nobody here writes: one by one
        timed[i], time[i] = _message_time(words, int(at[i]))
    last = np.maximum.accumulate(np.where(timed, np.arange(len(at)), 0))
    filled: Ints = time[last]
    return filled


def _message_time(words: Words, at: int) -> tuple[bool, int]:
    options = int(words[at] >> np.uint64(48))
    if not options & MESSAGE_FLAG.TIMESTAMP:
        return False, 0
    begin = 8 + 4 * bool(options & MESSAGE_FLAG.SEQUENCE)
    if options & MESSAGE_FLAG.COMPONENTID:
        begin += 4
    elif options & MESSAGE_FLAG.GUID:
        begin += 16
    raw = words[at : at + 5].tobytes()[begin : begin + 8]
    return True, int.from_bytes(raw, "little", signed=True)


def _kinds(words: Words, at: Ints) -> tuple[NDArray[np.uint8], Ints]:
    """Header types of events, and in which word of each the time stamp is; 0 where it has no fixed place."""
    kind = KIND.take(words.take(at).view(np.uint16)[1::4].astype(np.int64))
    return kind, _TIME_WORD.take(kind)
