"""Recording of the processor's branch records: perf events, whose ring buffers are copied into a perf.data file.

Nothing is parsed during the recording except forks while attaching. `lastbranch.formats.perfdata` reads the file like
any other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import IO, NamedTuple

import numpy as np

from ..closing import Closing, on_failure
from ..errors import LastbranchError, UnavailableError
from ..formats.perfdata.layout import SAMPLE, SOFTWARE_EVENTS, TYPE
from ..formats.perfdata.writer import Described, PerfFile, SideRecords, number, record
from ..formats.registry import format_of
from ..lbr import PERF_SELECT
from ..model import Change, PartFile, Profile
from ..opening import FileSource
from .foreign_binaries import ForeignBinaries
from .full_disk import Overflow, Say, loss_of
from .launch import Interruptions, Launched, held_signals, launch
from .perf_events.cpu_times import CpuTimes, Ran
from .perf_events.event_set import (
    PAGES,
    EventRefused,
    EventSet,
    EventSpec,
    Request,
    Target,
    negotiate,
    requested_events,
    sampling_spec,
    tracking_spec,
)
from .perf_events.host import Host, read_host
from .perf_events.late_events import GroupEvents
from .perf_events.linux_kernel import Kernel
from .perf_events.refusals import Attempt, EventUnavailable
from .perf_events.synthesis import features_of, kernel_records, late_build_ids, process_records, tasks_of
from .perf_events.syscall import CLOCK, FLAG, attribute
from .process_groups import ProcessGroup
from .recording import also, save
from .traceable import describe_exec

__all__ = [
    "HardwareSummary",
    "Recording",
    "Request",
    "Target",
    "collect_hardware",
    "describe_hardware",
    "negotiated",
    "record_hardware",
]


_KERNEL = PERF_SELECT["KERNEL"]
_LOOK = 0.5
"""Seconds between two looks at what was lost."""
_TIMES_OF = SAMPLE.IDENTIFIER | SAMPLE.TID | SAMPLE.TIME
_TIMES = Described(
    "cpu-clock",
    attribute(
        FLAG["sample_id_all"] | FLAG["use_clockid"] | FLAG["disabled"],
        type=int(TYPE.SOFTWARE),
        config=SOFTWARE_EVENTS.index("cpu-clock"),
        clockid=CLOCK,
        sample_type=_TIMES_OF,
    ),
    (1 << 62,),
)
"""The event whose counts are CPU times: it has no samples, and an id that no kernel has reached."""
_NO_TIMES = (
    "CPU times of threads are not stated: the kernel writes none when they end",
    "CPU times of threads are not stated: the kernel counts them for what is launched or attached only",
)
"""The notes of a recording of a program or group, and of a recording of the whole system."""
_HIDDEN = "kernel addresses are hidden (kernel.kptr_restrict), so kernel code is not divided into modules"


@dataclass(slots=True)
class HardwareSummary:
    """The result of a recording."""

    seconds: float = 0.0
    size: int = 0
    """Bytes of records."""
    lost: int | None = 0
    """Records that did not fit a ring; ``None`` where the kernel does not count them."""
    full: bool = False
    """Whether it ended because no disk has room for more."""
    dropped: int = 0
    """Records for which there was no room."""
    notes: tuple[str, ...] = ()
    """The features that the kernel or processor did not offer."""
    exit_code: int | None = None
    """The exit code of the launched program, 128+n if a signal killed it; ``None`` if the program was left running."""

    def __str__(self) -> str:
        lost = f", {self.lost} records lost" if self.lost else ""
        return f"{self.size} bytes of records in {self.seconds:.1f} s{lost}"


class Elsewhere(NamedTuple):
    """The place where a recording goes on if its disk is full: the last arguments of `PerfFile`."""

    rest: str
    went_on: Callable[[], None]


_NOWHERE = Elsewhere("", lambda: None)


def negotiated(request: Request, kernel: Kernel, host: Host, tid: int) -> list[EventSpec]:
    """The events of ``request``, the tracking event last, each with as many extras as the kernel allows for ``tid``.

    Raises `UnavailableError` as `Recording` does. Nothing stays open.
    """
    wakeup = PAGES * os.sysconf("SC_PAGESIZE") // 8  # in time, too, where less memory may be locked
    specs = [sampling_spec(choice, request, host, wakeup) for choice in requested_events(request, host)]
    specs.append(tracking_spec(request.target, host, wakeup))
    for spec in specs:
        try:
            negotiate(spec, kernel, tid)
        except OSError as error:
            raise _explain_refusal(error, spec, specs, request, kernel, host) from error
    return specs


def _explain_refusal(
    error: OSError, spec: EventSpec, all_of_them: list[EventSpec], request: Request, kernel: Kernel, host: Host
) -> UnavailableError:
    pid = request.target.pid
    threads = len(tasks_of(kernel, pid)) if pid >= 0 else 1
    files = max(1, threads) * sum(len(p.cpus) for p in all_of_them)
    attempt = Attempt(request, spec.choice, spec.fields["sample_period"], "freq" in spec.flags, files)
    return EventUnavailable(error, attempt, host)


class Recording(Closing):
    """Records into a new file ``path`` from construction (a command: from its exec) until `finish`.

    Raises `UnavailableError` with cause and remedy where the kernel refuses, and `SelectionError` for an event or
    selection that makes no sense; then nothing stays open. ``elsewhere``: where it goes on if the disk is full.
    ``times``: the CPU times that the file is to state, opened before the launch; the caller closes them.
    """

    def __init__(
        self,
        request: Request,
        path: str,
        *,
        kernel: Kernel | None = None,
        host: Host | None = None,
        elsewhere: Elsewhere = _NOWHERE,
        times: CpuTimes | None = None,
    ) -> None:
        self._kernel = kernel or Kernel()
        self._host = host or read_host(self._kernel)
        self._request = request
        self._file: PerfFile | None = None
        self._known: dict[object, bytes] = {}
        """Build ids of files."""
        self._notes: list[str] = []
        self._lost: dict[int, int] = {}
        """By the id of the event: samples that the file says were lost."""
        self._next_look = time.monotonic() + _LOOK
        self._times = times if times is not None and times.works else None
        target = request.target
        attach = target.pid >= 0 and not target.before_exec
        tid = next(iter(tasks_of(self._kernel, target.pid)), target.pid) if attach else target.pid
        self._specs = negotiated(request, self._kernel, self._host, tid)
        self._set = EventSet(self._kernel, self._specs)
        self._group: GroupEvents | None = None
        self._ids: list[int] = []
        """How many ids of each event the beginning of the file names."""
        try:
            with on_failure(self.close):
                self._begin(path, attach, elsewhere)
        except EventRefused as no:
            why = _explain_refusal(no.error, no.spec, self._specs, request, self._kernel, self._host)
            raise why from no.error

    def _begin(self, path: str, attach: bool, elsewhere: Elsewhere) -> None:
        target, early, pids = self._request.target, list[bytes](), [self._request.target.pid]
        if target.group is not None:
            self._group = GroupEvents(self._set, self._specs, target.group)
            pids = self._group.attach(early.append)
            self._count(pids)
        elif attach:
            self._count(pids)
            self._set.attach(target.pid, early.append)
        else:
            self._set.open_thread(target.pid)
        self._ids = [len(spec.ids) for spec in self._specs]
        self._file = PerfFile(path, self._describe_events(), *elsewhere)
        for part in (*self._before(pids), *early):
            self._file.write(self._take_arrivals(part))
        self._file.flush()

    def _take_arrivals(self, records: bytes) -> bytes:
        return self._group.arrived(records) if self._group else records

    def _describe_events(self) -> list[Described]:
        return [Described(p.choice.name, p.attr, p.ids) for p in self._specs] + [_TIMES] * bool(self._times)

    def _count(self, pids: Iterable[int]) -> None:
        """Have the CPU times of processes that run already."""
        if self._times:
            for pid in pids:
                self._times.attach(pid, tasks_of(self._kernel, pid))

    def _state(self, times: Iterable[Ran]) -> None:
        """Write CPU times."""
        assert self._file is not None
        records = SideRecords(_TIMES_OF, *_TIMES.ids)
        own = os.getpid()  # its threads have inherited the event, and it may be the parent of a command
        for one in times:
            if one.pid != own:
                self._file.write(records.read(one.pid, one.tid, one.ns, one.when))

    def _side_records(self, identifier: int | None = None) -> SideRecords:
        """Maker of records of the tracking event, or of the event with ``identifier``."""
        tracking = self._specs[-1]
        return SideRecords(tracking.fields["sample_type"], tracking.ids[0] if identifier is None else identifier)

    @property
    def _sees_kernel(self) -> bool:
        sampling = self._specs[:-1]
        return any("exclude_kernel" not in p.flags for p in sampling) or bool(self._request.select & _KERNEL)

    def _before(self, pids: list[int]) -> Iterator[bytes]:
        """Records of processes and mappings from before the events."""
        target, known, records = self._request.target, self._known, self._side_records()
        if self._sees_kernel:
            where = list(kernel_records(self._kernel, records))
            yield from where
            self._notes += [] if where else [_HIDDEN]
        if target.pid < 0:
            pids = [int(name) for name in self._kernel.names("/proc") if name.isdecimal()]
        for pid in pids:
            yield from process_records(self._kernel, pid, records, known, maps=not target.before_exec)

    # -- recording

    def drain(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for records and copy the records; return whether any task is left that could make
        more."""
        more = self._set.wait(seconds)
        if self._group:
            self._join(self._group)
            more = not self._group.ended
        self._copy()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK
            self._note_losses()
        return more and not self.full

    @property
    def full(self) -> bool:
        """Whether no disk has room for more."""
        return self._file is not None and self._file.full

    def _join(self, group: GroupEvents) -> None:
        """Open the events on processes that have joined the group."""
        assert self._file is not None
        self._copy()
        early = list[bytes]()
        since, records = time.clock_gettime_ns(CLOCK), self._side_records()
        joined = group.attach(early.append)
        self._count(joined)
        for pid in joined:
            for part in process_records(self._kernel, pid, records, self._known, maps=True, time=since):
                self._file.write(part)
        group.label(self._ids)
        for part in early:
            self._file.write(group.arrived(part))

    def _copy(self) -> None:
        assert self._file is not None
        write = self._file.write
        came = self._set.drain(lambda records: write(self._take_arrivals(records)))
        if self._times:
            self._state(self._times.ended())  # after the records of the forks
        if came:
            self._file.write(record("FINISHED_ROUND", b""))
            self._file.flush()  # others may read the file while it grows

    def _note_losses(self) -> None:
        """Record losses since the last look, for readers of the growing file."""
        assert self._file is not None
        for identifier, count in self._set.losses():
            more = count - self._lost.get(identifier, 0)
            if more <= 0:
                continue
            self._lost[identifier] = count
            event = self._group.labels.get(identifier, identifier) if self._group else identifier
            self._file.write(record("LOST_SAMPLES", number(more) + self._side_records(event).trailer()))
            self._file.flush()

    def finish(self) -> HardwareSummary:
        """Stop, copy the rest, record the losses, and complete the file."""
        assert self._file is not None
        self._set.disable()
        self._copy()
        self._note_losses()
        lost = sum(self._lost.values())
        counted = all(p.counts_losses for p in self._specs)
        command, select = self._request.command_line, self._request.select
        features = features_of(self._kernel, self._host, self._describe_events(), command, bool(select))
        self._file.flush()
        with suppress(LastbranchError, OSError):  # the recording is worth more than that
            recorded = FileSource(self._file.path)
            profile = format_of(recorded).open(recorded)
            late = late_build_ids(self._kernel, profile.modules)
            features |= {"BUILD_ID": features.get("BUILD_ID", b"") + late} if late else {}
            if self._times:
                self._state(self._times.running(_tasks(profile)))
        file, self._file = self._file, None
        file.finish(features, self._side_records().lost)
        self.close()
        self._notes += [extra.loss for p in self._specs for extra in p.dropped]
        self._notes += self._group.refused if self._group else []
        return HardwareSummary(
            size=file.size,
            lost=lost if counted else None,
            full=file.full,
            dropped=file.dropped,
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def close(self) -> None:
        """Close everything; a file that `finish` did not complete stays incomplete."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._set.close()


def _tasks(profile: Profile) -> list[tuple[int, int]]:
    """(pid, tid) of all threads that a recording names."""
    changes = profile.timeline.columns()
    named = np.isin(changes["kind"], (Change.FORK, Change.NAME)) & (changes["tid"] > 0)
    return list(dict.fromkeys(zip(changes["pid"][named].tolist(), changes["tid"][named].tolist(), strict=True)))


# -- from end to end: launch or attach, record until it is over, write the output
#
# The program is not traced and does not need the recorder: if that crashes, the program continues.


_TICK = 0.1
"""Seconds between two looks at signals, and at rings that are not half full yet."""


def record_hardware(
    target: Sequence[str] | int | ProcessGroup | None,
    wanted: Request,
    output: str,
    *,
    duration: float | None = None,
    kernel: Kernel | None = None,
    growing: Callable[[IO[bytes]], None] | None = None,
    say: Say = lambda said: None,
) -> HardwareSummary:
    """Record ``target``, a command, a process id, a group or ``None`` for the whole system, into ``output``.

    ``wanted`` says what; its target is filled in here. The recording ends with the command or the process, after
    ``duration`` seconds, or by a signal: for a command the second one, as the first is the program's. ``growing`` is
    called at the beginning, with the growing perf.data; ``say`` is called if the recording goes on elsewhere.

    Raises `UnavailableError` where the kernel refuses (nothing has been executed then), `SelectionError` for an event
    or a selection that makes no sense, `RunError` where the command cannot be executed.
    """
    with held_signals(), PartFile(output) as spill:
        overflow = Overflow(spill)
        summary = collect_hardware(
            target,
            wanted,
            spill.path,
            duration=duration,
            kernel=kernel,
            began=lambda pid: growing(spill.file) if growing is not None else None,
            elsewhere=Elsewhere(overflow.rest, overflow.tells(say, growing is not None)),
        )
        failure = loss_of(summary.dropped) if summary.full else None
        with also(failure), overflow.whole(output) as whole:
            save(whole, output, lambda profile: describe_hardware(profile, summary))
        if failure is not None:
            raise failure
        return summary


def collect_hardware(
    target: Sequence[str] | int | ProcessGroup | None,
    wanted: Request,
    path: str,
    *,
    duration: float | None = None,
    kernel: Kernel | None = None,
    began: Callable[[int | None], None] = lambda pid: None,
    stop: Callable[[], bool] = lambda: False,
    elsewhere: Elsewhere = _NOWHERE,
) -> HardwareSummary:
    """`record_hardware` into ``path``, which becomes a perf.data and grows while it is recorded.

    ``began`` is called when the kernel has granted the events, with the process id of the launched program. The
    recording ends where ``stop`` is true, and the program runs on.
    """
    with held_signals() as unblocked, ExitStack() as closing:
        child, times = None, None
        if target is not None and kernel is None:
            times = closing.enter_context(CpuTimes())
        if isinstance(target, ProcessGroup):
            request = replace(wanted, target=Target(0, group=target))
        elif target is None or isinstance(target, int):
            request = replace(wanted, target=Target(-1 if target is None else target))
        else:
            child = launch(target, unblocked, traced=False)
            request = replace(wanted, target=Target(child.pid, before_exec=True))
            if times is not None:
                times.launched(child.pid)
        with on_failure(child.abandon) if child else nullcontext():
            recording = Recording(request, path, kernel=kernel, elsewhere=elsewhere, times=times)
        foreign = ForeignBinaries()
        for pid in (
            target.members() if isinstance(target, ProcessGroup) else [target] if isinstance(target, int) else ()
        ):
            foreign.look(pid)
        with recording:
            began(child.pid if child else None)
            summary = _until_over(recording, child, duration, stop)
        summary.notes += foreign.keep()
        summary.notes += times.notes if times is not None and times.works else (_NO_TIMES[target is None],)
        if child and (failure := child.failed()):
            raise describe_exec(child.command[0], failure)
        return summary


def _until_over(
    recording: Recording, child: Launched | None, duration: float | None, stop: Callable[[], bool]
) -> HardwareSummary:
    """Record until tasks, signals, ``stop`` or the clock end it."""
    signals, seconds, code = Interruptions(child.pid if child else None), 0.0, None
    if child:
        child.release()
    more, began = True, time.monotonic()
    while more and not (stopped := signals.enough() or stop() or (duration is not None and seconds >= duration)):
        if child and (code := child.exit_code(os.WNOHANG)) is not None:
            break
        more = recording.drain(_TICK)
        seconds = time.monotonic() - began
    if child and code is None and not stopped and not recording.full:
        code = child.exit_code()  # its tasks have ended, and it is about to
    return replace(recording.finish(), seconds=seconds, exit_code=code)


def describe_hardware(profile: Profile, summary: HardwareSummary) -> None:
    """Note in the profile how it was recorded."""
    profile.recorder = "lastbranch hardware collector"
    for i, note in enumerate(summary.notes, 1):
        profile.header[f"recording note {i}"] = note
