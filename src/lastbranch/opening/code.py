"""The code of modules: that of their binaries, and of the kernel and its modules as it ran."""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np

from ..binaries.image import Code, Image
from ..binaries.kernel_memory import OpenSource, copies_at, fits, text_of
from ..binaries.kernel_modules import module_name
from ..bind import bias_of
from ..closing import on_failure
from ..errors import LastbranchError, SelectionError
from ..model import PATCHED, Change, Module, ModuleKind, Profile, visible
from .binaries import open_image, same_binary, segments_of
from .sources import FileSource

__all__ = ["code_of", "use_running_code"]


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
    mapped = _mapped(profile)
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


def _mapped(profile: Profile) -> dict[int, tuple[int, int]]:
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
