"""The compiled event walk against the NumPy form, over generated buffers, intact and damaged, and real logs."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fuzz_etl
from lastbranch import native
from lastbranch.errors import FormatError
from lastbranch.formats.etl import TraceLog
from lastbranch.formats.etl.events import walk
from lastbranch.formats.etl.layout import HEADERS, MESSAGE
from lastbranch.model import BytesSource
from lastbranch.opening import open_source

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")

MARKERS = [0xC000 | kind for kind in HEADERS] + [0x9000, 0x9FFF, 0xFF00 | min(HEADERS)]


def buffers(chance: random.Random) -> tuple[Any, Any, Any, Any]:
    """Words, and the first, last and limit of each buffer: chains that reach the end, break off or run over it."""
    words: list[int] = []
    first, end, limit = [], [], []
    for _ in range(chance.choice([0, 1, 3, 15, 16, 17, 40])):
        words += [chance.getrandbits(64)] * chance.choice([0, 9])
        first.append(len(words))
        for _ in range(chance.choice([0, 1, 5, 200])):
            marker, size = chance.choice(MARKERS), chance.choice([1, 7, 8, 16, 31, 32, 80, 104, 400])
            if chance.random() < 0.003:
                marker, size = chance.choice([(marker, 0), (marker, 0xFFFF), (0x8000, size), (0xC0FF, size)])
            by_marker = HEADERS.get(marker & 0xFF) if marker >= 0xC000 else None
            shift = 32 if by_marker and by_marker.is_system else 0
            other = chance.getrandbits(16)
            words.append(marker << 16 | size << shift | other << (32 - shift) | chance.getrandbits(16) << 48)
            words += [chance.getrandbits(64)] * ((max(size, 1) + 7) // 8 - 1 if size < 0xFFFF else 1)
        cut = chance.choice([0, 0, 0, 0, 1, 5])
        end.append(max(first[-1] - (chance.random() < 0.05), len(words) - cut))
        limit.append(end[-1] * 8 - chance.choice([0, 0, 0, 3]))
    whole = np.array(words + [0] * 300, np.uint64)
    return whole, *(np.array(column, np.int64) for column in (first, end, limit))


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 300, walk._GROUP]))
def test_the_same_events(seed: int, group: int) -> None:
    words, first, end, limit = buffers(random.Random(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "_GROUP", group)
        made = walk._walk_natively(words, first, end, limit)
    assert made is not None
    found, stop, _ = walk._in_numpy(words, first, end)
    for name in ("at", "head", "header", "size", "buffer"):
        ours, theirs = getattr(made[0], name), getattr(found, name)
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist()
    assert made[1].tolist() == stop.tolist()
    assert made[2] == (not walk._bad(found, limit).any())
    assert made[0].time is not None
    assert made[0].ids is not None
    for at, kind, time, ids in zip(found.at, found.header.tolist(), made[0].time, made[0].ids, strict=True):
        name = "MESSAGE" if kind == MESSAGE else HEADERS[kind].name
        assert time == words[at + (1 if "PERFINFO" in name else 2)]
        assert ids == ((1 << 64) - 1 if name[:4] in ("PERF", "ERRO", "MESS") else words[at + 1])


def test_events_denser_than_expected_get_room() -> None:
    words = np.zeros(1000, np.uint64)
    words[:990] = (0xC000 | min(HEADERS)) << 16 | 8 << (32 if HEADERS[min(HEADERS)].is_system else 0)
    first = np.arange(0, 990, 10)
    made = walk._walk_natively(words, first, first + 10, (first + 10) * 8)
    assert made is not None
    assert made[0].at.tolist() == list(range(990))


@pytest.mark.parametrize(("first", "end"), [(-1, 4), (0, 9), (4, 1 << 60), (6, 7)])
def test_buffers_beyond_the_words_are_refused(first: int, end: int) -> None:
    """A stamp is up to two words after the begin of its event."""
    bounds = np.array([[first], [end], [64]], np.int64)
    assert walk._walk_natively(np.full(8, 0xC011_0008, np.uint64), *bounds[:2], bounds[2]) is None


def walked(data: Any) -> Any:
    """All that a log says of its events, and its damage."""
    try:
        log = TraceLog(data)
    except FormatError as error:
        return str(error)
    rows = [
        [getattr(block, name).tolist() for name in ("offset", "header", "size", "buffer", "hook", "time", "tid", "pid")]
        for block in log.blocks()
    ]
    return rows, [str(damage) for damage in log.damage]


@pytest.mark.parametrize("seed", range(60))
def test_damaged_logs_say_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    data = bytes(fuzz_etl.kernel_trace(chance, None))
    if seed:
        data = fuzz_etl.spoiled(data, chance)
    compiled = walked(BytesSource(data))
    monkeypatch.setenv("LASTBRANCH_NATIVE", "0")
    assert compiled == walked(BytesSource(data))


@pytest.mark.skipif("LASTBRANCH_DATA" not in os.environ, reason="LASTBRANCH_DATA is not set: no real captures")
def test_real_logs_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(Path(os.environ["LASTBRANCH_DATA"], "etl").glob("*.etl"))
    assert files
    for file in files:
        monkeypatch.delenv("LASTBRANCH_NATIVE", raising=False)
        compiled = walked(open_source(str(file)))
        monkeypatch.setenv("LASTBRANCH_NATIVE", "0")
        assert compiled == walked(open_source(str(file))), file.name
