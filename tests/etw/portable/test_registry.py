"""The registry of sessions: names, limits, stale entries, the directory that nobody else may have a hand in."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastbranch.etw.flags import EnableProvider
from lastbranch.etw.portable import session_registry as module
from lastbranch.etw.portable.protocol import unpack
from lastbranch.etw.portable.session_registry import (
    MAX_SESSIONS,
    MAX_SYSTEM_LOGGERS,
    EnableState,
    Entry,
    Notice,
    ProcessKey,
    Registry,
    notify,
    process_key,
    read_state,
    root_path,
    session_key,
    write_state,
)
from lastbranch.etw.properties import NO_GUID, Filter
from lastbranch.etw.status import EtwError, Status

PROVIDER = UUID("11111111-2222-3333-4444-555555555555")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "etw")


def ended() -> ProcessKey:
    """The key of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        return process_key(process.pid)


def begin(registry: Registry, name: str, guid: UUID = NO_GUID, system: bool = False) -> Entry:
    """A session of this very process."""
    with registry.locked() as held:
        entry = replace(held.reserve(name, guid, system), ready=True)
        held.put(entry)
    return entry


def code_of(call: object, *arguments: object) -> int:
    assert callable(call)
    with pytest.raises(EtwError) as caught:
        call(*arguments)
    return caught.value.status


def set_enabled(registry: Registry, provider: UUID, handle: int, state: EnableState | None) -> None:
    with registry.locked() as held:
        held.set_enabled(provider, handle, state)


class TestEntries:
    def test_found_by_handle_and_by_name_without_case(self, registry: Registry) -> None:
        """ "Session names are not case-sensitive"."""
        entry = begin(registry, "Straße Ärger")
        assert registry.find("STRASSE äRGER") == registry.find(1) == registry.find(entry.name) == entry
        assert registry.find("other") is None
        assert registry.find(2) is None

    def test_one_of_a_name_and_one_of_a_guid(self, registry: Registry) -> None:
        """ "If another session with the same name is running, the system does not start a new one"."""
        guid = uuid4()
        begin(registry, "first", guid)
        assert code_of(begin, registry, "FIRST") == Status.ALREADY_EXISTS
        assert code_of(begin, registry, "second", guid) == Status.ALREADY_EXISTS
        assert begin(registry, "second", uuid4()).handle == 2
        assert begin(registry, "third").handle == 3
        assert begin(registry, "fourth").handle == 4

    def test_the_lowest_handle_that_is_free(self, registry: Registry) -> None:
        entries = [begin(registry, f"s{i}") for i in range(5)]
        with registry.locked() as held:
            held.drop(entries[1].key, entries[1].owner)
        assert begin(registry, "again").handle == 2

    def test_sixty_four_sessions(self, registry: Registry) -> None:
        for i in range(MAX_SESSIONS):
            begin(registry, f"s{i}")
        assert code_of(begin, registry, "one more") == Status.NO_SYSTEM_RESOURCES
        assert [entry.handle for entry in registry.entries()] == list(range(1, 65))

    def test_eight_system_loggers(self, registry: Registry) -> None:
        for i in range(MAX_SYSTEM_LOGGERS):
            begin(registry, f"s{i}", system=True)
        assert code_of(begin, registry, "one more", NO_GUID, True) == Status.NO_SYSTEM_RESOURCES
        assert begin(registry, "an ordinary one").handle == 9

    @given(st.text(min_size=1, max_size=60))
    def test_any_name_is_a_key_of_its_folded_form(self, name: str) -> None:
        assert session_key(name) == session_key(name.casefold())
        assert (session_key(name) == session_key(name + "x")) is False
        assert len(session_key(name)) == 64

    def test_a_session_that_is_starting_is_not_found_but_holds_its_name(self, registry: Registry) -> None:
        with registry.locked() as held:
            held.reserve("soon", NO_GUID, False)
        assert registry.find("soon") is None
        assert code_of(begin, registry, "soon") == Status.ALREADY_EXISTS


