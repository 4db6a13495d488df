"""A folder with one file per module and an index: written completely or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from ..errors import NotRecordedError, UnavailableError
from ..model import Module, PartFolder, Profile, word
from .interface import ExportOptions, ExportResult
from .modules import ModuleCounts, ModuleFormat, count_modules, unverified_notes, why_not

__all__ = ["INDEX", "export_folder", "write_index", "writing_folder"]

INDEX = "index.tsv"
"""File in the folder that names the module of each file, one per line."""

_LONGEST_NAME = 100


def export_folder(profile: Profile, folder: str, form: ModuleFormat, options: ExportOptions) -> ExportResult:
    """Write one file in ``folder`` for each module that has counts, in one pass.

    Raises `NotRecordedError` where there is no such module or nothing that the format needs, `OutputError` where the
    folder cannot be written.
    """
    reasons = {i: why_not(module, form) for i, module in enumerate(profile.modules)}
    with writing_folder(folder) as place:  # first of all: whether it can be written is known before the long pass
        found, notes = count_modules(profile, options, form, list(reasons))
        left = [f"{word(c.module.name)} is left out: {reasons[c.row]}" for c in found if not c.empty and reasons[c.row]]
        kept = [c for c in found if not c.empty and not reasons[c.row]]
        written, recorded, unit, lines = 0, 0, "", list[str]()
        for name, counts in zip(_names([c.module for c in kept], form.suffix), kept, strict=True):
            files = [name, *([name.removesuffix(form.suffix) + form.second] if form.second else [])]
            try:
                with ExitStack() as opened:
                    out, *second = (opened.enter_context(place.open(file)) for file in files)
                    done = form.write(counts, out, replace(options, symbol_order=second[0] if second else None))
            except UnavailableError as error:  # others can do without what this one lacks
                left.insert(0, f"{word(counts.module.name)} is left out: {error}")
                for file in files:
                    os.remove(place.file(file))
                continue
            notes += [f"{name}: {note}" for note in (*unverified_notes(counts), *done.all_notes)]
            written, recorded, unit = written + done.written, recorded + done.recorded, done.unit
            lines += (_index_line(file, counts) for file in files)
        if not lines:
            hint = "; ".join([*left[:3], "pass the folder of the binaries with --symfs"]) if left else None
            raise NotRecordedError("no module with recorded data can be written", hint=hint)
        if os.path.splitext(folder)[1]:  # as files have, and a file may have been expected
            notes.insert(0, f"{folder} is a folder, with a file for each module: --binary NAME writes one file")
        write_index(place, "file\tmodule\tbuild_id\tranges\tbranches\n", lines)
    return ExportResult(notes + left, written, recorded, unit, "see the notes about the files")


def _index_line(name: str, counts: ModuleCounts) -> str:
    ranges, branches = int(counts.times.sum()), int(counts.taken.sum())
    return f"{name}\t{word(counts.module.name)}\t{counts.module.build_id.hex() or '-'}\t{ranges}\t{branches}\n"


def write_index(place: PartFolder, head: str, lines: Iterable[str]) -> None:
    """Say in the folder what is in it."""
    with place.open(INDEX) as index:
        index.writelines(line.encode() for line in (head, *lines))


def _names(modules: list[Module], suffix: str) -> list[str]:
    """A file name for each module: safe on any system, unique whatever their case."""
    taken, names = {INDEX}, []
    for module in modules:
        stem = re.sub(r"[^A-Za-z0-9._+-]", "_", module.short)[:_LONGEST_NAME].lstrip(".") or "_"
        number, name = 1, f"{stem}.{suffix}"
        while name.lower() in taken:
            number += 1
            name = f"{stem}-{number}.{suffix}"
        taken.add(name.lower())
        names.append(name)
    return names


@contextmanager
def writing_folder(path: str) -> Iterator[PartFolder]:
    """A new folder that appears as ``path`` when all is written. One that was written so before is replaced.

    Raises `UnavailableError` where something else has that name, `OutputError` where nothing can be written.
    """
    path = path.rstrip("/" + os.sep) or path
    _check_replaceable(path)
    with PartFolder(path) as part:
        yield part
        _check_replaceable(path)  # what others put there meanwhile stays
        part.appear()


def _check_replaceable(path: str) -> None:
    if not os.path.lexists(path):
        return
    if not os.path.isdir(path) or os.path.islink(path):
        raise UnavailableError(
            f"{path} is not a folder", hint="a file for each module goes to a new folder; --binary NAME writes one file"
        )
    there = set(os.listdir(path))
    index = os.path.join(path, INDEX)
    ours = {INDEX}
    if os.path.isfile(index):
        with open(index, encoding="utf-8", errors="replace") as lines:
            ours.update(line.split("\t", 1)[0] for line in lines)
    if there - ours:
        raise UnavailableError(
            f"{path} contains files that no export wrote, such as {min(there - ours)}", hint="name a new folder"
        )
