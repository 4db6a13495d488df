"""Make src/lastbranch/capture/native/code.py of walk.c, which stands beside it.

    python tests/make_walk.py

Needs gcc, nm and objcopy. The bytes must run wherever they lie: no data, no relocations.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

NATIVE = Path(__file__).parents[1] / "src/lastbranch/capture/native"
SOURCE, MADE = NATIVE / "walk.c", NATIVE / "code.py"
_FLAGS = [
    "-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-march=x86-64", "-fPIC", "-ffreestanding", "-fno-builtin",
    "-fno-strict-aliasing", "-mgeneral-regs-only", "-fno-jump-tables", "-fno-tree-loop-distribute-patterns",
    "-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-fcf-protection=none", "-fno-ident",
]  # fmt: skip
_FUNCTIONS = ("calls", "walk")
_LINE = 56
"""Bytes on a line of text."""


def compiler() -> str:
    """What the bytes depend on beside the source."""
    return _said("gcc", "--version").splitlines()[0]


def build() -> tuple[bytes, dict[str, int]]:
    """The instructions, and where among them each function begins."""
    with tempfile.TemporaryDirectory() as name:
        linked, text = Path(name, "walk.o"), Path(name, "walk.text")
        subprocess.run(["gcc", *_FLAGS, "-c", "-o", linked, SOURCE], check=True)
        symbols = {words[2]: int(words[0], 16) for words in map(str.split, _said("nm", linked).splitlines())}
        if "RELOCATION" in _said("objdump", "-r", linked):
            raise SystemExit("walk.c needs relocations")
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", linked, text], check=True)
        return text.read_bytes(), {function: symbols[function] for function in _FUNCTIONS}


def module() -> str:
    """The text of code.py."""
    code, functions = build()
    lines = [code[at : at + _LINE].hex() for at in range(0, len(code), _LINE)]
    return "\n".join([
        '"""Made of walk.c by tests/make_walk.py; do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        f'__all__ = ["CODE", "COMPILER", {", ".join(f"{name.upper()!r}" for name in _FUNCTIONS)}]'.replace("'", '"'),
        "",
        f'COMPILER = "{compiler()}"',
        *(f"{name.upper()} = 0x{functions[name]:X}" for name in _FUNCTIONS),
        '"""Where the functions begin."""',
        "CODE = bytes.fromhex(",
        *(f'    "{line}"' for line in lines),
        ")",
        "",
    ])  # fmt: skip


def _said(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    MADE.write_text(module())
