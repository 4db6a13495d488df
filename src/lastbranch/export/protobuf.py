"""Messages of protocol buffers from declared tables (protobuf.dev, "Encoding"): what an export of them needs.

A field's kind is ``int`` (int64, uint64 and bool), ``text``, ``ints`` (repeated, packed), ``message`` or ``messages``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

__all__ = ["Field", "Message", "Value", "varint"]

Field = tuple[int, Literal["int", "text", "ints", "message", "messages"]]
"""(number, kind)"""

Value = int | str | bytes | Sequence[int] | Sequence[bytes]

_VARINT, _LENGTH = 0, 2
_ONE_BYTE = [bytes([n]) for n in range(128)]


def varint(number: int) -> bytes:
    """A number, least significant 7 bits first; negative ones as 64-bit two's complement."""
    if 0 <= number < 128:
        return _ONE_BYTE[number]
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


class Message:
    """A kind of message: field name -> `Field`."""

    def __init__(self, **fields: Field) -> None:
        self._fields = fields

    def __call__(self, **values: Value) -> bytes:
        """The message with these values. A number that is 0, the default of proto3, is not written."""
        out = []
        for name, value in values.items():
            number, kind = self._fields[name]
            if kind == "int":
                assert isinstance(value, int)
                if value:
                    out += [varint(number << 3 | _VARINT), varint(value)]
                continue
            for data in _bodies(kind, value):
                out += [varint(number << 3 | _LENGTH), varint(len(data)), data]
        return b"".join(out)


def _bodies(kind: str, value: Value) -> Sequence[bytes]:
    """What is written with its length before it."""
    match kind, value:
        case "text", str():
            return [value.encode()]
        case "ints", _ if not isinstance(value, int | str | bytes):
            return [b"".join(varint(n) for n in value if isinstance(n, int))] if value else []
        case "message", bytes():
            return [value]
        case "messages", _ if not isinstance(value, int | str | bytes):
            return [m for m in value if isinstance(m, bytes)]
    raise TypeError(f"{kind} of {type(value).__name__}")
