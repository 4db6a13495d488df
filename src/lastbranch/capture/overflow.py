"""A recording whose disk fills goes on in the folder for temporary files, and the two pieces become one in the end.

Records are a stream of bytes, and a record may begin in one file and end in the other: the concatenated pieces are the
recording, to the byte. So nothing is lost until both places are full.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
from contextlib import ExitStack, suppress
from typing import IO, TYPE_CHECKING

from ..model.atomic_output import PartFile, unused_name

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["FULL", "Overflow", "copy_whole"]

FULL = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)
"""What says that a disk, a quota or a file is full."""
_COPIED = 1 << 20


class Overflow:
    """The place for the rest of ``spill`` if its disk is full. The collector writes (`writer`), its parent `join`s."""

    def __init__(self, spill: PartFile) -> None:
        self._spill = spill
        name = os.path.join(tempfile.gettempdir(), os.path.basename(spill.final))
        self.rest = f"{unused_name(name, 'rest')}.data"
        """The file of the rest, if there is one."""

    def writer(self) -> IO[bytes]:
        """A new file object that writes to the spill, and then to the rest."""
        return io.BufferedWriter(_Overflowing(os.dup(self._spill.file.fileno()), self.rest))

    def join(self) -> tuple[PartFile, str]:
        """The whole recording, and what the user has to know about it; nothing: its disk was not full.

        Raises `OSError` where there is no room to join the pieces: both are kept then, and the error says where.
        """
        if not os.path.exists(self.rest):
            return self._spill, ""
        try:
            with ExitStack() as undo, open(self.rest, "rb") as rest:
                whole = undo.enter_context(PartFile(self.rest.removesuffix(".data"), mode=0o600))
                self._spill.file.seek(0)
                for piece in (self._spill.file, rest):
                    copy_whole(piece, whole.file)
                undo.pop_all()
        except BaseException as error:
            begin = f"{unused_name(self._spill.final, 'unsaved')}.data"
            with suppress(OSError):
                self._spill.move(begin)
            if isinstance(error, OSError):
                said = f"no room to join its pieces: `cat {begin} {self.rest} > NAME.data` does"
                raise OSError(error.errno, f"{error.strerror}, {said}") from error
            raise
        os.unlink(self.rest)
        self._spill.discard()  # its disk has that room again
        where = os.path.dirname(self.rest)
        return whole, f"the disk of {self._spill.final} was full: the recording went on in {where}, nothing is lost"


def copy_whole(source: IO[bytes], to: io.FileIO) -> None:
    """Copy what is left of ``source``; an unbuffered file may take a part of what it is given. Raises `OSError`."""
    while piece := source.read(_COPIED):
        left = memoryview(piece)
        while left:
            left = left[to.write(left) :]


class _Overflowing(io.RawIOBase):
    """Writes to a descriptor, which it closes, and from when that is full on to a new file at ``rest``."""

    def __init__(self, descriptor: int, rest: str) -> None:
        self._descriptor, self._rest, self._went_on = descriptor, rest, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            if error.errno not in FULL or self._went_on:
                raise
            try:
                rest = os.open(self._rest, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except OSError:
                raise error from None  # there is no other place
        os.close(self._descriptor)
        self._descriptor, self._went_on = rest, True
        return os.write(rest, data)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
