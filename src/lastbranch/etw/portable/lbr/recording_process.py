"""The software LBR as a source of a session: ``python -m lastbranch.etw.portable.lbr.recording_process SOCKET``.

The session's daemon starts it for a configured trigger (`lbr_configuration.needed`). The process tries its engine,
attaches to the targets, answers READY or FAILED, and records until the daemon stops the process or hangs up; the
targets then run on. A new configuration ends one recording and begins the next. While no target is named, or no trigger
is enabled, it waits.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from typing import Any

from ....capture import Callbacks, Calls, Options, SoftwareRequest, Targets, collect
from ....errors import FormatError, LastbranchError
from ....formats.etl.profile.supplement import supplement_event
from ....lbr import convert
from ....model import counted
from ...flags import LBR_EXCLUDE_KERNEL
from ...information import CONFIGURE_LBR
from ...status import EtwError, Status
from ..lbr_configuration import CSWITCH_HOOK, SAMPLED_HOOK, SOFTWARE_BRANCHES, SOURCE
from ..protocol import Connection, Kind, unpack
from ..sources.call_branches import CallRecords, records_of
from ..sources.configuration import SourceConfiguration
from ..sources.event_words import encode_events
from ..sources.perf_records import FOREVER, Ticks
from ..sources.process import Output, serve
from .conversion import PATIENCE, Conversion, RecordingFollower, Scope

__all__ = ["options_of", "targets_of"]


DEPTH = 32
"""Branches of a record, at most."""
_NO_TIME_SAMPLES = 1 << 62
_PAUSE = 0.2


def options_of(configuration: SourceConfiguration) -> Options:
    """The options of a session's recording, from its LBR flags and the interval of the profile source. `EtwError` 87
    for flags that no processor accepts."""
    try:
        flags = configuration.lbr_flags | LBR_EXCLUDE_KERNEL
        chosen, ring = (convert(flags, "etw", to).value for to in ("perf", "msr"))
    except LastbranchError as error:
        raise EtwError(CONFIGURE_LBR, Status.INVALID_PARAMETER, str(error)) from error
    period = configuration.intervals.get(SOFTWARE_BRANCHES, 0)
    hooks = configuration.call_hooks
    calls = Calls.LEFT if CSWITCH_HOOK in hooks else Calls.ENTERED if hooks else Calls.NONE
    return Options(
        depth=DEPTH,
        ring=ring,
        select=chosen,
        period=period,
        time_period=_NO_TIME_SAMPLES,
        call_graph="none",
        calls=calls,
    )


def targets_of(configuration: SourceConfiguration) -> Targets:
    """The processes to record."""
    numbers = configuration.targets
    return Targets(tuple(n for n in numbers if n > 0), tuple(-n for n in numbers if n < 0))


def _recording_key(configuration: SourceConfiguration) -> tuple[object, ...]:
    """Equal where two configurations are recorded alike."""
    own = (configuration.lbr_flags, configuration.targets, configuration.clock, configuration.branch_hook)
    return options_of(configuration), configuration.call_hooks, *own


class _Calls:
    """Sends records of system calls to the process that records the events which trigger them."""

    def __init__(self, path: str, conversion: Conversion, options: int) -> None:
        self._connection, self._conversion, self._options = Connection.open(path), conversion, options

    def send(self) -> None:
        """Send what there is. A daemon that has ended needs none of it."""
        batches, self._conversion.calls = self._conversion.calls, []
        self._post(records_of(batches, self._conversion.until, self._options))

    def end(self) -> None:
        """No more follow."""
        self.send()
        self._post([CallRecords(FOREVER)])
        self._connection.close()

    def _post(self, messages: Iterable[CallRecords]) -> None:
        with suppress(OSError):
            for message in messages:
                self._connection.send(Kind.BRANCHES, message.encode())


class _Recording:
    """A recording, until it is stopped or configured anew."""

    def __init__(self, path: str, connection: Connection, output: Output, configuration: SourceConfiguration) -> None:
        self._connection, self._output, self._configuration = connection, output, configuration
        sampled = configuration.branch_hook == SAMPLED_HOOK
        scope = Scope(
            whole=False,
            flags=configuration.lbr_flags,
            name=SOURCE.name,
            sampled=sampled,
            bursts=bool(configuration.branch_hook),
            call_hooks=configuration.call_hooks,
        )
        self._conversion = Conversion(scope, configuration.clock)
        self._calls = _Calls(path, self._conversion, configuration.lbr_flags) if configuration.call_hooks else None
        self._follower = RecordingFollower(self._conversion, output, self._calls.send if self._calls else lambda: None)
        self._over = threading.Event()
        self._listeners: list[threading.Thread] = []
        self.next: SourceConfiguration | None = configuration
        """The configuration of the next recording; ``None``: no other follows."""

    def run(self) -> None:
        """Record. `EtwError` if it cannot begin."""
        targets = targets_of(self._configuration)
        self._log("Targets", Processes=targets.processes, DescendantsOf=targets.ancestors)
        rounds = self._follower.rounds(lambda summary: None)
        summary, failure = collect(
            SoftwareRequest(targets, options_of(self._configuration), ["lastbranch", "session"]),
            self._follower.file,
            Callbacks(say=lambda sentence: None, progress=rounds),
            self._begin_listening,
        )
        self._over.set()
        for listener in self._listeners:
            listener.join()
        self._follower.finish()
        if self._calls is not None:
            self._calls.end()
            said = f"{counted(summary.calls, 'record')} of branches before them, in {counted(summary.bursts, 'burst')}"
            self._log("Header", Name="system calls", Value=said)
        for number, note in enumerate(summary.notes, 1):
            self._log("Header", Name=f"recording note {number}", Value=note)
        if summary.bursts and self._configuration.branch_hook:
            ended = ", ".join(f"{why} {count}" for why, count in sorted(summary.ended.items()))
            self._log("Bursts", Depth=DEPTH, Records=summary.bursts, Full=summary.full, EndedBy=ended)
        if failure is not None and not self._conversion.begun:
            raise EtwError(CONFIGURE_LBR, Status.NOT_SUPPORTED, str(failure), hint=failure.hint)

    def _log(self, name: str, **fields: Any) -> None:
        """Write an event about the recording."""
        event = supplement_event(name, Ticks(self._configuration.clock).of(time.monotonic_ns()), fields)
        self._output.put(encode_events([event], 0))

    def _begin_listening(self, collector: int) -> None:
        self._follower.start()
        self._listeners = [threading.Thread(target=self._listen, args=(collector,), name="session")]
        self._listeners[0].start()

    def _listen(self, collector: int) -> None:
        """Send READY, then wait for messages, and end the collector for the next configuration or a stop."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._follower.begun.wait()
        if not self._conversion.begun:
            return
        self._connection.post(Kind.READY)
        while self.next is self._configuration:
            self._take()
            if self._over.is_set():
                return
        with suppress(ProcessLookupError):
            os.kill(collector, signal.SIGTERM)

    def _take(self) -> None:
        """Wait a moment for messages."""
        if not select.select([self._connection], [], [], _PAUSE)[0]:
            return
        messages = self._connection.pump()
        for message in messages or ():
            if message.kind == Kind.CONFIGURE:
                self._configure(message.body)
        if messages is None or any(message.kind == Kind.SOURCE_STOP for message in messages):
            self.next = None

    def _configure(self, body: bytes) -> None:
        """Take a new configuration; an equal configuration changes nothing."""
        with suppress(FormatError):
            asked = unpack(SourceConfiguration, body)
            if _recording_key(asked) != _recording_key(self._configuration):
                self.next = asked
            else:
                self._connection.post(Kind.READY)

    def wait(self) -> None:
        """After the end of the collector: wait for the next configuration."""
        while self.next is self._configuration:
            self._take()


def _record(path: str, connection: Connection, configuration: SourceConfiguration | None) -> None:
    """Record for the session, configuration after configuration, until the daemon ends the recording."""
    with closing(Output(path, patience=PATIENCE)) as output:
        while configuration is not None:
            recording = _Recording(path, connection, output, configuration)
            recording.run()
            recording.wait()
            configuration = recording.next


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], partial(_record, sys.argv[1])))
