"""Tracer and thread side by side for a burst: on one processor, and ahead of whatever else wants it.

A stop is a switch to the tracer and back. On one processor that costs a third of what it costs across two, and a third
program that is let in between costs more than the whole burst. It is the thread that is brought to us, if it may be:
moving us would cost more, and leave behind the caches that hold what a burst needs.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["Together"]

_OURS, _THEIRS = 2, 1
"""Real-time priorities. Ours is higher: a thread that does not stop must not keep us from seeing that."""


_processor = ctypes.CDLL(None).sched_getcpu


class Together:
    """``both``: the thread is held on its processor, and gets real-time priority where that is allowed; as we do
    always.

    Not for threads that may outlive us: if we are killed in the middle, they keep that.
    """

    def __init__(self, *, both: bool) -> None:
        self._own = os.sched_getaffinity(0)
        self._both, self._hurry = both, os.sched_getscheduler(0) == os.SCHED_OTHER
        self._is_ahead = False

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Nothing else is let in on our processor as long as this lasts, where that is allowed."""
        if self._is_ahead or not self._hurry:
            yield
            return
        self._is_ahead = self._hurry = self._priority(0, os.SCHED_FIFO, _OURS)  # if not allowed, do not ask again
        try:
            yield
        finally:
            if self._is_ahead:
                self._is_ahead = False
                self._priority(0, os.SCHED_OTHER, 0)

    @contextmanager
    def on(self, tid: int, last: int) -> Iterator[int]:
        """The processor that ``tid``, which ran on ``last``, and we share as long as this lasts."""
        with self.ahead():
            theirs = os.sched_getaffinity(tid)
            here = _processor()
            cpu = here if self._both and here in theirs else last
            share = cpu in theirs and cpu in self._own
            held = share and self._both and len(theirs) > 1
            if held:
                os.sched_setaffinity(tid, {cpu})
            if share:
                os.sched_setaffinity(0, {cpu})
            hurried = self._both and self._is_ahead and os.sched_getscheduler(tid) == os.SCHED_OTHER
            hurried = hurried and self._priority(tid, os.SCHED_FIFO, _THEIRS)
            try:
                yield cpu
            finally:
                if hurried:
                    self._priority(tid, os.SCHED_OTHER, 0)
                if share:
                    os.sched_setaffinity(0, self._own)
                if held:
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(tid, theirs)

    @staticmethod
    def _priority(tid: int, policy: int, priority: int) -> bool:
        try:
            os.sched_setscheduler(tid, policy, os.sched_param(priority))
        except OSError:
            return False
        return True
