"""Messages between the processes of a session: framing, bodies, file descriptors, and the check of the peer's user.

A message is a header (``LBET``, version, kind, status, length) and a body of at most `MOST_BODY` bytes. Its `Kind`
determines the type of the body. An answer has the kind ANSWER and the Win32 status of the call; if that is not 0, the
body is the reason as text.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints
from uuid import UUID

from ...closing import Closing, on_failure
from ...errors import FormatError
from ..status import EtwError, Status

__all__ = [
    "CALL_TIMEOUT",
    "Connection",
    "Decoder",
    "Kind",
    "MOST_BODY",
    "Message",
    "Peer",
    "Value",
    "address_in",
    "check_peer",
    "encode",
    "pack",
    "peer_of",
    "unpack",
]


# -- local sockets: the peer, and short addresses


_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """The process at the other end of a local socket (SO_PEERCRED)."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected or listened, as the kernel recorded it at that time."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(raw))


def check_peer(connection: socket.socket, peer: Callable[[socket.socket], Peer] = peer_of) -> Peer:
    """The peer, which must belong to the user of this process. Raises `EtwError` 5 otherwise."""
    found = peer(connection)
    if found.uid != os.geteuid():
        raise EtwError(
            "connect", Status.ACCESS_DENIED, f"process {found.pid} belongs to user {found.uid}, not to this one"
        )
    return found


def address_in(folder: int, name: str) -> str:
    """The address of socket ``name`` in the directory of descriptor ``folder``.

    It is short for any depth of the directory: the address of a local socket has at most 107 bytes.
    """
    return f"/proc/self/fd/{folder}/{name}"


# -- messages and connections


