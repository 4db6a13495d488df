"""Any profile as a trace log: ``write_profile(lastbranch.open("perf.data"), "out.etl")``.

The log holds what a session of the kernel would have written: a header buffer with group masks, configuration and
intervals of the profile sources, lists of processes, threads and images at start and end, the changes between, and for
each sample its event, last branch record and stack. Our own events (`supplement`) hold what these have no field
for. Per-sample columns such as weights, data addresses and registers are left out, and the result's notes name them.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....arrays import distinct, ranges
from ....errors import FormatError
from ....model import BRANCH, FRAME, REQUIRED, Mode, Profile, Progress, SampleBatch
from ...interface import Conversion
from ..container.header import LogHeader
from ..container.trace_file import TraceFile, pad_event
from ..container.writer import Packer
from ..layout import LogFileMode
from ..single_event import Event, encode_event
from .lifecycle_events import LifecycleEvents
from .sample_events import MOST_ENTRIES, MOST_FRAMES, PeriodEncoder, frames_of, sample_events
from .session_events import SessionEvents, session_header
from .supplement import Measured

__all__ = ["Written", "write_log", "write_profile"]


_KEPT = {c.name for c in REQUIRED} | {"frame", "branch_from", "branch_to", "branch_flags", "branch_info", "position"}
_MOVED = "samples moved to a later tick, because their thread has another sample with a stack at that tick"

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Written:
    """The result of `write_profile`. ``notes``: sentences about what the log cannot hold."""

    samples: int
    header: LogHeader
    notes: tuple[str, ...]


def write_profile(
    profile: Profile,
    path: str | os.PathLike[str],
    *,
    compress: bool = False,
    buffer_size: int = 1 << 16,
    mode: int = LogFileMode.FILE_MODE_SEQUENTIAL,
    maximum_file_size: int = 0,
    progress: Progress | None = None,
) -> Written:
    """Write ``profile`` to the trace log ``path``, which appears when it is complete.

    ``compress``, ``buffer_size`` (bytes), ``mode`` and ``maximum_file_size``: as in `trace_file.TraceFile`.
    ``progress`` is called with (samples written, samples in all).
    FormatError for what a reader of the log would take for something else; OSError where the file cannot be written.
    """
    writer = _LogWriter(profile, os.fspath(path), progress)
    mode |= LogFileMode.COMPRESSED_MODE if compress else 0
    return writer.write(buffer_size, mode, maximum_file_size)


def write_log(profile: Profile, path: str, *, compress: bool = False, progress: Progress | None = None) -> Conversion:
    """`write_profile` as every format has it."""
    done = write_profile(profile, path, compress=compress, progress=progress)
    notes = [f"not in the log: {note}" for note in done.notes]
    return Conversion(f"{done.samples} of {profile.samples} samples written", notes=notes)


class _LogWriter:
    def __init__(self, profile: Profile, path: str, progress: Progress | None) -> None:
        self.profile, self.path, self._progress = profile, path, progress
        self.session = SessionEvents(profile)
        self.begin, self.pointer = self.session.begin, self.session.pointer
        self.lifecycle = LifecycleEvents(profile, self.begin, self.pointer)
        self.notes: Counter[str] = Counter()
        self.periods = PeriodEncoder(self.session.intervals)
        self.measured = Measured()
        self.samples = 0
        self.processors = max(1, profile.machine.cpus_online)
        self.last = self.begin
        self._cpu_time: dict[int, int] = {}
        self._thread_time: dict[int, tuple[int, bool]] = {}
        """Time of the newest sample of a thread, and whether one at that time has a stack."""

    def write(self, buffer_size: int, mode: int, maximum: int) -> Written:
        header = session_header(self.profile, self.begin, self.pointer, buffer_size, mode, maximum)
        file = TraceFile(self.path, header, [encode_event(event) for event in self.session.masks()])
        try:
            packer = Packer(file)
            self._add(packer, self.session.configuration())
            self._add(packer, self.lifecycle.until(self.begin))
            for batch in self.profile.batches(ordered=True):
                self._batch(packer, batch)
                if self._progress:
                    self._progress(self.samples, self.profile.samples)
            self._add(packer, self.lifecycle.until(np.iinfo(np.int64).max))
            end = max([self.last, *self._cpu_time.values()])
            self._add(packer, list(self.lifecycle.end(end)))
            self._add(packer, self.session.interval_events(self.periods.now, begin=False, time=end))
            self._add(packer, self.measured.events(self.session.triggers, end))
            packer.flush()
            file.header = replace(file.header, processors=self.processors)
        except BaseException:
            file.discard()
            raise
        file.close()
        return Written(self.samples, header, self._omission_notes())

    # -- events that are no samples

    def _add(self, packer: Packer, events: list[Event]) -> None:
        """Add events of processor 0, at the time of its newest event at the earliest."""
        for event in events:
            event.time = max(event.time, self._cpu_time.get(0, event.time))
            self._cpu_time[0] = event.time
            packer.add(0, pad_event(encode_event(event)), event.time)
        if events:
            self.last = max(self.last, events[-1].time)

    # -- samples

    def _batch(self, packer: Packer, batch: SampleBatch) -> None:
        guest = batch.mode >= Mode.GUEST_KERNEL
        if guest.any():
            self.notes["samples of guests are left out"] += int(guest.sum())
            batch = batch.select(~guest)
        if not len(batch):
            return
        self._note(batch)
        cpus = np.maximum(batch.cpu, 0)
        time = self._times(batch, cpus)
        changes = self._lifecycle_of(batch, time)
        triggers = self.session.triggers
        periods = self.periods.encode(batch, time, triggers)
        self.notes["samples whose own period is left out"] += periods.lost
        data, ends, when, owner = sample_events(batch, time, triggers, periods, narrow=self.pointer == 4)
        raw, starts, cpu_of = np.frombuffer(data, np.uint8), np.concatenate([[0], ends[:-1]]), cpus[owner]
        for turn in packer.turns(cpu_of, when):
            for cpu in distinct(cpu_of[turn]).tolist():
                rows = turn.start + np.flatnonzero(cpu_of[turn] == cpu)
                sizes = ends[rows] - starts[rows]
                own = np.cumsum(sizes)
                events = raw[ranges(starts[rows], sizes)].tobytes()
                if cpu == 0:
                    until = sum(change.time <= when[rows[-1]] for change in changes)
                    self._between(packer, changes[:until], events, own, when[rows])
                    changes = changes[until:]
                else:
                    packer.extend(cpu, events, own, when[rows])
        for cpu in distinct(cpus).tolist():
            self._cpu_time[cpu] = max(int(time[cpus == cpu][-1]), self._cpu_time.get(cpu, self.begin))
            self.processors = max(self.processors, cpu + 1)
        self._add(packer, changes)
        self.samples += len(batch)
        self.last = max(self.last, int(time[-1]))

    def _between(self, packer: Packer, changes: list[Event], data: bytes, ends: Ints, times: Ints) -> None:
        """Add samples of processor 0, and between them the events of processes and images, by time."""
        begin = done = 0
        for past, change in zip(np.searchsorted(times, [e.time for e in changes]).tolist(), changes, strict=True):
            if past > done:
                packer.extend(0, data[begin : int(ends[past - 1])], ends[done:past] - begin, times[done:past])
                begin, done = int(ends[past - 1]), past
                self._cpu_time[0] = int(times[past - 1])
            self._add(packer, [change])
        packer.extend(0, data[begin:], ends[done:] - begin, times[done:])

    def _lifecycle_of(self, batch: SampleBatch, time: Ints) -> list[Event]:
        """The changes up to the end of the batch, and the events that name the processes of its samples' threads."""
        events: list[Event] = []
        order = np.lexsort((np.arange(len(batch)), batch.tid))
        tid, pid = batch.tid[order], batch.pid[order]
        new = np.append(True, (tid[1:] != tid[:-1]) | (pid[1:] != pid[:-1]))
        for row in np.sort(order[new]).tolist():
            events += self.lifecycle.until(int(batch.time[row]))
            events += self.lifecycle.thread_of_sample(int(time[row]), int(batch.pid[row]), int(batch.tid[row]))
        events += self.lifecycle.until(int(batch.time[-1]))
        return sorted(events, key=lambda event: event.time)

    def _times(self, batch: SampleBatch, cpus: Ints) -> Ints:
        """The times of the samples. Time and thread identify the sample of a stack, so if two samples share both, the
        later sample moves by a tick."""
        if FRAME not in batch.offsets:
            return batch.time.astype(np.int64)
        key = np.stack([batch.tid.astype(np.int64), batch.time])
        newest = max(self._cpu_time.values(), default=self.begin)
        if newest < batch.time[0] and len(np.unique(key, axis=1).T) == len(batch):
            return batch.time.astype(np.int64)
        time = batch.time.tolist()
        stacked = np.diff(batch.offsets[FRAME]) > 0
        for i, (tid, cpu, own) in enumerate(zip(batch.tid.tolist(), cpus.tolist(), stacked.tolist(), strict=True)):
            newest, other = self._thread_time.get(tid, (self.begin - 1, False))
            least = newest + 1 if (own or other) else self.begin
            least = max(least, self._cpu_time.get(cpu, self.begin))
            if time[i] < least:
                self.notes[_MOVED] += 1
                time[i] = least
            self._cpu_time[cpu] = time[i]
            if time[i] >= newest:
                self._thread_time[tid] = time[i], own or (other and time[i] == newest)
        return np.array(time, np.int64)

    # -- notes

    def _note(self, batch: SampleBatch) -> None:
        notes = self.notes
        if BRANCH in batch.offsets:
            if int(batch.depth.max(initial=0)) > MOST_ENTRIES:
                reason = f"a branch record has at most {MOST_ENTRIES} entries"
                raise FormatError(reason, file=self.path, field="Size", value=int(batch.depth.max()))
            self.measured.add(batch)
        if FRAME in batch.offsets:
            kept = int(frames_of(batch)[0][-1])
            recorded = int(np.count_nonzero(batch["frame"] < np.uint64((1 << 64) - 4095)))
            notes[f"frames left out, after the first {MOST_FRAMES} of a stack"] += recorded - kept
        notes["samples without a known processor are written for processor 0"] += int(np.count_nonzero(batch.cpu < 0))

    def _omission_notes(self) -> tuple[str, ...]:
        columns = sorted({name for stream in self.profile.streams for name in stream.columns} - _KEPT)
        notes = [f"{text} ({number})" for text, number in self.notes.items() if number]
        return (*notes, f"columns left out: {', '.join(columns)}") if columns else tuple(notes)
