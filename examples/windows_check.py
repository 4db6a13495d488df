"""Run every call of Windows' trace API through lastbranch, and write what happened to one file.

    python windows_check.py [windows_check.json]

For anybody with Windows: lastbranch's code for Windows was written without one. Run the script in an elevated prompt;
otherwise it skips all steps that need rights. The script takes less than a minute, prints ``pass``, ``FAIL`` or
``skip`` for each step, and writes the file: please send the file back. In it are the build of Windows, the processor's
name, the profile sources, and the codes and numbers of the calls; no names of users, files or programs.

Sessions are called lastbranch-check. The last step stops what runs of them, sets the interval of the profile source
back, and removes the folder for the logs.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import lastbranch
from lastbranch import etw
from lastbranch.errors import LastbranchError
from lastbranch.etw import (
    EnableFlag,
    EtwError,
    Logfile,
    LogFileMode,
    ProcessTraceMode,
    Session,
    Status,
    kernel_choice,
)
from lastbranch.etw.windows.kernel import WindowsKernel, enable_privilege
from lastbranch.etw.windows.libraries import FUNCTIONS
from lastbranch.version import __version__

NAME = "lastbranch-check"
PROVIDER = UUID("6ab0e6a1-3d4c-4c50-9d0b-7a4d8c3f5e21")
"""Nobody's: made for this script."""
PMC_INTERRUPT = (etw.flags.PERFINFO_PROVIDER, 0x2F)
EVENT_RECORD, REAL_TIME = ProcessTraceMode.EVENT_RECORD, ProcessTraceMode.REAL_TIME
SEQUENTIAL, SYSTEM = LogFileMode.FILE_MODE_SEQUENTIAL, LogFileMode.SYSTEM_LOGGER_MODE
WORK = "for round in range(60): sum(n % 7 for n in range(100_000))"
FEW, WAIT = 20, 20.0
"""Events that the provider writes, and seconds for what Windows does in a thread of its own."""


class Skip(Exception):
    """A step that this machine or account cannot run."""


class Check:
    """The state that the steps share, and their findings."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="lastbranch-check-")
        self.found: dict[str, Any] = {}
        """The entries of the running step for the report."""
        self.elevated = True
        self.log = self.lbr_log = ""
        self.interval: tuple[int, int] | None = None
        """Profile source, and its interval before."""

    def file(self, name: str) -> str:
        """The path of a log."""
        return os.path.join(self.folder, name)

    def note(self, **values: Any) -> None:
        """Keep values for the report."""
        self.found |= values

    def equal(self, what: str, got: Any, *wanted: Any) -> None:
        """Note a value; `AssertionError` if it is none of the wanted values."""
        self.note(**{what: got})
        if got not in wanted:
            raise AssertionError(f"{what} is {got!r}, not {' or '.join(map(repr, wanted))}")

    def needs_rights(self) -> None:
        """`Skip` without an elevated prompt."""
        if not self.elevated:
            raise Skip("needs an elevated prompt")


STEPS: list[tuple[str, Callable[[Check], None]]] = []


def step(name: str) -> Callable[[Callable[[Check], None]], Callable[[Check], None]]:
    """The decorated function is the next step."""

    def add(function: Callable[[Check], None]) -> Callable[[Check], None]:
        STEPS.append((name, function))
        return function

    return add


def system() -> WindowsKernel:
    """Windows' kernel of trace sessions."""
    found = kernel_choice.windows()
    assert found is not None
    return found


# -- files


def icacls(*words: str) -> str:
    """The output of Windows' own tool."""
    return subprocess.run(["icacls", *words], capture_output=True, text=True, check=True).stdout


@step("access lists of files")
def access_lists(check: Check) -> None:
    """A command's files have the access list of a file that another program made in the same folder."""
    from lastbranch.model.atomic_output import PartFolder

    folder, everyone = check.file("shared"), "*S-1-1-0:(OI)(CI)R"
    os.mkdir(folder)
    icacls(folder, "/grant", everyone)
    made, left = os.path.join(folder, "made"), os.path.join(folder, "left")
    with PartFolder(left, private=True) as part:
        part.open("inside").close()
        part.give("inside")
    with open(made, "wb"):
        pass
    check.equal("as another program's", icacls(left).replace(left, "") == icacls(made).replace(made, ""), True)


