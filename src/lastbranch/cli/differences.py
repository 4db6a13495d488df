"""How `lastbranch diff` and `lastbranch fleet diff` print what they found: as rows, as Markdown for a pull request, or
as SARIF for what shows findings beside source lines."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from .options import rows_options, stacked
from .output import EXCEEDED, Cell, print_json, print_lines, print_rows

if TYPE_CHECKING:
    from ..analysis import CodeLocation, Difference
    from ..model import Profile, SampleFilter

__all__ = ["ENDS", "difference_options", "exceeded", "noise_note", "print_difference", "verdict"]

_SPARE = ("A samples", "B samples", "p")
ENDS = {"function": ("function",), "edge": ("from", "to"), "block": ("block",)}
"""What a row can be, and what its places are called."""

difference_options = stacked(
    rows_options("markdown", "sarif"),
    click.option(
        "--rate",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.05,
        show_default=True,
        help="False discovery rate: the share of false alarms among the differences reported as significant.",
    ),
    click.option(
        "--fail-over",
        type=click.FloatRange(min=0),
        metavar="PCT",
        help="Exit with code 6 if a share grew significantly, by more than PCT percentage points.",
    ),
)
"""--format, --wide, --limit, --rate and --fail-over."""


def print_difference(
    found: Difference, by: str, rate: float, form: str, limit: int, fail_over: float | None = None
) -> None:
    """Print what was compared: a row for each thing, or in SARIF a result for each significant difference."""
    if form == "sarif":
        print_json(sarif(found, by, rate, limit, fail_over))
        return
    names = ["event", *(part for end in ENDS[by] for part in (end, f"{end} module"))]
    columns = [*names, "A %", "B %", "change", "noise", "A samples", "B samples", "p", "significant"]
    rows: list[list[Cell]] = []
    significant = found.significant(rate).tolist()
    for i in range(len(found))[: limit or None]:
        ends = (part for spot in found.spots[i] for part in (spot.called, spot.module or None))
        shares = [round(100 * float(value), 4) for value in (*found.share[:, i], found.change[i], found.noise[i])]
        chance = float(found.probability[i])
        probability = None if chance != chance else chance if form in ("csv", "json") else f"{chance:.2g}"
        rows.append([found.event[i], *ends, *shares, *map(int, found.samples[:, i]), probability, significant[i]])
    if form == "markdown":
        said = [*verdict(found, rate), *_grown(found, rate, fail_over)]
        print_lines([*(f"**{_plain(sentence)}.**" for sentence in said), "", *_markdown(columns, rows, names)])
    else:
        print_rows(columns, rows, form, last=names, spare=_SPARE)


def verdict(found: Difference, rate: float) -> list[str]:
    """How many differ, and how many could."""
    tested = int((found.probability == found.probability).sum())
    number = int(found.significant(rate).sum())
    said = f"{number} of {tested} differ significantly (false discovery rate {rate:g})"
    rare = len(found) - tested
    return [said + (f"; {rare} {'has' if rare == 1 else 'have'} too few samples to tell" if rare else "")]


def noise_note(profiles: Sequence[Profile], filters: Sequence[SampleFilter | None]) -> list[str]:
    """How much longer to record for half of the noise; nothing where a side has no times."""
    from ..analysis.counting.over_time import time_span
    from ..analysis.statistics.significance import halving

    spans = [time_span(profile, chosen) for profile, chosen in zip(profiles, filters, strict=True)]
    seconds = [p.clock.to_ns(span[1]) / 1e9 if span else 0.0 for p, span in zip(profiles, spans, strict=True)]
    if not all(map(halving, seconds)):
        return []
    more = " and ".join(f"{3 * s:.3g} s more of {side}" for s, side in zip(seconds, "AB", strict=True))
    return [f"noise is the standard error of change, in points; {more} would halve it"]


def exceeded(found: Difference, rate: float, points: float | None) -> int:
    """`EXCEEDED` where a share grew significantly by more than --fail-over allows, which is said; else 0."""
    said = _grown(found, rate, points)
    for sentence in said:
        click.echo(f"error: {sentence}", err=True)
    return EXCEEDED if said else 0


def _grown(found: Difference, rate: float, points: float | None) -> list[str]:
    """The sentence about what --fail-over does not allow; none where there is nothing of that."""
    from ..model import counted

    over = 0 if points is None else int((found.significant(rate) & (100 * found.change > points)).sum())
    return [f"{counted(over, 'share')} grew significantly by more than {points:g} points"] if over else []


# -- Markdown, as GitHub and GitLab show it


def _markdown(columns: list[str], rows: list[list[Cell]], names: list[str]) -> list[str]:
    """The lines of a table: numbers first, names last."""
    from ..model import visible

    several = len({row[0] for row in rows}) > 1  # events
    shown = [i for i, name in enumerate(columns) if name not in names]
    shown += [i for i, name in enumerate(columns) if name in names and (several or name != "event")]
    lines = [_line(columns[i] for i in shown), _line(":--" if columns[i] in names else "--:" for i in shown)]
    for row in rows:
        cells = []
        for i in shown:
            match row[i]:
                case None:
                    text = ""
                case bool(yes):
                    text = "yes" if yes else ""
                case float(value):
                    text = f"{value:+.2f}" if columns[i] == "change" else f"{value:.2f}"
                case str(name) if columns[i] in names:
                    text = _code(visible(name))
                case other:
                    text = str(other)
            cells.append(f"**{text}**" if columns[i] == "change" and row[-1] else text)
        lines.append(_line(cells))
    return lines


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """``text`` as code, whatever is in it: fenced by more backticks than it has in a row."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text.replace('|', chr(92) + '|')}{space}{fence}"


