"""Files and memory from system calls: FileIo events, and the VirtualMem and MapFile events of mappings.

A call becomes an event at its beginning, and a FileIo/OperationEnd event at its return. Both tracepoints have filters,
so that only
the calls of `CALLS` are recorded. The name of a file is the target of the descriptor's link in /proc, if the descriptor
still exists when the round is read; else the text that the call passed, if the memory of the process still has the text
and such a file exists; else empty.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ....capture.perf_events.linux_kernel import Kernel
from ....formats.etl.kernel.hooks import FILE_IO, PAGE_FAULT
from ...status import EtwError, Status
from .event_words import Events
from .joint_events import Row, TracepointFollower, as_signed

__all__ = ["CALLS", "SystemCalls"]

_X86 = {
    "read": 0, "write": 1, "open": 2, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "munmap": 11, "brk": 12,
    "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "mremap": 25, "fsync": 74, "fdatasync": 75,
    "ftruncate": 77, "rename": 82, "creat": 85, "unlink": 87, "getdents64": 217, "openat": 257, "unlinkat": 263,
    "renameat": 264, "preadv": 295, "pwritev": 296, "renameat2": 316, "preadv2": 327, "pwritev2": 328, "openat2": 437,
}  # fmt: skip
_ARM = {
    "read": 63, "write": 64, "close": 57, "fstat": 80, "lseek": 62, "mmap": 222, "munmap": 215, "brk": 214,
    "pread64": 67, "pwrite64": 68, "readv": 65, "writev": 66, "mremap": 216, "fsync": 82, "fdatasync": 83,
    "ftruncate": 46, "getdents64": 61, "openat": 56, "unlinkat": 35, "renameat": 38, "preadv": 69, "pwritev": 70,
    "renameat2": 276, "preadv2": 286, "pwritev2": 287, "openat2": 437,
}  # fmt: skip
CALLS = {"x86_64": _X86, "aarch64": _ARM}
"""By machine, the system calls that become events. Source: the kernel's tables of system calls."""

_CREATE, _CLEANUP, _CLOSE, _READ, _WRITE, _SET, _DELETE, _RENAME, _DIR, _FLUSH, _QUERY, _END = 64, 65, 66, 67, 68, \
    69, 70, 71, 72, 73, 74, 76  # fmt: skip
_FILE_CREATE, _RUNDOWN, _MAP, _UNMAP = 32, 36, 37, 38
_ALLOC, _FREE = 98, 99
_END_OF_FILE, _DISPOSITION, _RENAMED, _STANDARD, _NAMES = 20, 13, 10, 5, 37  # FILE_INFORMATION_CLASS
_COMMIT, _RESERVE, _DECOMMIT, _RELEASE = 0x1000, 0x2000, 0x4000, 0x8000
_PROT_EXEC, _MAP_ANONYMOUS = 4, 0x20
_O_CREAT, _O_EXCL, _O_TRUNC, _O_APPEND, _O_DIRECTORY = os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND, os.O_DIRECTORY
_AT_CWD = -100
_UNKNOWN_OFFSET = -2
"""FILE_USE_FILE_POINTER_POSITION: at the position of the descriptor, which is not known."""
_STATUSES = {
    errno.ENOENT: 0xC0000034, errno.EACCES: 0xC0000022, errno.EPERM: 0xC0000022, errno.EEXIST: 0xC0000035,
    errno.EBADF: 0xC0000008, errno.EISDIR: 0xC00000BA, errno.ENOTDIR: 0xC0000103, errno.ENOSPC: 0xC000007F,
    errno.EINVAL: 0xC000000D, errno.EINTR: 0xC0000120, errno.ENOTEMPTY: 0xC0000101, errno.EMFILE: 0xC000011F,
}  # fmt: skip
_UNSUCCESSFUL = 0xC0000001
_LONGEST = 4096
_MOST_FILES = 1 << 16
_MOST_KEYS = 1 << 18
"""Paths, views, files, ends of heaps, and calls that have not returned. With more of a kind all are forgotten, and
known again when they are used next."""

_PATHS = {"open": (-1, 0, 1), "creat": (-1, 0, -1), "openat": (0, 1, 2), "openat2": (0, 1, -1),
          "unlink": (-1, 0, -1), "unlinkat": (0, 1, -1), "rename": (-1, 0, -1), "renameat": (0, 1, -1),
          "renameat2": (0, 1, -1)}  # fmt: skip
