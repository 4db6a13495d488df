"""Arcs beside the code: what jumps there are, how likely each is, and that none crosses another in its lane."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lastbranch import demo
from lastbranch.analysis.function.annotation import annotate
from lastbranch.analysis.function.flow import arcs_of, lanes
from lastbranch.analysis.naming import find_functions
from viewer import loaded

ENDS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30)


@given(ENDS, st.integers(1, 8))
def test_no_two_arcs_of_a_lane_share_a_row_and_none_is_left_out_without_need(
    ends: list[tuple[int, int]], most: int
) -> None:
    source, target = (np.array([one[i] for one in ends], np.int64) for i in (0, 1))
    rows = [set(range(min(one), max(one) + 1)) for one in ends]
    found = lanes(source, target, most).tolist()
    for i, lane in enumerate(found):
        assert -1 <= lane < most
        beside = [j for j in range(len(ends)) if j != i and rows[i] & rows[j]]
        if lane >= 0:
            assert all(found[j] != lane for j in beside)
        else:
            assert len({found[j] for j in beside if found[j] >= 0}) > 0
    if len(ends) <= most:
        assert -1 not in found


def test_arcs_have_the_edges_and_probabilities_of_the_function() -> None:
    shown = loaded(demo.capture(), demo.symfs())
    (place,) = find_functions(shown.profile, shown.namer, "dispatch")
    flow = annotate(shown.profile, place).flow
    arcs = arcs_of(flow)
    counts = {
        (s, t): c for s, t, c in zip(arcs.source.tolist(), arcs.target.tolist(), arcs.count.tolist(), strict=True)
    }
    assert len(counts) == len(arcs) > 0
    edges = flow.edges
    for source, target, count in zip(edges.source.tolist(), edges.target.tolist(), edges.count.tolist(), strict=True):
        if source >= 0 and target > 0:
            assert counts[source, target] == count
    last = {row: block for block, row in enumerate(flow.blocks.last.tolist())}
    for source in set(arcs.source.tolist()):  # the ways out of a conditional or indirect jump within the function
        share, block = arcs.share[arcs.source == source], last[source]
        ran = int(flow.blocks.ended[block] + flow.blocks.through[block])
        if ran and not np.isnan(share).any():
            assert share.sum() <= flow.blocks.ended[block] / ran + 1e-9
