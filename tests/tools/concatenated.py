"""Concatenated captures of a machine, as a single recording would have written them: tests compare captures opened
together with this file. By the independent reader and writer of perf.data."""

from __future__ import annotations

from typing import Any

import perfdata_writer as pw

_TIMES = ("time",)
_IDS = ("pid", "tid", "ppid", "ptid")
_KERNEL = 0xFFFFFFFF


def moved(data: bytes, ids: int, time: int) -> bytes:
    """``data`` as another recording of the same: process ids (but for those of the kernel) and times are higher."""
    capture = pw.parse(data)
    for record in capture.records:
        if record.type >= 64:
            continue
        fields, _ = pw.record_walk(capture.attrs, record)
        attr = pw.attr_of(capture.attrs, record.type, record.body)
        declaration = pw.record_spec(record.type, record.misc, attr)
        assert declaration is not None
        trailer = fields.pop("sample_id", None)
        record.body = pw.pack(declaration, _shifted(fields, ids, time))
        if trailer is not None:
            record.body += pw.pack(pw.trailer_spec(attr), _shifted(trailer, ids, time))
    return pw.to_file(capture)


def _shifted(fields: dict[str, Any], ids: int, time: int) -> dict[str, Any]:
    out = dict(fields)
    for name in _IDS:
        if name in out and out[name] not in (-1, _KERNEL):
            out[name] += ids
    for name in _TIMES:
        if out.get(name):
            out[name] += time
    return out


def concatenated(*captures: bytes) -> bytes:
    """One perf.data with the records of all, which have attributes of the same contents."""
    first, *others = map(pw.parse, captures)
    for other in others:
        assert [attr.raw for attr in other.attrs] == [attr.raw for attr in first.attrs]
        first.records += other.records
        build_ids = pw.FEATURE_NUMBERS["BUILD_ID"]
        if build_ids in other.features:
            first.features[build_ids] = first.features.get(build_ids, b"") + other.features[build_ids]
    return pw.to_file(first)