"""Arguments of a call: folder, path, flags."""
_OPENS = {"open", "creat", "openat", "openat2"}
_TRANSFERS = {"read": (_READ, -1), "write": (_WRITE, -1), "readv": (_READ, -1), "writev": (_WRITE, -1),
              "pread64": (_READ, 3), "pwrite64": (_WRITE, 3), "preadv": (_READ, 3), "pwritev": (_WRITE, 3),
              "preadv2": (_READ, 3), "pwritev2": (_WRITE, 3)}  # fmt: skip
"""Event, and the argument that is the offset."""
_Fields = Callable[[list[int]], dict[str, Any]]


def _nothing(_: list[int]) -> dict[str, Any]:
    return {}


_ON_DESCRIPTORS: dict[str, tuple[tuple[int, _Fields], ...]] = {
    "fsync": ((_FLUSH, _nothing),), "fdatasync": ((_FLUSH, _nothing),),
    "close": ((_CLEANUP, _nothing), (_CLOSE, _nothing)),
    "ftruncate": ((_SET, lambda args: {"ExtraInfo": args[1], "InfoClass": _END_OF_FILE}),),
    "fstat": ((_QUERY, lambda args: {"ExtraInfo": 0, "InfoClass": _STANDARD}),),
    "getdents64": ((_DIR, lambda args: {
        "Length": args[2] & 0xFFFFFFFF, "InfoClass": _NAMES, "FileIndex": 0, "FileName": "",
    }),),
}  # fmt: skip
"""Call with a descriptor -> its events, and their fields by the arguments."""
_VECTORS = {"readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2"}
_FILES = (
    _OPENS
    | _TRANSFERS.keys()
    | {
        "close",
        "fstat",
        "lseek",
        "fsync",
        "fdatasync",
        "ftruncate",
        "getdents64",
        "unlink",
        "unlinkat",
        "rename",
        "renameat",
        "renameat2",
    }
)
_MEMORY = {"mmap", "munmap", "brk", "mremap"}
_OF_KIND = {
    "file": _FILES,
    "file init": _FILES,
    "file name": _OPENS | {"close"},
    "memory": _MEMORY,
    "mapping": {"mmap", "munmap", "close"} | _OPENS,
}


@dataclass(slots=True)
class _File:
    """An open file: its FileObject and FileKey, and the position of its descriptor, -2 if that is not known."""

    object: int
    key: int
    name: str
    position: int


@dataclass(slots=True)
class _Call:
    name: str
    args: list[int]
    row: Row
    irp: int
    file: _File | None = None


