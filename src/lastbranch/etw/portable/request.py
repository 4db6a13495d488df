"""Requests to start or update a session: the rules, in the order of the checks, and the adjustments.

Sources: the pages of StartTrace, EVENT_TRACE_PROPERTIES_V2 and WNODE_HEADER; where no document has the code it is
marked as our choice.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from enum import Flag, auto
from pathlib import Path

from ..flags import (
    CIRCULAR_KERNEL_LOGGER,
    GLOBAL_LOGGER,
    KERNEL_LOGGER,
    KERNEL_LOGGER_NAME,
    ClientContext,
    FilterType,
    LogFileMode,
    V2Option,
)
from ..flags import LogFileMode as M
from ..properties import MAX_NAME, SessionRequest, characters, check_name
from ..status import EtwError, Status

__all__ = [
    "BUFFER_KB",
    "Host",
    "RULES",
    "RequestTrait",
    "adjusted",
    "broken_rule",
    "check_start",
    "checked_file",
    "flush_seconds",
    "normalised",
    "real_flush_timer",
    "updated",
]


# -- logging modes: each rule of the documents is one row
#
# A rule applies to a request that has all bits of ``when``. The request then must have ``needs`` and must not have
# ``forbids``. Rules are checked in the order of the table; the first broken one determines the code.


class RequestTrait(Flag):
    """The parts of a request besides its mode bits."""

    NONE = 0
    FILE = auto()
    """A log file name."""
    SIZE = auto()
    """A MaximumFileSize that is not 0."""
    SYSTEM = auto()
    """It is a system logger: by mode, name or GUID."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``when`` requires ``needs`` and excludes all bits of ``forbids``, else ``code``; ``why`` is the message."""

    when: M
    needs: RequestTrait = RequestTrait.NONE
    forbids: M = M.FILE_MODE_NONE
    not_for: RequestTrait = RequestTrait.NONE
    needs_mode: M = M.FILE_MODE_NONE
    code: Status = Status.INVALID_PARAMETER
    why: str = ""


_FILE_MODES = M.FILE_MODE_SEQUENTIAL | M.FILE_MODE_CIRCULAR | M.FILE_MODE_APPEND | M.FILE_MODE_NEWFILE

RULES: tuple[Rule, ...] = (
    Rule(M.NONSTOPPABLE_MODE, forbids=M.NONSTOPPABLE_MODE, why="only a session of the boot can be unstoppable"),
    Rule(M.USE_GLOBAL_SEQUENCE, forbids=M.USE_LOCAL_SEQUENCE, why="sequence numbers are global or local"),
    Rule(M.STOP_ON_HYBRID_SHUTDOWN, forbids=M.PERSIST_ON_HYBRID_SHUTDOWN, why="it either stops or persists"),
    Rule(M.FILE_MODE_SEQUENTIAL, forbids=M.FILE_MODE_CIRCULAR, why="a file is sequential or circular"),
    Rule(
        M.FILE_MODE_CIRCULAR, needs=RequestTrait.SIZE, forbids=M.FILE_MODE_APPEND | M.FILE_MODE_NEWFILE | M.RELOG_MODE,
        why="a circular file needs MaximumFileSize, and cannot be appended to or be one of a series",
    ),
    Rule(
        M.FILE_MODE_APPEND, forbids=M.FILE_MODE_CIRCULAR | M.REAL_TIME_MODE | M.RELOG_MODE,
        why="only a single file can be appended to",
    ),
    Rule(
        M.FILE_MODE_NEWFILE, needs=RequestTrait.FILE | RequestTrait.SIZE, not_for=RequestTrait.SYSTEM,
        forbids=M.FILE_MODE_PREALLOCATE | M.RELOG_MODE, why="a series of files needs a pattern and MaximumFileSize",
    ),
    Rule(
        M.FILE_MODE_PREALLOCATE, needs=RequestTrait.FILE | RequestTrait.SIZE,
        why="only a file of known size can be preallocated",
    ),
    Rule(
        M.REAL_TIME_MODE, forbids=M.PRIVATE_LOGGER_MODE | M.ADD_HEADER_MODE,
        why="private sessions cannot be read in real time",
    ),
    Rule(M.BUFFERING_MODE, forbids=_FILE_MODES | M.REAL_TIME_MODE, why="buffering keeps events in memory only"),
    Rule(
        M.USE_KBYTES_FOR_SIZE, needs=RequestTrait.FILE | RequestTrait.SIZE,
        why="kilobytes are a unit of MaximumFileSize",
    ),
    Rule(M.RELOG_MODE, needs_mode=M.PRIVATE_LOGGER_MODE, why="relogging is for private sessions"),
    Rule(M.PRIVATE_IN_PROC, needs_mode=M.PRIVATE_LOGGER_MODE, why="in-process sessions are private"),
    Rule(M.INDEPENDENT_SESSION_MODE, forbids=M.PRIVATE_LOGGER_MODE, why="a private session cannot be independent"),
    Rule(M.USE_PAGED_MEMORY, not_for=RequestTrait.SYSTEM, why="the kernel cannot write to paged memory"),
)  # fmt: skip
"""Sources: the page of EVENT_TRACE_PROPERTIES_V2 (MaximumFileSize, LogFileNameOffset) and the Logging Mode Constants in
`docs/reference/etw.md`, row by row."""


