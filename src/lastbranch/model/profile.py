"""A profile: the contents of one capture."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any

import numpy as np

from ..errors import Damage
from ..lazy import provider_of
from .address_spaces import AddressSpaces
from .batch import Array, SampleBatch
from .clock import Clock
from .safe_text import visible
from .source import MEMORY
from .stream import SampleStream, StackWatcher, merge
from .tables import Capture, Event, Machine, Module, Process, Thread
from .tabular import Columns, html_table
from .timeline import Timeline

__all__ = ["TABLES", "THROTTLES", "Profile"]

# Bytes that a row costs at most, with what is made of it when samples are bound.
_CHANGE, _MODULE, _NAME, _EVENT, _THREAD, _DAMAGE, _NODE = 256, 700, 200, 4000, 600, 400, 300

_BUDGET = "--max-memory"
THROTTLES = "throttles"
"""The counter of `Profile.lost` that counts pauses of sampling."""
TABLES: dict[str, type] = {
    "captures": Capture,
    "modules": Module,
    "processes": Process,
    "threads": Thread,
    "events": Event,
}
"""Tables of a profile by name, and what a row of each is."""


@dataclass(eq=False, repr=False)
class Profile:
    """One capture, after its index pass: tables complete, samples still in the file.

    The profile of a format's reader has no binder, processes and threads until `lastbranch.bind.bind` adds them;
    `lastbranch.open` returns it whole.

    ``records``  number of records by name, of every kind that the file has, unknown ones included.
    ``lost``     what the recorder says it lost, by the name of the counter: ``samples``, ``records``, ``throttles``...
                 Throttles are times at which the kernel paused sampling: nothing that was sampled is lost by them.
    ``damage``   what could not be read; what precedes and follows it was delivered.
    ``header``   what the file says of itself that has no other place: command line, recorder version...
    """

    name: str
    format: str
    """``perf.data``, ``perf.data (pipe)``..."""
    recorder: str = ""
    machine: Machine = field(default_factory=Machine)
    clock: Clock = field(default_factory=Clock)
    modules: list[Module] = field(default_factory=list)
    processes: Sequence[Process] = field(default_factory=list)
    threads: Sequence[Thread] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    streams: list[SampleStream] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    seen_threads: set[tuple[int, int]] = field(default_factory=set)
    """(pid, tid) of every sample."""
    first_time: int | None = None
    last_time: int | None = None
    """Clock ticks of the first and last sample."""
    start: int | None = None
    """Clock ticks of the first event of any kind: times that people see and give count from here."""
    records: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    losses: list[tuple[int, int]] = field(default_factory=list)
    """(ticks, how many records or samples) of what was lost, where the source says when: the first 65,536 of them."""
    damage: list[Damage] = field(default_factory=list)
    header: dict[str, str] = field(default_factory=dict)
    raw_features: dict[str, bytes] = field(default_factory=dict)
    """Header sections that are not decoded, by name."""
    memory: int = MEMORY
    """Bytes that the tables may take."""
    hardware_trace: str = ""
    """What traced into an AUX area: ``Arm SPE``, whose operations are samples, ``Intel PT``..."""
    decoded_by: str | None = None
    """The command that makes branch stacks of a hardware trace which is not decoded here, empty where there is none;
    ``None`` where there is no such trace."""
    findings: list[tuple[str, str, str, bool]] | None = None
    """Of a .tb5 made of an .etl: what `check` found in its events, which are no longer there: name, severity, what was
    seen, whether the remedy is that on Windows."""

    notes: list[str] = field(default_factory=list)
    """Of captures that were opened together: what users should know of what became of files and modules."""
    refused: list[tuple[str, Exception]] = field(default_factory=list)
    """Names of captures that could not be opened with the others, and why."""
    watcher: StackWatcher | None = None
    """What saw the branch stacks when the capture was indexed."""

    binder: AddressSpaces = field(init=False, repr=False)
    """Which module, process and thread owned an address at the time of a sample."""

    def __post_init__(self) -> None:
        self._weighed = {"modules": 0, "names": 0}
        self._text = 0

    def over_memory_limit(self, offset: int, beside: int = 0) -> bool:
        """Whether the tables have taken their `memory`, including ``beside`` bytes that only the reader knows of: the
        reader stops then, and ``offset`` is noted as the place after which nothing was read. For each block, not each
        record.
        """
        lists: dict[str, list[Any]] = {"modules": self.modules, "names": self.timeline.names}
        for name, rows in lists.items():
            new = rows[self._weighed[name] :]
            self._text += sum(len(one if isinstance(one, str) else one.name) for one in new)
            self._weighed[name] += len(new)
        rows_of = (
            (_CHANGE, self.timeline),
            (_MODULE, self.modules),
            (_NAME, self.timeline.names),
            (_EVENT, self.events),
            (_THREAD, self.seen_threads),
            (_DAMAGE, self.damage),
            (_NODE, self.machine.nodes),
            (_NODE, self.machine.cpus),
        )
        taken = sum(cost * len(rows) for cost, rows in rows_of) + self._text + beside
        if taken > self.memory:
            reason = f"the tables exceed the memory budget of {self.memory >> 20} MiB; the rest was not read"
            self.damage.append(Damage(reason, offset, _BUDGET))
        return taken > self.memory

    def extend_time_range(self, first: int, last: int) -> None:
        """Samples of these times (ticks of the clock) are in the capture."""
        self.first_time = first if self.first_time is None else min(first, self.first_time)
        self.last_time = last if self.last_time is None else max(last, self.last_time)

    def begin(self) -> None:
        """Set `start` to the first change of the timeline or the first sample, where nothing in the capture says it."""
        if self.start is None:
            known = (self.timeline.earliest(), self.first_time)
            self.start = min((time for time in known if time is not None), default=None)

    @staticmethod
    def is_budget(damage: Damage) -> bool:
        """Whether ``damage`` says that the tables have taken their `memory`."""
        return damage.field == _BUDGET

    @property
    def captures(self) -> list[Capture]:
        """The captures of this profile: the profile itself, or the captures that were opened together."""
        start = None if self.start is None else self.clock.wall_ns(self.start)
        own = self.name, self.format, self.recorder, self.machine.host
        return [Capture(*own, start, self.samples, self.entries)]

    @property
    def tick(self) -> int:
        """Ticks of the clock in one of the source's own: more than 1 where captures with other clocks were joined."""
        return 1

    def weight_of(self, batch: SampleBatch) -> int:
        """How often each sample of ``batch``, one of `batches`, counts."""
        return 1

    def capture_of(self, process: int) -> tuple[Profile, int]:
        """The profile of the capture that has row ``process`` of the processes table, and its row there."""
        return self, process

    @property
    def samples(self) -> int:
        return sum(s.samples for s in self.streams)

    @property
    def entries(self) -> int:
        return sum(s.entries for s in self.streams)

    @property
    def lost_records(self) -> int:
        """Records and samples that were lost."""
        return sum(number for name, number in self.lost.items() if name != THROTTLES)

    @property
    def deepest(self) -> int:
        """Entries of the deepest branch stack; 0 where there are none."""
        return max((s.deepest for s in self.streams), default=0)

    def sql(self, query: str) -> Any:
        """The `lastbranch.sql.Result` of a SELECT statement: ``lastbranch.query(profile, query)``, which says more."""
        return provider_of("query")(self, query)

    def place(self, module: int, address: int) -> str:
        """``name+0x12`` for an address in a row of the modules table; the bare address where the row is -1."""
        return f"{self.modules[module].short}+{address:#x}" if module >= 0 else f"{address:#x}"

    def batches(
        self, columns: Collection[str] | None = None, *, ordered: bool = False, having: str | None = None
    ) -> Iterator[SampleBatch]:
        """All samples: stream after stream in file order, or (``ordered``) merged over the streams by time, capture
        after capture: times of different machines do not compare. ``having``: only of streams with this column."""
        streams = [stream for stream in self.streams if having is None or having in stream.columns]
        for _, own in groupby(streams, lambda stream: stream.capture):
            if ordered:
                yield from merge([stream.batches(columns, ordered=True) for stream in own])
                continue
            for stream in own:
                yield from stream.batches(columns)

    def stacks(self) -> Iterator[SampleBatch]:
        """All samples as `SampleStream.stacks`, stream after stream."""
        for stream in self.streams:
            yield from stream.stacks()

    def table(self, name: str) -> Columns:
        """A table (one of `TABLES`) as NumPy arrays by column; text and nested values are object arrays.

        Raises `KeyError` for another name.
        """
        if name not in TABLES:
            raise KeyError(name)
        rows = getattr(self, name)
        return Columns({f.name: _column([getattr(r, f.name) for r in rows]) for f in fields(TABLES[name])})

    def __repr__(self) -> str:
        sizes = ", ".join(f"{size:,} {name}" for name, size in self._sizes().items())
        return f"<Profile {visible(self.name)}: {sizes}>"

    def _repr_html_(self) -> str:
        facts = [("format", self.format), ("recorder", self.recorder), ("processor", self.machine.cpu_description)]
        facts += [(name, f"{size:,}") for name, size in self._sizes().items()]
        return html_table(f"Profile {self.name}", None, ["", ""], [[n, visible(v)] for n, v in facts if v])

    def _sizes(self) -> dict[str, int]:
        of_tables = {"processes": len(self.processes), "modules": len(self.modules)}
        return {"samples": self.samples, "branch entries": self.entries, **of_tables}


def _column(values: list[object]) -> Array:
    if {type(value) for value in values} in ({int}, {bool}):
        return np.array(values)
    out = np.empty(len(values), object)
    out[:] = values
    return out
