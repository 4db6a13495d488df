"""How long does the viewer take on a large capture, from the command to the last number, in a real Chromium?

    python benchmarks/bench_view.py [--size 1GB] [--json FILE]

The capture has samples in each of 100,000 functions (many_functions.py). The server is `lastbranch view FILE --no-open`
in a process of its own, the browser Debian's Chromium under Playwright. The names of functions come from a warm cache,
and the file is in the page cache. Times of the page count from its navigation, those of the command from its start:

- shell: the menu is there;
- first table: rows of functions, from all samples or labelled as a part of the samples;
- complete: the table of all samples; its time from the start of the command is compared with `export --to counts`;
- scrolling: the time between frames while the table of all functions is scrolled to its end;
- flame graph, function of 2,000 blocks: from the change of the address to the answer that is drawn, about a part of the
  samples (first) and about all of them;
- gutter: from the change of the address back to that function, whose answer the page has kept, to its assembly with the
  arcs beside it; graph: from the choice of the panel to the picture, or to the reason why there is none;
- opened again: by another viewer, which finds the first viewer's counts on disk;
- single file: time to write the file, its size, and time to open it from disk.

CPU time, of the server and of all processes of the browser, counts until the same moment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from generate import parse_size
from many_functions import BLOCKS, Many, generate_many
from measure import Command, Row, columns, machine, run_once, warm, write_json
from ours import default_directory

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_QUIET = ["--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-gpu"]
_PATIENCE = 600_000
"""Milliseconds."""
_KEPT = 3
"""Answers of the first screen that are kept."""
_TICKS = os.sysconf("SC_CLK_TCK")
_FRAMES = """async () => {
    const grid = document.querySelector("[role=grid]"), times = [];
    const step = (grid.scrollHeight - grid.clientHeight) / 300;
    await new Promise((done) => {
        let last = 0;
        const frame = (now) => {
            if (last) times.push(now - last);
            last = now;
            grid.scrollTop += step;
            if (times.length < 300) requestAnimationFrame(frame); else done();
        };
        requestAnimationFrame(frame);
    });
    return times;
}"""


@dataclass(frozen=True)
class Measured:
    """One line: seconds, or another number with its unit."""

    name: str
    value: float
    unit: str = "s"
    limit: float | None = None
    server_cpu: float | None = None
    browser_cpu: float | None = None
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        cpu = ("-" if one is None else f"{one:.2f}" for one in (self.server_cpu, self.browser_cpu))
        limit = "" if self.limit is None else f"{self.limit:g} {self.unit}"
        met = "" if self.limit is None else "met" if self.value <= self.limit else "MISSED"
        return (self.name, f"{self.value:.3f} {self.unit}", *cpu, limit, f"{met}  {self.note}".strip())


def _cpu(pid: int, without: int = -1) -> float:
    """CPU seconds of a process, of its descendants that live, and of those that it has waited for, except the process
    ``without``."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(folder.name))
            spent[int(folder.name)] = sum(map(int, fields[11:15])) / _TICKS
    todo, total = [pid], 0.0
    while todo:
        one = todo.pop()
        if one == without:
            continue
        total += spent.get(one, 0)
        todo += parents.get(one, [])
    return total


@contextmanager
def _viewer(capture: Many) -> Iterator[tuple[str, int, float]]:
    """(address, pid, the time it was started)."""
    words = ["view", capture.perf_data, "--symfs", capture.symfs, "--no-open"]
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "lastbranch", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = next(line.strip() for line in process.stdout if line.startswith("http"))
        yield address, process.pid, began
    finally:
        process.terminate()
        process.wait()


def _page(browser: Browser) -> Page:
    page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.set_default_timeout(_PATIENCE)
    return page


def _served(browser: Browser, capture: Many) -> Iterator[Measured]:
    with _viewer(capture) as (address, pid, began):
        ready = time.perf_counter()
        yield Measured("the command until its address", ready - began, server_cpu=_cpu(pid))
        page, browser_before, server_before = _page(browser), _cpu(os.getpid(), pid), _cpu(pid)
        first = time.perf_counter()

        def since(name: str, limit: float | None = None, note: str = "") -> Measured:
            took = time.perf_counter() - first
            return Measured(
                name, took, "s", limit, _cpu(pid) - server_before, _cpu(os.getpid(), pid) - browser_before, note
            )

        page.goto(address, wait_until="commit")
        page.locator("header nav a").first.wait_for()
        yield since("shell", 0.5)
        page.locator("[role=grid] .body [role=row]").first.wait_for()
        label = page.locator(".part")
        yield since("first table", 2.0, label.inner_text()[:60] if label.count() else "all samples")
        page.locator("main .answered[aria-busy=false] [role=grid] .body [role=row]").first.wait_for()
        yield since("complete", note=page.locator(".counted").first.inner_text())
        yield Measured("complete, from the start of the command", time.perf_counter() - began, server_cpu=_cpu(pid))
        frames = sorted(page.evaluate(_FRAMES))
        slow = sum(frame > 33 for frame in frames) / len(frames)
        yield Measured(
            "scrolling: frames over 33 ms", 100 * slow, "%", 5, note=f"median {frames[len(frames) // 2]:.1f} ms"
        )
        yield _screen(page, pid, "flame graph", "flame", "canvas")
        name, place = f"function of {BLOCKS} blocks", "function?name=wide"
        first = time.perf_counter()
        yield _screen(page, pid, f"{name}: first", place, "canvas.gutter", busy=True)
        page.locator(f"{_WHOLE} canvas.gutter").wait_for()
        yield Measured(name, time.perf_counter() - first)
        _screen(page, pid, "", "hot", "[role=row]")
        yield _screen(page, pid, "gutter", place, "canvas.gutter", 0.3)
        graph = _screen(page, pid, "graph", f"{place}&beside=graph", ".graph svg, .refused", 2)
        refused = page.locator(".refused")
        yield replace(graph, note=refused.inner_text() if refused.count() else "drawn")
        _wait_until_kept()
        peak = Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]
        yield Measured("memory of the server, at most", int(peak) / 1000, "MB")


