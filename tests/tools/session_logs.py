"""One log of each form that a session writes, with the same events each time.

Run as ``python tests/tools/session_logs.py FOLDER``.

Other readers are held against them (`make_etl_peers.py --sessions`, `test_session_peers.py`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lastbranch.etw.flags import LogFileMode as M
from session_rig import Rig

EVENTS = 300
MODES: dict[str, dict[str, int]] = {
    "sequential.etl": {},
    "small-buffers.etl": {"buffer_size": 4},
    "system-time.etl": {"clock": 2},
    "circular.etl": {"mode": M.FILE_MODE_CIRCULAR, "maximum_file_size": 1},
    "append.etl": {"mode": M.FILE_MODE_APPEND},
    "preallocate.etl": {"mode": M.FILE_MODE_SEQUENTIAL | M.FILE_MODE_PREALLOCATE, "maximum_file_size": 1},
    "buffering.etl": {"mode": M.BUFFERING_MODE, "minimum_buffers": 8},
    "one-stream.etl": {"mode": M.FILE_MODE_SEQUENTIAL | M.NO_PER_PROCESSOR_BUFFERING},
    "kilobytes.etl": {"mode": M.FILE_MODE_CIRCULAR | M.USE_KBYTES_FOR_SIZE, "maximum_file_size": 2048},
}


def make(folder: Path) -> list[Path]:
    """Write them; each has `EVENTS` events of two writers."""
    for name, options in MODES.items():
        path = folder / name
        rig = Rig(file=str(path), **options)
        first, second = rig.writer(), rig.writer()
        for _ in range(EVENTS // 20):
            rig.write(first, 12)
            rig.write(second, 8, payload=40)
            rig.poll()
        rig.gone(first)
        rig.gone(second)
        if options.get("mode", 0) & M.BUFFERING_MODE:
            rig.logger.flush(str(path))
        assert rig.stop().events_lost == 0
    return [folder / name for name in MODES]


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    make(Path(sys.argv[1]))
