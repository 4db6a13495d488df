"""Messages between the processes of a session: framing, bodies, file descriptors and the check of the peer's user.

A message is a header (``LBET``, version, kind, status, length) and a body of at most `MOST_BODY` bytes; its
`Kind` says what the body holds. An answer has kind ANSWER, the Win32 status of the call, and the reason as text where
that is not 0.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from ...errors import FormatError
from ..flags import LogFileMode, V2Option
from ..properties import Filter, SessionRequest, SessionState
from ..status import EtwError, Status

__all__ = [
    "CALL_TIMEOUT", "Connection", "Decoder", "Fields", "Kind", "MOST_BODY", "Message", "Peer", "at_folder",
    "check_peer", "encode", "pack_request", "pack_state", "pack_text", "pack_value", "peer_of", "unpack_request",
    "unpack_state", "unpack_text", "unpack_value",
]  # fmt: skip


# -- Local sockets: who is at the other end, and addresses that are short enough


_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """Who is at the other end of a local socket (SO_PEERCRED)."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected, or that listened; what the kernel wrote down at that time."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


def check_peer(connection: socket.socket, peer: Callable[[socket.socket], Peer] = peer_of) -> Peer:
    """The peer, which must be of this process's user; `EtwError` 5 for any other."""
    found = peer(connection)
    if found.uid != os.geteuid():
        raise EtwError("connect", Status.ACCESS_DENIED, f"process {found.pid} is of user {found.uid}, not of this one")
    return found


def at_folder(folder: int, name: str) -> str:
    """A path for socket calls of file ``name`` in the directory of descriptor ``folder``: short however deep it is.

    The address of a local socket has 107 bytes at most.
    """
    return f"/proc/self/fd/{folder}/{name}"


MAGIC = b"LBET"
VERSION = 1
MOST_BODY = 1 << 20
"""Bytes of the largest body that is taken."""
MOST_QUEUED = 4 << 20
"""Bytes that wait for a peer that does not read, before it is given up."""
MOST_FDS = 8
CALL_TIMEOUT = 20.0
"""Seconds that `Connection.call` waits, unless told otherwise."""
_HEADER = struct.Struct("<4sHHII")
_NOT_INHERITED = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""Descriptors that arrive are not for programs that this process starts."""


class Kind(IntEnum):
    """What a message is. Comments: sender -> receiver, body, body of the answer."""

    ANSWER = 0
    QUERY = 1  # control -> daemon: nothing; SessionState
    STOP = 2  # control -> daemon: nothing; SessionState
    UPDATE = 3  # control -> daemon: SessionRequest; SessionState
    FLUSH = 4  # control -> daemon: text, file of the snapshot or empty; SessionState
    INCREMENT_FILE = 5  # control -> daemon: nothing; SessionState
    CONVERT_TO_REALTIME = 6  # control -> daemon: nothing; SessionState
    SET_INFO = 7  # control -> daemon: u32 class, value; nothing
    QUERY_INFO = 8  # control -> daemon: u32 class; value
    LBR = 9  # control -> daemon: u32 flags, hook ids; nothing
    TARGETS = 10  # control -> daemon: process ids; nothing
    REFRESH = 11  # control -> daemon: nothing (profile sources or intervals changed); nothing
    ATTACH = 16  # writer -> daemon: u16 processor index or ANY_PROCESSOR; what `pool` needs, with its descriptors
    DETACH = 17  # writer -> daemon: u32 slot; nothing. A hang-up detaches all slots of the connection
    ENDED = 18  # daemon -> writer, no answer: the session stops, hang up
    CONSUME = 24  # reader -> daemon: nothing; nothing, and then the connection is the stream of realtime.py
    SOURCE = 32  # source -> daemon: nothing; SourceConfiguration
    READY = 33  # source -> daemon, no answer: the newest configuration is in force
    FAILED = 34  # source -> daemon, no answer: u32 status, reason as UTF-8; the configuration is not in force
    CONFIGURE = 35  # daemon -> source: SourceConfiguration, answered by READY or FAILED
    SOURCE_STOP = 36  # daemon -> source, no answer: write what is left and the end rundown, hang up, exit
    START = 48  # spawn -> daemon: Order; Started
    COMMIT = 49  # spawn -> daemon, no answer: the entry is the daemon's, it lives on its own


class Message(NamedTuple):
    """One message as it came."""

    kind: Kind
    status: int
    body: bytes


def encode(kind: Kind, body: bytes = b"", status: int = 0) -> bytes:
    """The bytes of one message; `ValueError` for a body that no one takes."""
    if len(body) > MOST_BODY:
        raise ValueError(f"a body of {len(body)} bytes")
    return _HEADER.pack(MAGIC, VERSION, kind, status, len(body)) + body


class Decoder:
    """Turns the bytes of a stream into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._data += data

    @property
    def missing(self) -> int:
        """Bytes that the next message lacks, as far as that is known; reading no more leaves what follows it alone."""
        have = len(self._data)
        return (_HEADER.size if have < _HEADER.size else _HEADER.size + _HEADER.unpack_from(self._data)[4]) - have

    def next(self) -> Message | None:
        """The next whole message; ``None`` until there is one. `FormatError` for anything else: hang up then."""
        if len(self._data) < _HEADER.size:
            return None
        magic, version, kind, status, length = _HEADER.unpack_from(self._data)
        if magic != MAGIC or version != VERSION:
            raise FormatError("not a message of this version", offset=0, field="version", value=version)
        if kind not in Kind._value2member_map_:
            raise FormatError("unknown kind of message", offset=6, field="kind", value=kind)
        if length > MOST_BODY:
            raise FormatError("a message is too long", offset=12, field="length", value=length)
        end = _HEADER.size + length
        if len(self._data) < end:
            return None
        body = bytes(self._data[_HEADER.size : end])
        del self._data[:end]
        return Message(Kind(kind), status, body)


