"""How many captures does a store take, and how soon does it answer?

    python benchmarks/bench_fleet.py [--small 10000] [--large 400] [--dir DIR] [--json FILE]

Captures of 100 kB and of 4 MB, of 200 kinds (each its own part of the walk of the benchmark's program, `generate.py`),
20 build ids and 100 hosts, no two alike. Each row is a whole process: `fleet add`, `fleet compact`, a worker with a
batch of the largest size, and `fleet export --to counts` of one build id. The exported counts are compared with the
counts of the written windows. Targets: add and compact together take 40 captures of 100 kB, or 12 of 4 MB, per second
and core; the export takes 1 s; a process takes 600 MB at most.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from generate import MODULE, _build_id, _segment, _walks, build
from lastbranch.fleet.store import BATCH_CAPTURES
from measure import Command, Row, Run, columns, machine, run_once, write_json
from perfdata import DEPTH, SAMPLE_BYTES, Writer

KINDS, BUILD_IDS, HOSTS = 200, 20, 100
SMALL, LARGE = 100_000, 4_000_000
_BASE, _PID, _PAGE = 0x55D0_C0DE_0000, 4101, 4096
_WINDOW = 40_000
"""Branches of the walk that the captures of one kind are cut from."""


def build_id(number: int) -> bytes:
    return bytes([number + 1] * 20)


def captures(folder: Path, size: int, number: int, program: Path) -> tuple[list[Path], Counter[tuple[int, int]]]:
    """Captures of about ``size`` bytes, and the branches in those of the first build id, by what is written."""
    folder.mkdir(parents=True, exist_ok=True)
    (walk,), _ = _walks(program.parent, program / "lbrbench", 1)
    offset, vaddr, length = _segment(program / "lbrbench")
    first, mapped = vaddr & -_PAGE, (vaddr % _PAGE + length + _PAGE - 1) & -_PAGE
    loaded = walk[::-1] + np.array([_BASE, _BASE, 0], np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(loaded.reshape(-1), 3 * (DEPTH + 1))[::3]
    starts = np.zeros(len(walk), np.int64)
    samples, paths = size // SAMPLE_BYTES, []
    for i in range(number):
        rng, kind = np.random.default_rng([size, i]), i % KINDS
        at = kind * _WINDOW // 8 + rng.integers(0, _WINDOW, samples)
        if kind % BUILD_IDS == 0:
            np.add.at(starts, at, 1)
        paths.append(folder / f"{i:05}.perf.data")
        if paths[-1].exists():
            continue
        writer = Writer(part := folder / "part")
        name = f"{MODULE}{kind % BUILD_IDS}"
        writer.comm(_PID, "lbrbench", 1)
        writer.mmap2(_PID, _BASE + first, mapped, offset & -_PAGE, name, 2)
        rows, times = windows[at], 1000 + np.cumsum(rng.integers(1_000, 200_000, samples))
        writer.samples(rows[:, 0], np.full(samples, _PID, np.uint64), times.astype(np.uint64), rows[:, 3:])
        writer.close(build_id(kind % BUILD_IDS), name, f"host{kind * 7 % HOSTS}")
        part.rename(paths[-1])
    entries = np.zeros(len(walk) + 1, np.int64)
    for start in np.flatnonzero(starts).tolist():  # window ``start`` is what the branch before it was sampled with
        entries[start + 1] += starts[start]
        entries[start + 1 + DEPTH] -= starts[start]
    times, truth = np.cumsum(entries)[:-1], Counter[tuple[int, int]]()
    reverse = walk[::-1]
    for row in np.flatnonzero(times).tolist():
        truth[int(reverse[row, 0]), int(reverse[row, 1])] += int(times[row])
    return paths, truth


def exported(path: Path, moved: int) -> Counter[tuple[int, int]]:
    """Branches of an export of counts, at link addresses: without its binary it has offsets in the file."""
    found = Counter[tuple[int, int]]()
    for line in path.read_text().splitlines():
        if line.startswith("B "):
            _, _, source, _, target, count, _ = line.split()
            found[int(source, 16) + moved, int(target, 16) + moved] += int(count)
    return found


def lastbranch(name: str, folder: Path, *words: str | Path, stdout: str | None = None) -> Run:
    log = folder / f"{name.replace(' ', '-')}.log"
    run = run_once(Command(name, [sys.executable, "-m", "lastbranch", "fleet", *map(str, words)], log, stdout))
    if run.exit_code:
        raise SystemExit(f"{name}: exit code {run.exit_code}: {run.log}")
    return run


_BATCH = """
import gc, sys
gc.set_threshold(50_000)  # as the command line does: what is in cycles would stay
from lastbranch.fleet import Labels, capture_file, count_batch
store, *paths = sys.argv[1:]
count_batch(store, [capture_file(path, Labels()) for path in paths])
"""


def full_batch(name: str, folder: Path, paths: list[Path]) -> Run:
    """A run of a worker with the largest batch that a worker gets."""
    shutil.rmtree(store := folder / "store-of-a-batch", ignore_errors=True)
    words = [sys.executable, "-c", _BATCH, str(store), *map(str, paths[:BATCH_CAPTURES])]
    return run_once(Command(name, words, folder / f"{name.replace(' ', '-')}.log"))


def row(name: str, run: Run, status: str) -> Row:
    return Row(name, status, run.wall, run.wall, run.wall, run.user + run.system, run.peak, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", type=int, default=10_000, help="captures of 100 kB")
    parser.add_argument("--large", type=int, default=400, help="captures of 4 MB")
    parser.add_argument("--dir", type=Path, default=Path("/tmp/lbbench/fleet"), help="where captures and stores are")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    arguments = parser.parse_args()
    folder: Path = arguments.dir
    program = folder / "program"
    program.mkdir(parents=True, exist_ok=True)
    build(program, program / "lbrbench")
    print(_build_id(program / "lbrbench").hex(), file=sys.stderr)
    offset, vaddr, _ = _segment(program / "lbrbench")
    rows = []
    for label, size, number in (("4 MB", LARGE, arguments.large), ("100 kB", SMALL, arguments.small)):
        if not number:
            continue
        paths, truth = captures(folder / label.replace(" ", ""), size, number, program)
        store = folder / f"store-{label.replace(' ', '')}"
        shutil.rmtree(store, ignore_errors=True)
        add = lastbranch(f"add {label}", folder, "add", store, paths[0].parent, "--service", "bench")
        compact = lastbranch(f"compact {label}", folder, "compact", store, "--keep", "0")
        spent = add.user + add.system + compact.user + compact.system
        rate = f"{number / spent:.0f} captures a second and core, of {number}"
        rows += [row(f"add {label}", add, rate), row(f"compact {label}", compact, "")]
        batch = full_batch(f"batch {label}", folder, paths)
        some = min(len(paths), BATCH_CAPTURES)
        rows.append(row(f"batch {label}", batch, f"{some} captures" if batch.exit_code == 0 else f"void: {batch.log}"))
        out = folder / "counts.txt"
        words = ("export", store, "--to", "counts", "--module", build_id(0).hex())
        export = lastbranch(f"export {label}", folder, *words, stdout=str(out))
        right = exported(out, vaddr - offset) == truth
        size_of = sum(path.stat().st_size for path in store.rglob("*.parquet"))
        status = f"{'equal to what was written' if right else 'void: other counts'}; {size_of / 1e6:.1f} MB of parts"
        rows.append(row("export --to counts", export, status))
    lines = [("", "wall s", "CPU s", "peak MB", "")]
    for one in rows:
        assert one.wall is not None
        assert one.cpu is not None
        assert one.peak is not None
        lines.append((one.name, f"{one.wall:.2f}", f"{one.cpu:.2f}", f"{one.peak / 1e6:.0f}", one.status))
    print(columns(lines))
    print(" ".join(f"{name}: {value}" for name, value in machine().items()))
    if arguments.json:
        write_json(arguments.json, machine(), rows)


if __name__ == "__main__":
    main()
