"""Everything that can be checked in a file: blocks, places, strings, records, descriptors, heads, bind indexes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

import numpy as np

from ...errors import Damage, FormatError
from ...model import Array, Source
from . import layout
from .layout import (
    NEVER,
    NOT_EMPTY,
    POINTERS,
    SINGLE,
    STRUCTS,
    ArchType,
    Pointer,
    Scope,
    Section,
    StreamSection,
    StreamType,
    Struct,
    Table,
    describe,
    struct_of,
)
from .reader import Tb5File, damage_of

__all__ = ["verify", "verify_tb5"]


def verify_tb5(source: Source) -> list[Damage]:
    """All that is wrong with the TB5 file ``source``: samples are not all that there is."""
    with Tb5File(source) as file:
        return verify(file)


def verify(file: Tb5File) -> list[Damage]:
    """All that is wrong with ``file``, without repetition."""
    found = list(file.damage)
    for check in (_blocks, _places, _strings, contradictions, _streams, _heads, _check_binding):
        try:
            found += [d for d in check(file) if d not in found]
        except FormatError as error:
            damage = damage_of(error)
            found += [damage] if damage not in found else []
    return found


def _blocks(file: Tb5File) -> Iterator[Damage]:
    for key, entry in file.tables.items():
        try:
            for _, rows in file.some_blocks(key, range(entry.blocks)):
                if isinstance(rows, FormatError):
                    yield damage_of(rows, entry.block_bytes)
        except FormatError as error:
            yield damage_of(error, entry.bytes)


def _places(file: Tb5File) -> Iterator[Damage]:
    """Blocks do not share bytes."""
    spans: list[tuple[int, int, Table]] = []
    for key, entry in file.tables.items():
        try:
            offsets = file.offsets(key)
        except FormatError:
            continue
        left = entry.bytes
        for offset in offsets.tolist():
            spans.append((offset, offset + min(left, entry.block_bytes), key))
            left -= entry.block_bytes
        spans.append((entry.index, entry.index + entry.blocks * layout.BLOCK_INDEX.itemsize, key))
    spans.sort()
    for (_, end, one), (start, past, other) in pairwise(spans):
        if start < end and past > start:
            yield Damage(f"{describe(one)} and {describe(other)} overlap", start, "offset", start)


def _strings(file: Tb5File) -> Iterator[Damage]:
    known = file.string_count
    for _ in file.all_strings():
        pass
    for key in file.tables:
        struct = struct_of(key)
        if struct is None or not struct.strings():
            continue
        with suppress(FormatError):  # reported by _blocks
            records = file.records(key)
            for name in struct.strings():
                bad = records[name] > known
                if bad.any():
                    row = int(bad.argmax())
                    reason = f"{describe(key)} row {row}: string id out of range (1 to {known})"
                    yield Damage(reason, file.tables[key].index, name, int(records[name][row]))


def _streams(file: Tb5File) -> Iterator[Damage]:
    """A stream has a descriptor, which fits its data if there are any, and information."""
    for number in range(file.streams):
        missing = [
            section.name.lower().replace("_", " ")
            for section in (StreamSection.DATA_DESCRIPTION, StreamSection.STREAM_INFO)
            if not file.has(Table(Scope.STREAM, number, section))
        ]
        if missing:
            yield Damage(f"stream {number} has no {', '.join(missing)}", 0, "stream", number)
        try:
            file.descriptors(number)
        except FormatError as error:
            yield damage_of(error)


def _heads(file: Tb5File) -> Iterator[Damage]:
    """Heads are those of the records of their stream."""
    for key in file.tables:
        if key.scope is not Scope.STORE or key.section != layout.HEADS:
            continue
        data, size = Table(Scope.STREAM, key.stream, StreamSection.DATA), file.record_size(key)
        if not file.has(data) or file.count(data) != file.count(key) or file.record_size(data) < size:
            yield Damage(f"{describe(key)}: the records do not match those of the stream", 0, "count", file.count(key))
            continue
        at = 0
        try:
            for rows in file.blocks(data):
                bad = (file.read(key, at, len(rows)) != rows[:, :size]).any(axis=1)
                if bad.any():
                    row = at + int(bad.argmax())
                    yield Damage(f"{describe(key)}: record {row} differs", file.tables[key].index, "record", row)
                    break
                at += len(rows)
        except FormatError:
            continue  # reported by _blocks


def _check_binding(file: Tb5File) -> Iterator[Damage]:
    """Bind information is complete, counts as many records as what it is about, and its indexes are rows."""
    for stream in sorted({key.stream for key in file.tables if key.scope is Scope.BIND}):
        missing = ", ".join(describe(key) for key in file.missing_bind_tables(stream))
        if missing:
            yield Damage(f"bind information is not complete: no {missing}", 0, "stream", stream)
    modules = Table(Scope.GLOBAL, 0, Section.MODULE)
    tasks = Table(Scope.GLOBAL, 0, Section.PROCESS_THREAD)
    for key in file.tables:
        if key.scope is not Scope.BIND or key.part or key.section not in set(StreamType):
            continue

        def rows_of(table: Table, kind: StreamType, stream: int = key.stream) -> int:
            made = Table(Scope.BIND, stream, kind, 1)
            return next((file.count(t) for t in (made, table) if file.has(t)), 0)

        pids = rows_of(tasks, StreamType.BIND_PID_INFORMATION)
        tids = rows_of(tasks._replace(part=1), StreamType.BIND_TID_INFORMATION)
        mods = rows_of(modules, StreamType.BIND_MODULE_INFORMATION)
        data = Table(Scope.STREAM, key.stream, StreamSection.DATA)
        samples = file.count(data) if file.has(data) else 0
        expected = {4: samples, 5: mods, 6: pids, 7: tids}.get(key.section)
        if expected is not None and file.count(key) != expected:
            yield Damage(f"{describe(key)}: {expected} records were expected", 0, "count", file.count(key))
        limits = {"module_index": mods, "pid_index": pids, "tid_index": tids}
        try:
            struct = struct_of(key)
            for rows in file.blocks(key) if struct is not None else ():
                records: Array = rows.reshape(-1).view(struct.dtype if struct is not None else np.uint8)
                for name in records.dtype.names or ():
                    bad = (records[name] >= limits[name]) & (records[name] != NEVER)
                    if bad.any():
                        value = int(records[name][bad.argmax()])
                        yield Damage(f"{describe(key)}: index out of range", file.tables[key].index, name, value)
        except FormatError:
            continue  # reported by _blocks


# -- whether the records of a section agree with each other: sizes, numbers of children, what there is one of


def contradictions(file: Tb5File) -> Iterator[Damage]:
    """Faults in the guide's sections, except unreadable blocks."""
    for key in file.tables:
        struct = struct_of(key)
        if struct is not None and key.scope is not Scope.BIND:  # those can be more than memory holds
            try:
                records = file.records(key)
                yield from (_damage(file, key, *found) for found in _of_table(file, key, struct, records))
                yield from (_damage(file, key, *found) for found in _empty(file, struct, records))
            except FormatError:
                continue


