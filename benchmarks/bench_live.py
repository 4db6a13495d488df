"""What does `lastbranch record --live` cost a recording, and how far is the screen behind?

    python benchmarks/bench_live.py [--only cost lag size] [--rounds 5] [--seconds 20] [--threads 1 2] [--json FILE]

The recording has a viewer all the time: a client of the event stream that asks for the data of the first screen and
draws nothing, which measures the viewer's server alone; and, in separate runs, pages in a real Chromium, if Playwright
and Chromium are installed.

``cost``: in each round recordings of one program run in turns (`in_turn`): without --live, live with a client, live
with a page, and again without. Times of the program and its recorder count until the recording is written. The CPU time
of the viewer's process is separate: until its address is printed, and for each second after that. Target: 1.01 times
the wall time with a client. The additional time with a page is the browser's, whose CPU time is shown, too. The control
is one run without --live over the other.

``lag``: the time from the time stamp of a sample until the client has the sample, and until a page shows the sample,
for all samples after the first picture. Target: 2 s at most. ``first`` is the time from the first sample to the first
picture; the browser runs already.

``size``: the same for a recording that grows by ``--rate`` samples a second: the benchmark writes the samples of the
packaged capture again and again at that rate, and the process that --live starts shows the recording. Target: 2 s.

Lags are only meaningful on an otherwise idle machine. On a loaded machine, CPU times mean more than wall times."""

from __future__ import annotations

import argparse
import http.client
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import lastbranch
from bench_record import SOURCE, compiled, environment, rounds_for
from bench_top import parts_of
from in_turn import Groups, run_in_turn
from lastbranch import demo
from lastbranch.view import wire
from measure import Command, Row, Run, run_parts, summarise

_CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_QUIET = ["--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-gpu"]
_ADDRESS = re.compile(r"^http://\S+", re.MULTILINE)
_DONE = "the viewer goes on"
_MOST_LAG, _MOST_COST = 2.0, 1.01
_TICKS = os.sysconf("SC_CLK_TCK")
_KILLED = -signal.SIGKILL
_LOOK = 0.01
_FRAME = 8
"""Bytes before the answer: `lastbranch.view.server` frames it."""
_TURN = 3.0
"""Seconds. The viewer looks at the file at once when it may run again, so short turns have more looks than seconds."""
_WATCH = """() => {
    window.seen = [];
    const look = () => {
        let sum = 0;
        for (const cell of document.querySelectorAll("[role=grid] .body [role=row] [data-column=samples]"))
            sum += Number(cell.textContent.replaceAll(",", ""));
        const last = seen.at(-1);
        if (sum && sum !== last?.[1]) seen.push([performance.timeOrigin + performance.now(), sum]);
    };
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
    look();
}"""
"""Note when the number of samples in the table of functions changes; all rows are in view."""


class Looker(threading.Thread):
    """Looks at the viewer whose address is in ``said``, until `stop`: a page, or a client. `seen` has (monotonic
    seconds, samples shown)."""

    def __init__(self, said: Path, *, page: bool) -> None:
        super().__init__(daemon=True)
        self._said, self._end, self._page = said, threading.Event(), page
        self._ready = threading.Event()
        self.seen: list[tuple[float, int]] = []
        self.browser = 0.0
        """CPU seconds of the browser's processes while it looked."""
        self.start()
        self._ready.wait()

    def stop(self) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        try:
            with suppress(OSError, http.client.HTTPException):  # the viewer was killed
                (self._by_page if self._page else self._by_events)()
        finally:
            self._ready.set()

    def _address(self) -> str | None:
        while (found := _address(self._said)) is None:
            if self._end.wait(_LOOK):
                return None
        return found

    def _by_page(self) -> None:
        from playwright.sync_api import Error, sync_playwright

        with sync_playwright() as playwright:
            root = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=_chromium(), args=[*_QUIET, *root])
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.set_default_timeout(600_000)
            began = _cpu_of_children(os.getpid(), _is_browser)
            self._ready.set()
            with suppress(Error):
                if (address := self._address()) is not None:
                    page.goto(address, wait_until="commit")
                    page.locator("[role=grid] .body [role=row]").first.wait_for()
                    page.evaluate(_WATCH)
                    offset = time.time() - time.monotonic()
                    while not self._end.is_set():
                        page.wait_for_timeout(200)
                        self.seen = [(at / 1e3 - offset, number) for at, number in page.evaluate("() => seen")]
                        self.browser = _cpu_of_children(os.getpid(), _is_browser) - began
            browser.close()

    def _by_events(self) -> None:
        self._ready.set()
        address = self._address()
        if address is None:
            return
        at = urlsplit(address)
        events = http.client.HTTPConnection("127.0.0.1", at.port or 0, timeout=600)
        events.request("GET", f"{at.path}events")
        response = events.getresponse()
        while not self._end.is_set() and (line := response.readline()):
            if not line.startswith(b"data: "):
                continue
            asks = http.client.HTTPConnection("127.0.0.1", at.port or 0, timeout=600)
            for question in ("hot", "overview", "timeline"):
                asks.request("GET", f"{at.path}watch/{question}")
                answer = asks.getresponse().read()
                if question == "hot":
                    samples = int(np.sum(wire.decode(answer[_FRAME:]).columns["samples"]))
                    if samples and (not self.seen or self.seen[-1][1] != samples):
                        self.seen.append((time.monotonic(), samples))
            asks.close()


