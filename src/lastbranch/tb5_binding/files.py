"""TB5 files written whole: a profile as one, with what the binder knows of it, and one anew without its garbage."""

from __future__ import annotations

import os
import shutil

from ..bind import Binder
from ..formats.tb5.profile_writer import StreamedProfile
from ..formats.tb5.reader import Tb5File
from ..formats.tb5.writer import Tb5Writer, copy_tables, lock
from ..model import Profile
from ..opening import FileSource

__all__ = ["ProfileWriter", "compact"]


class ProfileWriter(StreamedProfile):
    """A TB5 file from batches as they come; tables are given at the end. The file appears when it is finished."""

    def finish(self, profile: Profile) -> None:
        """Complete the file with the tables of ``profile``: its streams are not looked at."""
        binder = Binder(profile)
        self.complete(profile, binder.loads(), binder.processes, binder.threads)


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
        copy_tables(old, new)
    return before - os.path.getsize(name)
