"""One recording in several files, each whole and readable by itself.

The collector decides when to go on in a new file. It begins the new file with the state of all processes, and hands the
file to its parent, which stores the previous file. So each file is stored, whatever happens to the collector.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from ..errors import LastbranchError
from ..formats.perfdata.record_file import RecordFile
from ..model import PartFile
from .options import Summary, SwitchOutput
from .overflow import Overflow, Say

__all__ = ["Parts", "Switcher"]


_MESSAGE = 1 << 20


def _stamp() -> str:
    """The local time to hundredths of a second, as in the names of perf's files."""
    now = time.time()
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now)) + f"{int(now * 100) % 100:02}"


class Switcher:
    """The collector's side: knows when a file is full."""

    def __init__(self, wanted: SwitchOutput, output: str, connection: socket.socket, say: Say) -> None:
        self._wanted, self._output, self.connection, self._say = wanted, output, connection, say
        self._since = time.monotonic()

    def due(self, size: int) -> bool:
        """Whether to go on in a new file, after ``size`` bytes of records in this one."""
        if self._wanted.size:
            return size >= self._wanted.size
        return size > 0 and time.monotonic() - self._since >= self._wanted.seconds

    def next_file(self, summary: Summary) -> RecordFile:
        """A new file; that before is complete, and ``summary`` is that of the recording until now. Raises `OSError`."""
        overflow = Overflow.of_new_file(self._output)
        part = overflow.spill
        said = {"path": part.path, "rest": overflow.rest, "stamp": _stamp(), "summary": asdict(summary)}
        message = json.dumps(said).encode()
        socket.send_fds(self.connection, [message], [part.file.fileno()])
        self._since = time.monotonic()
        return overflow.writer(overflow.tells(self._say, watched=False))


class Parts:
    """The parent's side: stores files by ``save`` (file, name, summary of it) while the recording goes on.

    Use as a context around the recording; `finish` at its end.
    """

    def __init__(
        self,
        wanted: SwitchOutput,
        output: str,
        first: Overflow,
        save: Callable[[PartFile, str, Summary], None],
        say: Say,
    ) -> None:
        self._wanted, self._output, self._current, self._save = wanted, output, first, save
        self._say = say
        self._before: Summary | None = None
        self._stamp = 0
        """The time stamp in the newest name."""
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._theirs = theirs
        self.switcher = Switcher(wanted, output, theirs, say)
        self.names: list[str] = []
        """The names of the files that were stored and still exist."""
        self.failed: LastbranchError | None = None
        self._thread = threading.Thread(target=self._store_all)

    def start(self) -> None:
        """Begin to store, once the collector has been forked."""
        self._theirs.close()
        self._thread.start()

    def finish(self, summary: Summary, *, least: int = 0) -> None:
        """Store the last file, of a recording with ``summary``, unless no file was stored before and the last has at
        most ``least`` bytes. Raises what went wrong with the first that failed."""
        self._thread.join()
        self._ours.close()
        if self._current.size > (0 if self.names else least):
            self._store(_stamp(), summary)
        if self.failed is not None:
            raise self.failed

    def _store_all(self) -> None:
        while True:
            message, files, _, _ = socket.recv_fds(self._ours, _MESSAGE, 1)
            if not message:
                return
            said = json.loads(message)
            self._store(said["stamp"], Summary(**said["summary"]))
            self._current = Overflow(PartFile.adopted(self._output, said["path"], files[0]), said["rest"])

    def _store(self, stamp: str, summary: Summary) -> None:
        root, ending = os.path.splitext(self._output)
        self._stamp = max(int(stamp), self._stamp + 1)  # names ascend, also where two files have one time
        while os.path.exists(name := f"{root}.{self._stamp}{ending}"):
            self._stamp += 1
        ran_on = self._before is not None and summary.seconds >= self._before.seconds  # else the collector was killed
        part = summary.since(self._before) if self._before is not None and ran_on else summary
        self._before = summary
        try:
            with self._current.whole(name) as whole:
                self._save(whole, name, part)
        except LastbranchError as error:
            if self.failed is None:
                self.failed = error
            else:  # it may be somewhere else than the first
                self._say(f"{error}; {error.hint}")
            return
        finally:
            self._current.spill.discard()
        self.names.append(name)
        while self._wanted.keep and len(self.names) > self._wanted.keep:
            with suppress(OSError):
                os.unlink(self.names.pop(0))
