"""Write the manual pages, made from the help texts: one for lastbranch and one for each verb.

    python tools/manual.py FOLDER

FOLDER/man1 gets lastbranch.1, lastbranch-record.1 and so on: ``man -M FOLDER lastbranch-record`` shows one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from lastbranch import __version__
from lastbranch.cli import VERBS, cli
from lastbranch.cli.group import summary


def pages() -> Iterator[tuple[str, str]]:
    """(name, text in the language of man(7)) of each page."""
    root = click.Context(cli, info_name="lastbranch", **cli.context_settings)
    verbs = [(verb, cli.get_command(root, verb)) for verb in VERBS]
    about = (cli.help or "").partition("\n\n")[0]
    others = [f"lastbranch-{verb}" for verb in VERBS]
    yield (
        "lastbranch",
        "\n".join(
            [
                *_head("lastbranch", about),
                *_body(cli, root),
                ".SH COMMANDS",
                *(
                    line
                    for verb, command in verbs
                    if command
                    for line in _term(_page(f"lastbranch-{verb}"), summary(command))
                ),
                *_see(others),
                "",
            ]
        ),
    )
    for verb, command in verbs:
        assert command is not None
        context = click.Context(command, info_name=verb, parent=root)
        lines = [*_head(f"lastbranch-{verb}", summary(command)), *_body(command, context)]
        if isinstance(command, click.Group):
            lines.append(".SH COMMANDS")
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                lines += [f".SS {_safe(name)}", *_inner(inner, click.Context(inner, info_name=name, parent=context))]
        yield f"lastbranch-{verb}", "\n".join([*lines, *_see(["lastbranch"]), ""])


def _head(name: str, about: str) -> list[str]:
    about = " ".join(about.split()).rstrip(".")
    return [
        f'.TH "{name.upper()}" "1" "" "lastbranch {__version__}" "User Commands"',
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{_safe(name)} \\- {_text(about)}",
    ]


def _body(command: click.Command, context: click.Context) -> list[str]:
    options = _options(command, context)
    return [
        ".SH SYNOPSIS",
        *_usage(command, context),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
        *([".SH OPTIONS", *options] if options else []),
    ]


def _inner(command: click.Command, context: click.Context) -> list[str]:
    return [*_usage(command, context), *_paragraphs(command.help or ""), *_options(command, context)]


def _usage(command: click.Command, context: click.Context) -> list[str]:
    pieces = _safe(" ".join(command.collect_usage_pieces(context)))
    return [".PP", f"\\fB{_safe(context.command_path)}\\fR {pieces}"]


def _options(command: click.Command, context: click.Context) -> list[str]:
    records = (param.get_help_record(context) for param in command.get_params(context))
    return [line for record in records if record for line in _term(_choices(f"\\fB{_safe(record[0])}\\fR"), record[1])]


def _choices(text: str) -> str:
    """``text``, which may be broken between the choices of an option."""
    return text.replace("|", "|\\:")


def _term(term: str, text: str) -> list[str]:
    return [".TP", term, _text(text)]


def _paragraphs(text: str) -> Iterator[str]:
    """Fills paragraphs, except the paragraphs that click does not wrap (``\\b``)."""
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if lines[0].strip() == "\b":
            yield from (".PP", ".nf", *map(_text, lines[1:]), ".fi")
        else:
            yield from (".PP", _text(" ".join(line.strip() for line in lines)))


def _see(names: list[str]) -> list[str]:
    return [".SH SEE ALSO", ", ".join(map(_page, names))]


def _page(name: str) -> str:
    return f"\\fB{_safe(name)}\\fR(1)"


def _text(text: str) -> str:
    """``text``, with what it has in backticks in bold."""
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", _safe(text))


def _safe(text: str) -> str:
    """Escape ``text`` for troff: a backslash, and a dot or quote at the start of a line, have a meaning there, and a
    plain - is printed as a hyphen, which cannot be copied into a shell."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("^", "\\(ha").replace("~", "\\(ti")
    return f"\\&{safe}" if safe[:1] in (".", "'") else safe


def main() -> None:
    """Write them all."""
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/manual.py FOLDER")
    folder = Path(sys.argv[1]) / "man1"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (folder / f"{name}.1").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
