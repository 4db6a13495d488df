"""Directories of `perf record --threads`: all their files are one capture."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from captures import Data
from lastbranch.opening import open_profile


@pytest.mark.parametrize("file", ["", "data", "data.0", "data.1"])
def test_a_directory_opens_by_any_of_its_files(data: Data, file: str) -> None:
    """perf script prints 1,113 samples of it."""
    profile = open_profile(data.root / "asked" / "t4_perf_threads_dir.data" / file)
    assert (profile.samples, profile.damage, profile.machine.host) == (1113, [], "vm")
    assert sum(len(batch) for batch in profile.batches()) == 1113


def test_a_folder_of_captures_is_none(data: Data, tmp_path: Path) -> None:
    """A file called ``data`` makes no directory of perf: its header says it."""
    shutil.copy(data.path("skl_m7_32deep_branch-4.14"), tmp_path / "data")
    shutil.copy(data.path("simpleperf_32deep_lbrloop"), tmp_path / "other")
    one, other = (open_profile(data.path(n)) for n in ("skl_m7_32deep_branch-4.14", "simpleperf_32deep_lbrloop"))
    assert open_profile(tmp_path).samples == one.samples + other.samples
