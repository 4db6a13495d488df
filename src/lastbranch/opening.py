"""Opening captures and binaries: the one place that touches their paths.

A path that comes out of a capture is a hint. It is followed only to a regular file, and on this host only if that
file's identity is the recorded one.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob
from threading import Lock
from typing import IO, TYPE_CHECKING

import numpy as np

from .binaries import Code, Image, SegmentFlags, read_image, same_build_id
from .binaries.candidates import Candidates
from .binaries.files import is_unchanged
from .binaries.kernel_memory import OpenSource, copies_at, fits, text_of
from .binaries.kernel_modules import as_loaded, module_name
from .bind import bind
from .bind.binder import bias_of
from .closing import on_failure
from .errors import FormatError, LastbranchError, SelectionError
from .formats.interface import Reading as FormatReading
from .formats.registry import SNIFFED, format_of
from .model import (
    PATCHED,
    BytesSource,
    Change,
    Limits,
    Module,
    ModuleKind,
    OpenFile,
    Profile,
    Progress,
    Segment,
    Source,
    StackWatcher,
    counted,
    limited,
    read_at,
    visible,
)
from .model.atomic_output import naming

if TYPE_CHECKING:
    from .bind import Opened
    from .formats.etl.decode import Reading
    from .formats.etl.payload import Manifests

__all__ = [
    "FileSource", "attach_binaries", "build_id_at", "captures_at", "code_of", "image_at", "is_called",
    "is_no_capture", "open_image", "open_profile", "open_source", "read_captures", "read_manifests", "read_profile",
    "reading_of", "recorded_here", "recorded_until", "same_binary", "use_binary",
]  # fmt: skip

_SPOOL_CHUNK = 1 << 20

Path = str | os.PathLike[str]


def open_profile(
    path: Path | Sequence[Path], *, symfs: str | None = None, folders: Sequence[str] = (),
    progress: Progress | None = None, pointer_size: int | None = None, manifests: Sequence[Path] = (),
    limits: Limits | None = None, weights: Mapping[str, int] | None = None, kcore: Path | None = None,
) -> Profile:  # fmt: skip
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
    paths: Sequence[str], progress: Progress | None = None, reading: FormatReading | None = None,
    symfs: str | None = None, folders: Sequence[str] = (), weights: Mapping[str, int] | None = None,
    watcher: StackWatcher | None = None, kcore: str | None = None,
) -> Profile:  # fmt: skip
    """The profile of the captures at ``paths``; the arguments are those of `open_profile` and `read_profile`.
    ``watcher`` sees the stacks of one capture, none of several."""
    found = captures_at(paths)
    if len(found.paths) == 1 and not weights:
        profile = read_profile(open_source(found.paths[0]), progress, reading, symfs, folders, watcher=watcher)
        _use_running_code(profile, found.paths[0], kcore)
        profile.notes += found.notes
        return profile
    if kcore is not None:
        raise SelectionError("kcore has the code of one boot, and there are several captures", hint="give one capture")
    from .bind import join

    opened: list[Opened] = []
    refused: list[tuple[str, Exception]] = []
    for path, weight in zip(found.paths, _weighed(found.paths, weights or {}), strict=True):
        try:
            one = _opened(path, weight, progress, reading)
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
        raise refused[0][1] if refused else _nothing_in(paths)

    def attach(profile: Profile, modules: list[Module]) -> None:
        attach_binaries(modules, profile.machine.os_release, symfs, folders, recorded_until(profile))

    return join(opened, attach, refused, found.notes)


def _opened(path: str, weight: int, progress: Progress | None, reading: FormatReading | None) -> Opened:
    from .bind import Opened

    source = RestingFile(path) if os.path.isfile(path) else open_source(path)
    form = format_of(source)
    profile = form.open(source, progress, reading if form.has_providers else None)
    if not isinstance(source, RestingFile):
        return Opened(profile, weight)
    source.rest()
    return Opened(profile, weight, source.rest)


def read_profile(
    source: Source, progress: Progress | None = None, reading: FormatReading | None = None, symfs: str | None = None,
    folders: Sequence[str] = (), *, binaries: bool = True, watcher: StackWatcher | None = None,
) -> Profile:  # fmt: skip
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


def reading_of(pointer_size: int | None = None, manifests: Sequence[str | os.PathLike[str]] = ()) -> Reading:
    """How to read trace logs, from what users say: the bits of a pointer, and `read_manifests`. Raises `ValueError`."""
    from .formats.etl.decode import Reading

    if pointer_size not in (None, 32, 64):
        raise ValueError(f"a pointer has 32 or 64 bits, not {pointer_size}")
    return Reading(pointer_size and pointer_size // 8, read_manifests(manifests) if manifests else None)


def read_manifests(paths: Sequence[str | os.PathLike[str]]) -> Manifests:
    """The instrumentation manifests at ``paths``; of a folder those of its files that end in .man, .manifest or .xml.

    Where two describe an event, the first one holds, and ``notes`` say so if they differ. Raises `FormatError` for a
    file that is no manifest and a folder without any, `OSError` where one cannot be read. What is in a folder and no
    manifest becomes a note.
    """
    from .formats.etl.payload import LARGEST, Manifests

    found = Manifests()
    for path in [os.fspath(path) for path in paths]:
        if not os.path.isdir(path):
            found.add(_whole(path, LARGEST), path)
            continue
        inside = sorted(os.path.join(path, n) for n in os.listdir(path) if n.lower().endswith(_MANIFESTS))
        read = 0
        for name in inside:
            try:
                found.add(_whole(name, LARGEST), name)
                read += 1
            except FormatError as error:
                found.note(f"left out: {error}")
        if not read:
            raise FormatError("the folder has no instrumentation manifest", file=path, hint=f"files end in {_ENDINGS}")
    return found


_MANIFESTS = (".man", ".manifest", ".xml")
_ENDINGS = ", ".join(_MANIFESTS)


def _whole(path: str, most: int) -> bytes:
    """The content of a regular file, up to one byte more than ``most``."""
    source = FileSource(path)
    try:
        return read_at(source, 0, min(source.size, most + 1))
    finally:
        source.close()


# -- the files of captures


@dataclass(slots=True)
class CapturePaths:
    """Files that may be captures, and what users should know about which they are."""

    paths: list[str] = field(default_factory=list)
    in_folders: set[str] = field(default_factory=set)
    """Those that nobody said to be captures."""
    others: list[str] = field(default_factory=list)
    """Those of them that are none."""
    again: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        notes = []
        if self.others:
            notes.append(f"left out {counted(len(self.others), 'file')} of no capture format: {_listed(self.others)}")
        if self.again:
            notes.append(f"captures that were given twice count once: {_listed(self.again)}")
        return notes


def captures_at(paths: Sequence[str]) -> CapturePaths:
    """The files that ``paths`` mean: those in folders, and those that patterns match; one that comes again counts once.

    Raises `FormatError` where a folder has no file, and a pattern matches none.
    """
    found, known = CapturePaths(), set[object]()
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = sorted(one.path for one in os.scandir(path) if one.is_file() and not one.name.startswith("."))
            found.in_folders.update(files)
        elif any(c in path for c in "*?[") and not os.path.lexists(path):
            files = sorted(one for one in glob(path, recursive=True) if not os.path.isdir(one))
        if not files:
            raise _nothing_in([path])
        for file in files:
            again = (key := _same_file(file)) in known
            (found.again if again else found.paths).append(file)
            known.add(key)
    return found


def _same_file(path: str) -> object:
    """What is equal for another name of a file."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return path  # opening it says why
    return (state.st_dev, state.st_ino) if stat.S_ISREG(state.st_mode) else path


