"""Local sockets: who is at the other end, and addresses that are short enough."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from ..status import EtwError, Status

__all__ = ["Peer", "at_folder", "check_peer", "peer_of"]

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
