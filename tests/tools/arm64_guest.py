"""The work of the virtual machine of ``make arm64``: records programs, and sends the recordings."""

from __future__ import annotations

import base64
import gzip
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

ENGINES = {
    "blocks": "None",
    "steps": "lambda: ([], [SingleStep()])",
    "risky": "lambda: ([], [SteppedBlocks(HardwareBreakpoints(4))])",
    "two": "lambda: ([], [SteppedBlocks(HardwareBreakpoints(2))])",
}
"""Engines to record with, and what takes the place of `engine_choice._ENGINES`."""
RUNS = {"branches-": ("branches", 60000), "forms-": ("forms", 2000000)}
"""The programs without a C library, and their rounds, by the beginnings of the recordings' names."""
ONLY = next((word[5:] for word in Path("/proc/cmdline").read_text().split() if word.startswith("only=")), "")
_DRIVER = """
import sys
from lastbranch.capture.software import engine_choice
from lastbranch.capture.software.engines import *
chosen = {}
if chosen: engine_choice._ENGINES["aarch64"] = chosen
from lastbranch.cli import main
sys.argv[0] = "lastbranch"
main()
"""


def main() -> None:
    print(f"-- guest: {platform.platform()} Python {platform.python_version()}", flush=True)
    engines()
    for engine in ("blocks", "steps", "two"):
        for name in ("branches-", "forms-"):
            program, rounds = RUNS[name]
            recorded(name + engine, engine, "--", f"/programs/{program}", f"{rounds:06}")
    recorded("threads", "blocks", "--", "/programs/threads")
    recorded("signals", "blocks", "--", "/programs/signals", "urg", "winch", "cont", "60")
    twice = "/programs/branches 006000 & /programs/branches 006000; wait"
    recorded("forks", "blocks", "--", "/bin/busybox", "sh", "-c", twice)
    attached("attached-safe", "blocks", "--duration", "5")
    killed("attached-killed")
    attached("attached-risky", "risky", "--allow-risk", "--duration", "5")


def engines() -> None:
    """Each engine on the code that is known."""
    from lastbranch.capture.ptrace import ticking
    from lastbranch.capture.software.engines import (
        HardwareBreakpoints,
        PerfBlocks,
        PerfBreakpoints,
        SingleStep,
        SteppedBlocks,
    )
    from lastbranch.capture.software.self_check import test_engines

    with ticking():
        for engine in (
            PerfBlocks(PerfBreakpoints()),
            SteppedBlocks(HardwareBreakpoints(4)),
            SteppedBlocks(HardwareBreakpoints(2)),
            SingleStep(),
        ):
            print(f"-- engine {test_engines([engine])}", flush=True)


def recorded(name: str, engine: str, *words: str) -> None:
    if ONLY and not name.startswith(ONLY):
        return
    output = Path(f"/tmp/{name}.data")
    driver = _DRIVER.replace("{}", ENGINES[engine], 1)
    command = [sys.executable, "-c", driver, "record", "--engine", "software", "--no-progress", "--duty", "50"]
    begun = time.monotonic()
    done = subprocess.run([*command, "-o", output, *words], capture_output=True, text=True, timeout=300)
    print(f"-- recorded {name}: exit code {done.returncode} in {time.monotonic() - begun:.1f} s", flush=True)
    print(done.stdout + done.stderr, flush=True)
    if output.exists():
        send(output)


def attached(name: str, engine: str, *words: str) -> None:
    """Record a process that runs already, and see that it goes on."""
    with subprocess.Popen(["/programs/branches", "999999"]) as running:
        recorded(name, engine, *words, "-p", str(running.pid))
        goes_on(name, running)


def killed(name: str) -> None:
    """Kill the recorder, which is in a burst for most of the time, and see that the process goes on."""
    if ONLY and not name.startswith(ONLY):
        return
    for _ in range(3):
        with subprocess.Popen(["/programs/branches", "999999"]) as running:
            words = [
                "record",
                "--engine",
                "software",
                "--duty",
                "50",
                "-o",
                f"/tmp/{name}.data",
                "-p",
                str(running.pid),
            ]
            recorder = subprocess.Popen([sys.executable, "-m", "lastbranch", *words], start_new_session=True)
            while "TracerPid:\t0\n" in Path(f"/proc/{running.pid}/status").read_text():
                time.sleep(0.1)
            time.sleep(3)
            os.killpg(recorder.pid, signal.SIGKILL)
            recorder.wait()
            goes_on(name, running)


def goes_on(name: str, running: subprocess.Popen[bytes]) -> None:
    ran = []
    for _ in range(2):
        time.sleep(1)
        ran.append(int(Path(f"/proc/{running.pid}/stat").read_text().split()[13]))
    running.kill()
    print(f"-- {name} went on: {ran[1] > ran[0]} {running.wait()}", flush=True)


def send(path: Path) -> None:
    text = base64.b64encode(gzip.compress(path.read_bytes())).decode()
    print(f"-- file {path.name}")
    for at in range(0, len(text), 76):
        print(text[at : at + 76])
    print("-- end of file", flush=True)
    os.unlink(path)


if __name__ == "__main__":
    main()