def is_no_capture(error: Exception) -> bool:
    """Whether a file begins like nothing that is read here; an empty one may have been a capture."""
    return isinstance(error, FormatError) and error.field == "magic" and error.value is not None


def _is_prose(profile: Profile) -> bool:
    """Whether what was read as the text of `perf script` is none: any text can have a line that looks like a sample."""
    return profile.format == "perf script" and len(profile.damage) >= profile.samples


def _nothing_in(paths: Sequence[str]) -> FormatError:
    folder = next((path for path in paths if os.path.isdir(path)), None)
    if folder is None:
        return FormatError("no file has a name like this", file=paths[0])
    hint = f"to search its subfolders, give '{os.path.join(folder, '**', '*')}'"
    return FormatError("the folder has no capture", file=folder, hint=hint)


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(map(visible, paths[:_LISTED])) + (", ..." if len(paths) > _LISTED else "")


_LISTED = 3


def _weighed(paths: Sequence[str], weights: Mapping[str, int]) -> list[int]:
    """The weight of each capture; of several that it has, the last."""
    out = [1] * len(paths)
    for wanted, weight in weights.items():
        rows = [i for i, path in enumerate(paths) if is_called(path, wanted)]
        if not rows:
            raise SelectionError(f"no capture is called {wanted!r}", hint=f"there are: {_listed(paths)}")
        for row in rows:
            out[row] = weight
    return out