class Connection:
    """One end of a stream of messages. `call`, `receive` and `send` wait; `pump`, `post` and `flush` never do."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self._decoder = Decoder()
        self._fds: list[int] = []
        self._waiting: deque[tuple[bytes, list[int]]] = deque()

    @classmethod
    def open(
        cls, path: str, *, timeout: float = CALL_TIMEOUT, peer: Callable[[socket.socket], Peer] = peer_of
    ) -> Connection:
        """Connect to the socket at ``path``; its listener must be of this user. `OSError` where none listens."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            stream.settimeout(timeout)
            stream.connect(path)
            check_peer(stream, peer)
        except BaseException:
            stream.close()
            raise
        return cls(stream)

    def fileno(self) -> int:
        return self.stream.fileno()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; descriptors that nobody took are closed."""
        self.stream.close()
        while self._fds:
            os.close(self._fds.pop())
        while self._waiting:
            _close_all(self._waiting.popleft()[1])

    # -- waiting

    def call(
        self, kind: Kind, body: bytes = b"", fds: Sequence[int] = (), *, name: str = "", timeout: float = CALL_TIMEOUT
    ) -> tuple[bytes, list[int]]:
        """Send a request and return the answer's body and descriptors.

        ``name`` is the API function's, for errors: the answer's status, 1460 if none comes in time, 4201 if the
        daemon went away. Must not be used on a connection that gets messages unasked.
        """
        call = name or kind.name
        try:
            self.send(kind, body, fds=fds, timeout=timeout)
            answer = self.receive(timeout)
        except TimeoutError:
            raise EtwError(call, Status.TIMEOUT, f"the session did not answer within {timeout:g} s") from None
        except (OSError, FormatError) as error:
            raise EtwError(call, Status.WMI_INSTANCE_NOT_FOUND, f"the session's process broke off: {error}") from error
        if answer is None:
            raise EtwError(call, Status.WMI_INSTANCE_NOT_FOUND, "the session's process went away")
        if answer.status:
            raise EtwError(call, answer.status, answer.body.decode(errors="replace"))
        taken, self._fds = self._fds, []
        return answer.body, taken

    def send(
        self, kind: Kind, body: bytes = b"", status: int = 0, fds: Sequence[int] = (), timeout: float = CALL_TIMEOUT
    ) -> None:
        """Send one message. `OSError` if the peer is gone, `TimeoutError` if it does not read."""
        self.stream.settimeout(timeout)
        data = encode(kind, body, status)
        sent = socket.send_fds(self.stream, [data], list(fds)) if fds else 0
        self.stream.sendall(data[sent:])

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message, without a byte of what follows; ``None`` at the end of the stream.

        Raises `TimeoutError`, `OSError`, `FormatError`.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (message := self._decoder.next()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("no message in time")
            self.stream.settimeout(left)
            data = self._take(min(self._decoder.missing, 1 << 16))
            if not data:
                return None
            self._decoder.feed(data)
        return message

    def _take(self, most: int) -> bytes:
        """The next bytes; descriptors with them are kept. (`socket.recv_fds` ignores its flags.)"""
        found = array("i")
        data, ancillary, _, _ = self.stream.recvmsg(most, socket.CMSG_LEN(MOST_FDS * found.itemsize), _NOT_INHERITED)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
        self._fds += found
        return data

    # -- never waiting, for a loop over many

    def pump(self) -> list[Message] | None:
        """What arrived; ``None`` at the end of the stream. Descriptors of the peer's are never taken. `FormatError`."""
        self.stream.setblocking(False)
        try:
            data = self.stream.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        self._decoder.feed(data)
        return list(iter(self._decoder.next, None))

    def post(self, kind: Kind, body: bytes = b"", status: int = 0, fds: Sequence[int] = ()) -> bool:
        """Queue one message and send what goes at once; `flush` tells what the result means.

        ``fds`` may be closed before they are sent: the queue has duplicates.
        """
        kept: list[int] = []
        try:
            for fd in fds:
                kept.append(os.dup(fd))
        except OSError:
            _close_all(kept)
            return False
        self._waiting.append((encode(kind, body, status), kept))
        return self.flush()

    @property
    def pending(self) -> bool:
        """Whether `flush` has something to send."""
        return bool(self._waiting)

    def flush(self) -> bool:
        """Send what goes at once. False if the peer is gone or far behind: it is to be closed then."""
        while self._waiting:
            data, fds = self._waiting[0]
            try:
                self.stream.setblocking(False)
                sent = socket.send_fds(self.stream, [data], fds) if fds else self.stream.send(data)
            except BlockingIOError:
                return sum(len(data) for data, _ in self._waiting) <= MOST_QUEUED
            except OSError:
                return False
            _close_all(fds)
            if sent < len(data):
                self._waiting[0] = data[sent:], []
            else:
                self._waiting.popleft()
        return True


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


