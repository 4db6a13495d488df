"""The code of modules: that of their binaries, and of the kernel and its modules as it ran.

A kernel patches its code: at boot for the processor that it finds (alternatives, retpolines), and later for what is
switched on (static branches, tracing). A file has the code as it was linked. ``/proc/kcore`` and its copies have the
code that ran: an ELF core file (proc(5)) whose segments have the addresses at which the kernel and its modules ran.
``perf record --kcore`` and ``perf buildid-cache --kcore`` copy the code into a folder, with ``kallsyms`` and
``modules`` as they were then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

import numpy as np

from ..binaries import read_image
from ..binaries.files import whole_file
from ..binaries.image import Code, Image, Section, Segment, SegmentFlags
from ..binaries.kernel_modules import module_name
from ..bind import bias_of
from ..closing import on_failure
from ..errors import FormatError, LastbranchError, SelectionError
from ..model import PATCHED, Change, Limits, Module, ModuleKind, Profile, Source, read_at, visible
from .binaries import open_image, same_binary, segments_of
from .sources import FileSource

__all__ = ["OpenSource", "code_of", "copies_at", "fits", "text_of", "use_running_code"]


# -- The memory of a running kernel, or a copy of this memory


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
    for code in _kept_sections(image):
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


def _kept_sections(image: Image) -> list[Section]:
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


# -- The code of modules


def code_of(module: Module) -> Code | None:
    """The code of ``module`` at its link addresses, from the binary that it was bound by.

    ``None`` where there is none (`Module.missing` says why), or it can no longer be read or has been replaced since.
    Of a position-independent file on disk this is what was loaded; code that patched itself looks as it was linked.
    """
    found: tuple[OpenSource, Image] | None = None
    if module.binary:
        try:
            source, image = open_image(module.binary)
        except (OSError, LastbranchError):
            return None
        if same_binary(module, image) is False or segments_of(image) != module.segments:
            return None
        found = source, image
    with suppress(OSError, LastbranchError):
        found = _as_it_ran(module, found) or found
    return Code(*found) if found else None


def _as_it_ran(module: Module, file: tuple[OpenSource, Image] | None) -> tuple[OpenSource, Image] | None:
    """``file``, the binary of the kernel or of its module, with the code that ran; ``None`` where that is not known.
    Raises `FormatError` and `OSError`."""
    if not module.running:
        return None
    memory = FileSource(module.running)
    with on_failure(memory.close):
        start, end = module.ran_at
        return text_of(memory, start, end, bias_of(module, start, start), *(file or ()))


_BESIDE = "kcore_dir"
"""Where ``perf record --kcore`` copies the kernel's code, in the folder of the capture."""


def use_running_code(profile: Profile, path: str, kcore: str | None) -> None:
    """Let the code of the kernel and its modules be what ran: that in ``kcore``, or in the copy that perf made with the
    capture at ``path``. What is not of that kernel is not used, with a note.

    Raises `SelectionError` where ``kcore`` is of another kernel, or of another boot.
    """
    beside = os.path.join(os.path.dirname(path), _BESIDE)
    where = kcore if kcore is not None else beside if os.path.isfile(os.path.join(beside, "kcore")) else None
    if where is None:
        return
    mapped = _kernel_addresses(profile)
    kernel = next((row for row in mapped if profile.modules[row].kind is ModuleKind.KERNEL), None)
    if kernel is None:
        why = "the capture has no kernel, or one that moved"
    else:
        copies = list(copies_at(where, profile.modules[kernel].build_id))
        memory = next((one for one in copies if fits(one, mapped[kernel][0], "") is not False), None)
        why = "no copy in it is of the boot that was recorded" if memory is None else ""
        if memory is not None:
            reasons = {row: _let_run(profile.modules[row], memory, *mapped[row]) for row in mapped}
            why = reasons.pop(kernel)
            profile.notes += [
                f"code of {visible(profile.modules[row].short)} as it ran is not known: {reason}"
                for row, reason in reasons.items()
                if reason
            ]
    if why and kcore is not None:
        raise SelectionError(f"{visible(where)} does not have the kernel's code as it ran: {why}")
    if why:
        profile.notes.append(f"{visible(where)} is not used: {why}")


def _kernel_addresses(profile: Profile) -> dict[int, tuple[int, int]]:
    """The addresses of the kernel and of each of its modules that stayed where it was, by row of the modules."""
    changes = profile.timeline.columns()
    of_kernel = np.array([m.kind in PATCHED for m in profile.modules], bool)
    rows = np.flatnonzero((changes["kind"] == Change.MAP) & (changes["module"] >= 0))
    found: dict[int, set[tuple[int, int]]] = {}
    for row in rows[of_kernel[changes["module"][rows]]].tolist() if len(of_kernel) else ():
        start, end, offset, module = (int(changes[n][row]) for n in ("start", "end", "offset", "module"))
        if profile.modules[module].kind is ModuleKind.KERNEL:
            start = offset or start  # of a kernel the offset is the address of its _text
        found.setdefault(module, set()).add((start, end))
    return {module: next(iter(places)) for module, places in found.items() if len(places) == 1}


def _let_run(module: Module, memory: str, start: int, end: int) -> str:
    """Let the code of ``module`` be that of ``memory``, or say why it is not."""
    name = "" if module.kind is ModuleKind.KERNEL else module_name(module.name)
    if not module.binary and not fits(memory, start, name):
        return f"{name or 'the kernel'} has no binary, and no list beside it says that it was at {start:#x}"
    module.running, module.ran_at = memory, (start, end)
    try:
        found = _as_it_ran(module, open_image(module.binary) if module.binary else None)
    except (OSError, LastbranchError) as error:
        module.running, module.ran_at = "", ()
        return str(error)
    if found is not None:
        found[0].close()
    return ""
