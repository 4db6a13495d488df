"""PDBs by GUID and age, PE files by time stamp and size, Breakpad's files by the PDB's identity.

Symbol stores have the layout of Microsoft's symbol servers (Windows debugging tools, "SymStore"): NAME/KEY/NAME, with
KEY the GUID's digits and the age for a PDB, the time stamp (8 digits) and the size for a PE file, all hexadecimal.
Windows does not tell capitals from small letters in names, so they are not told apart here either.
"""

from __future__ import annotations

import ntpath
import os
from collections.abc import Iterator

from ..binaries import Image
from ..binaries.files import File, below
from ..binaries.pdb import pdb_identity
from ..errors import LastbranchError
from ..model import Module
from .breakpad import module_id
from .found import Found, Pieces, Search, image_of
from .model import DebugFiles

__all__ = ["find_pe"]

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
