"""Profiles into TB5 files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from ..bind import Binder
from ..bind.loads import loaded
from ..formats.tb5.encoding import SampleWriter
from ..formats.tb5.profile_writer import StreamedProfile
from ..model import Machine, Profile

__all__ = ["ProfileWriter", "write_profile"]


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
