"""`Names` from inline chains that come one by one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .model import Function, Names

__all__ = ["Chains"]

_LAST_LINE = (1 << 32) - 1


class Chains:
    """Collects one chain for each address, in the order of the addresses."""

    def __init__(self) -> None:
        self._functions: dict[Function, int] = {}
        self._files: dict[str, int] = {}
        self._function: list[int] = []
        self._offsets = [0]
        self._frames: list[tuple[int, int, int]] = []

    def add(self, chain: Iterable[tuple[Function, str, int]]) -> None:
        """The next address's frames as (function, file, line), innermost first; none where nothing is known."""
        row = -1
        for function, file, line in chain:
            row = self._functions.setdefault(function, len(self._functions))
            column = self._files.setdefault(file, len(self._files)) if file else -1
            self._frames.append((row, column, min(max(line, 0), _LAST_LINE)))
        self._function.append(row)
        self._offsets.append(len(self._frames))

    def names(self) -> Names:
        """What was collected. Columns and discriminators are not known."""
        function, file, line = zip(*self._frames, strict=True) if self._frames else ((), (), ())
        zero = np.zeros(len(self._frames), np.uint32)
        return Names(
            np.array(self._function, np.int32),
            np.array(self._offsets, np.int64),
            np.array(function, np.int32),
            np.array(file, np.int32),
            np.array(line, np.uint32),
            zero,
            zero,
            list(self._functions),
            list(self._files),
        )
