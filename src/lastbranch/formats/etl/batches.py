"""Events of a block by type, all fields of all events of a type at once.

    for block in log.blocks():
        for batch in batches_of(block, decoder):
            batch.event_name, batch.rows, batch.columns["ImageBase"].values

A type is what has one layout: hook or provider and id, version, pointer size. `Decoder.decode` gives the same for one
event; what only it can read (counts that stand in other fields, payloads that break off) comes from it, as batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .column_decode import Payloads, decode_columns
from .columns import EventBlock
from .decode import Decoder, Kind, Known
from .event import Event
from .extents import Ints
from .field_columns import Column, Lists, Objects
from .forms import EVENT, MESSAGE
from .layout import EVENT_FLAG, PMC_COUNTERS
from .manifest_xml import MANIFEST_ID
from .markers import HEADER_BYTES
from .materialise import events_of
from .payloads import REST
from .tracelogging import CHANNEL

__all__ = ["COUNTERS", "Batch", "batches_of", "types_of"]

COUNTERS = "Counters"
"""The column of the PMC counter values that ride in event headers, behind the fields."""

_U64 = np.uint64
_ROW = _U64((1 << 31) - 1)  # more than a block has events
_ODD = _U64(0x9E37_79B9_7F4A_7C15)  # 2**64 by the golden ratio
_Groups = Iterator[Ints]


@dataclass(slots=True)
class Batch:
    """Events of one type with the same fields.

    ``rows`` int64: which events of the block, ascending. ``columns`` have one value for each; the fields are those of
    the type's layout, as far as these payloads hold them, and `payloads.REST` for what is behind them. ``first`` is one
    of the events.
    """

    provider_name: str
    event_name: str
    kind: Kind
    reason: str
    first: Event
    rows: Ints
    columns: dict[str, Column]

    @property
    def name(self) -> str:
        """ "Windows Kernel/Image/DCStart"."""
        return f"{self.provider_name}/{self.event_name}"

    def __len__(self) -> int:
        return len(self.rows)

    def fields(self) -> list[dict[str, Any]]:
        """The fields of each event by name, as `Decoder.decode` gives them."""
        if not self.columns:
            return [{} for _ in range(len(self))]
        cells = zip(*(column.tolist() for column in self.columns.values()), strict=True)
        return [dict(zip(self.columns, values, strict=True)) for values in cells]


def batches_of(block: EventBlock, decoder: Decoder) -> Iterator[Batch]:
    """Every event of ``block`` in one batch, in no particular order. What they hold does not depend on the block."""
    if not len(block):
        return
    groups = list(types_of(block))
    firsts = block.take(np.array([rows[0] for rows in groups], np.int64))
    apart = _is_single(firsts)
    plain = [rows for rows, single in zip(groups, apart.tolist(), strict=True) if not single]
    for first, rows in zip(events_of(firsts.take(~apart)), plain, strict=True):
        yield from _batches(block, decoder, decoder.find(first), first, rows)
    if apart.any():
        single = [groups[i] for i in np.flatnonzero(apart).tolist()]
        yield from _self_describing(block, decoder, np.sort(np.concatenate(single)))


def types_of(block: EventBlock) -> _Groups:
    """Rows of each type of event, ascending; types of user events may be several for one of the decoder's."""
    kernel = block.is_kernel
    rows = np.flatnonzero(kernel)
    if len(rows):
        wide = (block.pointer_size[rows] == 8).astype(np.uint64) << _U64(16)
        yield from _alike(rows, [block.head[rows] & _U64(0xFFFF_0000_0000_FFFF) | wide])  # hook and packet version
    rows = np.flatnonzero(~kernel)
    if len(rows):
        at, form = block.at[rows], block.form[rows]
        guid = [np.where(form < MESSAGE, block.words.take(at + n), _U64(0)) for n in (3, 4)]
        descriptor = np.where(form == EVENT, block.words.take(at + 5), _U64(0))
        yield from _alike(rows, [block.head[rows] >> _U64(16), *guid, descriptor])


def _alike(rows: Ints, keys: list[NDArray[np.uint64]]) -> _Groups:
    """``rows`` in groups with the same ``keys``.

    By a sort of numbers with a hash of the keys above and the row below, a fraction of the time of an argsort. Where
    two keys had one hash they would come in more groups than one.
    """
    mixed = np.zeros(len(rows), np.uint64)
    for key in keys:
        mixed ^= key
        mixed *= _ODD
    mixed &= ~_ROW
    mixed |= np.arange(len(rows), dtype=np.uint64)
    mixed.sort()
    order = (mixed & _ROW).astype(np.int64)
    change = np.zeros(len(rows) - 1, bool)
    for key in keys:
        sorted_ = key[order]
        change |= sorted_[1:] != sorted_[:-1]
    yield from np.split(rows[order], np.flatnonzero(change) + 1)


