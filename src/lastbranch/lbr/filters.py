"""Branch filters in their four notations: the meaning of each bit, valid values, and equivalents.

MSR_LBR_SELECT and ETW's TRACE_LBR_CONFIGURATION *suppress* what a set bit names, architectural LBR's IA32_LBR_CTL and
perf's branch_sample_type *capture* it. All go through one form here: a word that captures, with the bit positions of
MSR_LBR_SELECT. Sources: Intel SDM 3B (MSR_LBR_SELECT, IA32_LBR_CTL), Microsoft's TraceConfigureLastBranchRecord
page, include/uapi/linux/perf_event.h and arch/x86/events/intel/lbr.c of Linux.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import combinations
from operator import or_
from typing import NamedTuple

from ..errors import SelectionError

__all__ = [
    "Conversion",
    "ETW_NEAR_BRANCHES",
    "NOTATIONS",
    "PERF_SELECT",
    "bit_names",
    "call_stack_mode",
    "capture_mask",
    "convert",
    "describe_perf",
    "no_ranges_because",
    "perf_select",
    "recorded_classes",
    "validate",
]


# -- Which branches were asked for, and whether fall-through ranges exist between those that were recorded
#
# A range ``[to of the older entry, from of the newer]`` is straight-line code only if no taken branch between them went
# unrecorded: every near branch class must have been on, and call-stack mode off (it deletes entries on return).


PERF_SELECT: dict[str, int] = {
    name: 1 << bit
    for bit, name in enumerate(
        (
            "USER",
            "KERNEL",
            "HV",
            "ANY",
            "ANY_CALL",
            "ANY_RETURN",
            "IND_CALL",
            "ABORT_TX",
            "IN_TX",
            "NO_TX",
            "COND",
            "CALL_STACK",
            "IND_JUMP",
            "CALL",
            "NO_FLAGS",
            "NO_CYCLES",
            "TYPE_SAVE",
            "HW_INDEX",
            "PRIV_SAVE",
            "COUNTERS",
        )
    )
}
"""PERF_SAMPLE_BRANCH_* of include/uapi/linux/perf_event.h, in bit order."""

PERF_WORDS = {name.lower(): bit for name, bit in PERF_SELECT.items()} | {
    other: PERF_SELECT[name]
    for other, name in {
        "u": "USER",
        "k": "KERNEL",
        "any_ret": "ANY_RETURN",
        "return": "ANY_RETURN",
        "ind_jmp": "IND_JUMP",
        "stack": "CALL_STACK",
        "save_type": "TYPE_SAVE",
        "priv": "PRIV_SAVE",
        "counter": "COUNTERS",
    }.items()
}
"""The words of ``perf record -j``."""

_PERF_TX = ("ABORT_TX", "IN_TX", "NO_TX")

ETW_NEAR_BRANCHES = 0x2FC
"""Bits of ETW's LBR options that suppress a near branch class (2-7) or turn call-stack mode on (9)."""
_ETW_CALL_STACK = 0x200


def perf_select(words: str, allowed: int = -1) -> int:
    """PERF_SAMPLE_BRANCH_* bits for ``words`` of ``perf record -j``, separated by commas. Without a branch class they
    mean ANY, as with perf. Raises `SelectionError` for an unknown word, and for one whose bit is not ``allowed``."""
    known = {word: bit for word, bit in PERF_WORDS.items() if bit & allowed}
    select = 0
    for word in words.lower().split(","):
        if word.strip() not in known:
            raise SelectionError(f"no branch filter {word!r}; there are: {', '.join(known)}")
        select |= known[word.strip()]
    return select | PERF_SELECT["ANY"] if set(recorded_classes(select, _PERF)) <= {"USER", "KERNEL"} else select


def describe_perf(select: int) -> str:
    """``any,user`` for PERF_SAMPLE_BRANCH_* bits, as ``perf record -j`` takes them; unknown bits in hex."""
    names = [name.lower() for name, bit in PERF_SELECT.items() if select & bit]
    rest = select & ~((1 << len(PERF_SELECT)) - 1)
    return ",".join(names + ([f"{rest:#x}"] if rest else [])) or "none"


