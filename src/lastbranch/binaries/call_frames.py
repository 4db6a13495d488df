"""Call frame information of ELF files: for each instruction, where its caller's registers are.

``.eh_frame`` with or without ``.eh_frame_hdr`` (LSB 5.0, chapter 10.6), ``.debug_frame`` of versions 1, 3 and 4 (DWARF
5, 6.4 and 7.24). Nothing is parsed before it is asked for: the caller may have stopped a program meanwhile.

A FDE (frame description entry) covers a range of code; what entries have in common is in a CIE (common information
entry). The byte code of both makes the rows of a table: from an address on, how the CFA (canonical frame address: the
caller's stack pointer) is computed, and a rule for each register of the caller. Rules may be expressions, which
`evaluate` computes from registers and memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from operator import add, and_, eq, ge, gt, inv, le, lt, mod, mul, ne, neg, or_, sub, xor
from struct import Struct
from typing import NamedTuple

from ..errors import FormatError
from ..model import Source, read_at
from . import read_image
from .dwarf import DW_CFA, DW_EH_PE, DW_OP, sleb, uleb
from .image import Image, Section

__all__ = [
    "CallFrames",
    "Cie",
    "Fde",
    "FrameSection",
    "FrameRow",
    "Rule",
    "RuleKind",
    "evaluate",
    "frame_sections",
    "landing_pads",
]


class RuleKind(IntEnum):
    """How a register of the caller is found (DWARF 5, 6.4.1)."""

    UNDEFINED = 0
    """It is lost; of the return address: there is no caller."""
    SAME = 1
    AT_OFFSET = 2
    """In memory at CFA + value."""
    IS_OFFSET = 3
    """It is CFA + value."""
    REGISTER = 4
    """In the register with the number value."""
    AT_EXPRESSION = 5
    """In memory at what the DWARF expression gives."""
    IS_EXPRESSION = 6
    """It is what the DWARF expression gives."""


class Rule(NamedTuple):
    """The rule of one register; ``value`` an offset or a register number, ``expression`` DWARF byte code."""

    kind: RuleKind
    value: int = 0
    expression: bytes = b""


class FrameRow(NamedTuple):
    """From link address ``address`` on: the CFA is register ``cfa`` plus ``offset``, or what ``expression`` gives where
    that is not empty. ``rules`` has the registers that have one, by their DWARF numbers."""

    address: int
    cfa: int
    offset: int
    expression: bytes
    rules: dict[int, Rule]


class Cie(NamedTuple):
    """The common part of FDEs. ``encoding`` (DW_EH_PE_*) is the encoding of their addresses, ``lsda`` the encoding of
    the pointer to their language-specific data, ``program`` where in the section the byte code begins and ends."""

    offset: int
    version: int
    augmentation: str
    code_align: int
    data_align: int
    return_register: int
    encoding: int
    lsda: int
    address_size: int
    program: tuple[int, int]

    @property
    def is_signal_frame(self) -> bool:
        """Whether the caller was interrupted, rather than waiting for a call to return."""
        return "S" in self.augmentation


class Fde(NamedTuple):
    """The entry at ``offset`` of its section, for the code from link address ``begin`` to ``end``; ``lsda`` is the
    address of its language-specific data, 0 if it has none."""

    offset: int
    cie: Cie
    begin: int
    end: int
    program: tuple[int, int]
    lsda: int = 0


PROGRAM_LIMIT = 1 << 16
"""Most bytes of one entry. Generated code of 64 KiB has some thousands."""
ROWS_LIMIT = 1 << 14
"""Most rows of one FDE, and most states that its byte code remembers."""
_ADDRESSES = (1 << 64) - 1
_WORDS = {
    order: {width: Struct(order + code) for width, code in {2: "H", -2: "h", 4: "I", -4: "i", 8: "Q", -8: "q"}.items()}
    for order in "<>"
}
"""By byte order and width in bytes, negative for signed numbers."""

_FORM, _APPLICATION = 0x0F, 0x70
"""The bits of a `DW_EH_PE` that say how a number is written, and what it counts from."""
_WIDTHS = {
    DW_EH_PE.udata2: 2,
    DW_EH_PE.udata4: 4,
    DW_EH_PE.udata8: 8,
    DW_EH_PE.sdata2: -2,
    DW_EH_PE.sdata4: -4,
    DW_EH_PE.sdata8: -8,
}
"""The widths of forms of fixed width, negative for signed numbers."""


class Bytes:
    """A part of a section that is read from its begin to its end. Every read is checked."""

    def __init__(self, section: FrameSection, at: int, end: int) -> None:
        self.section, self.at, self.end = section, at, min(end, len(section.data))
        self.begin = at

    def need(self, count: int, field: str) -> int:
        """The place of the next ``count`` bytes, which are passed."""
        at = self.at
        if count < 0 or count > self.end - at:
            raise self.section.bad(f"{max(self.end - at, 0)} bytes are left", at, field, count)
        self.at = at + count
        return at

    def word(self, width: int, field: str) -> int:
        """A number of ``width`` bytes, negative for a signed one."""
        at = self.need(abs(width), field)
        value: int = self.section.words[width].unpack_from(self.section.data, at)[0]
        return value

    def byte(self, field: str) -> int:
        return self.section.data[self.need(1, field)]

    def uleb(self, field: str) -> int:
        """An unsigned LEB128 number of 64 bits."""
        return self._leb(uleb, 0, field)

    def sleb(self, field: str) -> int:
        """A signed LEB128 number of 64 bits."""
        return self._leb(sleb, -1 << 63, field)

    def _leb(self, read: Callable[[bytes, int, int], tuple[int, int]], least: int, field: str) -> int:
        begin = self.at
        value, self.at = read(self.section.data, begin, self.end)
        if self.at > self.end:
            self.at = max(begin, self.end)
            self.need(1, field)
        if not least <= value <= _ADDRESSES:
            raise self.section.bad("a number of more than 64 bits", begin, field, hex(value))
        return value

    def block(self, field: str) -> bytes:
        """Bytes with their number as LEB128 before them."""
        count = self.uleb(field)
        at = self.need(count, field)
        return self.section.data[at : at + count]

    def text(self, field: str) -> str:
        at = self.at
        end = self.section.data.find(b"\0", at, self.end)
        if end < 0:
            raise self.section.bad("a string does not end", at, field, self.section.data[at : at + 16].hex())
        self.at = end + 1
        return self.section.data[at:end].decode("latin-1")

    def read_encoded(self, encoding: int, address_size: int, field: str, *, relative: bool = True) -> int:
        """An address in a DW_EH_PE_* encoding; ``relative`` False: a length, to which no base is added."""
        section, at = self.section, self.at
        form = encoding & _FORM
        if form == DW_EH_PE.uleb128:
            value = self.uleb(field)
        elif form == DW_EH_PE.sleb128:
            value = self.sleb(field)
        elif form in (DW_EH_PE.absptr, DW_EH_PE.signed):
            value = self.word(address_size if form == DW_EH_PE.absptr else -address_size, field)
        elif form in _WIDTHS:
            value = self.word(_WIDTHS[form], field)
        else:
            raise section.bad("an unknown form of an address", at, field, hex(encoding))
        if not relative:
            return value & _ADDRESSES
        base = encoding & _APPLICATION
        if base == DW_EH_PE.pcrel:
            value += section.address + at
        elif base == DW_EH_PE.datarel:
            value += section.data_base
        elif base or encoding & DW_EH_PE.indirect:
            raise section.bad("an address that depends on what is loaded", at, field, hex(encoding))
        return value & ((1 << 8 * address_size) - 1)


class FrameSection:
    """One section of call frame information: ``data``, at link ``address``, ``offset`` bytes into ``file``."""

    def __init__(
        self,
        name: str,
        data: bytes,
        *,
        address: int = 0,
        offset: int = 0,
        file: str = "",
        order: str = "<",
        address_size: int = 8,
        data_base: int = 0,
    ) -> None:
        """``data_base``: what DW_EH_PE_datarel counts from, the address of ``.eh_frame_hdr`` in its own table."""
        self.name, self.data, self.address, self.offset, self.file = name, data, address, offset, file
        self.is_eh = name == ".eh_frame"
        self.words, self.address_size, self.data_base = _WORDS[order], address_size, data_base
        self._cies: dict[int, Cie] = {}

    def bad(self, reason: str, at: int, field: str, value: object) -> FormatError:
        """The error about ``field`` at byte ``at`` of the section."""
        return FormatError(f"{self.name}: {reason}", file=self.file, offset=self.offset + at, field=field, value=value)

    # -- entries

    def entries(self) -> Iterator[Cie | Fde]:
        """All entries in their order. Raises `FormatError` at the first damaged one."""
        at = 0
        while at + 4 <= len(self.data):
            body, is_cie, _, following = self._head(at)
            if body is None:  # a length of 0 ends .eh_frame, and fills up .debug_frame
                at = following
                continue
            yield self._cie(at) if is_cie else self.fde(at)
            at = following

    def extents(self) -> Iterator[tuple[int, int, int]]:
        """(begin, end, offset) of every sound FDE with code: nothing else is read. Damaged ones are left out."""
        at = 0
        while at + 4 <= len(self.data):
            try:
                body, is_cie, cie_at, following = self._head(at)
            except FormatError:
                return
            if body is not None and not is_cie:
                try:
                    begin, end = self._range(body, self._cie(cie_at))
                except FormatError:
                    begin = end = 0
                if end > begin:
                    yield begin, end, at
            at = following

    def fde(self, at: int) -> Fde:
        """The FDE at byte ``at``. Raises `FormatError` where there is none, or a damaged one."""
        body, is_cie, cie_at, _ = self._head(at)
        if body is None or is_cie:
            raise self.bad("not a frame description entry", at, "CIE pointer", 0)
        if body.end - body.at > PROGRAM_LIMIT:
            raise self.bad(f"an entry has at most {PROGRAM_LIMIT} bytes", at, "length", body.end - body.at)
        cie = self._cie(cie_at)
        begin, end = self._range(body, cie)
        lsda = 0
        if cie.augmentation.startswith("z"):
            size = body.uleb("augmentation length")
            data = Bytes(self, start := body.need(size, "augmentation length"), start + size)
            if cie.lsda != DW_EH_PE.omit and any(self.data[start : start + size]):
                with suppress(FormatError):  # an entry is good without it
                    lsda = data.read_encoded(cie.lsda, cie.address_size, "LSDA pointer")
        return Fde(at, cie, begin, end, (body.at, body.end), lsda)

    def _range(self, body: Bytes, cie: Cie) -> tuple[int, int]:
        begin = body.read_encoded(cie.encoding, cie.address_size, "initial_location")
        size = body.read_encoded(cie.encoding, cie.address_size, "address_range", relative=False)
        if size > 1 << 8 * cie.address_size or begin + size > 1 << 8 * cie.address_size:
            raise self.bad("code past the last address", body.begin, "address_range", hex(size))
        return begin, begin + size

    def _head(self, at: int) -> tuple[Bytes | None, bool, int, int]:
        """(the entry after its CIE pointer, whether it is a CIE, the offset of its CIE, that of the next entry)."""
        head = Bytes(self, at, len(self.data))
        length, wide = head.word(4, "length"), False
        if length == 0xFFFFFFFF:
            length, wide = head.word(8, "length"), True
        end = head.at + length
        if length == 0:
            return None, False, 0, len(self.data) if self.is_eh else end
        if end > len(self.data):
            raise self.bad("an entry ends past its section", at, "length", length)
        body = Bytes(self, head.at, end)
        place = body.at
        width = 8 if wide and not self.is_eh else 4
        pointer = body.word(width, "CIE pointer")
        if self.is_eh:  # counts back from where it stands
            return body, pointer == 0, place - pointer, end
        return body, pointer == (1 << 8 * width) - 1, pointer, end

    def _cie(self, at: int) -> Cie:
        found = self._cies.get(at)
        if found is None:
            found = self._cies[at] = self._read_cie(at)
        return found

    def _read_cie(self, at: int) -> Cie:
        if not 0 <= at < len(self.data):
            raise self.bad("a common information entry outside the section", max(at, 0), "CIE pointer", at)
        body, is_cie, _, _ = self._head(at)
        if body is None or not is_cie:
            raise self.bad("not a common information entry", at, "CIE_id", 0)
        if body.end - body.at > PROGRAM_LIMIT:
            raise self.bad(f"an entry has at most {PROGRAM_LIMIT} bytes", at, "length", body.end - body.at)
        version = body.byte("version")
        if version not in (1, 3, 4):
            raise self.bad("an unknown version", body.at - 1, "version", version)
        augmentation, address_size = body.text("augmentation"), self.address_size
        if augmentation == "eh":  # of GCC 2
            body.word(address_size, "EH data")
        if version == 4:
            address_size = body.byte("address_size")
            if address_size not in (4, 8):
                raise self.bad("addresses have 4 or 8 bytes", body.at - 1, "address_size", address_size)
            if segment := body.byte("segment_selector_size"):
                raise self.bad("segments are not supported", body.at - 1, "segment_selector_size", segment)
        code_align = body.uleb("code_alignment_factor")
        data_align = body.sleb("data_alignment_factor")
        returns = body.byte("return_address_register") if version == 1 else body.uleb("return_address_register")
        encoding, lsda = 0, DW_EH_PE.omit
        if augmentation.startswith("z"):
            count = body.uleb("augmentation length")
            begin = body.need(count, "augmentation length")
            encoding, lsda = self._augmentation(Bytes(self, begin, begin + count), augmentation, address_size)
        elif augmentation not in ("", "eh"):
            raise self.bad("an unknown augmentation", at, "augmentation", augmentation)
        return Cie(
            at,
            version,
            augmentation,
            code_align,
            data_align,
            returns,
            encoding,
            lsda,
            address_size,
            (body.at, body.end),
        )

    def _augmentation(self, data: Bytes, letters: str, address_size: int) -> tuple[int, int]:
        """The encodings of addresses and of pointers to language-specific data."""
        encoding, lsda = 0, DW_EH_PE.omit
        for letter in letters[1:]:
            match letter:
                case "R":
                    encoding = data.byte("FDE encoding")
                case "L":
                    lsda = data.byte("LSDA encoding")
                case "P":
                    how = data.byte("personality encoding")
                    if how != DW_EH_PE.omit:
                        data.read_encoded(how & _FORM, address_size, "personality", relative=False)
                case "S" | "B" | "G":
                    pass
                case _:  # the rest is of no use without knowing this one, and its length is known
                    break
        return encoding, lsda

    # -- the table of an entry

    def rows(self, fde: Fde) -> list[FrameRow]:
        """The rows of ``fde``, in ascending order of addresses. Raises `FormatError` for byte code that is damaged."""
        start = _Machine(fde.cie, fde.begin)
        start.run(Bytes(self, *fde.cie.program))
        machine = _Machine(fde.cie, fde.begin, start)
        machine.run(Bytes(self, *fde.program))
        return machine.rows()


_ADVANCE, _OFFSET, _RESTORE = DW_CFA.advance_loc >> 6, DW_CFA.offset >> 6, DW_CFA.restore >> 6
"""The high two bits of instructions that have an operand in the low six."""


class _Machine:
    """Runs the byte code of a CIE or FDE (DWARF 5, 6.4.2)."""

    def __init__(self, cie: Cie, address: int, start: _Machine | None = None) -> None:
        """``start``: the machine that ran the CIE."""
        self.cie, self._address = cie, address
        self.cfa: tuple[int, int, bytes] = start.cfa if start else (0, 0, b"")
        self._initial: dict[int, Rule] = start.rules if start else {}
        self.rules: dict[int, Rule] = dict(self._initial)
        self._kept: list[tuple[tuple[int, int, bytes], dict[int, Rule]]] = []
        self._rows: list[FrameRow] = []

    def rows(self) -> list[FrameRow]:
        return [*self._rows, FrameRow(self._address, *self.cfa, self.rules)]

    def run(self, code: Bytes) -> None:
        while code.at < code.end:
            self._step(code)

    def _step(self, code: Bytes) -> None:
        opcode = code.byte("instruction")
        high, low = opcode >> 6, opcode & 0x3F
        if high == _ADVANCE:
            self.advance(code, low)
        elif high == _OFFSET:
            self.rules[low] = Rule(RuleKind.AT_OFFSET, code.uleb("offset") * self.cie.data_align)
        elif high == _RESTORE:
            self.restore(low)
        elif (instruction := _INSTRUCTIONS.get(opcode)) is not None:
            instruction(self, code)
        else:
            raise code.section.bad("an unknown instruction", code.at - 1, "instruction", hex(opcode))

    def restore(self, register: int) -> None:
        if register in self._initial:
            self.rules[register] = self._initial[register]
        else:
            self.rules.pop(register, None)

    def advance(self, code: Bytes, delta: int) -> None:
        self.move(code, self._address + delta * self.cie.code_align)

    def move(self, code: Bytes, address: int) -> None:
        """Begin a new row, unless it would cover nothing."""
        if address < self._address or address > _ADDRESSES:
            raise code.section.bad("rows that do not ascend", code.at, "location", hex(address))
        if address == self._address:
            return
        if len(self._rows) >= ROWS_LIMIT:
            raise code.section.bad(f"an entry has at most {ROWS_LIMIT} rows", code.at, "location", hex(address))
        self._rows.append(FrameRow(self._address, *self.cfa, dict(self.rules)))
        self._address = address

    def remember(self, code: Bytes) -> None:
        if len(self._kept) >= ROWS_LIMIT:
            raise code.section.bad("too many remembered states", code.at - 1, "remember_state", len(self._kept))
        self._kept.append((self.cfa, dict(self.rules)))

    def recall(self, code: Bytes) -> None:
        if not self._kept:
            raise code.section.bad("no state was remembered", code.at - 1, "restore_state", DW_CFA.restore_state)
        self.cfa, self.rules = self._kept.pop()


# -- The instructions (DWARF 5, 7.24), but for those with an operand in their low bits


_Instruction = Callable[[_Machine, Bytes], None]
_Number = Callable[[Bytes, str], int]


def _advance(width: int) -> _Instruction:
    return lambda machine, code: machine.advance(code, code.byte("delta") if width == 1 else code.word(width, "delta"))


def _offset(kind: RuleKind, number: _Number, sign: int = 1) -> _Instruction:
    """A rule whose value is a factored offset."""

    def set_rule(machine: _Machine, code: Bytes) -> None:
        register = code.uleb("register")
        machine.rules[register] = Rule(kind, sign * number(code, "offset") * machine.cie.data_align)

    return set_rule


def _expression(kind: RuleKind) -> _Instruction:
    def set_rule(machine: _Machine, code: Bytes) -> None:
        register = code.uleb("register")
        machine.rules[register] = Rule(kind, 0, code.block("expression"))

    return set_rule


def _set_rule(kind: RuleKind) -> _Instruction:
    """A rule without a value."""

    def set_rule(machine: _Machine, code: Bytes) -> None:
        machine.rules[code.uleb("register")] = Rule(kind)

    return set_rule


def _in_register(machine: _Machine, code: Bytes) -> None:
    register = code.uleb("register")
    machine.rules[register] = Rule(RuleKind.REGISTER, code.uleb("register"))


def _cfa(machine: _Machine, code: Bytes) -> None:
    register = code.uleb("register")
    machine.cfa = register, code.uleb("offset"), b""


def _cfa_sf(machine: _Machine, code: Bytes) -> None:
    register = code.uleb("register")
    machine.cfa = register, code.sleb("offset") * machine.cie.data_align, b""


def _cfa_register(machine: _Machine, code: Bytes) -> None:
    machine.cfa = code.uleb("register"), machine.cfa[1], b""


def _cfa_offset(machine: _Machine, code: Bytes) -> None:
    machine.cfa = machine.cfa[0], code.uleb("offset"), b""


def _cfa_offset_sf(machine: _Machine, code: Bytes) -> None:
    machine.cfa = machine.cfa[0], code.sleb("offset") * machine.cie.data_align, b""


def _cfa_expression(machine: _Machine, code: Bytes) -> None:
    machine.cfa = 0, 0, code.block("expression")


def _set_location(machine: _Machine, code: Bytes) -> None:
    machine.move(code, code.read_encoded(machine.cie.encoding, machine.cie.address_size, "set_loc"))


def _restore(machine: _Machine, code: Bytes) -> None:
    machine.restore(code.uleb("register"))


def _skip_size(machine: _Machine, code: Bytes) -> None:
    code.uleb("size")


def _nothing(machine: _Machine, code: Bytes) -> None:
    pass


_INSTRUCTIONS: dict[int, _Instruction] = {
    DW_CFA.nop: _nothing,
    DW_CFA.set_loc: _set_location,
    DW_CFA.advance_loc1: _advance(1),
    DW_CFA.advance_loc2: _advance(2),
    DW_CFA.advance_loc4: _advance(4),
    DW_CFA.MIPS_advance_loc8: _advance(8),
    DW_CFA.offset_extended: _offset(RuleKind.AT_OFFSET, Bytes.uleb),
    DW_CFA.offset_extended_sf: _offset(RuleKind.AT_OFFSET, Bytes.sleb),
    DW_CFA.GNU_negative_offset_extended: _offset(RuleKind.AT_OFFSET, Bytes.uleb, -1),
    DW_CFA.val_offset: _offset(RuleKind.IS_OFFSET, Bytes.uleb),
    DW_CFA.val_offset_sf: _offset(RuleKind.IS_OFFSET, Bytes.sleb),
    DW_CFA.restore_extended: _restore,
    DW_CFA.undefined: _set_rule(RuleKind.UNDEFINED),
    DW_CFA.same_value: _set_rule(RuleKind.SAME),
    DW_CFA.register: _in_register,
    DW_CFA.remember_state: _Machine.remember,
    DW_CFA.restore_state: _Machine.recall,
    DW_CFA.def_cfa: _cfa,
    DW_CFA.def_cfa_sf: _cfa_sf,
    DW_CFA.def_cfa_register: _cfa_register,
    DW_CFA.def_cfa_offset: _cfa_offset,
    DW_CFA.def_cfa_offset_sf: _cfa_offset_sf,
    DW_CFA.def_cfa_expression: _cfa_expression,
    DW_CFA.expression: _expression(RuleKind.AT_EXPRESSION),
    DW_CFA.val_expression: _expression(RuleKind.IS_EXPRESSION),
    DW_CFA.GNU_args_size: _skip_size,
    DW_CFA.GNU_window_save: _nothing,
}


# -- the sections of a file, and looking an address up


class CallFrames:
    """The call frame information of one ELF file, by link address. Damaged entries cover no code."""

    def __init__(self, source: Source) -> None:
        """Reads headers only. Raises `FormatError` where ``source`` is no sound ELF file."""
        self.image = read_image(source)
        self._source = source
        self._sections: list[FrameSection] | None = None
        self._table: tuple[FrameSection, int, int] | None = None
        """``.eh_frame_hdr``, the place of its first row, and how many it has."""
        self._extents: list[list[tuple[int, int, int]]] = []
        self._found: dict[int, tuple[FrameSection, Fde, list[FrameRow]] | None] = {}
        """By offset and section, what was parsed."""

    def find(self, address: int) -> tuple[Fde, FrameRow] | None:
        """The entry and the row for the instruction at link ``address``; ``None`` where no sound entry covers it."""
        for number, section in enumerate(self.load()):
            at = self._place(number, section, address)
            if at is None:
                continue
            key = at << 1 | number
            if key not in self._found:
                try:
                    fde = section.fde(at)
                    self._found[key] = section, fde, section.rows(fde)
                except FormatError:
                    self._found[key] = None
            known = self._found[key]
            if known is not None and known[1].begin <= address < known[1].end:
                rows = known[2]
                return known[1], rows[bisect_right(rows, address, key=lambda row: row.address) - 1]
        return None

    def load(self) -> Sequence[FrameSection]:
        """Read the sections, unless that was done. Raises `FormatError` where they are past the end of the file, or
        damaged in their compression."""
        if self._sections is not None:
            return self._sections
        self._sections = []  # if reading the sections raises, reading is not tried again
        self._sections = frame_sections(self._source, self.image)
        header = next((s for s in self.image.sections if s.name == ".eh_frame_hdr" and s.file_size), None)
        if header is not None and self._sections and self._sections[0].is_eh:
            self._table = _search_table(self._source, self.image, header)
        self._extents = [[] for _ in self._sections]
        return self._sections

    def _place(self, number: int, section: FrameSection, address: int) -> int | None:
        """The offset of the FDE that may cover ``address``."""
        if section.is_eh and self._table is not None:
            table, first, count = self._table
            low, high, pair = 0, count, _PAIR[table.words is _WORDS["<"]]
            while low < high:
                middle = (low + high) // 2
                if pair.unpack_from(table.data, first + 8 * middle)[0] + table.address <= address:
                    low = middle + 1
                else:
                    high = middle
            if not low:
                return None
            at: int = pair.unpack_from(table.data, first + 8 * low - 8)[1] + table.address - section.address
            return at if 0 <= at < len(section.data) else None
        extents = self._extents[number]
        if not extents:
            extents[:] = sorted(section.extents()) or [(0, 0, 0)]
        row = bisect_right(extents, (address, _ADDRESSES + 1, 0)) - 1
        return extents[row][2] if row >= 0 and extents[row][0] <= address < extents[row][1] else None


_PAIR = {True: Struct("<ii"), False: Struct(">ii")}
_SEARCHED = DW_EH_PE.datarel | DW_EH_PE.sdata4
"""The only encoding that readers search."""


def _search_table(source: Source, image: Image, header: Section) -> tuple[FrameSection, int, int] | None:
    """``.eh_frame_hdr``: where its sorted rows begin, and how many there are; ``None`` where it cannot be searched."""
    section = _read(source, image, header)
    data = Bytes(section, 0, len(section.data))
    try:
        version, pointer, count_encoding, table = (
            data.byte(f) for f in ("version", "eh_frame_ptr_enc", "fde_count_enc", "table_enc")
        )
        if version != 1 or table != _SEARCHED or count_encoding == DW_EH_PE.omit:
            return None
        data.read_encoded(pointer, section.address_size, "eh_frame_ptr")
        count = data.read_encoded(count_encoding, section.address_size, "fde_count")
    except FormatError:
        return None
    return (section, data.at, count) if count <= (data.end - data.at) // 8 else None


def frame_sections(source: Source, image: Image) -> list[FrameSection]:
    """The sections with call frame information of the file ``source``, whose headers are ``image``, ``.eh_frame``
    first. Raises `FormatError` where one is past the end of the file, or its compression is damaged."""
    found = []
    for name in (".eh_frame", ".debug_frame"):
        section = next((s for s in image.sections if s.name == name and s.file_size), None)
        if section is not None and not section.compressed:
            found.append(_read(source, image, section))
        elif section is not None or (name == ".debug_frame" and any(s.name == ".zdebug_frame" for s in image.sections)):
            from .sections import Binary  # loads NumPy, which recordings start without

            space = Binary(source).section(name)
            found.append(_section(image, name, bytes(space.raw[: space.size]), 0, 0, source.name))
    return found


def landing_pads(source: Source, image: Image) -> list[int]:
    """Link addresses where exceptions continue, of all functions: from ``.gcc_except_table``, where ``.eh_frame``
    points (Itanium C++ ABI, "Exception Handling Tables"). Damaged entries are skipped."""
    table = next((s for s in image.sections if s.name == ".gcc_except_table" and s.file_size), None)
    frames = [s for s in frame_sections(source, image) if s.is_eh]
    if table is None or not frames:
        return []
    section, found = _read(source, image, table), set[int]()
    for _, _, at in frames[0].extents():
        try:
            fde = frames[0].fde(at)
            if section.address <= fde.lsda < section.address + len(section.data):
                found.update(_pads_of(section, fde))
        except FormatError:
            continue
    return sorted(found)


def _pads_of(section: FrameSection, fde: Fde) -> Iterator[int]:
    data = Bytes(section, fde.lsda - section.address, len(section.data))
    base_encoding, base = data.byte("LPStart encoding"), fde.begin
    if base_encoding != DW_EH_PE.omit:
        base = data.read_encoded(base_encoding, section.address_size, "LPStart")
    if data.byte("TType encoding") != DW_EH_PE.omit:
        data.uleb("TType base")
    encoding = data.byte("call site encoding")
    size = data.uleb("call site table length")
    sites = Bytes(section, start := data.need(size, "call site table length"), start + size)
    while sites.at < sites.end:
        for field in ("start", "length"):
            sites.read_encoded(encoding, section.address_size, field, relative=False)
        pad = sites.read_encoded(encoding, section.address_size, "landing pad", relative=False)
        sites.uleb("action")
        if pad:
            yield (base + pad) & _ADDRESSES


def _read(source: Source, image: Image, section: Section) -> FrameSection:
    data = read_at(source, section.offset, section.file_size)
    if len(data) != section.file_size:
        reason = f"{section.name}: {section.file_size} bytes are past the end of the file"
        raise FormatError(reason, file=source.name, offset=section.offset, field="sh_size", value=section.file_size)
    return _section(image, section.name, data, section.vaddr, section.offset, source.name)


def _section(image: Image, name: str, data: bytes, address: int, offset: int, file: str) -> FrameSection:
    return FrameSection(
        name,
        data,
        address=address,
        offset=offset,
        file=file,
        order="<" if image.byte_order == "little" else ">",
        address_size=image.bits // 8,
        data_base=address,
    )


# -- Expressions (DWARF 5, 2.5 and 6.4.2)


_STEPS, _DEPTH = 1000, 64
"""Most operations of one expression, and most values on its stack. Compilers use a dozen and four."""
_WORD = (1 << 64) - 1


def evaluate(
    expression: bytes, registers: Sequence[int], read: Callable[[int, int], bytes], first: Sequence[int] = ()
) -> int:
    """The value of ``expression``, 64 bits. ``registers`` are by their DWARF numbers, ``read(address, size)`` gives
    little-endian memory, ``first`` is on the stack before.

    Raises `FormatError` for what is damaged, unknown or cannot be read.
    """
    run = _Evaluation(expression, registers, read, first)
    for _ in range(_STEPS):
        if run.code.at >= run.code.end:
            return run.pop()
        run.step()
    raise run.bad(f"more than {_STEPS} operations", run.code.at, expression.hex()[:64])


class _Evaluation:
    """The evaluation of one expression: its position in the ``code``, and the values on its ``stack``."""

    def __init__(
        self, expression: bytes, registers: Sequence[int], read: Callable[[int, int], bytes], first: Sequence[int]
    ) -> None:
        self._section = FrameSection("expression", expression)
        self.code, self.stack = Bytes(self._section, 0, len(expression)), list(first)
        self._registers, self._read = registers, read

    def bad(self, reason: str, at: int, value: object, field: str = "operation") -> FormatError:
        return self._section.bad(reason, at, field, value)

    def step(self) -> None:
        """Do the next operation."""
        opcode = self.code.byte("operation")
        operation = _OPERATIONS.get(opcode)
        if operation is None:
            raise self.bad("an unknown operation", self.code.at - 1, hex(opcode))
        try:
            value = operation(self)
        except ZeroDivisionError:
            raise self.bad("a division by zero", self.code.at - 1, hex(opcode)) from None
        if value is None:
            return
        if len(self.stack) >= _DEPTH:
            raise self.bad(f"more than {_DEPTH} values", self.code.at - 1, hex(opcode))
        self.stack.append(value & _WORD)

    def pop(self) -> int:
        if not self.stack:
            raise self.bad("an operation without its operand", self.code.at - 1, self._section.data.hex())
        return self.stack.pop()

    def constant(self, width: int) -> int:
        """The operand of ``width`` bytes, negative for a signed number."""
        if abs(width) > 1:
            return self.code.word(width, "constant")
        value = self.code.byte("constant")
        return value - 256 if width < 0 and value > 127 else value

    def register(self, number: int) -> int:
        """The value of a register plus the operand."""
        if not 0 <= number < len(self._registers):
            raise self.bad("an unknown register", self.code.at, number, "register")
        return self._registers[number] + self.code.sleb("offset")

    def memory(self, size: int) -> int:
        address = self.pop()
        word = self._read(address, size) if 0 < size <= 8 else b""
        if len(word) != size or not size:
            raise self.bad("memory that cannot be read", self.code.at - 1, hex(address), "address")
        return int.from_bytes(word, "little")

    def pick(self, index: int) -> int:
        if index >= len(self.stack):
            raise self.bad("an operation without its operand", self.code.at - 1, index, "index")
        return self.stack[-1 - index]

    def duplicate(self) -> int:
        value = self.pop()
        self.stack.append(value)
        return value

    def swap(self) -> int:
        one, other = self.pop(), self.pop()
        self.stack.append(one)
        return other

    def rotate(self) -> int:
        one, two, three = self.pop(), self.pop(), self.pop()
        self.stack += [one, three]
        return two

    def drop(self) -> None:
        self.pop()

    def branch(self, *, always: bool) -> None:
        delta = self.code.word(-2, "delta")
        if always or self.pop():
            self.code.at += delta
            if not 0 <= self.code.at <= self.code.end:
                raise self.bad("a branch out of the expression", self.code.begin, delta, "delta")


# -- The operations (DWARF 5, 7.7.1): each gives the value to push, or None


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted_arithmetically(value: int, count: int) -> int:
    return _to_signed(value) >> min(count, 63)


def _quotient(one: int, other: int) -> int:
    """Rounded towards zero, as in C."""
    a, b = _to_signed(one), _to_signed(other)
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_Operation = Callable[[_Evaluation], int | None]


def _of_one(function: Callable[[int], int]) -> _Operation:
    return lambda run: function(run.pop())


def _of_two(function: Callable[[int, int], int]) -> _Operation:
    def operation(run: _Evaluation) -> int:
        other, one = run.pop(), run.pop()
        return function(one, other)

    return operation


def _comparison(relation: Callable[[int, int], bool]) -> _Operation:
    return _of_two(lambda one, other: relation(_to_signed(one), _to_signed(other)))


def _constant(width: int) -> _Operation:
    return lambda run: run.constant(width)


def _literal(number: int) -> _Operation:
    return lambda run: number


def _register(number: int) -> _Operation:
    return lambda run: run.register(number)


_OPERATIONS: dict[int, _Operation] = {
    DW_OP.addr: lambda run: run.code.word(8, "address"),
    DW_OP.deref: lambda run: run.memory(8),
    DW_OP.const1u: _constant(1),
    DW_OP.const1s: _constant(-1),
    DW_OP.const2u: _constant(2),
    DW_OP.const2s: _constant(-2),
    DW_OP.const4u: _constant(4),
    DW_OP.const4s: _constant(-4),
    DW_OP.const8u: _constant(8),
    DW_OP.const8s: _constant(-8),
    DW_OP.constu: lambda run: run.code.uleb("constant"),
    DW_OP.consts: lambda run: run.code.sleb("constant"),
    DW_OP.dup: _Evaluation.duplicate,
    DW_OP.drop: _Evaluation.drop,
    DW_OP.over: lambda run: run.pick(1),
    DW_OP.pick: lambda run: run.pick(run.code.byte("index")),
    DW_OP.swap: _Evaluation.swap,
    DW_OP.rot: _Evaluation.rotate,
    DW_OP.abs: _of_one(lambda value: abs(_to_signed(value))),
    DW_OP.and_: _of_two(and_),
    DW_OP.div: _of_two(_quotient),
    DW_OP.minus: _of_two(sub),
    DW_OP.mod: _of_two(mod),
    DW_OP.mul: _of_two(mul),
    DW_OP.neg: _of_one(neg),
    DW_OP.not_: _of_one(inv),
    DW_OP.or_: _of_two(or_),
    DW_OP.plus: _of_two(add),
    DW_OP.plus_uconst: lambda run: run.pop() + run.code.uleb("constant"),
    DW_OP.shl: _of_two(lambda value, count: value << min(count, 64)),
    DW_OP.shr: _of_two(lambda value, count: value >> min(count, 64)),
    DW_OP.shra: _of_two(_shifted_arithmetically),
    DW_OP.xor: _of_two(xor),
    DW_OP.bra: lambda run: run.branch(always=False),
    DW_OP.eq: _comparison(eq),
    DW_OP.ge: _comparison(ge),
    DW_OP.gt: _comparison(gt),
    DW_OP.le: _comparison(le),
    DW_OP.lt: _comparison(lt),
    DW_OP.ne: _comparison(ne),
    DW_OP.skip: lambda run: run.branch(always=True),
    **{DW_OP.lit0 + number: _literal(number) for number in range(32)},
    **{DW_OP.breg0 + number: _register(number) for number in range(32)},
    DW_OP.bregx: lambda run: run.register(run.code.uleb("register")),
    DW_OP.deref_size: lambda run: run.memory(run.code.byte("size")),
    DW_OP.nop: lambda run: None,
}