def _address(said: Path) -> str | None:
    found = _ADDRESS.search(said.read_text() if said.exists() else "")
    return found[0].strip() if found else None


def _chromium() -> str | None:
    found: Callable[[str], str | None] = shutil.which
    return next(filter(None, map(found, _CHROMIUM)), None)


def _viewer_of(recorder: int) -> int | None:
    """The process that serves the viewer of a recorder."""
    for name in Path(f"/proc/{recorder}/task/{recorder}/children").read_text().split():
        with suppress(OSError):
            if b"live_process" in Path(f"/proc/{name}/cmdline").read_bytes():
                return int(name)
    return None


def _cpu(pid: int | None) -> float:
    """Seconds of CPU of a process."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS
    return 0.0


def _is_browser(command: bytes) -> bool:
    return b"chrom" in command or b"headless" in command


def _cpu_of_children(parent: int, wanted: Callable[[bytes], bool]) -> float:
    """CPU seconds of all descendants of a process whose command line is ``wanted``."""
    total, waiting = 0.0, [parent]
    while waiting:
        one = waiting.pop()
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{one}/task"):
                waiting += map(int, Path(f"/proc/{one}/task/{thread}/children").read_text().split())
            if one != parent and wanted(Path(f"/proc/{one}/cmdline").read_bytes()):
                total += _cpu(one)
    return total


class Ender(threading.Thread):
    """Kills the recorder whose id is in ``pid`` as soon as ``said`` has that its recording is written, and notes what
    its viewer has taken until then: how long that takes to end is no cost of the recording."""

    def __init__(self, pid: Path, said: Path) -> None:
        super().__init__(daemon=True)
        self._pid, self._said = pid, said
        self.started = self.viewer = 0.0
        """CPU seconds until the viewer had an address, and in all."""
        self.start()

    def run(self) -> None:
        while _address(self._said) is None:
            time.sleep(_LOOK)  # only the log says when it serves
        recorder = int(self._pid.read_text())
        viewer = _viewer_of(recorder)
        self.started = _cpu(viewer)
        while _DONE not in self._said.read_text():
            time.sleep(_LOOK)  # only the log says when the recording is written
        self.viewer = _cpu(viewer)
        os.kill(recorder, signal.SIGKILL)
        if viewer is not None:
            os.kill(viewer, signal.SIGKILL)


def _recording(output: Path, *options: str) -> list[str]:
    words = ["record", "--engine", "software", "--no-progress", *options, "-o", str(output), "--"]
    return [sys.executable, "-m", "lastbranch", *words]


def _compile_modules(folder: Path) -> None:
    """Have all modules compiled, as where the package is installed: a short recording, of which somebody asks."""
    said = folder / "first.log"
    said.unlink(missing_ok=True)
    looker = Looker(said, page=False)
    with said.open("wb") as log:
        words = [*_recording(folder / "first.tb5", "--live", "--no-open"), sys.executable, "-c", "sum(range(10**8))"]
        process = subprocess.Popen(words, env={**os.environ, **environment(folder)}, stdout=log, stderr=log)
    while process.poll() is None and _DONE not in said.read_text():
        time.sleep(_LOOK)  # only the log says when the recording is written
    looker.stop()
    process.send_signal(signal.SIGINT)
    process.wait()


# -- what it costs


def _of_cost(folder: Path, arguments: argparse.Namespace) -> list[list[Row]]:
    program = compiled(folder, "program", SOURCE, "-pthread")
    return [_cost(folder, program, threads, arguments) for threads in arguments.threads]


def _kinds() -> dict[str, bool]:
    """Who looks, and whether it is a page."""
    return {"client": False, **({"page": True} if _chromium() and find_spec("playwright") else {})}


def _cost(folder: Path, program: Path, threads: int, arguments: argparse.Namespace) -> list[Row]:
    words = [str(program), str(threads), str(rounds_for(program, threads, arguments.seconds))]
    env, pid, name, kinds = environment(folder), folder / "pid", f"{threads} threads", _kinds()
    commands = [
        Command(
            one,
            [
                "/bin/sh",
                "-c",
                f'echo $$ > {pid}-{one}; exec "$@"',
                "sh",
                *_recording(folder / f"{one}.tb5", *(["--live", "--no-open"] if one in kinds else [])),
                *words,
            ],
            folder / f"{one}.log",
            env=env,
        )
        for one in ("before", *kinds, "after")
    ]
    _compile_modules(folder)
    found: dict[str, list[tuple[Run, Run, Run]]] = {one: [] for one in kinds}
    starts: dict[str, list[float]] = {one: [] for one in kinds}
    rates: dict[str, list[float]] = {one: [] for one in kinds}
    browsers: dict[str, list[float]] = {one: [] for one in kinds}
    groups = Groups()
    try:
        for _ in range(arguments.rounds):
            lookers, enders = {}, {}
            for one, page in kinds.items():
                log = folder / f"{one}.log"
                log.unlink(missing_ok=True)
                lookers[one], enders[one] = Looker(log, page=page), Ender(Path(f"{pid}-{one}"), log)
            before, *live, after = run_in_turn(commands, groups, _TURN)
            for one, run in zip(kinds, live, strict=True):
                looker, ender = lookers[one], enders[one]
                ender.join()
                looker.stop()
                found[one].append((before, run, after))
                starts[one].append(ender.started)
                rates[one].append((ender.viewer - ender.started) / run.wall)
                browsers[one].append(looker.browser / run.wall)
                print(
                    f"{name}, {one}: {_figures(found[one][-1])}, viewer {ender.started:.2f} s of CPU to start and "
                    f"{rates[one][-1] * 1e3:.0f} ms/s, browser {browsers[one][-1] * 1e3:.0f} ms/s, "
                    f"{len(looker.seen)} states",
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        groups.close()
    rows = [summarise(f"recorded, {name}", "", [run for one in found["client"] for run in (one[0], one[2])])]
    for one, runs in found.items():
        medians = [statistics.median(each[i] for each in map(_ratios, runs)) for i in range(3)]
        failed = any(run.exit_code not in (0, _KILLED) for each in runs for run in each)
        verdict = "void: a run failed" if failed else "meets" if medians[0] <= _MOST_COST else "MISSES"
        target = f"{verdict} {_MOST_COST} times; " if failed or one == "client" else ""
        said = (
            f"{target}medians: times {medians[0]:.3f}, control {medians[1]:.3f}, CPU times {medians[2]:.3f}; viewer "
            f"{statistics.median(starts[one]):.2f} s of CPU to start, {statistics.median(rates[one]) * 1e3:.0f} ms/s"
        )
        if one == "page":
            said += f"; browser {statistics.median(browsers[one]) * 1e3:.0f} ms/s"
        rows.append(summarise(f"recorded live, {one}, {name}", said, [each[1] for each in runs]))
    return rows


def _ratios(runs: Sequence[Run]) -> tuple[float, float, float]:
    """(times the wall time, control, times the CPU time)."""
    before, live, after = runs
    cpus = [run.user + run.system for run in runs]
    return 2 * live.wall / (before.wall + after.wall), before.wall / after.wall, 2 * cpus[1] / (cpus[0] + cpus[2])


def _figures(runs: Sequence[Run]) -> str:
    return ", ".join(
        f"{name} {value:.3f}" for name, value in zip(("times", "control", "CPU times"), _ratios(runs), strict=True)
    )


# -- how far the screen is behind


def _of_lag(folder: Path, arguments: argparse.Namespace) -> list[list[Row]]:
    program = compiled(folder, "program", SOURCE, "-pthread")
    _compile_modules(folder)
    rows = []
    for threads in arguments.threads:
        words = [str(program), str(threads), str(rounds_for(program, threads, arguments.seconds))]
        rows += [_lag(folder, words, f"{one}, {threads} threads", page) for one, page in _kinds().items()]
    return [rows]


def _lag(folder: Path, words: list[str], name: str, page: bool) -> Row:
    out, log = folder / "lag.data", folder / "lag.log"
    log.unlink(missing_ok=True)
    looker = Looker(log, page=page)
    with log.open("wb") as said:
        recorder = subprocess.Popen(
            [*_recording(out, "--live", "--no-open"), *words],
            stdout=said,
            stderr=said,
            env={**os.environ, **environment(folder)},
        )
    while recorder.poll() is None and _DONE not in log.read_text():
        time.sleep(0.05)  # only the log says when the recording is written
    viewer = _viewer_of(recorder.pid)
    time.sleep(_MOST_LAG)  # what is shown later than that is late anyway
    cpu = _cpu(viewer)
    looker.stop()
    recorder.send_signal(signal.SIGINT)
    recorder.wait()
    times = np.concatenate([batch.time for batch in lastbranch.open(out).batches(("time",))])
    return _lag_row(name, np.sort(times) / 1e9, looker.seen, cpu, f"{out.stat().st_size / 1e6:.1f} MB")


def _lag_row(name: str, times: Any, seen: list[tuple[float, int]], cpu: float, size: str) -> Row:
    """``times`` (s, monotonic, of all samples in their order) against what was ``seen``."""
    if not seen:
        return Row(name, "void: the page showed nothing")
    shown, numbers = np.array([at for at, _ in seen]), np.maximum.accumulate([number for _, number in seen])
    which = np.searchsorted(numbers, np.arange(len(times)), side="right")
    counted = (times > shown[0]) & (which < len(shown))
    lags = shown[which[counted]] - times[counted]
    if not len(lags):
        return Row(name, "void: the page showed nothing new")
    never = int((times > shown[0]).sum()) - len(lags)
    most = float(lags.max())
    verdict = "void: not all were shown" if never else "meets" if most <= _MOST_LAG else "MISSES"
    said = (
        f"{verdict} {_MOST_LAG:g} s; first {shown[0] - times[0]:.1f} s, {len(seen)} states, {len(lags)} samples, "
        f"{never} never shown, {size}"
    )
    return Row(name, said, float(np.median(lags)), float(lags.min()), most, cpu, 0, 1)


# -- how that goes on as a recording grows


def _of_size(folder: Path, arguments: argparse.Namespace) -> list[list[Row]]:
    head, rest, samples = parts_of(str(demo.capture()))
    _compile_modules(folder)
    return [[_size(folder, head + rest, samples, one, page, arguments) for one, page in _kinds().items()]]


def _size(
    folder: Path, begin: bytes, samples: list[bytes], name: str, page: bool, arguments: argparse.Namespace
) -> Row:
    out, log = folder / "size.data", folder / "size.log"
    log.unlink(missing_ok=True)
    with open(out, "w+b", buffering=0) as file, log.open("wb") as said, ExitStack() as ends:
        file.write(begin)
        line, other = socket.socketpair()
        ends.enter_context(line)
        looker = Looker(log, page=page)
        with other:
            viewer = subprocess.Popen(
                [sys.executable, "-P", "-m", "lastbranch.view.live_process", str(out), ""],
                stdin=other.fileno(),
                stdout=said,
                stderr=said,
                env={**os.environ, **environment(folder)},
            )
        ends.callback(viewer.kill)
        socket.send_fds(line, [b"\n"], [file.fileno()])
        began, written = time.monotonic(), 0
        times = []
        while (now := time.monotonic() - began) < arguments.seconds:
            due = int(now * arguments.rate)
            file.write(b"".join(samples[i % len(samples)] for i in range(written, due)))
            times += [time.monotonic()] * (due - written)
            written = due
            time.sleep(0.05)  # samples arrive in pieces, as from a recorder
        time.sleep(10 * _MOST_LAG)  # what is not shown then never is
        cpu = _cpu(viewer.pid)
        looker.stop()
    name = f"{name}, {arguments.rate} samples/s"
    return _lag_row(name, np.array(times), looker.seen, cpu, f"{out.stat().st_size / 1e6:.0f} MB")


_PARTS: dict[str, Callable[[Path, argparse.Namespace], list[list[Row]]]] = {
    "cost": _of_cost, "lag": _of_lag, "size": _of_size,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost and delay of looking at a recording while it runs.")
    parser.add_argument("--only", nargs="+", choices=list(_PARTS), default=list(_PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20, help="how long programs run alone, about")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rate", type=int, default=10_000, help="samples a second")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    arguments = parser.parse_args()
    run_parts(_PARTS, arguments)


if __name__ == "__main__":
    main()
