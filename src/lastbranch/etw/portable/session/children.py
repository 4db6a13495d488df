"""The source processes of a session: started, configured, waited for and ended by its daemon.

A source connects to the daemon, gets its configuration and says READY when events flow, or FAILED with a code. It
writes through writers of its own, like any provider, and lives no longer than its connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...status import EtwError, Status
from ..protocol import Connection, Kind, Message, unpack
from .loop import Condition

if TYPE_CHECKING:
    import subprocess

__all__ = ["Children", "SOURCE_TIMEOUT"]


SOURCE_TIMEOUT = 30.0
"""Seconds until a source must have taken over a configuration, and until it must have ended."""


@dataclass(eq=False)
class _Child:
    process: subprocess.Popen[bytes]
    exit: int
    """A descriptor that is readable when the process has ended."""
    connection: Connection | None = None
    configuration: bytes = b""
    """The newest that it was to have."""
    asked: int = 1
    answered: int = 0
    error: EtwError | None = None
    stopping: bool = False


class Children:
    """Sources by role. ``post`` sends a message without waiting, ``watch`` and ``forget`` look after descriptors."""

    def __init__(
        self,
        post: Callable[[Connection, Kind, bytes], None],
        watch: Callable[[int, Callable[[], None]], None],
        forget: Callable[[int], None],
        descriptors: tuple[int, ...] = (),
    ) -> None:
        self._post, self._watch, self._forget = post, watch, forget
        self._descriptors = descriptors
        """What a source inherits."""
        self._children: dict[str, _Child] = {}

    @property
    def gone(self) -> bool:
        """Whether no source runs."""
        return not self._children

    def apply(self, wanted: dict[str, list[str]], configuration: bytes) -> Generator[Condition, None, None]:
        """Have the sources ``wanted`` (role -> command) run with ``configuration``, and no others.

        Goes on when each has taken it over; raises the `EtwError` of the first that could not.
        """
        ending = [child for role, child in self._children.items() if role not in wanted]
        for child in ending:
            self._stop(child)
        asked = {role: self._ask(role, command, configuration) for role, command in wanted.items()}
        numbers = {child: child.asked for child in asked.values()}

        def settled() -> bool:
            return all(child.answered >= number for child, number in numbers.items()) and not any(
                child in self._children.values() for child in ending
            )

        if numbers or ending:
            yield settled, SOURCE_TIMEOUT
        for role, child in asked.items():
            if child.answered < numbers[child]:
                raise EtwError("session", Status.TIMEOUT, f"the {role} source was not ready in {SOURCE_TIMEOUT:g} s")
            if child.error is not None:
                raise child.error

    def _ask(self, role: str, command: list[str], configuration: bytes) -> _Child:
        child = self._children.get(role)
        if child is None or child.stopping:
            child = self._children[role] = self._start(role, command)
        elif child.configuration != configuration:
            child.asked += 1
            if child.connection is not None:
                self._post(child.connection, Kind.CONFIGURE, configuration)
        child.configuration = configuration
        return child

    def _start(self, role: str, command: list[str]) -> _Child:
        import subprocess  # what sessions without sources do without

        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=self._descriptors, cwd="/")
        child = _Child(process, os.pidfd_open(process.pid))
        self._watch(child.exit, lambda: self._ended(role, child))
        return child

    def announced(self, connection: Connection, pid: int) -> bytes:
        """A source connected: the body of the answer. `EtwError` 5 for a process that is none of ours."""
        for child in self._children.values():
            if child.process.pid == pid and child.connection is None and not child.stopping:
                child.connection = connection
                child.asked = 1
                return child.configuration
        raise EtwError("source", Status.ACCESS_DENIED, f"process {pid} is no source of this session")

    def said(self, connection: Connection, message: Message) -> None:
        """READY or FAILED."""
        for child in self._children.values():
            if child.connection is connection:
                child.answered += 1
                child.error = None
                if message.kind == Kind.FAILED:
                    child.error = EtwError("source", *unpack(tuple[int, str], message.body))

    def hung_up(self, connection: Connection) -> None:
        """A source that hangs up is about to end."""
        for child in self._children.values():
            if child.connection is connection:
                child.connection, child.stopping = None, True

    def stop(self) -> None:
        """Tell all to write what is left and end; see `gone`."""
        for child in self._children.values():
            self._stop(child)

    def _stop(self, child: _Child) -> None:
        child.stopping = True
        if child.connection is not None:
            self._post(child.connection, Kind.SOURCE_STOP, b"")
        else:
            child.process.terminate()

    def kill(self) -> None:
        """End those that did not."""
        for role, child in list(self._children.items()):
            child.process.kill()
            self._ended(role, child)

    def _ended(self, role: str, child: _Child) -> None:
        if child.exit < 0:
            return
        child.process.wait()
        self._forget(child.exit)
        os.close(child.exit)
        child.exit = -1
        if self._children.get(role) is child:
            del self._children[role]
        if child.answered < child.asked:
            child.answered = child.asked
            why = f"the {role} source ended with code {child.process.returncode}"
            child.error = child.error or EtwError("session", Status.NO_SYSTEM_RESOURCES, why)
