"""One table in the making: bytes as they come, cut into blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ...model import Array
from . import layout
from .checksum import block_check
from .layout import Entry, Table, describe

__all__ = ["TableWriter"]

Append = Callable[[bytes | NDArray[np.uint8]], int]
"""Writes at the end of the file; the offset."""


class TableWriter:
    """A table in the making. Bytes may come in any pieces; they are cut into blocks of whole records."""

    def __init__(self, key: Table, record_size: int, append: Append, finish: Callable[[Table, Entry], None]) -> None:
        """``append`` writes bytes at the end of the file, ``finish`` is told where the complete table stands."""
        self.key, self.record_size = key, record_size
        self._append, self._finish = append, finish
        self._block = layout.records_of_block(key, record_size) * record_size
        self._waiting: NDArray[np.uint8] | None = None
        self._filled = self._stored = 0
        self._index: list[tuple[int, int, int]] = []
        self._over: BaseException | None = None

    @property
    def count(self) -> int:
        """Whole records so far."""
        return self._bytes // self.record_size

    @property
    def _bytes(self) -> int:
        return self._stored + self._filled

    def end(self, reason: BaseException) -> None:
        """No more `write` or `done`: each raises ``reason`` from now on."""
        self._over = self._over or reason

    def write(self, data: Array | bytes | bytearray | memoryview) -> None:
        """Add records, or any bytes of them. What fails once fails with the same error ever after: a piece is lost."""
        rest = np.ascontiguousarray(data) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        with self._once():
            self._take(rest.reshape(-1).view(np.uint8))

    def done(self) -> None:
        """Complete the table: it is in the file from the next commit on. `ValueError` for half a record."""
        if self._over is None and self._bytes % self.record_size:
            raise ValueError(f"{describe(self.key)}: {self._bytes} bytes are not whole records of {self.record_size}")
        with self._once():
            self._done()
        self.end(ValueError(f"{describe(self.key)} is complete"))

    @contextmanager
    def _once(self) -> Iterator[None]:
        if self._over is not None:
            raise self._over
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise

    def _take(self, rest: NDArray[np.uint8]) -> None:
        while len(rest):
            if not self._filled and len(rest) >= self._block:
                self._store(rest[: self._block])
                rest = rest[self._block :]
                continue
            if self._waiting is None:
                self._waiting = np.empty(self._block, np.uint8)
            taken = min(len(rest), self._block - self._filled)
            self._waiting[self._filled : self._filled + taken] = rest[:taken]
            self._filled, rest = self._filled + taken, rest[taken:]
            if self._filled == self._block:
                self._flush()

    def _done(self) -> None:
        self._flush()
        self._waiting = None
        if len(self._index) != -(-self._bytes // self._block):
            raise ValueError(f"{describe(self.key)}: {len(self._index)} blocks do not hold {self.count} records")
        data = np.array(self._index, layout.BLOCK_INDEX).tobytes()
        at = self._append(data) if data else 0
        entry = Entry(self.record_size, self.count, self._block, len(self._index), at, crc32(data))
        self._finish(self.key, entry)

    def _flush(self) -> None:
        if self._filled and self._waiting is not None:
            filled, self._filled = self._filled, 0
            self._store(self._waiting[:filled])

    def _store(self, block: NDArray[np.uint8]) -> None:
        self._index.append((self._append(block), *block_check(block)))
        self._stored += len(block)
