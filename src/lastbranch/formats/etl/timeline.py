"""Several trace files as one: their buffers in one order, their times in the ticks of one clock.

Sessions of one uptime of a machine that share a clock have comparable ticks; the times of others are converted by the
wall times of their headers. The log's clock is that of the session that began first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...errors import Damage, FormatError
from ...model import Source
from .buffers import Buffers, DamageLog
from .columns import EventBlock, Rules
from .events import to_log
from .header import LogHeader
from .layout import BUFFER_TYPE, LOG_FILE_MODE
from .merge import Index, Run, in_order
from .windows import BufferReader, Segment, Window

__all__ = ["Timeline"]

_APART = 1 << 16  # processors of one source are numbered below this


class Timeline:
    """The sessions of ``sources``, whose payloads have pointers of ``pointer_size`` bytes, or what their headers say.

    Raises `FormatError` where one is no trace log, or has no wall time to go by."""

    def __init__(self, sources: Sequence[Source], *, pointer_size: int | None = None) -> None:
        self._sources = sources
        self._override = pointer_size or 0
        self._damage = [DamageLog() for _ in sources]
        self._readers = [BufferReader(source, log) for source, log in zip(sources, self._damage, strict=True)]
        self._segments: list[tuple[int, Segment]] = []
        """Of each session, the number of its source."""
        parts, lanes, numbers = [], [], []
        for number, reader in enumerate(self._readers):
            for segment, buffers in reader.index():
                if not self._segments or self._segments[-1][1] is not segment:
                    self._segments.append((number, segment))
                parts.append(buffers)
                lanes.append(replace(buffers, cpu=buffers.cpu + np.int32(_APART * number)))
                numbers.append(np.full(len(buffers), len(self._segments) - 1))
        self.headers: list[LogHeader] = [segment.header for _, segment in self._segments]
        self._buffers = Buffers.concatenate(parts)
        self._index = Index(Buffers.concatenate(lanes), np.concatenate([np.empty(0, np.int64), *numbers]))
        if not self.headers:  # nothing behind the header, or nothing of it can be read
            self.headers = [reader.header for reader in self._readers]
        self.log = min(self.headers, key=lambda header: header.start_time)
        self._check_clocks()

    @property
    def damage(self) -> list[tuple[str, Damage]]:
        """(name of the source, damage) as far as was read."""
        return [(source.name, d) for source, log in zip(self._sources, self._damage, strict=True) for d in log]

    @property
    def processors(self) -> int:
        """One more than the highest number of a processor with buffers, or what the headers say if that is more."""
        seen = int(self._buffers.cpu.max()) + 1 if len(self._buffers) else 1
        return max(seen, *(header.processors for header in self.headers))

    def _check_clocks(self) -> None:
        if len(self._readers) == 1:
            return
        for number, segment in self._segments:
            header = segment.header
            if not header.start_time or not header.frequency:
                raise FormatError(
                    "without a start time and a clock frequency this cannot be put on the time line of others",
                    file=self._sources[number].name, offset=header.offset, field="StartTime", value=header.start_time,
                )  # fmt: skip

    # -- events

    def blocks(self) -> Iterator[EventBlock]:
        """All events, in file order; a block is valid until the next one is asked for."""
        for number, reader in enumerate(self._readers):
            for window in reader.windows():
                yield self._block(number, window)

    def header_blocks(self) -> Iterator[EventBlock]:
        """What stands in the header buffers."""
        for row in np.flatnonzero(self._index.buffers.type == BUFFER_TYPE.HEADER).tolist():
            block = self._load(row)
            if block is not None:
                yield block

    def runs(self, select: Callable[[EventBlock], EventBlock]) -> Iterator[Run]:
        """What stands in the other buffers, as far as ``select`` leaves it of each of them, in time order.

        Memory is bounded by a buffer for each processor.
        """
        rows = np.flatnonzero(self._index.buffers.type != BUFFER_TYPE.HEADER)
        index = Index(self._index.buffers.take(rows), self._index.segment[rows])
        shared = any(header.mode & LOG_FILE_MODE.NO_PER_PROCESSOR_BUFFERING for header in self.headers)

        def load(row: int) -> EventBlock | None:
            block = self._load(int(rows[row]))
            return None if block is None else select(block)

        return in_order(index, load, overlap=shared)

    def _load(self, row: int) -> EventBlock | None:
        number, segment = self._segments[int(self._index.segment[row])]
        window = self._readers[number].load(segment, self._buffers.take(slice(row, row + 1)))
        return None if window is None else self._block(number, window)

    def _block(self, number: int, window: Window) -> EventBlock:
        own = window.segment.header
        pointer = own.pointer_size if own.pointer_size in (4, 8) else 8
        return EventBlock.of(window, Rules(self._damage[number], pointer, self._override, to_log(self.log, own)))
