"""How often the viewer looks at a recording that grows: each second where it holds nobody up, else as a small share of
the processors allows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

__all__ = ["BUSY_SHARE", "FIRST_PAUSE", "FREE_SHARE", "LONGEST_PAUSE", "PAUSE", "WaitingThreads", "pause", "usual"]

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


def usual(cpu: float, last: float) -> float:
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
