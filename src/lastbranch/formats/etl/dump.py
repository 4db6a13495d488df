"""An .etl file as rows for `dump`: every event with named fields, and the process and thread that it is about.

Kernel events that log from interrupts have no ids in their headers, and events about a process or thread are logged by
another one. As Microsoft's reader does, the ids are then those of the payload, and the process is that of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...model import Array, Clock, Progress, Source
from ..dump import Cells, Dump, Form, Wanted, milliseconds
from .container.header import LogHeader
from .decode import AS_IT_SAYS, Batch, Decoder, Reading, batches_of, describes
from .event import Event
from .events.columns import EventBlock, events_of
from .events.reader import TraceLog
from .kernel.hooks import IMAGE, PROCESS, SYS_CONFIG, THREAD, THREAD_LIFE, Key, kernel_key, kernel_names
from .payload.columns import Blobs, Column, Lists, Numbers, Objects, Texts
from .payload.types import Hex

__all__ = ["dump_etl", "dump_live", "teaches"]


# -- Columns as texts for `dump`: what `Form.value` makes of each value, without making most of the values


class _Memo(dict[Any, str]):
    """Texts by what they are made of: the values of one column are often few."""

    def __init__(self, make: Callable[[Any], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> str:
        made = self[key] = self._make(key)
        return made


def shown(column: Column, form: Form) -> list[str]:
    """The text of each value."""
    if isinstance(column, Texts):
        return list(map(form.string, column.tolist()))
    if isinstance(column, Lists):
        texts, bounds = _numbers(column.values.tolist(), column.wrap, form), column.offsets.tolist()
        join = form.between.join
        return [form.limited(f"[{join(texts[begin:end])}]") for begin, end in pairwise(bounds)]
    if isinstance(column, Numbers):
        return _numbers(column.values.tolist(), column.wrap, form)
    if isinstance(column, Blobs):
        type_, size, pointer = column.type, column.values.dtype.itemsize, column.pointer
        memo = _Memo(lambda raw: form.value(type_.decode(raw, 0, size, pointer)[0]))
        raw = column.values.tobytes()
        return [memo[raw[at : at + size]] for at in range(0, len(raw), size)]
    return list(map(form.value, column.tolist()))


def _numbers(values: list[Any], wrap: Callable[[Any], Any] | None, form: Form) -> list[str]:
    if wrap is None:
        return list(map(str, values))
    if wrap is Hex:
        return list(map(form.quoted, map(hex, values)))
    memo = _Memo(lambda value: form.value(wrap(value)))
    return [memo[value] for value in values]


_PID, _TID = "ProcessID", ("ThreadID", "IssuingThreadID", "NewThreadID")

_KEEP = object()
_SUBJECT: dict[Key, tuple[str, object]] = {  # what gives the process, and the thread
    **dict.fromkeys([(PROCESS, type_) for type_ in (1, 2, 3, 4, 11, 32, 33, 39)], (_PID, None)),
    **dict.fromkeys([(IMAGE, type_) for type_ in (2, 3, 4)], (_PID, None)),
    **dict.fromkeys([(PROCESS, 10), (IMAGE, 10)], (_PID, _KEEP)),  # an image is loaded by a thread of the process
    **dict.fromkeys([(THREAD, type_) for type_ in (1, 2, 3, 4, 72)], (_PID, "ThreadID")),
    (SYS_CONFIG, 15): (_PID, _KEEP),  # a service and the process it runs in
}
"""Events about a process or thread, which is not the one that logged them."""


def dump_etl(source: Source, wanted: Wanted, progress: Progress | None = None, reading: Reading = AS_IT_SAYS) -> Dump:
    """The wanted events of ``source`` in time order.

    Raises `FormatError` where nothing can be read of it. Two passes: descriptions of manifest events may stand behind
    the events. Memory is bounded by one buffer for each processor and a block of events.
    """
    log, decoder = reading.log(source), reading.decoder()
    return Dump(
        source.name, log.clock, lambda form: _file_cells(log, wanted, form, progress, decoder), lambda: log.damage,
        decoder.notes,
    )  # fmt: skip


def dump_live(
    name: str, header: LogHeader, blocks: Iterable[EventBlock], wanted: Wanted, reading: Reading = AS_IT_SAYS
) -> Dump:
    """The wanted events of ``blocks`` as they come, a session's whose log file header would be ``header``.

    Events and threads are described by what came before them.
    """
    select, decoder, processes = _selector(wanted), reading.decoder(), _Processes()

    def taught() -> Iterator[EventBlock]:
        for block in blocks:
            _learn(events_of(block.take(np.flatnonzero(teaches(block)))), decoder, processes)
            yield block.take(np.flatnonzero(select(block)))

    clock = header.clock
    return Dump(
        name, clock, lambda form: _cells(taught(), clock, header.timestamp, decoder, processes, wanted, form),
        notes=decoder.notes,
    )  # fmt: skip


def _file_cells(
    log: TraceLog, wanted: Wanted, form: Form, progress: Progress | None, decoder: Decoder
) -> Iterator[Cells]:
    processes = _Processes()
    _learn(log.events(select=teaches), decoder, processes)
    blocks = log.ordered_blocks(select=_selector(wanted), progress=progress)
    return _cells(blocks, log.clock, log.header.timestamp, decoder, processes, wanted, form)


def _learn(events: Iterable[Event], decoder: Decoder, processes: _Processes) -> None:
    for event in events:
        decoder.learn(event)
        if event.hook in THREAD_LIFE:
            fields = decoder.decode(event).fields
            processes.owner.setdefault(fields.get("ThreadID", -1), fields.get(_PID, -1))


def _cells(
    blocks: Iterable[EventBlock], clock: Clock, zero: int, decoder: Decoder, processes: _Processes, wanted: Wanted,
    form: Form,
) -> Iterator[Cells]:  # fmt: skip
    first, last = wanted.ticks(clock)
    text = milliseconds(clock)
    for block in blocks:
        if not len(block):
            continue
        time = block.time - zero
        if first is not None and time[-1] < first:
            time, keep = time[:0], np.zeros(len(block), bool)
        else:
            # Times of a damaged buffer may jump back, so the ends are not the extremes.
            keep = (time >= (time.min() if first is None else first)) & (
                time <= (time.max() if last is None else last - 1)
            )
        rows, names, cells, pid, tid = _decoded(block, decoder, processes, wanted, form, keep)
        if len(rows):
            columns = (map(text, time[rows].tolist()), *(map(str, c.tolist()) for c in (pid, tid, block.cpu[rows])),
                       names, map(str, block.payload_size[rows].tolist()), cells)  # fmt: skip
            yield from zip(*columns, strict=True)
        if last is not None and len(time) and time[-1] >= last:
            return


def _decoded(
    block: EventBlock, decoder: Decoder, processes: _Processes, wanted: Wanted, form: Form, keep: NDArray[np.bool_]
) -> tuple[Array, list[str], list[str], Array, Array]:
    """Of the wanted events among ``keep``: rows, names, fields, pid, tid."""
    names: list[Any] = [""] * len(block)
    batches = list(batches_of(block, decoder))
    pid, tid = block.pid.astype(np.int64), block.tid.astype(np.int64)
    asked, lives = [], []
    for batch in batches:
        unknown = _subjects(batch, pid, tid)
        if unknown is not None:
            asked.append(unknown)
        if batch.first.hook in THREAD_LIFE:
            lives.append(batch.rows)
        if not wanted.named(*_names(batch.provider_name, batch.event_name)) or (
            wanted.provider not in (None, batch.first.provider)
        ):
            keep[batch.rows] = False
    processes.follow(asked, lives, pid, tid)
    if wanted.pids:
        keep &= np.isin(pid, list(wanted.pids))
    cells: list[Any] = [""] * len(block)
    for batch in batches:
        mine = keep[batch.rows]
        if not mine.any():
            continue
        rows, columns = batch.rows, batch.columns
        if not mine.all():
            rows, columns = rows[mine], {name: column.take(mine) for name, column in columns.items()}
        template, name = form.template(columns), form.string(batch.name)
        texts = [shown(column, form) for column in columns.values()]
        lines = map(template.__mod__, zip(*texts, strict=True)) if texts else [template] * len(rows)
        for row, line in zip(rows.tolist(), lines, strict=True):
            cells[row] = line
            names[row] = name
    kept = np.flatnonzero(keep)
    if len(kept) < len(block):
        names, cells = [names[i] for i in kept.tolist()], [cells[i] for i in kept.tolist()]
    return kept, names, cells, pid[kept], tid[kept]


def _names(provider: str, event: str) -> tuple[str, ...]:
    """What an event can be asked for by: its full name, that without the provider, its task, its provider."""
    return f"{provider}/{event}", event, event.partition("/")[0], provider


def _subjects(batch: Batch, pid: Array, tid: Array) -> Array | None:
    """Put what the events of ``batch`` are about into ``pid`` and ``tid``, -1 where they do not tell.

    Gives the rows whose process is that of their thread.
    """
    key, rows = kernel_key(batch.first), batch.rows
    if key is None:
        return None
    about = _SUBJECT.get(key)
    if about is not None:
        process, thread = about
        pid[rows] = _ids(batch, process)
        if thread is not _KEEP:
            tid[rows] = _ids(batch, str(thread)) if thread else -1
        return None
    silent = (pid[rows] == -1) & (tid[rows] == -1)
    if not silent.any():
        return None
    rows = rows[silent]
    pid[rows] = _ids(batch, _PID)[silent]
    name = next((name for name in _TID if name in batch.columns), "")
    tid[rows] = _ids(batch, name)[silent]
    return np.asarray(rows[pid[rows] == -1])


def _ids(batch: Batch, name: str) -> Array:
    """int64 values of the field ``name``, -1 where there is none or it is no number."""
    column = batch.columns.get(name)
    if isinstance(column, Numbers):
        values = column.values.astype(np.int64)
    elif isinstance(column, Objects):
        values = np.array([v if isinstance(v, int) else -1 for v in column.values], np.uint64).astype(np.int64)
    else:  # a batch of samples has one for each
        return np.full(len(batch), -1, np.int64)
    return np.where(values < 1 << 31, values, values - (1 << 32))


class _Processes:
    """Which process each thread belongs to, as time goes on."""

    def __init__(self) -> None:
        self.owner: dict[int, int] = {0: 0}

    def follow(self, asked: list[Array], lives: list[Array], pid: Array, tid: Array) -> None:
        """Take in the threads of rows ``lives``, and give rows ``asked`` the processes that hold at their places."""
        rows = np.concatenate([np.empty(0, np.int64), *asked, *lives])
        is_life = np.repeat([False, True], [sum(map(len, asked)), sum(map(len, lives))])
        order = np.argsort(rows)
        rows, owner = rows[order], self.owner
        found = []
        for life, process, thread in zip(is_life[order].tolist(), pid[rows].tolist(), tid[rows].tolist(), strict=True):
            if life:
                owner[thread] = process
            found.append(process if life else owner.get(thread, -1))
        pid[rows] = found


def teaches(block: EventBlock) -> Array:
    """Rows that say what other events mean, and which process a thread belongs to."""
    return describes(block) | np.isin(block.hook, THREAD_LIFE)


def _selector(wanted: Wanted) -> Callable[[EventBlock], Array]:
    """Leave out early what cannot be wanted. Names of user events are only known after decoding."""
    named = np.zeros(1 << 16, bool)
    asked = np.zeros(1 << 16, bool)
    named[list(THREAD_LIFE)] = asked[list(THREAD_LIFE)] = True

    def select(block: EventBlock) -> Array:
        keep = np.ones(len(block), bool)
        if wanted.events:
            for hook in np.unique(block.hook[block.is_kernel]).tolist():
                if not asked[hook]:
                    asked[hook] = True
                    named[hook] = wanted.named(*_names(*kernel_names((hook >> 8, hook & 0xFF))))
            keep &= named[np.where(block.is_kernel, block.hook, 0)] | ~block.is_kernel
        if wanted.provider is not None:
            guid = np.frombuffer(wanted.provider, np.uint64)
            keep &= (block.provider == guid).all(axis=1) | np.isin(block.hook, THREAD_LIFE)
        return keep

    return select
