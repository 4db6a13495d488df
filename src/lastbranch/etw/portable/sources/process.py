"""Shared code of a session's source processes: the conversation with the daemon, and the writers into its buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from ....closing import on_failure
from ...status import EtwError
from ..protocol import Connection, Kind, pack, unpack
from ..provider.writer import Writer, connect_writer
from .configuration import SourceConfiguration
from .event_words import Events

__all__ = ["Output", "failure", "serve"]


class Output:
    """Writes events of each processor through a writer of its own, with the processor's index where that is free.

    ``path``: the daemon's socket. The writers of ``cpus`` connect at once, since a session that is being stopped
    accepts no more; others connect when their first event comes. ``patience``: how many seconds each waits for a free
    buffer.
    """

    def __init__(self, path: str, cpus: Iterable[int] = (), *, patience: float) -> None:
        self._path, self._patience = path, patience
        self._writers: dict[int, Writer] = {}
        with on_failure(self.close):
            for cpu in cpus:
                self._writer(cpu)

    def _writer(self, cpu: int) -> Writer:
        if cpu not in self._writers:
            self._writers[cpu] = connect_writer(self._path, cpu)
            self._writers[cpu].patience = self._patience
        return self._writers[cpu]

    def wait_for_room(self, seconds: float) -> None:
        """Change the patience of all writers."""
        self._patience = seconds
        for writer in self._writers.values():
            writer.patience = seconds

    def put(self, events: Events) -> None:
        """Write ``events``, which are in the order of their processors and of time. Events that could not be made count
        as lost, and so do events of a processor without a place in the session."""
        lost = events.unwritten.total()
        for cpu, data, sizes in events.by_processor():
            try:
                writer = self._writer(cpu)
            except EtwError:
                lost += len(sizes)
            else:
                writer.write_many(data, sizes.astype("u4"))
        self.lost(lost)

    def lost(self, number: int) -> None:
        """Count events that the kernel dropped, or that could not be written."""
        if number:
            self._writer(next(iter(self._writers), 0)).count_lost(number)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def failure(error: EtwError) -> bytes:
    """Body of FAILED."""
    return pack((error.status, error.reason))


def serve(path: str, record: Callable[[Connection, SourceConfiguration], None]) -> int:
    """Ask the daemon that listens at ``path`` what to record, and ``record`` that. Returns the exit code.

    An `EtwError` of ``record`` is reported as FAILED.
    """
    with Connection.open(path) as connection:
        body, _ = connection.call(Kind.SOURCE)
        try:
            record(connection, unpack(SourceConfiguration, body))
        except EtwError as error:
            with suppress(OSError):  # a daemon that is gone needs no reason
                connection.send(Kind.FAILED, failure(error))
            return 1
    return 0
