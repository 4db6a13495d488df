"""The search for a module's files: what an ELF file, the kernel or a PE file is known by, and where to look.

ELF: by build id, by debug link, beside the binary, from debuginfod.
Where to look is GDB's way (GDB manual, 18.3): DIR/.build-id/xx/rest.debug, the debug link's name beside the binary and
in .debug/ there, DIR + full path. A file is used if its build id is the module's, and one that a debug link names if it
has the CRC that stands there and no other build id. Nothing else counts as identity.
"""

from __future__ import annotations

import ntpath
import os
import zlib
from collections.abc import Iterator

import numpy as np

from ..binaries import DebugLink, Image, SegmentFlags, same_build_id
from ..binaries.files import File, below, open_regular
from ..binaries.pdb import pdb_identity
from ..errors import LastbranchError
from ..model import Change, Module, ModuleKind
from .breakpad import module_id
from .found import Found, Pieces, Search, file_state, image_of
from .model import DebugFiles
from .symbol_lists import KALLSYMS, is_module_name, running_build_id

__all__ = ["find_elf", "find_kernel", "find_pe"]


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


# -- Names of the kernel and its modules: vmlinux or a module file by build id, else the running kernel's own list


_MODULES = "/proc/modules"


def find_kernel(search: Search, row: int) -> Found:
    """The kernel image or kernel module in ``row``."""
    module = search.profile.modules[row]
    member = "" if module.kind is ModuleKind.KERNEL else _member(module.short)
    found = find_elf(search, row) if not member else search.nothing(module, "")
    if found.files is not None:
        return found
    if member and not is_module_name(member):
        return search.nothing(module, "not a name of a kernel module")
    running = running_build_id(member)
    if not module.build_id:
        return search.nothing(module, "no build id of the kernel was recorded to know its names by")
    if not same_build_id(module.build_id, running):
        return search.nothing(
            module,
            f"the running kernel is another one (build id {running.hex() or 'unknown'}, recorded "
            f"{module.build_id.hex()}); give vmlinux with --debug-dir",
        )
    files = DebugFiles("kallsyms", KALLSYMS, debug=_MODULES if member else None, member=member)
    linked = min((s.address for s in module.segments if s.executable), default=0)
    return Found(files, f"kallsyms {running.hex()} {member}", Pieces(((linked, (1 << 64) - 1, -linked),)))


def _member(short: str) -> str:
    """``/lib/modules/R/kernel/net/nf-tables.ko.xz`` or ``[nf_tables]`` -> ``nf_tables``."""
    stem = short.strip("[]")
    for end in (".zst", ".xz", ".gz", ".ko", ".debug"):
        stem = stem.removesuffix(end)
    return os.path.basename(stem).replace("-", "_")


# -- PDBs by GUID and age, PE files by time stamp and size, Breakpad's files by the PDB's identity
#
# Symbol stores have the layout of Microsoft's symbol servers (Windows debugging tools, "SymStore"): NAME/KEY/NAME, with
# KEY the GUID's digits and the age for a PDB, the time stamp (8 digits) and the size for a PE file, all hexadecimal.
# Windows does not tell capitals from small letters in names, so they are not told apart here either.


_COMPRESSED = "compressed; unpack it with `expand` or cabextract"
_ALL = (1 << 64) - 1


