"""Windows event trace logs (.etl): buffers to event columns and events, and back.

Reading: `TraceLog` returns events as columns or objects, `Decoder` (one event) and `batches_of` (all of a block) their
fields, `read_etl` a profile. Writing: `TraceWriter` from events, `write_profile` from a profile, `convert` from trace
logs (compressed or not, cut, merged), `read_records` and `encode_record` for single fields.

Rooms, from the bottom up: `layout` and `single_event`, `container` (the file of buffers), `payload` (types and layouts
of fields), `kernel` (its layouts), `events` (walk and columns), `decode` (events to fields), `profile`.

Names are imported at first use: a program that only writes events to a session loads no more than `layout`.
"""

from ...lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "container.compression": "compress",
        "container.decompression": "LZNT1 XPRESS XPRESS_HUFF decompress",
        "container.header": "LogHeader is_etl read_header",
        "container.trace_file": "TraceFile",
        "container.writer": "TraceWriter",
        "convert_logs": "Converted convert",
        "decode": "AS_IT_SAYS Batch Decoded Decoder Known Reading batches_of describes types_of",
        "dump": "dump_etl dump_live",
        "edit_records": "BufferRecord EventRecord encode_record read_records",
        "events.columns": "EventBlock events_of",
        "events.reader": "EventType TraceLog",
        "kernel.hooks": "SAMPLE_CACHE kernel_names",
        "kernel.layouts": "kernel_event kernel_layout",
        "layout": "BUFFER_FLAG BUFFER_HEADER BUFFER_HEADER_SIZE BUFFER_TYPE EVENT_FLAG EXTENDED_ITEM EXTENDED_TYPE "
        "HEADERS LARGEST_EVENT LOGFILE_HEADER LogFileMode MAX_BUFFER MESSAGE MESSAGE_FLAG PEBS_INDEX PMC_COUNTERS "
        "offset_of packed picked",
        "payload.manifest_xml": "Manifests",
        "profile.reader": "read_etl",
        "profile.samples": "BranchRecords CarriedTriggers INTERVAL_HOOKS too_short trigger_candidates",
        "profile.supplement": "Supplement",
        "profile.writer": "Written write_profile",
        "single_event": "Event encode_event encode_items",
    },
)
