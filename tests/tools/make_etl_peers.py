"""Stores the results of other readers for trace logs,
``python tests/tools/make_etl_peers.py FOLDER > tests/data/etl_peers.json``, and for logs that `session_logs` wrote:
``... --sessions FOLDER > tests/data/session_peers.json``.

Run it in an environment with dissect.etl 3.14 and etl-parser 1.0.1; the script needs nothing of lastbranch. For each
file and peer the output has the number of events, the peer's exception, if any, and a digest over one line an event, in
the peer's order, which is the order of the file:

    size, time stamp in ticks, process, thread, and hook id (kernel headers), GUID and id (EVENT_HEADER), GUID and type

Neither peer gives the processor.
"""

import hashlib
import json
import sys
from pathlib import Path

UNCOMPRESSED = (
    "AMSITrace.etl", "ShutdownPerfDiagLogger.etl", "WindowsUpdate.20251008.140245.443.8.etl", "diaghub.kernel.1.etl",
    "gcevents.PerfViewData.etl", "gcrundownevents.PerfViewData.clrRundown.etl", "krabs.powershell.etl",
    "lxcore_kernel.etl", "primitive-types.etl", "syzygy.image_data_32_v0.etl", "syzygy.image_data_32_v2.etl",
    "syzygy.process_data_32_v1.etl", "syzygy.process_data_64_v3.etl", "waasmedic.20251005_113019_195.etl",
)  # fmt: skip


def line(size, time, pid, tid, what):
    return f"{size} {time} {pid & 0xFFFFFFFF} {tid & 0xFFFFFFFF} {what}\n"


def dissect_etl(path):
    from dissect.etl import ETL

    with open(path, "rb") as file:
        for record in ETL(file):
            head = record.header.header
            ids = getattr(head, "ProcessId", -1), getattr(head, "ThreadId", -1)
            if hasattr(head, "Group"):
                what = f"{head.Group << 8 | head.OpCode:#x}"
            else:
                number = head.Id if hasattr(head, "Id") else head.Version & 0xFF  # a FULL header: Type, Level, Version
                what = f"{bytes(head.ProviderId).hex()}/{number}"
            yield line(record.size, head.TimeDelta, *ids, what)


def etl_parser(path):
    from etl.etl import IEtlFileObserver, build_from_stream

    lines = []

    def hook(head):
        return f"{int(head.group.intvalue) << 8 | head.type:#x}"

    def guid(value):
        inner = value.inner
        first = inner.data1.to_bytes(4, "little") + inner.data2.to_bytes(2, "little")
        return (first + inner.data3.to_bytes(2, "little") + bytes(inner.data4)).hex()

    class Lines(IEtlFileObserver):
        def on_event_record(self, event):
            head = event.source.event_header
            what = f"{guid(head.provider_id)}/{head.event_descriptor.Id}"
            lines.append(line(head.marker.version, head.timestamp, head.process_id, head.thread_id, what))

        def on_perfinfo_trace(self, event):
            head = event.source
            lines.append(line(head.header.size, head.timestamp, -1, -1, hook(head.header)))

        def on_system_trace(self, event):
            head = event.source.system_header
            lines.append(line(head.header.size, head.system_time, head.process_id, head.thread_id, hook(head.header)))

        def on_trace_record(self, event):
            lines.append(f"trace {event.source}\n")

        def on_win_trace(self, event):
            lines.append(f"win {event.source}\n")

    try:
        build_from_stream(Path(path).read_bytes()).parse(Lines())
    finally:
        yield from lines


def said(reader, path, wanted=lambda text: True):
    digest, number, failed = hashlib.sha256(), 0, None
    try:
        for text in filter(wanted, reader(path)):
            digest.update(text.encode())
            number += 1
    except Exception as error:
        failed = type(error).__name__
    return {"events": number, "sha256": digest.hexdigest(), "error": failed}


def of_a_provider(text):
    """Whether the event is not the kernel's; kernel events contain the names and ids of the machine."""
    return "/" in text


def main():
    folder, sessions = Path(sys.argv[-1]), sys.argv[1] == "--sessions"
    names = sorted(p.name for p in folder.glob("*.etl")) if sessions else UNCOMPRESSED
    wanted = of_a_provider if sessions else lambda text: True
    peers = {"dissect.etl 3.14": dissect_etl, "etl-parser 1.0.1": etl_parser}
    found = {peer: {name: said(reader, folder / name, wanted) for name in names} for peer, reader in peers.items()}
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
