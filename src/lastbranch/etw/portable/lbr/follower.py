"""Writes a recording of the software LBR to a session's buffers as it grows.

The collector runs in a process of its own, so that nothing else can fall into a burst. Here a thread reads its output
from a pipe and converts it to events.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from ....capture import Summary
from ....model import Profile
from ..sources.process import Output
from .conversion import FINISHED_ROUND, Conversion

__all__ = ["PATIENCE", "RecordingFollower"]


_ROUND = 0.1
"""Seconds between two rounds."""
PATIENCE = 1.0
"""Seconds that an event waits for a free buffer; the pipe holds what comes meanwhile."""
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_MARK = struct.Struct("=IHHq")


class Rounds:
    """Marks the rounds in ``file``, in the collector's process. The follower is the ``progress`` callback of a
    recording, which runs just after the kernel's rings were emptied; it also calls the caller's ``progress``."""

    def __init__(self, file: IO[bytes], reads: int, progress: Callable[[Summary], None]) -> None:
        self._file, self._reads, self._progress = file, reads, progress
        self._next = 0.0

    def __call__(self, summary: Summary) -> None:
        if self._reads >= 0:  # else a reader that is gone would go unnoticed
            os.close(self._reads)
            self._reads = -1
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _ROUND
            self._file.write(_MARK.pack(FINISHED_ROUND, 0, _MARK.size, time.monotonic_ns()))
            self._file.flush()
        self._progress(summary)


class RecordingFollower:
    """Follows a recording: the collector gets `file`, and `rounds` as its progress callback; call `start` when it runs.

    ``begun`` is set when the collector is attached, or has ended. ``converted`` is called in the thread whenever
    records were converted.
    """

    def __init__(self, conversion: Conversion, output: Output, converted: Callable[[], None] = lambda: None) -> None:
        self._conversion, self._output, self._converted = conversion, output, converted
        self.reads, writes = os.pipe()
        with suppress(OSError):  # a user's pipes are limited
            fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.file: IO[bytes] = os.fdopen(writes, "wb", buffering=_READ_BYTES)
        self.begun = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="lbr")

    def rounds(self, progress: Callable[[Summary], None]) -> Rounds:
        return Rounds(self.file, self.reads, progress)

    def start(self, collector: int = 0) -> None:
        """Begin to read: the collector has its own copy of the file now."""
        self.file.close()
        self._thread.start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        lost = 0
        while data := os.read(self.reads, _READ_BYTES):
            if self.failure is not None:
                continue  # the collector must not wait for us
            try:
                self._output.put(self._conversion.feed(data))
                self._converted()
                self._output.lost(self._conversion.lost - lost)
                lost = self._conversion.lost
            except Exception as error:  # raised by `finish`
                self.failure = error
            if self._conversion.begun:
                self.begun.set()
        os.close(self.reads)
        self.begun.set()

    def finish(self, describe: Callable[[Profile], None] = lambda profile: None) -> None:
        """Wait for the collector's end, and write the rest. Raises the failure that stopped the writing."""
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self._output.put(self._conversion.finish(time.monotonic_ns(), describe))
        self._converted()
