"""The function screen: its numbers are those of `annotate`, and its panels show the same place."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import perfdata_writer as pw
from burst_captures import NAME, write
from command_line import Ran
from lastbranch import demo
from small_elf import tiny_elf
from viewer import cells, loaded, looking_at, node_modules, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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


def figures(page: Page, loop: int) -> dict[str, str]:
    section = page.locator(f".loop[data-loop='{loop}']")
    section.wait_for()
    script = "all => Object.fromEntries(all.map(one => [one.dataset.figure, one.innerText]))"
    found: dict[str, str] = section.locator("dd").evaluate_all(script)
    return found


def bars(page: Page, of: str) -> list[str]:
    """What the bars of a histogram that are not empty say."""
    said = page.locator(of).get_attribute("aria-label") or ""
    return said.partition(": ")[2].split("; ")


def spelled(bins: list[dict]) -> list[str]:
    out = []
    for one in bins:
        last = one["below"] - 1 if one["from"] % 1 == 0 == one["below"] % 1 else one["below"]
        ends = [f"{end:,.1f}".removesuffix(".0") for end in dict.fromkeys((float(one["from"]), float(last)))]
        cut = f", and {one['cut']:,} cut short there" if one["cut"] else ""
        if one["count"] or one["cut"]:
            out.append(f"{' to '.join(ends)}: {one['count']:,}{cut}")
    return out


def shown(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def test_loops_and_cycles_have_the_distributions_of_annotate(
    run: Callable[..., Ran], browser: Browser, address: str, file: Path
) -> None:
    """Served, and in a file."""
    for name in ("sumloop", "main"):
        said = json.loads(run("annotate", demo.capture(), name, "--symfs", demo.symfs(), "--format", "json").out)
        start = {"at_module": "0", "start": said["start"]}
        for place in (f"{address}#/function?name={name}", f"{file.as_uri()}#/function?{urlencode(start)}"):
            with looking_at(browser, f"{place}&beside=loops") as page:
                check_loops(page, said["loops"])
                page.get_by_role("button", name="Cycles").click()
                check_cycles(page, said["blocks"])


def check_loops(page: Page, said: list[dict]) -> None:
    page.locator(".loop").first.wait_for()
    assert page.locator(".loop").count() == len(said)
    for loop, row in enumerate(said):
        found = figures(page, loop)
        assert found["iterations"] == f"{row['iterations']:,}"
        for key, column in (
            ("trips", "trips"),
            ("p50", "trips_p50"),
            ("p90", "trips_p90"),
            ("longest", "longest"),
            ("cycles", "cycles"),
        ):
            assert found[key] == shown(row[column])
        if row["trips_histogram"]:
            assert bars(page, f".loop[data-loop='{loop}'] svg") == spelled(row["trips_histogram"])
    lines = page.locator(".loop h3").evaluate_all("all => all.map(one => one.getClientRects().length)")
    assert lines == [1] * len(said)  # addresses are not broken


def check_cycles(page: Page, said: list[dict]) -> None:
    table = page.get_by_role("table", name="Cycles of blocks").locator("tbody tr")
    table.first.wait_for()
    script = "rows => rows.map(row => [row.dataset.block, [...row.children].slice(0, 4).map(cell => cell.innerText)])"
    found = dict(table.evaluate_all(script))
    wanted = {str(row["block"]): row for row in said if row["cycles_histogram"]}
    assert found.keys() == wanted.keys()
    for block, texts in found.items():
        row = wanted[block]
        numbers = [f"{row[key]:.2f}" for key in ("cycles", "cycles_p50", "cycles_p90")]
        assert texts == [row["from"], *numbers]
        assert bars(page, f".blocks [data-block='{block}'] svg") == spelled(row["cycles_histogram"])


def test_the_matrix_of_targets_has_the_shares_of_annotate(
    run: Callable[..., Ran], browser: Browser, address: str, file: Path
) -> None:
    """Served, and in a file."""
    words = (demo.capture(), "--symfs", demo.symfs(), "--format", "json", "--limit", "0")
    for name in ("dispatch", "main"):
        annotated = json.loads(run("annotate", words[0], name, *words[1:]).out)
        start = {"at_module": "0", "start": annotated["start"]}
        for place in (f"{address}#/function?name={name}", f"{file.as_uri()}#/function?{urlencode(start)}"):
            with looking_at(browser, f"{place}&beside=targets") as page:
                check_targets(page, annotated["indirect_targets"])


def check_targets(page: Page, said: list[dict]) -> None:
    table = page.get_by_role("table", name="Branches and targets")
    table.wait_for()
    targets = table.locator("thead th[title]").evaluate_all("all => all.map(one => one.title)")
    rows = table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].slice(1).map(cell => cell.innerText))"
    )
    totals = Counter[str]()
    for row in said:
        totals[row["to"]] += row["count"]
    assert [totals[target] for target in targets] == sorted(totals.values(), reverse=True)
    sites = dict.fromkeys(row["branch"] for row in said)
    shares = {(row["branch"], row["to"]): f"{row['share_percent']:.2f}" for row in said}
    assert rows == [[shares.get((site, target), "") for target in targets] for site in sites]


def test_cycles_that_are_not_known_say_why(browser: Browser, tmp_path: Path) -> None:
    elf, path = tmp_path / "prog", tmp_path / "x.data"
    elf.write_bytes(tiny_elf(bytes.fromhex("e8fb0f0000 90 c3")))
    b = pw.Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK)
    b.mmap2(pid=7, addr=0x401000, length=0x1000, pgoff=0x1000, name=str(elf), time=0)
    b.sample(ip=0x401005, pid=7, time=1, branches=[(0x401006, 0x401000, 0)])
    path.write_bytes(b.build())
    chosen = urlencode({"name": "prog+0x401000", "beside": "cycles"})
    with serving(loaded(path, "/")) as at, looking_at(browser, f"{at}#/function?{chosen}") as page:
        assert "did not time them" in page.locator(".panel .first").inner_text()


def test_what_few_bursts_saw_is_grey_however_often_it_was_counted(
    run: Callable[..., Ran], browser: Browser, tmp_path: Path
) -> None:
    """Here and among the branches."""
    path = write(tmp_path, [[[(2, 8), (9, 0)] * 150], *[[[(6, 0)] * 3]] * 120])
    blocks = json.loads(run("annotate", path, NAME, "--symfs", "/", "--format", "json").out)["blocks"]
    edges = json.loads(run("branches", path, "--symfs", "/", "--format", "json").out)
    chosen = urlencode({"name": NAME, "beside": "graph"})
    with serving(loaded(path, "/")) as at, looking_at(browser, f"{at}#/function?{chosen}") as page:
        shown = cells(page, "Instructions")
        grey = page.get_by_role("grid", name="Instructions").locator(".few").all_inner_texts()
        page.get_by_text("grey for fewer than 100 bursts").wait_for()
        page.goto(f"{at}#/branches?view=edges")
        listed = cells(page, "Branches")
        grey_edges = page.get_by_role("grid", name="Branches").locator(".few").all_inner_texts()
    noise = {row["from"]: f"{row['noise_percent']:.2f}" for row in blocks}
    assert {cell["address"]: cell["noise"] for cell in shown if cell["noise"]} == noise
    assert grey == [noise["0x401008"]]
    assert [cell["noise"] for cell in listed] == [f"{row['noise']:.2f}" for row in edges]
    assert len(grey_edges) == 4  # the share of two branches, and its noise
