"""How long does it take to name 100,000 addresses of a 150 MB C++ program? The target is 4 s, nothing kept from before.

    python benchmarks/bench_symbols.py [--rounds 3] [--binary FILE] [--json FILE]

A whole process each time: it starts, asks the worker for names, lines and inline chains, and has them as columns.
Beside it llvm-symbolizer and addr2line, which get the same addresses and only print. The program is built by g++ in
/tmp/lbbench/symbols the first time, which takes some ten minutes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from lastbranch.images import SegmentFlags, read_image
from lastbranch.model import BytesSource
from measure import Command, machine, run_rounds, summarise, table, version_of, write_json
from symbols_program import build

ADDRESSES = 100_000
FOLDER = Path("/tmp/lbbench/symbols")

OURS = """
import sys
import numpy as np
from lastbranch.symbols import SymbolOptions
from lastbranch.symbols.client import WorkerClient
from lastbranch.symbols.files import DebugFiles

address = np.fromfile(sys.argv[2], np.uint64)
client = WorkerClient(SymbolOptions(cache=None))
names = client.names(DebugFiles("elf", sys.argv[1]), sys.argv[3], address)
known = int((names.function >= 0).sum())
print(known, "of", len(names), "named,", len(names.frame_line), "frames,", len(names.functions), "functions")
sys.exit(known < 0.9 * len(address))
"""


def chosen(path: Path) -> np.ndarray:
    """Addresses of code, all different, ascending."""
    image = read_image(BytesSource(path.read_bytes(), str(path)))
    code = max((s for s in image.sections if s.flags & SegmentFlags.EXECUTE), key=lambda s: s.size)
    dice = np.random.default_rng(20250117)
    return np.sort(
        dice.choice(code.size, min(ADDRESSES, code.size), replace=False).astype(np.uint64) + np.uint64(code.vaddr)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary", type=Path, help="another program with DWARF")
    parser.add_argument("--backends", default="auto", help="of lastbranch, separated by commas")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    path = options.binary or build(FOLDER)
    address = chosen(path)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        address.tofile(folder / "addresses.bin")
        words = folder / "addresses.txt"
        words.write_text("".join(f"{a:#x}\n" for a in address.tolist()))
        commands = []
        for backend in options.backends.split(","):
            argv = [sys.executable, "-c", OURS, str(path), str(folder / "addresses.bin"), backend]
            commands.append(Command(f"lastbranch {backend}", argv, folder / f"{backend}.log"))
        shell = "exec {} < {} > /dev/null"
        for program, arguments in (("llvm-symbolizer-19", "--output-style=JSON -e"), ("addr2line", "-f -i -e")):
            if shutil.which(program):
                line = shell.format(f"{program} {arguments} {path}", words)
                commands.append(Command(program, ["sh", "-c", line], folder / f"{program}.log"))
        runs = run_rounds(commands, options.rounds)
        rows = []
        for command in commands:
            failed = any(run.exit_code for run in runs[command.name])
            said = command.log.read_text().strip()[-200:]
            rows.append(summarise(command.name, f"void: {said}" if failed else said or "ok", runs[command.name]))
    about = {**machine(), "binary": str(path), "bytes": path.stat().st_size, "addresses": len(address)}
    about["llvm"] = version_of(["llvm-symbolizer-19", "--version"])
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    print(table(rows, rows[0].name))
    if options.json:
        write_json(options.json, about, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
