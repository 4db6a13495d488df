"""Every statement of the three documents that says what the system does, on the portable kernel: one case each."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import pytest

from document_statements import FILES, STATEMENTS
from etw_world import World
from etw_world import world as world

_MODULES = [
    (short, import_module(file.removeprefix("tools/")))
    for short, file in FILES.items()
    if file.startswith("tools/etw_cases_")
]


def _cases(module: ModuleType) -> dict[str, Callable[[World], None]]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


CASES = {(short, name): case for short, module in _MODULES for name, case in _cases(module).items()}


def test_each_statement_has_a_case_and_each_case_a_statement() -> None:
    files = {short for short, _ in _MODULES}
    assert {test for s in STATEMENTS for test in s.tests() if test[0] in files} == set(CASES)
    said = [(s.document, s.place, s.says) for s in STATEMENTS if s.document in ("properties", "query", "lbr")]
    assert len(set(said)) == len(said)


@pytest.mark.skipif(sys.platform != "linux", reason="the portable kernel runs on Linux")
@pytest.mark.parametrize(("file", "case"), sorted(CASES), ids=lambda value: str(value))
def test_case(file: str, case: str, world: World) -> None:
    """Each case asserts its statements."""
    CASES[file, case](world)
