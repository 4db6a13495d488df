"""Decompression of ETW trace buffers: the specification's examples, three oracles, hostile input, workers.

Oracles: `reference` below, the specification's loop with nothing added; dissect.util, live where it is installed; its
stored results for streams of all three formats (`make_etl_codecs`), and for real files, made by

    python benchmarks/bench_xpress.py etl/{net.4.5.2.x64,SelfDescribingSingleEvent,smallEtlFile}.etl \\
        --store tests/data/etl_xpress.json
"""

import hashlib
import json
import os
import pickle
import random
import struct
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl_streams import FLAT, HuffmanWriter, huffman_blocks, lengths_table, lznt1_compress, mixed
from lastbranch import native
from lastbranch.errors import FormatError
from lastbranch.formats.etl import LZNT1, XPRESS, XPRESS_HUFF, compress, decompress
from lastbranch.formats.etl.container import decompression
from lastbranch.formats.etl.container.decompression import decompress_many
from make_etl_codecs import DATA, cases, digest
from xpress_tokens import Tokens

STORED = json.loads((Path(__file__).parents[2] / "data" / "etl_xpress.json").read_text())
SAID = json.loads((Path(__file__).parents[2] / "data" / "etl_codecs.json").read_text())
CASES = {name: (form, make) for name, form, make in cases()}
ALPHABET = b"abcdefghijklmnopqrstuvwxyz"
ABC = b"abc" * 100


