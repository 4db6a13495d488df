"""Instructions: branch kind, length and direct target. capstone decodes; tables here classify.

Kinds are perf's branch types (`lbr.BRANCH_TYPES`), assigned as Linux does (arch/x86/events/utils.c, perf_event.h): a
far call, jump or return is a call, jump or return; LOOP and JRCXZ are conditional; IRET is ``eret``. Linux leaves INT
without a type; here INT is ``irq``, so that code is seen to leave the program. XBEGIN is no branch, its abort is.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import chain
from struct import Struct, calcsize
from typing import TYPE_CHECKING, Any, NamedTuple

from . import native
from .errors import UnavailableError
from .lbr import KIND

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ARCHITECTURES", "NOT_A_BRANCH", "UNDECODABLE", "Decoder", "Instruction", "Instructions"]

NOT_A_BRANCH = 0
UNDECODABLE = 255
"""Kind of bytes that are no instruction, or the cut-off beginning of one."""
_BAD = "(bad)"
"""Their mnemonic."""

_ADDRESSES = (1 << 64) - 1


class Architecture(NamedTuple):
    """How capstone is opened for it, and its branches.

    ``direct`` is for a branch whose last operand is a plain address, ``others`` for any other form.
    """

    capstone: tuple[str, str]
    """Names of the CS_ARCH and CS_MODE constants."""
    unit: int
    """Bytes that are stepped over where nothing can be decoded; instructions are a multiple of it."""
    longest: int
    """Bytes of the longest instruction."""
    direct: dict[str, int]
    others: dict[str, int]
    address_mask: int


def _table(**mnemonics: str) -> dict[str, int]:
    return {mnemonic: KIND[kind] for kind, names in mnemonics.items() for mnemonic in names.split()}


_X86_DIRECT = _table(
    cond="ja jae jb jbe jcxz je jecxz jg jge jl jle jne jno jnp jns jo jp jrcxz js loop loope loopne",
    uncond="jmp",
    call="call",
)
_X86_OTHERS = _table(
    uncond="jmpf",
    ind="jmp ljmp",
    ind_call="call lcall",
    ret="ret retf retfq retq retl",
    syscall="syscall sysenter",
    sysret="sysret sysretq sysexit sysexitq",
    eret="iret iretd iretq",
    irq="int int1 int3 into",
)
_A64_CONDITIONS = "eq ne cs hs cc lo mi pl vs vc hi ls ge lt gt le al nv"
_A64_CONDITIONAL = " ".join(f"b.{c} bc.{c}" for c in _A64_CONDITIONS.split())
_A64_DIRECT = _table(cond=f"cbz cbnz tbz tbnz {_A64_CONDITIONAL}", uncond="b", call="bl")
_A64_OTHERS = _table(
    ind="br braa braaz brab brabz",
    ind_call="blr blraa blraaz blrab blrabz",
    ret="ret retaa retab",
    syscall="svc hvc smc",
    eret="eret eretaa eretab",
    irq="brk hlt",
)

_I386 = Architecture(("CS_ARCH_X86", "CS_MODE_32"), 1, 15, _X86_DIRECT, _X86_OTHERS, 0xFFFFFFFF)
ARCHITECTURES: dict[str, Architecture] = {
    "x86_64": Architecture(("CS_ARCH_X86", "CS_MODE_64"), 1, 15, _X86_DIRECT, _X86_OTHERS, _ADDRESSES),
    "i386": _I386,
    "i586": _I386,
    "i686": _I386,
    "aarch64": Architecture(("CS_ARCH_ARM64", "CS_MODE_ARM"), 4, 4, _A64_DIRECT, _A64_OTHERS, _ADDRESSES),
}
"""By the name that ``uname -m`` gives (`Machine.arch`)."""


# -- capstone


_Disassembled = Iterable[tuple[int, int, str, str]]
"""(address, length, mnemonic, operands) of instructions one after the other."""
_LIBRARY = {"win32": "capstone.dll", "darwin": "libcapstone.dylib"}.get(sys.platform, "libcapstone.so")
_VERSION = 5
"""The major version of capstone whose interface in C is declared here; others are used through `capstone.Cs`."""
_OPENED = {"CS_ARCH_X86": 3, "CS_ARCH_ARM64": 1, "CS_MODE_ARM": 0, "CS_MODE_32": 1 << 2, "CS_MODE_64": 1 << 3}
"""capstone.h: cs_arch and cs_mode."""
_INSN = Struct("=4x4xQH24x32s160s6xP".replace("P", f"{calcsize('P')}x"))
"""capstone.h: struct cs_insn. The id, and after padding address, size, bytes, mnemonic, op_str and a pointer."""


_CS_OPT_SYNTAX, _CS_OPT_SYNTAX_ATT = 1, 2
"""capstone.h: cs_opt_type, cs_opt_value."""


def _package(arch: Architecture, att: bool) -> Callable[[bytes, int, int], _Disassembled]:
    """`_Engine.disassemble` of the package `capstone`, whichever version it is. Raises `UnavailableError`.

    The package imports the tables of 17 architectures, which takes half as long as NumPy. So we call its library
    directly, if the package has a library of the known version.
    """
    try:
        import capstone  # type: ignore[import-untyped]
    except ImportError as error:
        raise UnavailableError(f"instructions cannot be decoded: {error}", hint="pip install capstone") from error
    engine = capstone.Cs(*(getattr(capstone, name) for name in arch.capstone))
    if att:
        engine.syntax = capstone.CS_OPT_SYNTAX_ATT
    lite: Callable[[bytes, int, int], _Disassembled] = engine.disasm_lite
    return lite


@cache
def _library() -> ctypes.CDLL | None:
    found = find_spec("capstone")
    for folder in (found and found.submodule_search_locations) or ():
        try:
            library = ctypes.CDLL(os.path.join(folder, "lib", _LIBRARY))
        except OSError:
            continue
        size, pointer, word = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
        library.cs_disasm.restype, library.cs_free.restype = size, None
        library.cs_disasm.argtypes = (size, ctypes.c_char_p, size, word, size, ctypes.POINTER(pointer))
        library.cs_free.argtypes = (pointer, size)
        library.cs_open.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(size))
        library.cs_errno.argtypes = (size,)
        library.cs_option.argtypes = (size, ctypes.c_int, size)
        major = ctypes.c_int()
        library.cs_version(ctypes.byref(major), ctypes.byref(ctypes.c_int()))
        return library if major.value == _VERSION else None
    return None


class _Engine:
    """A handle of capstone's library, open as long as the object is."""

    def __init__(self, library: ctypes.CDLL, arch: Architecture, att: bool) -> None:
        self._library, self._handle = library, ctypes.c_size_t()
        if failed := library.cs_open(*(_OPENED[name] for name in arch.capstone), ctypes.byref(self._handle)):
            raise UnavailableError(f"instructions cannot be decoded: capstone cannot be opened (error {failed})")
        weakref.finalize(self, library.cs_close, ctypes.byref(self._handle))
        if att:
            library.cs_option(self._handle, _CS_OPT_SYNTAX, _CS_OPT_SYNTAX_ATT)

    def iterate(self) -> tuple[int | None, int]:
        """The address of cs_disasm_iter, and the handle: what compiled code calls."""
        return ctypes.cast(self._library.cs_disasm_iter, ctypes.c_void_p).value, self._handle.value

    def check(self) -> None:
        """Raise `UnavailableError` where the last call has failed."""
        if failed := self._library.cs_errno(self._handle):
            raise UnavailableError(f"instructions cannot be decoded: capstone fails (error {failed})")

    def disassemble(self, code: bytes, address: int, count: int) -> _Disassembled:
        """The instructions of ``code``, ``count`` at most (0: all), up to the first that cannot be decoded."""
        array = ctypes.c_void_p()
        found = self._library.cs_disasm(self._handle, code, len(code), address, count, ctypes.byref(array))
        if not found:
            self.check()
            return
        records = ctypes.string_at(array, found * _INSN.size)
        self._library.cs_free(array, found)
        for at, length, mnemonic, operands in _INSN.iter_unpack(records):
            yield (
                at,
                length,
                mnemonic[: mnemonic.index(0)].decode("ascii"),
                operands[: operands.index(0)].decode("ascii"),
            )


