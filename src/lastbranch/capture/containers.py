"""The running containers, found by the names of their cgroups and by the state files of their runtimes.

Cgroups have ids, and no names that users give. Files of the runtimes have these names:

- runc: ``state.json`` of libcontainer (also under docker, containerd and podman); crun: ``status``
- podman, buildah, cri-o: ``containers.json`` of containers/storage, which can lie anywhere (``graphroot``, ``--root``),
  and the command lines of their monitors: ``conmon -c ID -n NAME -p PIDFILE``; docker: ``config.v2.json``
- containerd: ``config.json`` of the bundle, with the annotations of Kubernetes (CRI) and nerdctl
- systemd-nspawn: files of variables in /run/systemd/machines

``root`` is where /proc and all other files are read, for tests.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..errors import UnavailableError
from .cgroups import CgroupProcesses, cgroups_of, folders_at, hierarchies, near
from .process_groups import NamespaceProcesses, ProcessGroup, processes
from .procfs import read

__all__ = ["Container", "container_called", "containers"]


@dataclass(slots=True)
class Container:
    """One running container."""

    id: str
    names: list[str] = field(default_factory=list)
    """The names that users give."""
    folder: str = ""
    """The folder of the container's cgroup; empty if the container has no cgroup of its own."""
    pid: int = 0
    """Its first process, 0 where that is not known."""

    @property
    def shown(self) -> str:
        return f"{self.called} ({self._short})" if self.names else self._short

    @property
    def called(self) -> str:
        """The name that users know, else the id as runtimes shorten it."""
        return self.names[0] if self.names else self._short

    @property
    def _short(self) -> str:
        return self.id[:_SHORT] if _DIGEST.fullmatch(self.id) else self.id


_SHORT = 12
_DIGEST = re.compile("[0-9a-f]{64}")
_CGROUPS = tuple(
    map(
        re.compile,
        (
            # systemd's scopes: docker, podman, containerd and cri-o below Kubernetes, runc and crun alone
            r"(?:docker|libpod|cri-containerd|nerdctl|crio|runc|crun|youki)-(?!conmon-)(?P<id>.+)\.scope",
            r"(?:libpod|crio)-(?!conmon-)(?P<id>[0-9a-f]{64})",  # podman and cri-o without systemd
            r"(?P<id>[0-9a-f]{64})",  # docker, containerd and Kubernetes without systemd
            r"lxc\.payload\.(?P<id>.+)",
            r"machine-(?P<id>.+)\.scope",  # systemd-nspawn, and machines of libvirt
            r"systemd-nspawn@(?P<id>.+)\.service",
        ),
    )
)
"""How runtimes call the cgroup of a container."""
_HEX = re.compile(r"\\x([0-9a-f]{2})")


def containers(root: str = "/") -> list[Container]:
    """The running containers, as far as this user may see their files."""
    found: dict[str, Container] = {}
    mounted = hierarchies(root)
    seen: set[tuple[tuple[frozenset[str], str], ...]] = set()
    for pid in processes(root):
        paths = cgroups_of(pid, root)
        if (key := tuple(paths.items())) in seen:
            continue
        seen.add(key)
        for folder in folders_at(paths, mounted):
            name, at = _container_of(folder)
            if name and name not in found:
                found[name] = Container(name, folder=at)
    for pattern, parse in _FILES.items():
        for path in glob.glob(os.path.join(glob.escape(root), pattern)):
            for one in _read_containers(path, parse):
                _merge(found, one, root)
    return [one for one in found.values() if one.folder or one.pid]


def _container_of(folder: str) -> tuple[str, str]:
    """The id and the cgroup's folder of the innermost container whose cgroup is at ``folder``, or above."""
    at = folder
    while (name := os.path.basename(at)) != "":
        for pattern in _CGROUPS:
            if match := pattern.fullmatch(name):
                return _HEX.sub(lambda code: chr(int(code[1], 16)), match["id"]), at
        at = os.path.dirname(at)
    return "", ""


def _merge(found: dict[str, Container], one: Container, root: str) -> None:
    """Add a container from a runtime's file. A container that does not run has no cgroup and no process."""
    known = found.setdefault(one.id, one)
    known.names += [name for name in one.names if name not in known.names and name != one.id]
    known.pid = known.pid or one.pid
    if known.pid and not os.path.exists(os.path.join(root, f"proc/{known.pid}")):
        known.pid = 0
    if not known.folder and known.pid:
        known.folder = _own_cgroup(known, root)


def _own_cgroup(one: Container, root: str) -> str:
    """The folder of the cgroup of a container whose cgroup has any name: that of its first process, if that is not ours
    as well, nor the root of the hierarchy."""
    mounted = hierarchies(root)
    ours = set(folders_at(cgroups_of(os.getpid(), root) or {}, mounted))
    roots = {hierarchy.folder for hierarchy in mounted}
    folders = [f for f in folders_at(cgroups_of(one.pid, root), mounted) if f not in ours | roots]
    named = [at for folder in folders for at in _upwards(folder) if one.id in os.path.basename(at)]
    return next(iter(named or folders), "")


def _upwards(folder: str) -> Iterator[str]:
    while folder not in ("", "/"):
        yield folder
        folder = os.path.dirname(folder)


