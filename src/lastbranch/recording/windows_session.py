"""`lastbranch record` on Windows: the processor's branch records, by a trace session around the program.

The steps follow TraceConfigureLastBranchRecord's example program, like ``examples/lbr_recipe.py``: profile source,
interval, system logger, branch records, PMC profiling, the program, stop, merge. A program runs only once its session
records. The session is stopped whatever happens, and has one name: profile sources are the machine's, so two recordings
would disturb each other.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..capture import CollectorError, Options, check_command, describe_exec
from ..errors import LastbranchError, SelectionError
from ..etw import (
    GROUPS,
    EnableFlag,
    EtwError,
    LogFileMode,
    MergeFlag,
    ProfileSource,
    Session,
    SessionState,
    Status,
    configure_profile_sources,
    create_merged_trace_file,
    profile_sources,
    set_profile_interval,
)
from ..lbr import convert
from ..model import OutputError, PartFolder, counted, keep_old, naming, unused_name

__all__ = ["SESSION", "SessionSummary", "record_session"]

SESSION = "lastbranch-record"
SOURCES = ("BranchInstructionRetired", "BranchInstructions")
"""The profile source is the first of these that the machine has: numbers differ from machine to machine."""
INTERVAL = 65536
"""Branches between two records."""
_BUFFERS: dict[str, Any] = {"buffer_size": 256, "minimum_buffers": 32, "maximum_buffers": 128}
"""KB, and numbers. The start of a session logs every process, thread and image of the machine."""
_FLAGS = EnableFlag.PROCESS | EnableFlag.THREAD | EnableFlag.IMAGE_LOAD
_MODE = LogFileMode.FILE_MODE_SEQUENTIAL | LogFileMode.SYSTEM_LOGGER_MODE
_TICK = 0.1
"""Seconds between two looks at the program, the clock and interrupts."""


@dataclass(slots=True)
class SessionSummary:
    """The result of a recording."""

    source: str
    interval: int
    seconds: float = 0.0
    buffers: int = 0
    """Written to the log."""
    notes: tuple[str, ...] = ()
    exit_code: int | None = None
    """Of the program, as 32 bits with a sign; ``None`` where it was left running."""

    def __str__(self) -> str:
        what = f"{counted(self.buffers, 'buffer')} of events in {self.seconds:.1f} s"
        return f"{what} (a branch record every {self.interval} {self.source})"


def record_session(command: Sequence[str] | None, options: Options, output: str) -> SessionSummary:
    """Record all processes of the machine while ``command`` runs (``None``: until Ctrl-C) into ``output``.

    The name decides the format: .etl, any other TB5. An existing file becomes ``output.old``. Raises `SelectionError`
    for options that Windows' sessions do not have, `RunError` where the command cannot be executed, `CollectorError`
    where Windows refuses a step; no session is left then, and nothing was executed.
    """
    _check(options)
    flags = convert(options.select, "perf", "etw").value
    if command is not None:
        check_command(command[0])
    with _explained(), PartFolder(output, private=True) as part:
        source = _chosen_source(options.event)
        interval = _checked_interval(source, options.period)
        configure_profile_sources([source.source])
        set_profile_interval(source.source, interval)
        done = SessionSummary(source.name, interval)
        session = Session(
            SESSION, os.path.abspath(part.file("session.etl")), mode=_MODE, enable_flags=_FLAGS, **_BUFFERS
        )
        with _Interrupts() as interrupts:
            with _running(session, flags):
                done.seconds, done.exit_code = _while_running(command, options.duration, interrupts)
            assert session.final is not None
            done.buffers, done.notes = session.final.buffers_written, (*_losses(session.final), *_merge(part))
        _give(part, output)
    return done


# -- what is asked


def _check(options: Options) -> None:
    """Raises `SelectionError` for what only other recorders can."""
    if options.frequency:
        raise SelectionError("--frequency: on Windows a counter interrupts at a fixed period", hint="--period N")
    if options.call_graph in ("dwarf", "fp"):
        raise SelectionError(
            f"--call-graph {options.call_graph}: on Windows call stacks come from the branch records alone",
            hint="--call-graph lbr",
        )


def _chosen_source(event: str | None) -> ProfileSource:
    """The profile source that ``event`` names, or that counts branches."""
    found = profile_sources()
    names = {source.name.casefold(): source for source in found} | {str(source.source): source for source in found}
    for wanted in SOURCES if event is None else (event,):
        if wanted.casefold() in names:
            return names[wanted.casefold()]
    there = ", ".join(source.name for source in found) or "none"
    if event is not None:
        raise SelectionError(f"--event {event}: no profile source of this machine; there are: {there}")
    raise CollectorError(
        f"no profile source of this machine counts branches; there are: {there}",
        hint="a hypervisor may hide the processor's counters; --event NAME takes another source",
    )


def _checked_interval(source: ProfileSource, period: int | None) -> int:
    if period is None:
        return min(max(INTERVAL, source.minimum), source.maximum)
    if not source.minimum <= period <= source.maximum:
        limits = f"{source.name} takes {source.minimum} to {source.maximum}"
        raise SelectionError(f"--period {period}: {limits}")
    return period


# -- the session, and what runs in it


@contextmanager
def _running(session: Session, flags: int) -> Iterator[None]:
    """Start ``session`` with branch records, and stop it at the end."""
    group = GROUPS["PMC_PROFILE"]
    masks = [0] * 8
    masks[group.word] = group.bits
    session.start(lbr=flags, masks=masks)
    try:
        yield
    except BaseException:
        with suppress(EtwError):  # the first failure is the one to report
            session.stop()
        raise
    session.stop()


def _while_running(
    command: Sequence[str] | None, duration: float | None, interrupts: _Interrupts
) -> tuple[float, int | None]:
    """Run ``command`` to its end; (seconds, exit code). Time or interrupts end the wait, not the program."""
    began = time.monotonic()
    child = _launched(command) if command is not None else None
    code = None
    while code is None and interrupts.count <= (child is not None):
        left = _TICK if duration is None else min(_TICK, duration - (time.monotonic() - began))
        if left <= 0:
            break
        if child is None:
            time.sleep(left)  # all processes are recorded: there is no child to wait for
            continue
        with suppress(subprocess.TimeoutExpired):
            code = child.wait(left)
    if child is not None and code is None:
        child.returncode = 0  # the program runs on, and `Popen` would warn of a running child
    return time.monotonic() - began, None if code is None else ctypes.c_int32(code).value


def _launched(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(command))
    except OSError as error:
        raise describe_exec(command[0], error) from error


class _Interrupts:
    """Ctrl-C while the session runs: the console sends Ctrl-C to the program, too, so the first Ctrl-C is the
    program's."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():  # no other may
            for name in ("SIGINT", "SIGBREAK"):
                if hasattr(signal, name):
                    number = getattr(signal, name)
                    self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _came(self, *_: object) -> None:
        self.count += 1


