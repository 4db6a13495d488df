"""The functions of the guide's chapter 9, made from rows of tables.

A row is a prototype, a chapter, a sentence and a body. A prototype is written as ``name(in, in...) -> out, out``: OUT
parameters of the guide are not arguments, but are returned after the status. The function has that signature, and
checks its arguments by `_KINDS`. A body gets the arguments (the handle for ``ptr``), returns the OUT values, and raises
`TbrwError` for any status but success.
"""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter, Signature
from types import GenericAlias
from typing import Any

from ..formats.tb5.layout import Section, StreamSection
from .handle import Handle
from .rules import Access, FileMode
from .status import Status, TbrwError, status_text
from .structures import ENUMERATIONS, NUMBERS, PAIRS, RECORDS, TBRW_STRING_OR_ID, TYPES

__all__ = ["FUNCTIONS", "INPUTS", "NAMES", "OUTPUTS", "TBRW_PTR"]


# -- a function from its row


TBRW_PTR = Handle | None

_KINDS: dict[str, Any] = {
    "ptr": TBRW_PTR, "tbrw_ptr": TBRW_PTR,
    "filename": str | os.PathLike[str], "error_string": str | None,
    "buf_ptr": Any, "buffer": Any, "data_ptr": Any, "data_entry": Any, "wcs": Any, "utf8": Any, "user_ptr": Any,
    "callback_func": Callable[..., int], "string_id": TBRW_STRING_OR_ID | int,
    "p_pid": RECORDS["TBRW_PID"] | None, "p_tid": RECORDS["TBRW_TID"] | None, "p_module": RECORDS["TBRW_MODULE"] | None,
    "system": RECORDS["TBRW_SYSTEM"], "host": RECORDS["TBRW_HOST"], "os": RECORDS["TBRW_OS"],
    "application": RECORDS["TBRW_APPLICATION"], "process": RECORDS["TBRW_PID"], "thread": RECORDS["TBRW_TID"],
    "module": RECORDS["TBRW_MODULE"], "version_info": RECORDS["TBRW_VERSION_INFO"],
    "stream_info": RECORDS["TBRW_STREAM_INFO"], "event_descriptor_entry": RECORDS["TBRW_EVENT"],
    "data_descriptor_entry": RECORDS["TBRW_SAMPREC_DESC_ENTRY"],
}  # fmt: skip
"""Types of parameters and OUT values by name. All others are numbers."""


class TooSmall(TbrwError):
    """BUFFER_TOO_SMALL with the size that is needed. Only this error has OUT values."""

    def __init__(self, given: int, needed: int) -> None:
        super().__init__(Status.BUFFER_TOO_SMALL, f"a buffer of {given} is too small, {needed} are needed")
        self.needed = needed


def parameters(prototype: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The name of a function, its parameters, and its OUT values with their types."""
    head, _, returned = prototype.partition(" -> ")
    name, _, inside = head.rstrip(")").partition("(")
    given, outs = ({n: _KINDS.get(n, int) for n in part.split(", ") if n} for part in (inside, returned))
    return f"TBRW_{name}", given, outs


def make(prototype: str, chapter: str, text: str, body: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function of a row."""
    name, given_by_name, out_by_name = parameters(prototype)
    names, kinds = [*given_by_name], [*given_by_name.values()]
    outs, out_kinds = [*out_by_name], [*out_by_name.values()]
    failed = tuple(0 if kind is int else None for kind in out_kinds)
    signature = Signature(
        [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, annotation=k) for n, k in zip(names, kinds, strict=True)],
        return_annotation=GenericAlias(tuple, (int, *out_kinds)) if outs else int,
    )

    def call(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named).args if named or len(args) != len(names) else args
        try:
            values = [_check_argument(n, k, v) for n, k, v in zip(names, kinds, given, strict=True)]
            result = body(*values)
        except TooSmall as error:
            return error.status, error.needed
        except TbrwError as error:
            return (error.status, *failed) if outs else error.status
        if not outs:
            return Status.SUCCESS if result is None else result
        return (Status.SUCCESS, *(result if len(outs) > 1 else (result,)))

    call.__name__ = call.__qualname__ = name
    call.__module__ = "lastbranch.tbrw"
    shown = ", ".join(["status", *outs])
    call.__doc__ = f"{text}\n\nReturns ``{shown}``. Guide: {chapter}."
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {**dict(zip(names, kinds, strict=True)), "return": signature.return_annotation}
    return call


