"""Every logging mode: its requirements, its effect in the portable kernel, and the error code of refused modes.

``docs/reference/etw.md`` shows the rows; test_etw_modes.py starts a session with each.
"""

from __future__ import annotations

from typing import NamedTuple

from lastbranch.etw.flags import LogFileMode as M

__all__ = ["MODES", "Mode"]


class Mode(NamedTuple):
    """One bit and its companions: other bits, MaximumFileSize, a file (with ``%`` if need be), and the error code."""

    mode: M
    does: str
    beside: M = M.FILE_MODE_NONE
    size: int = 0
    file: str = "x.etl"
    code: int = 0
    lost: bool = False
    """Events are not in a file that can be read when the session has ended."""


_ALONE = "kept and reported, without effect here"
_MESSAGES = (
    "only events of TraceMessage have sequence numbers, and that function does not exist here; "
    "events of EventWrite and TraceEvent have none on Windows either"
)

MODES: tuple[Mode, ...] = (
    Mode(M.FILE_MODE_NONE, "with a file name: sequential; without: 161"),
    Mode(M.FILE_MODE_SEQUENTIAL, "one file, up to MaximumFileSize"),
    Mode(M.FILE_MODE_CIRCULAR, "one file of MaximumFileSize whose oldest buffers are written over", size=1),
    Mode(M.FILE_MODE_APPEND, "goes on with a file that is there"),
    Mode(M.FILE_MODE_NEWFILE, "a series of files, each of MaximumFileSize; %d in the name is their "
        "number", size=1, file="x%d.etl"),
    Mode(M.USE_MS_FLUSH_TIMER, "FlushTimer is in ms", M.FILE_MODE_SEQUENTIAL),
    Mode(M.FILE_MODE_PREALLOCATE, "the file has MaximumFileSize from the beginning", M.FILE_MODE_SEQUENTIAL, size=1),
    Mode(M.NONSTOPPABLE_MODE, "refused: only a session of the boot can have it", M.FILE_MODE_SEQUENTIAL, code=87),
    Mode(M.SECURE_MODE, "log files are private in every mode", M.FILE_MODE_SEQUENTIAL),
    Mode(M.REAL_TIME_MODE, "consumers read it; what none has read is kept within a limit", file="", lost=True),
    Mode(M.DELAY_OPEN_FILE_MODE, "the file is made with the first event", M.FILE_MODE_SEQUENTIAL),
    Mode(M.BUFFERING_MODE, "in memory; a flush writes a file", file="", lost=True),
    Mode(M.PRIVATE_LOGGER_MODE, "the file's name gets the process id; FilterDesc says which processes",
         M.FILE_MODE_SEQUENTIAL),
    Mode(M.ADD_HEADER_MODE, _ALONE, M.FILE_MODE_SEQUENTIAL),
    Mode(M.USE_KBYTES_FOR_SIZE, "MaximumFileSize is in KB", M.FILE_MODE_SEQUENTIAL, size=1024),
    Mode(M.USE_GLOBAL_SEQUENCE, f"{_ALONE} ({_MESSAGES})", M.FILE_MODE_SEQUENTIAL),
    Mode(M.USE_LOCAL_SEQUENCE, f"{_ALONE} ({_MESSAGES})", M.FILE_MODE_SEQUENTIAL),
    Mode(M.RELOG_MODE, f"private sessions only; {_ALONE}", M.PRIVATE_LOGGER_MODE | M.FILE_MODE_SEQUENTIAL),
    Mode(M.PRIVATE_IN_PROC, f"private sessions only; {_ALONE}", M.PRIVATE_LOGGER_MODE | M.FILE_MODE_SEQUENTIAL),
    Mode(M.MODE_RESERVED, _ALONE, M.FILE_MODE_SEQUENTIAL),
    Mode(M.STOP_ON_HYBRID_SHUTDOWN, _ALONE, M.FILE_MODE_SEQUENTIAL),
    Mode(M.PERSIST_ON_HYBRID_SHUTDOWN, _ALONE, M.FILE_MODE_SEQUENTIAL),
    Mode(M.USE_PAGED_MEMORY, f"not for system loggers; {_ALONE}: all memory is paged", M.FILE_MODE_SEQUENTIAL),
    Mode(M.SYSTEM_LOGGER_MODE, "takes EnableFlags, masks, stacks, branch records", M.FILE_MODE_SEQUENTIAL),
    Mode(M.COMPRESSED_MODE, "buffers are compressed (XPRESS)", M.FILE_MODE_SEQUENTIAL),
    Mode(M.INDEPENDENT_SESSION_MODE, f"{_ALONE}: no session waits for another", M.FILE_MODE_SEQUENTIAL),
    Mode(M.NO_PER_PROCESSOR_BUFFERING, "one stream of buffers in the order of time", M.FILE_MODE_SEQUENTIAL),
    Mode(M.BLOCKING_MODE, "providers wait for a buffer instead of losing events", M.FILE_MODE_SEQUENTIAL),
    Mode(M.ADDTO_TRIAGE_DUMP, _ALONE, M.FILE_MODE_SEQUENTIAL),
)  # fmt: skip
