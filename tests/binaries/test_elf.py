"""ELF: files made here byte by byte from the gABI, and the files of this machine against ``readelf``."""

import os
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from lastbranch.binaries import elf, read_image
from lastbranch.binaries.elf import CLASSES, read_elf
from lastbranch.binaries.image import DebugLink, Section, Segment, SegmentFlags
from lastbranch.errors import FormatError
from lastbranch.model import BytesSource
from lastbranch.opening import binaries as opened_binaries
from made_binaries import BUILD_ID, make_elf, note, patched, typical

R, W, X = SegmentFlags.READ, SegmentFlags.WRITE, SegmentFlags.EXECUTE


def image_of(data):
    return read_elf(BytesSource(data, "made"))


def image_at(path):
    return read_image(BytesSource(Path(path).read_bytes(), str(path)))


# --- files made here -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", "<>")
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("extended", [False, True])
def test_both_classes_and_byte_orders(bits, prefix, extended):
    image = image_of(typical(bits, prefix, machine=183, extended=extended))
    assert (image.format, image.bits, image.byte_order) == ("elf", bits, {"<": "little", ">": "big"}[prefix])
    assert (image.machine, image.kind, image.entry, image.image_base) == ("aarch64", "shared object", 0x1234, 0x10000)
    assert image.segments == (
        Segment(0x10000, 0x93C, 0, 0x93C, R),
        Segment(0x11940, 0x4C0, 0x940, 0x4C0, R | X),
        Segment(0x12E00, 0x1200, 0xE00, 0x260, R | W),
    )
    assert all(type(segment.flags) is SegmentFlags for segment in image.segments)
    assert [section.name for section in image.sections] == ["", ".text", ".bss", ".gnu_debuglink", ".shstrtab"]
    assert image.sections[1] == Section(".text", 0x11940, 0x4C0, 0x940, 0x4C0, R | X)
    assert image.sections[2] == Section(".bss", 0x13060, 0x1200, 0x1060, 0, R | W)
    assert image.sections[3].flags == SegmentFlags(0)
    assert image.build_id == BUILD_ID
    assert image.debug_link == DebugLink("x.debug", 0xDEADBEEF)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(0, "none"), (1, "relocatable"), (2, "executable"), (3, "shared object"), (4, "core"), (0xFE00, "0xfe00")],
)
def test_kinds(number, kind):
    assert image_of(make_elf(kind=number, machine=0x1234)).kind == kind
    assert image_of(make_elf(kind=number, machine=0x1234)).machine == "0x1234"


def test_flags_and_names_one_by_one():
    data = make_elf(
        programs=[(1, flags, b"x", 0, 1, 1) for flags in (0, 1, 2, 4, 0x70000000)],
        sections=[(b"n" * length, 1, flags | 2, 0, b"") for length, flags in ((63, 0), (64, 1), (65, 4), (5000, 2))],
    )
    image = image_of(data)
    assert [segment.flags for segment in image.segments] == [SegmentFlags(0), X, W, R, SegmentFlags(0)]
    assert [section.flags for section in image.sections[1:5]] == [R, R | W, R | X, R]
    assert [len(section.name) for section in image.sections[1:5]] == [63, 64, 65, 5000]


def test_layouts_have_the_sizes_of_the_specification():
    sizes = {cls.bits: (cls.ehdr.size, cls.phdr.size, cls.shdr.size) for cls in CLASSES.values()}
    assert sizes == {32: (52, 32, 40), 64: (64, 56, 64)}
    assert CLASSES[1].ehdr.offsets["e_shnum"] == 0x30
    assert CLASSES[2].ehdr.offsets["e_shnum"] == 0x3C


@pytest.mark.parametrize(("align", "base"), [(0x1000, 0x400000), (0x20_0000, 0x400000), (1, 0x401123), (0, 0x401123)])
def test_base_is_truncated_to_the_alignment(align, base):
    vaddr = 0x400123 if align == 0x1000 else 0x401123
    assert image_of(make_elf(programs=[(1, 5, b"x", vaddr, 1, align)])).image_base == base


@pytest.mark.parametrize("length", [1, 8, 16, 20, 32, 256])
def test_build_ids_of_any_length(length):
    build_id = bytes([7]) * length
    data = make_elf(programs=[(4, 4, note("<", b"GNU\0", 3, build_id), 0, 0, 4)])
    assert image_of(data).build_id == build_id