def _check_argument(name: str, kind: Any, value: Any) -> Any:
    """An argument as bodies take it. Raises `TbrwError` if the call cannot use it."""
    if kind is int:
        try:
            return operator.index(value)
        except TypeError:
            raise TbrwError(Status.BAD_PARAMETER, f"{name} = {value!r} is not a number") from None
    if kind is TBRW_PTR:
        if not isinstance(value, Handle) or value.closed:
            raise TbrwError(Status.BAD_PARAMETER, f"{name} is not an open file")
        return value
    if name == "filename":
        if not isinstance(value, str | os.PathLike):
            raise TbrwError(Status.BAD_PARAMETER, f"filename = {value!r} is not a path")
        return os.fspath(value)
    if name == "callback_func" and not callable(value):
        raise TbrwError(Status.UNEXPECTED_NULL_PTR, "callback_func cannot be called")
    if isinstance(kind, type) and kind in RECORDS.values():
        if value is None:
            raise TbrwError(Status.UNEXPECTED_NULL_PTR, f"{name} is NULL")
        if not isinstance(value, kind):
            raise TbrwError(Status.BAD_PARAMETER, f"{name} is a {type(value).__name__}, not a {kind.__name__}")
    return value


# -- the caller's buffers (size_of_buffer with buf_ptr) and wide strings (9.4)


_WIDE = ctypes.sizeof(ctypes.c_wchar)


def _raw(data: Any) -> bytes:
    if data is None:
        raise TbrwError(Status.BUFFER_NULL, "no data")
    try:
        return data if isinstance(data, bytes) else memoryview(data).tobytes()
    except TypeError:
        raise TbrwError(Status.BAD_PARAMETER, f"a {type(data).__name__} is not data") from None


def taken(size: int, data: Any) -> bytes:
    """The first ``size`` bytes of the caller's data."""
    found = _raw(data)
    if not 0 <= size <= len(found):
        raise TbrwError(Status.BUFFER_OVERFLOW, f"the size is {size} bytes, and the data has {len(found)}")
    return found[:size]


def room(size: int, buffer: Any, needed: int) -> Any:
    """A view of ``needed`` bytes of a caller's buffer of ``size`` bytes."""
    if size < needed:
        raise TooSmall(size, needed)
    if buffer is None:
        raise TbrwError(Status.BUFFER_NULL, "no buffer")
    try:
        return (ctypes.c_char * needed).from_buffer(buffer)
    except TypeError:
        raise TbrwError(Status.BAD_PARAMETER, f"a {type(buffer).__name__} cannot be written to") from None
    except ValueError:
        raise TbrwError(Status.BUFFER_OVERFLOW, f"the buffer is smaller than its size of {size} bytes") from None


def fill(size: int, buffer: Any, data: bytes) -> int:
    """Copy ``data`` into a caller's buffer. Returns the bytes used."""
    if size or data:  # size 0 asks for the size, except for no data
        ctypes.memmove(room(size, buffer, len(data)), data, len(data))
    return len(data)


def fill_text(size: int, buffer: Any, text: str) -> int:
    """Copy a string with its NUL into a caller's buffer of wide characters. Returns the bytes used."""
    return fill(size, buffer, ctypes.string_at(ctypes.create_unicode_buffer(text), (len(text) + 1) * _WIDE))