def call_stack_mode(kind: str, select: int) -> bool:
    """Whether the entries are the call frames of LBR call-stack mode instead of the newest branches."""
    return bool(select & (_ETW_CALL_STACK if kind == "etw" else PERF_SELECT["CALL_STACK"]))


def no_ranges_because(kind: str, select: int) -> str | None:
    """Why a selection of ``kind`` ``perf`` or ``etw`` gives no fall-through ranges; ``None`` where it does."""
    if call_stack_mode(kind, select):
        return "the branch records were collected in call-stack mode, which deletes calls when they return"
    if kind == "etw":
        bits = select & ETW_NEAR_BRANCHES
        return f"near branch classes were filtered out (ETW LBR options {bits:#x})" if bits else None
    classes, tx = ([n.lower() for n in names if select & PERF_SELECT[n]] for names in (_PERF_CLASSES, _PERF_TX))
    if classes and "any" not in classes:
        return f"only some branch classes were recorded ({','.join(classes)})"
    return f"branches were filtered by transaction state ({','.join(tx)})" if tx else None


CAPTURES = (
    "KERNEL", "USER", "JCC", "NEAR_REL_CALL", "NEAR_IND_CALL", "NEAR_RET", "NEAR_IND_JMP", "NEAR_REL_JMP",
    "FAR_BRANCH", "CALL_STACK",
)  # fmt: skip
"""What the bits of a capturing word mean, from bit 0: two privilege levels, seven branch classes, the mode."""

_BIT = {name: 1 << i for i, name in enumerate(CAPTURES)}
LEVELS = _BIT["KERNEL"] | _BIT["USER"]
CLASSES = 0x1FC
CALL_STACK = _BIT["CALL_STACK"]
"""The mode, with the same meaning in MSR_LBR_SELECT: EN_CALLSTACK suppresses nothing."""
_STACK_CLASSES = _BIT["NEAR_REL_CALL"] | _BIT["NEAR_IND_CALL"] | _BIT["NEAR_RET"]


class Notation(NamedTuple):
    """A register or flag word. ``bits`` and ``names`` are in the order of `CAPTURES`; ``other`` has no equivalent."""

    title: str
    suppresses: bool
    bits: tuple[int, ...]
    names: tuple[str, ...]
    other: dict[str, int]

    def named(self) -> dict[str, int]:
        """Every defined bit: name -> mask, from bit 0 up."""
        both = dict(zip(self.names, (1 << b for b in self.bits), strict=True)) | self.other
        return dict(sorted(both.items(), key=lambda item: item[1]))


_CLASS_NAMES = CAPTURES[2:9]
_PERF = "perf"
NOTATIONS: dict[str, Notation] = {
    "msr": Notation(
        "MSR_LBR_SELECT", True, tuple(range(10)), ("CPL_EQ_0", "CPL_NEQ_0", *_CLASS_NAMES, "EN_CALLSTACK"), {}
    ),
    "arch": Notation(
        "IA32_LBR_CTL", False, (1, 2, 16, 19, 20, 21, 18, 17, 22, 3),
        ("OS", "USR", *_CLASS_NAMES[:-1], "OTHER_BRANCH", "CALL_STACK"), {"LBREn": 1},
    ),
    "etw": Notation(
        "TRACE_LBR_CONFIGURATION", True, tuple(range(10)), ("KERNEL", "USER", *_CLASS_NAMES, "CALLSTACK_ENABLE"),
        {"SAMPLED": 0x400},
    ),
    _PERF: Notation("branch_sample_type", False, (), (), PERF_SELECT),
}  # fmt: skip
"""The notations by short name. perf's flags are sets of classes: `PERF_CAPTURES`."""

