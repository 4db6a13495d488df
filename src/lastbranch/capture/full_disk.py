"""A recording whose disk fills goes on in the folder for temporary files, and the two pieces become one in the end.

`RecordFile` writes both: nothing is lost until both places are full, the latter up to the room that the whole takes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import IO

from ..formats.perfdata.record_file import RecordFile
from ..model import FULL, OutputError, PartFile, counted, unused_name
from .traceable import CollectorError

__all__ = ["Overflow", "Say", "copy_whole", "loss_of"]

Say = Callable[[str], None]
_COPIED = 1 << 20


class Overflow:
    """The file ``spill`` of a recording, and ``rest``, the file that takes over if the disk of ``spill`` is full.

    The collector writes the two files (`writer`); the collector's parent joins them (`join`).
    """

    def __init__(self, spill: PartFile, rest: str = "") -> None:
        self.spill = spill
        name = os.path.join(_temporary_folder(), os.path.basename(spill.final))
        self.rest = rest or f"{unused_name(name, 'rest')}.data"
        """The file of the rest, if there is one."""

    @classmethod
    def of_new_file(cls, output: str) -> Overflow:
        """The overflow of a new part of ``output``; the part is in the folder for temporary files if ``output``'s disk
        is full."""
        try:
            return cls(PartFile(output))
        except OutputError as error:
            if error.errno not in FULL:
                raise
            return cls(PartFile(os.path.join(_temporary_folder(), os.path.basename(output))))

    @property
    def size(self) -> int:
        """Bytes of both pieces."""
        rest = os.path.getsize(self.rest) if os.path.exists(self.rest) else 0
        return os.fstat(self.spill.file.fileno()).st_size + rest

    def writer(self, went_on: Callable[[], None] = lambda: None) -> RecordFile:
        """A new file object that writes to the spill, and then to the rest; ``went_on``: see `RecordFile`."""
        return RecordFile(os.dup(self.spill.file.fileno()), self.rest, went_on)

    def tells(self, say: Say, watched: bool) -> Callable[[], None]:
        """A function for ``went_on`` that reports the move at once. ``watched``: somebody looks at the growing
        spill."""
        still = "; what you look at stands still until it is complete" if watched else ""
        where = os.path.dirname(self.rest)
        return lambda: say(f"the disk of {self.spill.final} is full: the recording goes on in {where}{still}")

    def whole(self, output: str) -> PartFile:
        """`join`, with `CollectorError` of ``output``."""
        try:
            return self.join()
        except OSError as error:
            raise CollectorError(f"{output} cannot be written: {error.strerror}") from error

    def join(self) -> PartFile:
        """The whole recording.

        Raises `OSError` if there is no room to join the pieces: both pieces are then kept, and the error names both.
        """
        if not os.path.exists(self.rest):
            return self.spill
        try:
            with ExitStack() as undo, open(self.rest, "rb") as rest:
                whole = undo.enter_context(PartFile(self.rest.removesuffix(".data"), mode=0o600))
                self.spill.file.seek(0)
                for piece in (self.spill.file, rest):
                    copy_whole(piece, whole.file)
                undo.pop_all()
        except BaseException as error:
            begin = f"{unused_name(self.spill.final, 'unsaved')}.data"
            with suppress(OSError):
                self.spill.move(begin)
            if isinstance(error, OSError):
                said = f"no room to join its pieces: `cat {begin} {self.rest} > NAME.data` does"
                raise OSError(error.errno, f"{error.strerror}, {said}") from error
            raise
        os.unlink(self.rest)
        self.spill.discard()  # its disk has that room again
        return whole


def _temporary_folder() -> str:
    """The folder for temporary files. A program waits for its recorder's imports, and `tempfile` has many."""
    return os.environ.get("TMPDIR") or "/tmp"


def loss_of(dropped: int) -> CollectorError:
    """The error that ends a recording without room; ``dropped`` records are not in its file."""
    lost = f", {counted(dropped, 'record')} of its end {'is' if dropped == 1 else 'are'} lost" if dropped else ""
    return CollectorError(
        f"the recording ended early: no disk has room for more{lost}",
        hint="free some space, or write elsewhere with -o",
    )


def copy_whole(source: IO[bytes], to: io.FileIO) -> None:
    """Copy the rest of ``source``; an unbuffered file may take a part of what it is given. Raises `OSError`."""
    while piece := source.read(_COPIED):
        left = memoryview(piece)
        while left:
            left = left[to.write(left) :]
