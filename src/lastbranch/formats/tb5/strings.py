"""Strings of a file: each is stored once and known by a unique id.

Ids count from 1 over all *segments*, each of which a commit added: u64 ends of its strings, and their bytes. Id 0 is
the guide's NULL string. Text is UTF-8; names that are not (any bytes on Linux, half surrogates on Windows) keep their
bytes, so that each comes back as it was.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...model import Array

__all__ = ["StringIds", "decode", "encode", "encode_segment"]

_FORMS = ("surrogateescape", "surrogatepass")


def encode(text: str) -> bytes:
    """Bytes that `decode` makes ``text`` of."""
    for errors in _FORMS:
        try:
            data = text.encode("utf-8", errors)
        except UnicodeEncodeError:
            continue
        if decode(data) == text:
            return data
    raise ValueError(f"{text!r} cannot be stored")


def decode(data: bytes) -> str:
    """Text of stored bytes: surrogates as three bytes each where that is possible, else undecodable bytes escaped."""
    for errors in reversed(_FORMS):
        try:
            return data.decode("utf-8", errors)
        except UnicodeDecodeError:
            continue
    raise AssertionError("surrogateescape decodes everything")


def encode_segment(texts: list[bytes]) -> tuple[Array, Array]:
    """(uint64 ends, uint8 bytes) of a segment."""
    ends = np.cumsum([len(t) for t in texts], dtype=np.uint64)
    return ends, np.frombuffer(b"".join(texts), np.uint8)


class StringIds:
    """Unique ids for a writer. ``count`` ids are given; ``fresh`` are the bytes of strings that no segment holds."""

    def __init__(self, stored: Iterable[str] = ()) -> None:
        self.fresh: list[bytes] = []
        self.count = 0
        self._ids: dict[str, int] = {}
        for self.count, text in enumerate(stored, 1):
            self._ids.setdefault(text, self.count)

    def id_of(self, text: str) -> int:
        """The id of ``text``, a new one for a new string. `ValueError` for text that cannot be stored."""
        unique_id = self._ids.get(text)
        if unique_id is None:
            self.fresh.append(encode(text))
            self.count += 1
            unique_id = self._ids[text] = self.count
        return unique_id

    def forget(self, count: int) -> None:
        """Keep the first ``count`` ids, all of which are stored."""
        self.fresh, self.count = [], count
        self._ids = {text: i for text, i in self._ids.items() if i <= count}
