"""The search for a module's files: where to look, and which identity a file must have.

An ELF file is known by its build id: next to the binary, in the folders of GDB's search (GDB manual, 18.3:
DIR/.build-id/xx/rest.debug, DIR + full path), or from debuginfod. A file that a debug link names needs the CRC of the
link and no other build id. The kernel's names also come from the running kernel if this kernel was recorded. A PE file
is known by its time stamp and size, a PDB by its GUID and age, in symbol stores. Nothing else counts as identity.
"""

from __future__ import annotations

import ntpath
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import distinct
from ..binaries import read_image
from ..binaries.candidates import AnyCaseFolder
from ..binaries.files import below, open_regular, read_regular
from ..binaries.image import DebugLink, Image, SegmentFlags, same_build_id
from ..binaries.kernel_modules import PACKED_SUFFIXES, as_loaded, module_name
from ..binaries.pdb import pdb_identity
from ..model import Change, Module, ModuleKind, Profile, Source, kept_binary
from .breakpad import module_id
from .cache import Cache
from .model import DebugFiles
from .options import SymbolOptions
from .symbol_lists import KALLSYMS, is_module_name, running_build_id

__all__ = ["AddressMap", "Found", "Search", "file_state", "find_files"]


_ADDRESSES = 1 << 64
_LAST = _ADDRESSES - 1
_PAGE = 4096
_CHUNK = 1 << 20
_UNPADDED = (8, 16)
"""Bytes of the build ids of some linkers, which perf pads to 20."""


