"""Instrumentation manifests that are given: the schema's types, maps, names and messages; what contradicts; bombs.

The XML is written after the pages "EventManifest Schema" and the table of input types (winmeta.xml) of Microsoft's
documentation, the payloads by hand with `struct`.
"""

import contextlib
import json
import os
import re
import resource
import struct
import subprocess
import sys
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder as build
import lastbranch
from etl_event_logs import write
from lastbranch.errors import FormatError
from lastbranch.etw import consume
from lastbranch.formats.etl import Manifests
from lastbranch.formats.etl.payload.manifest import message_of
from lastbranch.opening import read_manifests

GUID = uuid.UUID("11112222-3333-4444-5555-666677778888")
BEGIN = 1_000_000


def document(provider, strings="", *, head='<?xml version="1.0" encoding="UTF-8"?>', name="Test-Provider", guid=GUID):
    return f"""{head}
<instrumentationManifest xmlns="http://schemas.microsoft.com/win/2004/08/events"
    xmlns:win="http://manifests.microsoft.com/win/2004/08/windows/events" xmlns:xs="http://www.w3.org/2001/XMLSchema">
  <instrumentation><events>
    <provider name="{name}" guid="{{{guid}}}" symbol="TEST" resourceFileName="t.exe" messageFileName="t.exe">{provider}
    </provider></events></instrumentation>
  <localization><resources culture="de-DE"><stringTable><string id="Red" value="Rot"/></stringTable></resources>
    <resources culture="en-US"><stringTable>{strings}</stringTable></resources></localization>
</instrumentationManifest>"""


def template(fields):
    return document(
        f'<events><event value="7" symbol="Seven" template="T"/></events><templates><template tid="T">{fields}'
        "</template></templates>"
    )


def manifests(*texts):
    made = Manifests()
    for number, text in enumerate(texts):
        made.add(text if isinstance(text, bytes) else text.encode(), f"{number}.man")
    return made


def logged(tmp_path, *events, bits=64):
    """A log of (id, version, payload, more)."""
    log = build.Trace()
    for at, (id_, version, payload, *more) in enumerate(events):
        event = build.manifest(GUID.bytes_le, id_, BEGIN + at, payload, version=version, bits=bits, **(more or [{}])[0])
        log.add(0, event)
    return write(tmp_path, log)


def given_file(tmp_path, text, name="test.man"):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path / name


def fields_of(tmp_path, text, payload, bits=64):
    """What dump, consume and columns make of one event 7."""
    path = logged(tmp_path, (7, 0, payload), (7, 0, payload), bits=bits)
    events = list(consume(path, manifests=[given_file(tmp_path, text)]))[1:]
    assert events[0].fields == events[1].fields
    return events[0].fields


