"""PE: files made here byte by byte from the specification, and those of mingw and lld against other tools."""

import re
import shutil
import struct
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from lastbranch.binaries import read_image
from lastbranch.binaries.image import Section, Segment, SegmentFlags
from lastbranch.binaries.pe import DOS_HEADER, FILE_HEADER, OPTIONAL_HEADERS, SECTION_HEADER, read_pe
from lastbranch.errors import FormatError
from lastbranch.model import BytesSource
from made_binaries import DIRECTORY, OPTIONAL, PE, RDATA, RECORD, RSDS, TEXT, directory_entry, make_pe

R, W, X = SegmentFlags.READ, SegmentFlags.WRITE, SegmentFlags.EXECUTE
GUID = UUID("3844dbb9-2017-4967-be7a-a4a2c20430fa")
NB10 = b"NB10" + struct.pack("<III", 0, 0x3B7D84D4, 7) + b"old.pdb\0"


def image_of(data):
    return read_pe(BytesSource(data, "made"))


def image_at(path):
    return read_image(BytesSource(Path(path).read_bytes(), str(path)))


@pytest.mark.parametrize(
    ("bits", "machine", "name"), [(64, 0x8664, "x86_64"), (64, 0xAA64, "aarch64"), (32, 0x14C, "i386")]
)
def test_both_widths(bits, machine, name):
    image = image_of(make_pe(bits, machine))
    base = {64: 0x1_4000_0000, 32: 0x40_0000}[bits]
    assert (image.format, image.bits, image.byte_order, image.machine) == ("pe", bits, "little", name)
    assert (image.kind, image.image_base, image.entry) == ("shared object", base, base + 0x1010)
    assert (image.timestamp, image.checksum, image.image_size) == (0x60000001, 0xBEEF, 0x5000)
    assert (image.pdb_guid, image.pdb_age, image.pdb_name) == (GUID, 5, "dir\\ä.pdb")
    assert (image.build_id, image.debug_link) == (None, None)
    assert image.segments == (
        Segment(base + 0x1000, 0x123, TEXT, 0x200, R | X),
        Segment(base + 0x2000, 0x1F0, RDATA, 0x200, R),
        Segment(base + 0x3000, 0x1000, 0, 0, R | W),
    )
    assert image.sections[0] == Section(".text", base + 0x1000, 0x123, TEXT, 0x200, R | X)
    assert [section.name for section in image.sections] == [".text", ".rdata", ".bss"]
    assert image.executable_segments == image.segments[:1]


def test_layouts_have_the_sizes_of_the_specification():
    assert (DOS_HEADER.size, FILE_HEADER.size, SECTION_HEADER.size) == (64, 24, 40)
    assert {bits: layout.size for bits, layout in OPTIONAL_HEADERS.values()} == {32: 96, 64: 112}


def test_nb10_has_no_guid():
    image = image_of(make_pe(record=NB10))
    assert (image.pdb_guid, image.pdb_age, image.pdb_name) == (None, 7, "old.pdb")


@pytest.mark.parametrize(
    "entries",
    [
        [directory_entry(kind=16), directory_entry(kind=13), directory_entry()],
        [directory_entry(pointer=0)],  # through AddressOfRawData
        [directory_entry(pointer=TEXT), directory_entry()],  # a CodeView form nobody here knows
        [directory_entry(pointer=0, rva=0), directory_entry()],  # moved to a .dbg file
    ],
)
def test_the_record_is_found(entries):
    assert image_of(make_pe(entries=entries)).pdb_guid == GUID


@pytest.mark.parametrize("more", [{"entries": []}, {"directories": 6}, {"entries": [directory_entry(kind=12)]}])
def test_without_a_record(more):
    image = image_of(make_pe(**more))
    assert (image.pdb_guid, image.pdb_age, image.pdb_name, len(image.sections)) == (None, None, None, 3)


def test_a_directory_at_no_address_is_no_directory():
    assert image_of(patched(make_pe(), OPTIONAL + 112 + 48, "<I", 0)).pdb_guid is None


def test_windows_looks_at_16_directories_whatever_the_count():
    assert image_of(patched(make_pe(), OPTIONAL + 108, "<I", 0xFFFFFFFF)).pdb_guid == GUID


def test_old_linkers_leave_virtual_size_0():
    data = patched(make_pe(), OPTIONAL + 240 + 8, "<I", 0)
    assert image_of(data).segments[0].memory_size == 0x200


