"""The header of a perf.data in file mode: magic, attributes, feature sections."""

from __future__ import annotations

import struct

from ...errors import Damage, FormatError
from ...model import Source, read_at
from ..interface import not_of_format
from .attr import parse_attr
from .features import decode_feature, feature_name
from .layout import HEADER, MAGIC, OLD_MAGIC, PIPE_HEADER_SIZE
from .state import State

__all__ = ["is_perfdata", "read_header", "read_magic"]

_LITTLE = (MAGIC, OLD_MAGIC)
_SECTION = 16  # struct perf_file_section {u64 offset, size}


def is_perfdata(start: bytes) -> bool:
    """Whether a file that begins with ``start`` is a perf.data, of either byte order."""
    return start[:8] in _LITTLE or start[:8][::-1] in _LITTLE


def read_magic(source: Source) -> tuple[str, bool]:
    """(byte order ``<`` or ``>``, whether it is in pipe mode). Raises `FormatError` for what is no perf.data."""
    magic = read_at(source, 0, PIPE_HEADER_SIZE)
    if not is_perfdata(magic):
        hint = "a capture made by `perf record` begins with PERFILE2"
        raise not_of_format(source.name, magic, "not a perf.data file", hint)
    if len(magic) < PIPE_HEADER_SIZE:
        raise FormatError("file header is cut short", file=source.name, offset=8, field="size", value=len(magic))
    order = "<" if magic[:8] in _LITTLE else ">"
    return order, struct.unpack_from(order + "Q", magic, 8)[0] == PIPE_HEADER_SIZE


def read_header(source: Source, state: State) -> tuple[int, int]:
    """Read attributes and features into ``state``; (start, end) of the data section in bytes of the file."""
    raw = read_at(source, 8, 8 * len(HEADER))
    if len(raw) < 8 * len(HEADER):
        raise FormatError("file header is cut short", file=source.name, offset=8 + len(raw))
    h = dict(zip(HEADER, struct.unpack(f"{state.order}{len(HEADER)}Q", raw), strict=True))
    _attrs(source, state, h)
    start, size = h["data.offset"], h["data.size"]
    note = state.profile.damage.append
    if start > source.size:
        note(Damage("data section begins after the end of the file", 0x28, "data.offset", start))
        return 0, 0
    if size == 0:
        # perf fills it in at the end; a recorder that died leaves 0 and the records up to its death.
        if source.size > start:
            note(Damage("the recorder did not finish the file; reading on to its end", 0x30, "data.size", 0))
        return start, source.size
    end = start + size  # where the file is cut off, the walk says so, and at which record
    _features(source, state, h, end)
    return start, end


def _attrs(source: Source, state: State, h: dict[str, int]) -> None:
    size, start, total = h["attr_size"], h["attrs.offset"], h["attrs.size"]
    name = source.name
    if size < 64 + _SECTION or size > 1 << 16:
        raise FormatError("attributes of impossible size", file=name, offset=0x10, field="attr_size", value=size)
    if total > source.size - start:
        reason = "attributes end after the end of the file"
        raise FormatError(reason, file=name, offset=0x20, field="attrs.size", value=total)
    room = source.size  # sections may not overlap: all ids together fit the file
    for at in range(start, start + total - size + 1, size):
        raw = read_at(source, at, size)
        attr = parse_attr(raw[: size - _SECTION], at, state.order, name)
        ids_at, ids_size = struct.unpack_from(state.order + "2Q", raw, size - _SECTION)
        ids = read_at(source, ids_at, min(ids_size, room)) if ids_at < source.size else b""
        room -= len(ids)
        if len(ids) < ids_size:
            reason = "ids of an event end after the end of the file"
            state.profile.damage.append(Damage(reason, at + size - 8, "ids.size", ids_size))
        attr.ids = struct.unpack(f"{state.order}{len(ids) // 8}Q", ids[: len(ids) & ~7])
        state.add_attr(attr)


def _features(source: Source, state: State, h: dict[str, int], table: int) -> None:
    """The sections after the data, one for each bit that is set, in the order of the bits."""
    room = source.size
    bits = [n * 64 + b for n in range(4) for b in range(64) if h[f"features.{n}"] >> b & 1]
    for i, number in enumerate(bits):
        at = table + _SECTION * i
        entry = read_at(source, at, _SECTION)
        offset, size = struct.unpack(state.order + "2Q", entry) if len(entry) == _SECTION else (0, source.size + 1)
        if offset + size <= source.size and size <= room:
            room -= size
            decode_feature(state, number, read_at(source, offset, size), offset)
            continue
        state.profile.damage.append(Damage(f"header feature {feature_name(number)} is cut off", at))
        if len(entry) < _SECTION:
            return
