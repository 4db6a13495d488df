"""How long does `python -m lastbranch --help` take, and a verb on a small .tb5? The target of the first is a median
under 150 ms. The other rows are measured by the CPU time of `import numpy`.

    python benchmarks/bench_startup.py [--rounds 20] [--json FILE]

Each row is a whole process, compared with the same interpreter without work: the difference is the cost of our imports.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from lastbranch import demo
from measure import Command, machine, run_once, run_rounds, summarise, table, write_json
from peers import last_line

_TARGET = 0.150
_VERBS = {
    "report --by module": ("report", "--by", "module"),
    "report --by function": ("report", "--by", "function"),
    "annotate": ("annotate", "main"),
    "info": ("info",),
    "branches": ("branches",),
    "export --to counts": ("export", "--to", "counts"),
}
"""The words of each row; FILE comes after the first."""


def _verbs(folder: str) -> list[Command]:
    """A row for each of `_VERBS`, on the demonstration as a .tb5."""
    capture = str(Path(folder) / "demo.tb5")
    subprocess.run([sys.executable, "-m", "lastbranch", "convert", demo.capture(), capture], check=True)
    symfs = ["--symfs", demo.symfs()]
    return [
        Command(name, [sys.executable, "-m", "lastbranch", verb, capture, *words, *symfs], Path(folder) / "verb.log")
        for name, (verb, *words) in _VERBS.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Start-up time of the command line.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the results here as well")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "help.log"
        ours = Command("lastbranch --help", [sys.executable, "-m", "lastbranch", "--help"], log)
        empty = Command("python -c pass", [sys.executable, "-c", "pass"], Path(directory) / "empty.log")
        numpy = Command("import numpy", [sys.executable, "-c", "import numpy"], Path(directory) / "numpy.log")
        verbs = _verbs(directory)
        for command in (ours, *verbs):
            run_once(command)  # compiles the modules, which is not what is measured
        runs = run_rounds([ours, empty, numpy, *verbs], arguments.rounds)
        rows = [summarise(name, "", mine) for name, mine in runs.items()]
        median = rows[0].wall or 0.0
        verdict = f"{'under' if median < _TARGET else 'OVER'} the target of {_TARGET * 1000:.0f} ms"
        if any(run.exit_code for run in runs[ours.name]):
            verdict = f"void: {last_line(log)}"
    rows[0] = summarise(ours.name, verdict, runs[ours.name])
    about = {"machine": machine()}
    print("  ".join(f"{key}: {value}" for key, value in about["machine"].items()))
    print(table(rows, reference=empty.name))
    if arguments.json:
        write_json(arguments.json, about, rows)


if __name__ == "__main__":
    main()
