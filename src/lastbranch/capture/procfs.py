"""Reading /proc: processes, threads and the machine (proc(5)).

Functions with a text argument parse it: the hardware recorder reads through a `Kernel`, which tests replace. Functions
with a process or thread id read the file themselves.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from array import array
from typing import IO, NamedTuple

__all__ = [
    "Mapping",
    "OwnRights",
    "PAGE",
    "Rights",
    "Stat",
    "cpu_list",
    "cpu_model",
    "cpuid",
    "fields",
    "fixed_program",
    "has_interpreter",
    "mappings",
    "memory_kb",
    "open_regular",
    "parse_image",
    "parse_stat",
    "process_of",
    "program_of",
    "read",
    "read_once",
    "rights_of",
    "running_threads",
    "spare_processor",
    "stat_of",
    "status_of",
]

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ([-r][-w][-x][ps]) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)")
_PROT = {"r": 1, "w": 2, "x": 4}
_MAP_SHARED, _MAP_PRIVATE = 1, 2


class Mapping(NamedTuple):
    """One line of /proc/PID/maps. ``prot`` and ``flags`` are PROT_* and MAP_* of mmap(2), ``offset`` is into ``name``.

    ``name`` is as in the kernel's perf records: ``//anon`` for anonymous memory.
    """

    start: int
    end: int
    prot: int
    flags: int
    offset: int
    major: int
    minor: int
    inode: int
    name: str


def mappings(maps: str) -> list[Mapping]:
    """The executable mappings in the text of /proc/PID/maps; other lines are ignored."""
    found = []
    for line in maps.split("\n"):  # a name may hold other characters that end lines
        fields = _MAPPING.fullmatch(line)
        if fields is None or "x" not in fields[3]:
            continue
        start, end, offset, major, minor = (int(fields[i], 16) for i in (1, 2, 4, 5, 6))
        prot = sum(bit for letter, bit in _PROT.items() if letter in fields[3])
        flags = _MAP_SHARED if fields[3][3] == "s" else _MAP_PRIVATE
        found.append(Mapping(start, end, prot, flags, offset, major, minor, int(fields[7]), fields[8] or "//anon"))
    return found


def memory_kb(meminfo: str) -> int:
    """Memory of the machine in KiB, from the text of /proc/meminfo; 0 if it is not in there."""
    found = re.search(r"^MemTotal:\s+(\d+)", meminfo, re.M)
    return int(found[1]) if found else 0


def fields(text: str) -> dict[str, str]:
    """Lines ``name : value`` up to an empty one: /proc/PID/status, and the first processor of /proc/cpuinfo."""
    lines = text.split("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def cpu_model(cpu: dict[str, str]) -> str:
    """The name of a processor from its `fields`."""
    return cpu.get("model name", cpu.get("CPU part", ""))


def cpuid(cpu: dict[str, str]) -> str:
    """Vendor, family, model and stepping from the `fields` of a processor, as perf writes them."""
    return ",".join(cpu[name] for name in ("vendor_id", "cpu family", "model", "stepping") if name in cpu)


def cpu_list(text: str) -> tuple[int, ...]:
    """Processors as /sys/devices/system/cpu lists them: ``0-3,8`` -> (0, 1, 2, 3, 8)."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        found.extend(range(int(low), int(high or low) + 1))
    return tuple(found)


# -- read from this process


