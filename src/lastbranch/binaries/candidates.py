"""Candidate paths for the binary of a module. The name in a capture is a hint: the name is joined to folders that the
user trusts, and the file at the joined path counts only if the file has the recorded identity."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from ..model import Module, ModuleKind, kept_binary
from .files import below, whole_file
from .kernel_modules import PACKED_SUFFIXES, module_name

__all__ = ["AnyCaseFolder", "Candidates", "windows_parts"]


_PREFIX = r"(?:\\\\[?.]\\|\\\?\?\\)?(?:[A-Za-z]:|\\Device\\HarddiskVolume\d+)?(?=\\)"
"""The text before the first folder: ``\\\\?\\``, ``\\??\\``, a drive, the kernel's name of a volume."""
_ROOT = r"\\SystemRoot(?=\\)"
"""Both for any case. They are compiled at their first use, which takes 5 ms: most captures are not of Windows."""
_DEPENDENCIES = 1 << 24
"""Bytes of ``modules.dep`` that are read; those of distributions have less than a million."""
_DRIVE = re.compile(r"[A-Za-z]:\\")


class Candidates:
    """Files to try for modules: below ``symfs``, which is trusted, or without it at their own paths; then below
    ``folders``, by full path, in build-id folders and in symbol stores. ``release`` is the kernel's."""

    def __init__(self, release: str, symfs: str | None, folders: Sequence[str] = ()) -> None:
        self._release, self._symfs = release, symfs
        self._folders = [folder.rstrip("/") for folder in folders]
        self._any_case: dict[str, AnyCaseFolder] = {}
        self._by_name: dict[str, str] | None = None

    def of(self, module: Module) -> Iterator[tuple[str, bool]]:
        """(path, trusted) for ``module``, in the order to try them. The files need not exist."""
        return self._of_windows(module) if module.is_pe else self._of_posix(module)

    def _of_posix(self, module: Module) -> Iterator[tuple[str, bool]]:
        kernel = module.kind is ModuleKind.KERNEL
        if module.kind is ModuleKind.KERNEL_MODULE:
            names = self._kernel_module(module.name)
        else:
            names = _kernels(self._release) if kernel else [module.name.removesuffix(" (deleted)")]
        safe = [n for n in names if n.startswith("/") and ".." not in n.split("/") and "\0" not in n]
        if self._symfs is not None:
            yield from ((self._symfs.rstrip("/") + n, True) for n in safe + ["/vmlinux"] * kernel)
        else:
            yield from ((n, False) for n in safe)
        word = module.build_id.hex()
        by_id = [f"/.build-id/{word[:2]}/{word[2:]}"] if word else []
        yield from ((folder + n, False) for folder in self._folders for n in by_id + safe)
        if word and module.kind is ModuleKind.FILE:
            yield kept_binary(module.build_id), False

    def _kernel_module(self, name: str) -> list[str]:
        """Possible paths of a kernel module: compressed or not; a bare name is looked up in ``modules.dep``."""
        if "/" not in name:
            found = self._modules().get(module_name(name))
            name = f"/lib/modules/{self._release}/{found}" if found else ""
        stem, ko, _ = name.rpartition(".ko")
        return list(dict.fromkeys([name, *(f"{stem}.ko{end}" for end in PACKED_SUFFIXES)])) if ko else []

    def _modules(self) -> dict[str, str]:
        """The modules of this kernel by their names, from ``modules.dep`` (depmod): paths below its folder."""
        if self._by_name is None:
            self._by_name = {}
            if self._release and "/" not in self._release:
                path = below(self._symfs or "/", f"lib/modules/{self._release}/modules.dep")
                text = whole_file(path, _DEPENDENCIES).decode("utf-8", "surrogateescape") if path else ""
                for line in text.splitlines():
                    file, colon, _ = line.partition(":")
                    if colon and not file.startswith("/"):
                        self._by_name[module_name(file)] = file
        return self._by_name

    def _of_windows(self, module: Module) -> Iterator[tuple[str, bool]]:
        parts = windows_parts(module.name)
        if parts is None:
            return
        if self._symfs is not None and (found := self._below(self._symfs, parts)):
            yield found, True
        if self._symfs is None and os.name == "nt" and _DRIVE.match(module.name):
            yield module.name, False
        name, key = parts[-1], f"{module.timestamp:08X}{module.size:x}"
        for folder in self._folders:
            for place in ([name, key, name], parts, [name]):
                if found := self._below(folder, place):
                    yield found, False

    def _below(self, root: str, parts: Sequence[str]) -> str | None:
        return self._any_case.setdefault(root, AnyCaseFolder(root)).file(parts)


def _kernels(release: str) -> list[str]:
    names = (
        "/boot/vmlinux-{}",
        "/usr/lib/debug/boot/vmlinux-{}",
        "/usr/lib/debug/lib/modules/{}/vmlinux",
        "/lib/modules/{}/build/vmlinux",
    )
    return [n.format(release) for n in names] if release and "/" not in release else []


def windows_parts(name: str) -> list[str] | None:
    """Folders and file of a Windows path, without its drive. ``None`` for a path that is not full and local (UNC, a
    stream of a file), or that leaves its root (``..``)."""
    name = name.replace("/", "\\")
    found = re.match(_PREFIX, name, re.IGNORECASE)
    if found is None or (name.startswith("\\\\") and not found[0]):
        return None
    parts = re.sub(_ROOT, r"\\Windows", name[found.end() :], count=1, flags=re.IGNORECASE).split("\\")[1:]
    return parts if parts and not any(p in ("", ".", "..") or ":" in p or "\0" in p for p in parts) else None


class AnyCaseFolder:
    """A folder whose names may be written in any case, as on Windows. A folder is listed once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._listed: dict[str, dict[str, str]] = {}

    def file(self, parts: Sequence[str]) -> str | None:
        """The regular file root/part/..., free of links; ``None`` where there is none or a link leaves the root."""
        if any(p in ("", ".", "..") or "/" in p or "\\" in p for p in parts):
            return None
        if found := below(self._root, "/".join(parts)):
            return found
        path = ""
        for part in parts:
            names = self._names(os.path.join(self._root, path))
            same = names.get(part) or names.get(part.casefold())
            if same is None:
                return None
            path = f"{path}/{same}" if path else same
        return below(self._root, path)

    def _names(self, folder: str) -> dict[str, str]:
        if folder not in self._listed:
            try:
                found = sorted(os.listdir(folder))
            except OSError:
                found = []
            self._listed[folder] = {name.casefold(): name for name in found} | {name: name for name in found}
        return self._listed[folder]
