"""Events, from the request to the open set: attributes, negotiation of their optional parts, sets with ring buffers.

A kernel refuses an attribute as a whole. So `negotiate` drops its optional parts (branch types, the hardware index, a
more precise address, loss counters) until the rest opens, and then tries to take them back.
"""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ... import lbr
from ...closing import on_failure
from ...errors import UnavailableError
from ...formats.perfdata.layout import HARDWARE_EVENTS, READ, RECORD, SAMPLE, SOFTWARE_EVENTS, TYPE
from ..process_groups import ProcessGroup
from .event_names import EventChoice, Pmu, parse_event
from .host import Host
from .synthesis import tasks_of
from .syscall import CLOCK, FLAG, Ring, attribute

if TYPE_CHECKING:
    from .linux_kernel import Kernel

__all__ = [
    "BUILD_ID",
    "EventRefused",
    "EventSet",
    "PAGES",
    "EventSpec",
    "Request",
    "Target",
    "requested_events",
    "negotiate",
    "open_event",
    "sampling_spec",
    "tracking_spec",
]


_PERF = lbr.PERF_SELECT
PERIOD, FREQUENCY = 400_009, 1000
"""Default sampling: a period in taken branches (prime, to avoid beating with loops); a rate in Hz for other events."""

_SAMPLE_ID = SAMPLE.IDENTIFIER | SAMPLE.TID | SAMPLE.TIME | SAMPLE.CPU
_NEGOTIABLE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.E2BIG})
CALL_STACK = _PERF["CALL_STACK"] | _PERF["USER"] | _PERF["NO_FLAGS"] | _PERF["NO_CYCLES"]


class Target(NamedTuple):
    """A command that waits to exec, all threads of a process, (``pid`` 0) of the processes of ``group``, or (``pid``
    -1) the whole system."""

    pid: int = -1
    before_exec: bool = False
    group: ProcessGroup | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """The wanted recording. ``branches`` are PERF_SAMPLE_BRANCH_* bits, 0 for none; ``event`` is the text of
    --event."""

    target: Target
    event: str | None = None
    period: int | None = None
    frequency: int | None = None
    branches: int = _PERF["ANY"] | _PERF["USER"]
    call_stack: bool = False
    command_line: tuple[str, ...] = ()
    chains: bool = False
    """Whether samples have call chains, by frame pointers."""

    @property
    def select(self) -> int:
        """The branches to record: call-stack mode excludes all other classes."""
        return CALL_STACK if self.call_stack else self.branches


@dataclass(slots=True)
class EventSpec:
    """One event to open: fields of perf_event_attr, extras, and the extras that `negotiate` dropped."""

    choice: EventChoice
    cpus: tuple[int, ...]
    flags: frozenset[str]
    fields: dict[str, int]
    extras: tuple[Extra, ...] = ()
    dropped: list[Extra] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    group_leaders: Mapping[int, int] = field(default_factory=dict)
    """By processor, the descriptor of the event whose group it joins."""
    filter: str = ""
    """The filter of a tracepoint's samples, in the kernel's notation."""

    def attr_without(self, dropped: Sequence[Extra]) -> bytes:
        """The attribute with all extras but ``dropped``."""
        fields, flags, precise = dict(self.fields), set(self.flags), self.choice.precise or 0
        for extra in self.extras:
            if extra not in dropped:
                fields[extra.field] = fields.get(extra.field, 0) | extra.bits
                flags |= {extra.flag} if extra.flag else set()
                precise += extra.precise
        word = sum(FLAG[name] for name in flags) | precise * FLAG["precise_ip_0"]
        return attribute(word, **self.choice.fields, **fields)

    @property
    def attr(self) -> bytes:
        """The attribute with the extras that `negotiate` left."""
        return self.attr_without(self.dropped)

    @property
    def counts_losses(self) -> bool:
        return _LOST in self.extras and _LOST not in self.dropped


class Extra(NamedTuple):
    """An optional part of an attribute; ``loss`` describes to the user what is missing without it."""

    name: str
    loss: str
    field: str = "read_format"
    bits: int = 0
    flag: str = ""
    precise: int = 0


_LOST = Extra("lost", "records lost at the very end are not counted (Linux before 6.0)", bits=READ.LOST)
BUILD_ID = Extra("build-id", "binaries are identified by their state at the end (Linux before 5.12)", flag="build_id")
_TYPE = Extra("type", "branch types are not recorded", "branch_sample_type", _PERF["TYPE_SAVE"])
_INDEX = Extra("index", "call stacks cannot be stitched (no hardware index)", "branch_sample_type", _PERF["HW_INDEX"])


