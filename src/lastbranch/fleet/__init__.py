"""Counts of many captures: a store of Parquet files in a folder or a bucket, which add up exactly.

    from lastbranch.fleet import Labels, Selection, Store

    store = Store("s3://profiles/counts")
    store.add(["perf.data"], Labels(service="search", version="7"))
    with store.reading(Selection(services=("search",))) as reading:
        counted = reading.counts().counted()

The tables are those of docs/reference/fleet-store.md.
"""

from ..lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "agent": "Agent NotRunningError Recorder Service Settings plan",
        "counting": "CaptureFile Labels capture_file",
        "host": "Host",
        "parts": "Part count_batch reduce_parts",
        "reading": "StoreReader Saturation Selection StoredCounts",
        "schedule": "Rate",
        "schema": "TABLES",
        "store": "AddResult Run Store VerifyResult in_turn",
        "workers": "Certificates Cluster Processes",
    },
)
