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

from ....capture.options import Summary
from ....model import Profile
from ..sources.process import Output
from .conversion import FINISHED_ROUND, Conversion

__all__ = ["Follower", "PATIENCE"]


_ROUND = 0.1
"""Seconds between two rounds."""
PATIENCE = 1.0
"""Seconds that an event waits for a free buffer: the pipe holds what comes meanwhile."""
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_MARK = struct.Struct("=IHHq")


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
