"""The data path of one session, in its daemon: buffers to the writers, from them to the sinks, and what was lost.

`Logger.poll` moves whole buffers and never looks at single events in Python. The caller waits for the `doorbell`, which
writers ring when they have used up half of what they have, or for as long as `poll` said.

Accounting: every event that a writer offered is delivered or in EventsLost, also those of buffers that could not be
written (their number is in the commit word) or whose content is no chain of events.

Where a backlog for readers is full and there is no file, nothing is moved: what was accepted stays in the pool, and
writers that have used up their buffers are told why (`pool.FULL`), until a reader has made room.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...flags import LogFileMode
from ...properties import SessionRequest, SessionState
from ...status import EtwError
from ..clock import Clock
from ..pool import ANY_PROCESSOR
from ..protocol import pack
from ..provider.targets import admitted
from ..request import flush_seconds, real_flush_timer
from .log_file import Disk
from .sinks import FileSink, HeaderEvents
from .writers import Writers, geometry_for

if TYPE_CHECKING:
    from .delivery import Delivery

__all__ = ["Logger"]


PAUSE = 0.02
"""Seconds between polls while writers are busy."""
SLOW_READER = 0.005
"""Seconds between polls while a reader in real time is behind."""
_MOST = (1 << 32) - 1  # of EventsLost
_FILE_MODES = (
    LogFileMode.FILE_MODE_SEQUENTIAL | LogFileMode.FILE_MODE_CIRCULAR | LogFileMode.FILE_MODE_APPEND
    | LogFileMode.FILE_MODE_NEWFILE | LogFileMode.FILE_MODE_PREALLOCATE
)  # fmt: skip


class Logger:
    """The session that ``request`` (adjusted, the file absolute) asks for; ``handle`` is its logger id.

    Raises `EtwError`: 5, 112, 161, 183 for the log file, 87 for a file or clock that cannot be, 8 for memory.
    ``clock``, ``disk`` and ``monotonic`` (seconds, for the flush timer) are for tests.
    """

    def __init__(
        self, request: SessionRequest, handle: int, *, header_events: HeaderEvents = lambda time: (),
        clock: Clock | None = None, disk: Disk | None = None, monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.request, self.handle = request, handle
        self._clock = clock or Clock.of(request.clock)
        self._disk, self._monotonic = disk or Disk(), monotonic
        self._begun = self._clock.now(), self._clock.filetime()
        self._header_events = header_events
        self._processors = os.cpu_count() or 1
        file = FileSink(request, self._disk) if request.file and not self._in_memory else None
        try:
            geometry = geometry_for(request, handle, self._clock.kind)
            self._writers = Writers(geometry, self._most, self._processors, self._in_memory)
        except BaseException:
            if file is not None:
                file.abandon()
            raise
        self.doorbell = self._writers.doorbell
        """Readable when `poll` is to be called."""
        self._file = file
        self._delivery: Delivery | None = None
        self._quiet = 0
        self._flushed = monotonic()

    @property
    def _in_memory(self) -> bool:
        return bool(self.request.mode & LogFileMode.BUFFERING_MODE)

    @property
    def _most(self) -> int:
        return self.request.minimum_buffers if self._in_memory else self.request.maximum_buffers

    # -- writers

    @property
    def attached(self) -> int:
        """How many writers there are."""
        return len(self._writers.slots)

    def attach(self, pid: int, processor: int = ANY_PROCESSOR) -> tuple[int, bytes, list[int]]:
        """A slot for a writer of process ``pid``: its number, the answer to it, and the descriptors that go with that.

        The descriptors stay the logger's. ``processor`` is the processor index that it wants; it gets another if a
        writer has that. Raises `EtwError` 1450 if there are too many writers, 5 if the session takes no events of that
        process.
        """
        admitted(self.request, pid)
        attached, descriptors = self._writers.attach(pid, processor)
        return attached.slot, pack(attached), descriptors

    def detach(self, number: int) -> None:
        """The writer of slot ``number`` has gone, or died: what it committed is taken, its buffers are free again."""
        try:
            self._move([number], unfinished=True)
        finally:
            self._writers.detach(number)

    # -- moving buffers

    def poll(self) -> float | None:
        """Take finished buffers to the sinks, and give the writers others.

        Returns how many seconds later it is to be called again at the latest; ``None``: not until the doorbell rings.
        """
        self._writers.answer_bells()
        delivery = self._deliverer()
        behind = delivery.send()
        if self._backlog_full():
            return SLOW_READER if behind else None
        due = flush_seconds(self.request)
        if due is not None and self._monotonic() - self._flushed >= due:
            moved = self._flush()
        else:
            moved = self._move(unfinished=delivery.merges)
        self._quiet = 0 if moved else self._quiet + 1
        enough = self._backlog_full() or self._writers.share(busy=moved > 0)
        waits = []
        if self.attached and (self._quiet < 2 or not enough):
            waits.append(PAUSE)
        if due is not None and self.attached:
            waits.append(max(0.0, self._flushed + due - self._monotonic()))
        if delivery.send():
            waits.append(SLOW_READER)
        return min(waits, default=None)

    def _deliverer(self) -> Delivery:
        """Made when first needed: it takes NumPy and the formats, which the start of a session is not to wait for."""
        if self._delivery is None:
            from .delivery import Delivery

            self._delivery = Delivery(
                self.request, self.handle, self._clock, self._writers.geometry, self._file, self._processors,
                self._begun, self._header_events,
            )  # fmt: skip
        return self._delivery

    def _backlog_full(self) -> bool:
        """Whether nothing is to be moved until a reader has taken some of it. The writers are told."""
        full = self._deliverer().full
        self._writers.set_full(full)
        return full

    def _move(self, only: Iterable[int] | None = None, *, unfinished: bool) -> int:
        """Take what is committed, of the slots ``only`` or of all, to where it goes; how many buffers were finished."""
        pieces = self._writers.take(only, unfinished)
        try:
            if pieces and not self._in_memory:
                self._deliverer().deliver(pieces)
        finally:
            moved = self._writers.done(pieces)
        return moved

    def _flush(self) -> int:
        before = self._clock.now()
        self._flushed = self._monotonic()
        moved = self._move(unfinished=True)
        self._deliverer().flush(before)
        return moved

    # -- control

    def flush(self, path: str = "") -> None:
        """Bring everything that is committed to the sinks, if they take it; in buffering mode write it to ``path``, or
        the session's file, and keep it. `EtwError` as for log files."""
        if not self._in_memory:
            self._deliverer().send()
            if not self._backlog_full():
                self._flush()
                self._deliverer().send()
            return
        self._move(unfinished=False)
        pieces = self._writers.in_memory()
        self._deliverer().snapshot(self.request, path or self.request.file, pieces, self._lost)

    def update(self, request: SessionRequest) -> None:
        """Go over to ``request``: flush timer, MaximumBuffers, log file, real time or not. `EtwError` for the file."""
        delivery, before = self._deliverer(), self.request
        if request.file != before.file and not self._in_memory:
            file = FileSink(request, self._disk, "ControlTrace") if request.file else None
            self._flush()
            delivery.change_file(file, request, self._lost)
        if request.mode & ~before.mode & LogFileMode.REAL_TIME_MODE:
            self._flush()
            delivery.go_live(request)
        elif before.mode & ~request.mode & LogFileMode.REAL_TIME_MODE:
            self._flush()
            delivery.end_live()
        self.request = replace(request, flush_timer=real_flush_timer(request.flush_timer, request.mode))
        self._writers.maximum = self._most

    def increment_file(self) -> None:
        """Begin the next file of a series. `EtwError` 87 if there is none."""
        self._flush()
        self._deliverer().next_file()

    def convert_to_realtime(self) -> None:
        """Complete the file, and go on for readers alone."""
        mode = self.request.mode & ~_FILE_MODES | LogFileMode.REAL_TIME_MODE
        self.update(replace(self.request, file="", mode=mode))

    def add_reader(self, stream: socket.socket) -> None:
        """Send the session's buffers to ``stream``, which belongs to the logger from now on."""
        self._deliverer().add_reader(stream)

    @property
    def _lost(self) -> tuple[int, int]:
        """EventsLost, and LogBuffersLost: those that could not be written, and those of writers that broke."""
        delivery, writers = self._delivery, self._writers
        events = writers.lost + (delivery.events_lost if delivery else 0)  # first: a lie may come to light here
        return min(events, _MOST), writers.buffers_lost + (delivery.log_buffers_lost if delivery else 0)

    def state(self) -> SessionState:
        """The session with its statistics, also after the stop."""
        busy, delivery = self._writers.busy, self._delivery
        events_lost, buffers_lost = self._lost
        buffers = max(self.request.minimum_buffers, self._writers.peak, busy)
        return SessionState(
            self.request, self.handle, number_of_buffers=buffers, free_buffers=buffers - busy,
            events_lost=events_lost, buffers_written=delivery.buffers_written if delivery else 0,
            log_buffers_lost=buffers_lost,
            real_time_buffers_lost=delivery.live_buffers_lost if delivery else 0,
            logger_thread=threading.get_native_id(),
        )  # fmt: skip

    # -- the end

    def stop(self) -> None:
        """Take what is left of every writer, and complete the file. In buffering mode the file is written now."""
        delivery = self._deliverer()
        if self._in_memory and self.request.file:
            with contextlib.suppress(OSError, EtwError):
                self.flush()
        self._flush()
        for number in list(self._writers.slots):
            self.detach(number)
        delivery.flush(self._clock.now())
        delivery.end_live()
        delivery.close_file(self._lost)
        self._close()

    def discard(self) -> None:
        """End without a file: the session does not start after all."""
        if self._file is not None:
            self._file.abandon()
        self._close()

    def _close(self) -> None:
        self._writers.close()
