"""Selections of branches in four notations, against the vendors' rules written down once more."""

from __future__ import annotations

from itertools import combinations

import pytest

from lastbranch.errors import SelectionError
from lastbranch.lbr import (
    NOTATIONS,
    PERF_SELECT,
    bit_names,
    convert,
    no_call_stacks_because,
    recorded_classes,
    validate,
)

# perf flag -> (MSR_LBR_SELECT bits that must be clear, IA32_LBR_CTL bits that must be set)
PERF = {
    "USER": ({1}, {2}), "KERNEL": ({0}, {1}), "ANY": ({2, 3, 4, 5, 6, 7, 8}, {16, 17, 18, 19, 20, 21, 22}),
    "ANY_CALL": ({3, 4, 8}, {19, 20, 22}), "ANY_RETURN": ({5, 8}, {21, 22}), "IND_CALL": ({4}, {20}),
    "COND": ({2}, {16}), "CALL_STACK": ({3, 4, 5}, {19, 20, 21, 3}), "IND_JUMP": ({6}, {18}), "CALL": ({3}, {19}),
}  # fmt: skip
BRANCH_FLAGS = [name for name in PERF if name not in ("USER", "KERNEL", "CALL_STACK")]
ARCH_BIT = {0: 1, 1: 2, 2: 16, 3: 19, 4: 20, 5: 21, 6: 18, 7: 17, 8: 22}
"""MSR_LBR_SELECT bit -> IA32_LBR_CTL bit of the same meaning."""


def bits(value: int) -> set[int]:
    return {i for i in range(64) if value >> i & 1}


def valid_msr(value: int) -> bool:
    """Intel: bit 9 wants 2, 6, 7, 8 set, 3, 4, 5 clear and at most one of 0 and 1; from bit 10 on all is 0."""
    on = bits(value)
    if max(on, default=0) > 9:
        return False
    return 9 not in on or ({2, 6, 7, 8} <= on and not on & {3, 4, 5} and len(on & {0, 1}) < 2)


def accepted(value: int, notation: str) -> bool:
    try:
        validate(value, notation)
    except SelectionError:
        return False
    return True


ALL_VALID = [value for value in range(1 << 10) if valid_msr(value)]


def test_a_call_filter_of_perf_in_etw() -> None:
    select = PERF_SELECT["ANY_CALL"] | PERF_SELECT["USER"]
    assert convert(select, "perf", "etw") == (0xE5, ())
    assert convert(PERF_SELECT["CALL_STACK"] | PERF_SELECT["USER"], "perf", "etw").value == 0x3C5
    assert convert(PERF_SELECT["ANY"] | PERF_SELECT["USER"] | PERF_SELECT["KERNEL"], "perf", "msr").value == 0


@pytest.mark.parametrize("flag", PERF)
def test_each_perf_flag_is_the_bits_that_linux_programs(flag: str) -> None:
    # A level and a class are always needed: the other one is in both words and cancels out.
    alone = flag not in ("USER", "KERNEL")
    other = "USER" if alone else "COND"
    select = PERF_SELECT[flag] | PERF_SELECT[other]
    msr, arch = convert(select, "perf", "msr"), convert(select, "perf", "arch")
    clear, on = PERF[flag][0] | PERF[other][0], PERF[flag][1] | PERF[other][1]
    assert bits(msr.value) == set(range(9)) - clear | ({9} if flag == "CALL_STACK" else set())
    assert bits(arch.value) == on | {0}
    assert msr.notes == arch.notes == ()


@pytest.mark.parametrize("notation", ["msr", "etw"])
def test_every_value_is_valid_or_not_as_intel_says(notation: str) -> None:
    for value in range(1 << 12):
        known = value & ~0x400 if notation == "etw" else value
        assert accepted(value, notation) == valid_msr(known), hex(value)


def test_the_architectural_register_has_the_same_rules() -> None:
    for value in range(1 << 10):
        arch = sum(1 << bit for mine, bit in ARCH_BIT.items() if not value >> mine & 1) | (value >> 9 & 1) << 3
        assert accepted(arch, "arch") == valid_msr(value), hex(value)
    for bit in set(range(64)) - set(ARCH_BIT.values()) - {0, 3}:
        assert not accepted(1 << bit, "arch")


