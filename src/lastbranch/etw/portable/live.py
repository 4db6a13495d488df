"""The reader's end of a session in real time: buffers off a socket, their events in time order.

What comes is what `realtime` sends. Events wait until a marker says that none before its time is still to come, or too
much waits: then all go out, and what is older comes late.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from ...formats.etl.container.buffers import DamageLog, buffer_rows, heads_at
from ...formats.etl.container.header import MAX_BUFFER, LogHeader, read_header
from ...formats.etl.container.windows import PAD, Segment, Window
from ...formats.etl.events.columns import EventBlock, Rules
from ...formats.etl.events.merge import Run, blocks_of_runs
from ...formats.etl.layout import BUFFER_FLAG, BUFFER_HEADER_SIZE, BUFFER_TYPE
from ...model import BytesSource
from ..kernel import kernel
from ..status import EtwError, Status
from ..streams import BufferEnds, Part

__all__ = ["LiveStream"]

_HEAD = struct.Struct("<I12xq24xIHH")
"""Of a buffer header: BufferSize, TimeStamp, Offset, BufferFlag, BufferType."""
_RECEIVE = 1 << 20
_MOST_HELD = 32 << 20
"""Bytes of buffers whose events wait for a marker."""
_LOOK = 0.25
"""Seconds. A signal that comes just before a wait begins does not end it: its handler runs when the wait is over."""
_LAST = np.iinfo(np.int64).max

Ints = NDArray[np.int64]


@dataclass(slots=True)
class _Held:
    """Events of the buffers that came together: rows ``order`` of ``block`` in time order with times ``time``."""

    block: EventBlock
    order: Ints
    time: Ints


@dataclass(slots=True)
class _Came:
    """What a read of the socket gave: whole buffers, and the last marker among them."""

    data: bytearray = field(default_factory=bytearray)
    at: list[int] = field(default_factory=list)
    marker: int | None = None


class Channel(Protocol):
    """What is needed of a connected socket."""

    def settimeout(self, seconds: float | None, /) -> None: ...
    def recv(self, size: int, /) -> bytes:
        """`TimeoutError` where there is nothing for so long."""
        ...

    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class LiveStream:
    """The events of a session as it delivers them, until it stops; ``channel`` is connected to its daemon.

    `FormatError` for anything that is no trace, `EtwError` 4201 where the session ends before it has said what it is.
    """

    def __init__(self, channel: Channel, name: str = "") -> None:
        channel.settimeout(_LOOK)
        self._channel, self._name = channel, name
        self._raw = bytearray()
        self._offset = 0
        """Bytes of the stream before those that came last: where a file would have the buffer."""
        self._held: list[_Held] = []
        self._ends = BufferEnds()
        self._damage = DamageLog()
        first = self._first()
        self.header: LogHeader = read_header(BytesSource(first, name))
        pointer = self.header.pointer_size
        self._rules = Rules(self._damage, pointer if pointer in (4, 8) else 8)
        self._segment = Segment(0, self.header)

    @classmethod
    def of_session(cls, name: str) -> LiveStream:
        """The session called ``name``. `EtwError` 4201 if there is none that delivers in real time."""
        connect = getattr(kernel(), "consume", None)
        if connect is None:
            raise EtwError("OpenTrace", Status.NOT_SUPPORTED)
        return cls(connect(name), name)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._channel.close()

    def parts(self) -> Iterator[Part]:
        more = True
        while more:
            came = self._whole()
            if came.at:
                self._hold(came)
            if came.marker is not None:
                yield from self._release(came.marker)
            elif sum(held.block.raw.nbytes for held in self._held) > _MOST_HELD:
                yield from self._release(_LAST)
            more = self._receive()
        yield from self._release(_LAST)

    # -- bytes

    def _receive(self) -> bool:
        """More bytes; whether there were any."""
        while True:
            try:
                data = self._channel.recv(_RECEIVE)
            except TimeoutError:
                continue
            except OSError:
                return False
            self._raw += data
            return bool(data)

    def _first(self) -> bytes:
        """The header buffer."""
        while (size := self._size(0)) is None:
            if not self._receive():
                self._channel.close()
                raise EtwError("OpenTrace", Status.WMI_INSTANCE_NOT_FOUND, f"session {self._name} has ended")
        first = bytes(self._raw[:size])
        del self._raw[:size]
        self._offset = size
        return first

    def _size(self, at: int) -> int | None:
        """Bytes of the buffer at ``at`` of what came; None until it is whole. `FormatError` for one of no session."""
        if len(self._raw) < at + BUFFER_HEADER_SIZE:
            return None
        size, _, used, flags, _ = _HEAD.unpack_from(self._raw, at)
        if not BUFFER_HEADER_SIZE <= used <= size <= MAX_BUFFER or size % 8 or flags & BUFFER_FLAG.COMPRESSED:
            where = self._offset + at
            raise FormatError("not a buffer of a session", file=self._name, offset=where, field="Offset", value=used)
        return int(size) if len(self._raw) >= at + size else None

    def _whole(self) -> _Came:
        """Take the whole buffers off what came."""
        came, at = _Came(), 0
        while (size := self._size(at)) is not None:
            _, time, _, _, kind = _HEAD.unpack_from(self._raw, at)
            if kind == BUFFER_TYPE.EMPTY_MARKER:
                came.marker = int(time)
            else:
                came.at.append(len(came.data))
                came.data += memoryview(self._raw)[at : at + size]
            at += size
        del self._raw[:at]
        return came

    # -- events

    def _hold(self, came: _Came) -> None:
        at = np.array(came.at, np.int64)
        length = np.diff(np.append(at, len(came.data)))
        came.data += bytes(PAD)
        raw = np.frombuffer(came.data, np.uint8)
        heads = heads_at(raw, at)
        buffers = buffer_rows(heads, self._offset + at, length, heads["Offset"].astype(np.int64))
        self._offset += int(length.sum())
        window = Window(raw, raw[: len(raw) & ~7].view(np.uint64), at, buffers, self._segment)
        block = EventBlock.of(window, self._rules)
        self._ends.loaded(block)
        if len(block):
            order = np.argsort(block.time, kind="stable")
            self._held.append(_Held(block, order, block.time[order]))

    def _release(self, until: int) -> Iterator[Part]:
        """What is held from before ``until``, in time order; equal times in the order in which they came."""
        counts = [len(h.time) if until == _LAST else int(np.searchsorted(h.time, until)) for h in self._held]
        going = [(held, count) for held, count in zip(self._held, counts, strict=True) if count]
        if not going:
            return
        times = np.concatenate([held.time[:count] for held, count in going])
        rows = np.concatenate([held.order[:count] for held, count in going])
        owner = np.repeat(np.arange(len(going)), [count for _, count in going])
        order = np.argsort(times, kind="stable")
        run = Run([held.block for held, _ in going], owner[order], rows[order])
        for held, count in going:
            held.order, held.time = held.order[count:], held.time[count:]
        self._held = [held for held in self._held if len(held.time)]
        for block in blocks_of_runs([run]):
            yield Part(block, self._ends.in_block(block))
