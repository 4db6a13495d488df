"""What a recorded perf.data says of its machine: bodies of the header features.

Layouts: tools/perf/Documentation/perf.data-file-format.txt and tools/perf/util/header.c of Linux.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ...formats.perfdata.layout import MISC
from ...formats.perfdata.writer import Described, build_id_entry, event_desc, text
from ...model import Module, ModuleKind
from ...symbols.kallsyms import running_build_id
from ..host import Host
from ..kernel import Kernel
from ..machine import machine_features

__all__ = ["features_of", "late_build_ids"]


def features_of(
    kernel: Kernel, host: Host, events: Sequence[Described], command_line: Sequence[str], branches: bool
) -> dict[str, bytes]:
    """Header features by name. The clock's two readings are taken now."""
    found = machine_features(kernel.text, host.release, host.machine, command_line) | {
        "EVENT_DESC": event_desc(events),
        "PMU_MAPPINGS": _pmu_mappings(host),
        "PMU_CAPS": _pmu_caps(host),
    }
    if branches:
        found["BRANCH_STACK"] = b""
    if build_id := running_build_id(read=kernel.data):
        found["BUILD_ID"] = build_id_entry(build_id, "[kernel.kallsyms]", MISC.KERNEL)
    return found


def late_build_ids(kernel: Kernel, modules: Sequence[Module]) -> bytes:
    """Entries of BUILD_ID for binaries whose mappings carry no id, as they are now (kernels before 5.12)."""
    found = ((m.name, kernel.build_id(m.name)) for m in modules if m.kind is ModuleKind.FILE and not m.build_id)
    return b"".join(build_id_entry(build_id, name, MISC.USER) for name, build_id in found if build_id)


def _pmu_mappings(host: Host) -> bytes:
    pairs = [struct.pack("=I", pmu.type) + text(name) for name, pmu in host.pmus.items()]
    return struct.pack("=I", len(pairs)) + b"".join(pairs)


def _pmu_caps(host: Host) -> bytes:
    """u32 sources; for each u32 capabilities, pairs of names and values, the source's name."""
    with_caps = [pmu for pmu in host.pmus.values() if pmu.caps]
    parts = [struct.pack("=I", len(with_caps))]
    for pmu in with_caps:
        parts.append(struct.pack("=I", len(pmu.caps)))
        parts += [text(word) for pair in pmu.caps.items() for word in pair]
        parts.append(text(pmu.name))
    return b"".join(parts)