def normalised(mode: int, has_file: bool) -> M:
    """``mode`` as the session will have it: 0 with a file name is sequential, SEQUENTIAL|NEWFILE is NEWFILE."""
    made = M(mode)
    in_memory = M.REAL_TIME_MODE | M.BUFFERING_MODE
    if made & M.FILE_MODE_NEWFILE:
        return made & ~M.FILE_MODE_SEQUENTIAL
    if has_file and not made & (_FILE_MODES | M.BUFFERING_MODE) and not made & in_memory & ~M.REAL_TIME_MODE:
        return made | M.FILE_MODE_SEQUENTIAL
    return made


def broken_rule(mode: M, traits: RequestTrait) -> Rule | None:
    """The first rule that a request with ``mode`` breaks; ``None`` if it breaks none."""
    for rule in RULES:
        if mode & rule.when != rule.when:
            continue
        kept = (
            traits & rule.needs == rule.needs
            and mode & rule.needs_mode == rule.needs_mode
            and not mode & rule.forbids
            and not traits & rule.not_for
        )
        if not kept:
            return rule
    return None


FIXED_SESSIONS = {
    KERNEL_LOGGER_NAME: KERNEL_LOGGER,
    "Circular Kernel Context Logger": CIRCULAR_KERNEL_LOGGER,
    "GlobalLogger": GLOBAL_LOGGER,
}
"""Sessions with a fixed name and GUID."""

V2_OPTIONS = V2Option.WOW | V2Option.QPC_DELTA_TRACKING | V2Option.LARGE_MDL_PAGES | V2Option.EXCLUDE_KERNEL_STACK
_PRIVATE_FILTERS = {FilterType.PID, FilterType.EXECUTABLE_NAME}
"""The filters that a private session may have."""
_MEMORY_ONLY = LogFileMode.REAL_TIME_MODE | LogFileMode.BUFFERING_MODE


def check_start(request: SessionRequest) -> SessionRequest:
    """``request`` with an absolute file path and the GUID of a fixed session. Raises `EtwError` if it breaks a rule."""
    call = "StartTrace"
    check_name(call, request.name)
    request = _check_fixed_names(call, request)
    if request.clock not in (ClientContext.DEFAULT, ClientContext.QPC, ClientContext.SYSTEM_TIME):
        raise EtwError(call, Status.INVALID_PARAMETER, f"ClientContext {request.clock} is not a clock of this system")
    if request.enable_flags and not request.system:
        raise EtwError(call, Status.INVALID_PARAMETER, "EnableFlags are for system loggers")  # our choice
    _check_options(call, request)
    _check_filters(call, request)
    _check_mode(call, request)
    if not request.file and not request.mode & _MEMORY_ONLY:
        raise EtwError(call, Status.BAD_PATHNAME, "no log file is given, and the mode needs one")
    return replace(request, file=checked_file(call, request.file, request.mode)) if request.file else request


