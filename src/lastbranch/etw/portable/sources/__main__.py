"""The source process of a session: ``python -m lastbranch.etw.portable.sources SOCKET``, started by its daemon.

The process gets its configuration, records, and answers READY or FAILED; the process ends when the daemon stops it or
hangs up.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import closing, suppress
from functools import partial

from ....capture.perf_events.host import read_host
from ....capture.perf_events.linux_kernel import Kernel
from ....errors import FormatError
from ...status import EtwError, Status
from ..protocol import Connection, Kind, Message, unpack
from .configuration import SourceConfiguration
from .process import Output, failure, serve
from .recorder import Recorder

_SHORTEST, _LONGEST = 0.002, 0.1
"""Seconds between two rounds."""
_MANY = 4000
"""Events of a round, after which the next one comes sooner: an eighth of what a ring holds."""
_URGENT = -10
"""Nice value: rings overflow if their reader waits for the threads that it records."""
_LISTING, _RUNNING = 5.0, 0.5
"""Seconds that writers wait for a free buffer: long while lists are written, so that none is lost, and short
between rounds, when the rings hold what comes."""


def _record(path: str, connection: Connection, configuration: SourceConfiguration) -> None:
    """Record until the daemon ends it."""
    kernel = Kernel()
    host = read_host(kernel)
    with (
        closing(Output(path, host.cpus, patience=_LISTING)) as output,
        closing(Recorder(configuration, output, kernel, host)) as recorder,
    ):
        recorder.begin()
        connection.post(Kind.READY)
        _loop(connection, recorder, output)


def _loop(connection: Connection, recorder: Recorder, output: Output) -> None:
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    pause = _LONGEST
    while True:
        if poll.poll(pause * 1000):
            messages = connection.pump()
            if messages is None:
                return
            output.wait_for_room(_LISTING)
            for message in messages:
                if message.kind == Kind.SOURCE_STOP:
                    recorder.end()
                    return
                if message.kind == Kind.BRANCHES:
                    try:
                        recorder.call_branches.take(message.body, time.monotonic_ns())
                    except FormatError:
                        output.lost(1)
                    continue
                _answer(connection, recorder, message)
        output.wait_for_room(_RUNNING)
        busy = recorder.round() > _MANY
        pause = max(pause / 2, _SHORTEST) if busy else min(pause * 1.5, _LONGEST)


def _answer(connection: Connection, recorder: Recorder, message: Message) -> None:
    if message.kind != Kind.CONFIGURE:
        return
    try:
        recorder.configure(unpack(SourceConfiguration, message.body))
    except EtwError as error:
        connection.post(Kind.FAILED, failure(error))
    except FormatError as error:
        connection.post(Kind.FAILED, failure(EtwError("source", Status.INVALID_DATA, str(error))))
    else:
        connection.post(Kind.READY)


if __name__ == "__main__":
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _URGENT)
    sys.exit(serve(sys.argv[1], partial(_record, sys.argv[1])))
