"""A growing recording in the viewer: indexed continuously, and shown up to its present end.

All answers are the same as for a complete capture of the same bytes. The counts of the first screen are kept up to date
(`function_counts`); other screens, and filters, have all samples read again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bind import bind
from ..closing import Closing
from ..crashes import crash_line
from ..errors import LastbranchError
from ..formats.perfdata.growing import GrowingIndex, IndexedSoFar
from ..model import OpenFile, Profile
from ..opening import attach_binaries, open_profile, recorded_here
from ..symbols import FunctionTable, Names, Symbolizer, SymbolOptions
from .function_counts import GrowingCounts
from .loaded import Loaded

__all__ = ["ENDED", "LIVE", "GrowingCapture", "WaitingThreads", "pause", "steady_cost"]

LIVE, ENDED = "live", "ended"
"""Values of `Loaded.recording` for a recording."""
PATIENCE = 0.5
"""Seconds: names that were found before, and kept, are there by then."""


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
            wait = pause(steady_cost(cpu, last), held_up, processors, least)
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


# -- how often to look: each second where it holds nobody up, else as a small share of the processors allows

PAUSE = 1.0
"""Seconds from one look to the next, at least."""
FIRST_PAUSE = 0.2
"""The same while there are no samples: a look takes next to nothing, and somebody waits for a picture."""
FREE_SHARE = 0.5
"""The share of one CPU that reading on in the file, and answering open pages, may take on average, if the recorder and
the recorded program have all processors that they want."""
BUSY_SHARE = 0.01
"""The share of all CPUs, if the recorder and the program wait for processors."""
LONGEST_PAUSE = 60.0
"""Seconds, however long an opening takes."""
_SHORT, _SOON = 0.1, 1.8
"""Seconds of CPU of a look after which the next one is due so many seconds after it, also where others are held up: the
screen stays within two seconds of the program."""
_HELD_UP = 0.03
"""The least wait of threads for processors, as a share of their run time, if other threads want the processors, too."""
_MOST_THREADS = 256
"""The most threads to look at, since each look takes some time."""


def pause(cpu: float, held_up: bool, processors: int, least: float = PAUSE) -> float:
    """Seconds from one look at the file to the next, at ``least`` so many; the look and the answers since took ``cpu``
    seconds, and other programs are ``held_up`` on the ``processors``."""
    share = BUSY_SHARE * processors if held_up else FREE_SHARE
    return min(max(least, cpu / share), _SOON if cpu < _SHORT else LONGEST_PAUSE)


def steady_cost(cpu: float, last: float) -> float:
    """Seconds of CPU of a look, at most as many as the ``last`` look took: the first picture, and a page that changes
    its screen, take long once, and the next look need not wait longer for this reason."""
    return min(cpu, last)


class WaitingThreads:
    """Whether the recorder and the recorded program wait for processors: their threads' run delay (schedstat)."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, int]] = {}

    def held_up(self, pids: Iterable[int]) -> bool:
        """Since the last call. ``pids`` are the recorded processes; the recorder is the process that started this one,
        and its children. Also where the kernel does not say."""
        now = dict(_times([*_recorder(), *pids]))
        before, self._before = self._before, now
        ran, waited = (sum(t[i] - before.get(tid, (0, 0))[i] for tid, t in now.items()) for i in (0, 1))
        return not any(t[1] for t in now.values()) or waited > _HELD_UP * ran


def _recorder() -> Iterator[int]:
    """The process that started this one, and its other children."""
    parent = os.getppid()
    yield parent
    with suppress(OSError), open(f"/proc/{parent}/task/{parent}/children", "rb", buffering=0) as file:
        yield from (pid for pid in map(int, file.read().split()) if pid != os.getpid())


def _times(pids: Iterable[int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Each thread, and the nanoseconds that it has run and waited (Documentation/scheduler/sched-stats.rst)."""
    left = _MOST_THREADS
    for pid in dict.fromkeys(pids):
        with suppress(OSError):
            for tid in os.listdir(f"/proc/{pid}/task")[:left]:
                left -= 1
                with suppress(OSError), open(f"/proc/{pid}/task/{tid}/schedstat", "rb", buffering=0) as file:
                    ran, waited, *_ = map(int, file.read().split())
                    yield int(tid), (ran, waited)


# -- names: screens do not wait for names that take long to find, but show such names later


class BackgroundSymbolizer(Symbolizer):
    """A `Symbolizer` that looks for the functions of modules in a thread of its own, in the order in which they are
    asked for. Each state of the recording waits for them up to ``patience`` seconds in all; after that its tables of
    functions are empty, and not ``complete``. ``found`` is called, in that thread, when such a table is."""

    def __init__(
        self, profile: Profile, options: SymbolOptions, found: Callable[[], object], patience: float = PATIENCE
    ) -> None:
        super().__init__(profile, options)
        self._patience, self._found_late, self._until = patience, found, 0.0
        self._worker_lock, self._change = threading.RLock(), threading.Condition()
        self._waiting: list[int] = []
        self._late = set[int]()
        """Modules that a state has had to do without."""

    def follow(self, profile: Profile) -> None:
        super().follow(profile)  # which does not wait for what is looked for now
        self._until = 0.0

    def functions(self, module: int) -> FunctionTable:
        if module in self._tables:
            return self._tables[module]
        with self._change:
            if module not in self._waiting:
                self._waiting.append(module)
                if len(self._waiting) == 1:
                    threading.Thread(target=self._look, name="names", daemon=True).start()
            self._until = self._until or time.monotonic() + self._patience
            if not self._change.wait_for(lambda: module in self._tables, max(0, self._until - time.monotonic())):
                self._late.add(module)
                return FunctionTable.unknown_yet()
        return self._tables[module]

    def _look(self) -> None:
        """Look for the functions of all waiting modules, at least one."""
        more = True
        while more:
            module = self._waiting[0]
            try:
                with self._worker_lock:
                    super().functions(module)
            except Exception as error:  # whatever one module is: the others are waited for
                self.notes.append(str(error) if isinstance(error, LastbranchError | OSError) else crash_line(error))
                self._tables[module] = FunctionTable.empty()
            with self._change:
                del self._waiting[0]
                self._change.notify_all()
                late, more = module in self._late, bool(self._waiting)
            if late:
                self._found_late()

    def names(self, module: int, address: NDArray[np.uint64]) -> Names:
        with self._worker_lock:
            return super().names(module, address)

    def names_at(self, process: int, address: NDArray[np.uint64], time: NDArray[np.int64] | None = None) -> Names:
        with self._worker_lock:
            return super().names_at(process, address, time)

    def jit_state(self, process: int) -> list[Any]:
        with self._worker_lock:
            return super().jit_state(process)