def _check_fixed_names(call: str, request: SessionRequest) -> SessionRequest:
    for name, guid in FIXED_SESSIONS.items():
        same = request.name.casefold() == name.casefold()
        if (request.guid == guid and not same) or (same and request.guid.int and request.guid != guid):
            raise EtwError(call, Status.INVALID_PARAMETER, f'"{name}" and {guid} go together')
        if same:
            return replace(request, guid=guid)
    return request


def _check_options(call: str, request: SessionRequest) -> None:
    """The page calls WOW and QPC_DELTA_TRACKING unused; they are kept. Both codes are our choice."""
    if int(request.options) & ~int(V2_OPTIONS):
        raise EtwError(call, Status.INVALID_PARAMETER, f"V2Options {int(request.options):#x}: bits above 0x8")
    if request.options & V2Option.LARGE_MDL_PAGES:
        raise EtwError(call, Status.NOT_SUPPORTED, "LargeMdlPages: buffers have no memory descriptor lists here")


def _check_filters(call: str, request: SessionRequest) -> None:
    kinds = [one.kind for one in request.filters]
    if kinds and not request.mode & LogFileMode.PRIVATE_LOGGER_MODE:
        raise EtwError(call, Status.INVALID_PARAMETER, "FilterDesc is for private sessions")
    if len(set(kinds)) < len(kinds) or not _PRIVATE_FILTERS.issuperset(kinds):
        raise EtwError(call, Status.INVALID_PARAMETER, "one filter by process id and one by executable name")


def _check_mode(call: str, request: SessionRequest) -> None:
    traits = RequestTrait.NONE
    for has, what in (
        (request.file, RequestTrait.FILE),
        (request.maximum_file_size, RequestTrait.SIZE),
        (request.system, RequestTrait.SYSTEM),
    ):
        traits |= what if has else RequestTrait.NONE
    broken = broken_rule(normalised(request.mode, bool(request.file)), traits)
    if broken is not None:
        raise EtwError(call, broken.code, broken.why)


