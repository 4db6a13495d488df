"""Every statement of the three documents that says what the system does, on the portable kernel: one case each."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import pytest

from etw_sentences import DOCUMENTS, SENTENCES
from etw_world import World
from etw_world import world as world

_FILES = {
    "etw_cases_properties": "properties", "etw_cases_files": "properties", "etw_cases_query": "query",
    "etw_cases_lbr": "lbr",
}  # fmt: skip
_MODULES = [(document, import_module(name)) for name, document in _FILES.items()]


def _cases(module: ModuleType) -> dict[str, Callable[[World], None]]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


CASES = {(document, name): case for document, m in _MODULES for name, case in _cases(m).items()}


def test_each_statement_has_a_case_and_each_case_a_statement() -> None:
    assert {(s.document, s.case) for s in SENTENCES} == set(CASES)
    assert {s.document for s in SENTENCES} == set(DOCUMENTS)
    assert len({(s.document, s.section, s.says) for s in SENTENCES}) == len(SENTENCES)


@pytest.mark.skipif(sys.platform != "linux", reason="the portable kernel runs on Linux")
@pytest.mark.parametrize(("document", "case"), sorted(CASES), ids=lambda value: str(value))
def test_case(document: str, case: str, world: World) -> None:
    """Each case asserts its statements."""
    CASES[document, case](world)
