"""``--to counts``: branch and range counts as text, one line each.

    R module start end count
    B from_module from to_module to count mispredicted

Addresses are hex without prefix; lines are sorted by kind, module and address. ``-`` is no module: the addresses of
such a line are absolute. Blanks, control characters and backslashes in names are ``\\xNN``. If several builds have one
path, each name ends in ``@`` and the build's identity, or in ``unidentified:`` and a number if the identity is not
known: such modules of several captures may be the same build or not.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from ..analysis import count_stacks, merge_processes, why_no_ranges, without_binary
from ..arrays import group
from ..model import Array, ModuleKind, Profile, word
from .binary_choice import limit_to_binary
from .interface import ExportOptions, ExportResult, write_lines

__all__ = ["export"]


def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the counts of ``profile``.

    Raises `NotRecordedError` where there are no branch stacks. A capture without ranges gives B lines only.
    """
    sample_filter = limit_to_binary(profile, options)
    if options.counted:
        counted = options.counted(sorted(sample_filter.modules) if sample_filter else [])
        no_ranges = None if counted.ranges is not None else "the captures have no fall-through ranges"
    else:
        no_ranges = why_no_ranges(profile, sample_filter)
        counted = count_stacks(
            profile,
            ranges=no_ranges is None,
            details=False,
            sample_filter=sample_filter,
            by_process=False,
            estimate=options.estimate,
        )
    names, word = _module_words(profile)
    notes = without_binary(profile, counted.branches.a_module, counted.branches.b_module)
    if counted.ranges is None:
        notes.append(f"no R lines: {no_ranges}")
    else:
        (module, start, _, end), (count, _, _) = merge_processes(counted.ranges)
        (module, start, end), (count,) = group([word[module], start, end], [count], [np.add])
        write_lines(out, b"R %s %x %x %d\n", names[module], start, end, count)
        broken = {reason: n for reason, n in counted.broken.items() if n}
        if broken:
            notes.append("not ranges: " + ", ".join(f"{n} {reason}" for reason, n in broken.items()))
    (fm, f, tm, t), (count, mispredicted, _) = merge_processes(counted.branches)
    (fm, f, tm, t), (count, mispredicted) = group([word[fm], f, word[tm], t], [count, mispredicted], [np.add] * 2)
    write_lines(out, b"B %s %x %s %x %d %d\n", names[fm], f, names[tm], t, count, mispredicted)
    branches = int(count.sum())
    return ExportResult(notes, branches, branches, "branches")


def _module_words(profile: Profile) -> tuple[Array, Array]:
    """Sorted names (bytes objects), and for each row of the modules table (and -1, last) its index in them."""
    builds: dict[str, list[str]] = {}
    identities = []
    for module in profile.modules:
        found = builds.setdefault(module.name, [])
        identities.append(module.identity or f"unidentified:{len(found) + 1}")
        if identities[-1] not in found:
            found.append(identities[-1])
    words = [
        "-" if m.kind is ModuleKind.ANONYMOUS else word(m.name) + (f"@{identity}" if len(builds[m.name]) > 1 else "")
        for m, identity in zip(profile.modules, identities, strict=True)
    ] + ["-"]
    names = sorted(set(words))
    rank = {name: i for i, name in enumerate(names)}
    return np.array([n.encode() for n in names], object), np.array([rank[w] for w in words], np.int64)
