"""Damaged captures: what precedes the damage is delivered, the damage is named, nothing hangs, bursts or crashes."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import perfdata_writer as pw
from captures import FORMS, REAL, SYNTHETIC, Data, Whole, records_of
from command_line import Ran, time_limit
from fuzz_perfdata import examine, small_capture
from lastbranch.bind import bind
from lastbranch.errors import FormatError
from lastbranch.formats.perfdata.reader import read_perfdata
from lastbranch.model import BytesSource, Profile
from perfdata_writer import Builder, Record


def read(data: bytes) -> Profile:
    return bind(read_perfdata(BytesSource(data, "cut.data")))


def delivered(profile: Profile) -> int:
    return sum(map(len, profile.batches()))


def check_cut(whole: Whole, cut: int) -> None:
    with time_limit(60):
        try:
            profile = read(whole.data[:cut])
        except FormatError as error:
            refused = error
        else:
            check_delivered(profile, whole, cut)
            return
    assert whole.before(cut) == 0, "there were samples to be had"
    assert refused.file == "cut.data"
    assert refused.offset is None or refused.offset <= max(cut, 0x58)


def check_delivered(profile: Profile, whole: Whole, cut: int) -> None:
    assert delivered(profile) == profile.samples == whole.before(cut), f"cut at {cut}"
    pipe = profile.format.endswith("(pipe)")
    if cut < whole.used and not (pipe and cut in whole.borders):
        assert profile.damage, f"cut at {cut} not noticed"
        assert min(d.offset for d in profile.damage) <= max(cut, 0x58), "a place in the file"


def cuts_of(whole: Whole, number: int, seed: str) -> list[int]:
    """Every 8th byte of the headers, the borders of some records, and any bytes."""
    rng = random.Random(seed)
    first = whole.ends[1] if len(whole.ends) > 1 else whole.end
    cuts = {*range(0, min(first, 512), 8), len(whole.data) - 1}
    cuts |= {end + d for end in rng.sample(whole.ends[1:], min(number, len(whole.ends) - 1)) for d in (-1, 0, 1)}
    return sorted(cuts | {rng.randrange(len(whole.data)) for _ in range(number)})


@pytest.mark.parametrize("name", [*REAL, *SYNTHETIC])
def test_truncated_captures(name: str, data: Data) -> None:
    whole = Whole(data.path(name).read_bytes())
    number = max(4, min(30, (8 << 20) // len(whole.data) // 4))
    if "arm_etm" in name:  # half a million bytes of mappings to read each time
        number = 4
    for cut in cuts_of(whole, number, name):
        check_cut(whole, cut)


@cache
def small(form: str) -> Whole:
    capture = small_capture()
    return Whole(pw.encode(capture, **FORMS[form], chunk=1009))


@pytest.mark.parametrize("form", FORMS)
def test_truncated_forms(form: str) -> None:
    whole = small(form)
    check_cut(whole, len(whole.data))
    for cut in cuts_of(whole, 6, form):
        check_cut(whole, cut)


@pytest.mark.parametrize("number", range(28))
def test_malformed_files_of_another_project(number: int, data: Data, run: Callable[..., Ran]) -> None:
    path = sorted((data.root / "fuzz").iterdir())[number]
    with time_limit(60):
        examine(path.read_bytes())
        for verb in (["info"], ["verify"], ["report"], ["branches"], ["export", "--to", "counts"]):
            ran = run(*verb, path)
            assert ran.code in (0, 1, 3, 4)
            assert ran.code == 0 or ran.err
            assert "Traceback" not in ran.err


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(FORMS)), st.data())
def test_changed_bytes(form: str, draw: st.DataObject) -> None:
    """`examine` asserts that what is read fits together."""
    data = bytearray(small(form).data)
    place = st.one_of(st.integers(0, 500), st.integers(0, len(data) - 1))
    changes = draw.draw(st.lists(st.tuples(place, st.binary(min_size=1, max_size=8)), min_size=1, max_size=6))
    for at, value in changes:
        data[at : at + len(value)] = value
    with time_limit(60):
        examine(bytes(data))


# -- sizes that lie

SAMPLES = 20


def ordinary(**fields: int) -> Builder:
    b = Builder(**fields)
    b.mmap2(pid=7, addr=0x400000, length=0x1000, pgoff=0, name="/bin/x", time=1)
    for i in range(SAMPLES):
        b.sample(ip=0x400000 + i, pid=7, time=10 + i, branches=[(0x400010 + i, 0x400020, 1)] * (i % 4))
    return b


def patched(data: bytes, at: int, code: str, *values: int) -> bytes:
    out = bytearray(data)
    struct.pack_into(code, out, at, *values)
    return bytes(out)


HUGE = (1 << 64) - 8
LIES = {  # what -> (offset, struct code, value), and whether the samples can still be had
    "attr_size 0": ((0x10, "<Q", 0), False),
    "attr_size huge": ((0x10, "<Q", HUGE), False),
    "attrs.offset huge": ((0x18, "<Q", HUGE), False),
    "attrs.size huge": ((0x20, "<Q", HUGE), False),
    "attrs.size 0": ((0x20, "<Q", 0), False),
    "attr.size huge": ((0x68 + 4, "<I", 0xFFFFFFF8), False),
    "attr.size 8": ((0x68 + 4, "<I", 8), False),
    "ids.size huge": ((0x68 + 136, "<Q", HUGE), True),
    "data.offset huge": ((0x28, "<Q", HUGE), False),
    "data.size huge": ((0x30, "<Q", HUGE), True),
    "data.size 0": ((0x30, "<Q", 0), True),
    "every feature": ((0x48, "<4Q", *[(1 << 64) - 1] * 4), True),
}


@pytest.mark.parametrize("what", LIES)
def test_sizes_that_lie(what: str) -> None:
    (at, code, *values), readable = LIES[what]
    data = patched(ordinary().build(), at, code, *values)
    with time_limit(60):
        if readable:
            profile = read(data)
            assert delivered(profile) == SAMPLES
            assert profile.damage or what == "every feature"
        else:
            try:
                profile = read(data)
            except FormatError as error:
                named = error.offset
            else:
                assert delivered(profile) == 0
                named = profile.damage[0].offset
            assert named == (None if what == "attrs.size 0" else 0x20 if what.startswith("attrs") else at)


COUNTS = {  # field of a sample that says how much of something follows
    "branch_nr": (pw.BRANCH_STACK, 0), "callchain_nr": (pw.CALLCHAIN, 0), "read_nr": (pw.READ, 8),
    "raw_size": (pw.RAW, 0), "stack_size": (pw.STACK_USER, 0), "aux_size": (pw.AUX, 0),
}  # fmt: skip


@pytest.mark.parametrize("value", [1, 2, 9, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, 1 << 61, (1 << 63) - 1, HUGE, -1])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_that_lie(name: str, value: int) -> None:
    """One sample in twenty-one says that it holds more than it does: it is named, the others are delivered."""
    bit, form = COUNTS[name]
    if name == "raw_size" and not 8 < value < 1 << 32:
        pytest.skip("raw data have a 32-bit size, and 4 bytes stand behind it anyway")
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | bit, read_format=form | pw.FORMAT_ID)
    for i in range(SAMPLES):
        b.sample(ip=i, pid=7, time=10 + i)
    b.sample(ip=1, pid=7, time=90, **{name: value})
    b.sample(ip=2, pid=7, time=91)
    profile = read(b.build())
    position = records_of(b.build())[1][SAMPLES][0]
    assert delivered(profile) == profile.samples == SAMPLES + 1
    assert [(d.offset, d.field) for d in profile.damage] == [(position, "samples")]


def test_damaged_samples_are_not_called_lost() -> None:
    b = ordinary()
    b.sample(ip=1, pid=7, time=90, branches=[], branch_nr=1000)
    assert read(b.build()).lost == {}
    b = Builder(sample_type=pw.IP | pw.IDENTIFIER, ids=[5])
    b.attr(sample_type=pw.IP | pw.IDENTIFIER, ids=[6])
    b.sample(ip=1, identifier=7)
    b.sample(ip=2, identifier=0)  # no id at all: perf takes it for the first event's
    profile = read(b.build())
    assert profile.lost == {"samples of unknown events": 1}
    (batch,) = profile.batches()
    assert (batch.ip.tolist(), batch.event.tolist()) == ([2], [0])


def test_registers_that_are_not_there() -> None:
    b = Builder(sample_type=pw.IP | pw.REGS_USER | pw.REGS_INTR, sample_regs_user=0xFF, sample_regs_intr=0xFF)
    b.sample(ip=1, regs_user=[], regs_user_abi=1, regs_intr=[], regs_intr_abi=(1 << 64) - 1)
    b.sample(ip=2, regs_user=[1] * 8, regs_intr=[2] * 8)
    profile = read(b.build())
    assert [b.ip.tolist() for b in profile.batches()] == [[2]]
    assert len(profile.damage) == 1


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_record_of_impossible_size(size: int) -> None:
    b = ordinary()
    data = b.build()
    end, records = records_of(data)
    start = records[11][0]
    profile = read(patched(data, start + 6, "<H", size))
    assert delivered(profile) == 10
    assert [(d.offset, d.field, d.value, d.lost) for d in profile.damage] == [(start + 6, "size", size, end - start)]


KERNEL_RECORDS = (1, 2, 3, 4, 5, 7, 10, 13, 17)


@pytest.mark.parametrize("kind", [*KERNEL_RECORDS, 64, 67, 72, 78, 80])
def test_records_that_are_too_short(kind: int) -> None:
    """Named with their place; what stands before and behind them is delivered."""
    b = ordinary(sample_id_all=False)
    b.append(kind, 0, b"")
    b.sample(ip=1, pid=7, time=90, branches=[])
    data = b.build()
    profile = read(data)
    assert delivered(profile) == SAMPLES + 1
    wanted = [] if kind in (5, 72) else [records_of(data)[1][SAMPLES + 1][0]]  # those two have nothing that is read
    assert [d.offset & ~15 for d in profile.damage] == [at & ~15 for at in wanted]
    assert not any(PYTHONS_OWN.search(str(d)) for d in profile.damage)


PYTHONS_OWN = re.compile(r"unpack|struct|requires|argument|index out of range|invalid literal|codec|NoneType|format '")
"""Words of Python's own error messages, which mean nothing to a user."""