def requested_events(request: Request, host: Host) -> list[EventChoice]:
    """The events to open: the requested one, or the taken-branch event of each core PMU.

    Raises `SelectionError` for an unknown event or an impossible selection of branches.
    """
    if request.select:
        lbr.validate(request.select, "perf")
    chosen = parse_event(request.event, host.pmus) if request.event else _taken_branches(host)
    kernel = not request.select or bool(request.select & _PERF["KERNEL"])
    quiet = frozenset() if kernel and not request.call_stack else frozenset({"exclude_kernel", "exclude_hv"})
    return [choice if choice.exclude else replace(choice, exclude=quiet) for choice in chosen]


_INTEL_TAKEN = {
    "core2": 0x00C4, "nehalem": 0x00C4, "westmere": 0x00C4, "bonnell": 0x00C4, "silvermont": 0x00C4,
    "knights-landing": 0x00C4, "goldmont": 0x80C4, "goldmont_plus": 0x80C4, "tremont": 0x00C4,
}  # fmt: skip
"""``caps/pmu_name`` -> BR_INST_RETIRED.ALL_TAKEN_BRANCHES, or where a processor cannot count those alone all branches.

All others have BR_INST_RETIRED.NEAR_TAKEN: unit mask 20H, and C0H on efficiency cores since Gracemont (Intel's lists).
"""
_NEAR_TAKEN, _NEAR_TAKEN_ATOM = 0x20C4, 0xC0C4
_ATOM = ("gracemont", "crestmont", "skymont", "darkmont", "grandridge", "sierra")
_BRANCHES = HARDWARE_EVENTS.index("branches")
_AMD_TAKEN = 0xC4  # PMCx0C4 Retired Taken Branch Instructions


def _taken_branches(host: Host) -> list[EventChoice]:
    core = host.core
    if not core:
        return [EventChoice("branches", TYPE.HARDWARE, _BRANCHES, precise=None)]
    return [_choice_for(pmu, host) for pmu in core]


def _choice_for(pmu: Pmu, host: Host) -> EventChoice:
    for name in ("branch-brs", "br_retired"):  # AMD Zen 3's only one; Arm's
        if name in pmu.events:
            return parse_event(f"{pmu.name}/{name}/", {pmu.name: pmu})[0]
    if host.vendor not in ("GenuineIntel", "AuthenticAMD"):
        return EventChoice("branches", TYPE.HARDWARE, _BRANCHES, pmu=pmu, precise=None)
    config = _AMD_TAKEN
    if host.vendor == "GenuineIntel":
        name = pmu.caps.get("pmu_name", "").lower()
        atom = pmu.name == "cpu_atom" or name.startswith(_ATOM)
        config = _INTEL_TAKEN.get(name, _NEAR_TAKEN_ATOM if atom else _NEAR_TAKEN)
    hybrid = len(host.core) > 1
    name = f"{pmu.name}/r{config:x}/" if hybrid else f"r{config:x}"
    return EventChoice(name, pmu.type if hybrid else TYPE.RAW, config, pmu=pmu, precise=None)


def sampling_spec(choice: EventChoice, request: Request, host: Host, wakeup: int) -> EventSpec:
    """How to open ``choice``; a wait ends when ``wakeup`` bytes are in the ring."""
    sample_type = _SAMPLE_ID | SAMPLE.IP | SAMPLE.PERIOD
    fields = {"wakeup_events": wakeup, "clockid": CLOCK}
    extras = [_LOST]
    if request.select:
        sample_type |= SAMPLE.BRANCH_STACK | (SAMPLE.CALLCHAIN if request.call_stack or request.chains else 0)
        fields["branch_sample_type"] = request.select
        extras += [_TYPE, _INDEX]
    flags = _common(request.target) | choice.exclude
    by_period = request.event is None and choice.pmu is not None
    period = request.period or (None if request.frequency else choice.period or (PERIOD if by_period else None))
    if period is None:
        flags |= {"freq"}
        period = request.frequency or choice.frequency or FREQUENCY
    if choice.precise is None and choice.pmu is not None and host.vendor != "AuthenticAMD":
        # AMD's precise events are IBS, another facility, which has no branch records.
        most = choice.pmu.max_precise if "max_precise" in choice.pmu.caps else 3
        more = "the sampled address is a few instructions late (less precise)"
        extras += [Extra(f"precise {level}", more, precise=1) for level in range(1, most + 1)]
    fields |= {"sample_type": sample_type, "sample_period": period}
    cpus = choice.pmu.cpus if choice.pmu and choice.pmu.cpus is not None else host.cpus
    return EventSpec(choice, tuple(c for c in cpus if c in host.cpus), frozenset(flags), fields, tuple(extras))


