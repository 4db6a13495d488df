"""`convert`, `verify` and `dump`: each verb of the command line that needs several parts of the package, as one call.

None of them branches on formats: `formats.registry` names what each format can do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import or_
from typing import TYPE_CHECKING

from .errors import Damage, FormatError, SelectionError
from .formats.dump import TEXT, Dump, Wanted
from .formats.interface import Conversion, Reading, Rewriting
from .formats.registry import format_of, format_written_to
from .model import Progress, Stages, no_progress
from .opening import open_source, read_profile

if TYPE_CHECKING:
    from fractions import Fraction

__all__ = ["Verified", "convert", "dump", "similar_events", "verify"]

_FIRST = 10_000
"""So many events are looked at for names that are like one that no event has."""

_Path = str | os.PathLike[str]


# -- convert


def convert(
    captures: _Path | Sequence[_Path],
    output: _Path,
    *,
    compress: bool | None = None,
    start: Fraction | None = None,
    end: Fraction | None = None,
    pids: Iterable[int] = (),
    reading: Reading | None = None,
    stages: Stages | None = None,
) -> Conversion:
    """Write ``captures`` as the file ``output``, which appears when it is complete: a TB5 where its name ends in .tb5,
    else a Windows trace log.

    Files that are in the format of ``output`` already are written anew without loss. Several trace logs can become one
    log, and a part of a log can be written: events with ``start <= time < end`` (seconds since the first event) and of
    the processes ``pids``, with all that these events need. Other captures are converted singly and whole.
    ``compress``: whether buffers of a log are compressed, ``None`` as in the first one. The output stores findings of
    `check` about events that the output will not have. The output can be read by nobody who may not read every capture.

    ``reading`` is what `opening.reading_of` returns, ``stages`` begins each stage that takes long. Raises
    `SelectionError` for a part, or for several captures, if the format does not allow these, `FormatError` if nothing
    can be read, `OSError` if a file cannot be opened or written. Damaged parts are left out, and listed in the result.
    """
    paths = [os.fspath(path) for path in ([captures] if isinstance(captures, str | os.PathLike) else captures)]
    stages = stages or no_progress
    path, how = os.fspath(output), Rewriting(start, end, frozenset(pids), compress, reading)
    target, parts = format_written_to(path), how != Rewriting(compress=compress, reading=reading)
    if not target.cuts and (compress is not None or parts or len(paths) > 1):
        raise SelectionError(f"{path}: of one input as a whole, without --compress, --time and --pid")
    sources = [open_source(one) for one in paths]
    same = len(sources) > 1 or format_of(sources[0]) is target
    warnings: list[str] = []
    notes: list[str] = []
    with _as_private_as(paths):
        if target.rewriter is not None and same and (target.cuts or (not reading and os.path.isfile(paths[0]))):
            try:
                return target.rewrite(sources, path, how)
            except FormatError as error:
                if target.cuts:
                    raise
                warnings.append(str(error))
                notes.append("not copied: damaged samples, user-defined data, custom streams, binding")
                sources = [open_source(one) for one in paths]
        if parts:
            raise SelectionError("--time and --pid cut .etl files: convert the whole capture first, then that file")
        (source,) = sources
        with stages("indexing") as progress:
            profile = read_profile(source, progress, reading)
        if format_of(source).checks_events:
            from .analysis.checks import keep_findings

            keep_findings(profile, source, reading)
        with stages("writing") as progress:
            done = target.write(profile, path, compress=compress, progress=progress)
    damage = [(source.name, one) for one in profile.damage]
    return done._replace(damage=damage, notes=[*notes, *done.notes], warnings=warnings)


@contextmanager
def _as_private_as(paths: Sequence[str]) -> Iterator[None]:
    """Files made meanwhile are as private as the files ``paths``: a session's log, or perf's, has mode 0600."""
    closed = [~os.stat(path).st_mode & 0o066 for path in paths if os.path.isfile(path)]
    before = os.umask(0o077)  # there is no other way to read it
    os.umask(reduce(or_, closed, before))
    try:
        yield
    finally:
        os.umask(before)


# -- verify


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of `verify` for a capture."""

    records: int
    samples: int
    entries: int
    """Branch entries."""
    damage: Sequence[Damage]
    buffers_lost: int
    """Whole buffers lost by the session that wrote a log."""


def verify(
    path: _Path, *, symfs: str | None = None, reading: Reading | None = None, stages: Stages | None = None
) -> Verified:
    """Read everything in the capture at ``path`` (``-``: standard input), and report all damage.

    Arguments and raised errors are the same as for `open` and `convert`.
    """
    source, stages = open_source(os.fspath(path)), stages or no_progress
    with stages("indexing") as progress:
        profile = read_profile(source, progress, reading, symfs)
    samples = entries = 0
    with stages("reading samples") as progress:
        for stream in profile.streams:
            stream.progress = progress
        for batch in profile.batches():
            samples += len(batch)
            entries += batch.entries
    damage = [*profile.damage]
    damage += [one for one in format_of(source).verify(source) if one not in damage]
    return Verified(sum(profile.records.values()), samples, entries, damage, profile.lost.get("buffers", 0))


# -- dump


def dump(
    path: _Path, wanted: Wanted | None = None, *, reading: Reading | None = None, progress: Progress | None = None
) -> Dump:
    """The events of the capture at ``path`` (``-``: standard input) in time order, or those that are ``wanted``.

    Raises `SelectionError` where events are wanted by provider and have none, else what `open` raises.
    """
    source, wanted = open_source(os.fspath(path)), wanted or Wanted()
    found = format_of(source)
    if wanted.provider is not None and not found.has_providers:
        raise SelectionError(f"events of {found.name} have no provider")
    return found.dump(source, wanted, progress, reading)


def similar_events(path: _Path, names: Iterable[str], reading: Reading | None = None) -> list[str]:
    """The names of the capture's events that are similar to any of ``names`` (lower case)."""
    from difflib import get_close_matches

    seen = {cells[_EVENT] for cells in islice(dump(path, reading=reading).cells(TEXT), _FIRST)}
    known = {name.lower(): name for full in seen for name in _names(full) if name}
    return list({known[found]: None for name in sorted(names) for found in get_close_matches(name, known)})


_EVENT = 4
"""The index of the event among the cells of a row."""


def _names(full: str) -> tuple[str, str, str]:
    """The names by which a user can ask for an event: the whole name, the name without its provider, and the task."""
    short = full.partition("/")[2]
    return full, short, short.partition("/")[0]
