"""The arguments and the result of every export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..analysis import Estimate, StackCounts
    from ..model import Array, Profile, SampleFilter
    from ..symbols import SymbolOptions

__all__ = [
    "ExportOptions",
    "ExportResult",
    "Exporter",
    "write_lines",
]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The user's request, besides the format."""

    sample_filter: SampleFilter | None = None
    binary: str | None = None
    """One module only: its name, the last part of that, or the path of a file that is it."""
    symbols: SymbolOptions | None = None
    """Where names come from; ``None``: the defaults."""
    counted: Callable[[list[int]], StackCounts] | None = None
    """Where samples are no more: what was counted in the modules of these rows. Formats that need samples refuse it."""
    estimate: Estimate | None = None
    """What replaces counts by executions, in the formats of `ESTIMATED`; the others have samples as recorded."""
    symbol_order: IO[bytes] | None = None
    """Where ``propeller`` writes the order of functions, its second file."""
    list_version: int = 1
    """Of the list of clusters that ``propeller`` writes: 0 or 1."""
    contexts: bool = False
    """In `sampleprof`: count by calling context."""
    extbinary: bool = False
    """In `sampleprof` and `mispredictions`: LLVM's extensible binary form, and not text."""


class ExportResult(NamedTuple):
    """How much of the capture an export wrote."""

    notes: list[str]
    """For the user."""
    written: int
    """How many of the recorded ``unit`` the output represents."""
    recorded: int
    """How many were recorded and passed the filters, in the modules that were asked for."""
    unit: str = "samples"
    why: str = ""
    """Why the rest is missing, where the exporter knows."""

    @property
    def partial(self) -> bool:
        """Whether the output is empty or covers less than half of what was recorded: too little to build on."""
        return not self.written or 2 * self.written < self.recorded

    @property
    def verdict(self) -> list[str]:
        """A note that says so where the output is `partial`; nothing elsewhere."""
        if not self.partial:
            return []
        reason = f": {self.why}" if self.why else ""
        if not self.written:
            return [f"the output is empty: {self.why or 'nothing passes the filters'}"]
        percent = 100 * self.written / self.recorded
        return [f"the output covers {percent:.1f} % of the {self.recorded} recorded {self.unit}{reason}"]

    @property
    def all_notes(self) -> list[str]:
        """``notes``, then the verdict."""
        return self.notes + self.verdict


Exporter = Callable[["Profile", IO[bytes], ExportOptions], ExportResult]
"""Writes a profile. Raises `NotRecordedError` where the capture lacks what the format needs."""


def write_lines(out: IO[bytes], line: bytes, *columns: Array) -> None:
    """``line`` formatted with each row of the ``columns``."""
    out.writelines(line % row for row in zip(*(c.tolist() for c in columns), strict=True))


# -- The module that ``--binary`` names, and the file used as its binary
