"""A trace file as windows: runs of whole buffers in file order, decompressed, one array per window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....errors import Damage, FormatError
from ....model import Source
from ...readahead import ReadAhead
from ..layout import BUFFER_FLAG, BUFFER_HEADER_SIZE, BUFFER_TYPE, MAX_BUFFER, LogFileMode
from .buffers import Buffers, DamageLog, Found, RegularHeads, View, locate_fixed, locate_variable
from .decompression import DECODERS, XPRESS, decompress_into, decompress_many
from .header import LogHeader, read_header

__all__ = ["BufferReader", "PAD", "Window"]


# -- Memory of a window


PAD = 256
"""Bytes after the last buffer, for reads past the last event."""

_KEPT = 31 << 20


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks of up to 31 MiB for the next request.

    Every window makes arrays of some MB; getting their pages from the system each time took 40 % of a pass. Freeing a
    mapped block raises the size from which blocks are mapped to its own, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD:
    "dynamic threshold"). Other C libraries ignore it.
    """
    np.empty(_KEPT, np.uint8)


WINDOW = 32 << 20
"""Bytes that are read at once."""

_PACKED = 16 << 20
"""Of a compressed file: decompressed bytes of a window, and bytes of the file. The decoder holds a copy as well."""
_RESERVED = LogFileMode.FILE_MODE_CIRCULAR | LogFileMode.FILE_MODE_PREALLOCATE
_APART = 1 << 15
"""Bytes between headers from which on they are read one by one, if only headers are wanted."""


@dataclass(slots=True)
class Window:
    """Whole buffers: the bytes ``raw``, including `PAD` bytes at the end, and the same as ``words`` (uint64).

    ``start`` int64: position of each buffer's header, a multiple of 8. ``header`` governs the buffers: that of the
    file or, in a file that was appended to, of one session. Valid until the next window is requested.
    """

    raw: NDArray[np.uint8]
    words: NDArray[np.uint64]
    start: NDArray[np.int64]
    buffers: Buffers
    header: LogHeader

    def note(
        self, damage: DamageLog, reason: str, row: int, position: int, field: str, value: object, lost: int
    ) -> None:
        """Note damage of the event at byte ``position``; in a compressed buffer, at the offset of the buffer."""
        offset, place = int(self.buffers.offset[row]), position - int(self.start[row])
        if self.buffers.flags[row] & BUFFER_FLAG.COMPRESSED:
            reason = f"{reason}, {place} bytes into the decompressed buffer"
        else:
            offset += place
        damage.add(Damage(reason, offset, field, value, lost))


