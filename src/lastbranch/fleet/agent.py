"""The agent of a host: records its services at a rate, counts each recording at once, and ships the counts to a store.

Its `Turn`s and the time of the next shipment decide what the agent does next. This state is kept in a file, and each
step can be repeated, so a killed agent resumes after a restart: it repeats the interrupted turn, and an interrupted
shipment still arrives once.

The agent records one service after the other, never two at a time. While the store is away, the agent goes on recording
into the spool, which has a limit (`spool`). Shipping is tried again after a time that doubles, up to an hour.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import LastbranchError, UnavailableError
from ..model import FULL, counted, temporary_folder, writing_file
from .host import Host
from .schedule import Rate, Turn, fit_rates

if TYPE_CHECKING:
    from .parts import Part
    from .spool import Spool

__all__ = ["Agent", "NotRunningError", "Recorder", "Service", "Settings", "plan"]


@dataclass(frozen=True, slots=True)
class Service:
    """A service, recorded under a ``name``, at a ``rate``: the processes of ``unit``, a cgroup or a unit of systemd."""

    name: str
    unit: str
    rate: Rate
    version: str = ""


class NotRunningError(LastbranchError):
    """A service has no process now."""


Recorder = Callable[[Service, str, float], float]
"""Records a service into a perf.data at a path, for some seconds: the seconds for which it did. Raises
`NotRunningError`."""
Counter = Callable[[str, str, Service, int, int], "tuple[str, list[Part]]"]
"""Counts the capture at a path into parts in a folder: (digest of the capture, parts). The numbers are its ns, and the
ns that it stands for."""
Ship = Callable[[str, str, "list[Part]", bool], bool]
"""Adds parts of a folder to the store at an address, as `Store.adopt`."""


@dataclass(frozen=True, slots=True)
class Work:
    """The functions by which an agent counts a recording, ships it, and opens its spool (a folder, its limit in bytes).
    ``None``: the agent's own."""

    count: Counter | None = None
    ship: Ship | None = None
    open_spool: Callable[[str, int], Spool] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """``spool_limit`` in bytes; ``ship_every`` in seconds, about; ``host`` as the store is to call this one."""

    store: str
    spool: str
    spool_limit: int = 64 << 20
    ship_every: float = 3600.0
    host: str | None = None


@dataclass(slots=True)
class _AgentState:
    """The state that an agent keeps for a restart."""

    turns: dict[str, Turn] = field(default_factory=dict)
    ship: float = 0.0
    boot: str = ""
    """The run of the machine in which ``ahead`` and ``wall`` hold: see `_Clock`."""
    ahead: float = 0.0
    wall: float = 0.0


class _Clock:
    """The time by which an agent goes: seconds since 1970 when it first ran after the machine was started, and from
    there on the clock that only runs forward. Setting the machine's time moves no turn."""

    def __init__(self, host: Host, kept: _AgentState) -> None:
        self._host = host
        if not kept.boot or kept.boot != host.boot():
            kept.boot, kept.ahead, kept.wall = host.boot(), host.wall() - host.now(), 0.0
        self._kept = kept

    def now(self) -> float:
        return self._host.now() + self._kept.ahead

    def set_by(self) -> float:
        """The seconds by which the machine's time was set since the last call, or by the last agent; 0 where its clock
        just runs a bit fast or slow."""
        wall = self._host.wall() - self.now()
        by, self._kept.wall = wall - self._kept.wall, wall
        return by if abs(by) > _SET else 0.0


@dataclass(slots=True)
class _TurnResult:
    """The result of a turn: ``recorded`` seconds, or why there are none. ``dropped``: recordings that had to go for it,
    by service."""

    recorded: float = 0.0
    waiting: int = 0
    failed: str = ""
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _ShipmentResult:
    """The result of a shipment: recordings and bytes that arrived, and recordings still waiting."""

    recordings: int = 0
    bytes: int = 0
    waiting: int = 0
    failed: str = ""
    notes: list[str] = field(default_factory=list)


