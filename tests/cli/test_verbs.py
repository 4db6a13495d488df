"""The verbs as calls of the Python API; and the lists of formats agree."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

import lastbranch
from command_line import run_cli
from lastbranch import demo
from lastbranch.analysis.checks import RULES
from lastbranch.errors import SelectionError
from lastbranch.formats.registry import FORMATS, format_of, format_written_to
from lastbranch.opening import open_source


def test_every_format_has_rules_and_the_functions_that_it_names() -> None:
    from lastbranch.formats import registry

    assert [found.name for found in FORMATS] == list(RULES)
    assert [found.name for found in FORMATS if found.checks_events] == [name for name, rules in RULES.items() if rules]
    for found in FORMATS:
        for where in (found.sniffer, found.opener, found.dumper, found.verifier, found.writer, found.rewriter):
            assert where is None or inspect.isfunction(registry._function(where)), where
        assert (found.writer is not None) == bool(found.endings)


def test_names_say_what_is_written() -> None:
    assert [format_written_to(name).name for name in ("a.tb5", "A.TB5", "a.etl", "a")] == ["tb5", "tb5", "etl", "etl"]
    with pytest.raises(SelectionError, match=r"not to \.data"):
        format_written_to("a.data")


@pytest.mark.parametrize("ending", [".tb5", ".etl"])
def test_convert_is_the_verb(ending: str, tmp_path: Path) -> None:
    capture, made, printed = demo.capture(), tmp_path / f"a{ending}", tmp_path / f"b{ending}"
    done = lastbranch.convert(capture, made)
    told = run_cli("convert", capture, printed)
    assert f"{done.summary} to {printed}" in told.err
    assert made.read_bytes() == printed.read_bytes()
    assert lastbranch.open(made).samples == lastbranch.open(capture).samples
    assert not done.damage
    assert not done.warnings
    again = lastbranch.convert(made, tmp_path / f"again{ending}")
    assert again.summary.endswith("tables copied" if ending == ".tb5" else "events written")


def test_what_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    capture = demo.capture()
    with pytest.raises(SelectionError, match="one input as a whole"):
        lastbranch.convert([capture, capture], tmp_path / "a.tb5")
    with pytest.raises(SelectionError, match="convert the whole capture first"):
        lastbranch.convert(capture, tmp_path / "a.etl", pids=[1])
    assert not list(tmp_path.iterdir())


def test_verify_sees_what_reading_samples_does_not(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"
    lastbranch.convert(demo.capture(), path)
    whole, profile = lastbranch.verify(path), lastbranch.open(path)
    assert (whole.samples, whole.entries, whole.damage) == (profile.samples, profile.entries, [])
    assert f"{whole.records} records, {whole.samples} samples" in run_cli("verify", path).err
    before = path.read_bytes()
    for at in range(len(before) // 2, len(before), max(1, len(before) // 97)):  # damage that may be in any table
        path.write_bytes(before[:at] + bytes([before[at] ^ 0xFF]) + before[at + 1 :])
        try:
            told = lastbranch.verify(path).damage
        except lastbranch.FormatError:
            continue
        assert set(map(str, format_of(open_source(str(path))).verify(open_source(str(path))))) <= set(map(str, told))


def test_dump_and_check_are_the_verbs() -> None:
    from lastbranch.formats.dump import TEXT

    capture = demo.capture()
    rows = list(lastbranch.dump(capture).cells(TEXT))
    lines = run_cli("dump", "--format", "csv", capture).out.splitlines()
    assert len(lines) == len(rows) + 1
    assert all(row[4] in line for row, line in zip(rows, lines[1:], strict=True))
    printed = json.loads(run_cli("check", "--format", "json", capture).out)
    assert [found.seen for found in lastbranch.check(capture)] == [row["seen"] for row in printed]


def test_a_profile_is_whole_when_it_is_opened() -> None:
    profile = lastbranch.open(demo.capture())
    assert profile.processes is profile.binder.processes
    assert profile.threads is profile.binder.threads
    assert "binder" in lastbranch.Profile.__annotations__
