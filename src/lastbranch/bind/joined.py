"""Several captures as one profile.

Modules with one identity are merged, wherever they were mapped. Processes, threads and streams stay apart by capture.
Events of one name are merged if their samples have the same fields. Times of different machines do not compare, so each
capture counts its own from its start. Addresses are bound by the binder of their capture, whose scopes and mappings
have numbers of their own here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import accumulate, pairwise
from math import gcd
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import Damage, SelectionError
from ..lbr import call_stack_mode, no_call_stacks_because, no_ranges_because
from ..model import (
    Array,
    Capture,
    Change,
    Clock,
    Event,
    Load,
    Machine,
    Module,
    ModuleKind,
    Process,
    Profile,
    Rows,
    SampleBatch,
    SampleStream,
    Thread,
    Timeline,
    visible,
)
from .binder import Binder, bind

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["JoinedProfile", "OpenedCapture", "join", "rebind"]

_Row = TypeVar("_Row")
_Fields = TypeVar("_Fields", bound="DataclassInstance")
_LAST = np.iinfo(np.int64).max
"""The watermark of a last batch."""


# -- Modules: one row for each build


class SharedModules:
    """The modules of all captures, each once, as rows of ``modules``.

    Modules with equal `Module.identity` are merged, and so are modules with the same attached file. Memory without a
    file is one by name, since its addresses count by process. Other modules may or may not be the same in two captures,
    so each capture keeps its own.
    """

    def __init__(self) -> None:
        self.modules: list[Module] = []
        self._rows: dict[Hashable, int] = {}
        self._unknown: Counter[str] = Counter()

    def add(self, modules: list[Module], attach: Callable[[list[Module]], None]) -> NDArray[np.int64]:
        """int64: the merged row of each of the ``modules`` of one capture, followed by the row of no module, -1.
        ``attach`` gives modules their binaries."""
        attach([module for module in modules if self._can_help(module)])
        rows = [self._row(module) for module in modules]
        unknown = (m for m in modules if m.kind is not ModuleKind.VDSO and not any(_keys(m)))
        self._unknown.update({module.short for module in unknown})
        modules[:] = [self.modules[row] for row in rows]
        return np.array([*rows, -1], np.int64)

    @property
    def notes(self) -> list[str]:
        """Which modules of several captures may be the same, and are not one."""
        names = sorted(name for name, captures in self._unknown.items() if captures > 1)
        if not names:
            return []
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        why = "no build id or PDB shows whether they are the same file everywhere"
        return [f"modules that count by capture, as {why}: {', '.join(map(visible, names[:_NAMED]))}{more}"]

    def _find_known(self, module: Module) -> Module | None:
        return next((self.modules[self._rows[key]] for key in _keys(module) if key in self._rows), None)

    def _can_help(self, module: Module) -> bool:
        """Whether its binary is not known yet, or was not found at the path of another capture."""
        known = self._find_known(module)
        return known is None or bool(known.missing and known.name != module.name)

    def _row(self, module: Module) -> int:
        keys = [*_keys(module)]
        row = next((self._rows[key] for key in keys if key in self._rows), len(self.modules))
        if row == len(self.modules):
            self.modules.append(module)
        elif module.binary and not self.modules[row].binary:
            known = self.modules[row]
            known.binary, known.segments, known.missing = module.binary, module.segments, ""
            known.image_base, known.unverified = module.image_base, module.unverified
        for key in keys:
            self._rows.setdefault(key, row)
        return row


_NAMED = 3


def _keys(module: Module) -> Iterator[Hashable]:
    """The key by which modules are merged."""
    if module.kind is ModuleKind.ANONYMOUS:
        yield module.kind, module.name
    if module.identity:
        yield module.kind, module.identity
    if module.binary:
        yield module.kind, module.binary


# -- Events: one row for each that holds the same in its samples


def _shared_events(captures: Sequence[Sequence[Event]]) -> tuple[list[Event], list[NDArray[np.int32]]]:
    """(the distinct events, the row of each event of each capture)."""
    same: dict[Hashable, list[Event]] = {}
    rows = []
    for events in captures:
        keys = [_contents(event) for event in events]
        for key, event in zip(keys, events, strict=True):
            same.setdefault(key, []).append(event)
        rows.append(keys)
    number = {key: row for row, key in enumerate(same)}
    return [_common_event(events) for events in same.values()], [
        np.array([number[key] for key in keys], np.int32) for keys in rows
    ]


def _contents(event: Event) -> Hashable:
    """The fields of an event's samples, which decide the questions that they can answer. At which rate they were taken
    is in their periods."""
    select, kind = event.branch_select, event.branch_select_kind
    if select is None:
        return event.name, event.has_callchain
    without = no_ranges_because(kind, select), no_call_stacks_because(select, kind), call_stack_mode(kind, select)
    return event.name, event.has_callchain, without


def _common_event(events: Sequence[Event]) -> Event:
    common = _common(Event(events[0].name), events)
    first = events[0]  # selections that differ mean the same
    common.branch_select, common.branch_select_kind = first.branch_select, first.branch_select_kind
    if not (common.period or common.has_period):
        common.has_period = all(event.period or event.has_period for event in events)
        common.period = 0
    return common


def _common(blank: _Fields, rows: Iterable[_Fields]) -> _Fields:
    """``blank`` with those fields that are equal in all ``rows``."""
    rows = [*rows]
    for one in fields(blank):
        values = [getattr(row, one.name) for row in rows]
        if all(value == values[0] for value in values):
            setattr(blank, one.name, values[0])
    return blank


# -- A capture among others


@dataclass(eq=False)
class Member:
    """A capture, and where its rows are in the tables of all."""

    profile: Profile
    weight: int
    rows: NDArray[np.int64]
    """The row of each of its modules, and -1."""
    rest: Callable[[], None]
    """Lets go of the file until it is read again."""
    events: NDArray[np.int32] = field(init=False)
    periods: NDArray[np.uint64] | None = field(init=False, default=None)
    """What samples of each of its events stand for, where they do not say it and others of the event do."""
    ticks: tuple[int, int] = field(init=False, default=(1, 1))
    """Of the common clock, in so many of its own."""
    gathered: int = field(init=False, default=0)
    """How many of its places of damage the joined profile has taken over."""

    @property
    def start(self) -> int:
        """Its own tick at which its time begins."""
        first = self.profile.first_time if self.profile.start is None else self.profile.start
        return first or 0

    def common_time(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """Its ticks as those of the common clock, which counts from the start of each capture."""
        return _scale(own - self.start, *self.ticks)

    def own_time(self, common: NDArray[np.int64]) -> NDArray[np.int64]:
        """`common_time` back. The common clock is at least as fast, so no two ticks became one."""
        return self.start - _scale(-common, *self.ticks[::-1])

    def tick(self, own: int) -> int:
        return int(self.common_time(np.array([own], np.int64))[0])

    def moment(self, own: int | None) -> int | None:
        return None if own is None else self.tick(own)

    def gather(self, damage: list[Damage]) -> None:
        """Have ``damage`` of the joined profile list what could not be read here, as far as that is known by now."""
        own = self.profile
        damage += [replace(one, file=own.name) for one in own.damage[self.gathered :]]
        self.gathered = len(own.damage)

    def own_batch(self, batch: SampleBatch) -> SampleBatch:
        """``batch`` of the joined profile with the times of the capture, for its binder."""
        return batch.replaced(time=self.own_time(batch.time))


def _scale(ticks: NDArray[np.int64], many: int, of: int) -> NDArray[np.int64]:
    """``ticks * many / of``, rounded down; exact as long as the result fits in 64 bits."""
    if many == of:
        return ticks
    common = gcd(many, of)
    many, of = many // common, of // common
    if many * of < 1 << 63:
        whole, part = np.divmod(ticks, of)
        scaled: NDArray[np.int64] = whole * many + part * many // of
        return scaled
    return np.array([int(t) * many // of for t in ticks.tolist()], np.int64)


# -- The binder of all captures: the scopes and mappings of each capture follow those of the captures before


class JoinedSpaces:
    """The address spaces of ``members``. A batch belongs to one capture, like its stream."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members, self._binders = members, [*map(_binder_of, members)]
        self._scoped: tuple[SampleBatch, NDArray[np.int64]] | None = None
        self._weights = np.array([member.weight for member in members], np.int64)
        self._weighted = bool((self._weights != 1).any())
        self._scopes = _begins(binder.scope_end for binder in self._binders)
        self._mappings = _begins(len(binder.mapping_module) for binder in self._binders)
        self._processes = _begins(len(binder.processes) for binder in self._binders)
        self._threads = _begins(len(binder.threads) for binder in self._binders)
        self.processes, self.threads = _tables(members, self._binders, self._processes, self._threads)
        every = [m.rows[b.mapping_module] for m, b in zip(members, self._binders, strict=True)]
        self.mapping_module: Array = np.concatenate(every)
        self.mapping_bias: Array = np.concatenate([binder.mapping_bias for binder in self._binders])

    def of_process(self, process: int) -> tuple[Member, int]:
        """The capture that has row ``process``, and its own row of it."""
        capture = bisect_right(self._processes, process) - 1
        return self._members[capture], process - self._processes[capture]

    # -- samples

    def scopes(self, batch: SampleBatch) -> NDArray[np.int64]:
        """int64 scope of each sample."""
        if not len(batch):
            return np.empty(0, np.int64)
        known = self._scoped  # as `Binder` keeps it, whose own would keep a batch of each capture
        if known is None or known[0] is not batch:
            capture = int(batch["capture"][0])
            own = self._binders[capture].new_scopes(self._members[capture].own_batch(batch))
            known = self._scoped = batch, own + self._scopes[capture]
        return known[1]

    def weights_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64] | int:
        """int64: the weight of the capture of each scope; 1 where all count once."""
        return self._weights[self._captures(scope)] if self._weighted else 1

    def process_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 row of the processes table for each scope, -1 unknown."""
        out = np.empty(len(scope), np.int64)
        for capture, rows in self._parts(scope):
            found = self._binders[capture].process_of(scope[rows] - self._scopes[capture])
            out[rows] = _shift_rows(found, self._processes[capture])
        return out

    def threads_of(self, batch: SampleBatch, scope: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 row of the threads table for each sample, -1 unknown."""
        if not len(batch):
            return np.empty(0, np.int64)
        capture = int(batch["capture"][0])
        own = self._members[capture].own_batch(batch)
        return _shift_rows(
            self._binders[capture].threads_of(own, scope - self._scopes[capture]), self._threads[capture]
        )

    # -- addresses

    def find(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> NDArray[np.int64]:
        """int64 mapping that owns each address in each scope, -1 where nothing is mapped."""
        out = np.empty(len(scope), np.int64)
        for capture, rows in self._parts(scope):
            found = self._binders[capture].find(scope[rows] - self._scopes[capture], address[rows])
            out[rows] = _shift_rows(found, self._mappings[capture])
        return out

    def in_kernel(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool: whether each address is one of the kernel of the machine that ran, the host or a guest."""
        out = np.empty(len(scope), bool)
        for capture, rows in self._parts(scope):
            out[rows] = self._binders[capture].in_kernel(scope[rows] - self._scopes[capture], address[rows])
        return out

    def locate(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Array]:
        """(int64 module row or -1, uint64 module address) of each address; unmapped ones keep their own address."""
        module, at = np.empty(len(scope), np.int64), np.empty(len(scope), np.uint64)
        for capture, rows in self._parts(scope):
            found, at[rows] = self._binders[capture].locate(scope[rows] - self._scopes[capture], address[rows])
            module[rows] = self._members[capture].rows[found]
        return module, at

    def loads(self) -> Iterator[Load]:
        """Every mapping in every process that saw it, inherited mappings included, capture after capture."""
        for member, binder in zip(self._members, self._binders, strict=True):
            for load in binder.loads():
                first, last = member.moment(load.first), member.moment(load.last)
                yield load._replace(module=int(member.rows[load.module]), first=first, last=last)

    def _captures(self, scope: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._scopes, scope, side="right") - 1

    def _parts(self, scope: NDArray[np.int64]) -> Iterator[tuple[int, Array | slice]]:
        """(capture, places of its scopes); mostly they are all of one."""
        if not len(scope):
            return
        low, high = self._captures(np.array([scope.min(), scope.max()])).tolist()
        if low == high:
            yield low, slice(None)
            return
        capture = self._captures(scope)
        order = np.argsort(capture, kind="stable")
        bounds = np.searchsorted(capture[order], np.arange(low, high + 2)).tolist()
        for at, (first, past) in enumerate(pairwise(bounds), low):
            if first < past:
                yield at, order[first:past]


def _binder_of(member: Member) -> Binder:
    binder = member.profile.binder
    assert isinstance(binder, Binder)
    return binder


def _begins(sizes: Iterable[int]) -> list[int]:
    """The first number of each capture, and the end of the last."""
    return [0, *accumulate(sizes)]


def _tables(
    members: Sequence[Member], binders: Sequence[Binder], processes: list[int], threads: list[int]
) -> tuple[Sequence[Process], Sequence[Thread]]:
    """The processes and threads of all captures, whose rows begin at those of the lists. They hold what they are made
    of and not `JoinedSpaces`, which has them: Python frees a cycle late."""

    def process(capture: int, row: int) -> Process:
        member, found = members[capture], binders[capture].processes[row]
        return replace(found, start=member.moment(found.start), end=member.moment(found.end), capture=capture)

    def thread(capture: int, row: int) -> Thread:
        member, found = members[capture], binders[capture].threads[row]
        of = found.process + processes[capture] if found.process >= 0 else -1
        return replace(found, process=of, start=member.moment(found.start), end=member.moment(found.end))

    return _concatenate(processes, process), _concatenate(threads, thread)


def _concatenate(begins: list[int], make: Callable[[int, int], _Row]) -> Rows[_Row]:
    """The rows of all captures; ``make`` gets a capture and a row of its own."""

    def row(number: int) -> _Row:
        capture = bisect_right(begins, number) - 1
        return make(capture, number - begins[capture])

    return Rows(begins[-1], row)


def _shift_rows(rows: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    """Rows, but for -1, counted from ``by``."""
    return np.where(rows >= 0, rows + by, -1)


# -- The profile


@dataclass(eq=False, repr=False)
class JoinedProfile(Profile):
    """Captures that were opened together. ``lastbranch.open`` of several makes it."""

    members: list[Member] = field(default_factory=list)

    @property
    def captures(self) -> list[Capture]:
        """The captures in the order in which they were opened."""
        return [replace(member.profile.captures[0], weight=member.weight) for member in self.members]

    def weight_of(self, batch: SampleBatch) -> int:
        """The weight of the capture that ``batch`` is of."""
        return self.members[int(batch["capture"][0])].weight if len(batch) else 1

    @property
    def tick(self) -> int:
        """The longest tick of a capture."""
        return max(-(-common // own) for common, own in (member.ticks for member in self.members))

    def capture_of(self, process: int) -> tuple[Profile, int]:
        """The profile of the capture that has row ``process`` of the processes table, and its row there."""
        assert isinstance(self.binder, JoinedSpaces)
        member, row = self.binder.of_process(process)
        return member.profile, row


class OpenedCapture(NamedTuple):
    """A capture that was opened, and is not bound yet."""

    profile: Profile
    weight: int = 1
    rest: Callable[[], None] | None = None
    """Lets go of the file until it is read again."""


def join(
    captures: Iterable[OpenedCapture],
    attach: Callable[[Profile, list[Module]], None],
    refused: Sequence[tuple[str, Exception]] = (),
    notes: Sequence[str] = (),
) -> JoinedProfile:
    """One profile of ``captures`` (at least one).

    ``attach`` gives modules of a capture their binaries. ``refused`` are captures that could not be opened, ``notes``
    what else users should know. Raises `SelectionError` where counts would not fit in 64 bits.
    """
    shared, made = SharedModules(), list[Member]()
    for profile, weight, rest in captures:
        rows = shared.add(profile.modules, partial(attach, profile))
        made.append(Member(profile, weight, rows, rest or _nothing))
        made[-1].rest()
    profiles = [member.profile for member in made]
    _check_size(made)
    events, numbers = _shared_events([profile.events for profile in profiles])
    frequency = 0
    if all(profile.clock.has_time for profile in profiles):
        frequency = max(profile.clock.frequency for profile in profiles)
    for member, number in zip(made, numbers, strict=True):
        member.events = number
        member.ticks = (frequency, member.profile.clock.frequency) if frequency else (1, 1)
        member.periods = _periods(member.profile.events, events, number)
    joined = JoinedProfile(
        _name(profiles),
        _equal(p.format for p in profiles) or "several formats",
        _equal(p.recorder for p in profiles),
        _common(Machine(), (p.machine for p in profiles)),
        Clock("time since the start of each capture", frequency),
        shared.modules,
        events=events,
        start=0,
        members=made,
        refused=[*refused],
        notes=[*notes, *shared.notes],
    )
    for capture, member in enumerate(made):
        own = member.profile
        for stream in own.streams:
            joined.streams.append(_stream(joined, capture, member, stream, len(joined.streams)))
        if own.first_time is not None and own.last_time is not None:
            first, last = member.common_time(np.array([own.first_time, own.last_time], np.int64)).tolist()
            joined.extend_time_range(first, last)
        _extend(joined.timeline, member)
        joined.records = _sum_counts(joined.records, own.records)
        joined.lost = _sum_counts(joined.lost, own.lost)
        if own.losses:
            when, count = np.array(own.losses, np.int64).T
            joined.losses += zip(member.common_time(when).tolist(), count.tolist(), strict=True)
    joined.header = {k: v for k, v in profiles[0].header.items() if all(p.header.get(k) == v for p in profiles)}
    rebind(joined)
    return joined


def _nothing() -> None: ...


def rebind(profile: Profile) -> Profile:
    """`bind`, for a joined profile too: bind each of its captures."""
    if not isinstance(profile, JoinedProfile):
        return bind(profile)
    for member in profile.members:
        bind(member.profile)
        member.gather(profile.damage)
    profile.binder = binder = JoinedSpaces(profile.members)
    profile.processes, profile.threads = binder.processes, binder.threads
    return profile


def _name(profiles: Sequence[Profile]) -> str:
    more = len(profiles) - 1
    return f"{profiles[0].name} and {more} more" if more else profiles[0].name


def _equal(texts: Iterable[str]) -> str:
    """The text that they all are, or none."""
    distinct = {*texts}
    return distinct.pop() if len(distinct) == 1 else ""


def _sum_counts(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return one | {name: one.get(name, 0) + number for name, number in other.items()}


_MOST = 1 << 47
"""Weighted entries: with 16 bits of cycles each, their sums fit in 64 bits."""


def _check_size(members: Sequence[Member]) -> None:
    if sum(m.weight * max(m.profile.entries, m.profile.samples) for m in members) >= _MOST:
        raise SelectionError("with these weights counts do not fit in 64 bits", hint="divide all weights by a number")


def _periods(own: Sequence[Event], shared: Sequence[Event], rows: NDArray[np.int32]) -> NDArray[np.uint64] | None:
    """The fixed periods of events whose samples of other captures have their own, or other fixed ones."""
    fixed = [0 if event.has_period else event.period for event in own]
    added = [0 if shared[row].period else period for row, period in zip(rows.tolist(), fixed, strict=True)]
    return np.array(added, np.uint64) if any(added) else None


def _extend(timeline: Timeline, member: Member) -> None:
    """Add the changes of a capture. They are for those who look for mappings: its binder has replayed its own."""
    changes, names = member.profile.timeline.columns(), len(timeline.names)
    module = changes["module"]
    named = changes["kind"] == Change.NAME
    changes["module"] = np.where(named, module + names, member.rows[np.where(named, -1, module)])
    changes["time"] = member.common_time(changes["time"])
    timeline.names += member.profile.timeline.names
    timeline.extend(changes)


def _stream(joined: JoinedProfile, capture: int, member: Member, stream: SampleStream, number: int) -> SampleStream:
    """``stream`` of a capture with the rows and times of all."""
    same = bool((member.events == np.arange(len(member.events))).all())
    damage = joined.damage  # not the profile, which has the stream: they would be a cycle

    def moved(batch: SampleBatch) -> SampleBatch:
        columns: dict[str, Array] = {
            "time": member.common_time(batch.time),
            "capture": np.broadcast_to(np.int32(capture), len(batch)),
        }
        if member.periods is not None:
            columns["period"] = batch.period + member.periods[batch.event]
        if not same:
            columns["event"] = member.events[batch.event]
        return batch.replaced(**columns)

    def batches(wanted: frozenset[str] | None) -> Iterator[tuple[SampleBatch, int]]:
        try:
            for batch, watermark in stream.reader(_own(wanted)):
                yield moved(batch), watermark if watermark == _LAST else member.tick(watermark)
        finally:
            member.rest()
            member.gather(damage)

    def drawn(places: int, wanted: frozenset[str] | None) -> Iterator[SampleBatch]:
        assert stream.drawer is not None
        try:
            yield from map(moved, stream.drawer(places, _own(wanted)))
        finally:
            member.rest()

    events = tuple(dict.fromkeys(member.events[list(stream.events)].tolist()))
    columns = (*stream.columns, "capture")
    return replace(
        stream,
        number=number,
        columns=columns,
        events=events,
        reader=batches,
        capture=capture,
        drawer=drawn if stream.drawer else None,
    )


def _own(wanted: frozenset[str] | None) -> frozenset[str] | None:
    """The columns to ask a capture for."""
    return None if wanted is None else wanted - {"capture"}
