"""The tables of a profile: machine, modules, processes, threads, events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:  # uuid takes 14 ms to import, and only Windows modules have one
    from uuid import UUID

__all__ = ["Capture", "Cpu", "Event", "Machine", "Module", "ModuleKind", "Node", "Process", "Rows", "Segment", "Thread"]

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical processor; ids are -1 where the source does not record them."""

    index: int
    core: int = -1
    die: int = -1
    package: int = -1
    node: int = -1
    online: bool = True


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node; memory in bytes, 0 unknown."""

    index: int
    cpus: tuple[int, ...] = ()
    memory: int = 0
    free: int = 0


@dataclass(slots=True)
class Machine:
    """The machine of the capture (TB5's hardware and software sections). Empty strings and 0 mean not known."""

    arch: str = ""
    """As ``uname -m`` says: ``x86_64``, ``aarch64``."""
    bits: int = 64
    byte_order: str = "little"
    host: str = ""
    os: str = ""
    os_release: str = ""
    cpu_description: str = ""
    cpuid: str = ""
    cpus_online: int = 0
    cpus_available: int = 0
    memory: int = 0
    """Bytes."""
    page_size: int = 4096
    hypervisor: str = ""
    cpus: list[Cpu] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    pmu_caps: dict[str, dict[str, str]] = field(default_factory=dict)
    """PMU name -> capability -> value, as the kernel's ``caps`` folder lists them (``branches``: LBR depth)."""


class ModuleKind(StrEnum):
    """The kind of a mapping's content, which decides how its addresses are written."""

    FILE = "file"
    """A binary with a path: link addresses through its executable load segment."""
    KERNEL = "kernel"
    """The kernel image: addresses count from the run-time ``_text``."""
    KERNEL_MODULE = "kernel module"
    VDSO = "vdso"
    ANONYMOUS = "anonymous"
    """Memory without a file: JIT code, heap, stack. Only absolute addresses mean anything."""


PATCHED = (ModuleKind.KERNEL, ModuleKind.KERNEL_MODULE)
"""What patches its own code while it runs (alternatives, static branches): other branches may run than are in the file.
"""


@dataclass(frozen=True, slots=True)
class Segment:
    """A loadable piece of a binary: ``size`` bytes of the file at ``offset`` that link at ``address``."""

    address: int
    offset: int
    size: int
    executable: bool


@dataclass(slots=True)
class Module:
    """A binary, or other memory with code, that was mapped in the capture."""

    name: str
    """Full path as recorded (DOS or POSIX), ``[kernel.kallsyms]``, ``[vdso]``, ``//anon``..."""
    kind: ModuleKind = ModuleKind.FILE
    build_id: bytes = b""
    """ELF build id as recorded, without padding; empty if unknown."""
    inode: tuple[int, ...] = ()
    """The file that was mapped, where its build id was not recorded: major and minor number of the device, inode, inode
    generation (`PERF_RECORD_MMAP2`). Empty if unknown, and if several files had the name."""
    pdb_guid: UUID | None = None
    pdb_age: int = 0
    pdb_name: str = ""
    timestamp: int = 0
    """PE TimeDateStamp."""
    checksum: int = 0
    """PE checksum."""
    size: int = 0
    """Bytes of address space, 0 unknown."""
    image_base: int = 0
    """Preferred base of a PE."""
    code_selector: int = 0
    """x86 code segment selector the module ran under; 0 any."""
    segments: tuple[Segment, ...] = ()
    """Load segments of the binary itself; empty while no matching binary is available."""
    binary: str = ""
    """Path of the file that ``segments`` were read from."""
    unverified: bool = False
    """Whether the user says that ``binary`` is the file that ran, and nothing recorded shows it."""
    missing: str = ""
    """Why no binary is used: ``not found``, ``build id differs``, ``no build id to compare``..."""
    running: str = ""
    """Of a kernel or its module: path of a copy of its memory (kcore), which has its code as it ran. The binary has it
    as it was linked."""
    ran_at: tuple[int, ...] = ()
    """Run-time addresses of that code: its first byte, and the one behind its last."""

    @property
    def short(self) -> str:
        """The last component of the name."""
        return self.name.replace("\\", "/").rstrip("/").rpartition("/")[2] or self.name

    @property
    def identity(self) -> str:
        """The properties that all mappings of one build of a binary share, on any host and under any path:
        ``build-id:HEX``, ``pdb:GUID:AGE`` or ``pe:TIMESTAMP:SIZE``, in hexadecimal. Empty where nothing recorded
        identifies it."""
        if self.build_id:
            return f"build-id:{self.build_id.hex()}"
        if self.pdb_guid:
            return f"pdb:{self.pdb_guid.hex}:{self.pdb_age:x}"
        return f"pe:{self.timestamp:08x}:{self.size:x}" if self.timestamp else ""

    @property
    def is_pe(self) -> bool:
        """Whether the module is described as Windows describes modules: loaded as a whole, with addresses that count
        from its base. With a binary they are link addresses (``image_base`` and that distance)."""
        return bool(self.pdb_guid or self.timestamp or "\\" in self.name)


@dataclass(slots=True)
class Capture:
    """One of the files that a profile was read from."""

    name: str
    """Of the file."""
    format: str = ""
    recorder: str = ""
    host: str = ""
    """Where it was recorded; empty if unknown."""
    start_unix_ns: int | None = None
    """When its first event was, in nanoseconds since 1970-01-01 UTC."""
    samples: int = 0
    entries: int = 0
    """Branch entries."""
    weight: int = 1
    """How often each of its samples counts."""


@dataclass(slots=True)
class Process:
    """One life of a process id: a reused id is another row. Times are clock ticks, ``None`` = before or after."""

    pid: int
    name: str = ""
    parent: int = -1
    """Parent's pid, -1 unknown."""
    start: int | None = None
    end: int | None = None
    command_line: str = ""
    exit_code: int | None = None
    cpu_ns: int | None = None
    """CPU time in the recording, in ns: the sum of that of its threads; ``None`` where the source has none of them."""
    capture: int = 0
    """Row of the captures table."""


@dataclass(slots=True)
class Thread:
    """One thread of a process life; ``process`` is a row of the processes table."""

    tid: int
    process: int
    name: str = ""
    start: int | None = None
    end: int | None = None
    cpu_ns: int | None = None
    """CPU time in the recording, in ns, user and kernel together; ``None`` where the source does not have it."""


class Rows(Sequence[_Row]):
    """A table of ``size`` rows, made from columns on access."""

    __slots__ = ("_make", "_size")

    def __init__(self, size: int, make: Callable[[int], _Row]) -> None:
        self._size, self._make = size, make

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, row: int) -> _Row: ...
    @overload
    def __getitem__(self, row: slice) -> list[_Row]: ...
    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self._make(i) for i in range(self._size)[row]]
        return self._make(range(self._size)[row])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Iterable) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._size} rows>"


@dataclass(slots=True)
class Event:
    """The event that was counted to take samples, and its programming."""

    name: str
    period: int = 0
    """Sample-after value: events between two samples; 0 where the recorder adapted it to a frequency."""
    frequency: int = 0
    """Samples a second that were asked for; 0 where a fixed period was used."""
    branch_select: int | None = None
    """What branches were asked for, in the recorder's own terms (see ``branch_select_kind``); ``None``: no stacks."""
    branch_select_kind: str = "perf"
    """``perf`` (PERF_SAMPLE_BRANCH_*) or ``etw`` (EVENTTRACE LBR filter flags)."""
    has_callchain: bool = False
    has_period: bool = False
    programming: dict[str, int] = field(default_factory=dict)
    """Registers or attribute fields by their name in the source's specification."""
    ids: tuple[int, ...] = ()
