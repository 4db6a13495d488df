"""A demonstration: records a program, or opens the packaged capture where recording is impossible.

python -m lastbranch.demo
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from . import capture, symfs

_PROGRAM = "import random; print(sum(sorted(random.random() for _ in range(2_000_000))) > 0)"
_COUNTS = 5
_COLLECTOR_FAILED = 125


def main() -> None:
    """Record, then report, branches and counts; the first command that fails ends it with its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(folder) / "demo.tb5"
        recording = ["record", "--duty", "20", "-o", str(recorded), "--", sys.executable, "-c", _PROGRAM]
        _print(recording)
        code = subprocess.run([*_LASTBRANCH, *recording]).returncode
        if code == 0:
            file = [str(recorded)]
        elif code == _COLLECTOR_FAILED:
            print("\nThis machine cannot record (`lastbranch doctor` says why): this is the packaged capture.\n")
            file = [capture(), "--symfs", symfs()]
        else:
            sys.exit(code)
        _run("report", *file, "--by", "module", "--limit", "6")
        _run("branches", *file, "--limit", "10")
        lines = _run("export", *file, "--to", "counts", shown=_COUNTS)
        print(f"... {max(0, lines - _COUNTS)} more")


_LASTBRANCH = [sys.executable, "-m", "lastbranch"]


def _print(words: list[str]) -> None:
    print("\n$ lastbranch", shlex.join(words), flush=True)


def _run(*words: str, shown: int | None = None) -> int:
    """Run a command and print the first ``shown`` lines of its output; the number of all lines."""
    _print(list(words))
    done = subprocess.run([*_LASTBRANCH, *words, "--no-progress"], stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    print("\n".join(lines[:shown]), flush=True)
    if done.returncode:
        sys.exit(done.returncode)
    return len(lines)


if __name__ == "__main__":
    main()
