"""How often a recording that grows is looked at: each second, where neither recorder nor program waits for that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest

from lastbranch.view import growing
from lastbranch.view.growing import (
    BUSY_SHARE,
    FIRST_PAUSE,
    FREE_SHARE,
    LONGEST_PAUSE,
    PAUSE,
    WaitingThreads,
    pause,
    steady_cost,
)
from waiting import until

SPINS = "while True: pass"
linux = pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel counts no run delay")


def test_looks_take_more_where_nobody_waits_for_processors() -> None:
    assert pause(0, False, 2) == pause(0, True, 2) == PAUSE
    assert pause(0.8, False, 2) == pytest.approx(0.8 / FREE_SHARE)
    assert pause(0.1, True, 2) == pytest.approx(0.1 / (2 * BUSY_SHARE))
    assert pause(0.1, True, 8) == pytest.approx(0.1 / (8 * BUSY_SHARE))
    assert pause(1e6, False, 2) == LONGEST_PAUSE
    assert pause(0.03, True, 2) == pytest.approx(0.03 / (2 * BUSY_SHARE))
    assert 1.5 < pause(0.08, True, 2) < 2  # a short look is never far away
    assert pause(0.001, False, 2, FIRST_PAUSE) == FIRST_PAUSE < PAUSE
    assert pause(0.1, True, 2, FIRST_PAUSE) == pause(0.1, True, 2)


def test_one_look_that_takes_long_does_not_delay_the_next() -> None:
    assert [steady_cost(0.5, last) for last in (0.0, 0.1, 0.5, 0.6)] == [0.0, 0.1, 0.5, 0.5]


def test_waiting_is_held_against_running_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(
        [
            {1: (1000, 0), 2: (1000, 10)},
            {1: (2000, 0), 2: (2000, 80)},  # 70 in 2000: 3.5 %
            {1: (3000, 0), 2: (3000, 130)},  # 50 in 2000
            {2: (3000, 130), 3: (500, 20)},  # one has ended, and another has begun: 20 in 500
            {2: (3000, 130), 3: (500, 20)},
            {4: (1000, 0)},  # a kernel that does not count
        ]
    )

    def times(pids: Iterable[int]) -> Iterator[tuple[int, tuple[int, int]]]:
        assert 12345 in pids
        return iter(next(looks).items())

    monkeypatch.setattr(growing, "_times", times)
    threads = WaitingThreads()
    assert [threads.held_up([12345]) for _ in range(6)] == [False, True, False, True, False, True]


@linux
def test_programs_that_share_a_processor_wait_for_it() -> None:
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(ours)})  # what is started has the same
    spinning = []
    try:
        spinning = [subprocess.Popen([sys.executable, "-c", SPINS]) for _ in range(2)]
        threads = WaitingThreads()
        threads.held_up([])
        until(lambda: threads.held_up([one.pid for one in spinning]))
    finally:
        os.sched_setaffinity(0, ours)
        for one in spinning:
            one.kill()
            one.wait()