def test_build_id_among_notes_aligned_to_8():
    notes = note("<", b"GNU\0", 5, bytes(12), 8) + note("<", b"GNU\0", 3, BUILD_ID, 8)
    assert image_of(make_elf(programs=[(4, 4, notes, 0, 0, 8)])).build_id == BUILD_ID


def test_notes_of_others_are_not_build_ids():
    """Type 3 of "CORE" is NT_PRPSINFO."""
    notes = note("<", b"CORE", 3, BUILD_ID) + note("<", b"GNU\0", 1, BUILD_ID) + note("<", b"GNU\0", 3, b"")
    assert image_of(make_elf(programs=[(4, 4, notes, 0, 0, 4)])).build_id is None


def test_build_id_from_sections_without_program_headers():
    """As in a kernel module."""
    notes = note(">", b"Linux\0", 0x100, b"x") + note(">", b"GNU\0", 3, BUILD_ID)
    data = make_elf(prefix=">", kind=1, sections=[(b".note.gnu.build-id", 7, 2, 0, notes)], names=False)
    image = image_of(data)
    assert (image.kind, image.build_id, image.segments, image.image_base) == ("relocatable", BUILD_ID, (), 0)


def test_damaged_note_segment_matters_only_without_another_id():
    bad = (4, 4, (0x40, 1 << 40), 0, 0, 4)
    good = [(b".note", 7, 2, 0, note("<", b"GNU\0", 3, BUILD_ID))]
    assert image_of(make_elf(programs=[bad], sections=good)).build_id == BUILD_ID
    with pytest.raises(FormatError, match="past the end of the file") as caught:
        image_of(make_elf(programs=[bad]))
    assert (caught.value.file, caught.value.offset, caught.value.field) == ("made", 64 + 32, "p_filesz")
    assert caught.value.value == 1 << 40


@pytest.mark.parametrize(
    ("notes", "field", "value"),
    [
        (struct.pack("<III", 0xFFFFFFFF, 0, 3), "namesz", 0xFFFFFFFF),
        (struct.pack("<III", 4, 0xFFFFFFF0, 3) + b"GNU\0", "descsz", 0xFFFFFFF0),
        (note("<", b"GNU\0", 3, bytes(257)), "descsz", 257),
    ],
)
def test_bad_notes(notes, field, value):
    with pytest.raises(FormatError) as caught:
        image_of(make_elf(programs=[(4, 4, notes, 0, 0, 4)]))
    assert (caught.value.field, caught.value.value) == (field, value)


def test_endless_notes_end(monkeypatch):
    monkeypatch.setattr(elf, "NOTES_LIMIT", 50)
    early = bytes(12 * 40) + note("<", b"GNU\0", 3, BUILD_ID)
    late = bytes(12 * 60) + note("<", b"GNU\0", 3, BUILD_ID)
    assert image_of(make_elf(programs=[(4, 4, early, 0, 0, 4)])).build_id == BUILD_ID
    assert image_of(make_elf(programs=[(4, 4, late, 0, 0, 4)])).build_id is None
    twice = [(4, 4, bytes(12 * 40), 0, 0, 4), (4, 4, early, 0, 0, 4)]
    assert image_of(make_elf(programs=twice)).build_id is None


SHOFF = struct.unpack_from("<Q", typical(), 0x28)[0]
NAMES = SHOFF + 4 * 64  # header of .shstrtab
LINK = SHOFF + 3 * 64


