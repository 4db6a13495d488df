"""``lastbranch cache``."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from .options import table_options
from .output import Cell, print_notes, print_rows

if TYPE_CHECKING:
    from ..symbols import Cache

_WHAT: dict[str, Callable[[list[Any]], tuple[str, str]]] = {
    "answer": lambda key: (key[2], key[1]),
    "names": lambda key: ("names", _of_symbols(key)),
    "functions": lambda key: ("functions", _of_symbols(key)),
}
"""Ends of file names -> (what is kept, of which file) by the key."""
_BINARIES = {"binary": "binary", "debug": "debug file"}
_FOLDERS = ("symbols", "results", "binaries")


@click.command()
@click.argument("action", type=click.Choice(["list", "size", "path", "clear"]), default="list")
@table_options
def command(action: str, form: str, limit: int) -> int:
    """List or remove what lastbranch keeps on disk.

    lastbranch keeps names read from symbol files, and the counts of large captures (400,000 samples and more) that
    `view` has shown, so that these open quickly the next time. Both are found by the contents of the files that they
    come from, so what has changed is never used. It also keeps the binaries of recorded containers, by their build ids.
    Each kind takes at most 1 GiB: the least recently used files go first.

    list shows the files, the most recently used first; size the bytes of each folder; path the folders. clear removes
    all files.
    """
    from ..model import counted, default_cache
    from ..symbols import CacheRefused, open_cache

    caches: dict[str, Cache] = {}
    for name in _FOLDERS:
        folder = default_cache(name)
        if os.path.isdir(folder):
            try:
                found = open_cache(folder, name)
            except CacheRefused as refusal:
                print_notes([str(refusal)], "warning")
                continue
            if found:
                caches[name] = found
    rows: list[list[Cell]] = []
    match action:
        case "path":
            print_rows(["folder", "path"], [[name, default_cache(name)] for name in _FOLDERS], form)
        case "size":
            for name, one in caches.items():
                files = one.files()
                rows.append([name, len(files), sum(size for _, size, _ in files), one.limit])
            print_rows(["folder", "files", "bytes", "at most"], rows, form)
        case "clear":
            files = [file for one in caches.values() for file in one.files()]
            for _, _, path in files:
                with suppress(FileNotFoundError):  # another lastbranch made room
                    os.unlink(path)
            print_notes([f"{counted(len(files), 'file')} of {sum(size for _, size, _ in files):,} bytes were removed"])
        case _:
            for one in caches.values():
                rows += _rows_of(one)
            rows.sort(key=lambda row: str(row[0]), reverse=True)
            print_rows(["last used", "bytes", "kept", "of"], rows[: limit or None], form, last=("of",))
            if not rows:
                print_notes(["nothing is kept"])
    return 0


def _rows_of(one: Cache) -> list[list[Cell]]:
    from datetime import datetime

    rows: list[list[Cell]] = []
    for used, size, path in one.files():
        stem, _, kind = os.path.basename(path).rpartition(".")
        if kind in _BINARIES:
            kept, of = _BINARIES[kind], f"build id {stem}"
        else:
            key = one.key_of(path)
            kept, of = _WHAT[kind](key) if kind in _WHAT and key else (kind, "")
        rows.append([datetime.fromtimestamp(used).isoformat(" ", "seconds"), size, kept, of])
    return rows


def _of_symbols(key: list[object]) -> str:
    """The names of the files that names were read from (`Symbolizer._key`), or what else they are known by."""
    states = next((part for part in key if isinstance(part, list) and part and isinstance(part[0], list)), [])
    return ", ".join(dict.fromkeys(str(state[0]) for state in states)) or str(key[1])
