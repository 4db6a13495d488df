"""The kernel's code as it ran: a copy of its memory gives what a patched file gives, and what llvm-profgen makes of
that."""

from __future__ import annotations

import os
import random
import shutil
import struct
from pathlib import Path

import pytest

from export_tools import leaving_branches, ran, tool
from lastbranch.opening import code_of, open_profile
from toy_kernel import LOADED, MODULE, SHIFT, TEXT, Toy, build_id_of, built, functions_of, text_offset

CALL, NOPS = 0xE8, b"\x0f\x1f\x44\x00\x00"
PROGRAM = struct.Struct("<IIQQQQQQ")
Part = tuple[int, bytes]
"""Code and where it ran."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return built(tmp_path_factory.mktemp("toy"))


def core(parts: list[Part]) -> bytes:
    """An ELF core file as /proc/kcore is one: a segment of notes, and one for each part (elf(5))."""
    at = 64 + PROGRAM.size * (len(parts) + 1)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 4, 62, 1, 0, 64, 0, 0, 64, 56, len(parts) + 1, 0, 0, 0)
    programs = [PROGRAM.pack(4, 0, at, 0, 0, 0, 0, 0)]
    for address, code in parts:
        programs.append(PROGRAM.pack(1, 7, at, address, address, len(code), len(code), 4096))
        at += len(code)
    return header + b"".join(programs) + b"".join(code for _, code in parts)


def text_of(path: Path) -> tuple[int, int]:
    """(offset, size) of the code of a file."""
    for line in ran(tool("readelf"), "-SW", path).splitlines():
        words = line.replace("[ ", "[").split()
        if len(words) > 6 and words[1] == ".text":
            return int(words[4], 16), int(words[5], 16)
    raise AssertionError(path)


def patched(toy: Toy, path: Path) -> Path:
    """The kernel with its first call in `tick` turned off, as a static call or a tracer's hook is."""
    code = bytearray(toy.vmlinux.read_bytes())
    start = functions_of(toy.vmlinux)["tick"]
    at = next(
        at
        for at, behind in leaving_branches(toy.vmlinux)
        if at > start and behind - at == 5 and code[at - TEXT + text_offset(toy.vmlinux)] == CALL
    )
    at += text_offset(toy.vmlinux) - TEXT
    code[at : at + 5] = NOPS
    path.write_bytes(code)
    return path


def memory(toy: Toy, kernel: Path) -> list[Part]:
    """The kernel and its module where they ran, the module with addresses that its file lacks."""
    at, size = text_of(kernel)
    module_at, module_size = text_of(toy.program)
    code = kernel.read_bytes()[at : at + size]
    return [(TEXT + SHIFT, code + bytes(-size % 4096)), (LOADED, toy.program.read_bytes()[module_at:][:module_size])]


def copied(folder: Path, parts: list[Part], shift: int = SHIFT) -> Path:
    """A folder as perf copies it: kcore, kallsyms, modules."""
    folder.mkdir(parents=True)
    (folder / "kcore").write_bytes(core(parts))
    symbols = [(TEXT + shift, "T", "_text", ""), (LOADED, "t", "step", "\t[toy_device]")]
    symbols += [(TEXT + shift + 0x40 * i, "T", f"kernel_function_{i}", "") for i in range(3)]
    (folder / "kallsyms").write_text("".join(f"{at:016x} {kind} {name}{of}\n" for at, kind, name, of in symbols))
    (folder / "modules").write_text(f"toy_device 16384 0 - Live {LOADED:#018x}\n")
    return folder


def files(folder: Path, vmlinux: Path | None, toy: Toy) -> Path:
    module = folder / MODULE.lstrip("/")
    module.parent.mkdir(parents=True)
    shutil.copy(toy.module, module)
    if vmlinux is not None:
        shutil.copy(vmlinux, folder / "vmlinux")
    return folder


def shown(run, *words: str | Path) -> str:
    done = run(*words, "--no-symbol-cache", "--no-progress")
    assert done.code == 0, done.err
    return done.out


