"""Names and function tables: what rows mean, and that bytes of them that are not sound are refused."""

from __future__ import annotations

import itertools
import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch.symbols import Frame, Function, FunctionTable, Names, plain
from lastbranch.symbols.model import NamesBuilder
from lastbranch.symbols.table_bytes import (
    pack,
    pack_functions,
    pack_names,
    unpack,
    unpack_functions,
    unpack_names,
)

F, G, H = Function("_Z1fv", "f()", 0x10, 16, "f.c", 3), Function("g", "g", 0x20, 8), Function("h", "h")

texts = st.text(st.characters(blacklist_characters="\0"), max_size=8)
functions = st.builds(
    Function,
    texts,
    texts.filter(bool),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    texts,
    st.integers(0, 2**32 - 1),
    st.booleans(),
    texts,
)
chains = st.lists(st.lists(st.tuples(functions, texts, st.integers(0, 2**32 - 1)), max_size=3), max_size=6)


def names_of(chains: list[list[tuple[Function, str, int]]]) -> Names:
    made = NamesBuilder()
    for chain in chains:
        made.add([Frame(*frame) for frame in chain])
    return made.names()


def seen(names: Names) -> list[list[tuple[Function, str, int]]]:
    return [[(f.function, f.file, f.line) for f in names.frames(i)] for i in range(len(names))]


def test_a_chain_is_innermost_first_and_ends_with_the_function() -> None:
    names = names_of([[(H, "h.c", 5), (F, "f.c", 7)], [], [(G, "", 0)]])
    assert names.frames(0) == [Frame(H, "h.c", 5, 0, 0), Frame(F, "f.c", 7, 0, 0)]
    assert names.functions[names.function[0]] == F
    assert names.function[1] == -1
    assert names.frames(1) == []
    assert names.frames(2) == [Frame(G, "", 0, 0, 0)]


@settings(max_examples=60, deadline=None)
@given(chains, st.data())
def test_take_is_indexing(chains: list[list[tuple[Function, str, int]]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(-1, len(chains) - 1), max_size=10))
    taken = names_of(chains).take(np.array(rows, np.int64)).check(len(rows))
    assert seen(taken) == [chains[r] if r >= 0 else [] for r in rows]


@settings(max_examples=60, deadline=None)
@given(st.lists(chains, max_size=4))
def test_join_is_concatenation_with_shared_tables(parts: list[list[list[tuple[Function, str, int]]]]) -> None:
    joined = Names.join([names_of(p) for p in parts])
    expected = list(itertools.chain(*parts))
    assert seen(joined.check(len(expected))) == expected
    assert len(set(joined.functions)) == len(joined.functions)


@settings(max_examples=60, deadline=None)
@given(chains)
def test_names_survive_being_packed(chains: list[list[tuple[Function, str, int]]]) -> None:
    _, columns = unpack(pack({}, pack_names(names_of(chains))))
    assert seen(unpack_names(columns, len(chains))) == chains


def test_names_that_are_no_text_survive_being_packed() -> None:
    odd = Function("a\udcffb\n\x1b[31m", "\ud800 zero\0inside", 1)
    _, columns = unpack(pack({}, pack_names(names_of([[(odd, "\udc80.c", 1)]]))))
    ((frame,),) = seen(unpack_names(columns, 1))
    assert frame == (odd._replace(shown="\ud800 zero\ufffdinside"), "\udc80.c", 1)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("function", np.array([7], np.int32), "points outside"),
        ("function", np.array([-2], np.int32), "points outside"),
        ("frame_function", np.array([-1], np.int32), "points outside"),
        ("frame_file", np.array([9], np.int32), "points outside"),
        ("frame_line", np.array([1, 2], np.uint32), "differ in length"),
        ("offsets", np.array([0, 5], np.int64), "offsets"),
        ("offsets", np.array([1, 1], np.int64), "offsets"),
        ("function", np.array([0], np.int64), "no column"),
        ("name", np.frombuffer(b"no end", np.uint8), "cut inside"),
        ("name", np.frombuffer(b"a\0b\0", np.uint8), "functions differ in length"),
        ("function_file", np.array([3], np.int32), "missing files"),
    ],
)
def test_columns_that_are_not_sound_are_refused(column: str, value: np.ndarray, says: str) -> None:
    columns = pack_names(names_of([[(F, "f.c", 1)]]))
    assert len(unpack_names(columns, 1)) == 1
    with pytest.raises(ValueError, match=says):
        unpack_names({**columns, column: value}, 1)


