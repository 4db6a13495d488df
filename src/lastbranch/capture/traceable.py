"""What cannot be recorded, and what tracing changes: sentences for both."""

from __future__ import annotations

import errno
import mmap
import os
import platform
import stat
import sys

from ..errors import LastbranchError, UnavailableError

__all__ = [
    "CollectorError",
    "RunError",
    "check_linux",
    "check_machine",
    "check_program",
    "describe_attach",
    "warnings_of",
]

_MAGIC, _CLASS_32 = b"\x7fELF", 1
_DEBUGGERS = frozenset(("gdb", "lldb", "strace", "ltrace", "rr", "uftrace"))
_SANITIZER = (b"libasan.so.", b"liblsan.so.", b"libclang_rt.asan", b"LeakSanitizer does not work under ptrace")
"""The library that has it, or what it says itself where it is linked in. Names of its functions are in compilers, too.
"""
_LOOKED_AT = 64 << 20
_CAP_SYS_PTRACE = 19
_ELSEWHERE = "captures made elsewhere can be opened here all the same"


class RunError(LastbranchError):
    """The command cannot be executed (``exit_code`` 126), or is not there (127)."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class CollectorError(LastbranchError):
    """Recording failed, or is not possible here."""

    exit_code = 125


def check_linux() -> None:
    """Raises `UnavailableError` on other systems, before anything is imported that they lack."""
    if sys.platform != "linux":
        raise UnavailableError(f"recording needs Linux; this is {sys.platform}", hint=_ELSEWHERE)


def check_machine() -> None:
    """Raises `UnavailableError` where the software branch record does not exist."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        raise UnavailableError(
            f"the software branch record works on 64-bit x86 Linux; this is {platform.machine()} {sys.platform}",
            hint=_ELSEWHERE,
        )


def check_program(path: str) -> None:
    """Raises `UnavailableError` for a 32-bit program; whatever else it is, the kernel will say."""
    try:
        with open(path, "rb", buffering=0) as file:
            start = file.read(5)
    except OSError:
        return
    if start[:4] == _MAGIC and start[4:] == bytes([_CLASS_32]):
        raise UnavailableError(f"{path} is a 32-bit program; only 64-bit x86 code is recorded")


def describe_attach(pid: int, error: OSError) -> UnavailableError:
    """Why ``pid`` cannot be traced."""
    tracer = _status(pid, "TracerPid")
    if error.errno == errno.ESRCH:
        return UnavailableError(f"there is no process {pid}")
    if tracer and tracer != "0":
        return UnavailableError(f"process {pid} is traced by process {tracer} already: a program has one tracer")
    if error.errno in (errno.EPERM, errno.EACCES):
        scope = _first_line("/proc/sys/kernel/yama/ptrace_scope")
        hint = "run as its user, or as root with CAP_SYS_PTRACE"
        if scope not in ("", "0"):
            hint = (
                f"kernel.yama.ptrace_scope is {scope}: launch the program with `lastbranch record -- COMMAND` instead"
            )
        return UnavailableError(f"process {pid} may not be traced: {error.strerror}", hint=hint)
    return UnavailableError(
        f"process {pid} cannot be traced: {error.strerror}", hint="ptrace may be filtered (seccomp), or not emulated"
    )


def warnings_of(pid: int, path: str) -> list[str]:
    """What is different in the program ``path``, which ``pid`` executes now, because it is traced."""
    found = []
    name = os.path.basename(path)
    try:
        mode = os.stat(f"/proc/{pid}/exe")
    except OSError:
        return []
    if not _may_trace_all():
        if mode.st_mode & (stat.S_ISUID | stat.S_ISGID):
            found.append(f"{path} is set-user-id or set-group-id: it runs without those rights while it is traced")
        elif _has_capabilities(pid):
            found.append(f"{path} has file capabilities: it runs without them while it is traced")
    if name in _DEBUGGERS:
        found.append(f"{path} is a debugger: it cannot trace what is traced already")
    elif _sanitized(pid, mode):
        found.append(f"{path} has LeakSanitizer, which does not work while it is traced: ASAN_OPTIONS=detect_leaks=0")
    return found


def _may_trace_all() -> bool:
    return bool(int(_status("self", "CapEff") or "0", 16) >> _CAP_SYS_PTRACE & 1)


def _has_capabilities(pid: int) -> bool:
    try:
        return bool(os.getxattr(f"/proc/{pid}/exe", "security.capability"))
    except OSError:
        return False


def _sanitized(pid: int, mode: os.stat_result) -> bool:
    return _contains(f"/proc/{pid}/exe", (mode.st_dev, mode.st_ino, mode.st_mtime_ns))


def _contains(path: str, identity: tuple[int, int, int]) -> bool:
    """Whether one of `_SANITIZER` is in the executable ``path``; each one is looked through once."""
    found = _LOOKED_THROUGH.get(identity)
    if found is None:
        try:
            with open(path, "rb") as file:
                size = min(os.fstat(file.fileno()).st_size, _LOOKED_AT)
                with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as image:
                    found = any(image.find(word) >= 0 for word in _SANITIZER)
        except (OSError, ValueError):
            found = False
        _LOOKED_THROUGH[identity] = found
    return found


_LOOKED_THROUGH: dict[tuple[int, int, int], bool] = {}


def _status(pid: int | str, name: str) -> str:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith(name + ":")), "")
    except OSError:
        return ""


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip()
    except OSError:
        return ""