@pytest.mark.parametrize("number", [n for n in pw.FEATURES if n not in pw.NOT_IN_PIPES])
@pytest.mark.parametrize("form", ["file", "pipe"])
def test_features_of_every_length(number: int, form: str) -> None:
    """An empty one says nothing and is no damage; a part of one is read or named as damage in words."""
    if form == "pipe" and number in (2, 12):
        pytest.skip("the writer makes records of what is whole")
    b = ordinary()
    for length in range(40):
        b.capture.features[number] = bytes([1]) * length
        profile = read(b.build(**FORMS[form]))
        assert delivered(profile) == SAMPLES
        assert length or profile.damage == []
        assert not any(PYTHONS_OWN.search(str(d)) for d in profile.damage), length
    b.capture.features[number] = struct.pack("<3I", 1, 1, 5) + b"x-3,\xff"
    assert not any(PYTHONS_OWN.search(str(d)) for d in read(b.build(**FORMS[form])).damage)


def test_addresses_that_wrap() -> None:
    b = ordinary()
    top = (1 << 64) - 16
    b.record("KSYMBOL", addr=top, length=64, name="x", time=50)
    b.record("KSYMBOL", addr=top, length=64, flags=1, name="x", time=51)
    b.mmap2(pid=7, addr=top, length=64, pgoff=top, name="/bin/y", time=52)
    b.kernel_map(top, 64, time=53)
    with time_limit(60):
        profile = examine(b.build())
    assert profile is not None
    assert profile.samples == SAMPLES


