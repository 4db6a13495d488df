"""The viewer in a browser: what it shows is what the terminal says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from command_line import Ran
from lastbranch import demo
from viewer import cells, loaded, looking_at, node_modules, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

UNKNOWN = "\N{EN DASH}"
SCREENS = ("hot", "flame", "function", "branches", "capture")


def same_functions(run: Callable[..., Ran], shown: list[dict[str, str]], *words: str | Path) -> None:
    """``shown`` are the first rows of `report --by function`."""
    rows = json.loads(run("report", *words, "--by", "function", "--format", "json").out)
    assert len(shown) >= min(len(rows), 20)
    wanted = {(row["function"], row["module"] or UNKNOWN): row for row in rows}
    assert len(wanted) == len(rows)
    for cell in shown:
        row = wanted[cell["function"], cell["module"]]
        assert cell["samples"] == f"{row['samples']:,}"
        assert cell["share"] == f"{row['samples_percent']:.2f}"
        known = row["instructions"] is not None
        assert cell["instructions"] == (f"{row['instructions']:,}" if known else UNKNOWN)


def test_hot_has_the_numbers_of_report(run: Callable[..., Ran], browser: Browser, address: str) -> None:
    with looking_at(browser, address) as page:
        same_functions(run, cells(page, "Functions"), demo.capture(), "--symfs", demo.symfs())


def test_the_single_file_shows_the_same_without_a_request(
    run: Callable[..., Ran], browser: Browser, tmp_path: Path
) -> None:
    out = tmp_path / "out.html"
    assert run("view", demo.capture(), "--symfs", demo.symfs(), "--html", out).code == 0
    context = browser.new_context()
    page, asked = context.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(out.as_uri())
    same_functions(run, cells(page, "Functions"), demo.capture(), "--symfs", demo.symfs())
    for screen in SCREENS:
        page.goto(f"{out.as_uri()}#/{screen}")
        page.locator("main > *").first.wait_for()
    context.close()
    assert {url.partition("#")[0] for url in asked} == {out.as_uri()}


def test_a_filter_is_that_of_the_verb(run: Callable[..., Ran], browser: Browser, data: object) -> None:
    path = data.path("demo_2proc")  # type: ignore[attr-defined]
    shown = loaded(path)
    pid = shown.profile.processes[1].pid
    with serving(shown) as at, looking_at(browser, at) as page:
        page.locator("select[data-filter=pid]").select_option(str(pid))
        page.wait_for_url(f"**pid={pid}*")
        page.locator(".answered:not(.pending) [role=grid]").wait_for()
        same_functions(run, cells(page, "Functions"), path, "--pid", str(pid))
        page.go_back()
        page.wait_for_url(lambda url: "pid" not in url)
        same_functions(run, cells(page, "Functions"), path)


def test_the_keyboard_alone_reaches_a_function(browser: Browser, address: str) -> None:
    with looking_at(browser, address) as page:
        cells(page, "Functions")
        page.keyboard.press("/")
        page.keyboard.type("dispatch")
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.role") == "grid":
                break
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="dispatch").wait_for()
        assert "start=0x" in page.url
        page.go_back()
        assert [row["function"].startswith("dispatch") for row in cells(page, "Functions")] == [True]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, address: str, scheme: str) -> None:
    axe = (node_modules() / "axe-core" / "axe.min.js").read_text()
    for screen in SCREENS:
        with looking_at(browser, f"{address}#/{screen}", scheme=scheme) as page:
            page.locator("main > *").first.wait_for()
            page.locator("[aria-busy=true], .waiting").first.wait_for(state="detached")
            page.evaluate(axe)
            found = page.evaluate("async () => (await axe.run()).violations")
            assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == [], screen
