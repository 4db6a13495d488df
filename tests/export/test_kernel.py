"""Profiles of a kernel and its modules, in the same pass as those of programs: equal to those of the same code linked
as a program, and to llvm-profgen's."""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from export_tools import ran, tool
from lastbranch.binaries.kernel_modules import as_loaded, module_name
from lastbranch.binaries.sections import open_binary
from lastbranch.errors import FormatError
from lastbranch.model import BytesSource, Limits, limited
from toy_kernel import LINKED, MODULE, SHIFT, TEXT, Toy, build_id_of, built, functions_of, runs_of, unsymbolized

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".xz": lzma.compress, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress,
}  # fmt: skip


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return built(tmp_path_factory.mktemp("toy"))


def symfs(folder: Path, toy: Toy, packed: str = "", name: str = MODULE) -> Path:
    """The files of the machine that was recorded, below a folder."""
    module = folder / (name + packed).lstrip("/")
    module.parent.mkdir(parents=True)
    module.write_bytes(PACKED[packed](toy.module.read_bytes()))
    shutil.copy(toy.vmlinux, folder / "vmlinux")
    (folder / "bin").mkdir()
    shutil.copy(toy.program, folder / "bin" / "program")
    return folder


def test_all_modules_are_exported_in_one_pass_as_llvm_profgen_has_them(run, toy: Toy, tmp_path: Path) -> None:
    path, files = tmp_path / "x.data", symfs(tmp_path / "root", toy, ".xz")
    path.write_bytes(toy.capture(module=MODULE + ".xz").build())
    done = run("export", "--to", "sampleprof", "--symfs", files, "--no-symbol-cache", "-o", tmp_path / "out", path)
    assert done.code == 0, done.err
    index = (tmp_path / "out" / "index.tsv").read_text()
    assert build_id_of(toy.vmlinux).hex() in index
    names = dict(line.split("\t")[1::-1] for line in index.splitlines())
    for module, program in (
        ("[kernel.kallsyms]", toy.vmlinux),
        (MODULE + ".xz", toy.program),
        ("/bin/program", toy.program),
    ):
        (tmp_path / "unsym").write_text(unsymbolized(program))
        ran(
            tool("llvm-profgen-19"),
            f"--binary={program}",
            f"--unsymbolized-profile={tmp_path / 'unsym'}",
            "--format=text",
            f"--output={tmp_path / 'theirs'}",
        )
        ours = (tmp_path / "out" / names[module]).read_text()
        assert ours == (tmp_path / "theirs").read_text(), module
        assert ours.count("\n") > 10
        if program == toy.vmlinux:  # called by their aliases; clang leaves one of them no other symbol
            assert {"__x64_sys_rest", "__x64_sys_wake", "__do_sys_wake"} <= functions_of(program).keys()
            assert "__do_sys_rest" not in functions_of(program)
            assert {"__do_sys_rest", "__do_sys_wake"} <= set(re.findall(r"\w+", ours))
            assert "__x64_sys" not in ours


def test_llvm_profgen_makes_the_same_of_the_samples_of_a_kernel_that_was_moved(run, toy: Toy, tmp_path: Path) -> None:
    path, files = tmp_path / "x.data", symfs(tmp_path / "root", toy)
    path.write_bytes(toy.capture().build())
    for form in ("perfscript", "sampleprof"):
        done = run(
            "export",
            "--to",
            form,
            "--symfs",
            files,
            "--binary",
            "[kernel.kallsyms]",
            "--no-symbol-cache",
            "-o",
            tmp_path / form,
            path,
        )
        assert done.code == 0, done.err
    ran(
        tool("llvm-profgen-19"),
        "--kernel",
        f"--binary={toy.vmlinux}",
        f"--perfscript={tmp_path / 'perfscript'}",
        "--format=text",
        f"--output={tmp_path / 'theirs'}",
    )
    assert (tmp_path / "sampleprof").read_text() == (tmp_path / "theirs").read_text()


@pytest.mark.parametrize("form", ["propeller", "profgen", "autofdo"])
def test_other_formats_are_those_of_the_same_code_as_a_program(run, toy: Toy, tmp_path: Path, form: str) -> None:
    """The module's blocks have the same numbers, and its addresses count from its first page of code."""
    path, files = tmp_path / "x.data", symfs(tmp_path / "root", toy)
    path.write_bytes(toy.capture().build())
    made = []
    for binary in ("toy-device.ko", "/bin/program"):
        done = run("export", "--to", form, "--symfs", files, "--no-symbol-cache", "--binary", binary, path)
        assert done.code == 0, done.err
        made.append(done.out)
    module, program = made
    if form == "autofdo":  # offsets in the file, of sections that are apart by as much as in memory
        sections = [open_binary(str(p)).image.sections for p in (toy.module, toy.program)]
        at, linked = (next(s.offset for s in found if s.name == ".text") for found in sections)
        assert [line for line in module.splitlines() if line.startswith(f"{at:x}-")]
        assert [line for line in program.splitlines() if line.startswith(f"{linked:x}-")]
        assert len(module.splitlines()) == len(program.splitlines())
    else:
        assert module == program
        assert len(module) > 50


