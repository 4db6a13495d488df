"""Programs with pseudo probes, and what llvm-profgen says of them."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

from export_tools import tool
from lastbranch.binaries.pseudo_probes import Probes, guid, read_probes
from lastbranch.binaries.sections import open_binary

SOURCE = Path(__file__).parent.parent / "programs" / "probed.c"
_KINDS = ("Block", "IndirectCall", "DirectCall")


def built(source: Path, out: Path, *flags: str) -> Path:
    """``source`` compiled with probes and frame pointers."""
    compiler = tool("clang++-19" if source.suffix == ".cc" else "clang-19")
    # The names of static functions have a hash of the path that is given in them.
    subprocess.run(
        [
            compiler,
            "-g",
            "-fpseudo-probe-for-profiling",
            "-fno-omit-frame-pointer",
            "-mno-omit-leaf-frame-pointer",
            *(flags or ("-O2",)),
            "-o",
            out,
            source.name,
        ],
        cwd=source.parent,
        check=True,
    )
    return out


def symbols(program: Path) -> dict[int, int]:
    """The address of each symbol, by the GUID of its name."""
    listing = subprocess.run([tool("nm"), program], capture_output=True, text=True, check=True).stdout
    words = [w for w in map(str.split, listing.splitlines()) if len(w) == 3]
    return {guid(name): int(at, 16) for at, _, name in words}


def probes_of(program: Path) -> Probes:
    """Its probes as the package reads them."""
    found = read_probes(open_binary(str(program)), symbols(program))
    assert found is not None
    return found


def shown(program: Path) -> tuple[list[tuple[int, str, int, int, str, str]], dict[int, tuple[str, int]]]:
    """llvm-profgen's (probes at instructions, in order; functions by GUID) of ``program``."""
    text = _disassembled(program)
    probe = re.compile(
        r" \[Probe\]:\tFUNC: (\S+) Index: (\d+)  (?:Discriminator: (\d+)  )?Type: (\w+)  (?:Inlined: @ (.*))?"
    )
    found, waiting = [], list[tuple[str, int, int, str, str]]()
    for line in text.splitlines():
        if m := probe.fullmatch(line):
            waiting.append((m[1], int(m[2]), int(m[3] or 0), m[4], m[5] or ""))
        elif at := re.match(r" *([0-9a-f]+):\t", line):
            found += [(int(at[1], 16), *one) for one in waiting]
            waiting = []
    heads = re.findall(r"^GUID: (\d+) Name: (\S+)\nHash: (\d+)$", text, re.M)
    return found, {int(number): (name, int(checksum)) for number, name, checksum in heads}


def read(probes: Probes) -> list[tuple[int, str, int, int, str, str]]:
    """``probes`` as `shown` has them."""

    def context(node: int) -> str:
        calls = list[str]()
        while (parent := probes.parents[node]) >= 0:
            calls.append(f"{name(parent)}:{probes.sites[node]}")
            node = parent
        return " @ ".join(reversed(calls))

    def name(node: int) -> str:
        return probes.descriptors[probes.guids[node]].name

    columns = (probes.address, probes.index, probes.discriminator, probes.kind, probes.node)
    rows = zip(*(c.tolist() for c in columns), strict=True)
    found = [(at, name(node), index, d, _KINDS[kind], context(node)) for at, index, d, kind, node in rows]
    return sorted(found, key=lambda row: row[0])


@cache
def _disassembled(program: Path) -> str:
    command = [tool("llvm-profgen-19"), f"--binary={program}", "--show-disassembly-only", "--show-pseudo-probe"]
    return subprocess.run([*command, "--output=/dev/null"], capture_output=True, text=True, check=True).stdout
