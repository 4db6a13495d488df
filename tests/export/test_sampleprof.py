"""The text sample profile made here is llvm-profgen's from the same counts, and clang and llvm-profdata take it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from captures import Data
from export_tools import BINARIES, ONE_PROCESS, PROGRAM, binary_of, exported, made_up_stacks, ran, tool
from lastbranch.export.sample_tree import SampleTree, base_discriminator, canonical, duplication

LAMBDAS = """
#include <algorithm>
#include <cstdio>
#include <vector>
template <class F> __attribute__((noinline)) static unsigned fold(const std::vector<unsigned> &d, F f) {
  unsigned t = 0;
  for (unsigned x : d) t += f(x);
  return t;
}
__attribute__((noinline)) static unsigned by(const std::vector<unsigned> &d, unsigned (*f)(unsigned)) {
  return fold(d, f);
}
int main(int n, char **) {
  std::vector<unsigned> d(4000);
  for (unsigned i = 0; i < d.size(); i++) d[i] = i * 2654435761u;
  auto far = [n](unsigned x) __attribute__((noinline)) {
    unsigned t = 0;
    for (unsigned i = 0; i < (x & 7); i++) t += i * x ^ n;
    return t;
  };
  unsigned t = fold(d, far);
  t += by(d, [](unsigned x) {
    if (x & 1) return x * 3;
    return x > 9 ? x ^ 5 : x + 1;
  });
  std::sort(d.begin(), d.end(), [n](unsigned a, unsigned b) { return (a ^ n) < (b ^ n); });
  std::printf("%u\\n", t + d[9]);
}
"""


@pytest.mark.parametrize("binary", BINARIES)
@pytest.mark.parametrize("name", ONE_PROCESS)
def test_it_is_llvm_profgens(run, data: Data, tmp_path: Path, name: str, binary: str) -> None:
    made = exported(run, data, name, binary, "sampleprof", tmp_path / "x")
    assert made.read_text() == data.golden(name, f"{binary}.profgen19.prof")


@pytest.mark.parametrize("compiler", ["clang++-19", "g++"])
@pytest.mark.parametrize("flags", [("-O2",), ("-O3", "-funroll-loops")])
def test_it_is_llvm_profgens_for_deep_inlining(run, tmp_path: Path, compiler: str, flags: tuple[str, ...]) -> None:
    """Counts of every function of a program with templates, inlined many deep, loops unrolled and parts split off."""
    profgen, program = tool("llvm-profgen-19"), tmp_path / "program"
    (tmp_path / "p.cc").write_text(PROGRAM)
    ran(tool(compiler), "-g", *flags, "-o", program, tmp_path / "p.cc")
    capture = tmp_path / "capture.txt"
    capture.write_text(made_up_stacks(program))
    for form in ("profgen", "sampleprof"):
        done = run("export", "--to", form, "--no-symbol-cache", "--binary", program, "-o", tmp_path / form, capture)
        assert done.code == 0, done.err
    ran(
        profgen,
        f"--binary={program}",
        f"--unsymbolized-profile={tmp_path / 'profgen'}",
        "--format=text",
        f"--output={tmp_path / 'theirs'}",
    )
    ours, theirs = ((tmp_path / name).read_text() for name in ("sampleprof", "theirs"))
    if compiler == "g++":  # gives local functions no linkage name: llvm-profgen calls them as in the source
        assert "\nwork:" in theirs
        assert "\n_ZL4work" in ours
        ours, theirs = map(without_names, (ours, theirs))
    assert ours == theirs
    assert ours.count("\n") > 300
    assert any(line.startswith("   ") for line in ours.splitlines())  # three deep


FLOW = """
static unsigned fold(unsigned *d, unsigned n, unsigned k) {
  unsigned t = 0;
  for (unsigned i = 0; i < n; i++) t += d[i] % 7 > k ? d[i] ^ t : d[i] * 3 + (t & 1 ? k : i);
  return t;
}
int main(int n, char **a) {
  unsigned d[64], t = 0;
  for (unsigned i = 0; i < 64; i++) d[i] = i * 2654435761u + n;
  for (unsigned k = 0; k < 9; k++) t ^= k % 3 ? fold(d, 64, k) : fold(d, 9, n);
  return t & 1;
}
"""


@pytest.mark.parametrize(
    "how", ["lines", *(pytest.param(how, marks=pytest.mark.thorough) for how in ("separate debug file", "probes"))]
)
def test_flow_sensitive_discriminators_are_whole(run, tmp_path: Path, how: str) -> None:
    """A variable of the binary says that it has them. llvm-profgen takes all of their bits, and so does clang."""
    (tmp_path / "p.c").write_text(FLOW)
    by = "-fpseudo-probe-for-profiling" if how == "probes" else "-fdebug-info-for-profiling"
    flags = ("-O3", "-g", "-funroll-loops", by, "-mllvm", "-enable-fs-discriminator")
    ran(tool("clang-19"), *flags, "-o", tmp_path / "program", tmp_path / "p.c")
    (tmp_path / "capture.txt").write_text(made_up_stacks(tmp_path / "program"))
    given = tmp_path / "program"
    if "file" in how:
        given = tmp_path / "stripped" / "program"
        given.parent.mkdir()
        debug = given.parent / "program.debug"
        ran(tool("llvm-objcopy-19"), "--only-keep-debug", tmp_path / "program", debug)
        ran("llvm-objcopy-19", "--strip-all", f"--add-gnu-debuglink={debug}", tmp_path / "program", given)
    made = {}
    for form, more in (("profgen", ()), ("sampleprof", ()), ("sampleprof", ("--extbinary",))):
        out = made[form, *more] = tmp_path / f"{form}{''.join(more)}"
        words = ("--no-symbol-cache", "--binary", given, "-o", out, *more)
        done = run("export", tmp_path / "capture.txt", "--to", form, *words)
        assert done.code == 0, done.err
    for form in ("text", "extbinary"):
        ran(
            tool("llvm-profgen-19"),
            f"--binary={tmp_path / 'program'}",
            f"--format={form}",
            f"--unsymbolized-profile={made['profgen',]}",
            f"--output={tmp_path / form}",
        )
    ours = made["sampleprof",].read_text()
    assert ours == (tmp_path / "text").read_text()
    assert {int(n) for n in re.findall(r"^ +\d+\.(\d+): ", ours, re.M)} - set(range(256))
    shown = [
        ran(tool("llvm-profdata-19"), "show", "--sample", "--show-sec-info-only", path).replace(str(path), "")
        for path in (tmp_path / "extbinary", made["sampleprof", "--extbinary"])
    ]
    assert all("fs-discriminator" in one for one in shown), shown
    if given.parent != tmp_path:
        return
    done = run("export", "--check", made["sampleprof",], "--binary", given, "--format", "csv")
    assert done.out.splitlines()[-1].endswith(",100.0"), done.out
    said = ran(
        "clang-19",
        *flags,
        f"-fprofile-sample-use={made['sampleprof', '--extbinary']}",
        "-c",
        "-o",
        os.devnull,
        "-Rpass-analysis=sample-profile-impl",
        tmp_path / "p.c",
    )
    assert re.search(r"Applied [1-9]\d* samples from profile", said)


@pytest.mark.parametrize("flags", [(), ("-flto",), ("-flto", "-gdwarf-4")], ids=" ".join)
def test_it_is_llvm_profgens_for_lambdas(run, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """g++ gives a lambda's functions no declaration line (DW_AT_decl_line): they count from line 0."""
    profgen, program = tool("llvm-profgen-19"), tmp_path / "program"
    (tmp_path / "p.cc").write_text(LAMBDAS)
    ran(tool("g++"), "-O2", "-g", *flags, "-o", program, tmp_path / "p.cc")
    capture = tmp_path / "capture.txt"
    capture.write_text(made_up_stacks(program))
    words = ("--no-symbol-cache", "--binary", program)
    for form in ("profgen", "sampleprof", "gcov"):
        done = run("export", "--to", form, "--fail-empty", *words, "-o", tmp_path / form, capture)
        assert done.code == 0, done.err
    ran(
        profgen,
        f"--binary={program}",
        f"--unsymbolized-profile={tmp_path / 'profgen'}",
        "--format=text",
        f"--output={tmp_path / 'theirs'}",
    )
    ours, theirs = ((tmp_path / name).read_text() for name in ("sampleprof", "theirs"))
    assert re.search(r"^_ZZ4mainENKUl|^_ZZ4main.*_FUN", ours, re.M)
    assert without_names(ours) == without_names(theirs)
    assert b"_ZZ4mainENKUl" in (tmp_path / "gcov").read_bytes()


