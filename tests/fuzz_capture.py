"""The long checks of the collector: collectors killed in mid-burst, and memory that stays flat.

python tests/fuzz_capture.py [--kills 100] [--seconds 600]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from capture_tools import FREESTANDING, build

HERE = Path(__file__).parent
_GROWTH = 4096
"""KiB that the collector may grow by after its first tenth."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Long checks of the collector.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    killed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(HERE / "test_capture_attach.py"), "-k", "killed"],
        env={**os.environ, "LASTBRANCH_KILLS": str(arguments.kills)},
    )
    return killed.returncode or flat(arguments.seconds)


def flat(seconds: float) -> int:
    """Record a program for so long, and look at the collector's memory."""
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name), "branches", *FREESTANDING)
        words = ["record", "--engine", "software", "--no-progress", "--duration", str(seconds), "-o", f"{name}/it.data"]
        command = [sys.executable, "-m", "lastbranch", *words, "--", str(program), "1000000000"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as ours:
            time.sleep(seconds / 10)
            (collector,) = Path(f"/proc/{ours.pid}/task/{ours.pid}/children").read_text().split()
            sizes = []
            while ours.poll() is None and len(sizes) < 100:
                sizes.append(resident(collector))
                time.sleep(seconds * 0.88 / 100)
            for pid in Path(f"/proc/{collector}/task/{collector}/children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            ours.wait()
    grown = max(sizes) - sizes[0]
    print(f"the collector had {sizes[0]} KiB after a tenth of {seconds:.0f} s, and grew by {grown} KiB")
    return int(grown > _GROWTH)


def resident(pid: str) -> int:
    """KiB of memory, 0 where the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.partition("VmRSS:")[2].split()[0]) if "VmRSS:" in text else 0


if __name__ == "__main__":
    sys.exit(main())
