"""The LBR recipe end to end on the portable kernel: the example as it stands, and what is in the log that it makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lastbranch
from capture_tools import needs_ptrace
from lastbranch.analysis.checks import check
from lastbranch.etw.portable.lbr_configuration import software_source
from private_registry import registry_at

pytestmark = needs_ptrace

EXAMPLE = Path(__file__).parents[3] / "examples/lbr_recipe.py"
SHORTER = """
import sys
sys.path.insert(0, sys.argv[1])
import lbr_recipe
lbr_recipe.WORKLOAD = f"input()\\nfor round in range({sys.argv[3]}): sum(n % 7 for n in range(100_000))"
sys.exit(lbr_recipe.main([sys.argv[2]]))
"""
TRIES = (40, 320, 1280)
"""Rounds of the workload: more of them where a loaded machine gave no sample."""
MISSING_RIGHTS = "(code 1314)"


def run(folder: Path, rounds: int) -> subprocess.CompletedProcess[str]:
    """The example with a workload of ``rounds`` and a registry of its own."""
    words = [sys.executable, "-c", SHORTER, str(EXAMPLE.parent), str(folder / "one.etl"), str(rounds)]
    with registry_at(folder / "etw"):
        return subprocess.run(words, capture_output=True, text=True, timeout=240)


def test_the_page_s_own_program(tmp_path: Path) -> None:
    """Line by line, and one call more: with source 65 it records what it starts."""
    if not software_source():
        pytest.skip("the processor records branches itself")
    with registry_at(tmp_path / "etw"):
        words = [sys.executable, str(EXAMPLE.with_name("configure_lbr.py"))]
        for _ in range(3):
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
            if os.geteuid() and done.returncode == 1:
                pytest.skip("events of processes need a right")
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            profile = lastbranch.open(tmp_path / "LbrProfile.etl")
            if profile.samples:
                break
            (tmp_path / "LbrProfile.etl").unlink()
    assert profile.entries > profile.samples > 0
    assert "SoftwareBranches" in {event.name for event in profile.events}
    names = {finding.name for finding in check(str(tmp_path / "LbrProfile.etl"))}
    assert not names & {"no targets", "trigger off", "pmc without lbr"}


def test_the_recipe(tmp_path: Path) -> None:
    for rounds in TRIES:
        done = run(tmp_path, rounds)
        if done.returncode == 1 and MISSING_RIGHTS in done.stderr:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        assert "read it with: lastbranch report" in done.stdout
        assert done.stderr == ""
        profile = lastbranch.open(tmp_path / "one.merged.etl")
        if profile.samples:
            break
        (tmp_path / "one.etl").unlink()
        (tmp_path / "one.merged.etl").unlink()
    assert profile.entries >= profile.samples > 0
    assert [event.name for event in profile.events if event.name == "SoftwareBranches"]
    assert ", 0 events lost" in done.stdout
    assert [f for f in check(str(tmp_path / "one.merged.etl")) if f.severity == "error"] == []
    hot = lastbranch.branches(profile)
    named = [m for m in set(hot.from_module.tolist()) if m >= 0]
    assert any("python" in profile.modules[m].name for m in named)
