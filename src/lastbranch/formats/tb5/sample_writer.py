"""Batches to records of a sample stream, as they come."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ...model import BRANCH, KERNEL_HALF, KERNEL_HALF_32, Array, Mode, SampleBatch
from .descriptors import RecordLayout, group_dtype
from .layout import BATCH_TIMES, HEADS, IA64PC, MODEL, PID_IS_RAW, TID_IS_RAW, CpuMode, Scope, StreamSection, Table
from .writer import TableWriter, Tb5Writer

__all__ = ["Processor", "SampleWriter"]


_LOW = np.uint64(0xFFFFFFFF)
_WORTH_HEADS = 4
"""Heads of records are kept apart as well where a record is so many times as large."""
_RPL = (3, 0, 3, 0, 0, 3)  # privilege level by Mode; a guest's is its own


class Processor:
    """What the sample records say of the processor: selectors of code and the form of addresses.

    ``x86`` puts the selectors of Linux and Windows into records (0x10 and 0x33, 32-bit 0x08 and 0x1B on Windows, 0x60
    and 0x73 on Linux), by the half of the address space; on other machines they are 0, which matches any module.
    """

    def __init__(self, x86: bool, bits: int, windows: bool) -> None:
        self.bits = bits
        table = {64: (0x10, 0x33), 32: (0x08, 0x1B) if windows else (0x60, 0x73)}
        self.selectors = table[32 if bits == 32 else 64] if x86 else (0, 0)
        self.code_mode = (CpuMode.BITS32 if bits == 32 else CpuMode.BITS64) if x86 else CpuMode.V86

    def is_kernel(self, ip: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether an address is in the kernel's half."""
        return np.asarray(ip >= np.uint64(KERNEL_HALF if self.bits == 64 else KERNEL_HALF_32))


