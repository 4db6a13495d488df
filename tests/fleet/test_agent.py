"""The agent of a host: a week by the clock of a made-up host, kills at each step, and a program that really runs."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pyarrow.parquet as pq
import pytest

from agent_world import MONDAY, KilledError, World, merge, part
from command_line import Ran
from full_disks import small_disk
from lastbranch.errors import FormatError
from lastbranch.fleet import Labels, Store, capture_file, count_batch
from lastbranch.fleet.agent import Agent, Service, Settings
from lastbranch.fleet.manifest import Manifest, StoreState
from lastbranch.fleet.objects import Folder
from lastbranch.fleet.schedule import MOST, Rate, Turn, fit_rates
from lastbranch.fleet.spool import RecordedTurn, Spool, SpoolEntry
from small_captures import three_branches

Run = Callable[..., Ran]

HOUR = 3600.0
SERVICES = {
    name: Service(name, f"{name}.service", Rate(seconds, 12.0)) for name, seconds in (("a", 6), ("b", 3), ("c", 12))
}


def totals(world: World) -> dict[str, tuple[float, float]]:
    """Service -> seconds recorded, and seconds that these stand for, of what the store counts."""
    found: dict[str, tuple[float, float]] = dict.fromkeys(world.services, (0.0, 0.0))
    for rows in world.shipped().values():
        for service, recorded, stands_for in rows:
            one = found[service]
            found[service] = one[0] + recorded / 1e9, one[1] + stands_for / 1e9
    return found


# -- a week


def test_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With kills, a store that is away for days, and a service that does not always run: the spool stays below its
    limit, the rate is kept, each recording counts once, and what they stand for is what ran."""
    chance = random.Random(3)
    world = World(tmp_path, SERVICES, limit=50_000)
    world.kill = lambda step: chance.choice(("before", "after")) if chance.random() < 0.01 else ""
    world.is_away = lambda time: 20 < (time - MONDAY) / HOUR < 70 or int(time) % 9000 < 3000
    world.runs = lambda name, time: name != "c" or (time - MONDAY) % (9 * HOUR) < 6 * HOUR
    world.install(monkeypatch)
    world.live()
    assert world.kills > 10
    world.kill, world.is_away = lambda step: "", lambda time: False
    world.act(lambda agent: agent._ship_now())
    recordings = world.shipped()
    assert max(map(len, recordings.values())) == 1
    assert 25_000 < world.largest <= world.limit
    assert sum("dropped" in line for line in world.lines) > 20
    for name, (recorded, stands_for) in totals(world).items():
        rate, began = SERVICES[name].rate, sum(service == name for service, _ in world.began)
        done = stands_for / rate.slot  # those that were dropped are stood for by others
        assert done == pytest.approx(round(done))
        assert began - world.kills <= done <= began
        assert done * rate.length / world.watched[name] * HOUR == pytest.approx(rate.seconds, rel=0.05)
        assert recorded < done * rate.length


