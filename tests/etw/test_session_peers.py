"""Logs that sessions write have the same events, header by header, for two other readers (their stored output)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from lastbranch.analysis.checks import check
from lastbranch.formats.etl import TraceLog
from lastbranch.model import BytesSource
from make_etl_peers import line
from session_logs import EVENTS, MODES, make

PEERS = json.loads((Path(__file__).parents[1] / "data" / "session_peers.json").read_text())


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {path.name: path for path in make(tmp_path_factory.mktemp("logs"))}


@pytest.mark.parametrize("name", MODES)
def test_other_readers_see_the_same(logs: dict[str, Path], name: str) -> None:
    log, digest, number = TraceLog(BytesSource(logs[name].read_bytes(), name)), hashlib.sha256(), 0
    for block in log.blocks():
        for i in (block.hook < 0).nonzero()[0].tolist():
            what = f"{block.provider[i].tobytes().hex()}/{block.id[i]}"
            digest.update(line(block.size[i], block.time[i], int(block.pid[i]), int(block.tid[i]), what).encode())
            number += 1
    said = {"events": number, "sha256": digest.hexdigest(), "error": None}
    assert number == EVENTS
    assert said == PEERS["dissect.etl 3.14"][name] == PEERS["etl-parser 1.0.1"][name]


@pytest.mark.parametrize("name", MODES)
def test_check_finds_no_error(logs: dict[str, Path], name: str) -> None:
    assert [finding for finding in check(str(logs[name])) if finding.severity == "error"] == []
