"""Control groups: their mounts, their processes, and the names by which users call them.

Sources: Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/cgroups.rst, cgroups(7), proc(5) for mountinfo,
systemd.unit(5) and systemd's docs/CGROUP_DELEGATION.md for the names of units. ``root`` is where /proc and all other
files are read, for tests.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ..errors import UnavailableError
from .process_groups import ProcessGroup, is_program
from .procfs import read

__all__ = [
    "CgroupProcesses",
    "Hierarchy",
    "cgroup_at",
    "cgroups_of",
    "folders_at",
    "hierarchies",
    "near",
    "unit_called",
]


_PROCESSES = "cgroup.procs"
_ESCAPED = re.compile(r"\\([0-7]{3})")
_NEAR = 5
_MOST_LISTED = 10


class Hierarchy(NamedTuple):
    """A mounted hierarchy of control groups."""

    controllers: frozenset[str]
    """The controllers of a hierarchy of version 1, as in /proc/PID/cgroup; empty: version 2."""
    folder: str
    """The mount point of the hierarchy."""
    base: str
    """The cgroup that is mounted there."""

    def folder_of(self, path: str) -> str:
        """The folder of the cgroup ``path``; empty if the cgroup is outside of all mounts."""
        path = os.path.normpath("/" + path.lstrip("/"))
        if self.base == "/":
            return os.path.normpath(self.folder + path)
        if path != self.base and not path.startswith(self.base + "/"):
            return ""
        return os.path.normpath(self.folder + path[len(self.base) :])

    def path_of(self, folder: str) -> str:
        """The cgroup of a folder below `folder`."""
        below = os.path.relpath(folder, self.folder)
        return os.path.normpath(os.path.join(self.base, below))


def hierarchies(root: str = "/") -> list[Hierarchy]:
    """The mounted hierarchies: version 2 first, then systemd's of version 1, then the others."""
    found: dict[frozenset[str], Hierarchy] = {}
    for line in (read(os.path.join(root, "proc/self/mountinfo")) or "").splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        options = kind[2].split(",") if kind[0] == "cgroup" and len(kind) > 2 else []
        controllers = frozenset(word for word in options if word not in ("rw", "ro", "none", "xattr", "noprefix"))
        folder = os.path.join(root, _unescape(fields[4]).lstrip("/"))
        found.setdefault(controllers, Hierarchy(controllers, folder, _unescape(fields[3])))
    return sorted(found.values(), key=lambda one: (bool(one.controllers), "name=systemd" not in one.controllers))


def _unescape(path: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), path)


def cgroups_of(pid: int, root: str = "/") -> dict[frozenset[str], str]:
    """The cgroups of a process, by the controllers of their hierarchies."""
    found = {}
    for line in (read(os.path.join(root, f"proc/{pid}/cgroup")) or "").splitlines():
        _, colon, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            found[frozenset(filter(None, controllers.split(",")))] = path
    return found


class CgroupProcesses(ProcessGroup):
    """The processes of a cgroup and of all cgroups below it. ``ends``: the recording ends when no process is left."""

    def __init__(self, folder: str, shown: str, root: str = "/", *, ends: bool = False) -> None:
        self.folder, self.shown, self._root, self.ends = folder, shown, root, ends

    def members(self) -> set[int]:
        found = {pid for folder, _, _ in os.walk(self.folder) for pid in _read_pids(folder)}
        return {pid for pid in found if is_program(pid, self._root)}


def _read_pids(folder: str) -> list[int]:
    """Process ids of one cgroup. Empty if the cgroup was removed, or is threaded: its processes are listed above it.
    The kernel lists processes of another process id namespace as 0; they are left out."""
    with suppress(OSError), open(os.path.join(folder, _PROCESSES), encoding="ascii") as lines:
        return [int(line) for line in lines if line.strip() != "0"]
    return []


def _check_listed(folder: str, name: str) -> None:
    try:
        with open(os.path.join(folder, _PROCESSES), "rb") as file:
            file.read(1)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise UnavailableError(
                f"cgroup {name} is threaded: its processes are those of a cgroup above it",
                hint=f"--cgroup {os.path.dirname(name.rstrip('/')) or '/'}",
            ) from error
        raise UnavailableError(f"the processes of cgroup {name} cannot be read: {error.strerror}") from error


# -- how users name cgroups


def cgroup_at(name: str, root: str = "/") -> CgroupProcesses:
    """The cgroup ``name``: its folder, or its path as in /proc/PID/cgroup, with or without the first slash.

    If several hierarchies of version 1 have such a path, the first hierarchy with processes there counts; a folder
    names a single hierarchy. Raises `UnavailableError` where there is none, or it has no processes.
    """
    mounted = _read_hierarchies(root)
    found = [folder for folder in _folders_named(name, mounted, root) if os.path.exists(f"{folder}/{_PROCESSES}")]
    if not found:
        names = (one.path_of(folder) for one in mounted for folder in _all_folders(one))
        raise UnavailableError(f"there is no cgroup {name}", hint=near("/" + name.lstrip("/"), names, "cgroups"))
    for folder in found:
        group = CgroupProcesses(folder, f"cgroup {_name_of(folder, mounted)}", root)
        if group.members():
            return group
    _check_listed(found[0], name)
    raise UnavailableError(
        f"cgroup {name} has no processes", hint="start the service first; `systemd-cgls` shows which cgroups have some"
    )


