"""Debug files of ELF modules: by build id, by debug link, beside the binary, from debuginfod.

Where to look is GDB's way (GDB manual, 18.3): DIR/.build-id/xx/rest.debug, the debug link's name beside the binary and
in .debug/ there, DIR + full path. A file is used if its build id is the module's, and one that a debug link names if it
has the CRC that stands there and no other build id. Nothing else counts as identity.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import numpy as np

from ..binaries import DebugLink, Image, SegmentFlags, same_build_id
from ..binaries.files import below, open_regular
from ..model import Change, Module, ModuleKind
from .breakpad import module_id
from .found import Found, Pieces, Search, file_state, image_of
from .model import DebugFiles

__all__ = ["find_elf"]

_PAGE = 4096
_CHUNK = 1 << 20
_UNPADDED = (8, 16)
"""Bytes of the build ids of some linkers, which perf pads to 20."""


def find_elf(search: Search, row: int) -> Found:
    """The files of the ELF module in ``row``: its binary, if `lastbranch.opening` found it, and a debug file."""
    module = search.profile.modules[row]
    image = image_of(module.binary, search.rejected) if module.binary else None
    build_id = module.build_id or (image.build_id if image else None) or b""
    if image is not None and module.build_id and image.build_id and not same_build_id(image.build_id, module.build_id):
        return search.nothing(module, f"{module.binary} was changed since the capture was opened")
    if image is not None:
        return _with_binary(search, module, image, build_id)
    if not build_id:
        return search.nothing(module, module.missing or "no build id was recorded to know a file by")
    for path, debug in search.images(_by_name(search, module, build_id)):
        if not same_build_id(debug.build_id or b"", build_id):
            search.rejected.append(f"{path} has another build id")
            continue
        pieces = _pieces(search, row, debug)
        if pieces is not None:
            return Found(_files(search, path, path), build_id.hex(), pieces, _lacking(debug, None))
        search.rejected.append(f"{path} does not tell where the code that was mapped belongs")
    found = _fetch(search, build_id, "executable")
    if found and (image := image_of(found)) and same_build_id(image.build_id or b"", build_id):
        return Found(*_debug_of(search, module, found, image, build_id), _segments(image), _lacking(image, None))
    return search.nothing(module, module.missing or "not found")


def _with_binary(search: Search, module: Module, image: Image, build_id: bytes) -> Found:
    files, identity = _debug_of(search, module, module.binary, image, build_id)
    if files.debug is None and not _has(image, ".symtab", ".debug_info"):
        breakpad = _breakpad(search, module, image, build_id)
        if breakpad is not None:
            return breakpad
    debug = image_of(files.debug) if files.debug else None
    return Found(files, identity, Pieces(), "; ".join(filter(None, [_lacking(image, debug), *search.rejected[:1]])))


def _debug_of(search: Search, module: Module, binary: str, image: Image, build_id: bytes) -> tuple[DebugFiles, str]:
    """The files of a binary that is there, and their identity."""
    debug = None if _has(image, ".debug_info") else _separate(search, module, binary, image, build_id)
    return _files(search, binary, debug), build_id.hex()


def _files(search: Search, binary: str, debug: str | None) -> DebugFiles:
    folders = [os.path.dirname(p) for p in (binary, debug) if p]
    packages = (below(os.path.dirname(p), os.path.basename(p) + ".dwp") for p in (binary, debug) if p)
    return DebugFiles(
        "elf", binary, debug if debug != binary else None, next(filter(None, packages), None),
        tuple(dict.fromkeys([*folders, *search.options.debug_dirs])),
    )  # fmt: skip


def _separate(search: Search, module: Module, binary: str, image: Image, build_id: bytes) -> str | None:
    for path, debug in search.images(_by_name(search, module, build_id)):
        if path != os.path.realpath(binary) and _has(debug, ".debug_info", ".symtab"):
            if same_build_id(debug.build_id or b"", build_id):
                return path
            search.rejected.append(f"{path} has another build id")
    link = image.debug_link
    for path, debug in search.images(_by_link(search, module, binary, link)) if link else ():
        differs = build_id and debug.build_id and not same_build_id(debug.build_id, build_id)
        if not differs and link and _has_crc(search, path, link.crc):
            return path
        search.rejected.append(f"{path} has another {'build id' if differs else 'CRC than the debug link says'}")
    return _fetch(search, build_id, "debuginfo")


def _fetch(search: Search, build_id: bytes, kind: str) -> str | None:
    if not search.options.debuginfod or not build_id:
        return None
    from .debuginfod import fetch

    return fetch(search, build_id, kind)


def _by_name(search: Search, module: Module, build_id: bytes) -> Iterator[tuple[str, str]]:
    """(root, hint) of what may be a module's debug file or the module itself."""
    ids = dict.fromkeys([build_id, *(build_id[:n] for n in _UNPADDED if not any(build_id[n:]))])
    if module.kind is ModuleKind.KERNEL:
        release = module_release(search)
        names = [f"boot/vmlinux-{release}", f"lib/modules/{release}/vmlinux", "vmlinux"]
    else:
        names = [module.name.removesuffix(" (deleted)")]
    for root in search.debug_dirs:
        for found in filter(None, ids):
            word = found.hex()
            yield root, f".build-id/{word[:2]}/{word[2:]}.debug"
            yield root, f".build-id/{word[:2]}/{word[2:]}"
        for name in names:
            yield root, name + ".debug"
            yield root, name
    if module.kind is ModuleKind.VDSO:
        for name in ("vdso64.so", "vdso32.so"):
            yield f"/lib/modules/{module_release(search)}/vdso", name


