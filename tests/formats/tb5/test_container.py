"""The container of TB5 files: tables in, tables out, commits, and the reader of the specification on the same bytes."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch.errors import FormatError, UnavailableError
from lastbranch.formats.tb5 import writer as durable
from lastbranch.formats.tb5.commits import block_check
from lastbranch.formats.tb5.descriptors import check_descriptors
from lastbranch.formats.tb5.layout import STRUCTS, Scope, Table, empty_records
from lastbranch.formats.tb5.model_section import pack, unpack
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.strings import decode, encode
from lastbranch.formats.tb5.verification import verify
from lastbranch.formats.tb5.writer import Tb5Writer
from lastbranch.opening import open_source
from tb5_reader import TB5
from tb5_reader import block_check as other_check

DATA = Table(Scope.STREAM, 0, 2)
HOST = Table(Scope.GLOBAL, 0, 1)
USER = Table(Scope.GLOBAL, 0, 4)


def read(path: Path) -> Tb5File:
    return Tb5File(open_source(str(path)))


def small(path: Path, rows: int = 1000) -> bytes:
    """A file with a host, user data and a stream; its records."""
    records = np.random.default_rng(rows).integers(0, 256, (rows, 40), np.uint8)
    with Tb5Writer.create(path) as writer:
        host = empty_records("TBRW_HOST", 1)
        host["host_name"] = writer.string("host")
        writer.put(HOST, host)
        writer.put(USER, b"user data")
        writer.put(DATA, records)
    return records.tobytes()


def test_sizes_of_the_guides_records() -> None:
    sizes = {
        "TBRW_VERSION_INFO": 16,
        "TBRW_STREAM_INFO": 56,
        "TBRW_SYSTEM": 16,
        "TBRW_NODE": 40,
        "TBRW_CPU": 64,
        "TBRW_CPU_ARCH": 16,
        "TBRW_CPUID_IA32": 24,
        "TBRW_CPUID_IA64": 24,
        "TBRW_OS": 40,
        "TBRW_APPLICATION": 32,
        "TBRW_TID": 40,
        "TBRW_EVENT": 48,
        "TBRW_EVENT_DETAIL": 32,
        "TBRW_SAMPREC_DESC_ENTRY": 40,
        "DATA_BIND_STRUCT": 24,
        "TBRW_SampleRecordPC": 32,
        "TBRW_SampleRecordTSC": 8,
    }
    assert {name: STRUCTS[name].size for name in sizes} == sizes
    places = {"node_physical_memory": 24, "cpu_array": 32}
    assert {f.name: f.offset for f in STRUCTS["TBRW_NODE"].fields if f.name in places} == places


@given(st.binary(max_size=9000))
@settings(max_examples=40, deadline=None)
def test_check_of_a_block_is_that_of_the_specification(block: bytes) -> None:
    assert block_check(np.frombuffer(block, np.uint8)) == other_check(block)


@given(st.integers(0, 2**32), st.integers(1, 40_000), st.data())
@settings(max_examples=60, deadline=None)
def test_every_flipped_bit_and_every_swap_changes_the_check(seed: int, size: int, data: st.DataObject) -> None:
    block = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    before = block_check(block)
    at = data.draw(st.integers(0, 8 * size - 1))
    flipped = block.copy()
    flipped[at >> 3] ^= 1 << (at & 7)
    assert block_check(flipped)[0] != before[0]
    for width in (4, 8):
        words = block[: size // width * width].reshape(-1, width).copy()
        if len(words) < 2:
            continue
        a, b = data.draw(st.tuples(*[st.integers(0, len(words) - 1)] * 2))
        if bytes(words[a]) != bytes(words[b]):
            words[[a, b]] = words[[b, a]]
            swapped = np.concatenate([words.reshape(-1), block[size // width * width :]])
            assert block_check(swapped)[0] != before[0]


def test_constant_pages_that_vanish_change_the_sum() -> None:
    block = np.full(1 << 20, 0x55, np.uint8)
    lost = block.copy()
    lost[8192:16384] = 0
    assert block_check(lost)[1] != block_check(block)[1]


@given(st.text(st.characters()) | st.binary().map(lambda b: b.decode("utf-8", "surrogateescape")))
def test_strings_come_back(text: str) -> None:
    assert decode(encode(text)) == text


def test_strings_that_two_forms_could_mean_come_back() -> None:
    for text in ("\ud800", "\udced\udca0\udc80", "a\udcff\ud800b"):
        assert decode(encode(text)) == text


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_VALUES)
@settings(max_examples=50, deadline=None)
def test_values_come_back(value: object) -> None:
    texts = [""]

    def string(text: str) -> int:
        texts.append(text)
        return len(texts) - 1

    assert unpack(*pack(value, string), texts.__getitem__) == value


@pytest.mark.parametrize("rows", [0, 1, 1000, 250_000])
def test_the_specifications_reader_agrees(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "a.tb5"
    data = small(path, rows if rows < 200_000 else 110_000)
    other, ours = TB5(path), read(path)
    assert other.tables[1, 0, 2, 0] == (40, data)
    assert ours.bytes(DATA) == data
    assert other.tables[0, 0, 4, 0] == (1, b"user data")
    assert other.texts == [b"", b"host"]
    assert ours.string(1) == "host"
    assert {tuple(int(x) for x in k) for k in ours.tables} == {(s, n, c, p) for s, n, c, p in other.tables}
    assert (other.flags, ours.damage, ours.closed_well) == (1, [], True)


def test_any_range_of_records(tmp_path: Path) -> None:
    data = np.frombuffer(small(tmp_path / "a.tb5", 220_000), np.uint8).reshape(-1, 40)
    file = read(tmp_path / "a.tb5")
    for first, count in ((0, 5), (104_000, 9000), (219_999, 1), (219_999, 10), (220_000, 1), (0, None)):
        wanted = data[first:] if count is None else data[first : first + count]
        assert np.array_equal(file.read(DATA, first, count), wanted)


def test_blocks_that_are_read_ahead_come_in_order_and_damage_in_its_place(tmp_path: Path) -> None:
    path, records = tmp_path / "a.tb5", np.arange(11 << 18, dtype="<u8").reshape(11, -1)
    with Tb5Writer.create(path) as writer:
        writer.put(DATA, records)
    file = read(path)
    assert np.array_equal(file.read(DATA).view("<u8"), records)
    assert next(file.blocks(DATA)).view("<u8")[0, 5] == 5  # and the rest is never asked for
    whole = bytearray(path.read_bytes())
    whole[int(file.offsets(DATA)[3]) + 1] ^= 1
    path.write_bytes(whole)
    with read(path) as file:
        seen = []
        for number, rows in file.some_blocks(DATA, range(file.tables[DATA].blocks)):
            if isinstance(rows, FormatError):
                assert (number, rows.field) == (3, "check")
            else:
                kept = rows.view("<u8")[:, 0].copy()
                time.sleep(0.002)  # others are at work meanwhile, and not in these rows
                assert np.array_equal(rows.view("<u8"), records[2 * number : 2 * number + 2])
                seen += kept.tolist()
        assert seen == [i << 18 for i in range(11) if i not in (6, 7)]


@given(st.lists(st.integers(0, 5000), max_size=30))
@settings(max_examples=20, deadline=None)
def test_records_may_come_in_any_pieces(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    path = tmp_path_factory.mktemp("pieces") / "a.tb5"
    data = random.Random(1).randbytes(sum(sizes) * 24)
    with Tb5Writer.create(path) as writer:
        table, at = writer.table(DATA, 24), 0
        for size in sizes:
            table.write(data[at : at + size * 23 + 1])
            at += min(len(data) - at, size * 23 + 1)
        table.write(data[at:])
        table.done()
    assert read(path).bytes(DATA) == data


def test_strings_are_stored_once_and_keep_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    small(path)
    with Tb5Writer.append(path) as writer:
        assert (writer.string("host"), writer.string("new"), writer.string("new"), writer.string(None)) == (1, 2, 2, 0)
    file = read(path)
    assert (file.string(1), file.string(2), file.string_count) == ("host", "new", 2)
    assert TB5(path).texts == [b"", b"host", b"new"]
    for wrong in (0, 3, 1 << 63):
        with pytest.raises(FormatError, match="NULL" if not wrong else "out of range"):
            file.string(wrong)
    assert file.text(0) == ""


def test_streams_are_added_and_what_is_there_does_not_change(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    data = small(path)
    before = path.read_bytes()
    with Tb5Writer.append(path) as writer:
        assert writer.next_stream == 1
        with pytest.raises(ValueError, match="exists: written sections"):
            writer.put(DATA, np.zeros((1, 40), np.uint8))
        with pytest.raises(ValueError, match="out of order"):
            writer.put(DATA._replace(stream=3), b"x")
        with pytest.raises(ValueError, match="40 bytes, not 8"):
            writer.put(Table(Scope.STREAM, 1, 1), np.zeros(1, "<u8"))
        writer.put(DATA._replace(stream=1), b"abc")
    after = path.read_bytes()
    assert after[1072 : len(before)] == before[1072:]
    assert after[:512] == before[:512]
    assert (read(path).streams, read(path).bytes(DATA), read(path).bytes(DATA._replace(stream=1))) == (2, data, b"abc")


def test_two_streams_side_by_side(tmp_path: Path) -> None:
    with Tb5Writer.create(tmp_path / "a.tb5") as writer:
        one, two = writer.table(DATA, 8), writer.table(DATA._replace(stream=1), 4)
        for i in range(300):
            one.write(bytes([i & 255]) * 80_000)
            two.write(bytes([i & 127]) * 4004)
        with pytest.raises(ValueError, match="not done: stream 0 data, stream 1 data"):
            writer.close()
        one.done()
        two.done()
    file = read(tmp_path / "a.tb5")
    assert file.bytes(DATA) == b"".join(bytes([i & 255]) * 80_000 for i in range(300))
    assert file.bytes(DATA._replace(stream=1)) == b"".join(bytes([i & 127]) * 4004 for i in range(300))


def test_half_a_record_is_refused(tmp_path: Path) -> None:
    writer = Tb5Writer.create(tmp_path / "a.tb5")
    table = writer.table(DATA, 40)
    table.write(b"x" * 41)
    with pytest.raises(ValueError, match="not whole records of 40"):
        table.done()
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    small(tmp_path / "a.tb5")
    with Tb5Writer.append(tmp_path / "a.tb5"), pytest.raises(UnavailableError, match="another program"):
        Tb5Writer.append(tmp_path / "a.tb5")


def test_what_was_given_up_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    small(path)
    before = path.read_bytes()
    writer = Tb5Writer.append(path)
    writer.put(DATA._replace(stream=1), b"x" * 100_000)
    writer.abort()
    assert path.read_bytes() == before
    new = Tb5Writer.create(path)
    new.put(DATA, b"y")
    new.abort()
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


# -- writers that die

_DYING = """
import sys, numpy as np
from lastbranch.formats.tb5.layout import STRUCTS, Scope, Table, empty_records
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.writer import Tb5Writer
path, mode = sys.argv[1:]
writer = Tb5Writer.append(path) if mode == "append" else Tb5Writer.create(path)
print("go", flush=True)
number = writer.next_stream
while True:
    table = writer.table(Table(Scope.STREAM, number, 2), 8)
    for i in range(20):
        table.write(np.full(5000, number << 32 | i, "<u8"))
    table.done()
    writer.commit()
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("mode", ["append", "create"])
@pytest.mark.parametrize("seed", range(2))
def test_a_killed_writer_loses_nothing_that_was_committed(tmp_path: Path, mode: str, seed: int) -> None:
    path = tmp_path / "a.tb5"
    old = small(path)
    before = path.read_bytes()
    child = subprocess.Popen([sys.executable, "-c", _DYING, path, mode], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"go\n"
    time.sleep(random.uniform(0.001, 0.12))
    child.send_signal(signal.SIGKILL)
    told = child.stdout.read().split()
    child.wait()
    child.stdout.close()
    if mode == "create":
        assert path.read_bytes() == before
        (path,) = (p for p in tmp_path.iterdir() if p != path)
        if not told:
            with suppress(FormatError):
                assert read(path).streams == 1  # it was killed before it could print one
            return
    file = read(path)
    start = 1 if mode == "append" else 0
    if told:
        assert "did not close" in str(file.damage[0])
        assert not file.closed_well
        assert file.streams >= int(told[-1]) + 1
    for number in range(start, file.streams):
        values = file.read(Table(Scope.STREAM, number, 2)).view("<u8").reshape(20, 5000)
        assert (values == (number << 32 | np.arange(20))[:, None]).all()
    if mode == "append":
        assert file.bytes(DATA) == old
        assert TB5(path).tables[1, 0, 2, 0] == (40, old)
    with Tb5Writer.append(path) as writer:  # and it can be written on
        writer.put(Table(Scope.STREAM, writer.next_stream, 2), b"more")
    assert read(path).damage == []


def test_a_full_disk_leaves_the_last_commit(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    old = small(path)
    limit = path.stat().st_size + 300_000

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-B", "-c", _DYING, path, "append"], capture_output=True, text=True, preexec_fn=limited
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    file = read(path)
    assert file.bytes(DATA) == old
    assert file.streams == 1 + len(done.stdout.split()) - 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(["mount", *options], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no program `mount`")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("mode", ["append", "create"])
def test_a_small_disk_that_is_full_leaves_the_last_commit(small_disk: Path, mode: str) -> None:
    path = small_disk / "a.tb5"
    old = small(path)
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", _DYING, path, mode], capture_output=True, text=True)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    if mode == "create":
        assert path.read_bytes() == before
        (path,) = (p for p in small_disk.iterdir() if p != path)
    told = len(done.stdout.split()) - 1
    with read(path) as file:
        assert told >= 1
        assert file.streams == told + (mode == "append")
        if mode == "append":
            assert file.bytes(DATA) == old
        assert not any("is damaged" in str(damage) for damage in verify(file))


# -- writers that fail and go on


class Disk:
    """Fails the ``nth`` write to a file of the writer, and all that follow until `repair`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        honest = durable.write_at

        def write_at(file: IO[bytes], offset: int, data: bytes) -> None:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
            honest(file, offset, data)

        monkeypatch.setattr(durable, "write_at", write_at)
        monkeypatch.setattr("lastbranch.formats.tb5.writer.write_at", write_at)

    def fail(self, after: int = 0) -> None:
        self.left = after

    def repair(self) -> None:
        self.left = None


def test_a_table_that_lost_a_piece_is_never_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, disk = tmp_path / "a.tb5", Disk(monkeypatch)
    data = small(path)
    writer = Tb5Writer.append(path)
    table = writer.table(DATA._replace(stream=1), 8)
    table.write(np.zeros(700_000, "<u8"))
    disk.fail()
    with pytest.raises(OSError, match="No space") as first:
        table.write(np.zeros(700_000, "<u8"))
    disk.repair()
    for again in (lambda: table.write(b"12345678"), table.done):
        with pytest.raises(OSError, match="No space") as later:
            again()
        assert later.value is first.value
    writer.commit()  # others are not concerned
    writer.abort()
    assert (read(path).streams, read(path).bytes(DATA)) == (1, data)


@pytest.mark.parametrize("after", range(7))
def test_a_commit_that_failed_left_nothing_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    path, disk = tmp_path / "a.tb5", Disk(monkeypatch)
    data, more = small(path), DATA._replace(stream=1)
    before = path.read_bytes()
    writer = Tb5Writer.append(path)
    started = writer.table(DATA._replace(stream=2), 4, in_order=False)
    writer.put(more, b"abc")
    assert [writer.string(t) for t in ("host", "lost")] == [1, 2]
    disk.fail(after)  # string ends and bytes, an index for each, directory, slot
    if after < 6:
        with pytest.raises(OSError, match="No space"):
            writer.commit()
        disk.repair()
        assert path.read_bytes()[4096:] == before[4096:]
        assert (read(path).streams, read(path).damage) == (1, [])
        with pytest.raises(ValueError, match="abandoned"):
            started.write(b"1234")
        assert writer.next_stream == 1
        assert [writer.string(t) for t in ("host", "kept", "lost")] == [1, 2, 3]
        writer.put(more, b"abc")
    else:
        disk.repair()
        started.done()
    writer.close()
    assert (read(path).bytes(DATA), read(path).bytes(more), read(path).damage) == (data, b"abc", [])
    assert TB5(path).texts == [b"", b"host", *([b"kept"] if after < 6 else []), b"lost"]


def test_rollback_forgets_what_was_not_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    writer = Tb5Writer.create(path)
    writer.put(USER, b"kept")
    writer.commit()
    size = os.path.getsize(writer.path)
    writer.put(DATA, np.zeros((1000, 40), np.uint8))
    writer.string("lost")
    writer.rollback()
    assert (os.path.getsize(writer.path), writer.has(DATA), writer.has(USER)) == (size, False, True)
    writer.rollback()
    writer.put(DATA, b"new")
    writer.close()
    assert (read(path).bytes(DATA), read(path).bytes(USER), read(path).string_count) == (b"new", b"kept", 0)
    assert verify(read(path))[1:] == []  # a stream of data alone is told


def test_a_directory_that_contradicts_itself_falls_back_to_the_commit_before(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    data = small(path)
    with Tb5Writer.append(path) as writer:
        writer.put(DATA._replace(stream=1), b"second")
    whole = bytearray(path.read_bytes())

    def contradict(slot: int) -> None:
        directory, size = struct.unpack_from("<QQ", whole, slot + 8)
        struct.pack_into("<I", whole, directory + 28, 77)  # blocks of the first table
        struct.pack_into("<I", whole, slot + 36, crc32(whole[directory : directory + size]))
        struct.pack_into("<I", whole, slot + 44, crc32(whole[slot : slot + 44]))

    contradict(1024)
    path.write_bytes(whole)
    file = read(path)
    assert (file.streams, file.bytes(DATA)) == (1, data)
    assert "disagree; the previous commit is used" in str(file.damage[0])
    with Tb5Writer.append(path) as writer:
        writer.put(DATA._replace(stream=1), b"third")
    assert (read(path).bytes(DATA._replace(stream=1)), read(path).damage) == (b"third", [])
    contradict(512)
    path.write_bytes(whole)
    with pytest.raises(FormatError, match="the numbers of records and of blocks disagree"):
        read(path)


# -- bytes that are wrong


def test_every_byte_that_is_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    data = small(path, 50)
    whole = path.read_bytes()
    for cut in [*range(0, 64, 7), *range(500, 1100, 37), *range(4000, len(whole), 97)]:
        path.write_bytes(whole[:cut])
        try:
            file = read(path)
        except FormatError:
            continue
        assert file.damage or cut >= len(whole) - 64
        with suppress(FormatError):
            assert file.bytes(DATA) == data


def test_every_flipped_byte_of_a_table_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    data = small(path, 50)
    whole, clean = bytearray(path.read_bytes()), verify(read(path))
    at = whole.index(data)
    directory, size = struct.unpack_from("<QQ", whole, 512 + 8)
    for place in [*range(at, at + len(data), 131), *range(directory, directory + size, 5), *range(16), 20, 57, 1024]:
        whole[place] ^= 0x10
        path.write_bytes(whole)
        whole[place] ^= 0x10
        try:
            found = verify(read(path))
        except FormatError:
            continue
        assert found != clean, place


def test_a_damaged_directory_falls_back_to_the_commit_before(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    data = small(path)
    with Tb5Writer.append(path) as writer:
        writer.put(DATA._replace(stream=1), b"second")
    whole = bytearray(path.read_bytes())
    (directory,) = struct.unpack_from("<Q", whole, 1024 + 8)
    whole[directory + 3] ^= 1
    path.write_bytes(whole)
    file = read(path)
    assert file.streams == 1
    assert file.bytes(DATA) == data
    assert "directory is damaged" in str(file.damage[0])
    assert file.damage[0].offset == directory


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (b"", "file is empty"),
        (b"PERFILE2" + b"\0" * 5000, "not a TB5 file"),
        (b"lastbranch TB5\n\0" + b"\0" * 5000, "not a TB5 file"),
        (b"lastbranch TB5\r\n\2\0\0\0" + b"\0" * 5000, "later version"),
        (b"lastbranch TB5\r\n\1\0\0\0" + b"\0" * 5000, "header is damaged"),
        (b"lastbranch TB5\r\n\1\0", "cut short"),
    ],
)
def test_foreign_and_future_files(tmp_path: Path, start: bytes, says: str) -> None:
    (tmp_path / "a.tb5").write_bytes(start)
    with pytest.raises(FormatError, match=says) as error:
        read(tmp_path / "a.tb5")
    assert error.value.file
    assert error.value.field


def entry(kind: int, at: int, size: int, subtype: int = 0) -> np.ndarray:
    row = empty_records("TBRW_SAMPREC_DESC_ENTRY", 1)
    row["desc_type"], row["desc_offset"], row["desc_data_size"], row["desc_subtype"] = kind, at, size, subtype
    return row


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([entry(1, 0, 32), entry(7, 32, 8)], None),
        ([entry(1, 0, 32), entry(2, 0, 8), entry(7, 32, 8)], None),  # a field of the legacy record
        ([entry(1, 0, 32), entry(7, 0, 8), entry(7, 36, 8)], "exceeds"),
        ([entry(2, 0, 8), entry(3, 4, 8)], "overlap"),
        ([entry(1, 0, 32), entry(7, 28, 8)], "overlap"),
        ([entry(2, 0xFFFFFFFF, 8)], "exceeds"),
        ([entry(0x8000, 0, 8)], "reserved type"),
        ([entry(2, 0, 8, 0x9000)], "reserved subtype"),
        ([entry(0x2001, 0, 8)], "computed"),
        ([entry(2, 0, 0)], "no bytes"),
    ],
)
def test_descriptors(tmp_path: Path, rows: list[np.ndarray], says: str | None) -> None:
    entries = np.concatenate(rows)
    problem = check_descriptors(entries, 40)
    assert (problem is None) == (says is None)
    assert says is None or says in problem[0]
    path = tmp_path / "a.tb5"
    with Tb5Writer.create(path) as writer:
        writer.put(Table(Scope.STREAM, 0, 1), entries)
        writer.put(DATA, np.zeros((3, 40), np.uint8))
    if says is None:
        assert len(read(path).descriptors(0)) == len(entries)
    else:
        with pytest.raises(FormatError, match=says):
            read(path).descriptors(0)
        assert any(says in str(d) for d in verify(read(path)))


def test_string_ids_out_of_range_are_told_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    with Tb5Writer.create(path) as writer:
        host = empty_records("TBRW_HOST", 1)
        host["host_name"] = 7
        writer.put(HOST, host)
    (damage,) = verify(read(path))
    assert (damage.field, damage.value) == ("host_name", 7)
    assert "out of range" in str(damage)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """64 MB through a process that may not have them."""
    code = """
import resource, sys, numpy as np
from lastbranch.formats.tb5.layout import STRUCTS, Scope, Table, empty_records
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.writer import Tb5Writer
from lastbranch.opening import open_source
key, before = Table(Scope.STREAM, 0, 2), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Tb5Writer.create(sys.argv[1]) as writer:
    table = writer.table(key, 40)
    for i in range(64):
        table.write(np.full(1 << 20, i, np.uint8))
    table.write(b"x" * (-(64 << 20) % 40))
    table.done()
print(sum(int(b[:, 0].sum()) for b in Tb5File(open_source(sys.argv[1])).blocks(key)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.tb5"], capture_output=True, text=True, check=True)
    total, kilobytes = map(int, done.stdout.split())
    assert total > 0
    assert kilobytes < 24_000


def test_a_file_that_cannot_be_made_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Tb5Writer.create(tmp_path / "no" / "a.tb5")
    assert not os.path.exists(tmp_path / "no")


def test_a_file_that_cannot_take_its_name_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path / "a.tb5")
    old = (tmp_path / "a.tb5").read_bytes()

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match=r"a\.tb5: cannot be written: no"), Tb5Writer.create(tmp_path / "a.tb5") as writer:
        writer.put(HOST, empty_records("TBRW_HOST", 1))
    assert [p.name for p in tmp_path.iterdir()] == ["a.tb5"]
    assert (tmp_path / "a.tb5").read_bytes() == old
