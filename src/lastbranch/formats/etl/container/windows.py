"""A trace file as windows: whole buffers, decompressed, in one array, in file order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....errors import Damage, FormatError
from ....model import Source
from ...readahead import ReadAhead
from ..layout import BUFFER_FLAG, BUFFER_HEADER_SIZE, BUFFER_TYPE, MAX_BUFFER, LogFileMode
from .buffers import Buffers, DamageLog, Found, RegularHeads, View, locate_fixed, locate_variable
from .decompression import DECODERS, XPRESS, decompress_many
from .header import LogHeader, read_header

__all__ = ["BufferReader", "PAD", "Segment", "Window"]


# -- Memory around a window: how far behind it is looked, and freed blocks that are kept


PAD = 256
"""Bytes behind the last buffer: header fields are looked at where the last event has none."""

_KEPT = 31 << 20


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks of up to 31 MiB for the next request instead of giving them back.

    Every window makes arrays of some MB, and fetching their pages from the system anew took 40 % of the time of a
    pass. Freeing a mapped block raises the size from which blocks are mapped to its own (mallopt(3), M_MMAP_THRESHOLD:
    "dynamic threshold"), up to 32 MiB. Elsewhere this does nothing.
    """
    np.empty(_KEPT, np.uint8)


WINDOW = 32 << 20
"""Bytes of file that are read at once. Twice that is held."""

_PACKED = 16 << 20
"""Of a compressed file: decompressed bytes of a window, and bytes of the file. The decoder holds a copy as well."""
_RESERVED = LogFileMode.FILE_MODE_CIRCULAR | LogFileMode.FILE_MODE_PREALLOCATE
_APART = 1 << 15  # from this stride on headers are read one by one where only headers are wanted


@dataclass(slots=True)
class Segment:
    """What one header buffer governs: the file, or in a file that was appended to, one session of it."""

    number: int
    header: LogHeader


@dataclass(slots=True)
class Window:
    """Whole buffers: ``words`` (uint64) over the bytes ``raw``, `PAD` bytes behind them included.

    ``start`` int64: position of each buffer's header, a multiple of 8. Valid until the next window is asked for.
    """

    raw: NDArray[np.uint8]
    words: NDArray[np.uint64]
    start: NDArray[np.int64]
    buffers: Buffers
    segment: Segment

    def note(
        self, damage: DamageLog, reason: str, row: int, position: int, field: str, value: object, lost: int
    ) -> None:
        """Note what is wrong with the event at byte ``position``; of a compressed buffer, by where that begins."""
        offset, place = int(self.buffers.offset[row]), position - int(self.start[row])
        if self.buffers.flags[row] & BUFFER_FLAG.COMPRESSED:
            reason = f"{reason}, {place} bytes into the decompressed buffer"
        else:
            offset += place
        damage.add(Damage(reason, offset, field, value, lost))


