"""The perf streams that a configuration needs, each with its event and the conversion of its samples."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .... import lbr
from ....capture.perf_events.event_names import EventChoice
from ....capture.perf_events.event_set import EventSpec
from ....capture.perf_events.host import Host, read_host
from ....capture.perf_events.linux_kernel import Kernel
from ....formats.etl.profile.sample_events import PeriodEncoding, Trigger
from ....formats.perfdata.layout import SAMPLE, TYPE
from ....model import SampleBatch
from ...status import EtwError, Status
from ..enable_map import kinds_of
from ..profile_sources import TIMER, choices_of, default_interval, profile_sources
from .configuration import SourceConfiguration
from .event_words import Events, Ints, of_samples, with_values
from .joint_events import BlockIo, Interrupts, Sockets, TracepointFollower
from .kinds import KINDS, PMC, RECORDS, Kind, Place, Raw, has_tracefs, read_tracepoint
from .ring_stream import ALL, refusal, sample_spec, task_spec, values_of
from .system_calls import SystemCalls

__all__ = ["COUNTERS", "FOLLOWERS", "TASKS", "StreamPlan", "names_of", "try_masks", "plan_streams"]


TASKS = frozenset({"process", "thread", "image"})
COUNTERS = "process counters"
"""The kind of `ProcessCounters`."""
FOLLOWERS: tuple[type[TracepointFollower], ...] = (SystemCalls, BlockIo, Sockets, Interrupts)
"""The followers, which make events of several tracepoints."""
_TIMER_NS = 100
"""The unit of the timer's interval."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A stream to open: its perf event, and what its samples carry."""

    choice: EventChoice
    kind: Kind | None = None
    """``None``: a profile source that is a counter."""
    fields: Mapping[str, Place] = field(default_factory=dict)
    """The fields of a tracepoint's raw data."""
    source: int | None = None
    interval: int = 0
    stacks: bool = False
    kernel_stacks: bool = True
    options: int | None = None
    """Flags of the branch records that its samples carry, ``None``: none."""
    counters: tuple[int, ...] = ()
    """Profile sources whose counts its samples carry."""
    follower: type[TracepointFollower] | None = None
    """The follower that gets the samples, with samples of other tracepoints, instead of `convert`."""
    filter: str = ""

    @property
    def hook(self) -> int:
        """The kernel event that a sample becomes."""
        return self.kind.hook if self.kind else PMC

    @property
    def tracepoint(self) -> str:
        return self.kind.tracepoint if self.kind else ""

    @property
    def period(self) -> int:
        """Events of the kernel between two samples."""
        if self.source is None:
            return 1
        return self.interval * _TIMER_NS if self.source == TIMER else self.interval

    @property
    def key(self) -> tuple[object, ...]:
        """Equal where two streams differ in nothing but the period."""
        cores = self.choice.pmu.name if self.choice.pmu else ""
        kernel_stacks = self.stacks and self.kernel_stacks
        point = self.choice.name if self.follower else ""
        return (
            self.hook,
            self.source,
            cores,
            self.stacks,
            kernel_stacks,
            self.options,
            self.counters,
            point,
            self.filter,
        )

    def spec(self, host: Host, group: Mapping[int, int] | None = None) -> EventSpec:
        """For perf_event_open. ``group``: by processor, the first event of `counters`."""
        flags = self.kind.flags | (self.kind.counting if self.counters else set()) if self.kind else frozenset()
        flags |= set() if self.kernel_stacks else {"exclude_callchain_kernel"}
        branches = 0 if self.options is None else lbr.convert(self.options, "etw", "perf").value
        made = sample_spec(
            self.choice,
            host,
            period=self.period,
            sample=(self.kind.sample if self.kind else 0) | (SAMPLE.CALLCHAIN if self.stacks else 0),
            branches=branches,
            more=flags,
            group_leaders=group if self.counters else None,
        )
        return replace(made, filter=self.filter)

    def convert(self, batch: SampleBatch, ticks: Ints) -> Events:
        """Convert samples to events at ``ticks``, which are the batch's times, too."""
        events = self._convert(batch, ticks)
        return with_values(events, self.hook, values_of(batch, len(self.counters))) if self.counters else events

    def _convert(self, batch: SampleBatch, ticks: Ints) -> Events:
        if self.kind is not None:
            return self.kind.convert(batch, ticks, Raw(batch, self.fields))
        assert self.source is not None
        count = np.full(len(batch), self.interval, np.int64)
        periods = PeriodEncoding(np.ones_like(count), count, count, np.zeros(len(batch), bool), 0)
        return of_samples(batch, ticks, [Trigger(source=self.source, options=self.options or 0)], periods, batch.cpu)


