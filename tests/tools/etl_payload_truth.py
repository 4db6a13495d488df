"""Payloads of real logs, decoded by another program and stored beside the captures."""

from __future__ import annotations

import os
import re
import struct
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest

from lastbranch.formats.etl import Decoder, Event, decompress
from lastbranch.formats.etl.kernel.hooks import hook_provider, kernel_key
from lastbranch.formats.etl.payload.types import FileTime, Named


def walk(data):
    """Every event of a trace file, in file order."""
    at = 0
    while at + 0x48 <= len(data):
        (size,) = struct.unpack_from("<I", data, at)
        buffer = data[at : at + size]
        filled, flags = struct.unpack_from("<IH", buffer, 0x30)
        cpu = struct.unpack_from("<H", buffer, 0x28)[0] if flags & 0x20 else buffer[0x28]
        if flags & 0x40:
            buffer = buffer[:0x48] + decompress(buffer[0x48:], filled - 0x48)
        position = 0x48
        while position + 8 <= filled and struct.unpack_from("<I", buffer, position)[0] != 0xFFFFFFFF:
            event, length = parse_event(buffer, position, cpu)
            yield event
            position += (length + 7) & ~7
        at += size


def parse_event(b, at, cpu):
    kind = b[at + 2]
    pointer = 4 if kind in (1, 3, 16, 10, 11, 18) else 8
    pid = tid = -1
    if kind in (18, 19):
        size, _, flags, _, tid, pid, time = struct.unpack_from("<HHHHiiq", b, at)
        id_, version, channel, level, opcode, task, keyword = struct.unpack_from("<HBBBBHQ", b, at + 0x28)
        body, extended, more = at + 0x50, [], flags & 1
        while more:
            length, type_, more, used = struct.unpack_from("<HHHH", b, body)
            extended.append((type_, b[body + 8 : body + 8 + used]))
            body += length
            more &= 1
        event = Event(
            kind,
            pointer,
            time,
            pid,
            tid,
            cpu,
            -1,
            b[at + 0x18 : at + 0x28],
            id_,
            version,
            opcode,
            level,
            task,
            channel,
            keyword,
            flags,
            extended=extended,
        )
    elif kind in (10, 11, 20, 21):
        size, _, _, opcode, level, version, tid, pid, time = struct.unpack_from("<HBBBBHiiq", b, at)
        event = Event(kind, pointer, time, pid, tid, cpu, -1, b[at + 0x18 : at + 0x28], 0, version, opcode, level)
        body = at + (0x30 if kind in (10, 20) else 0x48)
    else:
        version, _, _, size, opcode, group = struct.unpack_from("<HBBHBB", b, at)
        if kind < 5:
            tid, pid, time = struct.unpack_from("<iiq", b, at + 8)
        else:
            (time,) = struct.unpack_from("<q", b, at + 8)
        body = at + {1: 0x20, 2: 0x20, 3: 0x18, 4: 0x18}.get(kind, 0x10)
        counters = (version >> 8 & 7) + (version >> 15)
        hook = group << 8 | opcode
        event = Event(kind, pointer, time, pid, tid, cpu, hook, hook_provider(hook), 0, version & 0xFF, opcode)
        event.counters = struct.unpack_from(f"<{counters}Q", b, body)
        body += 8 * counters
    event.payload = b[body : at + size]
    return event, size


@cache
def real_events(name):
    """The events of a real file; skips the test where the captures are not at hand."""
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    return list(walk((Path(root) / "etl" / f"{name}.etl").read_bytes()))


def baseline(name):
    real_events(name)
    return (Path(os.environ["LASTBRANCH_DATA"]) / "etl" / f"{BASELINES[name]}.baseline.txt").read_text("utf-8-sig")


def learned(events, **options):
    decoder = Decoder(**options)
    for event in events:
        decoder.learn(event)
    return decoder


BASELINES = {
    "net.4.5.2.x64": "net.4.5.2.x64",
    "gcevents.PerfViewData": "gcevents",
    "gcrundownevents.PerfViewData.clrRundown": "gcrundownevents",
    "primitive-types": "primitive-types",
}


RENAMED = {  # printed -> ours
    # No class of its own in the reader: it falls back to the MOF class of the system, whose provider has this name.
    "MSNT_SystemTrace/Image/KernelBase": "Windows Kernel/Image/KernelBase",
    "MSNT_SystemTrace/SystemConfig/Platform": "Windows Kernel/SystemConfig/Platform",
}


DERIVED = {  # fields that the reader works out from other events or the header
    "BuildTime": "TimeDateStamp as a date",
    "ElapsedTimeMSec": "time of the event less the one in it; or the response time in ms (checked below)",
    "DiskServiceTimeMSec": "ElapsedTimeMSec less the time that others kept the disk",
    "PayloadLength": "length of what is left of the payload",
}


