"""Self-describing (TraceLogging) and manifest events: every type, the oracle's values, hostile descriptions.

Oracle: primitive-types.baseline.txt, see `test_etl_payloads`. The schemas of the other tests are put together here by
the format's description in TraceLoggingDynamic.h.
"""

import os
import struct
import uuid
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import time_limit
from etl_payload_truth import baseline, captured, differences, learned, printed_lines, real_events
from lastbranch.formats.etl import Decoder, Event
from lastbranch.formats.etl.decode import PAYLOAD
from lastbranch.formats.etl.payload.layouts import REST, EventNames
from lastbranch.formats.etl.payload.manifest import parse_event_info, parse_map_info
from lastbranch.formats.etl.payload.manifest_xml import Chunks, parse_manifest
from lastbranch.formats.etl.payload.tracelogging import describe, parse_schema, parse_traits
from lastbranch.formats.etl.payload.types import FileTime, Hex

CONSTANT, VARIABLE, CUSTOM, CHAIN, STRUCT = 0x20, 0x40, 0x60, 0x80, 24
PROVIDER = uuid.UUID("d3dd3dd4-aac2-4e2a-8dd4-a8fb61b77615").bytes_le
META_DATA = uuid.UUID("bbccf6c1-6cd1-48c4-80ff-839482e37671").bytes_le


def sized(body):
    return struct.pack("<H", len(body) + 2) + body


def declare(name, in_type, out=0, *, count=0, custom=b"", tags=b""):
    """One field of a schema."""
    found = name.encode() + b"\0" + bytes([in_type | (CHAIN if out or tags else 0)])
    if out or tags:
        found += bytes([out | (CHAIN if tags else 0)]) + tags
    if in_type & CUSTOM == CONSTANT:
        found += struct.pack("<H", count)
    return found + (
        sized(custom)[0:2] and struct.pack("<H", len(custom)) + custom if in_type & CUSTOM == CUSTOM else b""
    )


def schema(*fields, name="Event", tags=b"\0"):
    return sized(tags + name.encode() + b"\0" + b"".join(fields))


TRAITS = sized(b"My.Provider\0" + struct.pack("<HB", 19, 1) + uuid.UUID(int=7).bytes_le)


def self_describing(blob, payload=b"", *, opcode=0, pointer=8, traits=TRAITS, channel=11):
    extended = [(12, traits), (11, blob)] if traits else [(11, blob)]
    header = 19 if pointer == 8 else 18
    return Event(
        header, pointer, 0, 1, 2, 0, -1, PROVIDER, 0, 0, opcode, channel=channel, payload=payload, extended=extended
    )


def fields_of(blob, payload, **options):
    decoded = Decoder().decode(self_describing(blob, payload, **options))
    assert decoded.layout == "tracelogging"
    found = describe(self_describing(blob, payload, **options))
    assert found[0].layout.encode(decoded.fields, options.get("pointer", 8)) == payload
    return decoded.fields


# Real files


def test_baseline_primitive_types():
    """Every field of every line. Two are printed otherwise than the format says, see below."""
    name, checked = "primitive-types", 0
    for time, title, size, cpu, printed in printed_lines(baseline(name)):
        if title != "solar_system/PrimitiveTypesTest":
            continue
        ((event, decoded),) = captured(name).find(time, size, cpu)
        assert (decoded.name, decoded.layout) == (title, "tracelogging")
        # An 8-bit number with the out-type "string" is a character; the reader prints its number.
        assert printed.pop("char_type") == str(ord(decoded.fields["char_type"]))
        # The reader puts a SYSTEMTIME's seconds where the milliseconds belong.
        moment = decoded.fields["system_time_type"]
        wrong = moment[2:20].replace("-", "/").replace("T", " ") + f"{int(moment[17:19]):03d}"
        assert printed.pop("system_time_type") == f"{wrong[:20]}..."
        # What the program calls int64 it declares as unsigned: the number is the same modulo 2**64.
        assert decoded.fields["int64_type"] + int(printed["int64_type"].replace(",", "")) * -1 == 1 << 64
        assert differences(name, event, decoded, printed) == []
        assert set(printed) | {"char_type", "system_time_type"} == set(decoded.fields)
        checked += 1
    assert checked == 5


