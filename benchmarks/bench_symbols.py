"""How long does it take to name 100,000 addresses of a 150 MB C++ program?

    python benchmarks/bench_symbols.py [--rounds 3] [--binary FILE] [--json FILE]

The targets are 4 s with nothing kept from before, and 0.3 s from the cache. Each row is a whole process, which starts,
finds the program's files, and gets names, lines and inline chains as columns from the cache or the worker; with
``texts`` the process also makes texts of all functions' names. The peer is llvm-symbolizer, which gets the same
addresses and prints its results, in one run. The program is built by g++ in /tmp/lbbench/symbols the first time, which
takes some ten minutes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from lastbranch.binaries import read_image
from lastbranch.binaries.image import SegmentFlags
from lastbranch.model import BytesSource
from measure import Command, machine, run_once, run_rounds, summarise, table, version_of, write_json
from symbols_program import build

ADDRESSES = 100_000
FOLDER = Path("/tmp/lbbench/symbols")

OURS = """
import sys
import numpy as np
from lastbranch.binaries import read_image
from lastbranch.model import Module, Profile, Segment
from lastbranch.symbols import Symbolizer, SymbolOptions
from lastbranch.binaries.files import File

path, addresses, backend, cache, texts = sys.argv[1:]
image = read_image(File(path))
segments = tuple(Segment(s.vaddr, s.offset, s.file_size, bool(s.flags & 1)) for s in image.segments)
module = Module(path, build_id=image.build_id or b"", segments=segments, binary=path)
options = SymbolOptions(backend=backend, cache=cache or None)
with Symbolizer(Profile("bench", "perf.data", modules=[module]), options) as symbolizer:
    names = symbolizer.names(0, np.fromfile(addresses, np.uint64))
    known = int((names.function >= 0).sum())
    shown = sum(len(f.shown) for f in names.functions) if texts else 0
print(known, "of", len(names), "named,", len(names.frame_line), "frames,", len(names.functions), "functions",
      *symbolizer.notes)
sys.exit(known < 0.9 * len(names))
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
        cache = folder / "cache"
        cache.mkdir(0o700)
        commands = []
        for backend in options.backends.split(","):
            for what, kept, texts in (("cold", "", ""), ("kept", str(cache), ""), ("kept, texts", str(cache), "1")):
                argv = [sys.executable, "-c", OURS, str(path), str(folder / "addresses.bin"), backend, kept, texts]
                commands.append(Command(f"lastbranch {backend}, {what}", argv, folder / f"{backend}{what}.log"))
            run_once(commands[-1])  # fills the cache
        peers = []
        if shutil.which("llvm-symbolizer-19"):
            line = f"exec llvm-symbolizer-19 --output-style=JSON -e {path} < {words} > /dev/null"
            peers = [Command("llvm-symbolizer-19", ["sh", "-c", line], folder / "llvm.log")]
        runs = {**run_rounds(commands, options.rounds), **run_rounds(peers, 1)}
        rows = []
        for command in [*commands, *peers]:
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
