"""Where the straight line from an address ends: as llvm-objdump lists the code."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import isa_oracle as oracle
from lastbranch.analysis.counting import executed as straight_runs
from lastbranch.isa import Decoder
from lastbranch.model import Array


class Listing:
    """Code of an executable section, read as `binaries.Code` is."""

    def __init__(self, lines: list[oracle.Line]) -> None:
        self.base, self.bytes = lines[0].address, np.frombuffer(b"".join(line.code for line in lines), np.uint8)

    def read_many(self, address: Array, size: Array) -> tuple[Array, Array]:
        begin = (address - np.uint64(self.base)).astype(np.int64)
        pieces = [self.bytes[at : at + n] for at, n in zip(begin.tolist(), size.tolist(), strict=True)]
        return np.concatenate(pieces), np.cumsum([0, *map(len, pieces)])


@pytest.mark.parametrize("name", oracle.SAMPLES)
@pytest.mark.parametrize("look", [8, 64])
def test_to_the_next_branch_of_the_listing(name: str, look: int) -> None:
    """From each instruction; ``look``: also where the branch is farther than the first bytes that are decoded."""
    arch = oracle.BUILDS[name][0]
    ends = 0
    for lines in oracle.sections(oracle.sample_path(name).read_text(), arch):
        kinds = [oracle.kind_of(line.text, arch) for line in lines]
        expected, end, known = [], 0, False
        for line, kind in zip(reversed(lines), reversed(kinds), strict=True):
            if kind != "unknown":
                end, known = line.address, kind != "(bad)"
            expected.append((end if known else line.address, known))
        start = np.array([line.address for line in lines], np.uint64)
        opened = Listing(lines), Decoder(arch)
        with (
            mock.patch.object(straight_runs, "CodeOf", return_value=mock.Mock(return_value=opened)),
            mock.patch.object(straight_runs, "_FIRST_LOOK", look),
        ):
            found, certain = straight_runs.next_branches(mock.Mock(), np.zeros(len(start), np.int64), start)
        assert list(zip(found.tolist(), certain.tolist(), strict=True)) == expected[::-1]
        ends += int(certain.sum())
    assert ends > 100


def test_without_code_nothing_is_known() -> None:
    start = np.array([0x1000, 0x2000], np.uint64)
    with mock.patch.object(straight_runs, "CodeOf", return_value=mock.Mock(return_value=None)):
        found, certain = straight_runs.next_branches(mock.Mock(), np.zeros(2, np.int64), start)
    assert found.tolist() == start.tolist()
    assert not certain.any()