class SystemCalls(TracepointFollower):
    needs: ClassVar = dict.fromkeys(_OF_KIND, ("raw_syscalls/sys_enter", "raw_syscalls/sys_exit"))
    fields: ClassVar = {"raw_syscalls/sys_enter": ("id", "*args"), "raw_syscalls/sys_exit": ("id", "ret")}
    hooks: ClassVar = frozenset(
        {FILE_IO << 8 | n for n in (*range(_CREATE, _QUERY + 1), _END, _FILE_CREATE, _RUNDOWN, _MAP, _UNMAP)}
        | {PAGE_FAULT << 8 | n for n in (_ALLOC, _FREE)}
    )

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._names = {number: name for name, number in CALLS.get(kernel.machine, {}).items()}
        self._calls: dict[int, _Call] = {}
        self._files: dict[tuple[int, int], _File | None] = {}
        self._keys: dict[str, int] = {}
        self._views: dict[tuple[int, int], tuple[int, int, int]] = {}
        """(process, address) -> bytes, FileKey and offset of a view of a file."""
        self._breaks: dict[int, int] = {}
        self._number = self._paths = 0
        self._found: dict[tuple[int, int], str] = {}
        """(thread, time) of a row of this round -> the path that it is about."""
        self._last_use: dict[tuple[str, int, int], int] = {}
        """The last use in this round of ("fd", process, descriptor) or ("text", process, address)."""

    @classmethod
    def filter(cls, kinds: frozenset[str], machine: str) -> str:
        """The calls of ``kinds``, but not those of this process."""
        if machine not in CALLS:
            why = f"the numbers of system calls of {machine} are not known"
            raise EtwError("StartTrace", Status.NOT_SUPPORTED, why)
        numbers = CALLS[machine]
        wanted = sorted({numbers[name] for kind in kinds for name in _OF_KIND[kind] if name in numbers})
        return f"common_pid != {os.getpid()} && ({' || '.join(f'id == {number}' for number in wanted)})"

    # -- rows

    def whole_round(self, rows: Sequence[Row]) -> None:
        self._last_use.clear()
        for row in rows:
            name = self._names.get(row.values["id"])
            if name is None or row.tracepoint.endswith("exit"):
                if name in _OPENS:
                    self._last_use["fd", row.pid, row.values["ret"]] = row.time
                continue
            args = _words(row)
            if name == "close":
                self._last_use["fd", row.pid, as_signed(args[0])] = row.time
            elif name in _PATHS:
                self._last_use["text", row.pid, args[_PATHS[name][1]]] = row.time
        self._look_up(rows)

    def _look_up(self, rows: Sequence[Row]) -> None:
        """Find the paths of a round at once, before programs go on."""
        self._found.clear()
        for row in rows:
            name = self._names.get(row.values["id"])
            if name in _OPENS and row.tracepoint.endswith("exit"):
                result = row.values["ret"]
                if result >= 0 and self._last_use.get(("fd", row.pid, result)) == row.time:
                    self._found[row.tid, row.time] = self.kernel.link(f"/proc/{row.pid}/fd/{result}") or ""
            elif name in _PATHS and row.tracepoint.endswith("enter"):
                self._found[row.tid, row.time] = self._text(name, _words(row), row)

    def row(self, row: Row) -> None:
        name = self._names.get(row.values["id"])
        if name is None:
            return
        if row.tracepoint.endswith("enter"):
            self._number += 1
            call = self._calls[row.tid] = _Call(name, _words(row), row, self._number << 4)
            if name not in _OPENS:
                self._enter(call)
        else:
            entered = self._calls.pop(row.tid, None)
            if entered is not None and entered.name == name:
                self._return(entered, row)

    def end_round(self) -> None:
        """An open that has not returned yet is logged now: it waits, and its text is still there."""
        for call in self._calls.values():
            if call.name in _OPENS and call.file is None:
                self._begin_open(call, self._found.get((call.row.tid, call.row.time), ""))
        self._forget()

    def _forget(self) -> None:
        """Programs decide how many there are; nothing of it may grow without end."""
        for table in (self._keys, self._views, self._breaks, self._calls, self._files):
            if len(table) > _MOST_KEYS:
                table.clear()

    # -- files

    def _enter(self, call: _Call) -> None:
        name, args = call.name, call.args
        if name in _MEMORY or not self.kinds & {"file", "file init", "mapping", "file name"}:
            return
        if name in _PATHS:
            path = self._found.get((call.row.tid, call.row.time), "")
            file = call.file = _File(0, self._key(path, call.row), path, 0)
            kind, info = (_DELETE, _DISPOSITION) if name.startswith("unlink") else (_RENAME, _RENAMED)
            self._log_file(kind, call, file, {"ExtraInfo": 0, "InfoClass": info})
            return
        file_ = call.file = self._file(call.row.pid, as_signed(args[0]), call.row)
        if file_ is None:
            return
        if name in _TRANSFERS:
            kind, offset = _TRANSFERS[name]
            at = file_.position if offset < 0 else args[offset]
            size = 0 if name in _VECTORS else args[2]
            self._log_file(kind, call, file_, {"Offset": at, "IoSize": min(size, 0xFFFFFFFF), "IoFlags": 0})
        for kind, fields in _ON_DESCRIPTORS.get(name, ()):
            self._log_file(kind, call, file_, fields(args))

    def _return(self, call: _Call, row: Row) -> None:
        result, name = row.values["ret"], call.name
        if name in _MEMORY:
            if -4096 < result < 0:
                return
            call.row = row  # its time: it may have begun in an earlier round, whose events are written
            _MEMORY_EVENTS[name](self, call, result)
            return
        if name in _OPENS:
            self._open(call, row, result)
        elif call.file is not None:
            self._move_position(call, result)
        if name == "close" and result == 0:
            self._files.pop((row.pid, as_signed(call.args[0])), None)
        if "file" in self.kinds and call.file is not None and name != "lseek":
            status = 0 if result >= 0 else _STATUSES.get(-result, _UNSUCCESSFUL)
            fields = {"IrpPtr": call.irp, "ExtraInfo": max(result, 0), "NtStatus": status}
            self.log((FILE_IO, _END), row, 2, fields)

    def _open(self, call: _Call, row: Row, result: int) -> None:
        if call.file is None:
            path = self._found.get((row.tid, row.time), "")
            if path and not path.startswith("/"):
                return
            text = "" if path else self._found.get((call.row.tid, call.row.time), "")
            if result >= 0 and text and not os.path.lexists(f"/proc/{row.pid}/root{text}"):
                text = ""  # other bytes than those of the call: it opened something
            self._begin_open(call, path or text)
        if result >= 0 and call.file is not None:
            if len(self._files) > _MOST_FILES:
                self._files.clear()
            self._files[row.pid, result] = call.file

    def _begin_open(self, call: _Call, path: str) -> None:
        flags = call.args[_PATHS[call.name][2]] if _PATHS[call.name][2] >= 0 else 0
        if call.name == "creat":
            flags = _O_CREAT | _O_TRUNC
        file = call.file = _File(0xFFFF << 48 | call.irp, self._key(path, call.row), path, 0)
        if flags & _O_APPEND:
            file.position = _UNKNOWN_OFFSET
        if "file init" in self.kinds:
            create, cut = bool(flags & _O_CREAT), bool(flags & _O_TRUNC)
            disposition = 2 if create and flags & _O_EXCL else 5 if create and cut else 3 if create else 4 if cut else 1
            options = {"CreateOptions": int(bool(flags & _O_DIRECTORY)), "CreateDisposition": disposition}
            self.log(
                (FILE_IO, _CREATE),
                call.row,
                3,
                {
                    "IrpPtr": call.irp,
                    "FileObject": file.object,
                    "TTID": call.row.tid,
                    **options,
                    "FileAttributes": 0x80,
                    "ShareAccess": 7,
                    "FileName": path,
                },
            )

    def _move_position(self, call: _Call, result: int) -> None:
        """Follow the position of a descriptor."""
        file, name = call.file, call.name
        if file is None or result < 0:
            return
        if name == "lseek":
            file.position = result
        elif name in _TRANSFERS and _TRANSFERS[name][1] < 0 and file.position >= 0:
            file.position += result

    def _file(self, pid: int, descriptor: int, row: Row) -> _File | None:
        """The file of a descriptor that was open before; ``None`` for what is no file."""
        key = (pid, descriptor)
        if key not in self._files:
            path = self.kernel.link(f"/proc/{pid}/fd/{descriptor}") if descriptor >= 0 else None
            if path is None and self._last_use.get(("fd", pid, descriptor), row.time) >= row.time:
                return None
            self._number += 1
            known = path is not None and path.startswith("/")
            made = _File(0xFFFF << 48 | self._number << 4, self._key(path or "", row), path or "", _UNKNOWN_OFFSET)
            self._files[key] = made if known else None
        return self._files[key]

    def _text(self, name: str, args: list[int], row: Row) -> str:
        """The path that a call passed, from the memory of its process; "" where that has something else by now."""
        folder, path, _ = _PATHS[name]
        address = args[path]
        if self._last_use.get(("text", row.pid, address), row.time) > row.time:
            return ""
        try:
            with open(f"/proc/{row.pid}/mem", "rb", buffering=0) as memory:
                data = os.pread(memory.fileno(), min(_LONGEST, 4096 - address % 4096 + 4096), address)
        except (OSError, OverflowError):
            return ""
        text = data.split(b"\0")[0].decode("utf-8", "replace")
        if b"\0" not in data or not text.isprintable():
            return ""
        if not text.startswith("/"):
            at = _AT_CWD if folder < 0 else as_signed(args[folder])
            base = self.kernel.link(f"/proc/{row.pid}/cwd" if at == _AT_CWD else f"/proc/{row.pid}/fd/{at}")
            if base is None or not text:
                return ""
            text = os.path.normpath(f"{base}/{text}")
        return text

    def _key(self, path: str, row: Row) -> int:
        """The FileKey of a path, 0 for one that is not known. The first use of it is logged."""
        if not path:
            return 0
        if path not in self._keys:
            self._paths += 1
            self._keys[path] = 0xFFFE << 48 | self._paths << 4
            if "file name" in self.kinds:
                self.log((FILE_IO, _FILE_CREATE), row, 2, {"FileKey": self._keys[path], "FileName": path})
        return self._keys[path]

    def end(self, now: int) -> Events:
        if "file name" in self.kinds:
            for path, key in self._keys.items():
                self.log_at((FILE_IO, _RUNDOWN), now, 2, {"FileKey": key, "FileName": path})
        return super().end(now)

    def _log_file(self, kind: int, call: _Call, file: _File, fields: dict[str, object]) -> None:
        if "file init" in self.kinds:
            whole = {"IrpPtr": call.irp, "FileObject": file.object, "FileKey": file.key, "TTID": call.row.tid}
            self.log((FILE_IO, kind), call.row, 3, whole | fields)

    # -- memory

    def _map(self, call: _Call, address: int) -> None:
        _, length, protection, flags, descriptor, offset = call.args
        size, pid = -(-length // 4096) * 4096, call.row.pid
        if flags & _MAP_ANONYMOUS:
            self._views.pop((pid, address), None)
            self._log_memory(_ALLOC, call, address, size, _COMMIT | _RESERVE if protection else _RESERVE)
        elif not protection & _PROT_EXEC:
            file = self._file(pid, as_signed(descriptor), call.row)
            key = file.key if file else 0
            self._views[pid, address] = size, key, offset
            self._log_view(_MAP, call, address, size, key, offset)
        else:
            self._views[pid, address] = 0, 0, 0  # an image, which IMAGE_LOAD reports

    def _unmap(self, call: _Call, _: int) -> None:
        address, length, pid = call.args[0], call.args[1], call.row.pid
        view = self._views.pop((pid, address), None)
        size = -(-length // 4096) * 4096
        if view is None:
            self._log_memory(_FREE, call, address, size, _RELEASE)
        elif view[0]:
            self._log_view(_UNMAP, call, address, size, view[1], view[2])

    def _remap(self, call: _Call, address: int) -> None:
        old, old_size, size, pid = *call.args[:3], call.row.pid
        if (view := self._views.pop((pid, old), None)) is not None:
            self._views[pid, address] = size, *view[1:]
            if view[0]:
                self._log_view(_UNMAP, call, old, old_size, view[1], view[2])
                self._log_view(_MAP, call, address, size, view[1], view[2])
        else:
            self._log_memory(_FREE, call, old, old_size, _RELEASE)
            self._log_memory(_ALLOC, call, address, size, _COMMIT | _RESERVE)

    def _moved_break(self, call: _Call, address: int) -> None:
        """brk: what it returns is the new end of the heap."""
        before = self._breaks.get(call.row.pid)
        self._breaks[call.row.pid] = address
        if before is not None and address > before:
            self._log_memory(_ALLOC, call, before, address - before, _COMMIT)
        elif before is not None and address < before:
            self._log_memory(_FREE, call, address, before - address, _DECOMMIT)

    def _log_memory(self, kind: int, call: _Call, address: int, size: int, flags: int) -> None:
        if "memory" in self.kinds:
            fields = {"BaseAddr": address, "Length": size, "ProcessID": call.row.pid, "Flags": flags}
            self.log((PAGE_FAULT, kind), call.row, 2, fields)

    def _log_view(self, kind: int, call: _Call, address: int, size: int, key: int, offset: int) -> None:
        if "mapping" in self.kinds:
            fields = {"ViewBase": address, "FileKey": key, "ViewSize": size, "ByteOffset": offset}
            self.log((FILE_IO, kind), call.row, 3, fields | {"ProcessID": call.row.pid})


_MEMORY_EVENTS: dict[str, Callable[[SystemCalls, _Call, int], None]] = {
    "mmap": SystemCalls._map,
    "munmap": SystemCalls._unmap,
    "mremap": SystemCalls._remap,
    "brk": SystemCalls._moved_break,
}


def _words(row: Row) -> list[int]:
    raw = row.values["args"]
    return [int.from_bytes(raw[at : at + 8], "little") for at in range(0, 48, 8)]