def read(path: str, errors: str = "surrogateescape") -> str | None:
    """The text of a file; ``None`` where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors=errors, newline="\n") as file:
            return file.read()
    except OSError:
        return None


def open_regular(path: str) -> IO[bytes]:
    """The regular file at a path of a recorded program, which may have put a pipe there. Raises `OSError`."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def status_of(pid: int | str, name: str) -> str:
    """The line ``name`` of /proc/PID/status; empty if it is missing."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            text = b"\n" + file.read()
    except OSError:
        return ""
    return text.partition(f"\n{name}:".encode())[2].partition(b"\n")[0].strip().decode("utf-8", "replace")


class Rights(NamedTuple):
    """The rights of a thread, as far as /proc tells: /proc does not show restrictions by Landlock."""

    ids: tuple[bytes, bytes]
    """User and group ids: real, effective, saved, of the file system."""
    groups: frozenset[int]
    """The supplementary groups of the thread."""
    capabilities: tuple[int, ...]
    """Inheritable, permitted, effective, bounding and ambient ones."""
    gains_none: bool
    """No program that it executes has more rights (PR_SET_NO_NEW_PRIVS). A sandbox that needs no rights begins so."""
    filters: tuple[int, int]
    """The filters of system calls (seccomp): the mode, and the number of filters."""
    user_namespace: str
    """The namespace in which the capabilities hold."""
    files: tuple[str, str]
    """Its mount namespace and root."""
    label: bytes
    """The label by the security module (SELinux, AppArmor, Smack); empty without such a module."""

    def within(self, other: Rights | None) -> bool:
        """Whether the ``other`` may do all that this one may."""
        return (
            other is not None
            and other.ids == self.ids
            and (other.groups >= self.groups or other.is_capable_of(_SETGID))
            and not any(mine & ~theirs for mine, theirs in zip(self.capabilities, other.capabilities, strict=True))
            and self.gains_none >= other.gains_none
            and other.filters in (self.filters, (0, 0))
            and other.user_namespace == self.user_namespace
            and (other.files == self.files or other.is_capable_of(_SYS_ADMIN))
            and other.label == self.label
        )

    def is_capable_of(self, what: int) -> bool:
        """Whether the thread has the capability with number ``what``, in its user namespace."""
        return bool(self.capabilities[_EFFECTIVE] >> what & 1)


_CAPABILITIES = (b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb")
_EFFECTIVE, _EFFECTIVE_ID = 2, 1
_SETGID, _SYS_ADMIN = 6, 21
"""With CAP_SETGID a thread may join any group, with CAP_SYS_ADMIN any mount namespace of its user namespace."""
_RIGHTS = re.compile(rb"^(Uid|Gid|Groups|NoNewPrivs|Seccomp|Seccomp_filters|Cap\w\w\w):[ \t]*(.*)", re.M)


class OwnRights:
    """The rights of this process. A thread with the same rights, as most have, is recognized without parsing: it may be
    waiting for the answer."""

    def __init__(self) -> None:
        self._rights = rights_of("self")
        self._lines = [] if self._rights is None else _SAME.findall(b"\n" + read_once("/proc/self/status"))

    def within_those_of(self, tid: int) -> bool:
        """Whether the thread may do all that we may. Not if its rights or ours are not known."""
        own = self._rights
        if own is None:
            return False
        try:
            text = read_once(f"/proc/{tid}/status")
            places = _namespace_of(tid), _files_of(tid), _label_of(tid) if own.label else b""
        except OSError:
            return False
        same = all(line in text for line in self._lines) and places == (own.user_namespace, own.files, own.label)
        return same or own.within(rights_of(tid))


_SAME = re.compile(
    rb"\n(?:Uid:.*\nGid:.*|Groups:.*|CapInh:(?:.*\n)+?NoNewPrivs:.*|Seccomp:.*(?:\nSeccomp_filters:.*)?)(?=\n)"
)
"""Lines of a status file, which follow each other, that are the same for threads with the same rights."""


def _namespace_of(tid: int | str) -> str:
    return os.readlink(f"/proc/{tid}/ns/user")


def _files_of(tid: int | str) -> tuple[str, str]:
    return os.readlink(f"/proc/{tid}/ns/mnt"), os.readlink(f"/proc/{tid}/root")


def rights_of(tid: int | str) -> Rights | None:
    """The rights of a thread; ``None`` if /proc cannot be read."""
    try:
        found = dict(_RIGHTS.findall(read_once(f"/proc/{tid}/status")))
        return Rights(
            (found[b"Uid"], found[b"Gid"]),
            frozenset(map(int, (*found[b"Groups"].split(), found[b"Gid"].split()[_EFFECTIVE_ID]))),
            tuple(int(found[name], 16) for name in _CAPABILITIES),
            found.get(b"NoNewPrivs", b"0") != b"0",
            (int(found.get(b"Seccomp", b"0")), int(found.get(b"Seccomp_filters", b"0"))),
            _namespace_of(tid),
            _files_of(tid),
            _label_of(tid),
        )
    except (OSError, KeyError, ValueError):
        return None


def _label_of(tid: int | str) -> bytes:
    """The label of a security module, if any. Raises `OSError`."""
    try:
        return read_once(f"/proc/{tid}/attr/current").rstrip(b"\0\n")
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):  # none of them has labels
            return b""
        raise


def process_of(tid: int) -> int:
    """The thread group of ``tid``; ``tid`` itself where it cannot be read."""
    group = status_of(tid, "Tgid")
    return int(group) if group.isdecimal() else tid


def program_of(pid: int) -> str:
    """The path of the program that ``pid`` executes, else its name, else ``?``."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        stat = stat_of(pid)
        return stat.name if stat else "?"