# -- Bodies of messages: requests, states and values to bytes and back. Every count is checked against the bytes left


ANY_PROCESSOR = 0xFFFF
"""In ATTACH: the session picks the processor index of the writer."""
_U32, _GUID = struct.Struct("<I"), struct.Struct("<16s")
_REQUEST = struct.Struct("<16s8IiIQ")
_STATE = struct.Struct("<16Q")
_PAIR = struct.Struct("<16sQ")
_NUMBER = struct.Struct("<Q")


class Fields:
    """Reads a body from its start. Raises `FormatError` where it is too short."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next values of ``layout``."""
        return layout.unpack(self._bytes(layout.size))

    def number(self) -> int:
        """The next u32."""
        return int(self.take(_U32)[0])

    def data(self) -> bytes:
        """The next bytes with a count before them."""
        return self._bytes(self.number())

    def text(self) -> str:
        """The next text."""
        try:
            return self.data().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise FormatError("text is not UTF-8", offset=self._at, field="text", value=error.reason) from error

    def rows(self, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """The next records of ``layout`` with a count before them."""
        return list(layout.iter_unpack(self._bytes(self.number() * layout.size)))

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self._bytes(len(self._body) - self._at)

    def end(self) -> None:
        """Raises `FormatError` if bytes are left."""
        if self._at != len(self._body):
            raise FormatError("bytes behind the body", offset=self._at, field="length", value=len(self._body))

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._body):
            raise FormatError("a body is too short", offset=self._at, field="count", value=count)
        found, self._at = self._body[self._at : end], end
        return found


