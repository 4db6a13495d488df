"""Converts a recording of the software LBR to kernel events while it runs.

The collector writes perf.data in its pipe form (`record_writer`). After it has emptied the kernel's rings it
writes a FINISHED_ROUND record: records older than the round before are complete then. The events are those of
`formats.etl.write_profile`: PMC interrupts with last branch records, processes, threads, images, and events of our own
for the rest (`formats.etl.profile.supplement`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ....capture import Summary
from ....formats.etl import kernel_names
from ....formats.etl.kernel.hooks import LBR_SAMPLE
from ....formats.etl.profile.lifecycle_events import LifecycleEvents
from ....formats.etl.profile.sample_events import PeriodEncoder, PeriodEncoding, Trigger
from ....formats.etl.profile.session_events import SessionEvents
from ....formats.etl.profile.supplement import Measured, event_fields, recording_events, supplement_event
from ....formats.perfdata.layout import PIPE_HEADER_SIZE, RECORD, USER_RECORDS
from ....formats.perfdata.reader import Reader
from ....formats.perfdata.walk import Block
from ....model import BRANCH, BytesSource, Profile, SampleBatch
from ....opening import attach_binaries
from ...flags import ClientContext
from ..lbr_configuration import SOFTWARE_BRANCHES
from ..profile_sources import TIMER
from ..sources.event_words import Events, encode_events, made_or_counted, of_samples, shown_hook, unwritten_name
from ..sources.perf_records import FOREVER, Ints, Ticks, follow_records, record_bytes, records_in
from ..sources.process import Output

__all__ = ["Conversion", "FINISHED_ROUND", "PATIENCE", "RecordingFollower", "Scope"]


FINISHED_ROUND = RECORD["FINISHED_ROUND"]
_HEADER = struct.Struct("<IHH")
_SAMPLE, _LOST = RECORD["SAMPLE"], RECORD["LOST"]
_LIVES, _BRANCHES = "Process, Thread and Image", shown_hook(LBR_SAMPLE)
_SAMPLE_TIME, _TRAILER_TIME = 4, -3
"""Words from the start of a sample (after identifier, address, ids), and from the end of another record."""


class Scope:
    """The part of a recording that becomes events.

    ``whole``: everything, as a log of the recording alone needs it. Otherwise only the bursts, whose records carry
    ``flags`` (EVNTRACE_LBR_FLAGS): the session's other sources write the rest. ``sampled``: the bursts are samples of
    the timer, each of one of its intervals, and no interrupts of a source of their own. ``call_hooks``: the recording
    has records of system calls, too, which these events trigger. Without ``bursts`` the stream has nothing else.
    """

    def __init__(
        self,
        *,
        whole: bool = True,
        flags: int = 0,
        name: str = "",
        sampled: bool = False,
        bursts: bool = True,
        call_hooks: tuple[int, ...] = (),
    ) -> None:
        self.whole, self.flags, self.name, self.sampled = whole, flags, name, sampled
        self.bursts, self.call_hooks = bursts, call_hooks


class Conversion:
    """Takes the bytes of a recording as they come. ``clock`` is the session's ClientContext."""

    def __init__(self, scope: Scope, clock: int = ClientContext.QPC) -> None:
        self._scope, self._ticks = scope, Ticks(clock)
        self._kept = b""
        self._reader: Reader | None = None
        self._lives: LifecycleEvents | None = None
        self._before = self._floor = self._modules = 0
        self.lost = 0
        """Records that the kernel dropped so far."""
        self.calls: list[SampleBatch] = []
        """Records of system calls that nobody has taken yet; the record of a call's end has no branches."""
        self.until = 0
        """ns: all records before this are in events, or in `calls`."""
        self._unwritten: Counter[str] = Counter()

    @property
    def begun(self) -> bool:
        """Whether the recording has begun: the collector is attached."""
        return self._reader is not None

    @property
    def recorded(self) -> bool:
        """Whether anything was recorded after the beginning."""
        return self._lives is not None

    # -- records

    def feed(self, data: bytes) -> Events:
        """Take ``data``. Returns the events that are complete now."""
        self._kept += data
        if self._reader is None and not self._begin():
            return Events.join([])
        block = records_in(self._kept)
        rounds = block.at[block.types == FINISHED_ROUND]
        if not len(rounds):
            return Events.join([])
        times = [self._before, *map(int, block.words[rounds + 1])]
        self._before = times[-1]
        return self._round(block, times[-2])

    def _begin(self) -> bool:
        """Read what precedes the records, once all of it has come."""
        at = PIPE_HEADER_SIZE
        while len(self._kept) >= at + _HEADER.size:
            kind, _, size = _HEADER.unpack_from(self._kept, at)
            if kind < USER_RECORDS or kind == FINISHED_ROUND:
                self._reader = Reader(BytesSource(self._kept[:at], "recording"))
                self._reader.index(None)
                self._kept = self._kept[at:]
                self._open(self._reader.profile)
                return True
            at += size
        return False

    def _open(self, profile: Profile) -> None:
        self._profile = profile
        profile.recorder = "lastbranch software LBR"
        self._bursts = len(profile.events) - 1 - bool(self._scope.call_hooks)
        if self._scope.name:
            profile.events[self._bursts].name = self._scope.name
        self._session = SessionEvents(profile)
        triggers = self._triggers = self._session.triggers
        triggers[self._bursts] = replace(triggers[self._bursts], source=SOFTWARE_BRANCHES)
        if not self._scope.whole:
            source = TIMER if self._scope.sampled else SOFTWARE_BRANCHES
            triggers[:] = [Trigger()] * len(triggers)
            triggers[self._bursts] = Trigger(source, options=self._scope.flags)
        self._periods = PeriodEncoder(self._session.intervals)
        self._measured, self._called = Measured(), Measured()

    # -- events

    def _round(self, block: Block, until: int) -> Events:
        """The events of all records before ``until`` (ns)."""
        assert self._reader is not None
        is_sample, of_perf = block.types == _SAMPLE, block.types >= USER_RECORDS
        end = block.at + (block.sizes(block.at) >> 3)
        place = np.where(is_sample, block.at + _SAMPLE_TIME, end + _TRAILER_TIME)
        time = block.words.take(place, mode="clip").view(np.int64)
        records = ~of_perf & (time < until)
        if not records.any():
            self._keep(block, ~of_perf)
            self.until = until
            return Events.join([])
        parts = [self._first(int(time[records].min()))] if self._lives is None else []
        lives = records & ~is_sample
        parts.append(made_or_counted(_LIVES, int(lives.sum()), partial(self._life, block, lives)))
        for number, at, event in self._reader.by_layout(block, block.at[records & is_sample]):
            parts.append(made_or_counted(_BRANCHES, len(at), partial(self._sample_events, number, block, at, event)))
        self._keep(block, ~(of_perf | records))
        self.until = until
        self._floor = self._ticks.of(until)
        events = Events.join(parts)
        self._unwritten += events.unwritten
        return events

    def _keep(self, block: Block, rows: NDArray[np.bool_]) -> None:
        """Keep only these records of ``block``, and what is not whole yet."""
        end = int(block.at[-1]) * 8 + int(block.sizes(block.at[-1:])[0])
        self._kept = record_bytes(block, rows) + self._kept[end:]

    def _first(self, begin: int) -> Events:
        """The first events: the machine, and the intervals of the profile sources."""
        session = self._session
        session.begin = self._ticks.of(begin)
        self._lives = LifecycleEvents(self._profile, session.begin, session.pointer)
        if self._scope.whole:
            return encode_events(session.configuration(), 0)
        first = [supplement_event("Event", session.begin, self._describe_hook(hook)) for hook in self._scope.call_hooks]
        if self._scope.bursts and not self._scope.sampled:
            said = event_fields(self._profile.events[self._bursts], self._triggers[self._bursts])
            first.append(supplement_event("Event", session.begin, said))
            first += session.interval_events(session.intervals, begin=True, time=session.begin)
        return encode_events(first, 0)

    def _describe_hook(self, hook: int) -> dict[str, Any]:
        """The fields of the Event of a kernel event whose records software makes."""
        name = kernel_names((hook >> 8, hook & 0xFF))[1]
        event = replace(self._profile.events[self._bursts], name=name, period=0, frequency=0, has_period=False)
        return event_fields(event, Trigger(hook=hook))

    def _life(self, block: Block, rows: NDArray[np.bool_]) -> Events:
        """Processes, threads and images."""
        assert self._reader is not None
        profile, at, types = self._reader.state.profile, block.at[rows], block.types[rows]
        self.lost += int(block.words[at[types == _LOST] + 2].sum())
        follow_records(self._reader.state, block, at, types, self._ticks, self._floor)
        if not self._scope.whole:
            return Events.join([])
        new = profile.modules[self._modules :]
        self._modules = len(profile.modules)
        attach_binaries(new, profile.machine.os_release)
        assert self._lives is not None
        self._lives.reload()
        return encode_events(self._lives.until(FOREVER), 0)

    def _sample_events(self, layout: int, block: Block, at: Ints, event: NDArray[np.int32]) -> Events:
        """The events of samples of one layout."""
        assert self._reader is not None
        return Events.join([*self._samples(self._reader.layouts[layout].layout.decode(block, at, event, None))])

    def _samples(self, batch: SampleBatch) -> Iterator[Events]:
        """Interrupts and branch records; before them the threads that no record announced."""
        if not (self._scope.whole or BRANCH in batch.offsets):
            return
        if self._scope.call_hooks:
            called = batch.select(batch.event > self._bursts)
            self.calls.append(called)
            self._called.add(called)
            batch = batch.select((batch.event <= self._bursts) & self._scope.bursts)
            if not len(batch):
                return
        batch = batch.select(np.argsort(batch.time, kind="stable"))
        time = np.maximum(self._ticks(batch.time), self._floor)
        if self._scope.whole:
            threads = np.unique(np.stack([batch.pid, batch.tid]), axis=1).T.tolist()
            lives, first = self._lives, int(time[0])
            assert lives is not None
            yield encode_events((event for pid, tid in threads for event in lives.thread_of_sample(first, pid, tid)), 0)
        if BRANCH in batch.offsets:
            self._measured.add(batch)
        if self._scope.sampled:
            one = np.ones(len(batch), np.int64)
            periods = PeriodEncoding(one, one, one, np.zeros(len(batch), bool), 0)
        else:
            periods = self._periods.encode(batch, time, self._triggers)
        yield of_samples(batch, time, self._triggers, periods, np.maximum(batch.cpu, 0))

    # -- the end

    def finish(self, now: int, describe: Callable[[Profile], None] = lambda profile: None) -> Events:
        """The rest of the records, and the lists of what runs ``now`` (ns). ``describe`` adds facts about the whole
        recording."""
        if self._reader is None:
            return Events.join([])
        block = records_in(self._kept)
        parts = [self._round(block, now)] if len(block.at) else []
        if self._lives is None:
            return Events.join([])
        end = self._ticks.of(now)
        last = self._measured.events(self._triggers, end)
        for hook in self._scope.call_hooks:
            last += self._called.events([Trigger(hook=hook)] * len(self._triggers), end)
        for kind, number in (+self._unwritten).items():
            if self._scope.whole:
                self._profile.lost[unwritten_name(kind)] = number
            else:
                last.append(supplement_event("Lost", end, {"Name": unwritten_name(kind), "Count": number}))
        if self._scope.whole:
            describe(self._profile)
            intervals = self._session.interval_events(self._periods.now, begin=False, time=end)
            last = [*self._lives.end(end), *intervals, *last, *recording_events(self._profile, end)]
        return Events.join([*parts, encode_events(last, 0)])