TRACKING = EventChoice("dummy:u", TYPE.SOFTWARE, SOFTWARE_EVENTS.index("dummy"))
"""Counts nothing. It records mappings, names and forks even where no other event may be opened."""


def tracking_spec(target: Target, host: Host, wakeup: int) -> EventSpec:
    """The event that owns the rings; opening this event needs no more permissions than the target does."""
    flags = _common(target) | {"mmap", "mmap2", "comm", "comm_exec", "task", "exclude_kernel", "exclude_hv"}
    fields = {
        "wakeup_events": wakeup,
        "clockid": CLOCK,
        "sample_period": 1,
        "sample_type": _SAMPLE_ID | SAMPLE.IP | SAMPLE.PERIOD,
    }
    return EventSpec(TRACKING, host.cpus, frozenset(flags), fields, (_LOST, BUILD_ID))


def _common(target: Target) -> frozenset[str]:
    flags = {"sample_id_all", "use_clockid", "watermark"}
    if target.pid >= 0:
        flags.add("inherit")
    return frozenset(flags | {"disabled", "enable_on_exec"} if target.before_exec else flags)


def negotiate(spec: EventSpec, kernel: Kernel, tid: int) -> None:
    """Find the most extras with which ``kernel`` opens ``spec`` on ``tid``, and set its ``dropped`` to the others.

    Raises the `OSError` of the attempt without extras: the kernel refuses the request itself. Nothing stays open.
    """
    cpu = spec.cpus[0] if spec.cpus else 0

    def opens(dropped: Sequence[Extra]) -> bool:
        try:
            kernel.close(kernel.open_event(spec.attr_without(dropped), tid, cpu))
        except OSError as error:
            if len(dropped) == len(spec.extras) or error.errno not in _NEGOTIABLE:
                raise
            return False
        return True

    dropped: list[Extra] = []
    while not opens(dropped):
        dropped.append(spec.extras[-1 - len(dropped)])
    for extra in reversed(dropped[:-1]):  # the last one dropped made the difference
        fewer = [other for other in dropped if other is not extra]
        if opens(fewer):
            dropped = fewer
    spec.dropped = dropped


# -- all events of one recording, on every thread and processor, and their rings
#
# A ring belongs to a processor: events that new tasks inherit may only write into a ring of their own processor. The
# first event opened there owns the ring, all others share it.


PAGES = 128
"""Data pages of a ring: with its header page, the default perf_event_mlock_kb of an unprivileged user."""
_FEWEST_PAGES = 4

_Write = Callable[[bytes], object]


class _Opened(NamedTuple):
    fd: int
    spec: EventSpec
    identifier: int


