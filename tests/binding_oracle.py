"""A brute-force model of which mapping owns an address at a time, for property tests of the binder.

Nothing here is clever: every question replays the whole history up to its time into plain lists of intervals.

The rules:

* Events apply in order of time, and in the order of the list at equal times; all events of a time come before
  a question at that time.
* A map replaces what lay in its range; of an older map the parts left and right of it survive.
  An unmap removes its range in the same way. An empty range (start >= end) does nothing.
* A fork gives the child a new life with a copy of the maps its parent has at that moment, and nothing else:
  a child pid that was known before (a reused pid) loses what it had. A fork of a pid by itself is the start
  of a thread and changes nothing. Later changes in one of the two do not show in the other.
* An exec drops all maps of the pid, its life goes on. An exit changes nothing: samples straggle in after it.
* Kernel maps belong to no process. What of one lies below the kernel half is cut off. Addresses in the kernel
  half (bit 63 set) look at kernel maps only, all others at the maps of the process only.
* Lives of a pid are numbered from 0. A fork of a pid that an earlier event has named, in any role, begins the next
  life; the first event that names a pid begins life 0, and so does a question about a pid no event has named yet.
  Questions themselves never make a pid known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import strategies as st

KERNEL_HALF = 1 << 63
END = 1 << 64


@dataclass(frozen=True)
class Map:
    """The process maps [start, end); `tag` says which mapping it is."""

    time: int
    pid: int
    start: int
    end: int
    tag: int


@dataclass(frozen=True)
class Unmap:
    time: int
    pid: int
    start: int
    end: int


@dataclass(frozen=True)
class Fork:
    time: int
    parent: int
    child: int


@dataclass(frozen=True)
class Exec:
    time: int
    pid: int


@dataclass(frozen=True)
class Exit:
    time: int
    pid: int


@dataclass(frozen=True)
class KernelMap:
    time: int
    start: int
    end: int
    tag: int


Event = Map | Unmap | Fork | Exec | Exit | KernelMap


@dataclass(frozen=True)
class Query:
    pid: int
    addr: int
    time: int


class Answer(NamedTuple):
    """The tag of the mapping that owns the address (None: nobody), and the life of the pid it was asked for."""

    tag: int | None
    life: int


class Interval(NamedTuple):
    start: int
    end: int
    tag: int


class Spaces:
    """All address spaces at one moment."""

    def __init__(self) -> None:
        self.kernel: list[Interval] = []
        self.maps: dict[int, list[Interval]] = {}
        self.lives: dict[int, int] = {}

    def apply(self, event: Event) -> None:
        match event:
            case KernelMap(_, start, end, tag):
                self.kernel = put(self.kernel, max(start, KERNEL_HALF), end, tag)
            case Map(_, pid, start, end, tag):
                self.know(pid)
                self.maps[pid] = put(self.maps[pid], start, end, tag)
            case Unmap(_, pid, start, end):
                self.know(pid)
                self.maps[pid] = cut(self.maps[pid], start, end)
            case Fork(_, parent, child):
                self.know(parent)
                if child in self.lives and child != parent:
                    self.lives[child] += 1
                self.know(child)
                self.maps[child] = list(self.maps[parent])
            case Exec(_, pid):
                self.know(pid)
                self.maps[pid] = []
            case Exit(_, pid):
                self.know(pid)

    def know(self, pid: int) -> None:
        """The pid has been named."""
        self.lives.setdefault(pid, 0)
        self.maps.setdefault(pid, [])

    def ask(self, pid: int, addr: int) -> Answer:
        intervals = self.kernel if addr >= KERNEL_HALF else self.maps.get(pid, [])
        owners = [interval.tag for interval in intervals if interval.start <= addr < interval.end]
        assert len(owners) <= 1, "intervals never overlap"
        return Answer(owners[0] if owners else None, self.lives.get(pid, 0))


def cut(intervals: list[Interval], start: int, end: int) -> list[Interval]:
    """What is left of the intervals outside [start, end)."""
    if start >= end:
        return list(intervals)
    left = [Interval(one.start, min(one.end, start), one.tag) for one in intervals]
    right = [Interval(max(one.start, end), one.end, one.tag) for one in intervals]
    return [one for one in left + right if one.start < one.end]


def put(intervals: list[Interval], start: int, end: int, tag: int) -> list[Interval]:
    """The intervals with [start, end) now belonging to `tag`."""
    return [*cut(intervals, start, end), Interval(start, end, tag)] if start < end else list(intervals)


def spaces_at(events: Sequence[Event], time: int) -> Spaces:
    """The state after all events up to and including `time`."""
    spaces = Spaces()
    for event in sorted(events, key=lambda event: event.time):  # a stable sort: the list's order breaks ties
        if event.time <= time:
            spaces.apply(event)
    return spaces


def bind(events: Sequence[Event], query: Query) -> Answer:
    """Who owns the address of the query at its time, and in which life of the pid."""
    return spaces_at(events, query.time).ask(query.pid, query.addr)


class History(NamedTuple):
    """Events, in the order in which a file would hold them, and questions about them."""

    events: list[Event]
    queries: list[Query]


TIMES = st.integers(0, 9)
PIDS = st.integers(1, 3)
PAGES = st.integers(0, 8)
BASES = st.sampled_from([0, 0, 0, KERNEL_HALF])


@st.composite
def _range(draw: st.DrawFn, base: int) -> tuple[int, int]:
    """A small range above base; now and then an empty one, and now and then one that reaches up to the end."""
    first, last = sorted((draw(PAGES), draw(PAGES)))
    if draw(st.integers(0, 30)) == 0:
        return base + first, base + KERNEL_HALF
    return base + first, base + last + draw(st.sampled_from([0, 1, 1, 1]))


@st.composite
def _event(draw: st.DrawFn, tag: int, time: int) -> Event:
    kind = draw(st.sampled_from(["map"] * 6 + ["unmap", "fork", "fork", "fork", "exec", "exit", "kernel", "kernel"]))
    pid = draw(PIDS)
    match kind:
        case "map":
            return Map(time, pid, *draw(_range(0)), tag)
        case "unmap":
            return Unmap(time, pid, *draw(_range(0)))
        case "fork":
            return Fork(time, pid, draw(PIDS))
        case "exec":
            return Exec(time, pid)
        case "exit":
            return Exit(time, pid)
    start, end = draw(_range(KERNEL_HALF))
    if draw(st.integers(0, 3)) == 0:
        start = draw(PAGES)  # old perf: a kernel map that begins in user space
    return KernelMap(time, start, end, tag)


@st.composite
def address_space_histories(draw: st.DrawFn, max_events: int = 30, max_queries: int = 30) -> History:
    """Random histories over so few pids, pages and moments that everything collides; times tie often.

    Every map has its own tag. The events come in order of time, as a reader that sorts would hand them on.
    """
    count = draw(st.integers(0, max_events))  # lists alone would mostly be short, and little would collide
    times = sorted(draw(st.lists(TIMES, min_size=count, max_size=count)))
    events = [draw(_event(tag, time)) for tag, time in enumerate(times)]
    query = st.builds(
        Query, st.integers(1, 4), st.builds(lambda base, page: base + page, BASES, st.integers(0, 9)), TIMES
    )
    return History(events, draw(st.lists(query, min_size=min(8, max_queries), max_size=max_queries)))