SELF_DESCRIBING = {
    "AMSITrace": (19, "AmsiTrace/AmsiScript"),
    "SelfDescribingSingleEvent": (1, "MySource/TestEvent"),
    "WindowsUpdate.20251008.140245.443.8": (80, None),
    "lxcore_kernel": (2, "Microsoft.Windows.Subsystem.LxCore/BreakPoint"),
    "primitive-types": (5, "solar_system/PrimitiveTypesTest"),
    "waasmedic.20251005_113019_195": (17, None),
}


@pytest.mark.parametrize("name", SELF_DESCRIBING)
def test_real_files(name):
    """All of each payload becomes fields, and comes back."""
    number, title = SELF_DESCRIBING[name]
    decoder, found = Decoder(), 0
    for event in real_events(name):
        if any(kind == 11 for kind, _ in event.extended):
            decoded, said = decoder.decode(event), describe(event)
            assert decoded.layout == "tracelogging"
            assert title in (None, decoded.name)
            assert set(decoded.fields) == set(said[0].layout.names)
            assert said[0].layout.encode(decoded.fields, event.pointer_size) == event.payload
            found += 1
    assert found == number


def test_real_structure_and_group():
    event = real_events("SelfDescribingSingleEvent")[-1]
    assert Decoder().decode(event).fields == {"a": {"b": "Hello", "c": "World!"}}
    assert describe(real_events("lxcore_kernel")[-1])[1].group == "4f50731a-89cf-4782-b3e0-dce8c90476ba"
    script = next(e for e in real_events("AMSITrace") if e.extended)
    fields = Decoder().decode(script).fields
    assert fields["Raw Script"] == fields["Script"]  # an array of characters is a string


# Every type

SID = bytes.fromhex("01 02 00 00 00 00 00 05 20 00 00 00 20 02 00 00")
MOMENT = struct.pack("<8H", 2021, 9, 4, 9, 14, 59, 35, 799)
IN_TYPES = {  # in-type: payload, value
    1: ("añ\0".encode("utf-16-le"), "añ"),
    2: (b"abc\0", "abc"),
    3: (b"\xff", -1),
    4: (b"\xff", 255),
    5: (b"\xfe\xff", -2),
    6: (b"\xfe\xff", 0xFFFE),
    7: (b"\xfd\xff\xff\xff", -3),
    8: (b"\xfd\xff\xff\xff", 0xFFFFFFFD),
    9: (b"\xfc" + b"\xff" * 7, -4),
    10: (b"\xfc" + b"\xff" * 7, (1 << 64) - 4),
    11: (struct.pack("<f", 1.5), 1.5),
    12: (struct.pack("<d", -2.25), -2.25),
    13: (b"\1\0\0\0", True),
    14: (b"\3\0\1\2\3", b"\1\2\3"),
    15: (uuid.UUID(int=5).bytes_le, uuid.UUID(int=5)),
    16: (b"\x10\x20" + bytes(6), 0x2010),
    17: (struct.pack("<Q", 132756587715170000), 132756587715170000),
    18: (MOMENT, "2021-09-09T14:59:35.799"),
    19: (SID, "S-1-5-32-544"),
    20: (b"\xff\0\0\0", 255),
    21: (b"\xff" + bytes(7), 255),
    22: (struct.pack("<H", 4) + "a\0".encode("utf-16-le"), "a\0"),
    23: (b"\2\0a\0", "a\0"),
    25: (b"\1\0z", b"z"),
}


@pytest.mark.parametrize("in_type", IN_TYPES)
def test_in_type(in_type):
    payload, value = IN_TYPES[in_type]
    found = fields_of(schema(declare("x", in_type), declare("y", 4)), payload + b"\x07")
    assert found == {"x": value, "y": 7}
    assert type(found["x"]) is {16: Hex, 17: FileTime, 20: Hex, 21: Hex}.get(in_type, type(value))


@pytest.mark.parametrize("in_type", IN_TYPES)
def test_arrays_of_every_type(in_type):
    payload, value = IN_TYPES[in_type]
    constant = fields_of(schema(declare("x", in_type | CONSTANT, count=3), declare("y", 4)), payload * 3 + b"\7")
    assert constant == {"x": [value] * 3, "y": 7}
    for count in (0, 1, 2):
        data = struct.pack("<H", count) + payload * count
        assert fields_of(schema(declare("x", in_type | VARIABLE)), data) == {"x": [value] * count}


