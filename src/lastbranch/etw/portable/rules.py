"""What a request to start or update a session must keep to, in the order in which it is checked.

Sources: the pages of StartTrace, EVENT_TRACE_PROPERTIES_V2 and WNODE_HEADER; where no document has the code it is
marked as our choice.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path

from ..flags import CIRCULAR_KERNEL_LOGGER, GLOBAL_LOGGER, KERNEL_LOGGER, KERNEL_LOGGER_NAME, ClientContext, LogFileMode
from ..modes import Also, broken_rule, normalised
from ..properties import MAX_NAME, SessionRequest, characters, check_name
from ..status import EtwError, Status

__all__ = ["check_start", "checked_file", "status_of", "updated"]

FIXED_SESSIONS = {
    KERNEL_LOGGER_NAME: KERNEL_LOGGER,
    "Circular Kernel Context Logger": CIRCULAR_KERNEL_LOGGER,
    "GlobalLogger": GLOBAL_LOGGER,
}
"""Sessions whose name and GUID go together."""

FILTER_PID, FILTER_EXECUTABLE_NAME = 0x80000004, 0x80000008
"""EVENT_FILTER_TYPE_PID, EVENT_FILTER_TYPE_EXECUTABLE_NAME: the filters of a private session."""

_MEMORY_ONLY = LogFileMode.REAL_TIME_MODE | LogFileMode.BUFFERING_MODE

_STATUS_OF_ERRNO = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR), Status.BAD_PATHNAME),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), Status.ACCESS_DENIED),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), Status.DISK_FULL),
    errno.ENOMEM: Status.NOT_ENOUGH_MEMORY,
}


def status_of(error: OSError) -> Status:
    """The code for what the system refused; 1450 for what no other code tells."""
    return _STATUS_OF_ERRNO.get(error.errno or 0, Status.NO_SYSTEM_RESOURCES)


def check_start(request: SessionRequest) -> SessionRequest:
    """``request`` with its file as an absolute path and the GUID of a fixed session; `EtwError` if it breaks a rule."""
    call = "StartTrace"
    check_name(call, request.name)
    request = _fixed(call, request)
    if request.clock not in (ClientContext.DEFAULT, ClientContext.QPC, ClientContext.SYSTEM_TIME):
        raise EtwError(call, Status.INVALID_PARAMETER, f"ClientContext {request.clock} is no clock of this system")
    if request.enable_flags and not request.system:
        raise EtwError(call, Status.INVALID_PARAMETER, "EnableFlags are for system loggers")  # our choice
    _check_filters(call, request)
    _check_mode(call, request)
    if not request.file and not request.mode & _MEMORY_ONLY:
        raise EtwError(call, Status.BAD_PATHNAME, "there is neither a log file nor a mode without one")
    return replace(request, file=checked_file(call, request.file, request.mode)) if request.file else request


def _fixed(call: str, request: SessionRequest) -> SessionRequest:
    for name, guid in FIXED_SESSIONS.items():
        same = request.name.casefold() == name.casefold()
        if (request.guid == guid and not same) or (same and request.guid.int and request.guid != guid):
            raise EtwError(call, Status.INVALID_PARAMETER, f'"{name}" and {guid} go together')
        if same:
            return replace(request, guid=guid)
    return request


def _check_filters(call: str, request: SessionRequest) -> None:
    kinds = [one.kind for one in request.filters]
    if kinds and not request.mode & LogFileMode.PRIVATE_LOGGER_MODE:
        raise EtwError(call, Status.INVALID_PARAMETER, "FilterDesc is for private sessions")
    if len(set(kinds)) < len(kinds) or not {FILTER_PID, FILTER_EXECUTABLE_NAME}.issuperset(kinds):
        raise EtwError(call, Status.INVALID_PARAMETER, "one filter by process id and one by executable name")


def _check_mode(call: str, request: SessionRequest) -> None:
    also = Also.NONE
    for has, what in ((request.file, Also.FILE), (request.maximum_file_size, Also.SIZE), (request.system, Also.SYSTEM)):
        also |= what if has else Also.NONE
    broken = broken_rule(normalised(request.mode, bool(request.file)), also)
    if broken is not None:
        raise EtwError(call, broken.code, broken.why)


def checked_file(call: str, file: str, mode: int) -> str:
    """The absolute path of a log file.

    Raises `EtwError` 123 for a NEWFILE name without exactly one ``%d``; 161 for a name of more than 1,024 characters, a
    folder that does not exist, and a path that is a link or anything but a file. Variables are not expanded.
    """
    if mode & LogFileMode.FILE_MODE_NEWFILE and file.count("%d") != 1:
        raise EtwError(call, Status.INVALID_NAME, f"{file}: a row of files needs one %d in its name")
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
        raise EtwError(call, Status.BAD_PATHNAME, f"{file} is a link: name the file itself")
    if file.endswith("/") or not stat.S_ISDIR(folder) or not stat.S_ISREG(found):
        raise EtwError(call, Status.BAD_PATHNAME, f"{file} is not a file in a folder that exists")
    return str(path)


def _mode_of(path: Path) -> int:
    """Of the file itself where it is a link; that of a file where there is nothing yet."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return stat.S_IFREG


def updated(now: SessionRequest, asked: SessionRequest, call: str = "ControlTrace") -> SessionRequest:
    """A running session's request after an update: what the page of UpdateTrace lets change, and no more.

    FlushTimer and MaximumBuffers where they are not 0 (no fewer than the minimum); EnableFlags of system loggers; a log
    file with another name, which the session goes on with; REAL_TIME_MODE, on if it is given and else off. The other
    members are ignored. Raises `EtwError` 161 for a file that is the one it has, 87 for modes that do not go together.
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
            raise EtwError(call, Status.BAD_PATHNAME, "the session has no log file that another could follow")
        if asked.file == now.file:
            # our choice: the page says only "returns an error"
            raise EtwError(call, Status.BAD_PATHNAME, f"{asked.file} is the log file that the session has")
        made = replace(made, file=asked.file)
    if not made.file and not made.mode & _MEMORY_ONLY:
        raise EtwError(call, Status.BAD_PATHNAME, "the session would have neither a log file nor real time")
    _check_mode(call, made)
    return made