def module_release(search: Search) -> str:
    """The kernel's release, as a part of a path."""
    release = search.profile.machine.os_release
    return release if "/" not in release else ""


def _by_link(search: Search, module: Module, binary: str, link: DebugLink) -> Iterator[tuple[str, str]]:
    if "/" in link.name or "\\" in link.name:  # it is a name without folders
        return
    folder = os.path.dirname(binary)
    yield folder, link.name
    yield folder, f".debug/{link.name}"
    for root in search.debug_dirs:
        for where in dict.fromkeys([folder, os.path.dirname(module.name)]):
            yield root, f"{where}/{link.name}"


def _has_crc(search: Search, path: str, crc: int) -> bool:
    """Whether the CRC-32 of the whole file is ``crc``; remembered, as reading a large file takes long."""
    key = ["crc", path, *file_state(path), crc]
    if search.cache is not None and search.cache.remembers(key):
        return True
    found = 0
    with os.fdopen(open_regular(path), "rb") as file:
        while chunk := file.read(_CHUNK):
            found = zlib.crc32(chunk, found)
    if found == crc and search.cache is not None:
        search.cache.remember(key)
    return found == crc


def _has(image: Image, *names: str) -> bool:
    """Whether the file has the contents of one of these sections (compressed DWARF once had another name)."""
    wanted = {*names, *(n.replace(".debug", ".zdebug") for n in names)}
    return any(s.name in wanted and s.file_size for s in image.sections)


def _lacking(image: Image, debug: Image | None) -> str:
    """What the user will miss."""
    both = [i for i in (image, debug) if i]
    if any(_has(i, ".debug_info") for i in both):
        return ""
    if any(_has(i, ".symtab") for i in both):
        return "no debug information: functions, but no lines and no inlined frames"
    return "stripped: only exported functions have names"


# -- addresses of a module without its binary


def _pieces(search: Search, row: int, image: Image) -> Pieces | None:
    """How the module's addresses, which count bytes of the binary, become link addresses; ``None``: cannot be told."""
    module = search.profile.modules[row]
    code = image.executable_segments
    if module.kind is ModuleKind.KERNEL:  # they count from _text, where code begins
        linked = min((s.vaddr for s in code), default=0)
        return Pieces(((0, (1 << 63) - 1, linked),)) if code else None
    if module.kind is ModuleKind.VDSO:
        return Pieces(((0, (1 << 32) - 1, image.image_base),))
    if any(s.file_size for s in image.sections if s.flags & SegmentFlags.EXECUTE):
        return _segments(image)
    # A separate debug file keeps the addresses of its segments but not where they were in the binary. The loader maps a
    # segment from the page that it begins in; if there is one segment of code, its mapping's offset is that page's.
    offsets = _code_offsets(search, row, code[0].vaddr, code[0].memory_size) if len(code) == 1 else set()
    if len(offsets) != 1:
        return None
    (offset,) = offsets
    first = code[0].vaddr // _PAGE * _PAGE
    end = -(-(code[0].vaddr + code[0].memory_size) // _PAGE) * _PAGE
    return Pieces(((offset, offset + end - first - 1, first - offset),))


def _code_offsets(search: Search, row: int, vaddr: int, size: int) -> set[int]:
    """File offsets of the mappings of the module that are as long as this segment of it."""
    columns = search.profile.timeline.columns()
    mine = (columns["kind"] == Change.MAP) & (columns["module"] == row)
    length = (columns["end"] - columns["start"])[mine]
    wanted = -(-(vaddr + size) // _PAGE) * _PAGE - vaddr // _PAGE * _PAGE
    return set(np.unique(columns["offset"][mine][length == np.uint64(wanted)]).tolist())


def _segments(image: Image) -> Pieces:
    """By the executable segments of the file, each from the page that it begins in."""
    ranges = []
    for s in sorted(image.executable_segments, key=lambda s: s.offset):
        lead = s.offset % _PAGE
        ranges.append((s.offset - lead, s.offset + max(s.file_size, 1) - 1, s.vaddr - s.offset))
    return Pieces(tuple(ranges))


# -- Breakpad


def _breakpad(search: Search, module: Module, image: Image, build_id: bytes) -> Found | None:
    """A .sym file by the GUID that Breakpad makes of the first 16 bytes of a build id, in the byte order of GUIDs."""
    if not build_id:
        return None
    padded = build_id.ljust(16, b"\0")[:16]
    guid = padded[3::-1] + padded[5:3:-1] + padded[7:5:-1] + padded[8:]
    wanted, name = guid.hex().upper() + "0", module.short.removesuffix(" (deleted)")
    for root in search.options.symbol_store:
        path = below(root, f"{name}/{wanted}/{name}.sym")
        if path and module_id(path) == wanted:
            moved = Pieces(((image.image_base, (1 << 64) - 1, -image.image_base),))
            return Found(DebugFiles("breakpad", path), wanted, moved)
        if path:
            search.rejected.append(f"{path} is of another module")
    return None
