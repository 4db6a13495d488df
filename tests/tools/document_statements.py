"""The statements of the vendors' five documents, in our words, and the proof of each statement.

A line of tests/data/statements_*.txt is ``place | statement | proof``. A proof is the tests that run it (`FILES` has
the short names of their files), or a reason: ``refused: why`` for what the library declines, ``not here: why`` for what
cannot run on the machines of the tests. Numbers go by order, so a new statement belongs at the end. Cases of
`etw/test_sentences` are the functions of etw_cases_*.py; each of them proves a statement.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

__all__ = ["DOCUMENTS", "FILES", "STATEMENTS", "Statement", "counts"]

FILES = {
    "api": "tbrw/test_api", "rules": "tbrw/test_rules", "bad": "tbrw/test_bad_input", "guide": "tbrw/test_guide",
    "fail": "tbrw/test_failures", "prog": "tbrw/test_programs", "face": "tbrw/test_face", "c": "tbrw/test_c_library",
    "model": "tbrw/test_property", "bind": "tbrw/test_binding", "file": "formats/tb5/test_container",
    "same": "formats/tb5/test_consistency", "profile": "formats/tb5/test_profile", "ring": "lbr/test_ring",
    "select": "lbr/test_filters", "registers": "lbr/test_registers", "stacks": "lbr/test_callstacks",
    "truth": "capture/test_truth", "explain": "cli/test_lbr", "session": "etw/portable/test_lbr_session",
    "config": "etw/portable/test_lbr", "case": "tools/etw_cases_lbr", "names": "etw/test_names",
    "layouts": "etw/test_layouts", "calls": "etw/test_api", "recipe": "etw/portable/test_lbr_recipe",
    "prop": "tools/etw_cases_properties", "disk": "tools/etw_cases_files", "ask": "tools/etw_cases_query",
    "live": "etw/portable/sources/test_linux", "joint": "etw/portable/sources/test_joint_events",
    "bytes": "etw/portable/sources/test_sources", "map": "etw/portable/sources/test_map",
    "flight": "etw/portable/test_flight_recorder",
}  # fmt: skip


class Statement(NamedTuple):
    """One statement. ``kind`` is ``works``, ``refused`` or ``not here``; ``proof`` the tests, or the reason."""

    document: str
    number: int
    place: str
    says: str
    kind: str
    proof: str

    def tests(self) -> list[tuple[str, str]]:
        """(short name of the file, test) of each test that runs it."""
        if self.kind != "works":
            return []
        return [(file, test) for file, _, test in (one.partition("::") for one in self.proof.split(", "))]


def _statements(document: str) -> list[Statement]:
    text, found = Path(__file__).parents[1] / "data" / f"statements_{document}.txt", []
    for number, line in enumerate(text.read_text().splitlines(), 1):
        place, says, proof = (part.strip() for part in line.split(" | "))
        kind = next((kind for kind in ("refused", "not here") if proof.startswith(f"{kind}: ")), "works")
        found.append(Statement(document, number, place, says, kind, proof.removeprefix(f"{kind}: ")))
    return found


DOCUMENTS = {
    "properties": "EVENT_TRACE_PROPERTIES_V2",
    "query": "TraceQueryInformation",
    "lbr": "TraceConfigureLastBranchRecord",
    "facility": "Call stacks and the LBR facility (Intel SDM 3B, 17.9)",
    "tbrw": "TBRW User Guide 2.3",
}
"""Documents by key, in the order of the counts."""

STATEMENTS = [statement for document in DOCUMENTS for statement in _statements(document)]


def counts() -> dict[str, Counter[str]]:
    """By document: how many statements ``work``, are ``refused``, are ``not here``."""
    found = {key: Counter[str]() for key in DOCUMENTS}
    for statement in STATEMENTS:
        found[statement.document][statement.kind] += 1
    return found
