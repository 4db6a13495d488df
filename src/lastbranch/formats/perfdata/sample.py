"""PERF_RECORD_SAMPLE: from record positions in a block to columns, one field at a time for all samples of the block.

The fields are in the order of the kernel ABI (comment of PERF_RECORD_SAMPLE in include/uapi/linux/perf_event.h): first
the fields of fixed position, here, then the fields in `VARIABLE`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ... import native
from ...arrays import distinct, offsets_of, take_ranges
from ...lbr import PERF_SELECT, repack_big_endian
from ...model import BRANCH, ENTRY, FRAME, IN_PLACE, REQUIRED, Array, EntriesInPlace, SampleBatch
from .attr import Attr
from .layout import MISC, READ, SAMPLE
from .walk import Block

if TYPE_CHECKING:
    from ctypes import CDLL

__all__ = ["SampleLayout"]


# -- One decoding pass over the samples of a block: a cursor into each, moved field by field


class Cursor:
    """Samples at word positions ``at`` of ``block``; ``fixed`` words of each precede the fields of variable position.
    ``form`` holds the fields of the attribute that shaped them.

    ``bad`` marks samples whose fields do not fit in their records. Values go to ``columns`` and ``offsets``.
    """

    def __init__(
        self, block: Block, at: NDArray[np.int64], form: dict[str, int], fixed: int, wanted: frozenset[str] | None
    ) -> None:
        self.block, self.words, self.at, self.form, self.wanted = block, block.words, at, form, wanted
        self.end = at + (block.sizes(at) >> 3)
        self.cursor = at + (1 + fixed)
        self.bad = self.cursor > self.end
        self.cursor = np.minimum(self.cursor, self.end)
        self.columns: dict[str, Array] = {}
        self.offsets: dict[str, NDArray[np.int64]] = {}
        self.lengths: dict[str, NDArray[np.int64]] = {}

    def wants(self, *names: str) -> bool:
        return self.wanted is None or any(n in self.wanted for n in names)

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

    def ragged(self, group: str, length: NDArray[np.int64], names: tuple[str, ...], step: int = 1) -> None:
        """Ragged columns ``names`` of ``group``: words 0, 1, ... of items of ``step`` words, from the cursor on."""
        self.lengths[group] = length
        wanted = [(word, name) for word, name in enumerate(names) if self.wants(name)]
        if not wanted:
            return
        self.offsets[group] = offsets = np.zeros(len(length) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        gather = self._evenly_spaced(length, step) or self._anywhere(length, step)
        for word, name in wanted:
            self.columns[name] = gather(word)

    def _evenly_spaced(self, length: NDArray[np.int64], step: int) -> Callable[[int], Array] | None:
        """The usual case, samples equally long and one after the other, is a strided copy: several times as fast."""
        n, deepest = len(length), int(length.max(initial=0))
        if n < 2 or int(length.min()) != deepest:
            return None
        first, stride = int(self.cursor[0]), int(self.cursor[1] - self.cursor[0])
        if (np.diff(self.cursor) != stride).any():
            return None
        shape, strides = (n, deepest), (stride * 8, step * 8)

        def gather(word: int) -> Array:
            return as_strided(self.words[first + word :], shape, strides, writeable=False).reshape(-1)

        return gather

    def _anywhere(self, length: NDArray[np.int64], step: int) -> Callable[[int], Array]:
        items = take_ranges(self.words, self.cursor, length * step).reshape(-1, step)
        return lambda word: items[:, word]

    def take_bytes(self, group: str, start: NDArray[np.int64], length: NDArray[np.int64]) -> None:
        """Ragged column ``group`` of bytes: ``length`` from byte position ``start`` of the block."""
        offsets = np.zeros(len(length) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        self.offsets[group] = offsets
        self.columns[group] = take_ranges(self.block.raw, start, length)


# -- The fields of a sample that have no fixed position: how each is read, and which columns it makes
#
# They are in the order of the kernel ABI (comment of PERF_RECORD_SAMPLE in include/uapi/linux/perf_event.h). A reader
# gets the `Cursor` at its field and moves it on.


Form = dict[str, int]
"""Fields of perf_event_attr."""


Step = tuple[int, int, int]
"""What the library does at a field, to see whether it fits: `struct step` of ``native/perf_records.c``."""
_SKIP, _COUNTED, _RAW, _REGISTERS, _SIZED, _BRANCHES = range(6)


class SampleField:
    """A field of variable position: how to read it, which columns it makes, and its step."""

    def __init__(
        self,
        read: Callable[[Cursor], None],
        columns: Callable[[Form], list[str]] | tuple[str, ...],
        step: Callable[[Form], Step] | Step,
    ) -> None:
        self.read = read
        self._columns = columns
        self._step = step

    def columns(self, form: Form) -> list[str]:
        return self._columns(form) if callable(self._columns) else list(self._columns)

    def step(self, form: Form) -> Step:
        return self._step(form) if callable(self._step) else self._step


def _one_word(name: str) -> SampleField:
    def read(w: Cursor) -> None:
        if w.wants(name):
            w.columns[name] = w.word()
        w.skip(1)

    return SampleField(read, (name,), (_SKIP, 1, 0))


def _read_values(w: Cursor) -> None:
    """READ: values alone or as a group, each with id and lost where read_format says so."""
    form = w.form["read_format"]
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
        w.ragged("read", length, ("read_value", *parts), per_value)
        w.cursor = after


def _read_columns(form: Form) -> list[str]:
    parts = form["read_format"]
    bits = {
        "time_enabled": READ.TOTAL_TIME_ENABLED,
        "time_running": READ.TOTAL_TIME_RUNNING,
        "read_id": READ.ID,
        "read_lost": READ.LOST,
    }
    return ["read_value", *(name for name, bit in bits.items() if parts & bit)]


def _read_step(form: Form) -> Step:
    bits = form["read_format"]
    times = bool(bits & READ.TOTAL_TIME_ENABLED) + bool(bits & READ.TOTAL_TIME_RUNNING)
    value = 1 + bool(bits & READ.ID) + bool(bits & READ.LOST)
    return (_COUNTED, value, times) if bits & READ.GROUP else (_SKIP, value + times, 0)


def _callchain(w: Cursor) -> None:
    length = w.count()
    w.ragged(FRAME, length, ("frame",))
    w.skip(length)


def _raw(w: Cursor) -> None:
    """u32 size, data, padded so that both together are whole words."""
    size = w.block.halves(w.word())[0].astype(np.int64) & 0xFFFFFFFF
    words = (size + 4 + 7) >> 3
    start = w.cursor * 8 + 4
    w.skip(words)
    if w.wants("raw"):
        w.take_bytes("raw", start, np.where(w.bad, 0, size))


def _branch_stack(w: Cursor) -> None:
    select = w.form["branch_sample_type"]
    counters = bool(select & PERF_SELECT["COUNTERS"])
    if select & PERF_SELECT["HW_INDEX"]:
        # nr, hw_idx, entries: the index is between the count and what it counts.
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
    w.ragged(BRANCH, length, ENTRY, 3)
    if w.block.big_endian and "branch_flags" in w.columns:
        w.columns["branch_flags"] = repack_big_endian(w.columns["branch_flags"])
    w.skip(length * 3)
    if counters:
        w.ragged(BRANCH, length, ("branch_counters",))
        w.skip(length)


def _registers(which: str) -> SampleField:
    group, abi_name, column = f"{which}_regs", f"{which}_regs_abi", f"{which}_reg"

    def read(w: Cursor) -> None:
        abi, count = w.word(), w.form[f"sample_regs_{which}"].bit_count()
        length = np.where((abi != 0) & (w.cursor < w.end), count, 0)
        w.skip(1)
        if w.wants(abi_name):
            w.columns[abi_name] = abi
        start = w.cursor
        w.skip(length)
        if w.wants(column):
            w.cursor, after = start, w.cursor
            w.ragged(group, np.where(w.bad, 0, length), (column,))
            w.cursor = after

    return SampleField(read, (abi_name, column), lambda form: (_REGISTERS, form[f"sample_regs_{which}"].bit_count(), 0))


def _sized_bytes(w: Cursor, group: str, after: int) -> NDArray[np.int64]:
    """u64 size and so many bytes, padded to words, as ragged column ``group``; ``after`` words follow."""
    size = w.word()
    room = np.maximum(w.end - w.cursor - 1 - after, 0).astype(np.uint64) * np.uint64(8)
    w.bad |= (size > room) | (w.cursor >= w.end)
    length = np.where(w.bad, 0, size.astype(np.int64))
    start = (w.cursor + 1) * 8
    w.skip(1 + ((length + 7) >> 3))
    if w.wants(group):
        w.take_bytes(group, start, length)
    return length


def _stack_user(w: Cursor) -> None:
    """u64 size, then (size != 0) size bytes and u64 dyn_size: how much of them was copied."""
    length = _sized_bytes(w, "user_stack", after=1)
    if w.wants("user_stack_size"):
        w.columns["user_stack_size"] = np.where(length > 0, w.word(), np.uint64(0))
    w.skip((length > 0).astype(np.int64))


def _aux(w: Cursor) -> None:
    _sized_bytes(w, "aux", after=0)


def _branch_columns(form: Form) -> list[str]:
    names = list(ENTRY)
    names += ["hw_idx"] if form["branch_sample_type"] & PERF_SELECT["HW_INDEX"] else []
    return names + (["branch_counters"] if form["branch_sample_type"] & PERF_SELECT["COUNTERS"] else [])


def _branch_step(form: Form) -> Step:
    select = form["branch_sample_type"]
    return _BRANCHES, 4 if select & PERF_SELECT["COUNTERS"] else 3, int(bool(select & PERF_SELECT["HW_INDEX"]))


VARIABLE: dict[int, SampleField] = {
    SAMPLE.READ: SampleField(_read_values, _read_columns, _read_step),
    SAMPLE.CALLCHAIN: SampleField(_callchain, ("frame",), (_COUNTED, 1, 0)),
    SAMPLE.RAW: SampleField(_raw, ("raw",), (_RAW, 0, 0)),
    SAMPLE.BRANCH_STACK: SampleField(_branch_stack, _branch_columns, _branch_step),
    SAMPLE.REGS_USER: _registers("user"),
    SAMPLE.STACK_USER: SampleField(_stack_user, ("user_stack", "user_stack_size"), (_SIZED, 1, 0)),
    SAMPLE.WEIGHT: _one_word("weight"),
    SAMPLE.WEIGHT_STRUCT: _one_word("weight"),
    SAMPLE.DATA_SRC: _one_word("data_src"),
    SAMPLE.TRANSACTION: _one_word("transaction"),
    SAMPLE.REGS_INTR: _registers("intr"),
    SAMPLE.PHYS_ADDR: _one_word("phys_addr"),
    SAMPLE.CGROUP: _one_word("cgroup"),
    SAMPLE.DATA_PAGE_SIZE: _one_word("data_page_size"),
    SAMPLE.CODE_PAGE_SIZE: _one_word("code_page_size"),
    SAMPLE.AUX: SampleField(_aux, ("aux",), (_SIZED, 0, 0)),
}
"""What follows the fixed fields, in ABI order."""


_WORD = {  # fields that go straight to a column
    SAMPLE.IDENTIFIER: "id",
    SAMPLE.IP: "ip",
    SAMPLE.ADDR: "addr",
    SAMPLE.ID: "id",
    SAMPLE.STREAM_ID: "stream_id",
    SAMPLE.PERIOD: "period",
}

_FIXED = (  # what comes first, in ABI order; then `VARIABLE`
    SAMPLE.IDENTIFIER, SAMPLE.IP, SAMPLE.TID, SAMPLE.TIME, SAMPLE.ADDR, SAMPLE.ID, SAMPLE.STREAM_ID, SAMPLE.CPU,
    SAMPLE.PERIOD,
)  # fmt: skip


class Checked(NamedTuple):
    """The result of `SampleLayout.check`: numbers of the undamaged samples."""

    damaged: int
    first_damaged: int
    """Index of the first damaged one, -1 for none."""
    entries: int
    """Branch entries."""
    deepest: int
    """Entries of the deepest stack."""
    earliest: int
    latest: int
    """Times; without samples the earliest is later than any, the latest earlier."""
    threads: NDArray[np.uint64]
    """Words of pid and tid; each at least once."""


_EVER = np.iinfo(np.int64)
_ENTRIES_IN_PLACE = frozenset((*ENTRY, IN_PLACE))


class _Stacks(NamedTuple):
    """Columns for each sample of a block; for a damaged sample, only ``first`` is defined."""

    first: NDArray[np.int64]
    """The first word of its branch stack; -1 where it is damaged."""
    depth: NDArray[np.int64]
    """How many branches there are."""
    heads: NDArray[np.uint64]
    """A row for the header, and one for each fixed word."""

    def entries(
        self, block: Block, whole: NDArray[np.bool_] | slice
    ) -> tuple[dict[str, NDArray[np.int64]], EntriesInPlace]:
        """The parts of a batch of these samples besides its columns."""
        return {BRANCH: offsets_of(self.depth[whole])}, EntriesInPlace(block.words, self.first[whole])


class SampleLayout:
    """The sample record of one set of attributes with equal layout keys."""

    def __init__(self, attr: Attr) -> None:
        self.form = attr.fields
        present = [bit for bit in _FIXED if attr.sample_type & bit]
        self.fixed = {bit: 1 + i for i, bit in enumerate(present)}
        """Word offset of each fixed field from the record's start."""
        self.unknown = attr.sample_type & ~sum(set(_FIXED) | set(VARIABLE))
        """Bits of later kernels: their values follow the known ones and are not read."""
        self.stacked = bool(attr.sample_type & SAMPLE.BRANCH_STACK)
        self._variable = [field for bit, field in VARIABLE.items() if attr.sample_type & bit]
        self._steps = np.array([field.step(self.form) for field in self._variable], np.int32).reshape(-1, 3)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a batch of this layout can have."""
        names = [c.name for c in REQUIRED] + ["position"]
        names += [_WORD[bit] for bit in self.fixed if bit in _WORD]
        for field in self._variable:
            names += field.columns(self.form)
        return tuple(dict.fromkeys(names))

    def times(self, block: Block, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Time of each sample; its place in the file where samples have no time."""
        offset = self.fixed.get(SAMPLE.TIME)
        return block.base + at * 8 if offset is None else block.words.take(at + offset, mode="clip").view(np.int64)

    def check(self, block: Block, at: NDArray[np.int64]) -> Checked:
        """Whether the fields of the samples at word positions ``at`` fit their records, and what is in those."""
        library = native.library()
        return (self._check_compiled(library, block, at) if library is not None else None) or self._check(block, at)

    def _check_compiled(
        self,
        library: CDLL,
        block: Block,
        at: NDArray[np.int64],
        stacks: _Stacks | None = None,
    ) -> Checked | None:
        """The result of `_check`, but with some threads more than once; ``None`` where the library declines. ``stacks``
        receives the places of the branch stacks, and the words before them."""
        words, at = np.ascontiguousarray(block.words), np.ascontiguousarray(at)
        places = map(native.address, stacks) if stacks else (None,) * len(_Stacks._fields)
        found, threads = np.empty(7, np.int64), np.empty(len(at), np.uint64)
        time, thread = (self.fixed.get(bit, 0) for bit in (SAMPLE.TIME, SAMPLE.TID))
        declined = library.lb_samples_check(
            native.address(words),
            len(words),
            block.big_endian,
            native.address(at),
            len(at),
            len(self.fixed),
            native.address(self._steps),
            len(self._steps),
            time,
            thread,
            native.address(found),
            native.address(threads),
            *places,
        )
        if declined:
            return None
        damaged, first, entries, deepest, earliest, latest, listed = found.tolist()
        if not time and damaged < len(at):
            earliest, latest = earliest + block.base, latest + block.base
        return Checked(damaged, first, entries, deepest, earliest, latest, threads[:listed])

    def _check(self, block: Block, at: NDArray[np.int64]) -> Checked:
        cursor = self._walk(block, at, frozenset())
        kept = at[~cursor.bad]
        depth = cursor.lengths.get(BRANCH, np.zeros(len(at), np.int64))[~cursor.bad]
        time, thread = self.times(block, kept), self.fixed.get(SAMPLE.TID)
        return Checked(
            len(at) - len(kept),
            int(cursor.bad.argmax()) if cursor.bad.any() else -1,
            int(depth.sum()),
            int(depth.max(initial=0)),
            int(time.min(initial=_EVER.max)),
            int(time.max(initial=_EVER.min)),
            np.empty(0, np.uint64) if thread is None else distinct(block.words.take(kept + thread)),
        )

    def decode(
        self, block: Block, at: NDArray[np.int64], event: NDArray[np.int32], wanted: frozenset[str] | None
    ) -> SampleBatch:
        """The samples at word positions ``at`` as a batch, without damaged ones."""
        if wanted == _ENTRIES_IN_PLACE and (in_place := self._decode_in_place(block, at, event)) is not None:
            return in_place
        cursor = self._walk(block, at, wanted)
        batch = SampleBatch(self._fixed_columns(block, at, event, wanted) | cursor.columns, cursor.offsets)
        return batch.select(~cursor.bad) if cursor.bad.any() else batch

    def _decode_in_place(self, block: Block, at: NDArray[np.int64], event: NDArray[np.int32]) -> SampleBatch | None:
        """`decode` of the branch entries, which stay where they are; ``None`` where they have to be converted."""
        found = self._stacks_in_place(block, at)
        if found is None:
            return None
        _, whole, stacks = found
        columns = self._fixed_columns(block, at[whole], event[whole], _ENTRIES_IN_PLACE)
        return SampleBatch(columns, *stacks.entries(block, whole))

    def check_stacks(
        self, block: Block, at: NDArray[np.int64], event: NDArray[np.int32]
    ) -> tuple[Checked, SampleBatch]:
        """`check`, and the samples that are not damaged as a `StackWatcher` gets them."""
        found = self._stacks_in_place(block, at)
        if found is None:
            return self.check(block, at), self.decode(block, at, event, _ENTRIES_IN_PLACE)
        checked, whole, stacks = found
        ip, ids, time = (self.fixed.get(bit) for bit in (SAMPLE.IP, SAMPLE.TID, SAMPLE.TIME))
        heads, at = stacks.heads[:, whole], at[whole]
        none = np.zeros(len(at), np.int64)
        columns: dict[str, Array] = {
            "time": block.base + at * 8 if time is None else heads[time].view(np.int64),
            "ip": none.view(np.uint64) if ip is None else heads[ip],
            "pid": none.astype(np.int32) - 1 if ids is None else heads[ids].astype(np.int32),  # little-endian
            "event": event[whole],
            "mode": (heads[0] >> np.uint64(32)).astype(np.uint8) & np.uint8(MISC.CPUMODE_MASK),
        }
        return checked, SampleBatch(columns, *stacks.entries(block, whole))

    def _stacks_in_place(
        self, block: Block, at: NDArray[np.int64]
    ) -> tuple[Checked, NDArray[np.bool_] | slice, _Stacks] | None:
        """(`check`, which samples are not damaged, where the stacks of all are)."""
        library = native.library()
        if library is None or block.big_endian or not self.stacked:
            return None
        n = len(at)
        stacks = _Stacks(np.empty(n, np.int64), np.empty(n, np.int64), np.empty((1 + len(self.fixed), n), np.uint64))
        checked = self._check_compiled(library, block, at, stacks)
        if checked is None:
            return None
        return checked, stacks.first >= 0 if checked.damaged else slice(None), stacks

    def _walk(self, block: Block, at: NDArray[np.int64], wanted: frozenset[str] | None) -> Cursor:
        cursor = Cursor(block, at, self.form, len(self.fixed), wanted)
        for field in self._variable:
            field.read(cursor)
        return cursor

    def _fixed_columns(
        self, block: Block, at: NDArray[np.int64], event: NDArray[np.int32], wanted: frozenset[str] | None
    ) -> dict[str, Array]:
        n = len(at)

        def word(bit: int) -> NDArray[np.uint64] | None:
            offset = self.fixed.get(bit)
            return None if offset is None else block.words.take(at + offset, mode="clip")

        ip, ids = word(SAMPLE.IP), word(SAMPLE.TID)
        cpu, period = word(SAMPLE.CPU), word(SAMPLE.PERIOD)
        unknown = np.full(n, -1, np.int32)
        pid, tid = (unknown, unknown) if ids is None else block.halves(ids)
        columns: dict[str, Array] = {
            "time": self.times(block, at),
            "ip": np.zeros(n, np.uint64) if ip is None else ip,
            "pid": pid,
            "tid": tid,
            "cpu": unknown if cpu is None else block.halves(cpu)[0],
            "event": event,
            "period": np.zeros(n, np.uint64) if period is None else period,
            "mode": (block.misc(at) & MISC.CPUMODE_MASK).astype(np.uint8),
        }
        if wanted is None or "position" in wanted:
            columns["position"] = block.base + at * 8
        for bit in self.fixed:
            name = _WORD.get(bit, "")
            if name and name not in columns and (wanted is None or name in wanted):
                columns[name] = block.words.take(at + self.fixed[bit], mode="clip")
        return columns
