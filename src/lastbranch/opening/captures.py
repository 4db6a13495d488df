"""Opening captures: one, or several as one profile; and which captures a path, a folder or a pattern means."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob
from typing import TYPE_CHECKING

from ..bind import bind
from ..errors import FormatError, LastbranchError, SelectionError
from ..formats.interface import Reading
from ..formats.registry import format_of
from ..model import Limits, Module, Profile, Progress, Source, StackWatcher, counted, limited, visible
from .binaries import attach_binaries, recorded_until
from .code import use_running_code
from .manifests import reading_of
from .sources import RestingFile, open_source, recorded_folder

if TYPE_CHECKING:
    from ..bind import OpenedCapture

__all__ = [
    "CapturePaths",
    "captures_at",
    "is_called",
    "is_no_capture",
    "nothing_in",
    "open_profile",
    "read_captures",
    "read_profile",
    "recorded_here",
    "weights_of",
]


# -- Paths, folders and patterns


@dataclass(slots=True)
class CapturePaths:
    """Files that may be captures, and notes for users about files that are left out."""

    paths: list[str] = field(default_factory=list)
    in_folders: set[str] = field(default_factory=set)
    """Files that the user did not name: they are in a folder."""
    others: list[str] = field(default_factory=list)
    """Files in folders that are no captures."""
    again: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        notes = []
        if self.others:
            files = counted(len(self.others), "file")
            notes.append(f"left out {files} of no capture format: {_list_paths(self.others)}")
        if self.again:
            notes.append(f"captures that were given twice count once: {_list_paths(self.again)}")
        return notes


def captures_at(paths: Sequence[str]) -> CapturePaths:
    """The files that ``paths`` mean: those in folders, and those that patterns match; one that comes again counts once.

    Raises `FormatError` where a folder has no file, and a pattern matches none.
    """
    found, known = CapturePaths(), set[object]()
    for path in paths:
        files = [path]
        if (folder := recorded_folder(path)) is not None:
            files = [folder]
        elif os.path.isdir(path):
            files = sorted(one.path for one in os.scandir(path) if one.is_file() and not one.name.startswith("."))
            found.in_folders.update(files)
        elif any(c in path for c in "*?[") and not os.path.lexists(path):
            files = sorted(one for one in glob(path, recursive=True) if not os.path.isdir(one))
        if not files:
            raise nothing_in([path])
        for file in files:
            again = (key := _same_file(file)) in known
            (found.again if again else found.paths).append(file)
            known.add(key)
    return found


def _same_file(path: str) -> object:
    """The identity of a file, equal for all of its names."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return path  # opening it says why
    return (state.st_dev, state.st_ino) if stat.S_ISREG(state.st_mode) else path


def nothing_in(paths: Sequence[str]) -> FormatError:
    folder = next((path for path in paths if os.path.isdir(path)), None)
    if folder is None:
        return FormatError("no file has a name like this", file=paths[0])
    hint = f"to search its subfolders, give '{os.path.join(folder, '**', '*')}'"
    return FormatError("the folder has no capture", file=folder, hint=hint)


def _list_paths(paths: Sequence[str]) -> str:
    return ", ".join(map(visible, paths[:_LISTED])) + (", ..." if len(paths) > _LISTED else "")


_LISTED = 3


def weights_of(paths: Sequence[str], weights: Mapping[str, int]) -> list[int]:
    """The weight of each capture. If several weights match a capture, the last one counts."""
    out = [1] * len(paths)
    for wanted, weight in weights.items():
        rows = [i for i, path in enumerate(paths) if is_called(path, wanted)]
        if not rows:
            raise SelectionError(f"no capture is called {wanted!r}", hint=f"there are: {_list_paths(paths)}")
        for row in rows:
            out[row] = weight
    return out


def is_called(path: str, wanted: str) -> bool:
    """Whether ``wanted`` is the capture at ``path``, its folder, its name, or a pattern for one of these."""
    names = path, os.path.basename(path), os.path.dirname(path)
    return any(name == wanted.rstrip("/") or fnmatchcase(name, wanted) for name in names)


# -- Captures


Path = str | os.PathLike[str]


