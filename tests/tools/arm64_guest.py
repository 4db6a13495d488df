"""What the virtual machine of ``make arm64`` does: records programs, and sends what was recorded."""

from __future__ import annotations

import base64
import gzip
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ENGINES = {
    "blocks": "None",
    "steps": "lambda: ([], [SingleStep()])",
    "two": "lambda: ([], [SteppedBlocks(HardwareBreakpoints(2))])",
}
"""Engines to record with, and what takes the place of `collector._ENGINES`."""
RUNS = {"branches-": ("branches", 12000), "forms-": ("forms", 600000), "attached": ("branches", 12000)}
"""The programs without a C library, and their rounds, by the beginnings of the recordings' names."""
_DRIVER = """
import sys
from lastbranch.capture.software import collector
from lastbranch.capture.software.engines import *
chosen = {}
if chosen: collector._ENGINES["aarch64"] = chosen
from lastbranch.cli import main
sys.argv[0] = "lastbranch"
if "--run" in sys.argv:  # a process that runs already
    import subprocess
    at = sys.argv.index("--run")
    running = subprocess.Popen(sys.argv[at + 1:])
    sys.argv[at:] = ["-p", str(running.pid)]
    try:
        main()
    finally:
        print("-- went on:", running.wait(), flush=True)
main()
"""


def main() -> None:
    print(f"-- guest: {platform.platform()} Python {platform.python_version()}", flush=True)
    engines()
    for engine in ENGINES:
        for name in ("branches-", "forms-"):
            program, rounds = RUNS[name]
            recorded(name + engine, engine, "--", f"/programs/{program}", f"{rounds:06}")
    recorded("threads", "blocks", "--", "/programs/threads")
    recorded("signals", "blocks", "--", "/programs/signals", "urg", "winch", "cont", "60")
    program, rounds = RUNS["attached"]
    recorded("attached", "blocks", "--allow-risk", "--duration", "4", "--run", f"/programs/{program}", f"{rounds:06}")


def engines() -> None:
    """Each engine on the code that is known."""
    from lastbranch.capture.ptrace import ticking
    from lastbranch.capture.software.engines import HardwareBreakpoints, SingleStep, SteppedBlocks
    from lastbranch.capture.software.startup_test import test_engines

    with ticking():
        for engine in (SteppedBlocks(HardwareBreakpoints(4)), SteppedBlocks(HardwareBreakpoints(2)), SingleStep()):
            print(f"-- engine {test_engines([engine])}", flush=True)


def recorded(name: str, engine: str, *words: str) -> None:
    output = Path(f"/tmp/{name}.data")
    driver = _DRIVER.replace("{}", ENGINES[engine], 1)
    command = [sys.executable, "-c", driver, "record", "--engine", "software", "--no-progress", "--duty", "50"]
    begun = time.monotonic()
    done = subprocess.run([*command, "-o", output, *words], capture_output=True, text=True, timeout=300)
    print(f"-- recorded {name}: exit code {done.returncode} in {time.monotonic() - begun:.1f} s", flush=True)
    print(done.stdout + done.stderr, flush=True)
    if output.exists():
        send(output)


def send(path: Path) -> None:
    text = base64.b64encode(gzip.compress(path.read_bytes())).decode()
    print(f"-- file {path.name}")
    for at in range(0, len(text), 76):
        print(text[at : at + 76])
    print("-- end of file", flush=True)
    os.unlink(path)


if __name__ == "__main__":
    main()