def checked_file(call: str, file: str, mode: int) -> str:
    """The absolute path of a log file.

    Raises `EtwError` 123 for a NEWFILE name without exactly one ``%d``; 161 for a name of more than 1,024 characters, a
    folder that does not exist, and a path that is a link or anything but a file. Variables are not expanded.
    """
    if mode & LogFileMode.FILE_MODE_NEWFILE and file.count("%d") != 1:
        raise EtwError(call, Status.INVALID_NAME, f"{file}: a series of files needs one %d in its name")
    if characters(file) > MAX_NAME:
        raise EtwError(call, Status.BAD_PATHNAME, f"a log file's name has at most {MAX_NAME} characters")  # our choice
    path = Path(os.path.abspath(file))
    try:
        folder = os.stat(path.parent).st_mode
        found = _mode_of(path)
    except OSError as error:
        raise EtwError(call, Status.BAD_PATHNAME, f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise EtwError(call, Status.BAD_PATHNAME, f"{file!r}: {error}") from error
    if stat.S_ISLNK(found):
        raise EtwError(call, Status.BAD_PATHNAME, f"{file} is a link: give the file itself")
    if file.endswith("/") or not stat.S_ISDIR(folder) or not stat.S_ISREG(found):
        raise EtwError(call, Status.BAD_PATHNAME, f"{file} is not a file name in an existing folder")
    return str(path)


def _mode_of(path: Path) -> int:
    """The mode of the path itself, also of a link; the mode of a regular file if nothing exists there."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return stat.S_IFREG


def updated(now: SessionRequest, asked: SessionRequest, call: str = "ControlTrace") -> SessionRequest:
    """A running session's request after an update: only what the page of UpdateTrace allows changes.

    FlushTimer and MaximumBuffers (at least the minimum) unless they are 0; EnableFlags of system loggers; a log file
    with another name, with which the session continues; REAL_TIME_MODE, on or off. Other members are ignored. Raises
    `EtwError` 161 for the file that the session has, 87 for modes that exclude each other.
    """
    most = max(asked.maximum_buffers, now.minimum_buffers) if asked.maximum_buffers else now.maximum_buffers
    made = replace(
        now,
        flush_timer=asked.flush_timer or now.flush_timer,
        maximum_buffers=most,
        enable_flags=asked.enable_flags if now.system else now.enable_flags,
        mode=(now.mode & ~LogFileMode.REAL_TIME_MODE) | (asked.mode & LogFileMode.REAL_TIME_MODE),
    )
    if asked.file:
        if not now.file:
            raise EtwError(call, Status.BAD_PATHNAME, "the session has no log file to switch from")
        if asked.file == now.file:
            # our choice: the page says only "returns an error"
            raise EtwError(call, Status.BAD_PATHNAME, f"{asked.file} is already the log file of the session")
        made = replace(made, file=asked.file)
    if not made.file and not made.mode & _MEMORY_ONLY:
        raise EtwError(call, Status.BAD_PATHNAME, "the session would have neither a log file nor real time")
    _check_mode(call, made)
    return made


# -- adjustments that the documents let the system make, as pure functions
#
# Source: the page of EVENT_TRACE_PROPERTIES_V2, at the member that is adjusted. If the page says only "a limit that ETW
# determines", the limit is our choice and has a name here.


BUFFER_KB = (4, 16384)
"""Smallest and largest BufferSize, KB."""
DEFAULT_BUFFER_KB = 64
"""For a BufferSize of 0: the largest that the page recommends. Our choice."""
SPARE_BUFFERS = 20
"""For a MaximumBuffers of 0: this many more than the minimum. The page says "appropriate". Our choice."""
MEMORY_SHARE = 4
"""A pool uses at most this part (1/n) of the machine's memory. Our choice."""
MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class Host:
    """The inputs of adjustments: logical processors, bytes of memory, bytes of a block of the log file's disk."""

    processors: int
    memory: int
    block: int = 4096


def adjusted(request: SessionRequest, host: Host) -> SessionRequest:
    """``request`` with the sizes, counts, timer, mode and clock that its session gets."""
    mode = normalised(request.mode, bool(request.file))
    size = _buffer_size(request, host)
    most = max(2, host.memory // MEMORY_SHARE // (size * 1024))
    one_stream = mode & LogFileMode.NO_PER_PROCESSOR_BUFFERING
    least = min(2 if one_stream else 2 * host.processors, most)
    minimum = min(max(request.minimum_buffers, least), most)
    maximum = min(max(request.maximum_buffers or minimum + SPARE_BUFFERS, minimum), most)
    return replace(
        request,
        mode=mode,
        clock=request.clock or ClientContext.QPC,
        buffer_size=size,
        minimum_buffers=minimum,
        maximum_buffers=minimum if mode & LogFileMode.BUFFERING_MODE else maximum,
        flush_timer=real_flush_timer(request.flush_timer, mode),
    )


def _buffer_size(request: SessionRequest, host: Host) -> int:
    """KB; a multiple of the disk's blocks if events go to a file."""
    smallest, largest = BUFFER_KB
    size = min(max(request.buffer_size or DEFAULT_BUFFER_KB, smallest), largest)
    block = -(-host.block // 1024) if request.file else 1
    return min(-(-size // block) * block, largest // block * block or largest)


def real_flush_timer(timer: int, mode: LogFileMode) -> int:
    """In the unit of the mode. 0 means off for files and one second in real time; buffering mode does not use it."""
    if mode & LogFileMode.REAL_TIME_MODE and not timer:
        return MILLISECONDS if mode & LogFileMode.USE_MS_FLUSH_TIMER else 1
    return timer


def flush_seconds(request: SessionRequest) -> float | None:
    """Seconds between timed flushes of an adjusted request; ``None`` without them."""
    if request.mode & LogFileMode.BUFFERING_MODE or not request.flush_timer:
        return None
    return request.flush_timer / (MILLISECONDS if request.mode & LogFileMode.USE_MS_FLUSH_TIMER else 1)
