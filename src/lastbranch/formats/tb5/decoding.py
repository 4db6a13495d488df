"""Records of a sample stream to batches, by its data descriptor, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage, FormatError
from ...model import BRANCH, COLUMNS, MAX_ENTRIES, Array, Mode, SampleBatch, column, cuts
from .columns import PC
from .constants import DescSubtype as Sst
from .constants import DescType as St
from .constants import StreamSection
from .layout import Scope, Table
from .reading import Tb5File

__all__ = ["SampleReader", "note"]

_LOW = np.uint64(0xFFFFFFFF)
_PC = {f.name: f for f in PC.fields if not f.overlay}
_BY_TYPE: dict[tuple[int, int], str] = {
    (St.IP, Sst.IIP): "iip", (St.IP, Sst.NONE): "iip", (St.PROCESSOR_STATUS, Sst.IPSR): "ipsr",
    (St.TID, Sst.NONE): "tid", (St.PID, Sst.NONE): "pidRecIndex", (St.PROCESSOR_NUMBER, Sst.NONE): "cpu",
    (St.BRANCH_TRACE, Sst.LBR_TOS): "hw_idx",
}  # fmt: skip
"""Fields that need no name to be known."""


class SampleReader:
    """Reads the records of stream ``number`` of ``file``.

    ``columns`` are the model's columns that the records have; ``depth`` the branch entries that they have room for.
    """

    def __init__(self, file: Tb5File, number: int, groups: dict[str, int]) -> None:
        self.file, self.number = file, number
        self.key = Table(Scope.STREAM, number, StreamSection.DATA)
        self.record_size = file.record_size(self.key)
        self.count = file.count(self.key)
        self._groups = groups
        self.depth = 0
        self.first_event = 0
        """Row of the profile's events that event 0 of this stream is."""
        names: list[str] = []
        formats: list[Any] = []
        offsets: list[int] = []
        for entry in file.descriptors(number):
            for name, code, offset in self._fields(entry):
                if name not in names:
                    names.append(name)
                    formats.append(code)
                    offsets.append(offset)
        self._dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": self.record_size})
        self._names = frozenset(names)
        self._check_group_records()

    def _fields(self, entry: Any) -> Iterator[tuple[str, Any, int]]:
        """(name, format, offset) of what one descriptor entry describes."""
        kind, subtype = int(entry["desc_type"]), int(entry["desc_subtype"])
        at, size = int(entry["desc_offset"]), int(entry["desc_data_size"])
        name = self.file.text(int(entry["desc_name"]))
        if kind == St.LEGACY_SAMPLE_RECORD and size == PC.size:
            yield from ((f.name, f"<{f.code}", at + f.offset) for f in _PC.values())
        elif kind == St.TIME_STAMP and size == 8:
            yield "time", "<i8", at
        elif (kind, subtype) == (St.BRANCH_TRACE, Sst.LBR_FROM_TO) and size % 16 == 0:
            self.depth = size // 16
            yield "branch", ("<u8", (self.depth, 2)), at
        else:
            known = _BY_TYPE.get((kind, subtype), name)
            code = self._code(known, size)
            if code is not None:
                yield known, code, at

    def _code(self, name: str, size: int) -> Any:
        """The format of a field that is known by name, ``None`` for any other and for one of another size."""
        if name in _PC:
            return f"<{_PC[name].code}" if size == _PC[name].size else None
        if name == "branch count" or name.endswith(" count"):
            return "<u4" if size == 4 else None
        if name.endswith(" first"):
            return "<u8" if size == 8 else None
        found = next((c for c in COLUMNS if c.name == name), None)
        if found is None:
            return None
        one = np.dtype(found.dtype).newbyteorder("<")
        if found.group == BRANCH:
            return (one, (size // one.itemsize,)) if size % one.itemsize == 0 else None
        return one if size == one.itemsize and found.group == "sample" else None

    def _check_group_records(self) -> None:
        self._group_dtypes: dict[str, np.dtype[Any]] = {}
        for group, number in list(self._groups.items()):
            key = Table(Scope.STREAM, number, StreamSection.DATA)
            wanted = {f"{group} first", f"{group} count"}
            if not wanted <= self._names or not self.file.has(key):
                del self._groups[group]
                continue
            names, formats, offsets = [], [], []
            for entry in self.file.descriptors(number):
                name = self.file.text(int(entry["desc_name"]))
                found = next((c for c in COLUMNS if c.name == name and c.group == group), None)
                if found is not None and np.dtype(found.dtype).itemsize == int(entry["desc_data_size"]):
                    names.append(name)
                    formats.append(np.dtype(found.dtype).newbyteorder("<"))
                    offsets.append(int(entry["desc_offset"]))
            size = self.file.record_size(key)
            self._group_dtypes[group] = np.dtype(
                {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
            )

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

    def raw_records(self) -> Iterator[Array]:
        """Structured records with the fields that are known, block by block; `FormatError` at a damaged one."""
        for rows in self.file.blocks(self.key):
            yield rows.reshape(-1).view(self._dtype)

    def batches(
        self, wanted: frozenset[str] | None, columns: tuple[str, ...], damage: list[Damage] | None = None
    ) -> Iterator[tuple[int, SampleBatch, int]]:
        """(first record, batch, earliest time among those of its block that come later) in file order.

        A damaged block is stepped over and noted in ``damage``, or raised where that is ``None``.
        """
        entry = self.file.tables[self.key]
        runs = {group: _Runs(self.file, number) for group, number in self._groups.items()}
        for number, rows in self.file.some_blocks(self.key, range(entry.blocks)):
            if isinstance(rows, FormatError):
                _note(damage, rows, entry.block_bytes)
                continue
            records = rows.reshape(-1).view(self._dtype)
            at = number * entry.block_records
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
            times: NDArray[np.int64] = np.ascontiguousarray(records["time"])
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
        self, records: Array, times: NDArray[np.int64], counts: NDArray[np.int64], wanted: frozenset[str] | None,
        columns: tuple[str, ...],
    ) -> SampleBatch:  # fmt: skip
        out: dict[str, Array] = {"time": times}
        self._required(out, records)
        names = [n for n in columns if n not in out and (wanted is None or n in wanted)]
        branches = [n for n in names if column(n).group == BRANCH]
        for name in names:
            if column(name).group == "sample" and name in self._names:
                out[name] = np.ascontiguousarray(records[name])
        if not branches:
            return SampleBatch(out)
        offsets = {BRANCH: np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])}
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

    def _required(self, out: dict[str, Array], records: Array) -> None:
        n, have = len(records), self._names
        unknown = np.full(n, -1, np.int32)
        flags = records["bitFields2"] if "bitFields2" in have else np.full(n, 1 << 29, np.uint32)
        wide = (flags >> np.uint32(29) & np.uint32(1)) == 1
        if "iip" in have:
            ip = np.ascontiguousarray(records["iip"])
            out["ip"] = ip if wide.all() else np.where(wide, ip, ip & _LOW)
        else:
            out["ip"] = np.zeros(n, np.uint64)
        out["pid"] = np.ascontiguousarray(records["pidRecIndex"]).view(np.int32) if "pidRecIndex" in have else unknown
        out["tid"] = np.ascontiguousarray(records["tid"]).view(np.int32) if "tid" in have else unknown
        if "cpu" in have:
            out["cpu"] = np.ascontiguousarray(records["cpu"])
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
        self, batch: SampleBatch, records: Array, group: str, run: _Runs, wanted: frozenset[str] | None,
        damage: list[Damage] | None,
    ) -> None:  # fmt: skip
        dtype = self._group_dtypes[group]
        names = [n for n in dtype.names or () if wanted is None or n in wanted]
        if not names:
            return
        first, count = records[f"{group} first"], records[f"{group} count"].astype(np.int64)
        ends = np.cumsum(count)
        total = int(ends[-1]) if len(ends) else 0
        start = int(first[0]) if len(first) else 0
        if total and (first != start + ends - count).any():
            reason = f"rows of {group} do not follow each other"
            _note(damage, FormatError(reason, file=self.file.name, field=f"{group} first"), 0)
            total, count, ends = 0, np.zeros_like(count), np.zeros_like(ends)
        try:
            rows = run.take(start, total)
        except FormatError as error:
            _note(damage, error, 0)
            rows, ends = run.take(0, 0), np.zeros_like(ends)
        values = rows.reshape(-1).view(dtype)
        batch.offsets[group] = np.concatenate([np.zeros(1, np.int64), ends])
        for name in names:
            batch.columns[name] = np.ascontiguousarray(values[name])


class _Runs:
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


def note(damage: list[Damage], found: Damage) -> None:
    """Add a place that was stepped over, once."""
    if found not in damage:
        damage.append(found)


def _note(damage: list[Damage] | None, error: FormatError, lost: int) -> None:
    if damage is None:
        raise error
    note(damage, Damage(error.reason, error.offset or 0, error.field, error.value, lost))
