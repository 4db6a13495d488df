"""LLVM's sample profile: counts of functions, and of what is inlined in them, as a tree; its text form.

The text (llvm/ProfileData/SampleProfReader.h): a function is ``name:total:head``, its lines ``offset[.discriminator]:
count [callee:count]...``, one column in; what is inlined is in its caller as ``offset[.discriminator]: name:total``
with its own lines one column further in. In a profile of probes, an offset is the index of a probe, and each function
ends with ``!CFGChecksum: hash``, then ``!Attributes: bits`` if the function has attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

__all__ = [
    "DEEPEST",
    "ENTRY",
    "FunctionSamples",
    "Location",
    "SampleTree",
    "base_discriminator",
    "canonical",
    "duplication",
    "source_name",
]


Location = tuple[int, int]
"""(lines from the start of the function, modulo 2**16; base discriminator)."""

DEEPEST = 400
"""How deep functions of a profile can be inlined: no compiler comes near it."""
ENTRY: Location = (1, 0)
"""The first probe of a function."""

_SUFFIXES = (".llvm.", ".part.")
_AMBIGUOUS = ("__cxx_global_var_init", "__tls_init")
"""Several functions of a program have these names, so counts for them mean nothing."""


def canonical(name: str) -> str:
    """``name`` without what LLVM appends to copies of a function (FunctionSamples::getCanonicalFnName)."""
    for suffix in _SUFFIXES:
        stem, found, number = name.rpartition(suffix)
        if found and "." not in number:
            name = stem
    return name


def source_name(name: str) -> str:
    """gcc knows copies and parts of a function (``.constprop.0``, ``.cold``) by the name before the first dot."""
    return name.partition(".")[0] or name


def _component(word: int) -> int:
    """The number at the low end of a discriminator: 5 or 12 bits after a 0, or nothing (a 1)."""
    if word & 1:
        return 0
    word >>= 1
    return (word >> 1) & 0xFE0 | word & 0x1F if word & 0x20 else word & 0x1F


def base_discriminator(word: int) -> int:
    """Which of the basic blocks of a line (DILocation::getBaseDiscriminatorFromDiscriminator).

    Pseudo probes end in three ones: they have the number of the probe from bit 3 on, or the discriminator from bit 16.
    """
    if word & 7 == 7 and word > 7:
        return (word >> 16) & 7 if word & 1 << 28 else (word >> 3) & 0xFFFF
    return _component(word)


def duplication(word: int) -> int:
    """Into how many copies the optimiser made the instruction: unrolled or vectorised loops."""
    following = word >> 1 if word & 1 else word >> (14 if word & 0x40 else 7)
    return _component(following) or 1


@dataclass(slots=True)
class FunctionSamples:
    """Counts of one function, or of one inlined copy."""

    total: int = 0
    """Counts of all instructions, times their bytes."""
    head: int = 0
    """Branches to its entry."""
    lines: dict[Location, int] = field(default_factory=dict)
    calls: dict[Location, dict[str, int]] = field(default_factory=dict)
    inlined: dict[Location, dict[str, FunctionSamples]] = field(default_factory=dict)
    checksum: int = 0
    """Hash of its control flow, where probes were counted."""
    attributes: int = 0
    """1: it was inlined in this context (ContextWasInlined); 2: it should be (ContextShouldBeInlined)."""

    def raise_to(self, where: Location, count: int) -> None:
        """A line counts as often as the most frequent of its instructions."""
        self.lines[where] = max(self.lines.get(where, 0), count)

    def called(self, where: Location, callee: str, count: int) -> None:
        """``count`` calls of ``callee`` from a line."""
        self.lines.setdefault(where, 0)
        targets = self.calls.setdefault(where, {})
        targets[callee] = targets.get(callee, 0) + count

    def add(self, other: FunctionSamples) -> None:
        """Take in the counts of another copy. Attributes stay; what is inlined in it alone comes with its own."""
        self.total += other.total
        self.head += other.head
        self.checksum = self.checksum or other.checksum
        for where, count in other.lines.items():
            self.lines[where] = self.lines.get(where, 0) + count
        for where, targets in other.calls.items():
            for callee, count in targets.items():
                self.called(where, callee, count)
        for where, callees in other.inlined.items():
            for name, samples in callees.items():
                mine = self.inlined.setdefault(where, {})
                mine.setdefault(name, FunctionSamples(attributes=samples.attributes)).add(samples)

    def targets(self, where: Location) -> list[tuple[str, int]]:
        """The callees of a line with their counts, the largest first."""
        return sorted(self.calls.get(where, {}).items(), key=lambda t: (-t[1], t[0]))

    def callees(self) -> Iterator[tuple[Location, str, FunctionSamples]]:
        """The functions inlined in this function, by place and name."""
        for where in sorted(self.inlined):
            for name, samples in sorted(self.inlined[where].items()):
                yield where, name, samples

    def each(self, name: str) -> Iterator[tuple[str, FunctionSamples]]:
        """This function, called ``name``, and all that is inlined in it."""
        yield name, self
        for _, callee, samples in self.callees():
            yield from samples.each(callee)

    def write(self, parts: list[str], depth: int = 1) -> None:
        """Append its lines, ``depth`` columns in."""
        blanks = " " * depth
        if self.calls:
            for where, count in sorted(self.lines.items()):
                calls = "".join(f" {name}:{n}" for name, n in self.targets(where)) if where in self.calls else ""
                parts.append(f"{blanks}{_location(where)}: {count}{calls}\n")
        else:  # of profiles by context this is most, with hundreds of thousands of lines
            parts.append(
                "".join(
                    [
                        f"{blanks}{line}.{part}: {count}\n" if part else f"{blanks}{line}: {count}\n"
                        for (line, part), count in sorted(self.lines.items())
                    ]
                )
            )
        for where, name, samples in self.callees():
            parts.append(f"{blanks}{_location(where)}: {name}:{samples.total}\n")
            samples.write(parts, depth + 1)
        if self.checksum:
            parts.append(f"{blanks}!CFGChecksum: {self.checksum}\n")
        if self.attributes:
            parts.append(f"{blanks}!Attributes: {self.attributes}\n")

    def without_ambiguous(self) -> None:
        """Drop inlined functions whose name says nothing."""
        for callees in self.inlined.values():
            for name in [n for n in callees if n.startswith(_AMBIGUOUS)]:
                del callees[name]
            for samples in callees.values():
                samples.without_ambiguous()


class SampleTree:
    """All functions of a module."""

    def __init__(self, flow: bool = False) -> None:
        self.functions: dict[str, FunctionSamples] = {}
        self.flow = flow
        """Whether its discriminators are flow-sensitive: numbers whose bits were added by one pass after another."""

    def top(self, name: str) -> FunctionSamples:
        """The function called ``name``, itself and not inlined."""
        found = self.functions.get(name)
        if found is None:
            found = self.functions[name] = FunctionSamples()
        return found

    def along(self, chain: Iterable[tuple[str, Location]]) -> list[FunctionSamples]:
        """The functions of ``chain``, outermost first; the place in the last one is not looked at."""
        found, before = list[FunctionSamples](), (0, 0)
        for name, where in chain:
            if not found:
                found.append(self.top(name))
            else:
                callees = found[-1].inlined.setdefault(before, {})
                if name not in callees:
                    callees[name] = FunctionSamples()
                found.append(callees[name])
            before = where
        return found

    def leaf(self, chain: Iterable[tuple[str, Location]], more: int) -> FunctionSamples:
        """The innermost function of ``chain`` (outermost first), all of which get ``more`` in total."""
        found = self.along(chain)
        for samples in found:
            samples.total += more
        return found[-1]

    def finish(self, calls_count: bool = True) -> None:
        """At the end: leave out what says nothing, and with ``calls_count`` lines count at least as their calls."""
        self.functions = {n: s for n, s in self.functions.items() if not n.startswith(_AMBIGUOUS)}
        for samples in self.functions.values():
            samples.without_ambiguous()
            for where, targets in samples.calls.items() if calls_count else ():
                samples.raise_to(where, sum(targets.values()))

    def each(self) -> Iterator[tuple[str, FunctionSamples]]:
        """All functions, and all that is inlined in them."""
        for name, samples in self.ordered():
            yield from samples.each(name)

    def where(self, fits: Callable[[str, FunctionSamples], bool]) -> SampleTree:
        """The functions that ``fits`` is true of, with their counts of probes. The counts of a function inlined in a
        function that is left out go to the function's own profile."""
        tree = SampleTree(self.flow)
        for name, samples in self.ordered():
            kept = tree._take(name, samples, fits)
            if kept is not None:
                tree.stand(name, kept)
        return tree

    def stand(self, name: str, samples: FunctionSamples) -> None:
        """Take in the counts of a function by itself."""
        if name in self.functions:
            self.functions[name].add(samples)
        else:
            self.functions[name] = samples

    def _take(
        self, name: str, samples: FunctionSamples, fits: Callable[[str, FunctionSamples], bool]
    ) -> FunctionSamples | None:
        """The part of a function that fits, or ``None``: then its callees have become functions of this tree."""
        good = fits(name, samples)
        kept = FunctionSamples(
            samples.total,
            samples.head,
            dict(samples.lines),
            {w: dict(t) for w, t in samples.calls.items()},
            checksum=samples.checksum,
            attributes=samples.attributes,
        )
        for where, callee, inner in samples.callees():
            kept.total -= inner.total
            inlined = self._take(callee, inner, fits)
            if inlined is None:
                continue
            if good:
                kept.inlined.setdefault(where, {})[callee] = inlined
                kept.total += inlined.total
            else:
                inlined.head, inlined.attributes = inlined.lines.get(ENTRY, 0), 0
                self.stand(callee, inlined)
        kept.total = max(kept.total, 0)
        return kept if good else None

    def ordered(self) -> list[tuple[str, FunctionSamples]]:
        """The functions, the largest first."""
        return sorted(self.functions.items(), key=lambda item: (-item[1].total, item[0]))

    def text(self) -> Iterator[str]:
        """The whole profile, function by function."""
        for name, samples in self.ordered():
            parts = [f"{name}:{samples.total}:{samples.head}\n"]
            samples.write(parts)
            yield "".join(parts)


def _location(where: Location) -> str:
    offset, discriminator = where
    return f"{offset}.{discriminator}" if discriminator else f"{offset}"