OUT_TYPES = [  # in-type, out-type, payload, value, how it is shown
    (4, 3, b"\1", True, "True"), (3, 3, b"\0", False, "False"), (4, 3, b"\5", 5, "5"),
    (8, 3, b"\1\0\0\0", True, "True"),
    (3, 2, b"M", "M", "M"), (4, 2, b"M", "M", "M"), (6, 2, "é".encode("utf-16-le"), "é", "é"), (6, 2, b"\0\0", "", ""),
    (4, 4, b"\xff", 255, "0xff"), (7, 4, b"\xff\xff\xff\xff", 0xFFFFFFFF, "0xffffffff"),
    (10, 37, b"\1" + bytes(7), 1, "0x1"),
    (8, 5, b"\7\0\0\0", 7, "7"), (8, 6, b"\7\0\0\0", 7, "7"), (6, 7, b"\x01\xbb", 443, "443"),
    (8, 8, b"\x0a\0\0\1", "10.0.0.1", "10.0.0.1"), (14, 9, b"\x10\0" + bytes(15) + b"\1", "::1", "::1"),
    (14, 9, b"\2\0ab", b"ab", "b'ab'"), (8, 14, b"\x34\0\0\xc0", 0xC0000034, "0xc0000034"),
    (7, 15, b"\2\0\7\x80", 0x80070002, "0x80070002"), (2, 35, "é\0".encode(), "é", "é"), (2, 12, b"{}\0", "{}", "{}"),
    (7, 18, b"\xff" * 4, 0xFFFFFFFF, "4294967295"), (8, 17, b"\xff" * 4, -1, "-1"),
    (10, 16, struct.pack("<Q", 132756587715170000), 132756587715170000, "2021-09-09T10:59:31.5170000Z"),
    (17, 38, struct.pack("<Q", 132756587715170000), 132756587715170000, "2021-09-09T10:59:31.5170000Z"),
    (8, 99, b"\7\0\0\0", 7, "7"),
]  # fmt: skip


@pytest.mark.parametrize(("in_type", "out", "payload", "value", "text"), OUT_TYPES)
def test_out_type(in_type, out, payload, value, text):
    found = fields_of(schema(declare("x", in_type, out)), payload)["x"]
    assert found == value
    assert str(found) == text


def test_pointers_follow_the_event():
    blob = schema(declare("x", 16), declare("y", 4))
    assert fields_of(blob, b"\1\0\0\0\2", pointer=4) == {"x": 1, "y": 2}
    assert fields_of(blob, b"\1\0\0\0\0\0\0\0\2") == {"x": 1, "y": 2}


def test_characters_in_arrays_are_text():
    wide = "ab\0c".encode("utf-16-le")
    assert fields_of(schema(declare("x", 6 | VARIABLE, 2)), b"\4\0" + wide) == {"x": "ab\0c"}
    assert fields_of(schema(declare("x", 4 | VARIABLE, 2)), b"\2\0ab") == {"x": "ab"}
    assert fields_of(schema(declare("x", 4 | CONSTANT, 2, count=4)), b"ab\0c") == {"x": "ab"}  # c is kept, not shown
    assert fields_of(schema(declare("x", 4 | VARIABLE)), b"\2\0ab") == {"x": [97, 98]}


def test_structures():
    inner = declare("i", STRUCT, 1) + declare("deep", 4)
    blob = schema(declare("s", STRUCT, 2), inner, declare("t", 2), declare("after", 4))
    assert fields_of(blob, b"\1x\0\2") == {"s": {"i": {"deep": 1}, "t": "x"}, "after": 2}
    pairs = schema(declare("s", STRUCT | VARIABLE, 2), declare("a", 4), declare("b", 2))
    assert fields_of(pairs, b"\2\0\1x\0\2\0") == {"s": [{"a": 1, "b": "x"}, {"a": 2, "b": ""}]}
    three = schema(declare("s", STRUCT | CONSTANT, 1, count=3), declare("a", 4))
    assert fields_of(three, b"\1\2\3") == {"s": [{"a": 1}, {"a": 2}, {"a": 3}]}


def test_tags_custom_types_and_names():
    blob = schema(
        declare("x", 4, 0, tags=b"\x81\x82\x03"),
        declare("c", 2 | CUSTOM, custom=b"how"),
        declare("x", 4),
        declare("", 4),
        declare("nothing", 0),
        tags=b"\x80\x80\0",
    )
    assert fields_of(blob, b"\1\2\0zz\3\4") == {"x": 1, "c": b"zz", "x_2": 3, "Field4": 4}


