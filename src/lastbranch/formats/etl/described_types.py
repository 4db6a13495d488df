"""Field types by the numbers that descriptions of events use: in-types say how a field is stored, out-types how shown.

In-types 1 to 25 are the same in self-describing events (TlgIn_*, TraceLoggingProvider.h) and manifests (TDH_INTYPE_*,
tdh.h), but for binary (14), which only the former store with a length. Out-types are those of self-describing events.
"""

from __future__ import annotations

from .field_groups import CountedBytes
from .field_text import ANSI, PLAIN_SID, WIDE, Counted, Text8, Text16
from .field_values import FileTime, Hex
from .fields import (
    BOOL8,
    BOOL32,
    F32,
    F64,
    FILETIME,
    GUID,
    HEX32,
    HEX64,
    I8,
    I16,
    I32,
    I64,
    IPV4,
    IPV6,
    PORT,
    PTR,
    SYSTEMTIME,
    U8,
    U16,
    U32,
    U64,
    FieldType,
    Scalar,
)

__all__ = ["IN_TYPES", "OUT_IPV6", "OUT_SOCKET", "OUT_STRING", "shown"]

IN_TYPES: dict[int, FieldType] = {
    1: WIDE, 2: ANSI, 3: I8, 4: U8, 5: I16, 6: U16, 7: I32, 8: U32, 9: I64, 10: U64, 11: F32, 12: F64, 13: BOOL32,
    14: CountedBytes(U16), 15: GUID, 16: PTR, 17: FILETIME, 18: SYSTEMTIME, 19: PLAIN_SID, 20: HEX32, 21: HEX64,
    22: Counted(U16, Text16()), 23: Counted(U16, Text8()), 25: CountedBytes(U16),
}  # fmt: skip

(
    OUT_STRING, OUT_BOOLEAN, OUT_HEX, OUT_PORT, OUT_IPV4, OUT_IPV6, OUT_SOCKET, OUT_NTSTATUS, OUT_HRESULT, OUT_FILETIME,
    OUT_SIGNED, OUT_UNSIGNED, OUT_CODE_POINTER,
) = 2, 3, 4, 7, 8, 9, 10, 14, 15, 16, 17, 18, 37  # fmt: skip


def shown(type_: FieldType, out: int) -> FieldType:
    """The type with the form that its out-type asks for, where that has one here."""
    if isinstance(type_, CountedBytes):
        return _Ipv6Bytes(type_.size) if out == OUT_IPV6 else type_
    if type(type_) is not Scalar or type_.code not in "bBhHiIqQ":
        return type_
    code = type_.code
    if out == OUT_BOOLEAN:
        return {"B": BOOL8, "I": BOOL32}.get(code.upper(), type_)
    if out in (OUT_HEX, OUT_NTSTATUS, OUT_HRESULT, OUT_CODE_POINTER):
        return Scalar(code.upper(), Hex, type_.code4.upper())
    if out == OUT_PORT and code.upper() == "H":
        return PORT
    if out == OUT_IPV4 and code.upper() == "I":
        return IPV4
    if out == OUT_FILETIME and code.upper() == "Q":
        return Scalar("Q", FileTime)
    if out == OUT_SIGNED:
        return Scalar(code.lower())
    return Scalar(code.upper()) if out == OUT_UNSIGNED else type_


class _Ipv6Bytes(CountedBytes):
    """16 counted bytes that are an address; bytes of another number stay bytes."""

    def decode(self, data: bytes, at: int, end: int, pointer: int) -> tuple[object, int]:
        raw, after = super().decode(data, at, end, pointer)
        return (IPV6.decode(raw, 0, 16, pointer)[0] if len(raw) == 16 else raw), after

    def encode(self, value: object, pointer: int) -> bytes:
        return super().encode(IPV6.encode(value, pointer) if isinstance(value, str) else value, pointer)
