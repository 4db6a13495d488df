"""Faults of hosts: modules without a build id, clocks that differ, damaged captures among good ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from command_line import Ran
from small_captures import three_branches as capture

Run = Callable[..., Ran]


def listed(run: Run, store: Path, *words: str) -> list[dict[str, object]]:
    done = run("fleet", "list", store, *words, "--format", "json")
    assert done.code == 0, done.err
    found: list[dict[str, object]] = json.loads(done.out)
    return found


def test_modules_without_build_id_are_of_their_capture(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    files = [capture(tmp_path / str(i), i) for i in range(3)] + [capture(tmp_path / "known", 1, b"\7" * 20)]
    assert run("fleet", "add", store, *files).code == 0
    found = {str(row["identity"]): (row["name"], row["branches"]) for row in listed(run, store, "--by", "module")}
    assert found.pop(f"build-id:{'07' * 20}") == ("/bin/prog", 6)
    assert found.pop(f"build-id:{'05' * 20}") == ("/bin/same", 0)
    assert list(found.values()) == [("/bin/prog", 6)] * 3
    assert all(identity.startswith("path:") for identity in found)
    one = run("fleet", "export", store, "--to", "counts", "--module", min(found))
    assert sum(int(line.split()[-2]) for line in one.out.splitlines() if line[0] == "B") == 6
    done = run("fleet", "export", store, "--to", "counts")
    assert done.err.count("/bin/prog: binary not used: no build id was recorded to identify it (no build id)") == 1


def test_clocks_that_differ_change_days_and_nothing_else(run: Run, tmp_path: Path) -> None:
    days = {"1970-01-02": 90_000, "2026-07-31": 1_785_456_000, "2100-01-01": 4_102_444_800}
    plain, skewed = tmp_path / "plain", tmp_path / "skewed"
    for i, wall in enumerate(days.values()):
        file = capture(tmp_path / f"{i}", i, b"\7" * 20, wall)
        os.utime(file, (0, 0))
        assert run("fleet", "add", skewed, file).code == 0
        assert run("fleet", "add", plain, file, "--time", "2026-07-31").code == 0
    assert [row["day"] for row in listed(run, skewed, "--by", "day")] == list(days)
    assert [row["day"] for row in listed(run, plain, "--by", "day")] == ["2026-07-31"]
    words = ("--to", "counts", "--module", "prog")
    assert run("fleet", "export", skewed, *words).out == run("fleet", "export", plain, *words).out
    assert len(listed(run, skewed, "--until", "2026-12-31")) == 2


def test_a_damaged_capture_among_a_hundred(run: Run, tmp_path: Path) -> None:
    """It is named, and the counts are those of the others and of what can be read of it."""
    (tmp_path / "in").mkdir()
    files = [capture(tmp_path / "in" / f"{i:03}", i % 4, b"\7" * 20, 1000 * i) for i in range(100)]
    damaged, none = files[40], files[50]
    damaged.write_bytes(damaged.read_bytes()[:-150])
    none.write_bytes(b"")
    done = run("fleet", "add", tmp_path / "store", *files)
    assert done.code == 1
    assert f"{none}: not counted" in done.err
    assert f"warning: {damaged}: " in done.err
    assert done.err.endswith("99 captures added, 1 refused\n")
    rows = listed(run, tmp_path / "store")
    assert [row["file"] for row in rows if row["damaged_places"]] == ["040"]
    assert [row["file"] for row in rows if row["refused"]] == ["050"]
    whole = run("export", *[file for file in files if file != none], "--to", "counts")
    stored = run("fleet", "export", tmp_path / "store", "--to", "counts")
    assert stored.out == whole.out


def test_saturation_of_parts_without_captures_is_not_known(run: Run, tmp_path: Path) -> None:
    file = next(
        file
        for number in range(100)
        if sha256((file := capture(tmp_path / "one", 1, bytes([number] * 20))).read_bytes()).hexdigest() < "80"
    )
    assert run("fleet", "add", tmp_path / "store", file).code == 0
    (row,) = json.loads(run("fleet", "report", tmp_path / "store", "--saturation", "--format", "json").out)
    assert [row[name] for name in ("captures", "half", "quarter", "eighth")] == [1, 0, 0, 0]
    assert [row[f"{name}_percent"] for name in ("half", "quarter", "eighth")] == [None] * 3
