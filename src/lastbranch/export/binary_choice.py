"""The module that ``--binary`` names."""

from __future__ import annotations

import os
from dataclasses import replace

from ..binaries.image import Image
from ..binaries.kernel_modules import module_name
from ..errors import LastbranchError, SelectionError
from ..model import Module, ModuleKind, Profile, SampleFilter, word
from ..opening import image_at, same_binary, use_binary
from .interface import ExportOptions

__all__ = ["choose", "limit_to_binary"]


def choose(profile: Profile, wanted: str) -> int:
    """The row of the module that ``wanted`` names: by the module's path, by the last part of its path, or by a file of
    this host.

    A file is known by its build id, or where one of the two has none, by its name; it is then the module's binary.
    Raises `SelectionError` where no module or more than one is meant.
    """
    rows = [i for i, m in enumerate(profile.modules) if wanted in (m.name, m.short)]
    given = os.path.isfile(wanted)
    if given and (not rows or os.path.basename(wanted) != wanted or len(rows) > 1):
        rows = _rows_of_file(profile, wanted)
    if len(rows) != 1:
        raise _not_one(profile, wanted, rows)
    if given and profile.modules[rows[0]].missing:
        use_binary(profile, rows[0], wanted)
    return rows[0]


def limit_to_binary(profile: Profile, options: ExportOptions) -> SampleFilter | None:
    """The sample filter of ``options``, with their binary as its only module."""
    if options.binary is None:
        return options.sample_filter
    only = frozenset({choose(profile, options.binary)})
    return replace(options.sample_filter or SampleFilter(), modules=only)


def _rows_of_file(profile: Profile, path: str) -> list[int]:
    try:
        image = image_at(path)
    except (OSError, LastbranchError) as error:
        raise SelectionError(f"--binary {path}: not a binary: {error}") from error
    same_as_file = [same_binary(module, image) for module in profile.modules]
    same = [i for i, known in enumerate(same_as_file) if known]
    named = [i for i, m in enumerate(profile.modules) if _has_name(m, os.path.basename(path))]
    unknown = [i for i in named if same_as_file[i] is None]
    if not same and not unknown and named:
        recorded = _describe(profile.modules[named[0]])
        raise SelectionError(
            f"--binary {path}: its {_identity(image, image.format != 'elf')} is not that of the recorded {recorded}",
            hint="give the file that was recorded, not one that was built since",
        )
    return same or unknown


def _has_name(module: Module, name: str) -> bool:
    """Whether a file called ``name`` is one of the module's: a kernel's is ``vmlinux``, or that and its release."""
    if module.kind is ModuleKind.KERNEL:
        return name.startswith("vmlinux")
    if module.kind is ModuleKind.KERNEL_MODULE:
        return module_name(module.name) == module_name(name)
    return module.short == name


def _not_one(profile: Profile, wanted: str, rows: list[int]) -> SelectionError:
    if rows:
        several = ", ".join(_describe(profile.modules[i]) for i in rows)
        return SelectionError(f"--binary {wanted} means {len(rows)} modules: {several}", hint="give the full path")
    from difflib import get_close_matches

    names = {m.short for m in profile.modules if m.kind is ModuleKind.FILE}
    near = ", ".join(get_close_matches(os.path.basename(wanted), names, n=5, cutoff=0.4))
    no_file = ", and it is not a regular file" if os.sep in wanted and not os.path.isfile(wanted) else ""
    return SelectionError(
        f"the capture has no module {wanted}{no_file}",
        hint=f"there are: {near}" if near else "`lastbranch info FILE` lists them",
    )


def _describe(module: Module) -> str:
    return f"{word(module.name)} ({_identity(module, module.is_pe)})"


def _identity(one: Module | Image, is_pe: bool) -> str:
    if not is_pe:
        return f"build id {(one.build_id or b'').hex() or 'unknown'}"
    return f"PDB {one.pdb_guid} {one.pdb_age:x}" if one.pdb_guid else f"time stamp {one.timestamp or 0:#x}"
