"""What to ask the kernel for, and all of it open: attributes, what of them is negotiable, event sets with their rings.

A kernel refuses an attribute as a whole. So all that is only wanted (branch types, the hardware index, a more precise
address, loss counters) is dropped until the rest opens, and what can be had is then taken back.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ... import lbr
from ...errors import UnavailableError
from ...formats.perfdata.layout import HARDWARE_EVENTS, READ, RECORD, SAMPLE, SOFTWARE_EVENTS, TYPE
from . import syscall as perf_events
from .events import EventChoice, Pmu, parse_event
from .host import Host
from .synthesis import tasks_of
from .syscall import CLOCK

if TYPE_CHECKING:
    from .kernel import Kernel, RecordRing

__all__ = [
    "BUILD_ID", "EventRefused", "EventSet", "PAGES", "Programme", "Request", "Target", "choices_of", "negotiate",
    "open_event", "programme_of", "tracking_of",
]  # fmt: skip


_PERF = lbr.PERF_SELECT
PERIOD, FREQUENCY = 400_009, 1000
"""Default sampling: so many taken branches (prime, so that it does not beat with loops), other events by time."""

_SAMPLE_ID = SAMPLE.IDENTIFIER | SAMPLE.TID | SAMPLE.TIME | SAMPLE.CPU
_NEGOTIABLE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.E2BIG})
CALL_STACK = _PERF["CALL_STACK"] | _PERF["USER"] | _PERF["NO_FLAGS"] | _PERF["NO_CYCLES"]


class Target(NamedTuple):
    """What is recorded: a command that waits to exec, all threads of a process, or (``pid`` -1) the whole system."""

    pid: int = -1
    before_exec: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What the user wants. ``branches`` are PERF_SAMPLE_BRANCH_* bits, 0 for none; ``event`` the text of --event."""

    target: Target
    event: str | None = None
    period: int | None = None
    frequency: int | None = None
    branches: int = _PERF["ANY"] | _PERF["USER"]
    call_stack: bool = False
    command_line: tuple[str, ...] = ()

    @property
    def select(self) -> int:
        """The branches to record: call-stack mode goes with no other class."""
        return CALL_STACK if self.call_stack else self.branches


@dataclass(slots=True)
class Programme:
    """One event as it will be opened: fields of perf_event_attr, and what was dropped of the wishes."""

    choice: EventChoice
    cpus: tuple[int, ...]
    flags: frozenset[str]
    fields: dict[str, int]
    wishes: tuple[Wish, ...] = ()
    dropped: list[Wish] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    joins: Mapping[int, int] = field(default_factory=dict)
    """By processor, the descriptor of the event whose group it joins."""

    def attr(self, without: Sequence[Wish] = ()) -> bytes:
        """The attribute with all wishes but these."""
        c, fields, flags, precise = self.choice, dict(self.fields), set(self.flags), self.choice.precise or 0
        for wish in self.wishes:
            if wish not in without:
                fields[wish.field] = fields.get(wish.field, 0) | wish.bits
                flags |= {wish.flag} if wish.flag else set()
                precise += wish.precise
        word = sum(perf_events.FLAG[name] for name in flags) | precise * perf_events.FLAG["precise_ip_0"]
        words = {name: getattr(c, name) for name in ("config1", "config2", "config3")}
        return perf_events.attribute((c.type, c.config), word, **words, **fields)

    @property
    def final(self) -> bytes:
        """The attribute with what was found out to be had."""
        return self.attr(self.dropped)

    @property
    def counts_losses(self) -> bool:
        return _LOST in self.wishes and _LOST not in self.dropped


class Wish(NamedTuple):
    """Something that a kernel or processor may not offer; ``loss`` tells what is missing without it."""

    name: str
    loss: str
    field: str = "read_format"
    bits: int = 0
    flag: str = ""
    precise: int = 0


_LOST = Wish("lost", "records lost at the very end are not counted (before Linux 6.0)", bits=READ.LOST)
BUILD_ID = Wish("build-id", "binaries are identified as they were at the end (before Linux 5.12)", flag="build_id")
_TYPE = Wish("type", "branch types are not recorded", "branch_sample_type", _PERF["TYPE_SAVE"])
_INDEX = Wish("index", "call stacks cannot be stitched (no hardware index)", "branch_sample_type", _PERF["HW_INDEX"])


