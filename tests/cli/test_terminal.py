"""What a terminal gets beyond the text: colours and bars. Whatever is no terminal gets the text alone."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from command_line import in_terminal, run_cli
from lastbranch import demo
from lastbranch.cli.paint import bar, heat

STYLE = re.compile(r"\x1b\[([0-9;]*)m")
BLOCKS = "▏▎▍▌▋▊▉█"
DEMO = [demo.capture(), "--symfs", demo.symfs()]
RED, YELLOW = "31", "33"


def shown(*words: str | Path, width: int = 160, **env: str) -> str:
    """What a terminal gets."""
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    setting = {"TERM": "xterm", "PYTHONIOENCODING": "utf-8", **env}
    command = [sys.executable, "-m", "lastbranch", words[0], *DEMO, *words[1:]]
    code, text, said = in_terminal(*command, width=width, env=clean | setting)
    assert code == 0, said
    return text.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    """``text`` without styles and bars; runs of spaces are one."""
    bare = STYLE.sub("", text).translate(dict.fromkeys(map(ord, BLOCKS)))
    return re.sub(r" +", " ", bare)


@pytest.mark.parametrize("verb", ["report", "branches"])
def test_shares_have_the_colour_of_their_heat(verb: str) -> None:
    text = shown(verb, "--limit", "0", width=400)
    column = {"report": "samples_percent", "branches": "share_percent"}[verb]
    rows = json.loads(run_cli(verb, *DEMO, "--format", "json").out)
    lines = text.splitlines()[1:]
    assert len(lines) == len(rows) > 20
    for row, line in zip(rows, lines, strict=True):
        value = row[column]
        styles = re.findall(r"((?:\x1b\[[0-9;]*m)+)" + re.escape(f"{value:.2f}") + r"\x1b\[0m", line)
        expected = None if value < 5 else YELLOW if value < 15 else RED
        assert (expected is not None) == bool(styles), line
        assert expected is None or all(expected in style for style in styles), line


@pytest.mark.parametrize("verb", ["report", "branches"])
def test_bars_are_in_proportion_where_there_is_room_and_nothing_else_changes(verb: str) -> None:
    text = shown(verb, "--limit", "8", width=300)
    lengths = [sum(8 if c == "█" else BLOCKS.index(c) + 1 for c in line if c in BLOCKS) for line in text.splitlines()]
    column = {"report": "samples_percent", "branches": "share_percent"}[verb]
    shares = [row[column] for row in json.loads(run_cli(verb, *DEMO, "--limit", "8", "--format", "json").out)]
    assert lengths == [0, *(max(1, round(160 * share / max(shares))) for share in shares)]
    assert plain(text) == plain(run_cli(verb, *DEMO, "--limit", "8").out)
    assert not set(shown(verb, "--limit", "8", width=60)).intersection(BLOCKS)


@pytest.mark.parametrize(("env", "styles", "bars"), [
    ({"NO_COLOR": "1"}, {"1", "0"}, True), ({"TERM": "dumb"}, set(), False),
    ({"NO_COLOR": ""}, {"1", "0", RED, YELLOW}, True),
])  # fmt: skip
@pytest.mark.parametrize("verb", ["report", "branches"])
def test_a_terminal_gets_no_more_than_it_wants(verb: str, env: dict[str, str], styles: set[str], bars: bool) -> None:
    text = shown(verb, width=300, **env)
    assert set(STYLE.findall(text)) <= styles
    assert bool(styles) == bool(STYLE.findall(text))
    assert bool(set(text).intersection(BLOCKS)) == bars


def test_bars_where_the_encoding_has_no_blocks() -> None:
    text = shown("report", "--limit", "3", width=300, PYTHONIOENCODING="ascii")
    assert re.search(r" #{20} ", text)


@pytest.mark.parametrize("verb", ["report", "branches"])
def test_what_is_no_terminal_gets_text_alone(verb: str) -> None:
    for form in ("table", "csv", "json"):
        out = run_cli(verb, *DEMO, "--format", form, alone=True, env={"TERM": "xterm", "COLUMNS": "300"}).out
        assert "\x1b" not in out
        assert not set(out).intersection(BLOCKS + "#")


def test_a_bar_is_as_long_as_its_share() -> None:
    assert [bar(part, 4) for part in (0, 0.001, 0.25, 0.5, 0.53125, 1)] == ["", "▏", "█", "██", "██▏", "████"]
    assert heat(None) == heat(0.0) == {}
