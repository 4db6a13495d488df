"""Programs for Windows, run by wine: structures, names of functions, the privilege, calls that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

import wine_check
from lastbranch.etw.structures import LAYOUTS


def said_rightly() -> list[str]:
    return [f"{name} {field} {number}" for name in LAYOUTS for field, number in wine_check.asked(name).items()]


def test_another_offset_is_noticed() -> None:
    lines = said_rightly()
    assert wine_check.wrong_offsets(lines) == []
    assert len(lines) > 200
    changed = ["EVENT_RECORD UserContext 96" if line.startswith("EVENT_RECORD UserContext") else line for line in lines]
    (wrong,) = wine_check.wrong_offsets(changed)
    assert wrong.startswith("EVENT_RECORD: ")
    (lost,) = wine_check.wrong_offsets([line for line in lines if not line.startswith("ETW_LBR_ENTRY")])
    assert lost.startswith("ETW_LBR_ENTRY: the program says None")


def test_the_programs_ask_for_everything() -> None:
    offsets, calls = wine_check.offsets_program(), wine_check.calls_program()
    assert offsets.count("printf") == len(said_rightly())
    assert calls.count("GetProcAddress") > len(wine_check.FUNCTIONS)
    assert "CreateMergedTraceFile" not in calls  # which only the toolkit has


def test_what_differs_is_a_failure() -> None:
    lines = ["library missing 1 126", "function missing 0 0", "handle 1", "export advapi32.dll StartTraceW 1"]
    found = dict(reversed(row) for row in wine_check.checked_calls(lines))
    assert found["library missing: 1 126"]
    assert not found["function missing: 0 0, not 1 127"]
    assert not found["handle: 1, not 3405660738"]
    assert found["StartTraceW: exported by advapi32.dll"]
    assert not found["CloseTrace: exported by none"]
    assert found["TraceConfigureLastBranchRecord: this wine does not have it"]


def test_another_access_list_is_noticed() -> None:
    said = ["around D:(A;OICI;FA;;;WD)", "0o700 D:(A;OICI;FA;;;SY)", "part D:(A;OICI;FA;;;WD)"]
    said += ["made D:(A;;FA;;;WD)", "left D:(A;;FA;;;WD)"]
    assert [right for right, _ in wine_check.checked_access(said)] == [True] * 3
    assert [right for right, _ in wine_check.checked_access([*said[:-1], "left D:(A;;FA;;;SY)"])] == [True, False, True]
    assert [right for right, _ in wine_check.checked_access([f"{line.split()[0]} ?" for line in said])] == [False] * 3


@pytest.mark.thorough
def test_wine_says_the_same(tmp_path: Path) -> None:
    """Wine's first start takes half a minute: `make windows-check` does this, too."""
    if why := wine_check.missing():
        pytest.skip(why)
    assert wine_check.wrong_offsets(wine_check.run(wine_check.offsets_program(), tmp_path)) == []
    assert all(right for right, _ in wine_check.checked_calls(wine_check.run(wine_check.calls_program(), tmp_path)))
    assert all(right for right, _ in wine_check.checked_access(wine_check.run(wine_check.access_program(), tmp_path)))
    wine_check.stop(tmp_path)