@pytest.mark.parametrize(
    ("at", "form", "value", "field", "named_at"),
    [
        (4, "<B", 3, "EI_CLASS", 4),
        (5, "<B", 0, "EI_DATA", 5),
        (0x20, "<Q", 1 << 63, "e_phnum", 0x38),
        (0x28, "<Q", (1 << 64) - 1, "e_shnum", 0x3C),
        (0x36, "<H", 57, "e_phentsize", 0x36),
        (0x38, "<H", 0xFFFE, "e_phnum", 0x38),
        (0x3A, "<H", 0, "e_shentsize", 0x3A),
        (0x3C, "<H", 0xFEFF, "e_shnum", 0x3C),
        (0x3E, "<H", 9, "e_shstrndx", 0x3E),
        (0x3E, "<H", 1, "sh_type", SHOFF + 64 + 4),
        (NAMES + 0x20, "<Q", 1 << 50, "sh_size", NAMES + 0x20),
        (NAMES, "<I", 0xFFFF, "sh_name", NAMES),
        (LINK + 0x20, "<Q", 1 << 50, "sh_size", LINK + 0x20),
        (0x40 + 0x10, "<Q", (1 << 64) - 1, "p_vaddr", 0x40 + 0x10),
        (0x40 + 0x28, "<Q", (1 << 64) - 1, "p_vaddr", 0x40 + 0x10),
    ],
)
def test_bad_fields_are_named(at, form, value, field, named_at):
    with pytest.raises(FormatError) as caught:
        image_of(patched(typical(), at, form, value))
    assert (caught.value.field, caught.value.offset, caught.value.file) == (field, named_at, "made")
    assert at != named_at or caught.value.value == value


def test_extended_numbers_are_checked():
    data = typical(extended=True)
    shoff = struct.unpack_from("<Q", data, 0x28)[0]
    for at, form, value, field in [
        (0x20, "<Q", 1 << 32, "sh_size"),
        (0x20, "<Q", (1 << 20) + 1, "sh_size"),
        (0x28, "<I", 77, "sh_link"),
        (0x2C, "<I", 0xFFFFFFFF, "sh_info"),
    ]:
        with pytest.raises(FormatError) as caught:
            image_of(patched(data, shoff + at, form, value))
        assert (caught.value.field, caught.value.value, caught.value.offset) == (field, value, shoff + at)
    with pytest.raises(FormatError) as caught:  # no section 0 to look the number up in
        image_of(patched(make_elf(), 0x38, "<H", 0xFFFF))
    assert caught.value.field == "e_phnum"


@pytest.mark.parametrize("link", [b"no zero", b"name\0\0\0\0abc", b"\0", bytes(4105)])
def test_bad_debug_links(link):
    with pytest.raises(FormatError, match="debug link") as caught:
        image_of(make_elf(sections=[(b".gnu_debuglink", 1, 0, 0, link)]))
    assert caught.value.offset is not None


def test_every_truncation_is_an_error():
    data = typical()
    for size in range(len(data)):
        with pytest.raises(FormatError):
            read_image(BytesSource(data[:size]))


# --- against readelf -------------------------------------------------------------------------------------------------

needs_readelf = pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf (binutils) on this machine")
KINDS = {"REL": "relocatable", "EXEC": "executable", "DYN": "shared object", "CORE": "core"}
MACHINES = {
    "Advanced Micro Devices X86-64": "x86_64",
    "Intel 80386": "i386",
    "AArch64": "aarch64",
    "ARM": "arm",
    "PowerPC64": "ppc64",
    "IBM S/390": "s390x",
    "MIPS R3000": "mips",
    "RISC-V": "riscv",
}
SECTION = re.compile(
    r"^  \[ *(\d+)\] (.*?) +([A-Z_0-9a-z+]+) +([0-9a-f]{8,16}) ([0-9a-f]+) ([0-9a-f]+) [0-9a-f]+(.{5})"
)
LOAD = re.compile(r"^  LOAD +" + r"(0x[0-9a-f]+) +" * 5 + r"(.{3}) (0x[0-9a-f]+|0)")