class SampleWriter:
    """One stream of samples, written batch after batch, with a custom stream for each ragged column group.

    ``samples``, ``entries``, ``deepest``, ``first_time``, ``last_time``, ``events`` and ``threads`` tell what came.
    """

    def __init__(self, writer: Tb5Writer, columns: Collection[str], depth: int, processor: Processor) -> None:
        self.layout, self._processor = RecordLayout(columns, depth), processor
        self.number = writer.next_stream
        self._data = writer.table(Table(Scope.STREAM, self.number, StreamSection.DATA), self.layout.dtype.itemsize)
        self._heads: TableWriter | None = None
        if self.layout.head * _WORTH_HEADS <= self.layout.dtype.itemsize:
            self._heads = writer.table(Table(Scope.STORE, self.number, HEADS), self.layout.head)
        self.groups: dict[str, tuple[int, TableWriter]] = {}
        for group in self.layout.groups:
            number = writer.next_stream
            table = writer.table(
                Table(Scope.STREAM, number, StreamSection.DATA), group_dtype(group, self.layout.columns).itemsize
            )
            self.groups[group] = number, table
        self._times = writer.table(Table(Scope.STORE, self.number, MODEL, 5), BATCH_TIMES.itemsize)
        self.samples = self.entries = self.deepest = 0
        self.first_time: int | None = None
        self.last_time: int | None = None
        self.events: set[int] = set()
        self._threads: list[NDArray[np.int64]] = []

    def write(self, batch: SampleBatch) -> None:
        """Add samples. `ValueError` for a branch stack that is deeper than the stream's records."""
        n = len(batch)
        if not n:
            return
        records = np.zeros(n, self.layout.dtype)
        self._sample_record(records, batch)
        for name in self.layout.alone:
            if name in batch:
                records[name] = batch[name]
        if self.layout.branches:
            self._branches(records, batch)
        for group in self.layout.groups:
            self._group(records, batch, group)
        records["time"] = batch.time
        self._data.write(records)
        if self._heads is not None:
            self._heads.write(records.view(np.uint8).reshape(n, -1)[:, : self.layout.head])
        self._count(batch)

    def _sample_record(self, records: Array, batch: SampleBatch) -> None:
        processor, ip, mode = self._processor, batch.ip, np.minimum(batch.mode, Mode.GUEST_USER)
        kernel = processor.is_kernel(ip)
        narrow = (ip <= _LOW) & (processor.bits == 32)
        level = np.array(_RPL, np.uint64)[mode]
        records["iip"] = ip  # the 32-bit form has eip and no eflags in the same place
        records["ipsr"] = np.where(narrow, _descriptor(level), level << np.uint64(32))
        records["cs"] = np.where(kernel, *processor.selectors)
        cpu = np.where((batch.cpu >= 0) & (batch.cpu < 1 << 12), batch.cpu, 0).astype(np.uint16)
        records["cpuAndOS"] = cpu | np.uint16(processor.code_mode << 13)
        records["tid"], records["pidRecIndex"] = batch.tid.view(np.uint32), batch.pid.view(np.uint32)
        event = np.where(batch.event < 1 << 8, batch.event, 0).astype(np.uint32) << np.uint32(20)
        records["bitFields2"] = event | TID_IS_RAW | PID_IS_RAW | np.where(narrow, np.uint32(0), IA64PC)

    def _branches(self, records: Array, batch: SampleBatch) -> None:
        depth = batch.depth
        if len(depth) and int(depth.max()) > self.layout.depth:
            raise ValueError(f"a branch stack of {int(depth.max())} entries; records have room for {self.layout.depth}")
        records["branch count"] = depth
        if not self.layout.depth or BRANCH not in batch.offsets:
            return
        full = bool((depth == self.layout.depth).all())
        filled = None if full else np.arange(self.layout.depth) < depth[:, None]
        names = records.dtype.names or ()
        for name in self.layout.branches:
            if name not in batch:
                continue
            if name in ("branch_from", "branch_to"):
                if "branch" not in names:
                    continue
                place = records["branch"][:, :, int(name == "branch_to")]
            else:
                place = records[name]
            if filled is None:
                place[...] = batch[name].reshape(len(batch), -1)
            else:
                place[filled] = batch[name]

    def _group(self, records: Array, batch: SampleBatch, group: str) -> None:
        table = self.groups[group][1]
        offsets = batch.offsets.get(group)
        if offsets is None:
            return
        records[f"{group} first"] = table.count + offsets[:-1]
        records[f"{group} count"] = np.diff(offsets)
        rows = np.zeros(int(offsets[-1]), group_dtype(group, self.layout.columns))
        for name in rows.dtype.names or ():
            if name in batch:
                rows[name] = batch[name]
        table.write(rows)

    def _count(self, batch: SampleBatch) -> None:
        first, last = int(batch.time.min()), int(batch.time.max())
        self._times.write(np.array([(self.samples, first)], BATCH_TIMES))
        self.samples += len(batch)
        self.entries += batch.entries
        self.deepest = max(self.deepest, int(batch.depth.max(initial=0)))
        self.first_time = first if self.first_time is None else min(first, self.first_time)
        self.last_time = last if self.last_time is None else max(last, self.last_time)
        self.events.update(np.unique(batch.event).tolist())
        pair = (batch.pid.astype(np.int64) << 32) | batch.tid.view(np.uint32).astype(np.int64)
        self._threads.append(np.unique(pair))
        if len(self._threads) > 256:
            self._threads = [np.unique(np.concatenate(self._threads))]

    @property
    def threads(self) -> NDArray[np.int32]:
        """int32 (pairs, 2): pid and tid of every sample, each pair once."""
        pairs = np.unique(np.concatenate([np.empty(0, np.int64), *self._threads]))
        return np.stack([pairs >> 32, pairs & 0xFFFFFFFF], axis=1).astype(np.uint32).view(np.int32)

    def done(self) -> None:
        """Complete the stream's data; its descriptor and information are the profile writer's."""
        self._data.done()
        if self._heads is not None:
            self._heads.done()
        for _, table in self.groups.values():
            table.done()
        self._times.done()


def _descriptor(level: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Code segment descriptor of a flat 32-bit segment (the guide's example: 0xFFFF, 0xCF9B00) of a privilege level."""
    return np.uint64(0x00CF9B00 << 32 | 0xFFFF) | level << np.uint64(32 + 13)
