"""What does `lastbranch record --live` cost a recording, and how far is the screen behind?

    python benchmarks/bench_live.py [--only cost lag size] [--rounds 5] [--seconds 10] [--threads 1 2] [--json FILE]

A page looks all the time: in a real Chromium if Playwright and one are installed, else a client of the event stream
that asks for what the first screen shows.

``cost``: in each round three recordings of one program run in turns (`in_turn`): without --live, with it, and without.
The times are those until the recording is written: of the program and its recorder, and apart from them the CPU time of
the viewer's process. Target: 1.01 times the wall time. The control is one run without over the other.

``lag``: from the time stamp of a sample until the page shows it, for all samples that came after the page was there.
Target: 2 s at most.

``size``: the same for a recording that grows by ``--rate`` samples a second: those of the packaged capture are written
again and again at that rate, for three times as long, and shown by the process that --live starts. Target: 2 s.

On a machine that others load, the CPU times mean more than the wall times."""

from __future__ import annotations

import argparse
import http.client
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
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
_LOOK = 0.002
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
    """Looks at the viewer whose address is in ``said``, until `stop`. `seen` has (monotonic seconds, samples shown)."""

    def __init__(self, said: Path) -> None:
        super().__init__(daemon=True)
        self._said, self._end = said, threading.Event()
        self.seen: list[tuple[float, int]] = []
        self.start()

    def stop(self) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        while (found := _ADDRESS.search(self._said.read_text() if self._said.exists() else "")) is None:
            if self._end.wait(_LOOK):
                return
        with suppress(OSError, http.client.HTTPException):  # the viewer was killed
            (self._by_page if _chromium() and find_spec("playwright") else self._by_events)(found[0].strip())

    def _by_page(self, address: str) -> None:
        from playwright.sync_api import Error, sync_playwright

        with sync_playwright() as playwright:
            root = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=_chromium(), args=[*_QUIET, *root])
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.set_default_timeout(600_000)
            with suppress(Error):
                page.goto(address, wait_until="commit")
                page.locator("[role=grid] .body [role=row]").first.wait_for()
                page.evaluate(_WATCH)
                offset = time.time() - time.monotonic()
                while not self._end.is_set():
                    page.wait_for_timeout(50)
                    self.seen = [(at / 1e3 - offset, number) for at, number in page.evaluate("() => seen")]
            browser.close()

    def _by_events(self, address: str) -> None:
        at = urlsplit(address)
        connection = http.client.HTTPConnection("127.0.0.1", at.port or 0, timeout=600)
        connection.request("GET", f"{at.path}events")
        response = connection.getresponse()
        while not self._end.is_set() and (line := response.readline()):
            if line.startswith(b"data: "):
                for question in ("overview", "timeline", "hot"):
                    with urllib.request.urlopen(f"{address}ask/{question}", timeout=600) as answer:
                        found = wire.decode(answer.read())
                self.seen.append((time.monotonic(), int(np.sum(found.columns["samples"]))))


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


class Ender(threading.Thread):
    """Kills the recorder whose id is in ``pid`` as soon as ``said`` has that its recording is written, and notes what
    its viewer has taken until then: how long that takes to end is no cost of the recording."""

    def __init__(self, pid: Path, said: Path) -> None:
        super().__init__(daemon=True)
        self._pid, self._said = pid, said
        self.viewer = 0.0
        self.start()

    def run(self) -> None:
        while not (self._said.exists() and _DONE in self._said.read_text()):
            time.sleep(_LOOK)  # only the log says when the recording is written
        recorder = int(self._pid.read_text())
        viewer = _viewer_of(recorder)
        self.viewer = _cpu(viewer)
        os.kill(recorder, signal.SIGKILL)
        if viewer is not None:
            os.kill(viewer, signal.SIGKILL)


def _recording(output: Path, *options: str) -> list[str]:
    words = ["record", "--engine", "software", "--no-progress", *options, "-o", str(output), "--"]
    return [sys.executable, "-m", "lastbranch", *words]


# -- what it costs


def _of_cost(folder: Path, arguments: argparse.Namespace) -> list[list[Row]]:
    program = compiled(folder, "program", SOURCE, "-pthread")
    return [_cost(folder, program, threads, arguments) for threads in arguments.threads]