@pytest.fixture(scope="module", autouse=True, params=["compiled", "Python"])
def form(request):
    """Everything here holds for both forms."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "Python":
            patch.setenv("LASTBRANCH_NATIVE", "0")
        elif native.library() is None:
            pytest.skip("no compiled library")
        yield request.param


@pytest.fixture(scope="session")
def oracle():
    return pytest.importorskip("dissect.util.compression", reason="dissect.util, the live oracle, is not installed")


def real_buffers(name):
    """Compressed payloads of a real file and their sizes after decompression."""
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: no real captures")
    data, at, blocks, sizes = (Path(root) / "etl" / name).read_bytes(), 0, [], []
    while at < len(data):
        length, filled = struct.unpack_from("<I44xI", data, at)
        if data[at + 0x34] & 0x40:
            blocks.append(data[at + 0x48 : at + length])
            sizes.append(filled - 0x48)
        at += length
    return blocks, sizes


def reference(block, size):
    """[MS-XCA] 2.4.4 byte by byte; None where the specification says error, or the size is not `size`."""

    def read(count):
        nonlocal at
        at += count
        if at > len(block):
            raise EOFError
        return int.from_bytes(block[at - count : at], "little")

    out, at, count, half_at = bytearray(), 0, 0, 0
    try:
        while True:
            if count == 0:
                if at == len(block):
                    break
                flags, count = read(4), 32
            count -= 1
            if at == len(block):  # literal flags left at the end: taken as the end too
                break
            if not flags >> count & 1:
                out.append(read(1))
            else:
                distance, length = divmod(read(2), 8)
                if length == 7:
                    if half_at:
                        length, half_at = block[half_at] >> 4, 0
                    else:
                        half_at = at
                        length = read(1) & 15
                    if length == 15:
                        length = read(1)
                        if length == 255:
                            length = read(2) or read(4)
                            if length < 22:
                                return None
                            length -= 22
                        length += 15
                    length += 7
                length += 3
                if distance + 1 > len(out) or len(out) + length > size:
                    return None
                for _ in range(length):
                    out.append(out[-distance - 1])
            if len(out) > size:
                return None
    except EOFError:
        return None
    return bytes(out) if len(out) == size else None


def result(decoder, block, size):
    """What came out, or None; wherever damage is found, its place must be in the block."""
    try:
        return decoder(block, size)
    except FormatError as error:
        damage = error.offset
    assert damage is not None
    assert 0 <= damage <= len(block)
    return None


# --- plain LZXPRESS ---------------------------------------------------------------------------------------------------

EXAMPLES = [  # [MS-XCA] 3.1
    (b"\x3f\0\0\0" + ALPHABET, ALPHABET),
    (bytes.fromhex("ffffff1f 616263 1700 0f ff 2601"), ABC),
]


@pytest.mark.parametrize(("block", "data"), EXAMPLES)
def test_examples(block, data):
    assert decompress(block, len(data)) == data == reference(block, len(data))
    assert compress(data) == block
    assert decompress(memoryview(block), len(data)) == data


def test_empty():
    assert compress(b"") == b"\xff" * 4
    assert decompress(b"", 0) == decompress(compress(b""), 0) == b""


def test_a_full_last_group_is_followed_by_an_empty_one():
    data = random.Random(3).randbytes(32)
    assert compress(data) == bytes(4) + data + b"\xff" * 4
    assert decompress(bytes(4) + data, 32) == decompress(compress(data), 32) == data


token = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.tuples(st.integers(1, 8192), st.one_of(st.integers(3, 30), st.integers(260, 300), st.just(65538))),
)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=9000), st.lists(token, max_size=200))
def test_any_tokens(start, tokens):
    """All that the format can say, also what our own compressor never does."""
    made, data = Tokens(), bytearray()
    for piece in [start, *tokens]:
        if isinstance(piece, bytes):
            for byte in piece:
                made.literal(byte)
            data += piece
        elif len(data) < 1 << 18:
            distance, length = min(piece[0], len(data)), piece[1]
            made.match(distance, length)
            data += (data[-distance:] * (length // distance + 1))[:length]
    assert decompress(made.finish(), len(data)) == data


def test_length_in_four_bytes():
    block = bytes.fromhex("ffffff7f 78 0700 0f ff 0000") + struct.pack("<I", 99_997 - 3)
    assert decompress(block, 99_998) == b"x" * 99_998
    # The same behind a full window, where the fast loop works.
    front = random.Random(4).randbytes(9 * 32 * 32)
    many = b"".join(bytes(4) + front[at : at + 32] for at in range(0, len(front), 32))
    tail = struct.pack("<IHBBHI", 0xFFFFFFFF, 7, 15, 255, 0, 70_000)
    assert decompress(many + tail, len(front) + 70_003) == front + front[-1:] * 70_003


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=3000), st.builds(mixed, st.integers(0, 1 << 32), st.integers(0, 70_000))))
def test_round_trip(data):
    assert decompress(compress(data), len(data)) == data


@pytest.mark.parametrize(
    "data", [bytes(1 << 20), b"ab" * 40_000, mixed(1, 200_000), random.Random(2).randbytes(70_000)]
)
def test_round_trip_through_the_live_oracle(data, oracle):
    block = compress(data)
    assert len(block) <= len(data) * 9 / 8 + 8
    assert oracle.lzxpress.decompress(block) == decompress(block, len(data)) == data


@pytest.mark.parametrize("name", DATA)
def test_compressed_as_the_specification_reads_it(name):
    data = DATA[name]()
    block = compress(data)
    assert reference(block, len(data)) == decompress(block, len(data)) == data
    assert len(block) <= len(data) * 9 / 8 + 8


def test_matches_go_back_into_the_piece_before():
    piece = random.Random(3).randbytes(7000)
    data = bytes(1 << 16)[: (1 << 16) - 7000] + piece + piece
    block = compress(data)
    assert reference(block, len(data)) == data
    assert len(block) < 8300


def test_matches_as_long_as_a_piece():
    """DEFLATE's are 258 bytes at most; a match of LZXPRESS is up to 7 bytes for any length."""
    assert len(compress(bytes(1 << 20))) <= (1 << 20 - 16) * 16


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_what_zlib_does_is_not_trusted(level, monkeypatch):
    """Codes of its own, stored blocks or none of a repetition: the data is the same."""
    plain = zlib.compressobj

    def other(_level, method, bits, memory, _strategy, before):
        return plain(level, method, bits, memory, zlib.Z_DEFAULT_STRATEGY, before)

    monkeypatch.setattr(zlib, "compressobj", other)
    data = mixed(4, 100_000)
    assert decompress(compress(data), len(data)) == data


