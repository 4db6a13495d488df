"""What annotations rest on, against walks of the instructions burst by burst, and bursts drawn again."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from burst_captures import BASE, INSTRUCTIONS, Burst, opened, walks, write
from lastbranch.analysis.function.annotation import Annotation, annotate

ROUNDS = 1500


def ran(burst: Burst) -> tuple[Counter[int], Counter[int], Counter[tuple[int, int]]]:
    """(executions of each instruction, of those that a branch ended, branches) that the records of a burst show."""
    executed, ended, branches = Counter[int](), Counter[int](), Counter[tuple[int, int]]()
    for record in burst:
        branches.update(record)
        for (_, start), (end, _) in pairwise(record):
            executed.update(at for at in INSTRUCTIONS if start <= at <= end)
            ended[end] += 1
    return executed, ended, branches


def drawn(bursts: int) -> np.ndarray:
    """How often each burst is in each draw of as many."""
    chance = np.random.default_rng(1)
    return np.array([np.bincount(chance.integers(0, bursts, bursts), minlength=bursts) for _ in range(ROUNDS)])


@pytest.fixture(scope="module")
def bursts() -> list[Burst]:
    return walks(400, 5)


@pytest.fixture(scope="module")
def found(bursts: list[Burst], tmp_path_factory: pytest.TempPathFactory) -> Annotation:
    return annotate(*opened(write(tmp_path_factory.mktemp("bursts"), bursts)))


def test_blocks_and_edges_rest_on_the_bursts_that_have_them(found: Annotation, bursts: list[Burst]) -> None:
    parts, blocks, edges, noise = [*map(ran, bursts)], found.flow.blocks, found.flow.edges, found.noise
    assert noise is not None
    assert noise.bursts == len(bursts)
    at = (found.flow.address[blocks.first] - BASE).tolist()
    assert at == [0, 4, 8]
    assert blocks.count.tolist() == [sum(executed[one] for executed, _, _ in parts) for one in at]
    assert noise.blocks.tolist() == [sum(one in executed for executed, _, _ in parts) for one in at]
    assert found.observed.tolist() == noise.blocks.tolist()
    assert (noise.blocks < blocks.count).all()
    last = (found.flow.address[blocks.last] - BASE).tolist()
    went_on = [sum(executed[one] > ended[one] for executed, ended, _ in parts) for one in last]
    assert noise.through.tolist() == went_on
    ends = zip((edges.from_address - BASE).tolist(), (edges.to_address - BASE).tolist(), strict=True)
    assert noise.edges.tolist() == [sum(edge in branches for _, _, branches in parts) for edge in ends]


def test_the_errors_are_those_of_bursts_drawn_again(found: Annotation, bursts: list[Burst]) -> None:
    parts, times, noise = [*map(ran, bursts)], drawn(len(bursts)), found.noise
    assert noise is not None
    flow, blocks, edges = found.flow, found.flow.blocks, found.flow.edges

    def of(values: list[int]) -> np.ndarray:
        return np.asarray(times @ np.array(values))

    entries = of([sum(branches.values()) for _, _, branches in parts])
    first, last = ((flow.address[rows] - BASE).tolist() for rows in (blocks.first, blocks.last))
    shares = [of([executed[at] for executed, _, _ in parts]) / entries for at in first]
    np.testing.assert_allclose(noise.count, [share.std() / share.mean() for share in shares], rtol=0.12)
    taken = of([ended[2] for _, ended, _ in parts]) / of([executed[2] for executed, _, _ in parts])
    assert noise.taken[last.index(2)] == pytest.approx(taken.std(), rel=0.12)

    ends = [*zip((edges.from_address - BASE).tolist(), (edges.to_address - BASE).tolist(), strict=True)]
    counts = [of([branches[edge] for _, _, branches in parts]) for edge in ends]
    passed = of([executed[2] - ended[2] for executed, ended, _ in parts])
    every = sum(counts) + passed
    np.testing.assert_allclose(noise.share, [(one / every).std() for one in counts], rtol=0.12)
    assert noise.share_through[last.index(2)] == pytest.approx((passed / every).std(), rel=0.12)
    targets = [i for i, (source, _) in enumerate(ends) if source == 6]
    assert len(targets) == 2
    site = counts[targets[0]] + counts[targets[1]]
    for i in targets:
        assert noise.target[i] == pytest.approx((counts[i] / site).std(), rel=0.12)
    assert noise.notes[0].startswith("standard errors from 400 bursts:")
    assert "1.2 s more of recording would halve them" in noise.notes[0]


def test_a_block_that_one_burst_saw_often_rests_on_one(tmp_path: Path) -> None:
    """Its count is known; how far that is off is not."""
    loop, other = [(2, 8), (9, 0)] * 150, [(6, 0)] * 150
    found = annotate(*opened(write(tmp_path, [[loop], *[[other]] * 3])))
    assert found.noise is not None
    first = (found.flow.address[found.flow.blocks.first] - BASE).tolist()
    assert dict(zip(first, found.observed.tolist(), strict=True)) == {0: 4, 4: 3, 8: 1}
    assert found.flow.blocks.count.min() > 100
    alone = annotate(*opened(write(tmp_path, [[loop]])))
    assert alone.noise is not None
    assert np.isnan(alone.noise.count).all()
    assert not alone.noise.notes


def test_samples_of_hardware_are_observations_of_their_own(tmp_path: Path, bursts: list[Burst]) -> None:
    found = annotate(*opened(write(tmp_path, bursts, event="cycles")))
    assert found.noise is None
    assert found.observed.tolist() == found.flow.blocks.count.tolist()