def running_threads() -> int | None:
    """How many threads of the whole machine run or wait for a processor now, ours included; ``None``: not known."""
    try:
        found = read_once("/proc/loadavg").split()
    except OSError:
        return None
    counts = found[3].partition(b"/")[0] if len(found) > 3 else b""
    return int(counts) if counts.isdigit() else None


def spare_processor() -> bool:
    """Whether there is a processor for each thread of the machine that runs now."""
    running = running_threads()
    return running is not None and running <= len(os.sched_getaffinity(0))


_ET_EXEC = 2


def fixed_program(pid: int) -> tuple[int, int] | None:
    """Device and inode of the program that ``pid`` executes, if the program is always mapped at the same addresses (ELF
    type ET_EXEC); ``None`` for others."""
    try:
        with open(f"/proc/{pid}/exe", "rb", buffering=0) as file:
            kind, status = file.read(18)[16:], os.fstat(file.fileno())
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if int.from_bytes(kind, "little") == _ET_EXEC else None


def program_number(pid: int) -> int:
    """32 bits that are the same for processes of the same program."""
    try:
        status = os.stat(f"/proc/{pid}/exe")
    except OSError:
        return pid
    return hash((status.st_dev, status.st_ino)) & 0xFFFFFFFF


def parse_image(text: bytes) -> tuple[int, ...]:
    """The identity of the program that a process executes, from its stat file: the start of the process, the address of
    its code, and the beginning of its stack, which is random. Differs after an exec, and for another process with the
    same number."""
    words = text.rpartition(b")")[2].split()
    return int(words[19]), int(words[23]), int(words[25])


def read_once(path: str) -> bytes:
    """The text of a file of /proc, in the fewest calls: bursts wait for it. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _LONGEST)
    finally:
        os.close(fd)


_AT_BASE = 7


def has_interpreter(pid: int) -> bool:
    """Whether a dynamic loader starts the program of ``pid`` (AT_BASE of getauxval(3))."""
    try:
        with open(f"/proc/{pid}/auxv", "rb", buffering=0) as file:
            words = array("Q", file.read(PAGE))
    except OSError:
        return False
    return dict(zip(words[::2], words[1::2], strict=False)).get(_AT_BASE, 0) != 0


PAGE = 4096
"""More bytes than a stat file ever has."""
_LONGEST = 1 << 20
"""More than a status file has, which lists up to 65,536 groups."""


class Stat(NamedTuple):
    """Some fields of /proc/PID/task/TID/stat (proc(5)). Signals as masks, bit n - 1 for signal n."""

    name: str
    state: str
    parent: int
    cpu: int
    pending: int
    blocked: int
    ignored: int
    caught: int
    start: int = 0
    """ns since the machine was started, of the clock tick in which the thread began."""


def stat_of(tid: int) -> Stat | None:
    """The `Stat` of a thread; ``None`` if it has ended."""
    try:
        with open(f"/proc/{tid}/stat", "rb", buffering=0) as file:
            return parse_stat(file.read(PAGE))
    except OSError:
        return None


def parse_stat(text: bytes) -> Stat:
    """Parse a stat file; the name may contain anything, even parentheses."""
    name, _, rest = text.partition(b"(")[2].rpartition(b")")
    f = rest.split()
    pending, blocked, ignored, caught = map(int, f[28:32])
    return Stat(
        name.decode("utf-8", "replace"),
        f[0].decode(),
        int(f[1]),
        int(f[36]),
        pending,
        blocked,
        ignored,
        caught,
        int(f[19]) * (1_000_000_000 // os.sysconf("SC_CLK_TCK")),
    )
