"""Telling registered providers that a session enabled or disabled them, by datagrams to their sockets.

A notice says only that something changed, and for CAPTURE_STATE what is asked for; the provider reads the rest from the
registry. It sends the notice back when its callback has run, which is what a timeout of EnableTraceEx2 waits for.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import NamedTuple
from uuid import UUID

from ...errors import FormatError
from ..flags import EnableProvider
from .protocol import at_folder
from .registry import Registry
from .statefile import remove

__all__ = ["Notice", "notify"]

_NOTICE = struct.Struct("<4sHHIQ")
MAGIC, VERSION = b"LBEN", 1


class Notice(NamedTuple):
    """One datagram: session ``handle`` did ``code`` with the provider; keywords are those of a CAPTURE_STATE."""

    code: EnableProvider
    handle: int
    keywords: int = 0

    def pack(self) -> bytes:
        return _NOTICE.pack(MAGIC, VERSION, self.code, self.handle, self.keywords)

    @classmethod
    def unpack(cls, data: bytes) -> Notice:
        """`FormatError` for anything that `pack` does not make."""
        if len(data) != _NOTICE.size:
            raise FormatError("a notice has another length", field="length", value=len(data))
        magic, version, code, handle, keywords = _NOTICE.unpack(data)
        if magic != MAGIC or version != VERSION or code not in EnableProvider._value2member_map_:
            raise FormatError("not a notice of this version", offset=0, field="version", value=version)
        return cls(EnableProvider(code), handle, keywords)


def notify(registry: Registry, provider: UUID, notice: Notice, timeout: float = 0.0) -> bool:
    """Send ``notice`` to all instances of a provider; sockets of dead ones are removed.

    With a ``timeout`` (seconds), waits until all have answered; False if they did not in time.
    """
    data, told = notice.pack(), 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sender:
        if timeout:
            sender.bind("")  # the system gives it an address, to which providers answer
        with registry.folder("providers", str(provider)) as folder:
            for path in registry.providers(provider):
                try:
                    sender.sendto(data, at_folder(folder, path.name))
                    told += 1
                except (ConnectionRefusedError, ConnectionResetError):
                    remove(folder, path.name)
                except FileNotFoundError:
                    continue
                except BlockingIOError:
                    told += 1  # it has notices enough that it has not read yet
        return not timeout or _answered(sender, data, told, timeout)


def _answered(sender: socket.socket, data: bytes, expected: int, timeout: float) -> bool:
    end = time.monotonic() + timeout
    while expected:
        left = end - time.monotonic()
        if left <= 0:
            return False
        sender.settimeout(left)
        try:
            expected -= sender.recv(len(data) + 1) == data
        except TimeoutError:
            return False
    return True
