"""Profiles into TB5 files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection

from ..bind import Binder
from ..bind.loads import loaded
from ..formats.tb5.profile_writer import StreamedProfile
from ..formats.tb5.reader import Tb5File
from ..formats.tb5.sample_writer import SampleWriter
from ..formats.tb5.writer import Tb5Writer, lock
from ..model import Machine, Profile, Source
from ..opening import FileSource

__all__ = ["ProfileWriter", "compact", "copy", "write_profile"]


class ProfileWriter:
    """A TB5 file from batches as they come; tables are given at the end. The file appears when it is finished."""

    def __init__(self, path: str | os.PathLike[str], machine: Machine | None = None) -> None:
        """``machine`` is where the samples are from; without it, this one."""
        self._file = StreamedProfile(path, machine)

    def stream(self, columns: Collection[str], *, depth: int = 32) -> SampleWriter:
        """Start a stream of samples that have ``columns`` (the model's names) and at most ``depth`` branch entries.

        Its ``write`` raises `ValueError` for a deeper stack.
        """
        return self._file.stream(columns, depth=depth)

    def finish(self, profile: Profile) -> None:
        """Complete the file with the tables of ``profile``: its streams are not looked at."""
        binder = Binder(profile)
        self._file.finish(profile, loaded(profile), binder.processes, binder.threads)

    def abort(self) -> None:
        """Give up: a file of that name stays what it was."""
        self._file.abort()


def write_profile(
    profile: Profile, path: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write all of ``profile`` as a TB5 file, which appears at ``path`` when it is complete.

    ``progress`` is called with (samples written, samples in all).
    """
    writer = ProfileWriter(path, profile.machine)
    try:
        written = 0
        for stream in profile.streams:
            out = writer.stream(stream.columns, depth=stream.deepest)
            for batch in stream.batches():
                out.write(batch)
                written += len(batch)
                if progress:
                    progress(written, profile.samples)
        writer.finish(profile)
    except BaseException:
        writer.abort()
        raise


# -- Files written anew, table by table: what the last commit refers to, and nothing else


def compact(path: str | os.PathLike[str]) -> int:
    """Give back the space of what is no longer in the file's directory; returns the bytes that this freed.

    The old file stays until the new one is complete, which takes its permissions; a link goes on to lead there. Raises
    `FormatError` at a damaged block: nothing is given up.
    """
    name = os.path.realpath(path)
    with open(name, "r+b", buffering=0) as held, Tb5File(FileSource(name)) as old, Tb5Writer.create(name) as new:
        lock(held, name)
        shutil.copymode(name, new.path)
        before = old.source.size
        _copy(old, new)
    return before - os.path.getsize(name)


def copy(source: Source, path: str | os.PathLike[str]) -> int:
    """Write all tables of the TB5 file ``source`` as a file that appears at ``path`` when it is complete; returns how
    many. Raises `FormatError` at a damaged block."""
    with Tb5File(source) as old, Tb5Writer.create(path) as new:
        _copy(old, new)
        return len(old.tables)


def _copy(old: Tb5File, new: Tb5Writer) -> None:
    for key, entry in old.tables.items():
        table = new.table(key, entry.record_size, in_order=False)
        for rows in old.blocks(key):
            table.write(rows)
        table.done()
