"""What has been given to a section that is being written, until it is done and goes to the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from ..formats.tb5.constants import ArchType
from ..formats.tb5.layout import Scope
from ..formats.tb5.records import STRUCTS, Struct
from ..model import Array
from . import memory
from .places import REQUIRED, parts_of
from .status import Status, TbrwError
from .structures import CHILDREN, Record

__all__ = ["BytesDraft", "RecordsDraft", "Resolve"]

Resolve = Callable[[int], str | None]
"""The text of a unique id."""


class _Rows:
    """The records of one table in their order, with the texts of their string fields."""

    def __init__(self, name: str) -> None:
        self.struct = STRUCTS[name]
        self.data = bytearray()
        self.texts: list[tuple[str | None, ...]] = []

    def __len__(self) -> int:
        return len(self.texts)

    def array(self, intern: Callable[[str | None], int]) -> Array:
        """The records with the ids of their texts."""
        rows = np.frombuffer(bytearray(self.data), self.struct.dtype)
        for j, name in enumerate(self.struct.strings()):
            rows[name] = [intern(texts[j]) for texts in self.texts]
        return rows


class RecordsDraft:
    """Records of one section. ``where`` names it in messages."""

    def __init__(self, scope: Scope, section: int, where: str, resolve: Resolve) -> None:
        self.scope, self.section, self.where, self._resolve = scope, section, where, resolve
        self.rows = {name: _Rows(name) for name in parts_of(scope, section)}

    def add(self, record: Record, *, instead: bool = False) -> None:
        """Append a record with what its pointers lead to; ``instead`` of what was set before (set_ called again)."""
        name = record.declared.name
        if instead:
            below = _below(name)
            for dropped in (name, *below):
                self.rows[dropped] = _Rows(dropped)
        taken: list[tuple[str, bytes, tuple[str | None, ...]]] = []
        data, own = bytes(record)[: record.declared.size], memory.buffer_of(record)
        self._take(record.declared, data, own, taken, Counter())
        for part, data, texts in taken:
            self.rows[part].data += data
            self.rows[part].texts.append(texts)

    def _take(
        self,
        struct: Struct,
        data: bytes,
        own: range,
        taken: list[tuple[str, bytes, tuple[str | None, ...]]],
        seen: Counter[str],
    ) -> None:
        """Copy one record out of the buffer ``own``: strings become texts, pointers the rows of what they lead to."""
        row = np.frombuffer(data, struct.dtype)[0]
        first = struct.fields[0].name
        if first.endswith("_size") and row[first] != struct.size:
            raise TbrwError(
                Status.INCOMPATIBLE_VERSION, f"{struct.name}.{first} is {row[first]}; it must be {struct.size}"
            )
        texts = tuple(self._text(struct, field, int(row[field])) for field in struct.strings())
        copy = bytearray(data)
        seen[struct.name] += 1
        below: list[tuple[Struct, bytes]] = []
        for field in struct.fields:
            if field.code == "pointer":
                child, found = _follow(struct, field.name, row, own)
                position = len(self.rows[child.name]) + seen[child.name]
                copy[field.offset : field.offset + 8] = position.to_bytes(8, "little")
                below += [(child, found[i : i + child.size]) for i in range(0, len(found), child.size)]
        taken.append((struct.name, bytes(copy), texts))
        for child, found in below:
            self._take(child, found, own, taken, seen)

    def _text(self, struct: Struct, field: str, word: int) -> str | None:
        if word & memory.ID_MARK:
            return self._resolve(word)
        text = memory.text_at(word)
        if text is None and word:
            raise TbrwError(
                Status.INVALID_STRING, f"{struct.name}.{field} is {word:#x}: no string and no id of this file"
            )
        return text

    def check_complete(self) -> None:
        """done_: what the section must hold is there. Raises `TbrwError` (NO_DATA_TO_WRITE)."""
        missing = [name for name in REQUIRED.get((self.scope, self.section), ()) if not self.rows[name]]
        if missing:
            raise TbrwError(Status.NO_DATA_TO_WRITE, f"{self.where} lacks {', '.join(missing)}")

    def tables(self, intern: Callable[[str | None], int]) -> Iterator[tuple[int, Array]]:
        """(part, records) to write. The first part always, so that an empty section exists too."""
        for part, rows in enumerate(self.rows.values()):
            if len(rows) or not part:
                yield part, rows.array(intern)


class BytesDraft:
    """The content of a user-defined section."""

    def __init__(self, where: str) -> None:
        self.where, self.data = where, b""
        self.given = False

    def set(self, data: bytes) -> None:
        """The whole content."""
        self.data, self.given = data, True

    def check_complete(self) -> None:
        """Raises `TbrwError` (NO_DATA_TO_WRITE) where nothing was set."""
        if not self.given:
            raise TbrwError(Status.NO_DATA_TO_WRITE, f"{self.where} was given no data")

    def tables(self, _intern: Callable[[str | None], int]) -> Iterator[tuple[int, Array]]:
        """The only part."""
        yield 0, np.frombuffer(self.data, np.uint8)


def _below(name: str) -> list[str]:
    """The structures that pointers of ``name`` lead to, and theirs."""
    direct = [kind for (owner, _), (_, targets) in CHILDREN.items() if owner == name for _, kind in targets]
    return [*direct, *(k for d in direct for k in _below(d))]


def _follow(struct: Struct, field: str, row: Array, own: range) -> tuple[Struct, bytes]:
    """(structure, bytes) of the entries that a pointer leads to. Raises `TbrwError` where it does not lead to them."""
    counter, targets = CHILDREN[struct.name, field]
    kinds = [STRUCTS[kind] for _, kind in targets]
    if len(kinds) > 1 and int(row["arch_type"]) not in set(ArchType):
        raise TbrwError(Status.UNSUPPORTED_ARCH_TYPE, f"{struct.name}.arch_type is {row['arch_type']}")
    child = kinds[1] if len(kinds) > 1 and row["arch_type"] == ArchType.ITANIUM else kinds[0]
    number, address = int(row[counter]), int(row[field])
    if not number:
        return child, b""
    found = memory.read(address, number * child.size, own)
    if found is None:
        pointer = targets[kinds.index(child)][0]
        raise TbrwError(
            Status.UNEXPECTED_NULL_PTR, f"{struct.name}.{pointer} does not lead to {number} {child.name} ({counter})"
        )
    return child, found
