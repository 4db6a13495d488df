"""Readers of captures leave no reference cycles. A cycle keeps all counts, megabytes for a capture of kilobytes, until
Python collects garbage, which depends on the number of objects and not on their bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

import lastbranch
from command_line import Ran
from lastbranch.fleet import Labels, capture_file
from lastbranch.fleet.counting import count_captures
from lastbranch.sql import query
from small_captures import build

Run = Callable[..., Ran]
FORMATS = {"data": (), "tb5": ("convert",), "etl": ("convert",), "txt": ("export", "--to", "brstack", "-o")}


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Two small ones of each format."""
    from command_line import run_cli

    folder = tmp_path_factory.mktemp("captures")
    made: dict[str, list[str]] = {}
    for form, words in FORMATS.items():
        for name in ("a", "b"):
            source = build(folder / f"{name}.data", name=f"/bin/{name}")
            path = folder / f"{name}.{form}"
            if words:
                arguments = [source, path] if words[0] == "convert" else [source, *words[1:], path]
                assert run_cli(words[0], *arguments).code == 0
            made.setdefault(form, []).append(str(path))
    return made


def opened(*paths: str) -> None:
    profile = lastbranch.open(paths if len(paths) > 1 else paths[0])
    assert sum(len(batch) for batch in profile.batches()) == 30 * len(paths)
    assert len(profile.binder.processes) == len(list(profile.binder.processes))


def asked(path: str) -> None:
    with query(lastbranch.open(path), "SELECT count(*) FROM samples") as result:
        assert next(iter(result)) == (30,)


def counted(path: str) -> None:
    assert [len(rows.captures) for _, rows in count_captures([capture_file(path, Labels())])] == [1]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("use", [opened, asked, counted])
def test_a_capture_that_was_read_leaves_nothing(
    use: Callable[..., None], form: str, captures: dict[str, list[str]]
) -> None:
    assert left_by(lambda path: use(path), captures[form]) == []


def test_captures_that_were_read_together_leave_nothing(captures: dict[str, list[str]]) -> None:
    together = [captures["data"][0], captures["tb5"][1]], [captures["txt"][0], captures["etl"][1]]
    assert left_by(lambda paths: opened(*paths), together) == []


def left_by(use: Callable[[object], None], things: object) -> list[str]:
    """Types of ours that are garbage after the second use; the first one may fill caches."""
    first, second = things  # type: ignore[misc]
    use(first)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        use(second)
        gc.collect()
        return sorted({type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("lastbranch")})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
