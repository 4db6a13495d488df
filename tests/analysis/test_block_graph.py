"""The graph of blocks against a complete trace, which says how often each instruction followed which."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from capture_tools import needs_ptrace
from lastbranch.analysis.function.annotation import annotate
from lastbranch.analysis.function.flow import EdgeKind, block_graph
from lastbranch.analysis.naming import Label, Place
from lastbranch.lbr import KIND
from lastbranch.model import Profile
from view_truth import Run, run_program, symbols


@pytest.fixture(scope="module", params=["-O0", "-O1"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    flags = [request.param, "-fno-jump-tables"]
    return run_program(tmp_path_factory.mktemp("graph"), "loops", "12", flags=flags)


def places(profile: Profile) -> list[Place]:
    return [
        Place(row, start, end, Label(row, name))
        for row, module in enumerate(profile.modules)
        for start, end, name in (symbols(module.binary) if module.binary else [])
    ]


@needs_ptrace
def test_ways_and_probabilities_of_a_complete_run(run: Run, tmp_path: Path) -> None:
    stacks = run.whole(overlap=1)
    profile = run.capture(tmp_path / "perf.data", stacks)
    begin = run.executed.index(run.edges[0][1])
    follows = Counter(zip(run.executed[begin:], run.executed[begin + 1 :], strict=False))
    ran = Counter(run.executed[begin:-1])
    entries = Counter(edge for first, past in stacks for edge in run.edges[first:past])
    seen = set[int]()
    for place in places(profile):
        flow = annotate(profile, place).flow
        edges, blocks = block_graph(flow).edges, flow.blocks
        at, to = flow.address[blocks.last], flow.address[blocks.first]
        for i in range(len(edges)):
            source, target, kind = int(edges.source[i]), int(edges.target[i]), int(edges.kind[i])
            seen.add(kind)
            if min(source, target) < 0 or kind not in (EdgeKind.TAKEN, EdgeKind.FALL_THROUGH):
                continue
            pair = int(at[source]), int(to[target])
            assert edges.count[i] == (entries if kind == EdgeKind.TAKEN else follows)[pair]
            if flow.kind[blocks.last[source]] == KIND["cond"]:
                assert edges.probability[i] == pytest.approx(follows[pair] / ran[pair[0]], abs=0.01)
    assert seen == set(EdgeKind)


@needs_ptrace
def test_flow_is_conserved_but_for_the_ends_of_stacks(run: Run, tmp_path: Path) -> None:
    """Each stack has one branch whose block is not seen to be left, and one whose block is not seen to be reached."""
    stacks = run.whole(overlap=1)
    profile = run.capture(tmp_path / "perf.data", stacks)
    ran = 0
    for place in places(profile):
        flow = annotate(profile, place).flow
        graph = block_graph(flow)
        ran += int((graph.came > 0).sum())
        assert np.abs(graph.came - graph.went).sum() <= 2 * len(stacks)
        going = graph.edges.take(graph.edges.source >= 0)
        sums = np.bincount(going.source, going.probability, len(flow.blocks))
        assert sums[(flow.blocks.ended + flow.blocks.through) > 0] == pytest.approx(1)
    assert ran > 20
