"""Whether the records of a section agree with each other: sizes, numbers of children, what there is one of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import Damage, FormatError
from ...model import Array
from .constants import ArchType
from .layout import CHILDREN, Scope, Table, describe, struct_of
from .reading import Tb5File
from .records import STRUCTS, Struct

__all__ = ["contradictions"]

_ONCE = frozenset(("TBRW_SYSTEM", "TBRW_HOST", "TBRW_OS", "TBRW_APPLICATION", "TBRW_VERSION_INFO", "TBRW_STREAM_INFO"))
_COUNTERS = {
    "TBRW_SYSTEM": "system_num_nodes", "TBRW_NODE": "node_num_available", "TBRW_CPU": "num_cpu_arch_array",
    "TBRW_EVENT": "event_num_details",
}  # fmt: skip
"""Structure -> the field that says how many its pointer leads to; TBRW_CPU_ARCH has two kinds of children."""


def contradictions(file: Tb5File) -> Iterator[Damage]:
    """What is wrong in the guide's sections, blocks that cannot be read excepted."""
    for key in file.tables:
        struct = struct_of(key)
        if struct is not None and key.scope is not Scope.BIND:  # those can be more than memory holds
            try:
                records = file.records(key)
                yield from (_told(file, key, *found) for found in _of_table(file, key, struct, records))
            except FormatError:
                continue


def _told(file: Tb5File, key: Table, reason: str, field: str, value: int) -> Damage:
    return Damage(f"{describe(key)}: {reason}", file.tables[key].index, field, value)


def _of_table(file: Tb5File, key: Table, struct: Struct, records: Array) -> Iterator[tuple[str, str, int]]:
    size = struct.fields[0].name
    if size.endswith("_size"):
        for row in np.flatnonzero(records[size] != struct.size)[:1].tolist():
            yield f"row {row} says that it has another size than {struct.size}", size, int(records[size][row])
    if struct.name in _ONCE and len(records) > 1:
        yield "there can be but one", "count", len(records)
    if struct.name == "TBRW_EVENT":
        for row in np.flatnonzero(records["event_id"] != np.arange(len(records)))[:1].tolist():
            yield f"row {row}: event ids count from 0", "event_id", int(records["event_id"][row])
    if struct.name in _COUNTERS:
        field = next(field for owner, field in CHILDREN if owner == struct.name)
        child = CHILDREN[struct.name, field]
        yield from _children(file, key, records, _COUNTERS[struct.name], field, child)
    if struct.name == "TBRW_CPU_ARCH":
        itanium = records["arch_type"] == ArchType.ITANIUM
        for some, child in ((~itanium, "TBRW_CPUID_IA32"), (itanium, "TBRW_CPUID_IA64")):
            yield from _children(file, key, records[some], "arch_num_cpuid", "cpuid_array", child)


def _children(
    file: Tb5File, key: Table, records: Array, counter: str, field: str, child: str
) -> Iterator[tuple[str, str, int]]:
    """Children follow each other in the order of their parents, and are as many as those say."""
    inside = [k for k in file.tables if k[:3] == key[:3] and struct_of(k) is STRUCTS[child]]
    there = file.count(inside[0]) if inside else 0
    number = records[counter].astype(np.int64)
    starts = np.cumsum(number) - number
    if int(number.sum()) != there:
        yield f"{child} are {there}, not as many as {counter} says", counter, int(number.sum())
    for row in np.flatnonzero((number > 0) & (records[field] != starts.astype(np.uint64)))[:1].tolist():
        yield f"{field} does not lead to the {child} behind those before", field, int(records[field][row])