MAGIC = b"LBET"
VERSION = 1
MOST_BODY = 1 << 20
"""Bytes of the largest body."""
MOST_QUEUED = 4 << 20
"""Bytes that wait for a peer that does not read, before the connection is closed."""
MOST_FDS = 8
CALL_TIMEOUT = 20.0
"""Seconds that `Connection.call` waits by default."""
_HEADER = struct.Struct("<4sHHII")
_NOT_INHERITED = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""Programs that this process starts do not inherit received descriptors."""


class Kind(IntEnum):
    """Kinds of messages. Comments: sender -> receiver: body; body of the answer."""

    ANSWER = 0
    QUERY = 1  # control -> daemon: nothing; SessionState
    STOP = 2  # control -> daemon: nothing; SessionState
    UPDATE = 3  # control -> daemon: SessionRequest; SessionState
    FLUSH = 4  # control -> daemon: file of the snapshot, or empty; SessionState
    INCREMENT_FILE = 5  # control -> daemon: nothing; SessionState
    CONVERT_TO_REALTIME = 6  # control -> daemon: nothing; SessionState
    SET_INFO = 7  # control -> daemon: class and value; nothing
    QUERY_INFO = 8  # control -> daemon: class; value
    LBR = 9  # control -> daemon: flags and triggers; nothing
    REFRESH = 10  # control -> daemon: nothing; nothing. Profile sources or intervals have changed
    ATTACH = 16  # writer -> daemon: processor index or ANY_PROCESSOR; Attached, with descriptors
    DETACH = 17  # writer -> daemon: slot; nothing. A hang-up detaches all slots of the connection
    ENDED = 18  # daemon -> writer, no answer: the session stops; hang up
    CONSUME = 24  # reader -> daemon: nothing; nothing. The connection then is the stream of realtime.py
    SOURCE = 32  # source -> daemon: nothing; SourceConfiguration
    READY = 33  # source -> daemon, no answer: the newest configuration is applied
    FAILED = 34  # source -> daemon, no answer: status and reason; the configuration is not applied
    CONFIGURE = 35  # daemon -> source: SourceConfiguration, answered by READY or FAILED
    SOURCE_STOP = 36  # daemon -> source, no answer: write what is left and the end rundown; hang up; exit
    BRANCHES = 37  # branch source -> daemon -> kernel source, no answer: CallRecords in a form of their own
    START = 48  # spawn -> daemon: Order; Started
    COMMIT = 49  # spawn -> daemon, no answer: the daemon owns the entry and runs on its own


class Message(NamedTuple):
    """A received message."""

    kind: Kind
    status: int
    body: bytes


def encode(kind: Kind, body: bytes = b"", status: int = 0) -> bytes:
    """The bytes of one message. Raises `ValueError` for a body that is too large."""
    if len(body) > MOST_BODY:
        raise ValueError(f"a body of {len(body)} bytes")
    return _HEADER.pack(MAGIC, VERSION, kind, status, len(body)) + body


class Decoder:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._data += data

    @property
    def missing(self) -> int:
        """Bytes that the next message lacks, as far as known. Reading no more leaves what follows in the stream."""
        have = len(self._data)
        return (_HEADER.size if have < _HEADER.size else _HEADER.size + _HEADER.unpack_from(self._data)[4]) - have

    def next(self) -> Message | None:
        """The next whole message, or ``None``. Raises `FormatError` for anything else: the caller hangs up."""
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


class Connection(Closing):
    """One end of a stream of messages. `call`, `receive` and `send` wait; `pump`, `post` and `flush` never wait."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self._decoder = Decoder()
        self._fds: list[int] = []
        self._waiting: deque[tuple[bytes, list[int]]] = deque()

    @classmethod
    def open(
        cls, path: str, *, timeout: float = CALL_TIMEOUT, peer: Callable[[socket.socket], Peer] = peer_of
    ) -> Connection:
        """Connect to the socket at ``path``, whose listener must belong to this user. `OSError` if nobody listens."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with on_failure(stream.close):
            stream.settimeout(timeout)
            stream.connect(path)
            check_peer(stream, peer)
        return cls(stream)

    def fileno(self) -> int:
        return self.stream.fileno()

    def close(self) -> None:
        """Hang up, and close the descriptors that nobody took."""
        self.stream.close()
        while self._fds:
            os.close(self._fds.pop())
        while self._waiting:
            _close_all(self._waiting.popleft()[1])

    # -- waiting

    def call(
        self, kind: Kind, body: bytes = b"", fds: Sequence[int] = (), *, name: str = "", timeout: float = CALL_TIMEOUT
    ) -> tuple[bytes, list[int]]:
        """Send a request. Returns the body and the descriptors of the answer.

        Raises `EtwError` with the status of the answer, 1460 if none comes in time, 4201 if the daemon has ended;
        ``name`` is the API function that it names. Not for connections on which the peer sends unasked.
        """
        call = name or kind.name
        try:
            self.send(kind, body, fds=fds, timeout=timeout)
            answer = self.receive(timeout)
        except TimeoutError:
            raise EtwError(call, Status.TIMEOUT, f"the session did not answer within {timeout:g} s") from None
        except (OSError, FormatError) as error:
            raise EtwError(
                call, Status.WMI_INSTANCE_NOT_FOUND, f"the session's process dropped the connection: {error}"
            ) from error
        if answer is None:
            raise EtwError(call, Status.WMI_INSTANCE_NOT_FOUND, "the session's process ended")
        if answer.status:
            raise EtwError(call, answer.status, answer.body.decode(errors="replace"))
        taken, self._fds = self._fds, []
        return answer.body, taken

    def send(
        self, kind: Kind, body: bytes = b"", status: int = 0, fds: Sequence[int] = (), timeout: float = CALL_TIMEOUT
    ) -> None:
        """Send one message. Raises `OSError` if the peer has disconnected, `TimeoutError` if it does not read."""
        self.stream.settimeout(timeout)
        data = encode(kind, body, status)
        sent = socket.send_fds(self.stream, [data], list(fds)) if fds else 0
        self.stream.sendall(data[sent:])

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message, and no byte beyond it; ``None`` at the end of the stream.

        Raises `TimeoutError`, `OSError`, `FormatError`.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (message := self._decoder.next()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("no message arrived in time")
            self.stream.settimeout(left)
            data = self._take(min(self._decoder.missing, 1 << 16))
            if not data:
                return None
            self._decoder.feed(data)
        return message

    def _take(self, most: int) -> bytes:
        """Read bytes, and keep the descriptors that arrive with the bytes. (`socket.recv_fds` ignores its flags.)"""
        found = array("i")
        data, ancillary, _, _ = self.stream.recvmsg(most, socket.CMSG_LEN(MOST_FDS * found.itemsize), _NOT_INHERITED)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
        self._fds += found
        return data

    # -- never waiting, for a loop over many

    def pump(self) -> list[Message] | None:
        """Messages that have arrived; ``None`` at the end of the stream. Takes no descriptors. Raises `FormatError`."""
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
        """Queue one message, and send what the peer accepts at once. Returns what `flush` does.

        The caller may close ``fds`` at once: the queue holds duplicates.
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
        """Send what the peer accepts at once. False if it is gone or far behind: the caller closes the connection."""
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


