"""The reference page of trace sessions: functions, classes, modes, flags, codes, from the tables of code and tests."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "tools"))

from etw_codes import CODES
from etw_modes import MODES
from lastbranch import etw
from lastbranch.etw.flags import ClientContext, Control, EnableProvider, Info, V2Option, WnodeFlag
from lastbranch.etw.information import QUERIES, SETS, Setting
from lastbranch.etw.portable.enable_map import ROWS
from lastbranch.etw.portable.request import RULES, RequestTrait
from lastbranch.etw.portable.sources.plan import COUNTERS, FOLLOWERS
from lastbranch.etw.structures import LAYOUTS, UNPROVEN, layout_of
from lastbranch.etw.windows.libraries import FUNCTIONS
from lastbranch.lbr import NOTATIONS

__all__ = ["etw_reference"]

_SENTENCES = "etw/test_sentences.py"
_TESTS = {
    "control_api": "`etw/test_api.py`, `etw/test_sentences.py`",
    "provider_api": "`etw/test_api.py`, `etw/test_stateful.py`",
    "consumer_api": "`etw/test_consumer.py`, `etw/portable/test_realtime.py`", "merging": "`etw/test_merging.py`",
}  # fmt: skip
_WINDOWS_NAMES = {"EventWrite": "EventWriteTransfer", "EventEnabled": "EventProviderEnabled"}
_CONTROLS = {
    Control.QUERY: ("the state", "statistics_of_the_pool"), Control.STOP: ("ends it", "room_for_the_name"),
    Control.UPDATE: ("FlushTimer, MaximumBuffers, EnableFlags, the file, real time", "etw/portable/test_control.py"),
    Control.FLUSH: ("writes the buffers; in buffering mode, to the file that is given", "buffering_flushes_on_demand"),
    Control.INCREMENT_FILE: ("the next file of a row", "rows_of_files_get_numbers"),
    Control.CONVERT_TO_REALTIME: ("real time instead of the file", "etw/portable/test_control.py"),
}  # fmt: skip
_CLASS_TESTS = {
    Info.STACK_TRACING_INFO: "etw/portable/sources/test_linux.py",
    Info.PMC_EVENT_LIST_INFO: "etw/portable/sources/test_counters.py",
    Info.PMC_COUNTER_LIST_INFO: "etw/portable/sources/test_counters.py", Info.SET_DISALLOW_LIST: "the_disallow_list",
    Info.LBR_CONFIGURATION_INFO: "etw/portable/test_control.py",
    Info.LBR_EVENT_LIST_INFO: "etw/portable/test_control.py",
    Info.PROFILE_SOURCE_CONFIG_INFO: "the_example", Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO: "masks_of_a_system_logger",
    Info.SAMPLED_PROFILE_INTERVAL_INFO: "intervals", Info.PROFILE_SOURCE_LIST_INFO: "a_chain_of_sources",
    Info.SOFTWARE_BRANCH_TARGETS_INFO: "etw/portable/test_lbr_session.py",
    Info.VERSION_INFO: "the_version", Info.DISALLOW_LIST_QUERY: "the_disallow_list",
}  # fmt: skip
_OPTIONS = {
    V2Option.EXCLUDE_KERNEL_STACK: "kernel frames are left out",
    V2Option.LARGE_MDL_PAGES: "50: buffers have no memory descriptor lists (our choice)",
}
_OPTION_TESTS = {
    V2Option.EXCLUDE_KERNEL_STACK: "etw/portable/sources/test_sources.py",
    V2Option.LARGE_MDL_PAGES: "options_are_bit_fields",
}
_LBR = {
    "KERNEL": ("yes: software sees none anyway", "a_record_for_each_trigger"),
    "USER": ("50 with the software record, which sees nothing else", "flags_of_other_processors"),
    "SAMPLED": ("50: it is for ARM64 with SPE alone", "flags_of_other_processors"),
    "CALLSTACK_ENABLE": ("yes", "etw/portable/test_lbr.py"),
}


def etw_reference() -> str:
    """The page, as Markdown."""
    parts = (_head, _functions, _controls, _classes, _modes, _flags, _branches, _other, _structures, _codes)
    return "\n".join(line for part in parts for line in (*part(), ""))


def _table(*columns: str) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _case(name: str) -> str:
    """A test as the tables show it: a file, or a case of the sentences."""
    return f"`{name}`" if name.endswith(".py") else f"`{_SENTENCES}` {name}"


def _head() -> list[str]:
    return [
        "# Trace sessions",
        "",
        "Made from the tables of `lastbranch.etw` and of its tests. *Portable* is the kernel of this package,",
        "*Windows* the system's own. Nothing of the latter was executed on Windows: what each call rests on instead",
        "is in [Trace sessions on Windows](etw-windows.md). Tests are files of `tests/`, or a case of",
        "`etw/test_sentences.py`, which runs on real sessions of the portable kernel. Codes that no document states",
        "are *our choice*. What each document states, with its proof: [What the documents say](documents.md).",
    ]


def _functions() -> Iterator[str]:
    yield "## Functions"
    yield ""
    yield "OUT parameters are returned after the status; IN/OUT structures are changed in place."
    yield ""
    yield from _table("function", "portable", "on Windows", "test")
    for name in etw.__all__:
        module = getattr(getattr(etw, name), "__module__", "").rpartition(".")[2]
        if module not in _TESTS or inspect.isclass(getattr(etw, name)) or name.islower():  # ours, not the vendor's
            continue
        theirs = FUNCTIONS.get(name) or FUNCTIONS.get(f"{name}W") or FUNCTIONS[_WINDOWS_NAMES[name]]
        since = f"yes, since {theirs.since}" if theirs.since else "yes"
        since = since.replace("since the", "with the")
        yield _row(f"`{name}`", "yes", since, f"{_TESTS[module]}; `etw/windows/test_*.py`")
    yield ""
    yield "Before build 26100.1301 TraceConfigureLastBranchRecord is carried out by classes 20 and 21."


def _controls() -> Iterator[str]:
    yield "## Control codes"
    yield ""
    yield from _table("ControlTrace", "name", "what it does", "portable", "on Windows", "test")
    for code, (what, test) in _CONTROLS.items():
        yield _row(int(code), f"EVENT_TRACE_CONTROL_{code.name}", what, "yes", "yes", _case(test))
    yield ""
    yield from _table("EnableTraceEx2", "name", "portable", "on Windows", "test")
    for enable in EnableProvider:
        name = f"EVENT_CONTROL_CODE_{enable.name}" + ("_PROVIDER" if enable < 2 else "")
        yield _row(int(enable), name, "yes", "yes", "`etw/portable/test_control.py`, `etw/test_stateful.py`")


def _classes() -> Iterator[str]:
    yield "## Information classes"
    yield ""
    yield "*machine*: the handle must be 0; *session*: it must not. Class 0x10000 is of this package (our choice, above"
    yield "all numbers of the vendor): 32-bit numbers, N for process N and -N for all that descends from process N."
    yield "Their branches are recorded by software. System loggers take it at any time; an empty array ends it."
    yield ""
    yield "Where the portable kernel gives 50 for a class, Windows is asked: *passed on*, also for numbers above 28."
    yield ""
    yield from _table("class", "name", "query", "set", "of", "lengths of set", "portable", "on Windows", "test")
    for info in Info:
        query, put = QUERIES.get(info), SETS.get(info)
        lengths = _lengths(put) if put else ""
        fits = (
            "" if query is None else "exact fit" if query.exact else f"{query.fixed} or more" if query.fixed else "any"
        )
        row = put or query
        of = "" if row is None else "machine" if row.of_machine else "session"
        how = "yes" if row else "50"
        ours = info == Info.SOFTWARE_BRANCH_TARGETS_INFO
        windows = "87, without a call" if ours else "yes" if row else "passed on"
        test = _case(_CLASS_TESTS[info]) if row else _case("every_other_class")
        yield _row(f"{int(info):#04x}", info.name, fits, "yes" if put else "50", of, lengths, how, windows, test)


def _lengths(put: Setting) -> str:
    times = str(put.least) if put.least == put.most else f"{put.least} to {put.most}" if put.most else "any number"
    return f"{times} of {put.codec.size} bytes"


def _modes() -> Iterator[str]:
    yield "## Logging modes"
    yield ""
    yield from _table("bit", "name", "needs", "not with", "portable", "on Windows", "test")
    for mode in MODES:
        rules = [rule for rule in RULES if rule.when == mode.mode and mode.mode]
        needs = [a.name for rule in rules for a in RequestTrait if a in rule.needs] + [
            str(m.name) for rule in rules for m in rule.needs_mode
        ]
        forbids = [str(m.name) for rule in rules for m in rule.forbids if m != mode.mode] + [
            f"{a.name.lower()} loggers" for rule in rules for a in RequestTrait if a in rule.not_for
        ]
        name = str(mode.mode.name)
        yield _row(
            f"`{int(mode.mode):#x}`",
            name,
            ", ".join(map(str, needs)),
            ", ".join(forbids),
            mode.does,
            "passed on",
            f"`etw/test_modes.py` {name}",
        )
    yield ""
    yield "FILE is a log file's name, SIZE a MaximumFileSize. SEQUENTIAL with NEWFILE is NEWFILE."


def _flags() -> Iterator[str]:
    yield "## EnableFlags and groups"
    yield ""
    yield "On Windows all flags are passed on. Their events: [Kernel events of a portable session](etw-sources.md)."
    yield ""
    yield from _table("word", "bit", "name", "portable", "test")
    for row in ROWS:
        how = f"yes: {row.linux}" if row.linux else f"50: {row.why}" if row.why else "taken; enables no event"
        joint = {kind for follower in FOLLOWERS for kind in follower.needs} | {COUNTERS}
        file = "test_joint_events.py" if joint & set(row.kinds) else "test_linux.py" if row.linux else "test_map.py"
        file = "test_sources.py" if "ready" in row.kinds else file
        test = f"etw/portable/sources/{file}"
        yield _row(row.word, f"`{row.bits:#x}`", row.name, how, f"`{test}`")


def _branches() -> Iterator[str]:
    yield "## Flags of branch records"
    yield ""
    yield from _table("bit", "EVNTRACE_LBR_", "portable", "on Windows", "test")
    yield _row("`0x0`", "FILTER_NONE", "yes", "yes", _case("the_example"))
    for name, bit in NOTATIONS["etw"].named().items():
        how, test = _LBR.get(name, ("yes", "etw/portable/test_lbr.py"))
        full = name if name in ("SAMPLED", "CALLSTACK_ENABLE") else f"FILTER_{name}"
        yield _row(f"`{bit:#x}`", full, how, "yes", _case(test))


def _other() -> Iterator[str]:
    yield "## Other flags of the properties"
    yield ""
    yield from _table("member", "value", "name", "portable", "on Windows", "test")
    clocks = {ClientContext.CPU_CYCLES: "87: Linux has no clock of them"}
    for clock in ClientContext:
        yield _row("Wnode.ClientContext", int(clock), clock.name, clocks.get(clock, "yes"), "yes", _case("clocks"))
    for flag, test in zip(WnodeFlag, ("the_flag_of_the_header", "version_2_counts_with_its_flag"), strict=True):
        yield _row("Wnode.Flags", f"`{int(flag):#x}`", flag.name, "yes", "yes", _case(test))
    for option in V2Option:
        how = _OPTIONS.get(option, "kept and reported: the page calls it unused")
        if option:
            test = _case(_OPTION_TESTS.get(option, "options_are_kept"))
            yield _row("V2Options", f"`{int(option):#x}`", option.name, how, "passed on", test)


def _structures() -> Iterator[str]:
    yield "## Structures"
    yield ""
    yield "Offsets of every member: `src/lastbranch/etw/layouts.json`. *Compiler*: proven by `make etw-layouts`."
    yield ""
    yield from _table("structure", "bytes, 64-bit", "bytes, 32-bit", "rests on", "test")
    for name in LAYOUTS:
        sizes = (layout_of(name, bits)["sizeof"] for bits in (64, 32))
        yield _row(name, *sizes, "the vendor's page" if name in UNPROVEN else "compiler", "`etw/test_layouts.py`")


def _codes() -> Iterator[str]:
    yield "## Codes"
    yield ""
    yield from _table("call", "code", "name", "for", "stated by", "test")
    for row in CODES:
        yield _row(row.call, int(row.status), row.status.name, row.why, row.source, f"`{row.test}`")
