"""Buffers as columns, and what stands where a buffer should be but is not one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import Damage
from ..layout import BUFFER_FLAG, BUFFER_HEADER, BUFFER_HEADER_SIZE

__all__ = ["BUFFER_DTYPE", "Buffers", "DamageLog", "buffer_rows", "heads_at"]


_NUMPY = {"B": "u1", "H": "<u2", "I": "<u4", "i": "<i4", "Q": "<u8", "q": "<i8"}


def _numpy_type(form: str) -> str:
    return _NUMPY.get(form) or re.sub(r"(\d+)s", r"V\1", form)


BUFFER_DTYPE = np.dtype([(name, _numpy_type(form)) for name, form in BUFFER_HEADER])
"""`layout.BUFFER_HEADER` for NumPy: 72 bytes."""

MOST_NAMED = 1000
"""So many places are named one by one; a file that is damaged all over must not fill the memory with that."""


MOST_COUNTED = 1_000_000
"""So many damaged buffers are told apart."""


@dataclass(slots=True)
class Buffers:
    """Buffers as columns, one row each, in file order.

    ``offset`` int64: where it stands in the file; ``length`` int64: bytes there. ``filled`` int64: bytes in use after
    decompression, the 72 of the header included, less what a cut file lacks. ``sequence``, ``time`` int64 (ticks of the
    flush; FILETIME in merged files), ``cpu`` int32, ``flags`` (BUFFER_FLAG), ``type`` (BUFFER_TYPE), ``logger`` int32.
    """

    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    filled: NDArray[np.int64]
    sequence: NDArray[np.int64]
    time: NDArray[np.int64]
    cpu: NDArray[np.int32]
    flags: NDArray[np.int32]
    type: NDArray[np.int32]
    logger: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offset)

    def take(self, rows: Any) -> Buffers:
        """The given rows: an index array, a mask or a slice."""
        return Buffers(*(getattr(self, f.name)[rows] for f in fields(self)))

    @staticmethod
    def concatenate(parts: Iterable[Buffers]) -> Buffers:
        """All rows of ``parts``, in order."""
        none = np.empty(0, np.int64)
        kept = [buffer_rows(np.empty(0, BUFFER_DTYPE), none, none, none), *parts]
        return Buffers(*(np.concatenate([getattr(p, f.name) for p in kept]) for f in fields(Buffers)))


def heads_at(raw: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[Any]:
    """The buffer headers at byte positions ``at`` of ``raw``, as BUFFER_DTYPE."""
    anywhere: NDArray[Any] = np.ndarray((max(0, len(raw) - BUFFER_HEADER_SIZE + 1),), BUFFER_DTYPE, raw, 0, (1,))
    return anywhere[at]


def buffer_rows(
    heads: NDArray[Any], offset: NDArray[np.int64], length: NDArray[np.int64], filled: NDArray[np.int64]
) -> Buffers:
    """Columns from headers; Windows 7 has u8 ProcessorNumber, u8 Alignment where later ones have u16 ProcessorIndex."""
    flags = heads["BufferFlag"].astype(np.int32)
    index = heads["ProcessorIndex"].astype(np.int32)
    cpu = np.where(flags & BUFFER_FLAG.PROC_INDEX, index, index & 0xFF).astype(np.int32)
    return Buffers(
        offset, length, filled, heads["SequenceNumber"].astype(np.int64), heads["TimeStamp"].astype(np.int64), cpu,
        flags, heads["BufferType"].astype(np.int32), heads["LoggerId"].astype(np.int32),
    )  # fmt: skip


class DamageLog:
    """Damage by place: reading a place again, as every pass over a file does, does not count it again.

    ``skipped`` holds the offsets of buffers that were given up as a whole, at most `MOST_COUNTED` of them.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], Damage] = {}
        self.skipped: set[int] = set()
        self.more = False
        """Whether there is more damage than is named."""

    def __iter__(self) -> Iterator[Damage]:
        return iter(sorted(self._found.values(), key=lambda d: d.offset))

    def __len__(self) -> int:
        return len(self._found)

    def add(self, damage: Damage, *, skipped: int | None = None) -> None:
        """Note ``damage``; ``skipped`` is the offset of a buffer that is given up for it."""
        key = (damage.offset, damage.reason)
        if skipped is not None and len(self.skipped) < MOST_COUNTED:
            self.skipped.add(skipped)
        if key in self._found:
            return
        if len(self._found) < MOST_NAMED:
            self._found[key] = damage
        else:
            self.more = True
