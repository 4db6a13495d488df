"""How long a recorded thread makes no step, as a watcher on another processor sees it (pauses.c)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from math import nan
from pathlib import Path
from statistics import mean

_SECONDS = 3
_LIBRARIES = {"glibc": ["cc"], "musl": ["musl-gcc", "-static"]}
_OF_BOTH = ("memset of 4 MB", "memcpy of 4 MB", "strlen of 1 MB")
PROGRAMS = [
    *(("glibc", name, ()) for name in (
        "rep movsb, backwards", "repne scasb", "repne scasb, 8,000 in a row", "rep movsq", "rep stosb",
        "waits for a flag", "pause", "counts",
    )),
    *((library, name, ()) for name in _OF_BOTH for library in _LIBRARIES),
    ("glibc", "counts", ("--run-ahead", "never")),
]  # fmt: skip
"""C library, program of pauses.c, options of record."""


def pauses(folder: Path, rounds: int) -> dict[str, list[float]]:
    """By program: the longest pause in ms alone, recorded, and the difference; % of the time in pauses by the
    recording, and by the watcher. The last is not a number where each step takes longer than a pause."""
    source = Path(__file__).with_name("pauses.c")
    for library, compiler in _LIBRARIES.items():
        if shutil.which(compiler[0]):
            options = ["-O2", "-fno-builtin", "-pthread", "-o", folder / library, source]
            subprocess.run([*compiler, *options], check=True)
    found = {}
    for library, name, options in PROGRAMS:
        if (folder / library).exists():
            runs = [(_seen(folder, library, name, None), _seen(folder, library, name, options)) for _ in range(rounds)]
            alone, recorded = (max(both[n][0] for both in runs) for n in (0, 1))
            steps = mean(both[0][1] for both in runs)
            watched = nan if steps > 20 else mean(both[1][1] for both in runs) - steps
            words = [name, *([library] if name in _OF_BOTH else []), *(["followed"] if options else [])]
            stated = mean(both[1][2] for both in runs)
            found[", ".join(words)] = [alone, recorded, recorded - alone, stated, watched]
    return found


def _seen(folder: Path, library: str, name: str, options: tuple[str, ...] | None) -> tuple[float, float, float]:
    """Longest pause in ms, and % of the time in pauses, as watched and as stated by `record`; alone for ``None``."""
    shared, program = folder / "shared", str(folder / library)
    shared.unlink(missing_ok=True)
    command = [program, "work", name, str(shared)]
    if options is not None:
        out = str(folder / "pauses.tb5")
        command = [sys.executable, "-m", "lastbranch", "record", "-o", out, *options, "--", *command]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as working:
        try:
            # musl has no sched_setscheduler
            watch = [str(folder / "glibc"), "watch", str(shared), str(_SECONDS)]
            done = subprocess.run(watch, check=True, capture_output=True, text=True, timeout=_SECONDS + 60)
            _, said = working.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.kill(working.pid, signal.SIGKILL)
            raise
    longest, paused, seen = map(int, done.stdout.split())
    stated = re.search(r"([\d.]+) ?% of", said)
    return longest / 1e6, 100 * paused / seen, float(stated[1]) if stated else 0.0