def test_ranges_across_a_branch_that_leaves_count_for_none(run, tmp_path: Path) -> None:
    """As llvm-profgen leaves them out of what it reads from a capture itself."""
    profgen, program, capture = tool("llvm-profgen-19"), tmp_path / "program", tmp_path / "capture.txt"
    (tmp_path / "p.cc").write_text(PROGRAM)
    ran(tool("clang++-19"), "-g", "-O2", "-o", program, tmp_path / "p.cc")
    capture.write_text(made_up_stacks(program, straight=False))
    ran(profgen, f"--binary={program}", f"--perfscript={capture}", "--format=text", f"--output={tmp_path / 'theirs'}")
    for form in ("profgen", "sampleprof"):
        done = run("export", "--to", form, "--no-symbol-cache", "--binary", program, "-o", tmp_path / form, capture)
        assert (done.code, "no code runs past an unconditional branch" in done.err) == (0, True), done.err
    assert (tmp_path / "sampleprof").read_text() == (tmp_path / "theirs").read_text()


def without_names(text: str) -> str:
    """Lines with their depth and numbers only, sorted."""
    return "\n".join(sorted(re.sub(r"(^| )[A-Za-z_][^:\n]*(?:::[^:\n]*)*:(?=\d)", r"\1", x) for x in text.splitlines()))