PERF_CAPTURES: dict[str, int] = {
    "USER": _BIT["USER"],
    "KERNEL": _BIT["KERNEL"],
    "ANY": CLASSES,
    "ANY_CALL": _BIT["NEAR_REL_CALL"] | _BIT["NEAR_IND_CALL"] | _BIT["FAR_BRANCH"],
    "ANY_RETURN": _BIT["NEAR_RET"] | _BIT["FAR_BRANCH"],
    "IND_CALL": _BIT["NEAR_IND_CALL"],
    "COND": _BIT["JCC"],
    "IND_JUMP": _BIT["NEAR_IND_JMP"],
    "CALL": _BIT["NEAR_REL_CALL"],
    "CALL_STACK": CALL_STACK | _STACK_CLASSES,
}
"""perf flag -> what it makes an Intel processor capture (Sandy Bridge and later)."""

_PERF_CLASSES = [name for name, mask in PERF_CAPTURES.items() if mask & CLASSES and name != "CALL_STACK"]
_PERF_CONTENTS = ("NO_FLAGS", "NO_CYCLES", "TYPE_SAVE", "HW_INDEX", "PRIV_SAVE", "COUNTERS")
_PERF_NOTES = {
    "HV": "{}: x86 has no such level; the flag is ignored",
    **dict.fromkeys(_PERF_TX, "{}: perf filters by transaction state in software; no bit does"),
    **dict.fromkeys(_PERF_CONTENTS, "{}: selects what an entry holds, not which branches are recorded"),
}


class Conversion(NamedTuple):
    """A selection in another notation. ``notes``: what could not be expressed, and what was assumed instead."""

    value: int
    notes: tuple[str, ...]


def bit_names(value: int, notation: str) -> list[str]:
    """The names of the set bits from bit 0 up, as `notation` calls them; an undefined bit is called ``bit 11``."""
    named = {mask: name for name, mask in NOTATIONS[notation].named().items()}
    return [named.get(1 << i, f"bit {i}") for i in range(value.bit_length()) if value >> i & 1]


def validate(value: int, notation: str) -> None:
    """Raise `SelectionError` naming the bits if ``value`` is not a valid selection in ``notation`` (of `NOTATIONS`).

    Reserved bits must be 0. Call-stack mode needs calls and returns captured and every other class not, and at least
    one privilege level captured (Intel: else the contents of the records are undefined). perf wants a branch class,
    and in call-stack mode no other.
    """
    if problems := list(_problems(value, notation)):
        raise SelectionError(f"{NOTATIONS[notation].title} {value:#x} is not valid: {'; '.join(problems)}")


def _problems(value: int, notation: str) -> Iterator[str]:
    known = NOTATIONS[notation]
    if not 0 <= value < 1 << 64:
        yield "it does not fit in 64 bits"
        return
    if reserved := [name for name in bit_names(value, notation) if name not in known.named()]:
        yield f"reserved bits are set ({', '.join(reserved)})"
    if notation == _PERF:
        yield from _perf_problems(value)
        return
    wanted = capture_mask(value, notation)
    if not wanted & CALL_STACK:
        return
    for mask, must_capture in ((CLASSES & ~_STACK_CLASSES, False), (_STACK_CLASSES, True)):
        wrong = mask & ~wanted if must_capture else mask & wanted
        if wrong:
            state = "set" if must_capture != known.suppresses else "clear"
            yield f"call-stack mode needs {', '.join(_spell(wrong, known))} {state}"
    if not wanted & LEVELS:
        rule = "at most one of {} set" if known.suppresses else "at least one of {} set"
        yield f"call-stack mode needs {rule.format(' and '.join(_spell(LEVELS, known)))}"


def _perf_problems(value: int) -> Iterator[str]:
    classes = [name for name in _PERF_CLASSES if value & PERF_SELECT[name]]
    if value & PERF_SELECT["CALL_STACK"]:
        clash = classes + [name for name in _PERF_TX if value & PERF_SELECT[name]]
        if clash:
            yield f"CALL_STACK goes with USER and KERNEL only, clear {', '.join(clash)}"
    elif not classes:
        yield f"no branch class is selected (set one of {', '.join(_PERF_CLASSES)} or CALL_STACK)"


