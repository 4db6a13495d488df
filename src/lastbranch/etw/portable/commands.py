"""What a session's daemon does on each message."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import LastbranchError
from ..flags import EnableProvider, Info, LogFileMode
from ..properties import SessionRequest, SessionState
from ..status import EtwError, Status
from .children import SOURCE_TIMEOUT, Children
from .configuring import Settings
from .logger import Logger
from .messages import Fields, pack_state, pack_value, unpack_request, unpack_text, unpack_value
from .notify import Notice, notify
from .processes import process_key
from .protocol import Connection, Kind, Message, at_folder, peer_of
from .registry import Registry
from .rules import updated
from .spawn import Started
from .statefile import remove
from .steps import Condition, Steps, expected

if TYPE_CHECKING:
    from .daemon import Daemon

__all__ = ["Commands"]

WRITERS_TIMEOUT = 2.0
"""Seconds in which writers let go when a session stops; what they write later is lost."""
_PROCESSOR, _SLOT, _INFO = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<I")


class Commands:
    """The session of a daemon: its logger, its sources, and the table of what can be asked of it."""

    def __init__(self, daemon: Daemon, registry: Registry, stack: ExitStack) -> None:
        order = daemon.order
        self._daemon, self._registry, self._order = daemon, registry, order
        folder = stack.enter_context(registry.folder("sessions"))
        self.address = at_folder(folder, f"{order.key}.sock")
        """Where the daemon is to listen, for socket calls; true in processes that inherit the descriptor in it."""
        remove(folder, f"{order.key}.sock")
        self.settings = Settings(order.request, order.targets, registry)
        self.logger = Logger(order.request, order.handle, header_events=self.settings.header_events)
        self._children = Children(daemon.loop.post, daemon.loop.watch, daemon.loop.forget, (folder,))
        self._slots: dict[Connection, set[int]] = {}
        self._stopping = self._changing = False
        self._handlers: dict[Kind, Callable[[Connection, bytes], bytes | Steps | None]] = {
            Kind.QUERY: lambda _connection, _body: self._state(),
            Kind.STOP: lambda _connection, _body: self.stop(),
            Kind.UPDATE: lambda _connection, body: self._update(unpack_request(body)),
            Kind.FLUSH: lambda _connection, body: self._flush(unpack_text(body)),
            Kind.INCREMENT_FILE: lambda _connection, _body: self._increment_file(),
            Kind.CONVERT_TO_REALTIME: lambda _connection, _body: self._convert(),
            Kind.SET_INFO: lambda _connection, body: self._set(body),
            Kind.QUERY_INFO: lambda _connection, body: self._query(body),
            Kind.LBR: lambda _connection, body: self._lbr(body),
            Kind.TARGETS: lambda _connection, body: self._targets(unpack_value(body)),
            Kind.REFRESH: lambda _connection, _body: self._applied(lambda settings: settings),
            Kind.ATTACH: self._attach,
            Kind.DETACH: self._detach,
            Kind.CONSUME: self._consume,
            Kind.SOURCE: lambda connection, _body: self._children.announced(connection, peer_of(connection.stream).pid),
        }

    def handle(self, connection: Connection, message: Message) -> bytes | Steps | None:
        """The body of the answer, steps that give it, or ``None`` where there is no answer."""
        if message.kind in (Kind.READY, Kind.FAILED):
            self._children.said(connection, message)
            return None
        handler = self._handlers.get(message.kind)
        if handler is None:
            raise EtwError("session", Status.NOT_SUPPORTED, f"a session takes no {message.kind.name}")
        if self._stopping and message.kind not in (Kind.QUERY, Kind.DETACH):
            raise EtwError("session", Status.WMI_INSTANCE_NOT_FOUND, "the session is being stopped")
        return handler(connection, message.body)

    def gone(self, connection: Connection) -> None:
        """The peer hung up."""
        for slot in () if self._daemon.ended else self._slots.pop(connection, ()):
            try:
                self.logger.detach(slot)
            except Exception as error:  # what became of its last events is no reason to end the session
                expected(error)
        self._children.hung_up(connection)
        self._daemon.poll_soon()

    # -- from start to stop

    def begin(self) -> Steps:
        """Start the sources. Gives what the process that starts the session is told."""
        yield from self._apply()
        return Started(process_key(), self._full_state()).pack()

    def stop(self) -> Steps:
        """End the session, with all that was written before in its file. Gives the last state."""
        if self._stopping:
            raise EtwError("ControlTrace", Status.WMI_INSTANCE_NOT_FOUND, "the session is being stopped")
        self._stopping = True
        return self._stop()

    def _stop(self) -> Steps:
        with suppress(LastbranchError, OSError):
            self._disable_providers()
        self._children.stop()
        yield lambda: self._children.gone, SOURCE_TIMEOUT
        self._children.kill()
        for connection in list(self._slots):
            self._daemon.loop.post(connection, Kind.ENDED)
        yield lambda: not any(self._slots.values()), WRITERS_TIMEOUT
        try:
            self.logger.stop()
            return self._state()
        finally:
            self._leave()

    def discard(self) -> None:
        """End a session that nobody knows of yet, without a file."""
        if self._daemon.ended:
            return
        self._children.kill()
        self.logger.discard()
        self._leave()

    def _disable_providers(self) -> None:
        with self._registry.locked() as held:
            providers = held.enabled_by(self._order.handle)
            for provider in providers:
                held.set_enabled(provider, self._order.handle, None)
        for provider in providers:
            notify(self._registry, provider, Notice(EnableProvider.DISABLE, self._order.handle))

    def _leave(self) -> None:
        self._daemon.ended = True
        with suppress(LastbranchError, OSError), self._registry.locked() as held:
            held.drop(self._order.key, process_key())

    # -- control

    def _full_state(self) -> SessionState:
        state: SessionState = self.logger.state()
        request = replace(state.request, enable_flags=self.settings.request.enable_flags)
        thread = state.logger_thread or process_key().pid
        return replace(
            state, request=request, handle=self._order.handle, masks=list(self.settings.masks), logger_thread=thread
        )

    def _state(self) -> bytes:
        return pack_state(self._full_state())

    def _update(self, asked: SessionRequest) -> Steps:
        made = updated(self._full_state().request, asked)
        self.logger.update(made)
        yield from self._applied(lambda settings: settings.updated(made))
        return self._state()

    def _flush(self, file: str) -> bytes:
        request = self.logger.state().request
        if request.mode & LogFileMode.BUFFERING_MODE and not file and not request.file:
            raise EtwError("ControlTrace", Status.BAD_PATHNAME, "a session in memory is flushed to a file: name one")
        self.logger.flush(file)
        return self._state()

    def _increment_file(self) -> bytes:
        if not self.logger.state().request.mode & LogFileMode.FILE_MODE_NEWFILE:
            raise EtwError("ControlTrace", Status.INVALID_PARAMETER, "the session does not write a row of files")
        self.logger.increment_file()
        return self._state()

    def _convert(self) -> bytes:
        if self.logger.state().request.mode & (LogFileMode.REAL_TIME_MODE | LogFileMode.BUFFERING_MODE):
            raise EtwError("ControlTrace", Status.INVALID_PARAMETER, "the session has no file mode to leave")
        self.logger.convert_to_realtime()
        return self._state()

    # -- information

    def _set(self, body: bytes) -> Steps:
        info, value = _info(body), unpack_value(body[_INFO.size :])
        return self._applied(lambda settings: settings.with_information(info, value))

    def _query(self, body: bytes) -> bytes:
        info = _info(body)
        values: dict[int, Any] = {
            Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO: list(self.settings.masks),
            Info.DISALLOW_LIST_QUERY: self.settings.information.get(Info.SET_DISALLOW_LIST, []),
        }
        if info not in values:
            raise EtwError("TraceQueryInformation", Status.NOT_SUPPORTED, f"a session does not tell {info.name}")
        if info == Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO:
            self.settings.check_system("TraceQueryInformation")
        return pack_value(values[info])

    def _lbr(self, body: bytes) -> Steps:
        (flags,) = Fields(body).take(_INFO)
        events = unpack_value(body[_INFO.size :])
        return self._applied(lambda settings: settings.with_lbr(flags, events))

    def _targets(self, pids: list[int]) -> Steps:
        return self._applied(lambda settings: settings.with_targets(tuple(pids)))

    def _applied(self, change: Callable[[Settings], Settings]) -> Steps:
        """Go over to other settings, one change at a time; where a source cannot follow, they stay as they were."""
        yield lambda: not self._changing, SOURCE_TIMEOUT
        if self._changing:
            raise EtwError("session", Status.BUSY, "another change of the session is not done")
        before, self._changing = self.settings, True
        try:
            self.settings = change(before)
            yield from self._apply()
        except Exception:
            self.settings = before
            with suppress(EtwError):
                yield from self._apply()
            raise
        finally:
            self._changing = False
        return b""

    def _apply(self) -> Generator[Condition, None, None]:
        yield from self._children.apply(self.settings.commands(self.address), self.settings.configuration())

    # -- writers and readers

    def _attach(self, connection: Connection, body: bytes) -> None:
        fields = Fields(body)
        (processor,) = fields.take(_PROCESSOR)
        fields.end()
        slot, answer, fds = self.logger.attach(peer_of(connection.stream).pid, processor)
        self._slots.setdefault(connection, set()).add(slot)
        self._daemon.loop.post(connection, Kind.ANSWER, answer, fds=tuple(fds))
        self._daemon.poll_soon()

    def _detach(self, connection: Connection, body: bytes) -> bytes:
        fields = Fields(body)
        (slot,) = fields.take(_SLOT)
        if slot not in self._slots.get(connection, ()):
            raise EtwError("detach", Status.INVALID_PARAMETER, f"slot {slot} is not this writer's")
        self._slots[connection].discard(slot)
        self.logger.detach(slot)
        return b""

    def _consume(self, connection: Connection, _body: bytes) -> None:
        if not self.logger.state().request.mode & LogFileMode.REAL_TIME_MODE:
            raise EtwError("OpenTrace", Status.INVALID_PARAMETER, "the session is not one in real time")
        self._daemon.loop.post(connection, Kind.ANSWER)
        if self._daemon.loop.release(connection):
            self.logger.add_reader(connection.stream)
            self._daemon.poll_soon()


def _info(body: bytes) -> Info:
    (number,) = Fields(body).take(_INFO)
    if number not in Info._value2member_map_:
        raise EtwError("session", Status.NOT_SUPPORTED, f"a session has no class {number}")
    return Info(number)
