"""A host whose week takes a second: its clock stands still but for what the agent waits for and records. The agent can
be killed at any change of a file, the store can be away, and services come and go.

The spool, the store and its manifest are the real ones. Recordings are made up: a part of some kB lists them, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from lastbranch.errors import UnavailableError
from lastbranch.fleet import Part, Store
from lastbranch.fleet.agent import Agent, NotRunningError, Service, Settings, Work
from lastbranch.fleet.host import Host
from lastbranch.fleet.objects import Folder
from lastbranch.fleet.spool import Spool, SpoolEntry

_T = TypeVar("_T")
MONDAY = 1_785_715_200.0


class KilledError(BaseException):
    """The agent was killed: nothing that it does from now on has an effect."""


@dataclass
class World:
    """``limit`` is that of the spool in bytes; ``kill`` says whether to kill the agent at a step, by its number."""

    folder: Path
    services: Mapping[str, Service]
    limit: int
    draw: random.Random = field(default_factory=lambda: random.Random(7))
    kill: Callable[[int], str] = lambda step: ""
    is_away: Callable[[float], bool] = lambda time: False
    runs: Callable[[str, float], bool] = lambda name, time: True
    stop_at: float = MONDAY + 7 * 24 * 3600
    size: tuple[int, int] = (1500, 3000)

    set: Callable[[float], float] = lambda time: 0.0
    """Seconds by which the machine's time is wrong at a time."""
    booted: float = MONDAY - 1000

    time: float = MONDAY
    steps: int = 0
    dead: bool = False
    largest: int = 0
    """Bytes that the spool had at most."""
    watched: dict[str, float] = field(default_factory=dict)
    """Seconds for which an agent was there and the service ran."""
    began: list[tuple[str, float]] = field(default_factory=list)
    """Service and time of each recording that began."""
    lines: list[str] = field(default_factory=list)
    kills: int = 0

    def __post_init__(self) -> None:
        self.store, self.spool = self.folder / "store", self.folder / "spool"

    # -- what `Host` does

    @property
    def stopping(self) -> bool:
        return self.time >= self.stop_at

    def now(self) -> float:
        return self.time - self.booted

    def wall(self) -> float:
        return self.time + self.set(self.time)

    def boot(self) -> str:
        return f"started at {self.booted}"

    def sleep(self, seconds: float) -> None:
        self._pass(max(seconds, 0.001))

    def apart(self, function: Callable[[], _T]) -> _T:
        done = function()
        self._measure()
        return done

    def _pass(self, seconds: float) -> None:
        for name in self.services:
            if self.runs(name, self.time):
                self.watched[name] = self.watched.get(name, 0.0) + seconds
        self.time += seconds

    # -- what the agent is given

    def agent(self) -> Agent:
        settings = Settings(str(self.store), str(self.spool), self.limit, ship_every=6 * 3600)
        return Agent(
            settings,
            lambda: self.services,
            self._record,
            host=cast("Host", self),
            say=self.lines.append,
            draw=self.draw,
            work=Work(self._count, self._ship, lambda folder, limit: Spool(folder, limit, merge)),
        )

    def _record(self, service: Service, path: str, seconds: float) -> float:
        if not self.runs(service.name, self.time):
            raise NotRunningError("it does not run")
        self.began.append((service.name, self.time))
        self._pass(seconds / 2)
        self._step(lambda: Path(path).write_text("a capture"))
        self._pass(seconds / 2)
        return seconds

    def _count(
        self, capture: str, folder: str, service: Service, recorded: int, stands_for: int
    ) -> tuple[str, list[Part]]:
        assert Path(capture).read_text() == "a capture"
        digest = self.draw.randbytes(32).hex()
        rows = {digest: [service.name, recorded, stands_for]}
        data = json.dumps(rows).encode() + b" " * self.draw.randrange(*self.size)
        return digest, [part(folder, "captures/day=2026-08-03", digest[:32], data)]

    def _ship(self, store: str, folder: str, parts: list[Part], late: bool) -> bool:
        assert not late
        away = self.is_away(self.time)
        if away and self.draw.random() < 0.7:
            raise UnavailableError("no answer")
        adopted = Store(store).adopt(folder, parts)
        if away:
            raise UnavailableError("the answer did not arrive")
        return adopted

    # -- killing

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Have each change of a file be a step."""
        for name in ("replace", "unlink", "link", "mkdir"):
            patch.setattr(os, name, self._stepping(getattr(os, name)))
        patch.setenv("TMPDIR", str(self.folder))
        patch.setattr("tempfile.tempdir", str(self.folder))

    def _stepping(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *words, **more: self._step(lambda: real(*words, **more))

    def _step(self, do: Callable[[], _T]) -> _T:
        if self.dead:
            raise KilledError
        self.steps += 1
        when = self.kill(self.steps)
        if when == "before":
            self.dead = True
            raise KilledError
        try:
            return do()
        finally:
            if when == "after":
                self.dead = True
                raise KilledError

    def live(self) -> None:
        """Run agents until the end, each after the one before was killed."""
        while not self.stopping:
            try:
                self.act(lambda agent: agent.run())
            except KilledError:
                self.kills += 1
                self.time += self.draw.random() * 120

    def act(self, what: Callable[[Agent], object]) -> None:
        """Have an agent do something; it may be killed meanwhile."""
        self.dead = False
        agent = None
        try:
            agent = self.agent()
            what(agent)
        finally:
            if agent is not None:
                agent.close()
            self._measure()

    # -- what came of it

    def _measure(self) -> None:
        sizes = (os.stat(os.path.join(at, name)).st_size for at, _, names in os.walk(self.spool) for name in names)
        self.largest = max(self.largest, sum(sizes))

    def shipped(self) -> dict[str, list[tuple[str, int, int]]]:
        """Digest -> service, ns recorded and ns stood for, once for each time that the store counts it."""
        found: dict[str, list[tuple[str, int, int]]] = {}
        for name in Store(str(self.store)).state().parts:
            for digest, row in json.loads((self.store / name).read_bytes()).items():
                found.setdefault(digest, []).append(tuple(row))
        return found


def part(folder: str, group: str, key: str, data: bytes) -> Part:
    """A part of ``data``, which it writes."""
    made = Part(f"{group}/{key}.parquet", 1, len(data), hashlib.sha256(data).hexdigest())
    Folder(folder).put(made.name, data)
    return made


def merge(folder: str, entries: Sequence[SpoolEntry]) -> list[Part]:
    """Like `lastbranch.fleet.spool.merge_recordings`, for parts of JSON."""
    rows, size = {}, 0
    for entry in entries:
        (one,) = entry.parts
        ((digest, (service, recorded, _)),) = json.loads(Folder(folder).get(one.name) or b"").items()
        rows[digest] = [service, recorded, entry.stands_for]
        size += one.bytes
    data = json.dumps(rows).encode().ljust(size)
    return [part(folder, "captures/day=2026-08-03", hashlib.sha256(data).hexdigest()[:32], data)]
