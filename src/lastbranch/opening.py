"""Opening captures and binaries: the one place that touches their paths.

A path that comes out of a capture is a hint. It is followed only to a regular file, and on this host only if that
file's identity is the recorded one.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING

from .binaries import Code, Image, SegmentFlags, read_image, same_build_id
from .binaries.candidates import Candidates
from .bind import bind
from .errors import FormatError, LastbranchError
from .formats.interface import Reading as FormatReading
from .formats.registry import SNIFFED, format_of
from .model import (
    BytesSource,
    Limits,
    Module,
    ModuleKind,
    OpenFile,
    Profile,
    Progress,
    Segment,
    Source,
    limited,
    read_at,
)
from .model.atomic_output import naming

if TYPE_CHECKING:
    from .formats.etl.decode import Reading
    from .formats.etl.payload import Manifests

__all__ = [
    "FileSource", "attach_binaries", "build_id_at", "code_of", "open_profile", "open_source",
    "read_manifests", "read_profile", "reading_of", "same_binary", "use_binary",
]  # fmt: skip

_SPOOL_CHUNK = 1 << 20


def open_profile(
    path: str | os.PathLike[str], *, symfs: str | None = None, folders: Sequence[str] = (),
    progress: Progress | None = None, pointer_size: int | None = None,
    manifests: Sequence[str | os.PathLike[str]] = (), limits: Limits | None = None,
) -> Profile:  # fmt: skip
    """Open the capture at ``path`` (``-``: standard input) and read its tables; samples stay in the file.

    ``symfs`` is a folder under which the binaries of the capture lie at their full paths; without it a file of this
    host is used if its identity is the recorded one: build id, PDB, or time stamp and size. So are, last, those in
    ``folders`` (full paths, build-id folders, symbol stores). ``progress`` is called with (bytes done, bytes in all)
    during the index pass. ``limits`` are the budgets of memory and of what compressed data may become.

    ``pointer_size`` is for an .etl whose events say it wrong: the bits of a pointer in their payloads, 32 or 64.
    ``manifests`` are instrumentation manifests, or folders of them, that name its providers' events.

    Raises `ValueError` for another size, `FormatError` where it is given for a file that is no .etl and where nothing
    can be read of the file, `OSError` where it cannot be opened. What is damaged in a file that can be read is in
    ``profile.damage``.
    """
    with limited(limits or Limits.current()):
        source = open_source(os.fspath(path))
    # Without either the decoder of trace logs is not needed: it takes a third of the time to start.
    reading = None if pointer_size is None and not manifests else reading_of(pointer_size, manifests)
    return read_profile(source, progress, reading, symfs, folders)


def read_profile(
    source: Source, progress: Progress | None = None, reading: FormatReading | None = None, symfs: str | None = None,
    folders: Sequence[str] = (), *, binaries: bool = True,
) -> Profile:  # fmt: skip
    """The profile in ``source``. ``reading`` is for trace logs, the other arguments are those of `open_profile`.
    Without ``binaries`` none is looked for: addresses are what `docs/concepts/addresses.md` says of missing ones.

    Raises `FormatError` for an unknown format, and where there is a ``reading`` for a format that takes none.
    """
    profile = format_of(source).open(source, progress, reading)
    if binaries:
        attach_binaries(profile.modules, profile.machine.os_release, symfs, folders)
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
    module = profile.modules[row]
    module.missing = _attach(module, [(path, True)], searched=True)
    bind(profile)


def attach_binaries(
    modules: Iterable[Module], os_release: str, symfs: str | None = None, folders: Sequence[str] = ()
) -> None:
    """Give ``modules`` of a machine with kernel ``os_release`` the load segments of their binaries, or the reason why
    there are none. The other arguments are those of `open_profile`."""
    places = Candidates(os_release, symfs, folders)
    for module in modules:
        if module.kind in (ModuleKind.FILE, ModuleKind.KERNEL):
            module.missing = _attach(module, places.of(module), symfs is not None)


def _attach(module: Module, candidates: Iterable[tuple[str, bool]], searched: bool) -> str:
    """Use the first candidate that is the module's binary; else the reason why the last one is not.

    Trusted ones (--symfs) need no identity to match, only none that differs. ``searched``: the user gave a place to
    look in.
    """
    known = bool(module.build_id or module.pdb_guid or module.timestamp)
    reason = "not found" if known or searched else "not used: no build id was recorded to identify it"
    for path, trusted in candidates:
        if not (trusted or known):
            continue
        try:
            source = FileSource(path)
        except (OSError, LastbranchError):
            continue
        try:
            image = read_image(source)
        except LastbranchError as error:
            reason = f"unreadable: {error}"
            continue
        finally:
            source.close()
        same = same_binary(module, image)
        if not _has_code(image):
            reason = "only a debug file, without the code"
        elif same or (trusted and same is None):
            module.segments, module.binary = _segments(image), path
            module.image_base = image.image_base if image.format == "pe" else module.image_base
            return ""
        else:
            identity = "PDB or time stamp" if module.is_pe else "build id"
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
        source = FileSource(path)
    except (OSError, LastbranchError):
        return b""
    try:
        return read_image(source).build_id or b""
    except (OSError, LastbranchError):
        return b""
    finally:
        source.close()


def _segments(image: Image) -> tuple[Segment, ...]:
    return tuple(Segment(s.vaddr, s.offset, s.file_size, bool(s.flags & SegmentFlags.EXECUTE)) for s in image.segments)


def code_of(module: Module) -> Code | None:
    """The code of ``module`` at its link addresses, from the binary that it was bound by.

    ``None`` where there is none (`Module.missing` says why), or it can no longer be read or has been replaced since.
    Of a position-independent file on disk this is what was loaded; code that patched itself looks as it was linked.
    """
    if not module.binary:
        return None
    try:
        source = FileSource(module.binary)
        image = read_image(source)
    except (OSError, LastbranchError):
        return None
    return None if same_binary(module, image) is False or _segments(image) != module.segments else Code(source, image)
