"""Sessions of the portable kernel for tests: a registry of their own, and no daemon that outlives the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lastbranch.etw.flags import Control
from lastbranch.etw.portable.kernel import PortableKernel
from lastbranch.etw.portable.protocol import Connection, address_in
from lastbranch.etw.portable.session_registry import Registry
from lastbranch.etw.properties import SessionRequest, SessionState
from lastbranch.etw.status import EtwError
from private_registry import end_all, processes_of, registry_at, until

__all__ = ["Sessions", "code_of", "end_all", "processes_of", "registry_at", "sessions_in", "until"]


def code_of(call: Callable[..., Any], *arguments: Any) -> int:
    """The code of a call that fails."""
    with pytest.raises(EtwError) as caught:
        call(*arguments)
    return int(caught.value.status)


class Sessions:
    """A registry with its kernel, and a folder for log files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "etw"
        self.kernel = PortableKernel()

    @property
    def registry(self) -> Registry:
        return Registry(self.root)

    def file(self, name: str = "x.etl") -> Path:
        return self.folder / name

    def start(self, name: str = "session", file: str = "x.etl", **fields: Any) -> SessionState:
        """Start a session with a log file in the folder; without one for ``file=""``."""
        path = str(self.file(file)) if file else ""
        return self.kernel.start(SessionRequest(name, file=path, **fields))

    def control(self, code: Control, session: int | str = "session", **fields: Any) -> SessionState:
        return self.kernel.control(code, session, SessionRequest("session", **fields))

    def query(self, session: int | str = "session") -> SessionState:
        return self.kernel.control(Control.QUERY, session, None)

    def stop(self, session: int | str = "session") -> SessionState:
        return self.kernel.control(Control.STOP, session, None)

    def names(self) -> list[str]:
        return [state.request.name for state in self.kernel.sessions()]

    def pid(self, session: int | str = "session") -> int:
        """The process id of the session's daemon."""
        entry = self.registry.find(session)
        assert entry is not None
        return entry.owner.pid

    @contextmanager
    def connected(self, session: int | str = "session") -> Iterator[Connection]:
        """A connection to the session's daemon."""
        entry = self.registry.find(session)
        assert entry is not None
        with (
            self.registry.folder("sessions") as folder,
            Connection.open(address_in(folder, entry.socket)) as connection,
        ):
            yield connection


@contextmanager
def sessions_in(folder: Path) -> Iterator[Sessions]:
    """`Sessions` whose registry the environment names; ended at the end."""
    made = Sessions(folder)
    with registry_at(made.root):
        yield made
