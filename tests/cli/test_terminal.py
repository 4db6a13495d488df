"""Output to a terminal has colours, bars and arrows. Other output is the text alone."""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from command_line import in_terminal, run_cli, run_in_terminal
from lastbranch import demo
from lastbranch.analysis.statistics.significance import ENOUGH
from lastbranch.cli.terminal import bar, heat

STYLE = re.compile(r"\x1b\[([0-9;]*)m")
BLOCKS = "▏▎▍▌▋▊▉█"
DEMO = [demo.capture(), "--symfs", demo.symfs()]
RED, YELLOW, FAINT = "31", "33", "2"


def shown(*words: str | Path, width: int = 160, **env: str) -> str:
    """The output in a terminal."""
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    setting = {"TERM": "xterm", "PYTHONIOENCODING": "utf-8", **env}
    done = run_in_terminal(words[0], *DEMO, *words[1:], width=width, env=clean | setting)
    assert done.code == 0, done.err
    return done.out.replace("\r\n", "\n")


def plain(text: str) -> str:
    """``text`` without styles and bars; runs of spaces are one."""
    bare = STYLE.sub("", text).translate(dict.fromkeys(map(ord, BLOCKS)))
    return re.sub(r" +", " ", bare)


@pytest.mark.parametrize("verb", ["report", "branches"])
def test_shares_have_the_colour_of_their_heat(verb: str) -> None:
    text = shown(verb, "--limit", "0", width=400)
    column, counts = {"report": ("samples_percent", "samples"), "branches": ("share_of_time_percent", "count")}[verb]
    rows = json.loads(run_cli(verb, *DEMO, "--format", "json").out)
    lines = text.splitlines()[1:]
    assert len(lines) == len(rows) > 20
    for row, line in zip(rows, lines, strict=True):
        value = row[column]
        found = re.findall(r"((?:\x1b\[[0-9;]*m)+)" + re.escape(f"{value:.2f}") + r"\x1b\[0m", line)
        styles = [STYLE.findall(one) for one in found]  # of the share, and of others that are equal
        expected = FAINT if row[counts] < ENOUGH else None if value < 5 else YELLOW if value < 15 else RED
        assert any(expected in style for style in styles) if expected else not styles, line
        assert expected == FAINT or not any(FAINT in style for style in styles), line


@pytest.mark.parametrize("verb", ["report", "branches"])
def test_bars_are_in_proportion_where_there_is_room_and_nothing_else_changes(verb: str) -> None:
    text = shown(verb, "--limit", "8", width=300)
    lengths = [sum(8 if c == "█" else BLOCKS.index(c) + 1 for c in line if c in BLOCKS) for line in text.splitlines()]
    column = {"report": "samples_percent", "branches": "share_of_time_percent"}[verb]
    shares = [row[column] for row in json.loads(run_cli(verb, *DEMO, "--limit", "8", "--format", "json").out)]
    assert lengths == [0, *(max(1, round(160 * share / max(shares))) for share in shares)]
    assert plain(text) == plain(run_cli(verb, *DEMO, "--limit", "8").out)
    assert not set(shown(verb, "--limit", "8", width=60)).intersection(BLOCKS)


@pytest.mark.parametrize(
    ("env", "styles", "bars"),
    [
        ({"NO_COLOR": "1"}, {"1", "0"}, True),
        ({"TERM": "dumb"}, set(), False),
        ({"NO_COLOR": ""}, {"1", "0", RED, YELLOW, FAINT}, True),
    ],
)
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
        out = run_cli(verb, *DEMO, "--format", form, alone=form == "table", env={"TERM": "xterm", "COLUMNS": "300"}).out
        assert "\x1b" not in out
        assert not set(out).intersection(BLOCKS + "#")


def test_a_bar_is_as_long_as_its_share() -> None:
    assert [bar(part, 4) for part in (0, 0.001, 0.25, 0.5, 0.53125, 1)] == ["", "▏", "█", "██", "██▏", "████"]
    assert heat(None) == heat(0.0) == {}


# -- annotate

LINES = dict(zip(" ╵╷│╴┘┐┤╶└┌├─┴┬┼", range(16), strict=True))
UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8


@pytest.mark.parametrize("function", ["main", "dispatch", "sumloop", "fib"])
@pytest.mark.parametrize("every", [False, True])
def test_arrows_lead_from_each_jump_to_where_it_went(function: str, every: bool) -> None:
    text = STYLE.sub("", shown("annotate", function, *["--all"] * every, width=300))
    found = json.loads(run_cli("annotate", *DEMO, function, "--limit", "0", "--format", "json").out)
    start, end = int(found["start"], 16), int(found["end"], 16)
    listing = text.split("\n\n")[1].splitlines()
    head, *lines = listing
    at, after = head.index("address"), head.index("instruction")
    gutter = [line[line.index("0x", at) :].partition(" ")[2] if "0x" in line[at:after] else None for line in lines]
    left = max(head.index("address") + len("address"), at) + 2
    drawn = [line[left:after].ljust(after - left) for line in lines]
    rows = {line.split("0x")[1].split()[0]: i for i, line in enumerate(lines) if gutter[i] is not None}
    names = [found["function"], found["function"].partition("(")[0]]
    jumps = []
    for edge in found["edges"]:
        ends = []
        for place in (edge["from"], edge["to"]):
            name, _, offset = place.rpartition("+") if re.search(r"\+0x[0-9a-f]+$", place) else (place, "", "0x0")
            ends.append(f"{start + int(offset, 16):x}" if name in names else None)
        if edge["kind"] in ("cond", "uncond", "ind") and None not in ends:
            jumps.append(tuple(rows[str(one)] for one in ends))
    assert jumps or function in ("dispatch", "fib")
    bits = [[LINES.get(sign, 0) for sign in line[:-2]] for line in drawn]
    for source, target in jumps:
        low, high = sorted((source, target))
        assert drawn[target][-2] == ">"
        assert drawn[source][-2] in "─>"
        lanes = [
            lane
            for lane in range(len(bits[0]))
            if all(bits[i][lane] & UP for i in range(low + 1, high + 1))
            and all(bits[i][lane] & DOWN for i in range(low, high))
            and all(one & LEFT for i in (low, high) for one in bits[i][lane + 1 :])
            and bits[low][lane] & RIGHT
            and bits[high][lane] & RIGHT
        ]
        assert lanes, (source, target)
    assert end > start
    if not every:
        assert {i for i, line in enumerate(drawn) if line[-2] == ">"} == {target for _, target in jumps}
    for above, below in pairwise(bits):  # no line ends in nothing
        assert [bool(one & DOWN) for one in above] == [bool(one & UP) for one in below]


