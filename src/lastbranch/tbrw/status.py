"""Status codes, their texts, and the exception that carries one.

The numbers are those of the same names in the open-source headers of the recording driver (error list of sepdk,
`rise_errors.h`); the guide says only that the codes exist (7.7). The texts are ours.
"""

from __future__ import annotations

from enum import IntEnum

from ..errors import LastbranchError

__all__ = ["Status", "TbrwError", "status_text"]


class Status(IntEnum):
    """The status that a call returns. The package exports all as ``TBRW_`` + name; ``VT_SUCCESS`` is the guide's name
    of 0."""

    text: str
    """What it means."""

    def __new__(cls, value: int, text: str = "") -> Status:
        made = int.__new__(cls, value)
        made._value_, made.text = value, text
        return made

    SUCCESS = 0, "success"
    SAM_ERROR = 22, "the file could not be read or written"
    INVALID_SAMPLE_FILE = 24, "not a TB5 file, or a damaged one"
    UNKNOWN_SECTION_NUMBER = 25, "there is no section of that number"
    NO_MEMORY = 26, "out of memory"
    BUFFER_OVERFLOW = 29, "the data is shorter than the size that was given"
    SAMPLE_FILE_MAPPING_ERROR = 34, "the file could not be mapped"
    BUFFER_NULL = 35, "no buffer was given"
    UNEXPECTED_NULL_PTR = 36, "a pointer leads to nothing, or to fewer entries than its count says"
    ENTRY_NOT_FOUND = 39, "there is no entry of that index"
    FILE_OPEN_FAILED = 44, "the file could not be opened"
    NO_WRITE_PERMISSION = 54, "the file was not opened for writing"
    BAD_PARAMETER = 63, "an argument is not what the call needs"
    UNEXPECTED_VALUE = 72, "a field has a value that is not allowed"
    NOT_IMPLEMENTED = 73, "not implemented"
    SECTION_ALREADY_IN_USE = 77, "the section is in use"
    SECTION_NOT_EXIST = 78, "the section does not exist"
    STREAM_NOT_EXIST = 79, "the stream does not exist"
    INVALID_STREAM = 80, "a stream of that number cannot be written, or cannot hold this data"
    STREAM_ALREADY_IN_USE = 81, "the stream is in use"
    DATA_DESC_NOT_EXIST = 82, "the stream has no data descriptor"
    INVALID_ERROR_CODE = 83, "there is no such status code"
    INCOMPATIBLE_VERSION = 84, "the size field of a structure is not that of this version"
    LEGACY_DATA_NOT_EXIST = 85, "the stream holds no legacy sample records"
    INVALID_READ_START = 86, "the start index is beyond the last entry"
    INCOMPLETE_TB5_ENCOUNTERED = 95, "the file is incomplete"
    INVALID_STRING = 97, "not a string of this file (0 is the NULL string)"
    UNSUPPORTED_DATA_SIZE = 98, "the size does not fit the data descriptor"
    INIT_FAILED = 99, "the library could not be set up"
    BUFFER_TOO_SMALL = 103, "the buffer is too small"
    INVALID_ACCESS_PERMS = 111, "the access mode does not allow this"
    TB5_IS_NOT_BOUND = 113, "no stream of the file is bound"
    SECTION_NOT_READABLE = 124, "the section is not open for reading"
    SECTION_NOT_WRITEABLE = 125, "the section is not open for writing, or exists already"
    GLOBAL_SECTION_NOT_CLOSED = 126, "a global section is still in use"
    STREAM_SECTION_NOT_CLOSED = 127, "a section of the stream is still in use"
    STREAM_NOT_CLOSED = 128, "a stream is still in use"
    STREAM_NOT_BOUND = 129, "the stream is not bound"
    NOT_ALL_SECTIONS_CLOSED = 131, "global sections and streams are still in use"
    UNEXPECTED_BIND_MISMATCH = 133, "the bind information does not fit the stream"
    BAD_MODULE = 136, "a module record contradicts itself"
    BIND_UNEXPECTED_1STMODREC = 141, "a process has two first modules"
    BIND_MODULES_NOT_SORTED = 142, "the module records are not in order"
    UNEXPECTED_NUM_CPUIDS = 143, "the number of cpuid entries does not fit the architecture"
    UNSUPPORTED_ARCH_TYPE = 144, "the architecture is none of the known ones"
    NO_DATA_TO_WRITE = 145, "the section lacks what it must hold"


def status_text(code: int) -> str:
    """The meaning of status ``code``. Raises `TbrwError` (INVALID_ERROR_CODE) for an unknown code."""
    try:
        return Status(code).text
    except ValueError:
        raise TbrwError(Status.INVALID_ERROR_CODE, f"{code} is no status code") from None


class TbrwError(LastbranchError):
    """A call was refused. ``status`` is the code that the guide's function returns, ``detail`` the reason."""

    def __init__(self, status: Status, detail: str, *, hint: str | None = None) -> None:
        super().__init__(f"{detail} ({status.name}, {status.value})", hint=hint)
        self.status, self.detail = status, detail
        if status is Status.INVALID_SAMPLE_FILE:
            self.exit_code = 3
