"""Checks recordings of `arm64_guest.py`: real branches without gaps, of programs that do not notice."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from capture_tools import Trace, stacks, walk
from lastbranch.lbr import KIND
from lastbranch.model import Profile
from lastbranch.opening import open_profile

_KINDS = (
    (r"b\.\w+|bc\.\w+|cbn?z|tbn?z", "cond"), (r"b", "uncond"), (r"bl", "call"), (r"blr\w*", "ind_call"),
    (r"br\w*", "ind"), (r"ret\w*", "ret"),
)  # fmt: skip
"""Mnemonics of llvm-objdump, and perf's branch types."""
_LEAST = 30
"""Branches of a recording, in which a stop takes milliseconds."""
_COVERED = 0.8
"""The share of executed taken branches whose edges are in a recording with breakpoints of `forms`, whose rounds are
short: each burst has most of it."""


def check(
    said: str, files: dict[str, bytes], traces: dict[str, Trace], outputs: dict[str, str], programs: Path
) -> Iterator[str]:
    """All faults. ``outputs`` has the programs' outputs for the rounds that the guest gives them."""
    for line in re.findall(r"-- engine .*", said):
        if "'ok'" not in line:
            yield line
    for name, code in re.findall(r"-- recorded (\S+): exit code (-?\d+)", said):
        if code != "0":
            yield f"{name}: exit code {code}"
    for name, output in outputs.items():
        after = re.findall(rf"^-- recorded {name}.*(?:\n(?!-- [rft]).*)*", said, re.M)
        if not all(output in text for text in after):
            yield f"{name}: the program printed something else than {output}"
    for name, how in re.findall(r"^-- (\S+) went on: (.*)", said, re.M):
        if how != "True -9":
            yield f"{name}: the process did not go on as it should: {how}"
    if "-- the guest ends: 0" not in said:
        yield "the guest did not end as it should"
    for name, data in files.items():
        program, _, engine = name.removesuffix(".data").partition("-")
        program = "branches" if program in ("attached", "forks") else program
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(data)
            profile = open_profile(path)
            if "branch_from" not in profile.streams[-1].columns:
                yield f"{name}: no branches"
                continue
            found = stacks(profile)
            entries = [entry for stack in found for entry in stack]
            print(f"{name}: {len(found)} samples, {len(entries)} branches")
            if len(entries) < _LEAST:
                yield f"{name}: only {len(entries)} branches"
            yield from (f"{name}: {what}" for what in _wrong_kinds(profile, programs / program))
            if program in traces:
                covered = _COVERED if program == "forms" and engine != "steps" else 0.0
                yield from (f"{name}: {what}" for what in _against(traces[program], found, programs / program, covered))


def _retries(program: Path) -> set[tuple[int, int]]:
    """Branches back to an exclusive load after its store, which is taken if anything interrupted the thread."""
    found = re.findall(r"\tstl?x[rp].*\n *([0-9a-f]+):\s+cbnz\s.*0x([0-9a-f]+) <", _listing(program))
    return {(int(source, 16), int(target, 16)) for source, target in found}


def _listing(program: Path) -> str:
    command = ["llvm-objdump-19", "-d", "--no-show-raw-insn", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _against(truth: Trace, found: list[list[tuple[int, int]]], program: Path, least: float) -> Iterator[str]:
    """Faults of branches within the program: ``found`` must agree with the program's trace."""
    retries, first, last = _retries(program), truth.addresses.min(), truth.addresses.max()
    found = [[entry for entry in stack if all(first <= at <= last for at in entry)] for stack in found]
    entries = Counter(entry for stack in found for entry in stack)
    for source, target in entries:
        if not truth.edge(source, target) and (source, target) not in retries:
            yield f"{source:#x} -> {target:#x} was never taken"
    for line in {(a[1], b[0]) for stack in found for a, b in pairwise(stack)}:
        if walk(truth, *line) is None:
            yield f"no straight line from {line[0]:#x} to {line[1]:#x} was executed"
    taken = {edge: count for edge, count in truth.follows.items() if edge[1] != edge[0] + 4}
    share = sum(count for edge, count in taken.items() if edge in entries) / sum(taken.values())
    print(f"  {share:.1%} of taken branches have an edge that was recorded")
    if share < least:
        missing = [f"{a:#x} -> {b:#x}" for (a, b), _ in Counter(taken).most_common() if (a, b) not in entries]
        yield f"{share:.1%} of taken branches have an edge that was recorded; missing: {', '.join(missing[:8])}"


def _wrong_kinds(profile: Profile, program: Path) -> Iterator[str]:
    """Types that are not those of llvm-objdump's instructions, of branches in the program itself."""
    names = dict(re.findall(r"^ *([0-9a-f]+):\s+(\S+)", _listing(program), re.M))
    checked = Counter[str]()
    for batch in profile.streams[-1].batches():
        for row in range(len(batch)):
            sources, _, flags = batch.stack(row)
            for source, word in zip(sources.tolist(), flags.tolist(), strict=True):
                name = names.get(f"{source:x}")
                if name is None:
                    continue
                kind = next((kind for pattern, kind in _KINDS if re.fullmatch(pattern, name)), "none")
                checked[kind] += 1
                if kind == "none" or KIND[kind] != word >> 20 & 15:
                    yield f"{source:#x} {name} has the type {word >> 20 & 15}"
    print(f"  {', '.join(f'{count} {kind}' for kind, count in sorted(checked.items()))}")
