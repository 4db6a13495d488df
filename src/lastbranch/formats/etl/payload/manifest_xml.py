"""Instrumentation manifests: XML that describes events, the layouts of their payloads, and names.

The schema is eventman.xsd of the Windows SDK with the types of winmeta.xml, documented in Microsoft's "EventManifest
Schema". Users have manifests as files. An EventSource writes its own into its stream, in chunks in events of id 65534:
u8 format (1), u8 major, u8 minor, u8 magic (0x5B), u16 chunks, u16 number of this one, bytes (TraceEvent's
ManifestEnvelope).

A manifest may come from anywhere: document types (and so entities) are refused, and elements, their depth and the bytes
are limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID
from xml.etree.ElementTree import Element
from xml.parsers import expat

from ....errors import FormatError
from .layouts import EventNames, layout
from .manifest import Described, EventMap, MapKey, Property, join_names
from .types import U8, U16, Rest

__all__ = ["CHUNK", "Chunks", "LARGEST", "MANIFEST_ID", "Manifests", "parse_manifest"]


MANIFEST_ID = 0xFFFE
CHUNK = layout(Format=U8, MajorVersion=U8, MinorVersion=U8, Magic=U8, TotalChunks=U16, ChunkNumber=U16, Manifest=Rest())
_MAGIC = 0x5B
LARGEST = 64 << 20
"""Bytes of a manifest. The largest of Windows have some MB."""
_LARGEST_CHUNKED = 16 << 20
_MOST_OPEN = 64
_MOST_ELEMENTS = 500_000
_DEEPEST = 64
_MOST_NESTED = 8
_MOST_NOTES = 100
_BINARY = 14

_IN_TYPES = {
    "UnicodeString": 1, "AnsiString": 2, "Int8": 3, "UInt8": 4, "Int16": 5, "UInt16": 6, "Int32": 7, "UInt32": 8,
    "Int64": 9, "UInt64": 10, "Float": 11, "Double": 12, "Boolean": 13, "Binary": 14, "GUID": 15, "Pointer": 16,
    "FILETIME": 17, "SYSTEMTIME": 18, "SID": 19, "HexInt32": 20, "HexInt64": 21, "CountedUnicodeString": 22,
    "CountedAnsiString": 23, "CountedBinary": 25,
}  # fmt: skip
_OUT_TYPES = {  # 0: the form is that of the in-type
    "xs:boolean": 3,
    "win:HexInt8": 4,
    "win:HexInt16": 4,
    "win:HexInt32": 4,
    "win:HexInt64": 4,
    "win:Port": 7,
    "win:IPv4": 8,
    "win:IPv6": 9,
    "win:SocketAddress": 10,
    "win:NTSTATUS": 14,
    "win:HResult": 15,
    "win:CodePointer": 37,
} | dict.fromkeys(
    (
        "xs:string",
        "xs:dateTime",
        "xs:byte",
        "xs:unsignedByte",
        "xs:short",
        "xs:unsignedShort",
        "xs:int",
        "xs:unsignedInt",
        "xs:long",
        "xs:unsignedLong",
        "xs:float",
        "xs:double",
        "xs:GUID",
        "xs:hexBinary",
        "win:PID",
        "win:TID",
        "win:CIMDateTime",
        "win:ETWTIME",
        "win:Xml",
        "win:ErrorCode",
        "win:Win32Error",
        "win:DateTimeCultureInsensitive",
        "win:DateTimeUtc",
        "win:Json",
        "win:Utf8",
        "win:Pkcs7WithTypeInfo",
        "win:NoPrint",
    ),
    0,
)


class Chunks:
    """Assembles manifests from their chunks, one at a time for each provider and process."""

    def __init__(self) -> None:
        self._parts: dict[tuple[bytes, int], list[bytes]] = {}

    def add(self, provider: bytes, pid: int, payload: bytes) -> str | None:
        """The manifest's text after its last chunk; None before it and for a payload that is no chunk."""
        head = CHUNK.decode(payload, 8)
        if head.get("Format") != 1 or head.get("Magic") != _MAGIC or "Manifest" not in head:
            return None
        key = provider, pid
        parts = self._parts.setdefault(key, [])
        if len(self._parts) > _MOST_OPEN:  # manifests that never end must not fill the memory
            del self._parts[next(iter(self._parts))]
        if head["ChunkNumber"] == 0:
            parts.clear()
        if head["ChunkNumber"] != len(parts) or sum(map(len, parts)) > _LARGEST_CHUNKED:
            del self._parts[key]
            return None
        parts.append(head["Manifest"])
        if len(parts) < head["TotalChunks"]:
            return None
        del self._parts[key]
        return b"".join(parts).decode("utf-8", "replace").strip("\0\ufeff \r\n")


