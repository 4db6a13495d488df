"""How much of a profile fits a binary: all of it for the one that it was made of, a known part for others."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captures import Data
from command_line import Ran
from export_tools import BINARIES, binary_of, exported, made_up_stacks, pe_stacks, tool
from lastbranch.errors import LastbranchError
from lastbranch.export import EXPORTS
from lastbranch.export.extbinary import as_extbinary
from lastbranch.export.written import read_written
from lastbranch.model import BytesSource

Run = Callable[..., Ran]
FORMS = ("counts", "autofdo", "gcov", "profgen", "bolt", "sampleprof")
BY_ADDRESS = ("counts", "autofdo", "profgen", "bolt")


def fitting(run: Run, profile: Path, binary: Path, *words: str) -> dict[str, dict[str, float]]:
    done = run("export", "--check", profile, "--binary", binary, "--format", "json", *words)
    assert done.code == 0, done.err
    return {row["what"]: row for row in json.loads(done.out)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["demo_pie", "demo_2proc", "lldlayout/demo_pie"])
def test_a_profile_fits_its_binary(run: Run, data: Data, tmp_path: Path, name: str, form: str) -> None:
    for binary in BINARIES:
        profile = exported(run, data, name, binary, form, tmp_path / binary)
        rows = fitting(run, profile, binary_of(data, name, binary), "--fail-under", "100")
        assert all(row["counts_that_fit"] == row["counts"] for row in rows.values())
        assert rows["profile"]["counts"] > 100


@pytest.mark.parametrize("form", FORMS)
def test_a_profile_of_another_binary_does_not(run: Run, data: Data, tmp_path: Path, form: str) -> None:
    profile = exported(run, data, "demo_pie", "lbrdemo", form, tmp_path / "profile")
    if form == "counts":  # which names its module
        profile.write_text(profile.read_text().replace("/lbrdemo ", "/liblbrdemo.so "))
    other = binary_of(data, "demo_pie", "liblbrdemo.so")
    done = run("export", "--check", profile, "--binary", other, "--fail-under", "5", "--format", "csv")
    assert done.code == 6
    assert float(done.out.splitlines()[-1].rpartition(",")[2]) < 5
    assert re.search(r"% of the counts fit, less than 5 %", done.err)
    assert ("the profile is of build id" in done.err) == (form == "autofdo")


def test_counts_at_wrong_places_do_not_fit(run: Run, data: Data, tmp_path: Path) -> None:
    """A third of the lines are made wrong, each in one of the ways that the code shows."""
    binary = binary_of(data, "demo_pie", "lbrdemo")
    profile, random = exported(run, data, "demo_pie", "lbrdemo", "bolt", tmp_path / "profile"), Random(7)
    listing = subprocess.run([tool("objdump"), "-d", "-w", binary], capture_output=True, text=True, check=True).stdout
    code = {int(m[1], 16): m[2] for m in re.finditer(r"^ *([0-9a-f]+):\t[^\t]*\t(\S+)", listing, re.M)}
    plain = [at for at, name in code.items() if not re.match(r"j|call|ret|bnd|notrack|rep|xbegin|sys|int|hlt", name)]
    inside = [at + 1 for at in plain if at + 1 not in code]
    lines, bad = profile.read_text().splitlines(), dict.fromkeys("BF", 0)
    for i in range(0, len(lines), 3):
        kind, a, b, n, *more = lines[i].split()
        wrong = random.choice([plain, inside, [0xFFFF0000]])
        if kind == "B" and b != "0" and re.match("j(?!mp)", code.get(int(a, 16), "")):
            b = f"{random.choice([at for at in plain if at != int(b, 16)]):x}"
        elif kind == "B" and b != "0" and random.random() < 0.5:
            b = f"{random.choice(inside):x}"
        elif kind == "B":
            a = f"{random.choice(wrong):x}"
        else:
            b = f"{random.choice(wrong):x}"
        bad[kind.upper()] += int(n)
        lines[i] = " ".join([kind, a, b, n, *more])
    profile.write_text("\n".join(lines))
    rows = fitting(run, profile, binary)
    assert rows["branches"]["counts"] - rows["branches"]["counts_that_fit"] == bad["B"] > 0
    assert rows["ranges"]["counts"] - rows["ranges"]["counts_that_fit"] == bad["F"] > 0
    assert rows["profile"]["counts_that_fit"] == rows["profile"]["counts"] - bad["B"] - bad["F"]


@pytest.mark.parametrize("binary", BINARIES)
@pytest.mark.parametrize("name", ["demo_pie", "demo_2proc", "demo_hwidx"])
def test_profiles_of_perf2bolt_fit_their_binary(run: Run, data: Data, tmp_path: Path, name: str, binary: str) -> None:
    (golden := tmp_path / "golden").write_text(data.golden(name, f"{binary}.bolt19.fdata"))
    program, lines = binary_of(data, name, binary), golden.read_text().splitlines()
    counts = [int(line.split()[-1]) for line in lines]
    rows = fitting(run, golden, program)
    assert rows.keys() == {"branches", "profile"}
    assert rows["profile"]["counts"] == rows["profile"]["counts_that_fit"] == sum(counts)
    wrong, bad = [*lines], 0
    for i, line in enumerate(lines):
        kind, function, offset, *rest = line.split()
        if kind == "1" and i % 2:
            bad += counts[i]
            moved = [kind, function, f"{int(offset, 16) + 1:x}"] if i % 4 == 1 else [kind, "gone", offset]
            wrong[i] = " ".join([*moved, *rest])
    (tmp_path / "wrong").write_text("\n".join(wrong))
    rows = fitting(run, tmp_path / "wrong", program)
    assert rows["profile"]["counts"] - rows["profile"]["counts_that_fit"] == bad > 0


def test_functions_of_a_profile_of_perf2bolt_are_found_by_their_names(run: Run, tmp_path: Path) -> None:
    """A name with a blank, two local functions of one name, which BOLT numbers by address, and loads."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.s").write_text("  .type f, @function\nf:\n  nop\n  jmp f\n  .size f, .-f\n")
    with (tmp_path / "b.s").open("a") as more:
        more.write('  .globl "x y"\n  .type "x y", @function\n"x y":\n  ret\n  .size "x y", .-"x y"\n')
    command = [tool("gcc"), "-shared", "-nostdlib", "-o", tmp_path / "p.so", tmp_path / "a.s", tmp_path / "b.s"]
    subprocess.run(command, check=True)
    lines = {
        "1 f/1 1 1 f/1 0 0 5": 5,
        "1 f/2 1 1 f/2 0 0 7": 7,
        "1 f/b.s/2 1 1 f/2 0 0 1": 1,
        "1 x\\ y 0 0 [unknown] 0 0 11": 11,
        "1 f/1 0 1 f/1 1 0 3": 3,  # it runs on from the first instruction
        "1 f/1 1 1 f/2 0 0 100": 0,
        "1 f/3 1 1 f/3 0 0 200": 0,
        "1 f/1 99 1 f/1 0 0 400": 0,
        "4 f/1 0 3 [heap] 0 800": None,
    }
    (tmp_path / "fdata").write_text("boltedcollection\n" + "\n".join(lines))
    row = fitting(run, tmp_path / "fdata", tmp_path / "p.so")["profile"]
    assert row["counts"] == 727
    assert row["counts_that_fit"] == sum(n for n in lines.values() if n)
    done = run("export", "--check", tmp_path / "fdata", "--binary", tmp_path / "p.so")
    assert "1 function is not in the binary: f/3" in done.err


