"""Two captures compared: the numbers are those of `diff` and `stacks`, in answers and on the page."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import perfdata_writer as pw
from command_line import Ran
from lastbranch import demo
from lastbranch.cli import view
from lastbranch.cli.options import Capture
from lastbranch.errors import UnavailableError
from lastbranch.symbols import SymbolOptions
from lastbranch.view.anonymous import Anonymous
from lastbranch.view.loaded import Loaded
from lastbranch.view.questions import ask
from lastbranch.view.single_file import single_file
from viewer import cells, loaded, looking_at, node_modules, serving, settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

QUICK = ("--symfs", demo.symfs(), "--symbol-backend", "tables")


@pytest.fixture(scope="module", autouse=True)
def kept_names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Names that one test has asked for are there for the others: a cache for this file alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's capture without most of the samples whose address is in the upper half of those that there are."""
    capture = pw.parse(Path(demo.capture()).read_bytes())
    samples = [record for record in capture.records if record.type == 9]
    middle = sorted(record.fields["ip"] for record in samples)[len(samples) // 2]
    dropped = [record for record in samples if record.fields["ip"] > middle]
    gone = {id(record) for i, record in enumerate(dropped) if i % 12}
    capture.records = [record for record in capture.records if id(record) not in gone]
    path = tmp_path_factory.mktemp("diff") / "before.data"
    path.write_bytes(pw.to_file(capture))
    return path


@pytest.fixture(scope="module")
def compared(before: Path) -> Loaded:
    names = SymbolOptions(backend="tables")  # the quickest
    sides = (replace(loaded(path, demo.symfs()), symbols=names) for path in (before, demo.capture()))
    earlier, shown = sides
    shown.before = earlier
    return shown


CHANGES = "all => all.map(one => [one.parentElement.dataset.address, one.dataset.change, one.getAttribute('class')])"


@cache
def of_verb(run: Callable[..., Ran], before: Path, by: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        run("diff", before, demo.capture(), *QUICK, "--by", by, "--format", "json").out
    )
    return rows


@pytest.mark.parametrize(("by", "name"), [("function", "function"), ("edge", "from"), ("block", "block")])
def test_rows_are_those_of_the_verb(
    run: Callable[..., Ran], before: Path, compared: Loaded, by: str, name: str
) -> None:
    columns = ask(compared, "diff", {"by": by}).columns
    rows = of_verb(run, before, by)
    assert rows
    assert list(columns["name"]) == [row[name] for row in rows]
    assert [one or None for one in columns["module"]] == [row[f"{name}_module"] for row in rows]
    for mine, theirs in (("before", "A_percent"), ("share", "B_percent"), ("change", "change"), ("noise", "noise")):
        assert np.round(100 * np.asarray(columns[mine]), 4).tolist() == [row[theirs] for row in rows]
    for mine, theirs in (("before_samples", "A_samples"), ("samples", "B_samples"), ("significant", "significant")):
        assert np.asarray(columns[mine]).tolist() == [row[theirs] for row in rows]
    assert any(row["significant"] for row in rows) or by != "function"


def test_both_flame_graphs_are_in_one(run: Callable[..., Ran], before: Path, compared: Loaded) -> None:
    answer = ask(compared, "diff_flame", {})
    parent, name = (np.asarray(answer.columns[key]).tolist() for key in ("parent", "name"))
    names, paths = answer.columns["names.function"], list[tuple[str, ...]]()
    for up, of in zip(parent, name, strict=True):
        paths.append((*(paths[up] if up >= 0 else ()), names[of]))
    for column, total, path in (("before_own", "before", before), ("own", "samples", Path(demo.capture()))):
        found = Counter[tuple[str, ...]]()
        for at, weight in zip(paths, np.asarray(answer.columns[column]).tolist(), strict=True):
            found[at] += weight
        wanted = Counter[tuple[str, ...]]()
        for line in run("stacks", path, *QUICK).out.splitlines():
            stack, _, weight = line.rpartition(" ")
            wanted[tuple(stack.split(";")[1:])] += int(weight)
        assert +found == wanted
        assert answer.header[total] == wanted.total()


def test_filters_hold_on_both_sides_and_one_capture_alone_says_so(compared: Loaded) -> None:
    with pytest.raises(UnavailableError, match="only one capture"):
        ask(loaded(demo.capture()), "diff", {})
    pid = compared.profile.processes[0].pid
    rows = ask(compared, "diff", {"pid": str(pid), "module": "0", "event": "0"})
    assert rows.header["rows"] > 0
    assert set(rows.columns["module"]) == {compared.profile.modules[0].short}


@pytest.fixture(scope="module")
def page(browser: Browser, compared: Loaded) -> Iterator[Page]:
    """One page for all tests that go to screens of the viewer."""
    with serving(compared) as at, looking_at(browser, f"{at}#/diff", width=1300) as shown:
        yield shown


def go(page: Page, screen: str) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/{screen}")
    settled(page)


def test_the_page_shows_what_changed(run: Callable[..., Ran], before: Path, compared: Loaded, page: Page) -> None:
    functions = {row["function"]: row for row in of_verb(run, before, "function")}
    go(page, "diff")
    for cell in cells(page, "Differences"):
        row = functions[cell["name"]]
        for mine, theirs in (("before", "A_percent"), ("share", "B_percent"), ("change", "change")):
            assert float(cell[mine]) == pytest.approx(row[theirs], abs=0.0051)
        assert cell["significant"] == ("yes" if row["significant"] else "no")
    assert page.locator(".file").inner_text() == "before.data \N{RIGHTWARDS ARROW} capture.perf.data"
    page.get_by_role("button", name="Flame").click()
    page.get_by_role("application", name="Flame graph").press("ArrowDown")
    page.locator(".tip", has_text="points").wait_for()
    go(page, "function?name=dispatch&beside=graph")
    page.locator(".graph .changed").first.wait_for(state="attached")
    shown = page.locator(".graph .changed").evaluate_all(CHANGES)
    start = int(ask(compared, "function", {"name": "dispatch"}).header["start"], 16)
    blocks = {row["block"]: row for row in of_verb(run, before, "block")}
    known = 0
    for address, change, kind in shown:
        row = blocks.get(f"dispatch(unsigned int, unsigned int)+{int(address, 16) - start:#x}")
        if row is not None:
            known += 1
            assert float(change) == pytest.approx(row["change"], abs=0.006)
            assert ("unsure" in kind) == (not row["significant"])
            assert ("grew" in kind) == (row["change"] > 0)
    assert known > 3


def test_axe_finds_nothing_in_what_changed(page: Page) -> None:
    page.evaluate((node_modules() / "axe-core" / "axe.min.js").read_text())
    page.set_viewport_size({"width": 1000, "height": 700})
    for screen in ("diff?by=edge", "diff?by=flame", "function?name=dispatch&beside=graph"):
        go(page, screen)
        found = page.evaluate("async () => (await axe.run()).violations")
        assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == [], screen
        assert page.evaluate("document.documentElement.scrollWidth") == 1000, screen


def test_a_file_holds_the_comparison(browser: Browser, compared: Loaded, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    out.write_bytes(single_file(compared, {}))
    with looking_at(browser, f"{out.as_uri()}#/diff") as page:
        shown = [row["name"] for row in cells(page, "Differences")]
        assert shown == list(ask(compared, "diff", {}).columns["name"])
        page.get_by_role("link", name="dispatch").first.click()
        page.locator(".graph .changed").first.wait_for(state="attached")


def test_an_anonymous_file_names_neither_capture(compared: Loaded) -> None:
    hidden = Anonymous(compared)
    for question in ("diff", "diff_flame"):
        answer = hidden.cleaned(question, ask(hidden.loaded, question, {}))
        names = [*answer.columns["name" if question == "diff" else "names.function"]]
        assert all(re.match(r"(behind )?(function_[0-9a-f]{10}|\[|0x)", str(name)) for name in names)
        assert "before.data" not in str(answer)


def test_the_verb_takes_the_sides_that_diff_takes(
    run: Callable[..., Ran], before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run("view", "--diff", before, *QUICK)
    assert (ran.code, "Give A and B" in ran.err) == (2, True)
    assert run("view", before, "--symfs-b", "x", *QUICK).code == 2
    sides: list[tuple[Capture, Capture]] = []

    def show(viewer: view.Viewer, *given: Any) -> int:
        assert viewer.before is not None
        sides.append((viewer.before, viewer.capture))
        return 0

    monkeypatch.setattr(view.Viewer, "show", show)
    after = demo.capture()
    assert run("view", "--diff", before.parent, after, "--weight", f"{before.name}=3").code == 0
    assert run("view", before, before, "--against", after, "--symfs", "x", "--symfs-b", "y").code == 0
    both = [[(one.paths, one.weights, one.symfs) for one in pair] for pair in sides]
    assert both == [
        [((str(before.parent),), {before.name: 3}, None), ((after,), {}, None)],
        [((str(before),) * 2, {}, "x"), ((after,), {}, "y")],
    ]