@dataclass(slots=True)
class Manifests:
    """The contents of manifests. ``notes``: sentences about contradictions in and between them, and unused parts."""

    events: dict[tuple[bytes, int, int], Described] = field(default_factory=dict)
    """By provider, id and version."""
    maps: dict[MapKey, EventMap] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)
    """Of providers."""
    notes: list[str] = field(default_factory=list)
    _files: dict[tuple[bytes, int, int], str] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Keep a note, up to a limit: a damaged manifest may contradict itself in every line."""
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(text)
        elif len(self.notes) == _MOST_NOTES:
            self.notes.append("the manifests contradict each other in further places")

    def add(self, data: bytes, file: str, encoding: str | None = None) -> None:
        """Add the manifest in ``data``, in ``encoding`` or in the manifest's declared encoding. Earlier descriptions of
        an event stay.

        Raises `FormatError` where it is no XML, has a document type, is too large, or has no provider of events.
        """
        root = _tree(data, file, encoding)
        chosen = {e.get("culture", ""): e for e in reversed(list(root.iter("resources")))}
        language = next((c for c in chosen if c.lower() == "en-us"), next(reversed(chosen), ""))
        strings: dict[str, str] = {}
        for resources in (*(e for c, e in chosen.items() if c != language), chosen.get(language)):
            if resources is not None:
                strings |= {e.get("id", ""): e.get("value", "") for e in resources.iter("string")}
        providers = list(root.iter("provider"))
        if root.tag != "instrumentationManifest" or not providers:
            raise FormatError("not an instrumentation manifest with event providers", file=file)
        for provider in providers:
            try:
                guid = UUID(provider.get("guid", "")).bytes_le
            except ValueError:
                text = f"provider {provider.get('name', '')!r} has no GUID but {provider.get('guid')!r}"
                self.note(f"{file}: {text}; its events are left out")
                continue
            _Provider(self, provider, guid, strings, file).read()

    def put(self, event: Described, file: str) -> None:
        """Enter an event of ``file``."""
        key = event.provider, event.id, event.version
        known = self.events.setdefault(key, event)
        if known is event:
            self._files[key] = file
        elif known != event:
            where = f"{self._files[key]} and {file}" if self._files[key] != file else f"{file} twice"
            what = f"{event.provider_name}: event {event.id} version {event.version}"
            self.note(f"{what} is in {where}, differently; the first one is used")


def parse_manifest(text: str) -> tuple[list[Described], dict[MapKey, EventMap]]:
    """Events and maps of a manifest in a log; empty for one that cannot be read."""
    found = Manifests()
    try:
        found.add(text.encode("utf-8", "replace"), "the log", "utf-8")
    except FormatError:
        return [], {}
    return list(found.events.values()), found.maps


# -- XML


class _Refused(Exception):
    """The file has something that a manifest may not have."""


def _tree(data: bytes, file: str, encoding: str | None) -> Element:
    """The elements of a document, without its texts. Raises `FormatError`."""
    if len(data) > LARGEST:
        raise FormatError(f"a manifest of more than {LARGEST >> 20} MiB", file=file, field="size", value=len(data))
    parser = expat.ParserCreate(encoding, "}")
    open_: list[Element] = []
    roots: list[Element] = []
    number = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal number
        number += 1
        if number > _MOST_ELEMENTS:
            raise _Refused(f"more than {_MOST_ELEMENTS} elements")
        if len(open_) == _DEEPEST:
            raise _Refused(f"elements nested more than {_DEEPEST} deep")
        made = Element(tag.rpartition("}")[2], attributes)
        (open_[-1] if open_ else roots).append(made)
        open_.append(made)

    def refuse(*_: object) -> None:
        raise _Refused("a document type (DOCTYPE), which could define entities")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_.pop()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except _Refused as refused:
        reason = f"rejected as a manifest: it has {refused}"
        raise FormatError(reason, file=file, offset=parser.CurrentByteIndex) from None
    except (expat.ExpatError, ValueError, LookupError) as error:
        reason = f"no XML: {error}"
        raise FormatError(reason, file=file, offset=max(0, parser.CurrentByteIndex)) from None
    return roots[0]


def _number(text: str | None) -> int | None:
    try:
        return int((text or "").strip(), 0)
    except ValueError:
        return None


# -- one provider


class _Provider:
    """Reads one provider element of ``file`` into ``into``."""

    def __init__(self, into: Manifests, element: Element, guid: bytes, strings: dict[str, str], file: str) -> None:
        self.into, self.element, self.guid, self.strings, self.file = into, element, guid, strings, file
        self.name = element.get("name", "").strip() or str(UUID(bytes_le=guid))

    def _note(self, text: str) -> None:
        self.into.note(f"{self.file}: {self.name}: {text}")

    def read(self) -> None:
        known = self.into.names.setdefault(self.guid, self.name)
        if known != self.name:
            self._note(f"the provider with this GUID is also called {known}; that name is used")
        for kind in ("valueMap", "bitMap"):
            for one in self.element.iter(kind):
                self._map(one, one.get("name", ""), kind == "bitMap")
        self.tasks = {e.get("name", ""): e for e in self.element.iter("task")}
        self.opcodes = {e.get("name", "") for e in self.element.iter("opcode")}
        self.levels = {e.get("name", "") for e in self.element.iter("level")}
        self.keywords = {e.get("name", "") for e in self.element.iter("keyword")}
        self.templates = {e.get("tid", ""): self._template(e) for e in self.element.iter("template")}
        for event in self.element.iter("event"):
            self._event(event)

    def _map(self, element: Element, name: str, flags: bool) -> None:
        names: dict[int, str] = {}
        for entry in element.iter("map"):
            value = _number(entry.get("value"))
            if value is None or value in names:
                reason = "not a number" if value is None else "repeated"
                self._note(f"map {name}: value {entry.get('value')!r} is {reason}")
                continue
            names[value] = self._text(entry.get("message", ""), f"map {name}")
        made = EventMap(names, flags)
        if self.into.maps.setdefault((self.guid, name), made) != made:
            self._note(f"map {name} is declared twice, differently; the first one is used")

    def _text(self, message: str, where: str) -> str:
        """The text that a reference "$(string.id)" names; other texts as they are."""
        reference = re.fullmatch(r"\$\(string\.(.*)\)", message.strip())
        if reference is None:
            return message
        if reference[1] not in self.strings:
            self._note(f"{where}: string {reference[1]} is not declared")
        return self.strings.get(reference[1], reference[1])

    def _event(self, element: Element) -> None:
        id_, version = _number(element.get("value")), _number(element.get("version", "0"))
        if id_ is None or version is None or not (0 <= id_ < 1 << 16 and 0 <= version < 1 << 8):
            self._note(
                f"event {element.get('value')!r} version {element.get('version')!r}: not the numbers of an event"
            )
            return
        where = f"event {id_} version {version}"
        task, opcode, level = (element.get(name, "").strip() for name in ("task", "opcode", "level"))
        keywords = tuple(element.get("keywords", "").split())
        known = {
            "task": ((task,), self.tasks),
            "opcode": ((opcode,), self.opcodes),
            "level": ((level,), self.levels),
            "keyword": (keywords, self.keywords),
        }
        for kind, (used, declared) in known.items():
            for name in used if declared else ():
                if name and name not in declared and ":" not in name:  # those with a prefix are others', as win:
                    self._note(f"{where}: {kind} {name} is not declared")
        template = element.get("template", "")
        if template and template not in self.templates:
            self._note(f"{where}: template {template} is not declared")
        message = element.get("message", "")
        self.into.put(
            Described(
                self.guid,
                id_,
                version,
                0,
                self.name,
                join_names(task, opcode, element.get("symbol") or f"EventID({id_})"),
                self.templates.get(template, ()),
                message=self._text(message, where) if message else "",
                level=level.removeprefix("win:"),
                keywords=keywords,
            ),
            self.file,
        )

    # -- templates

    def _template(self, element: Element) -> tuple[Property, ...]:
        return tuple(self._properties(element, f"template {element.get('tid', '')}", frozenset(), _MOST_NESTED))

    def _properties(self, element: Element, where: str, outer: frozenset[str], nesting: int) -> Iterator[Property]:
        names, before = EventNames(), set(outer)
        for item in element:
            if item.tag not in ("struct", "data"):
                continue
            name = names.add(item.get("name", ""))
            mine = f"{where}: {name}"
            count = self._reference(item.get("count"), before, f"{mine}: count")
            if item.tag == "data":
                yield self._data(item, name, mine, count, before)
            elif nesting:
                members = tuple(self._properties(item, mine, frozenset(before), nesting - 1))
                yield Property(name, members=members, count=count)
            else:
                self._note(f"{mine}: structures nested more than {_MOST_NESTED} deep")
            before.add(name)

    def _data(self, item: Element, name: str, where: str, count: int | str | None, before: set[str]) -> Property:
        stored, shown = item.get("inType", ""), item.get("outType", "")
        in_type = _IN_TYPES.get(stored.removeprefix("win:"), 0)
        if not in_type:
            self._note(f"{where}: inType {stored!r} is not known; the rest of the payload stays undecoded")
        if shown and shown not in _OUT_TYPES:
            self._note(f"{where}: outType {shown!r} is not known")
        map_name = item.get("map", "")
        if map_name and (self.guid, map_name) not in self.into.maps:
            self._note(f"{where}: map {map_name} is not declared")
        length = self._reference(item.get("length"), before, f"{where}: length")
        if in_type == _BINARY and length is None and shown != "win:IPv6":
            self._note(f"{where}: bytes without a length; the rest of the payload stays undecoded")
        return Property(name, in_type, _OUT_TYPES.get(shown, 0), map_name, count=count, length=length)

    def _reference(self, text: str | None, before: set[str], where: str) -> int | str | None:
        """A number, or the name of an earlier field."""
        if not text:
            return None
        number = _number(text)
        if number is None and text not in before:
            self._note(f"{where}: no earlier field is called {text}")
        return text if number is None else number
