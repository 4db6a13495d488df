"""One kind of events on all processors: opens the events and reads their ring buffers in rounds.

A round takes the records from before its beginning: all of these records are in the rings by then. So the events of all
kinds and processors come out in one time order, round after round. Younger records are kept for the next round.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ....capture import Request, Target
from ....capture.perf_events.event_names import EventChoice
from ....capture.perf_events.event_set import EventRefused, EventSet, EventSpec, negotiate, open_event, tracking_spec
from ....capture.perf_events.host import Host
from ....capture.perf_events.linux_kernel import Kernel
from ....capture.perf_events.refusals import Attempt, explain
from ....capture.perf_events.syscall import CLOCK, Ring
from ....closing import on_failure
from ....errors import UnavailableError
from ....formats.perfdata.attr import Attr, parse_attr
from ....formats.perfdata.layout import READ, RECORD, SAMPLE, SOFTWARE_EVENTS, TYPE
from ....formats.perfdata.sample import SampleLayout
from ....formats.perfdata.walk import Block
from ....model import SampleBatch
from ...status import EtwError, Status
from ..profile_sources import choices_of
from .event_words import Ints, Words
from .kinds import Switches
from .perf_records import record_bytes, records_in

__all__ = ["ALL", "Counters", "Round", "Stream", "refusal", "sample_spec", "task_spec", "values_of"]


PAGES = 1024
"""Pages of data in each ring, if the kernel locks so many: some 30,000 events."""
ALL = Target()
_LOST, _SAMPLE, _LOST_SAMPLES = (RECORD[name] for name in ("LOST", "SAMPLE", "LOST_SAMPLES"))
_UNCOUNTED = frozenset(SOFTWARE_EVENTS.index(name) for name in ("cpu-clock", "task-clock", "dummy"))
"""Software events whose count is a time, or nothing."""
_TIME_IN_TRAILER = -3
"""Words from the end of a record: its sample_id trailer has ids, time, processor, identifier."""


def _wakeup() -> int:
    return PAGES * os.sysconf("SC_PAGESIZE") // 4


def sample_spec(
    choice: EventChoice,
    host: Host,
    *,
    period: int = 1,
    sample: int = 0,
    branches: int = 0,
    more: frozenset[str] = frozenset(),
    group_leaders: Mapping[int, int] | None = None,
) -> EventSpec:
    """An event that samples all tasks. ``sample``: PERF_SAMPLE_* beyond the common ones; ``branches``: which; ``more``:
    flags; ``group_leaders``: by processor, the event whose group the new event joins, to sample the group's counts,
    too."""
    base = tracking_spec(ALL, host, _wakeup())
    flags = {"sample_id_all", "use_clockid", "watermark", *choice.exclude, *more}
    fields = dict(base.fields, sample_period=period)
    fields["sample_type"] |= sample | (SAMPLE.BRANCH_STACK if branches else 0)
    fields["branch_sample_type"] = branches
    cpus = choice.pmu.cpus if choice.pmu and choice.pmu.cpus is not None else host.cpus
    own = tuple(cpu for cpu in cpus if cpu in host.cpus)
    if group_leaders:  # counters of losses would follow each count, and are left out
        fields |= {"sample_type": fields["sample_type"] | SAMPLE.READ, "read_format": READ.GROUP}
        return EventSpec(choice, own, frozenset(flags), fields, group_leaders=group_leaders)
    return EventSpec(choice, own, frozenset(flags), fields, base.extras[:1])


def task_spec(host: Host, *, images: bool) -> EventSpec:
    """Forks, exits, names and (``images``) executable mappings of all tasks."""
    base = tracking_spec(ALL, host, _wakeup())
    mapped = set() if images else {"mmap", "mmap2"}
    extras = base.extras if images else base.extras[:1]
    return replace(base, flags=base.flags - mapped, extras=extras)


def samples_each_event(spec: EventSpec) -> bool:
    """Whether each event that the kernel counts makes a sample: a tracepoint or software event with a period of 1.

    Events in a group are left out: they stand still with their group, and their counts are read in another format.
    """
    if spec.fields["sample_period"] != 1 or spec.group_leaders:
        return False
    choice = spec.choice
    return choice.type == TYPE.TRACEPOINT or (choice.software and choice.config not in _UNCOUNTED)


class Round(NamedTuple):
    """The records of a stream from before some moment."""

    block: Block
    at: Ints
    """Word index of each record in ``block``, by processor in the order of the ring."""
    types: Ints
    samples: SampleBatch
    lost: int
    """Records that the kernel dropped because a ring was full."""


class Stream:
    """An event that is open on all its processors. `EtwError` if the kernel refuses it."""

    def __init__(self, spec: EventSpec, kernel: Kernel, host: Host, call: str = "StartTrace") -> None:
        self._kernel, self.spec = kernel, spec
        self._counted = samples_each_event(spec)
        if self._counted:  # an event that counted before it had its ring and filter would seem to have lost samples
            spec.flags |= {"disabled"}
        try:
            with on_failure(self.close):
                negotiate(spec, kernel, ALL.pid)
                self._set = EventSet(kernel, [spec], PAGES)
                self._set.open_thread(ALL.pid)
                if self._counted:
                    self._set.enable()
        except (OSError, EventRefused) as error:
            raise refusal(error.error if isinstance(error, EventRefused) else error, spec, host, call) from error
        except UnavailableError as error:
            raise EtwError(call, Status.NOT_ENOUGH_MEMORY, str(error)) from error
        self.attr: Attr = parse_attr(spec.attr, 0, "<", "perf")
        self.attr.ids = tuple(spec.ids)
        self._layout = SampleLayout(self.attr)
        self._kept = b""
        self._reported = self._sampled = 0
        """Losses that records reported, and samples that rounds took."""
        self._switches = Switches()

    def retime(self, period: int) -> None:
        """Sample with another period from now on."""
        self._set.set_period(period)

    def disable(self) -> None:
        self._set.disable()

    def peek(self) -> Block:
        """All records that no round has taken yet; they stay."""
        parts = [self._kept]
        self._set.drain(parts.append)
        self._kept = b"".join(parts)
        return records_in(self._kept)

    def round(self, until: int) -> Round:
        """Take the records from before ``until`` (ns)."""
        block = self.peek()
        due = self._times(block) < until
        self._kept = record_bytes(block, ~due)
        at, types = block.at[due], block.types[due]
        if "context_switch" in self.attr.flags:
            return Round(block, at, types, self._switches.samples(block, at, types), self._count_lost(block, at, types))
        samples = at[types == _SAMPLE]
        self._sampled += len(samples)
        batch = self._layout.decode(block, samples, np.zeros(len(samples), np.int32), None)
        return Round(block, at, types, batch, self._count_lost(block, at, types) + len(samples) - len(batch))

    def _times(self, block: Block) -> Ints:
        is_sample = block.types == _SAMPLE
        end = block.at + (block.sizes(block.at) >> 3)
        place = np.where(is_sample, block.at + self._layout.fixed[SAMPLE.TIME], end + _TIME_IN_TRAILER)
        return block.words.take(place, mode="clip").view(np.int64)

    def _count_lost(self, block: Block, at: Ints, types: Ints) -> int:
        """LOST: u64 id, lost. LOST_SAMPLES: u64 lost."""
        words = block.words
        lost = int(words[at[types == _LOST] + 2].sum()) + int(words[at[types == _LOST_SAMPLES] + 1].sum())
        self._reported += lost
        return lost

    def unreported_losses(self) -> int:
        """After `disable` and the last round: lost samples that no record reported.

        The kernel counts records that did not fit a ring (Linux 6.0), and may drop samples without counting: Linux 6.18
        drops the samples of tracepoints that hit the idle task of some processors. Where each event makes a sample, the
        events that the kernel counted tell how many samples there should be.
        """
        lost = sum(lost for _, lost in self._set.losses())
        if self._counted:
            lost = max(lost, self._set.count() - self._sampled)
        return max(0, lost - self._reported)

    def close(self) -> None:
        if hasattr(self, "_set"):
            self._set.close()


_PRIVILEGE = frozenset(
    {"seccomp", "lockdown", "paranoid-all", "paranoid-system", "paranoid-kernel", "other-user", "denied"}
)
_STATUS = {
    "watchdog": Status.BUSY,
    "busy": Status.BUSY,
    "files": Status.NO_SYSTEM_RESOURCES,
    "memory": Status.NOT_ENOUGH_MEMORY,
    "period": Status.INVALID_PARAMETER,
}
_SENTENCES = {
    "paranoid-system": "kernel.perf_event_paranoid is {0}: events of the whole system need 0 or CAP_PERFMON",
    "paranoid-all": "kernel.perf_event_paranoid is {0}: events of the kernel need 0 or CAP_PERFMON",
    "denied": "a security module or a missing CAP_PERFMON keeps events of the whole system from this process",
}


def refusal(error: OSError, spec: EventSpec, host: Host, call: str = "StartTrace") -> EtwError:
    """Why the kernel did not open ``spec``: 1314 without permission, 170 for counters in use, 8 and 1450 for memory and
    files, else 50. All codes but 1314 are our choice."""
    if spec.group_leaders and error.errno == errno.EINVAL:
        sentence = "the processor cannot count it together with the counters whose values go into event headers"
        return EtwError(call, Status.NOT_SUPPORTED, f"{spec.choice.name}: {sentence}")
    period = spec.fields["sample_period"] if spec.choice.pmu else 0
    why = explain(error, Attempt(Request(ALL), spec.choice, period, False, len(spec.cpus)), host)
    status = Status.PRIVILEGE_NOT_HELD if why.cause in _PRIVILEGE else _STATUS.get(why.cause, Status.NOT_SUPPORTED)
    sentence = _SENTENCES[why.cause].format(host.paranoid) if why.cause in _SENTENCES else why.sentence
    return EtwError(call, status, f"{spec.choice.name}: {sentence}")


# -- Counter values in the headers of events: one group of counters on each processor, which the events join
#
# The kernel reads the counters of a group at the moment of each of its samples, and has a group on the processor as a
# whole or not at all, events that need no counter included. So its first counter is pinned: a pinned counter counts all
# the time, or the kernel reports that it cannot count; the recording then refuses the counters, instead of a trace with
# gaps. In newer kernels (seen with 6.18) a group also stands still until the next tick of the kernel's clock where one
# of its events takes more samples than kernel.perf_event_max_sample_rate allows; each of these gaps is reported as a
# loss. Source: perf_event_open(2) (group_fd, pinned, PERF_FORMAT_GROUP, PERF_RECORD_THROTTLE).


MOST = 7
"""Values that a header has room for."""
_CALL = "TraceSetInformation"
"""All of a group have one clock."""
_THROTTLE = RECORD["THROTTLE"]
_PAGES = 2
"""Pages of a ring that has no other records."""


class Counters:
    """Counts ``sources`` on every processor from `start` on; nothing without any.

    `EtwError` 87 for more than `MOST` and for what is no counter, else as the kernel refuses (`stream.refusal`).
    """

    def __init__(self, sources: tuple[int, ...], kernel: Kernel, host: Host) -> None:
        self.sources, self._kernel = sources, kernel
        self.leaders: dict[int, int] = {}
        """By processor, the descriptor of the first one."""
        self._opened: list[int] = []
        self._rings: list[Ring] = []
        if len(sources) > MOST:
            why = f"an event header has room for {MOST} counter values, not {len(sources)}"
            raise EtwError(_CALL, Status.INVALID_PARAMETER, why)
        choices = [_choices(source, kernel) for source in sources]
        with on_failure(self.close):
            for cpu in host.cpus:
                for of_cores in choices:
                    self._open(_of(of_cores, cpu), cpu, host)

    def _open(self, choice: EventChoice, cpu: int, host: Host) -> None:
        flags = {"use_clockid", *choice.exclude, *([] if cpu in self.leaders else ["pinned", "disabled"])}
        group_leaders = {cpu: self.leaders[cpu]} if cpu in self.leaders else {}
        fields = {"clockid": CLOCK}
        spec = EventSpec(choice, host.cpus, frozenset(flags), fields, group_leaders=group_leaders)
        try:
            fd = open_event(self._kernel, spec, ALL.pid, cpu)
        except OSError as error:
            raise refusal(error, spec, host, _CALL) from error
        self._opened.append(fd)
        if cpu in self.leaders:
            return
        self.leaders[cpu] = fd
        try:
            self._rings.append(self._kernel.ring(fd, _PAGES))
        except UnavailableError as error:
            raise EtwError(_CALL, Status.NOT_ENOUGH_MEMORY, str(error)) from error

    def start(self) -> None:
        """Count, with what has joined: kernels leave some of that out until a group begins anew, which takes a moment.

        `EtwError` 170 unless all of the groups are on their processors then.
        """
        for fd in self.leaders.values():
            self._kernel.disable(fd)
            self._kernel.enable(fd)
        out = [cpu for cpu, fd in self.leaders.items() if not self._kernel.counts(fd)]
        if out:
            why = f"the counters of processor {out[0]} are taken, by the kernel's watchdog or another profiler"
            raise EtwError(_CALL, Status.BUSY, why)

    def gaps(self) -> int:
        """How often a group stood still since this was asked last."""
        parts: list[bytes] = []
        for ring in self._rings:
            ring.drain(parts.append)
        return int(np.count_nonzero(records_in(b"".join(parts)).types == _THROTTLE))

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        for fd in self._opened:
            self._kernel.close(fd)
        self._rings.clear()
        self._opened.clear()
        self.leaders.clear()


def _choices(source: int, kernel: Kernel) -> list[EventChoice]:
    if choices := choices_of(source, kernel):
        return choices
    raise EtwError(_CALL, Status.INVALID_PARAMETER, f"profile source {source} is not a counter of this machine")


def _of(choices: Sequence[EventChoice], cpu: int) -> EventChoice:
    """The one that counts on ``cpu``."""
    for choice in choices:
        if choice.pmu is None or choice.pmu.cpus is None or cpu in choice.pmu.cpus:
            return choice
    raise EtwError(_CALL, Status.NOT_SUPPORTED, f"{choices[0].name}: processor {cpu} does not count it")


def values_of(batch: SampleBatch, number: int) -> Words:
    """(samples, ``number``) u64: the first counts of the group of each. Counts that a sample lacks are 0."""
    offsets, values = batch.offsets["read"], batch["read_value"]
    at = offsets[:-1, np.newaxis] + np.arange(number)
    has = at < offsets[1:, np.newaxis]
    return np.where(has, values.take(at, mode="clip"), np.uint64(0)) if len(values) else np.zeros(at.shape, np.uint64)
