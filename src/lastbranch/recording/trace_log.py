"""Recordings of the software branch record into a trace log, each through its own session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ..capture import Callbacks, Options, SoftwareRequest, Summary, Targets, collect, describe, held_signals
from ..etw import Control, EtwError, LogFileMode, SessionRequest, SessionState
from ..etw.portable.kernel import PortableKernel
from ..etw.portable.lbr.conversion import PATIENCE, Conversion, RecordingFollower, Scope
from ..etw.portable.protocol import address_in
from ..etw.portable.sources.process import Output
from ..model import Profile, token, unused_name

__all__ = ["record_trace_log"]


Say = Callable[[str], None]
_BUFFERS = 64


def record_trace_log(
    target: Sequence[str] | int | Targets,
    options: Options,
    output: str,
    command: Sequence[str],
    say: Say,
    progress: Callable[[Summary], None] = lambda summary: None,
) -> tuple[Summary, SessionState]:
    """As `capture.recording.record`, into the trace log ``output``. Returns the summary, and the session's last state.

    The session is a system logger called ``lastbranch-`` and random digits. It enables no kernel groups, because the
    recording itself contains the target's processes and images. So it needs no privileges.
    """
    name = f"lastbranch-{token()}"
    mode = LogFileMode.SYSTEM_LOGGER_MODE | LogFileMode.FILE_MODE_SEQUENTIAL
    request = SessionRequest(name, mode=mode, maximum_buffers=_BUFFERS, file=os.path.abspath(output))
    with _older(output) as keep:
        session = _Session(request)  # its daemon does not inherit the blocked signals
        with held_signals(), session:
            conversion = Conversion(Scope())
            follower = RecordingFollower(conversion, session.output)

            callbacks = Callbacks(say, follower.rounds(progress))
            recorded = SoftwareRequest(target, options, command)
            summary, failure = collect(recorded, follower.file, callbacks, follower.start)
            follower.finish(lambda profile: _describe(profile, options, summary))
            if failure is None or conversion.recorded:
                keep()
            if failure is not None:
                raise failure
    return summary, session.state


def _describe(profile: Profile, options: Options, summary: Summary) -> None:
    describe(profile, options, summary)
    profile.header["addresses"] = "ip is the end of the burst, the target of the newest branch"  # no addr


class _Session:
    """A session that is stopped at the end in any case; `state` is then its last state."""

    def __init__(self, request: SessionRequest) -> None:
        self._kernel = PortableKernel()
        self.state = self._kernel.start(request)

    def __enter__(self) -> _Session:
        registry = self._kernel.registry
        entry = registry.find(self.state.handle)
        self._folder = registry.folder("sessions")
        path = address_in(self._folder.__enter__(), entry.socket if entry else "")
        self.output = Output(path, patience=PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        self.output.close()
        self._folder.__exit__(None, None, None)
        try:
            self.state = self._kernel.control(Control.STOP, self.state.handle, None)
        except EtwError:
            if error[0] is None:
                raise


@contextmanager
def _older(output: str) -> Iterator[Callable[[], None]]:
    """Move an older file away. The old file becomes ``output.old`` if the caller calls the result, else it is
    restored."""
    aside, kept = unused_name(output, "old"), False
    there = os.path.isfile(output)
    if there:
        os.replace(output, aside)

    def keep() -> None:
        nonlocal kept
        kept = True

    try:
        yield keep
    finally:
        if not kept:
            with suppress(FileNotFoundError):
                os.unlink(output)
        if there:
            os.replace(aside, f"{output}.old" if kept else output)