def test_stored_blocks_between_others():
    """zlib stores what it cannot make smaller."""
    noise = random.Random(8).randbytes(40_000)
    for data in (mixed(1, 25_000) + noise, noise + mixed(1, 25_000), noise[:33_000] + mixed(1, 32_000) + noise):
        assert reference(compress(data), len(data)) == data


def test_the_stored_oracle_was_asked_about_all_streams():
    assert set(SAID) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_like_the_stored_oracle(name):
    """The block is the one that dissect.util read, and what it made of it is what we make of it."""
    form, make = CASES[name]
    block, data = make()
    assert digest(block) == SAID[name]["block"], "other bytes than were stored: run make_etl_codecs again"
    decoded = decompress(block, SAID[name]["size"], format=form)
    assert digest(decoded) == SAID[name]["data"]
    assert decoded == data


@pytest.mark.parametrize(
    ("block", "size", "message", "offset"),
    [
        (b"\x3f\0\0\0" + ALPHABET, 27, "ends after 26 of 27 bytes", 30),
        (b"\x3f\0\0\0" + ALPHABET, 25, "more than 25 bytes", 29),
        (EXAMPLES[1][0], 299, "more than 299 bytes", 7),
        (EXAMPLES[1][0], 0, "more than 0 bytes", 4),
        (b"\xff\xff\xff\x7fa\x08\0", 9, r"before the start of the data .*distance = 2", 5),
        (b"\xff\xff\xff", 9, "cut off", 0),
        (b"\xff\xff\xff\x7fa\x07", 9, "cut off", 5),
        (b"\xff\xff\xff\x7fa\x07\0", 19, "cut off", 7),
        (b"\xff\xff\xff\x7fa\x07\0\x0f\xff\x15\0", 19, "wrong form .*length = 0x15", 8),
        (b"\xff\xff\xff\x7fa\x07\0\x0f\xff\0\0\xff\xff\xff\xff", 99, "more than 99 bytes", 5),
        (b"", 1, "ends after 0 of 1 bytes", 0),
    ],
)
def test_damage_is_located(block, size, message, offset):
    with pytest.raises(FormatError, match=message) as caught:
        decompress(block, size)
    assert caught.value.offset == offset


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 1 << 32), st.integers(100, 30_000), st.data())
def test_damaged_streams_like_the_reference(seed, size, draw):
    """Wherever a stream is damaged, the two gears together decide as the specification's plain loop does."""
    block, rng = bytearray(compress(mixed(seed, size))), random.Random(seed)
    for _ in range(draw.draw(st.integers(1, 4))):
        block[rng.randrange(len(block))] = rng.choice([0, 255, rng.randrange(256)])
    if draw.draw(st.booleans()):
        del block[rng.randrange(len(block)) :]
    size += draw.draw(st.sampled_from([0, 0, 0, 1, -1, 1000, -90]))
    assert result(decompress, block, size) == reference(block, size)
    # A size that fits the damaged stream, so that wrong contents could come out.
    other = rng.randrange(40_000)
    assert result(decompress, block, other) == reference(block, other)


@given(st.sampled_from([LZNT1, XPRESS, XPRESS_HUFF]), st.binary(max_size=600), st.integers(0, 70_000))
@settings(deadline=None)
def test_noise(format, block, size):
    data = result(decompression.DECODERS[format], block, size)
    assert data is None or len(data) == size


def test_bombs_are_refused_before_they_grow():
    bomb = struct.pack("<I", 0x7FFFFFFF) + b"a" + b"\x07\0\x0f\xff\0\0\xff\xff\xff\x7f" * 1000
    started = time.process_time()
    with pytest.raises(FormatError, match="more than 100000 bytes"):
        decompress(bomb, 100_000)
    assert time.process_time() - started < 1


# --- real files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(STORED))
def test_real_file_equals_the_stored_oracle(name):
    blocks, sizes = real_buffers(name)
    decoded = decompress_many(blocks, sizes)
    assert [hashlib.sha256(data).hexdigest()[:16] for data in decoded] == STORED[name]
    assert [len(data) for data in decoded] == sizes


