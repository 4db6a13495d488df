"""PERF_RECORD_SAMPLE: from record positions in a block to columns, a field at a time for all samples of the block.

The fields stand in the order of the kernel ABI (comment of PERF_RECORD_SAMPLE in include/uapi/linux/perf_event.h). Each
reader below gets the cursor (word index of its field, one a sample), takes its values and moves the cursor on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...lbr import PERF_SELECT, repack_big_endian
from ...model import BRANCH, FRAME, Array, SampleBatch
from .attr import Attr
from .blocks import Block
from .layout import MISC, READ, SAMPLE

__all__ = ["SampleLayout"]

_WORD = {  # one-word fields that go straight to a column
    SAMPLE.ADDR: "addr", SAMPLE.ID: "id", SAMPLE.STREAM_ID: "stream_id", SAMPLE.PERIOD: "period",
    SAMPLE.WEIGHT: "weight", SAMPLE.WEIGHT_STRUCT: "weight", SAMPLE.DATA_SRC: "data_src",
    SAMPLE.TRANSACTION: "transaction", SAMPLE.PHYS_ADDR: "phys_addr", SAMPLE.CGROUP: "cgroup",
    SAMPLE.DATA_PAGE_SIZE: "data_page_size", SAMPLE.CODE_PAGE_SIZE: "code_page_size", SAMPLE.IP: "ip",
    SAMPLE.IDENTIFIER: "id",
}  # fmt: skip

_ABI_ORDER = (
    SAMPLE.IDENTIFIER, SAMPLE.IP, SAMPLE.TID, SAMPLE.TIME, SAMPLE.ADDR, SAMPLE.ID, SAMPLE.STREAM_ID, SAMPLE.CPU,
    SAMPLE.PERIOD, SAMPLE.READ, SAMPLE.CALLCHAIN, SAMPLE.RAW, SAMPLE.BRANCH_STACK, SAMPLE.REGS_USER,
    SAMPLE.STACK_USER, SAMPLE.WEIGHT | SAMPLE.WEIGHT_STRUCT, SAMPLE.DATA_SRC, SAMPLE.TRANSACTION, SAMPLE.REGS_INTR,
    SAMPLE.PHYS_ADDR, SAMPLE.CGROUP, SAMPLE.DATA_PAGE_SIZE, SAMPLE.CODE_PAGE_SIZE, SAMPLE.AUX,
)  # fmt: skip

_FIXED = _ABI_ORDER[:9]


class SampleLayout:
    """The sample record of one set of attributes with equal layout keys."""

    def __init__(self, attr: Attr) -> None:
        f = attr.fields
        self.sample_type = f["sample_type"]
        self.read_format = f["read_format"]
        self.select = f["branch_sample_type"]
        self.registers = {"user": f["sample_regs_user"].bit_count(), "intr": f["sample_regs_intr"].bit_count()}
        self.fixed: dict[int, int] = {}
        """Word offset of each fixed field from the record's start."""
        for bit in _FIXED:
            if self.sample_type & bit:
                self.fixed[bit] = 1 + len(self.fixed)
        known = 0
        for bit in _ABI_ORDER:
            known |= bit
        self.unknown = self.sample_type & ~known

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a batch of this layout can have."""
        names = ["time", "ip", "pid", "tid", "cpu", "event", "period", "mode", "position"]
        names += [name for bit, name in _WORD.items() if self.sample_type & bit and name not in names]
        for bit, field in _VARIABLE.items():
            if self.sample_type & bit:
                names += field.columns(self)
        return tuple(dict.fromkeys(names))

    def check(self, block: Block, at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Branch entries (int64) of each sample at word positions ``at``, and which samples are damaged (bool)."""
        walk = _Walk(self, block, at, frozenset())
        walk.run()
        return walk.lengths.get(BRANCH, np.zeros(len(at), np.int64)), walk.bad

    def decode(
        self, block: Block, at: NDArray[np.int64], event: NDArray[np.int32], wanted: frozenset[str] | None
    ) -> tuple[SampleBatch, NDArray[np.bool_]]:
        """The samples at word positions ``at`` as a batch, without those that a bool mask marks as damaged."""
        walk = _Walk(self, block, at, wanted)
        walk.run()
        batch = walk.batch(event)
        return (batch.select(~walk.bad) if walk.bad.any() else batch), walk.bad


