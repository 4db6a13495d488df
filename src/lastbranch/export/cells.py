"""Text from columns without a Python object for each value: rows of characters with a mask of those that count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cells", "choice", "constant", "decimal", "hexadecimal", "join"]

Cells = tuple[NDArray[np.uint8], NDArray[np.bool_]]
"""Characters (rows x width, uint8) and which of them are part of the text."""

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_HEX_PAIRS = np.stack([_HEX[np.arange(256) >> 4], _HEX[np.arange(256) & 15]], axis=1)


def hexadecimal(values: NDArray[np.uint64], pad: bool = False) -> Cells:
    """16 columns: lower case hex without leading zeros, or (``pad``) with blanks for them."""
    raw = values.astype(">u8").view(np.uint8).reshape(-1, 8)
    text = _HEX_PAIRS[raw].reshape(-1, 16)
    mask = np.logical_or.accumulate(text != ord("0"), axis=1)
    mask[:, 15] = True
    if not pad:
        return text, mask
    return np.where(mask, text, np.uint8(ord(" "))), np.ones(text.shape, bool)


def decimal(values: NDArray[np.uint64], width: int) -> Cells:
    """Decimal digits without leading zeros, at most ``width``."""
    powers = np.uint64(10) ** np.arange(width - 1, -1, -1, dtype=np.uint64)
    text = (values[:, None] // powers % np.uint64(10)).astype(np.uint8) + np.uint8(ord("0"))
    mask = np.logical_or.accumulate(text != ord("0"), axis=1)
    mask[:, -1] = True
    return text, mask


def choice(codes: NDArray[np.integer], texts: Sequence[bytes]) -> Cells:
    """``texts[code]`` in each row."""
    width = max(map(len, texts))
    table = np.zeros((len(texts), max(1, width)), np.uint8)
    lengths = np.array([len(t) for t in texts])
    for i, text in enumerate(texts):
        table[i, : len(text)] = np.frombuffer(text, np.uint8)
    return table[codes], np.arange(table.shape[1]) < lengths[codes][:, None]


def constant(text: bytes, rows: NDArray[np.bool_]) -> Cells:
    """``text`` in the rows where ``rows`` is true."""
    row = np.frombuffer(text, np.uint8)
    return np.broadcast_to(row, (len(rows), len(row))), np.broadcast_to(rows[:, None], (len(rows), len(row)))


def join(cells: Sequence[Cells]) -> bytes:
    """All rows, one after the other."""
    text = np.concatenate([c[0] for c in cells], axis=1)
    mask = np.concatenate([c[1] for c in cells], axis=1)
    data: bytes = text[mask].tobytes()
    return data