def _plain(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


# -- SARIF 2.1.0 (OASIS, errata 01): what code scanning and editors show beside source lines

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_RULES = (
    ("larger-share", "warning", "Code takes a significantly larger share than before."),
    ("smaller-share", "note", "Code takes a significantly smaller share than before."),
)
"""(id, level, what it means) of the results."""
_WHOLE = {"function": "samples", "edge": "branch entries", "block": "ranges"}
_SOURCE_ROOT = "%SRCROOT%"
"""What paths below the current folder are relative to; a viewer puts the checkout in its place."""


def sarif(found: Difference, by: str, rate: float, limit: int, fail_over: float | None) -> dict[str, Any]:
    """A log with one run: a result for each of the first ``limit`` (0: all) differences that are significant.

    The level is ``error`` for a share that grew by more than ``fail_over`` points, ``warning`` for others that grew,
    ``note`` for those that shrank.
    """
    from ..version import __version__

    significant = found.significant(rate).tolist()
    rows = [i for i in range(len(found))[: limit or None] if significant[i]]
    rules = [
        {"id": name, "shortDescription": {"text": means}, "defaultConfiguration": {"level": level}}
        for name, level, means in _RULES
    ]
    driver = {"name": "lastbranch", "version": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "results": [_result(found, i, by, fail_over) for i in rows],
        "properties": {"verdict": verdict(found, rate)[0], "rate": rate},
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(found: Difference, row: int, by: str, fail_over: float | None) -> dict[str, Any]:
    spots, event = found.spots[row], found.event[row]
    a, b, change, noise = (100 * float(value) for value in (*found.share[:, row], found.change[row], found.noise[row]))
    rule = int(change < 0)
    name, level, _ = _RULES[rule]
    if fail_over is not None and change > fail_over:
        level = "error"
    called = " to ".join(spot.called + (f" ({spot.module})" if spot.module else "") for spot in spots)
    text = (
        f"{called} has {b:.2f} % of the {_WHOLE[by]} of {event}, {a:.2f} % before: {change:+.2f} points "
        f"(noise {noise:.2f}, p {float(found.probability[row]):.2g})."
    )
    same = "\n".join([by, event, *(part for spot in spots for part in (spot.module, spot.function, spot.where))])
    result: dict[str, Any] = {
        "ruleId": name,
        "ruleIndex": rule,
        "level": level,
        "message": {"text": text},
        "locations": _locations(spots[0]),
        "partialFingerprints": {"difference/v1": hashlib.sha256(same.encode(errors="backslashreplace")).hexdigest()},
        "properties": {
            "event": event,
            "aPercent": a,
            "bPercent": b,
            "change": change,
            "noise": noise,
            "probability": float(found.probability[row]),
            "samples": found.samples[:, row].tolist(),
        },
    }
    if len(spots) > 1:
        to = [{"id": 1, "message": {"text": "to"}, **place} for place in _locations(spots[1])]
        result |= {"relatedLocations": to} if to else {}
    return result


def _locations(spot: CodeLocation) -> list[dict[str, Any]]:
    """Where it is, by name and by source line; the module where the line is not known. None where neither is: code
    scanning refuses a log with any location that has only a name."""
    if spot.file and spot.line > 0:
        place = {"artifactLocation": _artifact(spot.file), "region": {"startLine": spot.line}}
    elif spot.module:
        place = {"artifactLocation": {"uri": quote(spot.module)}}
    else:
        return []
    name = {"fullyQualifiedName": spot.called, "kind": "function"}
    return [{"logicalLocations": [name], "physicalLocation": place}]


def _artifact(path: str) -> dict[str, str]:
    """A source file as a URI: relative where it is below the current folder."""
    path = posixpath.normpath(path.replace("\\", "/"))
    here = os.getcwd().replace("\\", "/").rstrip("/") + "/"
    if path.startswith(here):
        path = path[len(here) :]
    drive = re.match(r"[A-Za-z]:/", path) is not None
    if drive or path.startswith("/"):
        return {"uri": f"file://{'/' if drive else ''}{quote(path, safe='/:')}"}
    return {"uri": quote(path), "uriBaseId": _SOURCE_ROOT}