def _cost(folder: Path, program: Path, threads: int, arguments: argparse.Namespace) -> list[Row]:
    words = [str(program), str(threads), str(rounds_for(program, threads, arguments.seconds))]
    env, pid, name = environment(folder), folder / "pid", f"{threads} threads"
    before, live, after = (
        Command(one, ["/bin/sh", "-c", f'echo $$ > {pid}-{one}; exec "$@"', "sh", *_recording(
            folder / f"{one}.tb5", *(["--live", "--no-open"] if one == "live" else [])), *words],
            folder / f"{one}.log", env=env)
        for one in ("before", "live", "after")
    )  # fmt: skip
    subprocess.run(
        [*_recording(folder / "first.tb5"), "true"], check=True, env={**os.environ, **env}, stderr=subprocess.DEVNULL
    )
    found: list[tuple[Run, Run, Run]] = []
    viewers: list[float] = []
    groups = Groups()
    try:
        for _ in range(arguments.rounds):
            live.log.unlink(missing_ok=True)
            looker, ender = Looker(live.log), Ender(Path(f"{pid}-live"), live.log)
            one, other, third = run_in_turn([before, live, after], groups, 1.0)
            ender.join()
            looker.stop()
            found.append((one, other, third))
            viewers.append(ender.viewer)
            print(f"{name}: {_figures(found[-1])}, viewer {ender.viewer:.2f} s of CPU, "
                  f"{len(looker.seen)} states of the page", file=sys.stderr, flush=True)  # fmt: skip
    finally:
        groups.close()
    medians = [statistics.median(one[i] for one in map(_ratios, found)) for i in range(3)]
    failed = any(run.exit_code not in (0, _KILLED) for one in found for run in one)
    verdict = "void: a run failed" if failed else "meets" if medians[0] <= _MOST_COST else "MISSES"
    said = (
        f"{verdict} {_MOST_COST} times; medians: times {medians[0]:.3f}, control {medians[1]:.3f}, CPU times "
        f"{medians[2]:.3f}, viewer {statistics.median(viewers):.2f} s of CPU"
    )
    return [
        summarise(f"recorded, {name}", "", [run for one in found for run in (one[0], one[2])]),
        summarise(f"recorded live, {name}", said, [one[1] for one in found]),
    ]


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
    program, out, log = compiled(folder, "program", SOURCE, "-pthread"), folder / "lag.data", folder / "lag.log"
    words = [str(program), "1", str(rounds_for(program, 1, arguments.seconds))]
    with log.open("wb") as said:
        recorder = subprocess.Popen([*_recording(out, "--live", "--no-open"), *words], stdout=said, stderr=said)
    looker = Looker(log)
    while recorder.poll() is None and _DONE not in log.read_text():
        time.sleep(0.05)  # only the log says when the recording is written
    viewer = _viewer_of(recorder.pid)
    time.sleep(_MOST_LAG)  # what is shown later than that is late anyway
    cpu = _cpu(viewer)
    looker.stop()
    recorder.send_signal(signal.SIGINT)
    recorder.wait()
    times = np.concatenate([batch.time for batch in lastbranch.open(out).batches(("time",))])
    return [[_lag_row("recorded live", np.sort(times) / 1e9, looker.seen, cpu, f"{out.stat().st_size / 1e6:.1f} MB")]]


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
    said = f"{verdict} {_MOST_LAG:g} s; {len(seen)} states, {len(lags)} samples, {never} never shown, {size}"
    return Row(name, said, float(np.median(lags)), float(lags.min()), most, cpu, 0, 1)


# -- how that goes on as a recording grows


def _of_size(folder: Path, arguments: argparse.Namespace) -> list[list[Row]]:
    head, rest, samples = parts_of(str(demo.capture()))
    out, log = folder / "size.data", folder / "size.log"
    with open(out, "w+b", buffering=0) as file, log.open("wb") as said, ExitStack() as ends:
        file.write(head + rest)
        viewer = subprocess.Popen(
            [sys.executable, "-P", "-m", "lastbranch.view.live_process", str(file.fileno()), str(out), ""],
            stdin=subprocess.PIPE, stdout=said, stderr=said, pass_fds=[file.fileno()],
        )  # fmt: skip
        ends.callback(viewer.kill)
        looker = Looker(log)
        began, written = time.monotonic(), 0
        times = []
        while (now := time.monotonic() - began) < 3 * arguments.seconds:
            due = int(now * arguments.rate)
            file.write(b"".join(samples[i % len(samples)] for i in range(written, due)))
            times += [time.monotonic()] * (due - written)
            written = due
            time.sleep(0.05)  # samples arrive in pieces, as from a recorder
        time.sleep(10 * _MOST_LAG)  # what is not shown then never is
        cpu = _cpu(viewer.pid)
        looker.stop()
    name = f"{arguments.rate} samples/s"
    return [[_lag_row(name, np.array(times), looker.seen, cpu, f"{out.stat().st_size / 1e6:.0f} MB")]]


_PARTS: dict[str, Callable[[Path, argparse.Namespace], list[list[Row]]]] = {
    "cost": _of_cost, "lag": _of_lag, "size": _of_size,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost and delay of looking at a recording while it runs.")
    parser.add_argument("--only", nargs="+", choices=list(_PARTS), default=list(_PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10, help="how long programs run alone, about")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rate", type=int, default=10_000, help="samples a second")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    arguments = parser.parse_args()
    run_parts(_PARTS, arguments)


if __name__ == "__main__":
    main()
