"""Collect last branch records with a trace session: the vendor's recipe, on Windows and on Linux.

    python examples/lbr_recipe.py [LbrProfile.etl] [--interval 65536]

This is the example program of TraceConfigureLastBranchRecord's page in Python, with these differences. The script
chooses the profile source by its name, because numbers from 25 on differ from machine to machine. It reads the
session's group masks, adds PMC_PROFILE and writes the masks back, because PMC_PROFILE alone would end the process,
thread and image events. The session has buffers for the many events at the start, and a workload runs during the
session. After the session, the script merges image identities into the log.

Windows needs an elevated prompt (SeSystemProfilePrivilege), and the Windows Performance Toolkit for the merge. A
machine without hardware branch records offers the source ``SoftwareBranches``, which records the workload alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lastbranch.etw import (
    GROUPS,
    CreateMergedTraceFile,
    EnableFlag,
    EtwError,
    LogFileMode,
    ProfileSource,
    Session,
    SessionState,
    Status,
    configure_profile_sources,
    profile_sources,
    set_profile_interval,
)
from lastbranch.etw.flags import PERFINFO_PROVIDER

PMC_INTERRUPT = (PERFINFO_PROVIDER, 0x2F)
"""The event that triggers branch records: PERFINFO_LOG_TYPE_PMC_INTERRUPT."""
SOFTWARE = "SoftwareBranches"
SOURCES = (SOFTWARE, "BranchInstructionRetired", "BranchInstructions")
"""The first of these that the machine has. The software source is there only where the processor records no branches;
many virtual machines have the others, whose interrupts would trigger nothing then."""
IMAGE_IDENTITIES = 0x1
"""EVENT_TRACE_MERGE_EXTENDED_DATA_IMAGEID."""
WORKLOAD = """
import sys
sys.stdin.readline()

def collatz(n):
    steps = 0
    while n != 1:
        n = 3 * n + 1 if n % 2 else n // 2
        steps += 1
    return steps

print("longest of the first 200,000:", max(range(1, 200_000), key=collatz))
"""
"""The program that runs under the session: put your own here. This program waits for a line, so that the session exists
first."""


def chosen_source() -> ProfileSource:
    """The profile source that counts branches, by name."""
    found = {source.name: source for source in profile_sources()}
    for name in SOURCES:
        if name in found:
            return found[name]
    raise SystemExit(f"no source of {', '.join(SOURCES)}; there are: {', '.join(found) or 'none'}")


def record(file: str, interval: int, workload: str = WORKLOAD) -> SessionState:
    """Run ``workload`` under a session that logs to ``file``; the session's last state."""
    source = chosen_source()
    # Preferably before the session is started, says the page.
    configure_profile_sources([source.source])
    set_profile_interval(source.source, min(max(interval, source.minimum), source.maximum))
    work = subprocess.Popen([sys.executable, "-c", workload], stdin=subprocess.PIPE, text=True)
    try:
        session = Session(
            "LbrLogger",
            file,
            mode=LogFileMode.FILE_MODE_SEQUENTIAL | LogFileMode.SYSTEM_LOGGER_MODE,
            enable_flags=EnableFlag.PROCESS | EnableFlag.THREAD | EnableFlag.IMAGE_LOAD,
            buffer_size=256,
            minimum_buffers=32,
            maximum_buffers=128,
            targets=[work.pid] if source.name == SOFTWARE else [],
        )
        with session:
            session.configure_lbr([PMC_INTERRUPT])
            group = GROUPS["PMC_PROFILE"]
            masks = session.masks
            masks[group.word] |= group.bits
            session.masks = masks
            work.communicate("go\n")
    finally:
        work.kill()
        work.wait()
    assert session.final is not None
    return session.final


def with_identities(file: str) -> str:
    """``file`` with the identities of its images merged in, as NAME.merged.etl; ``file`` where that cannot be done."""
    merged = str(Path(file).with_suffix(".merged.etl"))
    status = CreateMergedTraceFile(merged, [file], IMAGE_IDENTITIES)
    if status != Status.SUCCESS:
        print(f"not merged: CreateMergedTraceFile gave {int(status)}", file=sys.stderr)
        return file
    return merged


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; 1 where a call fails, with the call, its code and the reason on standard error."""
    parser = argparse.ArgumentParser(description="Collect last branch records with a trace session.")
    parser.add_argument("file", nargs="?", default="LbrProfile.etl", help="log file (%(default)s)")
    parser.add_argument("--interval", type=int, default=65536, help="branches between two records (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        state = record(given.file, given.interval)
    except EtwError as error:
        print(f"{error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 1
    print(f"{state.buffers_written} buffers written, {state.events_lost} events lost")
    print(f"read it with: lastbranch report {with_identities(given.file)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