class AddressMap(NamedTuple):
    """How addresses of a module become addresses of a file: what to add in each range, modulo 2**64."""

    ranges: tuple[tuple[int, int, int], ...] = ((0, _LAST, 0),)
    """(first, last, added), ascending and disjoint; nothing is known outside of them."""

    @classmethod
    def from_base(cls, base: int) -> AddressMap:
        """File addresses count from ``base`` of the module."""
        return cls(((base, _LAST, -base),))

    @property
    def identical(self) -> bool:
        """Whether both count alike."""
        return self.ranges == ((0, _LAST, 0),)

    def to_file(self, address: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """(addresses of the file, where there are any)."""
        return _shift(address, self.ranges)

    def to_module(self, address: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """(addresses of the module, where there are any)."""
        moved = (((first + added) % _ADDRESSES, last - first, -added) for first, last, added in self.ranges)
        return _shift(address, [(first, first + length, added) for first, length, added in moved])


def _shift(
    address: NDArray[np.uint64], ranges: Iterable[tuple[int, int, int]]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    out, known = address.copy(), np.zeros(len(address), bool)
    for first, last, added in ranges:
        inside = (address >= np.uint64(first)) & (address <= np.uint64(min(last, _LAST))) & ~known
        out[inside] = address[inside] + np.uint64(added % _ADDRESSES)
        known |= inside
    return out, known


@dataclass(slots=True)
class Found:
    """The source of a module's names. ``files`` is ``None`` where there are none."""

    files: DebugFiles | None = None
    identity: str = ""
    """The build id, PDB key or other identity that the files have."""
    addresses: AddressMap = field(default_factory=AddressMap)
    why: str = ""
    """For the user: why there are no files, or what the files lack."""


@dataclass(slots=True)
class Search:
    """The search for the files of one module: the settings, and the rejected files."""

    profile: Profile
    options: SymbolOptions
    cache: Cache | None = None
    rejected: list[str] = field(default_factory=list)
    """Files of the right name that are not the module's, with the reason."""
    progress: Callable[[str, int, int], None] | None = None
    """Called with (address, bytes done, bytes in all or 0) while a file is downloaded."""
    _folders: dict[str, AnyCaseFolder] = field(default_factory=dict)

    @property
    def debug_dirs(self) -> tuple[str, ...]:
        return (*self.options.debug_dirs, "/usr/lib/debug")

    @property
    def release(self) -> str:
        """The kernel's release, as a part of a path."""
        release = self.profile.machine.os_release
        return release if "/" not in release else ""

    def image(self, path: str | None) -> Image | None:
        """The ELF or PE file at ``path``, if it is one."""
        return read_regular(path, _image, self.rejected) if path else None

    def images(self, candidates: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Image]]:
        """(path, image) of the candidates (root, hint) that are regular files below their root and can be read."""
        for root, hint in candidates:
            path = below(root, hint)
            image = self.image(path)
            if path and image:
                yield path, image

    def in_store(self, root: str, *parts: str) -> str | None:
        """The regular file root/part/..., whatever the case of the names in it."""
        return self._folders.setdefault(root, AnyCaseFolder(root)).file(parts)

    def reject(self, path: str, reason: str) -> None:
        self.rejected.append(f"{path} {reason}")

    def nothing(self, why: str) -> Found:
        """No files; the first ones that were turned down are named."""
        return Found(why=_sentence(why, *self.rejected[:2]))


def _image(source: Source) -> Image:
    return read_image(as_loaded(source))


def _sentence(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def find_files(search: Search, row: int) -> Found:
    """The files of the module in ``row`` of the profile's modules."""
    module = search.profile.modules[row]
    if module.is_pe:
        return _find_pe(search, module)
    kernel = module.kind in (ModuleKind.KERNEL, ModuleKind.KERNEL_MODULE)
    return _find_kernel(search, row) if kernel else _find_elf(search, row)


def file_state(path: str) -> list[int]:
    """The signs of a changed file: size, time of modification, inode. Raises `OSError`."""
    state = os.stat(path)
    return [state.st_size, state.st_mtime_ns, state.st_ino]


# -- ELF files


def _find_elf(search: Search, row: int) -> Found:
    """The binary, if `lastbranch.opening` attached it, and a debug file."""
    module = search.profile.modules[row]
    image = search.image(module.binary)
    build_id = module.build_id or (image.build_id if image else None) or b""
    if image is not None:
        if module.build_id and image.build_id and not same_build_id(image.build_id, module.build_id):
            return search.nothing(f"{module.binary} has changed since the capture was opened")
        return _with_binary(search, module, image, build_id)
    if not build_id:
        return search.nothing(module.missing or "no build id was recorded to identify a file")
    for path, debug in search.images(_by_name(search, module, build_id)):
        if not same_build_id(debug.build_id or b"", build_id):
            search.reject(path, "has another build id")
            continue
        addresses = _from_offsets(search, row, debug)
        if addresses is not None:
            return Found(_files(search, path, path), build_id.hex(), addresses, _lacks(debug))
        search.reject(path, "does not show where the mapped code belongs")
    fetched = _fetch(search, build_id, "executable")
    if fetched and (image := search.image(fetched)):
        files = _debug_of(search, module, fetched, image, build_id)
        return Found(files, build_id.hex(), _segments(image), _lacks(image))
    return search.nothing(module.missing or "not found")


def _with_binary(search: Search, module: Module, image: Image, build_id: bytes) -> Found:
    files = _debug_of(search, module, module.binary, image, build_id)
    if files.debug is None and not _has(image, ".symtab", ".debug_info"):
        breakpad = _breakpad(search, module, image, build_id)
        if breakpad is not None:
            return breakpad
    debug = read_regular(files.debug, _image, []) if files.debug else None
    return Found(files, build_id.hex(), why=_sentence(_lacks(image, debug), *search.rejected[:1]))


def _debug_of(search: Search, module: Module, binary: str, image: Image, build_id: bytes) -> DebugFiles:
    """``binary`` and its separate debug file, if it needs one."""
    debug = None if _has(image, ".debug_info") else _separate(search, module, binary, image, build_id)
    return _files(search, binary, debug)


def _files(search: Search, binary: str, debug: str | None) -> DebugFiles:
    paths = [path for path in (binary, debug) if path]
    packages = (below(os.path.dirname(path), os.path.basename(path) + ".dwp") for path in paths)
    folders = dict.fromkeys([*map(os.path.dirname, paths), *search.options.debug_dirs])
    return DebugFiles(
        "elf", binary, debug if debug != binary else None, next(filter(None, packages), None), tuple(folders)
    )


def _separate(search: Search, module: Module, binary: str, image: Image, build_id: bytes) -> str | None:
    """The separate debug file of ``binary``: by build id or full path, by debug link, from debuginfod."""
    for path, debug in search.images(_by_name(search, module, build_id)):
        if path != os.path.realpath(binary) and _has(debug, ".debug_info", ".symtab"):
            if same_build_id(debug.build_id or b"", build_id):
                return path
            search.reject(path, "has another build id")
    link = image.debug_link
    for path, debug in search.images(_by_link(search, module, binary, link)) if link else ():
        differs = build_id and debug.build_id and not same_build_id(debug.build_id, build_id)
        if not differs and link and _has_crc(search, path, link.crc):
            return path
        search.reject(path, f"has another {'build id' if differs else 'CRC than the debug link says'}")
    return _fetch(search, build_id, "debuginfo")


def _fetch(search: Search, build_id: bytes, kind: str) -> str | None:
    if not search.options.debuginfod or not build_id:
        return None
    if search.cache is None:
        search.rejected.append("debuginfod needs the cache for its files")
        return None
    from .debuginfod import fetch  # urllib takes long to import

    return fetch(search.cache.folder, build_id, kind, search.rejected, search.progress)


def _by_name(search: Search, module: Module, build_id: bytes) -> Iterator[tuple[str, str]]:
    """(root, hint) of what may be a module's debug file or the module itself."""
    ids = dict.fromkeys([build_id, *(build_id[:n] for n in _UNPADDED if not any(build_id[n:]))])
    if module.kind is ModuleKind.KERNEL:
        names = [f"boot/vmlinux-{search.release}", f"lib/modules/{search.release}/vmlinux", "vmlinux"]
    else:
        names = [module.name.removesuffix(" (deleted)")]
        names += [names[0].removesuffix(end) for end in PACKED_SUFFIXES if end and names[0].endswith(f".ko{end}")]
    for root in search.debug_dirs:
        for word in (found.hex() for found in ids if found):
            yield root, f".build-id/{word[:2]}/{word[2:]}.debug"
            yield root, f".build-id/{word[:2]}/{word[2:]}"
        for name in names:
            yield root, name + ".debug"
            yield root, name
    for kept in (kept_binary(found, kind) for found in ids if found for kind in ("debug", "binary")):
        yield os.path.split(kept)
    if module.kind is ModuleKind.VDSO:
        for name in ("vdso64.so", "vdso32.so"):
            yield f"/lib/modules/{search.release}/vdso", name


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
    """Whether the CRC-32 of the whole file is ``crc``; the cache remembers it, as reading a large file takes long."""
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


def _lacks(*images: Image | None) -> str:
    """The names and lines that a binary and its debug file lack."""
    files = [image for image in images if image]
    if any(_has(image, ".debug_info") for image in files):
        return ""
    if any(_has(image, ".symtab") for image in files):
        return "no debug information: functions, but no lines and no inlined frames"
    return "stripped: only exported functions have names"


# -- Addresses of a module without its binary: they count bytes of the file


def _from_offsets(search: Search, row: int, image: Image) -> AddressMap | None:
    """How the module's addresses become link addresses of ``image``; ``None``: not known."""
    module = search.profile.modules[row]
    code = image.executable_segments
    if module.kind is ModuleKind.KERNEL:  # they count from _text, where code begins
        linked = min((s.vaddr for s in code), default=0)
        return AddressMap(((0, (1 << 63) - 1, linked),)) if code else None
    if module.kind is ModuleKind.KERNEL_MODULE:
        return AddressMap()
    if module.kind is ModuleKind.VDSO:
        return AddressMap(((0, (1 << 32) - 1, image.image_base),))
    if any(s.file_size for s in image.sections if s.flags & SegmentFlags.EXECUTE):
        return _segments(image)
    # A separate debug file keeps the addresses of its segments but not where they were in the binary. The loader maps a
    # segment from the start of the segment's first page; if there is one segment of code, its mapping has the offset of
    # this page.
    if len(code) != 1:
        return None
    first = code[0].vaddr // _PAGE * _PAGE
    size = -(-(code[0].vaddr + code[0].memory_size) // _PAGE) * _PAGE - first
    offsets = _mapped_offsets(search, row, size)
    if len(offsets) != 1:
        return None
    (offset,) = offsets
    return AddressMap(((offset, offset + size - 1, first - offset),))


def _mapped_offsets(search: Search, row: int, size: int) -> set[int]:
    """File offsets of the module's mappings of ``size`` bytes."""
    columns = search.profile.timeline.columns()
    mine = (columns["kind"] == Change.MAP) & (columns["module"] == row)
    length = (columns["end"] - columns["start"])[mine]
    return set(distinct(columns["offset"][mine][length == np.uint64(size)]).tolist())


def _segments(image: Image) -> AddressMap:
    """By the executable segments of the file, each from the page that it begins in."""
    ranges = []
    for s in sorted(image.executable_segments, key=lambda s: s.offset):
        lead = s.offset % _PAGE
        ranges.append((s.offset - lead, s.offset + max(s.file_size, 1) - 1, s.vaddr - s.offset))
    return AddressMap(tuple(ranges))


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
            return Found(DebugFiles("breakpad", path), wanted, AddressMap.from_base(image.image_base))
        if path:
            search.reject(path, "belongs to another module")
    return None


# -- The kernel and its modules: vmlinux or a module file by build id, else the running kernel's own list


_MODULES = "/proc/modules"


def _find_kernel(search: Search, row: int) -> Found:
    module = search.profile.modules[row]
    member = "" if module.kind is ModuleKind.KERNEL else module_name(module.name)
    found = _find_elf(search, row)
    if found.files is not None:
        return found
    if member and not is_module_name(member):
        return search.nothing("not a name of a kernel module")
    linked = min((s.address for s in module.segments if s.executable), default=0)
    if module.running:  # the lists beside its memory are of the same boot
        listed, modules = (os.path.join(os.path.dirname(module.running), name) for name in ("kallsyms", "modules"))
        if os.path.isfile(listed):
            files = DebugFiles("kallsyms", listed, debug=modules if member else None, member=member)
            return Found(files, f"kallsyms {file_state(listed)} {member}", AddressMap.from_base(linked))
    running = running_build_id(member)
    if not module.build_id:
        return search.nothing("no build id of the kernel was recorded to verify its names")
    if not same_build_id(module.build_id, running):
        return search.nothing(
            f"the running kernel is another one (build id {running.hex() or 'unknown'}, recorded "
            f"{module.build_id.hex()}); give vmlinux with --debug-dir"
        )
    files = DebugFiles("kallsyms", KALLSYMS, debug=_MODULES if member else None, member=member)
    return Found(files, f"kallsyms {running.hex()} {member}", AddressMap.from_base(linked))


# -- PE files, PDBs, and Breakpad files by the identity of the PDB
#
# Symbol stores have the layout of Microsoft's symbol servers (Windows debugging tools, "SymStore"): NAME/KEY/NAME, with
# KEY the GUID's digits and the age for a PDB, the time stamp (8 digits) and the size for a PE file, all hexadecimal.
# Names on Windows are not case-sensitive, and are not here.


_COMPRESSED = "compressed; unpack it with `expand` or cabextract"


def _find_pe(search: Search, module: Module) -> Found:
    """The PE file and the PDB. Module addresses count from the image's base, or are link addresses where
    `lastbranch.opening` attached the binary."""
    binary, image = _pe_file(search, module)
    guid = module.pdb_guid or (image.pdb_guid if image else None)
    age = module.pdb_age if module.pdb_guid else (image.pdb_age or 0 if image else 0)
    key = f"{guid.hex.upper()}{age:X}" if guid else ""
    pdb = _pdb(search, module, binary, image, key) if key else None
    base = image.image_base if image and module.binary else 0
    addresses = AddressMap.from_base(base)
    if pdb or binary:
        has_names = pdb or not key or (image and any(s.name == ".debug_info" for s in image.sections))
        why = "" if has_names else _sentence(f"no PDB {key}: only exported functions have names", *search.rejected[:2])
        identity = key or (_pe_key(module) if binary else "")
        return Found(DebugFiles("pe", binary or "", pdb), identity, addresses, why)
    if not key:
        return search.nothing("the capture has no PDB identity and no matching binary was found")
    name = _last(module.pdb_name or module.name)
    for root in search.options.symbol_store:
        path = search.in_store(root, name, key, os.path.splitext(name)[0] + ".sym")
        if path and module_id(path) == key:
            return Found(DebugFiles("breakpad", path), key, addresses)
    return search.nothing(f"no PDB {name} {key} below --symbol-store")


def _pe_key(module: Module) -> str:
    return f"{module.timestamp:08X}{module.size:x}"


def _pe_file(search: Search, module: Module) -> tuple[str | None, Image | None]:
    """The PE file: the attached file, or a file of a symbol store with the module's time stamp and size."""
    name, candidates = _last(module.name), [module.binary]
    if not module.binary and module.timestamp and module.size:
        candidates = [search.in_store(root, name, _pe_key(module), name) or "" for root in search.options.symbol_store]
    for path in filter(None, candidates):
        image = search.image(path)
        if image is None or image.format != "pe":
            continue
        if module.binary or (image.timestamp == module.timestamp and image.image_size == module.size):
            return path, image
        search.reject(path, "has another time stamp or size")
    return None, None


def _pdb(search: Search, module: Module, binary: str | None, image: Image | None, key: str) -> str | None:
    hint = module.pdb_name or (image.pdb_name if image else "") or ""
    for path in _pdb_candidates(search, hint, _last(hint) or _last(module.name), binary, key):
        pdb = read_regular(path, pdb_identity, search.rejected)
        if pdb is None:
            continue
        guid = pdb.guid.hex.upper()
        if any(key == f"{guid}{age:X}" for age in pdb.ages):
            return path
        search.reject(path, f"is {guid} {pdb.ages[-1]:X}, not {key}")
    return None


def _pdb_candidates(search: Search, hint: str, name: str, binary: str | None, key: str) -> Iterator[str]:
    for root in search.options.symbol_store:
        found = [search.in_store(root, name, key, name), search.in_store(root, name), below(root, hint)]
        yield from filter(None, found)
        packed = search.in_store(root, name, key, name[:-1] + "_")
        if packed and not found[0]:
            search.reject(packed, f"is {_COMPRESSED}")
    if binary:
        yield from filter(None, [search.in_store(os.path.dirname(binary), name)])
    for root in search.options.debug_dirs:
        yield from filter(None, [below(root, hint), search.in_store(root, name)])


def _last(name: str) -> str:
    return ntpath.basename(name.replace("/", "\\"))