# -- Decoding


_ROW = Struct("14sBB")
"""A mnemonic, its type as a direct branch, its type as any other (``native/decode.c``)."""
_WINDOW = 4096
"""Bytes handed to capstone at once: it decodes all of them before it gives the first, and a bad byte starts anew."""


class Instruction(NamedTuple):
    """One instruction, or bytes that are none (`kind` `UNDECODABLE`, text ``(bad)``)."""

    address: int
    length: int
    kind: int
    """perf's branch type, `NOT_A_BRANCH` or `UNDECODABLE`."""
    target: int
    """The target of a direct branch; 0 if the instruction has no target."""
    text: str


class Instructions(NamedTuple):
    """Instructions as columns of equal length, in the order that they were asked for."""

    address: NDArray[np.uint64]
    length: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    target: NDArray[np.uint64]


class Decoder:
    """Decodes for ``arch``, a key of `ARCHITECTURES`; keep a decoder for many calls, in one thread. Nothing is cached.

    With ``att`` the texts of x86 are in AT&T's syntax, and of branches only direct jumps have a kind and a target.

    Raises `UnavailableError` for another architecture, or where capstone cannot be loaded.
    """

    def __init__(self, arch: str = "x86_64", *, att: bool = False) -> None:
        if arch not in ARCHITECTURES:
            raise UnavailableError(
                f"no decoder for instructions of {arch or 'an unknown machine'}",
                hint=f"there are: {', '.join(sorted(ARCHITECTURES))}",
            )
        self.arch = ARCHITECTURES[arch]
        library = _library()
        self._engine = library and _Engine(library, self.arch, att)
        self._disassemble = self._engine.disassemble if self._engine else _package(self.arch, att)
        self._others = {**self.arch.others, _BAD: UNDECODABLE}
        self._plain: set[str] = set()  # mnemonics that are no branches
        names = self.arch.direct | self.arch.others
        self._table = b"".join(
            _ROW.pack(name.encode(), self.arch.direct.get(name, 0), self._others.get(name, 0)) for name in names
        )

    def one(self, code: bytes, address: int) -> Instruction:
        """The instruction at the start of ``code``, which lies at ``address``; `UNDECODABLE` also if it is cut off."""
        for decoded in self._disassemble(code[: self.arch.longest], address, 1):
            return self._instruction(*decoded)
        return self._instruction(address, min(self.arch.unit, len(code)), _BAD, "")

    def lines(self, code: bytes, address: int, few: int = 0) -> Iterator[Instruction]:
        """All instructions of ``code``, one after the other; ``address`` is that of its first byte. ``few``: decode so
        many at once, for a caller that wants no more; 0: as many as can be.

        A byte (x86) or word (AArch64) that cannot be decoded is an `UNDECODABLE` instruction.
        """
        for decoded in self.texts(code, address, few):
            yield self._instruction(*decoded)

    def texts(self, code: bytes, address: int, few: int = 0) -> Iterator[tuple[int, int, str, str]]:
        """(address, length, mnemonic with its prefixes, operands) of the instructions of `lines`."""
        return chain.from_iterable(self._windows(code, address, few))

    def classify(
        self, code: NDArray[np.uint8], offsets: NDArray[np.int64], address: NDArray[np.uint64], span: NDArray[np.int64]
    ) -> tuple[Instructions, NDArray[np.int64]]:
        """(the instructions of many pieces of ``code``, int64 number of those of each piece).

        Piece ``i`` is ``code[offsets[i]:offsets[i + 1]]``, whose first byte lies at ``address[i]``. Only instructions
        that begin in the first ``span[i]`` bytes count; they are the same as by `lines`.
        """
        import numpy as np  # not at the top: recordings start without it

        library = native.library()
        if library is None or self._engine is None:
            return self._classify_portably(code, offsets, address, span)
        size, count = np.diff(offsets), np.empty(len(span), np.int64)
        room = int(np.minimum(size, span).sum()) // self.arch.unit + len(size)
        columns: list[NDArray[Any]] = [np.empty(room, kind) for kind in ("u8", "u1", "u1", "u8")]
        given = [np.ascontiguousarray(column) for column in (code, offsets, size, span, address)]
        found = library.lb_decode(
            *self._engine.iterate(),
            self._table,
            len(self._table) // _ROW.size,
            self.arch.unit,
            self.arch.address_mask,
            *map(native.address, given),
            len(size),
            room,
            *map(native.address, (count, *columns)),
        )
        self._engine.check()
        return Instructions(*(column[:found] for column in columns)), count

    def _classify_portably(
        self, code: NDArray[np.uint8], offsets: NDArray[np.int64], address: NDArray[np.uint64], span: NDArray[np.int64]
    ) -> tuple[Instructions, NDArray[np.int64]]:
        """`classify` without the compiled library."""
        import numpy as np

        found, count = list[tuple[int, int, int, int]](), np.zeros(len(span), np.int64)
        for piece, (first, most) in enumerate(zip(address.tolist(), span.tolist(), strict=True)):
            before, done = len(found), 0
            for window in self._windows(code[offsets[piece] : offsets[piece + 1]].tobytes(), first):
                for at, length, *text in window:
                    if done < most:
                        found.append((at & _ADDRESSES, length, *self.kind_of(*text)))
                        done += length
            count[piece] = len(found) - before
        columns = zip(*found, strict=True) if found else ((),) * 4
        return Instructions(*(np.array(c, t) for c, t in zip(columns, ("u8", "u1", "u1", "u8"), strict=True))), count

    def _windows(self, code: bytes, address: int, few: int = 0) -> Iterator[list[tuple[int, int, str, str]]]:
        """(address, length, mnemonic, operands) of all instructions, a window or ``few`` at a time."""
        done = 0
        while done < len(code):
            window = code[done : done + _WINDOW]
            end = done + len(window)
            decoded = list(self._disassemble(window, address + done, few))
            if decoded:
                yield decoded
                done = (decoded[-1][0] + decoded[-1][1] - address) & _ADDRESSES  # after the last address comes 0
            if few and len(decoded) == few:
                continue
            if done < end and (end == len(code) or end - done >= self.arch.longest):  # else the next window decodes it
                length = min(self.arch.unit, len(code) - done)
                yield [(address + done, length, _BAD, "")]
                done += length

    def _instruction(self, address: int, length: int, mnemonic: str, operands: str) -> Instruction:
        text = f"{mnemonic} {operands}" if operands else mnemonic
        return Instruction(address, length, *self.kind_of(mnemonic, operands), text)

    def kind_of(self, mnemonic: str, operands: str) -> tuple[int, int]:
        """(`Instruction.kind`, target of a direct branch or 0) of an instruction by its text."""
        if mnemonic in self._plain:
            return NOT_A_BRANCH, 0
        direct, others = self.arch.direct, self._others
        name = mnemonic.rpartition(" ")[2]  # after prefixes: bnd, notrack, repz, lock
        last = operands.rpartition(", ")[2].removeprefix("#")
        if name in direct and last[:1].isdigit():
            return direct[name], int(last, 0) & self.arch.address_mask
        if name in direct or name in others:
            return others[name], 0
        self._plain.add(mnemonic)
        return NOT_A_BRANCH, 0
