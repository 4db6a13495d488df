"""The sample profile of a binary with pseudo probes is llvm-profgen's, from counts and from the capture."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from code_walks import Walk
from export_tools import PROGRAM, made_up_stacks, ran, tool
from lastbranch.errors import FormatError
from lastbranch.export.contexts import without_repeats
from lastbranch.export.extbinary import read_extbinary
from lastbranch.model import Limits, limited
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


def export(run, program: Path, capture: Path, out: Path, *options: str) -> str:
    """The notes about the profile."""
    done = run("export", "--to", "sampleprof", "--no-symbol-cache", *options, "--binary", program, "-o", out, capture)
    assert done.code == 0, done.err
    return done.err


def profile(run, program: Path, capture: Path, out: Path, *options: str) -> tuple[str, str]:
    """(the profile, what is said of it)."""
    said = export(run, program, capture, out, *options)
    return out.read_text(), said


def profgen(program: Path, out: Path, *options: str) -> str:
    ran(tool("llvm-profgen-19"), f"--binary={program}", "--format=text", f"--output={out}", *options)
    return out.read_text()


def test_it_is_llvm_profgens_from_counts(run, program: Path, capture: Path, tmp_path: Path) -> None:
    ours, _ = profile(run, program, capture, tmp_path / "ours")
    assert run("export", "--to", "profgen", "--binary", program, "-o", tmp_path / "unsym", capture).code == 0
    assert ours == profgen(program, tmp_path / "theirs", f"--unsymbolized-profile={tmp_path / 'unsym'}")
    assert ours.count("!CFGChecksum: ") == 9


@pytest.fixture(scope="module")
def inlined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of C++, where much is inlined. At -O1 the probes of some inlined functions have lost their callers."""
    folder = tmp_path_factory.mktemp("inlined")
    (folder / "p.cc").write_text(PROGRAM)
    return built(folder / "p.cc", folder / "p", "-O1")


def test_it_is_llvm_profgens_where_much_is_inlined(run, inlined: Path, tmp_path: Path) -> None:
    program, capture = inlined, tmp_path / "capture.txt"
    capture.write_text(made_up_stacks(program))
    assert read(probes_of(program)) == shown(program)[0]
    ours, _ = profile(run, program, capture, tmp_path / "ours")
    assert run("export", "--to", "profgen", "--binary", program, "-o", tmp_path / "unsym", capture).code == 0
    assert ours == profgen(program, tmp_path / "theirs", f"--unsymbolized-profile={tmp_path / 'unsym'}")
    assert ours.count("\n") > 1000
    assert "\n    2: _ZN" in ours  # four deep


def by_context(run, program: Path, capture: Path, tmp_path: Path) -> tuple[str, str, str]:
    """(the profile by context, what is said of it, llvm-profgen's)."""
    ours, said = profile(run, program, capture, tmp_path / "ours", "--context")
    options = (f"--perfscript={capture}", "--csspgo-preinliner=0")
    return ours, said, profgen(program, tmp_path / "theirs", *options)


def test_by_context_it_is_llvm_profgens(run, program: Path, capture: Path, tmp_path: Path) -> None:
    ours, said, theirs = by_context(run, program, capture, tmp_path)
    assert ours == theirs
    assert "samples left out: taken where a function has not made its frame, or no longer has it" in said
    assert re.search(r"^ \d+: hot:\d+\n  1: ", ours, re.M)  # in its caller
    assert re.search(r"^ {3,}!Attributes: 1", ours, re.M)


@pytest.mark.parametrize("depth", [8, 32])
def test_by_context_it_is_llvm_profgens_where_much_is_inlined(run, inlined: Path, tmp_path: Path, depth: int) -> None:
    capture = tmp_path / "capture.txt"
    capture.write_text(Walk(inlined, depth).script(100, every=40, depth=depth))
    ours, _, theirs = by_context(run, inlined, capture, tmp_path)
    assert ours == theirs
    assert ours.count("\n") > 700


def test_by_context_it_is_llvm_profgens_where_tail_calls_leave_no_frame(run, tmp_path: Path) -> None:
    program, capture = built(SOURCE, tmp_path / "p", "-O2", "-no-pie"), tmp_path / "capture.txt"
    capture.write_text(Walk(program, 5).script(300))
    ours, _, theirs = by_context(run, program, capture, tmp_path)
    assert ours == theirs
    assert "jmp" in ran(tool("llvm-objdump-19"), "-d", "--disassemble-symbols=last", program)
    assert re.search(r"^ \d+: last:\d+\n(?:  .*\n)*?  \d+: (hot|cold):", ours, re.M)


