"""`check` finds in a .tb5 what it found in the Windows trace that this was made of, whose events are gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from captures import Data
from command_line import Ran
from etl_event_logs import BIND, PMC, sampled, session, write
from lastbranch.formats.tb5.profile_writer import write_profile
from lastbranch.model import Profile
from lastbranch.opening import open_profile

_LARGEST = 3 << 20
BROKEN = {
    "nothing": session(*sampled(10)),
    "pmc off": session(start=(BIND, 0)),
    "pmc lost": session(*sampled(10), end=(BIND, 0)),
    "masks overwritten": session(*sampled(10), end=(0, PMC)),
    "no ranges": session(*sampled(10, options=0x8)),
    "damage": bytes(session(*(one for i in range(100) for one in sampled(i))))[:-3000],
}


def assert_same(run: Callable[..., Ran], path: Path, copy: Path) -> str:
    """What `check` prints of both."""
    converted = run("convert", path, copy)
    assert copy.exists(), converted.err
    before, after = run("check", path), run("check", copy)
    assert (after.code, after.out) == (before.code, before.out)
    return before.out


@pytest.mark.parametrize("name", BROKEN)
def test_findings_of_a_log_are_those_of_its_copy(run: Callable[..., Ran], tmp_path: Path, name: str) -> None:
    out = assert_same(run, write(tmp_path, BROKEN[name]), tmp_path / "a.tb5")
    assert (name in out) == (name != "nothing")


def test_findings_of_real_logs(data: Data, run: Callable[..., Ran], tmp_path: Path) -> None:
    logs = [p for p in sorted((data.root.parent / "etl").glob("*.etl")) if p.stat().st_size < _LARGEST]
    found = [assert_same(run, path, tmp_path / f"{path.stem}.tb5") for path in logs]
    assert len(found) > 5
    assert any(found)


def test_a_copy_of_a_copy_and_a_copy_without_findings(run: Callable[..., Ran], tmp_path: Path) -> None:
    path, copy, again = write(tmp_path, BROKEN["pmc off"]), tmp_path / "a.tb5", tmp_path / "b.tb5"
    out = assert_same(run, path, copy)
    assert run("convert", copy, again).code == 0
    assert run("check", again).out == out
    profile: Profile = open_profile(copy)
    profile.findings = [
        ("pmc off", "error", "seen", False),
        ("unknown", "error", "", True),
        ("pmc off", "bad", "", False),
    ]
    write_profile(profile, again)
    assert run("check", again, "--format", "csv").out.count("pmc off") == 1
    profile.findings = None  # nobody looked
    write_profile(profile, again)
    assert "no samples" in run("check", again).out


def test_findings_that_make_no_sense_are_an_error(run: Callable[..., Ran], tmp_path: Path) -> None:
    profile = open_profile(write(tmp_path, BROKEN["pmc off"]))
    for findings in ([("a", "b", 3, True)], [("a", "b", "c")], ["abc"]):
        profile.findings = findings  # type: ignore[assignment]
        write_profile(profile, tmp_path / "a.tb5")
        ran = run("check", tmp_path / "a.tb5")
        assert ran.code == 3
        assert "model tables" in ran.err
