"""A reader of TB5 files from docs/reference/tb5-format.md alone, with nothing of the package: the truth of tests."""

from __future__ import annotations

import struct
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any
from zlib import crc32

MODULE = "<4IQ3I4xQQ4I4Q"
DESCRIPTOR = "<IIHHIQ4BIQ"
EVENT = "<4IQ3Q"
STREAM_INFO = "<8I3Q"
SAMPLE = "<QQHHIII"


class TB5:
    """Tables by (scope, stream, section, part), as (record size, bytes)."""

    def __init__(self, path: Path) -> None:
        data = self.data = path.read_bytes()
        magic, version, start = struct.unpack_from("<16sII", data)
        assert (magic, version, start) == (b"lastbranch TB5\r\n", 1, 4096)
        assert crc32(data[:56]) == struct.unpack_from("<I", data, 56)[0]
        slots = []
        for at in (512, 1024):
            sequence, directory, size, end, flags, crc, zero, own = struct.unpack_from("<4Q4I", data, at)
            if sequence and crc32(data[at : at + 44]) == own and crc32(data[directory : directory + size]) == crc:
                assert zero == 0
                assert end <= len(data)
                slots.append((sequence, directory, size, flags))
        self.sequence, directory, size, self.flags = max(slots)
        self.tables: dict[tuple[int, int, int, int], tuple[int, bytes]] = {}
        for at in range(directory, directory + size, 48):
            fields = struct.unpack_from("<4HIIQIIQII", data, at)
            scope, section, part, _, stream, record, count, block, blocks, index, crc, _ = fields
            assert crc32(data[index : index + 24 * blocks]) == crc
            pieces = []
            for i in range(blocks):
                offset, check, total = struct.unpack_from("<3Q", data, index + 24 * i)
                length = min(block, record * count - block * i)
                assert offset >= 4096
                assert offset % 64 == 0
                pieces.append(data[offset : offset + length])
                assert block_check(pieces[-1]) == (check, total)
            self.tables[scope, stream, section, part] = record, b"".join(pieces)
            assert len(self.tables[scope, stream, section, part][1]) == record * count
        for _, stream, section, part in [k for k in self.tables if k[0] == 3 and k[2] == 3]:
            size, heads = self.tables[3, stream, section, part]
            record, data = self.tables[1, stream, 2, 0]
            assert heads == b"".join(data[at : at + size] for at in range(0, len(data), record))
        self.texts = [b""]
        for key in sorted(k for k in self.tables if k[0] == 3 and k[2:] == (1, 0)):
            ends = [e for (e,) in struct.iter_unpack("<Q", self.tables[key][1])]
            text = self.tables.get((*key[:3], 1), (1, b""))[1]
            self.texts += [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]

    def rows(self, key: tuple[int, int, int, int], code: str) -> list[tuple[Any, ...]]:
        """Records of a table; the code may leave out what pads them at the end."""
        record, data = self.tables.get(key, (1, b""))
        return [struct.unpack_from(code, data, at) for at in range(0, len(data), record)]

    @property
    def streams(self) -> int:
        return len({k[1] for k in self.tables if k[0] == 1})

    def modules(self) -> list[dict[str, Any]]:
        names = ("size", "reserved", "pid", "flags", "load", "segment", "mode", "selector", "length", "address")
        rows = self.rows((0, 0, 3, 0), MODULE)
        return [dict(zip(names, r, strict=False)) | {"unload": r[14], "path": self.texts[r[15]]} for r in rows]

    def descriptors(self, stream: int) -> list[tuple[int, int, int, int, bytes]]:
        """(type, subtype, offset, size, name)"""
        rows = self.rows((1, stream, 1, 0), DESCRIPTOR)
        return [(kind, sub, at, size, self.texts[r[-1]]) for r in rows for _, at, kind, sub, size in [r[:5]]]

    def samples(self, stream: int = 0) -> list[dict[str, Any]]:
        """ip, pid, tid, time and event of each sample, and its branch entries."""
        record, data = self.tables[1, stream, 2, 0]
        places = {(kind, sub): (at, size) for kind, sub, at, size, _ in self.descriptors(stream)}
        named = {name: (at, size) for _, _, at, size, name in self.descriptors(stream)}
        pairs, count = places.get((12, 11)), named.get(b"branch count")
        out = []
        for start in range(0, len(data), record):
            ip, _, cs, cpu, tid, pid, bits = struct.unpack_from(SAMPLE, data, start)
            one = {
                "ip": ip if bits >> 29 & 1 else ip & 0xFFFFFFFF,
                "pid": pid,
                "tid": tid,
                "cs": cs,
                "mode": cpu >> 13 & 3,
            }
            one["event"], one["cpu"] = bits >> 20 & 0xFF, cpu & 0xFFF
            if (5, 0) in places:
                (one["cpu"],) = struct.unpack_from("<i", data, start + places[5, 0][0])
            (one["time"],) = struct.unpack_from("<q", data, start + named[b"TimeStamp"][0])
            one["branches"] = []
            if pairs and count:
                (n,) = struct.unpack_from("<I", data, start + count[0])
                words = struct.unpack_from(f"<{2 * n}Q", data, start + pairs[0])
                one["branches"] = list(zip(words[::2], words[1::2], strict=True))
            for group, number in self.groups(stream).items():
                (first,) = struct.unpack_from("<Q", data, start + named[group + b" first"][0])
                (n,) = struct.unpack_from("<I", data, start + named[group + b" count"][0])
                size, rows = self.tables[1, number, 2, 0]
                one[group.decode()] = rows[first * size : (first + n) * size]
            out.append(one)
        return out

    def groups(self, stream: int) -> dict[bytes, int]:
        found = {}
        for number in range(self.streams):
            (info,) = self.rows((1, number, 4, 0), STREAM_INFO)
            group, of, owner = self.texts[info[-1]].partition(b" of stream ")
            if info[2] == 8 and of and int(owner) == stream:
                found[group] = number
        return found


def block_check(block: bytes) -> tuple[int, int]:
    block += b"\0" * (-len(block) % 4096)
    words = struct.unpack(f"<{len(block) // 8}Q", block)
    rows = [words[i : i + 512] for i in range(0, len(words), 512)]
    folds = [reduce(xor, column, 0) for column in zip(*rows, strict=True)] if rows else [0] * 512
    folds += [reduce(xor, row) for row in rows]
    low = b"".join(struct.pack("<I", f & 0xFFFFFFFF) for f in folds)
    high = b"".join(struct.pack("<I", f >> 32) for f in folds)
    return crc32(low) | crc32(high) << 32, sum(words) & (1 << 64) - 1