def choices_of(request: Request, host: Host) -> list[EventChoice]:
    """The events to open: what was asked for, or the taken-branch event of each core source.

    Raises `SelectionError` for an event or a selection that is not valid.
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
    return [_taken(pmu, host) for pmu in core]


def _taken(pmu: Pmu, host: Host) -> EventChoice:
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


def programme_of(choice: EventChoice, request: Request, host: Host, wakeup: int) -> Programme:
    """``choice`` as an attribute; ``wakeup`` is how many bytes in the ring end a wait."""
    sample_type = _SAMPLE_ID | SAMPLE.IP | SAMPLE.PERIOD
    fields = {"wakeup": wakeup, "clockid": CLOCK}
    wishes = [_LOST]
    if request.select:
        sample_type |= SAMPLE.BRANCH_STACK | (SAMPLE.CALLCHAIN if request.call_stack else 0)
        fields["branch_sample_type"] = request.select
        wishes += [_TYPE, _INDEX]
    flags = _common(request.target) | choice.exclude
    by_period = request.event is None and choice.pmu is not None
    period = request.period or (None if request.frequency else choice.period or (PERIOD if by_period else None))
    if period is None:
        flags |= {"freq"}
        period = request.frequency or choice.frequency or FREQUENCY
    if choice.precise is None and choice.pmu is not None and host.vendor != "AuthenticAMD":
        # AMD's precise events are IBS, another facility, which has no branch records.
        most = choice.pmu.max_precise if "max_precise" in choice.pmu.caps else 3
        more = "the sampled address is some instructions late (less precise)"
        wishes += [Wish(f"precise {level}", more, precise=1) for level in range(1, most + 1)]
    fields |= {"sample_type": sample_type, "period": period}
    cpus = choice.pmu.cpus if choice.pmu and choice.pmu.cpus is not None else host.cpus
    return Programme(choice, tuple(c for c in cpus if c in host.cpus), frozenset(flags), fields, tuple(wishes))


TRACKING = EventChoice("dummy:u", TYPE.SOFTWARE, SOFTWARE_EVENTS.index("dummy"))
"""Counts nothing. Its records tell what was mapped, named, forked, also where no other event may be opened."""


def tracking_of(target: Target, host: Host, wakeup: int) -> Programme:
    """The event that owns the rings; it wants no permission beyond that for the target."""
    flags = _common(target) | {"mmap", "mmap2", "comm", "comm_exec", "task", "exclude_kernel", "exclude_hv"}
    fields = {
        "wakeup": wakeup, "clockid": CLOCK, "period": 1,
        "sample_type": _SAMPLE_ID | SAMPLE.IP | SAMPLE.PERIOD,
    }  # fmt: skip
    return Programme(TRACKING, host.cpus, frozenset(flags), fields, (_LOST, BUILD_ID))


def _common(target: Target) -> frozenset[str]:
    flags = {"sample_id_all", "use_clockid", "watermark"}
    if target.pid >= 0:
        flags.add("inherit")
    return frozenset(flags | {"disabled", "enable_on_exec"} if target.before_exec else flags)


def negotiate(programme: Programme, kernel: Kernel, tid: int) -> None:
    """Find the most of the wishes with which ``kernel`` opens it on ``tid``; ``dropped`` then has the others.

    Raises the `OSError` of the attempt without any wish: what is refused then is the request itself. Nothing stays
    open.
    """
    cpu = programme.cpus[0] if programme.cpus else 0

    def opens(dropped: Sequence[Wish]) -> bool:
        try:
            kernel.close(kernel.open_event(programme.attr(dropped), tid, cpu))
        except OSError as error:
            if len(dropped) == len(programme.wishes) or error.errno not in _NEGOTIABLE:
                raise
            return False
        return True

    dropped: list[Wish] = []
    while not opens(dropped):
        dropped.append(programme.wishes[-1 - len(dropped)])
    for wish in reversed(dropped[:-1]):  # the last one dropped made the difference
        fewer = [other for other in dropped if other is not wish]
        if opens(fewer):
            dropped = fewer
    programme.dropped = dropped


# -- all events of one recording, on every thread and processor, and the rings that they write into
#
# A ring belongs to a processor: the kernel lets events that are inherited by new tasks write only into one of their own
# processor. The first event opened there owns it, all others share it.


PAGES = 128
"""Of data in each ring: with its header page just what perf_event_mlock_kb allows an unprivileged user by default."""
_FEWEST_PAGES = 4

_Write = Callable[[bytes], object]


class _Opened(NamedTuple):
    fd: int
    programme: Programme
    identifier: int


class EventSet:
    """``programmes``: the last one is the tracking event, which owns the rings."""

    def __init__(self, kernel: Kernel, programmes: Sequence[Programme], pages: int | None = None) -> None:
        """``pages``: of data in each ring (`PAGES`), fewer where the kernel locks no more."""
        self._kernel = kernel
        self._programmes = programmes
        self._pages = pages or PAGES
        self._opened: list[_Opened] = []
        self._rings: dict[int, RecordRing] = {}
        self._alive: set[int] = set()
        """Descriptors of tracking events whose tasks are not known to have ended."""

    def __len__(self) -> int:
        return len(self._opened)

    def open_thread(self, tid: int) -> None:
        """Open every event on ``tid`` (-1: the whole system). Raises `EventRefused`."""
        for programme in reversed(self._programmes):
            for cpu in programme.cpus:
                self._open(programme, tid, cpu)

    def _open(self, programme: Programme, tid: int, cpu: int) -> None:
        try:
            fd = open_event(self._kernel, programme, tid, cpu)
        except OSError as error:
            raise EventRefused(error, programme) from error
        identifier = self._kernel.event_id(fd)
        self._opened.append(_Opened(fd, programme, identifier))
        programme.ids.append(identifier)
        if programme is self._programmes[-1]:
            self._alive.add(fd)
        if cpu in self._rings:
            self._rings[cpu].share(fd)
        else:
            self._rings[cpu] = self._map(fd)

    def _map(self, fd: int) -> RecordRing:
        """The largest ring that the kernel still locks memory for."""
        pages = self._pages
        while True:
            try:
                return self._kernel.ring(fd, pages)
            except UnavailableError:
                pages //= 2
                if pages < _FEWEST_PAGES:
                    raise

    def attach(self, pid: int, write: _Write) -> None:
        """Open every thread of ``pid``, again and again until none is new. Raises as `open_thread` does.

        A thread that one of ours has started meanwhile inherited its events: the fork record in a ring tells. Opened
        a second time it would be sampled twice. ``write`` gets the records that come meanwhile.
        """
        seen: set[int] = set()
        inherited: set[int] = set()

        def look(records: bytes) -> None:
            inherited.update(_forked(records))
            write(records)

        while new := set(tasks_of(self._kernel, pid)) - seen:
            for tid in sorted(new):
                self.drain(look)
                seen.add(tid)
                if tid not in inherited:
                    self._open_if_there(tid)
        if not self._opened:
            raise EventRefused(OSError(errno.ESRCH, "no thread left"), self._programmes[0])

    def _open_if_there(self, tid: int) -> None:
        try:
            self.open_thread(tid)
        except EventRefused as refused:
            if refused.error.errno != errno.ESRCH:
                raise

    def wait(self, seconds: float) -> bool:
        """Until records are due; whether any task is left that could make more."""
        self._alive -= self._kernel.wait(self._alive, seconds)
        return bool(self._alive)

    def drain(self, write: _Write) -> int:
        """Hand over what is in the rings; the number of bytes."""
        return sum(ring.drain(write) for ring in self._rings.values())

    def disable(self) -> None:
        for opened in self._opened:
            self._kernel.disable(opened.fd)

    def set_period(self, period: int) -> None:
        """Sample with another period from the next interrupt on."""
        for opened in self._opened:
            self._kernel.set_period(opened.fd, period)

    def losses(self) -> Iterator[tuple[int, int]]:
        """(id, records lost) of each event that counts them and lost any."""
        for opened in self._opened:
            if opened.programme.counts_losses and (lost := self._kernel.lost(opened.fd)):
                yield opened.identifier, lost

    def close(self) -> None:
        for ring in self._rings.values():
            ring.close()
        for opened in self._opened:
            self._kernel.close(opened.fd)
        self._rings.clear()
        self._opened.clear()


def open_event(kernel: Kernel, programme: Programme, tid: int, cpu: int) -> int:
    """A descriptor of ``programme`` on ``tid`` and ``cpu``; where there are too many already, as many as may be."""
    attr, group = programme.final, programme.joins.get(cpu, -1)
    try:
        return kernel.open_event(attr, tid, cpu, group)
    except OSError as error:
        if error.errno == errno.EMFILE and kernel.more_files():
            return kernel.open_event(attr, tid, cpu, group)
        raise


class EventRefused(Exception):
    """``programme`` could not be opened; ``error`` is the kernel's answer."""

    def __init__(self, error: OSError, programme: Programme) -> None:
        super().__init__(str(error))
        self.error, self.programme = error, programme


def _forked(records: bytes) -> Iterator[int]:
    """Thread ids in the FORK records among ``records``: u32 pid, ppid, tid."""
    at = 0
    while at + 8 <= len(records):
        kind, _, size = struct.unpack_from("=IHH", records, at)
        if kind == RECORD["FORK"]:
            yield struct.unpack_from("=i", records, at + 16)[0]
        at += max(size, 8)