# -- bodies, and the files of the registry: JSON, checked against a type when it is read

Value = int | list[int] | list[UUID] | list[tuple[UUID, int]] | None
"""A value of TraceSetInformation or TraceQueryInformation, as `information` decodes it."""


def pack(value: Any) -> bytes:
    """JSON of numbers, texts, bytes, UUIDs and paths, and of dataclasses, named tuples, lists and dicts of them."""
    return json.dumps(value, default=_plain, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return value.hex() if isinstance(value, bytes) else str(value)


def unpack(kind: Any, data: bytes) -> Any:
    """The value of type ``kind`` that `pack` made ``data`` of. Raises `FormatError` for anything else."""
    try:
        return _to_type(kind, json.loads(data))
    except (ValueError, TypeError, RecursionError) as error:
        name = getattr(kind, "__name__", str(kind))
        raise FormatError(f"not the JSON of {name}", offset=0, field="body", value=str(error)) from error


def _to_type(kind: Any, plain: Any) -> Any:
    """``plain``, as `json` returns it, as a value of type ``kind``. Raises `ValueError` or `TypeError`."""
    made_of, parts = get_origin(kind), get_args(kind)
    if made_of is UnionType:
        return _any_of(parts, plain)
    other = dict if is_dataclass(kind) else list if hasattr(kind, "_fields") else int
    form: Any = _FORMS.get(made_of or kind, other)
    if type(plain) is not form:
        raise ValueError(f"{plain!r:.99} is not of type {kind}")
    if made_of is dict:
        return {_to_type(parts[0], json.loads(key)): _to_type(parts[1], one) for key, one in plain.items()}
    if made_of is list or (made_of is tuple and parts[1] is ...):
        return made_of(_to_type(parts[0], one) for one in plain)
    if made_of is tuple:
        return tuple(_to_type(part, one) for part, one in zip(parts, plain, strict=True))
    if form in (dict, list):
        types = _types(kind)
        named = plain if form is dict else dict(zip(types, plain, strict=True))
        if named.keys() != types.keys():
            raise ValueError(f"{kind.__name__} has the fields {', '.join(types)}")
        return kind(**{name: _to_type(types[name], one) for name, one in named.items()})
    if form is int and not _SMALLEST <= plain <= _LARGEST:
        raise ValueError(f"{plain:#x} is larger than 64 bits")
    return bytes.fromhex(plain) if kind is bytes else kind(plain)


def _any_of(kinds: tuple[Any, ...], plain: Any) -> Any:
    if plain is None and NoneType in kinds:
        return None
    for kind in kinds:
        with suppress(ValueError, TypeError):
            return _to_type(kind, plain)
    raise ValueError(f"{plain!r:.99} is not of the types {kinds}")


_FORMS: dict[Any, type] = {
    dict: dict, list: list, tuple: list, bool: bool, str: str, bytes: str, UUID: str, Path: str,
}  # fmt: skip
"""Type -> type of its JSON. Dataclasses are objects, named tuples are lists, all others are numbers."""
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1
_types = cache(get_type_hints)