# -- the log


def _losses(state: SessionState) -> Iterator[str]:
    if state.events_lost:
        yield f"{state.events_lost} events were lost: the session had no free buffer for them"
    if state.log_buffers_lost:
        yield f"{state.log_buffers_lost} buffers could not be written"


def _merge(part: PartFolder) -> Iterator[str]:
    """Merge image identities into the log, as ``merged.etl``; without the toolkit the log stays as it is."""
    log, merged = part.file("session.etl"), part.file("merged.etl")
    try:
        create_merged_trace_file(os.path.abspath(merged), [os.path.abspath(log)], MergeFlag.IMAGEID)
    except EtwError as error:
        os.replace(log, merged)
        yield f"images have no identities, so code may stay without names: {error}"
        if error.hint or error.status == Status.MOD_NOT_FOUND:
            yield "the Windows Performance Toolkit, of the Windows SDK or ADK, has the library that adds them"


def _give(part: PartFolder, output: str) -> None:
    """Let the merged log be ``output``, as it is or as TB5."""
    if output.endswith(".etl"):
        keep_old(output)
        part.give("merged.etl")
        return
    from ..formats.registry import format_written_to
    from ..opening import open_profile

    name = os.path.basename(output)
    name = name if os.path.splitext(name)[1] else f"{name}.tb5"
    try:
        profile = open_profile(part.file("merged.etl"))
        profile.name = output
        format_written_to(name).write(profile, part.file(name))
    except (LastbranchError, OSError, KeyboardInterrupt) as error:
        kept = unused_name(output, "unsaved") + ".etl"
        with naming(kept):
            os.replace(part.file("merged.etl"), kept)
        hint = f"the recording is kept in {kept}; `lastbranch convert {kept} NAME.tb5` converts it to TB5"
        raise CollectorError(f"{output} cannot be written: {error or 'interrupted'}", hint=hint) from error
    keep_old(output)
    part.give(name)


# -- what Windows refuses


_ELEVATED = "run from an elevated prompt, with an account that holds SeSystemProfilePrivilege"
_REASONS: dict[tuple[str, int], tuple[str, str | None]] = {
    ("TraceConfigureLastBranchRecord", Status.NOT_SUPPORTED): (
        "this processor has no last branch records, or a hypervisor hides them",
        None,
    ),
    ("StartTrace", Status.ALREADY_EXISTS): (
        f"a session called {SESSION} runs already: of another recording, or of one that was killed",
        f"`lastbranch session stop {SESSION}` ends it",
    ),
    ("StartTrace", Status.NO_SYSTEM_RESOURCES): (
        "too many sessions of system events run",
        "`lastbranch session list` lists the sessions",
    ),
}
"""(call, code) -> what it means for a recording, and what to do."""
_ANY_CALL: dict[int, tuple[str, str | None]] = {
    Status.PRIVILEGE_NOT_HELD: ("SeSystemProfilePrivilege is missing", _ELEVATED),
    Status.ACCESS_DENIED: ("sessions of system events need an administrator", _ELEVATED),
    Status.BUSY: (
        "another session uses the processor's counters",
        "`lastbranch session list` lists the sessions; wpr -cancel and xperf -stop end those of these tools",
    ),
}


@contextmanager
def _explained() -> Iterator[None]:
    """Raise the failure of a call, or of a file, as `CollectorError` with what it means here."""
    try:
        yield
    except EtwError as error:
        known = _REASONS.get((error.call, error.status)) or _ANY_CALL.get(error.status)
        meaning, hint = known or ("the session failed", None)
        raise CollectorError(f"{meaning}: {error}", hint=hint or error.hint) from error
    except OutputError as error:
        raise CollectorError(str(error), hint="write elsewhere with -o") from error
