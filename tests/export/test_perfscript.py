"""Text for llvm-profgen: read back it counts the same, and llvm-profgen counts all processes of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import lastbranch
import perfdata_writer as pw
from captures import REAL, SYNTHETIC, Data
from export_tools import binary_of, numbers, pe_stacks, plt_of, ran, tool

RANGED = [n for n in REAL + SYNTHETIC if n != "cfl_9700_callgraph_lbr"]


@pytest.mark.parametrize("name", RANGED)
def test_read_back_it_counts_the_same(run, data: Data, symfs, tmp_path: Path, name: str) -> None:
    """Kernel, several processes at several bases, mappings that replace each other, JIT code: by module and address."""
    words = ["--symfs", symfs(name)] if name in SYNTHETIC else []
    done = run("export", "--to", "perfscript", *words, "-o", tmp_path / "text", data.path(name))
    assert done.code == 0, done.err
    counts = [run("export", "--to", "counts", *words, f).out for f in (data.path(name), tmp_path / "text")]
    assert counts[0] == counts[1] != ""


@pytest.mark.parametrize("words", [[], ["--binary", "lbrdemo"]])
@pytest.mark.parametrize("name", ["demo_pie", "demo_2proc"])
def test_llvm_profgen_counts_every_process(run, data: Data, symfs, tmp_path: Path, name: str, words: list[str]) -> None:
    """Of perf's own text of two processes it counts 529 of 1,178 ranges; of ours all but the linkage table's."""
    profgen, binary, text = tool("llvm-profgen-19"), binary_of(data, name, "lbrdemo"), tmp_path / "text"
    done = run("export", "--to", "perfscript", "--symfs", symfs(name), *words, "-o", text, data.path(name))
    assert done.code == 0, done.err
    ran(
        profgen, f"--binary={binary}", f"--perfscript={text}", "--skip-symbolization", f"--output={tmp_path / 'theirs'}"
    )
    unsym = run("export", "--to", "profgen", "--binary", binary, data.path(name)).out
    plt, theirs = plt_of(binary, 0x1000), numbers((tmp_path / "theirs").read_text())
    ours = numbers(unsym)
    assert {k: n for k, n in ours[0].items() if k[0] not in plt} == dict(theirs[0])
    assert sum(theirs[0].values()) > (529 if name == "demo_2proc" else 1000)


def _chains(path: Path) -> Counter[tuple[tuple[str, int], ...]]:
    """The call chains of samples with branches, as (module, address in it), without context markers."""
    profile, found = lastbranch.open(path), Counter[tuple[tuple[str, int], ...]]()
    for batch in profile.batches():
        scope = profile.binder.scopes(batch)
        for i in range(len(batch)):
            frames = batch.chain(i)
            frames = frames[frames < 2**64 - 4095]
            module, address = profile.binder.locate(np.repeat(scope[i], len(frames)), frames)
            names = ["" if m < 0 else profile.modules[m].name for m in module.tolist()]
            found[tuple(zip(names, address.tolist(), strict=True))] += 1
    return found


def test_call_chains_read_back_by_module_and_address(run, tmp_path: Path) -> None:
    """Of two processes: a library at two places, one of which is the other's program; callers in a module without
    branches; kernel frames and markers; a frame of no module; a sample without a chain."""
    kinds = pw.IP | pw.TID | pw.TIME | pw.CALLCHAIN | pw.BRANCH_STACK
    b = pw.Builder(sample_type=kinds, branch_sample_type=1 | 8)
    expected = Counter[tuple[tuple[str, int], ...]]()
    for pid, program, library, other in ((7, 0x400000, 0x900000, 0x500000), (8, 0x400000, 0x500000, 0x900000)):
        b.comm(pid=pid, name="prog", time=1, exec=True)
        for addr, name in ((program, "/bin/prog"), (library, "/lib/lib.so"), (other, f"/lib/other{pid}.so")):
            b.mmap2(pid=pid, addr=addr, length=0x10000, pgoff=0, name=name, time=2)
        for i in range(5):
            branches = [(library + 0x30, program + 0x20, 2)]
            user = [program + 0x20 + i, library + 0x40, other + 0x50, 0x7000000]
            chain = [2**64 - 128, 2**64 - 2**31, 2**64 - 512, *user] if i else []
            b.sample(ip=program + 0x20, pid=pid, tid=pid, time=10 + i, callchain=chain, branches=branches)
            names = ("/bin/prog", 0x20 + i), ("/lib/lib.so", 0x40), (f"/lib/other{pid}.so", 0x50), ("", 0x7000000)
            expected[(("", 2**64 - 2**31), *names) if i else (("/bin/prog", 0x20),)] += 1
    (tmp_path / "made.data").write_bytes(b.build())
    done = run("export", "--to", "perfscript", "-o", tmp_path / "text", tmp_path / "made.data")
    assert done.code == 0
    assert "2 samples without callers" in done.err
    assert _chains(tmp_path / "text") == expected
    assert "note: stacks: call chains" in run("stacks", tmp_path / "text").err


def test_one_module_only(run, data: Data, tmp_path: Path) -> None:
    binary = binary_of(data, "demo_2proc", "liblbrdemo.so")
    text = run("export", "--to", "perfscript", "--binary", binary, data.path("demo_2proc")).out
    assert text.count("PERF_RECORD_") == 1
    assert "]: r-xp /opt/lbrdemo/liblbrdemo.so\n" in text
    (tmp_path / "text").write_text(text)
    mine, all_of_it = (
        {line for line in run("export", "--to", "counts", f).out.splitlines() if line.startswith("R /opt/lbrdemo/lib")}
        for f in (tmp_path / "text", data.path("demo_2proc"))
    )
    assert mine == all_of_it != set()


def test_of_a_windows_trace_llvm_profgen_counts_the_same(run, data: Data, tmp_path: Path) -> None:
    """From SEP's text to a trace log and from that to text again: the module, its path and every count."""
    source = data.root / "text" / "llvm-profgen" / "coff-profile.perfscript"
    trace = tmp_path / "trace.etl"
    done = run("convert", source, trace)
    assert done.code == 0, done.err
    text = run("export", "--to", "perfscript", trace).out
    first = text.splitlines()[0]
    assert first.startswith("PERF_RECORD_MMAP2 1/1: [0x7ff70a1b0000(0x640000) @ 0x1000 ")
    assert first.endswith("]: r-xp c:\\Users\\haohaiwe\\Desktop\\coff-profile.exe")
    (tmp_path / "text").write_text(text)
    counts = [run("export", "--to", "counts", f).out for f in (source, trace, tmp_path / "text")]
    assert counts[0] == counts[1] == counts[2] != ""