def _damage(file: Tb5File, key: Table, reason: str, field: str, value: int) -> Damage:
    return Damage(f"{describe(key)}: {reason}", file.tables[key].index, field, value)


def _of_table(file: Tb5File, key: Table, struct: Struct, records: Array) -> Iterator[tuple[str, str, int]]:
    size = struct.fields[0].name
    if size.endswith("_size"):
        for row in np.flatnonzero(records[size] != struct.size)[:1].tolist():
            yield f"row {row} gives its size as other than {struct.size}", size, int(records[size][row])
    if struct.name in SINGLE and len(records) > 1:
        yield "there can be only one", "count", len(records)
    if struct.name == "TBRW_EVENT":
        for row in np.flatnonzero(records["event_id"] != np.arange(len(records)))[:1].tolist():
            yield f"row {row}: event ids count from 0", "event_id", int(records["event_id"][row])
    pointer = POINTERS.get(struct.name)
    if pointer is not None and len(pointer.targets) == 1:
        yield from _children(file, key, records, pointer, pointer.targets[0][1])
    elif pointer is not None:
        itanium = records["arch_type"] == ArchType.ITANIUM
        for (_, child), some in zip(pointer.targets, (~itanium, itanium), strict=True):
            yield from _children(file, key, records[some], pointer, child)


def _empty(file: Tb5File, struct: Struct, records: Array) -> Iterator[tuple[str, str, int]]:
    """A required structure says something."""
    fields, strings = NOT_EMPTY.get(struct.name, ()), struct.strings()
    for row in records if fields else ():
        if not any(file.text(int(row[f])) if f in strings else row[f] for f in fields):
            yield f"is empty: nothing in {' or '.join(fields)}", fields[-1], 0


def _children(
    file: Tb5File, key: Table, records: Array, pointer: Pointer, child: str
) -> Iterator[tuple[str, str, int]]:
    """Children follow each other in the order of their parents, and are as many as those say."""
    inside = [k for k in file.tables if k[:3] == key[:3] and struct_of(k) is STRUCTS[child]]
    there = file.count(inside[0]) if inside else 0
    field, counter = pointer.field, pointer.counter
    number = records[counter].astype(np.int64)
    starts = np.cumsum(number) - number
    if int(number.sum()) != there:
        yield f"{child} are {there}, not as many as {counter} says", counter, int(number.sum())
    for row in np.flatnonzero((number > 0) & (records[field] != starts.astype(np.uint64)))[:1].tolist():
        yield f"{field} does not point to the {child} after those of earlier rows", field, int(records[field][row])
