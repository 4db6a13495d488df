"""A growing recording in the viewer: indexed continuously, and shown up to its present end.

All answers are the same as for a complete capture of the same bytes. The counts of the first screen are kept up to date
(`function_counts`); other screens, and filters, have all samples read again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from ..bind import bind
from ..closing import Closing
from ..crashes import crash_line
from ..errors import LastbranchError
from ..formats.perfdata.growing import GrowingIndex, IndexedSoFar
from ..model import OpenFile, Profile
from ..opening import attach_binaries, open_profile, recorded_here
from ..symbols import Symbolizer, SymbolOptions
from .background_names import PATIENCE, BackgroundSymbolizer
from .function_counts import GrowingCounts
from .loaded import Loaded
from .pacing import FIRST_PAUSE, LONGEST_PAUSE, PAUSE, WaitingThreads, pause, usual

__all__ = ["ENDED", "LIVE", "GrowingCapture"]

LIVE, ENDED = "live", "ended"
"""Values of `Loaded.recording` for a recording."""


class GrowingCapture(Closing):
    """The perf.data in ``source``, whose end moves: `loaded` is its newest state, and shows it as the file ``name``.
    Binaries are looked for under ``symfs``, as `open_profile` does. ``patience`` is that of `BackgroundSymbolizer`.

    Raises `FormatError` where its header is not there yet.
    """

    def __init__(
        self,
        source: OpenFile,
        name: str,
        symbols: SymbolOptions,
        symfs: str | None = None,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self._source, self._name, self._symbols, self._symfs = source, name, symbols, symfs
        self._watching = 0
        self._end, self._looks = threading.Event(), threading.Event()
        self._listeners = set[Callable[[], object]]()
        self._thread: threading.Thread | None = None
        self.revision = 0
        """How often `loaded` was another one."""
        self.closed = False
        self._size = 0
        self._index, self._counts = GrowingIndex(source), GrowingCounts()
        self._state: IndexedSoFar | None = None
        self._patience, self._renamed = patience, False
        self.loaded = self._opened()
        self.loaded.symbolizer = self._symbolizer(self.loaded.profile)

    @property
    def recording(self) -> str:
        """`LIVE` or `ENDED`."""
        return self.loaded.recording

    @property
    def is_watched(self) -> bool:
        """Whether any page looks."""
        return self._watching > 0

    @contextmanager
    def watched(self, changed: Callable[[], object]) -> Iterator[None]:
        """For the time that a page looks. ``changed`` is called, in any thread, when there is another state, and when
        there will be none."""
        self._watching += 1
        self._listeners.add(changed)
        self._looks.set()
        try:
            yield
        finally:
            self._listeners.discard(changed)
            self._watching -= 1

    def _tell(self) -> None:
        for changed in tuple(self._listeners):
            changed()

    def refresh(self) -> bool:
        """Read on if the file has grown, or names were found. If the present part of the file cannot be read, a later
        call, with more of the file, tries again."""
        if (self._source.size == self._size and not self._renamed) or self.recording == ENDED:
            return False
        self._renamed = False
        try:
            self._show(self._opened(self.loaded))
        except (LastbranchError, OSError):
            return False
        return True

    def finish(self, path: str | None) -> None:
        """The recording has ended: show the complete file at ``path``. If there is no file, or it cannot be opened, the
        recording until now stays."""
        self._stop()
        done = self.loaded
        try:
            done = (
                Loaded(open_profile(path, symfs=self._symfs), self._symbols, (path,), self._symfs)
                if path
                else self._opened()
            )
        except (LastbranchError, OSError):
            with suppress(LastbranchError, OSError):
                done = self._opened()
        done.recording = ENDED
        self._show(done)

    def follow(self, shown: Callable[[], None] = lambda: None) -> None:
        """`refresh` in a thread of its own while pages look, at intervals of `pause`, until `finish` or `close`.
        ``shown`` is called once, when pages had time to show the first samples."""
        self._thread = threading.Thread(target=self._follow, args=(shown,), name="growing capture", daemon=True)
        self._thread.start()

    def _follow(self, shown: Callable[[], None] | None) -> None:
        processors = len(os.sched_getaffinity(0))
        began, ran, last = -LONGEST_PAUSE, time.process_time(), 0.0
        threads, held_up, had_samples, failed = WaitingThreads(), False, False, False
        while not self._end.is_set():
            if not self.is_watched:
                self._looks.clear()
                if not self.is_watched:
                    self._looks.wait()
                continue
            # The answers to the pages come after the refresh, and their time counts as well.
            now = time.process_time()
            cpu = now - ran
            least = PAUSE if self.loaded.profile.samples else FIRST_PAUSE
            wait = pause(usual(cpu, last), held_up, processors, least)
            if (left := began + wait - time.monotonic()) > 0:
                self._end.wait(left)
                continue
            began, ran, last = time.monotonic(), now, cpu
            held_up = threads.held_up(process.pid for process in self.loaded.profile.processes)
            if shown is not None and had_samples:
                shown()
                shown = None
            try:
                self.refresh()
            except Exception as error:  # the next look is another one
                if not failed:
                    sys.stderr.write(f"{crash_line(error)}\n")
                failed = True
            had_samples = self.loaded.profile.samples > 0

    def close(self) -> None:
        self.closed = True
        self._stop()
        self._tell()

    def _stop(self) -> None:
        self._end.set()
        self._looks.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _show(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.revision += 1
        self._tell()

    def _opened(self, before: Loaded | None = None) -> Loaded:
        """All that is there now, with the names of ``before`` where they are the same."""
        self._size = self._source.size
        state, known = self._index.extend(), self._state
        profile = state.profile
        profile.name = self._name
        recorded_here(profile)
        if before is not None and known is not None and known.tables == state.tables:
            old = before.profile
            profile.binder, profile.processes, profile.threads = old.binder, old.processes, old.threads
        else:
            new = (module for module in profile.modules if not (module.binary or module.missing))
            attach_binaries(new, profile.machine.os_release, self._symfs, until=time.time_ns())
            bind(profile)
        counts = partial(self._counts.tables, state)
        made = Loaded(profile, self._symbols, symfs=self._symfs, recording=LIVE, growth=counts)
        if before is not None and _has_rows_of(before.profile, profile):
            made.symbolizer = before.symbolizer
            made.symbolizer.follow(profile)
        elif before is not None:
            made.symbolizer = self._symbolizer(profile)
        self._state = state
        return made

    def _symbolizer(self, profile: Profile) -> Symbolizer:
        return BackgroundSymbolizer(profile, self._symbols, self._found_names, self._patience)

    def _found_names(self) -> None:
        self._renamed = True


def _has_rows_of(before: Profile, now: Profile) -> bool:
    """Whether names found for ``before`` hold for ``now``: looking for names takes longest."""
    pids = [[process.pid for process in one.processes] for one in (before, now)]
    modules = now.modules[: len(before.modules)]
    return pids[1][: len(pids[0])] == pids[0] and modules == before.modules
