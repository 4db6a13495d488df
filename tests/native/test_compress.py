"""The compiled encoder against the NumPy form: the same bytes, whatever zlib found."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl_streams import mixed
from lastbranch import native
from lastbranch.formats.etl import decompress
from lastbranch.formats.etl.container import compression
from lastbranch.formats.etl.container.compression import _PIECE, _compress_natively, _deflate, _in_numpy

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")


def packed(data: bytes) -> list[bytes]:
    return [_deflate(data, begin) for begin in range(0, len(data), _PIECE)]


def varied(seed: int, size: int) -> bytes:
    """Noise, which zlib stores, long repetitions, which are joined, and what is between them."""
    chance, out = random.Random(seed), bytearray()
    while len(out) < size:
        part = chance.choice([chance.randbytes(9000), bytes(chance.randrange(1, 70_000)), mixed(seed, 20_000)])
        out += part[: chance.randrange(len(part)) + 1]
    return bytes(out[:size])


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 1 << 32), st.one_of(st.integers(1, 300), st.integers(1, 200_000)))
def test_the_same_bytes(seed: int, size: int) -> None:
    for data in (mixed(seed, size), varied(seed, size)):
        made = _compress_natively(data, packed(data))
        assert made == _in_numpy(data, packed(data))
        assert decompress(made, size) == data


@settings(deadline=None, max_examples=300)
@given(st.binary(min_size=1, max_size=200), st.integers(1, 60))
def test_the_same_bytes_of_short_repetitions(piece: bytes, times: int) -> None:
    data = piece * times
    assert _compress_natively(data, packed(data)) == _in_numpy(data, packed(data))


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_codes_that_it_does_not_know(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = zlib.compressobj

    def other(_level: int, method: int, bits: int, memory: int, _strategy: int, before: bytes) -> object:
        return plain(level, method, bits, memory, zlib.Z_DEFAULT_STRATEGY, before)

    monkeypatch.setattr(compression.zlib, "compressobj", other)
    data = mixed(4, 100_000)
    assert _compress_natively(data, packed(data)) in (None, _in_numpy(data, packed(data)))


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 1 << 32), st.integers(20, 5000))
def test_damage_stays_within_its_bounds(seed: int, size: int) -> None:
    """What no zlib writes. A stream that is taken covers the data, whatever it says."""
    chance, data = random.Random(seed), mixed(seed, size)
    (part,) = packed(data)
    spoiled = bytearray(part)
    for _ in range(chance.randrange(1, 5)):
        spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
    del spoiled[chance.choice([len(spoiled), chance.randrange(len(spoiled) + 1)]) :]
    made = _compress_natively(data, [bytes(spoiled)])
    assert made is None or len(decompress(made, size)) == size
