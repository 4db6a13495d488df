"""``lastbranch view`` as a program: how it begins, ends and refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from capture_tools import needs_ptrace
from command_line import Ran
from lastbranch import demo
from lastbranch.view.loaded import Loaded
from small_captures import build
from viewer import run_viewer

Run = Callable[..., Ran]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to send")
def test_it_prints_the_address_and_ctrl_c_ends_it() -> None:
    viewer = run_viewer(demo.capture(), "--no-open", "--pid", "7")
    assert viewer.stdout is not None
    said = [viewer.stdout.readline().strip() for _ in range(2)]
    found = re.fullmatch(r"(http://127\.0\.0\.1:\d+/[\w-]{20,}/)#/hot\?pid=7", said[1])
    assert found is not None
    with urllib.request.urlopen(found[1], timeout=60) as page:
        assert b"<title>lastbranch</title>" in page.read()
    with urllib.request.urlopen(found[1] + "ask/hot", timeout=60) as answer:
        assert answer.read(4) == b"LBV1"
    viewer.send_signal(signal.SIGINT)
    out, err = viewer.communicate(timeout=60)
    assert (viewer.returncode, out, err) == (0, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to send")
def test_a_missing_browser_prints_the_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no browser to be found
    monkeypatch.setenv("BROWSER", str(tmp_path / "none"))
    monkeypatch.delenv("DISPLAY", raising=False)
    viewer = run_viewer(demo.capture())
    assert viewer.stdout is not None
    said = [viewer.stdout.readline() for _ in range(2)]
    viewer.send_signal(signal.SIGINT)
    viewer.communicate(timeout=60)
    assert "No browser" in said[0]
    assert said[1].startswith("http://127.0.0.1:")


@pytest.mark.skipif(sys.platform == "win32", reason="the browser is a shell script")
def test_no_command_line_shows_the_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script, seen = tmp_path / "browser", tmp_path / "seen"
    script.write_text(
        f'#!/bin/sh\necho "$@" > {seen}.part\ncp "${{1#file://}}" {tmp_path}/page\nmv {seen}.part {seen}\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    viewer = run_viewer(demo.capture())
    assert viewer.stdout is not None
    assert "open in the browser" in viewer.stdout.readline()
    printed = viewer.stdout.readline().strip()  # for who has a browser that may not read the file
    given = seen.read_text()
    address = re.search(r"url=(http://127\.0\.0\.1:\d+/([\w-]+)/)", (tmp_path / "page").read_text())
    assert address is not None
    assert address[1] == printed
    file = Path(given.strip().removeprefix("file://"))
    assert file.exists()
    with urllib.request.urlopen(printed, timeout=60):
        assert not file.exists()  # it has led there: nothing that ends the viewer leaves it
    assert address[2] not in given
    if os.path.exists("/proc"):
        assert address[2] not in Path(f"/proc/{viewer.pid}/cmdline").read_text()
    viewer.send_signal(signal.SIGINT)
    viewer.communicate(timeout=60)
    assert viewer.returncode == 0


def test_a_port_in_use_is_an_error_with_a_hint(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("view", demo.capture(), "--no-open", "--port", str(port))
    assert done.code == 5
    assert f"error: port {port} of 127.0.0.1 is in use" in done.err
    assert "hint: omit --port" in done.err


def test_an_existing_file_stays(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    out.write_text("mine")
    done = run("view", demo.capture(), "--html", out)
    assert done.code == 2
    assert out.read_text() == "mine"
    assert run("view", demo.capture(), "--html", out, "--force").code == 0
    assert out.read_text().startswith("<!doctype html>")


def test_a_file_is_the_same_each_time_and_names_no_other_place(run: Run, tmp_path: Path) -> None:
    one, two = tmp_path / "1.html", tmp_path / "2.html"
    capture = build(tmp_path / "x.data", name="/bin/<script>alert(1)</script>")
    assert run("view", capture, "--html", one).code == run("view", capture, "--html", two).code == 0
    text = one.read_text()
    assert one.read_bytes() == two.read_bytes()
    assert "alert(1)" not in text  # names are in compressed answers only
    code, licences = re.subn(r'<script type="text/plain" id="licences.txt">.*?</script>', "", text, flags=re.DOTALL)
    assert licences == 1  # they name where things are from
    assert set(re.findall(r"https?://[\w./]+", code)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1998/Math/MathML",
        "http://www.w3.org/1999/xhtml",
    }


@needs_ptrace
def test_a_recording_is_shown_when_it_is_done(monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path) -> None:
    shown: list[Loaded] = []
    monkeypatch.setattr("lastbranch.view.server.serve", lambda loaded, *rest: shown.append(loaded))
    out = tmp_path / "it.tb5"
    done = run("record", "--engine", "software", "--no-progress", "-o", out, "--view", "--", "sh", "-c", "exit 3")
    assert done.code == 3  # that of the program
    (loaded,) = shown
    assert loaded.paths == (str(out),)
    assert loaded.profile.format == "tb5"


def test_what_is_no_capture_is_refused_as_by_every_verb(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nothing")
    assert run("view", tmp_path / "x", "--no-open").code == 3
    assert run("view", demo.capture(), "--event", "nothing", "--no-open").code == 2
