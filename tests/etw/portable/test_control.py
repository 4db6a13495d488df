"""Control of sessions of the portable kernel: the rules of requests, and each call against real sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from socket import MSG_WAITALL
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from lastbranch.etw.events import consume
from lastbranch.etw.flags import (
    CIRCULAR_KERNEL_LOGGER,
    GLOBAL_LOGGER,
    KERNEL_LOGGER,
    PERFINFO_PROVIDER,
    Control,
    EnableProvider,
    FilterType,
    Info,
    LogFileMode,
)
from lastbranch.etw.interface import EnableParameters
from lastbranch.etw.portable.kernel import PortableKernel
from lastbranch.etw.portable.request import (
    SPARE_BUFFERS,
    check_start,
    checked_file,
    updated,
)
from lastbranch.etw.portable.session.settings import Settings
from lastbranch.etw.portable.session_registry import MAX_SYSTEM_LOGGERS, Registry
from lastbranch.etw.properties import Filter, SessionRequest
from lastbranch.etw.status import EtwError, Status, status_of
from portable_sessions import Sessions, code_of, processes_of, sessions_in, until

M = LogFileMode
PROVIDER = UUID("11111111-2222-3333-4444-555555555555")
PID, NAME = Filter(FilterType.PID, b"\1\0\0\0"), Filter(FilterType.EXECUTABLE_NAME, b"a\0")


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    with sessions_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """Sessions that the tests leave as they are: ``session``, and ``system``, a system logger without groups."""
    with sessions_in(tmp_path_factory.mktemp("running")) as made:
        made.start()
        made.start("system", "system.etl", mode=M.SYSTEM_LOGGER_MODE)
        yield made


class TestRules:
    """What StartTrace refuses before anything is made: one row a rule."""

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"name": ""}, 123),
            ({"name": "n" * 1025}, 123),
            ({"name": "n" * 1024}, None),
            ({"file": ""}, 161),
            ({"file": "", "mode": M.REAL_TIME_MODE}, None),
            ({"file": "", "mode": M.BUFFERING_MODE}, None),
            ({"clock": 3}, 87),
            ({"clock": 4}, 87),
            ({"clock": 2}, None),
            ({"enable_flags": 1}, 87),
            ({"enable_flags": 1, "mode": M.SYSTEM_LOGGER_MODE}, None),
            ({"enable_flags": 1, "guid": GLOBAL_LOGGER, "name": "GlobalLogger"}, None),
            ({"guid": KERNEL_LOGGER}, 87),
            ({"name": "nt kernel LOGGER"}, None),
            ({"name": "NT Kernel Logger", "guid": KERNEL_LOGGER}, None),
            ({"name": "NT Kernel Logger", "guid": PROVIDER}, 87),
            ({"guid": CIRCULAR_KERNEL_LOGGER}, 87),
            ({"mode": M.FILE_MODE_CIRCULAR}, 87),
            ({"mode": M.FILE_MODE_CIRCULAR, "maximum_file_size": 1}, None),
            ({"mode": M.FILE_MODE_NEWFILE, "maximum_file_size": 1}, 123),
            ({"mode": M.FILE_MODE_NEWFILE, "maximum_file_size": 1, "file": "x%d%d.etl"}, 123),
            ({"mode": M.FILE_MODE_NEWFILE, "maximum_file_size": 1, "file": "x%d.etl"}, None),
            ({"mode": M.FILE_MODE_NEWFILE, "maximum_file_size": 1, "file": "x%d.etl", "name": "NT Kernel Logger"}, 87),
            ({"filters": (PID,)}, 87),
            ({"filters": (PID, NAME), "mode": M.PRIVATE_LOGGER_MODE}, None),
            ({"filters": (PID, PID), "mode": M.PRIVATE_LOGGER_MODE}, 87),
            ({"filters": (Filter(0x80000200, b""),), "mode": M.PRIVATE_LOGGER_MODE}, 87),
            ({"file": "no/such/x.etl"}, 161),
            ({"file": "folder"}, 161),
            ({"file": "folder/"}, 161),
            ({"file": "link.etl"}, 161),
            ({"file": "nowhere.etl"}, 161),
            ({"file": "pipe"}, 161),
            ({"file": "$HOME/x.etl"}, 161),
            ({"file": "%TEMP%/x.etl"}, 161),
            ({"file": "there.etl"}, None),
            ({"file": "./folder/" + "x" * 1014}, 161),
            ({"file": "f\ud800.etl"}, 161),
            ({"file": "folder/../x.etl"}, None),
            ({"file": "linked/x.etl"}, None),
        ],
    )
    def test_codes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], code: int | None
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "folder").mkdir()
        (tmp_path / "there.etl").touch()
        (tmp_path / "link.etl").symlink_to("there.etl")
        (tmp_path / "nowhere.etl").symlink_to("nothing")
        (tmp_path / "linked").symlink_to("folder")
        os.mkfifo(tmp_path / "pipe")
        request = SessionRequest(**{"name": "session", "file": "x.etl", **fields})
        if code is None:
            made = check_start(request)
            assert made.file == (os.path.abspath(request.file) if request.file else "")
        else:
            assert code_of(check_start, request) == code

    def test_refusals_of_files_say_what_is_there(self, tmp_path: Path) -> None:
        (tmp_path / "link.etl").symlink_to("there.etl")
        for file, said in (
            ("link.etl", "link.etl is a link"),
            ("no/x.etl", f"{tmp_path}/no: No such file or directory"),
            (".", "is not a file"),
        ):
            with pytest.raises(EtwError) as caught:
                checked_file("StartTrace", str(tmp_path / file) if file != "." else f"{tmp_path}/", 0)
            assert said in caught.value.reason
            assert "[Errno" not in caught.value.reason

    def test_a_fixed_session_has_its_guid(self) -> None:
        request = SessionRequest("nt kernel logger", mode=M.REAL_TIME_MODE)
        assert check_start(request).guid == KERNEL_LOGGER

    def test_the_longest_name_of_a_file(self, tmp_path: Path) -> None:
        """ "The log file name is limited to 1,024 characters"."""
        folder = f"{tmp_path}{'/.' * 400}"
        assert checked_file("StartTrace", f"{folder}/{'x' * (1023 - len(folder))}"[:1024], 0)
        assert code_of(checked_file, "StartTrace", f"{folder}{'/.' * 100}/{'x' * 200}", 0) == Status.BAD_PATHNAME

    @pytest.mark.parametrize(
        ("number", "code"), [(2, 161), (13, 5), (1, 5), (28, 112), (12, 8), (24, 1450), (40, 161), (30, 5), (5, 1450)]
    )
    def test_codes_of_what_the_system_refuses(self, number: int, code: int) -> None:
        assert status_of(OSError(number, "why")) == code


class TestUpdates:
    NOW = SessionRequest(
        "s",
        PROVIDER,
        1,
        64,
        8,
        20,
        5,
        M.FILE_MODE_SEQUENTIAL,
        3,
        0,
        7,
        "/folder/x.etl",
    )

    @pytest.mark.parametrize(
        ("asked", "changed"),
        [
            ({}, {}),
            ({"flush_timer": 9}, {"flush_timer": 9}),
            ({"maximum_buffers": 40}, {"maximum_buffers": 40}),
            ({"maximum_buffers": 2}, {"maximum_buffers": 8}),
            ({"file": "/folder/y.etl"}, {"file": "/folder/y.etl"}),
            ({"mode": M.REAL_TIME_MODE}, {"mode": M.FILE_MODE_SEQUENTIAL | M.REAL_TIME_MODE}),
            ({"mode": M.FILE_MODE_CIRCULAR}, {}),
            ({"buffer_size": 4, "minimum_buffers": 99, "age_limit": 1}, {}),
            ({"clock": 2, "guid": KERNEL_LOGGER, "maximum_file_size": 1}, {}),
            ({"enable_flags": 7}, {}),
        ],
    )
    def test_what_changes(self, asked: dict[str, Any], changed: dict[str, Any]) -> None:
        assert updated(self.NOW, SessionRequest("other", **asked)) == replace(self.NOW, **changed)

    def test_groups_of_system_loggers(self) -> None:
        now = replace(self.NOW, mode=M.SYSTEM_LOGGER_MODE | M.FILE_MODE_SEQUENTIAL, enable_flags=3)
        assert updated(now, SessionRequest("s", enable_flags=5)).enable_flags == 5
        assert updated(now, SessionRequest("s")).enable_flags == 0

    def test_real_time_goes_off(self) -> None:
        now = replace(self.NOW, mode=M.FILE_MODE_SEQUENTIAL | M.REAL_TIME_MODE)
        assert updated(now, SessionRequest("s")).mode == M.FILE_MODE_SEQUENTIAL

    @pytest.mark.parametrize(
        ("now", "asked", "code"),
        [
            ({}, {"file": "/folder/x.etl"}, 161),
            ({"file": "", "mode": M.REAL_TIME_MODE}, {}, 161),
            ({"file": "", "mode": M.REAL_TIME_MODE}, {"file": "/y.etl", "mode": M.REAL_TIME_MODE}, 161),
            ({"mode": M.FILE_MODE_APPEND}, {"mode": M.REAL_TIME_MODE}, 87),
            ({"mode": M.BUFFERING_MODE, "file": ""}, {"mode": M.REAL_TIME_MODE}, 87),
        ],
    )
    def test_codes(self, now: dict[str, Any], asked: dict[str, Any], code: int) -> None:
        assert code_of(updated, replace(self.NOW, **now), SessionRequest("s", **asked)) == code


class TestGroups:
    """Which words of the masks a session has."""

    def test_enable_flags_are_word_0_and_aliases_move(self, tmp_path: Path) -> None:
        made = Settings(SessionRequest("s", mode=M.SYSTEM_LOGGER_MODE, enable_flags=0x1000003), (), Registry(tmp_path))
        assert made.masks == (3, 2, 0, 0, 0, 0, 0, 0)
        later = made.with_information(Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, [1, 0x400])
        assert later.masks == (1, 0x400, 0, 0, 0, 0, 0, 0)
        assert later.request.enable_flags == 1
        more = later.updated(replace(later.request, enable_flags=0x1000000))
        assert more.masks == (0, 0x402, 0, 0, 0, 0, 0, 0)
        assert more.updated(replace(more.request, enable_flags=0)).masks == (0, 0x400, 0, 0, 0, 0, 0, 0)


class TestControl:
    def test_start_adjusts_and_query_tells(self, running: Sessions) -> None:
        request = running.query().request
        assert request.mode == M.FILE_MODE_SEQUENTIAL
        assert request.minimum_buffers == request.maximum_buffers - SPARE_BUFFERS == 2 * (os.cpu_count() or 1)
        assert (request.clock, request.buffer_size) == (1, 64)
        assert sorted(running.names()) == ["session", "system"]

    def test_same_name_same_guid(self, running: Sessions) -> None:
        assert code_of(lambda: running.start("SESSION", "y.etl")) == Status.ALREADY_EXISTS
        guid = running.query().request.guid
        assert code_of(lambda: running.start("other", "y.etl", guid=guid)) == Status.ALREADY_EXISTS
        assert not running.file("y.etl").exists()

    def test_of_many_starts_at_once_one_wins(self, sessions: Sessions) -> None:
        def start(n: int) -> int:
            try:
                return -sessions.start("same" if n % 2 else "SAME", f"{n}.etl").handle
            except EtwError as error:
                return error.status

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(start, range(4)))
        assert sorted(results) == [-1, *[Status.ALREADY_EXISTS] * 3]
        assert len(sessions.names()) == 1

    @pytest.mark.parametrize("session", [0, 3, 64, -1, "other", ""])
    @pytest.mark.parametrize("code", list(Control))
    def test_no_such_session(self, running: Sessions, code: Control, session: int | str) -> None:
        assert code_of(lambda: running.control(code, session)) == Status.WMI_INSTANCE_NOT_FOUND

    @pytest.mark.parametrize(
        ("code", "fields", "status"),
        [
            (Control.INCREMENT_FILE, {}, 87),
            (Control.UPDATE, {"file": "no/such/y.etl"}, 161),
            (Control.FLUSH, {"file": "no/such/y.etl"}, 161),
        ],
    )
    def test_what_control_refuses(self, running: Sessions, code: Control, fields: dict[str, Any], status: int) -> None:
        assert code_of(lambda: running.control(code, **fields)) == status
        assert code_of(running.kernel.control, Control.UPDATE, 1, None) == Status.INVALID_PARAMETER

    def test_an_update_holds(self, sessions: Sessions) -> None:
        sessions.start()
        made = sessions.control(Control.UPDATE, flush_timer=5, maximum_buffers=50, file=str(sessions.file("y.etl")))
        assert (made.request.flush_timer, made.request.maximum_buffers) == (5, 50)
        assert sessions.query().request == made.request
        assert made.request.file == str(sessions.file("y.etl"))
        sessions.stop()
        for name in ("x.etl", "y.etl"):
            list(consume(sessions.file(name)))

    def test_a_row_of_files(self, sessions: Sessions) -> None:
        sessions.start(file="x%d.etl", mode=M.FILE_MODE_NEWFILE, maximum_file_size=1)
        sessions.control(Control.INCREMENT_FILE)
        sessions.stop()
        assert len(list(sessions.folder.glob("x*.etl"))) == 2

    def test_conversion_to_real_time(self, sessions: Sessions) -> None:
        sessions.start()
        made = sessions.control(Control.CONVERT_TO_REALTIME)
        assert made.request.mode == M.REAL_TIME_MODE
        assert code_of(lambda: sessions.control(Control.CONVERT_TO_REALTIME)) == Status.INVALID_PARAMETER
        with sessions.kernel.consume("session") as stream:
            assert 0x48 < int.from_bytes(stream.recv(4, MSG_WAITALL), "little") <= 64 * 1024
        sessions.stop()
        list(consume(sessions.file()))

    def test_a_session_in_memory_is_flushed_to_a_file(self, sessions: Sessions) -> None:
        sessions.start(file="", mode=M.BUFFERING_MODE)
        assert code_of(lambda: sessions.control(Control.FLUSH)) == Status.BAD_PATHNAME
        sessions.control(Control.FLUSH, file=str(sessions.file("snapshot.etl")))
        list(consume(sessions.file("snapshot.etl")))
        assert code_of(sessions.kernel.consume, 1) == Status.INVALID_PARAMETER
        assert sessions.stop().request.file == ""

    def test_eight_system_loggers(self, sessions: Sessions) -> None:
        with sessions.registry.locked() as held:
            for n in range(MAX_SYSTEM_LOGGERS):
                held.reserve(f"s{n}", uuid4(), True)
        assert code_of(lambda: sessions.start(mode=M.SYSTEM_LOGGER_MODE)) == Status.NO_SYSTEM_RESOURCES
        assert code_of(lambda: sessions.start("NT Kernel Logger")) == Status.NO_SYSTEM_RESOURCES
        assert not sessions.file().exists()
        assert processes_of(sessions.root) == []


class TestProviders:
    def test_what_enabling_leaves_for_a_provider(self, running: Sessions) -> None:
        given = EnableParameters(property=1, source=uuid4(), filters=(PID,))
        running.kernel.enable(1, PROVIDER, EnableProvider.ENABLE, 4, 0xF0, 0x10, 0, given)
        (state,) = running.registry.enabled(PROVIDER).values()
        assert (state.handle, state.level, state.match_any, state.match_all) == (1, 4, 0xF0, 0x10)
        assert (state.property, state.source, state.filters) == (1, given.source, (PID,))
        assert state.owner.pid == running.pid(1)
        running.kernel.enable(1, PROVIDER, EnableProvider.DISABLE, 0, 0, 0, 0, None)
        assert running.registry.enabled(PROVIDER) == {}

    def test_with_a_timeout_the_provider_takes_part_when_the_call_returns(self, running: Sessions) -> None:
        told = []
        registered = running.kernel.register(PROVIDER, lambda *said: told.append(said[1:5]))
        try:
            for _ in range(5):
                running.kernel.enable(1, PROVIDER, EnableProvider.ENABLE, 4, 0xF0, 0, 30_000, None)
                assert registered.enabled
                running.kernel.enable(1, PROVIDER, EnableProvider.CAPTURE_STATE, 0, 0x7, 0, 30_000, None)
                running.kernel.enable(1, PROVIDER, EnableProvider.DISABLE, 0, 0, 0, 30_000, None)
                assert not registered.enabled
            assert {code for code, *_ in told} == set(EnableProvider)
        finally:
            registered.close()
        assert running.registry.providers(PROVIDER) == []

    def test_a_session_that_stops_disables(self, sessions: Sessions) -> None:
        sessions.start()
        sessions.kernel.enable(1, PROVIDER, EnableProvider.ENABLE, 0, 0, 0, 1000, None)
        sessions.stop()
        assert list((sessions.root / "enable").iterdir()) == []

    def test_the_disallow_list(self, running: Sessions) -> None:
        other = uuid4()
        running.kernel.set_information(1, Info.SET_DISALLOW_LIST, [other])
        assert running.kernel.query_information(1, Info.DISALLOW_LIST_QUERY, None) == [other]
        call = running.kernel.enable
        assert code_of(call, 1, other, EnableProvider.ENABLE, 0, 0, 0, 0, None) == Status.ACCESS_DENIED
        call(1, other, EnableProvider.DISABLE, 0, 0, 0, 0, None)
        running.kernel.set_information(1, Info.SET_DISALLOW_LIST, [])
        call(1, other, EnableProvider.ENABLE, 0, 0, 0, 0, None)
        call(1, other, EnableProvider.DISABLE, 0, 0, 0, 0, None)

    @pytest.mark.parametrize("code", list(EnableProvider))
    def test_no_such_session(self, running: Sessions, code: EnableProvider) -> None:
        assert code_of(running.kernel.enable, 9, PROVIDER, code, 0, 0, 0, 0, None) == Status.WMI_INSTANCE_NOT_FOUND

    def test_an_instance_that_does_not_answer(self, running: Sessions) -> None:
        import socket

        from lastbranch.etw.portable.protocol import address_in

        silent = uuid4()
        with (
            running.registry.folder("providers", str(silent)) as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as provider,
        ):
            provider.bind(address_in(folder, "1.sock"))
            call = running.kernel.enable
            call(1, silent, EnableProvider.ENABLE, 0, 0, 0, 0, None)
            assert code_of(call, 1, silent, EnableProvider.ENABLE, 0, 0, 0, 50, None) == Status.TIMEOUT
            call(1, silent, EnableProvider.DISABLE, 0, 0, 0, 0, None)


class TestInformation:
    def test_groups_of_a_system_logger(self, running: Sessions) -> None:
        query = running.kernel.query_information
        assert query(2, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, None) == [0] * 8
        running.kernel.set_information(2, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO, [0] * 8)
        assert running.query(2).masks == [0] * 8

    def test_groups_are_for_system_loggers(self, running: Sessions) -> None:
        call, info = running.kernel.set_information, Info.SYSTEM_TRACE_ENABLE_FLAGS_INFO
        assert code_of(call, 1, info, [1, 0, 0, 0, 0, 0, 0, 0]) == Status.INVALID_PARAMETER
        assert code_of(call, 9, info, [1]) == Status.WMI_INSTANCE_NOT_FOUND
        assert code_of(running.kernel.query_information, 1, info, None) == Status.INVALID_PARAMETER

    @pytest.mark.parametrize(
        ("info", "value"), [(Info.PMC_EVENT_LIST_INFO, [(PERFINFO_PROVIDER, 46)]), (Info.PMC_COUNTER_LIST_INFO, [0])]
    )
    def test_what_is_set_once(self, sessions: Sessions, info: Info, value: Any) -> None:
        sessions.start(mode=M.SYSTEM_LOGGER_MODE)
        sessions.kernel.set_information(1, info, value)
        assert code_of(sessions.kernel.set_information, 1, info, value) == Status.BUSY

    def test_branches_are_of_system_loggers(self, running: Sessions) -> None:
        call = running.kernel.configure_lbr
        assert code_of(call, 1, 0, [(PERFINFO_PROVIDER, 0x2F)]) == Status.NOT_SUPPORTED
        assert code_of(call, 9, 0, [(PERFINFO_PROVIDER, 0x2F)]) == Status.WMI_INSTANCE_NOT_FOUND
        assert running.query(1).handle == 1


class Machine(RuleBasedStateMachine):
    """Random control calls against real sessions and a model of them: names, and what updates changed."""

    sessions: Sessions
    NAMES = st.sampled_from(["one", "ONE", "two", "Three"])

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, tuple[str, int]] = {}

    def _expect(self, name: str, call: Any) -> Any:
        if name.casefold() in self.model:
            return call()
        assert code_of(call) == Status.WMI_INSTANCE_NOT_FOUND
        return None

    @rule(name=NAMES)
    def start(self, name: str) -> None:
        if name.casefold() in self.model:
            assert code_of(lambda: self.sessions.start(name, f"{name}.etl")) == Status.ALREADY_EXISTS
        elif len(self.model) < 2:
            self.sessions.start(name, f"{name}.etl")
            self.model[name.casefold()] = name, 0

    @rule(name=NAMES)
    def stop(self, name: str) -> None:
        if self._expect(name, lambda: self.sessions.stop(name)):
            del self.model[name.casefold()]

    @rule(name=NAMES, timer=st.integers(0, 50))
    def update(self, name: str, timer: int) -> None:
        if self._expect(name, lambda: self.sessions.control(Control.UPDATE, name, flush_timer=timer)):
            known, before = self.model[name.casefold()]
            self.model[name.casefold()] = known, timer or before

    @rule(name=NAMES, code=st.sampled_from([Control.QUERY, Control.FLUSH]))
    def look(self, name: str, code: Control) -> None:
        self._expect(name, lambda: self.sessions.control(code, name))

    @rule(name=NAMES)
    def kill(self, name: str) -> None:
        if name.casefold() in self.model:
            pid = self.sessions.pid(name)
            os.kill(pid, 9)
            until(lambda: pid not in processes_of(self.sessions.root))
            del self.model[name.casefold()]

    @invariant()
    def all_are_listed(self) -> None:
        told = {(s.request.name, s.request.flush_timer) for s in self.sessions.kernel.sessions()}
        assert told == set(self.model.values())

    def teardown(self) -> None:
        for name, _ in self.model.values():
            self.sessions.stop(name)


def test_random_control(sessions: Sessions) -> None:
    machine = type("Bound", (Machine,), {"sessions": sessions})
    limits = settings(
        max_examples=3, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    run_state_machine_as_test(machine, settings=limits)
    assert isinstance(sessions.kernel, PortableKernel)
    with pytest.raises(EtwError):
        sessions.query("one")
