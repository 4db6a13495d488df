"""Call stacks of stopped threads on x86-64, by the call frame information of what is mapped there.

A frame leads to its caller by a row of `CallFrames`: where the caller's stack begins, and where registers and the
return address are. Nearly all rows are `Plain`: the compiled library follows those (unwind_stack.c) and returns to
Python for a row that it does not have yet, and for others: expressions, signal frames, code without information. Such
code is followed by its frame pointer, if what that points to looks like a frame.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...binaries.call_frames import CallFrames, Cie, FrameRow, Rule, RuleKind, evaluate
from ...closing import on_failure
from ...errors import LastbranchError
from ...isa import NOT_A_BRANCH, Decoder
from ...lbr import KIND
from ...model import BytesSource, OpenFile, Source
from ...x86 import Opcode
from .. import ptrace
from ..perf_events.syscall import sparing
from ..procfs import PAGE, Mapping, mappings, open_regular, read
from .instructions import ADDRESSES, WORD, Memory

__all__ = [
    "ENDS",
    "FRAMES",
    "LEAST_COPIED",
    "MOST_COPIED",
    "UNREADABLE",
    "AddressSpace",
    "Stack",
    "StackCopy",
    "Unwinder",
]


FRAMES = 1024
"""Most frames of a stack."""
_DWARF = (
    ptrace.RAX, ptrace.RDX, ptrace.RCX, ptrace.RBX, ptrace.RSI, ptrace.RDI, ptrace.RBP, ptrace.RSP, ptrace.R8,
    ptrace.R9, ptrace.R10, ptrace.R11, ptrace.R12, ptrace.R13, ptrace.R14, ptrace.R15, ptrace.RIP,
)  # fmt: skip
"""Indexes into `ptrace.Registers` by DWARF's register numbers (System V psABI for x86-64, figure 3.36)."""
_RBP, _RSP, _RIP = 6, 7, 16
_SAVED = (3, 6, 12, 13, 14, 15)
"""The registers that a function must keep: RBX, RBP, R12 to R15."""
_LARGEST = 64 << 20
"""Bytes of the largest frame: a caller further away is on another stack."""
_KEPT = -(1 << 31)

WHOLE, _ASK, LIMIT, UNREADABLE, SWITCHED, UNKNOWN, CAUGHT = range(7)
ENDS = (
    "whole", "not known", f"cut off at {FRAMES} frames", "unreadable stack", "another stack", "code without frames",
    "going to an exception handler",
)  # fmt: skip
"""How a stack ended, by the numbers above. Only the first has all callers."""


class Stack(NamedTuple):
    """``frames``: the thread's instruction, then return addresses, innermost first. Of a signal frame and of code that
    a signal interrupted, one more than the instruction: as in every call chain, one less is in the code that waits.
    ``end``: an index of `ENDS`. ``bases``: the stack pointer after the return to each frame but the first."""

    frames: list[int]
    end: int
    bases: Sequence[int] = ()


class Plain(NamedTuple):
    """A frame whose caller's stack begins at register ``base`` plus ``offset``; ``at`` has the offsets from there of
    the words that hold the registers `_SAVED` (`_KEPT` for one that is kept) and the return address."""

    base: int
    offset: int
    at: tuple[int, ...]


_LAST = Plain(0, 0, ())
"""The frame of a function without a caller."""
_Found = Plain | tuple[Cie, FrameRow] | int | None
"""What is known of an address. ``None``: nothing. A number: stacks end there, so."""


class StackCopy:
    """A stopped thread's registers and the innermost part of its stack: it is unwound once the thread has gone on."""

    def __init__(self) -> None:
        self.registers = ptrace.Registers()
        self.bytes = (ctypes.c_uint8 * MOST_COPIED)()
        self.begin = self.length = 0
        """Address of the first byte, and how many there are."""

    def take(self, tid: int, descriptor: int, most: int) -> None:
        """Copy them. ``descriptor``: the memory of its process; ``most``: bytes of the stack."""
        ptrace.registers(tid, self.registers)
        self.begin = max(self.registers[ptrace.RSP] & -PAGE, 0)
        try:
            self.length = os.preadv(descriptor, [memoryview(self.bytes)[:most]], self.begin)
        except (OSError, OverflowError):
            self.length = 0

    def word(self, address: int) -> int | None:
        """The word at ``address``; ``None`` where it was not copied."""
        at = address - self.begin
        return int.from_bytes(self.bytes[at : at + WORD], "little") if 0 <= at <= self.length - WORD else None


LEAST_COPIED, MOST_COPIED = 1 << 15, 1 << 18
"""Bytes of a stack. Most are less deep, and a burst waits for the copy."""