@pytest.mark.parametrize(
    ("opcode", "name"), [(0, "Event"), (1, "Event/Start"), (2, "Event/Stop"), (77, "Event/Opcode(77)")]
)
def test_names(opcode, name):
    decoded = Decoder().decode(self_describing(schema(), opcode=opcode))
    assert decoded.name == f"My.Provider/{name}"
    bare = Decoder().decode(self_describing(schema(), opcode=opcode, traits=b""))
    assert bare.provider_name == "d3dd3dd4-aac2-4e2a-8dd4-a8fb61b77615"


def test_descriptions_ahead_of_the_payload():
    """Before Windows 10 the system knew no items 11 and 12."""
    inline = TRAITS + schema(declare("x", 4), name="Old") + b"\7"
    event = replace(self_describing(b""), extended=[], payload=inline)
    decoded = Decoder().decode(event)
    assert (decoded.name, decoded.fields, decoded.layout) == ("My.Provider/Old", {"x": 7}, "tracelogging")
    for broken in (inline[:9], inline[: len(TRAITS) + 3], b"", b"\xff\xff"):
        assert Decoder().decode(replace(event, payload=broken)).layout == "raw"
    assert Decoder().decode(replace(event, channel=0)).layout == "raw"


def test_payload_shorter_or_longer_than_its_schema():
    blob = schema(declare("x", 8), declare("s", 1), declare("a", 8 | VARIABLE))
    assert fields_of(blob, b"") == {}
    assert fields_of(blob, b"\1\0\0") == {REST: b"\1\0\0"}
    assert fields_of(blob, b"\1\0\0\0a") == {"x": 1, "s": ""}
    assert fields_of(blob, b"\1\0\0\0a\0\0\0\xff\xff1234") == {"x": 1, "s": "a", REST: b"\xff\xff1234"}
    assert fields_of(blob, b"\1\0\0\0\0\0\0\0+") == {"x": 1, "s": "", "a": [], REST: b"+"}


