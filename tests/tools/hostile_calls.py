"""A program that makes system calls with whatever arguments: for what records the calls of all programs.

    python tests/tools/hostile_calls.py [--seconds 1] [--seed N]

Offsets, sizes, addresses and descriptors are random or at the limits of their types; names have any bytes, any length
and no end; sockets change their family; a library has thousands of segments. Every call is made by a child, which may
end by it. Nothing outside of a temporary folder is touched: paths are relative to it, or point to nowhere.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import random
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lastbranch.etw.portable.sources.system_calls import CALLS

NUMBERS = CALLS.get(platform.machine(), {})
LIMITS = (0, 1, 0xFFF, 0x1000, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 47) - 1, 1 << 47, (1 << 63) - 1,
          1 << 63, (1 << 64) - 4096, (1 << 64) - 100, (1 << 64) - 1)  # fmt: skip
HARMLESS = {"read", "pread64", "readv", "preadv", "preadv2", "lseek", "fstat", "fsync", "fdatasync", "getdents64"}
"""Calls that change nothing, whatever their descriptor and size; what they would write to is an address of nowhere."""
IPV6_ADDRFORM = 1
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int) -> int:
    """The system call ``name``; its arguments are words."""
    words = [ctypes.c_uint64(argument & (1 << 64) - 1) for argument in (*arguments, *[0] * 6)[:6]]
    return int(_libc.syscall(ctypes.c_long(NUMBERS[name]), *words))


def odd(chance: random.Random) -> int:
    return chance.choice([*LIMITS, chance.getrandbits(64), chance.getrandbits(chance.randrange(1, 64))])


def text(chance: random.Random) -> ctypes.Array[ctypes.c_char]:
    """A name: relative, without zeros inside."""
    size = chance.choice([1, 2, 255, 256, 4094, 4095, 4096, 9000])
    raw = bytes(chance.choice(b'x\n\t\x01\x7f\x80\xc3\xed\xa0\xff "\\') for _ in range(size))
    return ctypes.create_string_buffer(raw)


# -- what a child does


def transfers(chance: random.Random) -> None:
    with open("file", "wb+") as file:
        for name in sorted(HARMLESS & NUMBERS.keys()):
            descriptor = chance.choice([file.fileno(), odd(chance)])
            call(name, descriptor, 0, odd(chance), odd(chance), odd(chance), odd(chance))
        for name in ("write", "pwrite64", "writev", "pwritev", "pwritev2"):  # of nothing: no memory is at address 8
            if name in NUMBERS:
                call(name, file.fileno(), 8, odd(chance), odd(chance), odd(chance))
        call("pread64", file.fileno(), 0, 16, -4096)
        call("ftruncate", file.fileno(), -odd(chance) - 1 | 1 << 63)


def names(chance: random.Random) -> None:
    made = text(chance)
    for address in (ctypes.addressof(made), odd(chance) | 1 << 63):
        for name in ("open", "creat", "unlink"):
            if name in NUMBERS:
                call(name, address, 0, 0)
        call(
            "openat", -100, address, chance.choice([0, os.O_CREAT, os.O_DIRECTORY, odd(chance) & ~os.O_NONBLOCK]), 0o600
        )
        call("unlinkat", -100, address, 0)
        for name in ("renameat", "renameat2"):
            if name in NUMBERS:
                call(name, -100, address, -100, address)
    call("close", odd(chance) | 1 << 20)


def memory(chance: random.Random) -> None:
    call("mmap", 0, odd(chance), odd(chance), 0x22, -1, odd(chance))
    call("munmap", odd(chance) & ~0xFFF, odd(chance))
    call("brk", odd(chance))
    call("mremap", odd(chance) & ~0xFFF, odd(chance), odd(chance), 0)


def sockets(chance: random.Random) -> None:
    """A connection by an IPv6 socket that goes on as one of IPv4."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as one,
    ):
        one.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        with server.accept()[0] as other:
            one.send(b"x" * 100)
            one.setsockopt(socket.IPPROTO_IPV6, IPV6_ADDRFORM, socket.AF_INET)
            one.send(b"y" * 100)
            other.send(b"z" * 100)
            one.recv(100)


def segments(chance: random.Random) -> None:
    """A file with as many load segments as there may be, mapped executable."""
    count = chance.choice([1, 3000, 20_000])
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0)
    loads = b"".join(struct.pack("<IIQQQQQQ", 1, 5, 0, n << 12, 0, 4096, odd(chance), 4096) for n in range(count))
    Path("library").write_bytes(head + loads)
    with open("library", "rb") as file:
        size = os.fstat(file.fileno()).st_size
        call("mmap", 0, size, 5, 2, file.fileno(), 0)


def threads(chance: random.Random) -> None:
    Path("/proc/self/comm").write_bytes(bytes(chance.choice(b"a\n\xff\x01) (") for _ in range(15)))
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


ACTS: tuple[Callable[[random.Random], None], ...] = (transfers, names, memory, sockets, segments, threads)


def act(chance: random.Random, which: Callable[[random.Random], None]) -> None:
    """Do it in a child, however that ends."""
    pid = os.fork()
    if pid == 0:
        with suppress(OSError):
            which(chance)
        os._exit(0)
    os.waitpid(pid, 0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hostile system calls.")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    chance, end, count = random.Random(given.seed), time.monotonic() + given.seconds, 0
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # which a call with descriptor 0 would wait for
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        while count < len(ACTS) or time.monotonic() < end:
            act(random.Random(chance.getrandbits(64)), ACTS[count % len(ACTS)])
            count += 1
        os.chdir("/")
    print(f"{count} children")
    return 0


if __name__ == "__main__":
    sys.exit(main())
