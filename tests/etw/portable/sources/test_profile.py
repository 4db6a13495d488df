"""Profile sources: what a machine offers by its own account, and the intervals that hold for all sessions."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import fake_kernel as fake
from fake_kernel import Machine
from lastbranch.etw.interface import ProfileSource
from lastbranch.etw.portable import profile_sources as ps
from lastbranch.etw.portable.session_registry import Registry
from lastbranch.etw.status import EtwError, Status
from source_tools import SourceKernel

TIMER = ProfileSource(0, "Timer", 1221, 1_000_000, 10_000)


def offered(machine: Machine) -> dict[int, str]:
    kernel = SourceKernel(machine)
    found = {source.source: source.name for source in ps.profile_sources(kernel)}
    assert not kernel.opened
    return found


class TestOffered:
    def test_the_timer_is_always_there(self) -> None:
        assert ps.profile_sources(SourceKernel(fake.VM)) == [TIMER]
        assert ps.profile_sources()[0] == TIMER

    @pytest.mark.parametrize("machine", [fake.SKYLAKE, fake.ZEN4, fake.ALDER_LAKE, fake.VM_WITHOUT_LBR])
    def test_counters_with_the_numbers_of_windows(self, machine: Machine) -> None:
        found = offered(machine)
        assert (
            found.items()
            >= {
                2: "TotalIssues",
                6: "BranchInstructions",
                10: "CacheMisses",
                11: "BranchMispredictions",
                19: "TotalCycles",
                25: "UnhaltedCoreCycles",
                26: "InstructionRetired",
                29: "LLCMisses",
            }.items()
        )

    def test_their_limits(self) -> None:
        cycles = next(s for s in ps.profile_sources(SourceKernel(fake.SKYLAKE)) if s.source == 19)
        assert cycles == ProfileSource(19, "TotalCycles", 4096, 2_147_483_647, 65_536)

    def test_events_that_the_kernel_describes_come_by_name(self) -> None:
        own = {n: name for n, name in offered(fake.SKYLAKE).items() if n >= 256}
        assert own == {256: "cpu/slots/"}  # cpu-cycles and branch-instructions have numbers already
        (choice,) = ps.choices_of(256, SourceKernel(fake.SKYLAKE))
        assert (choice.type, choice.config) == (4, 0x400)

    def test_counters_that_cannot_interrupt_are_no_sources(self) -> None:
        assert offered(replace(fake.VM_WITHOUT_LBR, sampling=False)) == {0: "Timer"}

    @pytest.mark.parametrize("source", [0, 1, 64, 65, 255, 1 << 31])
    def test_numbers_that_are_no_counters(self, source: int) -> None:
        assert ps.choices_of(source, SourceKernel(fake.SKYLAKE)) == []

    def test_a_machine_without_them_opens_nothing(self) -> None:
        kernel = SourceKernel(fake.VM)
        ps.profile_sources(kernel)
        assert not kernel.tried


class TestIntervals:
    def test_until_one_is_set_and_after(self, tmp_path: Path) -> None:
        assert ps.interval(Registry(tmp_path), 0) == 10_000
        assert ps.source_settings(Registry(tmp_path)).intervals == {}
        assert ps.set_interval(Registry(tmp_path), 0, 5_000) == 5_000
        assert ps.interval(Registry(tmp_path), 0) == 5_000
        assert ps.source_settings(Registry(tmp_path)).intervals == {0: 5_000}

    @pytest.mark.parametrize(
        ("asked", "held"), [(0, 1221), (1220, 1221), (1221, 1221), (1_000_000, 1_000_000), (1 << 31, 1_000_000)]
    )
    def test_the_nearest_that_is_possible(self, tmp_path: Path, asked: int, held: int) -> None:
        assert ps.set_interval(Registry(tmp_path), 0, asked) == held

    @pytest.mark.parametrize("source", [1, 4711])
    def test_sources_that_the_machine_does_not_have(self, tmp_path: Path, source: int) -> None:
        registry = Registry(tmp_path)
        for call in (
            lambda: ps.interval(registry, source),
            lambda: ps.set_interval(registry, source, 5000),
            lambda: ps.configure(registry, [source]),
        ):
            with pytest.raises(EtwError, match=f"no profile source {source}") as error:
                call()
            assert error.value.status == Status.INVALID_PARAMETER
        assert not list(tmp_path.iterdir())

    def test_of_two_one_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        counters = ps.profile_sources(SourceKernel(fake.SKYLAKE))
        monkeypatch.setattr(ps, "profile_sources", lambda kernel=None: counters)
        ps.set_interval(Registry(tmp_path), 19, 100_000)
        ps.set_interval(Registry(tmp_path), 0, 20_000)
        ps.configure(Registry(tmp_path), [19, 10])
        assert ps.source_settings(Registry(tmp_path)).intervals == {19: 100_000, 0: 20_000}
        assert ps.source_settings(Registry(tmp_path)).sources == [19, 10]
        ps.configure(Registry(tmp_path), [])
        assert ps.source_settings(Registry(tmp_path)).sources == []
        with pytest.raises(EtwError) as many:
            ps.configure(Registry(tmp_path), [2, 6, 10, 11, 19])
        assert many.value.status == Status.IMPLEMENTATION_LIMIT
        with pytest.raises(EtwError, match="PROFILE enables it") as timer:
            ps.configure(Registry(tmp_path), [0])
        assert timer.value.status == Status.INVALID_PARAMETER


class TestFile:
    def test_nobody_else_reads_it(self, tmp_path: Path) -> None:
        ps.set_interval(Registry(tmp_path), 0, 5_000)
        (file,) = tmp_path.iterdir()
        assert file.stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "{",
            "[]",
            "null",
            "[1]",
            '{"intervals": 5}',
            '{"intervals": {"x": 1}}',
            '{"intervals": {"0": "y"}}',
            '{"sources": ["a"]}',
            '{"sources": 1}',
            '{"intervals": [[1]]}',
            "\xff\xfe",
        ],
    )
    def test_other_content_counts_as_none(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "profile").write_bytes(content.encode("latin-1"))
        assert ps.interval(Registry(tmp_path), 0) == 10_000
        assert ps.source_settings(Registry(tmp_path)).sources == []
        ps.set_interval(Registry(tmp_path), 0, 5_000)
        assert json.loads((tmp_path / "profile").read_text())["intervals"] == {"0": 5000}

    def test_a_link_is_never_followed(self, tmp_path: Path) -> None:
        (tmp_path / "other").write_text('{"intervals": {"0": 7777}}')
        os.symlink(tmp_path / "other", tmp_path / "profile")
        assert ps.interval(Registry(tmp_path), 0) == 10_000
        ps.set_interval(Registry(tmp_path), 0, 5_000)
        assert (tmp_path / "other").read_text() == '{"intervals": {"0": 7777}}'
        assert not (tmp_path / "profile").is_symlink()

    def test_what_a_writer_left_that_died_is_no_hindrance(self, tmp_path: Path) -> None:
        (tmp_path / f"profile.{os.getpid()}").write_text("half")
        ps.set_interval(Registry(tmp_path), 0, 5_000)
        assert ps.interval(Registry(tmp_path), 0) == 5_000