@pytest.mark.parametrize(
    ("value", "notation", "words"),
    [
        (0x200, "msr", "JCC, NEAR_IND_JMP, NEAR_REL_JMP, FAR_BRANCH set"),
        (0x3CC, "msr", "NEAR_REL_CALL clear"),
        (0x3C7, "msr", "at most one of CPL_EQ_0 and CPL_NEQ_0 set"),
        (0x3C7, "etw", "at most one of KERNEL and USER set"),
        (0x5400, "msr", "bit 10, bit 12, bit 14"),
        (1 << 63, "msr", "bit 63"),
        (0x38000D | 1 << 16, "arch", "JCC clear"),
        (0x280009 | 2, "arch", "NEAR_IND_CALL set"),
        (0x380009, "arch", "at least one of OS and USR set"),
        (PERF_SELECT["CALL_STACK"] | PERF_SELECT["COND"] | PERF_SELECT["IN_TX"], "perf", "clear COND, IN_TX"),
        (PERF_SELECT["USER"], "perf", "no branch class"),
        (1 << 20 | 8, "perf", "bit 20"),
        (-1, "msr", "64 bits"),
        (1 << 64, "etw", "64 bits"),
    ],
)
def test_an_invalid_selection_names_its_bits(value: int, notation: str, words: str) -> None:
    with pytest.raises(SelectionError) as refused:
        validate(value, notation)
    assert words in str(refused.value)
    assert NOTATIONS[notation].title in str(refused.value)
    with pytest.raises(SelectionError):
        convert(value, notation, "msr")


def test_registers_and_etw_say_the_same_things() -> None:
    for value in ALL_VALID:
        etw, arch = convert(value, "msr", "etw"), convert(value, "msr", "arch")
        assert etw == (value, ())
        assert not arch.notes
        assert convert(arch.value, "arch", "msr") == (value, ())
        assert {bit for mine, bit in ARCH_BIT.items() if not value >> mine & 1} == bits(arch.value) - {0, 3}


def test_perf_records_the_least_that_has_everything() -> None:
    covers = [set(c) for n in range(1, 8) for c in combinations(BRANCH_FLAGS, n)]
    for value in ALL_VALID:
        wanted = set(range(9)) - bits(value)
        select, notes = convert(value, "msr", "perf")
        if not wanted & {0, 1} or not wanted - {0, 1}:
            assert select == 0
            assert "nothing is recorded" in notes[0]
            continue
        back = convert(select, "perf", "msr").value
        got = set(range(9)) - bits(back)
        assert got >= wanted
        assert (back ^ value) >> 9 == 0
        if not value >> 9:
            unions = [set.union(*(PERF[n][0] for n in cover)) for cover in covers]
            assert len(got - {0, 1}) == min(len(u) for u in unions if u >= wanted - {0, 1})
        assert bool(notes) == (got != wanted)
        assert all(
            name in notes[0] for name in set(recorded_classes(back, "msr")) - set(recorded_classes(value, "msr"))
        )


def test_what_cannot_be_expressed_is_said() -> None:
    def notes(value: int, source: str, target: str) -> str:
        return " ".join(convert(value, source, target).notes)

    for flag in ("HV", "ABORT_TX", "IN_TX", "NO_TX", "NO_FLAGS", "NO_CYCLES", "TYPE_SAVE", "HW_INDEX", "COUNTERS"):
        assert notes(PERF_SELECT[flag] | 9, "perf", "etw").startswith(f"{flag}: ")
    assert "levels of the event" in notes(PERF_SELECT["ANY"], "perf", "msr")
    assert "SAMPLED" in notes(0x400, "etw", "msr")
    assert "LBREn" in notes(0x7F0006, "arch", "msr")
    assert notes(0x7F0007, "arch", "msr") == ""
    assert "FAR_BRANCH" in notes(0x1DD, "msr", "perf")
    assert convert(0x1234 | 8, "perf", "perf") == (0x123C, ())


def test_bits_have_the_names_of_their_notation() -> None:
    assert bit_names(0x3C5, "msr") == [
        "CPL_EQ_0",
        "JCC",
        "NEAR_IND_JMP",
        "NEAR_REL_JMP",
        "FAR_BRANCH",
        "EN_CALLSTACK",
    ]
    assert bit_names(0x603, "etw") == ["KERNEL", "USER", "CALLSTACK_ENABLE", "SAMPLED"]
    assert bit_names(0x400009, "arch") == ["LBREn", "CALL_STACK", "OTHER_BRANCH"]
    assert bit_names(1 << 40, "perf") == ["bit 40"]
    assert recorded_classes(0xE5, "etw") == ["USER", "NEAR_REL_CALL", "NEAR_IND_CALL", "FAR_BRANCH"]


def test_call_stacks_need_calls_and_returns() -> None:
    assert no_call_stacks_because(0, "msr") is None
    assert no_call_stacks_because(9, "perf") is None
    assert "call-stack mode" in str(no_call_stacks_because(0x3C4, "etw"))
    assert "NEAR_RET" in str(no_call_stacks_because(0x20, "etw"))
    assert "NEAR_REL_CALL, NEAR_IND_CALL" in str(no_call_stacks_because(PERF_SELECT["ANY_RETURN"] | 1, "perf"))
