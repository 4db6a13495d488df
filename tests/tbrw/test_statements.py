"""Each statement of the five documents has tests that exist, or a reason."""

from __future__ import annotations

import re
from pathlib import Path

from document_statements import DOCUMENTS, FILES, STATEMENTS, counts

TESTS = Path(__file__).parents[1]


def test_every_proof_is_there() -> None:
    texts = {short: (TESTS / f"{path}.py").read_text() for short, path in FILES.items()}
    for statement in STATEMENTS:
        assert statement.proof, statement
        assert statement.says, statement
        for file, test in statement.tests():
            found = re.search(rf"^ *(?:def {test}\(|class {test}\b|{test} = )", texts[file], re.M)
            assert found, f"{statement.number}: {file}::{test}"


def test_counts_are_those_of_the_page() -> None:
    page = (TESTS.parent / "docs" / "reference" / "documents.md").read_text()
    assert "| in part |" in page
    for key, found in counts().items():
        stated, works, part, refused, elsewhere = map(
            int,
            re.findall(
                r"\d+",
                next(line for line in page.splitlines() if line.startswith(f"| {DOCUMENTS[key]} |")).removeprefix(
                    f"| {DOCUMENTS[key]} |"
                ),
            ),
        )
        assert (stated, part) == (works + refused + elsewhere, 0)
        assert (works, refused, elsewhere) == (found["works"], found["refused"], found["not here"])