# -- what is there


@step("exports of the DLLs")
def exports(check: Check) -> None:
    libraries, missing = system().libraries, []
    for name in FUNCTIONS:
        try:
            libraries.function(name)
        except EtwError as error:
            missing.append(name)
            check.note(**{name: str(error)})
    check.note(build=libraries.loader.build())
    newer = {"TraceConfigureLastBranchRecord", "CreateMergedTraceFile"}
    check.equal("missing, that every Windows has", sorted(set(missing) - newer), [])


@step("SeSystemProfilePrivilege")
def privilege(check: Check) -> None:
    try:
        enable_privilege(system().libraries)
    except EtwError as error:
        check.elevated = error.status != Status.PRIVILEGE_NOT_HELD
        raise Skip(str(error)) from None


@step("TraceQueryInformation: version, profile sources, intervals")
def information(check: Check) -> None:
    version = etw.TRACE_VERSION_INFO()
    check.equal("version call", etw.TraceQueryInformation(0, etw.TraceVersionInfo, version, 8), (0, 8))
    check.note(version=version.EtwTraceProcessingVersion)
    check.equal("wrong length", etw.TraceQueryInformation(0, etw.TraceVersionInfo, bytearray(9), 9)[0], 24)
    sources = etw.profile_sources()
    check.note(sources=[list(source) for source in sources])
    assert sources, "there is no profile source"
    check.note(intervals={source.name: etw.profile_interval(source.source) for source in sources})


@step("TraceQueryInformation: classes of newer systems")
def newer_classes(check: Check) -> None:
    """Any answer of Windows is right; the report has the answer."""
    for info in (*range(12, 14), *range(15, 30)):
        buffer = bytearray(256)
        status, length = etw.TraceQueryInformation(0, info, buffer, len(buffer))
        check.note(**{f"class {info}": [int(status), length, bytes(buffer[: min(length, 64)]).hex()]})


@step("codes of Windows' own checks")
def raw_codes(check: Check) -> None:
    """Past this package's checks: which code, where the documents state none."""
    check.needs_rights()
    functions, three = system().libraries, ctypes.c_uint32(3)
    for what, name, arguments in (
        ("query without a class", "TraceQueryInformation", (0, 4095, None, 0, None)),
        ("size query of class 7", "TraceQueryInformation", (0, 7, None, 0, ctypes.byref(three))),
        ("interval with a handle", "TraceQueryInformation", (1, 5, bytes(8), 8, None)),
        ("LBR of no session", "TraceConfigureLastBranchRecord", (0xDEAD, 0, None, 0)),
        ("LBR, five events", "TraceConfigureLastBranchRecord", (0xDEAD, 0, bytes(120), 5)),
        ("LBR, kernel and user left out", "TraceConfigureLastBranchRecord", (0xDEAD, 3, bytes(24), 1)),
        ("LBR, unknown flags", "TraceConfigureLastBranchRecord", (0xDEAD, 0x800, bytes(24), 1)),
        ("LBR, events missing", "TraceConfigureLastBranchRecord", (0xDEAD, 0, None, 1)),
    ):
        if functions.has(name):
            check.note(**{what: int(functions.function(name)(*arguments))})


# -- a session and a provider


@contextmanager
def stopped(session: Session) -> Iterator[Session]:
    """Start a session, and stop it if the step has not."""
    session.start()
    try:
        yield session
    finally:
        if session.handle:
            session.stop()


