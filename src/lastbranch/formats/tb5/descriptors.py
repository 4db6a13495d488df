"""Rules of data descriptors: the entries of one describe disjoint fields of one record."""

from __future__ import annotations

from itertools import pairwise

from ...model import Array
from .constants import DescSubtype, DescType

__all__ = ["check_descriptors"]


def check_descriptors(entries: Array, record_size: int) -> tuple[str, str, int] | None:
    """(what is wrong, field, value) with TBRW_SAMPREC_DESC_ENTRY records for records of ``record_size`` bytes, or
    ``None``.

    An entry lies inside of the record and off all others, unless it names a field of a legacy sample record.
    """
    spans: list[tuple[int, int, int]] = []
    for i, entry in enumerate(entries):
        kind, subtype = int(entry["desc_type"]), int(entry["desc_subtype"])
        start, size = int(entry["desc_offset"]), int(entry["desc_data_size"])
        if kind >= DescType.RESERVED_START:
            return f"descriptor entry {i} has a reserved type", "desc_type", kind
        if subtype >= DescSubtype.RESERVED_START:
            return f"descriptor entry {i} has a reserved subtype", "desc_subtype", subtype
        if DescType.START_EXT_SAMPLE_REC_ENTRIES <= kind <= DescType.END_EXT_SAMPLE_REC_ENTRIES:
            return f"descriptor entry {i} has a computed type, which no record holds", "desc_type", kind
        if size == 0:
            return f"descriptor entry {i} describes no bytes", "desc_data_size", size
        if start + size > record_size:
            return f"descriptor entry {i} exceeds the record of {record_size} bytes", "desc_offset", start
        spans.append((start, start + size, i))
    legacy = [(lo, hi) for lo, hi, i in spans if int(entries[i]["desc_type"]) == DescType.LEGACY_SAMPLE_RECORD]
    alone = [s for s in spans if not any(lo <= s[0] and s[1] <= hi and (lo, hi) != s[:2] for lo, hi in legacy)]
    alone.sort()
    for (_, end, first), (start, _, second) in pairwise(alone):
        if start < end:
            return f"descriptor entries {first} and {second} overlap", "desc_offset", start
    return None
