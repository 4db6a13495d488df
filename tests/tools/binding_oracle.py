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
* Kernel maps belong to no process. The part of a kernel map below the upper half (bit 63 set) is cut off if the map
  reaches the upper half. Kernel addresses begin at the upper half if any kernel map of the whole history reaches the
  upper half (or there is none), else at the lowest start of all kernel maps: a 32-bit kernel, or a kernel with a space
  of its own.
* If the kernel has the upper half, the address alone decides whose maps are asked, the kernel's or the process's.
* Elsewhere the mode of the processor does, which is part of the question. In kernel mode the kernel's maps are asked,
  in user mode the maps of the process, in unknown mode the maps of the address's side. If these maps do not own the
  address, and the address belongs to the other side, the other side's maps are asked.
* In hypervisor mode nobody owns anything.
* A guest has maps of its own kernel, by the process that runs it (0: not known), and of its processes. A question in
  guest mode asks the maps of the guest of its pid; a pid without a guest has guest 0, or the only guest there is.
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
    guest: int | None = None
    """Which guest's kernel it is in; None: the host's."""


@dataclass(frozen=True)
class GuestMap:
    """A process inside of a guest, whose samples have the id `pid`, maps [start, end)."""

    time: int
    pid: int
    start: int
    end: int
    tag: int


Event = Map | Unmap | Fork | Exec | Exit | KernelMap | GuestMap
UNKNOWN, KERNEL, USER, HYPERVISOR, GUEST_KERNEL, GUEST_USER = range(6)


@dataclass(frozen=True)
class Query:
    pid: int
    addr: int
    time: int
    mode: int = USER


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
        self.kernels: dict[int | None, list[Interval]] = {None: []}
        self.guests: dict[int, list[Interval]] = {}
        self.maps: dict[int, list[Interval]] = {}
        self.lives: dict[int, int] = {}

    def apply(self, event: Event) -> None:
        match event:
            case KernelMap(_, start, end, tag, guest):
                start = max(start, KERNEL_HALF) if end >= KERNEL_HALF else start
                self.kernels[guest] = put(self.kernels.get(guest, []), start, end, tag)
            case GuestMap(_, pid, start, end, tag):
                self.guests[pid] = put(self.guests.get(pid, []), start, end, tag)
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

    def ask(self, query: Query, events: Sequence[Event]) -> Answer:
        machine, user = None, self.maps.get(query.pid, [])
        if query.mode in (GUEST_KERNEL, GUEST_USER):
            machine, user = guest_of(query.pid, events), self.guests.get(query.pid, [])
        sides = {True: self.kernels.get(machine, []), False: user}
        start = kernel_start(events, machine)
        above = query.addr >= start
        first = above if query.mode == UNKNOWN or start == KERNEL_HALF else query.mode in (KERNEL, GUEST_KERNEL)
        for side in () if query.mode == HYPERVISOR else (first, above):
            owners = [one.tag for one in sides[side] if one.start <= query.addr < one.end]
            assert len(owners) <= 1, "intervals never overlap"
            if owners:
                return Answer(owners[0], self.lives.get(query.pid, 0))
        return Answer(None, self.lives.get(query.pid, 0))


def guest_of(pid: int, events: Sequence[Event]) -> int:
    guests = {e.guest for e in events if isinstance(e, KernelMap) and e.guest is not None}
    only = next(iter(guests)) if len(guests) == 1 else 0
    return pid if pid in guests else 0 if 0 in guests else only


def kernel_start(events: Sequence[Event], guest: int | None) -> int:
    """The lowest kernel address of the host (None) or of a guest, by what is really mapped there."""
    maps = [e for e in events if isinstance(e, KernelMap) and e.guest == guest and e.start < e.end]
    return KERNEL_HALF if any(e.end >= KERNEL_HALF for e in maps) else min((e.start for e in maps), default=KERNEL_HALF)


def cut(intervals: list[Interval], start: int, end: int) -> list[Interval]:
    """The rest of the intervals outside [start, end)."""
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
    return spaces_at(events, query.time).ask(query, events)


class History(NamedTuple):
    """Events, in the order of a file, and questions about the events."""

    events: list[Event]
    queries: list[Query]


TIMES = st.integers(0, 9)
PIDS = st.integers(1, 3)
PAGES = st.integers(0, 8)
MODES = st.sampled_from([UNKNOWN, KERNEL, USER, HYPERVISOR, GUEST_KERNEL, GUEST_USER])
HALVES = (KERNEL_HALF, 12, 4)
"""The places of the kernel's maps: in the upper half, above the user's as on 32 bits, or among the user's addresses."""


@st.composite
def _range(draw: st.DrawFn, base: int) -> tuple[int, int]:
    """A small range above base; now and then an empty range, or a range that reaches up to the end."""
    first, last = sorted((draw(PAGES), draw(PAGES)))
    if draw(st.integers(0, 30)) == 0:
        return base + first, base + (KERNEL_HALF if base in (0, KERNEL_HALF) else 1 << 20)
    return base + first, base + last + draw(st.sampled_from([0, 1, 1, 1]))


@st.composite
def _event(draw: st.DrawFn, tag: int, time: int, half: int, guests: bool) -> Event:
    kinds = ["map"] * 6 + ["unmap", "fork", "fork", "fork", "exec", "exit", "kernel", "kernel"]
    kind = draw(st.sampled_from(kinds + ["guest"] * 4 * guests))
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
    guest = draw(st.sampled_from([0, 1, 2])) if kind == "guest" else None
    if guest is not None and draw(st.booleans()):
        return GuestMap(time, pid, *draw(_range(0)), tag)
    start, end = draw(_range(half))
    if half == KERNEL_HALF and draw(st.integers(0, 3)) == 0:
        start = draw(PAGES)  # old perf: a kernel map that begins in user space
    return KernelMap(time, start, end, tag, guest)


@st.composite
def address_space_histories(
    draw: st.DrawFn, max_events: int = 30, max_queries: int = 30, half: int = KERNEL_HALF, guests: bool = False
) -> History:
    """Random histories over so few pids, pages and moments that everything collides; times tie often.

    Every map has its own tag. The events come in order of time, as a reader that sorts would hand them on.
    """
    count = draw(st.integers(0, max_events))  # lists alone would mostly be short, and little would collide
    times = sorted(draw(st.lists(TIMES, min_size=count, max_size=count)))
    events = [draw(_event(tag, time, half, guests)) for tag, time in enumerate(times)]
    bases = st.sampled_from([0, 0, 0, half])
    modes = MODES if guests else st.sampled_from([UNKNOWN, KERNEL, USER])
    address = st.builds(lambda base, page: base + page, bases, st.integers(0, 9))
    query = st.builds(Query, st.integers(1, 4), address, TIMES, modes)
    return History(events, draw(st.lists(query, min_size=min(8, max_queries), max_size=max_queries)))
