"""The sample profile of a binary with pseudo probes is llvm-profgen's, from counts and from the capture."""

from __future__ import annotations

from pathlib import Path

import pytest

from code_walks import Walk
from export_tools import PROGRAM, made_up_stacks, ran, tool
from probed_programs import SOURCE, built, probes_of, read, shown


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(SOURCE, tmp_path_factory.mktemp("probed") / "probed")


@pytest.fixture(scope="module")
def capture(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Branch stacks with call chains."""
    path = tmp_path_factory.mktemp("capture") / "capture.txt"
    path.write_text(Walk(program).script(300))
    return path


def profile(run, program: Path, capture: Path, out: Path, *options: str) -> tuple[str, str]:
    """(the profile, what is said of it)."""
    done = run("export", "--to", "sampleprof", "--no-symbol-cache", *options, "--binary", program, "-o", out, capture)
    assert done.code == 0, done.err
    return out.read_text(), done.err


def profgen(program: Path, out: Path, *options: str) -> str:
    ran(tool("llvm-profgen-19"), f"--binary={program}", "--format=text", f"--output={out}", *options)
    return out.read_text()


def test_it_is_llvm_profgens_from_counts(run, program: Path, capture: Path, tmp_path: Path) -> None:
    ours, _ = profile(run, program, capture, tmp_path / "ours")
    assert run("export", "--to", "profgen", "--binary", program, "-o", tmp_path / "unsym", capture).code == 0
    assert ours == profgen(program, tmp_path / "theirs", f"--unsymbolized-profile={tmp_path / 'unsym'}")
    assert ours.count("!CFGChecksum: ") == 9


def test_it_is_llvm_profgens_where_much_is_inlined(run, tmp_path: Path) -> None:
    """At -O1 the probes of some inlined functions have lost their callers."""
    (tmp_path / "p.cc").write_text(PROGRAM)
    program, capture = built(tmp_path / "p.cc", tmp_path / "p", "-O1"), tmp_path / "capture.txt"
    capture.write_text(made_up_stacks(program))
    assert read(probes_of(program)) == shown(program)[0]
    ours, _ = profile(run, program, capture, tmp_path / "ours")
    assert run("export", "--to", "profgen", "--binary", program, "-o", tmp_path / "unsym", capture).code == 0
    assert ours == profgen(program, tmp_path / "theirs", f"--unsymbolized-profile={tmp_path / 'unsym'}")
    assert ours.count("\n") > 1000
    assert "\n    2: _ZN" in ours  # four deep


def test_clang_takes_it(run, program: Path, capture: Path, tmp_path: Path) -> None:
    profile(run, program, capture, tmp_path / "p.prof")
    shown = ran(tool("llvm-profdata-19"), "show", "--sample", "--function=hot", tmp_path / "p.prof")
    assert "CFG checksum" in shown
    ran(
        tool("clang-19"), "-O2", "-g", "-fpseudo-probe-for-profiling", f"-fprofile-sample-use={tmp_path / 'p.prof'}",
        "-Werror", "-c", SOURCE, "-o", tmp_path / "out.o",
    )  # fmt: skip


def changed(program: Path, folder: Path, *objcopy: str) -> Path:
    folder.mkdir()
    ran(tool("objcopy"), *objcopy, program, folder / program.name)
    return folder / program.name


def test_a_stripped_binary_is_named(run, program: Path, capture: Path, tmp_path: Path) -> None:
    stripped = changed(program, tmp_path / "stripped", "--strip-all")
    done = run("export", "--to", "sampleprof", "--no-symbol-cache", "--binary", stripped, capture)
    assert done.code == 5
    assert f"{stripped} has pseudo probes, but is stripped of the symbols of their functions" in done.err


def test_a_section_that_is_cut_off_is_named_and_the_rest_is_done(
    run, program: Path, capture: Path, tmp_path: Path
) -> None:
    whole, _ = profile(run, program, capture, tmp_path / "whole")
    section = tmp_path / "section"
    ran(tool("objcopy"), "-O", "binary", "--only-section=.pseudo_probe", "--set-section-flags", ".pseudo_probe=alloc",
        program, section)  # fmt: skip
    section.write_bytes(section.read_bytes()[:-40])
    cut = changed(program, tmp_path / "cut", "--update-section", f".pseudo_probe={section}")
    ours, said = profile(run, cut, capture, tmp_path / "ours")
    assert f"pseudo probes: {cut}: .pseudo_probe: ends in the middle (at offset 0x" in said
    assert ours
    assert len(ours) < len(whole)


def test_probes_of_other_code_are_counted(run, program: Path, capture: Path, tmp_path: Path) -> None:
    """The probes of a build with other options: some are inside instructions."""
    other, section = built(SOURCE, tmp_path / "other", "-O1"), tmp_path / "section"
    ran(tool("objcopy"), "-O", "binary", "--only-section=.pseudo_probe", "--set-section-flags", ".pseudo_probe=alloc",
        other, section)  # fmt: skip
    mixed = changed(program, tmp_path / "mixed", "--update-section", f".pseudo_probe={section}")
    _, said = profile(run, mixed, capture, tmp_path / "ours")
    assert "at no instruction: they do not fit this code" in said


def test_without_probes_lines_count(run, program: Path, capture: Path, tmp_path: Path) -> None:
    plain = changed(program, tmp_path / "plain", "--remove-section=.pseudo_probe")
    ours, _ = profile(run, plain, capture, tmp_path / "ours")
    assert "!CFGChecksum" not in ours
    assert "\nmain:" in f"\n{ours}"
