"""Sanity of the binding oracle itself: each rule once, by hand, and what must hold for every history."""

from __future__ import annotations

import itertools

from hypothesis import given, settings

from binding_oracle import (
    GUEST_KERNEL,
    GUEST_USER,
    HYPERVISOR,
    KERNEL,
    KERNEL_HALF,
    UNKNOWN,
    USER,
    Answer,
    Event,
    Exec,
    Exit,
    Fork,
    GuestMap,
    History,
    KernelMap,
    Map,
    Query,
    Unmap,
    address_space_histories,
    bind,
    spaces_at,
)


def ask(events: list[Event], pid: int, addr: int, time: int = 99, mode: int = USER) -> Answer:
    return bind(events, Query(pid, addr, time, mode))


def tags(events: list[Event], pid: int, upto: int = 10, time: int = 99, base: int = 0) -> list[int | None]:
    return [ask(events, pid, base + addr, time).tag for addr in range(upto)]


def test_newest_map_wins_and_the_rest_survives() -> None:
    events: list[Event] = [Map(1, 1, 0, 10, 7), Map(2, 1, 3, 5, 8)]
    assert tags(events, 1) == [7, 7, 7, 8, 8, 7, 7, 7, 7, 7]
    assert tags(events, 1, time=1) == [7] * 10
    assert tags(events, 1, time=0) == [None] * 10
    assert tags(events, 2) == [None] * 10


def test_unmap_leaves_a_hole_and_empty_ranges_do_nothing() -> None:
    events: list[Event] = [Map(1, 1, 0, 6, 7), Unmap(2, 1, 2, 4), Map(3, 1, 5, 5, 8), Unmap(3, 1, 1, 1)]
    assert tags(events, 1, 7) == [7, 7, None, None, 7, 7, None]


def test_order_of_the_list_breaks_ties_and_events_precede_queries_of_their_time() -> None:
    events: list[Event] = [Map(5, 1, 0, 2, 1), Map(5, 1, 0, 1, 2)]
    assert tags(events, 1, 2, time=5) == [2, 1]
    assert tags(events[::-1], 1, 2, time=5) == [1, 1]
    assert tags([Map(9, 1, 0, 1, 3), Map(1, 1, 0, 1, 4)], 1, 1) == [3]


def test_fork_copies_at_that_moment() -> None:
    events: list[Event] = [Map(1, 1, 0, 4, 7), Fork(2, 1, 2), Map(3, 1, 0, 2, 8), Map(3, 2, 2, 4, 9)]
    assert tags(events, 1, 4) == [8, 8, 7, 7]
    assert tags(events, 2, 4) == [7, 7, 9, 9]
    assert ask(events, 2, 0).life == 0


def test_fork_of_a_known_pid_is_a_new_life_that_forgets_the_old_maps() -> None:
    events: list[Event] = [Map(1, 1, 0, 2, 7), Map(1, 2, 0, 4, 8), Exit(2, 2), Fork(3, 1, 2)]
    assert ask(events, 2, 3, 2) == (8, 0)
    assert ask(events, 2, 0, 3) == (7, 1)
    assert ask(events, 2, 3, 3) == (None, 1)
    assert ask([*events, Fork(3, 2, 1)], 1, 0, 3) == (7, 1)


def test_thread_start_changes_nothing() -> None:
    assert ask([Map(1, 1, 0, 2, 7), Fork(2, 1, 1)], 1, 0) == (7, 0)


def test_exec_drops_maps_and_exit_keeps_them() -> None:
    events: list[Event] = [Map(1, 1, 0, 2, 7), Exit(2, 1), Exec(4, 1), Map(4, 1, 1, 2, 8)]
    assert ask(events, 1, 0, 3) == (7, 0)
    assert tags(events, 1, 2, time=4) == [None, 8]
    assert ask(events, 1, 1).life == 0


def test_unknown_pids_have_life_0() -> None:
    assert ask([], 3, 0) == (None, 0)
    assert ask([Fork(1, 2, 3)], 3, 0) == (None, 0)
    assert ask([Fork(1, 3, 2), Fork(1, 2, 3)], 3, 0).life == 1, "having been a parent makes a pid known"


