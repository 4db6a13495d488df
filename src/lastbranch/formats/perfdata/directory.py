"""The directory of ``perf record --threads``: one capture in several files.

The file ``data`` has the header and what is known at the start; ``data.0`` and its neighbours have the records of one
thread of the recorder each. `join_files` shows all of them as one file: the records of the threads follow those of
``data``, and the sections after the records move back.

Source: perf_data__open_dir and perf_session__process_dir_events in Linux tools/perf/util.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence

from ...errors import FormatError
from ...model import BytesSource, OpenFile, Source, read_at
from .header import is_perfdata, read_magic
from .layout import FEATURES, HEADER

__all__ = ["JoinedFiles", "is_of_directory", "join_files"]

_DIR_FORMAT = FEATURES.index("DIR_FORMAT")
_DATA_SIZE = 8 + 8 * HEADER.index("data.size")
_SECTION = 16
_MOST_FEATURES = 256


def _header(source: Source) -> tuple[str, dict[str, int]]:
    """(byte order, header); an empty header of what is no perf.data with one."""
    order, pipe = read_magic(source)
    raw = read_at(source, 8, 8 * len(HEADER))
    if pipe or len(raw) < 8 * len(HEADER):
        return order, {}
    return order, dict(zip(HEADER, struct.unpack(f"{order}{len(HEADER)}Q", raw), strict=True))


def is_of_directory(source: Source) -> bool:
    """Whether ``source`` is the file ``data`` of a directory, by its header."""
    if not is_perfdata(read_at(source, 0, 8)):
        return False
    header = _header(source)[1]
    return bool(header.get(f"features.{_DIR_FORMAT // 64}", 0) >> _DIR_FORMAT % 64 & 1)


def join_files(data: OpenFile, threads: Sequence[OpenFile], name: str) -> JoinedFiles:
    """The file ``data`` of a directory with the records of ``threads`` in it, called ``name``.

    Raises `FormatError` where ``data`` has no header.
    """
    order, header = _header(data)
    if not header:
        raise FormatError("file header is cut short", file=data.name, offset=8)
    more = sum(thread.size for thread in threads)
    end = header["data.offset"] + header["data.size"]
    start = bytearray(read_at(data, 0, 8 + 8 * len(HEADER)))
    struct.pack_into(order + "Q", start, _DATA_SIZE, header["data.size"] + more)
    features = sum(header[f"features.{n}"].bit_count() for n in range(_MOST_FEATURES // 64))
    table = bytearray(read_at(data, end, _SECTION * features))
    for at in range(0, len(table) // _SECTION * _SECTION, _SECTION):
        (offset,) = struct.unpack_from(order + "Q", table, at)
        struct.pack_into(order + "Q", table, at, offset + (more if offset >= end else 0))
    return JoinedFiles(
        name,
        [data, *threads],
        [
            (BytesSource(start), 0, len(start)),
            (data, len(start), max(0, end - len(start))),
            *((thread, 0, thread.size) for thread in threads),
            (BytesSource(table), 0, len(table)),
            (data, end + len(table), max(0, data.size - end - len(table))),
        ],
    )


class JoinedFiles:
    """A `Source` of parts of ``files``: (source, its first byte, bytes), one after the other."""

    def __init__(self, name: str, files: Sequence[OpenFile], pieces: Sequence[tuple[Source, int, int]]) -> None:
        self.name, self.limits, self._files = name, files[0].limits, files
        self._pieces = [piece for piece in pieces if piece[2]]
        self._begins = [0]
        for _, _, length in self._pieces:
            self._begins.append(self._begins[-1] + length)

    @property
    def size(self) -> int:
        return self._begins[-1]

    def readinto(self, offset: int, buffer: memoryview) -> int:
        done = 0
        while done < len(buffer) and offset + done < self.size:
            row = bisect_right(self._begins, offset + done) - 1
            source, first, length = self._pieces[row]
            at = offset + done - self._begins[row]
            part = buffer[done : done + length - at]
            got = source.readinto(first + at, part)
            done += got
            if got < len(part):
                break
        return done

    def expect(self, offset: int, length: int) -> None:
        if offset < self.size:
            row = bisect_right(self._begins, offset) - 1
            source, first, size = self._pieces[row]
            at = offset - self._begins[row]
            source.expect(first + at, min(length, size - at))

    def close(self) -> None:
        for file in self._files:
            file.close()