class AddressSpace:
    """What one process has mapped, until `forget`."""

    def __init__(self, pid: int, memory: Memory, descriptor: int) -> None:
        """``memory`` reads ``/proc/PID/mem``, which is open as ``descriptor``."""
        self.pid, self.memory, self.descriptor = pid, memory, descriptor
        self.owner = 0
        """The number of its rows in the compiled walk's table; 0: it has none."""
        self.found: dict[int, _Found] = {}
        """By address."""
        self._mappings: list[Mapping] = []
        self._current = False
        """The list of mappings is that of this moment."""

    def forget(self) -> None:
        """Code was mapped."""
        self._mappings, self.owner = [], 0
        self.found.clear()

    def moved(self) -> None:
        """The program ran."""
        self._current = False

    def mapping(self, address: int) -> Mapping | None:
        """The executable mapping of ``address``."""
        row = bisect_right(self._mappings, address, key=lambda m: m.start) - 1
        if row >= 0 and address < self._mappings[row].end:
            return self._mappings[row]
        if self._current:
            return None
        self._current = True
        self.mappings()
        return self.mapping(address)

    def mappings(self) -> list[Mapping]:
        """The executable mappings at this moment, by address."""
        self._mappings = sorted(mappings(read(f"/proc/{self.pid}/maps") or ""))
        return self._mappings


class Files:
    """The call frame information of mapped files, which all processes share."""

    def __init__(self) -> None:
        self._files: dict[tuple[object, ...], CallFrames | None] = {}

    def of(self, space: AddressSpace, mapping: Mapping) -> CallFrames | None:
        """That of a mapping; ``None`` where it has none, or cannot be read."""
        if mapping.inode == 0 and mapping.name != _VDSO:
            return None
        key = (mapping.major, mapping.minor, mapping.inode, mapping.name)
        if key not in self._files:
            self._files[key] = None
            try:
                if source := _source(space, mapping):
                    self._files[key] = CallFrames(source)
            except (LastbranchError, OSError):
                pass
        return self._files[key]


_VDSO = "[vdso]"


def _source(space: AddressSpace, mapping: Mapping) -> Source | None:
    """The bytes of what is mapped: the file by its name if that is still the same one, or else by the mapping itself,
    which takes a privilege. The kernel's own object is in memory."""
    if mapping.name == _VDSO:
        return BytesSource(space.memory(mapping.start, mapping.end - mapping.start), mapping.name)
    names = f"/proc/{space.pid}/root{mapping.name}", f"/proc/{space.pid}/map_files/{mapping.start:x}-{mapping.end:x}"
    for name in names:
        try:
            file = open_regular(name)
        except OSError:
            continue
        if os.fstat(file.fileno()).st_ino == mapping.inode:
            with on_failure(file.close):
                os.close(sparing(os.dup(file.fileno()), useful=True))  # its copy has the next number
            return OpenFile(file, mapping.name)
        file.close()
    return None


class Unwinder:
    """Makes call stacks, for all traced processes of one collector."""

    def __init__(self) -> None:
        library = ptrace.compiled()
        self._walk = None if library is None else _Walk(library)
        self._files = Files()
        from ...binaries import elf  # noqa: F401  `Files` reads them: the first stack is not to wait for that

    def prepare(self, space: AddressSpace) -> Iterator[None]:
        """Open what is mapped, a file at each step, while the program still runs: that takes milliseconds."""
        for mapping in space.mappings():
            if (frames := self._files.of(space, mapping)) is not None:
                frames.load()
                yield

    def stack(
        self, space: AddressSpace, registers: ctypes.Array[ctypes.c_uint64], copy: StackCopy | None = None
    ) -> Stack:
        """The call stack of a stopped thread with ``registers`` (`ptrace.Registers`), or of one that was copied."""
        space.moved()
        walk = _Walker(space, [registers[index] for index in _DWARF], self._lookup, copy)
        if self._walk is None:
            return walk.run()
        return self._walk.run(walk)

    def _lookup(self, space: AddressSpace, address: int, exact: bool) -> _Found:
        """What is known of the instruction at ``address``, or, not ``exact``, of the call that ends there."""
        if address in space.found:
            return space.found[address]
        mapping = space.mapping(address)
        found: _Found = None
        if mapping is not None and (frames := self._files.of(space, mapping)) is not None:
            found = _row_of(frames, mapping, address)
            if isinstance(found, tuple) and not isinstance(found, Plain):
                found = CAUGHT if _goes_to_handler(space, *found, address + (not exact)) else found
        if len(space.found) >= _REMEMBERED:
            space.found.clear()
        if mapping is not None:  # what is nowhere now may be mapped later
            space.found[address] = found
        return found