def _data(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def pack_text(text: str) -> bytes:
    """A text with its length."""
    return _data(text.encode("utf-8", "surrogatepass"))


def unpack_text(body: bytes) -> str:
    fields = Fields(body)
    text = fields.text()
    fields.end()
    return text


def pack_request(request: SessionRequest) -> bytes:
    """Body of UPDATE. `struct.error` for numbers that EVENT_TRACE_PROPERTIES cannot hold."""
    r = request
    head = _REQUEST.pack(
        r.guid.bytes_le, r.clock, r.buffer_size, r.minimum_buffers, r.maximum_buffers, r.maximum_file_size, int(r.mode),
        r.flush_timer, r.enable_flags, r.age_limit, len(r.filters), int(r.options),
    )  # fmt: skip
    filters = b"".join(_U32.pack(one.kind) + _data(one.data) for one in r.filters)
    return head + pack_text(r.name) + pack_text(r.file) + filters


def unpack_request(body: bytes) -> SessionRequest:
    """`FormatError` for anything that `pack_request` does not make."""
    fields = Fields(body)
    request = _request(fields)
    fields.end()
    return request


def _request(fields: Fields) -> SessionRequest:
    guid, clock, size, least, most, file_size, mode, timer, flags, age, count, options = fields.take(_REQUEST)
    name, file = fields.text(), fields.text()
    filters = tuple(Filter(fields.number(), fields.data()) for _ in range(count))
    return SessionRequest(
        name, UUID(bytes_le=guid), clock, size, least, most, file_size, LogFileMode(mode), timer, flags, age, file,
        V2Option(options), filters,
    )  # fmt: skip


def pack_state(state: SessionState) -> bytes:
    """Body of the answer to QUERY, STOP and the like."""
    s = state
    numbers = (
        s.handle, s.number_of_buffers, s.free_buffers, s.events_lost, s.buffers_written, s.log_buffers_lost,
        s.real_time_buffers_lost, s.logger_thread,
    )  # fmt: skip
    return _STATE.pack(*numbers, *s.masks) + pack_request(s.request)


def unpack_state(body: bytes) -> SessionState:
    """`FormatError` for anything that `pack_state` does not make."""
    fields = Fields(body)
    handle, buffers, free, events, written, log, real_time, thread, *masks = fields.take(_STATE)
    request = _request(fields)
    fields.end()
    return SessionState(request, handle, buffers, free, events, written, log, real_time, thread, masks)


# -- values of TraceSetInformation and TraceQueryInformation, as `information` decodes them


def pack_value(value: Any) -> bytes:
    """``None``, a number, or a list of numbers, GUIDs, or (GUID, number) pairs. `TypeError` for anything else."""
    if value is None:
        return b"\0"
    if isinstance(value, int):
        return b"\1" + _NUMBER.pack(value)
    kinds = {type(one) for one in value}
    rows: Sequence[bytes]
    if not kinds or all(issubclass(kind, int) for kind in kinds):
        tag, rows = b"\2", [_NUMBER.pack(one) for one in value]
    elif kinds == {UUID}:
        tag, rows = b"\3", [one.bytes_le for one in value]
    elif all(issubclass(kind, tuple) for kind in kinds):
        tag, rows = b"\4", [_PAIR.pack(guid.bytes_le, number) for guid, number in value]
    else:
        raise TypeError(f"a list of {kinds}")
    return tag + _U32.pack(len(rows)) + b"".join(rows)


def unpack_value(body: bytes) -> Any:
    """`FormatError` for anything that `pack_value` does not make."""
    fields = Fields(body[1:])
    match body[:1]:
        case b"\0":
            value: Any = None
        case b"\1":
            (value,) = fields.take(_NUMBER)
        case b"\2":
            value = [number for (number,) in fields.rows(_NUMBER)]
        case b"\3":
            value = [UUID(bytes_le=guid) for (guid,) in fields.rows(_GUID)]
        case b"\4":
            value = [(UUID(bytes_le=guid), number) for guid, number in fields.rows(_PAIR)]
        case tag:
            raise FormatError("unknown type of value", offset=0, field="tag", value=tag.hex())
    fields.end()
    return value
