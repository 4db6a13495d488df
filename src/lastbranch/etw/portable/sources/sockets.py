"""TcpIp and UdpIp events: what sockets send and receive, and when connections begin and end.

The kernel reports bytes by the address of the socket, and addresses and ports when its state changes. Connections that
are older than the session, and UDP, have addresses and ports 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import ClassVar

from ....capture.perf_events.linux_kernel import Kernel
from ....formats.etl.kernel.hooks import TCP_IP, UDP_IP
from .joint_events import Row, TracepointFollower

__all__ = ["Sockets"]

_STATE, _SENT, _RECEIVED = "sock/inet_sock_set_state", "sock/sock_send_length", "sock/sock_recv_length"
_SEND, _RECV, _CONNECT, _DISCONNECT, _ACCEPT = 10, 11, 12, 13, 15
_V6_BEGINS = 16
"""The difference of a type for IPv6 from the same type for IPv4."""
_INET, _INET6 = 2, 10
_TCP, _UDP = 6, 17
_ESTABLISHED, _SYN_SENT, _SYN_RECV, _CLOSE, _LISTEN = 1, 2, 3, 7, 10  # include/net/tcp_states.h
_PEEK = 2
_MOST = 1 << 16


@dataclass(slots=True)
class _Socket:
    local: bytes
    remote: bytes
    local_port: int
    remote_port: int
    pid: int
    connected: bool = False


class Sockets(TracepointFollower):
    needs: ClassVar = {"tcp": (_STATE, _SENT, _RECEIVED)}
    fields: ClassVar = {
        _STATE: ("skaddr", "oldstate", "newstate", "sport", "dport", "family", "protocol", "*saddr", "*daddr",
                 "*saddr_v6", "*daddr_v6"),
        _SENT: ("sk", "family", "protocol", "ret", "flags"), _RECEIVED: ("sk", "family", "protocol", "ret", "flags"),
    }  # fmt: skip
    hooks: ClassVar = frozenset(
        group << 8 | kind + more for group in (TCP_IP, UDP_IP) for kind in (_SEND, _RECV) for more in (0, _V6_BEGINS)
    ) | frozenset(TCP_IP << 8 | kind + more for kind in (_CONNECT, _DISCONNECT, _ACCEPT) for more in (0, _V6_BEGINS))

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._sockets: dict[int, _Socket] = {}
        self._listeners: dict[tuple[int, int], int] = {}
        """(family, port) -> the process that listens."""

    def row(self, row: Row) -> None:
        if row.tracepoint == _STATE:
            self._changed(row)
            return
        family, protocol, size = (row.values[name] for name in ("family", "protocol", "ret"))
        if family not in (_INET, _INET6) or protocol not in (_TCP, _UDP) or size <= 0 or row.values["flags"] & _PEEK:
            return
        group = TCP_IP if protocol == _TCP else UDP_IP
        key, known = row.values["sk"], self._sockets.get(row.values["sk"])
        if known is not None:
            known.pid = row.pid
        kind = _SEND if row.tracepoint == _SENT else _RECV
        self._log(group, kind, row, family, key, known, row.pid, size)

    def _changed(self, row: Row) -> None:
        old, new, family, key = (row.values[name] for name in ("oldstate", "newstate", "family", "skaddr"))
        if row.values["protocol"] != _TCP or family not in (_INET, _INET6):
            return
        if new == _LISTEN:
            self._listeners[family, row.values["sport"]] = row.pid
            return
        if new == _SYN_SENT or (new == _ESTABLISHED and key not in self._sockets):
            more = "_v6" if family == _INET6 else ""
            pid = row.pid if new == _SYN_SENT else self._listeners.get((family, row.values["sport"]), 0)
            if len(self._sockets) > _MOST:
                self._sockets.clear()
            self._sockets[key] = _Socket(
                row.values[f"saddr{more}"], row.values[f"daddr{more}"], row.values["sport"], row.values["dport"], pid
            )
        known = self._sockets.get(key)
        if known is not None and new == _ESTABLISHED:
            more = "_v6" if family == _INET6 else ""
            known.local, known.remote = row.values[f"saddr{more}"], row.values[f"daddr{more}"]
            known.local_port, known.remote_port = row.values["sport"], row.values["dport"]
            known.connected = True
            self._log(TCP_IP, _ACCEPT if old == _SYN_RECV else _CONNECT, row, family, key, known, known.pid, 0)
        elif new == _CLOSE and known is not None:
            if known.connected:
                self._log(TCP_IP, _DISCONNECT, row, family, key, known, known.pid, 0)
            del self._sockets[key]

    def _log(
        self, group: int, kind: int, row: Row, family: int, key: int, known: _Socket | None, pid: int, size: int
    ) -> None:
        wide = family == _INET6
        one = known or _Socket(b"", b"", 0, 0, pid)
        self.log(
            (group, kind + _V6_BEGINS * wide),
            row,
            1 if wide else 2,
            {
                "ProcessID": pid,
                "size": size,
                "daddr": _address(one.remote, wide),
                "saddr": _address(one.local, wide),
                "dport": one.remote_port,
                "sport": one.local_port,
                "connid": key & (1 << 64) - 1,
            },
        )


def _address(raw: bytes, wide: bool) -> str:
    """An address of the family that an event is of. A socket may change from IPv6 to IPv4 (IPV6_ADDRFORM): the address
    is in the last bytes then. An address that is not known is 0."""
    if wide:
        return str(IPv6Address(raw if len(raw) == 16 else bytes(16)))
    return str(IPv4Address(raw[-4:] if len(raw) >= 4 else bytes(4)))
