"""The sandbox of the symbol worker: the system calls that its two processes may make (`worker`).

The process that starts programs (demanglers, llvm-symbolizer) gets no new privileges and no network (`restrict_tools`).
The reader of files may read, compute and answer only: it opens no file for writing, starts no process, has no sockets
and sends no signals (`confine_reader`). A call that a reader never needs ends it with SIGSYS; calls that are not listed
fail with ENOSYS.

The filters are classic BPF (seccomp(2)) for x86-64 and aarch64. Elsewhere, and where the system refuses filters, as
some containers do, resource limits remain.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys

__all__ = ["confine_reader", "restrict_tools"]

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2

KILL, REFUSE, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
"""SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ERRNO (with the error in its low bits), SECCOMP_RET_ALLOW."""

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""uname's machine -> column of the tables, AUDIT_ARCH."""
_X32 = 0x40000000
"""The bit of x32's calls, on x86-64 only."""

Numbers = dict[str, tuple[int, int | None]]

READING: Numbers = {
    "read": (0, 63), "readv": (19, 65), "pread64": (17, 67), "preadv": (295, 69), "write": (1, 64), "writev": (20, 66),
    "close": (3, 57), "close_range": (436, 436), "lseek": (8, 62), "dup": (32, 23), "dup3": (292, 24),
    "fcntl": (72, 25), "poll": (7, None), "ppoll": (271, 73), "stat": (4, None), "lstat": (6, None), "fstat": (5, 80),
    "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78),
    "getdents64": (217, 61), "getcwd": (79, 17), "fadvise64": (221, 223), "mmap": (9, 222), "munmap": (11, 215),
    "mremap": (25, 216), "mprotect": (10, 226), "madvise": (28, 233), "brk": (12, 214), "futex": (202, 98),
    "membarrier": (324, 283), "rseq": (334, 293), "getcpu": (309, 168), "set_robust_list": (273, 99),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "getrandom": (318, 278), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "nanosleep": (35, 101), "gettimeofday": (96, 169), "time": (201, None),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getpid": (39, 172), "getppid": (110, 173),
    "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "uname": (63, 160), "sysinfo": (99, 179), "getrusage": (98, 165), "getrlimit": (97, 163), "exit": (60, 93),
    "exit_group": (231, 94),
}  # fmt: skip
"""Calls that a reader may make: numbers on x86-64 and on aarch64, which never had the oldest ones."""

CHECKED: Numbers = {
    "open": (2, None),
    "openat": (257, 56),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
    "ioctl": (16, 29),
}
"""Calls that a reader may make with some arguments only."""

FORBIDDEN: Numbers = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None), "clone": (56, 220),
    "socket": (41, 198), "creat": (85, None), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
}  # fmt: skip
"""Calls that end a reader at once."""

PRIVILEGED: Numbers = {
    "socket": (41, 198), "socketpair": (53, 199), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "setns": (308, 268), "unshare": (272, 97), "bpf": (321, 280), "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425), "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "reboot": (169, 142), "swapon": (167, 224), "open_by_handle_at": (304, 265),
    "pidfd_getfd": (438, 438),
}  # fmt: skip
"""Calls that programs which print names never need."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# Classic BPF: code, and how many instructions to skip if a test holds, and if not.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH = 0, 4
"""Offsets in struct seccomp_data; the low halves of the arguments begin at 16, 8 bytes apart."""

Program = list[tuple[int, int, int, int]]


def _start(audit: int) -> Program:
    """Load the number of the call; a call of another architecture ends the process."""
    return [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, KILL),
    ]


def _each(calls: Numbers, column: int, action: int) -> Program:
    numbers = [row[column] for row in calls.values()]
    return [step for n in numbers if n is not None for step in ((_EQUAL, 0, 1, n), (_RETURN, 0, 0, action))]


def _where(name: str, column: int, argument: int, test: tuple[int, int], holds: int, not_so: int) -> Program:
    """For a call of `CHECKED`: the actions if ``test`` (code, value) holds for the low half of an argument or not."""
    number, (code, value) = CHECKED[name][column], test
    if number is None:
        return []
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, 16 + 8 * argument),
        (code, 0, 1, value),
        (_RETURN, 0, 0, holds),
        (_RETURN, 0, 0, not_so),
    ]


def reader_filter(machine: str, pid: int) -> Program:
    """The filter of a reader with this process id."""
    column, audit = ARCHITECTURES[machine]
    return [
        *_start(audit),
        *_each(READING, column, ALLOW),
        *_where("open", column, 1, (_ANY_BIT, _WRITING), KILL, ALLOW),
        *_where("openat", column, 2, (_ANY_BIT, _WRITING), KILL, ALLOW),
        *_where("kill", column, 0, (_EQUAL, pid), ALLOW, KILL),
        *_where("tgkill", column, 0, (_EQUAL, pid), ALLOW, KILL),
        *_where("prlimit64", column, 0, (_EQUAL, 0), ALLOW, KILL),  # its own limits
        *_where("ioctl", column, 0, (_AT_LEAST, 0), REFUSE | errno.ENOTTY, KILL),  # always, as files answer
        *_each(FORBIDDEN, column, KILL),
        (_RETURN, 0, 0, REFUSE | errno.ENOSYS),
    ]


def tools_filter(machine: str) -> Program:
    """The filter of the process that starts programs, and of these."""
    column, audit = ARCHITECTURES[machine]
    return [*_start(audit), *_each(PRIVILEGED, column, REFUSE | errno.EPERM), (_RETURN, 0, 0, ALLOW)]


def _machine() -> str:
    """The architecture of this process, if it has filters; else empty."""
    if not sys.platform.startswith("linux") or struct.calcsize("P") != 8:
        return ""
    machine = os.uname().machine
    return machine if machine in ARCHITECTURES else ""


def _no_new_privileges() -> None:
    """Programs that this process starts get no more rights than it has (set-user-ID programs, file capabilities)."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _apply(program: Program) -> bool:
    """Install the filter for good. Returns whether the system took it."""
    import ctypes

    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    return _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header))


def _prctl(option: int, *values: int) -> bool:
    import ctypes

    arguments = [ctypes.c_ulong(v) for v in (*values, 0, 0, 0, 0)][:4]
    try:
        return bool(ctypes.CDLL(None).prctl(option, *arguments) == 0)
    except (OSError, AttributeError):
        return False


def restrict_tools() -> None:
    """Confine this process, and all that it starts: no new privileges, no network, no access to other processes."""
    _no_new_privileges()
    if machine := _machine():
        _apply(tools_filter(machine))


def confine_reader() -> bool:
    """Confine this process to reading, computing and answering. Returns whether a filter enforces it."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
            resource.setrlimit(limit, (0, 0))
    _no_new_privileges()
    machine = _machine()
    return bool(machine) and _apply(reader_filter(machine, os.getpid()))
