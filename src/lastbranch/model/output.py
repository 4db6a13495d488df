"""What writers of files have in common."""

from __future__ import annotations

import os

from ..errors import UnavailableError

__all__ = ["check_replaceable"]


def check_replaceable(path: str) -> None:
    """Raise `UnavailableError` if ``path`` names something that is not a file.

    Writers rename a complete file over the old one: a device or a pipe of that name would be gone.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "not a regular file"
        raise UnavailableError(f"{path} is {kind} and cannot be replaced", hint="give the name of a file")
