"""What ELF and PE images share: dispatch, link addresses, build ids."""

import subprocess
import sys

import pytest

import lastbranch.binaries
from lastbranch.binaries import Image, Section, Segment, SegmentFlags, read_image, same_build_id
from lastbranch.errors import FormatError
from lastbranch.model import BytesSource
from made_binaries import make_pe, typical

R, W, X = SegmentFlags.READ, SegmentFlags.WRITE, SegmentFlags.EXECUTE


def test_public_names():
    assert lastbranch.binaries.__all__ == sorted(lastbranch.binaries.__all__)
    assert all(hasattr(lastbranch.binaries, name) for name in lastbranch.binaries.__all__)


def test_the_magic_decides():
    assert read_image(BytesSource(typical())).format == "elf"
    assert read_image(BytesSource(make_pe())).format == "pe"


@pytest.mark.parametrize("data", [b"", b"M", b"\x7fEL", b"#!/bin/sh\n", bytes(4096)])
def test_neither(data):
    with pytest.raises(FormatError, match="neither an ELF nor a PE file") as caught:
        read_image(BytesSource(data, "some.so"))
    error = caught.value
    assert (error.file, error.offset, error.field, error.value) == ("some.so", 0, "magic", data[:4])


def test_importing_costs_little():
    """The parsers come with the first file."""
    parsers = {"lastbranch.binaries.elf", "lastbranch.binaries.pe"}
    code = f"import sys, lastbranch.binaries; assert not {parsers} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def elf(*segments):
    return Image("elf", 64, "little", "x86_64", "shared object", segments=segments)


LLD = (
    Segment(0, 0x93C, 0, 0x93C, R),
    Segment(0x1940, 0x4C0, 0x940, 0x4C0, R | X),
    Segment(0x2E00, 0x1200, 0xE00, 0x260, R | W),
)


@pytest.mark.parametrize(
    ("offset", "address"),
    [
        (0x940, 0x1940),
        (0xDFF, 0x1DFF),
        (0, 0x1000),  # the page of the file that the code's mapping begins with
        (0x93F, 0x193F),
        (0xE00, 0x1E00),  # the rest of the code's last page
        (0xFFF, 0x1FFF),
        (0x1000, 0x3000),  # only data
        (0x105F, 0x305F),
        (0x1060, None),
        (1 << 63, None),
    ],
)
def test_link_address_goes_through_code_first(offset, address):
    assert elf(*LLD).link_address(offset) == address
    assert elf(*reversed(LLD)).link_address(offset) == address


def test_link_address_prefers_the_segment_that_holds_the_byte():
    """Two executable segments in one page, as after BOLT."""
    first, second = Segment(0x1000, 0x500, 0x1000, 0x500, R | X), Segment(0x9500, 0x100, 0x1500, 0x100, R | X)
    assert elf(first, second).link_address(0x1500) == 0x9500
    assert elf(second, first).link_address(0x14FF) == 0x14FF
    assert elf(first, second).executable_segments == (first, second)


def test_link_address_without_contents():
    assert elf(Segment(0x1000, 0x500, 0x1000, 0, R | X)).link_address(0x1000) is None
    assert elf().link_address(0) is None


def test_images_are_values():
    assert read_image(BytesSource(typical())) == read_image(BytesSource(typical()))
    with pytest.raises(AttributeError):
        elf().entry = 4  # type: ignore[misc]
    assert Section("a", 0, 0, 0, 0, R) != Section("a", 0, 0, 0, 0, W)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (b"\1" * 20, b"\1" * 20, True),
        (b"\1" * 8, b"\1" * 8 + bytes(12), True),
        (b"\1" * 16 + bytes(4), b"\1" * 16, True),
        (b"\1" * 8, b"\1" * 16, False),
        (b"\1" * 20, b"\1" * 19 + b"\2", False),
        (b"\1" * 20, b"\1" * 20 + b"\0", False),
        (b"\1" * 32, b"\1" * 20, False),
        (b"\1" * 8 + bytes(16), b"\1" * 8, False),  # padded to 20, not to any length
        (b"", b"", False),
        (b"", b"\1", False),
        (b"", bytes(20), False),
        (bytes(20), bytes(20), False),  # perf's form of no id
    ],
)
def test_same_build_id(a, b, same):
    assert same_build_id(a, b) is same
    assert same_build_id(b, a) is same
