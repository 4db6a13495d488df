"""Manifests that an EventSource writes into its own stream: chunks of XML in events of id 65534.

Payload of a chunk: u8 format (1), u8 major, u8 minor, u8 magic (0x5B), u16 chunks, u16 number of this one, bytes
(TraceEvent's ManifestEnvelope). The XML is the instrumentation manifest of the Windows SDK (eventman.xsd), of which the
parts are read that say how payloads are laid out and what things are called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

from .fields import U8, U16, Rest
from .manifest import Described, EventMap, MapKey, Property, join_names
from .payloads import Names, layout

__all__ = ["CHUNK", "MANIFEST_ID", "Chunks", "parse_manifest"]

MANIFEST_ID = 0xFFFE
CHUNK = layout(Format=U8, MajorVersion=U8, MinorVersion=U8, Magic=U8, TotalChunks=U16, ChunkNumber=U16, Manifest=Rest())
_MAGIC = 0x5B
_LARGEST = 16 << 20
_MOST_OPEN = 64

_IN_TYPES = {
    "UnicodeString": 1, "AnsiString": 2, "Int8": 3, "UInt8": 4, "Int16": 5, "UInt16": 6, "Int32": 7, "UInt32": 8,
    "Int64": 9, "UInt64": 10, "Float": 11, "Double": 12, "Boolean": 13, "Binary": 14, "GUID": 15, "Pointer": 16,
    "FILETIME": 17, "SYSTEMTIME": 18, "SID": 19, "HexInt32": 20, "HexInt64": 21, "CountedUnicodeString": 22,
    "CountedAnsiString": 23, "CountedBinary": 25,
}  # fmt: skip
_OUT_TYPES = {
    "xs:string": 1, "xs:boolean": 3, "win:HexInt8": 4, "win:HexInt16": 4, "win:HexInt32": 4, "win:HexInt64": 4,
    "win:Port": 7, "win:IPv4": 8, "win:IPv6": 9, "win:NTSTATUS": 14, "win:HResult": 15, "win:CodePointer": 37,
}  # fmt: skip


class Chunks:
    """Puts manifests together from their chunks, one at a time for each provider and process."""

    def __init__(self) -> None:
        self._parts: dict[tuple[bytes, int], list[bytes]] = {}

    def add(self, provider: bytes, pid: int, payload: bytes) -> str | None:
        """The manifest's text with its last chunk, None before it and for what is no chunk."""
        head = CHUNK.decode(payload, 8)
        if head.get("Format") != 1 or head.get("Magic") != _MAGIC or "Manifest" not in head:
            return None
        key = provider, pid
        parts = self._parts.setdefault(key, [])
        if len(self._parts) > _MOST_OPEN:  # what never ends must not fill the memory
            del self._parts[next(iter(self._parts))]
        if head["ChunkNumber"] == 0:
            parts.clear()
        if head["ChunkNumber"] != len(parts) or sum(map(len, parts)) > _LARGEST:
            del self._parts[key]
            return None
        parts.append(head["Manifest"])
        if len(parts) < head["TotalChunks"]:
            return None
        del self._parts[key]
        return b"".join(parts).decode("utf-8", "replace").strip("\0\ufeff \r\n")


def parse_manifest(text: str) -> tuple[list[Described], dict[MapKey, EventMap]]:
    """Events and maps of a manifest; nothing of one that is not XML, or has a document type (nested entities)."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return [], {}
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):
        return [], {}
    strings = {e.get("id", ""): e.get("value", "") for e in _all(root, "string")}
    events: list[Described] = []
    maps: dict[MapKey, EventMap] = {}
    for provider in _all(root, "provider"):
        try:
            guid = UUID(provider.get("guid", "")).bytes_le
        except ValueError:
            continue
        for kind in ("valueMap", "bitMap"):
            for one in _all(provider, kind):
                names = {_number(e.get("value")): _resolved(e.get("message", ""), strings) for e in _all(one, "map")}
                maps[guid, one.get("name", "")] = EventMap(names, kind == "bitMap")
        events += _events(provider, guid)
    return events, maps


def _local(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _all(root: Any, name: str) -> Iterator[Any]:
    return (element for element in root.iter() if _local(element) == name)


def _number(text: str | None) -> int:
    try:
        return int(text or "0", 0)
    except ValueError:
        return 0


def _resolved(message: str, strings: dict[str, str]) -> str:
    """The text of "$(string.id)"."""
    reference = re.fullmatch(r"\$\(string\.(.*)\)", message)
    return strings.get(reference[1], reference[1]) if reference else message


def _events(provider: Any, guid: bytes) -> Iterator[Described]:
    templates = {e.get("tid", ""): tuple(_properties(e, 8)) for e in _all(provider, "template")}
    for event in _all(provider, "event"):
        id_ = _number(event.get("value"))
        yield Described(
            guid,
            id_,
            _number(event.get("version")),
            0,
            provider.get("name", ""),
            join_names(event.get("task", ""), event.get("opcode", ""), event.get("symbol") or f"EventID({id_})"),
            templates.get(event.get("template", ""), ()),
        )


def _properties(template: Any, nesting: int) -> Iterator[Property]:
    names = Names()
    for element in template:
        kind = _local(element)
        if kind not in ("struct", "data"):
            continue
        name = names.add(element.get("name", ""))
        count = _reference(element.get("count"))
        if kind == "struct" and nesting:
            yield Property(name, members=tuple(_properties(element, nesting - 1)), count=count)
        elif kind == "data":
            yield Property(
                name,
                _IN_TYPES.get(element.get("inType", "").removeprefix("win:"), 0),
                _OUT_TYPES.get(element.get("outType", ""), 0),
                element.get("map", ""),
                count=count,
                length=_reference(element.get("length")),
            )


def _reference(text: str | None) -> int | str | None:
    return None if not text else int(text) if text.isdecimal() else text