def readelf(paths):
    """What readelf says about each file, in the fields of an `Image` that it has."""
    text = subprocess.run(
        ["readelf", "-hlSnW", *map(str, paths)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout.decode("utf-8", "backslashreplace")
    parts = re.split(r"^File: .*\n", text, flags=re.M)[1:] if len(paths) > 1 else [text]
    assert len(parts) == len(paths)
    return [parsed(part) for part in parts]


def parsed(text):
    def field(name):
        return re.search(rf"^  {name}: +(.*?) *$", text, re.M)[1]

    segments, sections, build_id = [], [], None
    for line in text.splitlines():
        if found := LOAD.match(line):
            offset, vaddr, _, size, memory = (int(found[n], 16) for n in range(1, 6))
            flags = sum(({"R": R, "W": W, "E": X}[c] for c in found[6] if c != " "), 0)
            segments.append((vaddr, memory, offset, size, flags))
        elif found := SECTION.match(line):
            vaddr, offset, size = (int(found[n], 16) for n in (4, 5, 6))
            flags = sum(({"A": R, "W": W, "X": X}.get(c, 0) for c in found[7]), 0)
            sections.append((found[2], vaddr, size, offset, size * (found[3] != "NOBITS"), flags * ("A" in found[7])))
        elif found := re.search(r"Build ID: ([0-9a-f]+)$", line):
            build_id = build_id or bytes.fromhex(found[1])
    return {
        "bits": int(field("Class")[3:]),
        "byte_order": field("Data").split()[2],
        "machine": MACHINES[field("Machine")],
        "kind": KINDS[field("Type").split()[0]],
        "entry": int(field("Entry point address"), 16),
        "segments": segments,
        "sections": sections[1:],  # the first is no section; here sections[0] may count the others
        "build_id": build_id,
    }


def said(image):
    """The same fields from an `Image`."""
    return {
        "bits": image.bits,
        "byte_order": image.byte_order,
        "machine": image.machine,
        "kind": image.kind,
        "entry": image.entry,
        "segments": [(s.vaddr, s.memory_size, s.offset, s.file_size, int(s.flags)) for s in image.segments],
        "sections": [(s.name, s.vaddr, s.size, s.offset, s.file_size, int(s.flags)) for s in image.sections[1:]],
        "build_id": image.build_id,
    }


def is_elf(path):
    try:
        with path.open("rb") as file:
            return not path.is_symlink() and file.read(4) == b"\x7fELF"
    except OSError:
        return False


def of_this_machine():
    programs = [path for path in sorted(Path("/usr/bin").iterdir()) if is_elf(path) and path.stat().st_size < 1 << 24]
    libraries = [path.resolve() for path in Path("/usr/lib").glob("*-linux-gnu*/lib[cmsz]*.so.*")]
    objects = list(Path("/usr/lib").glob("*-linux-gnu*/*crt*.o"))
    return [*programs, *(path for path in sorted({*libraries, *objects}) if is_elf(path))]


@needs_readelf
def test_the_files_of_this_machine():
    paths = of_this_machine()
    if len(paths) < 20:
        pytest.skip("fewer than 20 ELF files in /usr/bin and /usr/lib")
    with_id = 0
    for begin in range(0, len(paths), 100):
        part = paths[begin : begin + 100]
        for path, truth in zip(part, readelf(part), strict=True):
            image = image_at(path)
            assert said(image) == truth, path
            with_id += truth["build_id"] is not None
    assert with_id > 10


@needs_readelf
def test_the_files_made_here(tmp_path):
    """That readelf, too, takes them for what they should be."""
    paths = []
    for bits, prefix, machine in [(32, "<", 3), (32, ">", 8), (64, "<", 62), (64, ">", 22)]:
        for extended in (False, True):
            paths.append(tmp_path / f"{bits}{machine}{extended}")
            paths[-1].write_bytes(typical(bits, prefix, machine=machine, extended=extended))
    for path, truth in zip(paths, readelf(paths), strict=True):
        assert truth["build_id"] == BUILD_ID
        assert len(truth["sections"]) == 4
        assert said(image_at(path)) == truth


@needs_readelf
@pytest.mark.parametrize(
    "target", ["i386", "armv7", "armebv7", "aarch64_be", "powerpc64", "s390x", "mips", "riscv64", "x86_64"]
)
def test_other_processors(tmp_path, target):
    """Objects and libraries by clang and lld, which share no code with readelf."""
    if not (shutil.which("clang-19") and shutil.which("ld.lld-19")):
        pytest.skip("no clang-19 and lld-19 on this machine")
    (tmp_path / "a.c").write_text("int f(void) { return 1; } int d = 4; int b[100];")
    obj, lib = tmp_path / "a.o", tmp_path / "a.so"
    subprocess.run(["clang-19", f"--target={target}-linux-gnu", "-fPIC", "-g", "-c", "a.c"], cwd=tmp_path, check=True)
    paths = [obj]
    link = ["ld.lld-19", "-shared", "--build-id=fast", "a.o", "-o", "a.so"]
    if subprocess.run(link, cwd=tmp_path, stderr=subprocess.DEVNULL).returncode == 0:
        paths.append(lib)
    for path, truth in zip(paths, readelf(paths) if len(paths) > 1 else readelf([obj]), strict=True):
        assert said(image_at(path)) == truth
    if lib in paths:
        assert len(image_at(lib).build_id) == 8


@needs_readelf
def test_more_sections_than_the_header_can_count(tmp_path):
    if not shutil.which("gcc"):
        pytest.skip("no gcc on this machine")
    (tmp_path / "a.s").write_text("".join(f'.section s{n},"a"\n.byte 1\n' for n in range(66_000)))
    subprocess.run(["gcc", "-c", "a.s", "-o", "a.o"], cwd=tmp_path, check=True)
    image = image_at(tmp_path / "a.o")
    assert len(image.sections) > 66_000
    assert said(image) == readelf([tmp_path / "a.o"])[0]


@needs_readelf
def test_stripped_program_and_its_debug_file(tmp_path):
    if not (shutil.which("gcc") and shutil.which("objcopy")):
        pytest.skip("no gcc and objcopy on this machine")
    (tmp_path / "a.c").write_text("int main(void) { return 0; }")
    for command in [
        "gcc -g a.c -o a -Wl,--build-id=md5",
        "objcopy --only-keep-debug a a.debug",
        "strip a",
        "objcopy --add-gnu-debuglink=a.debug a",
    ]:
        subprocess.run(command.split(), cwd=tmp_path, check=True)
    program, debug = image_at(tmp_path / "a"), image_at(tmp_path / "a.debug")
    assert program.debug_link == DebugLink("a.debug", zlib.crc32((tmp_path / "a.debug").read_bytes()))
    assert len(program.build_id) == 16
    assert debug.build_id == program.build_id
    assert ".debug_info" in [section.name for section in debug.sections]
    for path, truth in zip(["a", "a.debug"], readelf([tmp_path / "a", tmp_path / "a.debug"]), strict=True):
        assert said(image_at(tmp_path / path)) == truth


def test_program_without_section_headers(tmp_path):
    if not shutil.which("llvm-objcopy-19"):
        pytest.skip("no llvm-objcopy-19 on this machine")
    programs = [path for path in of_this_machine() if image_at(path).segments]
    if not programs:
        pytest.skip("no ELF programs in /usr/bin")
    subprocess.run(["llvm-objcopy-19", "--strip-sections", programs[0], tmp_path / "bare"], check=True)
    whole, bare = image_at(programs[0]), image_at(tmp_path / "bare")
    assert bare.sections == ()
    assert bare.build_id == whole.build_id
    assert [(s.vaddr, s.memory_size, s.flags) for s in bare.segments] == [
        (s.vaddr, s.memory_size, s.flags) for s in whole.segments
    ]


# --- the binaries of our own captures --------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "distance"), [("", 0), ("lldlayout/", 0x1000)])
@pytest.mark.parametrize("name", ["lbrdemo", "liblbrdemo.so"])
def test_code_of_the_captures(layout, name, distance):
    if "LASTBRANCH_DATA" not in os.environ:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not at hand")
    path = Path(os.environ["LASTBRANCH_DATA"]) / "perf/synthetic" / layout / name
    image = image_at(path)
    text = next(section for section in image.sections if section.name == ".text")
    (code,) = image.executable_segments
    assert code.offset <= text.offset < text.offset + text.size <= code.offset + code.file_size
    assert text.vaddr - text.offset == code.vaddr - code.offset == distance
    if shutil.which("readelf"):
        assert said(image) == readelf([path])[0]


def test_headers_are_read_once_while_the_file_is_the_same(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(typical(64, "<"))
    monkeypatch.setattr(opened_binaries, "_SETTLED", 0)
    first = opened_binaries.image_at(str(path))
    assert opened_binaries.image_at(str(path)) is first
    path.write_bytes(make_elf(kind=2, machine=183))
    assert opened_binaries.image_at(str(path)).kind == "executable" != first.kind


def test_headers_of_a_file_that_may_still_change_are_read_each_time(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(typical(64, "<"))
    monkeypatch.setattr(opened_binaries, "_SETTLED", 1 << 62)
    first = opened_binaries.image_at(str(path))
    again = opened_binaries.image_at(str(path))
    assert again == first
    assert again is not first
