"""PERF_RECORD_SAMPLE: from record positions in a block to columns, a field at a time for all samples of the block.

The fields stand in the order of the kernel ABI (comment of PERF_RECORD_SAMPLE in include/uapi/linux/perf_event.h):
first those of fixed position, here, then those in `fields`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...model import BRANCH, REQUIRED, Array, SampleBatch
from .attr import Attr
from .chain import Block
from .cursor import Cursor
from .fields import VARIABLE
from .layout import MISC, SAMPLE

__all__ = ["SampleLayout"]

_WORD = {  # fields that go straight to a column
    SAMPLE.IDENTIFIER: "id", SAMPLE.IP: "ip", SAMPLE.ADDR: "addr", SAMPLE.ID: "id", SAMPLE.STREAM_ID: "stream_id",
    SAMPLE.PERIOD: "period",
}  # fmt: skip

_FIXED = (  # what comes first, in ABI order; then `VARIABLE`
    SAMPLE.IDENTIFIER, SAMPLE.IP, SAMPLE.TID, SAMPLE.TIME, SAMPLE.ADDR, SAMPLE.ID, SAMPLE.STREAM_ID, SAMPLE.CPU,
    SAMPLE.PERIOD,
)  # fmt: skip


class SampleLayout:
    """The sample record of one set of attributes with equal layout keys."""

    def __init__(self, attr: Attr) -> None:
        self.form = attr.fields
        present = [bit for bit in _FIXED if attr.sample_type & bit]
        self.fixed = {bit: 1 + i for i, bit in enumerate(present)}
        """Word offset of each fixed field from the record's start."""
        self.unknown = attr.sample_type & ~sum(set(_FIXED) | set(VARIABLE))
        """Bits of later kernels: their values stand behind the known ones and are not read."""
        self._variable = [field for bit, field in VARIABLE.items() if attr.sample_type & bit]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a batch of this layout can have."""
        names = [c.name for c in REQUIRED] + ["position"]
        names += [_WORD[bit] for bit in self.fixed if bit in _WORD]
        for field in self._variable:
            names += field.columns(self.form)
        return tuple(dict.fromkeys(names))

    def check(self, block: Block, at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Branch entries (int64) of each sample at word positions ``at``, and which samples are damaged (bool)."""
        cursor = self._walk(block, at, frozenset())
        return cursor.lengths.get(BRANCH, np.zeros(len(at), np.int64)), cursor.bad

    def decode(
        self, block: Block, at: NDArray[np.int64], event: NDArray[np.int32], wanted: frozenset[str] | None
    ) -> SampleBatch:
        """The samples at word positions ``at`` as a batch, without damaged ones."""
        cursor = self._walk(block, at, wanted)
        batch = SampleBatch(self._fixed_columns(cursor, event) | cursor.columns, cursor.offsets)
        return batch.select(~cursor.bad) if cursor.bad.any() else batch

    def _walk(self, block: Block, at: NDArray[np.int64], wanted: frozenset[str] | None) -> Cursor:
        cursor = Cursor(block, at, self.form, len(self.fixed), wanted)
        for field in self._variable:
            field.read(cursor)
        return cursor

    def _fixed_columns(self, cursor: Cursor, event: NDArray[np.int32]) -> dict[str, Array]:
        block, at, n = cursor.block, cursor.at, len(cursor.at)

        def word(bit: int) -> NDArray[np.uint64] | None:
            offset = self.fixed.get(bit)
            return None if offset is None else block.words.take(at + offset, mode="clip")

        position = block.base + at * 8
        time, ip, ids = word(SAMPLE.TIME), word(SAMPLE.IP), word(SAMPLE.TID)
        cpu, period = word(SAMPLE.CPU), word(SAMPLE.PERIOD)
        unknown = np.full(n, -1, np.int32)
        pid, tid = (unknown, unknown) if ids is None else block.halves(ids)
        columns: dict[str, Array] = {
            "time": position if time is None else time.view(np.int64),
            "ip": np.zeros(n, np.uint64) if ip is None else ip,
            "pid": pid,
            "tid": tid,
            "cpu": unknown if cpu is None else block.halves(cpu)[0],
            "event": event,
            "period": np.zeros(n, np.uint64) if period is None else period,
            "mode": (block.misc(at) & MISC.CPUMODE_MASK).astype(np.uint8),
        }
        if cursor.wants("position"):
            columns["position"] = position
        for bit in self.fixed:
            name = _WORD.get(bit, "")
            if name and name not in columns and cursor.wants(name):
                columns[name] = block.words.take(at + self.fixed[bit], mode="clip")
        return columns