def test_code_as_it_ran_is_shown_and_exported(run, toy: Toy, tmp_path: Path) -> None:
    """As if the file were what ran; llvm-profgen knows that file alone."""
    path, changed = tmp_path / "x.data", patched(toy, tmp_path / "patched")
    path.write_bytes(toy.capture().build())
    asfile, asran = files(tmp_path / "linked", toy.vmlinux, toy), files(tmp_path / "ran", changed, toy)
    kcore = copied(tmp_path / "copy", memory(toy, changed))
    out = {}
    for name, words in {
        "linked": ("--symfs", asfile),
        "ran": ("--symfs", asran),
        "kcore": ("--symfs", asfile, "--kcore", kcore),
        "file": ("--symfs", asfile, "--kcore", kcore / "kcore"),
    }.items():
        annotated = shown(run, "annotate", path, "tick", *words, "--all")
        profile = shown(run, "export", path, "--to", "sampleprof", "--binary", "[kernel.kallsyms]", *words)
        out[name] = annotated, profile
    assert out["kcore"] == out["ran"] == out["file"]
    assert out["linked"][0] != out["ran"][0]
    assert "nop" in out["kcore"][0]
    script = tmp_path / "script"
    script.write_text(
        shown(run, "export", path, "--to", "perfscript", "--binary", "[kernel.kallsyms]", "--symfs", asran)
    )
    ran(
        tool("llvm-profgen-19"),
        "--kernel",
        f"--binary={changed}",
        f"--perfscript={script}",
        "--format=text",
        f"--output={tmp_path / 'theirs'}",
    )
    assert out["kcore"][1] == (tmp_path / "theirs").read_text()


def test_perfs_copies_are_found(run, toy: Toy, tmp_path: Path) -> None:
    """Beside a capture of `perf record --kcore`, and in perf's cache, where a later boot is left out."""
    changed = patched(toy, tmp_path / "patched")
    where = ("--symfs", files(tmp_path / "linked", toy.vmlinux, toy))
    recorded = tmp_path / "perf.data"
    copied(recorded / "kcore_dir", memory(toy, changed))
    (recorded / "data").write_bytes(toy.capture().build())
    (tmp_path / "x.data").write_bytes(toy.capture().build())
    cache = tmp_path / "debug" / "[kernel.kcore]" / build_id_of(toy.vmlinux).hex()
    copied(cache / "2026010112000000", memory(toy, changed))
    copied(cache / "2026020112000000", memory(toy, changed), shift=0x100000)
    want = shown(run, "annotate", recorded, "tick", *where, "--all")
    assert "nop" in want
    assert shown(run, "annotate", recorded / "data", "tick", *where, "--all") == want
    assert shown(run, "annotate", tmp_path / "x.data", "tick", *where, "--all", "--kcore", tmp_path / "debug") == want
    assert shown(run, "annotate", tmp_path / "x.data", "tick", *where, "--all") != want


