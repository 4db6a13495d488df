"""Chains of events followed in lanes, against a loop over them one by one."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder as build
from lastbranch.formats.etl.events import walk as module
from lastbranch.formats.etl.events.walk import FEW_LANES, LEAST_LANE, chains
from lastbranch.formats.readahead import ReadAhead
from lastbranch.model import BytesSource

FAKE = build.perfinfo(0x0F2E, 1, bytes(16))  # 32 bytes that look like an event
EVENT_TYPES = (1, 2, 3, 4, 10, 11, 13, 16, 17, 18, 19, 20, 21)


def one_by_one(words: np.ndarray, first: np.ndarray, end: np.ndarray):
    at, count, stop = [], [], []
    for place, past in zip(first.tolist(), end.tolist(), strict=True):
        begin = len(at)
        while place < past:
            raw = int(words[place]).to_bytes(8, "little")
            kind, marker = raw[2], raw[3]
            size = 0
            if marker >= 0xC0 and kind in EVENT_TYPES:
                size = struct.unpack_from("<H", raw, 4 if kind in (1, 2, 3, 4, 16, 17) else 0)[0]
            elif 0x90 <= marker < 0xA0:
                size = struct.unpack_from("<H", raw)[0]
            if not size or place + (size + 7 >> 3) > past:
                break
            at.append(place)
            place += size + 7 >> 3
        count.append(len(at) - begin)
        stop.append(place)
    return at, count, stop


def check(buffers: list[bytes]) -> None:
    raw = b"".join(bytes(72) + body for body in buffers) + bytes(256)
    words = np.frombuffer(raw, np.uint64)
    size = np.array([len(body) >> 3 for body in buffers])
    end = np.cumsum(size + 9)
    first = end - size
    found = chains(words, first, end)
    at, count, stop = one_by_one(words, first, end)
    assert found.at.tolist() == at
    assert found.head.tolist() == words[at].tolist()
    assert found.count.tolist() == count
    assert found.stop.tolist() == stop


def body(rng: np.random.Generator, size: int, payload) -> bytes:
    made = bytearray()
    while True:
        event = build.aligned(build.perfinfo(0x0F2E, len(made), payload(rng)))
        if len(made) + len(event) > size:
            return bytes(made) + b"\xff" * (size - len(made))
        made += event


PAYLOADS = {
    "random": lambda rng: rng.bytes(int(rng.integers(0, 300))),
    "tiny": lambda rng: bytes(int(rng.integers(0, 9))),
    "large": lambda rng: rng.bytes(int(rng.integers(2000, 9000))),
    "events in events": lambda rng: FAKE * int(rng.integers(0, 60)),
    "events in events, out of step": lambda rng: b"".join(FAKE[:24] for _ in range(int(rng.integers(0, 60)))),
}


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize(("size", "number"), [(1 << 20, 2), (1 << 16, 70), (1024, 300), (4096, 1), (1 << 18, 3)])
def test_the_same_events_as_one_by_one(payload: str, size: int, number: int) -> None:
    rng = np.random.default_rng(size + number)
    check([body(rng, size, PAYLOADS[payload]) for _ in range(number)])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    damage=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=16)), max_size=6),
    payload=st.sampled_from(sorted(PAYLOADS)),
)
def test_damage_ends_the_same_chains(seed: int, damage: list[tuple[float, bytes]], payload: str) -> None:
    rng = np.random.default_rng(seed)
    bodies = [bytearray(body(rng, 1 << 16, PAYLOADS[payload])) for _ in range(4)]
    for where, what in damage:
        whole = bodies[int(where * 3.99)]
        at = int(where * 1e6) % (len(whole) - 16)
        whole[at : at + len(what)] = what
    check([bytes(one) for one in bodies])


def test_one_large_buffer_is_followed_in_many_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = []
    follow = module._follow_all

    def counting(words, begin, bound):
        lanes.append(len(begin))
        return follow(words, begin, bound)

    monkeypatch.setattr(module, "_follow_all", counting)
    rng = np.random.default_rng(1)
    check([body(rng, 1 << 20, PAYLOADS["random"])])
    assert len(lanes) == 1
    assert FEW_LANES < lanes[0] <= (1 << 17) // LEAST_LANE
    # Where events hold what looks like events, guesses fail, and the buffer is followed again from its begin.
    lanes.clear()
    check([body(rng, 1 << 18, lambda rng: FAKE * 60) for _ in range(2)])
    assert lanes[0] > FEW_LANES
    assert lanes[-1] <= lanes[0]
    assert len(lanes) == 2


def test_what_is_read_begins_with_a_page() -> None:
    reader = ReadAhead(BytesSource(bytes(10000)), 5000, pad=100)
    for offset in (0, 5000):
        assert reader.fill(offset, 5000, 10000) == 5000
        assert len(reader.data) == 5100
        assert np.frombuffer(reader.data, np.uint8).ctypes.data % 4096 == 0
