"""Whether the payloads of a trace's events are what their layouts say, and if not, whether another pointer size is.

Headers say the pointer size of their events, and some writers put payloads of the other one behind them. What then
comes out is nonsense without a trace of damage. It shows in bytes that are left over or missing, in process and thread
ids that no system gives, in addresses that no processor has, and in names that begin with a control character.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..formats.etl import Decoder, Event, EventBlock, Known, events_of, types_of
from ..formats.etl.payload.layouts import REST
from ..formats.etl.payload.types import PTR, WIDE
from .findings import Finding, Severity, finding

__all__ = ["Payloads"]

_LOG_HEADER = 0x0000
_LOOKED_AT = 16
"""Events of a type."""
_MOST_TYPES = 4096
_IDS = ("ProcessID", "ThreadID", "ParentID", "NewThreadID", "OldThreadID", "IssuingThreadID")
_FIRST_NO_ID = 1 << 26
"""Ids are four times the number of an entry in a table of at most 2^24."""
_NO_ID = 0xFFFF_FFFF
_CANONICAL = 1 << 47
_UNSET = "DefaultBase"
"""Where images have none, loads leave what was in memory."""

_LEFT_OVER = "bytes left over"

_Type = tuple[bytes, int, int, int, int, int]


def _type(event: Event) -> _Type:
    return event.provider, event.hook, event.id, event.opcode, event.version, event.header


@dataclass(slots=True)
class Payloads:
    """The first events of each type: `gather` takes them, `findings` judges."""

    _seen: dict[_Type, list[Event]] = field(default_factory=dict)

    def gather(self, block: EventBlock) -> None:
        """Take the events of types of which few have been seen."""
        block = block.take(block.hook != _LOG_HEADER)  # the rest of the log is read by it
        groups = list(types_of(block)) if len(block) else []
        if not groups:
            return
        for first, rows in zip(events_of(block.take([rows[0] for rows in groups])), groups, strict=True):
            mine = self._seen.get(_type(first))
            if mine is None:
                if len(self._seen) == _MOST_TYPES:
                    continue
                mine = self._seen.setdefault(_type(first), [])
            if len(mine) < _LOOKED_AT:
                mine += events_of(block.take(rows[: _LOOKED_AT - len(mine)]))

    def findings(self, decoder: Decoder) -> Iterator[Finding]:
        """What is said of the events gathered, as ``decoder`` reads them."""
        looked: Counter[int] = Counter()
        fitting: dict[int, list[str]] = {4: [], 8: []}
        odd: list[str] = []
        impossible = False
        for event in (event for events in self._seen.values() for event in events):
            known, pointer = decoder.find(event), decoder.pointer(event)
            if known.kind == "raw":
                continue
            fields, others = (decoder.fields(known, event, size) for size in (pointer, 12 - pointer))
            looked[pointer] += fields != others
            certain, doubts = _wrong(known, fields, pointer)
            text = f"{known.event_name} version {event.version}: {', '.join(certain + doubts)}"
            if (certain or doubts) and not any(_wrong(known, others, 12 - pointer)) and fields != others:
                fitting[12 - pointer].append(text)
            elif certain and known.kind == "kernel":
                odd.append(text)
                impossible |= certain != [_LEFT_OVER]
        for size, texts in fitting.items():
            if texts:
                number = f"{len(texts)} of {looked[12 - size]} events looked at"
                yield finding(
                    "pointer size", f"{number} fit {8 * size}-bit pointers, not {96 - 8 * size}-bit: {texts[0]}"
                )
        if odd:
            severity = None if impossible else Severity.INFO
            yield finding("odd payloads", f"{len(odd)} of the events looked at: {odd[0]}", severity)


def _wrong(known: Known, fields: Mapping[str, Any], pointer: int) -> tuple[list[str], list[str]]:
    """What says that ``fields`` are not those of the event, and what only makes it likely where another reading has
    none of that."""
    ids = [(name, fields.get(name)) for name in _IDS]
    certain = [f"{name} {int(v)}" for name, v in ids if isinstance(v, int) and _FIRST_NO_ID <= v != _NO_ID]
    certain += [_LEFT_OVER] * (REST in fields)
    doubts = []
    for name, type_ in known.layout.fields if known.layout is not None else ():
        value = fields.get(name)
        if type_ is PTR and pointer == 8 and name != _UNSET:
            if isinstance(value, int) and _CANONICAL <= value < (1 << 64) - _CANONICAL:
                doubts.append(f"{name} {value:#x}")
        elif type_ is WIDE and isinstance(value, str) and value and not value[0].isprintable():
            doubts.append(f"{name} {value[:8]!r}")
    if known.layout is not None and any(name not in fields for name in known.layout.names):
        doubts.append("fields missing")
    return certain, doubts