@step("StartTrace, ControlTrace, QueryAllTraces, EnableTraceEx2, events, TraceEvent")
def a_session(check: Check) -> None:
    file, called = check.file("session.etl"), threading.Event()
    states: list[tuple[int, int]] = []

    def enabled(source: UUID, code: int, level: int, match_any: int, *_: Any) -> None:
        states.append((int(code), level))
        called.set()

    status, provider = etw.EventRegister(PROVIDER, enabled, None)
    check.equal("EventRegister", int(status), 0)
    try:
        with stopped(Session(NAME, file, mode=SEQUENTIAL, flush_timer=1)) as session:
            request = session.request
            check.note(adjusted=[request.buffer_size, request.minimum_buffers, request.maximum_buffers, request.clock])
            check.equal("file", request.file == file, True)
            check.equal("second of the name", _status(lambda: Session(NAME.upper(), file).start()), 183)
            check.equal("query by name", Session.of(NAME.upper()).handle == session.handle, True)
            _sessions(check)
            session.update(flush_timer=2)
            check.equal("file after an update", session.request.file == file, True)
            check.equal("flush timer", session.request.flush_timer, 2)
            session.enable(PROVIDER, level=4, keywords=0x3, event_ids=[1, 2], timeout=5)
            assert called.wait(WAIT), "the provider's callback was not called"
            check.equal("callback", states[0], (1, 4))
            _write(check, provider, session)
            session.flush()
            session.capture_state(PROVIDER)
            session.disable(PROVIDER)
            _disallow(check, session)
            final = session.stop()
        check.note(written=final.buffers_written, lost=final.events_lost, states=states)
        check.equal("file at the end", final.request.file == file and os.path.getsize(file) > 0, True)
        check.log = file
    finally:
        check.equal("EventUnregister", int(etw.EventUnregister(provider)), 0)


def _disallow(check: Check, session: Session) -> None:
    """The list of providers that a session never enables, and what enabling one gives."""
    session.disallow([PROVIDER])
    listed = bytearray(16)
    check.equal("disallow list", etw.TraceQueryInformation(session.handle, 14, listed, 16), (0, 16))
    check.equal("disallowed", listed == PROVIDER.bytes_le, True)
    check.note(enabled_all_the_same=_status(lambda: session.enable(PROVIDER)))


def _status(call: Callable[[], object]) -> int:
    """The code of a call that is to fail; 0 if it does not."""
    try:
        call()
    except EtwError as error:
        return int(error.status)
    return 0


def _sessions(check: Check) -> None:
    """QueryAllTraces with arrays of 64 and of 100."""
    for room in (64, 100):
        array = [ctypes.create_string_buffer(4096) for _ in range(room)]
        for buffer in array:
            properties = etw.EVENT_TRACE_PROPERTIES.from_buffer(buffer)
            properties.Wnode.BufferSize, properties.LoggerNameOffset = len(buffer), ctypes.sizeof(properties)
        status, count = etw.QueryAllTraces(array, room)
        check.note(**{f"sessions in {room}": [int(status), count]})
    names = [state.request.name for state in etw.sessions()]
    check.equal("listed", NAME in names, True)


def _write(check: Check, provider: int, session: Session) -> None:
    """Events that the session takes and others, and a classic one."""
    descriptor = etw.EventDescriptor(1, level=4, keyword=0x1)
    check.equal("EventEnabled", etw.EventEnabled(provider, descriptor), True)
    check.equal("EventProviderEnabled above", etw.EventProviderEnabled(provider, 5, 0x1), False)
    data = ctypes.create_string_buffer(b"payload", 7)
    piece = etw.EVENT_DATA_DESCRIPTOR(ctypes.addressof(data), 7)
    codes = Counter(int(etw.EventWrite(provider, descriptor, 1, piece)) for _ in range(FEW - 1))
    codes[int(etw.EventWriteTransfer(provider, descriptor, PROVIDER, None, 1, piece))] += 1
    check.equal("EventWrite", dict(codes), {0: FEW})
    check.equal("other keyword", int(etw.EventWrite(provider, etw.EventDescriptor(2, level=4, keyword=0x8))), 0)
    check.note(too_large=int(etw.EventWrite(provider, descriptor, 1, _large())))
    traits = b"\x0a\0check\0\0\0"
    check.note(traits=int(etw.EventSetInformation(provider, 2, traits, len(traits))))
    head = etw.EVENT_TRACE_HEADER(Size=48, Version=9, Guid=etw.guid_of(PROVIDER), ProcessorTime=0x20000 << 32)
    check.note(TraceEvent=int(etw.TraceEvent(session.handle, head)))


_BIG = ctypes.create_string_buffer(65500)


def _large() -> Any:
    return etw.EVENT_DATA_DESCRIPTOR(ctypes.addressof(_BIG), len(_BIG))