def is_called(path: str, wanted: str) -> bool:
    """Whether ``wanted`` is the capture at ``path``, its folder, its name, or a pattern for one of these."""
    names = path, os.path.basename(path), os.path.dirname(path)
    return any(name == wanted.rstrip("/") or fnmatchcase(name, wanted) for name in names)


def open_source(path: str) -> FileSource:
    """The bytes of ``path``; a pipe, a device or ``-`` (standard input) is copied to a temporary file first."""
    if path == "-":
        return _spool(sys.stdin.buffer, "<stdin>")
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        hint = (
            "for a capture made with `perf record --threads`, give the file `data` in it" if _is_capture(path) else None
        )
        raise FormatError("is a directory", file=path, hint=hint)
    if not stat.S_ISREG(mode):
        with open(path, "rb") as stream:
            return _spool(stream, path)
    return FileSource(path)


def _is_capture(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "data"))


class FileSource(OpenFile):
    """A regular file as a `Source`. Raises `FormatError` for anything else, which is opened without blocking."""

    def __init__(self, path: str, name: str | None = None) -> None:
        flags = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
        fd = os.open(path, os.O_RDONLY | sum(getattr(os, f, 0) for f in flags))
        super().__init__(os.fdopen(fd, "rb", buffering=0), name if name is not None else path)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            self.close()
            raise FormatError("not a regular file", file=self.name)

    def state(self) -> tuple[int, ...]:
        """What differs from another file's, and from its own once it was changed."""
        found = os.fstat(self._file.fileno())
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class RestingFile:
    """A regular file as a `Source` that can be closed between two passes: a thousand captures are more files than a
    process may have open. Raises `FormatError` where another file lies there when it is read again."""

    def __init__(self, path: str) -> None:
        self._file: FileSource | None = FileSource(path)
        self.name, self.limits, self.size = path, self._file.limits, self._file.size
        self._state, self._lock, self._readers, self._rests = self._file.state(), Lock(), 0, False

    def readinto(self, offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from ``offset``: see `Source`."""
        with self._lock:
            file, self._rests = self._opened(), False
            self._readers += 1
        try:
            return file.readinto(offset, buffer)
        finally:
            with self._lock:
                self._readers -= 1
                if self._rests:
                    self._close()

    def expect(self, offset: int, length: int) -> None:
        with self._lock:
            if self._file is not None:
                self._file.expect(offset, length)

    def rest(self) -> None:
        """Close the file, when nobody reads it any more; it is opened again for the next reader."""
        with self._lock:
            self._rests = True
            self._close()

    def _close(self) -> None:
        if self._file is not None and not self._readers:
            self._file.close()
            self._file = None

    def _opened(self) -> FileSource:
        if self._file is None:
            self._file = FileSource(self.name)
            if self._file.state() != self._state:
                self._close()
                raise FormatError("was changed or replaced while it was read", file=self.name)
        return self._file


def _spool(stream: IO[bytes], name: str) -> FileSource:
    """A stream that cannot be read twice, copied to a temporary file without a name if it begins as a capture: others
    may have no end. Raises `FormatError`."""
    import tempfile

    chunk = stream.read(_SPOOL_CHUNK)
    format_of(BytesSource(chunk[:SNIFFED], name))
    with tempfile.NamedTemporaryFile(prefix="lastbranch-", buffering=0) as copy:
        while chunk:
            with naming(copy.name):
                chunk = chunk[copy.write(chunk) :]
            chunk = chunk or stream.read(_SPOOL_CHUNK)
        return FileSource(copy.name, name)


# -- binaries


def use_binary(profile: Profile, row: int, path: str) -> None:
    """Make the file at ``path`` the binary of module ``row``, unless both have an identity and these differ."""
    from .bind import rebind

    module = profile.modules[row]
    module.missing = _attach(module, [(path, True)], True, recorded_until(profile))
    rebind(profile)


def recorded_here(profile: Profile) -> None:
    """Note of a capture that still grows that it is about this machine: complete files say it at their end."""
    import platform

    machine, here = profile.machine, platform.uname()
    machine.os_release, machine.host = machine.os_release or here.release, machine.host or here.node


def attach_binaries(
    modules: Iterable[Module], os_release: str, symfs: str | None = None, folders: Sequence[str] = (),
    until: int | None = None,
) -> None:  # fmt: skip
    """Give ``modules`` of a machine with kernel ``os_release`` the load segments of their binaries, or the reason why
    there are none. ``until`` is when they were recorded at the latest, in ns since 1970: a file that was not written
    since is known by its inode. The other arguments are those of `open_profile`."""
    places = Candidates(os_release, symfs, folders)
    for module in modules:
        if module.kind in (ModuleKind.FILE, *PATCHED):
            module.missing = _attach(module, places.of(module), symfs is not None, until)


def recorded_until(profile: Profile) -> int | None:
    """When the recording ended at the latest, in ns since 1970: by its clock, or the time of its file; ``None`` if
    neither is known."""
    end = None if profile.last_time is None else profile.clock.wall_ns(profile.last_time)
    try:
        return os.stat(profile.name).st_mtime_ns if end is None else end
    except (OSError, ValueError):
        return None


def _attach(module: Module, candidates: Iterable[tuple[str, bool]], searched: bool, until: int | None = None) -> str:
    """Use the first candidate that is the module's binary; else the reason why the last one is not.

    Trusted ones (--symfs) need no identity to match, only none that differs. ``searched``: the user gave a place to
    look in. ``until``: see `attach_binaries`.
    """
    known = bool(module.build_id or module.pdb_guid or module.timestamp)
    identity = "PDB or time stamp" if module.is_pe else "build id"
    reason = "not found" if known or searched else f"not used: no {identity} was recorded to identify it"
    for path, trusted in candidates:
        mapped = until is not None and is_unchanged(path, module.inode, until)
        if not (trusted or known or mapped):
            continue
        try:
            image = image_at(path)
        except OSError:
            continue
        except LastbranchError as error:
            reason = f"unreadable: {error}"
            continue
        same = same_binary(module, image)
        if not _has_code(image):
            reason = "only a debug file, without the code"
        elif same or (same is None and (trusted or mapped)):
            module.segments, module.binary = _segments(image), path
            module.unverified = not (same or mapped)
            module.image_base = image.image_base if image.format == "pe" else module.image_base
            return ""
        else:
            reason = f"binary has no {identity} to identify it" if same is None else f"{identity} differs"
    return reason


def _has_code(image: Image) -> bool:
    """Whether the file has what it loads; a separate debug file has the headers alone. Sections may be stripped."""
    code = [s for s in image.sections if s.flags & SegmentFlags.EXECUTE]
    return not code or any(s.file_size for s in code)


def same_binary(module: Module, image: Image) -> bool | None:
    """Whether ``image`` is the binary of ``module``; ``None`` if one of the two lacks the identity."""
    if module.is_pe or image.format == "pe":
        if module.is_pe != (image.format == "pe"):
            return False
        if module.pdb_guid and image.pdb_guid:
            return (module.pdb_guid, module.pdb_age) == (image.pdb_guid, image.pdb_age)
        if module.timestamp and image.timestamp:
            return (module.timestamp, module.size) == (image.timestamp, image.image_size)
        return None
    if not (module.build_id and image.build_id):
        return None
    return same_build_id(module.build_id, image.build_id)


def build_id_at(path: str) -> bytes:
    """The build id of the binary at ``path``; empty where there is no such file, or it has none."""
    try:
        return image_at(path).build_id or b""
    except (OSError, LastbranchError):
        return b""


def image_at(path: str) -> Image:
    """The headers of the binary at ``path``, as `open_image` has them. Raises `FormatError` and `OSError`."""
    source, image = open_image(path)
    source.close()
    return image


def open_image(path: str) -> tuple[FileSource | BytesSource, Image]:
    """The binary at ``path`` and its headers, for who closes it: a kernel module as the kernel loads it. Raises
    `FormatError` where it is none, or damaged, and `OSError`."""
    file = FileSource(path)
    with on_failure(file.close):
        if (known := _HEADERS.of(file)) is not None:
            return file, known
        source = as_loaded(file)
        image = read_image(source)
    if isinstance(source, BytesSource):
        file.close()
        return source, image
    _HEADERS.keep(file, image)
    return file, image


class _Headers:
    """The headers of the binaries that were opened last. Each is asked for several times when a capture is opened and
    counted, and each second while a recording is watched, of which reading them was a third of the work."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Image] = {}

    def of(self, file: FileSource) -> Image | None:
        return self._known.get(self._state(file))

    def keep(self, file: FileSource, image: Image) -> None:
        """Not of a file that changed so recently that it can change again without another time stamp."""
        state = self._state(file)
        if time.time_ns() - max(state[-2:]) < _SETTLED:
            return
        self._known[state] = image
        if len(self._known) > _MOST_HEADERS:
            self._known.pop(next(iter(self._known)), None)

    @staticmethod
    def _state(file: FileSource) -> tuple[int, ...]:
        return *file.state(), os.fstat(file.fileno()).st_ctime_ns


_MOST_HEADERS = 64
_SETTLED = 2_000_000_000
"""ns."""
_HEADERS = _Headers()


def _segments(image: Image) -> tuple[Segment, ...]:
    return tuple(Segment(s.vaddr, s.offset, s.file_size, bool(s.flags & SegmentFlags.EXECUTE)) for s in image.segments)


def code_of(module: Module) -> Code | None:
    """The code of ``module`` at its link addresses, from the binary that it was bound by.

    ``None`` where there is none (`Module.missing` says why), or it can no longer be read or has been replaced since.
    Of a position-independent file on disk this is what was loaded; code that patched itself looks as it was linked.
    """
    found: tuple[OpenSource, Image] | None = None
    if module.binary:
        try:
            source, image = open_image(module.binary)
        except (OSError, LastbranchError):
            return None
        if same_binary(module, image) is False or _segments(image) != module.segments:
            return None
        found = source, image
    with suppress(OSError, LastbranchError):
        found = _as_it_ran(module, found) or found
    return Code(*found) if found else None


# -- The kernel's code as it ran


def _as_it_ran(module: Module, file: tuple[OpenSource, Image] | None) -> tuple[OpenSource, Image] | None:
    """``file``, the binary of the kernel or of its module, with the code that ran; ``None`` where that is not known.
    Raises `FormatError` and `OSError`."""
    if not module.running:
        return None
    memory = FileSource(module.running)
    with on_failure(memory.close):
        start, end = module.ran_at
        return text_of(memory, start, end, bias_of(module, start, start), *(file or ()))


_BESIDE = "kcore_dir"
"""Where ``perf record --kcore`` copies the kernel's code, in the folder of the capture."""


def _use_running_code(profile: Profile, path: str, kcore: str | None) -> None:
    """Let the code of the kernel and its modules be what ran: that in ``kcore``, or in the copy that perf made with the
    capture at ``path``. What is not of that kernel is not used, with a note.

    Raises `SelectionError` where ``kcore`` is of another kernel, or of another boot.
    """
    beside = os.path.join(os.path.dirname(path), _BESIDE)
    where = kcore if kcore is not None else beside if os.path.isfile(os.path.join(beside, "kcore")) else None
    if where is None:
        return
    mapped = _mapped(profile)
    kernel = next((row for row in mapped if profile.modules[row].kind is ModuleKind.KERNEL), None)
    if kernel is None:
        why = "the capture has no kernel, or one that moved"
    else:
        copies = list(copies_at(where, profile.modules[kernel].build_id))
        memory = next((one for one in copies if fits(one, mapped[kernel][0], "") is not False), None)
        why = "no copy in it is of the boot that was recorded" if memory is None else ""
        if memory is not None:
            reasons = {row: _let_run(profile.modules[row], memory, *mapped[row]) for row in mapped}
            why = reasons.pop(kernel)
            profile.notes += [f"code of {visible(profile.modules[row].short)} as it ran is not known: {reason}"
                              for row, reason in reasons.items() if reason]  # fmt: skip
    if why and kcore is not None:
        raise SelectionError(f"{visible(where)} does not have the kernel's code as it ran: {why}")
    if why:
        profile.notes.append(f"{visible(where)} is not used: {why}")


def _mapped(profile: Profile) -> dict[int, tuple[int, int]]:
    """The addresses of the kernel and of each of its modules that stayed where it was, by row of the modules."""
    changes = profile.timeline.columns()
    of_kernel = np.array([m.kind in PATCHED for m in profile.modules], bool)
    rows = np.flatnonzero((changes["kind"] == Change.MAP) & (changes["module"] >= 0))
    found: dict[int, set[tuple[int, int]]] = {}
    for row in rows[of_kernel[changes["module"][rows]]].tolist() if len(of_kernel) else ():
        start, end, offset, module = (int(changes[n][row]) for n in ("start", "end", "offset", "module"))
        if profile.modules[module].kind is ModuleKind.KERNEL:
            start = offset or start  # of a kernel the offset is the address of its _text
        found.setdefault(module, set()).add((start, end))
    return {module: next(iter(places)) for module, places in found.items() if len(places) == 1}


def _let_run(module: Module, memory: str, start: int, end: int) -> str:
    """Let the code of ``module`` be that of ``memory``, or say why it is not."""
    name = "" if module.kind is ModuleKind.KERNEL else module_name(module.name)
    if not module.binary and not fits(memory, start, name):
        return f"{name or 'the kernel'} has no binary, and no list beside it says that it was at {start:#x}"
    module.running, module.ran_at = memory, (start, end)
    try:
        found = _as_it_ran(module, open_image(module.binary) if module.binary else None)
    except (OSError, LastbranchError) as error:
        module.running, module.ran_at = "", ()
        return str(error)
    if found is not None:
        found[0].close()
    return ""
