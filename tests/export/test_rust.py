"""Sample profiles of Rust programs: rustc takes the counts, by the names of both of its manglings."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from export_tools import made_up_stacks, tool

SOURCE = Path(__file__).parent.parent / "programs" / "shapes.rs"


def rustc(mangling: str, *words: str | Path) -> str:
    """The output of rustc. The options of profiles are unstable: each release takes them so."""
    command = [tool("rustc"), "-O", "-g", "-Zunstable-options", f"-Csymbol-mangling-version={mangling}", *words, SOURCE]
    environment = {**os.environ, "RUSTC_BOOTSTRAP": "1"}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment)
    if "unknown unstable option" in done.stderr:
        pytest.skip("this rustc has other options for profiles")
    if "rustup could not choose" in done.stderr:
        pytest.skip("rustc is rustup's, which has no compiler for this user")
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("mangling", ["v0", pytest.param("legacy", marks=pytest.mark.thorough)])
def test_rustc_takes_the_counts(run, tmp_path: Path, mangling: str) -> None:
    program = tmp_path / "shapes"
    rustc(mangling, "-Zdebug-info-for-profiling", "-o", program)
    listing = subprocess.run([tool("nm"), program], capture_output=True, text=True, check=True).stdout.split()
    others = tuple(name for name in listing if not re.search(r"6shapes.*3(mix|sum)", name))
    (tmp_path / "capture.txt").write_text(made_up_stacks(program, without=others))
    made = tmp_path / "x.prof"
    done = run("export", tmp_path / "capture.txt", "--to", "sampleprof", "--binary", program, "-o", made)
    assert done.code == 0, done.err
    text = made.read_text()
    said = rustc(mangling, f"-Zprofile-sample-use={made}", "-Cremark=all", "-o", tmp_path / "shapes.pgo")
    applied = re.findall(r"shapes\.rs:\d+:\d+ sample-profile-impl .*Applied (\d+) samples .*offset: (\d+)\)", said)
    head = re.search(r"^\S*6shapes\S*3mix\S*:\d+:\d+\n((?: .*\n)*)", text, re.M)
    assert head is not None, text
    counts = {(count, offset) for offset, count in re.findall(r"^ (\d+): ([1-9]\d*)", head[1], re.M)}
    assert counts & set(applied)
