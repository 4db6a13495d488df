"""Our rows: a whole command each (the interpreter's start included), the command without the compiled library, and the
bare loop of that library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from generate import Capture
from lastbranch.native import library
from lastbranch.native.build import FLAGS, HERE, compiler, sources
from lastbranch.native.signatures import SIGNATURES
from measure import Command, version_of
from peers import HOTTEST, Tool, last_line

COUNTS, NUMPY_FORM = "export --to counts", "the same, NumPy form"
BARE, BARE_TWICE, BARE_BESIDE = "bare loop", "bare loop, two threads", "bare loop, twice at once"
SAMPLES_QUERY, EDGES_QUERY = "query on branches", "query on edges"
_PAIRS = "select from_address, to_address, {} n from {} group by all order by n desc"
VERBS: dict[str, list[str]] = {
    "branches": ["branches"],
    "export --to bolt": ["export", "--to", "bolt"],
    "export --to autofdo": ["export", "--to", "autofdo"],
    "export --to sampleprof": ["export", "--to", "sampleprof"],
    "report --by function": ["report", "--by", "function"],
    "stacks": ["stacks"],
    "annotate": ["annotate", HOTTEST],
    SAMPLES_QUERY: ["query", _PAIRS.format("count(*)", "branches"), "--limit", "20"],
    EDGES_QUERY: ["query", _PAIRS.format("sum(count)", "edges"), "--limit", "20"],
}
"""Row -> verb and words. FILE comes after the verb, the binary's folder at the end; an export gets a file to write."""


def words_of(name: str, capture: Capture, output: Path) -> list[str]:
    """The command of a row of `VERBS`, or of `COUNTS`."""
    verb, *words = VERBS.get(name, ["export", "--to", "counts"])
    argv = [
        sys.executable,
        "-m",
        "lastbranch",
        verb,
        capture.perf_data,
        *words,
        "--symfs",
        capture.symfs,
        "--no-progress",
    ]
    if verb == "export":
        argv += ["-o", str(output), "--force"]
    one_binary = verb == "export" and name != COUNTS
    return argv + ["--binary", capture.binary] * one_binary


def counts(capture: Capture, directory: Path, name: str = COUNTS, *, native: bool = True) -> Tool:
    """Branch and range counts, which must equal the generator's truth."""
    log, output = _files(directory, name)
    output.unlink(missing_ok=True)
    command = Command(name, words_of(COUNTS, capture, output), log, env={"LASTBRANCH_NATIVE": "1" if native else "0"})

    def status() -> str:
        if not output.exists():
            return f"void: no output ({last_line(log)})"
        differences = _differences(output, Path(capture.truth))
        return f"void: {differences}" if differences else "100.0 % of the ranges, equal to the truth"

    return Tool(name, command, status, _version())


def verb(capture: Capture, directory: Path, name: str, label: str = "") -> Tool:
    """A row of `VERBS`, in the compiled form. Its output is not judged here; the tests do that."""
    log, output = _files(directory, label or name)
    output.unlink(missing_ok=True)
    command = Command(label or name, words_of(name, capture, output), log, env={"LASTBRANCH_NATIVE": "1"})

    def status() -> str:
        written = output if output.exists() else log
        return f"{written.stat().st_size} bytes {'written' if written is output else 'printed'}"

    return Tool(command.name, command, status, _version())


def bare_loops(capture: Capture, directory: Path) -> list[Tool]:
    """The bare loop on one thread, on two threads, and in two processes of one thread each: the yield of two
    processors."""
    if not compiler():
        return [Tool(BARE, None, lambda: "no C compiler")]
    one = [str(_bare_loop(directory)), capture.perf_data]
    both = "{0} {1} & {0} {1}; wait $!"
    commands = {
        BARE: one,
        BARE_TWICE: [*one, "2"],
        BARE_BESIDE: ["sh", "-c", both.format(*one)],
    }
    return [_bare_row(capture, Command(name, argv, _files(directory, name)[0])) for name, argv in commands.items()]


def bare_phases(log: str) -> list[dict[str, Any]]:
    """The output of the bare loops in ``log``: counts, and the seconds of each phase."""
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def _bare_row(capture: Capture, command: Command) -> Tool:
    def status() -> str:
        found = bare_phases(command.log.read_text())
        if not found or any((f["branches"], f["ranges"]) != (capture.branches, capture.ranges) for f in found):
            return f"void: other counts than the truth ({last_line(command.log)})"
        phases = ", ".join(f"{phase} {found[0][phase]['cpu']:.2f}" for phase in ("read", "walk", "count"))
        return f"100.0 % of the ranges; CPU s: {phases}"

    kernels = library()
    return Tool(command.name, command, status, f"kernels: {kernels.lb_compiler().decode()}" if kernels else "")


def _bare_loop(directory: Path) -> Path:
    """Compile `bare_loop.c` with the sources of the library, as the library is compiled."""
    kinds = {"int": "int", "i64": "i64", "u64": "u64", "f64": "double", "text": "const char *", "nothing": "void"}
    prototypes = ['#include "lastbranch.h"\n']
    for name, signature in SIGNATURES.items():
        result, *arguments = signature.split()
        given = ", ".join(kinds.get(word, "const void *") for word in arguments) or "void"
        prototypes.append(f"{kinds.get(result, 'void *')} {name}({given});\n")
    (directory / "kernels.h").write_text("".join(prototypes))
    program, source = directory / "bare_loop", Path(__file__).with_name("bare_loop.c")
    flags = [flag for flag in FLAGS if flag != "-shared"]
    words = [*compiler(), *flags, "-pthread", f"-I{HERE}", f"-I{directory}", "-o", str(program), str(source)]
    subprocess.run([*words, *map(str, sources())], check=True)
    return program


def _files(directory: Path, name: str) -> tuple[Path, Path]:
    """The log and the output of a row."""
    stem = name.replace("--", "").replace(",", "").replace(" ", "-")
    return directory / f"{stem}.log", directory / f"{stem}.out"


def _version() -> str:
    return version_of([sys.executable, "-m", "lastbranch", "--version"])


def _differences(output: Path, truth: Path) -> str:
    """How the counts differ from the truth, line by line in any order; empty if they do not."""
    got = Counter(line for line in output.read_text().splitlines() if not line.startswith("#"))
    want = Counter(truth.read_text().splitlines())
    missing, wrong = want - got, got - want
    if not missing and not wrong:
        return ""
    return f"{missing.total()} lines missing, {wrong.total()} wrong, such as {min(missing or wrong)!r}"


def default_directory() -> Path:
    """The folder that keeps captures from one run to the next."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "lastbranch-bench"
