"""Decodes profile.proto by what the published file declares, and checks its references."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INTS, INT, BOOL, TEXTS = "ints", "int", "bool", "texts"
SCHEMA: dict[str, dict[int, tuple[str, Any]]] = {
    "Profile": {
        1: ("sample_type", ["ValueType"]), 2: ("sample", ["Sample"]), 3: ("mapping", ["Mapping"]),
        4: ("location", ["Location"]), 5: ("function", ["Function"]), 6: ("string_table", TEXTS),
        7: ("drop_frames", INT), 8: ("keep_frames", INT), 9: ("time_nanos", INT), 10: ("duration_nanos", INT),
        11: ("period_type", "ValueType"), 12: ("period", INT), 13: ("comment", INTS),
        14: ("default_sample_type", INT), 15: ("doc_url", INT),
    },
    "ValueType": {1: ("type", INT), 2: ("unit", INT)},
    "Sample": {1: ("location_id", INTS), 2: ("value", INTS), 3: ("label", ["Label"])},
    "Label": {1: ("key", INT), 2: ("str", INT), 3: ("num", INT), 4: ("num_unit", INT)},
    "Mapping": {
        1: ("id", INT), 2: ("memory_start", INT), 3: ("memory_limit", INT), 4: ("file_offset", INT),
        5: ("filename", INT), 6: ("build_id", INT), 7: ("has_functions", BOOL), 8: ("has_filenames", BOOL),
        9: ("has_line_numbers", BOOL), 10: ("has_inline_frames", BOOL),
    },
    "Location": {
        1: ("id", INT), 2: ("mapping_id", INT), 3: ("address", INT), 4: ("line", ["Line"]), 5: ("is_folded", BOOL),
    },
    "Line": {1: ("function_id", INT), 2: ("line", INT), 3: ("column", INT)},
    "Function": {
        1: ("id", INT), 2: ("name", INT), 3: ("system_name", INT), 4: ("filename", INT), 5: ("start_line", INT),
    },
}  # fmt: skip
"""Messages of proto/profile.proto (github.com/google/pprof): field number -> name and type."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message, by the encoding of protocol buffers."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        assert key & 7 in (0, 2), f"wire type {key & 7}"
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            size = varint()
            assert at + size <= len(data)
            yield key >> 3, data[at : at + size]
            at += size


def packed(data: bytes) -> list[int]:
    numbers = fields(b"".join(b"\x08" + piece for piece in _varints(data)))
    return [value for _, value in numbers if isinstance(value, int)]


def _varints(data: bytes) -> Iterator[bytes]:
    start = 0
    for i, byte in enumerate(data):
        if byte < 128:
            yield data[start : i + 1]
            start = i + 1


def decode(data: bytes, message: str = "Profile") -> dict[str, Any]:
    """A message as a dict; what is not there has its default."""
    known = SCHEMA[message]
    out: dict[str, Any] = {
        name: [] if kind in (INTS, TEXTS) or isinstance(kind, list) else {} if kind in SCHEMA else 0
        for name, kind in known.values()
    }
    for number, value in fields(data):
        name, kind = known[number]
        if kind in (INT, BOOL):
            assert isinstance(value, int)
            assert kind == INT or value == 1
            out[name] = value
        else:
            assert isinstance(value, bytes)
            if kind == INTS:
                out[name] += packed(value)
            elif kind == TEXTS:
                out[name].append(value.decode())
            elif isinstance(kind, list):
                out[name].append(decode(value, kind[0]))
            else:
                out[name] = decode(value, kind)
    return out


def read(path: Path) -> dict[str, Any]:
    """A profile whose references have all been checked, as pprof's ``CheckValid`` does."""
    found = decode(gzip.decompress(path.read_bytes()))
    texts = found["string_table"]
    assert texts[0] == ""
    assert len(set(texts)) == len(texts)
    tables = {name: {row["id"]: row for row in found[name]} for name in ("mapping", "location", "function")}
    for name, table in tables.items():
        assert 0 not in table
        assert len(table) == len(found[name]), name
    for location in found["location"]:
        assert location["mapping_id"] == 0 or location["mapping_id"] in tables["mapping"]
        assert all(line["function_id"] in tables["function"] for line in location["line"])
        if location["mapping_id"]:
            mapping = tables["mapping"][location["mapping_id"]]
            assert mapping["memory_start"] <= location["address"] < mapping["memory_limit"]
            assert not location["line"] or mapping["has_functions"]
    for sample in found["sample"]:
        assert len(sample["value"]) == len(found["sample_type"])
        assert all(number in tables["location"] for number in sample["location_id"])
        assert all((label["str"] == 0) or (label["num"] == 0) for label in sample["label"])
    used = {n for s in found["sample"] for n in s["location_id"]}
    assert used == tables["location"].keys()
    keys = [(tuple(s["location_id"]), str(s["label"])) for s in found["sample"]]
    assert len(set(keys)) == len(keys), "equal stacks of a thread are one"
    return found | {"tables": tables}