def test_clang_and_llvm_profdata_take_it(run, data: Data, tmp_path: Path) -> None:
    made = exported(run, data, "demo_pie", "lbrdemo", "sampleprof", tmp_path / "x.prof")
    if profdata := shutil.which("llvm-profdata-19"):
        ran(profdata, "merge", "--sample", "-o", tmp_path / "merged", made)
        assert (tmp_path / "merged").stat().st_size > 300
    source = data.path("demo_pie").parent / "lbrdemo.cc"
    ran(
        tool("clang++-19"),
        "-O2",
        "-g",
        f"-fprofile-sample-use={made}",
        "-Werror",
        "-c",
        source,
        "-o",
        tmp_path / "out.o",
    )


def test_without_lines_it_says_so(run, data: Data, tmp_path: Path) -> None:
    stripped = tmp_path / "lbrdemo"
    ran(tool("strip"), "-o", stripped, binary_of(data, "demo_pie", "lbrdemo"))
    done = run("export", "--to", "sampleprof", "--no-symbol-cache", "--binary", stripped, data.path("demo_pie"))
    assert done.code == 5
    assert "lbrdemo has no line numbers" in done.err


def test_lines_without_those_of_functions_are_no_line_numbers_that_help(run, data: Data, tmp_path: Path) -> None:
    """-g1 keeps lines and inlined calls, and leaves out where functions are declared: what profiles count from."""
    (tmp_path / "p.c").write_text(
        "int main(int n, char **a) {\n  while (n < 1 << 20)\n    n += *a[0];\n  return n;\n}\n"
    )
    ran(tool("clang-19"), "-O1", "-g1", "-o", tmp_path / "p", tmp_path / "p.c")
    (tmp_path / "capture.txt").write_text(made_up_stacks(tmp_path / "p"))
    words = ("--no-symbol-cache", "--binary", tmp_path / "p", tmp_path / "capture.txt")
    done = run("export", "--to", "sampleprof", *words)
    assert done.code == 5
    assert "p does not say on which lines functions begin (as with -g1, PDB)" in done.err
    assert "build with -g" in done.err


def test_a_name_cannot_begin_a_line(run, tmp_path: Path) -> None:
    """Names are made of what a symbol table holds, also line breaks and what steers terminals."""
    loop = "int {}(int n) {{\n  while (n % 9) n++;\n  return n;\n}}\n"
    (tmp_path / "p.c").write_text(loop.format("victims") + loop.format("victors") + "int main(void) { return 0; }\n")
    program = tmp_path / "root/x/p"
    program.parent.mkdir(parents=True)
    ran(tool("gcc"), "-O1", "-g", "-fno-ipa-icf", "-o", program, tmp_path / "p.c")
    (tmp_path / "capture.txt").write_text(made_up_stacks(program))
    program.write_bytes(program.read_bytes().replace(b"\0victims\0", b"\0v\n1: 9\x1b\0"))
    words = ("--no-symbol-cache", tmp_path / "capture.txt")
    done = run("export", "--to", "sampleprof", "--binary", program, *words)
    assert done.code == 0, done.err
    assert re.search(r"^v\\x0a1: 9\\x1b:\d+:\d+$", done.out, re.M)
    assert "\n1: 9" not in done.out
    listed = run("callers", "--symfs", tmp_path / "root", *words, "v*")
    assert listed.code == 2
    assert re.search(r"^  p\+0x\w+  v\\x0a1: 9\\x1b\n  p\+0x\w+  victors$", listed.err, re.M)