def plan_streams(configuration: SourceConfiguration, kernel: Kernel, host: Host) -> list[StreamPlan]:
    """Every stream but that of processes, threads and images. `EtwError` for an event that this machine lacks."""
    kinds = kinds_of(configuration.masks)
    found = [_of_kind(name, configuration, kernel) for name in sorted(kinds - TASKS) if name in KINDS]
    for source in configuration.pmc_sources if "pmc" in kinds else ():
        found += [StreamPlan(choice, source=source) for choice in choices_of(source, kernel)]
    found = [_configure(one, configuration) for one in found]
    return found + [one for follower in FOLLOWERS for one in _follower_streams(follower, kinds, configuration, kernel)]


def _follower_streams(
    follower: type[TracepointFollower], kinds: frozenset[str], configuration: SourceConfiguration, kernel: Kernel
) -> Iterator[StreamPlan]:
    """The tracepoints of ``follower`` for its own kinds among ``kinds``."""
    wanted = kinds & follower.needs.keys()
    for name in sorted({name for kind in wanted for name in follower.needs[kind]}):
        point = read_tracepoint(kernel, name)
        missing = [field for field in follower.fields[name] if field.lstrip("*") not in point.fields]
        if missing:
            shown = f"{name.replace('/', ':')} has no field {missing[0].lstrip('*')}"
            raise EtwError("StartTrace", Status.NOT_SUPPORTED, f"the tracepoint {shown} in this kernel")
        yield StreamPlan(
            EventChoice(name.replace("/", ":"), TYPE.TRACEPOINT, point.number),
            Kind(0, _none, tracepoint=name, sample=SAMPLE.RAW),
            point.fields,
            stacks=bool(follower.hooks.intersection(configuration.stack_hooks)),
            kernel_stacks=configuration.kernel_stacks,
            follower=follower,
            filter=follower.filter(wanted, kernel.machine),
        )


def _none(batch: SampleBatch, ticks: Ints, raw: Raw) -> Events:
    """A tracepoint of a follower makes no events by itself."""
    return Events.join([])


def _of_kind(name: str, configuration: SourceConfiguration, kernel: Kernel) -> StreamPlan:
    kind = KINDS[name]
    if name == "switch" and not has_tracefs(kernel) and not _counters_of(kind.hook, configuration):
        kind = RECORDS  # which carry no counts
    if not kind.tracepoint:
        choice = EventChoice(kind.event, TYPE.SOFTWARE, kind.config)
        return StreamPlan(choice, kind, source=TIMER if name == "timer" else None)
    point = read_tracepoint(kernel, kind.tracepoint)
    return StreamPlan(EventChoice(kind.tracepoint.replace("/", ":"), TYPE.TRACEPOINT, point.number), kind, point.fields)


def _configure(one: StreamPlan, configuration: SourceConfiguration) -> StreamPlan:
    """``one`` with its interval, and with all that its samples are to carry."""
    source = one.source
    return replace(
        one,
        interval=0 if source is None else configuration.intervals.get(source, default_interval(source)),
        stacks=one.hook in configuration.stack_hooks,
        kernel_stacks=configuration.kernel_stacks,
        options=configuration.lbr_flags if one.kind is None and one.hook in configuration.lbr_hooks else None,
        counters=_counters_of(one.hook, configuration),
    )


def _counters_of(hook: int, configuration: SourceConfiguration) -> tuple[int, ...]:
    return configuration.pmc_counters if hook in configuration.pmc_hooks else ()


def names_of(sources: Iterable[int], kernel: Kernel) -> dict[int, str]:
    """The names of profile sources by number."""
    known = {source.source: source.name for source in profile_sources(kernel)}
    return {source: known.get(source, f"profile source {source}") for source in sources}


# -- A trial: every event that masks ask for is opened on one processor, and closed again


def try_masks(masks: Sequence[int], call: str, kernel: Kernel | None = None) -> None:
    """Raises `EtwError` with the reason for the first event that the kernel refuses.

    Counters are tried when they are configured; here only whether any profile source but the timer exists.
    """
    given, kernel = kernel, kernel or Kernel()
    host = read_host(kernel)
    configuration = SourceConfiguration(masks=tuple(masks))
    specs = [task_spec(host, images=True)] if kinds_of(masks) & {*TASKS, COUNTERS} else []
    specs += [one.spec(host) for one in plan_streams(configuration, kernel, host)]
    for spec in specs:
        try:
            kernel.close(kernel.open_event(spec.attr_without(spec.extras), ALL.pid, spec.cpus[0]))
        except OSError as error:
            raise refusal(error, spec, host, call) from error
    if "pmc" in kinds_of(masks) and len(profile_sources(given)) == 1:
        cycles = sample_spec(EventChoice("PMC_PROFILE", TYPE.HARDWARE), host)
        raise refusal(OSError(errno.ENOENT, ""), cycles, host, call)
