"""Stubs of calls through the procedure linkage table: named as objdump names them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from lastbranch.binaries.files import Space
from lastbranch.binaries.sections import open_binary
from lastbranch.symbols.backends import backend_of
from lastbranch.symbols.backends.symbol_tables import FINDERS
from symbol_programs import command, elf

HOSTED = """
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int n, char **v) {
    void *p = malloc(n * 100L);
    void (*drop)(void *) = free;
    memset(p, n, n * 100L);
    printf("%p %zu %f", p, strlen(v[0]), sin(n));
    if (n > 3) free(p);
    drop(p);
    return getenv("A") != 0;
}
"""
BARE = "int one(int); int two(int); int (*held)(int) = two; int start(int n) { return one(n) + two(n) + held(n); }"
LIBRARY = "int one(int n) { return n; } int two(int n) { return n + 1; }"
BTI = ["-mbranch-protection=standard", "-Wl,-z,force-bti"]

GCC, CLANG = ["gcc", "-O2"], ["clang-19", "-O2", "-fuse-ld=lld"]
PROGRAMS: dict[str, list[str]] = {
    "lazy": [*GCC, "hosted.c", "-lm"],
    "no-pie": [*GCC, "-no-pie", "hosted.c", "-lm"],
    "library": [*GCC, "-shared", "-fPIC", "hosted.c", "-lm"],
    "sec": [*GCC, "-fcf-protection", "-Wl,-z,ibtplt", "hosted.c", "-lm"],
    "sec-now": [*GCC, "-fcf-protection", "-Wl,-z,ibtplt,-z,now", "hosted.c", "-lm"],
    "got": [*GCC, "-fno-plt", "hosted.c", "-lm"],
    "stripped": [*GCC, "-s", "-shared", "-fPIC", "hosted.c", "-lm"],
    "lld": [*CLANG, "hosted.c", "-lm"],
    "lld-sec": [*CLANG, "-fcf-protection", "-Wl,-z,force-ibt", "hosted.c", "-lm"],
    "i386": [*CLANG, "--target=i386-linux-gnu", "-Wl,-e,start", "bare.c"],
    "i386-library": [*CLANG, "--target=i386-linux-gnu", "-shared", "-fPIC", "bare.c"],
    "i386-no-pie": [*CLANG, "--target=i386-linux-gnu", "-fno-pie", "-no-pie", "-Wl,-e,start", "bare.c"],
    "i386-bfd": ["gcc", "-m32", "-Wl,-e,start", "bare.c"],
    "aarch64": [*CLANG, "--target=aarch64-linux-gnu", "-Wl,-e,start", "bare.c"],
    "aarch64-bti": [*CLANG, "--target=aarch64-linux-gnu", *BTI, "-Wl,-e,start", "bare.c"],
}


def built(folder: Path, name: str) -> Path:
    """The program ``name``. Skips the test where it cannot be built."""
    for file, text in {"hosted.c": HOSTED, "bare.c": BARE, "library.c": LIBRARY}.items():
        (folder / file).write_text(text)
    words = PROGRAMS[name]
    if "bare.c" in words:
        bare = ["-nostdlib", *(w for w in words if w.startswith(("--target", "-m32", "-fuse-ld")))]
        command([words[0], *bare, "-shared", "-fPIC", "library.c", "-o", "lib.so"], folder)
        words = [*words, "./lib.so", "-nostdlib"]
    command([*words, "-o", "program"], folder)
    return folder / "program"


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_objdump(tmp_path: Path, name: str) -> None:
    path = built(tmp_path, name)
    tool = "llvm-objdump-19" if "aarch64" in name else "objdump"
    listed = command([tool, "-d", str(path)], tmp_path)
    said = {int(m[1], 16): m[2] for m in re.finditer(r"^([0-9a-f]+) <(.*@plt)>:", listed, re.MULTILINE)}
    table = backend_of("tables").functions(elf(path))
    assert {f.start: f.name for f in table.functions if f.name.endswith("@plt")} == said
    assert len(said) > (-1 if name == "got" else 1)
    for section in open_binary(str(path)).image.sections:
        if section.name in (".plt", ".plt.sec", ".plt.got"):
            every = np.arange(section.vaddr, section.vaddr + section.size, dtype=np.uint64)
            called = {table.functions[row].name if row >= 0 else "" for row in table.at(every).tolist()}
            assert called <= {*said.values(), section.name}, "nothing there is some other function"


def test_names_are_demangled(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("namespace ns { int far(int); } int near(int n) { return ns::far(n) + 1; }")
    command(["g++", "-O2", "-shared", "-fPIC", "a.cpp", "-o", "a.so"], tmp_path)
    table = backend_of("auto").functions(elf(tmp_path / "a.so"))
    assert ("_ZN2ns3farEi@plt", "ns::far(int)@plt") in {(f.name, f.shown) for f in table.functions}


def test_functions_that_are_chosen_at_run_time(tmp_path: Path) -> None:
    """A static program has no dynamic symbols: the relocation has the address of an STT_GNU_IFUNC symbol."""
    (tmp_path / "a.c").write_text(
        "static int fast(int n) { return n; } static void *pick(void) { return fast; }\n"
        'int chosen(int) __attribute__((ifunc("pick"))); int main(int n, char **v) { return chosen(n); }'
    )
    command(["gcc", "-O1", "-static", "a.c", "-o", "a"], tmp_path)
    names = {f.name for f in backend_of("tables").functions(elf(tmp_path / "a")).functions}
    assert "chosen@plt" in names or "pick@plt" in names
    command(["strip", "a"], tmp_path)
    names = {f.name for f in backend_of("tables").functions(elf(tmp_path / "a")).functions}
    assert any(re.fullmatch(r"\*ABS\*\+0x[0-9a-f]+@plt", name) for name in names)


def test_damaged_relocations_cost_the_names_of_stubs_only(tmp_path: Path) -> None:
    path = built(tmp_path, "lazy")
    whole = {f.name for f in backend_of("tables").functions(elf(path)).functions}
    data, sections = path.read_bytes(), {s.name: s for s in open_binary(str(path)).image.sections}
    bad = tmp_path / "bad"
    for name in (".rela.plt", ".plt", ".dynsym"):
        section = sections[name]
        for filling in (b"\xff", b"\x00"):
            bad.write_bytes(data[: section.offset] + filling * section.size + data[section.offset + section.size :])
            left = {f.name for f in backend_of("tables").functions(elf(bad)).functions}
            assert {n for n in whole if "plt" not in n} <= left
            assert left <= {*whole, ".plt.got"}


# -- as the processors' ABIs have them


@pytest.mark.parametrize(
    ("machine", "code", "stubs"),
    [
        # System V ABI, AMD64 supplement, 5.2: pushq GOT+8(%rip), jmp *GOT+16(%rip), nopl; jmp *slot(%rip), push, jmp
        (
            "x86_64",
            "ff35e22f0000 ff25e42f0000 0f1f4000 ff25e22f0000 6800000000 e9e0ffffff ff25da2f0000 6801000000 e9d0ffffff",
            [(0x1006, 0x3FF0), (0x1010, 0x3FF8), (0x1020, 0x4000)],
        ),
        # the same with landing pads (.plt.sec): endbr64, bnd jmp *slot(%rip), nopl; endbr64, jmp *slot(%rip)
        (
            "x86_64",
            "f30f1efa f2ff25f52f0000 0f1f440000 f30f1efa ff25e62f0000 660f1f440000",
            [(0x1000, 0x4000), (0x1010, 0x4000)],
        ),
        # System V ABI, Intel386 supplement: jmp *slot, and jmp *slot@GOT(%ebx)
        ("i386", "ff2510400000 6800000000 e9e0ffffff ffa30c000000", [(0x1000, 0x4010), (0x1010, 0x300C)]),
        # endbr32 before each
        ("i386", "f30f1efb ff2510400000 6690 f30f1efb ffa3f8ffffff", [(0x1000, 0x4010), (0x100C, 0x2FF8)]),
        # ELF for the Arm 64-bit Architecture: adrp x16, 0x11000; ldr x17, [x16, #8]; add x16, x16, #8; br x17
        ("aarch64", "90000090 110640f9 10220091 20021fd6", [(0x1000, 0x11008)]),
        # behind bti c, and a page below: adrp x16, 0
        ("aarch64", "1f2003d5 5f2403d5 f0ffff f0 11fe47f9 10e23f91 20021fd6", [(0x1004, 0xFF8)]),
    ],
)
def test_encodings(machine: str, code: str, stubs: list[tuple[int, int]]) -> None:
    start, slot = FINDERS[machine](Space.of(bytes.fromhex(code)), 0x1000, 0x3000)
    assert list(zip(start.tolist(), slot.tolist(), strict=True)) == stubs


@pytest.mark.parametrize("machine", ["x86_64", "i386", "aarch64"])
def test_code_that_ends_early(machine: str) -> None:
    for code in (b"", b"\xff", b"\xff\x25", b"\xff\x25\0\0\0", b"\x10\0\0\x90"):
        start, slot = FINDERS[machine](Space.of(code), 0x1000, 0)
        assert len(start) == len(slot) == 0
