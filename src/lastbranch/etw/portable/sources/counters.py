"""Counter values in the headers of events: one group of counters on each processor, which the events join.

The kernel reads the counters of a group at the moment of each of its samples, and has a group on the processor as a
whole or not at all, events that need no counter included. So its first counter is pinned: it is there all the time, or
the kernel says that it cannot be, and that is refused instead of a trace with gaps. In newer kernels (seen with 6.18) a
group also stands still until the next tick of the kernel's clock where one of its events takes more samples than
kernel.perf_event_max_sample_rate allows; each of these gaps is told as a loss.
Source: perf_event_open(2) (group_fd, pinned, PERF_FORMAT_GROUP, PERF_RECORD_THROTTLE).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....capture.perf_events.events import EventChoice
from ....capture.perf_events.host import Host
from ....capture.perf_events.kernel import Kernel, RecordRing
from ....capture.perf_events.programme import Programme, open_event
from ....capture.perf_events.syscall import CLOCK
from ....errors import UnavailableError
from ....formats.perfdata.layout import RECORD
from ....formats.perfdata.walk import chase
from ....model import SampleBatch
from ...status import EtwError, Status
from ..profile_sources import choices_of
from .events import Words
from .stream import ALL, refusal

__all__ = ["MOST", "Counters", "values_of"]

MOST = 7
"""Values that a header has room to tell of."""
_CALL = "TraceSetInformation"
"""All of a group have one clock."""
_THROTTLE = RECORD["THROTTLE"]
_PAGES = 2
"""Of a ring that has no other records."""


class Counters:
    """Counts ``sources`` on every processor from `start` on; nothing without any.

    `EtwError` 87 for more than `MOST` and for what is no counter, else as the kernel refuses (`stream.refusal`).
    """

    def __init__(self, sources: tuple[int, ...], kernel: Kernel, host: Host) -> None:
        self.sources, self._kernel = sources, kernel
        self.leaders: dict[int, int] = {}
        """By processor, the descriptor of the first one."""
        self._opened: list[int] = []
        self._rings: list[RecordRing] = []
        if len(sources) > MOST:
            why = f"a header has room for {MOST} counter values, not {len(sources)}"
            raise EtwError(_CALL, Status.INVALID_PARAMETER, why)
        choices = [_choices(source, kernel) for source in sources]
        try:
            for cpu in host.cpus:
                for of_cores in choices:
                    self._open(_of(of_cores, cpu), cpu, host)
        except BaseException:
            self.close()
            raise

    def _open(self, choice: EventChoice, cpu: int, host: Host) -> None:
        flags = {"use_clockid", *choice.exclude, *([] if cpu in self.leaders else ["pinned", "disabled"])}
        joins = {cpu: self.leaders[cpu]} if cpu in self.leaders else {}
        fields = {"clockid": CLOCK, "period": 0}
        programme = Programme(choice, host.cpus, frozenset(flags), fields, joins=joins)
        try:
            fd = open_event(self._kernel, programme, ALL.pid, cpu)
        except OSError as error:
            raise refusal(error, programme, host, _CALL) from error
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
        data = b"".join(parts)
        block, _ = chase(np.frombuffer(data, np.uint64), len(data), 0, False)
        return int(np.count_nonzero(block.types == _THROTTLE))

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
    raise EtwError(_CALL, Status.INVALID_PARAMETER, f"profile source {source} is no counter of this machine")


def _of(choices: Sequence[EventChoice], cpu: int) -> EventChoice:
    """The one that counts on ``cpu``."""
    for choice in choices:
        if choice.pmu is None or choice.pmu.cpus is None or cpu in choice.pmu.cpus:
            return choice
    raise EtwError(_CALL, Status.NOT_SUPPORTED, f"{choices[0].name}: processor {cpu} does not count it")


def values_of(batch: SampleBatch, number: int) -> Words:
    """(samples, ``number``) u64: the first counts of the group of each. What a sample is too short for is 0."""
    offsets, values = batch.offsets["read"], batch["read_value"]
    at = offsets[:-1, np.newaxis] + np.arange(number)
    has = at < offsets[1:, np.newaxis]
    return np.where(has, values.take(at, mode="clip"), np.uint64(0)) if len(values) else np.zeros(at.shape, np.uint64)
