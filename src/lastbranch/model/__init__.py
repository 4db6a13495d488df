"""The contents of a capture: profile, tables, streams of sample batches. The model imports nothing of lastbranch but
the errors."""

from ..lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "address_spaces": "AddressSpaces KERNEL_HALF KERNEL_HALF_32 guest_host guest_kernel guest_user "
        "kernel_map_start kernel_start kernel_starts",
        "atomic_output": "FULL NamedFile OutputError PartFile PartFolder check_replaceable keep_old naming "
        "private_mode temporary_file temporary_folder token unused_name writing_file",
        "batch": "Array EntriesInPlace MAX_ENTRIES MAX_SAMPLES SampleBatch SampleFilter concatenate cuts",
        "clock": "Clock",
        "columns": "BRANCH COLUMNS Column ENTRY FRAME GROUPS Mode REQUIRED column",
        "profile": "Profile TABLES THROTTLES",
        "safe_text": "check_utf8 counted visible word",
        "source": "BytesSource Limits MEMORY OpenFile Source limited read_at",
        "stream": "BatchReader IN_PLACE Progress SampleStream StackWatcher Stages by_time merge no_progress watermarks",
        "tables": "Capture Cpu Event Machine Module ModuleKind Node PATCHED Process Rows Segment Thread",
        "tabular": "Columns RowNames SHOWN Tabular frame_library html_table text_table",
        "timeline": "Change KERNEL Load Timeline",
        "user_cache": "BINARIES default_cache kept_binary",
    },
)