BROKEN = {
    "empty": b"",
    "size only": b"\2\0",
    "size past the end": struct.pack("<H", 99) + b"\0Event\0",
    "endless tags": sized(b"\x80\x80\x80"),
    "no end of the name": sized(b"\0Event"),
    "no type": sized(b"\0Event\0x\0"),
    "no out-type": sized(b"\0Event\0x\0\x84"),
    "no count": sized(b"\0Event\0x\0\x24\1"),
    "unknown type": schema(declare("x", 26)),
    "fields missing in a structure": schema(declare("s", STRUCT, 3), declare("a", 4)),
    "nested too deep": schema(*[declare("s", STRUCT, 1)] * 500, declare("a", 4)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_schemas(name):
    decoded = Decoder().decode(self_describing(BROKEN[name], b"abc"))
    assert (decoded.layout, decoded.fields) == ("raw", {PAYLOAD: b"abc"})


def test_elements_without_bytes_end_the_fields():
    """Or 65,535 of nothing would be decoded for two bytes."""
    blob = schema(declare("s", STRUCT | VARIABLE, 1), declare("n", 4 | CONSTANT, count=0))
    assert fields_of(blob, b"\xff\xff") == {REST: b"\xff\xff"}


def test_elements_of_nothing_but_empty_arrays_do_not_multiply():
    """65,535 structures of 126 empty arrays each are 1 byte an element; a hostile trace would hold many such events."""
    empty = [declare("n", 4 | CONSTANT, count=0)] * 126
    blob = schema(declare("s", STRUCT | VARIABLE, 127), *empty, declare("x", 4))
    data = b"\xff\xff" + bytes(60000)
    with time_limit(30):
        for _ in range(100):
            assert fields_of(blob, data) == {REST: data}
    members = [(0x20, "n", 4, 0, "", 0, 1)] * 2000 + [(0, "x", 4, 0, "", 1, 1)]
    info = event_info([U32_PLAIN, (5, "rows", 2, len(members), "", 0, 0), *members], top=2)
    decoder = learned([metadata(32, info)])
    data = struct.pack("<I", 60000) + bytes(60000)
    with time_limit(30):
        for _ in range(100):
            assert decoder.decode(described(data)).fields == {"n": 60000, REST: data[4:]}


def test_names_are_unique():
    names = EventNames()
    assert [names.add(n) for n in ("a", "a", "a_2", "a", "", "", "rest", "Field5")] == [
        "a",
        "a_2",
        "a_2_2",
        "a_3",
        "Field5",
        "Field6",
        "rest_2",
        "Field5_2",
    ]
    with time_limit(30):
        many = EventNames()
        assert len({many.add(name) for _ in range(50000) for name in ("x", "x_2")}) == 100000


def test_broken_traits():
    assert parse_traits(TRAITS) == ("My.Provider", str(uuid.UUID(int=7)), len(TRAITS))
    assert parse_traits(sized(b"Name\0\1")).group == ""
    assert parse_traits(sized(b"Name\0" + struct.pack("<HB", 99, 1))).name == "Name"
    assert [parse_traits(d) for d in (b"", b"\x09\0a\0", sized(b"Name"))] == [None] * 3


@given(st.binary(max_size=120), st.binary(max_size=60), st.sampled_from([4, 8]))
@settings(max_examples=500, deadline=None)
def test_any_schema_and_payload(body, payload, pointer):
    event = self_describing(sized(b"\0E\0" + body), payload, pointer=pointer)
    decoded = Decoder().decode(event)
    known = parse_schema(sized(b"\0E\0" + body))
    if known is None:
        assert decoded.layout == "raw"
    else:
        assert known.layout.encode(decoded.fields, pointer) == payload


# Manifests


def event_info(properties, *, task="Task", opcode="Open", top=None, source=0, id_=7, version=1, strings=()):
    """A TRACE_EVENT_INFO. Properties: (flags, name, in or start, out or number, map, count, length)."""
    size = 0x70 + 24 * len(properties)
    heap, places = b"", {}
    for text in ("Prov", task, opcode, *[p[1] for p in properties], *[p[4] for p in properties if p[4]], *strings):
        if text not in places:
            places[text] = size + len(heap)
            heap += f"{text}\0".encode("utf-16-le")
    head = PROVIDER + bytes(16) + struct.pack("<HBBBBHQ", id_, version, 0, 4, 33, 1, 0)
    head += struct.pack(
        "<16I",
        source,
        places["Prov"],
        0,
        0,
        0,
        places[task],
        places[opcode],
        *[0] * 6,
        len(properties),
        len(properties) if top is None else top,
        0,
    )
    for flags, name, first, second, map_name, count, length in properties:
        head += struct.pack("<IIHHIHHI", flags, places[name], first, second, places.get(map_name, 0), count, length, 0)
    return head + heap


def metadata(opcode, payload):
    return Event(20, 8, 0, 1, 2, 0, -1, META_DATA, 0, 0, opcode, payload=payload)


def described(payload, *, id_=7, version=1, pointer=8):
    header = 19 if pointer == 8 else 18
    return Event(header, pointer, 0, 1, 2, 0, -1, PROVIDER, id_, version, 33, payload=payload)


def map_info(entries, *, flags=1, name="Map"):
    at = 16 + 8 * len(entries)
    heap, table = f"{name}\0".encode("utf-16-le"), b""
    for value, text in entries.items():
        table += struct.pack("<II", at + len(heap), value)
        heap += f"{text} \0".encode("utf-16-le")
    return PROVIDER + struct.pack("<IIII", at, flags, len(entries), 0) + table + heap


U32_PLAIN = (0, "n", 8, 0, "", 1, 4)


def test_described_event():
    info = event_info(
        [
            U32_PLAIN,
            (0, "s", 1, 1, "", 1, 0),
            (0, "kind", 4, 0, "Map", 1, 1),
            (0, "flags", 8, 18, "Bits", 1, 4),
            (4, "list", 6, 0, "", 0, 2),
            (2, "raw", 14, 0, "", 1, 0),
            (0x20, "two", 4, 0, "", 2, 1),
            (0x12, "cut", 1, 1, "", 1, 0),
            (0, "ip", 14, 24, "", 1, 16),
            (0, "p", 16, 0, "", 1, 8),
        ],
        strings=("Bits",),
    )
    events = [
        metadata(32, info),
        metadata(33, map_info({1: "One"})),
        metadata(33, map_info({1: "A", 2: "B"}, flags=2, name="Bits")),
    ]
    payload = (
        b"\2\0\0\0"
        + "x\0".encode("utf-16-le")
        + b"\1"
        + b"\3\0\0\0"
        + b"\7\0\x08\0"
        + b"zz"
        + b"ab"
        + "yz".encode("utf-16-le")
        + bytes(15)
        + b"\1"
        + b"\x10"
        + bytes(7)
    )
    decoded = learned(events).decode(described(payload))
    assert (decoded.name, decoded.layout) == ("Prov/Task/Open", "manifest")
    assert decoded.fields == {
        "n": 2,
        "s": "x",
        "kind": 1,
        "flags": 3,
        "list": [7, 8],
        "raw": b"zz",
        "two": [97, 98],
        "cut": "yz",
        "ip": "::1",
        "p": 16,
    }
    assert [str(decoded.fields[key]) for key in ("kind", "flags", "p")] == ["One", "A|B", "0x10"]
    assert learned(events).decode(described(payload, version=2)).layout == "raw"
    assert learned(events).decode(described(payload[:3])).fields == {REST: payload[:3]}
    assert learned(events).decode(described(payload + b"+")).fields[REST] == b"+"


def test_described_structures():
    info = event_info(
        [U32_PLAIN, (5, "rows", 2, 2, "", 0, 0), (0, "a", 4, 0, "", 1, 1), (0, "b", 2, 0, "", 1, 0)], top=2
    )
    decoder = learned([metadata(32, info)])
    assert decoder.decode(described(b"\2\0\0\0\1x\0\2\0")).fields == {
        "n": 2,
        "rows": [{"a": 1, "b": "x"}, {"a": 2, "b": ""}],
    }
    many = b"\xff\xff\xff\x7f\1x\0"
    assert decoder.decode(described(many)).fields == {"n": 0x7FFFFFFF, REST: many[4:]}


@pytest.mark.parametrize(
    ("task", "opcode", "name"),
    [
        ("Task", "win:Start", "Task/Start"),
        ("Task", "Info", "Task"),
        ("Task ", "win:Info", "Task"),
        ("", "Open", "Open"),
    ],
)
def test_described_names(task, opcode, name):
    assert parse_event_info(event_info([], task=task, opcode=opcode)).event_name == name


def test_descriptions_of_classic_events():
    info = bytearray(event_info([U32_PLAIN], source=1))
    info[16:32] = PROVIDER
    decoder = learned([metadata(32, bytes(info))])
    classic = Event(20, 8, 0, 1, 2, 0, -1, PROVIDER, 0, 1, 33, payload=b"\1\0\0\0")
    assert decoder.decode(classic).fields == {"n": 1}
    assert decoder.decode(described(b"\1\0\0\0")).layout == "raw"


def test_broken_descriptions():
    good = event_info([U32_PLAIN, (1, "s", 1, 1, "", 1, 0)], top=1)
    assert parse_event_info(good) is not None
    assert parse_event_info(good[:0x6F]) is None
    for at, value in ((0x30, 5), (0x64, 1 << 31), (0x68, 9)):  # source, number of properties, of top ones
        assert parse_event_info(good[:at] + struct.pack("<I", value) + good[at + 4 :]) is None
    assert parse_event_info(event_info([(0, "n", 8, 0, "", 1, 4)])[:0x88]) is None  # names cut off
    itself = event_info([(1, "s", 0, 2, "", 1, 0)] * 2)  # a structure made of itself
    assert parse_event_info(itself) is None
    assert parse_event_info(event_info([(4, "n", 8, 0, "", 9, 4)])) is None  # count in a property that is not there
    assert parse_map_info(b"short") is None
    assert parse_map_info(PROVIDER + struct.pack("<IIII", 0, 1, 1 << 30, 0)) is None
    assert parse_map_info(PROVIDER + struct.pack("<IIIIII", 99, 1, 1, 0, 99, 1)) is None


@given(st.data())
@settings(max_examples=75, deadline=None)
def test_damaged_descriptions_never_fail(data):
    """Real descriptions (or ours) with bytes changed, on payloads of any bytes: any exception fails."""
    ours = [
        event_info([U32_PLAIN, (5, "rows", 2, 2, "", 0, 0), (0, "a", 4, 0, "", 1, 1), (6, "b", 14, 0, "", 0, 0)], top=2)
    ]
    infos = real_infos() or ours
    blob = bytearray(data.draw(st.sampled_from(infos)))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(blob) - 1), st.integers(0, 255)), max_size=12)):
        blob[at] = value
    found = parse_event_info(bytes(blob))
    if found is not None:
        decoder = learned([metadata(32, bytes(blob))])
        event = Event(
            19, data.draw(st.sampled_from([4, 8])), 0, 1, 2, 0, -1, found.provider, found.id, found.version, 0
        )
        decoder.decode(replace(event, payload=data.draw(st.binary(max_size=200))))


