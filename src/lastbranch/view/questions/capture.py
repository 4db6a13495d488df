"""What `info` and `check` say of the capture, and `doctor` of the machine that shows it."""

from __future__ import annotations

from typing import Any

from ...analysis import summarize
from ...analysis.checks import check
from ...capture import COLUMNS, examine
from ...errors import UnavailableError
from ...model import visible
from ..answer import Answer
from ..loaded import Loaded, Parameters

__all__ = ["capture", "doctor", "findings"]


def capture(loaded: Loaded, _parameters: Parameters) -> Answer:
    """The header is what `analysis.summarize` makes (docs/reference/info.md)."""
    return Answer(_shown(summarize(loaded.profile)))


def findings(loaded: Loaded, _parameters: Parameters) -> Answer:
    """Columns ``severity``, ``name``, ``means``, ``seen``, ``remedy``: texts, the worst first. Reads the file again."""
    if "-" in loaded.paths:
        raise UnavailableError(
            "a capture from standard input is not checked here", hint="save it, and view the file: check reads it twice"
        )
    found = [
        one._replace(seen=f"{path}: {one.seen}") if len(loaded.paths) > 1 else one
        for path in loaded.paths
        for one in check(
            path, symfs=loaded.symfs, folders=loaded.folders, symbols=loaded.symbols, reading=loaded.reading
        )
    ]
    columns = ("severity", "name", "means", "seen", "remedy")
    return Answer({}, {name: [visible(str(getattr(one, name))) for one in found] for name in columns})


def doctor(_loaded: Loaded, _parameters: Parameters) -> Answer:
    """Columns as `capture.doctor.COLUMNS`: texts, a row for each command."""
    rows = [row for finding in examine() for row in finding.rows]
    return Answer({}, {name: [visible(row[i]) for row in rows] for i, name in enumerate(COLUMNS)})


def _shown(value: Any) -> Any:
    """Every text in ``value`` made safe to show."""
    match value:
        case dict():
            return {visible(str(key)): _shown(one) for key, one in value.items()}
        case list() | tuple():
            return [_shown(one) for one in value]
        case str():
            return visible(str(value))
    return value