def utf8_to_wcs(utf8: Any, wcs: Any, wcs_size: int) -> int:
    """Convert UTF-8 into a buffer of ``wcs_size`` wide characters. Returns the characters used, with the NUL."""
    data = _raw(utf8).partition(b"\0")[0]
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise TbrwError(Status.INVALID_STRING, f"not UTF-8: {error}") from None
    wide = ctypes.create_unicode_buffer(text)
    if wcs_size < len(wide):
        raise TooSmall(wcs_size, len(wide))
    return fill(wcs_size * _WIDE, wcs, bytes(wide)) // _WIDE


def wcs_to_utf8(wcs: Any, utf8: Any, utf8_size: int) -> int:
    """Convert a wide string (`str` or ctypes buffer) to UTF-8. Returns the bytes used, with the NUL."""
    if wcs is None:
        raise TbrwError(Status.BUFFER_NULL, "no string")
    text = wcs if isinstance(wcs, str) else getattr(wcs, "value", None)
    if not isinstance(text, str):
        raise TbrwError(Status.BAD_PARAMETER, f"a {type(wcs).__name__} is not a wide string")
    try:
        return fill(utf8_size, utf8, text.partition("\0")[0].encode() + b"\0")
    except UnicodeEncodeError as error:
        raise TbrwError(Status.INVALID_STRING, f"not Unicode: {error}") from None


# -- bodies of functions that share a shape, made for a structure or a section. Functions of a stream take its number
# first.

Body = Callable[..., Any]


def putter(single: bool) -> Body:
    """set_ (``single``) and add_ of a structure."""
    return lambda h, *args: h.put(args[-1], *args[:-1], single=single)


def getter(name: str) -> Body:
    """get_ of a structure."""

    def body(h: Handle, *args: Any) -> int:
        *stream, size, buffer = args
        block = h.reader.block(name, *stream)
        room(size, buffer, block.size)
        block.fill(buffer)
        return block.size

    return body


def one_getter(name: str) -> Body:
    """get_one_ of a structure."""
    return lambda h, index: h.reader.one(name, index)


def enumerator(name: str, streamed: bool) -> Body:
    """enumerate_ of a structure."""

    def body(h: Handle, *args: Any) -> int:
        stream, (callback, user, *start) = (args[0], args[1:]) if streamed else (None, args)
        arrays = h.reader.enumerate(name, stream, *start)
        return _call_back(callback, ((a, _size(a), len(a), user) for a in arrays))

    return body


def bound_enumerator(name: str) -> Body:
    """bind_enumerate_ of a structure."""

    def body(h: Handle, callback: Any, user: Any, start: int) -> int:
        pairs = h.reader.bound_records(name, start)
        return _call_back(callback, ((a, _size(a), len(a), b, _size(b), user) for a, b in pairs))

    return body


def bind_sizer(name: str) -> Body:
    """get_size_of_ a bind structure."""
    return lambda h, stream: h.reader.bind_size(name, stream)


def bytes_setter(section: int) -> Body:
    """set_ of free bytes."""

    def body(h: Handle, *args: Any) -> None:
        *stream, size, given = args
        h.put_bytes(section, stream[0] if stream else None, taken(size, given))

    return body


def bytes_getter(section: int) -> Body:
    """get_ of free bytes."""

    def body(h: Handle, *args: Any) -> int:
        *stream, size, buffer = args
        return fill(size, buffer, h.reader.bytes(section, stream[0] if stream else None))

    return body


def enumerate_data(h: Handle, stream: int, callback: Any, user: Any, start: int) -> int:
    """enumerate_data."""
    found = h.reader.data(stream, start)
    return _call_back(callback, ((records, records.nbytes, count, user) for records, count in found))


def enumerate_bound_data(h: Handle, stream: int, callback: Any, user: Any, start: int) -> int:
    """bind_enumerate_data."""
    found = h.reader.bound_data(stream, start)
    return _call_back(callback, ((r, r.nbytes, count, bind, _size(bind), user) for r, count, bind in found))


