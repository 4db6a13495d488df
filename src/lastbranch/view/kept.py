"""Answers about large captures, kept in the user's cache: a capture that is opened again is not counted again.

An answer is kept as the bytes that the page gets (`wire`). Its key has the question, the digest of the capture and the
user's options; beside the answer lies the state of all files that it depends on: binaries, debug files, source files,
and the code of this package. If any of these files differs, or the kept file is damaged, the answer is counted anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..model import Limits, default_cache
from ..symbols import Cache, CacheRefused, file_state, open_cache
from ..version import __version__
from . import wire
from .loaded import Loaded, Parameters
from .partial import COUNTED, is_large

__all__ = ["KIND", "RESULTS", "KeptAnswers", "kept_answers"]

RESULTS = "results"
"""The folder of the user's cache."""
KIND = "answer"
"""The end of the names of files with answers."""
_KEPT = COUNTED | {"timeline", "time"}
_SETTLED = 2_000_000_000
"""ns: a file that was changed later than that ago can be changed again without another time stamp."""


def kept_answers(loaded: Loaded, say: Callable[[str], None]) -> KeptAnswers | None:
    """The kept answers of ``loaded``; ``None`` if no answers are kept: for small captures, several at once, and
    captures without a file of their own. ``say`` gets sentences for the user."""
    single = len(loaded.paths) == 1 and loaded.before is None and os.path.isfile(loaded.paths[0])
    if not (single and is_large(loaded.profile)):
        return None
    try:
        found = open_cache(default_cache(RESULTS), "results")
    except CacheRefused as refusal:
        say(str(refusal))
        return None
    return KeptAnswers(loaded, found, say) if found else None


class KeptAnswers:
    """The kept answers about one capture."""

    def __init__(self, loaded: Loaded, folder: Cache, say: Callable[[str], None]) -> None:
        self._loaded, self._cache, self._say = loaded, folder, say
        self._said, self._digests = set[str](), dict[tuple[int, ...], str]()
        self._options = [
            repr(loaded.reading),
            repr(replace(loaded.symbols, cache=None)),
            list(loaded.source_roots),
            loaded.symfs,
            list(loaded.folders),
            repr(Limits.current()),
            repr([module.running for module in loaded.profile.modules if module.running]),
        ]

    def may_have(self, question: str, parameters: Parameters) -> bool:
        """Whether something is kept for the question, which may turn out to be of no use. Quick."""
        key = self._key(question, parameters, self._digest(count=False))
        return key is not None and os.path.exists(self._cache.path(key, KIND))

    def get(self, question: str, parameters: Parameters) -> bytes | None:
        """The kept answer; ``None`` if there is none, or if the kept answer does not hold any more."""
        key = self._key(question, parameters, self._digest(count=self._cache.remembers(self._size())))
        if key is None or not os.path.exists(path := self._cache.path(key, KIND)):
            return None
        found = self._cache.read(key, KIND, lambda columns: (bytes(columns["facts"]), bytes(columns["answer"])))
        why = "it is damaged"
        if found is not None and found[1].startswith(wire.MAGIC):
            why = self._why_not(json.loads(found[0]))
        if found is not None and not why:
            return found[1]
        if why not in self._said:
            self._say(f"a kept result is not used: {why} ({path})")
            self._said.add(why)
        return None

    def keep(self, question: str, parameters: Parameters, answer: bytes) -> None:
        """Keep an answer. Reads the whole capture once, for its digest."""
        facts = self._facts()
        if question not in _KEPT or facts is None or self._loaded.profile.damage:
            return
        key = self._key(question, parameters, self._digest(count=True))
        if key is not None:
            columns = {"facts": json.dumps(facts).encode(), "answer": answer}
            self._cache.write(key, KIND, {name: np.frombuffer(data, np.uint8) for name, data in columns.items()})
            self._cache.remember(self._size())

    def _key(self, question: str, parameters: Parameters, digest: str | None) -> list[Any] | None:
        if digest is None or question not in _KEPT:
            return None
        path = os.path.basename(self._loaded.paths[0])
        return [KIND, path, question, sorted(parameters.items()), digest, self._options]

    def _facts(self) -> dict[str, Any] | None:
        """The facts that answers depend on beside their key; ``None`` if not known."""
        names = self._loaded.symbolizer.used()
        if names is None:
            return None
        return {"code": _code(), "binaries": self._binaries(), "names": names, "sources": self._loaded.sources.used()}

    def _why_not(self, facts: dict[str, Any]) -> str:
        """Why an answer with these facts does not hold; empty where it does."""
        if facts.get("code") != _code():
            return "another version of lastbranch has counted it"
        loaded = self._loaded
        if facts["binaries"] != _as_json(self._binaries()):
            return "a binary was changed"
        if any(state != _as_json(loaded.symbolizer.state_of(row)) for row, state in facts["names"]):
            return "files with symbols were changed"
        if any(state != _as_json(loaded.sources.state_of(row, file)) for row, file, state in facts["sources"]):
            return "source files were changed"
        return ""

    def _binaries(self) -> list[Any]:
        found = []
        for row, module in enumerate(self._loaded.profile.modules):
            if module.binary:
                try:
                    found.append([row, module.binary, *file_state(module.binary)])
                except OSError:
                    found.append([row, module.binary])
        return found

    def _size(self) -> list[Any]:
        """Remembered of captures that something is kept of: others need no digest to find nothing."""
        return ["size", os.stat(self._loaded.paths[0]).st_size]

    def _digest(self, count: bool) -> str | None:
        """The digest of the capture's bytes: remembered, or (``count``) made now."""
        path = self._loaded.paths[0]
        try:
            state = _state(path)
            key = ["digest", os.path.realpath(path), state]
            known = self._digests.get(tuple(state))
            known = known or self._cache.read(key, "digest", lambda columns: bytes(columns["digest"]).hex())
            if known is not None or not count:
                return known
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "blake2b").digest()[:32]
            self._loaded.check_unchanged()
            if _state(path) != state:
                return None
        except OSError:
            return None
        self._digests[tuple(state)] = digest.hex()
        if time.time_ns() - max(state[-2:]) > _SETTLED:
            self._cache.write(key, "digest", {"digest": np.frombuffer(digest, np.uint8)})
        return digest.hex()


def _state(path: str) -> list[int]:
    """Attributes of a file that change whenever its bytes do, times last (ns)."""
    found = os.stat(path)
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@cache
def _code() -> list[Any]:
    """The version of this package, and the newest change of its modules: a checkout has one version for many."""
    root = Path(__file__).parents[1]
    times = [path.stat().st_mtime_ns for path in root.rglob("*.py")]
    return [__version__, len(times), max(times, default=0)]
