"""A perf.data writer for the benchmark: just the records `perf record -e cycles:u -b` leaves, streamed in blocks.

Layouts are those of linux/perf_event.h (attr, samples, MMAP2, COMM) and tools/perf/util/header.c (file header and
feature sections). It shares no code with lastbranch on purpose: a reader must not be checked by its own writer.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

DEPTH = 32
SAMPLE_WORDS = 6 + 3 * DEPTH
SAMPLE_BYTES = 8 * SAMPLE_WORDS
PERIOD = 1_000_003

# perf_event_attr
_IP, _TID, _TIME, _CALLCHAIN, _SAMPLE_PERIOD, _BRANCH_STACK = 1 << 0, 1 << 1, 1 << 2, 1 << 5, 1 << 8, 1 << 11
_SAMPLE_TYPE = _IP | _TID | _TIME | _SAMPLE_PERIOD | _BRANCH_STACK  # 0x907
_BRANCH_USER, _BRANCH_ANY = 1 << 0, 1 << 3
_ATTR_SIZE = 120
# inherit, exclude_kernel, exclude_hv, mmap, comm, enable_on_exec, task, sample_id_all, mmap2, comm_exec
_ATTR_FLAGS = sum(1 << bit for bit in (1, 5, 6, 8, 9, 12, 13, 18, 23, 24))
_IN_USER_SPACE = (1 << 64) - 512
"""PERF_CONTEXT_USER, before the frames of a call chain."""


def _attr(chains: bool) -> bytes:
    return struct.pack(
        "<IIQQQQQIIQQQQIiQIHHII",
        *(0, _ATTR_SIZE, 0, PERIOD, _SAMPLE_TYPE | _CALLCHAIN * chains, 0, _ATTR_FLAGS, 0, 0, 0, 0),
        *(_BRANCH_ANY | _BRANCH_USER, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    )


# record types and misc bits
_COMM, _SAMPLE, _MMAP2, _BUILD_ID, _FINISHED_ROUND = 3, 9, 10, 67, 68
_USER, _COMM_EXEC = 2, 1 << 13
_PROT_READ_EXEC, _MAP_PRIVATE = 5, 2

_HEADER_SIZE = 104
_FEATURES = {"BUILD_ID": 2, "HOSTNAME": 3, "OSRELEASE": 4, "VERSION": 5, "ARCH": 6, "NRCPUS": 7}
_FEATURES |= {"CMDLINE": 11, "EVENT_DESC": 12, "BRANCH_STACK": 15}


def _padded(text: str, to: int = 8) -> bytes:
    raw = text.encode() + b"\0"
    return raw + bytes(-len(raw) % to)


def _string(text: str) -> bytes:
    raw = _padded(text, 64)
    return struct.pack("<I", len(raw)) + raw


def _record(kind: int, misc: int, body: bytes) -> bytes:
    return struct.pack("<IHH", kind, misc, 8 + len(body)) + body


class Writer:
    """Writes a perf.data file: records in call order, and the header on closing. ``chains``: samples have call
    chains."""

    def __init__(self, path: Path, chains: bool = False) -> None:
        self._attr = _attr(chains)
        self._file: BinaryIO = path.open("wb")
        self._data_offset = _HEADER_SIZE + _ATTR_SIZE + 16
        self._file.write(bytes(self._data_offset))

    def comm(self, pid: int, name: str, time: int) -> None:
        """The process replaced its program (exec)."""
        body = struct.pack("<II", pid, pid) + _padded(name) + struct.pack("<IIQ", pid, pid, time)
        self._file.write(_record(_COMM, _USER | _COMM_EXEC, body))

    def mmap2(self, pid: int, start: int, length: int, offset: int, path: str, time: int) -> None:
        """The process mapped the executable segment of `path`."""
        body = struct.pack("<IIQQQ", pid, pid, start, length, offset)
        body += struct.pack("<IIQQII", 8, 1, 1234, 0, _PROT_READ_EXEC, _MAP_PRIVATE)
        self._file.write(_record(_MMAP2, _USER, body + _padded(path) + struct.pack("<IIQ", pid, pid, time)))

    def samples(
        self,
        ip: NDArray[np.uint64],
        pid: NDArray[np.uint64],
        time: NDArray[np.uint64],
        stacks: NDArray[np.uint64],
    ) -> None:
        """A block of samples; `stacks` has DEPTH entries of (from, to, flags) a sample, newest first."""
        words = np.empty((len(ip), SAMPLE_WORDS), "<u8")
        words[:, 0] = _SAMPLE | _USER << 32 | SAMPLE_BYTES << 48
        words[:, 1] = ip
        words[:, 2] = pid | pid << np.uint64(32)
        words[:, 3] = time
        words[:, 4] = PERIOD
        words[:, 5] = DEPTH
        words[:, 6:] = stacks.reshape(len(ip), 3 * DEPTH)
        self._file.write(words.data)

    def chained_samples(
        self,
        ip: NDArray[np.uint64],
        pid: NDArray[np.uint64],
        time: NDArray[np.uint64],
        stacks: NDArray[np.uint64],
        callers: list[tuple[int, ...]],
    ) -> None:
        """The same with a call chain each, of which ``callers`` are the return addresses, innermost first."""
        words = stacks.reshape(len(ip), 3 * DEPTH).astype("<u8")
        columns = zip(ip.tolist(), pid.tolist(), time.tolist(), callers, words, strict=True)
        for at, process, when, frames, entries in columns:
            chain = (2 + len(frames), _IN_USER_SPACE, at, *frames)
            body = struct.pack(f"<QIIQQ{len(chain)}QQ", at, process, process, when, PERIOD, *chain, DEPTH)
            self._file.write(_record(_SAMPLE, _USER, body + entries.tobytes()))

    def finished_round(self) -> None:
        """Everything older than the newest time so far is in the file."""
        self._file.write(_record(_FINISHED_ROUND, 0, b""))

    def close(self, build_id: bytes, path: str, host: str = "benchmark") -> None:
        """Append the feature sections and write the header over its place at the start."""
        end = self._file.tell()
        build_id_record = struct.pack("<i", -1) + build_id.ljust(20, b"\0") + bytes(4) + _padded(path, 64)
        sections = {
            "BUILD_ID": _record(_BUILD_ID, _USER, build_id_record),
            "HOSTNAME": _string(host),
            "OSRELEASE": _string("6.1.0"),
            "VERSION": _string("6.1.0"),
            "ARCH": _string("x86_64"),
            "NRCPUS": struct.pack("<II", 4, 4),
            "CMDLINE": struct.pack("<I", 5) + b"".join(map(_string, ("perf", "record", "-e", "cycles:u", "-b"))),
            "EVENT_DESC": struct.pack("<II", 1, _ATTR_SIZE) + self._attr + struct.pack("<I", 0) + _string("cycles:u"),
            "BRANCH_STACK": b"",
        }
        at = end + 16 * len(sections)
        for content in sections.values():
            self._file.write(struct.pack("<QQ", at, len(content)))
            at += len(content)
        self._file.writelines(sections.values())
        self._file.seek(0)
        features = sum(1 << bit for bit in _FEATURES.values())
        self._file.write(struct.pack("<8sQQ", b"PERFILE2", _HEADER_SIZE, _ATTR_SIZE + 16))
        self._file.write(struct.pack("<QQ", _HEADER_SIZE, _ATTR_SIZE + 16))
        self._file.write(struct.pack("<QQ", self._data_offset, end - self._data_offset))
        self._file.write(struct.pack("<QQ4Q", 0, 0, features, 0, 0, 0))
        self._file.write(self._attr + struct.pack("<QQ", 0, 0))
        self._file.close()
