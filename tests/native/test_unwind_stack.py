"""The compiled walk over a stack against its form in Python, with any rows and any memory: a file takes its place."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastbranch import native
from lastbranch.capture import ptrace
from lastbranch.capture.software.control_flow import memory_of
from lastbranch.capture.software.unwinder import AddressSpace, Plain, Unwinder

SIZE = 1 << 16
KEPT = -(1 << 31)
offsets = st.one_of(st.integers(-64, 64).map(lambda n: 8 * n), st.integers(KEPT + 1, (1 << 31) - 1))
saved = st.one_of(st.just(KEPT), offsets)
rows = st.builds(
    lambda base, offset, at, returns: Plain(base, offset, (*at, returns)),
    st.sampled_from([7, 7, 7, 6, 3, 15]),
    offsets,
    st.tuples(*[saved] * 6),
    offsets,
)
words = st.one_of(st.integers(0, 40), st.integers(0, SIZE), st.integers(0, (1 << 64) - 1))


@pytest.mark.skipif(native.library() is None, reason="no compiled library")
@given(
    known=st.dictionaries(st.integers(0, 40), rows),
    memory=st.lists(words, min_size=1, max_size=64),
    registers=st.lists(words, min_size=27, max_size=27),
)
def test_the_compiled_walk_does_what_python_does(
    known: dict[int, Plain], memory: list[int], registers: list[int]
) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"".join(word.to_bytes(8, "little") for word in memory * (SIZE // 8 // len(memory))))
        file.flush()
        fd = file.fileno()
        stacks = []
        for walk in (Unwinder(), Unwinder()):
            if stacks:
                walk._walk = None
            space = AddressSpace(os.getpid(), memory_of(fd), fd)
            space.found |= known
            stacks.append(walk.stack(space, ptrace.Registers(*registers)))
    assert stacks[0] == stacks[1]
