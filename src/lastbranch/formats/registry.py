"""The formats of captures, and which one a file is in. Nothing of a format is imported before it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from ..model import Profile, Source, read_at

if TYPE_CHECKING:
    from .etl.decode import Reading
    from .rows import Dump, Wanted

__all__ = ["FORMATS", "SNIFFED", "Format", "Progress", "format_of", "not_of_format"]

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

SNIFFED = 128
"""Bytes at the start of a file that tell its format."""


@dataclass(frozen=True, slots=True)
class Format:
    """One format of captures. Its functions are given as ``module:function`` within this package."""

    name: str
    called: str
    """To users, in the list of what can be read."""
    sniffer: str
    reader: str
    dumper: str | None = None
    """``None``: the events are those of the profile."""
    has_providers: bool = False
    """Whether events come from providers with a GUID, and `Reading` says how."""

    def sniff(self, start: bytes) -> bool:
        """Whether a file that begins with ``start`` (`SNIFFED` bytes, fewer where it is shorter) is of this format."""
        found: bool = _function(self.sniffer)(start)
        return found

    def read(self, source: Source, progress: Progress | None = None, reading: Reading | None = None) -> Profile:
        """The profile in ``source``, its modules without binaries. Raises `FormatError` where nothing can be read, or a
        ``reading`` is given for a format without providers."""
        profile: Profile = _function(self.reader)(source, progress, **self._as_given(source, reading))
        return profile

    def _as_given(self, source: Source, reading: Reading | None) -> dict[str, Reading]:
        if not reading:
            return {}
        if not self.has_providers:
            reason = f"is {self.name}: only events of a Windows trace log can be read differently from what they say"
            raise FormatError(reason, file=source.name)
        return {"reading": reading}

    def dump(
        self, source: Source, wanted: Wanted, progress: Progress | None = None, reading: Reading | None = None
    ) -> Dump:
        """The ``wanted`` events of ``source`` in time order. Raises `FormatError` as `read` does."""
        more = self._as_given(source, reading)
        if self.dumper is None:
            from .profile_dump import dump_profile

            return dump_profile(self.read(source), wanted, progress)
        rows: Dump = _function(self.dumper)(source, wanted, progress, **more)
        return rows


FORMATS = (
    Format("tb5", "its own .tb5", "tb5.magic:is_tb5", "tb5.profile_reader:read_tb5"),
    Format(
        "perf.data",
        "perf.data, as `perf record -b` writes it",
        "perfdata.header:is_perfdata",
        "perfdata.reader:read_perfdata",
        "perfdata.dump:dump_perfdata",
    ),
    Format(
        "etl",
        "Windows .etl",
        "etl.container.header:is_etl",
        "etl.profile.reader:read_etl",
        "etl.dump:dump_etl",
        has_providers=True,
    ),
    Format(
        "perf script",
        "the text of `perf script`",
        "perfscript.reader:is_perfscript",
        "perfscript.reader:read_perfscript",
    ),
)
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
    raise not_of_format(source.name, start, "not a capture that lastbranch reads", hint)


def not_of_format(name: str, start: bytes, reason: str, hint: str | None = None, **where: object) -> FormatError:
    """The error for file ``name`` that begins with ``start``: it is empty, packed, or else ``reason`` with ``hint``.

    ``where``: offset, field and value that ``reason`` is about; without them the magic number.
    """
    for magic, (packer, unpack) in _PACKED.items():
        if start.startswith(magic):
            reason, hint, where = f"packed with {packer}", f"unpack it first, with `{unpack}`", {}
    place: dict[str, Any] = {"offset": 0, "field": "magic", "value": start[:8] or None, **where}
    return FormatError(reason if start else "file is empty", file=name, hint=hint, **place)


_PACKED = {
    b"\x1f\x8b": ("gzip", "gzip -d"), b"\xfd7zXZ\0": ("xz", "xz -d"), b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"BZh": ("bzip2", "bzip2 -d"), b"PK\3\4": ("zip", "unzip"), b"MSCF": ("cabinet", "cabextract"),
}  # fmt: skip
"""First bytes of what captures are sent around in -> its name, and what unpacks it."""
