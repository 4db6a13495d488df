"""The viewer in a browser: what it shows is what the terminal says."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import lastbranch
import perfdata_writer as pw
from command_line import Ran
from lastbranch import demo
from lastbranch.symbols import Function, FunctionTable, Symbolizer, SymbolOptions
from lastbranch.view.loaded import Loaded
from lastbranch.view.questions import ask
from lastbranch.view.server import open_browser
from perfdata_writer import Builder
from small_captures import build
from viewer import cells, loaded, looking_at, node_modules, serving, settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

UNKNOWN = "\N{EN DASH}"
SCREENS = (
    "hot",
    "flame",
    "flame?table=1",
    "function",
    "branches",
    "branches?view=edges",
    "time",
    "time?table=1",
    "capture",
)


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
        assert cell.get("instructions", UNKNOWN) == (f"{row['instructions']:,}" if known else UNKNOWN)


def test_hot_has_the_numbers_of_report(run: Callable[..., Ran], browser: Browser, address: str) -> None:
    with looking_at(browser, address) as page:
        same_functions(run, cells(page, "Functions"), demo.capture(), "--symfs", demo.symfs())


@pytest.mark.parametrize("words", [(), ("--time", "1.00005..1.0002")])
def test_the_single_file_shows_the_same_without_a_request(
    run: Callable[..., Ran], browser: Browser, tmp_path: Path, words: tuple[str, ...]
) -> None:
    out = tmp_path / "out.html"
    assert run("view", demo.capture(), "--symfs", demo.symfs(), *words, "--html", out).code == 0
    context = browser.new_context()
    page, asked = context.new_page(), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(out.as_uri())
    same_functions(run, cells(page, "Functions"), demo.capture(), "--symfs", demo.symfs(), *words)
    for screen in (*SCREENS, "flame?inline=1"):
        page.goto(f"{out.as_uri()}#/{screen}")
        page.locator("main > *").first.wait_for()
        page.locator("[aria-busy=true], .waiting").first.wait_for(state="detached")
        assert page.get_by_role("alert").count() == 0
    assert page.get_by_role("img", name="Samples over time", exact=True).locator("path").get_attribute("d") > "M0 28V"
    assert page.locator(".timeline .outside").count() == (2 if words else 0)
    context.close()
    assert {url.partition("#")[0] for url in asked} == {out.as_uri()}


def test_hot_with_several_events_has_its_columns_in_view(browser: Browser, tmp_path: Path) -> None:
    paths = [str(build(tmp_path / "a.data")), str(build(tmp_path / "b.data", type=0, config=1))]
    shown = Loaded(lastbranch.open(paths), SymbolOptions(cache=None), tuple(paths))
    with serving(shown) as at, looking_at(browser, at, width=1000) as page:
        assert len({row["event"] for row in cells(page, "Functions")}) == 2
        grid = page.get_by_role("grid", name="Functions")
        assert grid.evaluate("one => one.scrollWidth - one.clientWidth") == 0
        page.keyboard.press("4")
        assert "or in the bar of the viewer" in page.get_by_role("alert").inner_text()
        page.locator("select[data-filter=event]").select_option("1")
        cells(page, "Sites")


def test_a_filter_is_that_of_the_verb(run: Callable[..., Ran], browser: Browser, data: object) -> None:
    path = data.path("demo_2proc")  # type: ignore[attr-defined]
    shown = loaded(path)
    pid = shown.profile.processes[1].pid
    with serving(shown) as at, looking_at(browser, at) as page:
        page.locator("select[data-filter=pid]").select_option(str(pid))
        page.wait_for_url(f"**pid={pid}*")
        page.locator("main .answered:not(.pending) [role=grid]").wait_for()
        same_functions(run, cells(page, "Functions"), path, "--pid", str(pid))
        page.go_back()
        page.locator("select[data-filter=pid] option:checked", has_text="all").wait_for(state="attached")
        page.locator("main .answered:not(.pending) [role=grid]").wait_for()
        same_functions(run, cells(page, "Functions"), path)


def test_capture_has_the_facts_of_info_and_check(run: Callable[..., Ran], browser: Browser, data: object) -> None:
    path = data.path("demo_2proc")  # type: ignore[attr-defined]
    info = json.loads(run("info", path, "--limit", "0", "--format", "json").out)
    found = json.loads(run("check", path, "--no-symbol-cache", "--format", "json").out)
    with serving(loaded(path)) as at, looking_at(browser, f"{at}#/capture?pid=1") as page:
        modules = cells(page, "Modules")
        wanted = {(one["name"], one["missing"] or UNKNOWN, one["binary"] or UNKNOWN) for one in info["modules"]}
        shown = [(one["name"], one["missing"], one["binary"]) for one in modules]
        assert len(shown) > 3
        assert set(shown) <= wanted
        facts = page.locator("dl.facts").all_inner_texts()
        for number in (info["samples"], info["branch_entries"], *info["lost"].values()):
            assert any(f"{number:,}" in one for one in facts)
        assert page.get_by_text("filters change nothing here").is_visible()
        records = {one["name"]: one["samples"] for one in cells(page, "Records")}
        assert records == {name: f"{number:,}" for name, number in info["records"].items()}
        said = page.locator(".findings strong").all_inner_texts()
        assert said == [f"{one['severity']}: {one['finding']}" for one in found]
        page.get_by_role("button", name="What can it record?").click()
        assert "compiled library" in page.get_by_role("table", name="What it can record").inner_text()


def test_chips_add_up_and_go_one_by_one(browser: Browser, data: object) -> None:
    shown = loaded(data.path("demo_2proc"))  # type: ignore[attr-defined]
    span = ask(shown, "overview", {}).header["time"]
    first, second = list(dict.fromkeys(str(p.pid) for p in shown.profile.processes if p.pid > 0))[:2]
    with serving(shown) as at, looking_at(browser, at) as page:
        for pid in (first, second):
            page.locator("select[data-filter=pid]").select_option(pid)
        chips = page.get_by_role("list", name="Filters in force")
        chips.get_by_role("button", name=f"Remove Process {second}").wait_for()
        assert f"pid={first}%2C{second}" in page.url
        chips.get_by_role("button", name=f"Remove Process {first}").click()
        page.wait_for_url(f"**pid={second}")
        box = page.get_by_role("img", name="Samples over time", exact=True).bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 5)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)
        page.mouse.up()
        chips.get_by_text("Time").wait_for()
        asked = dict(part.split("=") for part in page.url.partition("?")[2].split("&"))
        length = span["to"] - span["from"]
        assert int(asked["from"]) - span["from"] == pytest.approx(length / 4, rel=0.02)
        assert int(asked["to"]) - span["from"] == pytest.approx(length / 2, rel=0.02)
        chips.get_by_role("button", name="Clear all").click()
        chips.wait_for(state="detached")
        assert "?" not in page.url


def test_the_targets_of_a_site_are_its_branches(run: Callable[..., Ran], browser: Browser, address: str) -> None:
    words = (demo.capture(), "--symfs", demo.symfs(), "--limit", "0", "--format", "json")
    edges = json.loads(run("branches", *words).out)
    (most,) = [row for row in json.loads(run("branches", "--by", "site", *words).out) if row["targets"] > 3][:1]
    with looking_at(browser, f"{address}#/branches?find={most['from'].replace('+', '%2B')}") as page:
        (site,) = cells(page, "Sites")
        assert (site["count"], site["targets"]) == (f"{most['count']:,}", str(most["targets"]))
        page.get_by_role("grid", name="Sites").press("Enter")
        wanted = {(row["to"], f"{row['count']:,}") for row in edges if row["from"] == most["from"]}
        assert {(row["to"], row["count"]) for row in cells(page, "Targets")} == wanted
        page.get_by_role("grid", name="Targets").press("Enter")
        page.wait_for_url("**/function?*")
        assert "start=0x" in page.url
        assert "at=0x" in page.url


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


HOSTILE = ("<script>document.title='owned'</script>", "<img src=x onerror=alert(1)>", "\x1b[31mred", "x" * 100_000)


def test_names_are_text_and_nothing_else(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    """As functions, module and process, on every screen, served and in a file."""
    path = build(tmp_path / "x.data", name="/bin/" + HOSTILE[0].replace("/", "|"))
    starts = np.arange(0, 32, 8, dtype=np.uint64)
    table = FunctionTable(starts, starts + np.uint64(8), [Function(name, name) for name in HOSTILE])
    monkeypatch.setattr(Symbolizer, "functions", lambda self, module: table)
    out = tmp_path / "out.html"
    assert run("view", path, "--html", out).code == 0
    with serving(loaded(path)) as served:
        for at in (served, out.as_uri()):
            with looking_at(browser, at) as page:
                for screen in SCREENS:
                    go_to(page, at, screen)
                    assert "owned" not in page.title()
                    assert page.locator("main img, main script").count() == 0
                    assert "\x1b" not in page.content()
                go_to(page, at, "hot")
                shown = {row["function"][:20] for row in cells(page, "Functions")} - {"[unknown]"}
                assert shown == {name.replace("\x1b", "\\x1b")[:20] for name in HOSTILE}


def test_the_file_that_is_opened_leads_to_the_page(
    browser: Browser, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.get", lambda: None)
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    path = open_browser(address + "#/branches?view=edges&find=main")
    assert path is not None
    with looking_at(browser, path.as_uri()) as page:
        assert cells(page, "Branches")
        assert page.url == address + "#/branches?view=edges&find=main"


@pytest.mark.parametrize("mode", ["cors", "no-cors"])
def test_another_page_cannot_have_an_answer(browser: Browser, address: str, mode: str) -> None:
    """Not even one of this machine that knows the token."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{other.server_port}/")
        ask = "([to, mode]) => fetch(to, {mode}).then(() => 'answered', () => 'failed')"
        seen = page.evaluate(ask, [address + "ask/hot", mode])
        context.close()
        other.shutdown()
        thread.join()
    assert seen == "failed"


