"""From trace files to one trace file: compressed or not, cut by time or process, several merged.

Events are carried over as they are, in new buffers of their processors; only times are made those of the output's
clock, where that is another one: in event headers, and in the payloads of stacks and branch records, which say by it
what they belong to. Other times in payloads stay.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage, FormatError
from ...model import Source
from .columns import EventBlock
from .cut import Cut, Owners, kinds_of, stamps
from .encoding import encode_log_header
from .file_rules import LEAST_BUFFER, USE_KBYTES
from .header import MAX_BUFFER, LogHeader
from .layout import BUFFER_FLAG, BUFFER_HEADER_SIZE, LOG_FILE_MODE, MESSAGE, MESSAGE_FLAG
from .markers import MESSAGE_BYTES
from .merge import Run
from .timeline import Timeline
from .trace_file import TraceFile
from .writer import Packer

__all__ = ["Converted", "convert"]

_DROPPED_MODES = (
    LOG_FILE_MODE.COMPRESSED | LOG_FILE_MODE.CIRCULAR | LOG_FILE_MODE.APPEND | LOG_FILE_MODE.NEWFILE
    | LOG_FILE_MODE.PREALLOCATE | USE_KBYTES
)  # fmt: skip
_LOST = BUFFER_FLAG.EVENTS_LOST | BUFFER_FLAG.BUFFER_LOST
_PERFINFO = (16, 17)
_ERROR = 13

Words = NDArray[np.uint64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class Converted:
    """What `convert` did. ``events`` were read, those in header buffers included, ``kept`` were written."""

    header: LogHeader
    events: int = 0
    kept: int = 0
    damage: Sequence[tuple[str, Damage]] = ()
    boots: int = 1
    """Of how many uptimes of machines the inputs are: the process ids of different ones have nothing to do with each
    other."""


def convert(
    sources: Sequence[Source],
    path: str | os.PathLike[str],
    *,
    compress: bool | None = None,
    seconds: tuple[Fraction | None, Fraction | None] = (None, None),
    pids: frozenset[int] = frozenset(),
    pointer_size: int | None = None,
) -> Converted:
    """Write the events of ``sources`` to the trace file ``path``, in one time line.

    ``compress`` None: as the first source. ``seconds`` (from, to) since the start of the log, `Timeline.log`.
    ``pointer_size`` as `TraceLog` has it, for the process ids in payloads; events stay as they are. What
    cannot be read of the sources is left out and in the result's ``damage``. FormatError where one is no trace log,
    OSError where the output cannot be written; there is no output then.
    """
    line = Timeline(sources, pointer_size=pointer_size)
    cut = _cut(line, seconds, pids)
    done = Converted(line.log)
    done.boots = len({header.boot_time for header in line.headers})
    events = []
    for block in line.header_blocks():
        rest = block.take(np.flatnonzero(~(block.is_kernel & (block.hook == 0))))
        words, start, length = _carried(rest)
        events += [words[a : a + n].tobytes() for a, n in zip(start.tolist(), length.tolist(), strict=True)]
        done.events += len(rest)
        done.kept += len(rest)
    done.header = _header(line, compress, sum(map(len, events)))

    def wanted(block: EventBlock) -> EventBlock:
        done.events += len(block)
        return block.take(np.flatnonzero(cut.rows(block))) if cut else block

    file = TraceFile(path, done.header, events)
    try:
        packer, seen = Packer(file), set[tuple[int, int]]()
        for run in line.runs(wanted):
            done.kept += _append(packer, run, seen)
        packer.flush()
    except BaseException:
        file.discard()
        raise
    file.close()
    done.damage = line.damage
    return done


def _cut(line: Timeline, seconds: tuple[Fraction | None, Fraction | None], pids: frozenset[int]) -> Cut:
    if seconds != (None, None) and not line.log.frequency:
        raise FormatError("the log's clock has no frequency to cut by", field="PerfFreq", value=line.log.perf_freq)
    ticks = [None if part is None else line.log.timestamp + line.log.clock.ticks(part) for part in seconds]
    cut = Cut(ticks[0], ticks[1], pids)
    if pids:
        cut.owners = Owners()
        for block in line.blocks():
            if len(block):
                cut.owners.learn(block)
    return cut


def _header(line: Timeline, compress: bool | None, header_events: int) -> LogHeader:
    """The log file header of the output."""
    headers = line.headers
    squeeze = headers[0].compressed if compress is None else compress
    mode = line.log.mode & ~_DROPPED_MODES | LOG_FILE_MODE.SEQUENTIAL | squeeze * LOG_FILE_MODE.COMPRESSED
    if len(headers) > 1:
        mode &= ~LOG_FILE_MODE.NO_PER_PROCESSOR_BUFFERING
    size = max(LEAST_BUFFER, *(min(h.buffer_size, MAX_BUFFER) for h in headers)) + 1023 & ~1023
    least = BUFFER_HEADER_SIZE + len(encode_log_header(line.log)) + 8 + header_events
    while size < least and size < MAX_BUFFER and not squeeze:
        size *= 2
    return replace(
        line.log, mode=mode, buffer_size=min(size, MAX_BUFFER), processors=line.processors, maximum_file_size=0,
        end_time=max(h.end_time for h in headers), events_lost=sum(h.events_lost for h in headers),
        buffers_lost=sum(h.buffers_lost for h in headers), pointer_size=_pointer_size(headers),
    )  # fmt: skip


def _pointer_size(headers: Sequence[LogHeader]) -> int:
    return max((h.pointer_size for h in headers if h.pointer_size in (4, 8)), default=8)


def _append(packer: Packer, run: Run, seen: set[tuple[int, int]]) -> int:
    """Give the events of ``run`` to ``packer``; their number."""
    parts, starts, lengths, places, cpus, times = [], [], [], [], [], []
    base = 0
    for number, block in enumerate(run.blocks):
        where = np.flatnonzero(run.owner == number)
        mine = block.take(run.row[where])
        _mark_losses(packer, mine, seen)
        words, start, length = _carried(mine)
        parts.append(words)
        starts.append(start + base)
        lengths.append(length)
        places.append(where)
        cpus.append(mine.cpu)
        times.append(mine.time)
        base += len(words)
    order = np.argsort(np.concatenate(places))
    words, start, length = np.concatenate(parts), np.concatenate(starts)[order], np.concatenate(lengths)[order]
    cpu, time = np.concatenate(cpus)[order], np.concatenate(times)[order]
    for turn in packer.turns(cpu, time):
        for processor in np.unique(cpu[turn]).tolist():
            rows = turn.start + np.flatnonzero(cpu[turn] == processor)
            data = words.take(_ranges(start[rows], length[rows])).tobytes()
            packer.extend(processor, data, np.cumsum(length[rows]) * 8, time[rows])
    return len(order)


def _mark_losses(packer: Packer, block: EventBlock, seen: set[tuple[int, int]]) -> None:
    buffers = block.window.buffers
    for row in np.flatnonzero(buffers.flags & _LOST).tolist():
        key = (id(block.window.segment), int(buffers.offset[row]))
        if key not in seen:
            seen.add(key)
            packer.mark(int(buffers.cpu[row]), int(buffers.flags[row]) & _LOST)


def _ranges(start: Ints, length: Ints) -> Ints:
    """start[0], start[0] + 1 … of ``length[0]`` numbers, then those of the next one."""
    end = np.cumsum(length)
    result: Ints = np.repeat(start - end + length, length) + np.arange(int(end[-1]) if len(end) else 0)
    return result


def _carried(block: EventBlock) -> tuple[Words, Ints, Ints]:
    """The words of all events side by side, and begin and number of those of each, with times of the log's clock."""
    length = block.size + 7 >> 3
    words = block.words.take(_ranges(block.at, length))
    start = np.cumsum(length) - length
    if block.rules.to_log is None or not len(block):
        return words, start, length
    kind = block.header
    place = start + np.where(np.isin(kind, _PERFINFO), 1, 2)
    plain = (kind != MESSAGE) & (kind != _ERROR)
    words[place[plain]] = block.time[plain].view(np.uint64)
    raw = words.view(np.uint8)
    stamped = np.flatnonzero((kind == MESSAGE) & (block.options & MESSAGE_FLAG.TIMESTAMP != 0))
    at = start[stamped] * 8 + MESSAGE_BYTES.take(block.options[stamped].astype(np.int64) & 0x07)
    _put(raw, at, block.time[stamped])
    which, kinds = kinds_of(block)
    for number, what in enumerate(kinds):
        if what.stamped:
            rows = np.flatnonzero((which == number) & (block.payload_size >= 8))
            _put(raw, start[rows] * 8 + block.header_size[rows], block.rules.to_log(stamps(block, rows)))
    return words, start, length


def _put(raw: NDArray[np.uint8], at: Ints, values: Ints) -> None:
    """Store 64-bit numbers at byte positions."""
    raw[at[:, None] + np.arange(8)] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8)
