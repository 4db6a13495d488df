"""docs/guides/viewer.md: the branch of an example program that cannot be predicted is found within a few steps."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capture_tools import needs_ptrace
from command_line import Ran
from viewer import cells, loaded, looking_at, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXAMPLE = Path(__file__).parents[2] / "examples/coin.c"


@needs_ptrace
@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("addr2line")), reason="gcc or addr2line is missing")
def test_the_steps_of_the_guide_lead_to_the_branch(run: Callable[..., Ran], browser: Browser, tmp_path: Path) -> None:
    program, capture = tmp_path / "coin", tmp_path / "coin.tb5"
    subprocess.run(["gcc", "-g", "-O1", "-o", program, EXAMPLE], check=True)
    assert run("record", "--engine", "software", "--no-progress", "-o", capture, program).code == 0
    with serving(loaded(capture)) as at, looking_at(browser, at) as page:
        cells(page, "Functions")
        page.get_by_role("link", name="sum_chosen").first.click()
        page.get_by_role("heading", name="sum_chosen").wait_for()
        rows = cells(page, "Instructions")
    taken = {
        row["address"]: float(row["taken"])
        for row in rows
        if row["text"].startswith("j") and row["taken"][:1].isdigit()
    }
    coins = [address for address, share in taken.items() if 25 < share < 75]
    assert len(coins) == 1
    place = subprocess.run(["addr2line", "-e", program, coins[0]], check=True, capture_output=True, text=True).stdout
    number = int(place.rpartition(":")[2].split()[0])
    assert "if (numbers[i] >> bit & 1)" in EXAMPLE.read_text().splitlines()[number - 1]
    assert len(taken) > 1  # the branch of the loop, which goes one way
