"""The suite with other versions of packages than those of ``requirements/``: ``python try_versions.py lowest|newest``.

``lowest`` takes the lowest version of each requirement of pyproject.toml, on the oldest Python: lower bounds that are
not true fail there. ``newest`` takes what an installation of today gets, on each Python that is found: by its name on
the PATH, or among pyenv's. Each has an environment of its own, which uv makes anew. The other words are pytest's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from lock_requirements import PYTHONS, ROOT

RESOLUTION = {"lowest": "lowest-direct", "newest": "highest"}


def interpreter(version: str) -> str | None:
    """A working Python of this version: some of pyenv's programs of this name do not run."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    for found in (shutil.which(f"python{version}"), *map(str, pyenv)):
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    return None


def suite(kind: str, version: str, python: str, uv: str, words: list[str]) -> int:
    """The exit code of pytest with the ``kind`` of versions."""
    environment = ROOT / f".venv-{kind}-{version}"
    own = str(environment / "bin" / "python")
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", python, environment], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", own, f"--resolution={RESOLUTION[kind]}", "--upgrade"]
    # Developers' tools require higher versions of the package's dependencies, so the package's requirements come last.
    for wanted in (".[dev,arrow]", ".[arrow,fleet,tui]"):
        subprocess.run([*install, "--editable", wanted], cwd=ROOT, check=True)
    return subprocess.run([own, "-m", "pytest", *words], cwd=ROOT).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description="The suite with other versions of packages.")
    parser.add_argument("kind", choices=RESOLUTION)
    parser.add_argument("--uv", required=True, help="the program that chooses and installs versions")
    arguments, words = parser.parse_known_args()
    uv = os.path.abspath(arguments.uv)
    wanted = PYTHONS[:1] if arguments.kind == "lowest" else PYTHONS
    codes = {}
    for version in wanted:
        if python := interpreter(version):
            print(f"Python {version}, {arguments.kind} versions", flush=True)
            codes[version] = suite(arguments.kind, version, python, uv, words)
    for version in wanted:
        code = codes.get(version)
        print(f"Python {version}: {'not found' if code is None else 'passed' if code == 0 else f'failed ({code})'}")
    sys.exit(any(codes.values()) or not codes)


if __name__ == "__main__":
    main()
