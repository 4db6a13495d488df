"""Whole commands side by side in slices of time: each runs for a moment while the others are frozen.

The speed of a virtual machine swings by a third within seconds. Consecutive runs differ by these swings; runs in turns
of a second share them. A command's time is the sum of its turns. A control group freezes (cgroup v2, cgroup.freeze),
which needs root; without it each command runs from start to end in its turn.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from measure import Command, Run

__all__ = ["Groups", "run_in_turn"]

_WHILE_FREEZING = 0.0005
"""Seconds between two looks at whether all is frozen; that time is the command's, recorded or not."""


class Groups:
    """Makes control groups, which `close` takes away. ``folder`` is ``None`` where none may be made."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in (m for m in mounts if m[2] == "cgroup2"):
            with suppress(OSError):
                self.folder = Path(tempfile.mkdtemp(prefix="lastbranch-bench-", dir=mount[1]))
                if (self.folder / "cgroup.freeze").exists():
                    return
                self.folder.rmdir()
            self.folder = None

    def make(self, name: str) -> Path | None:
        if self.folder is None:
            return None
        made = self.folder / name
        made.mkdir(exist_ok=True)
        return made

    def close(self) -> None:
        if self.folder is not None:
            for made in self.folder.iterdir():
                if made.is_dir():
                    made.rmdir()
            self.folder.rmdir()


class _Turns:
    """One command, which runs only in its turns."""

    def __init__(self, command: Command, group: Path | None) -> None:
        self.command, self._group = command, group
        self._wall, self._pid, self._pidfd = 0.0, 0, -1
        self.run: Run | None = None

    def turn(self, seconds: float | None) -> None:
        """Run on for ``seconds``, or to the end."""
        begun = time.perf_counter()
        if not self._pid:
            self._start()
        elif self._group:
            (self._group / "cgroup.freeze").write_text("0")
        wait = select.poll()
        wait.register(self._pidfd, select.POLLIN)
        while not (ended := bool(wait.poll(None if seconds is None else seconds * 1000))) and not self._frozen():
            seconds = 0.001  # in the middle of a burst, which would take until the next turn: let it come to its end
        self._wall += time.perf_counter() - begun
        if ended:
            _, status, usage = os.wait4(self._pid, 0)
            os.close(self._pidfd)
            peak = usage.ru_maxrss * 1024
            self.run = Run(self._wall, usage.ru_utime, usage.ru_stime, peak, os.waitstatus_to_exitcode(status))

    def _start(self) -> None:
        argv = self.command.argv
        if self._group:
            enter = 'echo $$ > "$0" && exec "$@"'
            argv = ["/bin/sh", "-c", enter, str(self._group / "cgroup.procs"), *argv]
        with self.command.log.open("wb") as log:
            started = subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ, **self.command.env})
        started.returncode = 0  # `turn` waits for it
        self._pid, self._pidfd = started.pid, os.pidfd_open(started.pid)

    def _frozen(self) -> bool:
        """Freeze, but not in the middle of a burst: a tracer hurries then, and a thread of it may stand in a stop."""
        assert self._group is not None
        freeze = self._group / "cgroup.freeze"
        freeze.write_text("1")
        while "frozen 1" not in (self._group / "cgroup.events").read_text():
            time.sleep(_WHILE_FREEZING)
        for tid in (self._group / "cgroup.threads").read_text().split():
            with suppress(OSError):
                state = Path(f"/proc/{tid}/stat").read_text().rpartition(") ")[2][0]
                if state in "tT" or os.sched_getscheduler(int(tid)) != os.SCHED_OTHER:
                    freeze.write_text("0")
                    return False
        return True


def run_in_turn(commands: list[Command], groups: Groups, seconds: float) -> list[Run]:
    """Run all commands, each for ``seconds`` while the others are frozen, until all have ended."""
    turns = [_Turns(command, groups.make(f"{number}")) for number, command in enumerate(commands)]
    while waiting := [one for one in turns if one.run is None]:
        for one in waiting:
            one.turn(seconds if groups.folder and len(waiting) > 1 else None)
    return [one.run for one in turns if one.run]