def test_addresses_of_the_kernel_are_as_linked(run, toy: Toy, tmp_path: Path) -> None:
    """Wherever it was moved at boot. BOLT takes them so; it rewrites no modules."""
    path, files = tmp_path / "x.data", symfs(tmp_path / "root", toy)
    path.write_bytes(toy.capture().build())
    done = run("export", "--to", "bolt", "--symfs", files, "--binary", "[kernel.kallsyms]", path)
    assert done.code == 0, done.err
    for start, end, times in runs_of(toy.vmlinux):
        assert re.search(rf"^[Ff] {start:x} {end:x} {times}$", done.out, re.M)
    for form in ("bolt", "boltyaml"):
        refused = run("export", "--to", form, "--symfs", files, "--binary", "toy-device.ko", path)
        assert refused.code != 0
        assert "BOLT rewrites no kernel modules" in refused.err


@pytest.mark.parametrize("packed", PACKED)
def test_a_module_is_laid_out_and_relocated_as_the_linker_does_it(toy: Toy, tmp_path: Path, packed: str) -> None:
    path = tmp_path / f"toy.ko{packed}"
    path.write_bytes(PACKED[packed](toy.module.read_bytes()))
    ours, theirs = open_binary(str(path)), open_binary(str(toy.program))
    assert ours.image.kind == "shared object"
    for name in (".text", ".text.unlikely"):
        mine, linked = (next(s for s in b.image.sections if s.name == name) for b in (ours, theirs))
        assert mine.vaddr == linked.vaddr - LINKED
        code, want = bytes(ours.section(name).raw), bytes(theirs.section(name).raw)
        # The linker knows no address of `tick` either, but fills the place of its call.
        differ = [i for i, (a, b) in enumerate(zip(code, want, strict=True)) if a != b]
        assert len(differ) <= 40
    assert ours.image.segments[0].vaddr == 0
    assert all(not s.name.startswith(".init") or s.vaddr > 0x100 for s in ours.image.sections if s.flags)


def test_names_and_code_of_the_kernel_and_its_module(run, toy: Toy, tmp_path: Path) -> None:
    path, files = tmp_path / "x.data", symfs(tmp_path / "root", toy, ".zst")
    path.write_bytes(toy.capture(module=MODULE + ".zst").build())
    report = run("report", "--by", "line", "--format", "csv", "--symfs", files, "--no-symbol-cache", path)
    assert report.code == 0, report.err
    for name, line in (
        ("schedule", "kernel.c"),
        ("toy_work", "module.c"),
        ("failed", "module.c"),
        ("tick", "kernel.c"),
    ):
        assert any(name in row and line in row for row in report.out.splitlines()), name
    called = run(
        "annotate", path, "toy_work", "--module", "toy-device.ko.zst", "--symfs", files, "--all", "--no-symbol-cache"
    )
    assert called.code == 0, called.err
    assert "<failed>" in called.out  # a relocation puts it there


def test_a_module_that_is_known_by_its_name_alone_is_found_by_modules_dep(run, toy: Toy, tmp_path: Path) -> None:
    path, files = tmp_path / "x.data", symfs(tmp_path / "root", toy, ".gz")
    (files / "lib/modules/6.1.0-toy/modules.dep").write_text("kernel/drivers/toy-device.ko.gz: kernel/other.ko\n")
    path.write_bytes(toy.capture(module="[toy_device]").build())
    done = run("export", "--to", "sampleprof", "--symfs", files, "--binary", "[toy_device]", "--no-symbol-cache", path)
    assert done.code == 0, done.err
    assert "toy_work:" in done.out


def test_what_the_kernel_patched_into_its_code_is_counted_as_it_ran(run, toy: Toy, tmp_path: Path) -> None:
    """A static branch that is off in the file, and a retpoline's call that became an indirect one: the capture says
    where the code went. A program's code is as its file has it."""
    path, files = tmp_path / "x.data", symfs(tmp_path / "root", toy)
    b, functions = toy.capture(), functions_of(toy.vmlinux)
    first, _, _ = runs_of(toy.vmlinux)[0]
    last = max(end for _, end, _ in runs_of(toy.vmlinux) if end < functions["tick"])
    call = next(end for _, end, _ in runs_of(toy.vmlinux) if functions["start"] <= end)
    program = [(a, z) for a, z, _ in runs_of(toy.program)]
    for by, mode, start, end in ((SHIFT, 1, first, last), (0, 2, program[0][0], program[1][1])):
        b.sample(mode, ip=start + by, pid=7, time=5000, branches=[(end + by, start + by, 2)] * 2)
    b.sample(1, ip=first, pid=7, time=5001, branches=[(call + SHIFT, functions["schedule"] + SHIFT, 2)])
    path.write_bytes(b.build())

    def export(form: str, binary: str) -> tuple[str, str]:
        done = run("export", "--to", form, "--symfs", files, "--binary", binary, "--no-symbol-cache", path)
        assert done.code == 0, done.err
        return done.out, done.err

    text, notes = export("profgen", "[kernel.kallsyms]")
    assert f"{first - TEXT:x}-{last - TEXT:x}:1" in text.splitlines()
    assert "left out" not in notes
    assert "1 range is left out: no code runs past an unconditional branch" in export("profgen", "/bin/program")[1]
    profile = export("sampleprof", "[kernel.kallsyms]")[0]
    assert re.search(r"^start:.*\n(?: .*\n)* .*schedule:1$", profile, re.M)


