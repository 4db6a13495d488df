"""The peers on a generated capture: how each is called, and how much of the capture its output accounts for.

A peer's row only counts if it reports at least 90 % of the ranges of one process: a tool that drops its input is fast.
(llvm-profgen keeps one load base for the binary, so it reports only one of three processes; its row counts and says
so.)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from generate import Capture
from measure import Command, version_of

HOTTEST = "f2_108"
"""The function that runs most."""
_REQUIRED = 0.9
_PATIENCE = 100
_RANGE = re.compile(r"^[0-9a-f]+-[0-9a-f]+:(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Tool:
    """A row of the benchmark: the command, and the function that judges its output."""

    name: str
    command: Command | None
    status: Callable[[], str]
    version: str = ""


def last_line(log: Path) -> str:
    """The end of a log, as the reason of a failure."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def _judge(ranges: int, capture: Capture) -> str:
    """The status of a peer that reported `ranges` ranges, by weight."""
    share = f"{100 * ranges / capture.ranges:.1f} % of the ranges"
    return share if ranges >= _REQUIRED * min(capture.ranges_by_process) else f"void: {share}"


def _find(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


def _absent(name: str) -> Tool:
    return Tool(name, None, lambda: "not installed")


def _perf_script(perf: str, capture: Capture, directory: Path) -> Tool:
    argv = [perf, "script", "-F", "ip,brstack", "-i", capture.perf_data]

    def status() -> str:
        """Run it again and count its text: each sample has one range less than entries."""
        entries = samples = 0
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            while chunk := process.stdout.read(1 << 22):
                entries += chunk.count(b"/0x")
                samples += chunk.count(b"\n")
        return _judge(entries - samples, capture)

    command = Command("perf script", argv, directory / "perf-script.log", stdout=os.devnull)
    return Tool("perf script", command, status, version_of([perf, "--version"]))


def _llvm_profgen(profgen: str, capture: Capture, directory: Path, env: dict[str, str]) -> Tool:
    output = directory / "profgen.counts.txt"
    argv = [profgen, f"--binary={capture.binary}", f"--perfdata={capture.perf_data}", f"--output={output}"]
    argv += ["--skip-symbolization", "--use-offset=0"]  # counts, as ours: without the symbol work of a full profile

    output.unlink(missing_ok=True)

    def status() -> str:
        if not output.exists():
            return f"void: no output ({last_line(directory / 'profgen.log')})"
        return _judge(sum(map(int, _RANGE.findall(output.read_text()))), capture)

    command = Command("llvm-profgen", argv, directory / "profgen.log", env=env)
    return Tool("llvm-profgen", command, status, version_of([profgen, "--version"]))


def _perf2bolt(perf2bolt: str, capture: Capture, directory: Path, env: dict[str, str]) -> Tool:
    log = directory / "perf2bolt.log"
    argv = [perf2bolt, "-p", capture.perf_data, "-o", str(directory / "perf2bolt.fdata"), capture.binary]

    def status() -> str:
        """From its report: a stack of n entries has n - 1 ranges ("traces"), except ranges that it could not place."""
        text = log.read_text(errors="replace")
        read = re.search(r"read (\d+) samples and (\d+) LBR entries", text)
        lost = re.findall(r"(?:mismatching disassembled function contents|unknown regions): (\d+)", text)
        wrote = re.search(r"wrote (\d+) objects", text)
        if read is None or wrote is None or int(wrote[1]) == 0:
            return f"void: it wrote no profile ({last_line(log)})"
        return _judge(int(read[2]) - int(read[1]) - sum(map(int, lost)), capture)

    command = Command("perf2bolt", argv, log, env=env)
    return Tool("perf2bolt", command, status, version_of([perf2bolt, "--version"]))


def peers(capture: Capture, directory: Path) -> list[Tool]:
    """The peers of this machine, and rows that name the missing peers.

    `directory` gets a `bin` with links of exactly the names `perf` and `perf2bolt`: the tools start the perf that is
    first on PATH, and bolt under any other name (Debian's `perf2bolt-19` too) rewrites the binary instead.
    """
    found = {
        "perf": _find("perf"),
        "llvm-profgen": _find("llvm-profgen-19", "llvm-profgen"),
        "perf2bolt": _find("perf2bolt-19", "perf2bolt"),
    }
    links = directory / "bin"
    links.mkdir(exist_ok=True)
    for name in ("perf", "perf2bolt"):
        (links / name).unlink(missing_ok=True)
        if path := found[name]:
            (links / name).symlink_to(Path(path).resolve())
    env = {"PATH": f"{links}{os.pathsep}{os.environ.get('PATH', '')}"}
    perf, profgen, bolt = found.values()
    return [
        _perf_script(perf, capture, directory) if perf else _absent("perf script"),
        _llvm_profgen(profgen, capture, directory, env) if perf and profgen else _absent("llvm-profgen"),
        _perf2bolt(str(links / "perf2bolt"), capture, directory, env) if perf and bolt else _absent("perf2bolt"),
    ]


def perf_views(capture: Capture, directory: Path) -> list[Tool]:
    """perf's own views of the capture, each for at most `_PATIENCE` seconds: they take minutes on large ones."""
    perf = _find("perf")
    if perf is None:
        return [_absent("perf's views")]
    given = ["-i", capture.perf_data, "--symfs", capture.symfs, "--stdio", "-f"]
    words = {
        "perf report -b": ["report", "-b", *given],
        "perf report": ["report", "--no-branch-stack", *given],
        "perf annotate": ["annotate", *given, "-s", HOTTEST],
    }
    version, tools = version_of([perf, "--version"]), []
    for name, argv in words.items():
        log = directory / f"{name.replace(' ', '-')}.log"
        command = Command(name, ["timeout", str(_PATIENCE), perf, *argv], log)
        tools.append(Tool(name, command, lambda log=log: f"{log.stat().st_size} bytes printed", version))
    return tools