def _read_hierarchies(root: str) -> list[Hierarchy]:
    mounted = hierarchies(root)
    if not mounted:
        raise UnavailableError(
            "no control groups are mounted here", hint="-p PID[,PID...] records processes by their numbers"
        )
    return mounted


def _folders_named(name: str, mounted: Iterable[Hierarchy], root: str) -> Iterator[str]:
    if name.startswith("/"):
        folder = os.path.join(root, os.path.normpath(name).lstrip("/"))
        if any(folder == one.folder or folder.startswith(one.folder + "/") for one in mounted):
            yield folder
    for one in mounted:
        if folder := one.folder_of(name):
            yield folder


def _all_folders(hierarchy: Hierarchy) -> Iterator[str]:
    for folder, _, _ in os.walk(hierarchy.folder):
        yield folder


def _name_of(folder: str, mounted: Iterable[Hierarchy]) -> str:
    """The path of the cgroup in a folder; of version 1 with its controllers, as others may have the same path."""
    inside = [one for one in mounted if folder == one.folder or folder.startswith(one.folder + "/")]
    deepest = max(inside, key=lambda one: len(one.folder))
    of = f" ({','.join(sorted(deepest.controllers))})" if deepest.controllers else ""
    return deepest.path_of(folder) + of


def near(name: str, names: Iterable[str], what: str) -> str:
    """A sentence with the names that look like ``name``, or a few of all."""
    there = sorted(dict.fromkeys(names))
    if not there:
        return f"there are no {what} here"
    inside = [one for one in there if name.strip("/") and name.strip("/") in one]
    alike = (inside + [one for one in difflib.get_close_matches(name, there, _NEAR, 0.5) if one not in inside])[:_NEAR]
    if alike:
        return f"did you mean {' or '.join(alike)}?"
    more = f" and {len(there) - _MOST_LISTED} more" if len(there) > _MOST_LISTED else ""
    return f"the {what} here: {', '.join(there[:_MOST_LISTED])}{more}"


# -- systemd: the unit's name is that of its cgroup


_SERVICE = ".service"
_UNIT = re.compile(r".+\.(service|scope|slice|socket|mount|swap)")
"""Units that have cgroups (systemd.resource-control(5))."""
_USER = re.compile(r"/user@(\d+)\.service/")


def unit_called(name: str, root: str = "/") -> CgroupProcesses:
    """The cgroup of systemd's unit ``name`` (without an ending: ``name.service``): of the system's manager, else of
    this user's, else of the only user with such a unit.

    Raises `UnavailableError` where there is no such cgroup: the unit is unknown or not running.
    """
    if not _UNIT.fullmatch(name):
        name += _SERVICE
    units: dict[str, list[str]] = {}
    mounted = [one for one in _read_hierarchies(root) if not one.controllers or "name=systemd" in one.controllers]
    for one in mounted:
        for folder in _all_folders(one):
            units.setdefault(_unit_of(folder), []).append(one.path_of(folder))
    paths = list(dict.fromkeys(units.get(name, ())))
    if not paths:
        names = (unit for unit in units if _UNIT.fullmatch(unit))
        raise UnavailableError(f"no unit {name} is running", hint=near(name, names, "running units"))
    ours = f"/user@{os.geteuid()}.service/"
    chosen = [path for path in paths if not _USER.search(path)] or [path for path in paths if ours in path] or paths
    if len(chosen) > 1:
        raise UnavailableError(
            f"several units are called {name}: {', '.join(chosen)}", hint=f"--cgroup {chosen[0]} records that one"
        )
    for one in mounted:
        group = CgroupProcesses(one.folder_of(chosen[0]), f"unit {name} (cgroup {chosen[0]})", root)
        if group.members():
            return group
    raise UnavailableError(f"unit {name} has no processes", hint=f"`systemctl status {name}` says why")


def _unit_of(folder: str) -> str:
    """A name that could be a file of the kernel begins with another underscore."""
    return os.path.basename(folder).removeprefix("_")


def folders_at(paths: dict[frozenset[str], str], mounted: Sequence[Hierarchy]) -> list[str]:
    """The folders of the cgroups ``paths`` (as of `cgroups_of`), in the order of the hierarchies."""
    folders = (one.folder_of(paths[one.controllers]) for one in mounted if one.controllers in paths)
    return [folder for folder in folders if folder]
