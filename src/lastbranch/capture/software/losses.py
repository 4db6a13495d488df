"""The gaps of a recording: bursts that did not happen, and threads that are not recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ...model import counted
from .. import ptrace
from ..options import Summary
from ..procfs import program_of
from .record_writer import RecordWriter, now
from .tree import Tree

__all__ = ["MOST_NAMED", "Losses"]

MOST_NAMED = 20
"""Processes and threads that are named one by one."""
_SECOND = 1_000_000_000
_MOST_LOSSES = 1 << 16
_REFUSED = "the duty limit"
_FEW_UNSEEN = 0.1
"""For each burst, so many that did not happen are no news."""


class Losses:
    """Counts the bursts that did not happen, and keeps one thread's failure from ending the recording."""

    def __init__(self, tree: Tree, out: RecordWriter, summary: Summary) -> None:
        self._tree, self._out, self._summary = tree, out, summary
        self.skipped = Counter[str]()
        """Triggers without a burst, by the reason."""
        self._noted = 0
        """Triggers without a burst whose time is in the summary."""
        self.given_up = set[int]()
        """Threads that are no longer recorded since something failed."""
        self._unarmed: dict[str, list[str]] = {}
        """Threads that get no bursts, by the reason."""

    @contextmanager
    def contain(self, pid: int) -> Iterator[None]:
        """A failure in this block concerns process ``pid`` alone: it ends nothing else."""
        try:
            yield
        except ptrace.Gone:
            pass
        except Exception as error:  # as for a stop: only writing ends the recording
            if self.ends_recording(error):
                raise
            if pid not in self.given_up:
                self.note_failure(pid, pid, error)

    def ends_recording(self, error: Exception) -> bool:
        """Whether ``error`` is that of the file that is written, and not of one thread."""
        return error is self._out.failure

    def note_failure(self, tid: int, pid: int, error: Exception) -> None:
        """A thread is no longer recorded since ``error`` happened."""
        self.given_up.add(tid)
        self.note_unrecorded(tid, pid, error)

    def note_unrecorded(self, tid: int, pid: int, error: Exception) -> None:
        """A thread gets no bursts because of ``error``."""
        process = self._tree.processes.get(pid)
        name = (process and process.name) or program_of(pid)
        why = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        self._unarmed.setdefault(why, []).append(f"{tid} of {name} ({pid})")
        self._summary.unrecorded += 1

    def note_times(self) -> None:
        """Note in the summary that triggers had no burst until now."""
        summary, when = self._summary, now()
        summary.skipped = dict(self.skipped)
        more = summary.throttled + sum(self.skipped.values()) - self._noted
        if not more:
            return
        self._noted += more
        losses = summary.losses
        if losses and (when // _SECOND == losses[-1][0] // _SECOND or len(losses) == _MOST_LOSSES):
            losses[-1] = when, losses[-1][1] + more
        else:
            losses.append((when, more))

    def note_threads(self) -> None:
        """Say at the end which threads had no bursts."""
        for why, threads in self._unarmed.items():
            named = ", ".join(threads[:MOST_NAMED]) + (", and others" if len(threads) > MOST_NAMED else "")
            self._summary.notes += (f"{counted(len(threads), 'thread')} not recorded ({why}): {named}",)

    def note_bursts(self) -> None:
        """Say at the end, in one line, which bursts there should have been, where these are many."""
        unseen = {_REFUSED: self._summary.throttled, **self.skipped}
        count = sum(unseen.values())
        if count > _FEW_UNSEEN * self._summary.bursts:
            why = ", ".join(f"{n}: {reason}" for reason, n in unseen.items() if n)
            self._summary.notes += (f"{counted(count, 'burst')} that were due did not happen ({why})",)
