"""Tables in terminals of several widths: they fit, numbers come first, and what a file gets is whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capture_tools import PROGRAMS, needs_ptrace, record
from command_line import Ran, run_in_terminal
from lastbranch import demo
from lastbranch.cli import output as layout
from lastbranch.cli.output import shorten

pty = pytest.importorskip("pty")
fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

Run = Callable[..., Ran]
WIDTHS = (80, 100, 132)
INNER = "std::vector<std::pair<std::basic_string<char>, int>, std::allocator<std::pair<std::basic_string<char>, int>>>"
LONG = f"Registry<{INNER}>::run({INNER} const&, {INNER}&&) const"


def shown(width: int, *words: str | Path) -> tuple[list[str], str]:
    """(lines, standard error) of lastbranch where standard output is a terminal of that width."""
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | {"PYTHONIOENCODING": "utf-8"}
    done = run_in_terminal(*words, width=width, env=env)
    assert done.code in (0, 1), done.err
    return re.sub(r"\x1b\[[0-9;]*m", "", done.out).splitlines(), done.err


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a program whose functions have long names."""
    folder = tmp_path_factory.mktemp("long")
    if subprocess.run(["g++", "-O1", "-o", folder / "names", PROGRAMS / "names.cpp"], capture_output=True).returncode:
        pytest.skip("no g++")
    recorded = record(folder / "it.tb5", "--engine", "software", "--duty", "20", folder / "names")
    if recorded.code:
        pytest.skip("nothing can be recorded here")
    return recorded.path


VERBS = [
    ["report"], ["report", "--by", "line"], ["report", "--by", "inline"], ["report", "--by", "process"],
    ["report", "--by", "thread"], ["report", "--by", "module"], ["branches"], ["branches", "--no-symbols"],
    ["callers", "*leaf<*"], ["callees", "*root<*"], ["annotate", "*leaf<*"], ["annotate", "*root<*"], ["info"],
    ["check"],    ["stacks", "--format", "table"], ["query", "select * from edges limit 5"], ["verify"],
]  # fmt: skip


@needs_ptrace
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_table_fits_the_terminal(words: list[str], capture: Path) -> None:
    for width in WIDTHS[:1] if words[0] == "query" else WIDTHS[:2]:
        lines, said = shown(width, words[0], capture, *words[1:])
        assert "Traceback" not in said
        too_long = [line for line in lines if len(line) > width]
        assert not too_long or words[0] == "query", too_long


@pytest.mark.parametrize("words", [["doctor"], ["lbr", "explain", "--filter", "any,user"], ["sources"]], ids=" ".join)
def test_what_is_about_the_machine_fits_the_terminal(words: list[str]) -> None:
    wide = shown(1000, *words)[0]
    for width in (60, 80):
        lines, _ = shown(width, *words)
        assert all(len(line) <= width for line in lines)
        if words[0] != "sources":  # wrapped, and no word is lost
            assert sorted("".join(lines).replace(" ", "")) == sorted("".join(wide).replace(" ", ""))


@needs_ptrace
@pytest.mark.parametrize("words", VERBS[:9], ids=" ".join)
def test_what_goes_elsewhere_is_whole(words: list[str], capture: Path, run: Run) -> None:
    """A pipe gets what --wide prints, whatever the terminal's width is, and nothing of it is left out."""
    piped = run(words[0], capture, *words[1:])
    assert shown(60, words[0], capture, *words[1:], "--wide")[0] == piped.out.splitlines()
    assert "…" not in piped.out
    assert "to fit the terminal" not in piped.err
    head = piped.out.splitlines()[0]
    assert shown(20000, words[0], capture, *words[1:])[0][0].split() == head.split()  # there is room for bars, too


@needs_ptrace
def test_it_is_said_once_that_something_is_left_out(capture: Path) -> None:
    for words in (["report"], ["annotate", "*leaf<*"], ["branches"]):
        assert shown(80, words[0], capture, *words[1:])[1].count("to fit the terminal") == 1


def test_numbers_come_first(run: Run) -> None:
    for words in (["report"], ["report", "--by", "module"], ["branches"], ["callers", "main"]):
        head, *rows = run(words[0], demo.capture(), "--symfs", demo.symfs(), *words[1:]).out.splitlines()
        assert head.split()[0] in ("samples", "count", "calls")
        assert all(row.split()[0].isdecimal() for row in rows if row)


# -- names


@pytest.mark.parametrize(
    ("name", "brief"),
    [
        ("auto deep<int, double>(std::map<int, std::vector<int>> const&, unsigned)+0x67", "auto deep<…>(…)+0x67"),
        (
            "<alloc::vec::Vec<T, A> as core::iter::FromIterator<T>>::from_iter+0x20",
            "<alloc::vec::Vec<…> as core::iter::FromIterator<…>>::from_iter+0x20",
        ),
        ("operator<< <std::char_traits<char> >(std::ostream&, char const*)", "operator<< <…>(…)"),
        ("first::second::third::operator()(int, int, int) const", "first::second::third::operator()(…) const"),
        ("first::second::operator->(long long long argument) const", "first::second::operator->(…) const"),
    ],
)
def test_a_name_loses_its_arguments_first(name: str, brief: str) -> None:
    assert shorten(name, len(brief)) == brief
    assert shorten(name, len(name)) == name
    assert shorten(name, None) == name


@pytest.mark.parametrize(
    "text", [LONG, "a" * 300, "<" * 50, ">" * 50, "(" * 9 + ")" * 9, "operator<" * 9, "名" * 60, "x" + "é" * 90]
)
def test_what_is_shortened_has_both_its_ends_and_fits(text: str) -> None:
    for width in range(1, 130):
        short = shorten(text, width)
        assert layout._cells(short) <= max(width, 1)
        if width > 4 and short != text:
            assert "…" in short
            assert short[0] == text[0]


def test_a_line_of_code_is_cut_as_it_is() -> None:
    line = "for (int i = 0; i < std::numeric_limits<int>::max(); i++) total += values[i];"
    assert shorten(line, 40) == line[:20] + "…" + line[-19:]


def test_dots_stand_for_what_an_encoding_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert shorten("abcdefghij", 6) == "ab..ij"