_REMEMBERED = 1 << 16


def _row_of(frames: CallFrames, mapping: Mapping, address: int) -> _Found:
    at = address - mapping.start + mapping.offset
    for segment in frames.image.segments:
        if 0 <= at - segment.offset < segment.file_size:
            known = frames.find(at - segment.offset + segment.vaddr)
            return None if known is None else _shape(known[0].cie, known[1])
    return None


_FOR_HANDLER = {0, 1}
"""RAX and RDX, which no function has to keep."""
_TO_ITS_STACK = "mov rsp, rcx"
_LAST_BYTES = 256


def _goes_to_handler(space: AddressSpace, cie: Cie, row: FrameRow, address: int) -> bool:
    """Whether the code from ``address`` on leaves its frame for an exception handler, as the last instructions of
    `_Unwind_RaiseException` do (``__builtin_eh_return`` of GCC).

    The last function that it calls but one has written the handler's registers over the caller's, of which the rows
    know nothing: its frame leads to callers that are gone. The last one is `_Unwind_DebugHook`.
    """
    in_frame = {register for register, rule in row.rules.items() if rule.kind is RuleKind.AT_OFFSET}
    if not in_frame >= _FOR_HANDLER or cie.is_signal_frame:
        return False
    if _RBP not in in_frame:  # it has left
        return True
    calls = 0
    for instruction in Decoder().lines(space.memory(address, _LAST_BYTES), address):
        if instruction.text == _TO_ITS_STACK:
            return True
        calls += instruction.kind == KIND["call"]
        if instruction.kind not in _WITHIN or calls > 1:
            break
    return False


_WITHIN = frozenset((NOT_A_BRANCH, KIND["cond"], KIND["uncond"], KIND["call"]))


def _shape(cie: Cie, row: FrameRow) -> _Found:
    """A row as a `Plain` one, if it is."""
    rules = dict(row.rules)
    returns = rules.pop(cie.return_register, Rule(RuleKind.SAME))
    if returns.kind is RuleKind.UNDEFINED:
        return _LAST
    at = []
    for register in _SAVED:
        rule = rules.pop(register, Rule(RuleKind.SAME))
        if rule.kind not in _PLAIN_KINDS:
            return cie, row
        at.append(rule.value if rule.kind is RuleKind.AT_OFFSET else _KEPT)
    plain = (
        not row.expression
        and not cie.is_signal_frame
        and cie.return_register == _RIP
        and row.cfa < _RIP
        and returns.kind is RuleKind.AT_OFFSET
        and all(abs(value) < -_KEPT for value in (row.offset, returns.value))
        and all(rule.kind in (RuleKind.SAME, RuleKind.UNDEFINED) for rule in rules.values())
    )
    return Plain(row.cfa, row.offset, (*at, returns.value)) if plain else (cie, row)


_PLAIN_KINDS = (RuleKind.SAME, RuleKind.UNDEFINED, RuleKind.AT_OFFSET)


