"""Counts that an agent has not shipped yet: a folder that always stays below a number of bytes.

The folder has parts in the form of a store's, and a file for each recording (`SpoolEntry`) that lists its parts. Parts
that no such file lists are leftovers of a killed agent: they are removed when the spool is opened.

Recordings are shipped in batches. `seal` merges some recordings to final parts, and a batch is kept unchanged until the
store has it: only then can a killed agent tell, after its restart, whether the store has the batch already.

If there is no room, the recording that stands for the least time is dropped, the oldest of several, and its time passes
to the next recording of its service. So a spool that overflows for a week gets thinner evenly, and the sums of what its
recordings stand for are the same as if nothing had gone. The same holds if the disk has less room than the spool may
take: a file of a few kilobytes is in reserve for the bookkeeping of that.

One process uses a spool at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, NamedTuple

from ..errors import FormatError
from ..model import FULL, writing_file
from .objects import Folder
from .parts import DONE, Amendment, Part, reduce_parts
from .schema import TABLES

__all__ = ["Batch", "SpoolEntry", "Merge", "RecordedTurn", "Spool", "merge_recordings"]

_ENTRIES, _BATCH, _OWED = "entries", "batch.json", "owed.json"
_BATCH_SHARE = 4
"""A batch has a fourth of the spool, at most: recordings have the rest."""
_RESERVE, _RESERVED, _RESERVED_SHARE = "reserve", 1 << 15, 64
_FILE, _LISTED = 512, 256
"""Bytes of the file of a recording, and more for each part that it lists: no fewer than it takes."""


class RecordedTurn(NamedTuple):
    """A recording: ``recorded`` ns of a service, which stand for ``stands_for`` ns of its run. ``slot`` is what
    `Turn.key` says of its turn."""

    service: str
    digest: str
    slot: int
    recorded: int
    stands_for: int


@dataclass(slots=True)
class SpoolEntry:
    """A recording in the spool; for its first fields see `RecordedTurn`."""

    number: int
    service: str
    digest: str
    slot: int
    recorded: int
    stands_for: int
    parts: list[Part]
    dropped: int = 0
    """Recordings that are gone, for whose time this one stands, too."""
    heir_of: int = -1
    """The one that went last."""

    @property
    def bytes(self) -> int:
        """In the spool, with its own file."""
        return sum(_LISTED + part.bytes for part in self.parts) + _FILE


@dataclass(slots=True)
class Batch:
    """Recordings that are shipped together: ``parts`` are what the store gets, ``since`` when it was made (seconds
    since 1970)."""

    parts: list[Part]
    since: float
    numbers: list[int]
    slots: dict[str, int]
    """The slot of the newest recording of each service."""
    recorded: int
    stands_for: int

    @property
    def bytes(self) -> int:
        return sum(_LISTED + part.bytes for part in self.parts) + _FILE


@dataclass(slots=True)
class _OwedTime:
    """The time of dropped recordings, while the spool has no other recording of their service to pass the time to."""

    stands_for: int = 0
    dropped: int = 0
    heir_of: int = -1


Merge = Callable[[str, Sequence[SpoolEntry]], list[Part]]
"""Writes the final parts of some recordings into the folder of the spool."""


def merge_recordings(folder: str, entries: Sequence[SpoolEntry]) -> list[Part]:
    """The parts of the recordings, merged by `reduce_parts`: the captures say what each stands for now."""
    amendments = {one.digest: Amendment(one.stands_for, _note(one)) for one in entries}
    groups: dict[str, list[Part]] = {}
    for part in (part for entry in entries for part in entry.parts):
        groups.setdefault(part.group, []).append(part)
    return [
        reduce_parts(folder, parts, amendments if parts[0].table == "captures" else None)
        for _, parts in sorted(groups.items())
    ]


def _note(entry: SpoolEntry) -> str:
    if not entry.dropped:
        return ""
    what = "a recording" if entry.dropped == 1 else f"{entry.dropped} recordings"
    return f"stands for {what} that the agent dropped, too: its spool was full"


@dataclass(slots=True)
class Spool:
    """The spool in ``folder``, of ``limit`` bytes."""

    folder: str
    limit: int
    merge: Merge = merge_recordings
    entries: dict[int, SpoolEntry] = field(default_factory=dict)
    """By number: in the order of time."""
    batch: Batch | None = None
    notes: list[str] = field(default_factory=list)
    """Notes about damaged files, for the user."""
    _owed: dict[str, _OwedTime] = field(default_factory=dict)
    _next: int = 0

    def __post_init__(self) -> None:
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._path(_ENTRIES))):
                found = self._read(f"{_ENTRIES}/{name}", SpoolEntry) if name.endswith(".json") else None
                if found is not None:
                    self.entries[found.number] = found
        self.batch = self._read(_BATCH, Batch)
        self._owed = self._read(_OWED, lambda **found: {name: _OwedTime(**one) for name, one in found.items()}) or {}
        self._recover()
        self._make_room(0)  # the limit may be lower than it was
        self._reserve()

    def _recover(self) -> None:
        """End what an agent was doing that was killed."""
        taken = {one.heir_of for one in self.entries.values()}
        heirs = taken | {one.heir_of for one in self._owed.values()}
        in_batch = set(self.batch.numbers) if self.batch else set()
        for number in heirs | in_batch:
            self._forget(number)
        self._owed = {name: one for name, one in self._owed.items() if one.heir_of not in taken}
        self._next = max([self._next, *(n + 1 for n in self.entries), *(n + 1 for n in heirs | in_batch)])
        self._remove_strangers()
        with suppress(FileNotFoundError):
            names = {f"{number:010d}.json" for number in self.entries}
            for name in os.listdir(self._path(_ENTRIES)):
                if name not in names:
                    os.unlink(self._path(f"{_ENTRIES}/{name}"))

    @property
    def _known_names(self) -> set[str]:
        """The names of all parts of recordings and of the batch."""
        known = {part.name for one in self.entries.values() for part in one.parts}
        return known | ({part.name for part in self.batch.parts} if self.batch else set())

    def _remove_strangers(self) -> None:
        """Remove parts that nothing lists."""
        known, objects = self._known_names, self._objects
        for table in (*TABLES, DONE):
            objects.delete([one.name for one in objects.below(table) if one.name not in known])

    # -- files

    @property
    def _objects(self) -> Folder:
        return Folder(self.folder)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, *name.split("/"))

    def _read(self, name: str, kind: Any) -> Any:
        """A file of ours; ``None`` where there is none, or what is there cannot be used."""
        data = self._objects.get(name)
        if data is None:
            return None
        try:
            found = json.loads(data)
            if "parts" in found:
                found["parts"] = [Part.read(part, name) for part in found["parts"]]
            return kind(**found)
        except (ValueError, TypeError, AttributeError, FormatError):  # after a loss of power, perhaps
            self.notes.append(f"{self._path(name)}: damaged, and left out")
            return None

    def _write(self, name: str, contents: dict[str, Any]) -> None:
        path, data = self._path(name), json.dumps(contents, separators=(",", ":")).encode()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with writing_file(path) as out:
                out.write(data)
        except OSError as error:
            if error.errno not in FULL or not self._spend_reserve():
                raise
            with writing_file(path) as out:
                out.write(data)

    def _reserve(self) -> None:
        """Keep some room on the disk, if there is any."""
        path = self._path(_RESERVE)
        with suppress(OSError):
            if os.path.isdir(self.folder) and not os.path.exists(path):
                with writing_file(path) as out:
                    out.write(bytes(self._reserved_bytes))

    @property
    def _reserved_bytes(self) -> int:
        return min(_RESERVED, self.limit // _RESERVED_SHARE)

    def _spend_reserve(self) -> bool:
        """Give the room back that was kept; whether there was any."""
        with suppress(OSError):
            os.unlink(self._path(_RESERVE))
            return True
        return False

    def _forget(self, number: int) -> None:
        """Let a recording go, first its file and then its parts."""
        entry = self.entries.pop(number, None)
        with suppress(FileNotFoundError):
            os.unlink(self._path(f"{_ENTRIES}/{number:010d}.json"))
        if entry is not None:
            final = {part.name for part in self.batch.parts} if self.batch else set[str]()
            self._objects.delete(part.name for part in entry.parts if part.name not in final)

    def _save(self, entry: SpoolEntry) -> None:
        self._write(f"{_ENTRIES}/{entry.number:010d}.json", asdict(entry))

    # -- what comes in

    @property
    def bytes(self) -> int:
        """The bytes of all recordings and of the batch."""
        return sum(one.bytes for one in self.entries.values()) + (self.batch.bytes if self.batch else 0)

    def slots(self) -> dict[str, int]:
        """The slot of the newest recording of each service that is here."""
        return (self.batch.slots if self.batch else {}) | {one.service: one.slot for one in self.entries.values()}

    def add(self, source: str, parts: Sequence[Part], new: RecordedTurn) -> list[SpoolEntry]:
        """Take a recording, whose parts are in the folder ``source``. Return the recordings that were dropped to make
        room; a recording that is too large by itself is dropped at once."""
        entry = SpoolEntry(self._next, *new, list(parts))
        self._next += 1
        if entry.bytes > self._most:
            self._owe(entry)
            return [entry]
        gone = self._make_room(entry.bytes)
        while not self._take(entry, source):
            if not self.entries:  # no room even for this one alone
                self._owe(entry)
                gone.append(entry)
                break
            gone.append(self._drop_least())
        self._reserve()
        return gone

    def _take(self, new: SpoolEntry, source: str) -> bool:
        """Take a recording into the folder, with what is owed to it; whether the disk had room."""
        owed = self._owed.get(new.service, _OwedTime())
        entry = replace(new, stands_for=new.stands_for + owed.stands_for, dropped=owed.dropped, heir_of=owed.heir_of)
        there, here = Folder(source), self._objects
        try:
            for part in entry.parts:
                here.put(part.name, there.get(part.name) or b"")
            self._save(entry)
        except OSError as error:
            if error.errno not in FULL:
                raise
            known = self._known_names
            here.delete([part.name for part in entry.parts if part.name not in known])
            return False
        self.entries[entry.number] = entry
        if self._owed.pop(entry.service, None) is not None:
            self._save_owed()
        return True

    @property
    def _most(self) -> int:
        """Bytes of a batch, and so of a recording."""
        return self.limit // _BATCH_SHARE

    def _make_room(self, size: int) -> list[SpoolEntry]:
        """Drop recordings until there is room for ``size`` bytes more, beside a batch; return the dropped
        recordings."""
        here, gone = sum(one.bytes for one in self.entries.values()), list[SpoolEntry]()
        while self.entries and here + size > self.limit - self._most - self._reserved_bytes:
            gone.append(self._drop_least())
            here -= gone[-1].bytes
        return gone

    def _drop_least(self) -> SpoolEntry:
        """Drop the recording that stands for the least time."""
        least = min(self.entries.values(), key=lambda one: (one.stands_for, one.number))
        later = (n for n, one in self.entries.items() if n > least.number and one.service == least.service)
        heir = min(later, default=None)
        if heir is None:
            self._owe(least)
        else:
            _inherit(self.entries[heir], least)
            self._save(self.entries[heir])
        self._forget(least.number)
        return least

    def _owe(self, entry: SpoolEntry) -> None:
        """Pass on what a recording stands for to the next one of its service, which is to come."""
        _inherit(self._owed.setdefault(entry.service, _OwedTime()), entry)
        self._save_owed()

    def _save_owed(self) -> None:
        self._write(_OWED, {name: asdict(one) for name, one in self._owed.items()})

    # -- what goes out

    def seal(self, now: float) -> Batch | None:
        """The batch that is to be shipped: the one that was made before, or else a new one of the oldest recordings.
        ``None``: there is nothing to ship."""
        if self.batch is not None:
            return self.batch
        chosen, size = list[SpoolEntry](), 0
        for entry in list(self.entries.values()):
            if not self.is_whole(entry):
                self.notes.append(f"a recording of {entry.service}: its parts are damaged, and it is left out")
                self._forget(entry.number)
            elif size + entry.bytes > self._most:
                break
            else:
                chosen.append(entry)
                size += entry.bytes
        if not chosen:
            return None
        parts = self._merge_entries(chosen)
        slots = {one.service: one.slot for one in chosen}
        recorded, stands_for = sum(one.recorded for one in chosen), sum(one.stands_for for one in chosen)
        batch = Batch(parts, now, [one.number for one in chosen], slots, recorded, stands_for)
        self._write(_BATCH, asdict(batch))
        self.batch = batch
        for entry in chosen:
            self._forget(entry.number)
        self._objects.delete(one.name for one in self._objects.below(DONE))
        self._reserve()
        return batch

    def _merge_entries(self, chosen: list[SpoolEntry]) -> list[Part]:
        """The final parts of ``chosen``, or of the first of these: as many as the disk has room for. Raises `OSError`
        if the disk has no room for the parts of a single recording."""
        while True:
            try:
                return self.merge(self.folder, chosen)
            except OSError as error:
                if error.errno not in FULL or (len(chosen) == 1 and not self._spend_reserve()):
                    raise
                self._remove_strangers()
                del chosen[max(1, len(chosen) // 2) :]

    def is_whole(self, one: SpoolEntry | Batch) -> bool:
        """Whether all parts are there, as they were written."""
        there = ((part, self._objects.get(part.name)) for part in one.parts)
        return all(data is not None and sha256(data).hexdigest() == part.sha256 for part, data in there)

    def shipped(self) -> None:
        """Remove the batch, which the store has, or which is damaged."""
        batch, self.batch = self.batch, None
        with suppress(FileNotFoundError):
            os.unlink(self._path(_BATCH))
        if batch is not None:
            self._objects.delete(part.name for part in batch.parts)


def _inherit(heir: SpoolEntry | _OwedTime, gone: SpoolEntry) -> None:
    """Have ``heir`` stand for what ``gone`` stood for."""
    heir.stands_for += gone.stands_for
    heir.dropped += 1 + gone.dropped
    heir.heir_of = gone.number