def string_of_id(h: Handle, size: int, string: TBRW_STRING_OR_ID | int | None, buffer: Any) -> int:
    """convert_uniqueid_to_string."""
    unique_id = string.soi_uniqueid if isinstance(string, TBRW_STRING_OR_ID) else string
    if not isinstance(unique_id, int):
        raise TbrwError(Status.UNEXPECTED_NULL_PTR, "string_id is no TBRW_STRING_OR_ID")
    return fill_text(size, buffer, h.store.text(unique_id))


def _call_back(callback: Body, calls: Iterable[tuple[Any, ...]]) -> int:
    """Call back while it returns 1. Returns the last answer: 0 (stop), or an error."""
    for arguments in calls:
        answer = callback(*arguments)
        try:
            status = operator.index(answer)
        except TypeError:
            raise TbrwError(Status.BAD_PARAMETER, f"the callback returned {answer!r}, not a number") from None
        if status != 1:
            return status
    return Status.SUCCESS


def _size(array: Any) -> int:
    return memoryview(array).nbytes


# -- the rows

VERSION = (2, 3)
"""Major and minor version of the guide that this follows."""

Row = tuple[str, str, str, Callable[..., Any]]
_MODES = " | ".join(f"TBRW_FILE_{mode.name}" for mode in FileMode)
_READING, _WRITING = Access.READING, Access.WRITING


_HIGH_LEVEL: list[Row] = [
    ("get_version() -> major, minor", "9.1", "Version of the API: that of the guide.", lambda: VERSION),
    ("open(filename, access_mode) -> ptr", "9.1",
     f"Open a TB5 file. ``access_mode`` is made of {_MODES}; a new file needs the last, with WRITE.", Handle),
    ("close(ptr)", "9.1", "Close a file. It stays open if a section or stream is not done.", Handle.close),
    ("error_string(error_code) -> error_string", "9.1", "The meaning of a status code.", status_text),
    ("abort_cleanup_and_close(ptr)", "9.1",
     "Close a file whatever is open. Complete parts stay; the rest and temporary files are removed.", Handle.abort),
    ("verify(ptr)", "9.1",
     "Check every block, string id, data descriptor and bind index of what is complete.", Handle.verify),
    ("convert_uniqueid_to_string(ptr, size_of_buffer, string_id, buffer) -> size_buffer_needed", "9.1",
     "The string of a unique id, into a buffer of wide characters. Sizes are in bytes, with the NUL.", string_of_id),
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
     "End reading or writing a global section. A written section is checked and then part of the file.",
     Handle.done_section),
    ("reading_stream(ptr, stream)", "9.1.2", "Begin to read a data stream.",
     lambda h, stream: h.begin_stream(stream, _READING)),
    ("writing_stream(ptr, stream)", "9.1.2", "Begin to write the next data stream.",
     lambda h, stream: h.begin_stream(stream, _WRITING)),
    ("done_stream(ptr, stream)", "9.1.2",
     "End reading or writing a data stream. A written stream is checked and then part of the file.",
     Handle.done_stream),
    ("reading_stream_section(ptr, stream, section)", "9.1.3", "Begin to read a section of a stream that is being read.",
     lambda h, stream, section: h.begin_section(section, _READING, stream)),
    ("writing_stream_section(ptr, stream, section)", "9.1.3",
     "Begin to write a section of a stream that is being written.",
     lambda h, stream, section: h.begin_section(section, _WRITING, stream)),
    ("done_stream_section(ptr, stream, section)", "9.1.3", "End reading or writing a section of a stream.",
     lambda h, stream, section: h.done_section(section, stream)),
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
    ("tid", "TID_BIND_STRUCT", "9.2.3"),
    ("module", "MODULE_BIND_STRUCT", "9.2.4"),
    ("data", "DATA_BIND_STRUCT", "9.3.4"),
]
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
        yield f"set_{noun}({first}, {noun})", chapter, f"Write {name}: {what}.", putter(True)
        prototype = f"get_{noun}({first}, {_BUFFER}) -> size_buffer_used"
        text = f"Read {name}, {what}, with all that its pointers lead to. {_ASK}"
        yield prototype, chapter, text, getter(name)
    for noun, name, chapter, first, argument, what in _ADDED:
        yield f"add_{noun}({first}, {argument})", chapter, f"Append {name}: {what}.", putter(False)
    for noun, name, chapter, first, start in _ENUMERATED:
        prototype = f"enumerate_{noun}({first}, callback_func, user_ptr{start})"
        yield prototype, chapter, f"Read {name} records; {_CALLED}.", enumerator(name, "stream" in first)
    for noun, name, chapter in _ONE:
        prototype = f"get_one_{noun}(ptr, {noun}_index) -> p_{noun}"
        yield prototype, chapter, f"Read one {name} by its index.", one_getter(name)
    for noun, name, chapter in _BIND_SIZES:
        prototype = f"get_size_of_{noun}_bind_entry(ptr, data_stream) -> sizeof_{noun}_bind_entry"
        yield prototype, chapter, f"Bytes of a {name} of a bound stream.", bind_sizer(name)
    for noun, name, chapter in _BOUND_RECORDS:
        text = f"Read {name} records with the index of the process of each; {_BOUND}."
        prototype = f"bind_enumerate_{noun}(ptr, callback_func, user_ptr, start_index)"
        yield prototype, chapter, text, bound_enumerator(name)
    for noun, first, chapter, section in _FREE:
        text = f"Write the user-defined data of the {noun}."
        prototype = f"set_user_defined_{noun}({first}, size_of_data, data_ptr)"
        yield prototype, chapter, text, bytes_setter(section)
        text = f"Read the user-defined data of the {noun}. {_ASK}"
        prototype = f"get_user_defined_{noun}({first}, {_BUFFER}) -> size_buffer_used"
        yield prototype, chapter, text, bytes_getter(section)
    yield from _DATA


