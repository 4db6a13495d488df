"""A TB5 file as text, section by section: the output of ``print_tb5``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..formats.tb5.layout import CHILDREN, IA64PC, NEVER, SINGLE, Scope, Section, StreamSection
from ..model import visible
from .files import Owner, Stream, Tb5
from .structures import RECORDS, Record, parts_of

__all__ = ["list_lines"]

_HEXADECIMAL = {
    "addr", "address", "flags", "eflags", "input", "eax", "ebx", "ecx", "edx", "select", "val", "value", "selector",
    "iip", "ipsr", "eip", "cs", "csd", "cpuAndOS", "bitFields2",
}  # fmt: skip
"""Words of field names whose values are bits and addresses."""
_BYTES_A_LINE = 16
_OTHER_FORM = {True: {"eip", "eflags", "csd_lowWord", "csd_highWord"}, False: {"iip", "ipsr"}}
"""IA64PC of a legacy sample record -> the half of its union that does not hold (6.10, 6.11)."""


def list_lines(file: Tb5) -> Iterator[str]:
    """The lines, without line ends. Raises `TbrwError` where the file cannot be read on."""
    for section in sorted(file.handle.rules.sections.existing | file.handle.rules.sections.generated):
        yield f"section {Section(section).name}"
        yield from _section(file, file, Scope.GLOBAL, section)
    yield f"data streams: {file.streams}"
    for number in range(file.streams):
        bound = file.is_bound(number)
        yield f"stream {number} ({'bound' if bound else 'not bound'})"
        with file.reading_stream(number) as stream:
            for section in sorted(file.handle.rules.existing(number)):
                yield f"section {StreamSection(section).name} of stream {number}"
                if section == StreamSection.DATA:
                    yield from _data(stream, bound)
                else:
                    yield from _section(file, stream, Scope.STREAM, section)


def _section(file: Tb5, owner: Owner, scope: Scope, section: int) -> Iterator[str]:
    with owner.reading(section) as reader:
        names = [name for name in parts_of(scope, section) if name not in CHILDREN]
        if not names:
            yield from _bytes(reader.bytes())
        for name in names:
            kind = RECORDS[name]
            if name not in SINGLE:
                for i, record in enumerate(reader.records(kind)):
                    yield from _record(file, record, "  ", f" {i}")
            elif file.handle.reader.count(name, owner.stream):
                yield from _record(file, reader.get(kind), "  ", "")


def _record(file: Tb5, record: Record, indent: str, number: str) -> Iterator[str]:
    """A structure, its fields, and what its pointers lead to."""
    yield f"{indent}{record.declared.name}{number}"
    for field, value in record.values():
        if isinstance(value, int):
            shown = _number(field, value)
        else:
            unique_id = value.soi_uniqueid
            shown = visible(repr(file.handle.store.text(unique_id))) if unique_id else "NULL"
        yield f"{indent}  {field} = {shown}"
    for child, i in record.children():
        yield from _record(file, child, indent + "    ", f" {i}")


def _number(field: str, value: int) -> str:
    return f"{value:#x}" if _HEXADECIMAL.intersection(field.split("_")) else str(value)


def _data(stream: Stream, bound: bool) -> Iterator[str]:
    dtype, index = stream.dtype(), 0
    names = dtype.names or ()
    word = names.index("bitFields2") if {"bitFields2", "eip", "iip"} <= set(names) else None
    with stream.reading(StreamSection.DATA):
        for data, places in stream.portions(bound):
            records = np.frombuffer(data, dtype).tolist()
            for i, values in enumerate(records):
                left_out = _OTHER_FORM[bool(values[word] & int(IA64PC))] if word is not None else ()
                pairs = ((n, v) for n, v in zip(names, values, strict=True) if n not in left_out)
                shown = " ".join(f"{n}={_value(n, v)}" for n, v in pairs)
                yield f"  {index + i}: {shown}{_owner(places[i]) if places else ''}"
            index += len(records)


def _owner(bind: Any) -> str:
    found = bind.module_index, bind.pid_index, bind.tid_index
    return " module={} process={} thread={}".format(*("none" if i == NEVER else i for i in found))


def _value(name: str, value: Any) -> str:
    if isinstance(value, int):
        return _number(name, value)
    if isinstance(value, bytes):
        return value.hex()
    return ",".join(f"{a:#x}>{b:#x}" for a, b in np.asarray(value).tolist())


def _bytes(data: bytes) -> Iterator[str]:
    for at in range(0, len(data), _BYTES_A_LINE):
        part = data[at : at + _BYTES_A_LINE]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        yield f"  {at:#06x}  {part.hex(' '):<{3 * _BYTES_A_LINE}} {text}"
