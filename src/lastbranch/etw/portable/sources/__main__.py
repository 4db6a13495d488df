"""The source process of a session: ``python -m lastbranch.etw.portable.sources SOCKET``, started by its daemon.

It gets its configuration, records, and says READY or FAILED; it ends when it is told to or the daemon hangs up.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from ....capture.perf_events.host import read_host
from ....capture.perf_events.kernel import Kernel
from ....errors import FormatError
from ...status import EtwError, Status
from ..protocol import Connection, Kind, Message, pack, unpack
from ..provider.writer import Writer, connect_writer
from .configuration import SourceConfiguration
from .events import Ints
from .recorder import Recorder

_SHORTEST, _LONGEST = 0.002, 0.1
"""Seconds between two rounds."""
_MANY = 4000
"""Events of a round, after which the next one comes sooner: an eighth of what a ring holds."""
_URGENT = -10
"""Nice value: rings overflow where their reader has to wait for those whom it records."""


_LISTING, _RUNNING = 5.0, 0.5
"""Seconds that writers wait for a free buffer: nothing is missed while lists are written, and between rounds the rings
take what comes."""


class _Writers:
    """A writer for each processor, with its index if it is free; all from the begin, as a session that is being stopped
    takes no more."""

    def __init__(self, path: str, cpus: Iterable[int]) -> None:
        self._of: dict[int, Writer] = {}
        try:
            for cpu in cpus:
                self._of[cpu] = connect_writer(path, cpu)
        except BaseException:
            self.close()
            raise

    def wait_for_room(self, seconds: float) -> None:
        """How long each writer waits for a free buffer."""
        for writer in self._of.values():
            writer.patience = seconds

    def put(self, cpu: int, data: bytes, sizes: Ints) -> None:
        self._of[cpu].write_many(data, sizes.astype("u4"))

    def lost(self, number: int) -> None:
        if number:
            next(iter(self._of.values())).count_lost(number)

    def close(self) -> None:
        for writer in self._of.values():
            writer.close()


def run(path: str) -> int:
    """Record for the session whose daemon listens at ``path`` until it ends. Returns the exit code."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _URGENT)
    with Connection.open(path) as connection:
        body, _ = connection.call(Kind.SOURCE)
        kernel = Kernel()
        host = read_host(kernel)
        with ExitStack() as stack:
            try:
                writers = _Writers(path, host.cpus)
                stack.callback(writers.close)
                recorder = Recorder(unpack(SourceConfiguration, body), writers, kernel, host)
                stack.callback(recorder.close)
                writers.wait_for_room(_LISTING)
                recorder.begin()
                connection.post(Kind.READY)
                _loop(connection, recorder, writers)
            except EtwError as error:
                with suppress(OSError):  # a daemon that is gone needs no reason
                    connection.send(Kind.FAILED, _failure(error))
                return 1
    return 0


def _loop(connection: Connection, recorder: Recorder, writers: _Writers) -> None:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    pause = _LONGEST
    while True:
        if poll.poll(pause * 1000):
            messages = connection.pump()
            if messages is None:
                return
            writers.wait_for_room(_LISTING)
            for message in messages:
                if message.kind == Kind.SOURCE_STOP:
                    recorder.end()
                    return
                _answer(connection, recorder, message)
        writers.wait_for_room(_RUNNING)
        busy = recorder.round() > _MANY
        pause = max(pause / 2, _SHORTEST) if busy else min(pause * 1.5, _LONGEST)


def _answer(connection: Connection, recorder: Recorder, message: Message) -> None:
    if message.kind != Kind.CONFIGURE:
        return
    try:
        recorder.configure(unpack(SourceConfiguration, message.body))
    except EtwError as error:
        connection.post(Kind.FAILED, _failure(error))
    except FormatError as error:
        connection.post(Kind.FAILED, _failure(EtwError("source", Status.INVALID_DATA, str(error))))
    else:
        connection.post(Kind.READY)


def _failure(error: EtwError) -> bytes:
    return pack((error.status, error.reason))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
