"""A verb imports no more modules than it uses. The time for it depends on the machine, the list of modules does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import run_cli
from lastbranch import demo, native

LIBRARIES = ["numpy.ma", "rich", "duckdb", "capstone", "symbolic", "zstandard", "pyarrow", "pandas"]
STANDARD = [
    "asyncio", "concurrent.futures", "decimal", "email", "fractions", "html", "http", "logging", "secrets", "tempfile",
    "unittest",
]  # fmt: skip
FORMATS = [f"lastbranch.formats.{name}" for name in ("etl", "perfdata", "perfscript")]
RECORDERS = ["lastbranch.capture", "lastbranch.etw", "lastbranch.recording"]
ALWAYS = [*LIBRARIES, *STANDARD, *FORMATS, *RECORDERS]
"""Modules that reading a small .tb5 does not need."""
NAMES = ["lastbranch.analysis.function.annotation", *[name for name in ALWAYS if name != "tempfile"]]
"""Modules that naming code does not need: names are written to the cache through a temporary file."""
CODE = ["lastbranch.isa", "lastbranch.symbols.symbolizer", "lastbranch.symbols.model", "subprocess", "hashlib", "json"]
"""Further modules that verbs without names of code do not need."""
THREADS = {"concurrent.futures", "logging"}
"""What counting needs without the compiled library: NumPy counts small captures in a thread, too."""
CAPTURES = ["numpy", "lastbranch.opening", *LIBRARIES, *STANDARD]
"""Modules that verbs without a capture do not need."""

FORBIDDEN = {
    "--help": CAPTURES,
    "--version": CAPTURES,
    "report --help": CAPTURES,
    "view --help": [*CAPTURES, "uvicorn", "starlette", "lastbranch.view"],
    "lbr --help": CAPTURES,
    "completion bash": CAPTURES,
    "session list": CAPTURES,
    "sources": CAPTURES,
    "info FILE": [*ALWAYS, *CODE, "lastbranch.analysis.counting.count_stacks"],
    "verify FILE": [*ALWAYS, "lastbranch.analysis"],
    "export FILE --to counts": [*ALWAYS, *CODE],
    "report FILE --by process": [*ALWAYS, *CODE],
    "report FILE --by thread": [*ALWAYS, *CODE],
    "report FILE --by module": [*ALWAYS, *CODE],
    "report FILE --by function": NAMES,
    "branches FILE": NAMES,
    "stacks FILE": NAMES,
    "callers FILE main": NAMES,
    "annotate FILE main": [*NAMES[1:], "lastbranch.analysis.stacks.callgraph"],
}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imports") / "demo.tb5"
    assert run_cli("convert", demo.capture(), path).code == 0
    return path


def imported(words: str, capture: Path, folder: Path) -> set[str]:
    """The modules that ``lastbranch`` imports; names are kept in ``folder``."""
    given = [{"FILE": str(capture)}.get(word, word) for word in words.split()]
    if "FILE" in words and given[0] not in ("info", "verify"):
        given += ["--symfs", demo.symfs()]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "lastbranch", *given],
        capture_output=True,
        text=True,
        env={**os.environ, "LASTBRANCH_ETW_DIR": str(folder), "XDG_CACHE_HOME": str(folder)},
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert done.returncode == 0, [line for line in done.stderr.splitlines() if line not in lines]
    modules = {line.rpartition("|")[2].strip() for line in lines}
    assert "lastbranch.cli" in modules
    return modules


@pytest.mark.parametrize("words", FORBIDDEN)
def test_a_verb_imports_no_more_than_it_uses(words: str, capture: Path, tmp_path: Path) -> None:
    needed = set() if native.library() else THREADS
    assert not imported(words, capture, tmp_path).intersection(FORBIDDEN[words]) - needed


@pytest.mark.parametrize("words", ["annotate FILE main"])
def test_names_that_are_kept_need_no_program(words: str, capture: Path, tmp_path: Path) -> None:
    assert "subprocess" in imported(words, capture, tmp_path)
    assert not imported(words, capture, tmp_path).intersection(["subprocess", "selectors"])


def test_a_recording_starts_without_numpy() -> None:
    """What it needs before the program runs: NumPy alone takes as long as all of the rest."""
    code = (
        "import sys, lastbranch.capture.recording; from lastbranch.capture.software import record_software; "
        "print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "lastbranch.capture.software.collector" in found
    assert not {"numpy", "tempfile", "capstone", "platform", "lastbranch.model.tables"}.intersection(found)