def _is_single(block: EventBlock) -> NDArray[np.bool_]:
    """Whether events of these ones' types have to be looked at one by one to tell what they are."""
    extended = (block.options & EVENT_FLAG.EXTENDED_INFO) != 0
    event: NDArray[np.bool_] = block.form == EVENT
    event &= extended | (block.channel == CHANNEL) | (block.id == MANIFEST_ID)
    return event | (block.form >= MESSAGE)


def _batches(
    block: EventBlock, decoder: Decoder, known: Known, first: Event, rows: Ints, skip: Ints | None = None
) -> Iterator[Batch]:
    layout = decoder.columns_layout(known)
    if layout is None:
        yield from _one_by_one(block, decoder, known, rows)
        return
    at = block.payload[rows]
    end = at + block.payload_size[rows]
    payloads = Payloads(block.raw, at if skip is None else at + skip, end, decoder.pointer(first))
    for which, columns in decode_columns(layout, payloads):
        if columns is None:
            yield from _one_by_one(block, decoder, known, rows[which])
            continue
        mine = rows[which]
        if REST in columns:
            decoder.misfit(known, len(mine))
        columns |= _counters(block, first, mine)
        yield Batch(known.provider_name, known.event_name, known.kind, known.reason, first, mine, columns)


def _counters(block: EventBlock, first: Event, rows: Ints) -> dict[str, Column]:
    """Counter values behind the headers of kernel events, whose number is one for all events of a type."""
    count = (int(block.packet_version[rows[0]]) & PMC_COUNTERS) >> 8
    if not count:
        return {}
    begin = block.at[rows] + (HEADER_BYTES.take(block.header[rows]) >> 3)
    values = block.words.take(begin[:, None] + np.arange(count))
    return {COUNTERS: Lists(values.ravel(), np.arange(0, values.size + 1, count))}


def _self_describing(block: EventBlock, decoder: Decoder, rows: Ints) -> Iterator[Batch]:
    """Events with extended items, messages and manifests, sorted by what is found of each."""
    groups: dict[object, tuple[Known, Event, list[int], list[int]]] = {}
    counted: dict[object, list[list[int]]] = {}
    for row, event in zip(rows.tolist(), events_of(block.take(rows)), strict=True):
        known = decoder.find(event)
        key = (known.provider_name, known.event_name, known.kind, known.reason, id(known.layout), id(known.described),
               decoder.pointer(event), len(event.counters))  # fmt: skip
        group = groups.setdefault(key, (known, event, [], []))
        group[2].append(row)
        group[3].append(known.skip)
        counted.setdefault(key, []).append(list(event.counters))
    for which, (known, first, mine, skips) in groups.items():
        whole = np.array(mine, np.int64)
        for batch in _batches(block, decoder, known, first, whole, np.array(skips, np.int64)):
            if first.counters and first.header in _EVENT_TYPES:
                values = counted[which]
                batch.columns[COUNTERS] = Objects([values[i] for i in np.searchsorted(whole, batch.rows).tolist()])
            yield batch


def _one_by_one(block: EventBlock, decoder: Decoder, known: Known, rows: Ints) -> Iterator[Batch]:
    """What only `Decoder.decode` can read, by the fields that it finds."""
    sets: dict[tuple[str, ...], tuple[Event, list[int], list[tuple[Any, ...]]]] = {}
    for row, event in zip(rows.tolist(), events_of(block.take(rows)), strict=True):
        fields = decoder.decode(event).fields
        if REST in fields:
            decoder.misfit(known, 1)
        if event.counters and event.header not in _EVENT_TYPES:
            fields = fields | {COUNTERS: list(event.counters)}
        found = sets.setdefault(tuple(fields), (event, [], []))
        found[1].append(row)
        found[2].append(tuple(fields.values()))
    for names, (first, mine, values) in sets.items():
        columns: dict[str, Column] = {
            name: Objects(cells) for name, cells in zip(names, zip(*values, strict=True), strict=True)
        }
        yield Batch(
            known.provider_name, known.event_name, known.kind, known.reason, first, np.array(mine, np.int64), columns
        )


_EVENT_TYPES = frozenset((18, 19))
