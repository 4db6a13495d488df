"""The compiled decoders against those in Python, over streams that were damaged: what still decodes, and what does not.

`test_codecs` has the specification's examples and the other oracles, for both forms.
"""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl_compressors import COMPRESSORS
from etl_streams import mixed, xpress_tokens
from lastbranch import native
from lastbranch.errors import FormatError
from lastbranch.formats.etl import LZNT1, XPRESS, XPRESS_HUFF
from lastbranch.formats.etl.container.decompression import DECODERS, MOST_COMPILED, _decompress_natively

pytestmark = pytest.mark.skipif(native.library() is None, reason="no compiled library")

FORMATS = st.sampled_from([LZNT1, XPRESS, XPRESS_HUFF])


def in_python(form: int, block: bytes, size: int) -> bytes | FormatError:
    try:
        return DECODERS[form](block, size)
    except FormatError as error:
        return error


def compiled(form: int, block: bytes, size: int) -> bytes | None:
    return _decompress_natively(form, block, size)


def same(form: int, block: bytes, size: int) -> bool:
    """Compare the forms; whether they decoded ``block``."""
    expected = in_python(form, block, size)
    decoded = not isinstance(expected, FormatError)
    assert compiled(form, block, size) == (expected if decoded else None)
    return decoded


def length_of(form: int, block: bytes) -> int | None:
    """How much ``block`` decodes to: the decoders in Python say it where they expect more."""
    said = in_python(form, block, 1 << 20)
    found = re.search(r"ends after (\d+) of", str(said)) if isinstance(said, FormatError) else None
    return int(found[1]) if found else None


def damaged(form: int, seed: int, size: int, times: int) -> bytes:
    chance = random.Random(seed)
    if form == XPRESS and seed % 2:
        block = bytearray(xpress_tokens(seed, size)[0])
    else:
        block = bytearray(COMPRESSORS[form](mixed(seed, size)))
    first = 256 if form == XPRESS_HUFF and chance.random() < 0.8 else 0  # damage of its table is found at once
    for _ in range(times):
        if len(block) > first:
            block[chance.randrange(first, len(block))] = chance.choice([0, 7, 255, chance.randrange(256)])
    if chance.random() < 0.2:
        del block[chance.randrange(len(block) + 1) :]
    return bytes(block)


@settings(deadline=None, max_examples=400)
@given(FORMATS, st.integers(0, 1 << 32), st.integers(1, 12_000), st.integers(0, 5), st.integers(-3, 40))
def test_damaged_streams(form: int, seed: int, size: int, times: int, more: int) -> None:
    block = damaged(form, seed, size, times)
    own = length_of(form, block)
    if own:  # wrong contents come out, of this length
        assert same(form, block, own)
    for other in (size, max(1, size + more), max(1, (own or size) - 1)):
        same(form, block, other)


@settings(deadline=None, max_examples=300)
@given(FORMATS, st.binary(max_size=700), st.integers(1, 70_000))
def test_noise(form: int, block: bytes, size: int) -> None:
    same(form, block, length_of(form, block) or size)


@pytest.mark.parametrize("form", [LZNT1, XPRESS, XPRESS_HUFF])
def test_cut_off_anywhere(form: int) -> None:
    """Near its end the input no longer has room for a whole group."""
    data = mixed(3, 3000)
    block = COMPRESSORS[form](data)
    for end in range(len(block)):
        cut = block[:end]
        same(form, cut, len(data))
        same(form, cut, length_of(form, cut) or 1)


@pytest.mark.parametrize("size", [1, 3, 15, 16, 17, 63, 64, 65, 127, 4095, 4096, 4097, 65535, 65536, 65537])
@pytest.mark.parametrize("form", [LZNT1, XPRESS, XPRESS_HUFF])
def test_sizes_about_the_limits_of_fast_copies(form: int, size: int) -> None:
    for data in (mixed(size, size), bytes(size), (b"abcdefghijklm" * 6000)[:size]):
        assert compiled(form, COMPRESSORS[form](data), size) == data


def test_a_size_that_no_buffer_has_takes_no_memory() -> None:
    assert compiled(XPRESS, b"\xff" * 4, MOST_COMPILED + 1) is None
    assert compiled(XPRESS, b"\xff" * 4, 1 << 60) is None