def test_real_file_compressed_again():
    blocks, sizes = real_buffers("net.4.5.2.x64.etl")
    chosen = slice(0, None, 40)
    decoded = decompress_many(blocks[chosen], sizes[chosen])
    again = [compress(data) for data in decoded]
    assert decompress_many(again, sizes[chosen]) == decoded
    assert sum(map(len, again)) < 1.02 * sum(map(len, blocks[chosen]))


def test_real_file_cut_off_anywhere():
    blocks, sizes = real_buffers("net.4.5.2.x64.etl")
    block = blocks[7]
    for end in range(0, len(block), 397):
        with pytest.raises(FormatError) as caught:
            decompress(block[:end], sizes[7])
        assert caught.value.offset <= end


def test_real_file_equals_the_live_oracle(oracle):
    blocks, sizes = real_buffers("net.4.5.2.x64.etl")
    for block, data in zip(blocks[::10], decompress_many(blocks[::10], sizes[::10]), strict=True):
        assert oracle.lzxpress.decompress(block) == data


# --- many blocks and workers ------------------------------------------------------------------------------------------


@pytest.fixture
def any_size_is_worth_a_worker(form, monkeypatch):
    if form == "compiled":
        pytest.skip("the library needs no workers")
    monkeypatch.setattr(decompression, "WORTH_A_WORKER", 1)
    monkeypatch.setattr(decompression, "_losses", 0)
    decompression.stop()
    yield
    decompression.stop()


def some_blocks(count=9):
    data = [mixed(seed, 3000 * (seed + 1)) for seed in range(count)]
    return data, [compress(piece) for piece in data], [len(piece) for piece in data]


def test_a_damaged_block_costs_only_itself():
    data, blocks, sizes = some_blocks()
    blocks[4] = blocks[4][:100]
    decoded = decompress_many(blocks, sizes)
    assert isinstance(decoded[4], FormatError)
    assert decoded[:4] + decoded[5:] == data[:4] + data[5:]


def test_workers(any_size_is_worth_a_worker):
    data, blocks, sizes = some_blocks()
    sizes[0] -= 1
    for count in (2, 3):
        decoded = decompress_many([memoryview(block) for block in blocks], sizes, workers=count)
        assert decoded[1:] == data[1:]
        assert isinstance(decoded[0], FormatError)
        assert f"more than {sizes[0]} bytes" in decoded[0].reason
        assert decoded[0].offset is not None
        assert len(decompression._running) == count - 1


def test_a_killed_worker_is_replaced(any_size_is_worth_a_worker):
    data, blocks, sizes = some_blocks()
    assert decompress_many(blocks, sizes, workers=2) == data
    first = decompression._running[0].process
    first.kill()
    first.wait()
    assert decompress_many(blocks, sizes, workers=2) == data
    assert decompress_many(blocks, sizes, workers=2) == data
    assert decompression._running[0].process.pid != first.pid
    assert decompression._losses == 1


def test_without_an_interpreter_all_is_done_here(any_size_is_worth_a_worker, monkeypatch):
    monkeypatch.setattr(decompression.sys, "executable", "/nonexistent/python")
    data, blocks, sizes = some_blocks()
    for _ in range(5):
        assert decompress_many(blocks, sizes, workers=3) == data
    assert decompression._losses == decompression.MOST_LOSSES


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_workers_of_its_own(any_size_is_worth_a_worker):
    data, blocks, sizes = some_blocks()
    assert decompress_many(blocks, sizes, workers=2) == data
    child = os.fork()
    if not child:
        good = decompress_many(blocks, sizes, workers=2) == data
        decompression.stop()
        os._exit(0 if good else 1)
    assert decompress_many(blocks, sizes, workers=2) == data
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert decompress_many(blocks, sizes, workers=2) == data
    assert decompression._losses == 0


def test_a_worker_ends_with_its_input(any_size_is_worth_a_worker):
    _, blocks, sizes = some_blocks()
    decompress_many(blocks, sizes, workers=2)
    process = decompression._running[0].process
    process.stdin.close()
    assert process.wait(timeout=60) == 0