@step("OpenTrace, ProcessTrace, CloseTrace on a file; the same events by lastbranch's reader")
def a_file(check: Check) -> None:
    if not check.log:
        raise Skip("there is no log of the session")
    seen: Counter[tuple[str, int, int]] = Counter()
    contexts, buffers = Counter[int](), Counter[bool]()

    def came(record: Any) -> None:
        contexts[record.UserContext] += 1
        header = record.EventHeader
        if etw.uuid_of(header.ProviderId) == PROVIDER:
            payload = ctypes.string_at(record.UserData, min(record.UserDataLength, 7)) if record.UserData else b""
            seen[payload.decode("latin-1"), header.EventDescriptor.Id, header.EventDescriptor.Opcode] += 1

    logfile = Logfile(LogFileName=check.log, ProcessTraceMode=EVENT_RECORD, Context=0x1234)
    logfile.EventRecordCallback = came
    logfile.BufferCallback = lambda given: buffers.update([given is logfile])
    status, handle = etw.OpenTrace(logfile)
    check.equal("OpenTrace", int(status), 0)
    header = logfile.LogfileHeader
    check.note(
        opened=[logfile.BufferSize, logfile.EventsLost, logfile.IsKernelTrace, header.BufferSize, header.EventsLost],
        pointer=header.PointerSize,
        processors=header.NumberOfProcessors,
        frequency=header.PerfFreq,
    )
    check.equal("ProcessTrace", int(etw.ProcessTrace([handle], None, None)), 0)
    check.note(buffers=buffers[True], contexts={hex(value): count for value, count in contexts.items()})
    check.equal("CloseTrace", int(etw.CloseTrace(handle)), 0)
    check.equal("context", list(contexts), [0x1234])
    check.equal("events", seen["payload", 1, 0], FEW)
    from lastbranch.etw.streams import open_stream  # not Windows' reader

    ours = Counter(
        event.payload[:7].decode("latin-1")
        for part in _blocks(open_stream(check.log, session=False))
        for event in part
        if event.provider == PROVIDER.bytes_le
    )
    check.equal("events by our reader", ours["payload"], FEW)
    check.equal("all of the provider, by both", sum(ours.values()) == sum(seen.values()), True)


def _blocks(stream: Any) -> Iterator[Any]:
    from lastbranch.formats.etl.events.columns import events_of

    try:
        for part in stream.parts():
            yield events_of(part.block)
    finally:
        stream.close()


@step("OpenTrace, ProcessTrace and CloseTrace: what they refuse")
def refusals(check: Check) -> None:
    check.equal("no file", int(etw.OpenTrace(Logfile(LogFileName=check.file("none.etl")))[0]), 2, 3)
    live = Logfile(LoggerName=f"{NAME}-none", ProcessTraceMode=REAL_TIME | EVENT_RECORD)
    check.note(no_session=int(etw.OpenTrace(live)[0]))
    check.equal("no handle", int(etw.ProcessTrace([0x7FFFFFFF0], None, None)), 6)
    check.equal("no session", _status(lambda: Session.of(f"{NAME}-none")), 4201)
    check.note(close_of_none=int(etw.CloseTrace(0x7FFFFFFF0)))


@step("a session in real time, read by ProcessTrace")
def real_time(check: Check) -> None:
    seen: list[bytes] = []
    came = threading.Event()

    def record(one: Any) -> None:
        seen.append(bytes(one.EventHeader.ProviderId))
        if seen[-1] == PROVIDER.bytes_le:
            came.set()

    with stopped(Session(NAME, mode=LogFileMode.REAL_TIME_MODE, flush_timer=1)) as session:
        with etw.Provider(PROVIDER) as provider:
            session.enable(PROVIDER, level=4, timeout=5)
            check.note(enabled=provider.enabled)
            logfile = Logfile(LoggerName=NAME, ProcessTraceMode=REAL_TIME | EVENT_RECORD)
            logfile.EventRecordCallback = record
            status, handle = etw.OpenTrace(logfile)
            check.equal("OpenTrace", int(status), 0)
            check.equal("EventWrite", int(provider.event(7, b"live", level=4)), 0)
            reading = threading.Thread(target=etw.ProcessTrace, args=([handle], None, None), daemon=True)
            reading.start()
            with suppress(EtwError):
                session.flush()
            came.wait(WAIT)  # the count of events finds a missing event
        session.stop()
    reading.join(WAIT)
    check.note(ended=not reading.is_alive(), closed=int(etw.CloseTrace(handle)))
    check.equal("event", seen.count(PROVIDER.bytes_le), 1)


