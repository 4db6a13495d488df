"""A growing perf.data, as written by a recorder that still runs."""

from __future__ import annotations

from pathlib import Path

from lastbranch.formats.perfdata.reader import Reader
from lastbranch.opening import FileSource

_SIZE_AT, _FEATURES_AT = 0x30, 0x48


class GrowingFile:
    """The capture at ``original`` (perf.data), written anew in parts to ``path``: header first, without its features
    and without the size of what follows."""

    def __init__(self, original: str | Path, path: Path) -> None:
        whole = Path(original).read_bytes()
        start, end = Reader(FileSource(str(original))).data
        head = bytearray(whole[:start])
        if start > 16:
            head[_SIZE_AT : _SIZE_AT + 8] = bytes(8)
            head[_FEATURES_AT : _FEATURES_AT + 32] = bytes(32)
        self.path, self.records, self._at = path, whole[start:end], 0
        path.write_bytes(head)

    def add(self, size: int | None = None) -> bool:
        """Append the next ``size`` bytes, all without one; whether there were any."""
        part = self.records[self._at :][:size]
        self._at += len(part)
        self.append(part)
        return bool(part)

    def append(self, data: bytes) -> None:
        with open(self.path, "ab") as file:
            file.write(data)
