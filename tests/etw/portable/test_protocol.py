"""Messages between processes of a session: framing, bodies, descriptors, and who may talk."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastbranch.errors import FormatError
from lastbranch.etw.flags import EnableProvider, LogFileMode, V2Option
from lastbranch.etw.portable import protocol
from lastbranch.etw.portable.pool import Attached
from lastbranch.etw.portable.protocol import (
    MOST_BODY,
    Connection,
    Decoder,
    Kind,
    Peer,
    Value,
    address_in,
    check_peer,
    encode,
    pack,
    peer_of,
    unpack,
)
from lastbranch.etw.portable.session.spawn import Order, Started
from lastbranch.etw.portable.session_registry import EnableState, Entry, Notice, ProcessKey
from lastbranch.etw.portable.sources.configuration import SourceConfiguration
from lastbranch.etw.properties import Filter, SessionRequest, SessionState
from lastbranch.etw.status import EtwError, Status

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(codec=None), max_size=40)
REQUESTS = st.builds(
    SessionRequest,
    NAMES,
    st.uuids(),
    U32,
    U32,
    U32,
    U32,
    U32,
    U32.map(LogFileMode),
    U32,
    U32,
    st.integers(-(2**31), 2**31 - 1),
    NAMES,
    U64.map(V2Option),
    st.lists(st.builds(Filter, U32, st.binary(max_size=30)), max_size=4).map(tuple),
)
STATES = st.builds(SessionState, REQUESTS, *[U64] * 8, masks=st.lists(U32, min_size=8, max_size=8))
VALUES = st.one_of(
    st.none(),
    U64,
    st.lists(U64, max_size=9),
    st.lists(st.uuids(), max_size=5),
    st.lists(st.tuples(st.uuids(), U32), max_size=5),
)
SOME = st.lists(U32, max_size=20).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | U64 | NAMES, lambda of: st.lists(of) | st.dictionaries(NAMES, of), max_leaves=9
)
MESSAGES = st.lists(st.tuples(st.sampled_from(Kind), U32, st.binary(max_size=50)), max_size=5)


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    one, other = socket.socketpair()
    with Connection(one) as left, Connection(other) as right:
        yield left, right


CONFIGURATIONS = st.builds(
    SourceConfiguration, st.tuples(*[U32] * 8), st.booleans(), st.booleans(), st.sampled_from([1, 2]), *[SOME] * 4, U32,
    *[SOME] * 2, U32, SOME, st.dictionaries(U32, U32, max_size=9),
)  # fmt: skip
KEYS = st.builds(ProcessKey, U32, U64)
BODIES: dict[Any, st.SearchStrategy[Any]] = {
    SessionRequest: REQUESTS,
    SessionState: STATES,
    Value: VALUES,
    Order: st.builds(Order, NAMES.map(Path), U32, NAMES, REQUESTS, SOME),
    Started: st.builds(Started, KEYS, STATES),
    Attached: st.builds(Attached, U32, U32),
    SourceConfiguration: CONFIGURATIONS,
    Entry: st.builds(Entry, U32, NAMES, st.uuids(), KEYS, st.booleans(), st.booleans(), NAMES),
    list[EnableState]: st.lists(
        st.builds(EnableState, U32, KEYS, NAMES, U32, U64, U64, U32, st.uuids(), st.just((Filter(1, b"\0\xff"),)))
    ),
    Notice: st.builds(Notice, st.sampled_from(EnableProvider), U32, U64),
    tuple[int, str]: st.tuples(U32, NAMES),
}


@pytest.mark.parametrize("kind", BODIES, ids=str)
class TestBodies:
    @given(st.data())
    def test_come_back_as_they_were(self, kind: Any, data: st.DataObject) -> None:
        value = data.draw(BODIES[kind])
        found = unpack(kind, pack(value))
        assert found == value
        assert type(found) is type(value)

    @given(st.data())
    def test_that_are_cut_or_longer_are_refused(self, kind: Any, data: st.DataObject) -> None:
        body = pack(data.draw(BODIES[kind].filter(lambda value: not isinstance(value, int))))
        cut = data.draw(st.integers(0, len(body) - 1))
        for wrong in (body[:cut], body + b"\0"):
            with pytest.raises(FormatError):
                unpack(kind, wrong)

    @given(st.binary(max_size=300) | JSON.map(json.dumps).map(str.encode))
    def test_anything_else_is_a_format_error(self, kind: Any, body: bytes) -> None:
        try:
            value = unpack(kind, body)
        except FormatError:
            return
        assert unpack(kind, pack(value)) == value

    @pytest.mark.parametrize("body", [b"[" * 100_000, b"9" * 5000, b"1e999", b'{"name": 1}', b"[true]", b"[[1, 2]]"])
    def test_deep_large_and_mistyped_ones_are_refused(self, kind: Any, body: bytes) -> None:
        with pytest.raises(FormatError):
            unpack(kind, body)


class TestNumbers:
    @pytest.mark.parametrize("number", [-(1 << 63) - 1, 1 << 64])
    def test_have_64_bits(self, number: int) -> None:
        with pytest.raises(FormatError, match="64 bits"):
            unpack(int, pack(number))

    def test_are_not_truth_values(self) -> None:
        with pytest.raises(FormatError):
            unpack(int, b"true")
        with pytest.raises(FormatError):
            unpack(bool, b"1")


class TestFraming:
    @given(MESSAGES, st.lists(st.integers(1, 40), max_size=20))
    def test_any_pieces_give_the_same_messages(self, messages: list[tuple[Kind, int, bytes]], cuts: list[int]) -> None:
        stream = b"".join(encode(kind, body, status) for kind, status, body in messages)
        decoder, found, at = Decoder(), [], 0
        for size in [*cuts, len(stream)]:
            decoder.feed(stream[at : at + size])
            at += size
            found += list(iter(decoder.next, None))
        assert found == messages
        assert decoder.missing == 16

    @given(st.binary(max_size=200), st.lists(st.integers(1, 16), max_size=12))
    def test_any_bytes_end_in_messages_or_a_format_error(self, stream: bytes, cuts: list[int]) -> None:
        decoder, at = Decoder(), 0
        for size in [*cuts, len(stream)]:
            decoder.feed(stream[at : at + size])
            at += size
            try:
                while decoder.next():
                    pass
            except FormatError:
                return
            assert 0 < decoder.missing <= 16 + MOST_BODY

    @pytest.mark.parametrize(
        "head",
        [
            struct.pack("<4sHHII", b"LBEX", 1, 1, 0, 0),
            struct.pack("<4sHHII", b"LBET", 2, 1, 0, 0),
            struct.pack("<4sHHII", b"LBET", 1, 999, 0, 0),
            struct.pack("<4sHHII", b"LBET", 1, 1, 0, MOST_BODY + 1),
        ],
    )
    def test_what_is_no_message_of_this_version(self, head: bytes) -> None:
        decoder = Decoder()
        decoder.feed(head)
        with pytest.raises(FormatError):
            decoder.next()

    def test_nothing_too_long_is_sent(self) -> None:
        assert len(encode(Kind.ANSWER, bytes(MOST_BODY))) == 16 + MOST_BODY
        with pytest.raises(ValueError, match="body"):
            encode(Kind.ANSWER, bytes(MOST_BODY + 1))


class TestConnection:
    def test_a_call_with_descriptors(self, ends: tuple[Connection, Connection], tmp_path: Path) -> None:
        left, right = ends
        (tmp_path / "f").write_text("content")
        with (tmp_path / "f").open() as file:
            right.post(Kind.ANSWER, b"slot", fds=(file.fileno(),))
        body, (fd,) = left.call(Kind.ATTACH)
        assert (body, os.read(fd, 100)) == (b"slot", b"content")
        assert not os.get_inheritable(fd)
        os.close(fd)

    def test_descriptors_nobody_asked_for_are_not_kept(self, ends: tuple[Connection, Connection]) -> None:
        left, right = ends
        before = len(os.listdir("/proc/self/fd"))
        with open("/dev/null") as file:
            socket.send_fds(left.stream, [encode(Kind.QUERY)], [file.fileno()] * 50)
        assert right.pump() == [(Kind.QUERY, 0, b"")]
        assert len(os.listdir("/proc/self/fd")) <= before  # what other tests left may be collected meanwhile

    def test_what_follows_an_answer_stays_in_the_stream(self, ends: tuple[Connection, Connection]) -> None:
        left, right = ends
        right.stream.sendall(encode(Kind.ANSWER, b"yes") + b"a stream of buffers")
        assert left.call(Kind.CONSUME)[0] == b"yes"
        assert left.stream.recv(100) == b"a stream of buffers"

    def test_an_error_is_raised_with_its_code_and_reason(self, ends: tuple[Connection, Connection]) -> None:
        left, right = ends
        right.post(Kind.ANSWER, b"no such thing", status=50)
        with pytest.raises(EtwError, match=r"TraceSetInformation: no such thing \(code 50\)") as caught:
            left.call(Kind.SET_INFO, name="TraceSetInformation")
        assert (caught.value.status, caught.value.reason) == (Status.NOT_SUPPORTED, "no such thing")

    def test_no_answer_in_time(self, ends: tuple[Connection, Connection]) -> None:
        with pytest.raises(EtwError) as caught:
            ends[0].call(Kind.QUERY, timeout=0.05)
        assert caught.value.status == Status.TIMEOUT

    @pytest.mark.parametrize("answer", [b"", b"half of a head", encode(Kind.ANSWER, b"body")[:-1], b"garbage" * 9])
    def test_a_peer_that_breaks_off(self, ends: tuple[Connection, Connection], answer: bytes) -> None:
        ends[1].stream.sendall(answer)
        ends[1].close()
        with pytest.raises(EtwError) as caught:
            ends[0].call(Kind.QUERY)
        assert caught.value.status == Status.WMI_INSTANCE_NOT_FOUND

    def test_a_peer_that_does_not_read_is_given_up(self, ends: tuple[Connection, Connection]) -> None:
        left, right = ends
        kept = 0
        while left.post(Kind.ANSWER, bytes(MOST_BODY)):
            kept += 1
            assert kept < 50
        assert left.pending
        assert kept >= protocol.MOST_QUEUED // MOST_BODY
        right.close()
        assert not left.flush()

    def test_what_was_queued_comes_out_whole(self, ends: tuple[Connection, Connection]) -> None:
        left, right = ends
        bodies = [bytes([n]) * 700_000 for n in range(4)]
        assert all(left.post(Kind.ANSWER, body) for body in bodies)
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.extend(right.receive(30).body for _ in bodies))  # type: ignore[union-attr]
        reader.start()
        while left.pending:
            assert left.flush()
        reader.join(30)
        assert got == bodies


class TestPeers:
    def test_this_process(self, ends: tuple[Connection, Connection]) -> None:
        assert check_peer(ends[0].stream) == (os.getpid(), os.geteuid(), os.getegid())

    def test_another_user_is_refused(self, ends: tuple[Connection, Connection]) -> None:
        with pytest.raises(EtwError) as caught:
            check_peer(ends[0].stream, lambda _: Peer(1, os.geteuid() + 1, 0))
        assert caught.value.status == Status.ACCESS_DENIED

    def test_a_daemon_of_another_user_is_refused(self, tmp_path: Path) -> None:
        folder = os.open(tmp_path, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address_in(folder, "s"))
            listener.listen()
            Connection.open(address_in(folder, "s")).close()
            with pytest.raises(EtwError) as caught:
                Connection.open(address_in(folder, "s"), peer=lambda s: peer_of(s)._replace(uid=os.geteuid() + 1))
        os.close(folder)
        assert caught.value.status == Status.ACCESS_DENIED

    def test_deep_directories_have_short_addresses(self, tmp_path: Path) -> None:
        deep = tmp_path / ("d" * 100) / ("e" * 100)
        deep.mkdir(parents=True)
        folder = os.open(deep, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address_in(folder, "x" * 64 + ".sock"))
            listener.listen()
            Connection.open(address_in(folder, "x" * 64 + ".sock")).close()
        os.close(folder)
        assert (deep / ("x" * 64 + ".sock")).is_socket()