WIDE = "käse".encode("utf-16-le") + b"\0\0"
SID = struct.pack("<BB6sII", 1, 2, (5).to_bytes(6, "big"), 32, 544)
TYPES = [  # inType, outType, more attributes, bytes, value, text
    ("win:UnicodeString", "xs:string", "", WIDE, "käse", "käse"),
    ("win:UnicodeString", "", 'length="3"', "abc".encode("utf-16-le"), "abc", "abc"),
    ("win:AnsiString", "xs:string", "", b"abc\0", "abc", "abc"),
    ("win:AnsiString", "win:Utf8", 'length="2"', b"ab", "ab", "ab"),
    ("win:CountedUnicodeString", "", "", b"\4\0a\0b\0", "ab", "ab"),
    ("win:CountedAnsiString", "", "", b"\2\0ab", "ab", "ab"),
    ("win:CountedBinary", "", "", b"\2\0\1\xff", b"\1\xff", None),
    ("win:Int8", "xs:byte", "", b"\xff", -1, "-1"),
    ("win:UInt8", "xs:unsignedByte", "", b"\xff", 255, "255"),
    ("win:UInt8", "win:HexInt8", "", b"\xff", 255, "0xff"),
    ("win:UInt8", "xs:boolean", "", b"\1", True, "True"),
    ("win:Int16", "xs:short", "", b"\xfe\xff", -2, "-2"),
    ("win:UInt16", "win:Port", "", b"\1\xbb", 443, "443"),
    ("win:UInt16", "win:HexInt16", "", b"\1\xbb", 0xBB01, "0xbb01"),
    ("win:Int32", "xs:int", "", struct.pack("<i", -3), -3, "-3"),
    ("win:Int32", "win:HResult", "", struct.pack("<i", -2147024891), 0x80070005, "0x80070005"),
    ("win:UInt32", "win:PID", "", struct.pack("<I", 4242), 4242, "4242"),
    ("win:UInt32", "win:NTSTATUS", "", struct.pack("<I", 0xC0000022), 0xC0000022, "0xc0000022"),
    ("win:UInt32", "win:Win32Error", "", struct.pack("<I", 5), 5, "5"),
    ("win:UInt32", "win:IPv4", "", bytes([10, 0, 0, 1]), "10.0.0.1", "10.0.0.1"),
    ("win:Int64", "xs:long", "", struct.pack("<q", -4), -4, "-4"),
    ("win:UInt64", "win:HexInt64", "", struct.pack("<Q", 1 << 63), 1 << 63, hex(1 << 63)),
    ("win:Float", "xs:float", "", struct.pack("<f", 0.5), 0.5, "0.5"),
    ("win:Double", "xs:double", "", struct.pack("<d", -0.25), -0.25, "-0.25"),
    ("win:Boolean", "xs:boolean", "", struct.pack("<I", 1), True, "True"),
    ("win:Binary", "xs:hexBinary", 'length="2"', b"\1\2", b"\1\2", None),
    ("win:Binary", "win:IPv6", 'length="16"', bytes(15) + b"\1", "::1", "::1"),
    ("win:Binary", "win:SocketAddress", 'length="16"', b"\2\0\0\x50" + bytes([10, 0, 0, 1]) + bytes(8),
     "10.0.0.1:80", None),
    ("win:Binary", "win:SocketAddress", 'length="28"', b"\x17\0\0\x50" + bytes(4) + bytes(15) + b"\1" + bytes(4),
     "[::1]:80", None),
    ("win:GUID", "xs:GUID", "", GUID.bytes_le, GUID, str(GUID)),
    ("win:Pointer", "win:HexInt64", "", struct.pack("<Q", 0x7FF6_0000_1000), 0x7FF6_0000_1000, "0x7ff600001000"),
    ("win:FILETIME", "xs:dateTime", "", struct.pack("<Q", 116_444_736_000_000_000), 116_444_736_000_000_000,
     "1970-01-01T00:00:00.0000000Z"),
    ("win:SYSTEMTIME", "xs:dateTime", "", struct.pack("<8H", 2024, 2, 4, 29, 1, 2, 3, 4), None, None),
    ("win:SID", "xs:string", "", SID, "S-1-5-32-544", "S-1-5-32-544"),
    ("win:HexInt32", "win:HexInt32", "", struct.pack("<I", 17), 17, "0x11"),
    ("win:HexInt64", "win:CodePointer", "", struct.pack("<Q", 17), 17, "0x11"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "out", "more", "raw", "value", "text"), TYPES)
def test_every_type_of_the_schema(tmp_path, kind, out, more, raw, value, text):
    shown = f'outType="{out}"' if out else ""
    xml = template(
        f'<data name="before" inType="win:UInt8"/><data name="it" inType="{kind}" {shown} {more}/>'
        '<data name="after" inType="win:UInt16"/>'
    )
    assert manifests(xml).notes == []
    got = fields_of(tmp_path, xml, b"\x11" + raw + b"\x22\x33")
    assert list(got) == ["before", "it", "after"]
    assert (got["before"], got["after"]) == (0x11, 0x3322)
    if value is not None:
        assert got["it"] == value
    if text is not None:
        assert str(got["it"]) == text


def test_pointers_have_the_size_of_their_event(tmp_path):
    xml = template('<data name="p" inType="win:Pointer"/><data name="n" inType="win:UInt32"/>')
    assert fields_of(tmp_path, xml, struct.pack("<II", 5, 6), bits=32) == {"p": 5, "n": 6}
    assert fields_of(tmp_path, xml, struct.pack("<QI", 5, 6)) == {"p": 5, "n": 6}