def test_long_section_names():
    strings = b".debug_info\0.debug_line\0"
    tail = bytes(2 * 18) + struct.pack("<I", 4 + len(strings)) + strings
    names = (b"/4", b"//AAAAAQ", b"/x")
    assert [s.name for s in image_of(make_pe(names=names, tail=tail)).sections] == [".debug_info", ".debug_line", "/x"]
    assert [s.name for s in image_of(make_pe(names=names)).sections] == ["/4", "//AAAAAQ", "/x"]
    for at, value, field in [(0x800 + 36, 1 << 31, "size"), (PE + 12, 1 << 31, "PointerToSymbolTable")]:
        with pytest.raises(FormatError) as caught:
            image_of(patched(make_pe(names=names, tail=tail), at, "<I", value))
        assert (caught.value.offset, caught.value.field, caught.value.value) == (at, field, value)
    with pytest.raises(FormatError, match="outside its table") as caught:
        image_of(make_pe(names=(b"/9999", b"", b""), tail=tail))
    assert caught.value.field == "Name"


def patched(data, offset, form, value):
    out = bytearray(data)
    struct.pack_into(form, out, offset, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("at", "form", "value", "field", "named_at"),
    [
        (0, "<H", 0, "e_magic", 0),
        (0x3C, "<I", 0xFFFFFFFF, "e_lfanew", 0x3C),
        (PE, "<I", 0x454E, "Signature", PE),
        (PE + 6, "<H", 0xFFFF, "NumberOfSections", PE + 6),
        (PE + 20, "<H", 111, "SizeOfOptionalHeader", PE + 20),
        (PE + 20, "<H", 0xFFFF, "NumberOfSections", PE + 6),
        (OPTIONAL, "<H", 0x107, "Magic", OPTIONAL),
        (PE + 20, "<H", 232, "NumberOfRvaAndSizes", OPTIONAL + 108),
        (OPTIONAL + 112 + 48, "<I", 0x9000, "VirtualAddress", OPTIONAL + 112 + 48),
        (OPTIONAL + 112 + 48, "<I", 0x3000, "VirtualAddress", OPTIONAL + 112 + 48),
        (OPTIONAL + 112 + 48, "<I", 0x2200, "VirtualAddress", OPTIONAL + 112 + 48),
        (OPTIONAL + 112 + 52, "<I", 0xFFFFFFFF, "Size", OPTIONAL + 112 + 52),
        (OPTIONAL + 24, "<Q", (1 << 64) - 0x1200, "VirtualAddress", OPTIONAL + 240 + 40 + 12),
        (DIRECTORY + 16, "<I", 0xFFFFFFFF, "SizeOfData", DIRECTORY + 16),
        (DIRECTORY + 16, "<I", 24, "SizeOfData", DIRECTORY + 16),
        (DIRECTORY + 16, "<I", 28, "SizeOfData", DIRECTORY + 16),
        (DIRECTORY + 24, "<I", 0xFFFFFFFF, "SizeOfData", DIRECTORY + 16),
    ],
)
def test_bad_fields_are_named(at, form, value, field, named_at):
    with pytest.raises(FormatError) as caught:
        image_of(patched(make_pe(), at, form, value))
    assert (caught.value.field, caught.value.offset, caught.value.file) == (field, named_at, "made")


def test_codeview_record_that_is_too_short():
    with pytest.raises(FormatError, match="CV_INFO_PDB70 has more than 24 bytes"):
        image_of(patched(make_pe(), DIRECTORY + 16, "<I", 24))


def test_library_without_entry_point():
    assert image_of(patched(make_pe(), OPTIONAL + 16, "<I", 0)).entry == 0


def test_addresses_past_the_end_are_named():
    data = patched(make_pe(32), OPTIONAL + 28, "<I", 0xFFFFA000)  # ImageBase
    assert image_of(data).segments[2].vaddr == 0xFFFFD000
    assert image_of(patched(make_pe(32), OPTIONAL + 28, "<I", 0xFFFFC000)).segments[2].vaddr == 0xFFFFF000
    with pytest.raises(FormatError) as caught:
        image_of(patched(make_pe(32), OPTIONAL + 28, "<I", 0xFFFFC001))
    assert (caught.value.field, caught.value.value) == ("VirtualAddress", 0x3000)
    with pytest.raises(FormatError) as caught:
        image_of(patched(data, OPTIONAL + 16, "<I", 0xFFFFFF))
    assert (caught.value.field, caught.value.value) == ("AddressOfEntryPoint", 0xFFFFFF)


def test_every_truncation_of_what_is_read_is_an_error():
    """The rest of the last section is not read."""
    data = make_pe()
    for size in range(RECORD + len(RSDS)):
        with pytest.raises(FormatError):
            read_image(BytesSource(data[:size]))
    assert image_of(data[: RECORD + len(RSDS)]).pdb_guid == GUID


# --- against other tools ---------------------------------------------------------------------------------------------


