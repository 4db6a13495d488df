"""TB5 files with every column, and with modules and samples that a test names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lastbranch.formats.tb5.layout import STRUCTS, Scope, Table, empty_records
from lastbranch.formats.tb5.writer import Tb5Writer
from lastbranch.model import COLUMNS, SampleBatch

KERNEL = 0xFFFF_8000_0000_0000


SAMPLE = np.dtype([("pc", STRUCTS["TBRW_SampleRecordPC"].dtype), ("tsc", "<u8")])


def write(
    path: Path,
    modules: list[dict[str, int]],
    samples: list[dict[str, int]],
    tasks: list[tuple[int, int]] = (),  # type: ignore[assignment]
    threads: list[tuple[int, int]] | None = None,
) -> None:
    """A file as a TBRW user makes it: 40-byte records, modules, no processes unless ``tasks`` (pid, when) or
    ``threads`` (pid, tid)."""
    with Tb5Writer.create(path) as writer:
        rows = empty_records("TBRW_MODULE", len(modules))
        for row, m in zip(rows, modules, strict=True):
            for name, value in m.items():
                row[name] = value
            row["module_name"] = writer.string(f"m{m['module_load_address']:x}")
        writer.put(Table(Scope.GLOBAL, 0, 3), rows)
        if tasks or threads is not None:
            pids = empty_records("TBRW_PID", len(tasks))
            pids["pid_id"], pids["pid_event_when"] = np.array(tasks, np.uint64).reshape(-1, 2).T
            writer.put(Table(Scope.GLOBAL, 0, 2), pids)
            tids = empty_records("TBRW_TID", len(threads or ()))
            tids["tid_associated_pid"], tids["tid_id"] = np.array(threads or (), np.uint32).reshape(-1, 2).T
            writer.put(Table(Scope.GLOBAL, 0, 2, 1), tids)
        entries = empty_records("TBRW_SAMPREC_DESC_ENTRY", 2)
        entries["desc_offset"], entries["desc_data_size"], entries["desc_type"] = (0, 32), (32, 8), (1, 7)
        writer.put(Table(Scope.STREAM, 0, 1), entries)
        info = empty_records("TBRW_STREAM_INFO", 1)
        info["stream_type"] = 1
        writer.put(Table(Scope.STREAM, 0, 4), info)
        records = np.zeros(len(samples), SAMPLE)
        for row, s in zip(records, samples, strict=True):
            row["pc"]["iip"], row["pc"]["pidRecIndex"], row["pc"]["tid"] = s["ip"], s["pid"], s["tid"]
            row["pc"]["cs"], row["pc"]["cpuAndOS"], row["tsc"] = s["cs"], s["mode"] << 13, s["time"]
            row["pc"]["bitFields2"] = 1 << 28 | 1 << 29 | 1 << 30
        writer.put(Table(Scope.STREAM, 0, 2), records)


def every_column(samples: int, depth: int, seed: int = 1) -> SampleBatch:
    """A batch that has all columns, ragged ones of random lengths."""
    random = np.random.default_rng(seed)
    columns, offsets = {}, {}
    for c in COLUMNS:
        if c.group != "sample" and c.group not in offsets:
            lengths = random.integers(0, depth + 1, samples)
            offsets[c.group] = np.concatenate([[0], np.cumsum(lengths)])
        length = samples if c.group == "sample" else int(offsets[c.group][-1])
        info = np.iinfo(c.dtype)
        columns[c.name] = random.integers(info.min, info.max, length, c.dtype, endpoint=True)
    columns["event"] = random.integers(0, 3, samples).astype(np.int32)
    columns["mode"] = random.integers(0, 6, samples).astype(np.uint8)
    return SampleBatch(columns, offsets)