def find_pe(search: Search, row: int) -> Found:
    """The PE file and the PDB of the module in ``row``. Module addresses count from the image's base, or are link
    addresses where `lastbranch.opening` found the binary."""
    module = search.profile.modules[row]
    binary, image = _binary(search, module)
    guid = module.pdb_guid or (image.pdb_guid if image else None)
    age = module.pdb_age if module.pdb_guid else (image.pdb_age or 0 if image else 0)
    key = f"{guid.hex.upper()}{age:X}" if guid else ""
    pdb = _pdb(search, module, binary, image, key) if key else None
    base = image.image_base if image and module.binary else 0
    pieces = Pieces(((base, _ALL, -base),)) if base else Pieces()
    identity = key or (f"{module.timestamp:08X}{module.size:x}" if binary else "")
    if pdb or binary:
        lacking = "" if pdb or not key else f"no PDB {key}: only exported functions have names"
        if image and any(s.name == ".debug_info" for s in image.sections):
            lacking = ""
        return Found(DebugFiles("pe", binary or "", pdb), identity, pieces, _with(lacking, search))
    for root in search.options.symbol_store if key else ():
        name = _last(module.pdb_name or module.name)
        path = _in_store(root, name, key, os.path.splitext(name)[0] + ".sym")
        if path and module_id(path) == key:
            return Found(DebugFiles("breakpad", path), key, pieces)
    if not key:
        return search.nothing(module, "the capture has no PDB identity and no matching binary was found")
    return search.nothing(module, f"no PDB {_last(module.pdb_name or module.name)} {key} below --symbol-store")


def _with(lacking: str, search: Search) -> str:
    return "; ".join(filter(None, [lacking, *search.rejected[:2]])) if lacking else ""


def _binary(search: Search, module: Module) -> tuple[str | None, Image | None]:
    """The PE file: the one that is attached, or one in a store whose time stamp and size are the module's."""
    name = _last(module.name)
    candidates = [module.binary] if module.binary else []
    if not candidates and module.timestamp and module.size:
        key = f"{module.timestamp:08X}{module.size:x}"
        found = (_in_store(root, name, key, name) for root in search.options.symbol_store)
        candidates = [path for path in found if path]
    for path in candidates:
        image = image_of(path, search.rejected)
        if image is None or image.format != "pe":
            continue
        if module.binary or (image.timestamp == module.timestamp and image.image_size == module.size):
            return path, image
        search.rejected.append(f"{path} has another time stamp or size")
    return None, None


def _pdb(search: Search, module: Module, binary: str | None, image: Image | None, key: str) -> str | None:
    hint = module.pdb_name or (image.pdb_name if image else "") or ""
    for path in _pdb_candidates(search, hint, _last(hint) or _last(module.name), binary, key):
        try:
            source = File(path)
        except (OSError, LastbranchError):
            continue
        try:
            said = pdb_identity(source)
        except LastbranchError as error:
            search.rejected.append(str(error))
            continue
        finally:
            source.close()
        if any(key == f"{said.guid.hex.upper()}{age:X}" for age in said.ages):
            return path
        search.rejected.append(f"{path} is {said.guid.hex.upper()} {said.ages[-1]:X}, not {key}")
    return None


def _pdb_candidates(search: Search, hint: str, name: str, binary: str | None, key: str) -> Iterator[str]:
    for root in search.options.symbol_store:
        found = [_in_store(root, name, key, name), _in_store(root, name), below(root, hint)]
        yield from filter(None, found)
        packed = _in_store(root, name, key, name[:-1] + "_")
        if packed and not found[0]:
            search.rejected.append(f"{packed} is {_COMPRESSED}")
    if binary:
        beside = _in_store(os.path.dirname(binary), name)
        yield from filter(None, [beside])
    for root in search.options.debug_dirs:
        yield from filter(None, [below(root, hint), _in_store(root, name)])


def _last(name: str) -> str:
    return ntpath.basename(name.replace("/", "\\"))


def _in_store(root: str, *parts: str) -> str | None:
    """The regular file root/part/..., whatever the case of the names in it."""
    if not all(p and p not in (".", "..") and "/" not in p and "\\" not in p for p in parts):
        return None
    straight = below(root, "/".join(parts))
    if straight:
        return straight
    folder, names = root, []
    for part in parts:
        try:
            listed = os.listdir(folder)
        except OSError:
            return None
        same = next((n for n in listed if n.casefold() == part.casefold()), None)
        if same is None:
            return None
        names.append(same)
        folder = os.path.join(folder, same)
    return below(root, "/".join(names))
