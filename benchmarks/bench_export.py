"""How long does it take from a perf.data with branch stacks to what a compiler or BOLT reads?

    python benchmarks/bench_export.py [--size 1GB] [--rounds 1] [--processes 1] [--only NAME] [--json FILE]

For each consumer, the benchmark compares the tool that reads perf.data by itself with lastbranch's export plus the
consumer's remaining step (`sh -c "export && consumer"`), and with the export alone. It times whole processes, with a
warm page cache, on one capture of `generate.py`. The capture has one process by default, because llvm-profgen counts
only one process; with more, the row of llvm-profgen covers only a part.

`same` compares the two artefacts: equal files, or the number of lines that differ. Profiles by probe are of a capture
of the same program, built by clang with probes. llvm-profgen reads no mispredictions from a capture: it gets the
generator's sums of mispredictions, so its row has the work on lines alone. By context, llvm-profgen reads text: its row
has the time of perf script and of llvm-profgen. llvm-profgen gets lastbranch's text, because perf script 6.1 prints
file offsets for frames of a position-independent program, and llvm-profgen takes the offsets for addresses. No other
tool here makes `propeller` and `gopgo` from a capture.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from generate import Capture, generate, parse_size
from measure import Command, Row, machine, run_rounds, summarise, table, version_of, write_json
from ours import default_directory
from peers import last_line
from program import CFLAGS


@dataclass(frozen=True)
class Chain:
    """A consumer: the tool alone, and the export that takes its place with the step that is left (if any)."""

    name: str
    export: str
    tools: tuple[str, ...]
    alone: str
    """Command of the tool on the capture, writing {out}."""
    rest: str
    """Command of its remaining step on the exported {text}, writing {out}; empty where the export is what it makes."""
    compiler: tuple[str, ...] = ("gcc",)
    """The compiler of the capture's program."""
    options: tuple[str, ...] = ()
    """Options of the export."""
    chains: bool = False
    """The capture has call chains."""


_BOLT = "/usr/lib/llvm-19/bin/perf2bolt"  # under another name it would rewrite the binary
_PROBED = (
    "clang-19",
    "-fpseudo-probe-for-profiling",
    "-fdebug-info-for-profiling",
    "-Wno-unknown-attributes",
    "-Wno-parentheses-equality",
)
_CHAINS = (
    Chain(
        "create_gcov", "autofdo", ("create_gcov",),
        "create_gcov --binary={binary} --profile={data} --gcov={out} -gcov_version=2",
        "create_gcov --binary={binary} --profiler=text --profile={text} --gcov={out} -gcov_version=2",
    ),
    Chain(
        "create_llvm_prof", "autofdo", ("create_llvm_prof",),
        "create_llvm_prof --binary={binary} --profile={data} --out={out}",
        "create_llvm_prof --binary={binary} --profiler=text --profile={text} --out={out}",
    ),
    Chain(
        "llvm-profgen", "profgen", ("llvm-profgen-19", "perf"),
        "llvm-profgen-19 --binary={binary} --perfdata={data} --format=text --output={out}",
        "llvm-profgen-19 --binary={binary} --unsymbolized-profile={text} --format=text --output={out}",
    ),
    Chain("llvm-profgen (sampleprof)", "sampleprof", ("llvm-profgen-19", "perf"), "", ""),
    Chain(
        "llvm-profgen (probes)", "sampleprof", ("llvm-profgen-19", "perf", "clang-19"),
        "llvm-profgen-19 --binary={binary} --perfdata={data} --format=text --output={out}", "", _PROBED,
    ),
    Chain(
        "llvm-profgen (contexts)", "sampleprof", ("llvm-profgen-19", "perf", "clang-19"),
        'sh -c "perf script --show-mmap-events -F ip,brstack -i {data} >/dev/null && llvm-profgen-19 --binary={binary} '
        '--perfscript={script} --csspgo-preinliner=0 --format=text --output={out}"',
        "", _PROBED, ("--context",), True,
    ),
    Chain(
        "llvm-profgen (mispredictions)", "mispredictions", ("llvm-profgen-19",),
        "llvm-profgen-19 --binary={binary} --unsymbolized-profile={sites} --use-offset=0 --format=text --output={out}",
        "",
    ),
    Chain(
        "perf2bolt", "bolt", (_BOLT, "perf"),
        _BOLT + " -p {data} -o {out} {binary}",
        _BOLT + " -pa -p {text} -o {out} {binary}",
    ),
    Chain(
        "perf2bolt (YAML)", "boltyaml", (_BOLT, "perf"), _BOLT + " -p {data} -o {out}.fdata -w {out} {binary}", "",
    ),
)  # fmt: skip


def _export(capture: Capture, form: str, text: Path, options: tuple[str, ...] = ()) -> str:
    words = [sys.executable, "-m", "lastbranch", "export", capture.perf_data, "--to", form, "--no-progress"]
    words += ["--binary", capture.binary, "--force", "-o", str(text), *options] + (
        ["--no-symbol-cache"] if form in ("sampleprof", "mispredictions") else []
    )
    return shlex.join(words)


def _with_dwarf4(capture: Capture, directory: Path) -> str:
    """The same program with DWARF 4: AutoFDO 0.19 reads nothing of what gcc writes today, and makes empty profiles."""
    binary = directory / "dwarf4" / Path(capture.binary).name
    if not binary.exists():
        binary.parent.mkdir(exist_ok=True)
        command = ["gcc", *CFLAGS, "-gdwarf-4", "-o", str(binary), "program.c"]
        subprocess.run(command, cwd=directory, check=True)
    return str(binary)