@cache
def real_infos():
    if "LASTBRANCH_DATA" not in os.environ:
        return []
    return [e.payload for e in real_events("net.4.5.2.x64") if e.provider == META_DATA and e.opcode == 32]


XML = """<instrumentationManifest xmlns="http://schemas.microsoft.com/win/2004/08/events"><instrumentation><events>
<provider name="My-Source" guid="{d3dd3dd4-aac2-4e2a-8dd4-a8fb61b77615}" symbol="MySource">
<events><event value="7" version="1" task="Work" opcode="win:Start" template="T"/>
<event value="8" version="0" symbol="Bare"/></events>
<templates><template tid="T"><data name="n" inType="win:UInt32"/><data name="level" inType="win:Int32" map="L"/>
<data name="raw" inType="win:Binary" length="n"/><struct name="rows" count="n"><data name="a" inType="win:UInt8"/>
</struct><data name="on" inType="win:Boolean"/></template></templates>
<maps><valueMap name="L"><map value="0x5" message="$(string.map_L_Verbose)"/></valueMap></maps></provider></events>
</instrumentation><localization><resources culture="en-US"><stringTable>
<string id="map_L_Verbose" value="Verbose"/></stringTable></resources></localization></instrumentationManifest>"""


def chunk_events(text, size=400):
    parts = [text.encode()[at : at + size] for at in range(0, len(text), size)]
    return [
        described(struct.pack("<BBBBHH", 1, 1, 0, 0x5B, len(parts), number) + part, id_=65534)
        for number, part in enumerate(parts)
    ]


