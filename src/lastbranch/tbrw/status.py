"""Status codes, their texts, and the exception that carries one.

The numbers are those that the recording driver's open-source headers give to the same names (error list of sepdk,
`rise_errors.h`); the guide says only that the codes exist (7.7). The texts are ours.
"""

from __future__ import annotations

from enum import IntEnum

from ..errors import LastbranchError

__all__ = ["Status", "TbrwError", "status_text"]


class Status(IntEnum):
    """What a call returns. ``VT_SUCCESS`` is the guide's name of 0; all are exported as ``TBRW_`` + name."""

    SUCCESS = 0
    SAM_ERROR = 22
    INVALID_SAMPLE_FILE = 24
    UNKNOWN_SECTION_NUMBER = 25
    NO_MEMORY = 26
    BUFFER_OVERFLOW = 29
    SAMPLE_FILE_MAPPING_ERROR = 34
    BUFFER_NULL = 35
    UNEXPECTED_NULL_PTR = 36
    ENTRY_NOT_FOUND = 39
    FILE_OPEN_FAILED = 44
    NO_WRITE_PERMISSION = 54
    BAD_PARAMETER = 63
    UNEXPECTED_VALUE = 72
    NOT_IMPLEMENTED = 73
    SECTION_ALREADY_IN_USE = 77
    SECTION_NOT_EXIST = 78
    STREAM_NOT_EXIST = 79
    INVALID_STREAM = 80
    STREAM_ALREADY_IN_USE = 81
    DATA_DESC_NOT_EXIST = 82
    INVALID_ERROR_CODE = 83
    INCOMPATIBLE_VERSION = 84
    LEGACY_DATA_NOT_EXIST = 85
    INVALID_READ_START = 86
    INCOMPLETE_TB5_ENCOUNTERED = 95
    INVALID_STRING = 97
    UNSUPPORTED_DATA_SIZE = 98
    INIT_FAILED = 99
    BUFFER_TOO_SMALL = 103
    INVALID_ACCESS_PERMS = 111
    TB5_IS_NOT_BOUND = 113
    SECTION_NOT_READABLE = 124
    SECTION_NOT_WRITEABLE = 125
    GLOBAL_SECTION_NOT_CLOSED = 126
    STREAM_SECTION_NOT_CLOSED = 127
    STREAM_NOT_CLOSED = 128
    STREAM_NOT_BOUND = 129
    NOT_ALL_SECTIONS_CLOSED = 131
    UNEXPECTED_BIND_MISMATCH = 133
    BAD_MODULE = 136
    BIND_UNEXPECTED_1STMODREC = 141
    BIND_MODULES_NOT_SORTED = 142
    UNEXPECTED_NUM_CPUIDS = 143
    UNSUPPORTED_ARCH_TYPE = 144
    NO_DATA_TO_WRITE = 145


_TEXTS = {
    Status.SUCCESS: "success",
    Status.SAM_ERROR: "the file could not be read or written",
    Status.INVALID_SAMPLE_FILE: "not a TB5 file, or a damaged one",
    Status.UNKNOWN_SECTION_NUMBER: "there is no section of that number",
    Status.NO_MEMORY: "out of memory",
    Status.BUFFER_OVERFLOW: "the data is shorter than the size that was given",
    Status.SAMPLE_FILE_MAPPING_ERROR: "the file could not be mapped",
    Status.BUFFER_NULL: "no buffer was given",
    Status.UNEXPECTED_NULL_PTR: "a pointer leads to nothing, or to fewer entries than its count says",
    Status.ENTRY_NOT_FOUND: "there is no entry of that index",
    Status.FILE_OPEN_FAILED: "the file could not be opened",
    Status.NO_WRITE_PERMISSION: "the file was not opened for writing",
    Status.BAD_PARAMETER: "an argument is not what the call needs",
    Status.UNEXPECTED_VALUE: "a field has a value that is not allowed",
    Status.NOT_IMPLEMENTED: "not implemented",
    Status.SECTION_ALREADY_IN_USE: "the section is in use",
    Status.SECTION_NOT_EXIST: "the section does not exist",
    Status.STREAM_NOT_EXIST: "the stream does not exist",
    Status.INVALID_STREAM: "a stream of that number cannot be written, or cannot hold this data",
    Status.STREAM_ALREADY_IN_USE: "the stream is in use",
    Status.DATA_DESC_NOT_EXIST: "the stream has no data descriptor",
    Status.INVALID_ERROR_CODE: "there is no such status code",
    Status.INCOMPATIBLE_VERSION: "the size field of a structure is not that of this version",
    Status.LEGACY_DATA_NOT_EXIST: "the stream holds no legacy sample records",
    Status.INVALID_READ_START: "the start index lies behind the last entry",
    Status.INCOMPLETE_TB5_ENCOUNTERED: "the file is incomplete",
    Status.INVALID_STRING: "not a string of this file (0 is the NULL string)",
    Status.UNSUPPORTED_DATA_SIZE: "the size does not fit the data descriptor",
    Status.INIT_FAILED: "the library could not be set up",
    Status.BUFFER_TOO_SMALL: "the buffer is too small",
    Status.INVALID_ACCESS_PERMS: "the access mode does not allow this",
    Status.TB5_IS_NOT_BOUND: "no stream of the file is bound",
    Status.SECTION_NOT_READABLE: "the section is not open for reading",
    Status.SECTION_NOT_WRITEABLE: "the section is not open for writing, or exists already",
    Status.GLOBAL_SECTION_NOT_CLOSED: "a global section is still in use",
    Status.STREAM_SECTION_NOT_CLOSED: "a section of the stream is still in use",
    Status.STREAM_NOT_CLOSED: "a stream is still in use",
    Status.STREAM_NOT_BOUND: "the stream is not bound",
    Status.NOT_ALL_SECTIONS_CLOSED: "global sections and streams are still in use",
    Status.UNEXPECTED_BIND_MISMATCH: "the bind information does not fit the stream",
    Status.BAD_MODULE: "a module record contradicts itself",
    Status.BIND_UNEXPECTED_1STMODREC: "a process has two first modules",
    Status.BIND_MODULES_NOT_SORTED: "the module records are not in order",
    Status.UNEXPECTED_NUM_CPUIDS: "the number of cpuid entries does not fit the architecture",
    Status.UNSUPPORTED_ARCH_TYPE: "the architecture is none of the known ones",
    Status.NO_DATA_TO_WRITE: "the section has not been given what it must hold",
}


def status_text(code: int) -> str:
    """What status ``code`` means. Raises `TbrwError` (INVALID_ERROR_CODE) if it is none."""
    try:
        return _TEXTS[Status(code)]
    except ValueError:
        raise TbrwError(Status.INVALID_ERROR_CODE, f"{code} is no status code") from None


class TbrwError(LastbranchError):
    """A call was refused. ``status`` is the code that the call of the guide returns, ``detail`` says what was wrong."""

    def __init__(self, status: Status, detail: str, *, hint: str | None = None) -> None:
        super().__init__(f"{detail} ({status.name}, {status.value})", hint=hint)
        self.status, self.detail = status, detail
        if status is Status.INVALID_SAMPLE_FILE:
            self.exit_code = 3
