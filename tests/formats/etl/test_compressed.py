"""All three compressions through whole trace files: the same events as without, and damage costs its buffer only."""

import struct

import pytest

import etl_builder as build
from etl_compressors import COMPRESSORS
from etl_event_logs import lbr, pmc
from lastbranch.formats.etl import LZNT1, XPRESS, XPRESS_HUFF, TraceLog, convert, encode_record, read_etl, read_records
from lastbranch.model import BytesSource

FORMATS = {"LZNT1": LZNT1, "XPRESS": XPRESS, "XPRESS-Huffman": XPRESS_HUFF}


def trace(form=None, *, size=8192, number=400):
    made = build.Trace(size=size, header={"processors": 3})
    if form is not None:
        made.compress, made.state = COMPRESSORS[form], form
    for i in range(number):
        time = made.begin + 10 * i
        made.add(i % 3, pmc(time, 0x400000 + i, 71))
        made.add(i % 3, lbr(time, 7, 71, (0x400000 + i, 0x400100, 1 << 63 | i), (2, 3, i)))
        made.add(i % 3, build.system(0x0548, time, struct.pack("<II", 7, 71) + "name".encode("utf-16-le") + b"\0\0"))
    return made


def events(data):
    log = TraceLog(BytesSource(data))
    found = [(e.time, e.cpu, e.hook, e.payload) for e in log.events() if e.hook]
    return found, log


def by_buffer(data):
    return [(e.buffer, (e.time, e.cpu, e.hook, e.payload)) for e in TraceLog(BytesSource(data)).events() if e.hook]


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_the_same_events_as_uncompressed(form):
    plain, log = events(bytes(trace()))
    packed = bytes(trace(form))
    found, packed_log = events(packed)
    assert found == plain
    assert (packed_log.header.compression_format, packed_log.header.compressed) == (form, True)
    assert not packed_log.damage
    assert not log.damage
    assert form == XPRESS_HUFF or len(packed) < len(bytes(trace()))
    profiles = [read_etl(BytesSource(data)) for data in (bytes(trace()), packed)]
    assert profiles[0].entries == profiles[1].entries == 800


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_rewritten_and_converted_they_are_xpress(form, tmp_path):
    data = bytes(trace(form))
    again = b"".join(encode_record(part) for part in read_records(BytesSource(data)))
    found, log = events(again)
    assert (found, log.header.compression_format) == (events(data)[0], XPRESS)
    path = tmp_path / "out.etl"
    done = convert([BytesSource(data)], path)
    assert not done.damage
    assert sorted(events(path.read_bytes())[0]) == sorted(found)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_damaged_stream_costs_its_buffer_only(form):
    made = trace(form)
    data = bytes(made)
    begin = len(made.header_buffer()) + len(made.parts[0])
    (stride,) = struct.unpack_from("<I", data, begin)
    rest = [event for at, event in by_buffer(data) if at != begin]
    assert len(rest) == 1200 - 138
    for place, noise in ((begin + 72, bytes(40)), (begin + stride - 20, b"\xff" * 20), (begin + 72, b"\xff" * 300)):
        spoiled = data[:place] + noise + data[place + len(noise) :]
        found, log = events(spoiled)
        assert found == rest
        assert log.skipped == 1
        (damage,) = log.damage
        assert damage.reason.startswith("compressed data: ")
        assert (begin + 72 <= damage.offset < begin + stride, damage.lost) == (True, stride)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_stream_of_another_length_is_damage(form):
    made = trace(form)
    data = bytearray(bytes(made))
    begin = len(made.header_buffer())
    (filled,) = struct.unpack_from("<I", data, begin + 0x30)
    struct.pack_into("<I", data, begin + 0x30, filled + 8)
    (stride,) = struct.unpack_from("<I", data, begin)
    found, log = events(bytes(data))
    assert log.skipped == 1
    assert [begin <= d.offset <= begin + stride for d in log.damage] == [True]
    assert found == [event for at, event in by_buffer(bytes(made)) if at != begin]
    assert 0 < len(found) < 1200