_DATA: list[Row] = [
    ("add_data(ptr, stream, size_of_data_entry, data_entry)", "9.3.4",
     "Append a record to the data section, a part of one, or whole records.",
     lambda h, stream, size, data: h.add_data(stream, taken(size, data))),
    ("add_data_from_file(ptr, stream, filename)", "9.3.4", "Append the records that a file consists of.",
     Handle.add_data_from_file),
    ("enumerate_data(ptr, stream, callback_func, user_ptr, start_index)", "9.3.4", f"Read records; {_CALLED}.",
     enumerate_data),
    ("bind_enumerate_data(ptr, data_stream, callback_func, user_ptr, start_index)", "9.3.4",
     f"Read records with the indices of the module, process and thread of each; {_BOUND}.", enumerate_bound_data),
    ("is_bound(ptr, data_stream) -> is_bound", "9.3.4", "1 if a stream is bound, else 0.",
     lambda h, stream: int(h.is_bound(stream))),
    ("dobind(ptr, data_stream)", "9.3.4",
     "Find the module, process and thread of each sample. A bound stream does not change.",
     Handle.dobind),
    ("unbind(ptr, data_stream)", "9.3.4", "Remove what binding a stream added to the file.", Handle.unbind),
]  # fmt: skip

FUNCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {}
"""Name -> (chapter, function)."""
INPUTS: dict[str, dict[str, Any]] = {}
"""Name -> the parameters of the function with their types; an INOUT one is in `OUTPUTS`, too."""
OUTPUTS: dict[str, dict[str, Any]] = {}
"""Name -> the OUT values of the function with their types."""

for _row in _rows():
    _name, _given, _outs = parameters(_row[0])
    FUNCTIONS[_name], INPUTS[_name], OUTPUTS[_name] = (_row[1], make(*_row)), _given, _outs


# -- The guide's names: functions, structures and numbers


NAMES: dict[str, Any] = {
    **{name: function for name, (_, function) in FUNCTIONS.items()},
    **{name: kind for name, kind in RECORDS.items() if name != "PID_BIND_STRUCT"},
    **PAIRS,
    **ENUMERATIONS,
    **NUMBERS,
    **TYPES,
    "TBRW_STRING_OR_ID": TBRW_STRING_OR_ID,
}
"""What the guide defines, by the guide's names."""