@pytest.mark.parametrize("form", [(), ("--extbinary",)])
def test_clang_inlines_a_hot_context(run, program: Path, capture: Path, tmp_path: Path, form: tuple[str, ...]) -> None:
    export(run, program, capture, tmp_path / "p.prof", "--context", *form)
    told = ran(
        tool("clang-19"),
        "-O2",
        "-g",
        "-fpseudo-probe-for-profiling",
        f"-fprofile-sample-use={tmp_path / 'p.prof'}",
        "-DAPART=",
        "-Rpass=sample-profile-inline",
        "-c",
        SOURCE,
        "-o",
        tmp_path / "out.o",
    )
    assert "'hot' inlined into 'main' to match profiling context" in told
    shown = ran(tool("llvm-profdata-19"), "show", "--sample", "--function=main", tmp_path / "p.prof")
    assert "inlined callee: hot:" in shown


def test_contexts_need_call_chains_and_probes(run, program: Path, capture: Path, tmp_path: Path) -> None:
    options = ("export", "--to", "sampleprof", "--context", "--no-symbol-cache", "--binary")
    plain = changed(program, tmp_path / "plain", "--remove-section=.pseudo_probe")
    done = run(*options, plain, capture)
    assert done.code == 5
    assert "probed has no pseudo probes, which contexts are counted by" in done.err
    stacks = tmp_path / "stacks.txt"
    stacks.write_text(made_up_stacks(program))
    done = run(*options, program, stacks)
    assert done.code == 4
    assert "the capture has no call chains with its branch stacks" in done.err
    assert run("export", "--to", "bolt", "--context", "--binary", program, capture).code == 2
    assert run(*options, program, "--estimate", "executions", capture).code == 2


def test_runs_of_equal_frames_are_one() -> None:
    assert without_repeats(list("aabb")) == list("ab")
    assert without_repeats(list("abcbcbcd")) == list("abcd")
    assert without_repeats(list("aabaab")) == list("ab")
    assert without_repeats(list("abcabd")) == list("abcabd")
    assert without_repeats([]) == []


def test_how_much_fits_a_binary_that_was_built_again(run, program: Path, capture: Path, tmp_path: Path) -> None:
    """A function with another control flow, and one of another name: the rest is as it was."""
    profile(run, program, capture, tmp_path / "p.prof", "--context")
    options = ("--format", "csv", "--fail-under", "100")
    same = run("export", "--check", tmp_path / "p.prof", "--binary", program, *options)
    assert same.code == 0, same.err
    text = SOURCE.read_text().replace("{ return leaf(x, 1)", "{ if (x > 99) x--; return leaf(x, 1)")
    (tmp_path / "probed.c").write_text(text.replace("deep(", "far("))
    again = built(tmp_path / "probed.c", tmp_path / "probed")
    done = run("export", "--check", tmp_path / "p.prof", "--binary", again, *options)
    assert done.code == 6
    rows = {line.split(",")[0]: list(map(float, line.split(",")[1:])) for line in done.out.splitlines()[1:]}
    cold, deep = (counts_of(name, (tmp_path / "p.prof").read_text()) for name in ("cold", "deep"))
    assert f"{deep} counts are of 1 function that the binary does not have: deep" in done.err
    assert f"{cold} counts are of 1 function whose control flow changed: cold" in done.err
    assert rows["profile"][2] - rows["profile"][3] == cold + deep > 0

    # What fits can be written, and is whole.
    written = tmp_path / "fits.prof"
    done = run("export", "--check", tmp_path / "p.prof", "--binary", again, "-o", written)
    assert done.code == 0, done.err
    text = written.read_text()
    assert not counts_of("cold", text) + counts_of("deep", text)
    for name in ("hot", "main", "last"):
        assert counts_of(name, text) == counts_of(name, (tmp_path / "p.prof").read_text()) > 0
    done = run("export", "--check", written, "--binary", again, *options)
    assert done.code == 0, done.err
    (left,) = (line.split(",") for line in done.out.splitlines() if line.startswith("profile,"))
    assert float(left[3]) == float(left[4]) == rows["profile"][3]
    assert ran(tool("llvm-profdata-19"), "merge", "--sample", "--text", "-o", "-", written) == text
    done = run("export", "--check", tmp_path / "p.prof", "--binary", again, "-o", written)
    assert (done.code, "exists; --force replaces it" in done.err) == (2, True)


