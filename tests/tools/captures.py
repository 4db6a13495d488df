"""The captures of `$LASTBRANCH_DATA`, and the records of a perf.data file."""

from __future__ import annotations

import gzip
import struct
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

REAL = (
    "amd_zen4_lbrextv2_spec", "arm_etm_inject_hwindex", "arm_etm_inject_kernel_64deep", "cfl_9700_callgraph_lbr",
    "hsw_5820k_16deep_attr136", "simpleperf_16deep_mmap1", "simpleperf_32deep_lbrloop", "skl_m7_32deep_branch-4.14",
    "skx_6154_32deep_pie", "skx_8173m_32deep_pie_user", "snb_callchain_and_branch-3.4",
    "snb_raw_callchain_branch-3.4", "wsm_x5660_16deep",
)  # fmt: skip


SYNTHETIC = ("demo_pie", "demo_2proc", "demo_hwidx", "demo_features", "lldlayout/demo_pie")


FORMS: dict[str, dict[str, Any]] = {
    f"{'big ' * big}{'pipe' if pipe else 'file'}{f' zstd{z}' * bool(z)}": {"big": big, "pipe": pipe, "compress": z}
    for big in (False, True)
    for pipe in (False, True)
    for z in (0, 81, 83)
}
"""How a capture can be written: name -> arguments of `perfdata_writer.encode`."""


@dataclass
class Data:
    """The captures that tests may read, and what other programs said of them (SOURCES.md there)."""

    root: Path

    def path(self, name: str) -> Path:
        """The capture called ``name``, one of `REAL` or `SYNTHETIC`."""
        return self.root / f"{name}.perf.data" if name in REAL else self.root / "synthetic" / f"{name}.data"

    def golden(self, name: str, suffix: str) -> str:
        """The stored text ``suffix`` about capture ``name``."""
        stem = name if name in REAL else "synthetic_" + name.replace("lldlayout/demo_pie", "lldlayout")
        path = self.root / "golden" / f"{stem}.{suffix}"
        return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


def records_of(data: bytes) -> tuple[int, list[tuple[int, int, int]]]:
    """(end of the records, (start, end, type) of each); an AUXTRACE record ends behind its data."""
    order = "<" if data[:8] == b"PERFILE2" else ">"
    (size,) = struct.unpack_from(order + "Q", data, 8)
    at, end = 16, len(data)
    if size != 16:
        at, length = struct.unpack_from(order + "2Q", data, 0x28)
        end = at + length
    out = []
    while at < end:
        kind, _, length = struct.unpack_from(order + "IHH", data, at)
        behind = struct.unpack_from(order + "Q", data, at + 8)[0] if kind == 71 else 0
        out.append((at, at + length + behind, kind))
        at += length + behind
    return end, out


class Whole:
    """An intact file, and how many samples stand whole before each of its bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.end, records = records_of(data)
        self.ends, self.samples = [0], [0]
        order = "<" if data[:8] == b"PERFILE2" else ">"
        stream, text, at, seen = zstandard.ZstdDecompressor().decompressobj(), b"", 0, 0
        for start, end, kind in records:
            if kind in (81, 83):
                body = data[start + 8 : end]
                if kind == 83:
                    (length,) = struct.unpack_from(order + "Q", body)
                    body = body[8 : 8 + length]
                text += stream.decompress(body)
                while at + 8 <= len(text):
                    inner, _, size = struct.unpack_from(order + "IHH", text, at)
                    if at + size > len(text):
                        break
                    seen, at = seen + (inner == 9), at + size
            self.ends.append(end)
            self.samples.append(self.samples[-1] + (kind == 9) + seen)
            seen = 0
        self.borders = {16, *self.ends}
        self.used = self.end
        """The end of the last byte that has a meaning."""
        if struct.unpack_from(order + "Q", data, 8)[0] != 16:
            number = sum(word.bit_count() for word in struct.unpack_from(order + "4Q", data, 0x48))
            sections = [struct.unpack_from(order + "2Q", data, self.end + 16 * i) for i in range(number)]
            self.used = max([self.end + 16 * number, *(at + size for at, size in sections)])

    def before(self, cut: int) -> int:
        """Samples in whole records before byte ``cut``."""
        return self.samples[bisect_right(self.ends, cut) - 1]
