"""The graph of a function's blocks in a browser: laid out in a worker, in step with the assembly, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from command_line import Ran
from lastbranch import demo
from lastbranch.analysis.function.flow import BlockGraph, Flow, block_graph
from viewer import cells, loaded, looking_at, node_modules, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TIMES = "\N{MULTIPLICATION SIGN}"
GRAPH = "#/function?name=dispatch&beside=graph"


def blocks(page: Page) -> dict[str, str]:
    """Address -> first line of each block of the picture."""
    found = page.locator(".graph [data-address]")
    found.first.wait_for(state="attached")
    script = "all => all.map(one => [one.dataset.address, one.querySelector('text').textContent])"
    return dict(found.evaluate_all(script))


def expected(run: Callable[..., Ran]) -> dict[str, int]:
    """Address -> executions of each instruction that `annotate` saw to run."""
    done = run("annotate", demo.capture(), "dispatch", "--symfs", demo.symfs(), "--format", "json")
    rows = json.loads(done.out)["instructions"]
    return {row["address"]: row["count"] for row in rows if row["count"]}


def test_served_and_in_a_file_it_has_the_counts_of_annotate(
    run: Callable[..., Ran], browser: Browser, address: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.html"
    assert run("view", demo.capture(), "--symfs", demo.symfs(), "--html", out).code == 0
    with looking_at(browser, out.as_uri()) as page:
        cells(page, "Functions")
        page.get_by_role("link", name="dispatch").first.click()
        page.get_by_role("button", name="Graph").click()
        from_file = blocks(page)
    with looking_at(browser, address + GRAPH) as page:
        served = blocks(page)
    assert served == from_file
    counts = expected(run)
    shown = {at: int(line.split()[1].rstrip(TIMES).replace(",", "")) for at, line in served.items()}
    assert shown == {at: counts[at] for at in served}
    assert len(shown) == 12


def test_each_edge_has_its_own_probability(browser: Browser, address: str) -> None:
    """The edges come back from the layout in another order."""
    with looking_at(browser, address + GRAPH) as page:
        blocks(page)
        said = page.locator(".graph g.edge").evaluate_all(
            """all => all.map((one, edge) => [one.querySelector('title').textContent,
                document.querySelector(`.graph .label[data-edge="${edge}"]`)?.textContent ?? ''])"""
        )
        covered = page.locator(".graph .label").evaluate_all(
            """all => {
                const boxes = [...document.querySelectorAll('.graph .block > rect:first-of-type'), ...all];
                const apart = (a, b) =>
                    Math.max(a.left - b.right, b.left - a.right, a.top - b.bottom, b.top - a.bottom);
                const place = one => one.getBoundingClientRect();
                return all.filter(one => boxes.some(other => other !== one && apart(place(one), place(other)) < -1))
                    .map(one => one.textContent);
            }"""
        )
        drawn = page.locator(".graph g.edge").evaluate_all(
            """all => all.map(one => {
                const middle = box => ({x: box.x + box.width / 2, y: box.y + box.height / 2});
                const boxes = [...document.querySelectorAll('.graph g.block')];
                const [from, to] = [one.dataset.from, one.dataset.to].map(i => middle(boxes[i].getBBox()));
                const path = one.querySelector('path');
                const [start, end] = [path.getPointAtLength(0), path.getPointAtLength(path.getTotalLength())];
                const inside = (at, i) => { const b = boxes[i].getBBox();
                    return Math.abs(at.x - b.x - b.width / 2) < b.width / 2 + 12
                        && Math.abs(at.y - b.y - b.height / 2) < b.height / 2 + 12; };
                return inside(start, one.dataset.from) && inside(end, one.dataset.to);
            })"""
        )
    assert all(drawn)
    assert len(drawn) > 15
    assert all(label.partition(" ")[0] in told for told, label in said if label)
    assert sum(bool(label) for _, label in said) > 8
    assert covered == []


def test_blocks_are_chosen_by_mouse_and_keyboard(browser: Browser, address: str) -> None:
    with looking_at(browser, address + GRAPH) as page:
        first, *_, last = blocks(page)
        page.locator(f"[data-address='{first}'] text").first.click()
        page.wait_for_url(f"**at={first}*")
        page.get_by_role("application").press("ArrowDown")
        page.wait_for_url("**at=0x113b*")
        page.get_by_role("application").press("ArrowUp")
        page.wait_for_url(f"**at={first}*")
        for _ in range(20):
            page.get_by_role("application").press("ArrowRight")
        page.wait_for_url(f"**at={last}*")
        assert page.locator(".graph .chosen").count() == 1
        before = page.locator(".graph svg > g").get_attribute("transform")
        page.get_by_role("application").press("+")
        assert page.locator(".graph svg > g").get_attribute("transform") != before


def test_what_is_too_large_is_refused_with_its_reason(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def many(flow: Flow) -> BlockGraph:
        graph = block_graph(flow)
        return BlockGraph(graph.edges.take(np.arange(1201) % len(graph.edges)), graph.came, graph.went)

    monkeypatch.setattr(import_module("lastbranch.view.questions.function"), "block_graph", many)
    with serving(loaded(demo.capture(), demo.symfs())) as at, looking_at(browser, at + GRAPH) as page:
        refused = page.locator(".refused", has_text="1,201 edges between them: more than")
        refused.wait_for()
        assert refused.is_visible()


def test_a_layout_that_fails_is_said(browser: Browser, address: str) -> None:
    with looking_at(browser, address) as page:
        cells(page, "Functions")
        page.evaluate("() => { window.Worker = class { constructor() { throw new Error('no workers') } } }")
        page.evaluate("to => { location.hash = to }", GRAPH)
        refused = page.locator(".refused", has_text="could not be laid out: no workers")
        refused.wait_for()
        assert refused.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_graph(browser: Browser, address: str, scheme: str) -> None:
    axe = (node_modules() / "axe-core" / "axe.min.js").read_text()
    with looking_at(browser, address + GRAPH, scheme=scheme) as page:
        blocks(page)
        page.get_by_text("As a table").click()
        page.get_by_role("table", name="Edges").wait_for()
        page.evaluate(axe)
        found = page.evaluate("async () => (await axe.run()).violations")
        assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []


def test_targets_of_indirect_branches_are_those_of_annotate(
    run: Callable[..., Ran], browser: Browser, address: str
) -> None:
    done = run("annotate", demo.capture(), "dispatch", "--symfs", demo.symfs(), "--format", "json", "--limit", "0")
    rows = json.loads(done.out)["indirect_targets"]
    with looking_at(browser, address + "#/function?name=dispatch&beside=targets") as page:
        shown = page.locator("table.site tbody tr")
        shown.first.wait_for()
        found = shown.evaluate_all("rows => rows.map(row => [...row.children].slice(0, 2).map(c => c.innerText))")
    assert rows
    assert sorted(found) == sorted([row["to"], f"{row['count']:,}"] for row in rows)
