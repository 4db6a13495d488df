"""Event counts and headers of uncompressed real files equal those of two other readers (their stored output).

`make_etl_peers` made the store. Where a peer differs is told here with the reason; nothing else differs.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest

from lastbranch.formats.etl import TraceLog
from lastbranch.model import BytesSource
from make_etl_peers import UNCOMPRESSED, line

PEERS = json.loads((Path(__file__).parent / "data" / "etl_peers.json").read_text())
DISSECT, PARSER = PEERS["dissect.etl 3.14"], PEERS["etl-parser 1.0.1"]
EVENT_HEADERS = (18, 19)
WINDOWS_7 = [name for name in UNCOMPRESSED if name.startswith("syzygy")]


def lines(name):
    """(whether the event is in the header buffer, its line) of every event, by our reader."""
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    log = TraceLog(BytesSource(Path(root, "etl", name).read_bytes(), name))
    for block in log.blocks():
        hooks, guids, place = block.hook.tolist(), block.provider, block.window.buffers.offset.take(block.buffer)
        for i, hook in enumerate(hooks):
            number = block.id[i] if block.header[i] in EVENT_HEADERS else block.opcode[i]
            what = f"{hook:#x}" if hook >= 0 else f"{guids[i].tobytes().hex()}/{number}"
            size, time = int(block.size[i]), int(block.time[i])
            yield place[i] == 0, line(size, time, int(block.pid[i]), int(block.tid[i]), what)


def digest(texts):
    whole = hashlib.sha256()
    for text in texts:
        whole.update(text.encode())
    return whole.hexdigest()


def test_the_store_is_of_all_files():
    assert set(DISSECT) == set(PARSER) == set(UNCOMPRESSED)
    assert not any(said["error"] for said in DISSECT.values())


@pytest.mark.parametrize("name", UNCOMPRESSED)
def test_dissect_etl_sees_the_same(name):
    """No difference: every event of every file, those of the header buffer included."""
    ours = [text for _, text in lines(name)]
    assert len(ours) == DISSECT[name]["events"]
    assert digest(ours) == DISSECT[name]["sha256"]


@pytest.mark.parametrize("name", [name for name in UNCOMPRESSED if name not in WINDOWS_7])
def test_etl_parser_sees_the_same_behind_the_header_buffer(name):
    """It skips the header buffer, and with it the log file header and the group masks."""
    ours = [text for in_header, text in lines(name) if not in_header]
    assert len(ours) == PARSER[name]["events"]
    assert digest(ours) == PARSER[name]["sha256"]


@pytest.mark.parametrize("name", WINDOWS_7)
def test_etl_parser_reads_nothing_of_windows_7(name):
    """It takes SavedOffset for the used length, which is 0 there, and ends with an exception."""
    assert (PARSER[name]["events"], PARSER[name]["error"]) == (0, "IndexError")
    assert sum(1 for _ in lines(name)) > 2
