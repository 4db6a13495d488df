"""Records of a stream as NumPy sees them, from the data descriptor."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..formats.tb5.constants import DescSubtype, DescType
from ..formats.tb5.records import STRUCTS
from ..model import Array
from .checks import record_size_of

__all__ = ["record_dtype"]

_PC = STRUCTS["TBRW_SampleRecordPC"]
_WORDS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_BRANCH = 16
"""Bytes of a branch entry: from and to."""


def record_dtype(entries: Array, names: list[str]) -> np.dtype[Any]:
    """dtype of the records that TBRW_SAMPREC_DESC_ENTRY ``entries`` with these ``names`` describe.

    A legacy sample record gives the fields of TBRW_SampleRecordPC, LBR_FROM_TO entries (n, 2) uint64, everything of 1,
    2, 4 or 8 bytes an unsigned integer, the rest bytes. An entry without a name is called after its type; a name that
    is taken gets the number of its entry.
    """
    fields: dict[str, tuple[Any, int]] = {}
    for i, (entry, name) in enumerate(zip(entries, names, strict=True)):
        kind, size, at = (int(entry[f"desc_{part}"]) for part in ("type", "data_size", "offset"))
        if kind == DescType.LEGACY_SAMPLE_RECORD and size == _PC.size:
            found = [(f.name, f"<{f.code}", at + f.offset) for f in _PC.fields]
        else:
            code: Any = _WORDS.get(size, f"V{size}")
            if entry["desc_subtype"] == DescSubtype.LBR_FROM_TO and size % _BRANCH == 0:
                code = ("<u8", (size // _BRANCH, 2))
            found = [(name or (DescType(kind).name if kind in set(DescType) else f"type_{kind:#x}"), code, at)]
        for called, code, offset in found:
            fields[called if called not in fields else f"{called}_{i}"] = (code, offset)
    return np.dtype(
        {
            "names": list(fields),
            "formats": [code for code, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": record_size_of(entries),
        }
    )