def capture_mask(value: int, notation: str) -> int:
    """``value`` as a capturing word in the order of `CAPTURES`; it is not validated."""
    known = NOTATIONS[notation]
    if notation == _PERF:
        word = _union(name for name in PERF_CAPTURES if value & PERF_SELECT[name])
        return word if word & LEVELS else word | LEVELS
    word = sum(1 << i for i, bit in enumerate(known.bits) if value >> bit & 1)
    return word ^ (LEVELS | CLASSES) if known.suppresses else word


def recorded_classes(value: int, notation: str) -> list[str]:
    """The branches that a selection records, as names of `CAPTURES`."""
    return _names(capture_mask(value, notation))


def convert(value: int, source: str, target: str) -> Conversion:
    """The selection ``value`` of notation ``source`` in notation ``target`` (short names of `NOTATIONS`).

    If the target cannot express the selection exactly, its value records *more*, never less, and the notes name the
    excess. An architectural LBR value has its enable bit set. Raises `SelectionError` if ``value`` is not valid.
    """
    validate(value, source)
    if source == target:
        return Conversion(value, ())
    wanted, notes = capture_mask(value, source), _inexpressible(value, source)
    if target == _PERF:
        result, more = _to_perf(wanted)
        return Conversion(result, (*notes, *more))
    known = NOTATIONS[target]
    word = wanted ^ (LEVELS | CLASSES) if known.suppresses else wanted
    result = sum(1 << bit for i, bit in enumerate(known.bits) if word >> i & 1)
    return Conversion(result | known.other.get("LBREn", 0), tuple(notes))


def _inexpressible(value: int, source: str) -> list[str]:
    """The parts of a selection that only its own notation can express."""
    if source == _PERF:
        notes = [note.format(name) for name, note in _PERF_NOTES.items() if value & PERF_SELECT[name]]
        if not value & (PERF_SELECT["USER"] | PERF_SELECT["KERNEL"]):
            notes.append("neither USER nor KERNEL: perf uses the levels of the event; both are assumed")
        return notes
    if source == "arch" and not value & 1:
        return ["LBREn is clear, so nothing is recorded; the other notations enable recording by other means"]
    if source == "etw" and value & 0x400:
        return ["SAMPLED: records of Arm SPE, which no other notation has"]
    return []


def _to_perf(wanted: int) -> tuple[int, list[str]]:
    """The perf flags of the smallest capture that contains all of ``wanted``."""
    classes, levels = wanted & CLASSES, wanted & LEVELS
    if not classes or not levels:
        return 0, [
            "nothing is recorded: perf cannot express this; it refuses a request without a branch class or level"
        ]
    if wanted & CALL_STACK:
        names: tuple[str, ...] = ("CALL_STACK",)
    else:
        names = min(_PERF_COVERS, key=lambda c: _excess(c, classes))
    more = _union(names) & CLASSES & ~classes
    names += tuple(name for name in ("USER", "KERNEL") if levels & PERF_CAPTURES[name])
    lacking = f"{', '.join(_names(more))}: recorded as well; perf has no flags that exclude only these"
    return sum(PERF_SELECT[name] for name in names), [lacking] if more else []


def _excess(names: tuple[str, ...], classes: int) -> tuple[bool, int, int]:
    union = _union(names)
    return bool(classes & ~union), (union & ~classes).bit_count(), len(names)


def _union(names: Iterable[str]) -> int:
    """The branches that these perf flags capture."""
    return reduce(or_, (PERF_CAPTURES[name] for name in names), 0)


_PERF_COVERS = [c for n in range(1, len(_PERF_CLASSES) + 1) for c in combinations(_PERF_CLASSES, n)]


def _names(word: int) -> list[str]:
    return [name for name, mask in _BIT.items() if word & mask]


def _spell(word: int, notation: Notation) -> list[str]:
    return [name for i, name in enumerate(notation.names) if word >> i & 1]