def test_arrays_lengths_and_structures(tmp_path):
    xml = template(
        '<data name="n" inType="win:UInt16"/><data name="numbers" inType="win:UInt32" count="n"/>'
        '<data name="pair" inType="win:UInt8" count="2"/><data name="size" inType="win:UInt32"/>'
        '<data name="raw" inType="win:Binary" length="size"/><data name="text" inType="win:UnicodeString" length="n"/>'
        '<data name="names" inType="win:AnsiString" count="n"/>'
        '<struct name="rows" count="n"><data name="k" inType="win:UInt8"/>'
        '<data name="v" inType="win:Binary" length="k"/></struct>'
        '<struct name="one"><data name="x" inType="win:Int8"/></struct>'
    )
    assert manifests(xml).notes == []
    payload = (
        struct.pack("<HII2BI", 2, 70_000, 80_000, 8, 9, 3)
        + b"abc"
        + "xy".encode("utf-16-le")
        + b"one\0two\0"
        + b"\1a\2bc"
        + b"\xff"
    )
    assert fields_of(tmp_path, xml, payload) == {
        "n": 2,
        "numbers": [70_000, 80_000],
        "pair": [8, 9],
        "size": 3,
        "raw": b"abc",
        "text": "xy",
        "names": ["one", "two"],
        "rows": [{"k": 1, "v": b"a"}, {"k": 2, "v": b"bc"}],
        "one": {"x": -1},
    }


def test_a_count_whose_values_have_names_still_counts(tmp_path):
    xml = document(
        '<maps><valueMap name="Amount"><map value="2" message="two"/></valueMap></maps>'
        '<events><event value="7" symbol="Seven" template="T"/></events><templates><template tid="T">'
        '<data name="n" inType="win:UInt8" map="Amount"/><data name="numbers" inType="win:UInt16" count="n"/>'
        '<data name="flags" inType="win:Boolean" map="Amount"/></template></templates>'
    )
    fields = fields_of(tmp_path, xml, struct.pack("<BHHI", 2, 5, 6, 2))
    assert fields == {"n": 2, "numbers": [5, 6], "flags": 2}
    assert (str(fields["n"]), str(fields["flags"])) == ("two", "two")


WHOLE = document(
    """
  <levels><level name="Chatty" value="16"/></levels>
  <keywords><keyword name="Net" mask="0x1"/><keyword name="Disk" mask="0x2"/></keywords>
  <opcodes><opcode name="Open" value="11"/></opcodes>
  <tasks><task name="File" value="3"><opcodes><opcode name="Touch" value="12"/></opcodes></task></tasks>
  <maps><valueMap name="Colour"><map value="1" message="$(string.Red)"/><map value="0x2" message="$(string.Blue)"/>
    </valueMap><bitMap name="Access"><map value="0x1" message="$(string.R)"/><map value="0x2" message="$(string.W)"/>
    </bitMap></maps>
  <templates><template tid="A"><data name="colour" inType="win:UInt32" map="Colour"/>
    <data name="access" inType="win:UInt32" map="Access"/><data name="name" inType="win:UnicodeString"/></template>
    <template tid="B"><data name="count" inType="win:UInt32"/></template></templates>
  <events>
    <event value="1" version="0" task="File" opcode="Touch" level="win:Error" keywords="Net Disk" template="A"
        message="$(string.Event)" symbol="FileTouch"/>
    <event value="1" version="1" task="File" opcode="win:Start" level="Chatty" template="B"/>
    <event value="2" task="File" opcode="win:Info"/><event value="3" symbol="Bare"/><event value="4"/>
  </events>""",
    """<string id="Red" value="red"/><string id="Blue" value="blue"/><string id="R" value="read"/>
  <string id="W" value="write"/><string id="Event" value="%3 is %1!s!%nwith %%: %2"/>""",
)


def whole_log(tmp_path):
    first = struct.pack("<II", 2, 7) + "a.txt\0".encode("utf-16-le")
    return logged(
        tmp_path,
        (1, 0, first, {"keyword": 3, "opcode": 12}),
        (1, 1, struct.pack("<I", 9), {"opcode": 1}),
        (2, 0, b""),
        (3, 0, b""),
        (4, 0, b""),
        (1, 2, b"new"),
        (9, 0, b"?"),
    )