class _Walk:
    """One decoding pass over the samples of a block."""

    def __init__(
        self, layout: SampleLayout, block: Block, at: NDArray[np.int64], wanted: frozenset[str] | None
    ) -> None:
        self.layout, self.block, self.words, self.at, self.wanted = layout, block, block.words, at, wanted
        self.end = at + (block.sizes(at) >> 3)
        self.cursor = at + (1 + len(layout.fixed))
        self.bad = self.cursor > self.end
        self.cursor = np.minimum(self.cursor, self.end)
        self.columns: dict[str, Array] = {}
        self.offsets: dict[str, NDArray[np.int64]] = {}
        self.lengths: dict[str, NDArray[np.int64]] = {}

    def wants(self, *names: str) -> bool:
        return self.wanted is None or any(n in self.wanted for n in names)

    def run(self) -> None:
        for bit, field in _VARIABLE.items():
            if self.layout.sample_type & bit:
                field.read(self)

    def word(self, offset: int = 0) -> NDArray[np.uint64]:
        """The word at the cursor (+ offset); whatever is there for a sample that has ended already (it is bad)."""
        return self.words.take(self.cursor + offset, mode="clip")

    def count(self, limit_words: int = 1) -> NDArray[np.int64]:
        """The count at the cursor, moved past it; 0 and marked bad where so many items do not fit the record."""
        room = self.end - self.cursor - 1
        n = self.word()
        bad = (room < 0) | (n > (np.maximum(room, 0) // limit_words).astype(np.uint64))
        self.bad |= bad
        self.cursor = np.where(bad, self.end, self.cursor + 1)
        return np.where(bad, 0, n.astype(np.int64))

    def skip(self, words: NDArray[np.int64] | int) -> None:
        """Move on by ``words``; samples that end before that are marked bad."""
        self.cursor = self.cursor + words
        self.bad |= self.cursor > self.end
        self.cursor = np.minimum(self.cursor, self.end)

    def ragged(self, group: str, length: NDArray[np.int64], step: int = 1) -> NDArray[np.int64]:
        """Word index of the first word of each item of ``group`` (items of ``step`` words from the cursor on)."""
        offsets = np.zeros(len(length) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        self.offsets[group], self.lengths[group] = offsets, length
        index = np.repeat(self.cursor - offsets[:-1] * step, length)
        index += np.arange(0, int(offsets[-1]) * step, step)
        return index

    def take_bytes(self, group: str, start: NDArray[np.int64], length: NDArray[np.int64]) -> None:
        """Ragged column ``group`` of bytes: ``length`` from byte position ``start`` of the block."""
        offsets = np.zeros(len(length) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        self.offsets[group] = offsets
        index = np.repeat(start - offsets[:-1], length) + np.arange(offsets[-1])
        self.columns[group] = self.block.raw.take(index)

    def batch(self, event: NDArray[np.int32]) -> SampleBatch:
        layout, n = self.layout, len(self.at)
        c: dict[str, Array] = {}
        position = self.block.base + self.at * 8

        def fixed(bit: int) -> NDArray[np.uint64] | None:
            offset = layout.fixed.get(bit)
            return None if offset is None else self.words.take(self.at + offset, mode="clip")

        time, ip, ids = fixed(SAMPLE.TIME), fixed(SAMPLE.IP), fixed(SAMPLE.TID)
        cpu, period = fixed(SAMPLE.CPU), fixed(SAMPLE.PERIOD)
        c["time"] = position if time is None else time.view(np.int64)
        c["ip"] = np.zeros(n, np.uint64) if ip is None else ip
        if ids is None:
            c["pid"] = c["tid"] = np.full(n, -1, np.int32)
        else:
            c["pid"], c["tid"] = self.block.halves(ids)
        c["cpu"] = np.full(n, -1, np.int32) if cpu is None else self.block.halves(cpu)[0]
        c["event"] = event
        c["period"] = np.zeros(n, np.uint64) if period is None else period
        c["mode"] = (self.block.misc(self.at) & MISC.CPUMODE_MASK).astype(np.uint8)
        if self.wants("position"):
            c["position"] = position
        for bit in layout.fixed:
            name = _WORD.get(bit)
            if name and name not in c and self.wants(name):
                value = fixed(bit)
                assert value is not None
                c[name] = value
        return SampleBatch(c | self.columns, self.offsets)


class _Field:
    """A field of variable position: how to read it, and which columns it makes."""

    def __init__(
        self, read: Callable[[_Walk], None], columns: Callable[[SampleLayout], list[str]] | tuple[str, ...]
    ) -> None:
        self.read = read
        self._columns = columns

    def columns(self, layout: SampleLayout) -> list[str]:
        return self._columns(layout) if callable(self._columns) else list(self._columns)


def _one_word(name: str) -> _Field:
    def read(w: _Walk) -> None:
        if w.wants(name):
            w.columns[name] = w.word()
        w.skip(1)

    return _Field(read, (name,))


def _read_values(w: _Walk) -> None:
    """READ: values alone or as a group, each with id and lost where read_format says so."""
    form = w.layout.read_format
    per_value = 1 + bool(form & READ.ID) + bool(form & READ.LOST)
    times = [
        n for n, b in (("time_enabled", READ.TOTAL_TIME_ENABLED), ("time_running", READ.TOTAL_TIME_RUNNING)) if form & b
    ]
    if form & READ.GROUP:
        length = w.count(per_value)
    else:
        length = np.ones(len(w.at), np.int64)
    value_first = not form & READ.GROUP  # alone: value, times, id, lost; in a group: times, then each value
    if value_first and w.wants("read_value"):
        w.offsets["read"] = np.arange(len(w.at) + 1)
        w.columns["read_value"] = w.word()
    if value_first:
        w.skip(1)
    for name in times:
        if w.wants(name):
            w.columns[name] = w.word()
        w.skip(1)
    parts = [n for n, b in (("read_id", READ.ID), ("read_lost", READ.LOST)) if form & b]
    if value_first:
        for name in parts:
            if w.wants(name):
                w.offsets["read"] = np.arange(len(w.at) + 1)
                w.columns[name] = w.word()
            w.skip(1)
        return
    start = w.cursor
    w.skip(length * per_value)
    length = np.where(w.bad, 0, length)
    if w.wants("read_value", *parts):
        w.cursor, after = start, w.cursor
        index = w.ragged("read", length, per_value)
        for i, name in enumerate(["read_value", *parts]):
            w.columns[name] = w.words.take(index + i)
        w.cursor = after


def _read_columns(layout: SampleLayout) -> list[str]:
    form = layout.read_format
    bits = {"time_enabled": READ.TOTAL_TIME_ENABLED, "time_running": READ.TOTAL_TIME_RUNNING,
            "read_id": READ.ID, "read_lost": READ.LOST}  # fmt: skip
    return ["read_value", *(name for name, bit in bits.items() if form & bit)]


def _callchain(w: _Walk) -> None:
    length = w.count()
    if w.wants("frame"):
        w.columns["frame"] = w.words.take(w.ragged(FRAME, length))
    w.skip(length)


def _raw(w: _Walk) -> None:
    """u32 size, data, padded so that both together are whole words."""
    size = w.block.halves(w.word())[0].astype(np.int64) & 0xFFFFFFFF
    words = (size + 4 + 7) >> 3
    start = w.cursor * 8 + 4
    w.skip(words)
    if w.wants("raw"):
        w.take_bytes("raw", start, np.where(w.bad, 0, size))


def _branch_stack(w: _Walk) -> None:
    select = w.layout.select
    counters = bool(select & PERF_SELECT["COUNTERS"])
    if select & PERF_SELECT["HW_INDEX"]:
        # nr, hw_idx, entries: the index stands between the count and what it counts.
        room = np.maximum(w.end - w.cursor - 2, 0)
        n = w.word()
        bad = (n > (room // (4 if counters else 3)).astype(np.uint64)) | (w.cursor + 2 > w.end)
        w.bad |= bad
        length = np.where(bad, 0, n.astype(np.int64))
        if w.wants("hw_idx"):
            w.columns["hw_idx"] = w.word(1).view(np.int64)
        w.cursor = np.where(bad, w.end, w.cursor + 2)
    else:
        length = w.count(4 if counters else 3)
    wanted = [n for n in ("branch_from", "branch_to", "branch_flags") if w.wants(n)]
    w.lengths[BRANCH] = length
    if wanted:
        index = w.ragged(BRANCH, length, 3)
        for name in ("branch_from", "branch_to", "branch_flags"):
            if name in wanted:
                w.columns[name] = w.words.take(index)
            index += 1
        if w.block.big_endian and "branch_flags" in wanted:
            w.columns["branch_flags"] = repack_big_endian(w.columns["branch_flags"])
    w.skip(length * 3)
    if counters:
        if w.wants("branch_counters"):
            w.columns["branch_counters"] = w.words.take(w.ragged(BRANCH, length))
        w.skip(length)


def _registers(which: str) -> _Field:
    group, abi_name, column = f"{which}_regs", f"{which}_regs_abi", f"{which}_reg"

    def read(w: _Walk) -> None:
        abi = w.word()
        length = np.where((abi != 0) & (w.cursor < w.end), w.layout.registers[which], 0)
        w.skip(1)
        if w.wants(abi_name):
            w.columns[abi_name] = abi
        start = w.cursor
        w.skip(length)
        if w.wants(column):
            w.cursor, after = start, w.cursor
            w.columns[column] = w.words.take(w.ragged(group, np.where(w.bad, 0, length)))
            w.cursor = after

    return _Field(read, (abi_name, column))


def _stack_user(w: _Walk) -> None:
    """u64 size, then (size != 0) size bytes and u64 dyn_size: how much of them was copied."""
    size = w.word()
    room = np.maximum(w.end - w.cursor - 2, 0).astype(np.uint64) * np.uint64(8)
    w.bad |= (size > room) | (w.cursor >= w.end)
    length = np.where(w.bad, 0, size.astype(np.int64))
    start = (w.cursor + 1) * 8
    w.skip(1 + ((length + 7) >> 3))
    if w.wants("user_stack"):
        w.take_bytes("user_stack", start, length)
    if w.wants("user_stack_size"):
        w.columns["user_stack_size"] = np.where(length > 0, w.word(), np.uint64(0))
    w.skip((length > 0).astype(np.int64))


def _aux(w: _Walk) -> None:
    size = w.word()
    room = np.maximum(w.end - w.cursor - 1, 0).astype(np.uint64) * np.uint64(8)
    w.bad |= (size > room) | (w.cursor >= w.end)
    length = np.where(w.bad, 0, size.astype(np.int64))
    start = (w.cursor + 1) * 8
    w.skip(1 + ((length + 7) >> 3))
    if w.wants("aux"):
        w.take_bytes("aux", start, length)


def _branch_columns(layout: SampleLayout) -> list[str]:
    names = ["branch_from", "branch_to", "branch_flags"]
    names += ["hw_idx"] if layout.select & PERF_SELECT["HW_INDEX"] else []
    return names + (["branch_counters"] if layout.select & PERF_SELECT["COUNTERS"] else [])


_VARIABLE: dict[int, _Field] = {
    SAMPLE.READ: _Field(_read_values, _read_columns),
    SAMPLE.CALLCHAIN: _Field(_callchain, ("frame",)),
    SAMPLE.RAW: _Field(_raw, ("raw",)),
    SAMPLE.BRANCH_STACK: _Field(_branch_stack, _branch_columns),
    SAMPLE.REGS_USER: _registers("user"),
    SAMPLE.STACK_USER: _Field(_stack_user, ("user_stack", "user_stack_size")),
    SAMPLE.WEIGHT: _one_word("weight"),
    SAMPLE.WEIGHT_STRUCT: _one_word("weight"),
    SAMPLE.DATA_SRC: _one_word("data_src"),
    SAMPLE.TRANSACTION: _one_word("transaction"),
    SAMPLE.REGS_INTR: _registers("intr"),
    SAMPLE.PHYS_ADDR: _one_word("phys_addr"),
    SAMPLE.CGROUP: _one_word("cgroup"),
    SAMPLE.DATA_PAGE_SIZE: _one_word("data_page_size"),
    SAMPLE.CODE_PAGE_SIZE: _one_word("code_page_size"),
    SAMPLE.AUX: _Field(_aux, ("aux",)),
}
"""What follows the fixed fields, in ABI order."""