def objdump(path):
    """What ``objdump -p -h`` of mingw's binutils says."""
    text = subprocess.run(
        ["x86_64-w64-mingw32-objdump", "-phw", str(path)],
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        check=True,
    ).stdout

    def field(name):
        return int(re.search(rf"^{name}\s+([0-9a-f]+)", text, re.M)[1], 16)

    row = re.compile(r"^ *\d+ (\S+) +([0-9a-f]{8}) +([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]{8}) +2\*\*\d +(.*)$", re.M)
    base = field("ImageBase")
    return {
        "bits": {0x10B: 32, 0x20B: 64}[field("Magic")],
        "machine": {"i386": "i386", "x86-64": "x86_64"}[re.search(r"file format pei-(\S+)", text)[1]],
        "kind": "shared object" if re.search(r"^\tDLL$", text, re.M) else "executable",
        "image_base": base,
        "entry": base + field("AddressOfEntryPoint"),
        "image_size": field("SizeOfImage"),
        "checksum": field("CheckSum"),
        "sections": [(n, int(vma, 16), int(off, 16), "CODE" in flags) for n, _, vma, off, flags in row.findall(text)],
        "rsds": re.search(r"RSDS signature ([0-9a-f]{32}) age (\d+)", text),
    }


@pytest.mark.skipif(not shutil.which("x86_64-w64-mingw32-objdump"), reason="no mingw-w64 binutils on this machine")
@pytest.mark.parametrize("bits", [64, 32])
@pytest.mark.parametrize("options", ["-g", "-s", "-shared -g"])
def test_files_of_mingw(tmp_path, bits, options):
    gcc = {64: "x86_64", 32: "i686"}[bits] + "-w64-mingw32-gcc"
    if not shutil.which(gcc):
        pytest.skip(f"no {gcc} on this machine")
    (tmp_path / "a.c").write_text("int main(void) { return 0; }")
    subprocess.run([gcc, "a.c", "-o", "a.exe", "-Wl,--build-id", *options.split()], cwd=tmp_path, check=True)
    image, truth = image_at(tmp_path / "a.exe"), objdump(tmp_path / "a.exe")
    for name in ("bits", "machine", "kind", "image_base", "entry", "image_size", "checksum"):
        assert getattr(image, name) == truth[name], name
    assert [(s.name, s.vaddr, s.offset) for s in image.sections] == [row[:3] for row in truth["sections"]]
    assert [bool(s.flags & X) for s in image.sections] == [row[3] for row in truth["sections"]]
    assert (".debug_info" in [s.name for s in image.sections]) == ("-g" in options)
    assert truth["rsds"], "objdump saw no RSDS record"
    assert image.pdb_guid.bytes.hex() == truth["rsds"][1]
    assert image.pdb_age == int(truth["rsds"][2])
    assert image.pdb_name == ""


@pytest.mark.parametrize(("target", "machine"), [("x86_64", "x86_64"), ("i686", "i386"), ("aarch64", "aarch64")])
def test_files_of_lld_with_a_pdb(tmp_path, target, machine):
    """The GUID as ``llvm-pdbutil`` reads it from the PDB itself, headers as ``llvm-readobj`` reads them."""
    missing = [t for t in ("clang-19", "lld-link-19", "llvm-pdbutil-19", "llvm-readobj-19") if not shutil.which(t)]
    if missing:
        pytest.skip(f"no {', '.join(missing)} on this machine")
    (tmp_path / "a.c").write_text("int begin(void) { return 42; }")
    link = (
        "lld-link-19 /nodefaultlib /entry:begin /subsystem:console /debug /pdb:a.pdb /pdbaltpath:Ü.pdb /out:a.exe a.obj"
    )
    for command in [f"clang-19 --target={target}-windows-msvc -g -gcodeview -c a.c -o a.obj", link]:
        subprocess.run(command.split(), cwd=tmp_path, check=True)

    def output(*command):
        return subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True).stdout

    image = image_at(tmp_path / "a.exe")
    pdb = output("llvm-pdbutil-19", "dump", "-summary", "a.pdb")
    assert image.pdb_guid == UUID(re.search(r"GUID: \{(.*)\}", pdb)[1])
    assert image.pdb_age == int(re.search(r"Age: (\d+)", pdb)[1])
    assert image.pdb_name == "Ü.pdb"
    assert (image.machine, image.kind) == (machine, "executable")

    text = output("llvm-readobj-19", "--file-headers", "--sections", "a.exe")

    def numbers(name):
        return [int(number, 0) for number in re.findall(rf"^ +{name}: .*?\b(0x[0-9A-F]+|\d+)\)?$", text, re.M)]

    assert [image.timestamp] == numbers("TimeDateStamp")
    assert [image.image_size] == numbers("SizeOfImage")
    assert [image.image_base] == numbers("ImageBase")
    assert [image.entry - image.image_base] == numbers("AddressOfEntryPoint")
    assert [s.vaddr - image.image_base for s in image.segments] == numbers("VirtualAddress")
    assert [s.memory_size for s in image.segments] == numbers("VirtualSize")
    assert [s.file_size for s in image.segments] == numbers("RawDataSize")
    assert [s.offset for s in image.segments] == numbers("PointerToRawData")
