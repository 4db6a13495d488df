"""In which order functions are best linked: call-chain clustering (C3).

G. Ottoni and B. Maher, "Optimizing Function Placement for Large-Scale Data-Center Applications" (CGO 2017): from the
most executed function on, each is appended to the cluster of the function that calls it most; then the clusters are
sorted by their executions per byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["function_order"]

_LARGEST = 2 << 20
"""Most bytes of a cluster: a large page."""
_SELDOM = 0.1
"""A function stays where it is if even its most frequent caller makes less than this part of its recorded calls."""
_THINNER = 8
"""A cluster takes no function that would leave it less than an eighth of its executions per byte."""


def function_order(sizes: Sequence[int], weights: Sequence[int], calls: Mapping[tuple[int, int], int]) -> list[int]:
    """An order of the functions ``0..n-1``.

    ``sizes`` are bytes, ``weights`` bytes executed of each; ``calls`` counts calls, by (caller, callee). Of equal
    functions the first comes first.
    """
    clusters = {f: [f] for f in range(len(sizes))}
    of, size, weight = list(clusters), list(sizes), list(weights)  # of a cluster, which its first function names
    callers = dict[int, list[tuple[int, int]]]()
    for (caller, callee), n in calls.items():
        if caller != callee and n > 0:
            callers.setdefault(callee, []).append((-n, caller))

    def density(cluster: int) -> float:
        return weight[cluster] / max(size[cluster], 1)

    for f in sorted(clusters, key=lambda f: (-weights[f], f)):
        most, caller = min(callers.get(f, [(0, f)]))
        into = of[caller]
        if into == of[f] or -most < _SELDOM * -sum(n for n, _ in callers[f]) or size[into] + size[f] > _LARGEST:
            continue
        if (weight[into] + weight[f]) / max(size[into] + size[f], 1) < density(into) / _THINNER:
            continue
        for moved in clusters.pop(f):
            of[moved] = into
            clusters[into].append(moved)
        size[into] += size[f]
        weight[into] += weight[f]
    return [f for cluster in sorted(clusters, key=lambda c: (-density(c), c)) for f in clusters[cluster]]