class _Walker:
    """One walk, from frame to frame."""

    def __init__(
        self,
        space: AddressSpace,
        registers: list[int],
        lookup: Callable[[AddressSpace, int, bool], _Found],
        copy: StackCopy | None,
    ) -> None:
        self.space, self.registers, self._lookup, self.copy = space, registers, lookup, copy
        self.frames, self.bases = [registers[_RIP]], list[int]()
        self.exact = True
        """Whether this is the instruction itself, not a return address, which may be past the code of its function."""

    @property
    def key(self) -> int:
        """The address that is looked up."""
        return self.registers[_RIP] - (not self.exact) & ADDRESSES

    def found(self) -> _Found:
        return self._lookup(self.space, self.key, self.exact)

    def run(self) -> Stack:
        while True:
            end = self.step()
            if end is not None:
                return Stack(self.frames, end, self.bases)

    def step(self) -> int | None:
        """Go to the caller; how the stack ends, if it does."""
        found = self.found()
        if found is _LAST:
            return WHOLE
        if isinstance(found, int):
            return found
        if len(self.frames) >= FRAMES:
            return LIMIT
        if isinstance(found, Plain):
            end = self._by_plain(found)
        elif found is None:
            end = self._by_frame_pointer()
        else:
            end = self._by_row(*found)
        if end is not None:
            return end
        pc = self.registers[_RIP]
        if pc == 0:
            return WHOLE
        self.frames.append(pc + self.exact & ADDRESSES)
        self.bases.append(self.registers[_RSP])
        return None

    def _word(self, address: int) -> int | None:
        if self.copy is not None:
            return self.copy.word(address & ADDRESSES)
        word = self.space.memory(address & ADDRESSES, WORD)
        return int.from_bytes(word, "little") if len(word) == WORD else None

    def _by_plain(self, row: Plain) -> int | None:
        registers = self.registers
        cfa = registers[row.base] + row.offset & ADDRESSES
        if not 0 < cfa - registers[_RSP] <= _LARGEST:
            return SWITCHED
        words = {
            register: self._word(cfa + at) for register, at in zip((*_SAVED, _RIP), row.at, strict=True) if at != _KEPT
        }
        for register, word in words.items():
            if word is None:
                return UNREADABLE
            registers[register] = word
        registers[_RSP], self.exact = cfa, False
        return None

    def _by_row(self, cie: Cie, row: FrameRow) -> int | None:
        """By any row. A signal frame may lead to another stack."""
        before = tuple(self.registers)
        try:
            if row.expression:
                cfa = evaluate(row.expression, before, self.space.memory)
            else:
                cfa = before[row.cfa] + row.offset & ADDRESSES
            after = [*before]
            after[_RSP] = cfa
            for register, rule in row.rules.items():
                if register <= _RIP and rule.kind not in (RuleKind.SAME, RuleKind.UNDEFINED):
                    after[register] = self._value(rule, cfa, before)
        except (LastbranchError, IndexError):
            return UNREADABLE
        if not cie.is_signal_frame and not 0 <= after[_RSP] - before[_RSP] <= _LARGEST:
            return SWITCHED
        if after[_RSP] == before[_RSP] and after[_RIP] == before[_RIP]:
            return UNKNOWN
        if cie.is_signal_frame and not self.exact:  # no call led to it either
            self.frames[-1] += 1
        self.registers[:], self.exact = after, cie.is_signal_frame
        return None

    def _value(self, rule: Rule, cfa: int, before: tuple[int, ...]) -> int:
        """Raises `LastbranchError` or `IndexError` where it cannot be known."""
        address = cfa + rule.value & ADDRESSES
        match rule.kind:
            case RuleKind.IS_OFFSET:
                return address
            case RuleKind.REGISTER:
                return before[rule.value]
            case RuleKind.IS_EXPRESSION:
                return evaluate(rule.expression, before, self.space.memory, (cfa,))
            case RuleKind.AT_EXPRESSION:
                address = evaluate(rule.expression, before, self.space.memory, (cfa,))
        word = self._word(address)
        if word is None:
            raise LastbranchError("memory that cannot be read")
        return word

    # -- code without call frame information: what compilers of scripts make, mostly

    def _by_frame_pointer(self) -> int | None:
        registers, stack = self.registers, self.registers[_RSP]
        if self.space.mapping(self.key) is None:
            if len(self.frames) > 1:  # what was taken for a return address is none
                self.frames.pop()
                self.bases.pop()
            return UNKNOWN
        at = self._before_frame() if self.exact else None
        frame: int | None = registers[_RBP]
        if at is not None:  # the frame is not made yet, or left already: RBP is the caller's
            returns, end = self._word(at), at + WORD
        else:
            base = registers[_RBP]
            if base == 0 and not self.exact:  # so the first function is marked (psABI, 3.4.1)
                return WHOLE
            if base % WORD or not 0 <= base - stack <= _LARGEST:
                return UNKNOWN
            frame, returns, end = self._word(base), self._word(base + WORD), base + 2 * WORD
        if frame is None or returns is None:
            return UNREADABLE
        if not self._is_return_address(returns):
            return UNKNOWN
        registers[_RBP], registers[_RSP], registers[_RIP], self.exact = frame, end, returns, False
        return None

    def _before_frame(self) -> int | None:
        """Where the return address is if the instruction is the first or the last one of a function with a frame
        pointer: ``push rbp; mov rbp, rsp`` and ``ret``."""
        code, stack = self.space.memory(self.registers[_RIP] - 1, 5), self.registers[_RSP]
        if code[1:2] in _RET or code[1:5] in _PROLOGUE:
            return stack
        return stack + WORD if code[0:4] in _PROLOGUE else None

    def _is_return_address(self, address: int) -> bool:
        """Whether a call instruction is before ``address``, in executable memory."""
        if self.space.mapping(address - 1) is None:
            return False
        code = self.space.memory(address - _CALL_BYTES, _CALL_BYTES)
        if len(code) != _CALL_BYTES:
            return False
        if code[-5] == Opcode.CALL:
            return True
        return any(
            code[-length] == Opcode.GROUP_5 and code[1 - length] >> 3 & 7 == Opcode.CALL_INDIRECT
            for length in _INDIRECT_CALLS
        )