# -- The recording as it grows, from a pipe
#
# The collector runs in a process of its own, so that nothing else can fall into a burst. Here a thread reads its output
# from a pipe and converts it to events.


_ROUND = 0.1
"""Seconds between two rounds."""
PATIENCE = 1.0
"""Seconds that an event waits for a free buffer; the pipe holds what comes meanwhile."""
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_MARK = struct.Struct("=IHHq")


class Rounds:
    """Marks the rounds in ``file``, in the collector's process. The follower is the ``progress`` callback of a
    recording, which runs just after the kernel's rings were emptied; it also calls the caller's ``progress``."""

    def __init__(self, file: IO[bytes], reads: int, progress: Callable[[Summary], None]) -> None:
        self._file, self._reads, self._progress = file, reads, progress
        self._next = 0.0

    def __call__(self, summary: Summary) -> None:
        if self._reads >= 0:  # else a reader that is gone would go unnoticed
            os.close(self._reads)
            self._reads = -1
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _ROUND
            self._file.write(_MARK.pack(FINISHED_ROUND, 0, _MARK.size, time.monotonic_ns()))
            self._file.flush()
        self._progress(summary)


class RecordingFollower:
    """Follows a recording: the collector gets `file`, and `rounds` as its progress callback; call `start` when it runs.

    ``begun`` is set when the collector is attached, or has ended. ``converted`` is called in the thread whenever
    records were converted.
    """

    def __init__(self, conversion: Conversion, output: Output, converted: Callable[[], None] = lambda: None) -> None:
        self._conversion, self._output, self._converted = conversion, output, converted
        self.reads, writes = os.pipe()
        with suppress(OSError):  # a user's pipes are limited
            fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.file: IO[bytes] = os.fdopen(writes, "wb", buffering=_READ_BYTES)
        self.begun = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="lbr")

    def rounds(self, progress: Callable[[Summary], None]) -> Rounds:
        return Rounds(self.file, self.reads, progress)

    def start(self, collector: int = 0) -> None:
        """Begin to read: the collector has its own copy of the file now."""
        self.file.close()
        self._thread.start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        lost = 0
        while data := os.read(self.reads, _READ_BYTES):
            if self.failure is not None:
                continue  # the collector must not wait for us
            try:
                self._output.put(self._conversion.feed(data))
                self._converted()
                self._output.lost(self._conversion.lost - lost)
                lost = self._conversion.lost
            except Exception as error:  # raised by `finish`
                self.failure = error
            if self._conversion.begun:
                self.begun.set()
        os.close(self.reads)
        self.begun.set()

    def finish(self, describe: Callable[[Profile], None] = lambda profile: None) -> None:
        """Wait for the collector's end, and write the rest. Raises the failure that stopped the writing."""
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self._output.put(self._conversion.finish(time.monotonic_ns(), describe))
        self._converted()