def test_the_library_needs_no_worker(form, monkeypatch):
    if form == "Python":
        pytest.skip("without the library there are workers")
    monkeypatch.setattr(decompression, "WORTH_A_WORKER", 1)
    data, blocks, sizes = some_blocks()
    decompression.stop()
    assert decompress_many(blocks, sizes, workers=3) == data
    assert decompression._running == []


def test_small_work_starts_no_worker():
    _, blocks, sizes = some_blocks(3)
    decompression.stop()
    decompress_many(blocks, sizes, workers=2)
    assert decompression._running == []


def test_arguments():
    with pytest.raises(ValueError, match="1 blocks but 2 sizes"):
        decompress_many([b""], [0, 0])
    with pytest.raises(FormatError, match=r"unknown compression format .*State = 1"):
        decompress(b"", 0, format=1)
    assert decompress_many([], [], workers=2) == []


def test_shares_are_balanced_and_complete():
    for lengths in ([1] * 10, [100, 1, 1, 1], [1, 1, 1, 100], [5, 5], [0, 0, 7]):
        blocks = [bytes(length) for length in lengths]
        for count in range(1, len(blocks) + 1):
            shares = decompression._shares(blocks, sum(lengths), count)
            assert [block for share in shares for block in blocks[share]] == blocks
    assert decompression._shares([bytes(9)] * 8, 72, 2) == [slice(0, 4), slice(4, 8)]


def test_errors_survive_the_way_between_processes():
    error = pickle.loads(pickle.dumps(FormatError("broken", offset=7, field="x", value=1, hint="h")))
    assert (error.reason, error.offset, error.field, error.value, error.hint) == ("broken", 7, "x", 1, "h")
    assert str(error) == "broken (at offset 0x7, x = 1)"


# --- LZNT1 ------------------------------------------------------------------------------------------------------------

# [MS-XCA] 3.3
SONG = (
    b"F# F# G A A G F# E D D E F# F# E E F# F# G A A G F# E D D E F# E D D E E F# D E F# G F# D E F# G F# E D E A "
    b"F# F# G A A G F# E D D E F# E D D\0"
)
SONG_LZNT1 = bytes.fromhex(
    "38b0884623200020 47204100 10a24701 a045204400084501 507900c045200524 138805b4024a44ef 0358028c09160148"
    "4500be009e000401 189000"
)


def test_lznt1_example():
    assert decompress(SONG_LZNT1, 142, format=LZNT1) == SONG
    assert decompress(SONG_LZNT1 + b"\0\0", 142, format=LZNT1) == SONG


@settings(deadline=None)
@given(st.integers(0, 1 << 32), st.integers(0, 15_000))
def test_lznt1_round_trip(seed, size):
    data = mixed(seed, size)
    assert decompress(lznt1_compress(data), size, format=LZNT1) == data


@pytest.mark.parametrize("seed", range(5))
def test_lznt1_like_the_live_oracle(seed, oracle):
    block = lznt1_compress(mixed(seed, 20_000))
    assert oracle.lznt1.decompress(block) == decompress(block, 20_000, format=LZNT1)


@pytest.mark.parametrize(
    ("block", "size", "message", "offset"),
    [
        (SONG_LZNT1, 143, "ends after 142 of 143", 59),
        (SONG_LZNT1, 141, "more than 141 bytes", 0),
        (SONG_LZNT1[:-1], 142, "cut off", 2),
        (b"\x01", 142, "cut off", 0),
        (b"\x01\x80ab", 2, "without its signature .*header = 0x8001", 0),
        (b"\x02\xb0\x01\0\0", 3, "before the start of the chunk", 3),
        (b"\x03\xb0\x02a\xff\x1f", 4, "before the start of the chunk", 4),
        (b"\x03\xb0\x02a\0\0\x00\x30b", 5, "before the last", 6),
        (b"\x02\xb0\x03a\0", 4, "before the start of the chunk|cut off", 3),
    ],
)
def test_lznt1_damage_is_located(block, size, message, offset):
    with pytest.raises(FormatError, match=message) as caught:
        decompress(block, size, format=LZNT1)
    assert caught.value.offset == offset


