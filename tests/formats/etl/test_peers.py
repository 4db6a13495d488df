"""Event counts and headers of real files equal those of three other readers (their stored output).

`make_etl_peers` made the store of two, for uncompressed files; the third is Microsoft's, by the baselines beside the
captures. Where a peer differs is listed here with the reason; nothing else differs.
"""

import hashlib
import json
import os
import re
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from lastbranch.formats.etl import Decoder, TraceLog
from lastbranch.model import BytesSource
from make_etl_peers import UNCOMPRESSED, line

PEERS = json.loads((Path(__file__).parents[2] / "data" / "etl_peers.json").read_text())
DISSECT, PARSER = PEERS["dissect.etl 3.14"], PEERS["etl-parser 1.0.1"]
EVENT_HEADERS = (18, 19)
WINDOWS_7 = [name for name in UNCOMPRESSED if name.startswith("syzygy")]


def lines(name):
    """(whether the event is in the header buffer, its line) of every event, by our reader."""
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    log = TraceLog(BytesSource(Path(root, "etl", name).read_bytes(), name))
    for block in log.blocks():
        hooks, guids, place = block.hook.tolist(), block.provider, block.window.buffers.offset.take(block.buffer)
        for i, hook in enumerate(hooks):
            number = block.id[i] if block.header[i] in EVENT_HEADERS else block.opcode[i]
            what = f"{hook:#x}" if hook >= 0 else f"{guids[i].tobytes().hex()}/{number}"
            size, time = int(block.size[i]), int(block.time[i])
            yield place[i] == 0, line(size, time, int(block.pid[i]), int(block.tid[i]), what)


def digest(texts):
    whole = hashlib.sha256()
    for text in texts:
        whole.update(text.encode())
    return whole.hexdigest()


def test_the_store_is_of_all_files():
    assert set(DISSECT) == set(PARSER) == set(UNCOMPRESSED)
    assert not any(said["error"] for said in DISSECT.values())


@pytest.mark.parametrize("name", UNCOMPRESSED)
def test_dissect_etl_sees_the_same(name):
    """No difference: every event of every file, those of the header buffer included."""
    ours = [text for _, text in lines(name)]
    assert len(ours) == DISSECT[name]["events"]
    assert digest(ours) == DISSECT[name]["sha256"]


@pytest.mark.parametrize("name", [name for name in UNCOMPRESSED if name not in WINDOWS_7])
def test_etl_parser_sees_the_same_behind_the_header_buffer(name):
    """It skips the header buffer, and with it the log file header and the group masks."""
    ours = [text for in_header, text in lines(name) if not in_header]
    assert len(ours) == PARSER[name]["events"]
    assert digest(ours) == PARSER[name]["sha256"]


@pytest.mark.parametrize("name", WINDOWS_7)
def test_etl_parser_reads_nothing_of_windows_7(name):
    """It takes SavedOffset for the used length, which is 0 there, and ends with an exception."""
    assert (PARSER[name]["events"], PARSER[name]["error"]) == (0, "IndexError")
    assert sum(1 for _ in lines(name)) > 2


# -- Microsoft's reader: how many events of each provider and id, by name

