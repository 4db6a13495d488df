"""What ELF and PE images share: dispatch, link addresses, build ids."""

import subprocess
import sys

import pytest

import lastbranch.binaries
from lastbranch.binaries import read_image
from lastbranch.binaries.image import Image, Section, Segment, SegmentFlags, same_build_id
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
    code = "import sys, lastbranch.binaries; print(*sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    loaded = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    modules = set(loaded.stdout.split())
    assert "lastbranch.binaries" in modules
    assert not modules & {"lastbranch.binaries.elf", "lastbranch.binaries.pe"}


def elf(*segments):
    return Image("elf", 64, "little", "x86_64", "shared object", segments=segments)


def test_executable_segments_are_in_file_order():
    """Two executable segments in one page, as after BOLT."""
    first, second = Segment(0x1000, 0x500, 0x1000, 0x500, R | X), Segment(0x9500, 0x100, 0x1500, 0x100, R | X)
    assert elf(Segment(0, 0x93C, 0, 0x93C, R), first, second).executable_segments == (first, second)


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
