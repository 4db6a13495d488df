"""A PDB written field by field, and the source it describes."""

from __future__ import annotations

import struct

from lastbranch.binaries.pdb import MAGIC

SOURCE = """
#define ALWAYS inline __attribute__((always_inline))
template <int N> struct Deep {
    static ALWAYS int go(const int *p, int n) {
        int s = N;
        for (int i = 0; i < n; ++i) if (p[i] % (N + 2)) s += p[i] * N; else s -= Deep<N - 1>::go(p + i, n - i - 1);
        return s;
    }
};
template <> struct Deep<0> { static ALWAYS int go(const int *p, int n) { return n > 0 ? p[n - 1] : n; } };
int data[64];
extern "C" __attribute__((noinline, dllexport)) int plain(int n) { return n * 3; }
static __attribute__((noinline)) int hidden(int n) { return Deep<2>::go(data, n) + plain(n); }
__attribute__((noinline)) int shown(int n) { return hidden(n) + Deep<1>::go(data, n) + 2; }
extern "C" int start() { for (int i = 0; i < 64; ++i) data[i] = i; return shown(data[3]) + Deep<3>::go(data, 9); }
"""


def record(kind: int, fields: bytes, name: bytes) -> bytes:
    body = struct.pack("<H", kind) + fields + name + b"\0"
    body += bytes(-(len(body) + 2) % 4)
    return struct.pack("<H", len(body)) + body


def public(name: bytes, offset: int, segment: int = 1, flags: int = 2) -> bytes:
    return record(0x110E, struct.pack("<IIH", flags, offset, segment), name)


def procedure(name: bytes, offset: int, size: int, kind: int = 0x1110) -> bytes:
    return record(kind, struct.pack("<8IHB", 0, 0, 0, size, 0, 0, 0, offset, 1, 0), name) + struct.pack("<HH", 2, 6)


def written(publics: bytes, procedures: bytes, sections: list[tuple[int, int]], block: int = 512) -> bytes:
    """An MSF file with the streams of a PDB; the blocks of its streams are not in order."""
    headers = b"".join(struct.pack("<8sII24x", b".text", size, address) for address, size in sections)
    module = struct.pack("<I28xHHIIIHH12x", 0, 0, 7, 4 + len(procedures), 0, 0, 0, 0) + b"a.obj\0b.lib\0"
    module += bytes(-len(module) % 4)
    listed = struct.pack("<11H", *[0xFFFF] * 5, 6, *[0xFFFF] * 5)
    dbi = struct.pack(
        "<iII6H5iIiiHHI",
        -1,
        19990903,
        1,
        0xFFFF,
        0,
        0xFFFF,
        0,
        5,
        0,
        len(module),
        0,
        0,
        0,
        0,
        0,
        len(listed),
        0,
        0,
        0x8664,
        0,
    )
    streams = [b"", b"", b"", dbi + module + listed, b"", publics, headers, struct.pack("<I", 4) + procedures]
    blocks: list[bytes] = [b""] * 3
    numbers = []
    for stream in streams:
        parts = [stream[i : i + block].ljust(block, b"\0") for i in range(0, len(stream), block)]
        numbers += [len(blocks) + len(parts) - 1 - i for i in range(len(parts))]
        blocks += parts[::-1]
    directory = struct.pack(f"<I{len(streams)}I{len(numbers)}I", len(streams), *map(len, streams), *numbers)
    first = len(blocks)
    parts = [directory[i : i + block].ljust(block, b"\0") for i in range(0, len(directory), block)]
    blocks += [*parts, struct.pack(f"<{len(parts)}I", *range(first, first + len(parts))).ljust(block, b"\0")]
    top = MAGIC + struct.pack("<6I", block, 1, len(blocks), len(directory), 0, len(blocks) - 1)
    return b"".join([top.ljust(block, b"\0"), bytes(2 * block), *blocks[3:]])


PUBLICS = b"".join([public(b"?shown@@YAHH@Z", 0x10), public(b"assembled", 0x80), public(b"constant", 0, 2, 0),
                    public(b"nowhere", 5, 9)])  # fmt: skip


PROCEDURES = procedure(b"shown", 0x10, 0x20) + procedure(b"hidden", 0x40, 0x10, 0x110F) + procedure(b"f" * 700, 0x60, 8)


PDB = written(PUBLICS, PROCEDURES, [(0x1000, 0x200), (0x2000, 0x100)])