_LOOK = 60.0
"""Seconds between two looks at which services there are."""
_SOON, _LATE = 30.0, 3600.0
"""Seconds until the store is tried again, at first and at most."""
_LONGEST = 1.5
"""The longest time between two shipments, in parts of what is wanted; the shortest is half of it."""
_FORGOTTEN = 3 * 24 * 3600.0
"""Age of a batch in seconds, from which on the store looks at captures: half of what its manifest remembers."""
_SET = 10.0
"""Seconds between a machine's time and its clock that come of setting it: NTP slews by a half second in 1000."""
_STATE, _LOCK = "state.json", "lock"


class Agent:
    """``services`` are asked for each minute, and recorded by ``record``. ``say`` gets lines for the user.

    Raises `UnavailableError` where another agent uses the same spool.
    """

    def __init__(
        self,
        settings: Settings,
        services: Callable[[], Mapping[str, Service]],
        record: Recorder,
        *,
        host: Host | None = None,
        say: Callable[[str], None] = print,
        draw: random.Random | None = None,
        work: Work | None = None,
    ) -> None:
        self._settings, self._services, self._record, self._say = settings, services, record, say
        self._host = host or Host()
        self._draw = draw or random.Random()
        work = work or Work()
        self._count = work.count or partial(_count_recording, settings.host)
        self._ship, self._open_spool = work.ship or _adopt_parts, work.open_spool
        self._spool: Spool | None = None
        self._last: dict[str, str] = {}
        """The last line about each service: a line is not repeated each turn."""
        self._backoff = 0.0
        os.makedirs(settings.spool, exist_ok=True)
        self._lock = _lock_spool(os.path.join(settings.spool, _LOCK))
        self._kept = _read(settings.spool)
        self._clock = _Clock(self._host, self._kept)

    def close(self) -> None:
        """Let another agent have the spool."""
        os.close(self._lock)

    # -- the loop

    def run(self) -> None:
        """Record and ship until the host says that it is enough."""
        self._resume()
        host = self._host
        while not host.stopping:
            now = self._now()
            services = self._take_on(now)
            turns = ((turn.due, name) for name, turn in self._kept.turns.items() if name in services)
            due, name = min(turns, default=(now + _LOOK, ""))
            if self._kept.ship <= min(due, now):
                self._ship_now()
            elif due <= now:
                self._take_turn(services[name])
            else:
                host.sleep(min(due, self._kept.ship, now + _LOOK) - now)
        waiting = self._apart(lambda: len(self._open().entries))
        left = f"{counted(waiting, 'recording')} left for the next run to ship" if waiting else "nothing left to ship"
        self._say(f"stopped; {left}")

    def once(self) -> bool:
        """Record each service once, now, and ship. Whether all of that was done."""
        self._resume()
        now = self._now()
        services = self._take_on(now)
        done = True
        for name, service in services.items():
            self._kept.turns[name] = Turn.first(service.rate, now, self._draw)
            done = self._take_turn(service) and done
        return self._ship_now() and done

    def _take_on(self, now: float) -> dict[str, Service]:
        """The services there are now, each with a turn."""
        services = _fit_services(self._services())
        turns = _turns_of(services, self._kept.turns, now, self._draw)
        if turns != self._kept.turns:
            self._kept.turns = turns
            self._save()
        return services

    # -- recording

    def _take_turn(self, service: Service) -> bool:
        """Record a service, and count the recording; return whether the service was recorded."""
        turn = self._kept.turns[service.name]
        try:
            done = self._apart(partial(self._record_turn, service, turn))
        except UnavailableError as error:
            done = _TurnResult(failed=str(error))
        self._kept.turns[service.name] = turn.following(self._now(), self._draw)
        self._save()
        kilobytes = max(1, done.waiting // 1000)
        if done.failed:
            self._tell(service.name, f"not recorded: {done.failed}")
        else:
            self._last.pop(service.name, None)
            self._say(f"{service.name}: recorded {done.recorded:.1f} s; {kilobytes} kB wait to be shipped")
        for name, number in done.dropped.items():
            self._say(
                f"{name}: dropped {counted(number, 'recording')}: the spool or its disk is full; "
                "the next one stands for it"
            )
        self._tell_all(done.notes)
        return bool(done.recorded)

    def _record_turn(self, service: Service, turn: Turn) -> _TurnResult:
        rate = service.rate
        with temporary_folder("lastbranch-agent") as scratch:
            capture = scratch.file(f"{service.name.replace('/', '-')}.data")
            try:
                seconds = min(self._record(service, capture, rate.length), rate.length)
            except NotRunningError as error:
                return _TurnResult(failed=str(error))
            recorded, stands_for = round(1e9 * seconds), round(1e9 * seconds * rate.weight)
            digest, parts = self._count(capture, scratch.file("parts"), service, recorded, stands_for)
            os.unlink(capture)
            from .spool import RecordedTurn

            spool = self._open()
            new = RecordedTurn(service.name, digest, turn.key, recorded, stands_for)
            gone: dict[str, int] = {}
            for entry in spool.add(scratch.file("parts"), parts, new):
                gone[entry.service] = gone.get(entry.service, 0) + 1
        return _TurnResult(seconds, spool.bytes, dropped=gone, notes=spool.notes)

    # -- shipping

    def _ship_now(self) -> bool:
        """Ship the recordings in the spool. Whether the store has all of it."""
        try:
            done = self._apart(self._ship_batch)
        except UnavailableError as error:
            done = _ShipmentResult(failed=str(error))
        settings, now = self._settings, self._now()
        if done.recordings:
            self._say(f"shipped {counted(done.recordings, 'recording')}, {max(1, done.bytes // 1000)} kB")
        self._tell_all(done.notes)
        if done.failed:
            self._backoff = min(max(_SOON, 2 * self._backoff), _LATE)
            wait = self._backoff * (0.5 + self._draw.random() / 2)  # hosts that lost the store together come apart
            self._say(
                f"not shipped: {done.failed}; {counted(done.waiting, 'recording')} in the spool, tried again in "
                f"{wait:.0f} s"
            )
        else:
            self._backoff = 0.0
            wait = settings.ship_every * (_LONGEST - self._draw.random())
        self._kept.ship = now + wait
        self._save()
        return not done.failed

    def _ship_batch(self) -> _ShipmentResult:
        spool, done = self._open(), _ShipmentResult()
        try:
            while (batch := spool.seal(self._clock.now())) is not None:
                if spool.is_whole(batch):
                    late = not 0 <= self._clock.now() - batch.since <= _FORGOTTEN  # nor is it of the future
                    self._ship(self._settings.store, spool.folder, batch.parts, late)
                    done.recordings += len(batch.numbers)
                    done.bytes += sum(part.bytes for part in batch.parts)
                else:
                    done.notes.append(f"{counted(len(batch.numbers), 'recording')} lost: the spool is damaged")
                spool.shipped()
        except (LastbranchError, OSError) as error:
            done.failed = str(error)
        done.waiting = len(spool.entries) + (len(spool.batch.numbers) if spool.batch else 0)
        done.notes += spool.notes
        spool.notes = []
        return done

    # -- the kept state

    def _now(self) -> float:
        """The time, on the clock of turns. Says so where the machine's was set."""
        if by := self._clock.set_by():
            self._say(
                f"the time of this host was set {'forward' if by > 0 else 'back'} by {_span(abs(by))}: recording goes "
                "on as planned, and captures have the new time"
            )
        return self._clock.now()

    def _apart(self, function: Callable[[], Any]) -> Any:
        return self._host.apart(function)

    def _open(self) -> Spool:
        """The spool. Each process opens the spool for itself, at its first call."""
        if self._spool is None:
            from .spool import Spool

            self._spool = (self._open_spool or Spool)(self._settings.spool, self._settings.spool_limit)
        return self._spool

    def _resume(self) -> None:
        """Go on after the last agent that had this spool: a turn whose recording is in the spool was taken."""
        now, turns = self._now(), self._kept.turns
        taken: dict[str, int] = self._apart(lambda: self._open().slots()) if turns else {}
        for name, turn in turns.items():
            if taken.get(name) == turn.key:
                turn = turn.following(now, self._draw)
            turns[name] = turn.resumed(turn.rate, now, self._draw)
        if not 0 <= self._kept.ship - now <= _LONGEST * self._settings.ship_every:
            self._kept.ship = now + self._draw.random() * min(_SOON, self._settings.ship_every)
        self._save()

    def _save(self) -> None:
        """Keep the state for a restart. The agent goes on where the disk is full: the next one draws its turns anew."""
        try:
            with writing_file(os.path.join(self._settings.spool, _STATE)) as out:
                out.write(json.dumps(asdict(self._kept)).encode())
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._tell("spool", f"its state is not kept for a restart: {error.strerror}")
        else:
            self._last.pop("spool", None)

    # -- messages

    def _tell(self, name: str, line: str) -> None:
        if self._last.get(name) != line:
            self._last[name] = line
            self._say(f"{name}: {line}")

    def _tell_all(self, notes: list[str]) -> None:
        for note in notes:
            self._say(f"warning: {note}")


def plan(services: Mapping[str, Service], spool: str, host: Host, draw: random.Random) -> list[tuple[Service, float]]:
    """The plan of an agent with this spool: each service, at the rate that the agent can keep, and the time of its next
    turn, in seconds since 1970. Nothing is written."""
    fitted, kept = _fit_services(services), _read(spool)
    now = _Clock(host, kept).now()
    turns = _turns_of(fitted, kept.turns, now, draw)
    due = {name: turns[name].resumed(service.rate, now, draw).due for name, service in fitted.items()}
    return [(service, host.wall() + due[name] - now) for name, service in fitted.items()]


def _span(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.3g} {unit}s"
    return f"{seconds:.0f} seconds"


def _fit_services(services: Mapping[str, Service]) -> dict[str, Service]:
    rates = fit_rates({name: service.rate for name, service in services.items()})
    return {name: replace(service, rate=rates[name]) for name, service in services.items()}


def _turns_of(
    services: Mapping[str, Service], known: Mapping[str, Turn], now: float, draw: random.Random
) -> dict[str, Turn]:
    """The turn of each service: the known one, if that is of the same rate."""
    return {
        name: known[name] if name in known and known[name].rate == service.rate else Turn.first(service.rate, now, draw)
        for name, service in services.items()
    }


def _read(spool: str) -> _AgentState:
    """The state that the last agent kept; an empty state if the file cannot be used."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        with open(os.path.join(spool, _STATE), "rb") as file:
            found = json.load(file)
        turns = {
            name: Turn(Rate(**one["rate"]), float(one["origin"]), int(one["slot"]), float(one["due"]))
            for name, one in found["turns"].items()
        }
        clock = str(found.get("boot", "")), float(found.get("ahead", 0)), float(found.get("wall", 0))
        return _AgentState(turns, float(found["ship"]), *clock)
    return _AgentState()


def _lock_spool(path: str) -> int:
    """A descriptor that holds the lock of a spool; processes that do the work of the agent hold it, too."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        hint = "one agent records all services of a host; --spool names another folder"
        raise UnavailableError(f"{os.path.dirname(path)}: another agent uses this spool", hint=hint) from None
    return descriptor


def _count_recording(
    host: str | None, capture: str, folder: str, service: Service, recorded: int, stands_for: int
) -> tuple[str, list[Part]]:
    from .counting import Labels, capture_file
    from .parts import count_batch

    file = capture_file(capture, Labels(service.name, service.version, host, None, recorded, stands_for))
    return file.digest, count_batch(folder, [file])


def _adopt_parts(store: str, folder: str, parts: list[Part], late: bool) -> bool:
    from .store import Store

    return Store(store).adopt(folder, parts, late=late)
