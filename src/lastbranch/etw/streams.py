"""Where a consumer's events come from: a log file or a session, as blocks in time order with the buffers that end."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from ..formats.etl import LogHeader
from ..formats.etl.decode import AS_IT_SAYS, Reading
from ..formats.etl.events.columns import EventBlock
from ..opening import FileSource
from .status import EtwError, Status

__all__ = ["BufferEnds", "Ended", "FileStream", "Part", "Stream", "filetimes", "open_stream", "status_of"]

_FILETIME_HZ = 10_000_000
_SYSTEM_TIME = 2
_STATUS = {
    errno.ENOENT: Status.FILE_NOT_FOUND, errno.ENOTDIR: Status.PATH_NOT_FOUND, errno.EACCES: Status.ACCESS_DENIED,
    errno.EPERM: Status.ACCESS_DENIED, errno.EROFS: Status.ACCESS_DENIED, errno.ENOSPC: Status.DISK_FULL,
    errno.EFBIG: Status.DISK_FULL,
}  # fmt: skip
Ints = NDArray[np.int64]


class Ended(NamedTuple):
    """A buffer whose last event is row ``row`` of a block: its BufferSize and its bytes in use."""

    row: int
    size: int
    filled: int


@dataclass(slots=True)
class Part:
    """Events in time order, in memory of their own."""

    block: EventBlock
    ended: list[Ended]
    """By row."""


class Stream(Protocol):
    """The events of one log file or session."""

    header: LogHeader

    def parts(self) -> Iterator[Part]:
        """All events, up to the end of the file or of the session."""

    def end(self) -> None:
        """Let `parts` end soon; any thread may call it."""

    def close(self) -> None:
        """Give up what is held, when nobody asks for parts any more."""


class BufferEnds:
    """Which buffers end where: `loaded` sees each buffer's events when it is read, `in_block` what goes out."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}

    def loaded(self, block: EventBlock) -> slice:
        """Take in the events of a buffer; all of them are wanted."""
        if len(block):
            for offset, count in zip(*np.unique(_offsets(block), return_counts=True), strict=True):
                self._left[int(offset)] = int(count)
        return slice(None)

    def in_block(self, block: EventBlock) -> list[Ended]:
        """The buffers of which ``block`` has the last event."""
        places, last, count = np.unique(_offsets(block)[::-1], return_index=True, return_counts=True)
        ended = []
        for offset, back, number in zip(places.tolist(), last.tolist(), count.tolist(), strict=True):
            self._left[offset] -= number
            if not self._left[offset]:
                del self._left[offset]
                row = len(block) - 1 - back
                buffers, which = block.window.buffers, int(block.buffer[row])
                ended.append(Ended(row, int(buffers.length[which]), int(buffers.filled[which])))
        return sorted(ended)


def _offsets(block: EventBlock) -> Ints:
    return block.window.buffers.offset.take(block.buffer)


class FileStream:
    """The events of a log file, in bounded memory: one buffer of each processor, and a block.

    `EtwError` where it cannot be opened or is no trace log.
    """

    def __init__(self, path: str, reading: Reading = AS_IT_SAYS) -> None:
        try:
            self._source = FileSource(path)
        except OSError as error:
            raise EtwError("OpenTrace", status_of(error), f"{path}: {error.strerror}") from None
        except FormatError as error:
            raise EtwError("OpenTrace", Status.BAD_PATHNAME, str(error)) from None
        try:
            self.log = reading.log(self._source)
        except FormatError as error:
            self._source.close()
            raise EtwError("OpenTrace", Status.INVALID_DATA, str(error), hint=error.hint) from None
        self.header = self.log.header
        self._ending = False

    def parts(self) -> Iterator[Part]:
        ends = BufferEnds()
        for block in self.log.ordered_blocks(select=ends.loaded):
            if self._ending:
                return
            yield Part(block, ends.in_block(block))

    def end(self) -> None:
        self._ending = True

    def close(self) -> None:
        self._source.close()


def open_stream(source: str, *, session: bool, reading: Reading = AS_IT_SAYS) -> Stream:
    """The events of log file ``source``, or of the session of that name in real time. Raises `EtwError`."""
    if not session:
        return FileStream(os.fspath(source), reading)
    from .portable.live import LiveStream

    if sys.platform == "win32":
        from .called_back import CallbackChannel

        return LiveStream(CallbackChannel(source), source)
    try:
        return LiveStream.of_session(source)
    except EtwError as error:
        if error.status == Status.WMI_INSTANCE_NOT_FOUND and not os.path.exists(source):
            error.hint = "there is no file of that name either"
        raise


def status_of(error: OSError) -> Status:
    """What the API says of a file that cannot be opened or written."""
    return _STATUS.get(error.errno or 0, Status.BAD_PATHNAME)


def filetimes(ticks: Ints, header: LogHeader) -> Ints:
    """Times of events as FILETIMEs, to the tick below; as they are if the log has no clock rate or no wall time."""
    if not header.frequency or not header.start_time:
        return ticks
    if header.clock_type == _SYSTEM_TIME and header.timestamp == header.start_time:
        return ticks
    whole, part = np.divmod(ticks - header.timestamp, header.frequency)
    result: Ints = header.start_time + whole * _FILETIME_HZ + part * _FILETIME_HZ // header.frequency
    return result
