"""Where the records of a processor are: depth and MSR numbers for each microarchitecture.

Sources: Intel SDM 3B and 4, arch/x86/events/intel/lbr.c and core.c, asm/msr-index.h of Linux. Which record format a
processor uses it says itself (IA32_PERF_CAPABILITIES[5:0]).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROCESSORS", "Processor"]


@dataclass(frozen=True, slots=True)
class Processor:
    """MSR numbers are those of record 0; record i is at ``+ i * stride``. ``None``: there is no such register."""

    name: str
    depth: int
    """Records at most. The architectural LBR lets software choose fewer; AMD's LbrExtV2 tells its number in CPUID."""
    source: int
    target: int
    info: int | None = None
    select: int | None = 0x1C8
    tos: int | None = 0x1C9
    """Index of the newest record; without it record 0 is the newest (BRS fills up from record 0 and stops)."""
    call_stack: bool = False
    stride: int = 1


def _row(names: str, depth: int, source: int, target: int, **rest: int | bool | None) -> list[Processor]:
    return [Processor(name.strip(), depth, source, target, **rest) for name in names.split(",")]  # type: ignore[arg-type]


PROCESSORS: dict[str, Processor] = {
    p.name: p
    for p in (
        *_row("Core 2", 4, 0x40, 0x60, select=None),
        *_row("Bonnell, Saltwell", 8, 0x40, 0x60, select=None),
        *_row("Silvermont, Airmont", 8, 0x40, 0x60),
        *_row("Knights Landing, Knights Mill", 8, 0x680, 0x6C0),
        *_row("Nehalem, Westmere, Sandy Bridge, Ivy Bridge", 16, 0x680, 0x6C0),
        *_row("Haswell, Broadwell", 16, 0x680, 0x6C0, call_stack=True),
        *_row("Goldmont, Goldmont Plus, Tremont", 32, 0x680, 0x6C0, info=0xDC0, call_stack=True),
        *_row("Skylake, Ice Lake, Tiger Lake, Rocket Lake", 32, 0x680, 0x6C0, info=0xDC0, call_stack=True),
        *_row("Architectural LBR", 32, 0x1500, 0x1600, info=0x1200, select=0x14CE, tos=None, call_stack=True),
        *_row("Zen 3 (BRS)", 16, 0xC0010300, 0xC0010301, select=None, tos=None, stride=2),
        *_row("Zen 4 (LbrExtV2)", 16, 0xC0010300, 0xC0010301, select=0xC000010E, tos=None, stride=2),
    )
}
"""By name. ``Architectural LBR``: Alder Lake, Sapphire Rapids and later, wherever CPUID leaf 1CH has a depth."""
