"""Providers in processes of their own, which count in shared memory what they offered: also those that are killed."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from portable_sessions import Sessions

__all__ = ["PROVIDER", "Provider", "provider"]

PROVIDER = UUID("0c7a3c1e-7a53-4b1f-9f0e-3c8f5d2e7a11")
WRITE_FOR_EVER = "write_while(lambda: True)"
_PAGES = 2
_WORDS = 4096 // 8
_BEGIN = f"""
import mmap, os, sys, threading, time
from uuid import UUID
from lastbranch.etw.interface import EventDescriptor
from lastbranch.etw.portable.kernel import PortableKernel
counts = memoryview(mmap.mmap(int(sys.argv[1]), {_PAGES} * 4096)).cast("Q")  # offered, taken, refused
registered = PortableKernel().register(UUID("{PROVIDER}"), None)
event = EventDescriptor(1)
end = time.monotonic() + 60
def write_while(condition):
    while condition() and time.monotonic() < end:
        counts[0] += 1
        status = registered.write(event, b"x" * 40)
        counts[2 if status else 1] += 1
        if not counts[0] % 100:
            time.sleep(0.001)
while not registered.enabled and time.monotonic() < end:
    time.sleep(0.001)
"""


class Provider:
    """A process that has registered. When enabled, the provider runs ``body``, in which ``write_while(condition)``
    writes.

    A child by fork counts in the second page, which it gets with ``counts = counts[512:]``.
    """

    def __init__(self, sessions: Sessions, body: str = WRITE_FOR_EVER) -> None:
        fd = os.memfd_create("counts")
        os.truncate(fd, _PAGES * 4096)
        self._counts = memoryview(mmap.mmap(fd, _PAGES * 4096)).cast("Q")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN + textwrap.dedent(body), str(fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[fd],
            env=dict(os.environ) | {"LASTBRANCH_ETW_DIR": str(sessions.root)},
        )
        os.close(fd)

    @property
    def offered(self) -> int:
        """Events that it began to write."""
        return int(self._counts[0]) + int(self._counts[_WORDS])

    @property
    def taken(self) -> int:
        """Events whose status was 0."""
        return int(self._counts[1]) + int(self._counts[1 + _WORDS])

    def send(self, number: int) -> None:
        """A signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the process, if it still runs."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def provider(sessions: Sessions, body: str = WRITE_FOR_EVER) -> Iterator[Provider]:
    made = Provider(sessions, body)
    try:
        yield made
    finally:
        made.kill()