# Names of ids by the documentation of the CLR's ETW events: a log need not carry the CLR's manifest, and where it does
# the manifest's names are not those that Microsoft's reader prints.
CLR = {
    UUID("e13c0d23-ccbc-4e12-931b-d9cc2eee27e4"): ("Microsoft-Windows-DotNETRuntime", {
        1: "GC/Start", 2: "GC/Stop", 3: "GC/RestartEEStop", 4: "GC/HeapStats", 5: "GC/CreateSegment",
        7: "GC/RestartEEStart", 8: "GC/SuspendEEStop", 9: "GC/SuspendEEStart", 10: "GC/AllocationTick",
        12: "GC/TerminateConcurrentThread", 13: "GC/FinalizersStop", 14: "GC/FinalizersStart", 15: "Type/BulkType",
        21: "GC/BulkSurvivingObjectRanges", 22: "GC/BulkMovedObjectRanges", 23: "GC/GenerationRange",
        25: "GC/MarkStackRoots", 26: "GC/MarkFinalizeQueueRoots", 27: "GC/MarkHandles", 28: "GC/MarkCards",
        29: "GC/FinalizeObject", 33: "GC/PinObjectAtGCTime", 35: "GC/Triggered", 50: "ThreadPoolWorkerThread/Start",
        80: "Exception/Start", 82: "ClrStack/Walk", 85: "AppDomainResourceManagement/ThreadCreated",
        143: "Method/LoadVerbose", 144: "Method/UnloadVerbose", 145: "Method/JittingStarted",
        151: "Loader/DomainModuleLoad", 152: "Loader/ModuleLoad", 153: "Loader/ModuleUnload",
        154: "Loader/AssemblyLoad", 155: "Loader/AssemblyUnload", 156: "Loader/AppDomainLoad",
        157: "Loader/AppDomainUnload", 187: "Runtime/Start", 190: "Method/ILToNativeMap",
        200: "GarbageCollection/IncreaseMemoryPressure", 202: "GC/MarkWithType", 204: "GC/PerHeapHistory",
        205: "GC/GlobalHeapHistory", 208: "GC/LOHCompact", 209: "GC/FitBucketInfo",
    }),
    UUID("a669021c-c450-4609-a035-5af59af4df18"): ("Microsoft-Windows-DotNETRuntimeRundown", {
        10: "GC/SettingsRundown", 144: "Method/DCStopVerbose", 146: "Method/DCStopComplete",
        148: "Method/DCStopInit", 150: "Method/ILToNativeMapDCStop", 152: "Loader/DomainModuleDCStop",
        154: "Loader/ModuleDCStop", 156: "Loader/AssemblyDCStop", 158: "Loader/AppDomainDCStop", 187: "Runtime/Start",
        280: "TieredCompilationRundown/SettingsDCStart",
    }),
    UUID("763fd754-7086-4dfe-95eb-c01a46faf4ca"): ("Microsoft-Windows-DotNETRuntimePrivate", {
        2: "GC/Settings", 4: "GC/PerHeapHistory", 5: "GC/GlobalHeapHistory", 7: "GC/MarkStackRoots",
        8: "GC/MarkFinalizeQueueRoots", 9: "GC/MarkHandles", 10: "GC/MarkCards", 161: "Binding/NgenPhaseStart",
        162: "Binding/NgenPhaseStop", 165: "Binding/LoaderPhaseStart", 166: "Binding/LoaderPhaseStop",
        171: "Binding/LoaderAssemblyInitPhaseStart", 172: "Binding/LoaderAssemblyInitPhaseStop",
        173: "Binding/LoaderMappingPhaseStart", 174: "Binding/LoaderMappingPhaseStop",
        175: "Binding/LoaderDeliverEventPhaseStart", 176: "Binding/LoaderDeliverEventsPhaseStop",
        188: "NgenBinder/NgenBind", 196: "Binding/FusionMessage",
    }),
}  # fmt: skip
CLASSIC = ("Windows Kernel/", "KernelTraceControl/", "MSNT_SystemTrace/")  # no EVENT_HEADER; counted elsewhere
KEPT = {  # the reader makes tables of these (stacks of managed code, methods and their lines) and does not count them
    "gcevents": {},
    "gcrundownevents": {"Microsoft-Windows-DotNETRuntimeRundown/Method/DCStopVerbose": 80},
    "net.4.5.2.x64": {
        "Microsoft-Windows-DotNETRuntime/ClrStack/Walk": 14_983,
        "Microsoft-Windows-DotNETRuntime/Method/ILToNativeMap": 273,
        "Microsoft-Windows-DotNETRuntimeRundown/Method/DCStopVerbose": 16_702,
        "Microsoft-Windows-DotNETRuntimeRundown/Method/ILToNativeMapDCStop": 16_221,
    },
    "primitive-types": {},
}


def user_counts(log):
    """How many events with an EVENT_HEADER there are, by name."""
    decoder, counts, names = Decoder(), Counter(), {}
    for event in log.events(select=lambda block: block.hook < 0):
        decoder.learn(event)  # what describes events has other headers, too
        if event.header not in EVENT_HEADERS:
            continue
        kind = event.provider, event.id, event.version, event.opcode
        counts[kind] += 1
        names.setdefault(kind, event)
    total = Counter()
    for kind, number in counts.items():
        provider, ids = CLR.get(UUID(bytes_le=kind[0]), (None, {}))
        total[f"{provider}/{ids[kind[1]]}" if provider else decoder.decode(names[kind]).name] += number
    return total


@pytest.mark.parametrize("name", KEPT)
def test_microsofts_reader_counts_the_same_of_user_providers(name):
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    (capture,) = Path(root, "etl").glob(f"{name}.*etl")
    text = Path(root, "etl", f"{name}.baseline.txt").read_text(encoding="utf-8-sig")
    lines = {title: int(number) for title, number in re.findall(r"^COUNT (.*):(\d+)$", text, re.M)}
    told = {title: number for title, number in lines.items() if not title.startswith(CLASSIC)}
    log = TraceLog(BytesSource(capture.read_bytes(), capture.name))
    assert user_counts(log) == told | KEPT[name]
