"""The functions of the guide's chapter 9, one row each; functions of the same shape are rows of the same loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..formats.tb5.constants import Section, StreamSection
from . import bodies
from .buffers import taken, utf8_to_wcs, wcs_to_utf8
from .call import make
from .handle import Handle
from .rules import FileMode
from .sections import Access
from .status import status_text

__all__ = ["FUNCTIONS", "VERSION"]

VERSION = (2, 3)
"""Major and minor number of the guide that is followed."""

Row = tuple[str, str, str, Callable[..., Any]]
_MODES = " | ".join(f"TBRW_FILE_{mode.name}" for mode in FileMode)
_READING, _WRITING = Access.READING, Access.WRITING


_HIGH_LEVEL: list[Row] = [
    ("get_version() -> major, minor", "9.1", "Version of the API: that of the guide.", lambda: VERSION),
    ("open(filename, access_mode) -> ptr", "9.1",
     f"Open a TB5 file. ``access_mode`` is made of {_MODES}; a new file needs the last, with WRITE.", Handle),
    ("close(ptr)", "9.1", "Close a file. Everything must be done; where it is not, the file stays open.", Handle.close),
    ("error_string(error_code) -> error_string", "9.1", "What a status code means.", status_text),
    ("abort_cleanup_and_close(ptr)", "9.1",
     "Close a file whatever is open. What is complete stays; what is not, and temporary files, go.", Handle.abort),
    ("verify(ptr)", "9.1",
     "Look at every block, string id, data descriptor and bind index of what is complete.", Handle.verify),
    ("convert_uniqueid_to_string(ptr, size_of_buffer, string_id, buffer) -> size_buffer_needed", "9.1",
     "The string of a unique id, into a buffer of wide characters. Sizes are in bytes, with the NUL.", bodies.text),
    ("get_number_data_streams(ptr) -> numStreams", "9.1.2",
     "Number of complete data streams; bind information is not counted.", lambda h: h.rules.count),
    ("convert_utf8_to_wcs(utf8, wcs, wcs_size) -> wcs_size", "9.4",
     "UTF-8 to wide characters. Sizes are in characters and include the NUL.", utf8_to_wcs),
    ("convert_wcs_to_utf8(wcs, utf8, utf8_size) -> utf8_size", "9.4",
     "Wide characters to UTF-8. Sizes are in bytes and include the NUL.", wcs_to_utf8),
]  # fmt: skip

_MANAGEMENT: list[Row] = [
    ("reading_section(ptr, section)", "9.1.1", "Begin to read a global section.",
     lambda h, section: h.begin_section(section, _READING)),
    ("writing_section(ptr, section)", "9.1.1", "Begin to write a global section that does not exist.",
     lambda h, section: h.begin_section(section, _WRITING)),
    ("done_section(ptr, section)", "9.1.1",
     "End reading or writing a global section. What was written is checked and then part of the file.",
     Handle.done_section),
    ("reading_stream(ptr, stream)", "9.1.2", "Begin to read a data stream.",
     lambda h, stream: h.begin_stream(stream, _READING)),
    ("writing_stream(ptr, stream)", "9.1.2", "Begin to write the next data stream.",
     lambda h, stream: h.begin_stream(stream, _WRITING)),
    ("done_stream(ptr, stream)", "9.1.2",
     "End reading or writing a data stream. What was written is checked and then part of the file.",
     Handle.done_stream),
    ("reading_stream_section(ptr, stream, section)", "9.1.3", "Begin to read a section of a stream that is being read.",
     lambda h, stream, section: h.begin_stream_section(stream, section, _READING)),
    ("writing_stream_section(ptr, stream, section)", "9.1.3",
     "Begin to write a section of a stream that is being written.",
     lambda h, stream, section: h.begin_stream_section(stream, section, _WRITING)),
    ("done_stream_section(ptr, stream, section)", "9.1.3", "End reading or writing a section of a stream.",
     Handle.done_stream_section),
]  # fmt: skip

_SINGLE = [
    ("system", "TBRW_SYSTEM", "9.2.1", "ptr", "the whole system"),
    ("host", "TBRW_HOST", "9.2.2", "ptr", "the host"),
    ("os", "TBRW_OS", "9.2.2", "ptr", "the operating system"),
    ("application", "TBRW_APPLICATION", "9.2.2", "ptr", "memory as applications see it"),
    ("version_info", "TBRW_VERSION_INFO", "9.2.5", "tbrw_ptr", "the versions of what made the file"),
    ("stream_info", "TBRW_STREAM_INFO", "9.3.1", "tbrw_ptr, stream", "a stream as a whole"),
]
_ADDED = [
    ("process", "TBRW_PID", "9.2.3", "ptr", "process", "a process"),
    ("thread", "TBRW_TID", "9.2.3", "ptr", "thread", "a thread"),
    ("module", "TBRW_MODULE", "9.2.4", "ptr", "module", "a module"),
    ("event", "TBRW_EVENT", "9.3.2", "ptr, stream", "event_descriptor_entry", "an event, with its details"),
    ("data_descriptor_entry", "TBRW_SAMPREC_DESC_ENTRY", "9.3.3", "ptr, stream", "data_descriptor_entry",
     "a field of the records of a stream"),
]  # fmt: skip
_ENUMERATED = [
    ("processes", "TBRW_PID", "9.2.3", "ptr", ", start_index"),
    ("threads", "TBRW_TID", "9.2.3", "ptr", ", start_index"),
    ("modules", "TBRW_MODULE", "9.2.4", "ptr", ", start_index"),
    ("events", "TBRW_EVENT", "9.3.2", "ptr, stream", ", start_index"),
    ("data_descriptor_entries", "TBRW_SAMPREC_DESC_ENTRY", "9.3.3", "ptr, stream", ""),
]
_ONE = [("pid", "TBRW_PID", "9.2.3"), ("tid", "TBRW_TID", "9.2.3"), ("module", "TBRW_MODULE", "9.2.4")]
_BOUND_RECORDS = [("threads", "TBRW_TID", "9.2.3"), ("modules", "TBRW_MODULE", "9.2.4")]
_BIND_SIZES = [
    ("tid", "TID_BIND_STRUCT", "9.2.3"), ("module", "MODULE_BIND_STRUCT", "9.2.4"),
    ("data", "DATA_BIND_STRUCT", "9.3.4"),
]  # fmt: skip
_FREE = [
    ("global", "ptr", "9.2.6", Section.USER_DEFINED_GLOBAL),
    ("stream", "ptr, stream", "9.3.5", StreamSection.USER_DEFINED_STREAM),
]
_BUFFER = "size_of_buffer, buf_ptr"
_ASK = "Size 0 and ``None`` ask for the size that is needed."
_CALLED = "``callback_func(buffer, size, count, user_ptr)`` returns 1 for more, 0 to stop, or an error to return"
_BOUND = "``callback_func(buffer, size, count, bind_table, sizeof_bind_buffer, user_ptr)`` returns as in enumerate_"


def _rows() -> Iterator[Row]:
    yield from _HIGH_LEVEL
    yield from _MANAGEMENT
    for noun, name, chapter, first, what in _SINGLE:
        yield f"set_{noun}({first}, {noun})", chapter, f"Write {name}: {what}.", bodies.setter()
        prototype = f"get_{noun}({first}, {_BUFFER}) -> size_buffer_used"
        text = f"Read {name}, {what}, with all that its pointers lead to. {_ASK}"
        yield prototype, chapter, text, bodies.getter(name)
    for noun, name, chapter, first, argument, what in _ADDED:
        yield f"add_{noun}({first}, {argument})", chapter, f"Append {name}: {what}.", bodies.adder()
    for noun, name, chapter, first, start in _ENUMERATED:
        prototype = f"enumerate_{noun}({first}, callback_func, user_ptr{start})"
        yield prototype, chapter, f"Read {name} records; {_CALLED}.", bodies.enumerator(name, "stream" in first)
    for noun, name, chapter in _ONE:
        prototype = f"get_one_{noun}(ptr, {noun}_index) -> p_{noun}"
        yield prototype, chapter, f"Read one {name} by its index.", bodies.one_getter(name)
    for noun, name, chapter in _BIND_SIZES:
        prototype = f"get_size_of_{noun}_bind_entry(ptr, data_stream) -> sizeof_{noun}_bind_entry"
        yield prototype, chapter, f"Bytes of a {name} of a bound stream.", bodies.bind_sizer(name)
    for noun, name, chapter in _BOUND_RECORDS:
        text = f"Read {name} records with the index of the process of each; {_BOUND}."
        prototype = f"bind_enumerate_{noun}(ptr, callback_func, user_ptr, start_index)"
        yield prototype, chapter, text, bodies.bound_enumerator(name)
    for noun, first, chapter, section in _FREE:
        text = f"Write the user-defined data of the {noun}."
        prototype = f"set_user_defined_{noun}({first}, size_of_data, data_ptr)"
        yield prototype, chapter, text, bodies.bytes_setter(section)
        text = f"Read the user-defined data of the {noun}. {_ASK}"
        prototype = f"get_user_defined_{noun}({first}, {_BUFFER}) -> size_buffer_used"
        yield prototype, chapter, text, bodies.bytes_getter(section)
    yield from _DATA


_DATA: list[Row] = [
    ("add_data(ptr, stream, size_of_data_entry, data_entry)", "9.3.4",
     "Append a record to the data section, a part of one, or whole records.",
     lambda h, stream, size, data: h.add_data(stream, taken(size, data))),
    ("add_data_from_file(ptr, stream, filename)", "9.3.4", "Append the records that a file consists of.",
     Handle.add_data_from_file),
    ("enumerate_data(ptr, stream, callback_func, user_ptr, start_index)", "9.3.4", f"Read records; {_CALLED}.",
     bodies.data),
    ("bind_enumerate_data(ptr, data_stream, callback_func, user_ptr, start_index)", "9.3.4",
     f"Read records with the indices of the module, process and thread of each; {_BOUND}.", bodies.bound_data),
    ("is_bound(ptr, data_stream) -> is_bound", "9.3.4", "1 if a stream is bound, else 0.",
     lambda h, stream: int(h.is_bound(stream))),
    ("dobind(ptr, data_stream)", "9.3.4",
     "Find the module, process and thread of each sample of a stream. Nothing happens to one that is bound.",
     Handle.dobind),
    ("unbind(ptr, data_stream)", "9.3.4", "Drop what binding a stream added to the file.", Handle.unbind),
]  # fmt: skip

FUNCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    f"TBRW_{row[0].partition('(')[0]}": (row[1], make(*row)) for row in _rows()
}
"""Name -> (chapter, function)."""
