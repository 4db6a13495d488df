"""Processes that are recorded together: what belongs to a group is asked again and again while it is recorded.

Kernel threads and processes that have ended but are still in /proc (zombies) are never among them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from .procfs import read

__all__ = ["EveryProcess", "NamedProcesses", "NamespaceProcesses", "ProcessGroup", "Without", "is_program", "processes"]


_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of include/linux/sched.h: bit of the flags in /proc/PID/stat."""
_ENDED = "ZXx"


class ProcessGroup(ABC):
    """Running processes that are recorded together, and all processes that join the group."""

    shown: str
    """The group's name in messages."""
    ends = True
    """Whether the recording ends when no process is left."""

    @abstractmethod
    def members(self) -> set[int]:
        """The present process ids of the group, as the reader of /proc sees them."""


class NamedProcesses(ProcessGroup):
    """The processes with these ids."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = frozenset(pids)
        self.shown = f"processes {', '.join(map(str, sorted(self._pids)))}"

    def members(self) -> set[int]:
        return {pid for pid in self._pids if is_program(pid)}


class NamespaceProcesses(ProcessGroup):
    """All processes in the process id namespace of ``pid``, or where that is ours, in its mount namespace."""

    def __init__(self, pid: int, shown: str, root: str = "/") -> None:
        self.shown, self._root = shown, root
        kind = next(
            (kind for kind in ("pid", "mnt") if _namespace(pid, kind, root) != _namespace("self", kind, root)), ""
        )
        self._kind, self._number = kind, _namespace(pid, kind, root) if kind else ""

    @property
    def apart(self) -> bool:
        """Whether there is a namespace that is not ours."""
        return bool(self._number)

    def members(self) -> set[int]:
        return {
            pid
            for pid in processes(self._root)
            if self.apart and _namespace(pid, self._kind, self._root) == self._number and is_program(pid, self._root)
        }


class EveryProcess(ProcessGroup):
    """All processes of this user; of root, all processes."""

    ends = False

    def __init__(self) -> None:
        self._user = os.geteuid()
        self.shown = "all processes" if self._user == 0 else "all processes of this user"
        self._known: set[int] = set()

    def members(self) -> set[int]:
        there = set(processes())
        self._known &= there
        self._known |= {pid for pid in there - self._known if self._is_ours(pid) and is_program(pid)}
        return set(self._known)

    def _is_ours(self, pid: int) -> bool:
        try:
            return self._user in (0, os.stat(f"/proc/{pid}").st_uid)
        except OSError:
            return False


class Without(ProcessGroup):
    """The processes of ``group``, but never those with the ids ``left_out``."""

    def __init__(self, group: ProcessGroup, left_out: Iterable[int]) -> None:
        self._group, self._left_out = group, frozenset(left_out)
        self.shown, self.ends = group.shown, group.ends

    def members(self) -> set[int]:
        return self._group.members() - self._left_out


def processes(root: str = "/") -> Iterator[int]:
    """All process ids."""
    try:
        names = os.listdir(os.path.join(root, "proc"))
    except OSError:
        return
    yield from (int(name) for name in names if name.isdecimal())


def is_program(pid: int, root: str = "/") -> bool:
    """Whether ``pid`` is a process with user code that has not ended."""
    text = read(os.path.join(root, f"proc/{pid}/stat"), "replace")
    if not text:
        return False
    fields = text.rpartition(")")[2].split()  # state, parent, group, session, terminal, its group, flags (proc(5))
    return fields[0] not in _ENDED and not int(fields[6]) & _KERNEL_THREAD


def _namespace(pid: int | str, kind: str, root: str) -> str:
    """The identity of a namespace; empty where it may not be read."""
    try:
        return os.readlink(os.path.join(root, f"proc/{pid}/ns/{kind}"))
    except OSError:
        return ""
