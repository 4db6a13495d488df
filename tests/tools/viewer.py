"""A viewer that serves, a browser that looks at it, and captures to show."""

from __future__ import annotations

import http.client
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import uvicorn

import lastbranch
from lastbranch.symbols import SymbolOptions
from lastbranch.view.growing import GrowingCapture
from lastbranch.view.kept import KeptAnswers
from lastbranch.view.loaded import Loaded
from lastbranch.view.security import new_token
from lastbranch.view.server import listen, settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first takes half the CPU time of the others: it is the same without windows."""
_QUIET = (
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync",
    "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
)  # fmt: skip
"""A browser that asks for nothing but what the page asks for, and needs no display and little shared memory."""


def loaded(path: str | Path, symfs: str | Path | None = None) -> Loaded:
    """The capture at ``path``, as `lastbranch view` opens it."""
    profile = lastbranch.open(path, symfs=str(symfs) if symfs else None)
    return Loaded(profile, SymbolOptions(cache=None), (str(path),), str(symfs) if symfs else None)


class _Server(uvicorn.Server):
    """In a thread of the tests, which gets no signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def serving(shown: Loaded, kept: KeptAnswers | None = None, growing: GrowingCapture | None = None) -> Iterator[str]:
    """The address of a viewer of ``shown``, which ends with the ``with`` block; answers come from ``kept``,
    newer states from ``growing``."""
    listening, token = listen(), new_token()
    port = listening.getsockname()[1]
    server = _Server(settings(shown, port, token, kept=kept, growing=growing))
    listening.listen()
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/{token}/"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def chromium() -> Iterator[Browser]:
    """An installed Chromium, driven by Playwright; the test is skipped where one of them is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(CHROMIUM)} is installed")
    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # it refuses to run otherwise
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*_QUIET, *root])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def looking_at(browser: Browser, address: str, *, scheme: str = "light", width: int = 1000) -> Iterator[Page]:
    """A page of its own at ``address``. Errors in the page and messages of its policy fail the test."""
    context = browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme)  # type: ignore[arg-type]
    page, wrong = context.new_page(), list[str]()
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    page.goto(address)
    try:
        yield page
    finally:
        context.close()
    assert wrong == []


def cells(page: Page, label: str) -> list[dict[str, str]]:
    """The rows of a table that are in view: what each says, by the keys of its columns."""
    rows = page.get_by_role("grid", name=label).locator(".body [role=row]")
    rows.first.wait_for()
    script = "rows => rows.map(row => Object.fromEntries([...row.children].map(c => [c.dataset.column, c.innerText])))"
    found: list[dict[str, str]] = rows.evaluate_all(script)
    return found


def settled(page: Page) -> None:
    """Wait until the screen shows all that it asked for."""
    page.locator("main > *").first.wait_for()
    page.locator("[aria-busy=true], .waiting").first.wait_for(state="detached")
    page.evaluate(TWO_FRAMES)


TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
"""A page's observers of sizes are called at the end of a frame; their changes are drawn before the end of the next
frame."""


def frames(address: str, path: str) -> list[tuple[bytes, bytes]]:
    """The parts of a response."""
    at = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", at.port, timeout=60)
    connection.request("GET", at.path + path)
    data, found = connection.getresponse().read(), []
    connection.close()
    while data:
        kind, size = struct.unpack_from("<4sI", data)
        found.append((kind, data[8 : 8 + size]))
        data = data[8 + size :]
    return found


def node_modules() -> Path:
    """The installed packages of web/; the test is skipped where there are none."""
    path = Path(__file__).parents[2] / "web" / "node_modules"
    if not path.is_dir() or shutil.which("node") is None:
        pytest.skip("node, or web/node_modules, is missing: `make web` installs the packages")
    return path


def run_viewer(*words: str | Path) -> subprocess.Popen[str]:
    """`lastbranch view` in a process of its own."""
    command = [sys.executable, "-m", "lastbranch", "view", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
