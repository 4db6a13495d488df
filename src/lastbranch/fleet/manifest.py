"""The manifest: which parts are of a store.

A commit is an object ``manifest/NUMBER.json`` that says which parts come and which go; the writer that creates the next
number first has made the commit, and other writers begin anew with the new state. Files that the manifest does not list
are not part of the store, even inside its folder. Now and then a commit lists all parts, so that no earlier commit need
be read.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, NamedTuple, cast

from ..errors import FormatError, UnavailableError
from .objects import MOST_JSON, Objects
from .parts import Part, is_name, is_number
from .schema import VERSION

__all__ = ["MANIFEST", "REMEMBERED", "Change", "Manifest", "StoreState"]

_FORMAT = "lastbranch fleet store"
MANIFEST = "manifest"
"""Folder of the commits: a store has some."""
_COMMIT = re.compile(rf"{MANIFEST}/[0-9]{{10}}\.json")
_WHOLE = 32
"""Each so many commits one lists all parts."""
_READS, _COMMITS = 20, 1000
"""Attempts, with other writers at work."""
REMEMBERED = 7 * 24 * 3600.0
"""Seconds for which a list of all parts names those that went, too."""


@dataclass(slots=True)
class StoreState:
    """The state after the commits up to ``number``: the parts of the store by name, and the names of removed parts,
    each with the time of removal in seconds since 1970."""

    number: int = -1
    parts: dict[str, Part] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """The changes that a commit makes."""

    add: tuple[Part, ...] = ()
    remove: tuple[str, ...] = ()


class Manifest:
    """Reads and writes the commits of a store."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def create(self) -> None:
        """Make an empty store, unless there is one."""
        self._objects.create(_name(0), _serialise(0, StoreState(), Change(), time.time()))

    def read(self) -> StoreState:
        """The state now. Raises `UnavailableError` where there is no store, and `FormatError` for one that is damaged
        or of a newer version."""
        for _ in range(_READS):
            names = [one.name for one in self._objects.below(MANIFEST) if _COMMIT.fullmatch(one.name)]
            if not names:
                hint = "`lastbranch fleet add STORE FILE...` makes one"
                raise UnavailableError(f"{self._objects.url} is not a store of counts", hint=hint)
            state = self._read(sorted(names, reverse=True))
            if state is not None:
                return state
        raise UnavailableError(f"{self._objects.url}: its manifest changes faster than it can be read")

    def _read(self, newest_first: list[str]) -> StoreState | None:
        """``None`` where a commit went meanwhile, because a later one lists all parts."""
        commits = []
        for name in newest_first:
            data = self._objects.get(name, MOST_JSON)
            if data is None:
                return None
            commits.append(_read_commit(f"{self._objects.url}/{name}", data))
            if commits[-1].whole:
                break
        state = StoreState()
        for commit in reversed(commits):
            if commit.whole:
                state = StoreState(gone=dict(commit.gone))
            elif commit.number != state.number + 1:
                return None
            state.number = commit.number
            for name in commit.remove:
                if state.parts.pop(name, None) is not None:
                    state.gone[name] = commit.time
            for part in commit.add:
                state.parts[part.name] = part
                state.gone.pop(part.name, None)
        return state

    def commit(self, make: Callable[[StoreState], Change | None]) -> StoreState:
        """Commit what ``make`` says of the state; it is asked again where another writer was faster. ``None``: there is
        nothing to do."""
        for _ in range(_COMMITS):
            state = self.read()
            change = make(state)
            if change is None:
                return state
            number = state.number + 1
            if self._objects.create(_name(number), _serialise(number, state, change, time.time())):
                return self.read()
        raise UnavailableError(f"{self._objects.url}: other writers were always faster")

    def sweep(self, before: float) -> int:
        """Delete commits that were written before that time (seconds since 1970) and are not needed any more."""
        found = [one for one in self._objects.below(MANIFEST) if _COMMIT.fullmatch(one.name)]
        needed = False
        old = []
        for one in sorted(found, reverse=True):
            if needed and one.changed < before:
                old.append(one.name)
            data = b"" if needed else self._objects.get(one.name, MOST_JSON)
            needed = needed or bool(data and _read_commit(one.name, data).whole)
        self._objects.delete(old)
        return len(old)


def _name(number: int) -> str:
    return f"{MANIFEST}/{number:010d}.json"


def _serialise(number: int, state: StoreState, change: Change, now: float) -> bytes:
    whole = number % _WHOLE == 0
    add: Iterable[Part] = change.add
    remove = [name for name in change.remove if name in state.parts]
    gone: dict[str, float] = {}
    if whole:
        add = [part for name, part in state.parts.items() if name not in change.remove] + list(change.add)
        gone = {name: at for name, at in state.gone.items() if at > now - REMEMBERED} | dict.fromkeys(remove, now)
    commit = {
        "format": _FORMAT,
        "version": VERSION,
        "number": number,
        "time": now,
        "whole": whole,
        "add": [asdict(part) for part in sorted(add, key=lambda part: part.name)],
        "remove": sorted(remove),
        "gone": gone,
    }
    return json.dumps(commit, indent=1).encode()


class _Commit(NamedTuple):
    """A commit as it was read."""

    number: int
    time: float
    whole: bool
    add: list[Part]
    remove: list[str]
    gone: dict[str, float]


def _read_commit(name: str, data: bytes) -> _Commit:
    """A commit, checked in full: anyone who can write to the store may have written the file. Raises `FormatError`."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"damaged: {type(error).__name__}: {error}", file=name) from None
    commit: dict[str, Any] = found if isinstance(found, dict) else {}
    if commit.get("format") != _FORMAT:
        raise FormatError("not of a store of counts", file=name, field="format", value=commit.get("format"))
    version = commit.get("version")
    if isinstance(version, int) and version > VERSION:
        hint = f"this lastbranch knows stores up to version {VERSION}: install a newer one"
        raise FormatError("the store is of a newer version", file=name, field="version", value=version, hint=hint)
    for key, is_right in _FIELDS.items():
        if not is_right(value := commit.get(key)):
            raise FormatError("damaged: a commit cannot have this", file=name, field=key, value=value)
    if not name.endswith(_name(commit["number"])):
        raise FormatError("damaged: this is another commit", file=name, field="number", value=commit["number"])
    parts = [Part.read(part, name) for part in commit["add"]]
    return _Commit(commit["number"], commit["time"], commit["whole"], parts, commit["remove"], commit["gone"])


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and isfinite(cast("float", value))


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "version": is_number,
    "number": is_number,
    "time": _is_time,
    "whole": lambda value: isinstance(value, bool),
    "add": lambda value: isinstance(value, list),
    "remove": lambda value: isinstance(value, list) and all(map(is_name, value)),
    "gone": lambda value: isinstance(value, dict) and all(map(is_name, value)) and all(map(_is_time, value.values())),
}
"""The checks of a commit's fields."""
