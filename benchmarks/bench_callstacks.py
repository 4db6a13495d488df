"""Call stacks rebuilt from branch stacks: `open_calls`, beside loops in C and in Python that push and pop.

    python benchmarks/bench_callstacks.py [--stacks 1000000] [--depth 32] [--rounds 5]

The benchmark makes up a program of calls, returns and jumps, and cuts windows of ``depth`` branches out of its trace.
All three methods must agree on every stack before the timing starts."""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from lastbranch.lbr import KIND, open_calls
from measure import machine

_C = """
#include <stdint.h>
void replay(const uint8_t *kind, const int64_t *offsets, long stacks, uint8_t call, uint8_t ret,
            uint8_t *keep, int64_t *unmatched) {
    int64_t open[4096];
    for (long s = 0; s < stacks; s++) {
        long depth = 0;
        unmatched[s] = 0;
        for (int64_t i = offsets[s + 1] - 1; i >= offsets[s]; i--) {
            keep[i] = 0;
            if (kind[i] == call) open[depth++] = i;
            else if (kind[i] == ret) { if (depth) depth--; else unmatched[s]++; }
        }
        while (depth) keep[open[--depth]] = 1;
    }
}
"""
_SHOWN_TO_PYTHON = 20_000
Columns = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint8], NDArray[np.int64]]
Result = tuple[NDArray[np.bool_], NDArray[np.int64]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Call stacks from branch stacks.")
    parser.add_argument("--stacks", type=int, default=1_000_000)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("  ".join(f"{key}: {value}" for key, value in machine().items()))
    columns = _windows(arguments.stacks, arguments.depth)
    some = _first(columns, _SHOWN_TO_PYTHON)
    with tempfile.TemporaryDirectory() as folder:
        peer = _compiled(Path(folder))
        _compare(open_calls(*columns), peer(*columns))
        _compare(open_calls(*some), _in_python(*some))
        ways = {
            "lastbranch open_calls": (open_calls, columns),
            "C, push and pop": (peer, columns),
            "Python, push and pop": (_in_python, some),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, (way, data) in ways.items():
                begun = time.perf_counter()
                way(*data)
                took[name].append((time.perf_counter() - begun) / (len(data[3]) - 1))
    for name, seconds in took.items():
        rates = [1e-6 / s for s in seconds]
        print(f"{name:24} {median(rates):7.2f} M stacks/s ({min(rates):.2f} to {max(rates):.2f})")


def _windows(stacks: int, depth: int) -> Columns:
    """Windows of a long trace: calls and returns in equal parts, half of the branches jumps."""
    random = np.random.default_rng(1)
    trace = random.choice(
        np.array([KIND["call"], KIND["ret"], KIND["cond"], KIND["uncond"]], np.uint8), 1 << 22, p=[0.25, 0.25, 0.4, 0.1]
    )
    at = random.integers(0, len(trace) - depth, stacks)
    kind = trace[at[:, None] + np.arange(depth)].reshape(-1)
    source = random.integers(1 << 20, 1 << 40, len(kind)).astype(np.uint64)
    return source, source + np.uint64(1 << 12), kind, np.arange(0, len(kind) + 1, depth, np.int64)


def _first(columns: Columns, stacks: int) -> Columns:
    source, target, kind, offsets = columns
    end = int(offsets[min(stacks, len(offsets) - 1)])
    return source[:end], target[:end], kind[:end], offsets[: stacks + 1]


def _compiled(folder: Path) -> Callable[..., Result]:
    (folder / "replay.c").write_text(_C)
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", folder / "replay.so", folder / "replay.c"], check=True)
    replay = ctypes.CDLL(str(folder / "replay.so")).replay

    def run(source: object, target: object, kind: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Result:
        keep, unmatched = np.empty(len(kind), np.uint8), np.empty(len(offsets) - 1, np.int64)
        replay(
            kind.ctypes,
            offsets.ctypes,
            ctypes.c_long(len(unmatched)),
            KIND["call"],
            KIND["ret"],
            keep.ctypes,
            unmatched.ctypes,
        )
        return keep.view(np.bool_), unmatched

    return run


def _in_python(source: object, target: object, kind: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Result:
    keep, unmatched = np.zeros(len(kind), bool), np.zeros(len(offsets) - 1, np.int64)
    kinds, bounds, call, ret = kind.tolist(), offsets.tolist(), KIND["call"], KIND["ret"]
    for stack in range(len(unmatched)):
        still: list[int] = []
        for at in range(bounds[stack + 1] - 1, bounds[stack] - 1, -1):
            if kinds[at] == call:
                still.append(at)
            elif kinds[at] == ret:
                if still:
                    still.pop()
                else:
                    unmatched[stack] += 1
        keep[still] = True
    return keep, unmatched


def _compare(one: Result, other: Result) -> None:
    for a, b in zip(one, other, strict=True):
        if not np.array_equal(a, b):
            sys.exit("they do not agree: nothing is timed")


if __name__ == "__main__":
    main()
