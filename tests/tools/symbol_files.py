"""Files with symbols that several tests read: Breakpad text, a jitdump, symbol tables of ELF files."""

from __future__ import annotations

import struct
from uuid import UUID

GUID = UUID("00112233-4455-6677-8899-aabbccddeeff")


KEY = GUID.hex.upper() + "2A"


TEXT = f"""\
MODULE windows x86_64 {KEY} App.pdb
INFO CODE_ID 5E5E5E5E1000 App.exe
FILE 0 C:\\src\\a b.cc
FILE 1 /src/inner.h
INLINE_ORIGIN 0 middle(int)
INLINE_ORIGIN 1 inner()
FUNC 1000 40 0 outer(int, char)
INLINE 0 12 0 0 1010 20
INLINE 1 33 1 1 1014 4 1020 4
1000 10 10 0
1010 4 31 1
1014 4 5 1
1018 18 34 1
1030 8 14 0
FUNC m 2000 10 0 shared
2000 10 77 0
FUNC 3000 zz 0 damaged
PUBLIC m 4000 0 _ZN1a1bEv
PUBLIC 1000 8 public name of outer
STACK CFI INIT 1000 40 .cfa: $rsp 8 +
FUNC 5000 10 0 last
5000 ffffffffffffffff 4294967295 99
"""


PID = 4242


class Dump:
    def __init__(self, order: str, pid: int = PID, flags: int = 0) -> None:
        self.order, self.pid = order, pid
        self.data = struct.pack(order + "6I2Q", 0x4A695444, 1, 40, 62, 0, pid, 1, flags)

    def record(self, kind: int, time: int, body: bytes) -> None:
        self.data += struct.pack(self.order + "IIQ", kind, 16 + len(body), time) + body

    def load(self, time: int, start: int, size: int, index: int, name: bytes) -> None:
        body = struct.pack(self.order + "IIQQQQ", self.pid, self.pid, start, start, size, index)
        self.record(0, time, body + name + b"\0" + bytes(size))

    def move(self, time: int, old: int, new: int, size: int, index: int) -> None:
        self.record(1, time, struct.pack(self.order + "IIQQQQQ", self.pid, self.pid, new, old, new, size, index))

    def lines(self, time: int, start: int, entries: list[tuple[int, int, bytes]]) -> None:
        body = struct.pack(self.order + "QQ", start, len(entries))
        for address, line, file in entries:
            body += struct.pack(self.order + "Qii", address, line, 0) + file + b"\0"
        self.record(2, time, body)

    def story(self) -> bytes:
        """``a`` at 0x1000 until 30, when it moves to 0x3000; ``b`` takes its place at 50, and ``c`` some of that."""
        self.lines(9, 0x1000, [(0x1000, 5, b"a.js"), (0x1008, 6, b"\xff"), (0x100C, 9, b"lib.js")])
        self.load(10, 0x1000, 0x10, 0, b"a")
        self.record(99, 11, b"unknown")
        self.record(4, 12, bytes(24))
        self.move(30, 0x1000, 0x3000, 0x10, 0)
        self.load(50, 0x1000, 0x20, 1, b"b")
        self.load(60, 0x1018, 0x4, 2, b"_ZN1cEv")
        self.record(3, 70, b"")
        self.load(80, 0x5000, 0x10, 3, b"after the close")
        return self.data


def written(
    symbols: list[tuple[str, int, int, int, int]], machine: int = 62, bits: int = 64, order: str = "<"
) -> bytes:
    """An ELF file with code at 0x1000, data at 0x3000 and ``symbols``: (name, value, size, info, section)."""
    words, wide = (("Q", 64), ("I", 52))[bits == 32]
    names = b"\0" + b"".join(s[0].encode() + b"\0" for s in symbols)
    table, at = b"", 1
    for name, value, size, info, section in [("", 0, 0, 0, 0), *symbols]:
        place = at if name else 0
        at += len(name) + 1 if name else 0
        if bits == 64:
            table += struct.pack(f"{order}IBBHQQ", place, info, 0, section, value, size)
        else:
            table += struct.pack(f"{order}IIIBBH", place, value, size, info, 0, section)
    strings = b"\0.text\0.data\0.symtab\0.strtab\0.shstrtab\0"
    bodies = [b"", bytes(64), bytes(64), table, names, strings]
    places = [wide + sum(map(len, bodies[:i])) for i in range(len(bodies))]

    def header(name: bytes, kind: int, flags: int, address: int, number: int, link: int, entry: int) -> bytes:
        size = 0x1000 if number in (1, 2) else len(bodies[number])
        kind = 8 if number in (1, 2) else kind  # SHT_NOBITS: only the addresses matter
        fields = strings.find(name), kind, flags, address, places[number], size, link, 0, 1, entry
        return struct.pack(f"{order}II{words * 4}II{words * 2}", *fields)

    entry = 24 if bits == 64 else 16
    headers = bytes(64 if bits == 64 else 40) + b"".join(
        [
            header(b".text", 1, 6, 0x1000, 1, 0, 0),
            header(b".data", 1, 3, 0x3000, 2, 0, 0),
            header(b".symtab", 2, 0, 0, 3, 4, entry),
            header(b".strtab", 3, 0, 0, 4, 0, 0),
            header(b".shstrtab", 3, 0, 0, 5, 0, 0),
        ]
    )
    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    sizes = (wide, 0, 0, 64 if bits == 64 else 40, 6, 5)
    ehdr = struct.pack(f"{order}HHI{words * 3}I6H", 3, machine, 1, 0, 0, wide + sum(map(len, bodies)), 0, *sizes)
    return ident + ehdr + b"".join(bodies) + headers


FUNC, LOCAL_FUNC, OBJECT, NOTYPE, IFUNC, FILE, SECTION = 0x12, 0x02, 0x11, 0x10, 0x1A, 0x04, 0x03


SYMBOLS = [
    ("file.c", 0, 0, FILE, 0xFFF1), (".text", 0x1000, 0, SECTION, 1), ("local", 0x1000, 16, LOCAL_FUNC, 1),
    ("first", 0x1000, 16, FUNC, 1), ("longer", 0x1000, 32, FUNC, 1), ("short", 0x1000, 4, FUNC, 1),
    ("versioned@@V_1", 0x1030, 8, FUNC, 1), ("label", 0x1040, 0, NOTYPE, 1), ("chosen", 0x1050, 16, IFUNC, 1),
    ("undefined", 0x1050, 99, FUNC, 0), ("data", 0x3000, 64, OBJECT, 2), ("absolute", 0x1058, 8, FUNC, 0xFFF1),
]  # fmt: skip