def _sites(capture: Capture, path: Path) -> Path:
    """The generator's truth for llvm-profgen: a range of one instruction for each branch that was mispredicted."""
    missed = Counter[str]()
    for line in Path(capture.truth).read_text().splitlines():
        if line.startswith("B "):
            _, _, source, _, _, _, n = line.split()
            missed[source] += int(n)
    rows = sorted(f"{source}-{source}:{n}" for source, n in missed.items() if n)
    path.write_text("\n".join([str(len(rows)), *rows, "0", ""]))
    return path


def _commands(chain: Chain, capture: Capture, directory: Path) -> list[Command]:
    binary = _with_dwarf4(capture, directory) if chain.export == "autofdo" else capture.binary
    names = {"binary": shlex.quote(binary), "data": shlex.quote(capture.perf_data)}
    if "{sites}" in chain.alone:
        names["sites"] = shlex.quote(str(_sites(capture, directory / "sites.txt")))
    if "{script}" in chain.alone:
        names["script"] = shlex.quote(str(directory / "contexts.script.txt"))
        export = _export(capture, "perfscript", directory / "contexts.script.txt")
        subprocess.run(shlex.split(export), check=True, stderr=subprocess.DEVNULL)
    text = directory / f"{chain.name}.{chain.export}.txt"
    peer, ours = directory / f"{chain.name}.peer", directory / f"{chain.name}.ours"
    for path in (text, peer, ours):
        path.unlink(missing_ok=True)
    export = _export(capture, chain.export, text, chain.options)
    commands = []
    if chain.alone:
        line = chain.alone.format(**names, out=shlex.quote(str(peer)))
        commands.append(Command(chain.name, shlex.split(line), directory / f"{chain.name}.log"))
    if chain.rest:
        rest = chain.rest.format(**names, text=shlex.quote(str(text)), out=shlex.quote(str(ours)))
        both = f"{export} && {rest}"
        name = f"lastbranch {chain.export} + {chain.name}"
        commands.append(Command(name, ["sh", "-c", both], directory / f"{chain.name}.both.log"))
    name = f"lastbranch {chain.export} alone"
    commands.append(Command(name, shlex.split(export), directory / f"{chain.name}.export.log"))
    return commands


def _same(one: Path, other: Path) -> str:
    if not one.exists() or not other.exists():
        return "void: no output"
    a, b = one.read_bytes(), other.read_bytes()
    if a == b:
        return "same artefact"
    left, right = Counter(a.split(b"\n")), Counter(b.split(b"\n"))
    differing = max((left - right).total(), (right - left).total())
    return f"{differing} of {left.total()} lines differ" if differing else "same lines in another order"


def _status(chain: Chain, command: Command, directory: Path) -> str:
    peer, ours = directory / f"{chain.name}.peer", directory / f"{chain.name}.ours"
    if command.name == chain.name:
        return f"{peer.stat().st_size} bytes" if peer.exists() else ""
    if chain.export == "boltyaml":
        return "its counts equal those of perf2bolt -w (tests/export/test_boltyaml.py)"
    if chain.alone and not chain.rest:
        return _same(peer, directory / f"{chain.name}.{chain.export}.txt")
    if chain.export == "sampleprof":
        made = directory / f"{chain.name}.sampleprof.txt"
        return _same(directory / "llvm-profgen.ours", made) + " (against llvm-profgen on the same counts)"
    return _same(peer, ours) if "+" in command.name else ""


def _rows(chain: Chain, capture: Capture, directory: Path, rounds: int) -> list[Row]:
    absent = [tool for tool in chain.tools if shutil.which(tool) is None]
    if absent:
        return [Row(chain.name, f"not installed: {', '.join(absent)}")]
    commands = _commands(chain, capture, directory)
    runs = run_rounds(commands, rounds)
    rows = []
    for command in commands:
        failed = next((run.exit_code for run in runs[command.name] if run.exit_code), 0)
        status = f"void: exit code {failed} ({last_line(command.log)})" if failed else ""
        rows.append(summarise(command.name, status or _status(chain, command, directory), runs[command.name]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="From a large perf.data to what compilers read: lastbranch and peers.")
    parser.add_argument("--size", type=parse_size, default=parse_size("1GB"), help="of the perf.data (default 1GB)")
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2, 3), help="in the capture (default 1)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", help="of the chains whose name begins so")
    parser.add_argument("--dir", type=Path, default=default_directory(), help="where captures and outputs are kept")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    arguments = parser.parse_args()
    directory: Path = arguments.dir.resolve()
    capture = generate(directory, arguments.size, arguments.processes)
    chains = [c for c in _CHAINS if not arguments.only or c.name.startswith(arguments.only)]
    about = {"machine": machine(), "capture": asdict(capture)}
    print("  ".join(f"{key}: {value}" for key, value in machine().items()))
    print(version_of([sys.executable, "-m", "lastbranch", "--version"]))
    print(f"{os.path.getsize(capture.perf_data) / 1e6:.0f} MB, {capture.samples} samples, {capture.branches} entries")
    rows: list[Row] = []
    for chain in chains:
        of = capture
        if chain.compiler == _PROBED and all(map(shutil.which, chain.tools)):
            where = directory / "probed"
            of = generate(where, arguments.size, arguments.processes, chain.compiler, chains=chain.chains)
        found = _rows(chain, of, directory, arguments.rounds)
        rows += found
        print(table(found, reference=found[min(len(found), 2) - 1].name), flush=True)
    if arguments.json:
        write_json(arguments.json, about, rows)


if __name__ == "__main__":
    main()
