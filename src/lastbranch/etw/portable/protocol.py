"""Messages between the processes of a session: framing, file descriptors and the check of the peer's user.

A message is a header (``LBET``, version, kind, status, length) and a body of at most `MOST_BODY` bytes; `messages` says
what bodies hold. An answer has kind ANSWER, the Win32 status of the call, and the reason as text where that is not 0.
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
from typing import NamedTuple

from ...errors import FormatError
from ..status import EtwError, Status
from .local_sockets import Peer, at_folder, check_peer, peer_of

__all__ = [
    "CALL_TIMEOUT",
    "MOST_BODY",
    "VERSION",
    "Connection",
    "Decoder",
    "Kind",
    "Message",
    "Peer",
    "at_folder",
    "check_peer",
    "encode",
    "peer_of",
]

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