_WHOLE = "main .answered[aria-busy=false]"


def _screen(
    page: Page, pid: int, name: str, address: str, drawn: str, limit: float | None = None, *, busy: bool = False
) -> Measured:
    """From the change of the address until ``drawn`` is there, and all of the answer unless ``busy``."""
    before, server, browser = time.perf_counter(), _cpu(pid), _cpu(os.getpid(), pid)
    page.evaluate("address => { location.hash = address }", f"#/{address}")
    page.locator(f"{'main .answered' if busy else _WHOLE} :is({drawn})").first.wait_for()
    took = time.perf_counter() - before
    return Measured(name, took, "s", limit, _cpu(pid) - server, _cpu(os.getpid(), pid) - browser)


def _file(browser: Browser, capture: Many, folder: Path) -> Iterator[Measured]:
    out = folder / "view.html"
    words = ["view", capture.perf_data, "--symfs", capture.symfs, "--html", str(out), "--force"]
    run = run_once(Command("view --html", [sys.executable, "-m", "lastbranch", *words], folder / "view.log"))
    yield Measured(
        "single file: written in", run.wall, server_cpu=run.user + run.system, note=f"{run.peak / 1e6:.0f} MB"
    )
    yield Measured("single file: size", out.stat().st_size / 1e6, "MB", 25)
    page, asked = _page(browser), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    before, spent = time.perf_counter(), _cpu(os.getpid())
    page.goto(out.as_uri(), wait_until="commit")
    page.locator("[role=grid] .body [role=row]").first.wait_for()
    took = time.perf_counter() - before
    yield Measured("single file: first table", took, "s", 2, None, _cpu(os.getpid()) - spent)
    yield Measured("single file: requests beside the file", len(asked) - 1, "", 0)


def _again(browser: Browser, capture: Many) -> Iterator[Measured]:
    with _viewer(capture) as (address, pid, began):
        page = _page(browser)
        page.goto(address, wait_until="commit")
        page.locator("main .answered[aria-busy=false] [role=grid] .body [role=row]").first.wait_for()
        took = time.perf_counter() - began
        yield Measured("opened again: complete, from the start of the command", took, "s", 2, _cpu(pid))


def _wait_until_kept() -> None:
    """Counts are kept when nobody waits for an answer."""
    results, before = Path(os.environ["XDG_CACHE_HOME"], "lastbranch", "results"), -1
    while before != (before := len(list(results.glob("*.answer")))) or before < _KEPT:
        time.sleep(2)  # longer than between two results: an unchanged number is the last one


def _counts(capture: Many, folder: Path) -> Measured:
    words = [
        "export",
        capture.perf_data,
        "--symfs",
        capture.symfs,
        "--to",
        "counts",
        "-o",
        str(folder / "c"),
        "--force",
    ]
    run = run_once(Command("counts", [sys.executable, "-m", "lastbranch", *words], folder / "counts.log"))
    return Measured("export --to counts", run.wall, server_cpu=run.user + run.system)


def _against(counts: Measured, rows: list[Measured]) -> Iterator[Measured]:
    """The time until all samples were counted, in terms of `export --to counts`."""
    whole = next(row for row in rows if row.name.startswith("complete, from"))
    assert whole.server_cpu is not None
    assert counts.server_cpu is not None
    yield Measured("complete / export, wall", whole.value / counts.value, "times", 2.5)
    yield Measured("complete / export, CPU of the server", whole.server_cpu / counts.server_cpu, "times", 2.5)


def _print(rows: list[Measured]) -> None:
    head = ("", "value", "server CPU s", "browser CPU s", "aim", "")
    print(columns([head, *(row.cells() for row in rows)]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Times of the viewer in a real browser.")
    parser.add_argument("--size", type=parse_size, default=parse_size("1GB"))
    parser.add_argument("--directory", type=Path, default=default_directory())
    parser.add_argument("--json", type=Path, help="write the results here as well")
    arguments = parser.parse_args()
    found: Callable[[str], str | None] = shutil.which
    chromium = next(filter(None, map(found, _CHROMIUM)), None)
    if chromium is None:
        raise SystemExit("no Chromium was found: `make test-tools` installs one")
    folder: Path = arguments.directory
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    shutil.rmtree(folder / "cache" / "lastbranch" / "results", ignore_errors=True)
    capture = generate_many(folder, arguments.size)
    warm(capture.perf_data)
    about: dict[str, Any] = {"machine": machine(), "samples": capture.samples}
    _counts(capture, folder)  # compiles modules
    subprocess.run(  # reads the names into the cache
        [sys.executable, "-m", "lastbranch", "report", capture.perf_data, "--symfs", capture.symfs, "--by", "function"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    rows = [_counts(capture, folder)]
    with sync_playwright() as playwright:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=[*_QUIET, *root])
        rows += _served(browser, capture)
        rows += _against(rows[0], rows)
        rows += _again(browser, capture)
        rows += _file(browser, capture, folder)
        browser.close()
    print("  ".join(f"{key}: {value}" for key, value in about["machine"].items()))
    print(f"{arguments.size / 1e6:.0f} MB, {capture.samples} samples")
    _print(rows)
    if arguments.json:
        write_json(arguments.json, about, [Row(row.name, row.note, row.value, cpu=row.server_cpu) for row in rows])


if __name__ == "__main__":
    main()
