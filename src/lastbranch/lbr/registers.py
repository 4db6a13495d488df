"""FROM, TO and INFO registers of every record format, to addresses and perf flag words.

Formats are numbered as IA32_PERF_CAPABILITIES[5:0] (LBR_FMT) does. Sources: Intel SDM 3B, LBR stack formats;
arch/x86/events/intel/lbr.c and amd/lbr.c of Linux. Words read of a 64-bit register, addresses as the program has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .filters import CALL_STACK
from .words import FLAG_FIELDS, KIND

__all__ = ["Decoded", "FORMATS", "PROCESSORS", "Processor", "RegisterFormat", "decode"]


Words = NDArray[np.uint64]
Bits = tuple[str, int, int]
"""Register (``from``, ``to``, ``info``), lowest bit, width."""

ABORT_TO = "the start of the HLE region, or the RTM abort handler"
"""What TO is in the record of a transaction abort; FROM is where the program was when it was aborted."""


@dataclass(frozen=True, slots=True)
class RegisterFormat:
    """The place of each field in the registers of a record. ``number`` is LBR_FMT, ``None`` where it has none."""

    name: str
    number: int | None
    source: Bits = ("from", 0, 64)
    """FROM's address; one of fewer than 64 bits is sign-extended from its highest."""
    target: Bits = ("to", 0, 64)
    fields: dict[str, Bits] = field(default_factory=dict)
    """Flag word field -> bits. ``predicted`` is set where the format has ``mispred`` and it is 0."""
    types: tuple[str, ...] = ()
    """Branch types by the value of the field ``type``."""
    cycles_valid: Bits | None = None
    counters: Bits | None = None


_INFO: dict[str, Bits] = {"mispred": ("info", 63, 1), "cycles": ("info", 0, 16)}
_INFO_TSX: dict[str, Bits] = {"in_tx": ("info", 62, 1), "abort": ("info", 61, 1)}
_ARCH_TYPES = ("cond", "ind", "uncond", "ind_call", "call", "ret") + ("unknown",) * 10

FORMATS: dict[str, RegisterFormat] = {
    f.name: f
    for f in (
        RegisterFormat("32", 0, ("from", 0, 32), ("from", 32, 32)),
        RegisterFormat("lip", 1),
        RegisterFormat("eip", 2),
        RegisterFormat("eip_flags", 3, ("from", 0, 63), fields={"mispred": ("from", 63, 1)}),
        RegisterFormat(
            "eip_flags2",
            4,
            ("from", 0, 61),
            fields={"mispred": ("from", 63, 1), "in_tx": ("from", 62, 1), "abort": ("from", 61, 1)},
        ),
        RegisterFormat("info", 5, fields=_INFO | _INFO_TSX),
        RegisterFormat(
            "time", 6, ("from", 0, 63), ("to", 0, 48), {"mispred": ("from", 63, 1), "cycles": ("to", 48, 16)}
        ),
        RegisterFormat("info2", 7, fields=_INFO),
        RegisterFormat(
            "arch",
            None,
            fields=_INFO | _INFO_TSX | {"type": ("info", 56, 4)},
            types=_ARCH_TYPES,
            cycles_valid=("info", 60, 1),
            counters=("info", 32, 8),
        ),
        RegisterFormat(
            "amd_v2", None, ("from", 0, 58), ("to", 0, 58), {"mispred": ("from", 63, 1), "spec": ("to", 62, 2)}
        ),
    )
}
"""The formats by name. AMD's valid and spec bits, read as one number, are perf's ``spec`` field."""

_AMD_ERRONEOUS: Bits = ("to", 61, 1)
"""AMD erratum 1452: a record with this reserved bit set is not to be used."""


class Decoded(NamedTuple):
    """Records as columns of equal length, in the order given.

    ``recorded`` is False for an empty slot and for a record that the processor marks as wrong. ``counters`` are four
    event counts of 2 bits, lowest first (architectural LBR; else 0).
    """

    source: Words
    target: Words
    flags: Words
    recorded: NDArray[np.bool_]
    counters: NDArray[np.uint8]