def test_annotate_is_the_same_text_with_and_without_arrows() -> None:
    signs = dict.fromkeys(map(ord, [*list(LINES)[1:], *BLOCKS]))
    text = STYLE.sub("", shown("annotate", "main", width=400)).replace("> mov edi", " mov edi")
    out = run_cli("annotate", *DEMO, "main").out
    assert re.sub(" +", " ", text.translate(signs)) == re.sub(" +", " ", out)
    assert not set(out).intersection("│┌└\x1b")


def test_addresses_of_loops_are_whole_where_other_columns_can_go() -> None:
    (loop,) = json.loads(run_cli("annotate", *DEMO, "main", "--format", "json").out)["loops"]
    heading, row = shown("annotate", "main", width=60, TERM="dumb").partition("Loops\n")[2].splitlines()[:2]
    assert heading.split() == ["loop", "from", "to", "blocks", "iterations", "longest", "cycles"]
    assert row.split()[1:3] == [loop["from"], loop["to"]]


def test_cells_of_annotate_are_coloured_by_their_part_of_the_function() -> None:
    lines = shown("annotate", "main", width=200).splitlines()
    (hot,) = [line for line in lines if "0x1310" in line and "mov" in line]
    samples = json.loads(run_cli("annotate", *DEMO, "main", "--format", "json").out)["instructions"]
    (row,) = [one for one in samples if one["address"] == "0x1310"]
    assert row["samples"] * 100 / sum(one["samples"] for one in samples) >= 15
    assert f"\x1b[{RED}m{row['samples']}\x1b[0m" in hot
    assert f"\x1b[{RED}m\x1b[1m{row['count']}\x1b[0m" in hot
    assert not set(STYLE.findall(shown("annotate", "main", NO_COLOR="1"))) & {RED, YELLOW}
    assert "│" in shown("annotate", "main", NO_COLOR="1")
    assert not set("│┌└\x1b") & set(shown("annotate", "main", TERM="dumb"))
    assert "|" in shown("annotate", "main", PYTHONIOENCODING="ascii")


# -- the pager


def paged(tmp_path: Path, *words: str, height: int = 24, keyboard: bool = True, **env: str) -> tuple[str, str | None]:
    """(what the terminal got, what the pager got; ``None`` where none ran)."""
    kept = tmp_path / "paged"
    kept.unlink(missing_ok=True)
    pager = f"{sys.executable} -c \"import os,sys; open(r'{kept}', 'w').write(os.environ['LESS'] + sys.stdin.read())\""
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "LESS")}
    setting = {"TERM": "xterm", "PYTHONIOENCODING": "utf-8", "PYTHONUTF8": "1", "PAGER": pager, **env}
    command = [sys.executable, "-m", "lastbranch", words[0], *DEMO, *words[1:]]
    code, text, said = in_terminal(*command, width=200, height=height, env=clean | setting, keyboard=keyboard)
    assert code == 0, said
    return text.decode().replace("\r\n", "\n"), kept.read_text() if kept.exists() else None


@pytest.mark.parametrize("words", [["report", "--limit", "0"], ["branches", "--limit", "0"], ["annotate", "main"]])
def test_what_is_longer_than_the_terminal_goes_through_a_pager(words: list[str], tmp_path: Path) -> None:
    text, seen = paged(tmp_path, *words, "--no-pager")
    assert seen is None
    assert paged(tmp_path, *words) == ("", "FRX" + text)
    if words[0] != "branches":
        return
    lines = text.count("\n")
    assert paged(tmp_path, *words, height=lines + 1) == (text, None)
    assert paged(tmp_path, *words, height=lines)[1] is not None
    assert paged(tmp_path, *words, LESS="i")[1] == "i" + text


@pytest.mark.parametrize(
    "env", [{"PAGER": ""}, {"PAGER": "cat"}, {"PAGER": "no/such/program"}, {"PAGER": "'"}, {"TERM": "dumb"}], ids=str
)
def test_without_a_pager_the_terminal_gets_everything(env: dict[str, str], tmp_path: Path) -> None:
    text, seen = paged(tmp_path, "branches", "--limit", "0", **env)
    assert seen is None
    assert len(text.splitlines()) == 1 + len(json.loads(run_cli("branches", *DEMO, "--format", "json").out))


def test_no_pager_where_nobody_types_nor_for_programs(tmp_path: Path) -> None:
    assert paged(tmp_path, "branches", "--limit", "0", keyboard=False)[1] is None
    for form in ("csv", "json"):
        assert paged(tmp_path, "branches", "--format", form)[1] is None


def test_a_pager_may_end_before_it_has_read_everything(tmp_path: Path) -> None:
    assert paged(tmp_path, "branches", "--limit", "0", PAGER="true") == ("", None)
