"""What the collector of the software LBR writes, into a session's buffers as it comes.

The collector has a process of its own, with nothing in it that could fall into a burst; here a thread takes what it
writes from a pipe and makes events of it.
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

import numpy as np

from ....capture.options import Summary
from ....model import Profile
from ..provider.writer import Writer, connect_writer
from ..sources.events import Events
from .events import FINISHED_ROUND, Conversion

__all__ = ["Follower", "Output"]


_ROUND = 0.1
"""Seconds between two rounds."""
_PATIENCE = 1.0
"""Seconds that an event waits for a free buffer: the pipe holds what comes meanwhile."""
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_MARK = struct.Struct("=IHHq")


class Output:
    """A writer of the session for each processor, with its index if that is free. ``path``: the daemon's socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._of: dict[int, Writer] = {}

    def _writer(self, cpu: int) -> Writer:
        if cpu not in self._of:
            self._of[cpu] = connect_writer(self._path, cpu)
            self._of[cpu].patience = _PATIENCE
        return self._of[cpu]

    def put(self, events: Events) -> None:
        """Write ``events``, which are in the order of their processors."""
        ends = np.cumsum(events.size)
        data = memoryview(events.words.tobytes())
        for cpu in np.unique(events.cpu).tolist():
            first, past = np.searchsorted(events.cpu, [cpu, cpu + 1]).tolist()
            begin = int(ends[first - 1]) if first else 0
            sizes = (events.size[first:past] * 8).astype(np.uint32)
            self._writer(cpu).write_many(data[begin * 8 : int(ends[past - 1]) * 8], sizes)

    def lost(self, number: int) -> None:
        """Count events that could not be had."""
        if number:
            self._writer(0).count_lost(number)

    def close(self) -> None:
        for writer in self._of.values():
            writer.close()


class Rounds:
    """In the collector's process: marks the rounds in ``file``. It is the ``progress`` of a recording, which is called
    when the kernel's rings have just been emptied; ``told`` is called then, too."""

    def __init__(self, file: IO[bytes], reads: int, told: Callable[[Summary], None]) -> None:
        self._file, self._reads, self._told = file, reads, told
        self._next = 0.0

    def __call__(self, summary: Summary) -> None:
        if self._reads >= 0:  # so that we notice when the reader is gone
            os.close(self._reads)
            self._reads = -1
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _ROUND
            self._file.write(_MARK.pack(FINISHED_ROUND, 0, _MARK.size, time.monotonic_ns()))
            self._file.flush()
        self._told(summary)


class Follower:
    """Follows a collector: give it `file`, with `rounds` as its progress, and call `start` when it runs.

    ``begun`` is set when it is attached to everything, or has ended.
    """

    def __init__(self, conversion: Conversion, output: Output) -> None:
        self._conversion, self._output = conversion, output
        self.reads, writes = os.pipe()
        with suppress(OSError):  # what a user may have is limited
            fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.file: IO[bytes] = os.fdopen(writes, "wb", buffering=_READ_BYTES)
        self.begun = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="lbr")

    def rounds(self, told: Callable[[Summary], None]) -> Rounds:
        return Rounds(self.file, self.reads, told)

    def start(self, collector: int = 0) -> None:
        """The collector has its own copy of the file now."""
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
                self._output.lost(self._conversion.lost - lost)
                lost = self._conversion.lost
            except Exception as error:  # told by `finish`
                self.failure = error
            if self._conversion.begun:
                self.begun.set()
        os.close(self.reads)
        self.begun.set()

    def finish(self, describe: Callable[[Profile], None] = lambda profile: None) -> None:
        """Wait for the collector's end, and write the rest. Raises what has kept events from being written."""
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self._output.put(self._conversion.finish(time.monotonic_ns(), describe))
