"""What a configuration asks of perf: the streams that are to be open, each with its spec and its conversion."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .... import lbr
from ....capture.perf_events.event_set import EventSpec
from ....capture.perf_events.events import EventChoice
from ....capture.perf_events.host import Host, read_host
from ....capture.perf_events.kernel import Kernel
from ....formats.etl.profile.sample_events import Told, Trigger, sample_events
from ....formats.perfdata.layout import TYPE
from ....model import SampleBatch
from ..enable_map import kinds_of
from ..profile_sources import TIMER, choices_of, default_interval, profile_sources
from .configuration import SourceConfiguration
from .events import Events, Ints, with_values
from .kinds import KINDS, NO_RAW, PMC, RECORDS, Kind, Place, Raw, has_tracefs, read_tracepoint
from .stream import ALL, refusal, sampling, tracking, values_of

__all__ = ["LIVES", "Wanted", "names_of", "try_masks", "wanted_streams"]


LIVES = frozenset({"process", "thread", "image"})
_TIMER_NS = 100
"""The unit of the timer's interval."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One stream. Streams with equal ``key`` differ in nothing but the period."""

    key: tuple[object, ...]
    choice: EventChoice
    kind: Kind | None
    """``None``: a profile source that is a counter."""
    fields: Mapping[str, Place]
    period: int = 1
    source: int | None = None
    interval: int = 0
    stacks: bool = False
    kernel_stacks: bool = True
    options: int | None = None
    """Flags of the branch records that its samples carry, ``None``: none."""
    counters: tuple[int, ...] = ()
    """Profile sources whose counts its samples carry."""

    def spec(self, host: Host, group: Mapping[int, int] | None = None) -> EventSpec:
        """For perf_event_open. ``group``: by processor, the first event of `counters`."""
        flags = self.kind.flags | (self.kind.counting if self.counters else set()) if self.kind else frozenset()
        branches = 0 if self.options is None else lbr.convert(self.options, "etw", "perf").value
        return sampling(
            self.choice, host, period=self.period, sample=self.kind.sample if self.kind else 0,
            stacks=self.stacks, kernel_stacks=self.kernel_stacks, branches=branches,
            more=flags, group_leaders=group if self.counters else None,
        )  # fmt: skip

    def convert(self, batch: SampleBatch, ticks: Ints) -> Events:
        """Samples to events at ``ticks``, which the batch has as times, too."""
        events = self._convert(batch, ticks)
        if not self.counters:
            return events
        return with_values(events, self.kind.hook if self.kind else PMC, values_of(batch, len(self.counters)))

    def _convert(self, batch: SampleBatch, ticks: Ints) -> Events:
        if self.kind is not None:
            return self.kind.convert(batch, ticks, Raw(batch, self.fields))
        assert self.source is not None
        count = np.full(len(batch), self.interval, np.int64)
        told = Told(np.ones_like(count), count, count, np.zeros(len(batch), bool), 0)
        trigger = Trigger(source=self.source, options=self.options or 0)
        data, ends, times, owner = sample_events(batch, ticks, [trigger], told, narrow=False)
        size = np.diff(ends, prepend=0) >> 3
        return Events(np.frombuffer(data, np.uint64), size, times, batch.cpu[owner])


def wanted_streams(configuration: SourceConfiguration, kernel: Kernel, host: Host) -> list[Wanted]:
    """Every stream but that of processes and images. `EtwError` for what is not to be had at all."""
    kinds = kinds_of(configuration.masks)
    found = [_of_kind(name, configuration, kernel) for name in sorted(kinds - LIVES) if name in KINDS]
    return found + (list(_counters(configuration, kernel, host)) if "pmc" in kinds else [])


def _of_kind(name: str, configuration: SourceConfiguration, kernel: Kernel) -> Wanted:
    kind = KINDS[name]
    fields, period, source, interval = NO_RAW, 1, None, 0
    if name == "switch" and not has_tracefs(kernel) and not _counters_of(kind.hook, configuration):
        kind = RECORDS  # which carry no counts
    if kind.tracepoint:
        point = read_tracepoint(kernel, kind.tracepoint)
        choice, fields = EventChoice(kind.tracepoint.replace("/", ":"), TYPE.TRACEPOINT, point.number), point.fields
    else:
        choice = EventChoice(kind.event, TYPE.SOFTWARE, kind.config)
    if name == "timer":
        source, interval = TIMER, configuration.intervals.get(TIMER, default_interval(TIMER))
        period = interval * _TIMER_NS
    return _finished((name,), choice, kind, fields, configuration, kind.hook, period, source, interval)


def _counters(configuration: SourceConfiguration, kernel: Kernel, host: Host) -> Iterator[Wanted]:
    for source in configuration.pmc_sources:
        interval = configuration.intervals.get(source, default_interval(source))
        for choice in choices_of(source, kernel):
            key = ("pmc", source, choice.pmu.name if choice.pmu else "")
            yield _finished(key, choice, None, NO_RAW, configuration, PMC, interval, source, interval)


def _finished(
    key: tuple[object, ...], choice: EventChoice, kind: Kind | None, fields: Mapping[str, Place],
    configuration: SourceConfiguration, hook: int, period: int, source: int | None, interval: int,
) -> Wanted:  # fmt: skip
    stacks = hook in configuration.stack_hooks
    branches = kind is None and hook in configuration.lbr_hooks
    options = configuration.lbr_flags if branches else None
    counters = _counters_of(hook, configuration)
    whole = (*key, stacks, stacks and configuration.kernel_stacks, options, counters)
    return Wanted(
        whole, choice, kind, fields, period, source, interval, stacks,
        configuration.kernel_stacks, options, counters,
    )  # fmt: skip


def _counters_of(hook: int, configuration: SourceConfiguration) -> tuple[int, ...]:
    return configuration.pmc_counters if hook in configuration.pmc_hooks else ()


def names_of(sources: Iterable[int], kernel: Kernel) -> dict[int, str]:
    """The names of profile sources by number."""
    known = {source.source: source.name for source in profile_sources(kernel)}
    return {source: known.get(source, f"profile source {source}") for source in sources}


# -- Whether the kernel gives what masks ask for: every event is opened on one processor, and closed again


def try_masks(masks: Sequence[int], call: str, kernel: Kernel | None = None) -> None:
    """`EtwError` with the reason for the first thing that is not to be had.

    Counters are tried when they are configured; here only that there is a profile source beside the timer.
    """
    given, kernel = kernel, kernel or Kernel()
    host = read_host(kernel)
    configuration = SourceConfiguration(masks=tuple(masks))
    specs = [tracking(host, images=True)] if kinds_of(masks) & LIVES else []
    specs += [one.spec(host) for one in wanted_streams(configuration, kernel, host)]
    for spec in specs:
        try:
            kernel.close(kernel.open_event(spec.attr_without(spec.extras), ALL.pid, spec.cpus[0]))
        except OSError as error:
            raise refusal(error, spec, host, call) from error
    if "pmc" in kinds_of(masks) and len(profile_sources(given)) == 1:
        cycles = sampling(EventChoice("PMC_PROFILE", TYPE.HARDWARE), host)
        raise refusal(OSError(errno.ENOENT, ""), cycles, host, call)
