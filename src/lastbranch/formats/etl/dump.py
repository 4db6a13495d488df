"""An .etl file as rows for `dump`: every event with named fields, and the process and thread that it is about.

Kernel events that log from interrupts have no ids in their headers, and events about a process or thread are logged by
another one. As Microsoft's reader does, the ids are then those of the payload, and the process is that of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import numpy as np

from ...model import Array, Source
from ..rows import Dump, Row, Wanted
from .columns import EventBlock
from .decode import Decoded, Decoder
from .event import Event
from .events import TraceLog
from .kernel_config import SYS_CONFIG
from .kernel_process import IMAGE, PROCESS, THREAD
from .kernel_session import META_DATA
from .manifest_xml import MANIFEST_ID
from .providers import Key, kernel_key, kernel_names

__all__ = ["dump_etl"]

_LIFE_OF_THREADS = tuple(THREAD << 8 | type_ for type_ in (1, 2, 3, 4))
_PID, _TID = "ProcessID", ("ThreadID", "IssuingThreadID", "NewThreadID")
_IDLE = {0: 0}

_KEEP = object()
_SUBJECT: dict[Key, tuple[str, object]] = {  # what gives the process, and the thread
    **dict.fromkeys([(PROCESS, type_) for type_ in (1, 2, 3, 4, 11, 32, 33, 39)], (_PID, None)),
    **dict.fromkeys([(IMAGE, type_) for type_ in (2, 3, 4)], (_PID, None)),
    **dict.fromkeys([(PROCESS, 10), (IMAGE, 10)], (_PID, _KEEP)),  # an image is loaded by a thread of the process
    **dict.fromkeys([(THREAD, type_) for type_ in (1, 2, 3, 4, 72)], (_PID, "ThreadID")),
    (SYS_CONFIG, 15): (_PID, _KEEP),  # a service and the process it runs in
}
"""Events about a process or thread, which is not the one that logged them."""

_META_DATA = np.frombuffer(UUID(META_DATA).bytes_le, np.uint64)


def dump_etl(source: Source, wanted: Wanted) -> Dump:
    """The wanted events of ``source`` in time order.

    Raises `FormatError` where nothing can be read of it. Two passes: descriptions of manifest events may stand behind
    the events. Memory is bounded by one buffer for each processor.
    """
    log = TraceLog(source)
    return Dump(source.name, log.clock, _rows(log, wanted), lambda: log.damage)


def _rows(log: TraceLog, wanted: Wanted) -> Iterator[Row]:
    decoder, processes = Decoder(), dict(_IDLE)
    for event in log.events(select=_teaches):
        decoder.learn(event)
        if event.hook in _LIFE_OF_THREADS:
            fields = decoder.decode(event).fields
            processes.setdefault(fields.get("ThreadID", -1), fields.get(_PID, -1))
    zero = log.header.timestamp
    first, last = wanted.ticks(log.clock)
    for event in log.events(ordered=True, select=_selector(wanted)):
        time = event.time - zero
        if last is not None and time >= last:
            return
        decoded = decoder.decode(event)
        if event.hook in _LIFE_OF_THREADS:
            processes[decoded.fields.get("ThreadID", -1)] = decoded.fields.get(_PID, -1)
        if first is not None and time < first:
            continue
        if not _names_match(wanted, decoded) or wanted.provider not in (None, event.provider):
            continue
        pid, tid = _subject(event, decoded.fields, processes)
        if wanted.pids and pid not in wanted.pids:
            continue
        fields = decoded.fields | {"Counters": list(event.counters)} if event.counters else decoded.fields
        yield Row(time, pid, tid, event.cpu, decoded.name, len(event.payload), fields)


def _names_match(wanted: Wanted, decoded: Decoded) -> bool:
    return wanted.named(*_names(decoded.provider_name, decoded.event_name))


def _names(provider: str, event: str) -> tuple[str, ...]:
    """What an event can be asked for by: its full name, that without the provider, its task, its provider."""
    return f"{provider}/{event}", event, event.partition("/")[0], provider


def _subject(event: Event, fields: dict[str, Any], processes: dict[int, int]) -> tuple[int, int]:
    """(pid, tid) of what the event is about, -1 where that is not known."""
    key = kernel_key(event)
    if key is None:
        return event.pid, event.tid
    about = _SUBJECT.get(key)
    if about is not None:
        process, thread = about
        tid = event.tid if thread is _KEEP else _id(fields, str(thread)) if thread else -1
        return _id(fields, process), tid
    if event.pid != -1 or event.tid != -1:
        return event.pid, event.tid
    pid, tid = _id(fields, _PID), next((_id(fields, name) for name in _TID if name in fields), -1)
    return (processes.get(tid, -1) if pid == -1 else pid), tid


def _id(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, -1)
    if not isinstance(value, int):  # a batch of samples has one for each
        return -1
    return int(value) if value < 1 << 31 else int(value) - (1 << 32)


def _teaches(block: EventBlock) -> Array:
    """Rows that say what other events mean, and which process a thread belongs to."""
    meta = (block.provider == _META_DATA).all(axis=1)
    lives = np.isin(block.hook, _LIFE_OF_THREADS)
    return np.asarray((~block.is_kernel & ((block.id == MANIFEST_ID) | meta)) | lives)


def _selector(wanted: Wanted) -> Callable[[EventBlock], Array]:
    """Leave out early what cannot be wanted. Names of user events are only known after decoding."""
    named = np.zeros(1 << 16, bool)
    asked = np.zeros(1 << 16, bool)
    named[list(_LIFE_OF_THREADS)] = asked[list(_LIFE_OF_THREADS)] = True

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
            keep &= (block.provider == guid).all(axis=1) | np.isin(block.hook, _LIFE_OF_THREADS)
        return keep

    return select