# -- the parts


def test_discriminators() -> None:
    """By hand, from the encoding in llvm/Support/Discriminator.h: components of 1, 7 or 14 bits."""
    assert [base_discriminator(w) for w in (0, 1, 2, 4, 15, 66)] == [0, 0, 1, 2, 1, 1]
    assert base_discriminator(40 << 1 & 0x3E | 0x40 | (40 >> 5) << 7) == 40
    assert base_discriminator(7 | 5 << 16 | 1 << 28) == 5
    assert [duplication(w) for w in (0, 1, 2)] == [1, 1, 1]
    assert duplication(4 << 1 | 3 << 8) == 3  # base 4, copied 3 times
    assert duplication(1 | 8 << 2) == 8  # no base
    assert [canonical(n) for n in ("f", "f.llvm.12", "f.part.3", "f.part.x.y", "f.cold")] == [
        "f",
        "f",
        "f",
        "f.part.x.y",
        "f.cold",
    ]


def test_text_of_a_tree() -> None:
    tree = SampleTree()
    tree.leaf([("main", (1, 0)), ("in", (2, 3))], 40).raise_to((2, 3), 4)
    tree.leaf([("main", (5, 0))], 10).raise_to((5, 0), 7)
    tree.leaf([("main", (5, 0))], 0).called((5, 0), "b", 4)
    tree.leaf([("main", (5, 0))], 0).called((5, 0), "a", 9)
    tree.top("main").head += 2
    tree.leaf([("__cxx_global_var_init", (0, 0))], 99).raise_to((0, 0), 1)
    tree.finish()
    assert "".join(tree.text()) == "main:50:2\n 5: 13 a:9 b:4\n 1: in:40\n  2.3: 4\n"


@pytest.mark.parametrize("form", ["sampleprof", "gcov"])
@pytest.mark.parametrize(
    ("unseen", "says"),
    [
        (("main",), r"the output is empty: \d+ ranges begin in code without line numbers \(build with -g"),
        (
            (),
            r"the output covers \d+\.\d % of the \d+ recorded ranges: \d+ ranges begin in code without line numbers \(",
        ),
    ],
)
def test_a_program_with_lines_for_its_start_only(run, tmp_path: Path, form: str, unseen: tuple[str], says: str) -> None:
    """Nothing, or little, comes of it: that is said, with the reason, and `--fail-empty` makes it an exit code."""
    hot = "\n".join(f"int f{i}(int x) {{ return x > {i} ? x : f{(i + 1) % 9}(x + 1); }}" for i in range(9))
    (tmp_path / "hot.c").write_text(hot)
    (tmp_path / "main.c").write_text("int f0(int); int main(int n, char **v) { return f0(n); }")
    for name, debug in (("hot", "-g0"), ("main", "-g")):
        ran(tool("gcc"), "-O1", debug, "-w", "-c", "-o", tmp_path / f"{name}.o", tmp_path / f"{name}.c")
    program, capture = tmp_path / "program", tmp_path / "capture.txt"
    ran(tool("gcc"), "-o", program, tmp_path / "hot.o", tmp_path / "main.o")
    capture.write_text(made_up_stacks(program, without=unseen))
    words = ("--to", form, "--no-symbol-cache", "--binary", program, "-o", tmp_path / "x", capture)
    done, failed = run("export", *words), run("export", "--force", "--fail-empty", *words)
    assert (done.code, failed.code) == (0, 4), done.err
    assert re.search(rf"note: {says}", done.err), done.err


def test_a_whole_profile_says_nothing(run, data: Data, tmp_path: Path) -> None:
    name, binary = ONE_PROCESS[0], BINARIES[0]
    done = run(
        "export",
        "--to",
        "sampleprof",
        "--fail-empty",
        "--binary",
        binary_of(data, name, binary),
        "-o",
        tmp_path / "x",
        data.path(name),
    )
    assert done.code == 0
    assert "the output" not in done.err


@pytest.mark.parametrize("form", ["folded", "pprof", "speedscope", "chrome", "counts", "brstack"])
def test_an_export_that_nothing_passes_to(run, data: Data, tmp_path: Path, form: str) -> None:
    words = ("--to", form, "--time", "1000..", "-o", tmp_path / "x", data.path(ONE_PROCESS[0]))
    done, failed = run("export", *words), run("export", "--force", "--fail-empty", *words)
    assert (done.code, failed.code) == (0, 4), done.err
    assert re.search(r"note: the output is empty: nothing passes the filters", done.err)
