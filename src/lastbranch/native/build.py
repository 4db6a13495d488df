"""Compile the C sources next to this file into the library that `lastbranch.native` loads.

    python -m lastbranch.native.build [--sanitize]

The build hook (``hatch_build.py``) and the Makefile use this module, which needs only the standard library. ``CC``
names another compiler, with its options: ``CC="python -m ziglang cc -target aarch64-linux-musl"``. ``CFLAGS`` adds
options. ``LASTBRANCH_NATIVE_BUILD`` is ``auto`` (without a compiler there is no library, and NumPy does its work),
``require`` or ``no``.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["BuildError", "build", "compile_library", "compiler"]

HERE = Path(__file__).parent
NAME = "_lastbranch"
FLAGS = ["-std=c11", "-O3", "-g", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall", "-Wextra"]
BY_ENDING = {".so": ["-fPIC"], ".dll": [], ".dylib": ["-fPIC", f"-Wl,-install_name,@rpath/{NAME}.dylib"]}
"""Flags of one platform. Compilers for Windows refuse -fPIC; a .dylib would keep the path under which it was made."""
ENDINGS = {"win32": ".dll", "darwin": ".dylib"}
_SHOWN = 20
"""Lines of a compiler's errors: the first ones say what is wrong, and a compiler of another language finds hundreds."""
SANITIZED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


class BuildError(Exception):
    """The library cannot be compiled, and was required."""


def compiler() -> list[str]:
    """The command of the C compiler: ``$CC``, else the first of cc, gcc, clang and ziglang; empty without one.

    Raises `BuildError` for a ``$CC`` that is no list of words.
    """
    if given := _words("CC"):
        return given
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    return [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else []


def _words(variable: str) -> list[str]:
    value = os.environ.get(variable, "")
    try:
        return shlex.split(value)
    except ValueError as error:
        raise BuildError(f"{variable}={value}: {error}") from error


def sources() -> list[Path]:
    """All sources: each is one concept, and compiled for every platform."""
    return sorted(HERE.glob("*.c"))


def build(platform: str = sys.platform) -> Path | None:
    """Compile the library as ``LASTBRANCH_NATIVE_BUILD`` says; ``None`` where there is none afterwards.

    Older libraries are deleted first, so that none of another platform or version remains. Raises `BuildError`.
    """
    wish = os.environ.get("LASTBRANCH_NATIVE_BUILD") or "auto"
    if wish not in ("auto", "require", "no"):
        raise BuildError(f"LASTBRANCH_NATIVE_BUILD={wish}: use auto, require or no")
    for old in HERE.glob(f"{NAME}.*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    if wish == "no":
        return None
    try:
        return compile_library(HERE / f"{NAME}{ENDINGS.get(platform, '.so')}")
    except BuildError as error:
        if wish == "require":
            raise
        print(f"lastbranch: {error}; NumPy replaces the compiled library", file=sys.stderr)
        return None


def compile_library(output: Path, extra: list[str] | None = None) -> Path:
    """Compile all sources into ``output``, which is replaced at once. Raises `BuildError`."""
    command = compiler()
    if not command:
        raise BuildError("no C compiler was found (cc, gcc, clang or ziglang)")
    number = runpy.run_path(str(HERE / "signatures.py"))["abi"](HERE)
    flags = [
        *FLAGS,
        f"-DLASTBRANCH_ABI={number}u",
        *BY_ENDING[output.suffix],
        *(extra or []),
        *_words("CFLAGS"),
    ]
    try:
        with _folder_in(output.parent) as folder:  # compilers add .pdb and .lib
            part = folder / output.name
            words = [*command, *flags, "-o", str(part), *map(str, sources())]
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                first = "\n".join(done.stderr.splitlines()[:_SHOWN])
                raise BuildError(f"{shlex.join(words)} failed:\n{first}")
            if not part.exists():
                raise BuildError(f"{shlex.join(command)} succeeded, but wrote no library")
            os.replace(part, output)
    except OSError as error:
        raise BuildError(f"{error.filename or command[0]}: {error.strerror}") from error
    return output


@contextmanager
def _folder_in(parent: Path) -> Iterator[Path]:
    """A folder until the end of the block. Not one of `tempfile`: on Windows their files keep an access list without
    other users where they are moved to, so that only whoever installs could load the library."""
    folder = parent / f"{NAME}.{os.urandom(8).hex()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    try:
        if "--sanitize" in sys.argv[1:]:
            print(compile_library(HERE / f"{NAME}{ENDINGS.get(sys.platform, '.so')}", SANITIZED))
        else:
            print(build() or "no library")
    except BuildError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