class BufferReader:
    """The buffers of one trace file.

    ``workers`` processes decompress. Damaged buffers are left out and noted in ``damage``.
    """

    def __init__(self, source: Source, damage: DamageLog, *, workers: int = 1, window: int = WINDOW) -> None:
        self.source, self.damage, self.workers = source, damage, workers
        self.header = read_header(source)
        self.segments = [self._segment(0, self.header)]
        self.unwritten = 0
        """Places that no buffer was written to, as far as the file was read."""
        self._window = max(window, MAX_BUFFER + 4096)
        self._format = self.header.compression_format
        self._check_format()

    def windows(self) -> Iterator[Window]:
        """All buffers, in file order."""
        if self.source.size > WINDOW:
            keep_freed_memory()
        for view, segment, rows, at in self._within(headers_only=False):
            window = self._assemble(view, segment, rows, at)
            if len(window.buffers):
                yield window

    def index(self) -> Iterator[tuple[Segment, Buffers]]:
        """All buffers without what is in them."""
        for _, segment, rows, _ in self._within(headers_only=True):
            if len(rows):
                yield segment, rows

    def load(self, segment: Segment, rows: Buffers) -> Window | None:
        """The given buffers again, as a window of their own; None if none of them can be read."""
        memory = memoryview(bytearray(int(rows.length.sum()) + PAD))
        kept, at = [], np.cumsum(rows.length) - rows.length
        for row, place in enumerate(at.tolist()):
            length = int(rows.length[row])
            if self.source.readinto(int(rows.offset[row]), memory[place : place + length]) == length:
                kept.append(row)
        window = self._assemble(self._view(memory), segment, rows.take(kept), at[kept])
        return window if len(window.buffers) else None

    def _check_format(self) -> None:
        if self._format in DECODERS:
            return
        self._format = XPRESS
        if self.header.compressed:
            note = Damage("unknown compression format, taken for XPRESS", 0x2C, "State", self.header.state)
            self.damage.add(note)

    def _view(self, data: memoryview) -> View:
        size = self.header.buffer_size
        largest = size if self.header.stride <= size <= MAX_BUFFER else MAX_BUFFER
        raw = np.frombuffer(data, np.uint8)
        return View(self.source, self.source.size, self.damage, self.header.stride, largest, data, raw)

    # -- the pass over the file

    def _within(self, headers_only: bool) -> Iterator[tuple[View, Segment, Buffers, NDArray[np.int64]]]:
        """The buffers of each span and where they are in it, up to the one whose claim, with those before it, is more
        than compressed data may become."""
        packed = expanded = 0
        for view, segment, found in self._spans(headers_only):
            rows, at = found.buffers(view)
            compressed = rows.compressed
            stored = packed + np.cumsum(rows.length * compressed)
            claimed = expanded + np.cumsum(rows.filled * compressed)
            limits = self.source.limits
            over = claimed > np.maximum(limits.expansion, limits.ratio * stored)
            if over.any():
                first = int(over.argmax())
                budget = limits.expanded(int(stored[first]))
                reason = f"compressed buffers become more than the budget of {budget} bytes; what follows was not read"
                self.damage.add(Damage(reason, int(rows.offset[first]), "Offset", int(rows.filled[first])))
                yield view, segment, rows.take(slice(0, first)), at[:first]
                return
            if len(rows):
                packed, expanded = int(stored[-1]), int(claimed[-1])
            yield view, segment, rows, at

    def _spans(self, headers_only: bool) -> Iterator[tuple[View, Segment, Found]]:
        compressed = self.header.compressed
        size = self.source.size
        window = min(_PACKED + MAX_BUFFER if compressed else self._window, (size + 7) & ~7)
        sparse = headers_only and not compressed and self.header.stride >= _APART
        # Elsewhere a file cannot be read at an offset without moving its position: the thread could get in the way.
        ahead = not compressed and not sparse and size > 2 * window and hasattr(os, "preadv")
        with closing(ReadAhead(self.source, window, pad=PAD, ahead=ahead)) as reader:
            view = self._view(reader.data)
            if sparse:
                view.raw[:] = 0
            segment, before = self.segments[0], None
            while view.base < view.end:
                if sparse:
                    view.got = self._read_heads(reader.data, view.base, window)
                if not sparse or view.broken_at is not None or not self._regular(reader.data, view):
                    _, view.got = reader.fill(view.base, window)
                    stride = self.header.stride
                    reader.expect(view.base + view.got // stride * stride, size)
                view.data, view.raw = reader.data, np.frombuffer(reader.data, np.uint8)
                if view.got == 0:  # the file has become shorter
                    break
                start, more = 0, False
                while not more:
                    segment = self._segment_at(view, start, segment)
                    view.stride = segment.header.stride if not compressed else 0
                    view.header_at = segment.header.offset
                    view.reserved = bool(segment.header.mode & _RESERVED)
                    found = locate_variable(view, start, _PACKED) if compressed else locate_fixed(view, start)
                    if found.at:
                        yield view, segment, found
                    start, more = found.stop, found.more
                if (view.base, start) == before:
                    break
                before = (view.base, start)
                view.base += start
            self.unwritten = view.unwritten

    def _read_heads(self, memory: memoryview, offset: int, window: int) -> int:
        """Only the headers of the buffers of a window; the bytes that it spans."""
        left, stride = min(window, self.source.size - offset), self.header.stride
        for at in range(0, left, stride):
            self.source.readinto(offset + at, memory[at : min(at + BUFFER_HEADER_SIZE, left)])
        return left

    def _regular(self, memory: memoryview, view: View) -> bool:
        """Whether headers alone tell where all buffers of a window are: no damage, no session that was appended."""
        stride = self.header.stride
        heads = RegularHeads.of(memory, 0, view.got // stride, stride)
        first = int(view.base == 0)
        return bool((heads.plausible | heads.empty).all() and not heads.header[first:].any())

    def _segment_at(self, view: View, at: int, current: Segment) -> Segment:
        """The segment that begins at ``at`` if a further header buffer is there, else ``current``."""
        head, offset = view.head(at), view.base + at
        if not offset or head is None or head[3] != BUFFER_TYPE.HEADER or view.broken_at is not None:
            return current
        known = next((s for s in self.segments if s.header.offset == offset), None)
        if known is not None:
            return known
        try:
            header = read_header(self.source, offset)
        except FormatError as error:
            self.damage.add(Damage(f"second header buffer: {error.reason}", offset, error.field, error.value))
            return current
        self.segments.append(self._segment(len(self.segments), header))
        return self.segments[-1]

    def _segment(self, number: int, header: LogHeader) -> Segment:
        if header.wrong_size:
            self.damage.add(header.wrong_size)
        return Segment(number, header)

    # -- windows

    def _assemble(self, view: View, segment: Segment, buffers: Buffers, at: NDArray[np.int64]) -> Window:
        """The buffers where they are if they can be walked there, else decompressed and copied to multiples of 8."""
        if buffers.compressed.any() or (at & 7).any():
            return self._pack(view, segment, buffers, at)
        return Window(view.raw, view.raw[: len(view.raw) & ~7].view(np.uint64), at, buffers, segment)

    def _pack(self, view: View, segment: Segment, buffers: Buffers, at: NDArray[np.int64]) -> Window:
        memory = view.data
        places, lengths, used = at.tolist(), buffers.length.tolist(), buffers.filled.tolist()
        packed = buffers.compressed.tolist()
        blocks = [memory[p + 72 : p + n] for p, n, c in zip(places, lengths, packed, strict=True) if c]
        sizes = [f - 72 for f, c in zip(used, packed, strict=True) if c]
        results = iter(decompress_many(blocks, sizes, format=self._format, workers=self.workers))
        room = (buffers.filled + 7) & ~7
        start = np.cumsum(room) - room
        raw = np.zeros(int(room.sum()) + PAD, np.uint8)
        into = memoryview(raw)  # type: ignore[arg-type]
        good = np.ones(len(at), bool)
        for i, (place, to) in enumerate(zip(places, start.tolist(), strict=True)):
            if not packed[i]:
                into[to : to + used[i]] = memory[place : place + used[i]]
                continue
            result = next(results)
            if isinstance(result, FormatError):
                good[i] = False
                offset = int(buffers.offset[i])
                where = offset + 72 + (result.offset or 0)
                note = Damage(f"compressed data: {result.reason}", where, result.field, result.value, lengths[i])
                self.damage.add(note, skipped=[offset])
                continue
            into[to : to + 72] = memory[place : place + 72]
            into[to + 72 : to + used[i]] = result
        return Window(raw, raw.view(np.uint64), start[good], buffers.take(good), segment)
