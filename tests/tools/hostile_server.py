"""A debuginfod server on loopback that answers as a hostile one might."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["ANSWERS", "Answer", "hostile_server"]

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
Answer = Callable[["Talk"], None]


class Talk:
    """The server's side of a connection after the request has come. It ends when the client hangs up."""

    def __init__(self, stream: socket.socket, path: str, home: str, body: bytes, chance: random.Random) -> None:
        self.stream, self.path, self.home, self.body, self.chance = stream, path, home, body, chance

    def send(self, data: bytes) -> None:
        self.stream.sendall(data)

    def drip(self, data: bytes, seconds: float = 0.05) -> None:
        """Byte for byte: no silence is long."""
        for at in range(len(data)):
            self.send(data[at : at + 1])
            time.sleep(seconds)

    def for_ever(self, data: bytes, seconds: float = 0.01) -> None:
        while True:
            self.send(data)
            time.sleep(seconds)

    def to(self, place: str) -> None:
        self.send(f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode())


def _after(head: bytes, then: Answer) -> Answer:
    """First ``head``, then the rest."""

    def answer(talk: Talk) -> None:
        talk.send(head)
        then(talk)

    return answer


def _length(talk: Talk, said: object, body: bytes | None = None) -> None:
    talk.send(OK + f"Content-Length: {said}\r\n\r\n".encode() + (talk.body if body is None else body))


def _in_turn(talk: Talk) -> None:
    """To another place each time, none of which was seen before, a little later each time."""
    time.sleep(0.3)
    talk.to(f"{talk.home}{talk.path}/{talk.chance.getrandbits(64):x}")


ANSWERS: dict[str, Answer] = {
    "silence": lambda talk: time.sleep(30),
    "hangs up": lambda talk: None,
    "no HTTP": lambda talk: talk.send(talk.chance.randbytes(1000)),
    "status drips": lambda talk: talk.drip(b"HTTP/1.1 200 " + b"O" * 3000),
    "headers drip": lambda talk: talk.drip(OK + b"X-Some: header\r\n" * 90),
    "headers without end": lambda talk: talk.for_ever(b"X" * 1000 + b": y\r\n"),
    "a header of megabytes": lambda talk: talk.send(OK + b"X: " + b"y" * (4 << 20)),
    "interim answers without end": lambda talk: talk.for_ever(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "to itself": lambda talk: talk.to(talk.home + talk.path),
    "to somewhere else, each time": _in_turn,
    "to a file": lambda talk: talk.to("file:///etc/passwd"),
    "to data": lambda talk: talk.to("data:text/plain,hello"),
    "to nowhere": lambda talk: talk.to("http://[::1"),
    "to a line feed": lambda talk: talk.to("http://127.0.0.1/\u2028x y"),
    "body without end": _after(OK + b"\r\n", lambda talk: talk.for_ever(bytes(1 << 16), 0)),
    "body drips": _after(OK + b"\r\n", lambda talk: talk.drip(talk.body)),
    "body drips, with a length": _after(OK + b"Content-Length: 99999\r\n\r\n", lambda talk: talk.drip(talk.body)),
    "too short": lambda talk: _length(talk, len(talk.body) + 1),
    "too long": lambda talk: _length(talk, 7),
    "length below nothing": lambda talk: _length(talk, -5),
    "length of petabytes": lambda talk: _length(talk, 1 << 60),
    "as long as is allowed": lambda talk: _length(talk, 4 << 20),
    "length that is not a number": lambda talk: _length(talk, "0x10"),
    "length of many digits": lambda talk: _length(talk, "9" * 6000),
    "two lengths": lambda talk: _length(talk, "7\r\nContent-Length: 9"),
    "chunk without end": _after(CHUNKED + b"ffffffffffff\r\n", lambda talk: talk.for_ever(bytes(1 << 16), 0)),
    "chunks without end": _after(CHUNKED, lambda talk: talk.for_ever(b"1\r\nx\r\n")),
    "trailers without end": _after(CHUNKED + b"1\r\nx\r\n0\r\n", lambda talk: talk.for_ever(b"X: y\r\n")),
    "a chunk size that is none": lambda talk: talk.send(CHUNKED + b"zz\r\nx\r\n"),
    "compressed": lambda talk: talk.send(OK + b"Content-Encoding: gzip\r\n\r\n" + talk.body),
    "another file": lambda talk: _length(talk, 1000, talk.chance.randbytes(1000)),
    "nothing": lambda talk: _length(talk, 0, b""),
    "an error": lambda talk: talk.send(b"HTTP/1.1 500 No\r\nContent-Length: 5\r\n\r\nhello"),
    "a status of its own": lambda talk: talk.send(b"HTTP/1.1 999 Yes\r\n\r\n"),
}
"""By name. None of them gives the file that was asked for."""


@contextmanager
def hostile_server(answer: Answer, body: bytes, chance: random.Random) -> Iterator[str]:
    """The address of a server that gives ``answer`` to everybody; answers may use ``body``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        home = f"http://127.0.0.1:{listener.getsockname()[1]}"
        streams: list[socket.socket] = []

        def serve(stream: socket.socket) -> None:
            with suppress(OSError), stream:
                asked = stream.recv(1 << 16).split()
                if len(asked) > 1:
                    answer(Talk(stream, asked[1].decode(), home, body, chance))

        def accept() -> None:
            with suppress(OSError):
                while True:
                    stream, _ = listener.accept()
                    streams.append(stream)
                    threading.Thread(target=serve, args=(stream,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield home
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            for stream in streams:
                with suppress(OSError):
                    stream.shutdown(socket.SHUT_RDWR)
            thread.join(10)