def decode(name: str, source: Words, target: Words, info: Words | None = None) -> Decoded:
    """Decode the registers of format ``name`` (of `FORMATS`), uint64 arrays of equal length.

    Format ``32`` has both addresses in ``source``; ``info`` is read by the formats that have the register, and 0
    where it is ``None``. In a record with the flag ``abort`` the target is not that of a branch: see `ABORT_TO`.
    """
    known = FORMATS[name]
    words = {"from": source, "to": target, "info": np.zeros_like(source) if info is None else info}
    flags = np.zeros(len(source), np.uint64)

    def take(bits: Bits) -> Words:
        register, shift, width = bits
        return (words[register] >> np.uint64(shift)) & np.uint64((1 << width) - 1)

    for flag_name, bits in known.fields.items():
        values = take(bits)
        if flag_name == "type":
            values = np.array([KIND[kind] for kind in known.types], np.uint64)[values.astype(np.intp)]
        if flag_name == "cycles" and known.cycles_valid:
            values = values * take(known.cycles_valid)
        flags |= values << np.uint64(FLAG_FIELDS[flag_name][0])
    recorded = (source != 0) | (target != 0)
    if name == "amd_v2":
        recorded = (take(known.fields["spec"]) != 0) & (take(_AMD_ERRONEOUS) == 0)
    if "mispred" in known.fields:
        flags |= (take(known.fields["mispred"]) ^ np.uint64(1)) << np.uint64(FLAG_FIELDS["predicted"][0])
    counters = take(known.counters) if known.counters else np.zeros_like(source)
    return Decoded(
        _address(take(known.source), known.source, name),
        _address(take(known.target), known.target, name),
        flags,
        recorded,
        counters.astype(np.uint8),
    )


def _address(values: Words, bits: Bits, name: str) -> Words:
    """Sign-extended from the highest bit; the addresses of the 32-bit format are whole as they are."""
    if name == "32":
        return values
    shift = np.int64(64 - bits[2])
    extended: Words = (((values << shift.astype(np.uint64)).view(np.int64)) >> shift).view(np.uint64)
    return extended


# -- Processors: depth, record format and MSR numbers of each microarchitecture
#
# Sources: Intel SDM 3B (17: the sections of each microarchitecture) and 4, arch/x86/events/intel/lbr.c and core.c,
# asm/msr-index.h of Linux.


@dataclass(frozen=True, slots=True)
class Processor:
    """MSR numbers are those of record 0; record i is at ``+ i * stride``. ``None``: there is no such register."""

    name: str
    depth: int
    """Records at most. The architectural LBR lets software choose fewer; AMD's LbrExtV2 reports its number in CPUID."""
    source: int
    target: int
    info: int | None = None
    select: int | None = 0x1C8
    tos: int | None = 0x1C9
    """Index of the newest record; without it record 0 is the newest (BRS fills up from record 0 and stops)."""
    call_stack: bool = False
    stride: int = 1
    format: str | None = None
    """Key of `FORMATS`; ``None`` where models differ, and the processor says it (IA32_PERF_CAPABILITIES[5:0])."""

    def has(self, field: str) -> bool | None:
        """Whether a record has a field: ``mispred``, ``in_tx``, ``abort``, ``cycles``, ``type``...; ``None`` where that
        depends on the model. A processor whose TSX is off has the bits, and they are 0."""
        return None if self.format is None else field in FORMATS[self.format].fields

    def refuses(self, select: int) -> str | None:
        """Why it cannot record a selection (a valid MSR_LBR_SELECT); ``None`` where it can."""
        if self.select is None and select:
            return f"{self.name} cannot filter branches"
        if select & CALL_STACK and not self.call_stack:
            return f"{self.name} has no call-stack mode"
        return None


def _row(names: str, depth: int, source: int, target: int, **rest: int | bool | str | None) -> list[Processor]:
    return [Processor(name.strip(), depth, source, target, **rest) for name in names.split(",")]  # type: ignore[arg-type]


PROCESSORS: dict[str, Processor] = {
    p.name: p
    for p in (
        *_row("Core 2", 4, 0x40, 0x60, select=None),
        *_row("Bonnell, Saltwell", 8, 0x40, 0x60, select=None),
        *_row("Silvermont, Airmont", 8, 0x40, 0x60),
        *_row("Knights Landing, Knights Mill", 8, 0x680, 0x6C0),
        *_row("Nehalem, Westmere, Sandy Bridge, Ivy Bridge", 16, 0x680, 0x6C0, format="eip_flags"),
        *_row("Haswell, Broadwell", 16, 0x680, 0x6C0, call_stack=True, format="eip_flags2"),
        *_row("Goldmont, Goldmont Plus, Tremont", 32, 0x680, 0x6C0, info=0xDC0, call_stack=True),
        *_row("Skylake, Ice Lake", 32, 0x680, 0x6C0, info=0xDC0, call_stack=True, format="info"),
        *_row("Tiger Lake, Rocket Lake", 32, 0x680, 0x6C0, info=0xDC0, call_stack=True),
        *_row(
            "Architectural LBR",
            32,
            0x1500,
            0x1600,
            info=0x1200,
            select=0x14CE,
            tos=None,
            call_stack=True,
            format="arch",
        ),
        *_row("Zen 3 (BRS)", 16, 0xC0010300, 0xC0010301, select=None, tos=None, stride=2),
        *_row("Zen 4 (LbrExtV2)", 16, 0xC0010300, 0xC0010301, select=0xC000010E, tos=None, stride=2, format="amd_v2"),
    )
}
"""By name. ``Architectural LBR``: Alder Lake, Sapphire Rapids and later, wherever CPUID leaf 1CH has a depth."""
