"""The duty limit, with a clock of the test's own."""

from __future__ import annotations

import random

import pytest

from lastbranch.capture.software import schedule
from lastbranch.capture.software.schedule import BurstLengths, Duty


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(schedule, "time", made)
    return made


def run(duty: Duty, clock: Clock, cost: float, threads: int, seconds: float) -> tuple[float, int, int]:
    """(share of time in bursts, bursts, triggers) of ``threads`` that always run."""
    chance = random.Random(1)
    due = [clock.now + duty.first_period() / 1e9 for _ in range(threads)]
    begun, inside, bursts, triggers = clock.now, 0.0, 0, 0
    last = list(due)
    while clock.now < begun + seconds:
        i = due.index(min(due))
        clock.now = max(clock.now, due[i])
        triggers += 1
        if duty.allows():
            took = cost * chance.uniform(0.5, 1.5)
            duty.spent(took, int((clock.now - last[i]) * 1e9))
            clock.now += took
            inside, bursts, last[i] = inside + took, bursts + 1, clock.now
        due[i] = clock.now + duty.next_period() / 1e9
    return inside / (clock.now - begun), bursts, triggers


@pytest.mark.parametrize("threads", [1, 4, 64])
@pytest.mark.parametrize("cost", [0.0005, 0.002, 0.02])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_bursts_stay_within_their_share_and_use_it(share: float, cost: float, threads: int, clock: Clock) -> None:
    duty = Duty(share)
    found, bursts, triggers = run(duty, clock, cost, threads, 60)
    assert found <= share * 1.05
    assert found >= share * 0.5
    assert (triggers - bursts) / 60 < 100, "a trigger without a burst costs 50 microseconds, too"


def test_waiting_for_a_processor_is_no_cost_of_a_burst(clock: Clock) -> None:
    """With four times the time for everything a program gets as many bursts for its CPU time."""
    idle, busy, same = Duty(0.05), Duty(0.05), Duty(0.05)
    for _ in range(100):
        assert idle.spent(0.004, 80_000_000) == 0.004
        assert busy.spent(0.016, 80_000_000, waited=0.012) == pytest.approx(0.0056)
        assert same.spent(0.004, 80_000_000, waited=0.0003) == 0.004, "so much takes each switch"
        clock.now += 0.32
    assert busy.period == pytest.approx(idle.period * 1.4, rel=0.01)
    assert same.period == idle.period
    assert same.spent(0.01, 80_000_000, waited=0.015) == pytest.approx(0.001)


def test_where_many_wait_for_the_limit_one_is_there_when_it_allows_a_burst(clock: Clock) -> None:
    duty = Duty(0.05)
    duty.lost(1.0)
    assert not duty.allows()
    alone = duty.next_period()
    for _ in range(47):
        assert not duty.allows()
    assert duty.next_period() < alone / 10
    clock.now += 30
    assert duty.allows()


def test_a_fixed_period_is_kept_and_the_limit_still_holds(clock: Clock) -> None:
    duty = Duty(0.05, 1_000_000)
    assert all(750_000 <= duty.next_period() <= 1_250_000 for _ in range(100))
    found, _, _ = run(duty, clock, 0.002, 4, 20)
    assert found <= 0.053
    assert duty.period == 1_000_000


def test_first_periods_are_anywhere(clock: Clock) -> None:
    duty = Duty(0.05, 1_000_000)
    found = [duty.first_period() for _ in range(1000)]
    assert min(found) < 50_000
    assert max(found) > 950_000
    assert abs(sum(found) / 1000 - 500_000) < 50_000


def test_time_that_nobody_used_is_not_saved_up(clock: Clock) -> None:
    duty = Duty(0.05)
    clock.now += 3600
    assert duty.allows()
    duty.spent(0.101, 0)
    assert not duty.allows()


@pytest.mark.parametrize(("spent", "fewest", "most"), [(0.0, 32, 96), (1.0, 200, 600), (100.0, 352, 1056)])
def test_bursts_get_longer_with_the_time_that_was_spent(spent: float, fewest: int, most: int) -> None:
    lengths = BurstLengths()
    drawn = [lengths.next(spent) for _ in range(20_000)]
    assert all(length == followed for length, followed in drawn)
    found = [length for length, _ in drawn]
    assert (min(found), max(found)) == (fewest, most)
    assert max(found) <= lengths.most
    assert sum(found) / len(found) == pytest.approx((fewest + most) / 2, rel=0.02)


@pytest.mark.parametrize(("spent", "most"), [(0.0, 96), (100.0, 288)])
def test_bursts_that_can_be_foreseen_are_long_and_others_grow(spent: float, most: int) -> None:
    drawn = [BurstLengths(cheap=True).next(spent) for _ in range(20_000)]
    assert {min(length for length, _ in drawn), max(length for length, _ in drawn)} == {352, 1056}
    assert max(followed for _, followed in drawn) == most


@pytest.mark.parametrize("cheap", [False, True])
def test_a_fixed_range_of_lengths_is_kept(cheap: bool) -> None:
    lengths = BurstLengths((5, 7), cheap=cheap)
    drawn = {lengths.next(spent) for spent in (0.0, 1.0, 100.0) for _ in range(100)}
    assert drawn == {(5, 5), (6, 6), (7, 7)}
    assert lengths.most == 7
