"""The memory of a running kernel, from ``/proc/kcore`` or a copy of this file: the code that really ran.

A kernel patches its code: at boot for the processor that it finds (alternatives, retpolines), and later for what is
switched on (static branches, tracing). A file has the code as it was linked. ``kcore`` is an ELF core file (proc(5));
its segments have the addresses at which the kernel and its modules ran. ``perf record --kcore`` and ``perf
buildid-cache --kcore`` copy its code into a folder, with ``kallsyms`` and ``modules`` as they were then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Protocol

from ..errors import FormatError
from ..model import Limits, Source, read_at
from . import read_image
from .files import whole_file
from .image import Image, Section, Segment, SegmentFlags

__all__ = ["OpenSource", "copies_at", "fits", "text_of"]

_ADDRESSES = (1 << 64) - 1
_ONCE = re.compile(r"\.(init|exit|altinstr)")
"""How sections begin that the kernel runs at boot and frees: what lies there later is something else."""
_LISTS = 64 << 20
"""Bytes of ``kallsyms`` and ``modules`` that are read; distributions have 15 million."""


# -- Where copies are


def copies_at(path: str, build_id: bytes) -> Iterator[str]:
    """The memory files that ``path`` means: the file itself, ``kcore`` of a folder, or the copies of a kernel in perf's
    cache (``[kernel.kcore]/BUILDID/TIME/kcore``), the newest first."""
    if not os.path.isdir(path):
        yield path
        return
    if os.path.isfile(file := os.path.join(path, "kcore")):
        yield file
    cached = os.path.join(path, "[kernel.kcore]", build_id.hex())
    times = sorted(os.listdir(cached), reverse=True) if build_id and os.path.isdir(cached) else []
    yield from (file for t in times if os.path.isfile(file := os.path.join(cached, t, "kcore")))


def fits(path: str, start: int, module: str) -> bool | None:
    """Whether the lists beside the memory file at ``path`` have the kernel, or ``module``, at ``start``; ``None`` where
    they do not say it."""
    said = _start_in(path, module)
    return said == start if said else None


def _start_in(path: str, module: str) -> int:
    """The address of the kernel, or of ``module``, by the lists beside the memory file at ``path``; 0 if the lists lack
    the address."""
    folder = os.path.dirname(path) or "."
    if not module:
        found = re.search(rb"^([0-9a-f]+) \w _text$", _list(os.path.join(folder, "kallsyms")), re.M)
    else:
        name = re.escape(module.encode("utf-8", "surrogateescape"))
        listed = rb"^%s \d+ \d+ \S+ \w+ 0x([0-9a-f]+)" % name
        found = re.search(listed, _list(os.path.join(folder, "modules")), re.M)
    return int(found[1], 16) & _ADDRESSES if found else 0


def _list(path: str) -> bytes:
    try:
        return whole_file(path, _LISTS)
    except OSError:
        return b""


# -- Code of a binary with the bytes that ran


class OpenSource(Source, Protocol):
    """A `Source` for who closes it."""

    def close(self) -> None: ...


class _RunningCode:
    """A `Source` of a binary whose code is that of a memory: ``pieces`` are (offset in the file, bytes, offset in the
    memory). It owns both files."""

    def __init__(self, file: OpenSource, memory: OpenSource, pieces: list[tuple[int, int, int]]) -> None:
        self.name, self.limits = file.name, Limits.current()
        self._file, self._memory, self._pieces = file, memory, pieces

    @property
    def size(self) -> int:
        return self._file.size

    def readinto(self, offset: int, buffer: memoryview) -> int:
        got = self._file.readinto(offset, buffer)
        for at, size, there in self._pieces:
            low, high = max(at, offset), min(at + size, offset + got)
            if low < high:
                self._memory.readinto(there + low - at, buffer[low - offset : high - offset])
        return got

    def expect(self, offset: int, length: int) -> None:
        self._file.expect(offset, length)

    def close(self) -> None:
        self._file.close()
        self._memory.close()


def text_of(
    memory: OpenSource, start: int, end: int, bias: int, file: OpenSource | None = None, image: Image | None = None
) -> tuple[OpenSource, Image]:
    """The code that ran at ``start:end``, as a binary whose link addresses are ``bias`` less: ``file``, of which
    ``image`` are the headers, with other code; or without a file a binary that has nothing else.

    Raises `FormatError` if the memory is no core file, lacks that code, or differs from the file in most bytes.
    """
    core = read_image(memory)
    if core.format != "elf" or core.kind != "core":
        raise FormatError("is no ELF core file", file=memory.name, offset=16, field="e_type", value=core.kind)
    parts = [s for s in core.segments if s.file_size and s.vaddr < end and s.vaddr + s.file_size > start]
    if not parts:
        value = f"{start:#x}-{end:#x}"
        raise FormatError("the kernel's code is not in it", file=memory.name, offset=0, field="segments", value=value)
    if file is None or image is None:
        flags = SegmentFlags.READ | SegmentFlags.EXECUTE
        segments = []
        for s in parts:
            low, high = max(s.vaddr, start), min(s.vaddr + s.file_size, end)
            place = (low - bias) & _ADDRESSES
            segments.append(Segment(place, high - low, s.offset + low - s.vaddr, high - low, flags))
        return memory, core._replace(segments=tuple(segments), sections=())
    pieces = []
    for code in _kept(image):
        begin = (code.vaddr + bias) & _ADDRESSES
        for s in parts:
            low, high = max(begin, s.vaddr), min(begin + code.file_size, s.vaddr + s.file_size)
            if low < high:
                pieces.append((code.offset + low - begin, high - low, s.offset + low - s.vaddr))
    share = _alike(file, memory, pieces)
    if share < _LEAST:
        reason = f"its code is not that of {file.name}: of another kernel, or of another boot of it"
        raise FormatError(reason, file=memory.name, offset=0, field="equal bytes", value=f"{100 * share:.0f} %")
    return _RunningCode(file, memory, pieces), image


def _kept(image: Image) -> list[Section]:
    """The sections of code that stay in memory."""
    return [s for s in image.sections if s.flags & SegmentFlags.EXECUTE and s.file_size and not _ONCE.match(s.name)]


_LEAST = 0.5
"""The share of a file's code that a memory of it has: what is patched is far less, and that of another kernel has a
few hundredths by chance."""
_PROBE, _PROBES = 256, 64


def _alike(file: Source, memory: Source, pieces: list[tuple[int, int, int]]) -> float:
    """The share of bytes of the ``pieces`` that are the same in both, by a sample of the bytes."""
    same = looked = 0
    whole = sum(size for _, size, _ in pieces)
    for at, size, there in pieces:
        probes = max(1, _PROBES * size // max(whole, 1))
        for k in range(probes):
            inside = size * k // probes
            length = min(_PROBE, size - inside)
            a, b = (read_at(source, base + inside, length) for source, base in ((file, at), (memory, there)))
            same += sum(x == y for x, y in zip(a, b, strict=False))
            looked += length
    return same / looked if looked else 0.0
