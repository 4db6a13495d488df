"""What a window leaves to the next: the events that may have triggered a record which is still to come.

Of each processor the newest few count. The samples among them are held back, for their records to join them; of the
others the hook is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...arrays import Ints
from ...model import BRANCH, SampleBatch, column, concatenate
from .columns import EventBlock
from .records import CAN_TRIGGER, Records, buffer_spans

__all__ = ["REACH", "Carry", "Newest", "newest_events", "rows_of"]

REACH = 16
"""So many events of its processor before the end of a window a trigger is still found for a record of the next."""


@dataclass(slots=True)
class Newest:
    """The newest events of a processor in a block: the ``rows`` of those that may be triggers, oldest first.

    ``count``: events that the processor has there, of all kinds. ``behind``: how many of them stand behind each row.
    """

    rows: list[int]
    behind: list[int]
    count: int


def newest_events(block: EventBlock) -> dict[int, Newest]:
    """Of each processor that has events in ``block``."""
    found: dict[int, tuple[list[int], int]] = {}
    for buffer, first, past in zip(*(part.tolist() for part in buffer_spans(block)), strict=True):
        cpu = int(block.window.buffers.cpu[buffer])
        rows, count = found.get(cpu, ([], 0))
        found[cpu] = [*rows, *range(max(first, past - REACH), past)][-REACH:], count + past - first
    newest = {}
    for cpu, (rows, count) in found.items():
        may = [(row, len(rows) - 1 - i) for i, row in enumerate(rows) if CAN_TRIGGER[block.kernel_hook[row]]]
        newest[cpu] = Newest([row for row, _ in may], [behind for _, behind in may], count)
    return newest


@dataclass(slots=True)
class _Trigger:
    """An event of the past. ``number``: its place among the events of its processor. ``row``: it, if it is held."""

    number: int
    time: int
    hook: int
    row: SampleBatch | None


class Carry:
    """Triggers from one window to the next."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}
        self._triggers: dict[int, list[_Trigger]] = {}

    def _find(self, cpu: int, time: int) -> _Trigger | None:
        """The newest of the processor with that time."""
        return next((t for t in reversed(self._triggers.get(cpu, ())) if t.time == time), None)

    def complete(self, block: EventBlock, records: Records) -> NDArray[np.bool_]:
        """Look here for the triggers of those ``records`` that have none in their block. Their hooks are set in place;
        the result: whether `join` is to give them to samples."""
        late = np.zeros(len(records), bool)
        if (records.hook >= 0).all():
            return late
        time = block.time[records.row]
        known = [t.time for triggers in self._triggers.values() for t in triggers]
        for i in np.flatnonzero((records.hook < 0) & np.isin(time, known)).tolist():
            trigger = self._find(int(block.cpu[records.row[i]]), int(time[i]))
            if trigger is not None:
                records.hook[i], late[i] = trigger.hook, trigger.row is not None
        return late

    def join(self, records: SampleBatch) -> None:
        """Give the entries of ``records``, for which `complete` said so, to their samples."""
        for i, (cpu, time) in enumerate(zip(records.cpu.tolist(), records.time.tolist(), strict=True)):
            trigger = self._find(cpu, time)
            if trigger is not None and trigger.row is not None:
                both = concatenate([trigger.row, records.slice(i, i + 1)])
                row = trigger.row = both.slice(0, 1)
                row.columns |= {name: both[name] for name in both.columns if column(name).group == BRANCH}
                row.offsets[BRANCH] = both.offsets[BRANCH][[0, 2]]

    def follow(self, block: EventBlock, newest: dict[int, Newest], held: dict[int, SampleBatch]) -> list[SampleBatch]:
        """Take in a window with its ``newest`` events and, by row of the block, those that are ``held``. Gives the rows
        that are done."""
        done = []
        for cpu, now in newest.items():
            count = self._count[cpu] = self._count.get(cpu, 0) + now.count
            triggers = self._triggers.get(cpu, [])
            for row, behind in zip(now.rows, now.behind, strict=True):
                number = count - 1 - behind
                triggers.append(_Trigger(number, int(block.time[row]), int(block.kernel_hook[row]), held.get(row)))
            done += [t.row for t in triggers if t.number < count - REACH and t.row is not None]
            self._triggers[cpu] = [t for t in triggers if t.number >= count - REACH]
        return done

    def rest(self) -> Iterator[SampleBatch]:
        """What is still held, when there are no more windows."""
        for triggers in self._triggers.values():
            yield from (t.row for t in triggers if t.row is not None)
        self._triggers.clear()


def rows_of(newest: dict[int, Newest]) -> Ints:
    """All rows of ``newest``, ascending."""
    return np.array(sorted(row for now in newest.values() for row in now.rows), np.int64)
