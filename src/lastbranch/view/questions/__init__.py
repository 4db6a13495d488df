"""One module a screen: each question is a function from a capture and parameters to an `Answer`.

All numbers come from `analysis`, by the functions that the terminal's verbs call.
"""

from __future__ import annotations

from importlib import import_module

from ...errors import SelectionError
from ..answer import Answer
from ..loaded import Loaded, Parameters

__all__ = ["QUESTIONS", "ask"]

QUESTIONS = {
    "overview": "capture",
    "hot": "hot",
    "flame": "flame",
    "function": "function",
    "branches": "branches",
    "capture": "capture",
    "findings": "capture",
    "doctor": "capture",
    "timeline": "timeline",
    "time": "timeline",
    "diff": "diff",
    "diff_flame": "diff",
    "diff_blocks": "diff",
}
"""Question -> the module of this package with a function of its name."""


def ask(loaded: Loaded, question: str, parameters: Parameters) -> Answer:
    """The answer to one of `QUESTIONS`. Raises `SelectionError` for another, `UnavailableError` where the file is not
    the one that was opened, and what `analysis` raises."""
    if question not in QUESTIONS:
        raise SelectionError(f"no such question: {question[:40]!r}", hint=f"there are: {', '.join(QUESTIONS)}")
    loaded.check_unchanged()
    answer: Answer = getattr(import_module(f".{QUESTIONS[question]}", __name__), question)(loaded, parameters)
    return answer
