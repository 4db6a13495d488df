"""One module a screen: each question is a function from a capture and parameters to an `Answer`.

All numbers come from `analysis`, by the functions that the terminal's verbs call.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import SelectionError
from ..answer import Answer
from ..loaded import Loaded, Parameters
from .branches import branches
from .capture import capture, doctor, findings
from .flame import flame
from .function import function
from .hot import hot
from .overview import overview
from .timeline import timeline

__all__ = ["QUESTIONS", "ask"]

QUESTIONS: dict[str, Callable[[Loaded, Parameters], Answer]] = {
    "overview": overview,
    "hot": hot,
    "flame": flame,
    "function": function,
    "branches": branches,
    "capture": capture,
    "findings": findings,
    "doctor": doctor,
    "timeline": timeline,
}


def ask(loaded: Loaded, question: str, parameters: Parameters) -> Answer:
    """The answer to one of `QUESTIONS`. Raises `SelectionError` for another, `UnavailableError` where the file is not
    the one that was opened, and what `analysis` raises."""
    if question not in QUESTIONS:
        raise SelectionError(f"no such question: {question[:40]!r}", hint=f"there are: {', '.join(QUESTIONS)}")
    loaded.check_unchanged()
    return QUESTIONS[question](loaded, parameters)
