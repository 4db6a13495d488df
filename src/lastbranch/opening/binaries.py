"""The binaries of a capture's modules: found by their identity, their headers, and their load segments.

A path that comes out of a capture is a hint. It is followed only to a regular file, and on this host only if that
file's identity is the recorded one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from ..binaries import read_image
from ..binaries.candidates import Candidates
from ..binaries.files import is_unchanged
from ..binaries.image import Image, SegmentFlags, same_build_id
from ..binaries.kernel_modules import as_loaded
from ..closing import on_failure
from ..errors import LastbranchError
from ..model import PATCHED, BytesSource, Module, ModuleKind, Profile, Segment
from .sources import FileSource

__all__ = [
    "attach_binaries",
    "build_id_at",
    "image_at",
    "open_image",
    "recorded_until",
    "same_binary",
    "segments_of",
    "use_binary",
]


def use_binary(profile: Profile, row: int, path: str) -> None:
    """Make the file at ``path`` the binary of module ``row``, unless both have an identity and these differ."""
    from ..bind import rebind

    module = profile.modules[row]
    module.missing = _attach(module, [(path, True)], True, recorded_until(profile))
    rebind(profile)


def attach_binaries(
    modules: Iterable[Module],
    os_release: str,
    symfs: str | None = None,
    folders: Sequence[str] = (),
    until: int | None = None,
) -> None:
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
            module.segments, module.binary = segments_of(image), path
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


def segments_of(image: Image) -> tuple[Segment, ...]:
    return tuple(Segment(s.vaddr, s.offset, s.file_size, bool(s.flags & SegmentFlags.EXECUTE)) for s in image.segments)
