"""Weights by function, inlined function and line against nm, llvm-symbolizer and the stored ranges; names of places."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lastbranch
from captures import Data
from lastbranch.analysis.naming import Label, Namer, View, find_functions, place_of
from lastbranch.analysis.sources import Sources
from lastbranch.analysis.stacks.functions import NameTable, names
from lastbranch.binaries.sections import open_binary
from lastbranch.bind import bind
from lastbranch.model import Module, Profile, SampleFilter
from lastbranch.opening import code_of
from lastbranch.symbols import Symbolizer, SymbolOptions
from view_truth import NmSymbols, instructions, name_at, symbols

SYMBOLIZER = next((n for n in ("llvm-symbolizer-19", "llvm-symbolizer") if shutil.which(n)), None)
NO_CACHE = SymbolOptions(cache=None)


@pytest.fixture
def demo(data: Data, symfs: Callable[[str], Path]) -> Profile:
    return lastbranch.open(data.path("demo_pie"), symfs=str(symfs("demo_pie")))


def by_name(profile: Profile, table: NameTable, column: str) -> Counter[tuple[str, str]]:
    """(module, function) -> value, where it is not 0; functions by their linkage names."""
    found: Counter[tuple[str, str]] = Counter()
    for row, value in zip(table.name.tolist(), getattr(table, column).tolist(), strict=True):
        label = table.labels[row]
        found[profile.modules[label.module].name if label.module >= 0 else "", label.name] += value
    return +found


def of_binary(found: Counter[tuple[str, str]], profile: Profile) -> Counter[tuple[str, str]]:
    """Without modules whose binary is not at hand."""
    known = {m.name for m in profile.modules if m.binary}
    return Counter({key: n for key, n in found.items() if key[0] in known})


def sample_places(profile: Profile) -> list[tuple[int, int]]:
    """(module, module address) of each sample."""
    binder, out = bind(profile).binder, []
    for batch in profile.batches(()):
        module, address = binder.locate(binder.scopes(batch), batch.ip)
        out += zip(module.tolist(), address.tolist(), strict=True)
    return out


def test_functions_of_samples_and_executed_instructions(demo: Profile, data: Data) -> None:
    table = names(demo, "function", NmSymbols(demo))  # type: ignore[arg-type]
    known = {row: symbols(m.binary) for row, m in enumerate(demo.modules) if m.binary}
    samples = Counter((demo.modules[m].name, name_at(known.get(m, []), a)) for m, a in sample_places(demo))
    assert by_name(demo, table, "samples") == samples
    assert int(table.samples.sum()) == demo.samples
    assert by_name(demo, table, "period") == Counter({key: 4000 * n for key, n in samples.items()})
    ran: Counter[tuple[str, str]] = Counter()
    code = {demo.modules[row].name: list(instructions(demo.modules[row].binary)) for row in known}
    functions = {demo.modules[row].name: found for row, found in known.items()}
    for words in map(str.split, data.golden("demo_pie", "truth.txt").splitlines()):
        if words[0] == "R" and words[1] in code:
            start, end, count = int(words[2], 16), int(words[3], 16), int(words[4])
            at = code[words[1]]
            for address in at[at.index(start) : at.index(end) + 1]:
                ran[words[1], name_at(functions[words[1]], address)] += count
    assert by_name(demo, table, "instructions") == ran
    assert any("not available" in note for note in table.notes)


def test_totals_are_not_below_what_is_known_of_stacks(demo: Profile) -> None:
    """A function has at least its own samples, and main those of all that it calls inside of the window."""
    table = names(demo, "function", NmSymbols(demo))  # type: ignore[arg-type]
    assert table.stacks == ["rebuilt from branch stacks"]
    assert table.total is not None
    assert (table.total >= table.samples).all()
    total = by_name(demo, table, "total")
    (program,) = (m.name for m in demo.modules if m.short == "lbrdemo")
    assert total[program, "main"] > 3 * by_name(demo, table, "samples")[program, "main"]
    assert int(table.total.max()) <= demo.samples
    order = np.lexsort((-table.instructions, -table.total, -table.samples, table.event))  # type: ignore[operator]
    assert order.tolist() == list(range(len(table)))


def symbolized(binary: str, addresses: list[int]) -> dict[int, list[tuple[str, str, int]]]:
    """(function, file, line) of each frame at each address, innermost first, by llvm-symbolizer."""
    command = [str(SYMBOLIZER), f"--obj={binary}", "--output-style=JSON", *map(hex, addresses)]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {
        address: [(f["FunctionName"], f["FileName"], f["Line"]) for f in row["Symbol"]]
        for address, row in zip(addresses, rows, strict=True)
    }


@pytest.mark.skipif(SYMBOLIZER is None, reason="llvm-symbolizer is not installed")
@pytest.mark.parametrize("view", ["inline", "line"])
def test_inlined_functions_and_lines_are_those_of_llvm_symbolizer(demo: Profile, view: View) -> None:
    table = names(demo, view, Symbolizer(demo, NO_CACHE))
    row = next(i for i, m in enumerate(demo.modules) if m.short == "lbrdemo")
    every = sorted(a for m, a in sample_places(demo) if m == row)
    linkage = [s for s in open_binary(demo.modules[row].binary).image.sections if s.name.startswith(".plt")]
    addresses = [a for a in every if not any(s.vaddr <= a < s.vaddr + s.size for s in linkage)]
    frames = symbolized(demo.modules[row].binary, sorted(set(addresses)))
    expected: Counter[tuple[str, str, int]] = Counter()
    for address in addresses:
        function, file, line = frames[address][0]
        expected[(function, file, line) if view == "line" and line else (function, "", 0)] += 1
    found: Counter[tuple[str, str, int]] = Counter()
    stubs = 0  # which llvm-symbolizer takes for _init
    for i, count in zip(table.name.tolist(), table.samples.tolist(), strict=True):
        label = table.labels[i]
        if label.module == row and label.function.endswith("@plt"):
            stubs += count
        elif label.module == row:
            key = (label.function, label.file, label.line)
            found[key if view == "line" and label.line else (label.function, "", 0)] += count
    assert len(expected) > 8
    assert +found == expected
    assert stubs == len(every) - len(addresses) > 0


def test_what_a_capture_lacks_is_told_and_the_rest_is_there(data: Data) -> None:
    """Neither binaries nor ranges, call-stack mode: samples by module, totals, and notes."""
    profile = lastbranch.open(data.path("cfl_9700_callgraph_lbr"))
    table = names(profile, "function", None)
    assert (table.instructions, table.stacks) == (None, ["LBR call-stack mode"])
    assert any("call-stack mode" in note for note in table.notes)
    assert int(table.samples.sum()) == profile.samples
    profile = lastbranch.open(data.path("skx_8173m_32deep_pie_user"))
    table = names(profile, "function", None)
    assert (table.total, table.instructions) == (None, None)
    assert any("no types" in note for note in table.notes)
    assert any("not available" in note for note in table.notes)
    only = SampleFilter(pids=frozenset([profile.processes[0].pid]))
    assert int(names(profile, "function", None, sample_filter=only).samples.sum()) <= profile.samples


# -- names of places


def test_functions_are_found_by_name_pattern_and_place(demo: Profile) -> None:
    namer = Namer(demo, NmSymbols(demo))  # type: ignore[arg-type]
    (fib,) = find_functions(demo, namer, "_Z3fibj")
    row = next(i for i, m in enumerate(demo.modules) if m.short == "lbrdemo")
    start, end, _ = next(s for s in symbols(demo.modules[row].binary) if s[2] == "_Z3fibj")
    assert (fib.module, fib.start, fib.end) == (row, start, end)
    assert find_functions(demo, namer, f"lbrdemo+{start + 3:#x}") == [fib]
    assert find_functions(demo, namer, f"{demo.modules[row].name}+{start:#x}") == [fib]
    assert [p.label.function for p in find_functions(demo, namer, "*area*")] == [
        n for _, _, n in symbols(demo.modules[row].binary) if "area" in n
    ]
    assert find_functions(demo, namer, "no_such_function") == []
    assert find_functions(demo, namer, "lbrdemo+0x" + "f" * 17) == []
    assert find_functions(demo, namer, "_Z3fibj", [row + 1]) == []
    assert find_functions(demo, namer, f"nothing+{start:#x}") == []
    assert place_of(namer, row, 0x10).end == 0
    assert namer.places(np.array([row, row, -1]), np.array([start, start + 4, 8], np.uint64)) == [
        "_Z3fibj",
        "_Z3fibj+0x4",
        "",
    ]


def test_names_that_depend_on_the_process(demo: Profile) -> None:
    """Code made at run time: asked for by process, and each address once."""

    class Jit:
        notes: tuple[str, ...] = ()

        def names_at(self, process: int, address: np.ndarray) -> object:
            from lastbranch.symbols import Function, Names

            made = [Function(f"jit_{process}_{a:x}", f"jit_{process}_{a:x}", a, 1) for a in address.tolist()]
            return Names.of_functions(np.arange(len(made)), made)

    from lastbranch.model import ModuleKind

    profile = Profile("made", "test", modules=[Module("//anon", ModuleKind.ANONYMOUS)])
    namer = Namer(profile, Jit())  # type: ignore[arg-type]
    process, module = np.array([0, 1, 0, 1]), np.array([0, 0, 0, -1])
    rows = namer.rows(process, module, np.array([5, 5, 5, 5], np.uint64))
    assert [namer.labels[r] for r in rows.tolist()] == [
        Label(0, "jit_0_5", "jit_0_5", start=5),
        Label(0, "jit_1_5", "jit_1_5", start=5),
        Label(0, "jit_0_5", "jit_0_5", start=5),
        Label(-1, ""),
    ]


# -- code and sources of binaries


def test_code_comes_from_the_matching_binary_only(demo: Profile, tmp_path: Path) -> None:
    row = next(i for i, m in enumerate(demo.modules) if m.short == "lbrdemo")
    module = demo.modules[row]
    code = code_of(module)
    assert code is not None
    assert code.arch == "x86_64"
    data = Path(module.binary).read_bytes()
    for segment in module.segments:
        assert code.read(segment.address, 1 << 20) == data[segment.offset : segment.offset + segment.size]
        assert code.read(segment.address + 7, 9) == data[segment.offset + 7 :][: min(9, segment.size - 7)]
    assert code.read(1 << 40, 8) == b""
    assert code.read(module.segments[1].address, 0) == b""
    last = module.segments[-1]
    assert code.read(last.address + last.size - 2, 8) == data[last.offset + last.size - 2 : last.offset + last.size]
    other = tmp_path / "other"
    shutil.copyfile(module.binary, other)
    rebuilt = bytearray(other.read_bytes())
    rebuilt[rebuilt.index(module.build_id)] ^= 1
    other.write_bytes(rebuilt)
    for changed in (str(other), str(tmp_path / "gone"), str(tmp_path)):
        module.binary = changed
        assert code_of(module) is None
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    module.binary = str(fifo)
    assert code_of(module) is None
    assert code_of(Module("x")) is None


def test_sources_are_read_only_where_they_may_be(tmp_path: Path) -> None:
    root, tree = tmp_path / "root", tmp_path / "symfs" / "opt"
    (root / "src").mkdir(parents=True)
    tree.mkdir(parents=True)
    (root / "src" / "a.c").write_bytes(b"one\ntw\xffo\n")
    (tmp_path / "secret.c").write_text("secret\n")
    (root / "link.c").symlink_to(tmp_path / "secret.c")
    os.mkfifo(root / "fifo.c")
    (tree / "b.c").write_text("beside\n")
    binary = str(tree / "prog")
    profile = Profile("made", "test", modules=[Module("/opt/prog", binary=binary), Module("C:\\x.exe")])
    given = Sources(profile, [str(root)])
    assert given.line(0, "/build/x/src/a.c", 1) == "one"
    assert given.line(0, "C:\\build\\src\\a.c", 2) == "tw\ufffdo"
    assert given.line(0, "/build/x/lib/../src/a.c", 2) == "tw\ufffdo"
    assert given.line(0, "/build/x/src/a.c", 3) is None
    assert given.line(0, "/build/x/src/a.c", 0) is None
    for hint in ("../secret.c", "/x/../../secret.c", str(tmp_path / "secret.c"), "link.c", "fifo.c", "src", "", "\0"):
        assert given.line(0, hint, 1) is None, hint
    beside = Sources(profile)
    assert beside.line(0, "/opt/b.c", 1) == "beside"
    for hint in ("/opt/../b.c", "b.c", str(tree / "b.c"), str(root / "src/a.c"), "/etc/passwd", "/opt/../../secret.c"):
        assert beside.line(0, hint, 1) is None, hint
    assert beside.line(1, "/opt/b.c", 1) is None
    assert beside.line(-1, "/opt/b.c", 1) is None


def test_instructions_in_a_binary_that_is_not_there_are_not_known(demo: Profile) -> None:
    table = names(demo, "function", None)
    known = {demo.modules[table.labels[row].module].binary != "" for row in table.name[table.has_instructions].tolist()}
    hidden = {demo.modules[table.labels[row].module].binary for row in table.name[~table.has_instructions].tolist()}
    assert known == {True}
    assert hidden == {""}
