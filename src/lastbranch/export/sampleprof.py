"""``--to sampleprof``: LLVM's sample profile, for ``clang -fprofile-sample-use``, as text or in its binary form.

The profile of a binary with pseudo probes (``clang -fpseudo-probe-for-profiling``) counts probes (`probe_samples`); the
profile of any other binary counts source lines (`line_samples`). The text is equal to llvm-profgen's text for the same
counts.
"""

from __future__ import annotations

from typing import IO

from ..errors import UnavailableError
from ..model import word
from . import context_samples, line_samples, probe_samples
from .extbinary import as_extbinary
from .interface import ExportOptions, ExportResult
from .modules import ModuleCounts, ModuleFormat
from .sample_tree import SampleTree

__all__ = ["FORMAT", "write_tree"]


def write(counts: ModuleCounts, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the counts of a module. Raises as `line_samples.tree_of` and `probe_samples.tree_of`."""
    probed = probe_samples.probed_binary(counts.module)
    if options.contexts:
        if probed is None:
            raise UnavailableError(
                f"{word(counts.module.name)} has no pseudo probes, which contexts are counted by",
                hint="build with clang -fpseudo-probe-for-profiling",
            )
        tree, exported = context_samples.tree_of(counts, options, probed)
    elif probed is None:
        tree, exported = line_samples.tree_of(counts, options)
    else:
        tree, exported = probe_samples.tree_of(counts, options, probed)
    write_tree(tree, out, options)
    return exported


def write_tree(tree: SampleTree, out: IO[bytes], options: ExportOptions) -> None:
    """Write a profile as text, or in the binary form where the user asks for that."""
    if options.extbinary:
        out.write(as_extbinary(tree))
    else:
        out.writelines(function.encode("utf-8", "surrogateescape") for function in tree.text())


FORMAT = ModuleFormat("prof", write)
