"""Damaged and hostile binaries give an image or a `FormatError`, in bounded time and memory."""

import shutil
import struct
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lastbranch.binaries import layout, read_image
from lastbranch.errors import FormatError
from lastbranch.model import BytesSource
from made_binaries import make_elf, make_pe, note, patched, typical


def real_files():
    """Small binaries of this machine, whole."""
    places = ["/usr/bin/true", "/usr/bin/sleep", "/usr/bin/ls", "/usr/lib/x86_64-linux-gnu/crt1.o"]
    return [Path(place).read_bytes() for place in places if Path(place).exists()]


SEEDS = [
    typical(),
    typical(32, ">"),
    typical(extended=True),
    make_elf(kind=1, sections=[(b".note", 7, 2, 0, note("<", b"GNU\0", 3, bytes(8)))]),
    make_pe(),
    make_pe(32, names=(b"/4", b"//AAAAAQ", b"x"), tail=bytes(36) + struct.pack("<I", 12) + b"a\0b\0c\0d\0"),
    *real_files(),
]
INTERESTING = [0, 1, 2, 4, 8, 0x7F, 0x80, 0xFF, 0xFFFE, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1]


def assert_image_or_error(data):
    image, error = None, None
    try:
        image = read_image(BytesSource(data, "fuzzed"))
    except FormatError as found:
        error = found
    if error is not None:
        assert error.file == "fuzzed"
        assert error.offset is not None
        assert error.field
        assert error.value is not None
        str(error).encode()  # can be printed
        return
    repr(image).encode()
    for segment in image.segments:
        assert segment.vaddr + max(segment.memory_size, segment.file_size) <= 1 << image.bits


@st.composite
def mutations(draw):
    """A seed with up to six fields overwritten, most of them in the tables that a reader follows, and a cut."""
    seed = draw(st.sampled_from(SEEDS))
    data = bytearray(seed)
    shoff = struct.unpack_from("<Q", seed, 0x28)[0]  # what it is in a 64-bit ELF file, or anything
    hot = st.one_of(
        st.integers(0, 0x300), st.integers(shoff, shoff + 0x800), st.integers(0x600, 0x6C0), st.integers(0, len(seed))
    )
    for _ in range(draw(st.integers(0, 6))):
        at, size = draw(hot) % len(seed), draw(st.sampled_from([1, 2, 4, 8]))
        value = draw(st.one_of(st.sampled_from(INTERESTING), st.integers(0, len(seed)), st.integers(0, (1 << 64) - 1)))
        data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, draw(st.sampled_from(["little", "big"])))
    return bytes(data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))])


@settings(max_examples=600, deadline=None)
@given(mutations())
def test_mutated_files(data):
    assert_image_or_error(data)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([b"\x7fELF", b"\x7fELF\1\1\1", b"\x7fELF\2\2\1", b"MZ"]), st.binary(max_size=600))
@example(b"MZ", b"")
def test_anything_after_the_magic(magic, rest):
    assert_image_or_error(magic + rest)


def test_every_byte_of_the_tables():
    """All single-byte changes to two values each, which a random search would not reach."""
    for seed in SEEDS[:6]:
        for at in range(4, len(seed)):
            for value in (0xFF, seed[at] ^ 0x80):
                assert_image_or_error(seed[:at] + bytes([value]) + seed[at + 1 :])


class Sparse:
    """A file of ``size`` bytes: ``data``, then a pattern for ever. Its reads are counted."""

    def __init__(self, data, size, fill=b"\0"):
        self.name, self.size, self.data, self.fill, self.read = "sparse", size, data, fill, 0

    def readinto(self, offset, buffer):
        got = min(len(buffer), max(0, self.size - offset))
        buffer[:got] = (self.data[offset : offset + got] + self.fill * got)[:got]
        self.read += got
        return got


def bounded(source):
    """The error that reading ``source`` ends with; it must not take 64 MB for that."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            read_image(source)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert source.read < 64 << 20
    return caught.value


EXTENDED = typical(extended=True)
SECTION_0 = struct.unpack_from("<Q", EXTENDED, 0x28)[0]


@pytest.mark.parametrize("count", [1 << 32, (1 << 64) - 1, (1 << 20) + 1])
@pytest.mark.parametrize("size", [len(EXTENDED), 1 << 40])
def test_many_sections_do_not_allocate(count, size):
    error = bounded(Sparse(patched(EXTENDED, SECTION_0 + 0x20, "<Q", count), size))
    assert (error.field, error.value) == ("sh_size", count)


@pytest.mark.parametrize("size", [len(EXTENDED), 1 << 40])
def test_many_program_headers_do_not_allocate(size):
    error = bounded(Sparse(patched(EXTENDED, SECTION_0 + 0x2C, "<I", 0xFFFFFFFF), size))
    assert (error.field, error.value) == ("sh_info", 0xFFFFFFFF)


def test_many_debug_entries_do_not_allocate():
    data = patched(make_pe(), 0x98 + 112 + 52, "<I", 0xFFFFFFFF)
    assert bounded(Sparse(data, 1 << 40)).field == "Size"


def test_endless_strings_do_not_allocate():
    """A table of names without a single zero, in a huge file: many long names that overlap."""
    names = SECTION_0 + 4 * 64
    data = patched(patched(EXTENDED, names + 0x18, "<Q", 1 << 20), names + 0x20, "<Q", 1 << 35)
    assert bounded(Sparse(data, 1 << 40, b"n")).field == "sh_name"


def test_all_strings_together_are_limited(monkeypatch):
    monkeypatch.setattr(layout, "STRINGS_LIMIT", 30)
    assert_image_or_error(typical())
    with pytest.raises(FormatError, match="strings of the file are too long"):
        read_image(BytesSource(make_elf(sections=[(b"a" * 16, 1, 0, 0, b""), (b"b" * 16, 1, 0, 0, b"")])))


def test_source_that_shrinks_while_it_is_read():
    class Shrinking(BytesSource):
        def readinto(self, offset, buffer):
            return (
                super().readinto(offset, buffer[: max(0, len(buffer) - 1)]) if offset else super().readinto(0, buffer)
            )

    for seed in (typical(), make_pe()):
        with pytest.raises(FormatError, match="the file ends within"):
            read_image(Shrinking(seed))


def test_real_pe_truncated_and_patched(tmp_path):
    if not shutil.which("x86_64-w64-mingw32-gcc"):
        pytest.skip("no x86_64-w64-mingw32-gcc on this machine")
    (tmp_path / "a.c").write_text("int main(void) { return 0; }")
    gcc = ["x86_64-w64-mingw32-gcc", "-g", "a.c", "-o", "a.exe", "-Wl,--build-id"]
    subprocess.run(gcc, cwd=tmp_path, check=True)
    data = (tmp_path / "a.exe").read_bytes()
    for size in [*range(0x600), *range(0x600, len(data), 997)]:
        assert_image_or_error(data[:size])
    for at in range(2, 0x600):
        assert_image_or_error(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