def test_without_a_file_there_are_code_and_names_all_the_same(run, toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "x.data").write_bytes(toy.capture().build())
    kcore = copied(tmp_path / "copy", memory(toy, toy.vmlinux))
    at = functions_of(toy.vmlinux)["tick"]
    named = [f"{at + SHIFT:016x} T tick", f"{functions_of(toy.vmlinux)['start'] + SHIFT:016x} T start"]
    with (kcore / "kallsyms").open("a") as file:
        file.write("\n".join(named) + "\n")
    with_file = open_profile(tmp_path / "x.data", symfs=str(files(tmp_path / "linked", toy.vmlinux, toy)))
    without = open_profile(tmp_path / "x.data", kcore=kcore)
    (row,) = [i for i, m in enumerate(without.modules) if m.name == "[kernel.kallsyms]"]
    found, want = code_of(without.modules[row]), code_of(with_file.modules[row])
    assert found is not None
    assert want is not None
    assert found.arch == "x86_64"
    assert found.read(at - TEXT, 40) == want.read(at, 40)
    said = shown(run, "annotate", tmp_path / "x.data", "tick", "--kcore", kcore)
    assert "call" in said
    assert "tick" in shown(run, "report", tmp_path / "x.data", "--by", "function", "--kcore", kcore)
    assert "tick" not in shown(run, "report", tmp_path / "x.data", "--by", "function")
    assert not without.notes


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("boot", "no copy in it is of the boot that was recorded"),
        ("kernel", "its code is not that of"),
        ("elsewhere", "the kernel's code is not in it"),
        ("file", "is no ELF core file"),
        ("nothing", "neither an ELF nor a PE file"),
    ],
)
def test_memory_of_another_kernel_is_refused(run, toy: Toy, tmp_path: Path, change: str, says: str) -> None:
    (tmp_path / "x.data").write_bytes(toy.capture().build())
    parts = memory(toy, toy.vmlinux)
    if change == "kernel":
        parts[0] = (parts[0][0], random.Random(1).randbytes(len(parts[0][1])))
    if change == "elsewhere":
        parts[0] = (TEXT, parts[0][1])
    kcore = copied(tmp_path / "perf" / "kcore_dir", parts, SHIFT + 4096 * (change == "boot"))
    if change in ("file", "nothing"):
        (kcore / "kcore").write_bytes(toy.vmlinux.read_bytes() if change == "file" else b"")
    words = ("--symfs", files(tmp_path / "linked", toy.vmlinux, toy), "--no-progress")
    refused = run("info", tmp_path / "x.data", *words, "--kcore", kcore)
    assert refused.code == 2, refused.err
    assert says in refused.err
    shutil.copy(tmp_path / "x.data", tmp_path / "perf" / "data")  # beside a capture it is a note
    noted = run("info", tmp_path / "perf" / "data", *words)
    assert noted.code == 0, noted.err
    assert says in noted.err


def test_any_damage_is_an_error_or_less_code(toy: Toy, tmp_path: Path) -> None:
    """Headers with other numbers, and a file that is cut short."""
    (tmp_path / "x.data").write_bytes(toy.capture().build())
    kcore, draw = copied(tmp_path / "kcore_dir", memory(toy, toy.vmlinux)) / "kcore", random.Random(2)
    whole = kcore.read_bytes()
    symfs = str(files(tmp_path / "linked", toy.vmlinux, toy))
    for _ in range(40):
        data = bytearray(whole[: draw.choice((len(whole), draw.randrange(len(whole))))])
        for _ in range(draw.randrange(4)):
            if data:
                data[draw.randrange(min(len(data), 64 + 3 * PROGRAM.size))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
        kcore.write_bytes(data)
        profile = open_profile(tmp_path / "x.data", symfs=symfs)
        for module in profile.modules:
            found = code_of(module)
            assert found is None or len(found.read(TEXT, 64)) <= 64


def test_several_captures_have_no_one_boot(run, toy: Toy, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.data").write_bytes(toy.capture().build())
    kcore = copied(tmp_path / "copy", memory(toy, toy.vmlinux))
    done = run("report", tmp_path / "a.data", tmp_path / "b.data", "--kcore", kcore)
    assert done.code == 2
    assert "give one capture" in done.err


@pytest.mark.skipif(not os.access("/proc/kcore", os.R_OK), reason="/proc/kcore cannot be read")
def test_the_running_kernel_has_its_own_code() -> None:
    from lastbranch.binaries.files import File
    from lastbranch.opening.code import text_of

    with open("/proc/kallsyms") as file:
        start = next(int(line.split()[0], 16) for line in file if line.split()[2] == "_text")
    if not start:
        pytest.skip("addresses of the kernel are hidden")
    memory = File("/proc/kcore")
    source, image = text_of(memory, start, start + 0x100000, start)
    (segment,) = image.segments
    assert segment.vaddr == 0
    buffer = bytearray(64)
    assert source.readinto(segment.offset, memoryview(buffer)) == 64
    assert any(buffer)
    memory.close()
