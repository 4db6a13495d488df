"""Notes: each once, and only where it says something about what is printed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Ran
from lastbranch import demo
from perfdata_writer import BRANCH_STACK, IP, TID, TIME, Builder

Run = Callable[..., Ran]
MORE = "note: for more names, give "
ELF = MORE + "--symfs DIR (binaries) or --debug-dir DIR (debug files)\n"


@pytest.fixture
def half(tmp_path: Path) -> list[str | Path]:
    """The packaged capture, of whose two binaries the library is not at hand."""
    folder = tmp_path / "half"
    shutil.copytree(demo.symfs(), folder)
    (library,) = folder.rglob("liblbrdemo.so")
    library.unlink()
    return [demo.capture(), "--symfs", folder]


def notes_of(ran: Ran) -> list[str]:
    return [line for line in ran.err.splitlines() if line.startswith("note: ")]


WORDS = [
    ["report"], ["report", "--by", "line"], ["report", "--by", "inline"], ["branches", "--limit", "0"], ["stacks"],
    ["callees", "main"], ["annotate", "main"], ["export", "--to", "folded"],
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_note_comes_once(words: list[str], half: list[str | Path], run: Run) -> None:
    ran = run(words[0], *half, *words[1:])
    assert ran.code == 0, ran.err
    said = notes_of(ran)
    assert len(said) == len(set(said))
    about = [note for note in said if "liblbrdemo.so" in note]
    assert len(about) <= 1, about


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_where_everything_has_a_name_no_note_is_about_names(words: list[str], run: Run) -> None:
    ran = run(words[0], demo.capture(), *words[1:], "--symfs", demo.symfs(), "--module", "lbrdemo")
    assert ran.code == 0, ran.err
    assert MORE not in ran.err
    assert "no names" not in ran.err


def test_what_is_not_printed_is_not_noted(half: list[str | Path], run: Run) -> None:
    """The library has no names; that matters where its code is in the table, and nowhere else."""
    for words in (
        ["annotate", "main"],
        ["report", "--limit", "1"],
        ["branches", "--module", "libc.so.6", "--limit", "1"],
    ):
        assert "liblbrdemo.so" not in run(words[0], *half, *words[1:]).err
    ran = run("report", *half)
    assert "[liblbrdemo.so]" in ran.out
    assert "note: liblbrdemo.so: no names: not found\n" in ran.err
    assert ELF in ran.err


def build(path: Path, name: str) -> Path:
    b = Builder(sample_type=IP | TID | TIME | BRANCH_STACK)
    b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name=name, time=1)
    for i in range(9):
        b.sample(ip=0x400100, pid=7, tid=7, time=i + 2, branches=[(0x400100, 0x400200, 2), (0x400300, 0x400090, 1)])
    path.write_bytes(b.build())
    return path


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("/nothing/prog", ELF),
        ("C:\\nothing\\prog.exe", MORE + "--symbol-store DIR (PDBs, binaries, Breakpad files)\n"),
        ("[vdso]", None),
        ("//anon", None),
    ],
)
def test_only_options_that_can_help_are_named(name: str, remedy: str | None, tmp_path: Path, run: Run) -> None:
    capture = build(tmp_path / "it.data", name)
    for words in (["report"], ["report", "--by", "function"], ["branches"], ["diff", capture]):
        err = run(words[0], capture, *words[1:]).err
        assert err.count(MORE) == (remedy is not None), words
        assert remedy is None or remedy in err
    refused = run("callers", capture, "main").err
    assert (MORE.removeprefix("note: ") in refused) == (remedy is not None)
