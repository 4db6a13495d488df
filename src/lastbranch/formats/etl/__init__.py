"""Windows event trace logs (.etl): buffers to event columns and events, and back.

Reading: `TraceLog` returns events as columns or objects, `Decoder` (one event) and `batches_of` (all of a block) their
fields, `read_etl` a profile. Writing: `TraceWriter` from events, `write_profile` from a profile, `convert` from trace
logs (compressed or not, cut, merged), `read_records` and `encode_record` for single fields.

Rooms, from the bottom up: `layout` and `single_event`, `container` (the file of buffers), `payload` (types and layouts
of fields), `kernel` (its layouts), `events` (walk and columns), `decode` (events to fields), `profile`.

Names are imported at first use: a program that only writes events to a session loads no more than `layout`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .container.compression import compress
    from .container.decompression import LZNT1, XPRESS, XPRESS_HUFF, decompress
    from .container.header import LogHeader, is_etl, read_header
    from .container.trace_file import TraceFile
    from .container.writer import TraceWriter
    from .convert_logs import Converted, convert
    from .decode import AS_IT_SAYS, Batch, Decoded, Decoder, Known, Reading, batches_of, types_of
    from .dump import dump_etl, dump_live
    from .edit_records import BufferRecord, EventRecord, encode_record, read_records
    from .events.columns import EventBlock, events_of
    from .events.reader import EventType, TraceLog
    from .kernel.hooks import SAMPLE_CACHE, kernel_names
    from .kernel.layouts import kernel_event, kernel_layout
    from .payload.manifest_xml import Manifests
    from .profile.intervals import INTERVAL_HOOKS
    from .profile.reader import read_etl
    from .profile.samples import BranchRecords, CarriedTriggers, too_short, trigger_candidates
    from .profile.supplement import Supplement
    from .profile.writer import Written, write_profile
    from .single_event import Event, encode_event

__all__ = [
    "AS_IT_SAYS",
    "Batch",
    "BranchRecords",
    "BufferRecord",
    "CarriedTriggers",
    "Converted",
    "Decoded",
    "Decoder",
    "Event",
    "EventBlock",
    "EventRecord",
    "EventType",
    "INTERVAL_HOOKS",
    "Known",
    "LZNT1",
    "LogHeader",
    "Manifests",
    "Reading",
    "SAMPLE_CACHE",
    "Supplement",
    "TraceFile",
    "TraceLog",
    "TraceWriter",
    "Written",
    "XPRESS",
    "XPRESS_HUFF",
    "batches_of",
    "compress",
    "convert",
    "decompress",
    "dump_etl",
    "dump_live",
    "encode_event",
    "encode_record",
    "events_of",
    "is_etl",
    "kernel_event",
    "kernel_layout",
    "kernel_names",
    "read_etl",
    "read_header",
    "read_records",
    "too_short",
    "trigger_candidates",
    "types_of",
    "write_profile",
]

__getattr__ = lazy_names(__name__, {
    "container.compression": "compress",
    "container.decompression": "LZNT1 XPRESS XPRESS_HUFF decompress",
    "container.header": "LogHeader is_etl read_header",
    "container.trace_file": "TraceFile",
    "container.writer": "TraceWriter",
    "convert_logs": "Converted convert",
    "decode": "AS_IT_SAYS Batch Decoded Decoder Known Reading batches_of types_of",
    "dump": "dump_etl dump_live",
    "edit_records": "BufferRecord EventRecord encode_record read_records",
    "events.columns": "EventBlock events_of",
    "events.reader": "EventType TraceLog",
    "kernel.hooks": "SAMPLE_CACHE kernel_names",
    "kernel.layouts": "kernel_event kernel_layout",
    "payload.manifest_xml": "Manifests",
    "profile.intervals": "INTERVAL_HOOKS",
    "profile.reader": "read_etl",
    "profile.samples": "BranchRecords CarriedTriggers too_short trigger_candidates",
    "profile.supplement": "Supplement",
    "profile.writer": "Written write_profile",
    "single_event": "Event encode_event",
})  # fmt: skip
