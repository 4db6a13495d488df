"""Compile src/lastbranch/capture/native/walk.c into walk.bin beside it.

    python tests/tools/make_walk.py

Needs gcc, nm and objcopy. The instructions must be position-independent: no data, no relocations.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "src/lastbranch/capture/native"
SOURCE, MADE = NATIVE / "walk.c", NATIVE / "walk.bin"
_FLAGS = [
    "-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-march=x86-64", "-fPIC", "-ffreestanding", "-fno-builtin",
    "-fno-strict-aliasing", "-mgeneral-regs-only", "-fno-jump-tables", "-fno-tree-loop-distribute-patterns",
    "-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-fcf-protection=none", "-fno-ident",
]  # fmt: skip
_FUNCTIONS = ("calls", "walk")


def compiler() -> str:
    """The compiler, on which the bytes depend besides the source."""
    return _said("gcc", "--version").splitlines()[0]


def build() -> tuple[bytes, dict[str, int]]:
    """The instructions, and the offset of each function."""
    with tempfile.TemporaryDirectory() as name:
        linked, text = Path(name, "walk.o"), Path(name, "walk.text")
        subprocess.run(["gcc", *_FLAGS, "-c", "-o", linked, SOURCE], check=True)
        symbols = {words[2]: int(words[0], 16) for words in map(str.split, _said("nm", linked).splitlines())}
        if "RELOCATION" in _said("objdump", "-r", linked):
            raise SystemExit("walk.c needs relocations")
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", linked, text], check=True)
        return text.read_bytes(), {function: symbols[function] for function in _FUNCTIONS}


def made() -> bytes:
    """The content of walk.bin."""
    code, functions = build()
    offsets = " ".join(f"{name} {functions[name]:#x}" for name in _FUNCTIONS)
    return f"{offsets} {compiler()}\n".encode() + code


def _said(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    MADE.write_bytes(made())
