"""Opens a session's log file: never through a link, with mode 0600, for one session, on a disk with room for it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from ....closing import on_failure
from ...flags import LogFileMode
from ...properties import SessionRequest
from ...status import EtwError, Status, status_of

__all__ = ["Disk", "check_room", "file_limit", "open_log"]


RESERVE = 200 << 20
"""Bytes that stay free on the system's drive for any size of the file (page of EVENT_TRACE_PROPERTIES)."""
_NO_PLAIN_FILE = (errno.ELOOP, errno.EISDIR)


class Disk(NamedTuple):
    """The facts about disks that sessions need. Tests pass their own."""

    free: Callable[[str], int] = lambda folder: os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    """Bytes free on the file system of a directory."""
    system: Callable[[str], bool] = lambda folder: os.stat(folder).st_dev == os.stat("/").st_dev
    """Whether a directory is on the drive of the operating system."""


def file_limit(request: SessionRequest) -> int:
    """MaximumFileSize in bytes; 0 means no limit."""
    return request.maximum_file_size << (10 if request.mode & LogFileMode.USE_KBYTES_FOR_SIZE else 20)


def check_room(path: str, limit: int, disk: Disk, call: str = "StartTrace") -> None:
    """Raise `EtwError` 112 if a file of ``limit`` bytes would leave less than `RESERVE` on the system's drive.

    Raises 161 if the directory does not exist: sessions create none.
    """
    folder = os.path.dirname(os.path.abspath(path))
    try:
        short = disk.system(folder) and disk.free(folder) < RESERVE + limit
    except OSError as error:
        raise as_status(call, path, error) from error
    if short:
        raise EtwError(
            call,
            Status.DISK_FULL,
            f"{path}: it is on the system drive, which must keep {RESERVE >> 20} MB free",
            hint="free some space, or log to another drive",
        )


def as_status(call: str, path: str, error: OSError) -> EtwError:
    """The API's error for a log file that cannot be opened."""
    denied = Status.ACCESS_DENIED
    code = denied if error.errno in _NO_PLAIN_FILE else status_of(error, denied)
    return EtwError(call, code, f"{path}: {os.strerror(error.errno or 0)}")


def open_log(path: str, *, append: bool, call: str = "StartTrace") -> int:
    """A descriptor of the log file, empty unless ``append``, locked by this session until it is closed.

    Raises `EtwError` 5 for a link, for what is no regular file, and without permission, 161 for a missing directory,
    183 for a file that another session writes.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise as_status(call, path, error) from error
    try:
        with on_failure(os.close, fd):
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise EtwError(call, Status.ACCESS_DENIED, f"{path} is not a regular file")
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EtwError(call, Status.ALREADY_EXISTS, f"{path} is the file of another session") from None
            os.fchmod(fd, 0o600)
            if not append:
                os.ftruncate(fd, 0)
    except OSError as error:
        raise as_status(call, path, error) from error
    return fd
