"""JSON written piece by piece, so that long arrays are never whole in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import IO

__all__ = ["text", "write_array", "write_joined"]


def text(value: object) -> bytes:
    """``value`` as JSON without blanks, in ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def write_array(out: IO[bytes], pieces: Iterable[Sequence[object]]) -> None:
    """One array of the elements of all ``pieces``."""
    out.write(b"[")
    write_joined(out, (text(piece)[1:-1] for piece in pieces if piece))
    out.write(b"]")


def write_joined(out: IO[bytes], items: Iterable[bytes], before: bytes = b"") -> None:
    """``items``, which are JSON, with commas between them, and ``before`` before each."""
    for i, item in enumerate(items):
        out.write(b"," * bool(i) + before + item)
