"""Records of a stream that is being written: bytes in any portions, maybe before their descriptor is known (5.2)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from ..model.output import temporary_file
from .status import Status, TbrwError

__all__ = ["DataDraft"]

_HELD = 1 << 20


class DataDraft:
    """Data of one stream, until the stream is done: in a temporary file in ``folder``, the end of it in memory.

    Nothing of it is in the TB5 file before, so that a commit that fails takes nothing away from it.
    """

    def __init__(self, stream: int, folder: str) -> None:
        self.stream, self.size, self._folder = stream, 0, folder
        self._file: io.BufferedRandom | None = None
        self._stored = 0
        self._end = bytearray()

    def add(self, portions: Iterable[bytes], record_size: int) -> None:
        """Append all portions, or nothing where an error comes out of them or of the disk.

        Together they are whole records, or do not straddle two. Raises `TbrwError` (UNSUPPORTED_DATA_SIZE).
        ``record_size`` is 0 as long as no descriptor says it: then anything fits.
        """
        before = self.size
        try:
            for portion in portions:
                self._end += portion
                self.size += len(portion)
                if len(self._end) >= _HELD:
                    self._store()
            self._check_fits(before, record_size)
        except BaseException:
            self._cut(before)
            raise

    def _check_fits(self, before: int, record_size: int) -> None:
        size, inside = self.size - before, before % record_size if record_size else 0
        whole = not inside and record_size and not size % record_size
        if record_size and not whole and inside + size > record_size:
            raise TbrwError(
                Status.UNSUPPORTED_DATA_SIZE,
                f"stream {self.stream}: {size} bytes do not fit; of a record of {record_size} bytes {inside} are there",
            )

    def _store(self) -> None:
        if self._file is None:
            self._file = temporary_file(self._folder)
        self._file.seek(self._stored)
        rest, raw = memoryview(bytes(self._end)), self._file.raw  # a buffer would keep what a full disk refused
        while rest:
            rest = rest[raw.write(rest) :]
        self._stored, self._end = self._stored + len(self._end), bytearray()

    def _cut(self, size: int) -> None:
        self.size = size
        self._stored = min(self._stored, size)
        del self._end[size - self._stored :]
        if self._file is not None:
            self._file.truncate(self._stored)

    def pieces(self) -> Iterator[bytes]:
        """All of it."""
        if self._file is not None:
            self._file.seek(0)
            while piece := self._file.read(_HELD):
                yield piece
        yield bytes(self._end)

    def check_complete(self, record_size: int) -> None:
        """Raises `TbrwError` (UNSUPPORTED_DATA_SIZE) where the last record is not whole."""
        if record_size and self.size % record_size:
            raise TbrwError(
                Status.UNSUPPORTED_DATA_SIZE,
                f"stream {self.stream}: {self.size} bytes of data are not whole records of {record_size}",
            )

    def close(self) -> None:
        """Give up the temporary file."""
        if self._file is not None:
            self._file.close()
