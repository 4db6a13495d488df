"""The commands of docs/guides/fleet.md, run as they stand there, in a clean folder; what they promise comes true."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "fleet.md").read_text(encoding="utf-8")
SOURCE = re.findall(r"^```c\n(.*?)^```", PAGE, re.M | re.S)[0]
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, re.M)
pytestmark = pytest.mark.thorough  # other tests hold each command against its captures
NEEDED = ("bash", "clang-19", "valgrind")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of each command."""
    for name in NEEDED:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "bin").mkdir()
    program = folder / "bin" / "lastbranch"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lastbranch "$@"\n')
    program.chmod(0o755)
    (folder / "service.c").write_text(SOURCE)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    found: dict[str, str] = {}
    for command in COMMANDS:
        done = subprocess.run(
            ["bash", "-ec", command], cwd=folder, env=env, capture_output=True, text=True, timeout=300
        )
        if done.returncode == 125 and " record " in command:
            pytest.skip(f"nothing can be recorded here: {done.stderr.strip()}")
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        found[command] = done.stdout + done.stderr
    return found


def of(printed: dict[str, str], words: str) -> str:
    (found,) = (text for command, text in printed.items() if words in command)
    return found


def test_twenty_captures_of_six_builds(printed: dict[str, str]) -> None:
    captures = [line.split()[:2] for line in of(printed, "--by service").splitlines()[1:]]
    assert captures == [["api", "8"], ["billing", "6"], ["search", "6"]]
    assert len(set(re.findall(r"build-id:\w+", of(printed, "--by module")))) == 6
    assert of(printed, "--service all") == "0 captures added, 20 already counted\n"
    assert "0 damaged" in of(printed, "fleet verify")
    assert len(of(printed, "fleet query").splitlines()) == 7


def test_the_new_version_differs_from_the_old_one(printed: dict[str, str]) -> None:
    assert len(re.findall("build-id:", of(printed, "--saturation"))) == 2
    assert "main" in of(printed, "fleet report store --service api")
    assert "differ significantly" in of(printed, "fleet diff")


def share(printed: dict[str, str], words: str) -> float:
    return float(of(printed, words).splitlines()[3].split()[-1])


def test_the_profile_fits_its_version_and_makes_it_faster(printed: dict[str, str]) -> None:
    assert share(printed, "--check api.prof") == 100
    assert share(printed, "--check api-1.prof") < 100
    assert share(printed, "--check api-1.bolt") < 50
    executed = {
        name: int(re.findall(r"guest instrs: +([0-9,]+)", of(printed, f"{name} 3"))[0].replace(",", ""))
        for name in ("2/api", "./api.pgo")
    }
    assert executed["./api.pgo"] < executed["2/api"] * 0.95