def test_manifest_in_the_trace():
    chunks = chunk_events(XML)
    assert len(chunks) > 2
    decoder = learned(chunks)
    payload = b"\2\0\0\0\5\0\0\0zz\1\2\1\0\0\0"
    decoded = decoder.decode(described(payload))
    assert (decoded.name, decoded.layout) == ("My-Source/Work/Start", "manifest")
    assert decoded.fields == {"n": 2, "level": 5, "raw": b"zz", "rows": [{"a": 1}, {"a": 2}], "on": True}
    assert str(decoded.fields["level"]) == "Verbose"
    assert decoder.decode(described(b"", id_=8, version=0)).name == "My-Source/Bare"
    head = decoder.decode(chunks[0])
    assert (head.name, head.fields["TotalChunks"], head.layout) == ("My-Source/ManifestData", len(chunks), "manifest")
    missing = learned([*chunks[:1], *chunks[2:]])
    assert missing.decode(described(payload)).layout == "raw"
    again = learned([chunks[0], *chunks])  # a second start begins anew
    assert again.decode(described(payload)).layout == "manifest"


def test_broken_manifests():
    assert parse_manifest("<no") == ([], {})
    assert parse_manifest("<!DOCTYPE x [<!ENTITY a 'aaaa'>]>" + XML) == ([], {})
    assert parse_manifest(XML.replace("{d3dd3dd4", "{what")) == ([], {})
    assert parse_manifest("") == ([], {})
    chunks = Chunks()
    assert chunks.add(PROVIDER, 1, b"\1") is None
    assert chunks.add(PROVIDER, 1, b"\2\1\0\x5b\1\0\0\0<a/>") is None
    assert chunks.add(PROVIDER, 1, b"\1\1\0\x5b\1\0\0\0<a/>") == "<a/>"
    for process in range(1000):  # first chunks of manifests that never end
        assert chunks.add(PROVIDER, process, b"\1\1\0\x5b\2\0\0\0<a>") is None
    assert len(chunks._parts) == 64
    assert chunks.add(PROVIDER, 999, b"\1\1\0\x5b\2\0\1\0</a>") == "<a></a>"


@given(st.text(max_size=200))
@settings(deadline=None)
def test_any_text_as_a_manifest(text):
    """Any exception fails."""
    parse_manifest(text)
    parse_manifest(XML[:400] + text + XML[400:])
