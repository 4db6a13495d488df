"""State gathered in one pass over the records of a perf.data file."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...model import Module, ModuleKind, Profile
from ..fields import decode
from .attr import Attr
from .auxtrace import AuxTrace
from .layout import MISC, RECORD_FIELDS

__all__ = ["IndexState", "build_id_of", "classify"]

_ANONYMOUS = ("//anon", "[heap]", "[stack", "/dev/zero", "/anon_hugepage", "/SYSV", "/memfd:", "[anon", "/dev/ashmem")
_KERNEL_MODES = (1, 4)
KALLSYMS = "[kernel.kallsyms]"


def classify(name: str, kernel: bool) -> tuple[str, ModuleKind]:
    """``(module name, kind)`` of a mapping that perf names ``name``."""
    if kernel:
        if name.startswith(("[kernel.", "[guest.kernel.")):
            return name.partition("]")[0] + "]", ModuleKind.KERNEL
        return name, ModuleKind.KERNEL_MODULE
    if name in ("[vdso]", "[vsyscall]", "[vdso32]", "[vdsox32]"):
        return name, ModuleKind.VDSO
    if not name or name.startswith(_ANONYMOUS):
        return name or "//anon", ModuleKind.ANONYMOUS
    return name, ModuleKind.FILE


@dataclass(slots=True)
class IndexState:
    """The profile under construction, and what only the reader needs."""

    profile: Profile
    order: str
    """``<`` or ``>``."""
    attrs: list[Attr] = field(default_factory=list)
    attr_of_id: dict[int, int] = field(default_factory=dict)
    event_names: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    tracepoints: dict[int, str] = field(default_factory=dict)
    """``config`` of a tracepoint -> its name, ``system:event``."""
    features: set[str] = field(default_factory=set)
    wall: tuple[int, int] | None = None
    newest_time: int = 0
    """Newest sample time so far: the time of records without one, in old files."""
    samples_seen: bool = False
    feature_bytes: int = 0
    """Of the header features that were decoded."""
    beside: int = 0
    """Bytes that are kept in addition to the tables of the profile."""
    aux: AuxTrace = field(default_factory=AuxTrace)
    """What the file has of AUX areas."""
    clock_event: Attr | None = None
    """The event whose counts are the CPU times of threads; ``None`` so far."""
    late_attr: bool = False
    """Whether an attribute follows samples, which were counted as samples of unknown events."""
    _modules: dict[tuple[str, bytes], int] = field(default_factory=dict)
    _build_ids: dict[str, bytes] = field(default_factory=dict)

    def module(self, name: str, kernel: bool, build_id: bytes = b"", inode: tuple[int, ...] = ()) -> int:
        """The module's row of the modules table; a missing row is appended.

        Two build ids under one name mean two modules. Two inodes do not, because some file systems have two inodes for
        one file.
        """
        short, kind = classify(name, kernel)
        key = (short, build_id)
        row = self._modules.get(key)
        if row is None:
            row = self._modules[key] = len(self.profile.modules)
            self.profile.modules.append(Module(short, kind, build_id, inode))
        elif self.profile.modules[row].inode != inode:
            self.profile.modules[row].inode = ()
        return row

    def add_attr(self, attr: Attr) -> None:
        """One more event, whose ids are known."""
        self.attr_of_id.update(dict.fromkeys(attr.ids, len(self.attrs)))
        self.attrs.append(attr)

    def add_build_id(self, body: bytes, misc: int) -> None:
        """The body of a build id record."""
        found = decode(RECORD_FIELDS["HEADER_BUILD_ID"], body, self.order)
        build_id = build_id_of(found["build_id"], found["size"] if misc & MISC.BUILD_ID_SIZE else 20)
        self.beside += len(found["filename"])
        self._build_ids[classify(found["filename"], misc & MISC.CPUMODE_MASK in _KERNEL_MODES)[0]] = build_id

    @property
    def weight(self) -> int:
        """Bytes that this takes, about, in addition to the tables of the profile."""
        ids = len(self.attr_of_id) + len(self._build_ids) + len(self.event_names)
        return self.beside + self.aux.weight + 4000 * len(self.attrs) + 300 * ids

    def finish_modules(self) -> None:
        """Give modules whose mapping carried no build id the one of the file's table."""
        for module in self.profile.modules:
            if not module.build_id:
                module.build_id = self._build_ids.get(module.name, b"")


def build_id_of(stored: bytes, size: int) -> bytes:
    """The build id of ``size`` bytes in the 20 ``stored`` bytes, without the padding zeros: ids of 8 and 16 bytes
    exist. Raises `ValueError` for a larger size."""
    if size > 20:
        raise ValueError(f"build id of {size} bytes")
    build_id = stored[:size]
    kept = build_id.rstrip(b"\0")
    return build_id[: next((n for n in (8, 16, 20) if len(kept) <= n), len(build_id))] if kept else b""
