"""What this machine can record, why not the rest, and the command that would change it.

Nothing is changed by looking. Systems other than Linux are told from a table.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from .changes import Change

__all__ = ["COLUMNS", "Finding", "examine"]

COLUMNS = ("capability", "state", "why", "command", "scope")


class Finding(NamedTuple):
    """``state`` is ``yes``, ``no``, or the value of a setting; ``changes`` would make more possible."""

    capability: str
    state: str
    why: str = ""
    changes: tuple[Change, ...] = ()

    @property
    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """As `COLUMNS`: one row a command, or one without."""
        what = (self.capability, self.state, self.why)
        return [(*what, *change) for change in self.changes] or [(*what, "", "")]


def examine() -> list[Finding]:
    """Look at this machine."""
    system: str = sys.platform
    if system.startswith("linux"):
        from .doctor_linux import findings
        from .kernel import Linux

        return list(findings(Linux()))
    return list(_ELSEWHERE.get(system, _ELSEWHERE["other"]))


_READS = Finding("read captures", "yes", "perf.data and .etl files of any machine are read here")
_NO_SOFTWARE = Finding("software branch records", "no", "they are made with Linux' ptrace on x86-64")
_ELSEWHERE: dict[str, tuple[Finding, ...]] = {
    "win32": (
        Finding(
            "hardware branch records", "by Windows",
            "event tracing records them where the processor has LBR and no hypervisor hides it",
            (Change("xperf -on PROC_THREAD+LOADER+PMC_PROFILE -LastBranch PmcInterrupt", "until xperf -stop"),),
        ),
        _NO_SOFTWARE, _READS,
    ),
    "darwin": (
        Finding("hardware branch records", "no", "macOS offers none, nor passes any on to virtual machines"),
        _NO_SOFTWARE, _READS,
    ),
    "other": (
        Finding("hardware branch records", "no", "they are recorded on Linux, and by Windows"), _NO_SOFTWARE, _READS,
    ),
}  # fmt: skip
