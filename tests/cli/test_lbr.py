"""`lastbranch lbr explain`: every notation, every form, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from command_line import Ran

Run = Callable[..., Ran]

VALUES = {"perf": "0x11", "msr": "0xe5", "arch": "0x580005", "etw": "0xe5"}
"""User-mode calls, four times."""


def explained(run: Run, *options: str) -> dict[str, dict[str, Any]]:
    ran = run("lbr", "explain", *options, "--format", "json")
    assert ran.code == 0, ran.err
    return {row["notation"]: row for row in json.loads(ran.out)}


@pytest.mark.parametrize("given", VALUES)
def test_each_notation_is_told_in_all(given: str, run: Run) -> None:
    rows = explained(run, VALUES[given], "--as", given)
    assert next(iter(rows)) == given
    assert {name: row["value"] for name, row in rows.items()} == VALUES
    assert {row["records"] for row in rows.values()} == {"USER,NEAR_REL_CALL,NEAR_IND_CALL,FAR_BRANCH"}
    assert {row["not_the_same"] for row in rows.values()} == {None}
    assert rows["etw"]["bits_set"] == "KERNEL,JCC,NEAR_RET,NEAR_IND_JMP,NEAR_REL_JMP"


def test_every_form_says_the_same(run: Run) -> None:
    ran = {form: run("lbr", "explain", "0x1dd", "--as", "etw", "--format", form) for form in ("json", "csv", "table")}
    rows = json.loads(ran["json"].out)
    assert list(csv.DictReader(io.StringIO(ran["csv"].out))) == [{k: v or "" for k, v in r.items()} for r in rows]
    table = ran["table"].out.splitlines()
    assert len(table) == 5
    for line, row in zip(table[1:], rows, strict=True):
        assert line.split() == " ".join(v or "" for v in row.values()).split()


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("user,call", 0x2001),
        ("u", 9),
        ("k,any_ret", 0x22),
        ("stack,u", 0x801),
        ("CALL_STACK,USER", 0x801),
        ("u,save_type,hw_index", 0x30009),
        ("any,u, k", 0xB),
        ("hv", 0xC),
        ("u,in_tx", 0x109),
    ],
)
def test_filters_in_the_words_of_perf(words: str, value: int, run: Run) -> None:
    assert explained(run, "--filter", words)["perf"]["value"] == f"{value:#x}"


def test_what_cannot_be_expressed(run: Run) -> None:
    assert "FAR_BRANCH" in explained(run, "0x1dd", "--as", "msr")["perf"]["not_the_same"]
    rows = explained(run, "--filter", "u,any,in_tx")
    assert rows["perf"]["not_the_same"] is None
    assert all("IN_TX" in rows[name]["not_the_same"] for name in ("msr", "arch", "etw"))
    nothing = explained(run, "0x1ff", "--as", "etw")
    assert (nothing["perf"]["value"], nothing["perf"]["records"], nothing["etw"]["records"]) == ("0x0", "none", "none")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("0x200 --as msr", ("JCC", "NEAR_IND_JMP", "NEAR_REL_JMP", "FAR_BRANCH")),
        ("0x3c7 --as etw", ("KERNEL", "USER")),
        ("0x1000 --as msr", ("bit 12",)),
        ("0x811 --as perf", ("ANY_CALL",)),
        ("--filter stack,cond", ("COND",)),
        ("-- -1", ("VALUE",)),
        ("--as msr", ("VALUE",)),
        ("5", ("--as",)),
        ("five --as msr", ("five",)),
        ("5 --as msr --filter any", ("--filter",)),
        ("--filter any,sideways", ("sideways", "any_call")),
        ("5 --as cpuid", ("cpuid",)),
    ],
)
def test_a_bad_selection_ends_with_2(options: str, words: tuple[str, ...], run: Run) -> None:
    ran = run("lbr", "explain", *options.split())
    assert (ran.code, ran.out) == (2, "")
    assert all(word in ran.err for word in words)


def test_a_processor_is_told_by_its_records(run: Run) -> None:
    """17.9.1 for Haswell; the manuals' tables for what came before and after."""
    rows = json.loads(run("lbr", "explain", "--processor", "all", "--format", "json").out)
    told = {row["processor"]: list(row.values())[1:] for row in rows}
    assert told["Haswell"] == [4, "eip_flags2", 16, "yes", "yes", "no", "no", "yes"]
    assert told["Nehalem"] == [3, "eip_flags", 16, "no", "no", "no", "no", "yes"]
    assert told["Skylake"] == [5, "info", 32, "yes", "yes", "yes", "no", "yes"]
    assert told["Architectural LBR"] == [None, "arch", 32, "yes", "yes", "yes", "yes", "yes"]
    assert told["Core 2"] == [None, None, 4, "no", None, None, None, "no"]
    assert "Haswell" in run("lbr", "explain", "--processor", "haswell").out


def test_a_selection_is_held_against_a_processor(run: Run) -> None:
    selection = ("lbr", "explain", "0x3c4", "--as", "msr", "--processor")
    assert run(*selection, "Haswell").code == 0
    for name, reason in (
        ("Sandy Bridge", "Sandy Bridge has no call-stack mode"),
        ("Core 2", "cannot filter"),
        ("Pentium", "'Pentium' is none of: all, Core 2"),
    ):
        ran = run(*selection, name)
        assert (ran.code, ran.out) == (2, "")
        assert reason in ran.err


def test_help_says_what_it_does(run: Run) -> None:
    assert "explain" in run("lbr", "--help").out
    assert "branch_sample_type" in run("lbr", "explain", "--help").out
