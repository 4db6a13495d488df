"""What string and pointer fields point to: no number is followed as a pointer unless it was put there as one.

A C library has to trust its caller's pointers. Here a pointer field is a plain 64-bit word to ctypes, so a unique id, a
stale address or a made-up number could stand in it; following that would end the process. Every target is registered
when a field is made to point to it, for as long as the object that owns the memory lives.
"""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import ref

__all__ = ["ID_MARK", "buffer_of", "owner_of", "read", "register", "text_at"]

ID_MARK = 1 << 63
"""Set in every unique id that is handed out (8.1 keeps the bit free for that)."""

_targets: dict[int, tuple[ref[Any], int]] = {}
"""Address -> (owner of the memory, bytes from there on)."""


def register(owner: Any, address: int | None = None, size: int | None = None) -> None:
    """``size`` bytes at ``address`` (both of ``owner`` itself unless given) may be pointed to while ``owner`` lives."""
    at = ctypes.addressof(owner) if address is None else address

    def forget(gone: ref[Any]) -> None:
        if at in _targets and _targets[at][0] is gone:
            del _targets[at]

    _targets[at] = (ref(owner, forget), ctypes.sizeof(owner) if size is None else size)


def owner_of(address: int) -> Any:
    """The object whose memory starts at a registered address, or ``None``."""
    held = _targets.get(address)
    return None if held is None else held[0]()


def buffer_of(record: ctypes.Structure) -> range:
    """The addresses of the buffer that a structure was laid over with ``from_buffer``; none where it was not.

    Whatever stands there belongs to whoever has the structure: pointers of it may lead there without being registered,
    which a `bytearray` cannot be.
    """
    held: dict[str, Any] = record._objects or {}  # type: ignore[assignment]
    for kept in held.values():
        if isinstance(kept, memoryview) and not kept.readonly:
            start = ctypes.addressof(ctypes.c_char.from_buffer(kept))
            return range(start, start + kept.nbytes)
    return range(0)


def read(address: int, size: int, own: range = range(0)) -> bytes | None:
    """``size`` bytes at a registered address or inside ``own``; ``None`` if nothing, or less, is there."""
    if address in own and address + size <= own.stop:
        return ctypes.string_at(address, size)
    held = _targets.get(address)
    if held is None or held[1] < size or held[0]() is None:
        return None
    return ctypes.string_at(address, size)


def text_at(address: int) -> str | None:
    """The string at a registered address, up to its NUL; ``None`` if there is none."""
    owner = owner_of(address)
    return owner.value if isinstance(owner, ctypes.Array) and owner._type_ is ctypes.c_wchar else None
