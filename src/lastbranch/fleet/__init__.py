"""Counts of many captures: a store of Parquet files in a folder or a bucket, which add up exactly.

    from lastbranch.fleet import Labels, Selection, Store

    store = Store("s3://profiles/counts")
    store.add(["perf.data"], Labels(service="search", version="7"))
    with store.reading(Selection(services=("search",))) as reading:
        counted = reading.counts().counted()

The tables are those of docs/reference/fleet-store.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .counting import CaptureFile, Labels, capture_file
    from .parts import Part, count_batch, reduce_parts
    from .reading import Reading, Saturation, StoredCounts
    from .schema import TABLES
    from .selection import Selection
    from .store import Added, Run, Store, Verified, in_turn
    from .workers import Certificates, Cluster, Processes

__all__ = [
    "TABLES", "Added", "CaptureFile", "Certificates", "Cluster", "Labels", "Part", "Processes", "Reading", "Run",
    "Saturation", "Selection", "Store", "StoredCounts", "Verified", "capture_file", "count_batch", "in_turn",
    "reduce_parts",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "counting": "CaptureFile Labels capture_file",
    "parts": "Part count_batch reduce_parts",
    "reading": "Reading Saturation StoredCounts",
    "schema": "TABLES",
    "selection": "Selection",
    "store": "Added Run Store Verified in_turn",
    "workers": "Certificates Cluster Processes",
})  # fmt: skip