_RET = (bytes([Opcode.RET]), bytes([Opcode.RET_POP]))
_PROLOGUE = (b"\x55\x48\x89\xe5", b"\x55\x48\x8b\xec")
"""``push rbp; mov rbp, rsp``, in both encodings of the second one."""
_CALL_BYTES, _INDIRECT_CALLS = 8, (2, 3, 4, 6, 7)
"""Lengths of CALL r/m64 (FF /2), from its opcode on."""


# -- the compiled walk, and its table of rows


_ROWS = 1 << 15
_WINDOW = 1 << 16
_SPREAD = 0x9E3779B97F4A7C15
_PLAIN, _END, _OTHER = 1, 2, 3


class _CRow(ctypes.Structure):
    """`struct row` of unwind_stack.c."""

    _fields_ = [
        ("key", ctypes.c_uint64),
        ("owner", ctypes.c_uint32),
        ("cfa", ctypes.c_int32),
        ("at", ctypes.c_int32 * (len(_SAVED) + 1)),
        ("base", ctypes.c_uint8),
        ("kind", ctypes.c_uint8),
        ("unused", ctypes.c_uint8 * 2),
    ]


class _Context(ctypes.Structure):
    """`struct unwind` of unwind_stack.c."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("memory", "owner", "rows", "mask", "frames", "bases", "room", "count")),
        ("registers", ctypes.c_uint64 * len(_DWARF)),
        *((name, ctypes.c_uint64) for name in ("exact", "largest", "window", "capacity", "begin", "length", "is_copy")),
    ]


class _Walk:
    """Calls the compiled walk as far as its table reaches."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library.lb_unwind_stack
        self._memory = mmap.mmap(-1, ctypes.sizeof(_CRow) * _ROWS)  # which takes no memory before it is written
        self._rows = (_CRow * _ROWS).from_buffer(self._memory)
        self._frames, self._bases = (ctypes.c_uint64 * FRAMES)(), (ctypes.c_uint64 * FRAMES)()
        self._window = (ctypes.c_uint8 * _WINDOW)()
        self._context = c = _Context()
        c.rows, c.mask, c.frames = ctypes.addressof(self._rows), _ROWS - 1, ctypes.addressof(self._frames)
        c.bases = ctypes.addressof(self._bases)
        c.largest, c.window, c.capacity = _LARGEST, ctypes.addressof(self._window), _WINDOW
        self._at = ctypes.c_void_p(ctypes.addressof(c))
        self._owners = self._used = 0

    def run(self, walker: _Walker) -> Stack:
        """The rest of the walk."""
        c, space = self._context, walker.space
        c.memory, c.length, c.is_copy = space.descriptor, 0, walker.copy is not None
        c.window = ctypes.addressof(self._window if walker.copy is None else walker.copy.bytes)
        if walker.copy is not None:
            c.begin, c.length = walker.copy.begin, walker.copy.length
        while True:
            if not space.owner:
                self._owners += 1
                space.owner = self._owners
            c.owner, c.exact = space.owner, walker.exact
            c.registers[:] = walker.registers
            c.room, c.count = FRAMES - len(walker.frames), 0
            end = self._run(self._at)
            walker.frames += self._frames[: c.count]
            walker.bases += self._bases[: c.count]
            walker.registers[:], walker.exact = c.registers, bool(c.exact)
            if end != _ASK:
                return Stack(walker.frames, end, walker.bases)
            if self._put(space, walker.key, found := walker.found()):
                continue
            if isinstance(found, Plain):
                return walker.run()
            ended = walker.step()
            if ended is not None:
                return Stack(walker.frames, ended, walker.bases)

    def _put(self, space: AddressSpace, key: int, found: _Found) -> bool:
        """Add what is known of ``key`` to the table, if the compiled walk can follow it."""
        if not isinstance(found, Plain):
            return False
        if 2 * self._used >= _ROWS:
            ctypes.memset(self._rows, 0, ctypes.sizeof(self._rows))
            self._used = 0
        at = ((key ^ space.owner << 48) * _SPREAD & ADDRESSES) >> 32 & _ROWS - 1
        while self._rows[at].kind:
            at = at + 1 & _ROWS - 1
        row = self._rows[at]
        row.key, row.owner, row.kind = key, space.owner, _END if found is _LAST else _PLAIN
        if found is not _LAST:
            row.base, row.cfa = found.base, found.offset
            row.at[:] = found.at
        self._used += 1
        return True
