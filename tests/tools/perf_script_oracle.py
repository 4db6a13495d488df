"""The output of perf script for a file, if perf is installed."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

import perfdata_writer as pw
from perfdata_writer import Attr, Capture, Record

PERF = shutil.which("perf")


needs_perf = pytest.mark.skipif(PERF is None, reason="perf is not installed (Debian: linux-perf)")


OLD_FLAGS = (1 << 24) - 1  # mispred to type


def perf_script(data: bytes, where: Path, *options: str, pipe: bool = False, warnings: bool = False) -> str:
    """The output of perf script; perf must not fail, nor say anything unless warnings are expected."""
    path = where / "x.data"
    path.write_bytes(data)
    assert PERF is not None
    with path.open("rb") as stream:
        command = [PERF, "script", *options, "-i", "-" if pipe else str(path)]
        done = subprocess.run(command, stdin=stream, capture_output=True, text=True, errors="replace", timeout=120)
    assert (done.returncode, "" if warnings else done.stderr) == (0, "")
    return done.stdout


def changed(capture: Capture, attr_size: int, branch_bits: int, flag_bits: int) -> Capture:
    """The capture with its attr cut and masks laid over branch_sample_type and the branch flags."""
    raw = bytearray(capture.attrs[0].raw[:attr_size])
    struct.pack_into("<I", raw, 4, len(raw))
    struct.pack_into("<Q", raw, 72, capture.attrs[0]["branch_sample_type"] & branch_bits)
    attr, records = Attr(bytes(raw)), []
    for record in capture.records:
        body = record.body
        if record.name == "SAMPLE":
            entries = [{**entry, "flags": entry["flags"] & flag_bits} for entry in record.fields["branches"]]
            body = pw.pack(pw.sample_spec(attr), {**record.fields, "branches": entries})
        records.append(Record(record.type, record.misc, body))
    return Capture([attr], capture.features, records)