PROGRAM = """
#define APART __attribute__((noinline))
static unsigned twice(unsigned x) {
  return x % 7 ? x * 2 : x + 1;
}
APART unsigned stays(unsigned x) {
  unsigned t = 0;
  for (unsigned i = 0; i < x % 16; i++)
    t += twice(i) ^ x;
  return t;
}
APART unsigned goes(unsigned x) {
  unsigned t = 1;
  for (unsigned i = 0; i < x % 9; i++)
    t = t * 3 + (i & x ? 1 : x);
  return t;
}
int main(void) {
  unsigned t = 0;
  for (unsigned i = 0; i < 1000; i++) t += stays(i) + CALLED(i);
  return t & 1;
}
"""


def made(called: str) -> str:
    return PROGRAM.replace("CALLED", called)


def lines_of(text: str) -> list[tuple[list[str], int]]:
    """(names of the function and of what is inlined, down to the line; its count) of each line of a text profile."""
    found, names = [], list[str]()
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            names = [line.split(":")[0]]
        else:
            names = names[:depth]
            last = line.split(": ")[1]
            if last.split()[0].isdigit():
                found.append(([*names], int(last.split()[0])))
            else:
                names.append(last.split(":")[0])
    return found


@pytest.mark.parametrize("form", ["sampleprof", "gcov"])
def test_a_function_that_is_no_more_does_not_fit(run: Run, tmp_path: Path, form: str) -> None:
    compiler = {"sampleprof": [tool("clang-19"), "-fdebug-info-for-profiling"], "gcov": [tool("gcc")]}[form]
    old, new = made("goes"), re.sub(r"APART unsigned goes.*?\n}\n", "", made("stays"), flags=re.S)
    for name, text in (("old", old), ("new", new)):
        (tmp_path / f"{name}.c").write_text(text)
        subprocess.run([*compiler, "-O2", "-g", "-o", tmp_path / name, tmp_path / f"{name}.c"], check=True)
    (tmp_path / "capture").write_text(made_up_stacks(tmp_path / "old"))
    profiles = {}
    for kind in {form, "sampleprof"}:
        words = ("--to", kind, "--binary", tmp_path / "old", "-o", tmp_path / kind)
        assert run("export", tmp_path / "capture", *words).code == 0
        profiles[kind] = tmp_path / kind
    assert fitting(run, profiles[form], tmp_path / "old")["profile"]["fit_percent"] == 100
    rows = fitting(run, profiles[form], tmp_path / "new")
    counted = lines_of(profiles["sampleprof"].read_text())
    gone = sum(n for names, n in counted if names[-1] == "goes")
    assert gone > 0
    if form == "sampleprof":  # gcc's discriminators are others: another number of lines
        assert rows["profile"]["counts"] == sum(n for _, n in counted)
        assert rows["functions"]["counts"] - rows["functions"]["counts_that_fit"] == gone
    assert rows["functions"]["number"] - rows["functions"]["fit"] == 1
    assert rows["profile"]["counts_that_fit"] < rows["profile"]["counts"]
    done = run("export", "--check", profiles[form], "--binary", tmp_path / "new")
    assert "1 function is not in the binary: goes" in done.err


