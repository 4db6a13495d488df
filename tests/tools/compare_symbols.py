"""Compares the in-tree reader of DWARF with llvm-symbolizer at many addresses of a program.

    python tests/tools/compare_symbols.py [--addresses 100000] [--seed 7] [PROGRAM ...]
    python tests/tools/compare_symbols.py --keep tests/data/symbols.json PROGRAM ...

Function, file, line, column, discriminator and declaration of every frame must be equal; the classes of differences
that are meant are those of ``symbol_programs.agreed``. Without a program, the script compares the programs of
`symbol_programs.PROGRAMS`, and its own Python. Ends with 1 where anything differs, and says where. ``--keep`` writes
what llvm says of every address of code, for tests where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from _pytest.outcomes import Skipped

from symbol_programs import PROGRAMS, Programs, code_addresses, compared, symbolized

PART = 20_000
"""Addresses at a time."""

SHOWN = 10


def compare(path: Path, most: int, seed: int) -> tuple[int, int]:
    """(number of compared addresses, number of different ones) of ``path``; differences are printed."""
    address = code_addresses(path, most, seed)
    differ = 0
    for part in np.array_split(address, max(1, len(address) // PART)):
        for where, ours, theirs in zip(*compared(path, part), strict=True):
            if ours != theirs:
                differ += 1
                if differ <= SHOWN:
                    print(f"{path} {where:#x}\n  lastbranch       {ours}\n  llvm-symbolizer  {theirs}")
    return len(address), differ


def keep(file: Path, programs: list[Path]) -> None:
    """Write the frames of programs: of runs of addresses that have the same ones, the first."""
    kept: dict[str, list[object]] = {}
    for path in programs:
        address = code_addresses(path)
        frames = symbolized(path, address)
        new = [0, *(i for i in range(1, len(frames)) if frames[i] != frames[i - 1])]
        kept[path.name] = [[int(address[i]), frames[i]] for i in new]
    lines = (f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, runs)) + "\n]" for name, runs in kept.items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", type=Path, metavar="PROGRAM")
    parser.add_argument("--addresses", type=int, default=100_000, help="of each program")
    parser.add_argument("--seed", type=int, default=7, help="of their choice")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write what llvm-symbolizer says there")
    options = parser.parse_args()
    if options.keep:
        keep(options.keep, options.programs)
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        programs = Programs(Path(name))
        paths = options.programs
        if not paths:
            paths = [Path(os.path.realpath(sys.executable))]
            for program in PROGRAMS:
                try:
                    paths.append(programs.path(program))
                except Skipped as why:
                    print(why)
        for path in paths:
            count, differ = compare(path, options.addresses, options.seed)
            wrong += differ
            print(f"{path.parent.name}/{path.name}: {count} addresses, {differ} differ", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
