"""Generate a program, a large perf.data of it with branch stacks, and the exact counts of the perf.data.

    python benchmarks/generate.py OUTDIR --size 1GB [--processes 3]

OUTDIR gets `symfs/opt/lbrbench/lbrbench` (the program), `walks/` (taken branches of each process, kept for the next
size), `NAME.perf.data`, `NAME.truth.txt` and `NAME.json`. Three processes run the same position-independent program at
three load bases, interleaved in time; each sample is a random 32-deep window of its process's walk, newest first.

The truth is counted from the windows' positions in the walks, by difference arrays, and never from the samples'
addresses: `R module start end count`, then `B module from module to count mispredicted`, link-time addresses in hex.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfdata import DEPTH, SAMPLE_BYTES, Writer
from program import Control, Kind, build, control_flow
from walk import walk

MODULE = "/opt/lbrbench/lbrbench"
VERSION = 1  # raise it when the same size would give another capture

_PROCESSES = ((4101, 0x55D0_C0DE_0000), (4102, 0x5603_A7C4_1000), (4103, 0x563F_1B2D_8000))  # pid, load base
_WALK_LENGTH = 2_000_000
_BLOCK = 4096
_FIRST_SAMPLES = 1024  # of the process before, until the next one starts
_PAGE = 4096
_START_NS = 1_000_000_000_000
_UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Capture:
    """A generated capture: its path and its contents."""

    perf_data: str
    binary: str
    symfs: str
    truth: str
    samples: int
    branches: int
    ranges_by_process: list[int]
    distinct_branches: int
    distinct_ranges: int
    basic_blocks: int
    version: int = VERSION

    @property
    def ranges(self) -> int:
        """All ranges of the capture, with their weight."""
        return sum(self.ranges_by_process)

    @property
    def size(self) -> int:
        """Bytes of the perf.data file."""
        return Path(self.perf_data).stat().st_size


def parse_size(text: str) -> int:
    """`1GB`, `0.25GB`, `512MiB` or plain bytes."""
    match = re.fullmatch(r"([0-9.]+) ?([kMG]i?B|)", text)
    if match is None or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 1GB or 256MiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _readelf(option: str, binary: Path) -> str:
    return subprocess.run(["readelf", option, str(binary)], check=True, capture_output=True, text=True).stdout


def _segment(binary: Path) -> tuple[int, int, int]:
    """p_offset, p_vaddr and p_memsz of the executable PT_LOAD."""
    match = re.search(r"LOAD +(0x\w+) (0x\w+) 0x\w+ 0x\w+ (0x\w+) R E", _readelf("-lW", binary))
    if match is None:
        raise RuntimeError(f"{binary} has no executable segment")
    return int(match[1], 16), int(match[2], 16), int(match[3], 16)


def _build_id(binary: Path) -> bytes:
    match = re.search(r"Build ID: ([0-9a-f]+)", _readelf("-n", binary))
    if match is None:
        raise RuntimeError(f"{binary} has no build id")
    return bytes.fromhex(match[1])


def _walks(directory: Path, binary: Path, processes: int) -> tuple[list[Words], Control]:
    """The walk of each process, from `directory` where it was kept for the same program."""
    control, walks = control_flow(binary), list[Words]()
    directory.mkdir(exist_ok=True)
    for index in range(processes):
        path = directory / f"{_build_id(binary).hex()[:16]}-v{VERSION}-{index}.npy"
        if not path.exists():
            partial = path.with_suffix(".partial.npy")
            np.save(partial, walk(control, _WALK_LENGTH, seed=index + 1))
            os.replace(partial, path)
        walks.append(np.load(path))
    return walks, control


def _callers(control: Control, entries: Words) -> tuple[NDArray[np.int64], list[tuple[int, ...]]]:
    """(which call stack there is before each branch of a walk, the return addresses of each, innermost first)."""
    calls = {
        a: after for a, k, after in zip(control.address, control.kind, control.after, strict=True) if k == Kind.CALL
    }
    returns = {a for a, k in zip(control.address, control.kind, strict=True) if k == Kind.RETURN}
    stacks: dict[tuple[int, ...], int] = {(): 0}
    now: tuple[int, ...] = ()
    found = []
    for source in entries[:, 0].tolist():
        found.append(stacks.setdefault(now, len(stacks)))
        if source in calls:
            now = (calls[source], *now)
        elif source in returns:
            now = now[1:]
    return np.array(found, np.int64), list(stacks)


def _write(
    path: Path, binary: Path, walks: list[Words], samples: int, chained: Control | None
) -> list[NDArray[np.int64]]:
    """Stream the capture to `path`; gives how many windows start at each position of each walk. Samples have call
    chains of the program ``chained``, if given."""
    rng = np.random.default_rng(samples)
    offset, vaddr, length = _segment(binary)
    first, size = vaddr & -_PAGE, (vaddr % _PAGE + length + _PAGE - 1) & -_PAGE
    # Newest first: reversed walks at their load addresses, so that a window is one contiguous row.
    windows = []
    for (_, base), entries in zip(_PROCESSES, walks, strict=False):
        loaded = entries[::-1] + np.array([base, base, 0], np.uint64)
        windows.append(np.lib.stride_tricks.sliding_window_view(loaded.reshape(-1), 3 * (DEPTH + 1))[::3])
    starts = [np.zeros(len(entries), np.int64) for entries in walks]
    pids = np.array([pid for pid, _ in _PROCESSES], np.uint64)
    writer, now, done, running = Writer(path, chained is not None), _START_NS, 0, 0
    callers = [_callers(chained, entries) for entries in walks] if chained is not None else []
    while done < samples:
        if running < len(walks):
            pid, base = _PROCESSES[running]
            writer.comm(pid, "lbrbench", now + 1)
            writer.mmap2(pid, base + first, size, offset & -_PAGE, MODULE, now + 2)
            running += 1
        count = min(samples - done, _FIRST_SAMPLES if running < len(walks) else _BLOCK)
        times = now + np.cumsum(rng.integers(1_000, 200_000, count))
        process = rng.integers(0, running, count)
        rows = np.empty((count, 3 * (DEPTH + 1)), np.uint64)
        chains: list[tuple[int, ...]] = [()] * count
        for index in range(running):
            chosen = np.flatnonzero(process == index)
            at = rng.integers(0, len(windows[index]), len(chosen))
            rows[chosen] = windows[index][at]
            np.add.at(starts[index], len(walks[index]) - 1 - DEPTH - at, 1)
            if callers:
                which, stacks = callers[index]
                for sample, stack in zip(chosen.tolist(), which[len(which) - 1 - at].tolist(), strict=True):
                    chains[sample] = tuple(address + _PROCESSES[index][1] for address in stacks[stack])
        # Row entry 0 is the next taken branch: its address is the sample's ip. The stack is the 32 before it.
        columns = rows[:, 0], pids[process], times.astype(np.uint64), rows[:, 3:]
        if callers:
            writer.chained_samples(*columns, chains)
        else:
            writer.samples(*columns)
        writer.finished_round()
        now, done = int(times[-1]), done + count
    writer.close(_build_id(binary), MODULE)
    return starts


def _covered(starts: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """How many windows cover each position, if a window covers `width` positions from its start on."""
    change = starts.copy()
    change[width:] -= starts[:-width]
    return np.cumsum(change)


def _sums(pairs: list[Words], weights: list[NDArray[np.int64]]) -> tuple[Words, list[NDArray[np.int64]]]:
    """The distinct pairs in numeric order and the sum of every weight column over each; pairs never seen left out."""
    keys = np.concatenate([pair[:, 0] << np.uint64(32) | pair[:, 1] for pair in pairs])
    distinct, inverse = np.unique(keys, return_inverse=True)
    sums = [np.bincount(inverse, weights=column).astype(np.int64) for column in weights]
    seen = sums[0] > 0
    split = np.stack([distinct >> np.uint64(32), distinct & np.uint64(0xFFFF_FFFF)], axis=1)
    return split[seen], [column[seen] for column in sums]


def _truth(path: Path, walks: list[Words], starts: list[NDArray[np.int64]]) -> tuple[int, int]:
    """Write the exact counts; gives the numbers of distinct branches and ranges."""
    taken = [_covered(start, DEPTH) for start in starts]
    missed = [
        count * (entries[:, 2] & np.uint64(1)).astype(np.int64) for count, entries in zip(taken, walks, strict=True)
    ]
    branches, (count, misses) = _sums(
        [entries[:, :2] for entries in walks], [np.concatenate(taken), np.concatenate(missed)]
    )
    between = [np.stack([entries[:-1, 1], entries[1:, 0]], axis=1) for entries in walks]
    ranges, (weight,) = _sums(between, [np.concatenate([_covered(start, DEPTH - 1)[:-1] for start in starts])])
    with path.open("w") as out:
        for (begin, end), n in zip(ranges.tolist(), weight.tolist(), strict=True):
            out.write(f"R {MODULE} {begin:x} {end:x} {n}\n")
        for (source, to), n, m in zip(branches.tolist(), count.tolist(), misses.tolist(), strict=True):
            out.write(f"B {MODULE} {source:x} {MODULE} {to:x} {n} {m}\n")
    return len(branches), len(ranges)


def generate(
    directory: Path, size: int, processes: int = 3, compiler: tuple[str, ...] = ("gcc",), *, chains: bool = False
) -> Capture:
    """The capture of about `size` bytes in `directory`: made now, or found there from before. With ``chains`` it has
    call chains, too, and is larger by these.

    Captures of programs of another `compiler` need another `directory`.
    """
    if not 1 <= processes <= len(_PROCESSES):
        raise ValueError(f"processes must be 1 to {len(_PROCESSES)}, not {processes}")
    directory.mkdir(parents=True, exist_ok=True)
    symfs = directory / "symfs"
    binary = symfs / MODULE.lstrip("/")
    build(directory, binary, compiler)
    name, samples = f"{size}-{processes}p{'-chains' * chains}", max(size // SAMPLE_BYTES, 2 * _FIRST_SAMPLES + 1)
    data, truth, about = (directory / f"{name}.{suffix}" for suffix in ("perf.data", "truth.txt", "json"))
    if about.exists() and data.exists() and data.stat().st_mtime >= binary.stat().st_mtime:
        found = json.loads(about.read_text())
        if found.get("version") == VERSION:
            return Capture(**found)
    about.unlink(missing_ok=True)
    walks, control = _walks(directory / "walks", binary, processes)
    starts = _write(data, binary, walks, samples, control if chains else None)
    distinct_branches, distinct_ranges = _truth(truth, walks, starts)
    capture = Capture(
        *(str(path) for path in (data, binary, symfs, truth)),
        samples=samples,
        branches=samples * DEPTH,
        ranges_by_process=[int(start.sum()) * (DEPTH - 1) for start in starts],
        distinct_branches=distinct_branches,
        distinct_ranges=distinct_ranges,
        basic_blocks=control.basic_blocks,
    )
    about.write_text(json.dumps(asdict(capture), indent=2) + "\n")
    return capture


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate a large perf.data with branch stacks and its exact counts.")
    parser.add_argument("directory", type=Path, metavar="OUTDIR")
    parser.add_argument("--size", type=parse_size, default=parse_size("1GB"), help="such as 256MB, 1GB or 4GB")
    parser.add_argument("--processes", type=int, default=3, choices=range(1, len(_PROCESSES) + 1))
    arguments = parser.parse_args()
    print(json.dumps(asdict(generate(arguments.directory, arguments.size, arguments.processes)), indent=2))


if __name__ == "__main__":
    main()