class BufferReader:
    """The buffers of one trace file.

    ``workers`` processes decompress without the compiled library. Damaged buffers are skipped and noted in ``damage``.
    """

    def __init__(self, source: Source, damage: DamageLog, *, workers: int = 1, window: int = WINDOW) -> None:
        self.source, self.damage, self.workers = source, damage, workers
        self.header = read_header(source)
        self.headers: list[LogHeader] = []
        """Those of all sessions of the file, as far as it was read."""
        self._add_session(self.header)
        self.unwritten = 0
        """Places that no buffer was written to, as far as the file was read."""
        self._window = max(window, MAX_BUFFER + 4096)
        self._format = self.header.compression_format
        if self._format not in DECODERS:
            self._format = XPRESS
            if self.header.compressed:
                note = Damage("unknown compression format, read as XPRESS", 0x2C, "State", self.header.state)
                damage.add(note)

    def windows(self) -> Iterator[Window]:
        """All buffers, in file order."""
        if self.source.size > WINDOW:
            keep_freed_memory()
        for view, header, rows, at in self._affordable(headers_only=False):
            window = self._assemble(view, header, rows, at)
            if len(window.buffers):
                yield window

    def index(self) -> Iterator[tuple[int, Buffers]]:
        """All buffers without their contents, and the number of their session in `headers`."""
        for _, header, rows, _ in self._affordable(headers_only=True):
            if len(rows):
                yield self.headers.index(header), rows

    def load(self, header: LogHeader, rows: Buffers) -> Window | None:
        """Read buffers of a session again, as a window with memory of its own; None if none of them can be read."""
        memory = memoryview(bytearray(int(rows.length.sum()) + PAD))
        kept, at = [], np.cumsum(rows.length) - rows.length
        for row, place in enumerate(at.tolist()):
            length = int(rows.length[row])
            if self.source.readinto(int(rows.offset[row]), memory[place : place + length]) == length:
                kept.append(row)
        window = self._assemble(self._view(memory), header, rows.take(kept), at[kept])
        return window if len(window.buffers) else None

    def _view(self, data: memoryview) -> View:
        size = self.header.buffer_size
        largest = size if self.header.stride <= size <= MAX_BUFFER else MAX_BUFFER
        raw = np.frombuffer(data, np.uint8)
        return View(self.source, self.source.size, self.damage, self.header.stride, largest, data, raw)

    # -- the pass over the file

    def _affordable(self, headers_only: bool) -> Iterator[tuple[View, LogHeader, Buffers, NDArray[np.int64]]]:
        """The buffers of each span and their positions in it, until their decompressed sizes exceed the budget."""
        packed = expanded = 0
        for view, header, found in self._spans(headers_only):
            rows, at = found.buffers(view)
            compressed = rows.compressed
            stored = packed + np.cumsum(rows.length * compressed)
            claimed = expanded + np.cumsum(rows.filled * compressed)
            limits = self.source.limits
            over = claimed > np.maximum(limits.expansion, limits.ratio * stored)
            if over.any():
                first = int(over.argmax())
                budget = limits.expanded(int(stored[first]))
                reason = f"compressed buffers expand beyond the budget of {budget} bytes; the rest was not read"
                self.damage.add(Damage(reason, int(rows.offset[first]), "Offset", int(rows.filled[first])))
                yield view, header, rows.take(slice(0, first)), at[:first]
                return
            if len(rows):
                packed, expanded = int(stored[-1]), int(claimed[-1])
            yield view, header, rows, at

    def _spans(self, headers_only: bool) -> Iterator[tuple[View, LogHeader, Found]]:
        compressed = self.header.compressed
        size = self.source.size
        window = min(_PACKED + MAX_BUFFER if compressed else self._window, (size + 7) & ~7)
        sparse = headers_only and not compressed and self.header.stride >= _APART
        reader = ReadAhead(self.source, window, pad=PAD)
        view = self._view(reader.data)
        if sparse:
            view.raw[:] = 0
        header, before = self.header, None
        while view.base < view.end:
            if sparse:
                view.got = self._read_heads(reader.data, view.base, window)
            if not sparse or view.broken_at is not None or not self._regular(reader.data, view):
                view.got = reader.fill(view.base, window, view.base if sparse else size)
            if view.got == 0:  # the file has become shorter
                break
            start, more = 0, False
            while not more:
                header = self._header_at(view, start, header)
                view.stride = header.stride if not compressed else 0
                view.header_at = header.offset
                view.reserved = bool(header.mode & _RESERVED)
                found = locate_variable(view, start, _PACKED) if compressed else locate_fixed(view, start)
                if found.at:
                    yield view, header, found
                start, more = found.stop, found.more
            if (view.base, start) == before:
                break
            before = (view.base, start)
            view.base += start
        self.unwritten = view.unwritten

    def _read_heads(self, memory: memoryview, offset: int, window: int) -> int:
        """Read only the headers of the buffers of a window; the bytes that it spans."""
        left, stride = min(window, self.source.size - offset), self.header.stride
        for at in range(0, left, stride):
            self.source.readinto(offset + at, memory[at : min(at + BUFFER_HEADER_SIZE, left)])
        return left

    def _regular(self, memory: memoryview, view: View) -> bool:
        """Whether all buffers of a window are where the stride says: no damage, no appended session."""
        stride = self.header.stride
        heads = RegularHeads.of(memory, 0, view.got // stride, stride)
        first = int(view.base == 0)
        return bool((heads.plausible | heads.empty).all() and not heads.header[first:].any())

    def _header_at(self, view: View, at: int, current: LogHeader) -> LogHeader:
        """The header of the session that begins at ``at``, ``current`` if none does."""
        head, offset = view.head(at), view.base + at
        if not offset or head is None or head[3] != BUFFER_TYPE.HEADER or view.broken_at is not None:
            return current
        known = next((header for header in self.headers if header.offset == offset), None)
        if known is not None:
            return known
        try:
            header = read_header(self.source, offset)
        except FormatError as error:
            self.damage.add(Damage(f"second header buffer: {error.reason}", offset, error.field, error.value))
            return current
        self._add_session(header)
        return header

    def _add_session(self, header: LogHeader) -> None:
        if header.wrong_size:
            self.damage.add(header.wrong_size)
        self.headers.append(header)

    # -- windows

    def _assemble(self, view: View, header: LogHeader, buffers: Buffers, at: NDArray[np.int64]) -> Window:
        """The buffers in place if they can be walked there, else decompressed and copied to multiples of 8."""
        if buffers.compressed.any() or (at & 7).any():
            return self._pack(view, header, buffers, at)
        return Window(view.raw, view.raw[: len(view.raw) & ~7].view(np.uint64), at, buffers, header)

    def _pack(self, view: View, header: LogHeader, buffers: Buffers, at: NDArray[np.int64]) -> Window:
        memory = view.data
        places, lengths, used = at.tolist(), buffers.length.tolist(), buffers.filled.tolist()
        packed = buffers.compressed.tolist()
        room = (buffers.filled + 7) & ~7
        start = np.cumsum(room) - room
        raw = np.zeros(int(room.sum()) + PAD, np.uint8)
        into = memoryview(raw)  # type: ignore[arg-type]
        good = np.ones(len(at), bool)
        waiting: list[int] = []
        for i, (place, to) in enumerate(zip(places, start.tolist(), strict=True)):
            into[to : to + BUFFER_HEADER_SIZE] = memory[place : place + BUFFER_HEADER_SIZE]
            block, room_of = (
                memory[place + BUFFER_HEADER_SIZE : place + lengths[i]],
                into[to + BUFFER_HEADER_SIZE : to + used[i]],
            )
            if not packed[i]:
                room_of[:] = memory[place + BUFFER_HEADER_SIZE : place + used[i]]
            elif not decompress_into(block, room_of, format=self._format):
                waiting.append(i)
        blocks = [memory[places[i] + BUFFER_HEADER_SIZE : places[i] + lengths[i]] for i in waiting]
        results = decompress_many(
            blocks, [used[i] - BUFFER_HEADER_SIZE for i in waiting], format=self._format, workers=self.workers
        )
        for i, result in zip(waiting, results, strict=True):
            if isinstance(result, FormatError):
                good[i] = False
                offset = int(buffers.offset[i])
                where = offset + BUFFER_HEADER_SIZE + (result.offset or 0)
                note = Damage(f"compressed data: {result.reason}", where, result.field, result.value, lengths[i])
                self.damage.add(note, skipped=[offset])
            else:
                into[start[i] + BUFFER_HEADER_SIZE : start[i] + used[i]] = result
        return Window(raw, raw.view(np.uint64), start[good], buffers.take(good), header)
