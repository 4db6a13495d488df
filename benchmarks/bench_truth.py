"""How near do recordings by the software engine come to what a program executed?

    python benchmarks/bench_truth.py [--seconds 20] [--untuned | --only sqlite3 zstd] [--folder DIR] [--json FILE]
                                     [-- OPTIONS]

The truth is callgrind's count of each instruction, jump and call. It has faults: valgrind merges and inverts some
conditional exits. So each branch is compared with the counts of its target and of the instruction after it, and
branches that contradict these counts are left out, on both sides. Returns are left out (callgrind does not count them),
and so are linkage stubs. The columns compare, by module and link address:

- edges: the overlap of shares, the sum of min(share recorded, share true) over all branches, in percent;
- noise: its standard deviation when as many bursts are drawn again from the recorded ones (bootstrap);
- top 10, top 50: how many of the hottest true branches are among the hottest recorded ones;
- ways: the mean error of the probability that a conditional branch is taken, in points, weighted by true executions;
- the same for the estimate of executions (est.), the part of the branches that the estimate moves, its sampling noise,
  and whether it is used: if it cannot be distinguished from chance, --estimate executions keeps the observed counts.

The recorder and the estimator were tuned with ten of the programs; with --untuned, the benchmark runs five other
programs. OPTIONS are options of `lastbranch record`. ``--folder`` keeps programs, truths and recordings, and reuses
existing files: other options need another folder, or the recordings deleted."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from lastbranch.analysis import Estimate, branches, estimate_executions, ranges
from lastbranch.analysis.executions import markov_chain
from lastbranch.binaries import read_image
from lastbranch.binaries.files import File
from lastbranch.binaries.image import Code
from lastbranch.errors import LastbranchError
from lastbranch.isa import Decoder
from lastbranch.lbr import KIND, branch_type
from lastbranch.model import BRANCH, Profile
from lastbranch.opening import open_profile
from measure import columns, machine
from truth_programs import Program, programs

__all__ = ["Place", "Edge", "Observed", "Truth", "compared", "observed", "overlap", "record", "truth"]

Place = tuple[str, int]
"""Path of a module, link address."""
Edge = tuple[Place, Place]

_ENVIRONMENT = {
    **os.environ,
    "PYTHONDONTWRITEBYTECODE": "",
    # valgrind has no AVX-512 and hides more: the same string functions must run in both.
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-EVEX,-ERMS,-FSRM,-SSE4_2,-SSSE3,-BMI2",
}
_TOLERATED = 0.02
"""The largest difference between a branch and the counts around it, as a share of its executions."""
_DRAWS = 32
_RETURNS = [KIND["ret"], KIND["eret"], KIND["sysret"]]


# -- the truth


@dataclass
class Truth:
    """The executed branches: ``edges`` (taken branches) and, of conditional branches, ``ways``: taken, executed.

    Both lack the branches that are in ``faulty``."""

    edges: dict[Edge, int] = field(default_factory=dict)
    ways: dict[Place, tuple[int, int]] = field(default_factory=dict)
    faulty: set[Place] = field(default_factory=set)
    executed: dict[Place, int] = field(default_factory=dict)
    """Instructions."""

    @property
    def left_out(self) -> float:
        """Executions of faulty branches, as a share of all conditional ones."""
        bad = sum(self.executed.get(place, 0) for place in self.faulty)
        return bad / max(bad + sum(total for _, total in self.ways.values()), 1)


def truth(program: Program) -> Truth:
    """Run ``program`` by callgrind, unless that was done."""
    kept = program.folder / f"{program.name}.callgrind"
    if not kept.exists():
        _count(program, kept)
    executed, edges = Counter[Place](), Counter[Edge]()
    for path in kept.iterdir():
        _read(path, executed, edges)
    return _checked(executed, edges)


def _count(program: Program, folder: Path) -> None:
    """Make ``folder`` with a file of callgrind for each process."""
    unfinished = folder.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    command = [
        "valgrind",
        "--tool=callgrind",
        "--dump-instr=yes",
        "--dump-line=no",
        "--collect-jumps=yes",
        "--skip-plt=no",
        "--compress-strings=no",
        "--compress-pos=no",
        "--trace-children=yes",
        f"--callgrind-out-file={unfinished}/%p",
    ]
    subprocess.run(
        [*command, *program.words(program.passes)],
        cwd=program.folder,
        env=_ENVIRONMENT,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    unfinished.rename(folder)


_JUMP = re.compile(r"(?:jump=(\d+)|jcnd=(\d+)/\d+|calls=(\d+)) 0x([0-9a-f]+)")


def _read(path: Path, executed: Counter[Place], edges: Counter[Edge]) -> None:
    """Add up one file of callgrind (its manual, chapter 'Callgrind Format Specification')."""
    module = target_module = ""
    jump: tuple[int, Place] | None = None
    with path.open() as lines:
        for line in lines:
            if line.startswith("0x"):
                address, _, count = line.partition(" ")
                place = module, int(address, 16)
                if jump is not None:
                    edges[place, jump[1]] += jump[0]
                    jump = None
                elif count.strip():
                    executed[place] += int(count)
            elif found := _JUMP.match(line):
                taken, conditional, calls, to = found.groups()
                where = target_module or module
                jump = int(taken or conditional or calls), (where, int(to, 16))
                target_module = ""
            elif line.startswith("ob="):
                module = os.path.realpath(line[3:].strip())
            elif line.startswith("cob="):
                target_module = os.path.realpath(line[4:].strip())


class _Binary:
    """Decodes the instructions of a module."""

    def __init__(self, path: str) -> None:
        source = File(path)
        image = read_image(source)
        self._code, self._decoder = Code(source, image), Decoder("x86_64")
        self._stubs = [(s.vaddr, s.vaddr + s.size) for s in image.linkage_stubs]
        self._known: dict[int, tuple[int, int]] = {}

    def at(self, address: int) -> tuple[int, int]:
        """(length, branch type) of the instruction at ``address``."""
        if address not in self._known:
            window = self._code.read(address, 16)
            first = next(iter(self._decoder.lines(window, address)), None) if window else None
            self._known[address] = (first.length, first.kind) if first else (0, 0)
        return self._known[address]

    def is_stub(self, address: int) -> bool:
        return any(low <= address < high for low, high in self._stubs)


@cache
def _binary(module: str) -> _Binary | None:
    """``None`` if there is no file."""
    try:
        return _Binary(module)
    except (OSError, LastbranchError):
        return None


def _compared_at(place: Place) -> bool:
    """Whether branches from or to there are compared."""
    binary = _binary(place[0])
    return binary is not None and not binary.is_stub(place[1])


def _checked(executed: Counter[Place], edges: Counter[Edge]) -> Truth:
    """Leave out callgrind's faults: branches at instructions whose incoming counts differ from their executions."""
    branches: dict[Edge, int] = {}
    left, came = Counter[Place](), Counter[Place]()
    for (source, target), count in edges.items():
        binary = _binary(source[0])
        if binary is None or binary.at(source[1])[1] == 0:  # an instruction that repeats itself
            continue
        left[source] += count
        came[target] += count
        if binary.at(source[1])[1] != KIND["ret"]:
            branches[source, target] = count
    following: dict[Place, Place] = {}
    """Instruction -> the next instruction in address order."""
    for (module, address), count in executed.items():
        binary = _binary(module)
        if binary is None:
            continue
        length, kind = binary.at(address)
        if kind in (KIND["uncond"], KIND["ind"], KIND["ret"]):
            continue
        follows = module, address + length
        following[module, address] = follows
        # a call returns to the instruction after it
        came[follows] += count - (left[module, address] if kind == KIND["cond"] else 0)
    odd = {place: came[place] - executed[place] for place in came}
    found = Truth(executed=dict(executed))
    targets = defaultdict[Place, list[Place]](list)
    for source, target in branches:
        targets[source].append(target)
    for source, where in targets.items():
        checked = [*where, *([following[source]] if source in following else [])]
        if any(abs(odd[place]) > _TOLERATED * executed[source] for place in checked):
            found.faulty.add(source)
    for (source, target), count in branches.items():
        if source not in found.faulty and _compared_at(source) and _compared_at(target):
            found.edges[source, target] = count
    for (module, address), count in executed.items():
        binary = _binary(module)
        if binary and binary.at(address)[1] == KIND["cond"] and (module, address) not in found.faulty:
            found.ways[module, address] = left[module, address], count
    return found


