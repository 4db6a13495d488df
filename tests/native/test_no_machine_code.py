"""The package is source text: compiled code is built from C, and comes neither as a file nor as digits in one."""

from __future__ import annotations

import ast
import base64
import re
from pathlib import Path

import pytest

import lastbranch
from lastbranch.native import build

PACKAGE = Path(lastbranch.__file__).parent
BINARIES = {
    "demo/capture.perf.data", "demo/symfs/opt/lbrdemo/lbrdemo", "demo/symfs/opt/lbrdemo/liblbrdemo.so",
}  # fmt: skip
"""What the demo opens. The program in them is read, never executed."""
EXECUTES = {"capture/software/self_check.py", "native/run_ahead.c"}
"""The start-up test of the engines runs a program of 46 or 52 bytes, listed instruction by instruction, in a child.
Running ahead executes instructions of the recorded program, on copies of what they read."""

_CONTROL = re.compile(r"[\0-\x08\x0e-\x1f\x7f]")
_DIGITS = {
    "hexadecimal": re.compile(r"""(?:(?:\\x|0x)?[0-9a-fA-F]{2}[\s,"']*){48}"""),
    "decimal": re.compile(r"(?:\b\d{1,3}\b[\s,]+){48}"),
    "base64": re.compile(r"[A-Za-z0-9+/]{100}"),
}
_MOST_BYTES = 48
"""Of a bytes literal, outside ASCII."""


def found_in(content: bytes, suffix: str) -> str:
    """What in a file looks like machine code; empty where nothing does."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "binary"
    if _CONTROL.search(text):
        return "binary"
    for kind, pattern in _DIGITS.items():
        if found := pattern.search(text):
            return f"{kind}: {found[0][:40]}"
    if suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, bytes) and sum(not 31 < byte < 127 for byte in value) > _MOST_BYTES:
                return f"bytes: {value[:20]!r}"
    return ""


def files() -> dict[str, Path]:
    """The files of the package by name, without what is built from them."""
    built = re.compile(rf"{build.NAME}\.|__pycache__")
    return {
        str(path.relative_to(PACKAGE)): path
        for path in PACKAGE.rglob("*")
        if path.is_file() and not built.search(str(path.relative_to(PACKAGE)))
    }


def test_no_file_of_the_package_has_machine_code() -> None:
    suspicious = {name: found_in(path.read_bytes(), path.suffix) for name, path in files().items()}
    assert {name for name, why in suspicious.items() if why} == BINARIES, suspicious


def test_no_memory_is_made_executable() -> None:
    words = re.compile(rb"\bPROT_EXEC\b|\bPAGE_EXECUTE")
    found = {name for name, path in files().items() if name not in BINARIES and words.search(path.read_bytes())}
    assert found == EXECUTES


_CODE = (Path(ast.__file__).read_bytes()[:256], bytes(range(256)))


@pytest.mark.parametrize("code", _CODE, ids=["ASCII", "any bytes"])
@pytest.mark.parametrize(
    "form",
    [
        lambda code: code.hex(),
        lambda code: code.hex(" ").upper(),
        lambda code: ", ".join(f"0x{b:02x}" for b in code),
        lambda code: "".join(f"\\x{b:02x}" for b in code),
        lambda code: ", ".join(map(str, code)),
        lambda code: "\n".join(f'    "{code[i : i + 16].hex()}"' for i in range(0, len(code), 16)),
        lambda code: base64.b64encode(code).decode(),
    ],
)
def test_code_in_digits_is_found(form, code: bytes) -> None:  # type: ignore[no-untyped-def]
    assert found_in(f"CODE = (\n{form(code)}\n)\n".encode(), ".txt")


def test_code_in_bytes_is_found() -> None:
    assert found_in(_CODE[1], ".bin") == "binary"
    assert found_in(f"CODE = {_CODE[1]!r}".encode(), ".py")
    assert not found_in(b"CODE = bytes.fromhex('b907000000' 'f6c101')", ".py")