def test_recordings_are_not_in_phase_with_the_hour() -> None:
    """Each slot has one, and all minutes of the hour have as many; so have hosts that start together."""
    draw, minutes, firsts = random.Random(1), Counter[int](), Counter[int]()
    for _ in range(40):
        turn = Turn.first(Rate(36, 6), MONDAY, draw)
        firsts[int((turn.due - MONDAY) // 60)] += 1
        for _ in range(144):
            begins = turn.origin + turn.slot * 600
            assert begins <= turn.due < begins + 600
            minutes[int(turn.due % HOUR // 60)] += 1
            following = turn.following(turn.due + 6, draw)
            assert following.slot == turn.slot + 1
            turn = following
    assert len(minutes) == 60
    assert 50 < min(minutes.values()) < max(minutes.values()) < 150
    assert max(firsts) < 20
    assert len(firsts) > 7


def test_turns_that_were_missed() -> None:
    """One that is a bit late is taken; nothing is made up for a night without agent; a clock that is set back does not
    stop the schedule."""
    draw, rate = random.Random(2), Rate(36, 6)
    turn = Turn.first(rate, MONDAY, draw)
    late = turn.resumed(rate, turn.due + 30, draw)
    assert late.slot == turn.slot
    assert turn.due + 30 <= late.due < turn.due + 30 + 150
    assert turn.resumed(rate, turn.due - 5, draw) == turn
    for moved in (turn.resumed(rate, turn.due + 8 * HOUR, draw), turn.following(turn.due + 8 * HOUR, draw)):
        assert moved.slot >= turn.slot + 47
        assert turn.due + 8 * HOUR <= moved.due < turn.due + 8 * HOUR + 1200
    back = turn.resumed(rate, turn.due - 8 * HOUR, draw)
    assert turn.due - 8 * HOUR <= back.due < turn.due - 8 * HOUR + 1200
    other = turn.resumed(Rate(18, 6), turn.due - 5, draw)
    assert other.rate.seconds == 18
    assert other.rate.weight == 200


def test_too_many_services_are_all_recorded_less() -> None:
    rates = fit_rates({f"{number}": Rate(36.0 + number % 2 * 36, 6.0) for number in range(100)})
    assert sum(rate.seconds for rate in rates.values()) == pytest.approx(MOST)
    assert rates["1"].seconds == pytest.approx(2 * rates["0"].seconds)
    assert rates["0"].weight == pytest.approx(HOUR / 12)
    assert fit_rates({"a": Rate(36.0, 6.0)}) == {"a": Rate(36.0, 6.0)}


# -- kills


def steps_of_a_day(world: World) -> None:
    """Two shipments, an overflow, and what an agent does between them."""
    world.act(lambda agent: agent.once())
    world.is_away = lambda time: True
    world.act(lambda agent: [agent.once() for _ in range(3)])
    world.is_away = lambda time: False


@pytest.mark.parametrize("apart", [12, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_kill_at_each_step(apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it comes, what is there is shipped once, and nothing is lost but the recording that was being made."""
    services = {name: SERVICES[name] for name in "ab"}

    def world_of(name: str) -> World:
        (tmp_path / name).mkdir()
        return World(tmp_path / name, services, limit=12_000, size=(2000, 2001))

    with monkeypatch.context() as patch:
        undisturbed = world_of("peace")
        undisturbed.install(patch)
        steps_of_a_day(undisturbed)
    assert any("dropped" in line for line in undisturbed.lines)
    assert undisturbed.steps > 100
    for step in range(1, undisturbed.steps + 1, apart):
        for when in ("before", "after") if apart == 1 else ("before", "after")[step // apart % 2 :][:1]:
            world = world_of(f"{step} {when}")
            world.kill = lambda number, step=step, when=when: when if number == step else ""
            with monkeypatch.context() as patch:
                world.install(patch)
                try:
                    steps_of_a_day(world)
                except KilledError:
                    world.kills += 1
                world.is_away = lambda time: False
                world.act(lambda agent: agent.once())
                recordings = world.shipped()
            assert world.kills == 1
            assert {len(rows) for rows in recordings.values()} == {1}
            assert world.largest <= world.limit
            for name, (_, stands_for) in totals(world).items():
                began = sum(service == name for service, _ in world.began)
                each = services[name].rate.slot
                assert round(stands_for / each, 6) in (began, began - 1), (step, when)


# -- the spool, with parts that are made up


def made(spool: Spool, folder: Path, slot: int, size: int = 1000, service: str = "a") -> list[SpoolEntry]:
    """Have six seconds in the spool that stand for 600. What had to go for it."""
    digest, rows = f"{slot:064x}", [service, 6, 600]
    parts = [part(str(folder), "captures/day=2026-08-03", digest[32:], json.dumps({digest: rows}).encode().ljust(size))]
    return spool.add(str(folder), parts, RecordedTurn(service, digest, slot, 6, 600))


def test_a_full_spool_gets_thinner_evenly(tmp_path: Path) -> None:
    """What stands for the least time goes first, then the oldest; the next one stands for it."""
    spool = Spool(str(tmp_path / "spool"), 10_000, merge)
    gone = [made(spool, tmp_path, slot) for slot in range(12)]
    assert sum(map(len, gone)) == 8
    assert [one.dropped for one in spool.entries.values()] == [3, 3, 1, 1]
    assert [one.stands_for for one in spool.entries.values()] == [2400, 2400, 1200, 1200]
    assert Spool(spool.folder, spool.limit, merge).entries == spool.entries
    assert [one.dropped for one in Spool(spool.folder, 5000, merge).entries.values()] == [7, 3]


@pytest.fixture(params=["mounted", "made up"])
def small(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk on which a spool may have 32 kB."""
    if request.param == "mounted":
        with small_disk(tmp_path / "disk", "96k") as folder:  # each file takes whole pages
            yield folder
        return

    def put(self: Folder, name: str, data: bytes) -> None:
        there = sum(one.stat().st_size for one in disk.rglob("*") if one.is_file())
        if Path(self._path(name)).is_relative_to(disk) and there + len(data) > 32 << 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(self, name, data)

    plain, disk = Folder.put, tmp_path / "disk"
    monkeypatch.setattr(Folder, "put", put)
    disk.mkdir()
    yield disk


def test_a_spool_on_a_full_disk_gets_thinner_too(small: Path, tmp_path: Path) -> None:
    """Sums stay the same, a recording that no room can be made for is stood for by the next, and all can be shipped."""
    spool = Spool(str(small / "spool"), 1 << 20, merge)
    gone = [made(spool, tmp_path, slot, 3000) for slot in range(20)]
    assert sum(map(len, gone)) + len(spool.entries) == 20
    assert len(spool.entries) >= 2
    assert any(gone)
    for again in (spool, Spool(spool.folder, spool.limit, merge)):
        stood = [one.stands_for for one in (*again.entries.values(), *again._owed.values())]
        assert sum(stood) == 600 * 20
    (alone,) = made(spool, tmp_path, 20, 120_000)[-1:]
    assert (alone.slot, list(spool.entries)) == (20, [])
    assert made(spool, tmp_path, 21, 3000) == []
    assert [one.stands_for for one in spool.entries.values()] == [600 * 22]
    batch = spool.seal(0)
    assert batch is not None
    assert spool.is_whole(batch)


def test_an_agent_whose_disk_is_full_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it cannot keep, once."""

    def full(path: str) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said = list[str]()
    agent = Agent(Settings(str(tmp_path / "store"), str(tmp_path / "spool")), dict, lambda *_: 0.0, say=said.append)
    monkeypatch.setattr("lastbranch.fleet.agent.writing_file", full)
    try:
        for _ in range(2):
            agent.once()
    finally:
        agent.close()
    assert [line for line in said if "No space" in line] == [
        "spool: its state is not kept for a restart: No space left on device"
    ]


@pytest.mark.parametrize("oldest", ["a", "b"])
def test_a_kill_while_a_recording_is_dropped(oldest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was dropped is stood for once: by itself or by its heir, in the spool or, if that has none, to come."""
    for step in range(1, 12):
        spool = Spool(str(tmp_path / f"{step}"), 10_000, merge)
        for slot in range(4):
            assert made(spool, tmp_path, slot, service="a" if slot else oldest) == []
        world = World(tmp_path, {}, 0, kill=lambda number, step=step: "before" if number == step else "")
        with monkeypatch.context() as patch:
            world.install(patch)
            with suppress(KilledError):
                made(spool, tmp_path, 9)
        again = Spool(spool.folder, spool.limit, merge)
        stood = [one.stands_for for one in (*again.entries.values(), *again._owed.values())]
        arrived = any(one.slot == 9 for one in again.entries.values())
        assert sum(stood) == 600 * (4 + arrived)
        assert arrived or world.dead


def test_a_recording_that_is_too_large_is_stood_for_by_the_next(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), 10_000, merge)
    (gone,) = made(spool, tmp_path, 0, 5000)
    assert gone.slot == 0
    for _ in range(2):
        spool = Spool(spool.folder, spool.limit, merge)
    assert made(spool, tmp_path, 1) == []
    for again in (spool, Spool(spool.folder, spool.limit, merge)):
        assert [(one.dropped, one.stands_for) for one in again.entries.values()] == [(1, 1200)]
        assert not again._owed


def test_damage_in_the_spool_is_said_and_left_out(tmp_path: Path) -> None:
    spool, store = Spool(str(tmp_path / "spool"), 1 << 20, merge), str(tmp_path / "store")
    for slot in range(3):
        made(spool, tmp_path, slot)
    entries = sorted(Path(spool.folder, "entries").iterdir())
    entries[0].write_bytes(b"")
    Path(spool.folder, spool.entries[1].parts[0].name).write_bytes(b"")
    again = Spool(spool.folder, spool.limit, merge)
    assert [*again.entries] == [1, 2]
    batch = again.seal(0)
    assert batch is not None
    assert batch.numbers == [2]
    assert len(again.notes) == 2
    Path(spool.folder, batch.parts[0].name).write_bytes(b"x")
    assert not again.is_whole(batch)
    with pytest.raises(FormatError, match="not as it was written"):
        Store(store).adopt(spool.folder, batch.parts)


# -- what a count stands for


DAY = 1_785_456_000


def spooled(spool: Spool, folder: Path, service: str, wall: int, weight: float) -> list[SpoolEntry]:
    """Have a capture in the spool whose seconds stand for ``weight`` seconds each. What had to go for it."""
    path = three_branches(folder / f"{service}{wall}", wall % 3, b"\7" * 20, DAY + wall)
    recorded, stands_for = 6 * 10**9, round(6e9 * weight)
    file = capture_file(str(path), Labels(service, "7", "host", None, recorded, stands_for))
    parts = count_batch(str(folder / "counted"), [file])
    return spool.add(str(folder / "counted"), parts, RecordedTurn(service, file.digest, wall, recorded, stands_for))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with services recorded at different rates. Each capture has two branches to one place, and four to
    another one."""
    folder = tmp_path_factory.mktemp("shipped")
    spool = Spool(str(folder / "spool"), 1 << 20)
    for service, wall, weight in (
        ("whole", 1, 100),
        ("whole", 4, 100),
        ("half", 7, 200),
        ("fraction", 10, 1.8),
        ("fraction", 13, 1.5),
    ):
        assert spooled(spool, folder, service, wall, weight) == []
    spool.limit = 8000
    assert len(spooled(spool, folder, "dropped", 16, 100)) == 1
    spool.limit = 1 << 20
    assert spooled(spool, folder, "dropped", 19, 100) == []
    batch = spool.seal(0)
    assert batch is not None
    shutil.copytree(spool.folder, folder / "store-spool")
    assert Store(str(folder / "store")).adopt(spool.folder, batch.parts)
    spool.shipped()
    assert spool.bytes == 0
    kept = ("owed.json", "reserve")
    assert not [path for path in Path(spool.folder).rglob("*") if path.is_file() and path.name not in kept]
    return str(folder / "store")


def counts(run: Run, store: str, service: str) -> tuple[str, list[int]]:
    """What an export of a service's program has: all of it, and the numbers of its branches."""
    done = run("fleet", "export", store, "--service", service, "--to", "counts", "--module", "prog")
    assert done.code == 0, done.err
    return done.out, sorted(int(line.split()[-2]) for line in done.out.splitlines() if line[0] == "B")


def test_a_service_at_half_the_rate_counts_the_same(run: Run, shipped: str) -> None:
    assert counts(run, shipped, "whole")[1] == [2 * 2 * 100, 2 * 4 * 100]
    assert counts(run, shipped, "half") == counts(run, shipped, "whole")
    assert counts(run, shipped, "fraction")[1] == [round(2 * 2 * 1.65), round(2 * 4 * 1.65)]
    assert counts(run, shipped, "*")[1] == [407 + 400 + 400, 813 + 800 + 800]


def test_what_was_dropped_is_stood_for(run: Run, shipped: str) -> None:
    assert counts(run, shipped, "dropped") == counts(run, shipped, "half")
    sql = "SELECT recorded, stands_for, notes FROM captures WHERE service = 'dropped'"
    row = run("fleet", "query", shipped, sql, "--format", "csv").out.splitlines()[1]
    note = "stands for a recording that the agent dropped, too: its spool was full"
    assert row == f'{6 * 10**9},{1200 * 10**9},"{note}"'


def test_reports_say_what_was_recorded(run: Run, shipped: str) -> None:
    said = run("fleet", "report", shipped, "--by", "module").err
    assert "half: the counts are 200 times what was recorded" in said
    assert "fraction: the counts are 1.65 times what was recorded" in said
    said = run("fleet", "diff", shipped, "service=whole", "service=half", "--by", "edge").err
    assert "A: whole: the counts are 100 times what was recorded" in said
    assert "B: half: the counts are 200 times what was recorded" in said
    raw = run("fleet", "query", shipped, "SELECT sum(n) FROM counts WHERE kind = 'branch'", "--format", "csv").out
    assert raw.split()[1] == str(6 * 6)


def test_stores_of_version_1_are_read(run: Run, shipped: str, tmp_path: Path) -> None:
    """Their captures have no column for what they stand for."""
    store = tmp_path / "store"
    shutil.copytree(shipped, store)
    for path in (store / "captures").rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        pq.write_table(table.drop_columns(["recorded", "stands_for"]), path)
    for path in (store / "manifest").iterdir():
        path.write_text(path.read_text().replace('"version": 2', '"version": 1'))
    assert counts(run, str(store), "half")[1] == [2, 4]
    assert run("fleet", "list", store).out == run("fleet", "list", shipped).out


# -- shipping


def test_a_batch_is_added_once(run: Run, shipped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after its parts were merged, and after the manifest has forgotten that."""
    batch = Spool(f"{shipped}-spool", 1 << 20).batch
    assert batch is not None
    store = str(tmp_path / "store")
    shutil.copytree(shipped, store)
    more = three_branches(tmp_path / "more", 1, b"\7" * 20, DAY)
    assert run("fleet", "add", store, more, "--service", "other").code == 0

    def is_added(*, late: bool = False) -> bool:
        return Store(store).adopt(f"{shipped}-spool", batch.parts, late=late)

    assert not is_added()
    assert run("fleet", "compact", store, "--keep", "0").code == 0
    assert not {part.name for part in batch.parts} & Store(store).state().parts.keys()
    assert not is_added()
    read = Manifest.read

    def forgetful(manifest: Manifest) -> StoreState:
        state = read(manifest)
        state.gone.clear()
        return state

    monkeypatch.setattr(Manifest, "read", forgetful)
    assert not is_added(late=True)
    assert counts(run, store, "half") == counts(run, shipped, "half")
    Store(store).expire("2100-01-01")
    assert is_added(late=True)


# -- a clock that is set


@pytest.mark.parametrize("days", [-30, -1, 30])
def test_a_clock_that_is_set_changes_no_turn(days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slot has its recording, as if nobody had set it; it is said once, and a restart of the agent changes
    nothing."""

    def began(name: str, by: float) -> World:
        (tmp_path / name).mkdir()
        world = World(tmp_path / name, {"a": SERVICES["a"]}, limit=1 << 20, stop_at=MONDAY + 3 * 24 * HOUR)
        world.set = lambda time: by if time > MONDAY + 24 * HOUR else 0.0
        with monkeypatch.context() as patch:
            world.install(patch)
            for stop in (MONDAY + 30 * HOUR, world.stop_at):
                world.stop_at = stop
                world.act(lambda agent: agent.run())
        return world

    undisturbed, world = began("right", 0.0), began("set", days * 24 * HOUR)
    assert world.began == undisturbed.began
    assert len(world.began) > 30
    way, span = "forward" if days > 0 else "back", "24 hours" if abs(days) == 1 else "30 days"
    assert [line for line in world.lines if "was set" in line] == [
        f"the time of this host was set {way} by {span}: recording goes on as planned, and captures have the new time"
    ]
    assert not any("was set" in line for line in undisturbed.lines)


def test_a_machine_that_starts_with_another_time_draws_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, {"a": SERVICES["a"]}, limit=1 << 20, set=lambda time: 30 * 24 * HOUR)
    world.install(monkeypatch)
    world.stop_at = MONDAY + HOUR
    world.act(lambda agent: agent.run())
    world.set, world.booted, world.stop_at = lambda time: 0.0, world.time, MONDAY + 24 * HOUR
    world.act(lambda agent: agent.run())
    assert len(world.began) == pytest.approx(24 * HOUR / SERVICES["a"].rate.slot, abs=2)


def test_a_batch_of_the_future_is_compared_with_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows how long ago it was tried first, where the machine's time was set back between two starts."""
    late: list[bool] = []
    world = World(tmp_path, {"a": SERVICES["a"]}, limit=1 << 20, is_away=lambda time: True)
    world.install(monkeypatch)
    world.act(lambda agent: agent.once())
    assert json.loads((world.spool / "batch.json").read_text())["since"] == MONDAY + SERVICES["a"].rate.length
    world.set, world.booted = lambda time: -24 * HOUR, world.time
    monkeypatch.setattr(world, "_ship", lambda store, folder, parts, is_late: bool(late.append(is_late)))
    world.act(lambda agent: agent._ship_now())
    assert late == [True]