class EventSet:
    """Open events of ``specs``, the last of which is the tracking event and owns the rings."""

    def __init__(self, kernel: Kernel, specs: Sequence[EventSpec], pages: int | None = None) -> None:
        """``pages`` of data in each ring (default `PAGES`), fewer where the kernel locks no more."""
        self._kernel = kernel
        self._specs = specs
        self._pages = pages or PAGES
        self._opened: list[_Opened] = []
        self._rings: dict[int, Ring] = {}
        self._alive: set[int] = set()
        """Descriptors of tracking events with tasks that have not ended as far as is known."""
        self._since: dict[int, dict[tuple[int, int], int]] = {}
        """By thread, the events that it has (number of the spec, processor), each with its begin in ns of `CLOCK`."""

    def __len__(self) -> int:
        return len(self._opened)

    def open_thread(self, tid: int) -> None:
        """Open every event that ``tid`` (-1: the whole system) has not inherited. Raises `EventRefused`."""
        has = self._since.setdefault(tid, {})
        for number, spec in reversed([*enumerate(self._specs)]):
            for cpu in spec.cpus:
                if (number, cpu) not in has:
                    self._open(spec, tid, cpu)
                    has[number, cpu] = time.clock_gettime_ns(CLOCK)

    def _open(self, spec: EventSpec, tid: int, cpu: int) -> None:
        try:
            fd = open_event(self._kernel, spec, tid, cpu)
        except OSError as error:
            raise EventRefused(error, spec) from error
        identifier = self._kernel.event_id(fd)
        self._opened.append(_Opened(fd, spec, identifier))
        spec.ids.append(identifier)
        if spec is self._specs[-1]:
            self._alive.add(fd)
        if cpu in self._rings:
            self._rings[cpu].share(fd)
        else:
            self._rings[cpu] = self._map(fd)

    def _map(self, fd: int) -> Ring:
        """The largest ring for which the kernel still locks memory."""
        pages = self._pages
        while True:
            try:
                return self._kernel.ring(fd, pages)
            except UnavailableError:
                pages //= 2
                if pages < _FEWEST_PAGES:
                    raise

    def attach(self, pid: int, write: _Write) -> None:
        """Open every thread of ``pid``, and repeat until none is new. Raises as `open_thread` does.

        A thread whose parent had its events open already has inherited these events, as the fork record in a ring
        shows; opening events again would sample the thread twice. ``write`` gets the records that arrive meanwhile.
        """
        seen: set[int] = set()

        def look(records: bytes) -> None:
            for tid, parent, forked in _forks(records):
                has = {event: forked for event, since in self._since.get(parent, {}).items() if since <= forked}
                self._since.setdefault(tid, has)
            write(records)

        while new := set(tasks_of(self._kernel, pid)) - seen:
            for tid in sorted(new):
                self.drain(look)
                seen.add(tid)
                self._open_if_there(tid)
        if not self._opened:
            raise EventRefused(OSError(errno.ESRCH, "no thread left"), self._specs[0])

    def _open_if_there(self, tid: int) -> None:
        try:
            self.open_thread(tid)
        except EventRefused as refused:
            if refused.error.errno != errno.ESRCH:
                raise

    def wait(self, seconds: float) -> bool:
        """Wait for records; whether any task is left that could make more."""
        self._alive -= self._kernel.wait(self._alive, seconds)
        return bool(self._alive)

    def drain(self, write: _Write) -> int:
        """Pass the records in all rings to ``write``; the number of bytes."""
        return sum(ring.drain(write) for ring in self._rings.values())

    def enable(self) -> None:
        for opened in self._opened:
            self._kernel.enable(opened.fd)

    def disable(self) -> None:
        for opened in self._opened:
            self._kernel.disable(opened.fd)

    def set_period(self, period: int) -> None:
        """Change the period from the next interrupt on."""
        for opened in self._opened:
            self._kernel.set_period(opened.fd, period)

    def losses(self) -> Iterator[tuple[int, int]]:
        """(id, records lost) of each event that counts losses and had any."""
        for opened in self._opened:
            if opened.spec.counts_losses and (lost := self._kernel.lost(opened.fd)):
                yield opened.identifier, lost

    def count(self) -> int:
        """How often the events happened while they were enabled."""
        return sum(self._kernel.read_count(opened.fd) for opened in self._opened)

    def close(self) -> None:
        for ring in self._rings.values():
            ring.close()
        for opened in self._opened:
            self._kernel.close(opened.fd)
        self._rings.clear()
        self._opened.clear()


def open_event(kernel: Kernel, spec: EventSpec, tid: int, cpu: int) -> int:
    """A descriptor of ``spec`` on ``tid`` and ``cpu``; raises the limit of open files if that helps."""
    attr, group = spec.attr, spec.group_leaders.get(cpu, -1)
    try:
        made = kernel.open_event(attr, tid, cpu, group)
    except OSError as error:
        if error.errno != errno.EMFILE or not kernel.more_files():
            raise
        made = kernel.open_event(attr, tid, cpu, group)
    if spec.filter:
        with on_failure(kernel.close, made):
            kernel.set_filter(made, spec.filter)
    return made


class EventRefused(Exception):
    """``spec`` could not be opened; ``error`` is the kernel's answer."""

    def __init__(self, error: OSError, spec: EventSpec) -> None:
        super().__init__(str(error))
        self.error, self.spec = error, spec


def _forks(records: bytes) -> Iterator[tuple[int, int, int]]:
    """(thread, thread that started it, ns) of the FORK records of ``records``: u32 pid, ppid, tid, ptid; u64 time."""
    at = 0
    while at + 8 <= len(records):
        kind, _, size = struct.unpack_from("=IHH", records, at)
        if kind == RECORD["FORK"]:
            yield struct.unpack_from("=iiQ", records, at + 16)
        at += max(size, 8)
