"""Payloads of events: field types (`types`), layouts made of them (`layouts`), many payloads as columns
(`payload_columns`).

Layouts come from manifests (`manifest`, `manifest_xml`), from TraceLogging schemas (`tracelogging`), and for the
kernel's events from the tables of `kernel.layouts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....lazy import lazy_names
from .layouts import (
    REST,
    Field,
    Layout,
    Names,
    Versions,
    layout,
    newest,
)
from .types import (
    ANSI,
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
    PLAIN_SID,
    PORT,
    PTR,
    SID,
    SIZE,
    SLACK,
    SYSTEMTIME,
    U8,
    U16,
    U32,
    U64,
    UNKNOWN,
    UTF8,
    UTF16,
    WIDE,
    Array,
    Bits,
    Blob,
    Counted,
    CountedBytes,
    Dependent,
    Exact,
    FieldType,
    FileTime,
    Fixed,
    Hex,
    Named,
    Rest,
    Rows,
    Scalar,
    Short,
    Struct,
    Text,
    named,
)

if TYPE_CHECKING:
    from .manifest import (
        IN_TYPES,
        OUT_STRING,
        Described,
        EventMap,
        MapKey,
        Property,
        described_layout,
        join_names,
        message_of,
        parse_event_info,
        parse_map_info,
        shown,
    )
    from .manifest_xml import (
        CHUNK,
        LARGEST,
        MANIFEST_ID,
        Chunks,
        Manifests,
        parse_manifest,
    )
    from .payload_columns import (
        Blobs,
        Bytes,
        Column,
        Encoded,
        Floats,
        Lists,
        Numbers,
        Objects,
        Payloads,
        Texts,
        decode_columns,
    )
    from .tracelogging import (
        describe,
        parse_schema,
        parse_traits,
    )

__all__ = [
    "ANSI", "Array", "BOOL32", "BOOL8", "Bits", "Blob", "Blobs", "Bytes", "CHUNK", "Chunks", "Column", "Counted",
    "CountedBytes", "Dependent", "Described", "Encoded", "EventMap", "Exact", "F32", "F64", "FILETIME", "Field",
    "FieldType", "FileTime", "Fixed", "Floats", "GUID", "HEX32", "HEX64", "Hex", "I16", "I32", "I64", "I8",
    "IN_TYPES", "IPV4", "IPV6", "LARGEST", "Layout", "Lists", "MANIFEST_ID", "Manifests", "MapKey", "Named",
    "Names", "Numbers", "OUT_STRING", "Objects", "PLAIN_SID", "PORT", "PTR", "Payloads", "Property", "REST", "Rest",
    "Rows", "SID", "SIZE", "SLACK", "SYSTEMTIME", "Scalar", "Short", "Struct", "Text", "Texts", "U16", "U32", "U64",
    "U8", "UNKNOWN", "UTF16", "UTF8", "Versions", "WIDE", "decode_columns", "describe", "described_layout",
    "join_names", "layout", "message_of", "named", "newest", "parse_event_info", "parse_manifest", "parse_map_info",
    "parse_schema", "parse_traits", "shown",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "manifest": "Described EventMap IN_TYPES MapKey OUT_STRING Property described_layout join_names message_of "
        "parse_event_info parse_map_info shown",
    "manifest_xml": "CHUNK Chunks LARGEST MANIFEST_ID Manifests parse_manifest",
    "payload_columns": "Blobs Bytes Column Encoded Floats Lists Numbers Objects Payloads Texts decode_columns",
    "tracelogging": "describe parse_schema parse_traits",
})  # fmt: skip