@step("ControlTrace: flush of a buffering session, next file, real time instead of a file")
def other_controls(check: Check) -> None:
    with stopped(Session(NAME, mode=LogFileMode.BUFFERING_MODE, buffer_size=64)) as session:
        check.note(flush_to_a_file=_status(lambda: session.flush(check.file("flight.etl"))))
    row = check.file("row%d.etl")
    with stopped(Session(NAME, row, mode=LogFileMode.FILE_MODE_NEWFILE, maximum_file_size=1)) as session:
        check.note(next_file=_status(session.increment_file), files=len(session.log_files))
    both = SEQUENTIAL | LogFileMode.REAL_TIME_MODE
    with stopped(Session(NAME, check.file("both.etl"), mode=both)) as session:
        check.note(to_real_time=_status(session.convert_to_real_time))


# -- branch records


@step("branch records: TraceSetInformation, TraceConfigureLastBranchRecord, a system logger")
def branch_records(check: Check) -> None:
    check.needs_rights()
    sources = {source.name: source for source in etw.profile_sources()}
    name = next((n for n in ("BranchInstructionRetired", "BranchInstructions") if n in sources), None)
    if name is None:
        raise Skip(f"no profile source counts branches; there are: {', '.join(sources)}")
    source = sources[name]
    check.interval = source.source, etw.profile_interval(source.source)
    etw.configure_profile_sources([source.source])
    etw.set_profile_interval(source.source, max(65536, source.minimum))
    check.equal("interval", etw.profile_interval(source.source), max(65536, source.minimum))
    flags = EnableFlag.PROCESS | EnableFlag.THREAD | EnableFlag.IMAGE_LOAD
    buffers = {"buffer_size": 256, "minimum_buffers": 32, "maximum_buffers": 128}
    session = Session(NAME, check.file("lbr.etl"), mode=SEQUENTIAL | SYSTEM, enable_flags=flags, **buffers)
    with stopped(session):
        check.note(masks_before=session.masks)
        check.note(stacks=_status(lambda: session.trace_stacks([PMC_INTERRUPT])))
        counters = bytes(etw.information.EVENT_IDS.encode([PMC_INTERRUPT]))
        check.note(counted_events=int(etw.TraceSetInformation(session.handle, 8, counters, len(counters))))
        number = ctypes.c_uint32(source.source)
        check.note(counters=int(etw.TraceSetInformation(session.handle, 9, number, 4)))
        caching = etw.TRACE_STACK_CACHING_INFO(1, CacheSize=1 << 20, BucketCount=256)
        check.note(stack_caching=int(etw.TraceSetInformation(session.handle, 24, caching, 12)))
        try:
            session.configure_lbr([PMC_INTERRUPT])
        except EtwError as error:
            if error.status == Status.NOT_SUPPORTED:
                raise Skip(f"no branch records: {error}") from None
            raise
        group, masks = etw.GROUPS["PMC_PROFILE"], session.masks
        masks[group.word] |= group.bits
        session.masks = masks
        check.equal("masks", session.masks[1] & 0x400, 0x400)
        subprocess.run([sys.executable, "-c", WORK], check=True)
        session.configure_lbr([])
        final = session.stop()
    check.note(written=final.buffers_written, lost=final.events_lost)
    check.lbr_log = check.file("lbr.etl")


@step("CreateMergedTraceFile")
def merge(check: Check) -> None:
    if not check.lbr_log:
        raise Skip("there is no log with branch records")
    merged = check.file("merged.etl")
    status = int(etw.CreateMergedTraceFile(merged, [check.lbr_log], etw.MergeFlag.IMAGEID))
    if status == Status.MOD_NOT_FOUND:
        raise Skip("the Windows Performance Toolkit is not installed")
    check.equal("status", status, 0)
    check.lbr_log = merged


