"""Binaries of processes that see other files than we do (containers), kept by build id to name the processes' code.

A file is opened when it is mapped, below the root of its process; no link leads outside of this root. The file is
copied when the recording is over, with its debug file from the same root. Files that this host has, too, and files
without a build id are not copied.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import LastbranchError
from ..model import BINARIES, counted, default_cache, kept_binary
from .perf_events.syscall import sparing
from .procfs import mappings, read

if TYPE_CHECKING:
    from ..binaries.image import Image
    from ..symbols import Cache

__all__ = ["ForeignBinaries"]


_NR_OPENAT2 = 437
"""The same on every architecture. Linux 5.6."""
_IN_ROOT, _NO_MAGIC_LINKS = 0x10, 0x02  # RESOLVE_* of include/uapi/linux/openat2.h
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST = 512
"""Files that are open at once."""

_libc = ctypes.CDLL(None, use_errno=True)


class ForeignBinaries:
    """The binaries of one recording."""

    def __init__(self) -> None:
        self._own = _place(os.getpid())
        self._roots: dict[tuple[str, int, int], int] = {}
        """Descriptors of roots, by the mount namespace and the file of the root."""
        self._files: dict[tuple[tuple[str, int, int], str], int] = {}
        """Descriptors of files by their root and path; -1: not to be kept."""

    def look(self, pid: int) -> None:
        """Look at all that ``pid`` has mapped."""
        if _place(pid) not in (self._own, None):
            self.seen(pid, (one.name for one in mappings(read(f"/proc/{pid}/maps") or "")))

    def seen(self, pid: int, names: Iterable[str]) -> None:
        """``pid`` has mapped the files ``names``."""
        place = _place(pid)
        if place is None or place == self._own:
            return
        for name in names:
            if not name.startswith("/") or name.startswith("//"):
                continue
            if (place, name) not in self._files and len(self._files) < _MOST:
                self._files[place, name] = self._open_file(pid, place, name)

    def _open_file(self, pid: int, place: tuple[str, int, int], name: str) -> int:
        """A descriptor of the file; -1 where it is no file, or the same as here."""
        try:
            if place not in self._roots:
                self._roots[place] = sparing(os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            made = sparing(_open_below(self._roots[place], name))
        except OSError:
            return -1
        with suppress(OSError):
            if os.path.samestat(os.fstat(made), os.stat(name)):
                os.close(made)
                return -1
        return made

    def keep(self) -> tuple[str, ...]:
        """Copy the opened files to the user's cache, and close them. Sentences of what went wrong."""
        try:
            found = [(place, fd) for (place, _), fd in self._files.items() if fd >= 0]
            return self._copy_files(found) if found else ()
        finally:
            for fd in (*self._files.values(), *self._roots.values()):
                if fd >= 0:
                    os.close(fd)
            self._files, self._roots = {}, {}

    def _copy_files(self, found: list[tuple[tuple[str, int, int], int]]) -> tuple[str, ...]:
        from ..symbols import CacheRefused, open_cache  # loads NumPy

        try:
            cache = open_cache(default_cache(BINARIES), "binaries of containers")
        except CacheRefused as refused:
            return (str(refused),)
        assert cache is not None
        failed: dict[str, int] = {}
        for place, fd in found:
            try:
                image = _image(fd)
                if image is None or not image.build_id:
                    continue
                _copy(fd, kept_binary(image.build_id), cache)
                debug = self._debug_file(place, image.build_id)
                if debug >= 0:
                    try:
                        _copy(debug, kept_binary(image.build_id, "debug"), cache)
                    finally:
                        os.close(debug)
            except OSError as error:
                why = error.strerror or str(error)
                failed[why] = failed.get(why, 0) + 1
        return tuple(f"{counted(n, 'binary', 'binaries')} of containers not kept: {why}" for why, n in failed.items())

    def _debug_file(self, place: tuple[str, int, int], build_id: bytes) -> int:
        """A descriptor of the debug file of that build id in the container; -1 for none."""
        word = build_id.hex()
        try:
            fd = _open_below(self._roots[place], f"/usr/lib/debug/.build-id/{word[:2]}/{word[2:]}.debug")
        except OSError:
            return -1
        image = _image(fd)
        if image is None or image.build_id != build_id:
            os.close(fd)
            return -1
        return fd


def _place(pid: int) -> tuple[str, int, int] | None:
    """The mount namespace and root of ``pid``, which decide its files; ``None`` if we may not look."""
    try:
        root = os.stat(f"/proc/{pid}/root")
        return os.readlink(f"/proc/{pid}/ns/mnt"), root.st_dev, root.st_ino
    except OSError:
        return None


def _open_below(root: int, name: str) -> int:
    """A descriptor of the regular file ``name``, whose links lead nowhere outside of ``root``. Raises `OSError`."""
    how = struct.pack("=QQQ", _FLAGS, 0, _IN_ROOT | _NO_MAGIC_LINKS)
    fd: int = _libc.syscall(_NR_OPENAT2, root, os.fsencode(name), how, len(how))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return fd


def _image(fd: int) -> Image | None:
    from ..opening import image_at

    try:
        return image_at(f"/proc/self/fd/{fd}")
    except (OSError, LastbranchError):
        return None


def _copy(fd: int, path: str, cache: Cache) -> None:
    """Copy an open file to ``path``; the copy appears there when complete."""
    if os.path.exists(path):
        os.utime(path)  # used: others are removed first
        return
    with cache.new_file(path) as out, open(f"/proc/self/fd/{fd}", "rb") as source:
        while chunk := source.read(1 << 20):
            if out.tell() + len(chunk) > cache.limit:  # a file can say any size, and grow meanwhile
                raise OSError(errno.EFBIG, "larger than the cache")
            out.write(chunk)