def test_notes_travel_with_names() -> None:
    names = names_of([[(F, "f.c", 1)]])
    names.notes = ["a unit is damaged"]
    back = unpack_names(pack_names(names), 1)
    assert back.notes == ["a unit is damaged"]
    assert back.take(np.array([0, -1])).notes == back.notes
    assert Names.join([back, Names.unknown(2), names]).notes == back.notes


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_sound(data: st.DataObject) -> None:
    whole = bytearray(pack({"a": 1}, pack_names(names_of([[(F, "f.c", 1)], [(G, "", 2), (F, "f.c", 9)]]))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        names = unpack_names(unpack(cut)[1], 2)
    except ValueError:
        return
    assert len(seen(names)) == len(names)


def test_a_count_beyond_the_bytes_is_refused() -> None:
    said = json.dumps({"meta": {}, "columns": [["x", "<i8", 1 << 60]]}).encode()
    with pytest.raises(ValueError, match="longer than what is left"):
        unpack(struct.pack("<4sIQ", b"LBsy", len(said), 8) + said + bytes(8))
    said = json.dumps({"meta": {}, "columns": [["x", "|O", 1]]}).encode()
    with pytest.raises(ValueError, match="a column of"):
        unpack(struct.pack("<4sIQ", b"LBsy", len(said), 8) + said + bytes(8))


# -- function tables


def table() -> FunctionTable:
    functions = [
        Function("_ZN1n1fIiEEvT_", "void n::f<int>(int)", 0x10, 0x10),
        Function("_ZN1n1gEi", "n::g(int) const", 0x20, 0x10),
        Function("_ZN1n1gEv", "n::g()", 0x40, 8),
        Function("main", "main", 0x50, 8),
    ]
    start = np.array([f.start for f in functions], np.uint64)
    return FunctionTable(
        start, start + np.array([f.size for f in functions], np.uint64), functions, {3: ("entry", "e2")}
    )


def test_an_address_is_in_the_function_that_holds_it() -> None:
    at = table().at(np.array([0, 0xF, 0x10, 0x1F, 0x20, 0x30, 0x47, 0x48, 2**64 - 1], np.uint64))
    assert at.tolist() == [-1, -1, 0, 0, 1, -1, 2, -1, -1]
    assert FunctionTable.empty().at(np.array([1], np.uint64)).tolist() == [-1]


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [
        ("_ZN1n1gEi", [1]),
        ("n::g()", [2]),
        ("n::g", [1, 2]),
        ("n::*", [1, 2]),
        ("void n::f<int>", [0]),
        ("*f<int>*", [0]),
        ("entry", [3]),
        ("ent*", [3]),
        ("ma?n", [3]),
        ("nothing", []),
        ("gEi", []),
        ("[", []),
        ("f", [0]),
        ("g", [1, 2]),
        ("::g", []),
        ("n::f", [0]),
        ("m::g", []),
    ],
)
def test_functions_are_found_by_what_people_call_them(pattern: str, rows: list[int]) -> None:
    assert table().find(pattern) == rows


SAID = [
    "ast::Bin::eval(int) const", "ast::Bin::eval(int) const (.cold)", "int ast::Box<Bin::eval>::run<char>(char)",
    "work", "work.cold", "work.isra.0", "only.constprop.0", "only.constprop.0.cold", "over(int)", "over(long)",
    "over(int) (.cold)", "over(long) (.part.0)", "main.work", "<code::Lit as code::Eval>::eval", "puts@plt",
    "Bin::evaluate()", "ns::operator new(int)", "apart(int) (.cold)",
]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("Bin::eval", [0]),
        ("eval", [0, 13]),
        ("ast::Bin::eval", [0]),
        ("Lit::eval", [13]),
        ("Box::run", [2]),
        ("work", [3]),
        ("work.cold", [4]),
        ("only", [6]),
        ("over", [8, 9]),
        ("over(int) (.cold)", [10]),
        ("puts", []),
        ("puts@plt", [14]),
        ("Bin", []),
        ("valuate", []),
        ("operator new", [16]),
        ("apart", [17]),
        ("over*", [8, 9, 10, 11]),
        ("main.work", [12]),
    ],
)
def test_functions_are_found_as_people_say_them(pattern: str, found: list[int]) -> None:
    """By the end of a name, whatever its templates; parts that a compiler set apart are not what is meant."""
    start = np.arange(1, len(SAID) + 1, dtype=np.uint64) * np.uint64(16)
    functions = [Function(f"_Z{i}", name, 16 * (i + 1), 16) for i, name in enumerate(SAID)]
    assert FunctionTable(start, start + np.uint64(16), functions).find(pattern) == found


@pytest.mark.parametrize(
    ("shown", "bare"),
    [
        ("f(int)", "f"),
        ("main", "main"),
        ("a<b(c)>::d(int (*)(int)) const", "a<b(c)>::d"),
        ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
        ("x::operator()(int)", "x::operator()"),
        ("x::operator<(x)", "x::operator<"),
        ("x::operator->()", "x::operator->"),
        ("x::operator>>(int)", "x::operator>>"),
        ("main::'lambda'()::operator()() const", "main::'lambda'()::operator()"),
        ("A::f(int) const::Inner::g(int) const", "A::f(int) const::Inner::g"),
        ("A::f() &::x", "A::f() &::x"),
        ("f(int) (.cold)", "f"),
        ("std::ops<(E)1>::f()", "std::ops<(E)1>::f"),
    ],
)
def test_arguments_are_left_out(shown: str, bare: str) -> None:
    assert plain(shown) == bare


def test_tables_survive_being_packed() -> None:
    _, columns = unpack(pack({}, pack_functions(table())))
    again = unpack_functions(columns)
    assert again.functions == table().functions
    assert again.aliases == table().aliases
    assert again.end.tolist() == table().end.tolist()
    with pytest.raises(ValueError, match="not sorted"):
        unpack_functions({**columns, "start": columns["start"][::-1]})
    with pytest.raises(ValueError, match="differ in number"):
        unpack_functions({**columns, "end": columns["end"][:-1]})
    with pytest.raises(ValueError, match="aliases"):
        unpack_functions({**columns, "alias_row": np.array([4, 4], np.int64)})
