"""Which logging modes go together: each rule of the documents as one row.

A rule holds for a request when its ``when`` bits are set (all of them); then ``needs`` must be there and ``forbids``
must not. Rules are checked in the order of the table, and the first that is broken gives the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto

from .flags import LogFileMode as M
from .status import Status

__all__ = ["RULES", "Also", "Rule", "broken_rule", "normalised"]


class Also(Flag):
    """What a request has beside its mode bits."""

    NONE = 0
    FILE = auto()
    """A log file name."""
    SIZE = auto()
    """A MaximumFileSize that is not 0."""
    SYSTEM = auto()
    """It is a system logger: by mode, name or GUID."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``when`` asks for ``needs`` and rules out any bit of ``forbids``, else ``code``; ``why`` is for people."""

    when: M
    needs: Also = Also.NONE
    forbids: M = M.FILE_MODE_NONE
    not_for: Also = Also.NONE
    needs_mode: M = M.FILE_MODE_NONE
    code: Status = Status.INVALID_PARAMETER
    why: str = ""


_FILE_MODES = M.FILE_MODE_SEQUENTIAL | M.FILE_MODE_CIRCULAR | M.FILE_MODE_APPEND | M.FILE_MODE_NEWFILE

RULES: tuple[Rule, ...] = (
    Rule(M.NONSTOPPABLE_MODE, forbids=M.NONSTOPPABLE_MODE, why="only a session of the boot can be unstoppable"),
    Rule(M.USE_GLOBAL_SEQUENCE, forbids=M.USE_LOCAL_SEQUENCE, why="sequence numbers are global or local"),
    Rule(M.STOP_ON_HYBRID_SHUTDOWN, forbids=M.PERSIST_ON_HYBRID_SHUTDOWN, why="it stops or persists"),
    Rule(M.FILE_MODE_SEQUENTIAL, forbids=M.FILE_MODE_CIRCULAR, why="a file is sequential or circular"),
    Rule(
        M.FILE_MODE_CIRCULAR, needs=Also.SIZE, forbids=M.FILE_MODE_APPEND | M.FILE_MODE_NEWFILE | M.RELOG_MODE,
        why="a circular file needs MaximumFileSize, and is neither appended to nor one of a row",
    ),
    Rule(
        M.FILE_MODE_APPEND, forbids=M.FILE_MODE_CIRCULAR | M.REAL_TIME_MODE | M.RELOG_MODE,
        why="appending is for a file alone",
    ),
    Rule(
        M.FILE_MODE_NEWFILE, needs=Also.FILE | Also.SIZE, not_for=Also.SYSTEM,
        forbids=M.FILE_MODE_PREALLOCATE | M.RELOG_MODE, why="a row of files needs a pattern and MaximumFileSize",
    ),
    Rule(M.FILE_MODE_PREALLOCATE, needs=Also.FILE | Also.SIZE, why="only a file of known size is preallocated"),
    Rule(
        M.REAL_TIME_MODE, forbids=M.PRIVATE_LOGGER_MODE | M.ADD_HEADER_MODE,
        why="private sessions are not read in real time",
    ),
    Rule(M.BUFFERING_MODE, forbids=_FILE_MODES | M.REAL_TIME_MODE, why="buffering keeps events in memory only"),
    Rule(M.USE_KBYTES_FOR_SIZE, needs=Also.FILE | Also.SIZE, why="kilobytes are a unit of MaximumFileSize"),
    Rule(M.RELOG_MODE, needs_mode=M.PRIVATE_LOGGER_MODE, why="relogging is for private sessions"),
    Rule(M.PRIVATE_IN_PROC, needs_mode=M.PRIVATE_LOGGER_MODE, why="in-process sessions are private"),
    Rule(M.INDEPENDENT_SESSION_MODE, forbids=M.PRIVATE_LOGGER_MODE, why="a private session is not independent"),
    Rule(M.USE_PAGED_MEMORY, not_for=Also.SYSTEM, why="the kernel cannot write to paged memory"),
)  # fmt: skip
"""Sources: the page of EVENT_TRACE_PROPERTIES_V2 (MaximumFileSize, LogFileNameOffset) and the Logging Mode Constants as
`docs/reference/etw.md` tells them, row by row."""


def normalised(mode: int, has_file: bool) -> M:
    """``mode`` as the session will have it: 0 with a file name is sequential, SEQUENTIAL|NEWFILE is NEWFILE."""
    made = M(mode)
    in_memory = M.REAL_TIME_MODE | M.BUFFERING_MODE
    if made & M.FILE_MODE_NEWFILE:
        return made & ~M.FILE_MODE_SEQUENTIAL
    if has_file and not made & (_FILE_MODES | M.BUFFERING_MODE) and not made & in_memory & ~M.REAL_TIME_MODE:
        return made | M.FILE_MODE_SEQUENTIAL
    return made


def broken_rule(mode: M, also: Also) -> Rule | None:
    """The first rule that a request with ``mode`` breaks; ``None`` if it keeps them all."""
    for rule in RULES:
        if mode & rule.when != rule.when:
            continue
        kept = (
            also & rule.needs == rule.needs
            and mode & rule.needs_mode == rule.needs_mode
            and not mode & rule.forbids
            and not also & rule.not_for
        )
        if not kept:
            return rule
    return None