def test_kernel_maps_are_global_clipped_and_apart() -> None:
    top = KERNEL_HALF
    events: list[Event] = [Map(1, 1, 0, 1 << 64, 5), KernelMap(1, 0, top + 4, 6), KernelMap(2, top + 1, top + 2, 7)]
    assert tags(events, 1, 5, base=top) == tags(events, 9, 5, base=top) == [6, 7, 6, 6, None]
    assert tags(events, 1, 2) == [5, 5]
    assert tags(events, 9, 2) == [None, None]
    assert ask(events, 1, top - 1).tag == 5
    assert tags([*events, Exec(3, 1)], 1, 3, base=top) == [6, 7, 6]
    assert tags([KernelMap(1, 3, top, 6)], 1) == [None] * 10


def test_low_kernels_are_known_by_their_maps() -> None:
    """A 32-bit kernel from 6 on, whose user maps one page above that, and one with a space of its own."""
    events: list[Event] = [KernelMap(1, 6, 9, 6), Map(1, 1, 0, 4, 5), Map(1, 1, 8, 9, 7)]
    found = {m: [ask(events, 1, addr, mode=m).tag for addr in range(10)] for m in (UNKNOWN, KERNEL, USER)}
    assert found[UNKNOWN] == [5, 5, 5, 5, None, None, 6, 6, 6, None]
    assert found[KERNEL] == [5, 5, 5, 5, None, None, 6, 6, 6, None]
    assert found[USER] == [5, 5, 5, 5, None, None, 6, 6, 7, None]
    own: list[Event] = [KernelMap(1, 1, 9, 6), Map(1, 1, 2, 4, 5)]
    assert [ask(own, 1, 3, mode=m).tag for m in (KERNEL, USER, HYPERVISOR)] == [6, 5, None]


def test_guests_have_spaces_of_their_own() -> None:
    events: list[Event] = [
        KernelMap(1, 6, 9, 6),
        KernelMap(1, 6, 9, 10, 0),
        KernelMap(1, 6, 9, 12, 2),
        GuestMap(1, 1, 0, 4, 11),
        Map(1, 1, 0, 4, 5),
    ]
    found = [
        ask(events, pid, addr, mode=m).tag for pid in (1, 2) for addr in (2, 7) for m in (GUEST_KERNEL, GUEST_USER)
    ]
    assert found == [11, 11, 10, 10, None, None, 12, 12]
    only: list[Event] = [KernelMap(1, 6, 9, 12, 2)]
    assert ask(only, 1, 7, mode=GUEST_KERNEL).tag == 12
    assert ask(only, 1, 7, mode=KERNEL).tag is None


@settings(max_examples=100, deadline=None)
@given(address_space_histories())
def test_the_latest_map_that_covers_an_address_is_the_only_candidate(history: History) -> None:
    """With no fork, exec or unmap the oracle is just "the last map that covers it": a second, other way to say it."""
    events = [event for event in history.events if isinstance(event, Map | KernelMap)]
    for query in history.queries:
        last = None
        for event in events:
            kernel = isinstance(event, KernelMap)
            mine = kernel == (query.addr >= KERNEL_HALF) and (isinstance(event, KernelMap) or event.pid == query.pid)
            if mine and event.time <= query.time and event.start <= query.addr < event.end:
                last = event.tag
        assert bind(events, query).tag == last


@settings(max_examples=100, deadline=None)
@given(address_space_histories())
def test_histories_are_in_time_order_and_spaces_never_overlap(history: History) -> None:
    times = [event.time for event in history.events]
    assert times == sorted(times)
    for time in set(times):
        spaces = spaces_at(history.events, time)
        for intervals in (*spaces.kernels.values(), *spaces.maps.values()):
            ordered = sorted(intervals)
            assert all(one.start < one.end for one in ordered)
            assert all(one.end <= two.start for one, two in itertools.pairwise(ordered))
        assert all(interval.start >= KERNEL_HALF for interval in spaces.kernels[None])
