"""A store of counts: adds, merges and removes parts."""

from __future__ import annotations

import hashlib
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from ..errors import FormatError, LastbranchError, UnavailableError
from ..model import Stages, check_utf8, no_progress, temporary_folder
from ..opening import captures_at
from .counting import CaptureFile, Labels, capture_file
from .manifest import MANIFEST, Change, Manifest, StoreState
from .objects import Object, open_objects
from .parts import DONE, Part, batch_key, connect, count_batch, merged_key, read_of, reduce_parts
from .reading import Selection, StoreReader
from .schema import TABLES

__all__ = ["AddResult", "Run", "Store", "VerifyResult", "in_turn"]

BATCH_CAPTURES = 256
BATCH_BYTES = 1 << 30
"""Captures that are counted together are so many, or of so many bytes, at most."""
_LEAST_BATCH_BYTES, _BATCHES = 32 << 20, 32
"""Captures are cut into 32 batches, so that many workers have work, but not into smaller ones: parts have a cost."""
KEPT_HOURS = 24.0
"""Objects that are of no use any more are kept so long, for those who are reading or writing them."""

_ALL, _UNSAID = Selection(), Labels()

Run = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Calls a function with each of many arguments, as many at once as it likes; the results, in their order. Functions and
arguments can be pickled, and a call can be repeated."""


def in_turn(function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[Any]:
    """One after the other, in this process: the simplest `Run`."""
    return map(function, arguments)


@dataclass(slots=True)
class AddResult:
    """The result of adding captures: how many were counted, how many were in the store before (or given twice), and
    which were refused or are damaged, with the reason of each by path. ``notes`` are for the user."""

    captures: int = 0
    known: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class VerifyResult:
    """The result of verifying a store: the number of ``parts``, the reasons for ``damaged`` parts by name, and
    ``foreign`` objects, which the manifest does not list."""

    parts: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)


class Store:
    """The store at ``url``: a folder, or ``s3://BUCKET/FOLDER``, ``gs://``, ``az://``. ``run`` does its work, and
    ``stages`` begins each stage that takes long."""

    def __init__(self, url: str, run: Run = in_turn, stages: Stages = no_progress) -> None:
        self.url = url
        self._run, self._stages, self._objects = run, stages, open_objects(url)
        self._manifest = Manifest(self._objects)

    def state(self) -> StoreState:
        """The current state by the manifest. Raises `UnavailableError` if there is no store, and `FormatError` for a
        store that is damaged or of a newer version."""
        return self._manifest.read()

    @contextmanager
    def reading(self, selection: Selection = _ALL) -> Iterator[StoreReader]:
        """Read ``selection`` of the store as it is now; remote parts are fetched when they are needed."""
        parts = [part for _, part in sorted(self.state().parts.items()) if selection.has_day(part.day)]
        with temporary_folder("lastbranch-store") as folder:
            files = (self._objects.path(part.name, folder.path) for part in parts)
            with connect(folder.path, files) as database:
                yield StoreReader(self._objects, parts, selection, database, folder.path)

    def _results(
        self, stage: str, function: Callable[[Any], Any], tasks: Sequence[Any], sizes: Sequence[int]
    ) -> Iterator[Any]:
        """The result of ``function`` for each of the ``tasks``, whose ``sizes`` say how far the stage is."""
        done, whole = 0, sum(sizes)
        with self._stages(stage) as progress:
            for size, result in zip(sizes, self._run(function, tasks), strict=True):
                done += size
                if progress is not None:
                    progress(done, whole)
                yield result

    # -- adding

    def add(self, paths: Sequence[str], labels: Labels = _UNSAID) -> AddResult:
        """Count the captures at ``paths`` and add them, all at once: a store has all of them or none.

        Paths can be folders, of which files of other kinds are left out, and patterns. A capture is known by its
        contents and counts once. Unreadable captures are listed in the store with the reason, and do not hinder others.
        After a crash the same call continues with the finished work.
        """
        for name in filter(None, (labels.service, labels.version, labels.host)):
            check_utf8(name, "a name")
        there = captures_at(paths)
        self._manifest.create()
        added, captures = AddResult(known=len(there.again)), dict[str, CaptureFile]()
        files = [(path, labels, path not in there.in_folders) for path in there.paths]
        tasks = [files[at : at + BATCH_CAPTURES] for at in range(0, len(files), BATCH_CAPTURES)]
        digested = self._results("reading", _digest_files, tasks, [*map(len, tasks)])
        for path, found in zip(there.paths, chain.from_iterable(digested), strict=True):
            if isinstance(found, str):
                added.refused[path] = found
            elif found.digest in captures:
                added.known += 1
            else:
                captures[found.digest] = found
        while True:
            seen = self.state()
            known = self._known_digests(seen.parts.values(), captures)
            batches = list(_batches([one for digest, one in captures.items() if digest not in known]))
            counting = [(self.url, batch) for batch in batches]
            sizes = [sum(capture.size for capture in batch) for batch in batches]
            done = list(self._results("counting", _count_task, counting, sizes))
            parts = {part.name: part for made in done for part in made}
            try:
                self._manifest.commit(partial(self._make_addition, parts, seen, captures.keys() - known))
            except _OvertakenError:
                continue
            self._objects.delete(f"{DONE}/{batch_key(batch)}.json" for batch in batches)
            added.known += len(known)
            new = {digest: one.path for digest, one in captures.items() if digest not in known}
            there.others += self._tell(list(parts.values()), new, added)
            added.notes = there.notes
            return added

    def _make_addition(
        self, parts: dict[str, Part], seen: StoreState, new: Iterable[str], state: StoreState
    ) -> Change | None:
        """Raises `_OvertakenError` where another writer has added some of the same captures since they were
        ``seen``."""
        missing = [part for name, part in parts.items() if name not in state.parts]
        if not missing:
            return None
        others = [part for name, part in state.parts.items() if name not in seen.parts and name not in parts]
        if self._known_digests(others, new):
            raise _OvertakenError
        return Change(add=tuple(missing))

    def _known_digests(self, parts: Iterable[Part], digests: Iterable[str]) -> set[str]:
        """Which of ``digests`` are of captures that these parts count."""
        rows = self._of_captures(parts, "SELECT DISTINCT digest FROM {} WHERE NOT refused")
        return {digest for (digest,) in rows} & set(digests)

    def adopt(self, source: str, parts: Sequence[Part], *, late: bool = False) -> bool:
        """Add ``parts``, which `count_batch` or `reduce_parts` have written in the folder ``source``, all at once.

        False: the store has these parts already, or had them before a merge or their expiry. So the call can be
        repeated until it returns, whatever went wrong before. ``late``: the first try was days ago, so the manifest may
        have forgotten parts that were merged since, and captures are compared. Raises `UnavailableError` and `OSError`
        where the store cannot be written, and `FormatError` where a part in ``source`` is not as it was written.
        """
        self._manifest.create()
        days = {part.day for part in parts}
        digests: set[str] = set()
        if late:
            rows = Store(source)._of_captures(parts, "SELECT DISTINCT digest FROM {}")
            digests = {digest for (digest,) in rows}
        adopted = False

        def change(state: StoreState) -> Change | None:
            nonlocal adopted
            there = any(part.name in state.parts or part.name in state.gone for part in parts)
            same = (part for part in state.parts.values() if part.day in days)
            adopted = not (there or (digests and self._known_digests(same, digests)))
            return Change(add=tuple(parts)) if adopted else None

        if change(self.state()) is None:
            return False
        local = open_objects(source)
        for part in parts:
            data = local.get(part.name)
            if data is None or hashlib.sha256(data).hexdigest() != part.sha256:
                raise FormatError("not as it was written" if data else "missing", file=f"{source}/{part.name}")
            self._objects.put(part.name, data)
        self._manifest.commit(change)
        return adopted

    def _tell(self, parts: Sequence[Part], paths: dict[str, str], added: AddResult) -> list[str]:
        """Say what became of the captures with these digests; the paths of those that are of no capture format."""
        others = dict(paths)
        said = self._of_captures(parts, "SELECT DISTINCT digest, refused, damage, notes FROM {} ORDER BY ALL")
        for digest, refused, damage, notes in said:
            others.pop(digest, None)
            if refused:
                added.refused[paths[digest]] = notes
            elif damage:
                added.damaged[paths[digest]] = notes
        added.captures = len(paths) - len(others) - sum(path in added.refused for path in paths.values())
        return list(others.values())

    def _of_captures(self, parts: Iterable[Part], sql: str) -> list[tuple[Any, ...]]:
        names = [part.name for part in parts if part.table == "captures"]
        with temporary_folder("lastbranch-store") as folder:
            paths = self._objects.paths(names, folder.path)
            with connect(folder.path, paths, self.url) as database:
                return database.execute(sql.format(read_of(TABLES["captures"], paths))).fetchall()

    # -- merging and removing

    def compact(self, kept_hours: float = KEPT_HOURS) -> int:
        """Merge the parts of each day and bucket, and remove objects that have been useless for so many hours. Return
        the number of merged parts."""
        groups: dict[str, list[Part]] = {}
        for part in self.state().parts.values():
            groups.setdefault(part.group, []).append(part)
        several = [parts for _, parts in sorted(groups.items()) if len(parts) > 1]
        merging = [(self.url, parts) for parts in several]
        merged = list(
            self._results("merging", _reduce_task, merging, [sum(p.bytes for p in parts) for parts in several])
        )
        taken = 0

        def change(state: StoreState) -> Change | None:
            nonlocal taken
            made = [  # what another writer has merged meanwhile stays merged
                (part, [one.name for one in parts])
                for part, parts in zip(merged, several, strict=True)
                if all(one.name in state.parts for one in parts)
            ]
            taken = sum(len(names) for _, names in made)
            if not made:
                return None
            return Change(tuple(part for part, _ in made), tuple(name for _, names in made for name in names))

        self._manifest.commit(change)
        self._objects.delete(f"{DONE}/{merged_key(parts)}.json" for parts in several)
        self.sweep(kept_hours)
        return taken

    def expire(self, before: str, kept_hours: float = KEPT_HOURS) -> int:
        """Remove captures that were recorded before the day ``before`` (``YYYY-MM-DD``, UTC), and sweep. The number of
        parts."""
        taken = 0

        def change(state: StoreState) -> Change | None:
            nonlocal taken
            names = tuple(name for name, part in state.parts.items() if part.day < before)
            taken = len(names)
            return Change(remove=names) if names else None

        self._manifest.commit(change)
        self.sweep(kept_hours)
        return taken

    def sweep(self, kept_hours: float = KEPT_HOURS) -> int:
        """Delete objects that have been of no use for so many hours: of dead writers, merged parts, expired ones.
        Objects that no lastbranch has named stay. The number of them."""
        before = time.time() - kept_hours * 3600
        done = [one.name for one in self._objects.below(DONE) if one.changed <= before and _OURS.fullmatch(one.name)]
        self._objects.delete(done)  # first of all: they promise that parts are there
        state = self.state()
        old = [
            one.name
            for one in self._unlisted_objects(state)
            if one.changed <= before and state.gone.get(one.name, 0) <= before and _OURS.fullmatch(one.name)
        ]
        self._objects.delete(old)
        return len(done) + len(old) + self._manifest.sweep(before)

    def _unlisted_objects(self, state: StoreState) -> list[Object]:
        return [one for table in TABLES for one in self._objects.below(table) if one.name not in state.parts]

    def verify(self) -> VerifyResult:
        """Read the whole store: is each part there, and as it was written?"""
        state, found = self.state(), VerifyResult()
        parts = [part for _, part in sorted(state.parts.items())]
        checking = [(self.url, part) for part in parts]
        reasons = self._results("checking", _check_task, checking, [part.bytes for part in parts])
        found.damaged = {part.name: reason for part, reason in zip(parts, reasons, strict=True) if reason}
        found.parts = len(parts)
        found.foreign = [one.name for one in self._unlisted_objects(state) if one.name not in state.gone]
        return found


class _OvertakenError(Exception):
    """Another writer has added some of the same captures."""


_OURS = re.compile(
    r"(\w+/day=[0-9-]+/(bucket=[0-9]{2}/)?[0-9a-f]{32}\.parquet|done/[0-9a-f]{32}\.json)(\.part-[0-9a-f]{16})?"
)
"""Names of objects that lastbranch has made, and may delete."""


def _batches(captures: Sequence[CaptureFile]) -> Iterator[list[CaptureFile]]:
    """Captures that are counted together; the same captures are always cut alike, whoever has how many workers."""
    batch: list[CaptureFile] = []
    size = 0
    even = -(-sum(capture.size for capture in captures) // _BATCHES)
    most = min(max(even, _LEAST_BATCH_BYTES), BATCH_BYTES)
    for capture in captures:
        if batch and (len(batch) == BATCH_CAPTURES or size + capture.size > most):
            yield batch
            batch, size = [], 0
        batch.append(capture)
        size += capture.size
    if batch:
        yield batch


# -- tasks: pure functions of their arguments


def _digest_files(files: Sequence[tuple[str, Labels, bool]]) -> list[CaptureFile | str]:
    """The file of each capture, or why it cannot be read."""
    found: list[CaptureFile | str] = []
    for file in files:
        try:
            found.append(capture_file(*file))
        except LastbranchError as error:
            found.append(str(error))
        except OSError as error:
            found.append(error.strerror or str(error))
    return found


def _count_task(task: tuple[str, Sequence[CaptureFile]]) -> list[Part]:
    url, captures = task
    if not open_objects(url).below(MANIFEST):  # parts that are written elsewhere would be missed too late
        hint = "all workers write to one store: a bucket, or a folder that all hosts mount under this path"
        raise UnavailableError(f"{url}: there is no store where this worker looks ({platform.node()})", hint=hint)
    return count_batch(url, captures)


def _reduce_task(task: tuple[str, Sequence[Part]]) -> Part:
    return reduce_parts(*task)


def _check_task(task: tuple[str, Part]) -> str:
    """The fault of a part; empty if the part is as it was written."""
    url, part = task
    data = open_objects(url).get(part.name)
    if data is None:
        return "missing"
    if len(data) != part.bytes:
        return f"{len(data)} bytes instead of {part.bytes}"
    return "" if hashlib.sha256(data).hexdigest() == part.sha256 else "its bytes are not those that were written"