def test_auxtrace_data_cut_off_in_a_pipe() -> None:
    b = ordinary()
    b.record("AUXTRACE", size=64, payload=bytes(64))
    data = b.build(pipe=True)
    assert read(data).damage == []
    profile = read(data[:-32])
    assert delivered(profile) == SAMPLES
    assert len(profile.damage) == 1, "the file ends inside the data of a record"


def test_auxtrace_data_of_impossible_size(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """From a file, whose offsets the system takes as signed."""
    b = ordinary()
    b.record("AUXTRACE", size=(1 << 63) - 8)
    path = tmp_path / "x.data"
    path.write_bytes(patched(b.build(), 0x30, "<Q", HUGE))
    ran = run("verify", path)
    assert ran.code == 1
    assert f"{SAMPLES} samples" in ran.err


def test_samples_before_the_attribute_they_name() -> None:
    """In a pipe attributes are records. A sample that comes too early is of no known event, and that is all."""
    kinds = pw.IP | pw.TID | pw.TIME | pw.IDENTIFIER
    b = Builder(sample_type=kinds, ids=[1])
    b.attr(sample_type=kinds | pw.ADDR, ids=[2])
    late = Builder(sample_type=kinds | pw.ADDR, ids=[3]).capture.attrs[0].raw
    b.sample(identifier=3, ip=1, pid=1, time=1)
    b.record("AUXTRACE", size=0)  # ends a block
    b.record("HEADER_ATTR", attr=late, ids=[3])
    b.sample(event=1, ip=2, pid=1, time=2)
    b.sample(event=1, identifier=3, ip=3, pid=1, time=3)
    profile = examine(b.build(pipe=True))
    assert profile is not None
    assert delivered(profile) == profile.samples >= 2


# -- captures that would take all memory or time, in a process with limits

WATCHED = """
import faulthandler, resource, sys
faulthandler.dump_traceback_later(45, exit=True)
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
import lastbranch
try:
    profile = lastbranch.open(sys.argv[1])
    print(sum(map(len, profile.batches())), len(profile.damage))
except lastbranch.LastbranchError as error:
    print(error)
# Not ru_maxrss: that of the process that started this one counts in it.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) >> 10, file=sys.stderr)
"""


def ids_everywhere() -> bytes:
    """A thousand events, each of which says that the whole file is its list of ids."""
    b = ordinary(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK | pw.IDENTIFIER)
    for _ in range(1000):
        b.attr(sample_type=b.capture.attrs[0]["sample_type"])
    data = bytearray(b.build() + bytes(1 << 20))
    (at,) = struct.unpack_from("<Q", data, 0x18)
    for i in range(1001):
        struct.pack_into("<2Q", data, at + i * 144 + 128, 8, 1 << 20)
    return bytes(data)


def features_everywhere() -> bytes:
    """A hundred header features, each of which is said to be the whole file."""
    b = ordinary()
    b.capture.features = dict.fromkeys(range(130, 250), b"")
    data = bytearray(b.build() + bytes(8 << 20))
    at, size = struct.unpack_from("<2Q", data, 0x28)
    for i in range(120):
        struct.pack_into("<2Q", data, at + size + 16 * i, 8, 8 << 20)
    return bytes(data)


def processor_lists() -> bytes:
    text = ",".join(["0-1048575"] * 400).encode() + b"\0"
    b = ordinary()
    b.capture.features[14] = struct.pack("<2I2QI", 1, 0, 1, 1, len(text)) + text
    return b.build()


def zstd_bomb(inner: bytes, times: int) -> bytes:
    """COMPRESSED records that stand for ``times`` MiB of repeated ``inner``."""
    b = ordinary()
    zstd = zstandard.ZstdCompressor(level=3).compressobj()
    packed = b"".join(zstd.compress(inner * ((1 << 20) // len(inner))) for _ in range(times)) + zstd.flush()
    for at in range(0, len(packed), 60_000):
        b.append(81, 0, packed[at : at + 60_000])
    return b.build()


def unaligned_records() -> bytes:
    b = ordinary()
    b.capture.records += [Record(12, 0, b"\0")] * 50_000
    return b.build()


def many_attributes() -> bytes:
    b = ordinary()
    b.capture.records += [Record(64, 0, struct.pack("<2I", 0, 64) + bytes(56))] * 40_000
    return b.build(pipe=True)


def empty_records() -> bytes:
    b = ordinary()
    b.capture.records += [Record(3, 0, b"")] * 100_000
    return b.build()


BOMBS: dict[str, Callable[[], bytes]] = {
    "ids": ids_everywhere,
    "features": features_everywhere,
    "processor lists": processor_lists,
    "1 GiB of zeros": lambda: zstd_bomb(bytes(1024), 1024),
    "8 MiB of small records": lambda: zstd_bomb(struct.pack("<IHHQ", 12, 0, 16, 0), 8),
    "2 MiB of unaligned records": lambda: zstd_bomb(struct.pack("<IHHI", 12, 0, 12, 0), 2),
    "unaligned records": unaligned_records,
    "attributes": many_attributes,
    "empty records": empty_records,
}


@pytest.mark.skipif(sys.platform == "win32", reason="no resource limits there")
@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.data"
    path.write_bytes(BOMBS[name]())
    done = subprocess.run([sys.executable, "-c", WATCHED, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[0] == str(SAMPLES)
    assert int(done.stderr.split()[-1]) < 500, "MiB at most"