# -- what was recorded


@dataclass
class Observed:
    """The contents of a recording: each recorded branch, and how often conditional branches were passed."""

    edges: list[Edge]
    edge: NDArray[np.int64]
    """Index in ``edges`` of each record, in the order of the recording, oldest of a burst first."""
    burst: NDArray[np.int64]
    """Number of its burst."""
    passed: list[tuple[Place, int, int]]
    """Distinct fall-through ranges: start, address of the end, count."""

    @property
    def bursts(self) -> int:
        return int(self.burst[-1]) + 1 if len(self.burst) else 0


def record(program: Program, seconds: float, options: Sequence[str] = (), name: str = "") -> Path:
    """Record ``program``, which runs about ``seconds``, unless that was done; the file."""
    output = program.folder / f"{program.name.replace(' ', '-')}{name}.tb5"
    if not output.exists():
        passes = max(round(seconds / _one_pass(program)), 1)
        command = [sys.executable, "-m", "lastbranch", "record", "--engine", "software", "-o", str(output), *options]
        subprocess.run(
            [*command, "--", *program.words(passes)],
            cwd=program.folder,
            env=_ENVIRONMENT,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return output


def _one_pass(program: Program) -> float:
    """CPU seconds of one more pass, which a busy machine does not change."""
    took = []
    for passes in (program.passes, 2 * program.passes):
        begun = os.times()
        subprocess.run(
            program.words(passes),
            cwd=program.folder,
            env=_ENVIRONMENT,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ended = os.times()
        took.append(sum(ended[2:4]) - sum(begun[2:4]))  # of children
    return max(took[1] - took[0], took[1] / 4) / program.passes


def observed(profile: Profile) -> Observed:
    """The bursts of a recording. Records with the same thread and time belong to the same burst."""
    binder, names = profile.binder, [os.path.realpath(module.name) for module in profile.modules]
    keys: dict[tuple[int, int, int, int], int] = {}
    edge, burst, before, number = [], [], (-1, -1), -1
    for stream in profile.streams:
        for batch in stream.batches():
            if BRANCH not in batch.offsets or not batch.entries:
                continue
            offsets, scope = batch.offsets[BRANCH], binder.scopes(batch)
            of = np.repeat(np.arange(len(batch)), np.diff(offsets))
            from_module, source = binder.locate(scope[of], batch["branch_from"])
            to_module, target = binder.locate(scope[of], batch["branch_to"])
            kept = ~np.isin(branch_type(batch["branch_flags"]), _RETURNS)
            rows = zip(from_module.tolist(), source.tolist(), to_module.tolist(), target.tolist(), strict=True)
            ids = [keys.setdefault(row, len(keys)) for row in rows]
            for sample in range(len(batch)):
                now = int(batch.tid[sample]), int(batch.time[sample])
                number += now != before
                before = now
                for i in range(int(offsets[sample + 1]) - 1, int(offsets[sample]) - 1, -1):
                    if kept[i]:
                        edge.append(ids[i])
                        burst.append(number)
    edges = [((names[a], b), (names[c], d)) for a, b, c, d in keys]
    table = ranges(profile)
    rows = zip(table.module.tolist(), table.start.tolist(), table.end.tolist(), table.count.tolist(), strict=True)
    passed = [((names[m], start), end, count) for m, start, end, count in rows]
    return Observed(edges, np.array(edge, np.int64), np.array(burst, np.int64), passed)


# -- comparing


def overlap(truth: Truth, counts: Mapping[Edge, float]) -> float:
    """The sum of the smaller of the true and the recorded share, from 0 to 1."""
    kept = compared(truth, counts)
    total, recorded = sum(truth.edges.values()), sum(kept.values())
    return sum(min(truth.edges.get(edge, 0) / total, count / recorded) for edge, count in kept.items())


def compared(truth: Truth, counts: Mapping[Edge, float]) -> dict[Edge, float]:
    """The recorded branches that the truth knows about, or should."""
    return {
        (source, target): count
        for (source, target), count in counts.items()
        if source not in truth.faulty and _compared_at(source) and _compared_at(target)
    }


def hottest(truth: Truth, counts: Mapping[Edge, float], number: int) -> int:
    """How many of the hottest true branches are among the hottest recorded ones."""
    true, recorded = Counter(truth.edges), Counter(compared(truth, counts))
    return len({e for e, _ in true.most_common(number)} & {e for e, _ in recorded.most_common(number)})


def ways_error(truth: Truth, counts: Mapping[Edge, float], passed: Sequence[tuple[Place, int, float]]) -> float:
    """The mean absolute error of the probabilities of conditional branches, weighted by true executions; NaN: none."""
    taken = defaultdict[Place, float](float)
    for (source, _), count in counts.items():
        taken[source] += count
    sites = defaultdict[str, list[int]](list)
    for module, address in truth.ways:
        sites[module].append(address)
    straight = defaultdict[Place, float](float)
    sorted_sites = {module: np.sort(np.array(addresses)) for module, addresses in sites.items()}
    for (module, start), end, count in passed:
        if module in sorted_sites:
            low, high = np.searchsorted(sorted_sites[module], (start, end))
            for address in sorted_sites[module][low:high].tolist():
                straight[module, address] += count
    error = weight = 0.0
    for site, (yes, executions) in truth.ways.items():
        seen = taken[site] + straight[site]
        if seen and executions:
            error += executions * abs(taken[site] / seen - yes / executions)
            weight += executions
    return error / weight if weight else float("nan")


def noise(truth: Truth, recorded: Observed, draws: int = _DRAWS) -> float:
    """The standard deviation of the overlap over bursts drawn again."""
    chance = np.random.default_rng(1)
    kept = compared(truth, dict.fromkeys(recorded.edges, 1.0))
    share = np.array([truth.edges.get(edge, 0) for edge in recorded.edges]) / sum(truth.edges.values())
    use = np.array([edge in kept for edge in recorded.edges])
    found = []
    for _ in range(draws):
        times = np.bincount(chance.integers(0, recorded.bursts, recorded.bursts), minlength=recorded.bursts)
        counts = np.bincount(recorded.edge, times[recorded.burst], len(recorded.edges)) * use
        found.append(np.minimum(share, counts / counts.sum()).sum())
    return float(np.std(found))


def counts_of(recorded: Observed) -> dict[Edge, float]:
    counts = np.bincount(recorded.edge, minlength=len(recorded.edges)).tolist()
    return dict(zip(recorded.edges, counts, strict=True))


# -- the table


@dataclass(frozen=True)
class Nearness:
    """How near counts are to the truth."""

    overlap: float
    top_10: int
    top_50: int
    ways: float

    @classmethod
    def of(cls, true: Truth, counts: Mapping[Edge, float], passed: Sequence[tuple[Place, int, float]]) -> Nearness:
        tops = (hottest(true, counts, number) for number in (10, 50))
        return cls(overlap(true, counts), *tops, ways_error(true, counts, passed))

    def cells(self) -> tuple[str, ...]:
        return f"{self.overlap:.1%}", str(self.top_10), str(self.top_50), f"{self.ways:.2%}"


@dataclass(frozen=True)
class Figures:
    program: str
    bursts: int
    branches: int
    observed: Nearness
    noise: float
    estimated: Nearness | None
    """``None`` where nothing was estimated."""
    moved: float | None
    estimate_noise: float | None
    used: bool
    """Whether `estimate_executions` replaces counts by the estimate."""
    left_out: float
    """Share of the true executions of conditional branches that are not compared."""

    def cells(self) -> tuple[str, ...]:
        estimated = self.estimated.cells() if self.estimated else ("", "", "", "")
        moved = [f"{one:.1%}" if one is not None else "" for one in (self.moved, self.estimate_noise)]
        return (
            self.program,
            str(self.bursts),
            str(self.branches),
            *self.observed.cells(),
            f"{self.noise:.1%}",
            *estimated,
            *moved,
            "yes" if self.used else "no",
            f"{self.left_out:.1%}",
        )


def figures(program: Program, recording: Path) -> Figures:
    true, profile = truth(program), open_profile(str(recording))
    recorded, used = observed(profile), estimate_executions(profile).replaced
    with mock.patch.object(markov_chain, "CLEARLY", 0.0):  # to see what is refused, too
        estimate = estimate_executions(profile)
    estimated = Nearness.of(true, *executions(profile, estimate)) if estimate.replaced else None
    return Figures(
        program.name,
        recorded.bursts,
        len(recorded.edge),
        Nearness.of(true, counts_of(recorded), recorded.passed),
        noise(true, recorded),
        estimated,
        estimate.moved,
        estimate.noise,
        used,
        true.left_out,
    )


def executions(profile: Profile, estimate: Estimate) -> tuple[dict[Edge, float], list[tuple[Place, int, float]]]:
    """The branches and ranges of a recording by the executions that are estimated."""
    names = [os.path.realpath(module.name) for module in profile.modules]
    taken, passed = branches(profile, estimate=estimate), ranges(profile, estimate=estimate)
    taken = taken.take((taken.from_module >= 0) & (taken.to_module >= 0) & ~np.isin(taken.type, _RETURNS))
    columns = (taken.from_module, taken.from_address, taken.to_module, taken.to_address, taken.count)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    counts = {((names[a], b), (names[c], d)): float(count) for a, b, c, d, count in rows}
    columns = (passed.module, passed.start, passed.end, passed.count)
    spans = zip(*(column.tolist() for column in columns), strict=True)
    return counts, [((names[module], start), end, count) for module, start, end, count in spans]


def main() -> None:
    parser = argparse.ArgumentParser(description="Recordings against what was executed.")
    parser.add_argument("--seconds", type=float, default=20, help="how long each program runs, about")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", nargs="+", metavar="PROGRAM")
    which.add_argument("--untuned", action="store_true", help="programs that the recorder was not tuned with")
    parser.add_argument("--folder", type=Path, help="keep programs, truths and recordings here")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    parser.add_argument("options", nargs="*", help="for `lastbranch record`")
    arguments = parser.parse_args()
    about = machine()
    print("  ".join(f"{key}: {value}" for key, value in about.items()))
    with tempfile.TemporaryDirectory() as name:
        folder = (arguments.folder or Path(name)).resolve()
        folder.mkdir(exist_ok=True)
        rows = []
        for program in programs(folder, arguments.only, untuned=arguments.untuned):
            rows.append(figures(program, record(program, arguments.seconds, arguments.options)))
            print(f"{'  '.join(rows[-1].cells())}", file=sys.stderr, flush=True)
    near = ("edges", "top 10", "top 50", "ways")
    head = (
        "",
        "bursts",
        "branches",
        *near,
        "noise",
        *(f"est. {name}" for name in near),
        "moved",
        "its noise",
        "used",
        "not compared",
    )
    print(columns([head, *(row.cells() for row in rows)]))
    given = [(row.estimated if row.estimated and row.used else row.observed).overlap for row in rows]
    mean = sum(row.observed.overlap for row in rows) / len(rows)
    print(f"mean of edges: {mean:.1%} observed, {sum(given) / len(rows):.1%} with estimates where they are used")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": about, "rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
