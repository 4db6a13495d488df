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
from .materialise import events_of
from .tracelogging import CHANNEL
from .walk import HEADER_BYTES

__all__ = ["COUNTERS", "Batch", "batches_of"]

COUNTERS = "Counters"
"""The column of the PMC counter values that ride in event headers, behind the fields."""

_ONE = 1 << 31  # more than a block has events
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
    plain: list[Ints] = []
    single: list[Ints] = []
    for rows in _types(block):
        (single if _is_single(block, int(rows[0])) else plain).append(rows)
    firsts = events_of(block.take(np.array([rows[0] for rows in plain], np.int64))) if plain else []
    for first, rows in zip(firsts, plain, strict=True):
        known = decoder.find(first)
        yield from _batches(block, decoder, known, first, rows)
    if single:
        yield from _self_describing(block, decoder, np.sort(np.concatenate(single)))


def _types(block: EventBlock) -> _Groups:
    """Rows of each type of event, ascending."""
    kernel = block.is_kernel
    rows = np.flatnonzero(kernel)
    if len(rows):
        key = block.hook[rows].astype(np.uint64) << np.uint64(17)
        key |= block.packet_version[rows].astype(np.uint64) << np.uint64(1)
        key |= (block.pointer_size[rows] == 8).astype(np.uint64)
        # A sort of numbers with the row in them takes a fraction of the time of an argsort.
        both = np.sort(key << np.uint64(31) | rows.astype(np.uint64))
        yield from _split((both & np.uint64(_ONE - 1)).astype(np.int64), [both >> np.uint64(31)])
    rows = np.flatnonzero(~kernel)
    if len(rows):
        part = block.take(rows)
        low = part.id.astype(np.uint64) << np.uint64(16) | part.version.astype(np.uint64) << np.uint64(8) | part.opcode
        extended = (part.form == EVENT) & (part.options & EVENT_FLAG.EXTENDED_INFO != 0)
        low = low << np.uint64(17) | part.header.astype(np.uint64) << np.uint64(9) | extended.astype(np.uint64)
        low |= part.pointer_size.astype(np.uint64) << np.uint64(1) | (part.channel == CHANNEL).astype(
            np.uint64
        ) << np.uint64(8)
        keys = [low, part.provider[:, 0], part.provider[:, 1]]
        order = np.lexsort(keys)
        yield from _split(rows[order], [key[order] for key in keys])


def _split(rows: Ints, keys: list[NDArray[np.uint64]]) -> _Groups:
    change = np.zeros(len(rows) - 1, bool)
    for key in keys:
        change |= key[1:] != key[:-1]
    yield from np.split(rows, np.flatnonzero(change) + 1)


def _is_single(block: EventBlock, row: int) -> bool:
    """Whether events of this one's type have to be looked at one by one to tell what they are."""
    form = int(block.form[row])
    if form != EVENT:
        return form >= MESSAGE
    extended = int(block.options[row]) & EVENT_FLAG.EXTENDED_INFO
    return bool(extended) or int(block.channel[row]) == CHANNEL or int(block.id[row]) == MANIFEST_ID


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
        order = None if (mine[1:] > mine[:-1]).all() else np.argsort(mine)
        if order is not None:
            mine, columns = mine[order], {name: column.take(order) for name, column in columns.items()}
        columns |= _counters(block, first, mine)
        yield Batch(known.provider_name, known.event_name, known.kind, known.reason, first, mine, columns)


def _counters(block: EventBlock, first: Event, rows: Ints) -> dict[str, Column]:
    """Counter values behind the headers of kernel events, whose number is one for all events of a type."""
    count = (int(block.packet_version[rows[0]]) & PMC_COUNTERS) >> 8
    if not count:
        return {}
    begin = block.at[rows] + (int(HEADER_BYTES[first.header]) >> 3)
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