def open_profile(
    path: Path | Sequence[Path],
    *,
    symfs: str | None = None,
    folders: Sequence[str] = (),
    progress: Progress | None = None,
    pointer_size: int | None = None,
    manifests: Sequence[Path] = (),
    limits: Limits | None = None,
    weights: Mapping[str, int] | None = None,
    kcore: Path | None = None,
) -> Profile:
    """Open the capture at ``path`` (``-``: standard input) and read its tables; samples stay in the file.

    Several paths, a folder (its captures, not those of folders in it) and a pattern (``*.data``, ``**/*.tb5``) are
    opened as one `lastbranch.bind.JoinedProfile`: modules are one by build id or PDB, counts are sums over the
    captures, and each counts its time from its own start. ``weights`` says how often the samples of a capture count,
    by its path, its name or a pattern for these. What cannot be opened is in ``profile.refused``.

    ``symfs`` is a folder under which the binaries of the capture lie at their full paths; without it a file of this
    host is used if its identity is the recorded one: build id, PDB, or time stamp and size. So are, last, those in
    ``folders`` (full paths, build-id folders, symbol stores). ``progress`` is called with (bytes done, bytes in all)
    during the index pass. ``limits`` are the budgets of memory and of what compressed data may become.

    ``pointer_size`` is for an .etl whose events say it wrong: the bits of a pointer in their payloads, 32 or 64.
    ``manifests`` are instrumentation manifests, or folders of them, that name its providers' events.

    ``kcore`` has the code of the kernel and of its modules as it ran: ``/proc/kcore`` of the machine that was recorded
    and not started again since, a copy of it, or a folder that perf copied one to (``perf record --kcore``, ``perf
    buildid-cache --kcore``). Without it, that of a capture by ``perf record --kcore`` is used.

    Raises `ValueError` for another size and weights that are no capture's, `FormatError` where the size is given for a
    file that is no .etl and where nothing can be read of the file, `OSError` where it cannot be opened. What is
    damaged in a file that can be read is in ``profile.damage``.
    """
    paths = [os.fspath(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]
    # Without either the decoder of trace logs is not needed: it takes a third of the time to start.
    reading = None if pointer_size is None and not manifests else reading_of(pointer_size, manifests)
    with limited(limits or Limits.current()):
        return read_captures(
            paths, progress, reading, symfs, folders, weights, kcore=None if kcore is None else os.fspath(kcore)
        )


def read_captures(
    paths: Sequence[str],
    progress: Progress | None = None,
    reading: Reading | None = None,
    symfs: str | None = None,
    folders: Sequence[str] = (),
    weights: Mapping[str, int] | None = None,
    watcher: StackWatcher | None = None,
    kcore: str | None = None,
) -> Profile:
    """The profile of the captures at ``paths``; the arguments are those of `open_profile` and `read_profile`.
    ``watcher`` sees the stacks of one capture, none of several."""
    found = captures_at(paths)
    if len(found.paths) == 1 and not weights:
        profile = read_profile(open_source(found.paths[0]), progress, reading, symfs, folders, watcher=watcher)
        use_running_code(profile, found.paths[0], kcore)
        profile.notes += found.notes
        return profile
    if kcore is not None:
        raise SelectionError("kcore has the code of one boot, and there are several captures", hint="give one capture")
    from ..bind import join

    opened: list[OpenedCapture] = []
    refused: list[tuple[str, Exception]] = []
    for path, weight in zip(found.paths, weights_of(found.paths, weights or {}), strict=True):
        try:
            one = _open_one(path, weight, progress, reading)
        except (LastbranchError, OSError) as error:
            if path in found.in_folders and is_no_capture(error):
                found.others.append(path)
            else:
                refused.append((path, error))
            continue
        if path in found.in_folders and _is_prose(one.profile):
            found.others.append(path)
        else:
            opened.append(one)
    if not opened:
        raise refused[0][1] if refused else nothing_in(paths)

    def attach(profile: Profile, modules: list[Module]) -> None:
        attach_binaries(modules, profile.machine.os_release, symfs, folders, recorded_until(profile))

    return join(opened, attach, refused, found.notes)


def _open_one(path: str, weight: int, progress: Progress | None, reading: Reading | None) -> OpenedCapture:
    from ..bind import OpenedCapture

    source = RestingFile(path) if os.path.isfile(path) else open_source(path)
    form = format_of(source)
    profile = form.open(source, progress, reading if form.has_providers else None)
    if not isinstance(source, RestingFile):
        return OpenedCapture(profile, weight)
    source.rest()
    return OpenedCapture(profile, weight, source.rest)


def read_profile(
    source: Source,
    progress: Progress | None = None,
    reading: Reading | None = None,
    symfs: str | None = None,
    folders: Sequence[str] = (),
    *,
    binaries: bool = True,
    watcher: StackWatcher | None = None,
) -> Profile:
    """The profile in ``source``. ``reading`` is for trace logs, ``watcher`` sees the branch stacks of formats that show
    them, and becomes `Profile.watcher`; the other arguments are those of `open_profile`.
    Without ``binaries`` none is looked for: addresses are what `docs/concepts/addresses.md` says of missing ones.

    Raises `FormatError` for an unknown format, and where there is a ``reading`` for a format that takes none.
    """
    profile = format_of(source).open(source, progress, reading, watcher)
    profile.watcher = watcher
    if binaries:
        attach_binaries(profile.modules, profile.machine.os_release, symfs, folders, recorded_until(profile))
    return bind(profile)


def is_no_capture(error: Exception) -> bool:
    """Whether a file begins like nothing that is read here; an empty one may have been a capture."""
    return isinstance(error, FormatError) and error.field == "magic" and error.value is not None


def _is_prose(profile: Profile) -> bool:
    """Whether what was read as the text of `perf script` is none: any text can have a line that looks like a sample."""
    return profile.format == "perf script" and len(profile.damage) >= profile.samples


def recorded_here(profile: Profile) -> None:
    """Note of a capture that still grows that it is about this machine: complete files say it at their end."""
    import platform

    machine, here = profile.machine, platform.uname()
    machine.os_release, machine.host = machine.os_release or here.release, machine.host or here.node
