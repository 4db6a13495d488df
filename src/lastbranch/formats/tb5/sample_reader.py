"""Records of a sample stream to batches, by its data descriptor, regardless of the writer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import offsets_of
from ...errors import Damage, FormatError
from ...model import BRANCH, COLUMNS, MAX_ENTRIES, Array, Mode, SampleBatch, column, cuts
from .descriptors import Described, described_dtype, described_group_dtype
from .layout import HEADS, IA64PC, Scope, StreamSection, Table, record_dtype
from .reader import Tb5File, damage_of

__all__ = ["SampleReader", "SampleRecords", "note"]


# -- records, or their heads, which a file of ours keeps apart as well: all of a record before its branch stack, a tenth
# of the bytes for readers that count who ran, and how often

_STACK = frozenset(("branch", *(c.name for c in COLUMNS if c.group == BRANCH)))
"""Fields after the head of a record."""


class SampleRecords:
    """Structured records of stream ``number``, ``dtype``, with the fields that are known, ``names``."""

    def __init__(self, file: Tb5File, number: int) -> None:
        self.file = file
        self.key = Table(Scope.STREAM, number, StreamSection.DATA)
        self._heads = Table(Scope.STORE, number, HEADS)
        self.dtype = described_dtype(_describe(file, number))
        self.names = frozenset(self.dtype.names or ())

    def blocks(self, wanted: frozenset[str] | None, damage: list[Damage] | None) -> Iterator[tuple[int, Array]]:
        """(number of the first, records) of each block; of their heads where those have the columns that are
        ``wanted`` (``None``: all) and the number of branch entries.

        A damaged block is stepped over and noted in ``damage``, or raised where that is ``None``.
        """
        heads = self._head_dtype(wanted)
        key, dtype = (self.key, self.dtype) if heads is None else (self._heads, heads)
        entry = self.file.tables[key]
        for number, rows in self.file.some_blocks(key, range(entry.blocks)):
            at = number * entry.block_records
            if not isinstance(rows, FormatError):
                yield at, rows.reshape(-1).view(dtype)
            elif key == self.key:
                note_error(damage, rows, entry.block_bytes)
            else:
                note_error(damage, rows, 0)
                yield from self._instead(at, entry.block_records, damage)

    def _instead(self, first: int, count: int, damage: list[Damage] | None) -> Iterator[tuple[int, Array]]:
        """The records themselves where their heads are damaged."""
        try:
            for rows in self.file.blocks(self.key, first, count):
                yield first, rows.reshape(-1).view(self.dtype)
                first += len(rows)
        except FormatError as error:
            note_error(damage, error, self.file.tables[self.key].block_bytes)

    def _head_dtype(self, wanted: frozenset[str] | None) -> np.dtype[Any] | None:
        """The heads of the records, ``None`` where they are not all there or lack what is wanted."""
        entry, dtype = self.file.tables.get(self._heads), self.dtype
        if wanted is None or entry is None or entry.count != self.file.count(self.key):
            return None
        ends = {n: dtype.fields[n][1] + dtype[n].itemsize for n in self.names} if dtype.fields else {}
        inside = [n for n, end in ends.items() if end <= entry.record_size]
        after = self.names - set(inside)
        cut_off = after | ({"branch_from", "branch_to"} if "branch" in after else set())
        if after - _STACK or cut_off & wanted or "branch count" not in inside:
            return None
        return record_dtype({n: (dtype[n], ends[n] - dtype[n].itemsize) for n in inside}, entry.record_size)


def _describe(file: Tb5File, stream: int) -> Described:
    entries = file.descriptors(stream)
    names = [file.text(i) for i in entries["desc_name"].tolist()]
    return entries, names, file.record_size(Table(Scope.STREAM, stream, StreamSection.DATA))


def note(damage: list[Damage], found: Damage) -> None:
    """Add a place that was stepped over, once."""
    if found not in damage:
        damage.append(found)


def note_error(damage: list[Damage] | None, error: FormatError, lost: int) -> None:
    """`note` an error, or raise it where there is no list."""
    if damage is None:
        raise error
    note(damage, damage_of(error, lost))


# -- batches


class GroupRecords:
    """Rows of a custom stream in growing order: one block at a time is kept."""

    def __init__(self, file: Tb5File, number: int) -> None:
        self._file, self._key = file, Table(Scope.STREAM, number, StreamSection.DATA)
        self._entry = file.tables[self._key]
        self._at, self._rows = -1, np.empty((0, self._entry.record_size), np.uint8)

    def take(self, first: int, count: int) -> NDArray[np.uint8]:
        if first + count > self._entry.count:
            raise FormatError("rows beyond the end of their stream", file=self._file.name, field="first", value=first)
        parts = []
        while count:
            number, inside = divmod(first, self._entry.block_records)
            if number != self._at:
                ((_, rows),) = self._file.some_blocks(self._key, range(number, number + 1))
                if isinstance(rows, FormatError):
                    raise rows
                self._at, self._rows = number, rows
            part = self._rows[inside : inside + count]
            parts.append(part)
            first, count = first + len(part), count - len(part)
        if len(parts) == 1:
            return np.ascontiguousarray(parts[0])
        return np.concatenate(parts) if parts else np.empty((0, self._entry.record_size), np.uint8)


_LOW = np.uint64(0xFFFFFFFF)


class SampleReader:
    """Reads the records of stream ``number`` of ``file``.

    ``columns`` are the model's columns that the records have; ``depth`` the branch entries that they have room for.
    """

    def __init__(self, file: Tb5File, number: int, groups: dict[str, int]) -> None:
        self.file, self.number = file, number
        self.records = SampleRecords(file, number)
        self._groups = groups
        self.depth = 0
        self.first_event = 0
        """Row of the profile's events that event 0 of this stream is."""
        self._names = self.records.names
        if "branch" in self._names:
            self.depth = self.records.dtype["branch"].shape[0]
        self._group_dtypes: dict[str, np.dtype[Any]] = {}
        for group, other in list(self._groups.items()):
            rows = self.records.key._replace(stream=other)
            if {f"{group} first", f"{group} count"} <= self._names and file.has(rows):
                self._group_dtypes[group] = described_group_dtype(_describe(file, other), group)
            else:
                del self._groups[group]

    # -- what there is

    @property
    def has_periods(self) -> bool:
        return "period" in self._names

    @property
    def has_stacks(self) -> bool:
        return "branch" in self._names or "branch count" in self._names

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a batch, in the model's order."""
        found = {"time", "ip", "pid", "tid", "cpu", "event", "period", "mode"}
        found |= {c.name for c in COLUMNS if c.name in self._names}
        if "branch" in self._names:
            found |= {"branch_from", "branch_to", "branch_flags"}
        for dtype in self._group_dtypes.values():
            found |= set(dtype.names or ())
        return tuple(c.name for c in COLUMNS if c.name in found)

    # -- batches

    def batches(
        self, wanted: frozenset[str] | None, columns: tuple[str, ...], damage: list[Damage] | None = None
    ) -> Iterator[tuple[int, SampleBatch, int]]:
        """(first record, batch, earliest time of the later batches of its block) in file order.

        A damaged block is stepped over and noted in ``damage``, or raised where that is ``None``.
        """
        runs = {group: GroupRecords(self.file, number) for group, number in self._groups.items()}
        for at, records in self.records.blocks(wanted, damage):
            times = self._times(records, at)
            later = np.minimum.accumulate(np.append(times, np.iinfo(np.int64).max)[::-1])[::-1]
            counts = self._counts(records)
            for lo, hi in cuts(np.cumsum(counts), MAX_ENTRIES):
                batch = self._batch(records[lo:hi], times[lo:hi], counts[lo:hi], wanted, columns)
                for group, run in runs.items():
                    self._add_group(batch, records[lo:hi], group, run, wanted, damage)
                yield at + lo, batch, int(later[hi])

    def _times(self, records: Array, first: int) -> NDArray[np.int64]:
        if "time" in self._names:
            times: NDArray[np.int64] = np.ascontiguousarray(records["time"], np.int64)
        else:
            times = np.arange(first, first + len(records), dtype=np.int64)
        return times

    def _counts(self, records: Array) -> NDArray[np.int64]:
        if "branch count" in self._names:
            counts: NDArray[np.int64] = np.minimum(records["branch count"], self.depth).astype(np.int64)
            return counts
        if "branch" not in self._names:
            return np.zeros(len(records), np.int64)
        # Without a count the stack ends at the last entry that is not empty.
        used = (records["branch"] != 0).any(axis=2)
        return np.where(used.any(axis=1), self.depth - used[:, ::-1].argmax(axis=1), 0).astype(np.int64)

    def _batch(
        self,
        records: Array,
        times: NDArray[np.int64],
        counts: NDArray[np.int64],
        wanted: frozenset[str] | None,
        columns: tuple[str, ...],
    ) -> SampleBatch:
        out: dict[str, Array] = {"time": times}
        self._add_required(out, records)
        names = [n for n in columns if n not in out and (wanted is None or n in wanted)]
        branches = [n for n in names if column(n).group == BRANCH]
        for name in names:
            if column(name).group == "sample" and name in self._names:
                out[name] = np.ascontiguousarray(records[name], column(name).dtype)
        if not self.has_stacks:
            return SampleBatch(out)
        offsets = {BRANCH: offsets_of(counts)}
        if not branches:
            return SampleBatch(out, offsets)
        full = bool((counts == self.depth).all()) and self.depth > 0
        filled = None if full else np.arange(self.depth) < counts[:, None]
        for name in branches:
            pair = name in ("branch_from", "branch_to")
            if not self.depth or ("branch" if pair else name) not in self._names:
                out[name] = np.zeros(int(offsets[BRANCH][-1]), np.uint64)
                continue
            values = records["branch"][:, :, int(name == "branch_to")] if pair else records[name][:, : self.depth]
            out[name] = values.reshape(-1) if filled is None else values[filled]
        return SampleBatch(out, offsets)

    def _add_required(self, out: dict[str, Array], records: Array) -> None:
        n, have = len(records), self._names
        unknown = np.full(n, -1, np.int32)
        flags = records["bitFields2"] if "bitFields2" in have else np.full(n, IA64PC)
        wide = (flags & IA64PC) != 0
        if "iip" in have:
            ip = np.ascontiguousarray(records["iip"], np.uint64)
            out["ip"] = ip if wide.all() else np.where(wide, ip, ip & _LOW)
        else:
            out["ip"] = np.zeros(n, np.uint64)
        out["pid"] = records["pidRecIndex"].astype(np.uint32).view(np.int32) if "pidRecIndex" in have else unknown
        out["tid"] = records["tid"].astype(np.uint32).view(np.int32) if "tid" in have else unknown
        if "cpu" in have:
            out["cpu"] = np.ascontiguousarray(records["cpu"].astype(np.int32, copy=False))
        else:
            out["cpu"] = (records["cpuAndOS"] & 0xFFF).astype(np.int32) if "cpuAndOS" in have else unknown
        if "event" in have:
            out["event"] = np.ascontiguousarray(records["event"])
        else:
            out["event"] = (flags >> np.uint32(20) & np.uint32(0xFF)).astype(np.int32)
        if self.first_event:
            out["event"] = out["event"] + np.int32(self.first_event)
        out["period"] = np.ascontiguousarray(records["period"]) if "period" in have else np.zeros(n, np.uint64)
        out["mode"] = np.minimum(records["mode"], Mode.GUEST_USER) if "mode" in have else self._mode(records, wide)

    def _mode(self, records: Array, wide: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """From the privilege level: of ipsr in the 64-bit form, of the code segment descriptor in the other."""
        if "ipsr" not in self._names:
            return np.zeros(len(records), np.uint8)
        status = records["ipsr"]
        level = np.where(wide, status >> np.uint64(32), status >> np.uint64(32 + 13)) & np.uint64(3)
        return np.where(level == 0, Mode.KERNEL, Mode.USER).astype(np.uint8)

    def _add_group(
        self,
        batch: SampleBatch,
        records: Array,
        group: str,
        run: GroupRecords,
        wanted: frozenset[str] | None,
        damage: list[Damage] | None,
    ) -> None:
        dtype = self._group_dtypes[group]
        names = [n for n in dtype.names or () if wanted is None or n in wanted]
        if not names:
            return
        first, count = records[f"{group} first"], records[f"{group} count"].astype(np.int64)
        offsets = offsets_of(count)
        total = int(offsets[-1])
        start = int(first[0]) if len(first) else 0
        if total and (first != start + offsets[:-1]).any():
            reason = f"rows of {group} do not follow each other"
            note_error(damage, FormatError(reason, file=self.file.name, field=f"{group} first"), 0)
            total, offsets = 0, np.zeros_like(offsets)
        try:
            rows = run.take(start, total)
        except FormatError as error:
            note_error(damage, error, 0)
            rows, offsets = run.take(0, 0), np.zeros_like(offsets)
        values = rows.reshape(-1).view(dtype)
        batch.offsets[group] = offsets
        for name in names:
            batch.columns[name] = np.ascontiguousarray(values[name])
