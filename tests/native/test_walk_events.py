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
from lastbranch.formats.etl.events.walk import _bad, _compiled, _in_numpy
from lastbranch.formats.etl.layout import HEADERS
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
@given(st.integers(0, 1 << 32))
def test_the_same_events(seed: int) -> None:
    words, first, end, limit = buffers(random.Random(seed))
    made = _compiled(words, first, end, limit)
    assert made is not None
    found, stop, _ = _in_numpy(words, first, end)
    for name in ("at", "head", "header", "size", "buffer"):
        ours, theirs = getattr(made[0], name), getattr(found, name)
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist()
    assert made[1].tolist() == stop.tolist()
    assert made[2] == (not _bad(found, limit).any())


def test_buffers_beyond_the_words_are_refused() -> None:
    words = np.full(8, 0xC011_0008, np.uint64)
    for first, end in ((-1, 4), (0, 9), (4, 1 << 60)):
        bounds = np.array([first], np.int64), np.array([end], np.int64)
        library = native.library()
        assert library is not None
        room = np.empty(100, np.uint64)
        columns = [native.address(np.zeros(65536, np.uint8)) for _ in range(2)]
        results = [native.address(np.empty(1, np.int64)) for _ in range(2)]
        done = library.lb_walk_events(native.address(words), len(words), *map(native.address, bounds), 1, *columns,
                                      native.address(room), len(room), *results)  # fmt: skip
        assert done == -1


def walked(data: Any) -> Any:
    """All that a log says of its events, and its damage."""
    try:
        log = TraceLog(data)
    except FormatError as error:
        return str(error)
    rows = [
        [getattr(block, name).tolist() for name in ("offset", "header", "size", "buffer", "hook", "time", "tid")]
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