DERIVED_IN = {
    ("KernelTraceControl/ImageID", "ProcessID"): "the reader prints a constant 0",
    ("Windows Kernel/SystemConfig/Services", "ProcessName"): "name of the process with that id, not the field",
    ("Windows Kernel/DiskIO/Read", "FileName"): "looked up by FileKey among the file names",
    ("Windows Kernel/DiskIO/Write", "FileName"): "looked up by FileKey among the file names",
    ("Windows Kernel/Memory/HardFault", "FileName"): "looked up by FileKey among the file names",
    ("Windows Kernel/UdpIp/Send", "dsize"): "the reader's idea of version 0: a later version has no such field",
    ("Windows Kernel/UdpIp/Recv", "dsize"): "the same",
}


def expected(event, decoded, mapping):
    """Our fields under the names and in the sense of the reader, where these differ from the layout's."""
    fields = dict(decoded.fields)
    name = decoded.name
    if name.startswith("Windows Kernel/Image/") and "FileName" in fields:
        fields["FileName"] = dos_path(fields["FileName"], mapping)  # the reader shows DOS paths
    if name.startswith("Windows Kernel/Thread/"):
        fields["StartAddr"] = fields["Affinity"]  # version 3 has the affinity in that place
        fields.setdefault("ThreadName", "")  # not in this version's payload
        start = event.opcode == 1
        fields["ParentThreadID"], fields["ParentProcessID"] = (event.tid, event.pid) if start else (-1, -1)
    if name == "Windows Kernel/PerfInfo/Sample":
        fields["ProcessorNumber"] = event.cpu
    if name in ("Windows Kernel/UdpIp/Send", "Windows Kernel/UdpIp/Recv"):
        fields["context"] = fields["size"] << 32 | fields["ProcessID"]  # read as version 0: one pointer for the two
    return fields


def dos_path(path, mapping):
    for nt, dos in mapping:
        if path.startswith(nt):
            return dos + path[len(nt) :]
    # A path without a volume is taken to be on the system's.
    return "C:" + path if path.startswith("\\Windows\\") else path


def volume_mapping(events, decoder):
    found = [decoder.decode(e).fields for e in events if kernel_key(e) == ("9b79ee91-b5fd-41c0-a243-4248e266e9d0", 35)]
    return [(f["NtPath"], f["DosPath"]) for f in found if f["DosPath"]]


def same(printed, value):
    """Whether the reader's text is what it prints for our value. Its dates are UTC."""
    cut = printed.endswith("...")
    if isinstance(value, bool):
        return printed == str(value)
    if isinstance(value, FileTime):
        moment = datetime(1601, 1, 1, tzinfo=UTC) + timedelta(microseconds=value // 10)
        text = f"{moment:%y/%m/%d %H:%M:%S.%f}"
    elif isinstance(value, Named) and not re.fullmatch(r"-?[\d,]+|0x[0-9a-f]+", printed):
        text = str(value) if "|" in printed else str(value).replace("|", ", ")  # of a manifest, of an enum
    elif isinstance(value, int):
        if re.fullmatch(r"0x[0-9a-fA-F]+", printed):
            return int(printed, 16) == int(value)
        if re.fullmatch(r"-?[\d,]+\.\.\.", printed):  # as a signed number
            return any(f"{value - less:,}".startswith(printed[:-3]) for less in (0, 1 << 64))
        if not re.fullmatch(r"-?[\d,]+", printed):
            return False
        number = int(printed.replace(",", ""))
        return number == value or (number < 0 and value in (number + (1 << 32), number + (1 << 64)))
    else:
        text = str(value)
    return text.startswith(printed[:-3]) if cut else text == printed


def printed_lines(text):
    """(time in µs, name, DataLen, CPU, fields) of each EVENT line."""
    for line in text.splitlines():
        match = re.match(r"EVENT ([\d,.]+): (\S+(?: \S+)*?) PID=", line)
        if match:
            rest = line[match.end() - 4 :].rstrip("; ")
            fields = dict(item.split("=", 1) for item in re.split(r"; (?=\w+=)", rest))
            head = {key: fields.pop(key) for key in ("PID", "TID", "PName", "ProceNum", "DataLen")}
            time = round(float(match[1].replace(",", "")) * 1000)
            yield time, match[2], int(head["DataLen"]), int(head["ProceNum"]), fields


class Captured:
    """The events of a file by time and processor, for finding the one that a line speaks of."""

    def __init__(self, name):
        self.events = real_events(name)
        self.decoder = learned(self.events)
        head = self.events[0]
        self.start = head.time
        self.frequency = self.decoder.decode(head).fields["PerfFreq"]
        self.mapping = volume_mapping(self.events, self.decoder)
        self.at = {}
        for event in self.events:
            micros = (event.time - self.start) * 1_000_000 // self.frequency
            for near in (micros - 1, micros, micros + 1):  # the reader rounds a double
                self.at.setdefault((near, event.cpu, len(event.payload)), []).append(event)

    def find(self, time, size, cpu):
        return [(e, self.decoder.decode(e)) for e in self.at.get((time, cpu, size), ())]


captured = cache(Captured)


def differences(name, event, decoded, printed):
    ours = expected(event, decoded, captured(name).mapping)
    found = []
    for key, text in printed.items():
        if key in DERIVED or (decoded.name, key) in DERIVED_IN:
            continue
        if key not in ours or not same(text, ours[key]):
            found.append((key, text, str(ours.get(key, "(none)"))))
    return found
