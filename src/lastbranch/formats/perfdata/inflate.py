"""Compressed records: one zstd stream over all of them, whose output is records again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage, UnavailableError
from ...model import Limits
from .chain import COMPRESSED2, LONGEST, Block, OddRecords, chase

__all__ = ["Inflater"]

_ENOUGH = 4 << 20  # decompressed bytes that make a block
_SLICE = 2048  # compressed bytes at a time: a zstd block of 4 bytes can stand for 128 KiB of zeros


class Inflater:
    """The state of the stream. ``grown`` counts decompressed bytes that have been delivered."""

    def __init__(self, big_endian: bool, damage: list[Damage] | None, limits: Limits) -> None:
        self.big_endian, self.damage, self.limits = big_endian, damage, limits
        self._packed = self._expanded = 0
        self.pending = bytearray()
        self.grown = 0
        self._stream: Any = None
        self._dead = False
        self._odd = OddRecords()

    def expand(self, block: Block, packed: NDArray[np.int64]) -> Iterator[Block]:
        """``block`` in pieces, each compressed record followed by the records that it holds."""
        types, sizes, done = block.types, block.sizes(block.at), 0
        for i in packed.tolist():
            at, size = int(block.at[i]), int(sizes[i])
            yield self._part(block, done, i + 1)
            done = i + 1
            body = block.body(at, size)
            if types[i] == COMPRESSED2:
                length = int(block.words[at + 1]) if size >= 16 else 0
                body = body[8 : 8 + length]
            offset = block.base + at * 8
            for piece in range(0, len(body), _SLICE):
                self._inflate(body[piece : piece + _SLICE], offset)
                over = self._expanded > self.limits.expanded(self._packed)
                if over or len(self.pending) >= _ENOUGH:
                    yield from self._drain(offset)
                if over and not self._dead:
                    self._fail(f"{self._packed} compressed bytes become more than the budget of "
                               f"{self.limits.expanded(self._packed)}; what follows was not read", offset)  # fmt: skip
            if i + 1 == len(types) or types[i + 1] != types[i]:
                yield from self._drain(offset)
        if done < len(block.at):
            rest = self._part(block, done, len(block.at))
            rest.behind = block.behind
            yield rest

    def finish(self, offset: int) -> None:
        if self.pending and not self._dead and self.damage is not None:
            self.damage.append(Damage("compressed data end inside a record", offset, lost=len(self.pending)))

    def _part(self, block: Block, lo: int, hi: int) -> Block:
        at, types = block.at[lo:hi], block.types[lo:hi]
        return Block(block.words, block.raw, block.base + self.grown, at, types, block.big_endian)

    def _inflate(self, data: bytes, offset: int) -> None:
        if self._dead:
            return
        try:
            import zstandard
        except ImportError as error:
            raise UnavailableError(
                "the records are compressed and the zstandard package is not installed",
                hint="pip install zstandard",
            ) from error
        self._packed += len(data)
        try:
            while data:
                if self._stream is None or self._stream.eof:
                    self._stream = zstandard.ZstdDecompressor().decompressobj()
                found = self._stream.decompress(data)
                self._expanded += len(found)
                self.pending += found
                data = self._stream.unused_data if self._stream.eof else b""
        except zstandard.ZstdError as error:
            self._fail(f"compressed data are damaged: {error}", offset)

    def _drain(self, offset: int) -> Iterator[Block]:
        """The whole records in ``pending`` as blocks; what is left waits for more."""
        room = _ENOUGH
        while len(self.pending) >= 8 and not self._dead:
            piece = bytes(self.pending[:room])
            words = np.frombuffer(piece + bytes(-len(piece) % 8), np.uint64)
            block, following = chase(words, len(piece), offset + self.grown, self.big_endian)
            following -= block.base
            block.packed_at = offset
            if len(block.at) == 0:
                if block.first_size < 8:
                    self._fail("compressed record of impossible size", offset, "size", block.first_size)
                return
            self.grown += following
            odd = following & 7 != 0 and self._odd.too_many(int(block.types[-1]), self.grown)
            yield block
            if odd or following > len(self.pending):
                self._fail("compressed record of impossible size", offset, "size", int(block.sizes(block.at[-1:])[0]))
                return
            del self.pending[:following]
            room = 2 * LONGEST if following & 7 else _ENOUGH

    def _fail(self, reason: str, offset: int, field: str | None = None, value: object = None) -> None:
        self._dead = True
        if self.damage is not None:
            self.damage.append(Damage(reason, offset, field, value, len(self.pending)))
        self.pending.clear()
