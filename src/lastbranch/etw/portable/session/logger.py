"""The data path of one session in its daemon: buffers to the writers, buffers to the sinks, and losses.

`Logger.poll` moves whole buffers and never looks at single events in Python. The caller waits for the `doorbell`, which
writers ring when they have used up half of their buffers, or for as long as `poll` returned.

Accounting: every event that a writer offers is delivered or counted in EventsLost. The count includes events of buffers
that could not be written (the commit word has their number) or that contain no valid chain of events.

While the backlog for readers is full and there is no file, nothing is moved. Accepted events stay in the pool until a
reader has made room, and writers that have used up their buffers see why (`pool.FULL`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ....closing import on_failure
from ...flags import LogFileMode
from ...properties import SessionRequest, SessionState
from ...status import EtwError
from ..clock import Clock
from ..pool import ANY_PROCESSOR, geometry_for
from ..protocol import pack
from ..provider.targets import check_admission
from ..request import flush_seconds, real_flush_timer
from .flight_recorder import Changed, FlightRecorder
from .log_file import Disk
from .sinks import FileSink, HeaderEvents
from .writers import Slot, Writers

if TYPE_CHECKING:
    from .delivery import Delivery

__all__ = ["Logger"]


PAUSE = 0.02
"""Seconds between polls while writers are busy."""
SLOW_READER = 0.005
"""Seconds between polls while a real-time reader lags."""
_MOST = (1 << 32) - 1  # of EventsLost
_FILE_MODES = (
    LogFileMode.FILE_MODE_SEQUENTIAL
    | LogFileMode.FILE_MODE_CIRCULAR
    | LogFileMode.FILE_MODE_APPEND
    | LogFileMode.FILE_MODE_NEWFILE
    | LogFileMode.FILE_MODE_PREALLOCATE
)


class Logger:
    """The session of ``request`` (adjusted, with an absolute file name); ``handle`` is its logger id.

    Raises `EtwError` 5, 112, 161, 183 for the log file, 87 for an impossible file or clock, 8 for memory. ``clock``,
    ``disk`` and ``monotonic`` (seconds, for the flush timer) are for tests.
    """

    def __init__(
        self,
        request: SessionRequest,
        handle: int,
        *,
        header_events: HeaderEvents = lambda time: (),
        clock: Clock | None = None,
        disk: Disk | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request, self.handle = request, handle
        self._clock = clock or Clock.of(request.clock)
        self._disk, self._monotonic = disk or Disk(), monotonic
        self.begun = self._clock.now(), self._clock.filetime()
        """Ticks and FILETIME at the start."""
        self._header_events = header_events
        self._processors = os.cpu_count() or 1
        file = FileSink(request, self._disk) if request.file and not self._in_memory else None
        with on_failure(file.abandon) if file else nullcontext():
            geometry = geometry_for(request, handle, self._clock.kind)
            self._recorder = FlightRecorder(geometry, self._processors) if self._in_memory else None
            self._writers = self._recorder or Writers(geometry, request.maximum_buffers, self._processors, Slot)
        self.doorbell = self._writers.doorbell
        """A descriptor that is readable when `poll` has work."""
        self._file = file
        self._delivery: Delivery | None = None
        self._quiet = 0
        self._flushed = monotonic()

    @property
    def _in_memory(self) -> bool:
        return bool(self.request.mode & LogFileMode.BUFFERING_MODE)

    # -- writers

    def tell_changes(self, changed: Changed) -> None:
        """In buffering mode, call ``changed`` when writers come and go."""
        if self._recorder is not None:
            self._recorder.changed = changed

    @property
    def attached(self) -> int:
        """Number of writers."""
        return len(self._writers.slots)

    def attach(self, pid: int, processor: int = ANY_PROCESSOR) -> tuple[int, bytes, list[int]]:
        """A slot for a writer of process ``pid``: its number, the answer, and the descriptors to send with that.

        The logger keeps the descriptors. ``processor`` is the desired processor index; if another writer has it, the
        slot gets another. Raises `EtwError` 1450 for too many writers, 5 if the session excludes that process.
        """
        check_admission(self.request, pid)
        attached, descriptors = self._writers.attach(pid, processor)
        return attached.slot, pack(attached), descriptors

    def detach(self, number: int) -> None:
        """The writer of slot ``number`` has gone. Take what it committed, and free its buffers."""
        try:
            self._move([number], unfinished=True)
        finally:
            self._writers.detach(number)

    # -- moving buffers

    def poll(self) -> float | None:
        """Move finished buffers to the sinks, and give the writers new ones.

        Returns the seconds until the next call at the latest; ``None``: when the doorbell rings.
        """
        self._writers.answer_bells()
        delivery = self._deliverer()
        waiting = delivery.send()
        if self._backlog_full():
            return SLOW_READER if waiting else None
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
        """Created when first needed, so that the start of a session does not wait for NumPy and the formats."""
        if self._delivery is None:
            from .delivery import Delivery

            self._delivery = Delivery(
                self.request,
                self.handle,
                self._clock,
                self._writers.geometry,
                self._file,
                self._processors,
                self.begun,
                self._header_events,
            )
        return self._delivery

    def _backlog_full(self) -> bool:
        """Whether nothing can be moved until a reader has made room. Informs the writers."""
        full = self._deliverer().full
        self._writers.set_full(full)
        return full

    def _move(self, only: Iterable[int] | None = None, *, unfinished: bool) -> int:
        """Deliver what the slots ``only``, or all, have committed. Returns how many buffers were finished."""
        pieces = self._writers.take(only, unfinished)
        try:
            if pieces:
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
        """Deliver everything that is committed, if the sinks take it. In buffering mode write the pool to ``path`` or
        the session's file, and keep the pool. Raises `EtwError` as for log files."""
        if self._recorder is None:
            self._deliverer().send()
            if not self._backlog_full():
                self._flush()
                self._deliverer().send()
            return
        pieces = self._recorder.in_memory()
        self._deliverer().snapshot(self.request, path or self.request.file, pieces, self._losses)

    def update(self, request: SessionRequest) -> None:
        """Adopt the flush timer, MaximumBuffers, log file and real-time mode of ``request``.

        Raises `EtwError` if the new log file cannot be opened.
        """
        delivery, before = self._deliverer(), self.request
        if request.file != before.file and not self._in_memory:
            file = FileSink(request, self._disk, "ControlTrace") if request.file else None
            self._flush()
            delivery.change_file(file, request, self._losses)
        if request.mode & ~before.mode & LogFileMode.REAL_TIME_MODE:
            self._flush()
            delivery.go_live(request)
        elif before.mode & ~request.mode & LogFileMode.REAL_TIME_MODE:
            self._flush()
            delivery.end_live()
        self.request = replace(request, flush_timer=real_flush_timer(request.flush_timer, request.mode))
        if self._recorder is None:
            self._writers.maximum = self.request.maximum_buffers

    def increment_file(self) -> None:
        """Begin the next file of a series. Raises `EtwError` 87 if the session writes no series."""
        self._flush()
        self._deliverer().next_file()

    def convert_to_realtime(self) -> None:
        """Complete the file, and continue for readers only."""
        mode = self.request.mode & ~_FILE_MODES | LogFileMode.REAL_TIME_MODE
        self.update(replace(self.request, file="", mode=mode))

    def add_reader(self, stream: socket.socket) -> None:
        """Send the session's buffers to ``stream``, which the logger owns from now on."""
        self._deliverer().add_reader(stream)

    @property
    def _losses(self) -> tuple[int, int]:
        """EventsLost and LogBuffersLost: of buffers that could not be written, and of broken writers."""
        delivery, writers = self._delivery, self._writers
        events = writers.lost + (delivery.events_lost if delivery else 0)  # first: this may find a writer broken
        return min(events, _MOST), writers.buffers_lost + (delivery.log_buffers_lost if delivery else 0)

    def state(self) -> SessionState:
        """The session and its statistics, after the stop too."""
        busy, delivery = self._writers.busy, self._delivery
        events_lost, buffers_lost = self._losses
        buffers = max(self.request.minimum_buffers, self._writers.peak, busy)
        return SessionState(
            self.request,
            self.handle,
            number_of_buffers=buffers,
            free_buffers=buffers - busy,
            events_lost=events_lost,
            buffers_written=delivery.buffers_written if delivery else 0,
            log_buffers_lost=buffers_lost,
            real_time_buffers_lost=delivery.live_buffers_lost if delivery else 0,
            logger_thread=threading.get_native_id(),
        )

    # -- the end

    def stop(self) -> None:
        """Take what is left from every writer, and complete the file. In buffering mode write the file now."""
        delivery = self._deliverer()
        if self._in_memory and self.request.file:
            with suppress(OSError, EtwError):
                self.flush()
        self._flush()
        for number in list(self._writers.slots):
            self.detach(number)
        delivery.flush(self._clock.now())
        delivery.end_live()
        delivery.close_file(self._losses)
        self._close()

    def discard(self) -> None:
        """End without a file: the start has failed."""
        if self._file is not None:
            self._file.abandon()
        self._close()

    def _close(self) -> None:
        self._writers.close()
