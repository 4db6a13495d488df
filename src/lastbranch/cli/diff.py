"""``lastbranch diff``: its two sides, and how differences are printed: as rows, as Markdown for a pull request, or as
SARIF for what shows findings beside source lines. `fleet diff` and `view --diff` share these."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import click

from .options import (
    Capture,
    LogOptions,
    complete_file,
    complete_folder,
    filter_options,
    grouped,
    limit_options,
    log_options,
    no_progress_option,
    rows_options,
    stacked,
    symfs_option,
    weight_option,
)
from .output import EXCEEDED, print_json, print_lines, print_table
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..analysis import CodeLocation, Difference, Thing
    from ..answers.differences import Comparison
    from ..answers.table import Table
    from ..symbols import SymbolOptions

__all__ = [
    "SecondSide",
    "difference_options",
    "exit_code_of_growth",
    "print_comparison",
    "side_options",
]

# -- the two sides of a comparison of captures


@dataclass(frozen=True, slots=True)
class SecondSide:
    """The options about the second side."""

    against: tuple[str, ...] = ()
    symfs_b: str | None = None

    def sides(self, capture: Capture) -> list[Capture]:
        """A and B, of the arguments and options of ``capture``."""
        paths = self._paths(capture.paths)
        folders = capture.symfs, self.symfs_b or capture.symfs
        return [
            replace(capture, paths=side, symfs=symfs, weights=weights)
            for side, symfs, weights in zip(paths, folders, _weights_of(paths, capture.weights), strict=True)
        ]

    def _paths(self, words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.against and words:
            return words, self.against
        if len(words) != 2:
            raise click.UsageError("Give A and B, or the captures of A and those of B with --against.")
        return words[:1], words[1:]


def _weights_of(sides: Sequence[Sequence[str]], weights: dict[str, int]) -> list[dict[str, int]]:
    """The weights that name a capture of each side."""
    from ..opening import captures_at, is_called

    files = [captures_at(side).paths if weights else [] for side in sides]
    chosen = [{name: n for name, n in weights.items() if any(is_called(f, name) for f in side)} for side in files]
    for name in weights:
        if not any(name in side for side in chosen):
            raise click.BadParameter(f"no capture is called {name!r}", param_hint="--weight")
    return chosen


side_options = grouped(
    "second",
    SecondSide,
    click.option(
        "--against",
        multiple=True,
        metavar="B",
        shell_complete=complete_file,
        help="A capture of the second side, whose captures are added up (repeatable); all arguments are of the first "
        "then.",
    ),
    click.option(
        "--symfs-b", metavar="DIR", shell_complete=complete_folder, help="As --symfs, of B, if it is another folder."
    ),
)
"""--against and --symfs-b, as one `SecondSide` argument ``second``."""


# -- the verb

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


@click.command()
@limit_options
@click.argument("words", metavar="A... B", nargs=-1, shell_complete=complete_file)
@weight_option
@symfs_option
@side_options
@no_progress_option
@log_options
@filter_options
@symbol_options
@difference_options
@click.option(
    "--by",
    type=click.Choice(("function", "edge", "block")),
    default="function",
    show_default=True,
    help="What each row is.",
)
def command(
    words: tuple[str, ...],
    second: SecondSide,
    weights: dict[str, int],
    symfs: str | None,
    no_progress: bool,
    log: LogOptions,
    make_filter: Any,
    symbols: SymbolOptions,
    form: str,
    limit: int,
    by: str,
    rate: float,
    fail_over: float | None,
) -> int:
    """Show what takes a larger or smaller share in B than in A.

    Each side is a capture, a folder or a pattern for several, which are added up; with --against each can be several.

    Each row says whether the difference is more than chance.

    The share of a function is its share of the samples (by period); of an edge, its share of the branch entries; of a
    block, its share of the ranges. noise is the standard error of the change, in percentage points. Four times as many
    samples halve it: a note says how much longer to record. p is the probability of such a difference between two
    recordings of the same behaviour. The unit is the sample: the entries of one branch stack are one observation. Code
    is matched by name across builds.

    --format markdown is a table for a pull request, --format sarif has a result for each significant difference, with
    its source line where that is known.
    """
    from ..answers.differences import compare_captures
    from ..answers.names import Names

    captures = second.sides(Capture(words, symfs, not no_progress, log=log, weights=weights))
    profiles = [capture.open() for capture in captures]
    filters = [make_filter(profile) for profile in profiles]
    sides = [Names(profile, symbols) for profile in profiles]
    with captures[0].reading(profiles[0]), captures[1].reading(profiles[1]):
        made = compare_captures(sides, cast("Thing", by), filters, rate, limit, lines=form == "sarif")
    print_comparison(made, form, limit, fail_over)
    codes = [captures[0].finish(profiles[0], [made.verdict, *made.notes]), captures[1].finish(profiles[1])]
    return exit_code_of_growth(made, fail_over) or max(codes)


# -- rows


def print_comparison(made: Comparison, form: str, limit: int, fail_over: float | None) -> None:
    """Print what was compared: a row for each thing, or in SARIF a result for each significant difference."""
    if form == "sarif":
        print_json(sarif(made, limit, fail_over))
    elif form == "markdown":
        said = [made.verdict, *made.growth_over(fail_over)]
        table = _markdown(made.table(limit))
        print_lines([*(f"**{sentence[:1].upper()}{sentence[1:]}.**" for sentence in said), "", *table])
    else:
        print_table(made.table(limit), form)


def exit_code_of_growth(made: Comparison, points: float | None) -> int:
    """`EXCEEDED` where a share grew significantly by more than --fail-over allows, which is said; else 0."""
    said = made.growth_over(points)
    for sentence in said:
        click.echo(f"error: {sentence}", err=True)
    return EXCEEDED if said else 0


# -- Markdown, as GitHub and GitLab show it


def _markdown(table: Table) -> list[str]:
    """The lines of a table: numbers first, names last."""
    from ..model import visible

    rows, names = table.texts(), table.kind.last
    several = len({row[0] for row in rows}) > 1  # events
    places = [(i, column) for i, column in enumerate(table.shown) if several or column.name != "event"]
    places.sort(key=lambda place: place[1].name in names)
    lines = [
        _line(column.title for _, column in places),
        _line(":--" if column.name in names else "--:" for _, column in places),
    ]
    for row in rows:
        cells = []
        for i, column in places:
            match row[i]:
                case None:
                    text = ""
                case bool(yes):
                    text = "yes" if yes else ""
                case float(value):
                    text = f"{value:+.2f}" if column.name == "change" else f"{value:.2f}"
                case str(name) if column.name in names:
                    text = _code(visible(name))
                case other:
                    text = str(other)
            cells.append(f"**{text}**" if column.name == "change" and row[-1] else text)
        lines.append(_line(cells))
    return lines


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """``text`` as code, whatever is in it: fenced by more backticks than it has in a row."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text.replace('|', chr(92) + '|')}{space}{fence}"


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


def sarif(made: Comparison, limit: int, fail_over: float | None) -> dict[str, Any]:
    """A log with one run: a result for each of the first ``limit`` (0: all) differences that are significant.

    The level is ``error`` for a share that grew by more than ``fail_over`` points, ``warning`` for others that grew,
    ``note`` for those that shrank.
    """
    from ..version import __version__

    found, significant = made.found, made.found.significant(made.rate).tolist()
    rows = [i for i in range(len(found))[: limit or None] if significant[i]]
    rules = [
        {"id": name, "shortDescription": {"text": means}, "defaultConfiguration": {"level": level}}
        for name, level, means in _RULES
    ]
    driver = {"name": "lastbranch", "version": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "results": [_result(found, i, made.by, fail_over) for i in rows],
        "properties": {"verdict": made.verdict, "rate": made.rate},
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
    """The SARIF locations of ``spot``, by name and source line, or by module if the line is not known.

    No locations if neither is known: code scanning refuses a log with a location that has only a name.
    """
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
