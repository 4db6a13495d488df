"""An .etl file as rows for `dump`: every event with named fields, and the process and thread that it is about.

Kernel events that are logged in interrupts have no ids in their headers, and another process or thread logs the events
about a process or thread. As in Microsoft's reader, the ids are then those of the payload, and the process is that of
the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import native
from ...arrays import distinct
from ...model import Array, Progress, Source
from ..dump import Cells, Dump, Form, Wanted, milliseconds
from .container.header import LogHeader
from .decode import AS_IT_SAYS, Batch, Decoder, Reading, batches_of, describes
from .events.columns import EventBlock, events_of
from .kernel.hooks import IMAGE, PROCESS, SYS_CONFIG, THREAD, THREAD_LIFE, Key, kernel_key, kernel_names
from .payload.payload_columns import Blobs, FieldColumn, Lists, Numbers, Objects, Texts
from .payload.types import Hex

__all__ = ["dump_etl", "dump_live"]


# -- Columns as texts: equal to `Form.value` of each value, without making most of the values


class _Memo(dict[Any, str]):
    """Texts by their values: a column often has few different ones."""

    def __init__(self, make: Callable[[Any], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> str:
        made = self[key] = self._make(key)
        return made


def shown(column: FieldColumn, form: Form) -> list[str]:
    """The text of each value."""
    if isinstance(column, Texts):
        return list(map(form.string, column.tolist()))
    if isinstance(column, Lists):
        found = _hex_lists(column, form)
        if found is not None:
            return list(map(form.limited, found))
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


_DIGITS = 20
"""Characters of the longest hexadecimal number, quoted."""


def _hex_lists(column: Lists, form: Form) -> list[str] | None:
    """The text of lists of addresses by the compiled library; ``None`` without it, and for other lists."""
    library = native.library()
    if library is None or column.wrap is not Hex or column.values.dtype.kind != "u":
        return None
    values, offsets = np.ascontiguousarray(column.values, np.uint64), np.ascontiguousarray(column.offsets)
    out = np.empty(2 * len(column) + len(values) * (_DIGITS + len(form.between)), np.uint8)
    ends, address = np.zeros(len(column) + 1, np.int64), native.address
    marks = bool(form.quote), form.between.encode(), len(form.between)
    into = address(out), len(out), address(ends[1:])
    length = library.lb_format_hex_lists(address(values), len(values), address(offsets), len(column), *marks, *into)
    if length < 0:
        return None
    text = out[:length].tobytes().decode("ascii")
    return [text[begin:end] for begin, end in pairwise(ends.tolist())]


def _numbers(values: list[Any], wrap: Callable[[Any], Any] | None, form: Form) -> list[str]:
    if wrap is None:
        return list(map(str, values))
    if wrap is Hex:
        texts, quote = map(hex, values), form.quote
        return [f"{quote}{text}{quote}" for text in texts] if quote else list(texts)
    memo = _Memo(lambda value: form.value(wrap(value)))
    return [memo[value] for value in values]


_PID, _TID = "ProcessID", ("ThreadID", "IssuingThreadID", "NewThreadID")

_KEEP = object()
_SUBJECT: dict[Key, tuple[str, object]] = {  # the fields with the process and the thread
    **dict.fromkeys([(PROCESS, type_) for type_ in (1, 2, 3, 4, 11, 32, 33, 39)], (_PID, None)),
    **dict.fromkeys([(IMAGE, type_) for type_ in (2, 3, 4)], (_PID, None)),
    **dict.fromkeys([(PROCESS, 10), (IMAGE, 10)], (_PID, _KEEP)),  # an image is loaded by a thread of the process
    **dict.fromkeys([(THREAD, type_) for type_ in (1, 2, 3, 4, 72)], (_PID, "ThreadID")),
    (SYS_CONFIG, 15): (_PID, _KEEP),  # a service and the process it runs in
}
"""Events about a process or thread, which is not the one that logged them."""


def dump_etl(source: Source, wanted: Wanted, progress: Progress | None = None, reading: Reading = AS_IT_SAYS) -> Dump:
    """The wanted events of ``source`` in time order.

    Raises `FormatError` for a file that cannot be read at all. Makes two passes, because manifest events may come
    before their descriptions. Memory is bounded by one buffer for each processor and a block of events.
    """
    log, decoder = reading.log(source), reading.decoder()

    def cells(form: Form) -> Iterator[Cells]:
        rows = _EventRows(log.header, decoder, wanted, form)
        for block in log.blocks():
            rows.learn(block)
        return rows.cells(log.ordered_blocks(select=_selector(wanted), progress=progress))

    return Dump(source.name, log.clock, cells, lambda: log.damage, decoder.notes)


def dump_live(
    name: str, header: LogHeader, blocks: Iterable[EventBlock], wanted: Wanted, reading: Reading = AS_IT_SAYS
) -> Dump:
    """The wanted events of ``blocks`` as they come, of a session whose log file header would be ``header``.

    Only earlier events describe events and threads.
    """
    select, decoder = _selector(wanted), reading.decoder()

    def cells(form: Form) -> Iterator[Cells]:
        rows = _EventRows(header, decoder, wanted, form)

        def learning_blocks() -> Iterator[EventBlock]:
            for block in blocks:
                rows.learn(block)
                yield block.take(np.flatnonzero(select(block)))

        return rows.cells(learning_blocks())

    return Dump(name, header.clock, cells, notes=decoder.notes)


class _EventRows:
    """Turns blocks of events, in time order, into the cells of the wanted ones."""

    def __init__(self, header: LogHeader, decoder: Decoder, wanted: Wanted, form: Form) -> None:
        self._header, self._decoder, self._wanted, self._form = header, decoder, wanted, form
        self._owner: dict[int, int] = {0: 0}
        """Process by thread, at the time of the block."""

    def learn(self, block: EventBlock) -> None:
        """Take in the events that describe others, or the life of a thread."""
        for event in events_of(block.take(np.flatnonzero(describes(block)))):
            self._decoder.learn(event)
        lives = block.take(np.flatnonzero(np.isin(block.hook, THREAD_LIFE)))
        owner = np.empty((2, len(lives)), np.int64)
        for batch in batches_of(lives, self._decoder):
            owner[:, batch.rows] = _ids(batch, "ThreadID"), _ids(batch, _PID)
        for thread, process in owner.T.tolist():
            self._owner.setdefault(thread, process)

    def cells(self, blocks: Iterable[EventBlock]) -> Iterator[Cells]:
        clock = self._header.clock
        first, last = self._wanted.ticks(clock)
        text = milliseconds(clock)
        for block in blocks:
            if not len(block):
                continue
            time = block.time - self._header.timestamp
            keep = np.full(len(block), first is None or bool(time[-1] >= first))
            # Times of a damaged buffer may jump back, so each is compared.
            if first is not None:
                keep &= time >= first
            if last is not None:
                keep &= time < last
            rows, names, cells, pid, tid = self._decode(block, keep)
            if len(rows):
                columns = (
                    map(text, time[rows].tolist()),
                    *(map(str, c.tolist()) for c in (pid, tid, block.cpu[rows])),
                    names,
                    map(str, block.payload_size[rows].tolist()),
                    cells,
                )
                yield from zip(*columns, strict=True)
            if last is not None and time[-1] >= last:
                return

    def _decode(self, block: EventBlock, keep: NDArray[np.bool_]) -> tuple[Array, list[str], list[str], Array, Array]:
        """Rows, names, fields, pid and tid of the wanted events among ``keep``."""
        wanted, form = self._wanted, self._form
        batches = list(batches_of(block, self._decoder))
        pid, tid = block.pid.astype(np.int64), block.tid.astype(np.int64)
        asked, lives = [], []
        for batch in batches:
            unknown = _subjects(batch, pid, tid)
            if unknown is not None:
                asked.append(unknown)
            if batch.first.hook in THREAD_LIFE:
                lives.append(batch.rows)
            named = wanted.named(*_names(batch.known.provider_name, batch.known.event_name))
            if not named or wanted.provider not in (None, batch.first.provider):
                keep[batch.rows] = False
        self._follow(asked, lives, pid, tid)
        if wanted.pids:
            keep &= np.isin(pid, list(wanted.pids))
        names, cells = np.full((2, len(block)), "", object)
        for batch in batches:
            mine = keep[batch.rows]
            if not mine.any():
                continue
            rows, columns = batch.rows, batch.columns
            if not mine.all():
                rows, columns = rows[mine], {name: column.take(mine) for name, column in columns.items()}
            template = form.template(columns)
            texts = [shown(column, form) for column in columns.values()]
            names[rows] = form.string(batch.known.name)
            cells[rows] = list(map(template.__mod__, zip(*texts, strict=True))) if texts else template
        kept = np.flatnonzero(keep)
        return kept, names[kept].tolist(), cells[kept].tolist(), pid[kept], tid[kept]

    def _follow(self, asked: list[Array], lives: list[Array], pid: Array, tid: Array) -> None:
        """Take in the threads of rows ``lives``, and give rows ``asked`` the processes that hold at their places."""
        rows = np.concatenate([np.empty(0, np.int64), *asked, *lives])
        is_life = np.repeat([False, True], [sum(map(len, asked)), sum(map(len, lives))])
        order = np.argsort(rows)
        rows, owner = rows[order], self._owner
        found = []
        for life, process, thread in zip(is_life[order].tolist(), pid[rows].tolist(), tid[rows].tolist(), strict=True):
            if life:
                owner[thread] = process
            found.append(process if life else owner.get(thread, -1))
        pid[rows] = found


def _names(provider: str, event: str) -> tuple[str, ...]:
    """The names that select an event: its full name, the name without the provider, its task, its provider."""
    return f"{provider}/{event}", event, event.partition("/")[0], provider


def _subjects(batch: Batch, pid: Array, tid: Array) -> Array | None:
    """Store in ``pid`` and ``tid`` what the events of ``batch`` are about, -1 where their fields do not say it.

    Returns the rows whose process is that of their thread.
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
    """int64 values of the field ``name``, -1 where it is missing or no number."""
    column = batch.columns.get(name)
    if isinstance(column, Numbers):
        values = column.values.astype(np.int64)
    elif isinstance(column, Objects):
        values = np.array([v if isinstance(v, int) else -1 for v in column.values], np.uint64).astype(np.int64)
    else:  # a batch of samples has one for each
        return np.full(len(batch), -1, np.int64)
    return np.where(values < 1 << 31, values, values - (1 << 32))


def _selector(wanted: Wanted) -> Callable[[EventBlock], Array]:
    """Selects events that may be wanted, before they are decoded. Only decoding yields the names of user events."""
    named = np.zeros(1 << 16, bool)
    asked = np.zeros(1 << 16, bool)
    named[list(THREAD_LIFE)] = asked[list(THREAD_LIFE)] = True

    def select(block: EventBlock) -> Array:
        keep = np.ones(len(block), bool)
        if wanted.events:
            for hook in distinct(block.hook[block.is_kernel]).tolist():
                if not asked[hook]:
                    asked[hook] = True
                    named[hook] = wanted.named(*_names(*kernel_names((hook >> 8, hook & 0xFF))))
            keep &= named[np.where(block.is_kernel, block.hook, 0)] | ~block.is_kernel
        if wanted.provider is not None:
            guid = np.frombuffer(wanted.provider, np.uint64)
            keep &= (block.provider == guid).all(axis=1) | np.isin(block.hook, THREAD_LIFE)
        return keep

    return select
