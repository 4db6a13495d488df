"""Layouts of TCP and UDP events.

Source: the kernel's MOF classes as the Windows SDK publishes them; sizes checked on net.4.5.2.x64. TraceEvent's reader
swaps connection and sequence number of version 2 in its IPv4 and IPv6 receive events and reads UDP version 2 as if it
were version 0 ("context" is the process and size there); both are 0 in all files at hand, so the MOF order stands.
"""

from __future__ import annotations

from ..payload.layouts import Layout, Versions, layout
from ..payload.types import I16, IPV4, IPV6, PORT, PTR, U16, U32

__all__ = ["TABLE", "TCP_IP", "UDP_IP"]

TCP_IP, UDP_IP = 0x06, 0x08

_SIZE = layout(ProcessID=U32, size=U32)
_V4 = layout(_SIZE, daddr=IPV4, saddr=IPV4, dport=PORT, sport=PORT)
_V6 = layout(_SIZE, daddr=IPV6, saddr=IPV6, dport=PORT, sport=PORT)
_TIMES = layout(startime=U32, endtime=U32)
_NUMBERS_1, _NUMBERS = layout(connid=PTR, seqnum=U32), layout(seqnum=U32, connid=PTR)
_OPTIONS = layout(
    mss=U16, sackopt=U16, tsopt=U16, wsopt=U16, rcvwin=U32, rcvwinscale=I16, sndwinscale=I16
)  # of connects and accepts
_TCP_0 = layout(daddr=IPV4, saddr=IPV4, dport=PORT, sport=PORT, size=U32, ProcessID=U32)
_UDP_0 = layout(context=PTR, saddr=IPV4, sport=PORT, size=U16, daddr=IPV4, dport=PORT, dsize=U16)


def _tcp(middle: Layout) -> Versions:
    return {0: _TCP_0, 1: layout(_V4, middle, _NUMBERS_1), 2: layout(_V4, middle, _NUMBERS)}


_NOTHING = layout()
_TCP_V6 = {1: layout(_V6, _NUMBERS)}
_FAIL = {0: layout(Proto=U32), 2: layout(Proto=U16, FailureCode=U16)}
_UDP = {0: _UDP_0, 1: _V4, 2: layout(_V4, _NUMBERS)}

TABLE: dict[tuple[int, int], Versions] = {
    (TCP_IP, 10): _tcp(_TIMES),
    **dict.fromkeys([(TCP_IP, type_) for type_ in (11, 13, 14, 16, 18, 19, 20, 21, 22)], _tcp(_NOTHING)),
    (TCP_IP, 12): _tcp(_OPTIONS),
    (TCP_IP, 15): _tcp(_OPTIONS),
    (TCP_IP, 17): _FAIL,
    (TCP_IP, 26): {1: layout(_V6, _TIMES, _NUMBERS)},
    **dict.fromkeys([(TCP_IP, type_) for type_ in (27, 29, 30, 32, 34)], _TCP_V6),
    (TCP_IP, 28): {1: layout(_V6, _OPTIONS, _NUMBERS)},
    (TCP_IP, 31): {1: layout(_V6, _OPTIONS, _NUMBERS)},
    (UDP_IP, 10): _UDP,
    (UDP_IP, 11): _UDP,
    (UDP_IP, 17): _FAIL,
    (UDP_IP, 26): {1: layout(_V6, _NUMBERS)},
    (UDP_IP, 27): {1: layout(_V6, _NUMBERS)},
}
