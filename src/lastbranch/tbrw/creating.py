"""The file that CREATE_ALWAYS makes: nobody else's, and in the place of an older one only when something is in it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO

from ..errors import UnavailableError
from ..formats.tb5 import Tb5Writer
from ..formats.tb5.durable import sync_folder
from ..formats.tb5.locking import lock
from ..model import check_replaceable
from ..model.output import PartFolder

__all__ = ["NewFile"]

_ATTEMPTS = 10


class NewFile:
    """An empty TB5 file. ``name`` is where it is: beside ``path`` as long as the older file that it replaces is there.

    Raises `UnavailableError` while another writer has the file, `OSError` where none can be made.
    """

    def __init__(self, path: str) -> None:
        check_replaceable(path)
        self.path = path
        self._held, self.replaces = _held(path)
        self._identity = _identity(os.fstat(self._held.fileno()))
        self._part: PartFolder | None = None
        self._appeared = False
        try:
            self._part = PartFolder(path, mode=0o700)
            self.name = self._part.file(os.path.basename(path))
            Tb5Writer.create(self.name).close()
            if os.name == "nt":  # files that are open cannot be renamed there
                self._held.close()
                self.appear()
        except BaseException:
            self.give_up()
            raise

    def appear(self) -> None:
        """Take the place of what is there, once."""
        if self._part is not None:
            self._identity = _identity(os.stat(self.name))
            self._part.give(os.path.basename(self.path))
            self._part, self.name, self._appeared = None, self.path, True
            sync_folder(self.path)

    def give_up(self) -> None:
        """Go away. An older file that was not replaced stays, and so does what another has put in the place since."""
        if self._part is not None:
            self._part.discard()
        if self._appeared or not self.replaces:
            with suppress(FileNotFoundError):
                if _identity(os.stat(self.path)) == self._identity:
                    os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Let others write to the file."""
        self._held.close()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _held(path: str) -> tuple[IO[bytes], bool]:
    """The file at ``path``, locked, and whether it was there before; an empty one is made to have something to lock."""
    for _ in range(_ATTEMPTS):
        try:
            file, found = open(path, "r+b", buffering=0), True  # noqa: SIM115 - closed by close
        except FileNotFoundError:
            try:
                file, found = open(path, "x+b", buffering=0), False  # noqa: SIM115
            except FileExistsError:
                continue
        try:
            lock(file, path)
            if _identity(os.fstat(file.fileno())) == _identity(os.stat(path)):
                return file, found
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()  # it was replaced between the two
    raise UnavailableError(f"{path}: other programs are writing to it", hint="try again when they are done")