class _Empty(BaseHTTPRequestHandler):
    """A page without a policy."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><link rel=icon href=data:,>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_was_ended_is_said_on_the_page(browser: Browser) -> None:
    with serving(loaded(demo.capture())) as at:
        context = browser.new_context()
        page = context.new_page()
        page.goto(at)
        cells(page, "Functions")
    page.keyboard.press("4")
    assert "does not answer" in page.get_by_role("alert").inner_text()
    context.close()


def test_what_cannot_be_shown_says_why(browser: Browser, tmp_path: Path) -> None:
    with (
        serving(loaded(build(tmp_path / "x.data", stacks=False))) as at,
        looking_at(browser, f"{at}#/branches") as page,
    ):
        said = page.get_by_role("alert").inner_text()
        assert "no branch stacks" in said
        assert "perf record" in said
        page.keyboard.press("1")
        rows = cells(page, "Functions")
        assert sum(int(row["samples"]) for row in rows) == 30
        assert {*rows[0]} == {"function", "module", "samples", "share", "noise", "over_time"}
        left_out = page.get_by_text("Not known:")
        assert left_out.inner_text() == "Not known: Instructions, Mispredicted, Cycles/branch"
        assert "Instructions: No branch stacks" in (left_out.get_attribute("title") or "")
        warning = page.locator(".file-warning").inner_text()
        assert "no branch stacks: record with `perf record -b`" in warning


def test_a_damaged_file_shows_what_precedes_the_damage(
    run: Callable[..., Ran], browser: Browser, tmp_path: Path
) -> None:
    whole = build(tmp_path / "whole.data").read_bytes()
    path, out = tmp_path / "x.data", tmp_path / "out.html"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    told = run("report", path, "--by", "function", "--format", "json")
    samples = sum(row["samples"] for row in json.loads(told.out))
    assert 0 < samples < 30
    run("view", path, "--html", out)
    with serving(loaded(path)) as served:
        for at in (served, out.as_uri()):
            with looking_at(browser, at) as page:
                assert sum(int(row["samples"]) for row in cells(page, "Functions")) == samples
                warning = page.locator(".file-warning").inner_text()
                damage = told.err.splitlines()[0].partition("x.data: ")[2]
                assert damage in warning


@pytest.mark.parametrize("how", ["removed", "cut", "replaced"])
def test_a_file_that_is_another_now_is_not_counted(browser: Browser, tmp_path: Path, how: str) -> None:
    path, other = build(tmp_path / "x.data"), build(tmp_path / "y.data")
    with serving(loaded(path)) as at, looking_at(browser, at) as page:
        before = cells(page, "Functions")
        if how == "removed":
            path.unlink()
        elif how == "cut":
            path.write_bytes(path.read_bytes()[:-100])
        else:
            other.replace(path)
        page.keyboard.press("4")
        said = page.get_by_role("alert").inner_text()
        assert "x.data is not there any more" in said if how == "removed" else "changed or replaced" in said
        assert "start it again" in said
        page.keyboard.press("1")
        assert cells(page, "Functions") == before  # they were counted when it was the same


PANELS = ("source", "graph", "loops", "cycles", "targets")


EVERYWHERE = (*SCREENS, *(f"function?name=dispatch&beside={panel}" for panel in PANELS))


def go_to(page: Page, address: str, screen: str) -> None:
    """Another screen of the page that is open, all of it."""
    page.goto(f"{address}#/{screen}")
    page.locator(f"[aria-current=page][href^='#/{screen.partition('?')[0]}']").wait_for()
    settled(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_the_page_fits(browser: Browser, address: str, scheme: str) -> None:
    axe = (node_modules() / "axe-core" / "axe.min.js").read_text()
    with looking_at(browser, address, scheme=scheme, width=1000) as page:
        page.evaluate(axe)
        for screen in EVERYWHERE:
            go_to(page, address, screen)
            found = page.evaluate("async () => (await axe.run()).violations")
            assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == [], screen
            assert page.evaluate("document.documentElement.scrollWidth") == 1000, screen


CONTROLS = """() => [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex]")]
    .filter(one => !one.disabled && one.checkVisibility())"""
IN_ROWS = "one => one.tabIndex < 0 && one.closest('[role=grid]')"
"""A table is one control, whose keys do what links and buttons in its rows do."""


def test_tab_reaches_every_control_of_every_screen_and_gets_out_of_it(browser: Browser, address: str) -> None:
    with looking_at(browser, address) as page:
        for screen in EVERYWHERE:
            go_to(page, address, screen)
            for _ in range(page.evaluate(f"({CONTROLS})().filter(one => one.tabIndex >= 0).length") + 1):
                page.keyboard.press("Tab")
                page.evaluate("document.activeElement.dataset.reached = 'yes'")
            left = f"({CONTROLS})().filter(one => !one.dataset.reached && !({IN_ROWS})(one)).map(one => one.outerHTML)"
            assert page.evaluate(left) == [], screen


def test_an_address_brings_the_same_view_again_and_back_the_one_before(browser: Browser, address: str) -> None:
    steps: tuple[tuple[str, str], ...] = (
        ("hot", "[aria-label='Screens'] a >> text=Branches"),
        ("branches", ".views button >> text=Edges"),
        ("branches?view=edges", "[aria-label='Screens'] a >> text=Flame"),
        ("flame", "label >> text=Table"),
        ("flame?table=1", "[aria-label='Screens'] a >> text=Capture"),
        ("capture", ""),
    )
    with looking_at(browser, f"{address}#/hot") as page:
        seen = []
        for at, press in steps:
            page.wait_for_url(f"**#/{at}")
            settled(page)
            page.reload()
            settled(page)
            seen.append(page.locator("main").inner_text())
            if press:
                page.locator(press).click()
        assert len(set(seen)) == len(seen)
        for (at, _), text in zip(steps[-2::-1], seen[-2::-1], strict=True):
            page.go_back()
            page.wait_for_url(f"**#/{at}")
            settled(page)
            assert page.locator("main").inner_text() == text


def frames(page: Page) -> list[tuple[int, int]]:
    return [(int(row["samples"].replace(",", "")), int(row["own"].replace(",", ""))) for row in cells(page, "Frames")]


def test_flame_has_the_stacks_of_the_verb_either_way_up(
    run: Callable[..., Ran], browser: Browser, address: str
) -> None:
    lines = run("stacks", demo.capture(), "--symfs", demo.symfs()).out.splitlines()
    stacks = [(line.rpartition(" ")[0].split(";")[1:], int(line.rpartition(" ")[2])) for line in lines]
    for callers in ("", "1"):
        total, own = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        for stack, weight in stacks:
            path = tuple(reversed(stack) if callers else stack)
            total.update({path[: depth + 1]: weight for depth in range(len(path))})
            own[path] += weight
        with looking_at(browser, f"{address}#/flame?table=1&callers={callers}&sort=-samples") as page:
            found = frames(page)
        heaviest = sorted(total.values(), reverse=True)
        assert len(found) >= min(20, len(total))
        assert [samples for samples, _ in found] == heaviest[: len(found)]
        assert Counter(found) <= Counter((total[path], own[path]) for path in total)


def test_flame_by_keyboard(run: Callable[..., Ran], browser: Browser, address: str) -> None:
    with looking_at(browser, f"{address}#/flame") as page:
        picture = page.get_by_role("application")
        picture.focus()
        page.keyboard.press("ArrowDown")
        root = page.locator(".tip b").inner_text()
        page.keyboard.press("ArrowDown")
        child = page.locator(".tip b").inner_text()
        assert child != root
        page.keyboard.press("Enter")
        page.wait_for_url("**zoom=*")
        page.locator(".tip", has_text=f"of {child}").wait_for()
        page.keyboard.press("ArrowUp")
        assert page.locator(".tip b").inner_text() == root
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Show all").wait_for(state="detached")
        assert "zoom=" not in page.url
        page.keyboard.press("/")
        page.keyboard.type("dispatch")
        lines = run("stacks", demo.capture(), "--symfs", demo.symfs()).out.splitlines()
        weights = {line: int(line.rpartition(" ")[2]) for line in lines}
        share = sum(weight for line, weight in weights.items() if "dispatch" in line) / sum(weights.values())
        assert share > 0
        assert page.locator(".matched").inner_text() == f"in {100 * share:.2f} % of the samples"


def test_pauses_of_the_kernel_are_no_losses(browser: Browser, tmp_path: Path) -> None:
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    b.sample(ip=0x1000, pid=7, tid=7, time=1000)
    b.record("THROTTLE", time=5000)
    b.record("LOST", id=1, lost=7, pid=7, tid=7, time=5001)
    (tmp_path / "it.data").write_bytes(b.build())
    with serving(loaded(tmp_path / "it.data")) as at, looking_at(browser, f"{at}#/capture") as page:
        page.get_by_role("heading", name="Losses").wait_for()
        said = page.locator("section:has(dl.facts)").all_inner_texts()
    recording, losses = (next(one for one in said if one.startswith(title)) for title in ("Recording", "Losses"))
    assert "1 time" in recording.partition("throttled")[2]
    assert "throttle" not in losses
    assert "7" in losses