def test_files_of_another_build_are_named_and_not_used(run, toy: Toy, tmp_path: Path) -> None:
    path, files = tmp_path / "x.data", symfs(tmp_path / "root", toy)
    path.write_bytes(toy.capture().build())
    kernel, other = toy.vmlinux.read_bytes(), tmp_path / "root" / "vmlinux"
    other.write_bytes(kernel.replace(build_id_of(toy.vmlinux), bytes(20)[:-1] + b"\1"))
    done = run("export", "--to", "sampleprof", "--binary", other, "--symfs", files, path)
    assert done.code != 0
    assert build_id_of(toy.vmlinux).hex() in done.err
    assert f"{1:040x}" in done.err
    done = run("export", "--to", "sampleprof", "--binary", "[kernel.kallsyms]", "--symfs", files, path)
    assert done.code != 0
    assert "[kernel.kallsyms]: link addresses are not known, binary build id differs" in done.err
    done = run("export", "--to", "sampleprof", "--symfs", files, "-o", tmp_path / "out", "--no-symbol-cache", path)
    assert done.code == 0, done.err
    assert "[kernel.kallsyms] is left out: link addresses are not known, binary build id differs" in done.err


def test_vmlinux_serves_a_kernel_without_a_recorded_build_id(run, toy: Toy, tmp_path: Path) -> None:
    path = tmp_path / "x.data"
    path.write_bytes(toy.capture(ids=False).build())
    done = run("export", "--to", "sampleprof", "--binary", toy.vmlinux, "--no-symbol-cache", path)
    assert done.code == 0, done.err
    assert "schedule:" in done.out


@pytest.mark.parametrize("packed", [".xz", ".gz", ".zst"])
def test_a_damaged_file_of_a_module_is_named(toy: Toy, run, tmp_path: Path, packed: str) -> None:
    whole = PACKED[packed](toy.module.read_bytes())
    for damaged in (whole[: len(whole) // 2], whole[:20] + b"\xff" * 40 + whole[60:]):
        with pytest.raises(FormatError, match=r"toy: .*(unpacked|past the end|ELF)"):
            as_loaded(BytesSource(damaged, "toy"))
    path, files = tmp_path / "x.data", symfs(tmp_path / "root", toy)
    path.write_bytes(toy.capture(module=MODULE + packed).build())
    (files / MODULE[1:]).unlink()
    (files / (MODULE + packed)[1:]).write_bytes(whole[: len(whole) // 2])
    done = run("export", "--to", "sampleprof", "--symfs", files, "--binary", MODULE + packed, path)
    assert done.code != 0
    assert "unreadable" in done.err
    assert "cannot be unpacked" in done.err


@pytest.mark.parametrize("packed", [".xz", ".gz", ".zst"])
def test_no_more_is_unpacked_than_the_limits_allow(packed: str) -> None:
    data = PACKED[packed](b"\x7fELF" + bytes(100_000))
    with limited(Limits(expansion=5000, ratio=1)), pytest.raises(FormatError, match="become more than 5000") as caught:
        as_loaded(BytesSource(data, "toy"))
    assert caught.value.value == 5001


def test_lying_headers_of_a_module_are_errors(toy: Toy) -> None:
    data = bytearray(toy.module.read_bytes())
    for at, size in ((40, 8), (58, 2), (60, 2)):  # e_shoff, e_shentsize, e_shnum
        wrong = bytearray(data)
        wrong[at : at + size] = b"\xf0" * size
        with pytest.raises(FormatError, match="toy"):
            as_loaded(BytesSource(wrong, "toy"))


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("/lib/modules/6.1/kernel/net/nf-tables.ko.xz", "nf_tables"),
        ("[nf_tables]", "nf_tables"),
        ("a.ko", "a"),
        ("C:\\x\\b-c.ko.zst", "b_c"),
        ("", ""),
    ],
)
def test_names_of_modules(name: str, want: str) -> None:
    assert module_name(name) == want
