"""docs/reference/etw-windows.md: every function and structure stands there with what it rests on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import make_etw_layouts as made
from lastbranch.etw.structures import UNPROVEN as UNPROVEN_STRUCTURES
from lastbranch.etw.windows.libraries import CALLBACKS, FUNCTIONS, UNPROVEN
from windows_fake import DECLARED

PAGE = (Path(__file__).parents[3] / "docs/reference/etw-windows.md").read_text()
ROWS = {row[0]: row for row in (re.split(r"\s*\|\s*", line.strip("| ")) for line in PAGE.splitlines()) if row}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_its_row(name: str) -> None:
    function, row = FUNCTIONS[name], ROWS[name]
    assert row[1] == ", ".join(library.removesuffix(".dll") for library in function.libraries)
    assert row[2] == function.since
    assert row[3] == ("no" if name in UNPROVEN else "yes")
    linked = [bits for bits in (64, 32) if name not in UNPROVEN and name not in made.NOT_IN_LIBRARY[bits]]
    assert row[4] == {2: "yes", 1: "64 bits", 0: "no"}[len(linked)]
    assert row[5] == "yes"
    assert name in DECLARED


def test_no_function_is_there_that_does_not_exist() -> None:
    table = PAGE[PAGE.index("| function |") : PAGE.index("Callbacks (")].splitlines()[2:]
    assert [line.split()[1] for line in table if line] == list(FUNCTIONS)


@pytest.mark.parametrize("name", [*CALLBACKS, *UNPROVEN_STRUCTURES, *(f"{s}.{m}" for s, m in sorted(made.NOT_ASKED))])
def test_it_is_named(name: str) -> None:
    assert name in PAGE
