"""The formats of captures: what each supports, and how to recognize it. A format is imported only when it is needed.

A new format is one package and one line of `FORMATS`, and its rules in `analysis.checks.RULES`. Every verb goes through
here, and none knows formats by name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import Damage, FormatError, SelectionError
from ..model import Profile, Progress, Source, StackWatcher, read_at
from .interface import Conversion, Reading, Rewriting, not_of_format

if TYPE_CHECKING:
    from .dump import Dump, Wanted

__all__ = ["FORMATS", "SNIFFED", "Format", "format_of", "format_written_to"]

SNIFFED = 128
"""Bytes at the start of a file that identify its format."""


class Format(NamedTuple):
    """One format of captures. Its functions are given as ``module:function`` within this package."""

    name: str
    called: str
    """To users, in the list of what can be read."""
    sniffer: str
    opener: str
    dumper: str | None = None
    """``None``: the events are those of the profile."""
    verifier: str | None = None
    """``None``: reading all samples sees everything that there is."""
    writer: str | None = None
    rewriter: str | None = None
    """For files that stay in their format; ``None``: they go through a profile."""
    endings: tuple[str, ...] = ()
    """Of names of files that `writer` makes, in lower case."""
    has_providers: bool = False
    """Whether events come from providers with a GUID, and a `Reading` says how."""
    checks_events: bool = False
    """Whether rules of `check` look at events that its profiles do not have: `analysis.checks.RULES`."""
    shows_stacks: bool = False
    """Whether `opener` takes a `StackWatcher`."""
    cuts: bool = False
    """Whether `rewriter` takes several files, and parts of them."""

    def sniff(self, start: bytes) -> bool:
        """Whether a file that begins with ``start`` (`SNIFFED` bytes, fewer where it is shorter) is of this format."""
        found: bool = _function(self.sniffer)(start)
        return found

    def open(
        self,
        source: Source,
        progress: Progress | None = None,
        reading: Reading | None = None,
        watcher: StackWatcher | None = None,
    ) -> Profile:
        """The content of ``source`` as a profile, not bound yet. ``watcher`` sees its branch stacks where the format
        `shows_stacks`. Raises `FormatError` where nothing can be read, or a ``reading`` is given for a format without
        providers."""
        more: dict[str, object] = {**self._as_given(source, reading)}
        if watcher is not None and self.shows_stacks:
            more["watcher"] = watcher
        profile: Profile = _function(self.opener)(source, progress, **more)
        return profile

    def _as_given(self, source: Source, reading: Reading | None) -> dict[str, Reading]:
        if not reading:
            return {}
        if not self.has_providers:
            reason = f"is {self.name}: only Windows trace logs (.etl) take a pointer size and manifests"
            raise FormatError(reason, file=source.name)
        return {"reading": reading}

    def dump(
        self, source: Source, wanted: Wanted, progress: Progress | None = None, reading: Reading | None = None
    ) -> Dump:
        """The ``wanted`` events of ``source`` in time order. Raises `FormatError` as `open` does."""
        more = self._as_given(source, reading)
        if self.dumper is None:
            from .dump import dump_profile

            return dump_profile(self.open(source), wanted, progress)
        rows: Dump = _function(self.dumper)(source, wanted, progress, **more)
        return rows

    def verify(self, source: Source) -> list[Damage]:
        """Damage in ``source`` that reading all samples does not find."""
        found: list[Damage] = _function(self.verifier)(source) if self.verifier is not None else []
        return found

    def write(
        self, profile: Profile, path: str, *, compress: bool | None = None, progress: Progress | None = None
    ) -> Conversion:
        """Write all of a profile that is bound. The file appears at ``path`` when it is complete. ``progress`` is
        called with samples. `FormatError` for a format that is only read."""
        if self.writer is None:
            raise FormatError(f"is not written: lastbranch cannot write the format {self.name}", file=path)
        done: Conversion = _function(self.writer)(
            profile, path, progress=progress, **({} if compress is None else {"compress": compress})
        )
        return done

    def rewrite(self, sources: Sequence[Source], path: str, how: Rewriting) -> Conversion:
        """Write ``sources`` of this format as one file of the format, which appears at ``path`` when it is complete.
        For a format with a `rewriter`. Raises `FormatError` for sources that the rewriter cannot take over."""
        done: Conversion = _function(self.rewriter or "")(sources, path, how)
        return done


FORMATS = (
    Format(
        "tb5", "its own .tb5", "tb5:is_tb5", "tb5.profile_reader:read_tb5",
        verifier="tb5.verification:verify_tb5", writer="tb5.profile_writer:write_profile",
        rewriter="tb5.writer:copy_tb5", endings=(".tb5",),
    ),
    Format(
        "perf.data", "perf.data, as `perf record -b` writes it", "perfdata.header:is_perfdata",
        "perfdata.reader:read_perfdata", "perfdata.dump:dump_perfdata", shows_stacks=True,
    ),
    Format(
        "etl", "Windows .etl", "etl.container.header:is_etl", "etl.profile.reader:read_etl", "etl.dump:dump_etl",
        writer="etl.profile.writer:write_log", rewriter="etl.convert_logs:rewrite_logs", endings=("", ".etl"),
        has_providers=True, checks_events=True, cuts=True,
    ),
    Format(
        "perf script", "the text of `perf script`", "perfscript.reader:is_perfscript",
        "perfscript.reader:read_perfscript",
    ),
)  # fmt: skip
"""In the order in which files are tried: those with a magic number first."""


def _function(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


def format_of(source: Source) -> Format:
    """The format of ``source`` by its first bytes. Raises `FormatError` for one that is not among `FORMATS`."""
    start = read_at(source, 0, SNIFFED)
    for found in FORMATS:
        if found.sniff(start):
            return found
    *most, last = (one.called for one in FORMATS)
    hint = f"it reads {', '.join(most)} and {last}"
    raise not_of_format(source.name, start, "not a capture that lastbranch can read", hint)


def format_written_to(path: str) -> Format:
    """The format that a file with the name ``path`` is written in, by its ending. Raises `SelectionError`."""
    ending = os.path.splitext(path)[1].lower()
    for found in FORMATS:
        if ending in found.endings:
            return found
    raise SelectionError(
        f"{path}: a capture converts to TB5 (a name ending in .tb5) or a trace log (.etl, or no ending), not to "
        f"{ending}; `lastbranch export` writes other formats"
    )
