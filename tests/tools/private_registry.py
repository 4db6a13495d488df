"""A registry of sessions for one test, and no process of its sessions that outlives the test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lastbranch.etw.flags import Control
from lastbranch.etw.portable.kernel import PortableKernel
from waiting import until

__all__ = ["end_all", "private_kernel", "processes_of", "registry_at", "until"]


def processes_of(root: Path) -> list[int]:
    """Other processes that run with this registry: their environment names its folder."""
    found, wanted = [], f"LASTBRANCH_ETW_DIR={root}\0".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                if wanted in Path("/proc", name, "environ").read_bytes() + b"\0":
                    found.append(int(name))
    return found


@contextmanager
def registry_at(root: Path) -> Iterator[None]:
    """The environment names ``root`` as the registry; at the end no process runs with it any more."""
    before = os.environ.get("LASTBRANCH_ETW_DIR")
    os.environ["LASTBRANCH_ETW_DIR"] = str(root)
    try:
        yield
    finally:
        end_all(root)
        if before is None:
            del os.environ["LASTBRANCH_ETW_DIR"]
        else:
            os.environ["LASTBRANCH_ETW_DIR"] = before


@contextmanager
def private_kernel(root: Path) -> Iterator[PortableKernel]:
    """A portable kernel with ``root`` as its registry, whose sessions are stopped at the end."""
    with registry_at(root):
        made = PortableKernel()
        yield made
        for state in made.sessions():
            made.control(Control.STOP, state.handle, None)


def end_all(root: Path) -> None:
    """Kill what runs with this registry, and see that it has ended."""

    def left() -> list[int]:
        pids = processes_of(root)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    until(lambda: not left())
