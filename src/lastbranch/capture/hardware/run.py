"""A hardware recording from end to end: launch or attach, record until it is over, write what was wished for.

The program is not traced and does not need the recorder: if that dies, the program goes on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...model import Profile
from ...model.output import PartFile
from ..kernel import Kernel
from ..launch import Launched, launch
from ..recording import save
from ..signals import SIGNALS, received
from ..traceable import describe_exec
from .collector import Recording, Request, Target

__all__ = ["HardwareSummary", "record_hardware"]

_TICK = 0.1
"""Seconds between two looks at rings that are not half full yet, and at signals."""


@dataclass(slots=True)
class HardwareSummary:
    """What a recording came to. ``lost`` is ``None`` where the kernel does not count it."""

    seconds: float = 0.0
    size: int = 0
    """Bytes of records."""
    lost: int | None = 0
    notes: tuple[str, ...] = ()
    exit_code: int | None = None
    """Of the launched program, 128+n if a signal killed it; ``None`` where it was left running."""


def record_hardware(
    target: Sequence[str] | int | None, wanted: Request, output: str, *, duration: float | None = None,
    progress: Callable[[HardwareSummary], None] = lambda summary: None, kernel: Kernel | None = None,
) -> HardwareSummary:  # fmt: skip
    """Record ``target``, a command, a process id or ``None`` for the whole system, into ``output``.

    ``wanted`` says what, its target is filled in here. The recording ends with the command or the process, after
    ``duration`` seconds, or by a signal: for a command the second one, as the first is the program's.

    Raises `UnavailableError` where the kernel refuses (nothing has been executed then), `SelectionError` for an event
    or a selection that makes no sense, `RunError` where the command cannot be executed.
    """
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        with PartFile(output) as spill:
            if target is None or isinstance(target, int):
                run = _Run(wanted, Target(-1 if target is None else target), None, duration, progress)
            else:
                child = launch(target, unblocked, traced=False)
                run = _Run(wanted, Target(child.pid, before_exec=True), child, duration, progress)
            summary = run.record(spill.path, kernel)
            if run.failure is not None:
                assert isinstance(target, Sequence)
                raise describe_exec(target[0], run.failure)
            save(spill, output, lambda profile: _describe(profile, summary))
            return summary
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


class _Run:
    """One recording under way."""

    def __init__(
        self, wanted: Request, target: Target, child: Launched | None, duration: float | None,
        progress: Callable[[HardwareSummary], None],
    ) -> None:  # fmt: skip
        self.request = replace(wanted, target=target)
        self.child, self.duration, self.progress = child, duration, progress
        self.summary = HardwareSummary()
        self.failure: OSError | None = None
        """Why the command could not be executed."""
        self._signals = 0

    def record(self, path: str, kernel: Kernel | None) -> HardwareSummary:
        try:
            recording = Recording(self.request, path, kernel=kernel)
        except BaseException:
            if self.child:
                self.child.abandon()
            raise
        with recording:
            began = time.monotonic()
            if self.child:
                self.child.release()
            more = True
            while more and not self._over():
                more = recording.drain(_TICK)
                self.summary.seconds = time.monotonic() - began
                self.progress(self.summary)
            self.summary.size, self.summary.lost, self.summary.notes = recording.finish()
        if self.child:
            if self.summary.exit_code is None and not self._stopped:
                self._reap(0)  # its tasks have ended, and it is about to
            self.failure = self.child.failed()
        return self.summary

    @property
    def _stopped(self) -> bool:
        """Whether signals or the clock ended the recording."""
        enough = 2 if self.child else 1
        return self._signals >= enough or (self.duration is not None and self.summary.seconds >= self.duration)

    def _over(self) -> bool:
        while (found := received()) is not None:
            self._signals += 1
            if self.child and self._signals == 1:
                found.forward(self.child.pid)
        return self._stopped or bool(self.child and self._reap(os.WNOHANG))

    def _reap(self, options: int) -> bool:
        assert self.child is not None
        pid, status = os.waitpid(self.child.pid, options)
        if pid == 0:
            return False
        code = os.waitstatus_to_exitcode(status)
        self.summary.exit_code = code if code >= 0 else 128 - code
        return True


def _describe(profile: Profile, summary: HardwareSummary) -> None:
    """Say in the profile how it was made."""
    profile.recorder = "lastbranch hardware collector"
    for i, note in enumerate(summary.notes, 1):
        profile.header[f"recording note {i}"] = note
