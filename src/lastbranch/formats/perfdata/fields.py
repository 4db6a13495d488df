"""The fields of a sample that have no fixed position: how each is read, and which columns it makes.

They stand in the order of the kernel ABI (comment of PERF_RECORD_SAMPLE in include/uapi/linux/perf_event.h). A reader
gets the `Cursor` at its field and moves it on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...lbr import PERF_SELECT, repack_big_endian
from ...model import BRANCH, FRAME
from .cursor import Cursor
from .layout import READ, SAMPLE

__all__ = ["VARIABLE", "Field", "Form"]

Form = dict[str, int]
"""Fields of perf_event_attr."""


class Field:
    """A field of variable position: how to read it, and which columns it makes."""

    def __init__(self, read: Callable[[Cursor], None], columns: Callable[[Form], list[str]] | tuple[str, ...]) -> None:
        self.read = read
        self._columns = columns

    def columns(self, form: Form) -> list[str]:
        return self._columns(form) if callable(self._columns) else list(self._columns)


def _one_word(name: str) -> Field:
    def read(w: Cursor) -> None:
        if w.wants(name):
            w.columns[name] = w.word()
        w.skip(1)

    return Field(read, (name,))


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
    bits = {"time_enabled": READ.TOTAL_TIME_ENABLED, "time_running": READ.TOTAL_TIME_RUNNING,
            "read_id": READ.ID, "read_lost": READ.LOST}  # fmt: skip
    return ["read_value", *(name for name, bit in bits.items() if parts & bit)]


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
    w.ragged(BRANCH, length, ("branch_from", "branch_to", "branch_flags"), 3)
    if w.block.big_endian and "branch_flags" in w.columns:
        w.columns["branch_flags"] = repack_big_endian(w.columns["branch_flags"])
    w.skip(length * 3)
    if counters:
        w.ragged(BRANCH, length, ("branch_counters",))
        w.skip(length)


def _registers(which: str) -> Field:
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

    return Field(read, (abi_name, column))


def _sized_bytes(w: Cursor, group: str, behind: int) -> NDArray[np.int64]:
    """u64 size and so many bytes, padded to words, as ragged column ``group``, with ``behind`` words after."""
    size = w.word()
    room = np.maximum(w.end - w.cursor - 1 - behind, 0).astype(np.uint64) * np.uint64(8)
    w.bad |= (size > room) | (w.cursor >= w.end)
    length = np.where(w.bad, 0, size.astype(np.int64))
    start = (w.cursor + 1) * 8
    w.skip(1 + ((length + 7) >> 3))
    if w.wants(group):
        w.take_bytes(group, start, length)
    return length


def _stack_user(w: Cursor) -> None:
    """u64 size, then (size != 0) size bytes and u64 dyn_size: how much of them was copied."""
    length = _sized_bytes(w, "user_stack", behind=1)
    if w.wants("user_stack_size"):
        w.columns["user_stack_size"] = np.where(length > 0, w.word(), np.uint64(0))
    w.skip((length > 0).astype(np.int64))


def _aux(w: Cursor) -> None:
    _sized_bytes(w, "aux", behind=0)


def _branch_columns(form: Form) -> list[str]:
    names = ["branch_from", "branch_to", "branch_flags"]
    names += ["hw_idx"] if form["branch_sample_type"] & PERF_SELECT["HW_INDEX"] else []
    return names + (["branch_counters"] if form["branch_sample_type"] & PERF_SELECT["COUNTERS"] else [])


VARIABLE: dict[int, Field] = {
    SAMPLE.READ: Field(_read_values, _read_columns),
    SAMPLE.CALLCHAIN: Field(_callchain, ("frame",)),
    SAMPLE.RAW: Field(_raw, ("raw",)),
    SAMPLE.BRANCH_STACK: Field(_branch_stack, _branch_columns),
    SAMPLE.REGS_USER: _registers("user"),
    SAMPLE.STACK_USER: Field(_stack_user, ("user_stack", "user_stack_size")),
    SAMPLE.WEIGHT: _one_word("weight"),
    SAMPLE.WEIGHT_STRUCT: _one_word("weight"),
    SAMPLE.DATA_SRC: _one_word("data_src"),
    SAMPLE.TRANSACTION: _one_word("transaction"),
    SAMPLE.REGS_INTR: _registers("intr"),
    SAMPLE.PHYS_ADDR: _one_word("phys_addr"),
    SAMPLE.CGROUP: _one_word("cgroup"),
    SAMPLE.DATA_PAGE_SIZE: _one_word("data_page_size"),
    SAMPLE.CODE_PAGE_SIZE: _one_word("code_page_size"),
    SAMPLE.AUX: Field(_aux, ("aux",)),
}
"""What follows the fixed fields, in ABI order."""
