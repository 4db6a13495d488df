"""The tables of the reference: every code has a row, and every test that a row names is there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from etw_codes import CODES, Code
from lastbranch.etw.status import Status

HERE = Path(__file__).parents[1]
_OF_WINDOWS = {"ENVVAR_NOT_FOUND", "INSUFFICIENT_BUFFER", "NOACCESS", "WMI_GUID_NOT_FOUND", "SUCCESS"}
"""Codes that only pass through from Windows, or that are none."""


@cache
def _names(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("row", CODES, ids=lambda row: f"{row.call}-{int(row.status)}")
def test_the_test_of_a_code_is_there(row: Code) -> None:
    file, _, name = row.test.partition("::")
    assert (HERE / file).exists()
    assert not name or name in _names(file)


def test_every_code_has_a_row() -> None:
    told = {row.status for row in CODES}
    assert {s.name for s in Status if s not in told} <= _OF_WINDOWS
