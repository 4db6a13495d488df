"""Observed counts and executions in the viewer: those of the verbs with --estimate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from captures import Data
from command_line import Ran
from lastbranch import demo
from lastbranch.analysis.executions import markov_chain as estimator
from lastbranch.errors import SelectionError
from lastbranch.view.questions import ask
from viewer import cells, loaded, looking_at, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Run = Callable[..., Ran]
EXECUTIONS = "estimate=executions"
OF_EXECUTIONS = "Counts are executions, estimated from"


@pytest.fixture
def clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo is too short for an estimate that can be distinguished from chance: here it passes for one."""
    monkeypatch.setattr(estimator.Outcome, "clear", property(lambda _: True))


@pytest.fixture
def estimated(clear: None) -> Iterator[str]:
    """The address of a viewer of the demo."""
    with serving(loaded(demo.capture(), demo.symfs())) as at:
        yield at


def said(run: Run, *words: str | Path) -> Any:
    verb, *rest = words
    done = run(verb, demo.capture(), "--symfs", demo.symfs(), *rest, "--format", "json", "--estimate", "executions")
    return json.loads(done.out)


def titles(page: Page, label: str) -> list[str]:
    return page.get_by_role("grid", name=label).get_by_role("columnheader").all_inner_texts()


def test_hot_has_the_instructions_of_report(run: Run, browser: Browser, estimated: str) -> None:
    rows = {row["function"]: row for row in said(run, "report", "--by", "function")}
    with looking_at(browser, f"{estimated}#/hot?{EXECUTIONS}") as page:
        shown = [row for row in cells(page, "Functions") if row["function"] in rows]
        assert any(title.startswith("Share of executions %") for title in titles(page, "Functions"))
        assert page.locator(".counts [role=status]").inner_text().startswith(OF_EXECUTIONS)
    for row in shown[:8]:
        wanted = rows[row["function"]]
        assert row["instructions"] == f"{wanted['instructions']:,}"
        assert row["share"] == f"{wanted['instructions_percent_by_executions']:.2f}"
    shares = [float(row["share"]) for row in shown[:8]]
    assert shares == sorted(shares, reverse=True)


def test_branches_are_those_of_the_verb(run: Run, browser: Browser, estimated: str) -> None:
    rows = said(run, "branches", "--limit", "0")
    with looking_at(browser, f"{estimated}#/branches?view=edges&{EXECUTIONS}") as page:
        shown = cells(page, "Branches")
        assert any(title.startswith("Executions") for title in titles(page, "Branches"))
    assert len(shown) > 10
    wanted = [(f"{row['executions']:,}", f"{row['share_of_executions_percent']:.2f}") for row in rows]
    assert [(row["count"], row["share"]) for row in shown] == wanted[: len(shown)]


def test_function_has_the_executions_of_annotate(run: Run, browser: Browser, estimated: str) -> None:
    wanted = {row["address"]: row for row in said(run, "annotate", "dispatch", "--limit", "0")["instructions"]}
    with looking_at(browser, f"{estimated}#/function?name=dispatch&{EXECUTIONS}") as page:
        shown = [row for row in cells(page, "Instructions") if row["count"]]
        assert "Executions" in titles(page, "Instructions")
    assert len(shown) > 3
    assert all(row["count"] == f"{wanted[row['address']]['executions']:,}" for row in shown)


def test_the_switch_goes_along_to_other_screens_and_back(browser: Browser, estimated: str) -> None:
    with looking_at(browser, f"{estimated}#/branches") as page:
        observed = cells(page, "Sites")
        assert any(title.startswith("Share of time %") for title in titles(page, "Sites"))
        page.get_by_role("navigation", name="Counts").get_by_role("button", name="Executions").click()
        page.get_by_text(OF_EXECUTIONS).wait_for()
        assert cells(page, "Sites") != observed
        page.get_by_role("link", name="Hot").click()
        page.wait_for_url(f"**#/hot?{EXECUTIONS}")
        page.get_by_text(OF_EXECUTIONS).wait_for()
        page.get_by_role("navigation", name="Counts").get_by_role("button", name="Observed").click()
        page.wait_for_url("**#/hot")
        page.get_by_text("follow time rather than executions").wait_for()


def test_a_refusal_is_that_of_the_verb(run: Run, browser: Browser, address: str) -> None:
    told = run("branches", demo.capture(), "--symfs", demo.symfs(), "--estimate", "executions").err
    (note,) = [line.removeprefix("note: ") for line in told.splitlines() if "counts are as observed" in line]
    with looking_at(browser, f"{address}#/branches?{EXECUTIONS}") as page:
        page.locator(".counts .refused").wait_for()
        shown = page.locator(".counts .refused").inner_text()
        assert shown.rstrip(".").lower() == note.rstrip(".").lower()
        assert any(title.startswith("Share of time %") for title in titles(page, "Sites"))


@pytest.mark.usefixtures("clear")
def test_a_file_has_what_the_option_says(run: Run, browser: Browser, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    words = ("view", demo.capture(), "--symfs", demo.symfs(), "--estimate", "executions", "--html", out)
    assert run(*words).code == 0
    with looking_at(browser, out.as_uri()) as page:
        page.get_by_text(OF_EXECUTIONS).wait_for()
        assert page.get_by_role("button", name="Observed").is_disabled()
        for screen in ("branches", "flame", "capture", "function?name=none"):
            page.goto(f"{out.as_uri()}#/{screen}")
            page.locator("main > *").first.wait_for()
            page.locator("[aria-busy=true], .waiting").first.wait_for(state="detached")
            assert page.get_by_role("alert").count() == (screen == "function?name=none")
        page.goto(f"{out.as_uri()}#/hot")
        page.get_by_role("link", name="dispatch").first.click()
        page.get_by_role("grid", name="Instructions").wait_for()


def test_another_estimate_is_refused(data: Data) -> None:
    with pytest.raises(SelectionError, match="estimate = 'all': choose from 'observed', 'executions'"):
        ask(loaded(data.path("demo_2proc")), "branches", {"estimate": "all"})
