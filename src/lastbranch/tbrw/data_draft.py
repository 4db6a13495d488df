"""Records of a stream that is being written: bytes in any portions, maybe before their descriptor is known (5.2)."""

from __future__ import annotations

from tempfile import SpooledTemporaryFile
from typing import IO

from ..formats.tb5 import TableWriter
from .status import Status, TbrwError

__all__ = ["DataDraft"]

_SPOOLED = 1 << 20


class DataDraft:
    """Data of one stream. It goes to a temporary file until the table for it can be opened, then straight there."""

    def __init__(self, stream: int) -> None:
        self.stream, self.size = stream, 0
        self.table: TableWriter | None = None
        self._spool: IO[bytes] = SpooledTemporaryFile(_SPOOLED)  # noqa: SIM115 (closed by attach or close)

    def check_fits(self, size: int, record_size: int) -> None:
        """``size`` more bytes are whole records, or do not straddle two. Raises `TbrwError` (UNSUPPORTED_DATA_SIZE).

        ``record_size`` is 0 as long as no descriptor says it: then anything but nothing fits.
        """
        inside = self.size % record_size if record_size else 0
        whole = not inside and record_size and not size % record_size
        if not size or (record_size and not whole and inside + size > record_size):
            raise TbrwError(
                Status.UNSUPPORTED_DATA_SIZE,
                f"stream {self.stream}: {size} bytes do not fit; of a record of {record_size} bytes {inside} are there",
            )

    def write(self, data: bytes) -> None:
        """Append bytes."""
        (self.table or self._spool).write(data)
        self.size += len(data)

    def attach(self, table: TableWriter) -> None:
        """From now on data goes to ``table``; what came before goes there first."""
        self._spool.seek(0)
        while chunk := self._spool.read(_SPOOLED):
            table.write(chunk)
        self._spool.close()
        self.table = table

    def check_complete(self, record_size: int) -> None:
        """Raises `TbrwError` (UNSUPPORTED_DATA_SIZE) where the last record is not whole."""
        if record_size and self.size % record_size:
            raise TbrwError(
                Status.UNSUPPORTED_DATA_SIZE,
                f"stream {self.stream}: {self.size} bytes of data are not whole records of {record_size}",
            )

    def close(self) -> None:
        """Give up the temporary file."""
        self._spool.close()