def test_names_maps_versions_and_messages(tmp_path):
    path, man = whole_log(tmp_path), given_file(tmp_path, WHOLE)
    assert read_manifests([man]).notes == []
    events = list(consume(path, manifests=[man]))[1:]
    names = ["File/Touch", "File/Start", "File", "Bare", "EventID(4)", "EventID(1)", "EventID(9)"]
    assert [(e.provider_name, e.name) for e in events] == [("Test-Provider", name) for name in names]
    assert {n: str(v) for n, v in events[0].fields.items()} == {
        "colour": "blue",
        "access": "read|write|0x4",
        "name": "a.txt",
    }
    assert events[0].message == "a.txt is blue\nwith %: read|write|0x4"
    assert (events[0].level_name, events[0].keyword_names) == ("Error", ("Net", "Disk"))
    assert (events[1].fields, events[1].level_name, events[1].message) == ({"count": 9}, "Chatty", "")
    assert events[5].fields == {"payload": b"new"}
    assert (events[5].message, events[6].keyword_names) == ("", ())


def test_dump_info_and_what_the_events_contradict(tmp_path, run):
    path, man = whole_log(tmp_path), given_file(tmp_path, WHOLE)
    for verb in ("dump", "consume"):
        done = run(verb, path, "--manifest", man, "--format", "json")
        rows = {row["event"]: row["fields"] for row in json.loads(done.out)}
        assert rows["Test-Provider/File/Touch"] == {"colour": "blue", "access": "read|write|0x4", "name": "a.txt"}
        assert rows["Test-Provider/File/Start"] == {"count": 9}
        assert "note: Test-Provider: event 1 has version 2, its manifest 0, 1" in done.err
        only = run(verb, path, "--manifest", man, "--event", "file/touch", "--format", "json")
        assert [row["event"] for row in json.loads(only.out)] == ["Test-Provider/File/Touch"]
    assert "Test-Provider/File/Touch" in run("info", path, "--manifest", man).out
    assert "Test-Provider/File/Touch" not in run("info", path).out
    assert lastbranch.open(path, manifests=[man]).records["Test-Provider/File/Start"] == 1
    short = logged(tmp_path, (1, 1, b"\1\0\0\0more"), (1, 1, b"\1\0"))
    done = run("dump", short, "--manifest", man)
    assert "note: Test-Provider/File/Start version 1: 2 payloads do not match the manifest" in done.err


def test_a_named_provider(tmp_path, run):
    path, man = whole_log(tmp_path), given_file(tmp_path, WHOLE)
    for verb in ("consume", "dump"):
        rows = json.loads(run(verb, path, "--manifest", man, "--provider", "test-provider", "--format", "json").out)
        assert len(rows) == 7


def test_folders_and_several_files(tmp_path, run):
    folder = tmp_path / "manifests"
    folder.mkdir()
    other = document('<events><event value="1" symbol="Other"/></events>', guid=uuid.UUID(int=5), name="Another")
    given_file(folder, WHOLE, "a.man")
    given_file(folder, other.replace("UTF-8", "UTF-16").encode("utf-16"), "b.XML")
    given_file(folder, "<html/>", "c.xml")
    given_file(folder, "not looked at", "d.txt")
    found = read_manifests([folder])
    assert set(found.names.values()) == {"Test-Provider", "Another"}
    (note,) = found.notes
    assert note.startswith("left out: ")
    assert "c.xml" in note
    assert "not an instrumentation manifest" in note
    assert set(read_manifests([folder / "a.man", folder / "b.XML"]).events) == set(found.events)
    (tmp_path / "empty").mkdir()
    log = whole_log(tmp_path)
    for bad in (tmp_path / "empty", folder / "c.xml", folder / "d.txt", log):
        with pytest.raises(FormatError, match=re.escape(str(bad))):
            read_manifests([bad])
        done = run("dump", log, "--manifest", bad)
        assert (done.code, done.out) != (0, "")
        assert str(bad) in done.err
    assert run("dump", log, "--manifest", tmp_path / "none.man").code != 0
    done = run("dump", log, "--manifest", folder)
    assert done.code == 0
    assert "note: left out: " in done.err


