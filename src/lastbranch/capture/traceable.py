"""Checks whether a program can be traced and recorded, with reasons for refusals, and warnings."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Sequence

from ..errors import LastbranchError, UnavailableError
from ..model import PartFile
from .architectures import ARCHITECTURES, HERE
from .process_groups import ProcessGroup
from .procfs import read, status_of
from .sanitizers import file_contains, has_leak_sanitizer

__all__ = [
    "CollectorError",
    "RunError",
    "check_command",
    "check_linux",
    "check_machine",
    "check_output",
    "check_program",
    "check_target",
    "describe_attach",
    "describe_exec",
    "describe_launch",
    "program_contains",
    "warnings_of",
]

YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_SCOPES = {
    "1": ("only its launcher may trace a program", "launch it with `lastbranch record COMMAND`"),
    "2": ("only a process with CAP_SYS_PTRACE may trace", "record as root"),
    "3": ("no process may be traced until the next boot", "reboot with a lower kernel.yama.ptrace_scope"),
}
"""kernel.yama.ptrace_scope (Linux Documentation/admin-guide/LSM/Yama.rst): meaning and remedy."""

_MAGIC, _CLASS_32 = b"\x7fELF", 1
_MACHINES = {8: "MIPS", 20: "PowerPC", 21: "PowerPC64", 22: "s390", 40: "Arm", 62: "64-bit x86", 183: "AArch64",
             243: "RISC-V", 258: "LoongArch"}  # fmt: skip
"""e_machine of the ELF header (gABI, chapter 4)."""
_DEBUGGERS = frozenset(("gdb", "lldb", "strace", "ltrace", "rr", "uftrace"))
_CAP_SYS_PTRACE = 19
_PROCESSES = "`pgrep -a NAME` shows process ids"
_ELSEWHERE = "captures made elsewhere can still be opened here"


class RunError(LastbranchError):
    """The command cannot be executed (``exit_code`` 126), or was not found (127)."""

    def __init__(self, message: str, exit_code: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class CollectorError(LastbranchError):
    """Recording failed, or is impossible here."""

    exit_code = 125


def check_linux() -> None:
    """Raises `UnavailableError` on other systems, before anything is imported that they lack."""
    if sys.platform != "linux":
        raise UnavailableError(f"this way to record needs Linux; this is {sys.platform}", hint=_ELSEWHERE)


def check_machine() -> None:
    """Raises `UnavailableError` where the software branch record is not supported."""
    arch = os.uname().machine if hasattr(os, "uname") else ""
    if sys.platform != "linux" or arch not in ARCHITECTURES or sys.maxsize < 1 << 32:
        raise UnavailableError(
            f"the software branch record works on Linux of 64-bit x86 and AArch64; this is {arch} {sys.platform}",
            hint=_ELSEWHERE,
        )


def check_output(output: str) -> None:
    """Raises `CollectorError` where the file ``output`` cannot be created, before anything is executed."""
    try:
        PartFile(output).discard()
    except UnavailableError as error:
        raise CollectorError(str(error), hint=error.hint) from error
    except OSError as error:
        folder = os.path.dirname(os.path.abspath(output))
        hint = f"choose a file in a folder other than {folder}"
        raise CollectorError(f"{output} cannot be written: {error.strerror}", hint=hint) from error


def check_program(path: str) -> None:
    """Raises `UnavailableError` for a program of another architecture; the kernel reports all other problems."""
    try:
        with open(path, "rb", buffering=0) as file:
            start = file.read(20)
    except OSError:
        return
    if start[:4] != _MAGIC or len(start) < 20:
        return
    machine = int.from_bytes(start[18:20], "big" if start[5] == 2 else "little")
    is_32_bit = start[4] == _CLASS_32
    if machine == HERE.elf_machine and not is_32_bit:
        return
    what = _MACHINES.get(machine, f"(ELF machine {machine})")
    if is_32_bit and (machine not in _MACHINES or machine == HERE.elf_machine):
        what = "32-bit"
    raise UnavailableError(
        f"{path} is {'an' if what[0] in 'A' else 'a'} {what} program; only {HERE.title} code is recorded",
        hint=f"build it for {HERE.name.replace('_', '-')}, or record it on its own machine and open the capture here",
    )


def check_target(target: Sequence[str] | int | ProcessGroup | None) -> None:
    """Raises `RunError` where the command ``target`` is missing, `UnavailableError` where the process is: no engine can
    record it. ``None`` is the whole system."""
    check_linux()
    if isinstance(target, int):
        try:
            os.kill(target, 0)
        except (ProcessLookupError, OverflowError):
            raise UnavailableError(f"process {target} does not exist", hint=_PROCESSES) from None
        except PermissionError:
            pass  # it exists
    elif target is not None and not isinstance(target, ProcessGroup):
        check_command(target[0])


def check_command(name: str) -> None:
    """Raises `RunError` where the command ``name`` is missing, or cannot be executed."""
    if shutil.which(name) is not None:
        return
    try:
        os.stat(name)
        code = errno.EACCES if os.path.dirname(name) else errno.ENOENT  # a name alone is looked for in PATH only
    except OSError as error:
        code = error.errno or errno.ENOENT
    raise describe_exec(name, OSError(code, os.strerror(code)))


def describe_exec(name: str, error: OSError) -> RunError:
    """The reason why the command ``name`` was not executed."""
    if not os.path.dirname(name) and shutil.which(name) is None:
        here = os.path.join(os.curdir, name)
        return RunError(
            f"{name}: not found in PATH",
            127,
            hint=f"did you mean {here}?" if os.path.isfile(here) else "give its path, or add its folder to PATH",
        )
    if isinstance(error, FileNotFoundError):
        if shutil.which(name):
            return RunError(f"{name}: the interpreter that its first line or header names was not found", 127)
        return RunError(f"{name}: {error.strerror}", 127)
    if os.path.isdir(name):
        return RunError(f"{name}: is a directory", 126, hint="name a program in it")
    hints = {errno.EACCES: f"chmod +x {name}", errno.ENOEXEC: "a script needs a first line like #!/bin/sh"}
    return RunError(f"{name}: {error.strerror}", 126, hint=hints.get(error.errno or 0))


def describe_launch(error: OSError) -> UnavailableError:
    """The reason why a program that we launch cannot be traced."""
    scope = _scope()
    if error.errno in (errno.EPERM, errno.EACCES) and scope in ("2", "3"):
        meaning, advice = _SCOPES[scope]
        return UnavailableError(
            f"programs cannot be traced here: kernel.yama.ptrace_scope is {scope}: {meaning}", hint=advice
        )
    return UnavailableError(
        f"programs cannot be traced here: {error.strerror}",
        hint="ptrace may be blocked (containers need --cap-add SYS_PTRACE) or not emulated",
    )


def _scope() -> str:
    return (read(YAMA) or "").strip()


def describe_attach(pid: int, error: OSError) -> UnavailableError:
    """The reason why ``pid`` cannot be traced."""
    tracer = status_of(pid, "TracerPid")
    if error.errno == errno.ESRCH:
        return UnavailableError(f"process {pid} does not exist", hint=_PROCESSES)
    if tracer and tracer != "0":
        by = status_of(int(tracer), "Name")
        return UnavailableError(
            f"process {pid} is already traced by process {tracer} ({by}): a program can have only one tracer",
            hint=f"end {by} first",
        )
    if error.errno in (errno.EPERM, errno.EACCES):
        scope = _scope()
        if scope in _SCOPES:
            meaning, advice = _SCOPES[scope]
            because = f"kernel.yama.ptrace_scope is {scope}: {meaning}"
            return UnavailableError(f"process {pid} may not be traced: {because}", hint=advice)
        hint = "record as its user, or as root with CAP_SYS_PTRACE"
        return UnavailableError(f"process {pid} may not be traced: {error.strerror}", hint=hint)
    return UnavailableError(
        f"process {pid} cannot be traced: {error.strerror}", hint="ptrace may be blocked (seccomp) or not emulated"
    )


def warnings_of(pid: int, path: str) -> list[str]:
    """How tracing changes the program ``path``, which ``pid`` executes now. Each file is looked at once."""
    try:
        file = os.stat(f"/proc/{pid}/exe")
        key = path, file.st_dev, file.st_ino, file.st_ctime_ns
        if key not in _WARNINGS:
            _WARNINGS[key] = _warnings(pid, path, file.st_mode)
    except PermissionError:  # not dumpable (PR_SET_DUMPABLE in prctl(2))
        return [
            f"{path} cannot be recorded: the kernel hides its memory, as this user may not read the program's file, "
            "or it runs with the rights of another user; record it as root with CAP_SYS_PTRACE"
        ]
    except OSError:
        return []
    return _WARNINGS[key]


_WARNINGS: dict[tuple[str, int, int, int], list[str]] = {}
"""By path and file as it is (st_ctime changes with its rights, too)."""


def _warnings(pid: int, path: str, mode: int) -> list[str]:
    found = []
    if not _may_trace_all():
        if mode & (stat.S_ISUID | stat.S_ISGID):
            found.append(f"{path} is set-user-id or set-group-id: it runs without those rights while traced")
        elif _has_capabilities(pid):
            found.append(f"{path} has file capabilities: it runs without them while traced")
    if os.path.basename(path) in _DEBUGGERS:
        found.append(f"{path} is a debugger: it cannot trace a program that is already traced")
    elif _with_program(pid, has_leak_sanitizer):
        found.append(f"{path} has LeakSanitizer, which fails under a tracer: set LSAN_OPTIONS=detect_leaks=0")
    return found


def _may_trace_all() -> bool:
    return bool(int(status_of("self", "CapEff") or "0", 16) >> _CAP_SYS_PTRACE & 1)


def _has_capabilities(pid: int) -> bool:
    try:
        return bool(os.getxattr(f"/proc/{pid}/exe", "security.capability"))
    except OSError:
        return False


def program_contains(pid: int, words: tuple[bytes, ...]) -> bool:
    """Whether the program file of ``pid`` contains any of ``words``; each file is searched once."""
    try:
        file = os.stat(f"/proc/{pid}/exe")
    except OSError:
        return False
    key = file.st_dev, file.st_ino, file.st_ctime_ns, words
    if key not in _SEARCHED:
        _SEARCHED[key] = _with_program(pid, lambda file: file_contains(file, words))
    return _SEARCHED[key]


_SEARCHED: dict[tuple[int, int, int, tuple[bytes, ...]], bool] = {}


def _with_program(pid: int, judge: Callable[[int], bool]) -> bool:
    """The verdict of ``judge`` on the open program file of ``pid``; ``False`` if the file cannot be read."""
    try:
        with open(f"/proc/{pid}/exe", "rb", buffering=0) as file:
            return judge(file.fileno())
    except (OSError, ValueError):
        return False