def test_windows_binaries(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.c").write_text(made("goes"))
    tool("x86_64-w64-mingw32-gcc")
    command = [tool("clang-19"), "--target=x86_64-w64-mingw32", "-O2", "-g", "-gdwarf", "-fdebug-info-for-profiling"]
    binary = tmp_path / "p.exe"
    subprocess.run([*command, "-fuse-ld=lld-19", "-o", binary, tmp_path / "p.c"], check=True)
    (tmp_path / "capture").write_text(pe_stacks(binary, ("stays", "goes", "main")))
    for form in FORMS:
        out = tmp_path / form
        assert run("export", tmp_path / "capture", "--to", form, "--binary", binary, "-o", out).code == 0
        assert fitting(run, out, binary)["profile"]["counts"] > 0
        if form in ("sampleprof", "gcov"):
            assert fitting(run, out, binary)["profile"]["fit_percent"] == 100


def test_what_cannot_be_checked_is_said(run: Run, data: Data, tmp_path: Path) -> None:
    binary, profile = binary_of(data, "demo_pie", "lbrdemo"), tmp_path / "profile"

    def said(text: str, code: int, *words: str | Path) -> str:
        profile.write_text(text)
        done = run("export", "--check", profile, *(words or ("--binary", binary)))
        assert done.code == code, done.err
        assert not done.out
        return done.err

    assert "not a profile" in said("", 3)
    assert "not a profile" in said("hello\n", 3)
    assert "offset 0xa" in said("B 1 2 3 4\nB 1 2 x 4\n", 3)
    assert "count = 0x56bc75e2d630fffff" in said("main:1:1\n 1: 99999999999999999999\n", 3)
    assert "number of sections" in said("0\n", 3)
    assert "line" in said("5\n1-2:3\n", 3)
    assert "offset 0x16" in said("1 main 0 1 main 4 0 1\n1 main x 1 main 4 0 1\n", 3)
    assert "without branches" in said("no_lbr cycles\n1 main 0 3\n", 2)
    assert "each calling context" in said("[main:3 @ f]:10:1\n 1: 10\n", 2)
    assert "has no pseudo probes" in said("main:10:1\n 1: 10\n !CFGChecksum: 5\n", 5)
    assert "line" in said("main:10:1\n 1: 10\n   !CFGChecksum: 5\n", 3)
    assert "has no counts" in said("B 1 2 0 0\n", 4)
    assert "has no counts of" in said("B /bin/other 1 /bin/other 2 3 0\n", 4)
    assert "--binary" in said("main:1:1\n 1: 1\n", 2, "--format", "csv")
    said("main:1:1\n 1: 1\n", 2, "--binary", binary, "--to", "counts")
    said("main:1:1\n 1: 1\n", 3, "--binary", profile)
    stripped = tmp_path / "stripped"
    subprocess.run([tool("strip"), "-g", "-o", stripped, binary], check=True)
    assert "has no line numbers" in said("main:1:1\n 1: 1\n", 5, "--binary", stripped)
    assert run("export", "--check", tmp_path / "none", "--binary", binary).code == 3
    missing = run("export", profile)
    assert missing.code == 2
    said_ = " ".join(missing.err.split())
    assert "Missing option '--to'" in said_
    assert all(re.search(rf"\b{name}\b", said_) for name in EXPORTS)
    assert run("export", profile, "--to", "counts", "--fail-under", "3").code == 2


def test_binaries_without_symbols_are_decoded_all_the_same(run: Run, data: Data, tmp_path: Path) -> None:
    profile = exported(run, data, "demo_pie", "lbrdemo", "bolt", tmp_path / "profile")
    stripped = tmp_path / "lbrdemo"
    binary = binary_of(data, "demo_pie", "lbrdemo")
    subprocess.run([tool("strip"), "-o", stripped, binary], check=True)
    assert fitting(run, profile, stripped) == fitting(run, profile, binary)


@pytest.fixture(scope="module")
def profiles(run: Run, data: Data, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("profiles")
    found = [exported(run, data, "demo_pie", "lbrdemo", form, folder / form).read_bytes() for form in FORMS]
    tree = read_written(BytesSource(found[FORMS.index("sampleprof")])).tree
    assert tree is not None
    packed = as_extbinary(tree)
    again = read_written(BytesSource(packed)).tree
    assert again is not None
    assert again.functions == tree.functions
    return [*found, packed]


@settings(max_examples=300)
@given(st.data())
def test_damage_is_an_error_or_another_profile(profiles: list[bytes], draw: st.DataObject) -> None:
    """Any other exception fails."""
    whole = draw.draw(st.sampled_from(profiles))
    at = draw.draw(st.integers(0, len(whole)))
    new = draw.draw(st.binary(max_size=8))
    cut = draw.draw(st.sampled_from([len(new), 0, len(whole)]))
    with suppress(LastbranchError):
        read_written(BytesSource(whole[:at] + new + whole[at + cut :]))