EVENT = '<events><event value="7" symbol="S" {}/></events>'
TEMPLATE = "<templates><template tid='T'>{}</template></templates>"
CONTRADICTIONS = {
    "template NO is not declared": EVENT.format('template="NO"'),
    "task NO is not declared": "<tasks><task name='A' value='1'/></tasks>" + EVENT.format('task="NO"'),
    "opcode NO is not declared": "<opcodes><opcode name='A' value='11'/></opcodes>" + EVENT.format('opcode="NO"'),
    "level NO is not declared": "<levels><level name='A' value='16'/></levels>" + EVENT.format('level="NO"'),
    "keyword NO is not declared": "<keywords><keyword name='A' mask='1'/></keywords>" + EVENT.format('keywords="A NO"'),
    "string NO is not declared": EVENT.format('message="$(string.NO)"'),
    "not the numbers of an event": EVENT.replace("7", "x").format(""),
    "map NO is not declared": TEMPLATE.format("<data name='a' inType='win:Int8' map='NO'/>"),
    "no earlier field is called NO": TEMPLATE.format("<data name='a' inType='win:Int8' count='NO'/>"),
    "no earlier field is called later": TEMPLATE.format(
        "<data name='a' inType='win:Binary' length='later'/><data name='later' inType='win:Int8'/>"
    ),
    "inType 'win:Odd' is not known": TEMPLATE.format("<data name='a' inType='win:Odd'/>"),
    "outType 'win:Odd' is not known": TEMPLATE.format("<data name='a' inType='win:Int8' outType='win:Odd'/>"),
    "bytes without a length": TEMPLATE.format("<data name='a' inType='win:Binary'/>"),
    "value '1' is repeated": "<maps><bitMap name='M'><map value='1' message='a'/>"
    "<map value='1' message='b'/></bitMap></maps>",
    "value 'x' is not a number": "<maps><valueMap name='M'><map value='x' message='a'/></valueMap></maps>",
    "0.man twice, differently": EVENT.format("") + EVENT.replace("S", "Other").format(""),
}


@pytest.mark.parametrize("text", CONTRADICTIONS)
def test_what_contradicts_itself_is_said(text):
    (note,) = manifests(document(CONTRADICTIONS[text])).notes
    assert text in note
    assert "Test-Provider" in note


def test_what_contradicts_another_manifest_or_the_log(tmp_path, run):
    first = template('<data name="a" inType="win:UInt32"/>')
    second = template('<data name="b" inType="win:UInt16"/>').replace("Test-Provider", "Renamed")
    made = manifests(first, first, second)
    assert len(made.notes) == 2
    assert "is also called Test-Provider" in made.notes[0]
    assert "event 7 version 0 is in 0.man and 2.man, differently; the first one is used" in made.notes[1]
    chunk = struct.pack("<BBBBHH", 1, 1, 0, 0x5B, 1, 0) + first.encode()
    path = logged(tmp_path, (0xFFFE, 0, chunk), (7, 0, struct.pack("<I", 5)))
    done = run("dump", path, "--manifest", given_file(tmp_path, template('<data name="b" inType="win:UInt16"/>')))
    assert "a=5" in done.out
    assert "event 7 version 0 is described differently in the trace and in the given manifest" in done.err
    done = run("dump", path, "--manifest", given_file(tmp_path, first))
    assert "note" not in done.err
    bad = document(EVENT.format("")).replace(str(GUID), "what")
    (note,) = manifests(bad).notes
    assert "has no GUID but '{what}'" in note


# -- files that are out to harm

BOMB = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    + "]>"
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("kind", ["entities", "external", "bare"])
def test_document_types_are_refused(kind, encoding):
    types = {"entities": BOMB, "external": '<!DOCTYPE x SYSTEM "file:///etc/passwd">', "bare": "<!DOCTYPE x>"}
    head = f'<?xml version="1.0" encoding="{encoding}"?>' + types[kind]
    text = document(EVENT.format('message="&i;"' if kind == "entities" else ""), head=head)
    with pytest.raises(FormatError, match="document type"):
        manifests(text.encode(encoding))