# -- PE binaries with DWARF

PE_COMPILERS = {
    "lld-link": ("clang-19", "--target=x86_64-pc-windows-msvc", "-gdwarf", "-fuse-ld=lld-link-19", "-nostdlib",
                 "-Wl,/entry:entry", "-Wl,/subsystem:console", "-Wl,/debug:dwarf"),
    "mingw-lld": ("clang-19", "--target=x86_64-w64-mingw32", "-gdwarf", "-fuse-ld=lld-19", "-nostdlib", "-Wl,-e,entry"),
    "mingw-gnu": ("x86_64-w64-mingw32-gcc", "-g", "-nostdlib", "-Wl,-e,entry"),
}  # fmt: skip
PE_PROGRAM = """
static int rare(unsigned x) { return x % 127 == 3; }
static unsigned mix(unsigned x) { return x % 1021 == 0 ? x * 3 + 5 : x % 509 == 1 ? x * 7 : x ^ (x >> 3); }
__attribute__((noinline)) unsigned step(unsigned i, unsigned total) {
  if (rare(i)) return total - i;
  return i % 1021 ? total + mix(i) : total;
}
unsigned run(unsigned rounds) {
  unsigned total = 0;
  for (unsigned r = 0; r < rounds; r++)
    for (unsigned i = 1; i < 100000; i++) total = step(i, total);
  return total;
}
int entry(void) { return (int)run(3); }
"""


@pytest.mark.parametrize("linker", PE_COMPILERS)
def test_of_pe_binaries_all_ways_give_one_profile(run, tmp_path: Path, linker: str) -> None:
    """perfscript and counts through llvm-profgen, and our own text, from a trace log; clang takes the profile."""
    profgen, (compiler, *flags) = tool("llvm-profgen-19"), PE_COMPILERS[linker]
    source, binary, trace = tmp_path / "p.c", tmp_path / "App.exe", tmp_path / "trace.etl"
    source.write_text(PE_PROGRAM)
    ran(tool(compiler), source, "-O2", *flags, "-o", binary)
    (tmp_path / "text").write_text(pe_stacks(binary))
    assert run("convert", tmp_path / "text", trace).code == 0
    made = {}
    for form, option in (("perfscript", "perfscript"), ("profgen", "unsymbolized-profile"), ("sampleprof", "")):
        out = tmp_path / form
        done = run("export", "--to", form, "--no-symbol-cache", "--binary", binary, "-o", out, trace)
        assert done.code == 0, done.err
        if option:
            ran(profgen, f"--binary={binary}", f"--{option}={out}", "--format=text", f"--output={tmp_path / 'made'}")
        made[form] = (tmp_path / "made" if option else out).read_text()
    assert made["perfscript"] == made["profgen"] == made["sampleprof"]
    assert "\nrun:" in f"\n{made['sampleprof']}"
    use = f"-fprofile-sample-use={tmp_path / 'sampleprof'}"
    ran(tool("clang-19"), "--target=x86_64-w64-mingw32", "-O2", use, "-Werror", "-c", source, "-o", tmp_path / "o")
    # Without its binary a module's addresses count from its base, and make the same counts.
    done = run("export", "--to", "profgen", "--binary", "C:\\x\\App.exe", trace)
    assert done.out == (tmp_path / "profgen").read_text()
