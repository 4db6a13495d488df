"""What the five documents state, and what proves it: the page, and the counts of each document.

    python tools/document_reference.py

prints the counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "tools"))

from document_statements import DOCUMENTS, FILES, STATEMENTS, Statement, counts

__all__ = ["document_reference"]

_COLUMNS = ("stated", "works", "in part", "refused, with the reason", "not run here")


def _rows() -> Iterator[tuple[str, int, int, int, int, int]]:
    """(document, statements, ...) in the order of `_COLUMNS`."""
    for key, found in counts().items():
        yield DOCUMENTS[key], found.total(), found["works"], 0, found["refused"], found["not here"]


def document_reference() -> str:
    """The page, as Markdown."""
    lines = [
        "# What the documents say",
        "",
        "Made from tables of the tests. Each statement of a document has a number, its place, and the tests that run",
        "it, or the reason why it is not as stated. `python tools/document_reference.py` prints the counts.",
        "",
        f"| document | {' | '.join(_COLUMNS)} |",
        f"|{'---|' * (len(_COLUMNS) + 1)}",
        *(f"| {' | '.join(map(str, row))} |" for row in _rows()),
        "",
        "Tests are functions and classes of files of `tests/`; those of `tools/etw_cases_*` are run by",
        "`etw/test_sentences.py`, on real sessions of the portable kernel.",
    ]
    for key, title in DOCUMENTS.items():
        lines += ["", f"## {title}", "", "| | place | says | proof |", "|---|---|---|---|"]
        lines += [_line(statement) for statement in STATEMENTS if statement.document == key]
    return "\n".join([*lines, ""])


def _line(statement: Statement) -> str:
    proof = f"*{statement.kind}*: {statement.proof}"
    if statement.kind == "works":
        proof = ", ".join(f"`{FILES[file]}::{test}`" for file, test in statement.tests())
    return f"| {statement.number} | {statement.place} | {statement.says} | {proof} |"


def main() -> None:
    print("document | " + " | ".join(_COLUMNS))
    for row in _rows():
        print(" | ".join(map(str, row)))


if __name__ == "__main__":
    main()