@pytest.mark.parametrize("kind", ["wide", "deep", "attributes", "long"])
def test_huge_documents_are_bounded(tmp_path, kind):
    """In a process of its own: within 1 GB and 20 s, refused or read."""
    texts = {
        "wide": document("<a/>" * 1_250_000),
        "deep": document("<a>" * 1_000_000),
        "attributes": document('<event value="7" symbol="' + "x" * 4_900_000 + '"/>'),
        "long": document("<events>" + '<event value="1"/>' * 100_000 + "</events>"),
    }
    path = given_file(tmp_path, texts[kind])
    assert path.stat().st_size < 5_100_000
    program = (
        "import sys, resource\n"
        "from lastbranch.opening import read_manifests\n"
        "from lastbranch.errors import FormatError\n"
        "try: print(len(read_manifests([sys.argv[1]]).notes))\n"
        "except FormatError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))

    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    said, peak = done.stdout.splitlines()
    assert int(peak) < 1 << 20
    assert {"wide": "elements", "deep": "nested more than"}.get(kind, "") in said


def test_too_large_files_are_not_read(tmp_path):
    path = tmp_path / "large.man"
    with open(path, "wb") as file:
        file.truncate(1 << 33)
    with pytest.raises(FormatError, match="more than 64 MiB"):
        read_manifests([path])
    os.mkfifo(tmp_path / "pipe.man")
    with pytest.raises(FormatError, match="not a regular file"):
        read_manifests([tmp_path / "pipe.man"])


@given(st.binary(max_size=200), st.integers(0, len(WHOLE)))
@settings(deadline=None, max_examples=100)
def test_any_bytes_as_a_manifest(data, at):
    """Descriptions or a `FormatError`: any other exception fails."""
    for text in (data, WHOLE.encode()[:at] + data + WHOLE.encode()[at:]):
        with contextlib.suppress(FormatError):
            manifests(text)


def test_messages():
    assert message_of("%1 %2!x! %% %n%9 %10%b.", ["a", 5]) == "a 5 % \n%9 %10 ."
    assert message_of("100%", []) == "100%"


# -- a real log, whose events are not described in it

CLR = """<provider name="Microsoft-Windows-DotNETRuntime" guid="{e13c0d23-ccbc-4e12-931b-d9cc2eee27e4}">
<maps><valueMap name="Reason"><map value="0" message="AllocSmall"/><map value="1" message="Induced"/></valueMap>
<valueMap name="Type"><map value="0" message="NonConcurrentGC"/></valueMap></maps>
<tasks><task name="GC" value="1"><opcodes><opcode name="HeapStats" value="133"/></opcodes></task></tasks>
<templates><template tid="Start"><data name="Count" inType="win:UInt32"/><data name="Depth" inType="win:UInt32"/>
<data name="Reason" inType="win:UInt32" map="Reason"/><data name="Type" inType="win:UInt32" map="Type"/>
<data name="ClrInstanceID" inType="win:UInt16"/><data name="ClientSequenceNumber" inType="win:UInt64"/></template>
<template tid="Stop"><data name="Count" inType="win:UInt32"/><data name="Depth" inType="win:UInt32"/>
<data name="ClrInstanceID" inType="win:UInt16"/></template></templates>
<events><event value="1" version="2" task="GC" opcode="win:Start" template="Start"/>
<event value="2" version="1" task="GC" opcode="win:Stop" template="Stop"/></events></provider>"""


def test_a_log_against_what_another_reader_prints(tmp_path, run):
    """Collections of the CLR, by the documentation of its events; the other reader has these descriptions built in."""
    folder = os.environ.get("LASTBRANCH_DATA")
    if not folder:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    text = re.sub(r"<provider .*</provider>", lambda _: CLR, document(""), flags=re.DOTALL)
    log = f"{folder}/etl/gcevents.PerfViewData.etl"
    done = run("dump", log, "--manifest", given_file(tmp_path, text), "--format", "json", "--event", "GC/Start,GC/Stop")
    assert done.code == 0, done.err
    ours = [(row["event"], f"{float(row['time_ms']):,.3f}", row["fields"]) for row in json.loads(done.out)]
    printed = []
    with open(f"{folder}/etl/gcevents.baseline.txt", encoding="utf-8-sig") as lines:
        for line in lines:
            match = re.match(r"EVENT ([\d,.]+): (\S+/GC/(?:Start|Stop)) PID=.*?DataLen=\d+; (.*)", line)
            if match:
                printed.append((match[2], match[1], dict(re.findall(r"(\w+)=([^;]*); ", match[3]))))
    assert len(printed) == 4
    assert [(name, {k: str(v) for k, v in fields.items()}) for name, _, fields in ours] == [
        (name, {k: fields[k] for k in ours[i][2]}) for i, (name, _, fields) in enumerate(printed)
    ]
    assert [time for _, time, _ in ours] == [time for _, time, _ in printed]
    assert not any(name.endswith("EventID(1)") for name, _, _ in ours)
    assert "EventID(1)" in run("dump", log).out
