"""Events that end before their fields do: counted by kind, never fatal, and no bug of a handler passes for one."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import etl_builder as eb
import fuzz_etl
from command_line import Ran
from etl_kernel_logs import (
    KERNEL,
    PAIR,
    WORLD,
    image,
    interval,
    key_event,
    lbr,
    pmc,
    process,
    sample,
    stack_event,
    thread,
    wide,
)
from lastbranch import demo
from lastbranch.formats.etl import TraceLog, read_etl, write_profile
from lastbranch.formats.etl.kernel.hooks import IMAGE_ID, SYS_CONFIG_EX, kernel_key
from lastbranch.formats.etl.kernel.layouts import LAYOUTS
from lastbranch.formats.etl.profile import supplement, system
from lastbranch.formats.etl.profile.supplement import supplement_event
from lastbranch.formats.etl.profile.system import HANDLERS, System
from lastbranch.formats.etl.single_event import Event, encode_event
from lastbranch.model import BytesSource
from lastbranch.opening import open_profile

CRASHED = 70
VERBS = (("info",), ("report",), ("branches",), ("check",), ("verify",), ("convert", "out.etl"), ("convert", "out.tb5"))
ALL_TO = 256
"""Lengths up to this are all tried, and of longer ones every 37th."""


def log_of(events: Iterable[bytes]) -> bytes:
    trace = eb.Trace(size=1 << 16)
    for event in events:
        trace.add(0, event)
    return bytes(trace)


def one_of_each(data: bytes) -> Iterator[Event]:
    """The first event of each type, header and version in a log."""
    seen = set()
    for event in TraceLog(BytesSource(data)).events():
        schema = dict(event.extended).get(11)
        kind = event.header, event.version, event.hook, event.provider, event.id, event.opcode, schema
        if event.hook != 0 and kind not in seen:  # 0: the header of the log, which the builder writes
            seen.add(kind)
            yield event


def cut(event: Event) -> Iterator[bytes]:
    """``event`` with each shorter payload."""
    size = len(event.payload)
    for length in sorted({*range(min(size, ALL_TO)), *range(0, size, 37)}):
        yield encode_event(replace(event, payload=event.payload[:length]))


def with_each_length(data: bytes) -> bytes:
    """A log of one event of each type of another log, whole and with each shorter payload."""
    events = list(one_of_each(data))
    return log_of([*map(encode_event, events), *(part for event in events for part in cut(event))])


def made_by_hand() -> bytes:
    """What Windows writes of a system, samples in all their forms."""
    image_id, config = UUID(IMAGE_ID).bytes_le, UUID(SYS_CONFIG_EX).bytes_le
    rsds = struct.pack("<QI16sI", 0x140000000, 42, bytes(range(16)), 1) + b"app.pdb\0"
    events = [event for _, event in WORLD] + [
        process(1, 101, 43, "b.exe"),
        process(2, 102, 43, "b.exe"),
        process(4, 103, 42, "app.exe"),
        thread(1, 104, 42, 421),
        thread(2, 105, 42, 421),
        image(0x030A, 106, 42, 0x150000000, 0x1000, "c.dll"),
        image(0x1402, 107, 42, 0x150000000, 0x1000, "c.dll"),
        image(0x1404, 108, 0, KERNEL, 0x100000, "n.exe"),
        eb.system(0x0548, 109, struct.pack("<II", 42, 420) + wide("main"), version=2),
        eb.full(image_id, 0, 110, struct.pack("<QQII", 0x140000000, 0x10000, 42, 7) + wide("app.exe"), version=2),
        eb.full(image_id, 36, 110, rsds, version=2),
        eb.full(config, 35, 111, wide("\\Device\\HarddiskVolume1") + wide("C:"), version=0),
        pmc(200, 0x140001010, 420, 6),
        lbr(200, 42, 420, 0, PAIR),
        sample(201, 0x140001020, 420),
        stack_event(201, 420, [1, 2, 3]),
        key_event(0x1825, 201, 420, 77),
        key_event(0x1826, 201, 420, 78),
        eb.system(0x1824, 202, struct.pack("<4Q", 77, 1, 2, 3)),
        interval(203, 0, 10000, "Timer"),
        eb.system(0x0F48, 204, struct.pack("<III", 6, 5, 4) + wide("B")),
    ]
    return log_of(events)


def of_the_demo(folder: Path) -> bytes:
    """A recording of Linux as a log: with all that kernel events have no field for."""
    write_profile(open_profile(demo.capture()), folder / "demo.etl")
    return (folder / "demo.etl").read_bytes()


def of_all_headers(bits: int) -> bytes:
    seeds = (seed for seed in range(1000) if fuzz_etl.kernel_trace(random.Random(seed), None).bits == bits)
    return bytes(fuzz_etl.kernel_trace(random.Random(next(seeds)), None))


def crashes(run: Callable[..., Ran], folder: Path, data: bytes) -> list[str]:
    """The verbs that ``data`` brings down."""
    (folder / "in.etl").write_bytes(data)
    found = []
    for verb, *output in VERBS:
        more = [folder / name for name in output] + ["--force"] * bool(output)
        done = run(verb, folder / "in.etl", *more)
        if done.code == CRASHED:
            found.append(f"{verb}: {done.err}")
    return found


@pytest.mark.parametrize("kind", ["by hand", "demo", "32", "64"])
def test_no_length_of_any_event_brings_a_verb_down(run: Callable[..., Ran], tmp_path: Path, kind: str) -> None:
    made = {"by hand": made_by_hand, "demo": lambda: of_the_demo(tmp_path)}
    data = made[kind]() if kind in made else of_all_headers(int(kind))
    assert crashes(run, tmp_path, with_each_length(data)) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    sorted(Path(os.environ.get("LASTBRANCH_DATA", "/nonexistent"), "etl").glob("*.etl")) or [None],
    ids=lambda path: path.name if path else "none",
)
def test_nor_of_events_of_real_logs(run: Callable[..., Ran], tmp_path: Path, path: Path | None) -> None:
    if path is None:
        pytest.skip("LASTBRANCH_DATA is not set")
    assert crashes(run, tmp_path, with_each_length(path.read_bytes())) == []


def shortened(event: bytes, payload: int) -> bytes:
    """A kernel event with the header of 32 bytes and so many bytes of its payload."""
    return event[:4] + struct.pack("<H", 32 + payload) + event[6 : 32 + payload]


def test_they_are_counted_by_kind_and_the_rest_is_read() -> None:
    """An image event of 4 bytes made whole logs unreadable."""
    shape = image(0x1403, 150, 42, 0x160000000, 0x1000, "x.dll")
    events = [event for _, event in WORLD] + [
        shortened(shape, 4),
        shortened(shape, 12),
        shortened(shape, 20),
        shortened(process(3, 151, 44, "y.exe"), 8),
        shortened(thread(1, 152, 42, 422), 4),
        shortened(interval(153, 6, 7, "B"), 8),
        pmc(200, 0x140001010, 420, 6),
    ]
    profile = read_etl(BytesSource(log_of(events)))
    short = {"Image/DCStart": 2, "PerfInfo/CollectionStart": 1, "Process/DCStart": 1, "Thread/Start": 1}
    assert profile.lost == {f"Windows Kernel/{kind} events too short": number for kind, number in short.items()}
    assert len(profile.modules) == 3, "the one of 20 bytes has an address and a size"
    assert profile.samples == 1


def test_of_our_own_events_too() -> None:
    fields = {name: "" if kind == 1 else 0 for name, kind in supplement.EVENTS["Machine"].items()}
    event = supplement_event("Machine", 150, fields)
    short = encode_event(replace(event, payload=event.payload[:-1]))
    profile = read_etl(BytesSource(log_of([*(made for _, made in WORLD), short])))
    assert profile.lost == {"lastbranch/Machine events too short": 1}


@pytest.mark.parametrize("kind", [1, 10, 0x48])
def test_our_names_with_other_types_are_not_ours(kind: int) -> None:
    """A field that says it is of another type is not read as what we would have written."""
    body = b"\0Module\0" + b"".join(name.encode() + b"\0" + bytes([kind]) for name in supplement.EVENTS["Module"])
    schema = (len(body) + 2).to_bytes(2, "little") + body
    event = eb.manifest(supplement.PROVIDER.bytes_le, 0, 150, b"a\0\0\0" * 60, channel=11, items=[(11, schema)])
    profile = read_etl(BytesSource(log_of([*(made for _, made in WORLD), event])))
    assert len(profile.modules) == 2


@pytest.mark.parametrize("value", ["--5", "-", "1" * 5000, "٣"])
def test_programming_that_is_no_number(value: str) -> None:
    fields = {
        "Source": 6,
        "Hook": -1,
        "Name": "e",
        "Period": 1,
        "Frequency": 0,
        "SelectKind": "",
        "Select": 0,
        "CallChain": 0,
        "OwnPeriod": 0,
        "Programming": f"config={value} type=4",
    }
    events = [*(made for _, made in WORLD), encode_event(supplement_event("Event", 150, fields))]
    profile = read_etl(BytesSource(log_of([*events, pmc(200, 0x140001010, 420, 6)])))
    assert profile.events[0].programming == {"type": 4, "source": 6, "interval": 65536}


# -- a bug is no short event


class Misspelled(Exception):
    """A handler asks for a field that no version of its event has."""


class Declared(dict[str, Any]):
    """Fields of an event of which only declared ones may be asked for."""

    def __init__(self, fields: dict[str, Any], names: set[str]) -> None:
        super().__init__(fields)
        self._names = names

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self._names:
            raise Misspelled(name)
        return super().get(name, default)


def test_handlers_ask_for_declared_fields_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    handle, seen = System.handle, set()

    def checked(self: System, key: Any, event: Event, fields: dict[str, Any]) -> None:
        seen.add(HANDLERS[key].take)
        names = {name for layout in LAYOUTS[key].values() for name in layout.names}
        handle(self, key, event, Declared(fields, names))

    monkeypatch.setattr(System, "handle", checked)
    for data in (made_by_hand(), of_the_demo(tmp_path)):
        read_etl(BytesSource(data))
    assert seen == {handler.take for handler in HANDLERS.values()}


def test_required_fields_are_declared() -> None:
    for key, handler in HANDLERS.items():
        newest = LAYOUTS[key][max(LAYOUTS[key])]
        assert handler.required <= set(newest.names), key
    assert set(supplement._KEYS) == set(supplement.EVENTS)
    for name, keys in supplement._KEYS.items():
        assert set(keys) <= set(supplement.EVENTS[name]), name


def test_a_bug_in_a_handler_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: System, event: Event, fields: dict[str, Any]) -> None:
        fields["ImageBaze"]

    key = kernel_key(next(e for e in one_of_each(made_by_hand()) if e.hook == 0x1403))
    assert key is not None
    monkeypatch.setitem(system.HANDLERS, key, system.HANDLERS[key]._replace(take=wrong))
    with pytest.raises(KeyError, match="ImageBaze"):
        read_etl(BytesSource(made_by_hand()))