@step("the log with branch records, by lastbranch's reader")
def read_branches(check: Check) -> None:
    if not check.lbr_log:
        raise Skip("there is no log with branch records")
    profile = lastbranch.open(check.lbr_log)
    samples, branches, depths = Counter[str](), 0, Counter[int]()
    for batch in profile.batches():
        samples.update(profile.events[event].name for event in batch.event.tolist())
        depths.update(batch.depth.tolist())
        branches += int(batch.depth.sum())
    check.note(
        samples=samples,
        branches=branches,
        depths={str(depth): n for depth, n in sorted(depths.items())},
        processes=len(profile.processes),
        modules=len(profile.modules),
        identified=sum(bool(module.pdb_guid) for module in profile.modules),
    )
    assert branches, "there is no branch record in it"


@step("lastbranch record")
def record_verb(check: Check) -> None:
    check.needs_rights()
    from lastbranch.capture import CollectorError, Options
    from lastbranch.recording.recorders import record_file

    output = check.file("record.etl")
    try:
        done = record_file([sys.executable, "-c", f"{WORK}; raise SystemExit(7)"], output, Options())
    except CollectorError as error:
        if isinstance(error.__cause__, EtwError) and error.__cause__.status == Status.NOT_SUPPORTED:
            raise Skip(str(error)) from None
        if "no profile source" in str(error):
            raise Skip(str(error)) from None
        raise
    check.note(said=str(done), notes=len(done.notes), size=os.path.getsize(output))
    check.equal("exit code", done.exit_code, 7)


@step("nothing is left")
def cleanup(check: Check) -> None:
    shutil.rmtree(check.folder, ignore_errors=True)
    if check.interval is not None:
        check.note(interval=_status(lambda: etw.set_profile_interval(*check.interval)))
    stopped = _status(lambda: Session.of(NAME).stop())  # where a step could not
    check.equal("a session is left", stopped, 4201)


# -- the report


def _ran(check: Check, name: str, function: Callable[[Check], None]) -> dict[str, Any]:
    check.found, began = {}, time.monotonic()
    result, why = "pass", ""
    try:
        function(check)
    except Skip as reason:
        result, why = "skip", str(reason)
    except Exception as error:  # whatever a step fails with belongs in the report, and the other steps still run
        result, why = "FAIL", _described(error, check)
        if isinstance(error, EtwError) and error.status == Status.ACCESS_DENIED and not check.elevated:
            result = "skip"
    print(f"{result}  {name}{f': {why}' if why else ''}", flush=True)
    seconds = round(time.monotonic() - began, 2)
    return {"step": name, "result": result, "why": why, "seconds": seconds, **check.found}


def _described(error: Exception, check: Check) -> str:
    """The error and where it came from, without the names of folders."""
    frames, at = [], error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        frames.append(f"{os.path.basename(code.co_filename)}:{at.tb_lineno} {code.co_name}")
        at = at.tb_next
    kind = "" if isinstance(error, AssertionError | LastbranchError) else f"{type(error).__name__}: "
    text = str(error).replace(check.folder, "FOLDER").replace(os.path.expanduser("~"), "HOME")
    return f"{kind}{text} ({' < '.join(reversed(frames[1:]))})"


def main(arguments: list[str]) -> int:
    """Run all steps; 1 if one fails."""
    report = arguments[0] if arguments else "windows_check.json"
    if kernel_choice.windows() is None:
        print("this is not Windows: there is nothing to check", file=sys.stderr)
        return 2
    check = Check()
    machine = {
        "lastbranch": __version__,
        "python": sys.version,
        "system": platform.platform(),
        "build": platform.version(),
        "machine": platform.machine(),
        "processor": platform.processor(),
        "processors": os.cpu_count(),
    }
    steps = [_ran(check, name, function) for name, function in STEPS]
    with open(report, "w", encoding="utf-8") as file:
        json.dump({"machine": machine, "steps": steps}, file, indent=1, default=str)
    results = Counter(step["result"] for step in steps)
    print(f"{results['pass']} passed, {results['FAIL']} failed, {results['skip']} skipped; please send {report} back")
    return int(bool(results["FAIL"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