def container_called(name: str, root: str = "/") -> ProcessGroup:
    """The processes of the container with this name, id, or beginning of an id.

    Raises `UnavailableError` where there is none or several, or it has no processes.
    """
    there = containers(root)
    matching = [one for one in there if name in (one.id, *one.names)]
    matching = matching or [one for one in there if one.id.startswith(name)]
    if not matching:
        hint = near(name, (one.called for one in there), "containers")
        if os.geteuid():
            hint += "; root sees those of all users"
        raise UnavailableError(f"no container {name} is running", hint=hint)
    if len(matching) > 1:
        raise UnavailableError(
            f"{len(matching)} containers match {name}",
            hint=f"use one of the ids {', '.join(one.id for one in matching)}",
        )
    (one,) = matching
    shown = f"container {one.shown}"
    groups: list[ProcessGroup] = [CgroupProcesses(one.folder, shown, root, ends=True)] if one.folder else []
    if one.pid:
        groups.append(NamespaceProcesses(one.pid, shown, root))
    for group in groups:
        if group.members():
            return group
    raise UnavailableError(f"{shown} has no processes", hint="it is stopped, or in another process id namespace")


# -- the files of runtimes: parsers of their contents


def _read_containers(path: str, parse: Callable[[str, str], Iterator[Container]]) -> list[Container]:
    """The containers in a file; empty if the file cannot be read or is malformed."""
    try:
        return list(parse(path, read(path, "replace") or ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _libcontainer(path: str, text: str) -> Iterator[Container]:
    state = json.loads(text)
    yield Container(_text(state["id"]), pid=int(state["init_process_pid"]))


def _crun(path: str, text: str) -> Iterator[Container]:
    yield Container(os.path.basename(os.path.dirname(path)), pid=int(json.loads(text)["pid"]))


def _storage(path: str, text: str) -> Iterator[Container]:
    for one in json.loads(text):
        yield Container(_text(one["id"]), [_text(name) for name in one.get("names") or ()])


def _monitor(path: str, text: str) -> Iterator[Container]:
    program, *words = text.split("\0")
    if os.path.basename(program) == "conmon":
        said = dict(reversed(list(pairwise(words))))  # the first of each: the command at its end has options, too
        pid = read(path.rpartition("/proc/")[0] + said.get("-p", "/")) or "0"
        yield Container(said["-c"], [said["-n"]], pid=int(pid))


def _docker(path: str, text: str) -> Iterator[Container]:
    config = json.loads(text)
    pid = (config.get("State") or {}).get("Pid", 0)
    yield Container(_text(config["ID"]), [_text(config["Name"]).lstrip("/")], pid=int(pid))


_CRI_NAME, _CRI_POD, _NERDCTL_NAME = (
    "io.kubernetes.cri.container-name",
    "io.kubernetes.cri.sandbox-name",
    "nerdctl/name",
)


def _bundle(path: str, text: str) -> Iterator[Container]:
    folder = os.path.dirname(path)
    annotations: dict[str, Any] = json.loads(text).get("annotations") or {}
    names = [_text(annotations[key]) for key in (_CRI_NAME, _NERDCTL_NAME) if key in annotations]
    if _CRI_NAME in annotations and _CRI_POD in annotations:
        names.insert(0, f"{_text(annotations[_CRI_POD])}/{names[0]}")
    pid = read(os.path.join(folder, "init.pid")) or "0"
    yield Container(os.path.basename(folder), names, pid=int(pid))


def _nspawn(path: str, text: str) -> Iterator[Container]:
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    if values.get("CLASS", "container").strip('"') == "container":
        yield Container(values["NAME"].strip('"'), pid=int(values["LEADER"].strip('"')))


_USER_RUN, _USER_DATA = "run/user/*/", "home/*/.local/share/"
_FILES: dict[str, Callable[[str, str], Iterator[Container]]] = {
    **dict.fromkeys((
        "run/runc/*/state.json", "run/docker/runtime-*/*/*/state.json", "run/containerd/runc/*/*/state.json",
        f"{_USER_RUN}runc/*/state.json", f"{_USER_RUN}docker/runtime-*/*/*/state.json",
    ), _libcontainer),
    **dict.fromkeys(("run/crun/*/status", f"{_USER_RUN}crun/*/status"), _crun),
    **dict.fromkeys((
        "var/lib/containers/storage/*-containers/*containers.json",
        "run/containers/storage/*-containers/*containers.json",
        f"{_USER_DATA}containers/storage/*-containers/*containers.json",
        "root/.local/share/containers/storage/*-containers/*containers.json",
    ), _storage),
    "proc/[0-9]*/cmdline": _monitor,
    **dict.fromkeys((
        "var/lib/docker/containers/*/config.v2.json", f"{_USER_DATA}docker/containers/*/config.v2.json",
    ), _docker),
    **dict.fromkeys((
        "run/containerd/io.containerd.runtime.v2.task/*/*/config.json",
        f"{_USER_RUN}containerd/io.containerd.runtime.v2.task/*/*/config.json",
    ), _bundle),
    "run/systemd/machines/*": _nspawn,
}  # fmt: skip
"""Patterns of paths below the root -> who reads these files."""