def test_lznt1_chunk_too_long():
    body = b"\x02a\xff\x0f" + b"\x01\xff\x0f"  # 1 + 4098 bytes
    with pytest.raises(FormatError, match="more than 4096 bytes"):
        decompress((0xB000 | len(body) - 1).to_bytes(2, "little") + body, 9000, format=LZNT1)


# --- LZXPRESS with Huffman codes --------------------------------------------------------------------------------------


# [MS-XCA] 3.2
HUFFMAN = [
    (
        lengths_table(dict.fromkeys(range(97, 119), 5) | dict.fromkeys([*range(119, 123), 256], 4))
        + bytes.fromhex("d8523ed794115be9195ff9d67cdf8d0400000000"),
        ALPHABET,
    ),
    (lengths_table({97: 3, 98: 3, 99: 2, 256: 2, 287: 2}) + bytes.fromhex("a8dc0000ff2601"), ABC),
]


SKEWED = {
    97: 1,
    98: 2,
    99: 3,
    256: 4,
    271: 5,
    287: 6,
    258: 7,
    350: 8,
    303: 9,
    360: 10,
    400: 11,
    496: 12,
    511: 13,
    1: 14,
    2: 15,
    3: 15,
}


@pytest.mark.parametrize(("block", "data"), HUFFMAN)
def test_huffman_examples(block, data):
    assert decompress(block, len(data), format=XPRESS_HUFF) == data


@settings(deadline=None)
@given(
    st.sampled_from([FLAT, SKEWED]),
    st.lists(st.one_of(st.integers(0, 255), st.tuples(st.integers(1, 65535), st.integers(3, 700))), max_size=400),
)
def test_huffman_any_tokens(lengths, tokens):
    writer, data = HuffmanWriter(lengths), bytearray()
    for piece in tokens:
        if len(data) >= 65536:
            break
        if isinstance(piece, int):
            if piece in lengths:
                writer.symbol(piece)
                data.append(piece)
        elif data:
            distance, length = min(piece[0], len(data)), piece[1]
            extra = distance.bit_length() - 1
            if 256 + 16 * extra + min(length - 3, 15) in lengths:
                writer.match(distance, length)
                data += (data[-distance:] * (length // distance + 1))[:length]
    writer.symbol(256)
    block = writer.finish()
    assert decompress(block, len(data), format=XPRESS_HUFF) == data


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 140_000])
def test_huffman_blocks(size):
    data = (mixed(5, 2000) * 80)[:size]
    assert decompress(huffman_blocks(data), size, format=XPRESS_HUFF) == data


@pytest.mark.parametrize("seed", range(5))
def test_huffman_like_the_live_oracle(seed, oracle):
    # dissect.util decodes until it has read the input, which its read-ahead does too early without something behind.
    block = huffman_blocks(mixed(seed, 30_000)) + bytes(4)
    assert oracle.lzxpress_huffman.decompress(block)[:30_000] == decompress(block, 30_000, format=XPRESS_HUFF)


@pytest.mark.parametrize(
    ("block", "size", "message"),
    [
        (b"", 1, "cut off .*code lengths"),
        (bytes(256), 1, "make no code"),
        (b"\x11" * 256, 1, "make no code"),
        (b"\xff" * 255, 1, "cut off"),
        (HUFFMAN[1][0], 299, "more than 299 bytes"),
        (HUFFMAN[1][0][:-1], 300, "cut off"),
        (HUFFMAN[0][0][:-6], 26, "cut off"),
        (HUFFMAN[1][0], 400, "cut off|ends"),
        (lengths_table({97: 1, 256: 1}) + b"\xff\xff\xff\xff", 9, "before the start of the data .*distance = 1"),
        (lengths_table({97: 1, 271: 1}) + b"\0\x40\0\0\xff\x01\0", 99, "wrong form"),
    ],
)
def test_huffman_damage(block, size, message):
    with pytest.raises(FormatError, match=message) as caught:
        decompress(block, size, format=XPRESS_HUFF)
    assert 0 <= caught.value.offset <= len(block)
