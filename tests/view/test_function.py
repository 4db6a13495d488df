"""The function screen: its numbers are those of `annotate`, and its panels show the same place."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from command_line import Ran
from lastbranch import demo
from viewer import cells, loaded, looking_at, node_modules, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LINES = "\n".join(f"int line_{number} = {number}; // <b>{number}</b>" for number in range(1, 120))


def test_the_assembly_has_the_numbers_of_annotate(run: Callable[..., Ran], browser: Browser, address: str) -> None:
    said = json.loads(run("annotate", demo.capture(), "dispatch", "--symfs", demo.symfs(), "--format", "json").out)
    with looking_at(browser, f"{address}#/function?{urlencode({'name': 'dispatch'})}", width=1400) as page:
        shown = cells(page, "Instructions")
        page.keyboard.press("Tab")
    rows = {row["address"]: row for row in said["instructions"]}
    assert len(shown) > 20
    before = None
    for cell in shown:
        row = rows[cell["address"]]
        assert row["instruction"].startswith(cell["text"])
        assert cell["samples"] == (f"{row['samples']:,}" if row["samples"] else "")
        first, before = row["block"] != before, row["block"]
        assert cell["count"] == (f"{row['count']:,}" if first else "")
        if row["count"]:
            assert cell["taken"] == ("" if row["taken_percent"] is None else f"{row['taken_percent']:.2f}")
            if first and row["cycles"] is not None:
                assert cell["cycles"] == f"{row['cycles']:.2f}"


def test_all_columns_are_in_view_in_a_narrow_window(browser: Browser, address: str) -> None:
    with looking_at(browser, f"{address}#/function?name=dispatch", width=1000) as page:
        assert {"taken", "mispredicted", "cycles", "ipc"} <= set(cells(page, "Instructions")[0])
        grid = page.get_by_role("grid", name="Instructions")
        assert grid.evaluate("one => one.scrollWidth - one.clientWidth") == 0
        assert grid.locator(".head .cell").evaluate_all("all => all.every(one => one.scrollWidth <= one.clientWidth)")
        assert page.locator(".source li.active, .listing .row.active").count() == 0  # nothing is chosen yet


def test_assembly_has_the_colours_of_its_machine(tmp_path: Path) -> None:
    modules, out = node_modules(), tmp_path / "colours.mjs"
    bundle = [modules / ".bin" / "esbuild", "src/function/colours.ts", "--bundle", "--format=esm", f"--outfile={out}"]
    subprocess.run(bundle, cwd=modules.parent, check=True, capture_output=True)
    script = (
        f"import {{ coloured }} from '{out.as_uri()}';"
        "const of = arch => coloured('x.S', ['mov x0, #1 // one', 'mov eax, 1 ; two'], arch)"
        "  .map(line => line.filter(({ scope }) => scope).map(({ text, scope }) => `${scope} ${text}`));"
        "console.log(JSON.stringify({ aarch64: of('aarch64'), x86_64: of('x86_64') }))"
    )
    done = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    made = json.loads(done.stdout)
    assert "comment // one" in made["aarch64"][0]
    assert "type x0" in made["aarch64"][0]
    assert "comment ; two" in made["x86_64"][1]
    assert "type eax" in made["x86_64"][1]
    assert "type x0" not in made["x86_64"][0]


def test_source_and_assembly_show_the_same_place(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "lbrdemo.cc").write_text(LINES)
    shown = loaded(demo.capture(), demo.symfs())
    shown.source_roots = (str(tmp_path),)
    with (
        serving(shown) as at,
        looking_at(browser, f"{at}#/function?{urlencode({'name': 'dispatch'})}") as page,
    ):
        line = page.locator(".source li", has=page.locator("button")).first
        assert line.locator("code").inner_text() == LINES.split("\n")[int(line.get_attribute("data-line") or 0) - 1]
        line.get_by_role("button").press("Enter")
        page.locator(".listing .row.active").wait_for()
        assert "at=0x" in page.url
        chosen = page.locator(".source li.active")
        assert chosen.get_attribute("data-line") == line.get_attribute("data-line")
        page.get_by_role("grid", name="Instructions").press("Home")
        page.locator(".listing .row.active[data-row='0']").wait_for()
        assert page.locator(".source b").count() == 0  # text, not markup
