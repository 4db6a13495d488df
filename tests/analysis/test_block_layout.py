"""Layouts of blocks: the objective by hand, layouts computed by hand, and the best of all orders of small functions."""

from __future__ import annotations

import random
from itertools import permutations

import numpy as np
import pytest

from lastbranch.analysis.function.block_layout import function_order, layout, score

Edges = dict[tuple[int, int], int]


def test_what_edges_are_worth() -> None:
    sizes = [10, 512, 20, 30]
    assert score([0, 1], sizes, {(0, 1): 7}) == 7
    assert score([0, 1, 2], sizes, {(0, 2): 10}) == pytest.approx(10 * 0.1 * (1 - 512 / 1024))
    # From the end of block 1 back to its start.
    assert score([0, 1, 2], sizes, {(1, 1): 10}) == pytest.approx(10 * 0.1 * (1 - 512 / 640))
    assert score([2, 0], sizes, {(0, 2): 10}) == pytest.approx(10 * 0.1 * (1 - 30 / 640))
    assert score([0, 1, 2, 3], [1, 1023, 1, 1], {(0, 2): 1, (0, 3): 1}) == pytest.approx(0.1 / 1024)
    assert score([2, 1, 0], [9, 631, 1], {(0, 2): 10}) == 0
    assert score([0, 1], sizes, {(0, 3): 9}) == 0


@pytest.mark.parametrize(
    ("edges", "want"),
    [
        # An unlikely branch that falls through today.
        ({(0, 1): 1, (0, 2): 99, (1, 3): 1, (2, 3): 99}, [0, 2, 3, 1]),
        # A loop of two blocks: its 99 ways back are one jump each wherever they are, the 100 ways on fall through.
        ({(0, 1): 1, (1, 2): 100, (2, 1): 99, (1, 3): 1}, [0, 1, 2, 3]),
        # A loop with a diamond. 4 to 1 (99) and 1 to 3 (95) fall through; of what can follow 3 and precede 4 only the
        # 95 jumps back from 3 to 4 are left, over 48 bytes; 2 (5) falls into 4.
        ({(0, 1): 1, (1, 2): 5, (1, 3): 95, (2, 4): 5, (3, 4): 95, (4, 1): 99, (4, 5): 1}, [0, 2, 4, 1, 3, 5]),
        # Nothing was seen between them: most executed first.
        ({}, [0, 1, 2, 3]),
    ],
    ids=["diamond", "loop", "loop with a diamond", "no edges"],
)
def test_layouts_by_hand(edges: Edges, want: list[int]) -> None:
    n = len(want)
    order = layout([16] * n, list(range(n, 0, -1)), edges)
    assert score(order, [16] * n, edges) == pytest.approx(score(want, [16] * n, edges))
    assert order == want


def walked(rnd: random.Random, n: int) -> Edges:
    """Counts of a made-up program of ``n`` blocks that was run 100 times, 15 blocks each."""
    edges: Edges = {}
    after = [[rnd.randrange(n) for _ in range(rnd.choice((1, 2, 2, 3)))] for _ in range(n)]
    for _ in range(100):
        block = 0
        for _ in range(15):
            to = rnd.choices(after[block], [9, 3, 1][: len(after[block])])[0]
            edges[block, to] = edges.get((block, to), 0) + 1
            block = to
    return edges


def best(sizes: list[int], edges: Edges) -> float:
    """The highest score of all orders with block 0 first, computed for all of them at once."""
    n = len(sizes)
    orders = np.array([(0, *rest) for rest in permutations(range(1, n))])
    size = np.array(sizes)
    place = np.empty_like(orders)
    np.put_along_axis(place, orders, np.cumsum(size[orders], axis=1) - size[orders], axis=1)
    total = np.zeros(len(orders))
    for (a, b), count in edges.items():
        gap = place[:, b] - place[:, a] - sizes[a]
        worth = np.where(gap > 0, 0.1 - 0.1 * gap / 1024, 0.1 + 0.1 * gap / 640)
        total += count * np.where(gap == 0, 1, np.maximum(worth, 0))
    return float(total.max())


def test_small_functions_come_near_the_best_of_all_orders() -> None:
    rnd = random.Random(7)
    reached, possible, exact = 0.0, 0.0, 0
    for i in range(80):
        n = 2 + i % 7
        sizes, edges = [rnd.randint(1, 60) for _ in range(n)], walked(rnd, n)
        order = layout(sizes, [1] * n, edges)
        assert sorted(order) == list(range(n))
        assert order[0] == 0
        got, most = score(order, sizes, edges), best(sizes, edges)
        assert 0.9 * most <= got <= most + 1e-6
        reached, possible, exact = reached + got, possible + most, exact + (got > most - 1e-6)
    assert reached > 0.995 * possible
    assert exact >= 70


def test_large_functions_keep_all_blocks_and_gain() -> None:
    rnd = random.Random(3)
    edges = walked(rnd, 150)
    sizes = [rnd.randint(0, 60) for _ in range(150)]
    order = layout(sizes, [1] * 150, edges)
    assert sorted(order) == list(range(150))
    assert order[0] == 0
    assert score(order, sizes, edges) > 2 * score(range(150), sizes, edges)
    assert order == layout(sizes, [1] * 150, dict(reversed(edges.items())))


@pytest.mark.parametrize(
    ("sizes", "weights", "calls", "want"),
    [
        # 2 is called most by 0, and 1 by nobody: 0's cluster is thinner than 2 alone would be.
        ([100, 10, 100], [500, 100, 9000], {(0, 2): 90, (1, 2): 10}, [0, 2, 1]),
        # A chain of calls stays together.
        ([10, 10, 10, 10], [100, 90, 80, 1000], {(0, 1): 9, (1, 2): 8}, [3, 0, 1, 2]),
        # No calls seen: executions a byte.
        ([10, 20, 5], [100, 400, 10], {}, [1, 0, 2]),
        # A function that has its caller behind it already is not put behind that.
        ([10, 10], [50, 60], {(0, 1): 5, (1, 0): 9}, [0, 1]),
        # Together they would not fit a large page.
        ([2 << 20, 10], [1 << 30, 10], {(0, 1): 5}, [0, 1]),
        # A seldom caller that would fill the page of a frequent one: the cluster would be an eighth as dense.
        ([1000, 10], [10, 1000], {(1, 0): 5}, [1, 0]),
        # Called from everywhere: none of its callers makes a tenth of the calls.
        ([10] * 13, [5000, *range(120, 0, -10)], {(i, 0): 1 for i in range(1, 13)}, [0, *range(1, 13)]),
    ],
)
def test_functions_follow_their_callers(
    sizes: list[int], weights: list[int], calls: dict[tuple[int, int], int], want: list[int]
) -> None:
    assert function_order(sizes, weights, calls) == want
