"""One decoding pass over the samples of a block: a cursor into each, moved field by field."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ...arrays import ranges
from ...model import Array
from .chain import Block

__all__ = ["Cursor"]


class Cursor:
    """Samples at word positions ``at`` of ``block``; ``fixed`` words of each precede the fields of variable position.
    ``form`` holds the fields of the attribute that shaped them.

    ``bad`` marks samples whose fields do not fit their records. Values go to ``columns`` and ``offsets``.
    """

    def __init__(
        self, block: Block, at: NDArray[np.int64], form: dict[str, int], fixed: int, wanted: frozenset[str] | None
    ) -> None:
        self.block, self.words, self.at, self.form, self.wanted = block, block.words, at, form, wanted
        self.end = at + (block.sizes(at) >> 3)
        self.cursor = at + (1 + fixed)
        self.bad = self.cursor > self.end
        self.cursor = np.minimum(self.cursor, self.end)
        self.columns: dict[str, Array] = {}
        self.offsets: dict[str, NDArray[np.int64]] = {}
        self.lengths: dict[str, NDArray[np.int64]] = {}

    def wants(self, *names: str) -> bool:
        return self.wanted is None or any(n in self.wanted for n in names)

    def word(self, offset: int = 0) -> NDArray[np.uint64]:
        """The word at the cursor (+ offset); whatever is there for a sample that has ended already (it is bad)."""
        return self.words.take(self.cursor + offset, mode="clip")

    def count(self, limit_words: int = 1) -> NDArray[np.int64]:
        """The count at the cursor, moved past it; 0 and marked bad where so many items do not fit the record."""
        room = self.end - self.cursor - 1
        n = self.word()
        bad = (room < 0) | (n > (np.maximum(room, 0) // limit_words).astype(np.uint64))
        self.bad |= bad
        self.cursor = np.where(bad, self.end, self.cursor + 1)
        return np.where(bad, 0, n.astype(np.int64))

    def skip(self, words: NDArray[np.int64] | int) -> None:
        """Move on by ``words``; samples that end before that are marked bad."""
        self.cursor = self.cursor + words
        self.bad |= self.cursor > self.end
        self.cursor = np.minimum(self.cursor, self.end)

    def ragged(self, group: str, length: NDArray[np.int64], names: tuple[str, ...], step: int = 1) -> None:
        """Ragged columns ``names`` of ``group``: words 0, 1, ... of items of ``step`` words, from the cursor on."""
        self.lengths[group] = length
        wanted = [(word, name) for word, name in enumerate(names) if self.wants(name)]
        if not wanted:
            return
        self.offsets[group] = offsets = np.zeros(len(length) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        gather = self._evenly_spaced(length, step) or self._anywhere(offsets, length, step)
        for word, name in wanted:
            self.columns[name] = gather(word)

    def _evenly_spaced(self, length: NDArray[np.int64], step: int) -> Callable[[int], Array] | None:
        """The usual case, samples equally long and one after the other, is a strided copy: several times as fast."""
        n, deepest = len(length), int(length.max(initial=0))
        if n < 2 or int(length.min()) != deepest:
            return None
        first, stride = int(self.cursor[0]), int(self.cursor[1] - self.cursor[0])
        if (np.diff(self.cursor) != stride).any():
            return None
        shape, strides = (n, deepest), (stride * 8, step * 8)

        def gather(word: int) -> Array:
            return as_strided(self.words[first + word :], shape, strides, writeable=False).reshape(-1)

        return gather

    def _anywhere(self, offsets: NDArray[np.int64], length: NDArray[np.int64], step: int) -> Callable[[int], Array]:
        index = np.repeat(self.cursor - offsets[:-1] * step, length)
        index += np.arange(0, int(offsets[-1]) * step, step)
        return lambda word: self.words.take(index + word if word else index)

    def take_bytes(self, group: str, start: NDArray[np.int64], length: NDArray[np.int64]) -> None:
        """Ragged column ``group`` of bytes: ``length`` from byte position ``start`` of the block."""
        offsets = np.zeros(len(length) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        self.offsets[group] = offsets
        index = ranges(start, length)
        self.columns[group] = self.block.raw.take(index)
