"""What the three documents state of adjustments, conflicts, limits, outputs and codes, and the case that proves each.

A row is one statement in our words: where it stands, what it says, and the function of test_etw_sentences.py that runs
it on the portable kernel. ``docs/reference/etw.md`` shows the rows.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DOCUMENTS", "SENTENCES", "Sentence"]

DOCUMENTS = {
    "properties": "EVENT_TRACE_PROPERTIES_V2",
    "query": "TraceQueryInformation",
    "lbr": "TraceConfigureLastBranchRecord",
}


class Sentence(NamedTuple):
    """A statement: document, section of it, paraphrase, and the name of the case."""

    document: str
    section: str
    says: str
    case: str


def _rows(document: str, *rows: tuple[str, str, str]) -> tuple[Sentence, ...]:
    return tuple(Sentence(document, *row) for row in rows)


SENTENCES: tuple[Sentence, ...] = (
    *_rows(
        "properties",
        ("Structure", "systems that do not know version 2 ignore its members", "version_2_counts_with_its_flag"),
        ("Wnode", "BufferSize must be given", "the_allocation_has_its_size"),
        ("Wnode", "Flags must be given", "the_flag_of_the_header"),
        ("Wnode", "Guid is given, or made by the system", "a_session_has_a_guid"),
        ("Wnode", "ClientContext is optional", "clocks"),
        ("Wnode", "members of version 2 count only with WNODE_FLAG_VERSIONED_PROPERTIES",
         "version_2_counts_with_its_flag"),
        ("BufferSize", "the least is 4 KB", "smallest_buffers"),
        ("BufferSize", "the most is 16,384 KB", "largest_buffers"),
        ("BufferSize", "an event that is larger than a buffer is not collected", "events_larger_than_a_buffer"),
        ("BufferSize", "an event of more than 64 KB is not collected, whatever the buffers",
         "events_larger_than_64_kb"),
        ("BufferSize", "may be raised to a multiple of the disk's block size", "buffers_are_whole_blocks"),
        ("MinimumBuffers", "at least 2 without buffers per processor", "two_buffers_in_one_stream"),
        ("MinimumBuffers", "else at least 2 for each logical processor", "two_buffers_a_processor"),
        ("MinimumBuffers", "reduced to a limit that the system sets", "counts_have_a_limit"),
        ("MinimumBuffers", "the adjusted minimum is reserved when the session starts", "the_minimum_is_reserved"),
        ("MinimumBuffers", "more buffers are made, up to the maximum, when they fill faster than they are written "
         "(here one writer alone has up to half of them)", "the_pool_grows_to_the_maximum"),
        ("MinimumBuffers", "in buffering mode the oldest full buffer is used again", "the_oldest_buffer_is_used_again"),
        ("MinimumBuffers", "in buffering mode no more buffers are made", "a_buffering_pool_does_not_grow"),
        ("MaximumBuffers", "raised to the adjusted minimum", "the_maximum_is_no_less_than_the_minimum"),
        ("MaximumBuffers", "reduced to a limit that the system sets", "counts_have_a_limit"),
        ("MaximumBuffers", "ignored in buffering mode", "a_buffering_pool_does_not_grow"),
        ("MaximumFileSize", "0 is no limit", "files_without_a_limit"),
        ("MaximumFileSize", "in MB", "files_have_their_size"),
        ("MaximumFileSize", "limits a circular file", "circular_files_have_their_size"),
        ("MaximumFileSize", "must not be 0 for preallocated files", "preallocated_files_need_a_size"),
        ("MaximumFileSize", "must not be 0 for circular files", "circular_files_need_a_size"),
        ("MaximumFileSize", "must not be 0 for a series of files", "rows_of_files_need_a_size"),
        ("MaximumFileSize", "200 MB must remain free on the system's disk", "the_reserve_on_the_disk"),
        ("LogFileMode", "events go to memory, to a file, to real-time consumers", "where_events_go"),
        ("LogFileMode", "without a consumer, events in real time are kept", "a_backlog_is_played_first"),
        ("LogFileMode", "what is kept has a limit; beyond it new events are ignored", "a_backlog_has_a_limit"),
        ("LogFileMode", "the logging function fails then with STATUS_LOG_FILE_FULL", "a_backlog_has_a_limit"),
        ("LogFileMode", "a consumer gets what was kept first, then what is new", "a_backlog_is_played_first"),
        ("FlushTimer", "seconds between flushes of buffers that are not empty", "timers_flush"),
        ("FlushTimer", "the least for a file is 1 second", "timers_of_files"),
        ("FlushTimer", "0 turns flushing by time off for a file", "timers_of_files"),
        ("FlushTimer", "without it a flush is at a full buffer, at the stop, or on demand", "flushes_without_a_timer"),
        ("FlushTimer", "the least in real time is 1 second", "timers_in_real_time"),
        ("FlushTimer", "0 is 1 second in real time", "timers_in_real_time"),
        ("FlushTimer", "unused in buffering mode: only ControlTrace writes to a file", "buffering_flushes_on_demand"),
        ("EnableFlags", "only for system loggers", "flags_are_for_system_loggers"),
        ("EnableFlags", "a system logger by mode, by name, or by either GUID", "what_makes_a_system_logger"),
        ("EnableFlags", "configuration is logged as well, unless NO_SYSCONFIG", "configuration_is_logged"),
        ("EnableFlags", "each flag turns its events on", "flags_turn_events_on"),
        ("EnableFlags", "DISK_FILE_IO needs DISK_IO", "disk_file_io_needs_disk_io"),
        ("AgeLimit", "unused", "the_age_limit_is_kept_and_unused"),
        ("NumberOfBuffers", "output: buffers of the pool", "statistics_of_the_pool"),
        ("FreeBuffers", "output: those that are not used", "statistics_of_the_pool"),
        ("EventsLost", "output: events that were not recorded", "losses_are_counted"),
        ("BuffersWritten", "output: buffers that were written", "buffers_written"),
        ("LogBuffersLost", "output: buffers that could not be written to the file", "log_buffers_lost"),
        ("RealTimeBuffersLost", "output: buffers that could not be delivered in real time",
         "what_nobody_reads_is_lost"),
        ("LoggerThreadId", "output: the thread of the session", "the_thread_of_the_session"),
        ("LogFileNameOffset", "counts from the beginning of the allocation", "offsets_are_inside"),
        ("LogFileNameOffset", "folders must exist; none is made", "folders_must_exist"),
        ("LogFileNameOffset", "a path may be relative or absolute", "relative_paths"),
        ("LogFileNameOffset", "variables are not expanded", "variables_are_not_expanded"),
        ("LogFileNameOffset", "the user must be allowed to write to the folder", "folders_must_be_writable"),
        ("LogFileNameOffset", "at most 1,024 characters", "file_names_have_a_limit"),
        ("LogFileNameOffset", "a private session's file gets the process id", "private_files_have_a_pid"),
        ("LogFileNameOffset", "a series of files gets numbers", "rows_of_files_get_numbers"),
        ("LogFileNameOffset", "0 if there is no file", "where_events_go"),
        ("LogFileNameOffset", "real time with a file name is both", "real_time_and_a_file"),
        ("LogFileNameOffset", "mode 0 with a file name is a sequential file", "mode_0_with_a_file"),
        ("LogFileNameOffset", "there must be room for both names after the structure", "room_for_the_name"),
        ("LogFileNameOffset", "files have the default protection", "files_are_private"),
        ("LoggerNameOffset", "a session's name has at most 1,024 characters", "session_names_have_a_limit"),
        ("LoggerNameOffset", "names differ by more than case", "one_session_of_a_name"),
        ("LoggerNameOffset", "a second session of a name is not started", "one_session_of_a_name"),
        ("VersionNumber", "2, and recognised only with the flag", "version_2_counts_with_its_flag"),
        ("FilterDescCount", "0 unless the session is private", "filters_are_for_private_sessions"),
        ("FilterDesc", "by executable name and by process id", "filters_by_process"),
        ("FilterDesc", "one of a kind", "one_filter_of_a_kind"),
        ("FilterDesc", "NULL unless the session is private", "filters_are_for_private_sessions"),
        ("V2Options", "stored with the session", "options_are_kept"),
        ("V2Options", "bits: Wow, QpcDeltaTracking, LargeMdlPages, ExcludeKernelStack", "options_are_bit_fields"),
        ("Remarks", "the beginning is that of version 1", "both_versions_begin_alike"),
        ("Remarks", "filters mean what they mean for EnableTraceEx2", "filters_by_process"),
        ("Remarks", "StartTrace copies the session's name", "start_copies_the_name"),
        ("Remarks", "a full buffer goes to the file, to consumers, or to both", "real_time_and_a_file"),
        ("Remarks", "beyond MaximumBuffers events are dropped until a buffer is free", "losses_are_counted"),
        ("Remarks", "each session counts what it drops", "losses_are_counted"),
        ("Remarks", "buffers that are not used are not freed", "the_age_limit_is_kept_and_unused"),
        ("Remarks", "ControlTrace with QUERY returns the statistics", "statistics_of_the_pool"),
    ),
    *_rows(
        "query",
        ("SessionHandle", "some classes need 0", "classes_of_the_machine"),
        ("SessionHandle", "other classes select a session", "masks_of_a_system_logger"),
        ("ReturnLength", "what was put into the buffer", "masks_of_a_system_logger"),
        ("ReturnLength", "of a failed call: what there would have been", "lengths_of_failed_queries"),
        ("ReturnLength", "may be NULL", "lengths_of_failed_queries"),
        ("Return value", "ERROR_SUCCESS, or an error code", "masks_of_a_system_logger"),
        ("Classes", "five are supported", "five_classes"),
        ("Classes", "any other is ERROR_NOT_SUPPORTED", "every_other_class"),
        ("0x04", "the session must be a kernel logger", "masks_of_another_session"),
        ("0x04", "the first mask is compatible with EnableFlags", "masks_of_a_system_logger"),
        ("0x04", "eight masks of 32 bits", "masks_of_a_system_logger"),
        ("0x04", "the return length is that of the structure", "masks_of_a_system_logger"),
        ("0x04", "too small a buffer is ERROR_BAD_LENGTH, a larger one is filled", "masks_and_their_buffer"),
        ("0x05", "the handle must be 0, else ERROR_INVALID_PARAMETER", "classes_of_the_machine"),
        ("0x05", "the buffer must fit exactly, else ERROR_BAD_LENGTH", "exact_fits"),
        ("0x05", "Source is input, Interval output", "intervals"),
        ("0x05", "Source 0 is the time profile", "intervals"),
        ("0x05", "other sources have their own interval", "intervals"),
        ("0x05", "the return length is that of the structure", "exact_fits"),
        ("0x07", "the handle must be 0, else ERROR_INVALID_PARAMETER", "classes_of_the_machine"),
        ("0x07", "entries are irregular: each says where the next is, a name of any length ends it",
         "a_chain_of_sources"),
        ("0x07", "without a buffer it returns the size and ignores the length", "the_size_of_the_chain"),
        ("0x07", "no memory is ERROR_OUTOFMEMORY", "no_memory"),
        ("0x0B", "the handle must be 0, else ERROR_INVALID_PARAMETER", "classes_of_the_machine"),
        ("0x0B", "the buffer must fit exactly, else ERROR_BAD_LENGTH", "exact_fits"),
        ("0x0B", "the version is 1", "the_version"),
        ("0x0B", "Reserved is left alone", "the_version"),
        ("0x0E", "the providers that the session does not allow", "the_disallow_list"),
    ),
    *_rows(
        "lbr",
        ("TraceId", "the handle that StartTrace gave", "a_session_is_configured"),
        ("LbrConfiguration", "flags leave branches out, by level and class", "filters_leave_branches_out"),
        ("LbrConfiguration", "a flag that the processor cannot do without is asked for; SAMPLED is for ARM64",
         "flags_of_other_processors"),
        ("Events", "GUID and type of each trigger", "a_session_is_configured"),
        ("Events", "a trigger that is not enabled gives no records, and no error", "triggers_that_are_not_enabled"),
        ("EventCount", "0 clears the triggers and ends collection", "a_count_of_0_ends_it"),
        ("EventCount", "more than 0 begins it, with up to four", "four_triggers"),
        ("Return value", "ERROR_SUCCESS or an error code (codes and order: our choice)", "the_order_of_the_checks"),
        ("Remarks", "each interrupt of the software source is followed by its record", "a_record_for_each_trigger"),
        ("Remarks", "records have the GUID of the provider and opcode 0x20", "a_record_for_each_trigger"),
        ("Remarks", "the payload is LBR_TRACE_EVENT_DATA", "what_a_record_holds"),
        ("Remarks", "trigger and record have the same time stamp", "a_record_for_each_trigger"),
        ("Remarks", "at most EVNTRACE_MAX_LBR_EVENTS triggers", "four_triggers"),
        ("Remarks", "PMC profiling needs a privilege", "rights_for_counters"),
        ("Remarks", "CreateMergedTraceFile adds image identities", "merging_adds_identities"),
        ("LBR event data", "the size of the payload gives the number of entries", "what_a_record_holds"),
        ("LBR event data", "an entry is From, To and Information", "what_a_record_holds"),
        ("Examples", "sources and intervals before the start, triggers and masks after it", "the_example"),
    ),
)  # fmt: skip