class TestStale:
    def test_a_dead_process_leaves_nothing(self, registry: Registry) -> None:
        entry = begin(registry, "gone")
        set_enabled(registry, PROVIDER, entry.handle, EnableState(entry.handle, entry.owner, entry.socket))
        with registry.locked() as held:
            held.put(replace(entry, owner=ended()))
        for suffix in ("sock", "log"):
            (registry.root / "sessions" / f"{entry.key}.{suffix}").touch()
        assert registry.entries() == []
        assert list((registry.root / "sessions").iterdir()) == []
        assert registry.enabled(PROVIDER) == {}
        assert list((registry.root / "enable").iterdir()) == []
        assert begin(registry, "gone").handle == 1

    def test_a_process_id_that_is_used_again_is_another_process(self, registry: Registry) -> None:
        entry = begin(registry, "gone")
        with registry.locked() as held:
            held.put(replace(entry, owner=ProcessKey(os.getpid(), entry.owner.start - 1)))
        assert registry.find("gone") is None

    def test_only_its_own_process_drops_an_entry(self, registry: Registry) -> None:
        entry = begin(registry, "mine")
        with registry.locked() as held:
            held.drop(entry.key, ProcessKey(1, 1))
            assert held.entries() == [entry]
            held.drop(entry.key, entry.owner)
            assert held.entries() == []

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"[]", b"null", b'{"handle": "x"}', b"\xff" * 100, b"[" * 100_000, b"1" * (2 << 20)]
    )
    def test_a_damaged_entry_is_removed(self, registry: Registry, content: bytes) -> None:
        good = begin(registry, "good")
        (registry.root / "sessions" / f"{session_key('bad')}.state").write_bytes(content)
        (registry.root / "sessions" / f"{session_key('left over')}.sock").touch()
        assert registry.entries() == [good]
        assert [path.name for path in (registry.root / "sessions").iterdir()] == [f"{good.key}.state"]

    def test_an_entry_under_another_name_is_removed(self, registry: Registry) -> None:
        entry = begin(registry, "good")
        folder = registry.root / "sessions"
        (folder / f"{session_key('other')}.state").write_bytes((folder / f"{entry.key}.state").read_bytes())
        assert registry.entries() == [entry]

    def test_the_process_key_of_a_zombie_is_dead(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", ""])
        key = ProcessKey(process.pid, process_key(process.pid).start or 1)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not key.alive
        process.wait()
        assert process_key().alive


class TestEnabling:
    def test_states_come_back_whole(self, registry: Registry) -> None:
        entry = begin(registry, "s")
        state = EnableState(
            entry.handle, entry.owner, entry.socket, 5, 2**64 - 1, 3, 0x11, PROVIDER, (Filter(0x80000200, b"\0\1"),)
        )
        set_enabled(registry, PROVIDER, entry.handle, state)
        assert registry.enabled(PROVIDER) == {1: state}
        assert registry.enabled(uuid4()) == {}
        with registry.locked() as held:
            assert held.enabled_by(1) == [PROVIDER]
        set_enabled(registry, PROVIDER, entry.handle, None)
        assert registry.enabled(PROVIDER) == {}

    def test_several_sessions_enable_one_provider(self, registry: Registry) -> None:
        entries = [begin(registry, f"s{i}") for i in range(3)]
        for e in entries:
            set_enabled(registry, PROVIDER, e.handle, EnableState(e.handle, e.owner, e.socket, level=e.handle))
        assert {handle: state.level for handle, state in registry.enabled(PROVIDER).items()} == {1: 1, 2: 2, 3: 3}
        with registry.locked() as held:
            held.drop(entries[1].key, entries[1].owner)
        assert sorted(registry.enabled(PROVIDER)) == [1, 3]


class TestNotices:
    @pytest.mark.parametrize("code", list(EnableProvider))
    def test_a_provider_is_told_and_answers(self, registry: Registry, code: EnableProvider) -> None:
        import socket
        import threading

        from lastbranch.etw.portable.protocol import address_in

        with (
            registry.folder("providers", str(PROVIDER)) as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as provider,
        ):
            provider.bind(address_in(folder, "1.sock"))
            assert registry.providers(PROVIDER) == [registry.root / "providers" / str(PROVIDER) / "1.sock"]
            assert notify(registry, PROVIDER, Notice(code, 3))
            data, address = provider.recvfrom(100)
            assert unpack(Notice, data) == (code, 3, 0)
            assert not address
            assert not notify(registry, PROVIDER, Notice(code, 3), timeout=0.05)
            provider.recvfrom(100)

            def answer() -> None:
                data, address = provider.recvfrom(100)
                provider.sendto(data, address)

            thread = threading.Thread(target=answer)
            thread.start()
            assert notify(registry, PROVIDER, Notice(code, 7, 2**63), timeout=30)
            thread.join()

    def test_a_dead_provider_is_forgotten(self, registry: Registry) -> None:
        import socket

        from lastbranch.etw.portable.protocol import address_in

        with registry.folder("providers", str(PROVIDER)) as folder:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as provider:
                provider.bind(address_in(folder, "1.sock"))
            assert len(registry.providers(PROVIDER)) == 1
            assert notify(registry, PROVIDER, Notice(EnableProvider.ENABLE, 1), timeout=30)
            assert registry.providers(PROVIDER) == []


class TestDirectory:
    def test_where_it_is(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("LASTBRANCH_ETW_DIR", raising=False)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        assert root_path() == Path(f"/tmp/lastbranch-{os.geteuid()}")
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        assert root_path() == tmp_path / "lastbranch"
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
        assert root_path() == Path(f"/tmp/lastbranch-{os.geteuid()}")
        monkeypatch.setenv("LASTBRANCH_ETW_DIR", "here")
        assert root_path() == Path.cwd() / "here"

    def test_everything_is_private(self, registry: Registry) -> None:
        begin(registry, "s")
        entry = registry.find("s")
        assert entry is not None
        set_enabled(registry, PROVIDER, 1, EnableState(1, entry.owner, entry.socket))
        registry.providers(PROVIDER)
        for path in (registry.root, *registry.root.rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path

    @pytest.mark.parametrize("name", ["", "sessions", "enable", "providers"])
    def test_a_link_is_not_followed(self, registry: Registry, tmp_path: Path, name: str) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(mode=0o700)
        place = registry.root / name
        place.parent.mkdir(mode=0o700, exist_ok=True)
        place.symlink_to(elsewhere)
        assert code_of(lambda: (begin(registry, "s"), registry.providers(PROVIDER))) == Status.ACCESS_DENIED
        assert list(elsewhere.iterdir()) == []

    def test_a_directory_that_others_may_enter_is_refused(self, registry: Registry) -> None:
        registry.root.mkdir()
        registry.root.chmod(0o750)
        assert code_of(registry.entries) == Status.ACCESS_DENIED

    def test_another_users_directory_is_refused(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        registry.root.mkdir(mode=0o700)
        user = os.geteuid()
        monkeypatch.setattr(module.os, "geteuid", lambda: user + 1)
        assert code_of(registry.entries) == Status.ACCESS_DENIED

    def test_a_file_in_its_place_is_refused(self, registry: Registry) -> None:
        registry.root.touch()
        assert code_of(registry.entries) == Status.ACCESS_DENIED
        assert code_of(Registry(registry.root.parent / "no" / "such").entries) == Status.BAD_PATHNAME

    def test_what_the_file_system_refuses_has_a_code(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module, "write_state", full)
        assert code_of(begin, registry, "s") == Status.DISK_FULL

    def test_a_directory_that_vanished_is_made_again(self, registry: Registry) -> None:
        import shutil

        begin(registry, "s")
        shutil.rmtree(registry.root)
        assert registry.entries() == []
        assert begin(registry, "s").handle == 1

    def test_state_files_are_not_written_through_links(self, tmp_path: Path) -> None:
        target = tmp_path / "precious"
        target.write_text("kept")
        (tmp_path / "a.new").symlink_to(target)
        (tmp_path / "b").symlink_to(target)
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            with pytest.raises(OSError, match=r"symbolic|links"):
                write_state(folder, "a", {})
            write_state(folder, "b", [1])
            assert read_state(folder, "b", list[int]) == [1]
        finally:
            os.close(folder)
        assert target.read_text() == "kept"


class TestLock:
    def test_it_is_not_waited_for_without_end(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        registry.entries()
        monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.05)
        with (registry.root / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert code_of(registry.entries) == Status.TIMEOUT

    def test_many_processes_at_once_share_the_handles(self, registry: Registry) -> None:
        context = multiprocessing.get_context("fork")
        done = context.Event()
        results = context.SimpleQueue()
        workers = [context.Process(target=_claim, args=(registry, n, results, done)) for n in range(4)]
        for worker in workers:
            worker.start()
        claimed = [results.get() for _ in range(4 * 16 + 4)]
        assert sorted(c for c in claimed if c is not None) == list(range(1, 65))
        done.set()
        for worker in workers:
            worker.join(30)
        assert registry.entries() == []


def _claim(registry: Registry, number: int, results: object, done: object) -> None:
    for i in range(17):
        try:
            results.put(begin(registry, f"{number}-{i}").handle)  # type: ignore[attr-defined]
        except EtwError:
            results.put(None)  # type: ignore[attr-defined]
    done.wait(30)  # type: ignore[attr-defined]