@pytest.mark.parametrize("options", [(), ("--context",)])
def test_llvm_reads_the_binary_form_as_the_text(
    run, program: Path, capture: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    text, packed = tmp_path / "text", tmp_path / "packed"
    ours, _ = profile(run, program, capture, text, *options)
    export(run, program, capture, packed, *options, "--extbinary")
    merge = (tool("llvm-profdata-19"), "merge", "--sample", "--text", "-o")
    ran(*merge, tmp_path / "of_text", text)
    ran(*merge, tmp_path / "of_packed", packed)
    assert (tmp_path / "of_packed").read_text() == (tmp_path / "of_text").read_text() == ours
    # What llvm-profdata writes itself: the same bytes, up to the hashes by function, which it has in no order.
    ran(*merge[:-2], "--extbinary", "-o", tmp_path / "theirs", text)
    theirs, mine = (tmp_path / "theirs").read_bytes(), packed.read_bytes()
    *_, kind, _, metadata, _ = struct.unpack_from("<28Q", mine, 18)
    assert kind == 5
    assert mine[242:metadata] == theirs[242:metadata]
    compressed = tmp_path / "compressed"
    ran(*merge[:-2], "--extbinary", "--compress-all-sections", "-o", compressed, text)
    forms = text, packed, compressed
    checks = [run("export", "--check", path, "--binary", program, "--format", "csv") for path in forms]
    assert [(done.code, done.out) for done in checks] == [(0, checks[0].out)] * 3
    with limited(Limits(expansion=16, ratio=1)), pytest.raises(FormatError, match="bytes"):
        read_extbinary(compressed.read_bytes(), "compressed")


def counts_of(name: str, text: str) -> int:
    """The counts of the probes of a function, in whichever it is."""
    found, inside = 0, [""]
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip(" "))
        if head := re.fullmatch(r" *(?:\d+: )?([A-Za-z_][^ :]*):\d+(?::\d+)?", line):
            inside[depth:] = [head[1]]
        elif (body := re.match(r" *\d+: (\d+)", line)) and inside[depth - 1] == name:
            found += int(body[1])
    return found


def test_clang_takes_it(run, program: Path, capture: Path, tmp_path: Path) -> None:
    profile(run, program, capture, tmp_path / "p.prof")
    shown = ran(tool("llvm-profdata-19"), "show", "--sample", "--function=hot", tmp_path / "p.prof")
    assert "CFG checksum" in shown
    ran(
        tool("clang-19"),
        "-O2",
        "-g",
        "-fpseudo-probe-for-profiling",
        f"-fprofile-sample-use={tmp_path / 'p.prof'}",
        "-Werror",
        "-c",
        SOURCE,
        "-o",
        tmp_path / "out.o",
    )


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
    ran(
        tool("objcopy"),
        "-O",
        "binary",
        "--only-section=.pseudo_probe",
        "--set-section-flags",
        ".pseudo_probe=alloc",
        program,
        section,
    )
    section.write_bytes(section.read_bytes()[:-1])
    cut = changed(program, tmp_path / "cut", "--update-section", f".pseudo_probe={section}")
    ours, said = profile(run, cut, capture, tmp_path / "ours")
    assert f"pseudo probes: {cut}: .pseudo_probe: " in said
    assert 0 < len(ours) <= len(whole)


def test_probes_of_other_code_are_counted(run, program: Path, capture: Path, tmp_path: Path) -> None:
    """The probes of a build with other options: some are inside instructions."""
    other, section = built(SOURCE, tmp_path / "other", "-O1"), tmp_path / "section"
    ran(
        tool("objcopy"),
        "-O",
        "binary",
        "--only-section=.pseudo_probe",
        "--set-section-flags",
        ".pseudo_probe=alloc",
        other,
        section,
    )
    mixed = changed(program, tmp_path / "mixed", "--update-section", f".pseudo_probe={section}")
    _, said = profile(run, mixed, capture, tmp_path / "ours")
    assert "at no instruction: they do not fit this code" in said


def test_without_probes_lines_count(run, program: Path, capture: Path, tmp_path: Path) -> None:
    plain = changed(program, tmp_path / "plain", "--remove-section=.pseudo_probe")
    ours, _ = profile(run, plain, capture, tmp_path / "ours")
    assert "!CFGChecksum" not in ours
    assert "\nmain:" in f"\n{ours}"
