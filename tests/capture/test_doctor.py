"""What a machine can record: on machines that are faked, on this one, and on systems that are not Linux."""

from __future__ import annotations

import csv
import errno
import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

import fake_kernel as fake
from command_line import Ran
from fake_kernel import FakeKernel, Machine
from lastbranch.capture.doctor import COLUMNS, Finding, examine

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at a Linux machine")
BRANCHES, KERNEL, STACKS, SYSTEM = (
    f"hardware branch records{part}" for part in ("", ": kernel", ": call stacks", ": whole system")
)
SOFTWARE, ATTACH = "software branch records", "attach to other processes"


def found(machine: Machine, files: dict[str, str] | None = None, no_trace: int = 0) -> dict[str, Finding]:
    """Findings by capability. The kernel was asked nothing but to open events, which are closed again."""
    from lastbranch.capture.doctor import findings

    kernel = FakeKernel(replace(machine, files={**machine.files, **(files or {})}))
    kernel.no_trace = no_trace
    rows = list(findings(kernel))
    assert not kernel.opened
    assert not kernel.rings
    assert len({row.capability for row in rows}) == len(rows)
    return {row.capability: row for row in rows}


def commands(finding: Finding) -> list[str]:
    return [change.command for change in finding.remedies]


@linux
class TestOnFakedMachines:
    @pytest.mark.parametrize(
        ("machine", "said"),
        [
            (fake.SKYLAKE, "Intel LBR, 32 deep; r20c4"),
            (fake.SAPPHIRE_RAPIDS, "Intel architectural LBR, 32 deep; r20c4"),
            (fake.ALDER_LAKE, "Intel architectural LBR, 32 deep; cpu_atom/rc0c4/, cpu_core/r20c4/"),
            (fake.ZEN4, "AMD LbrExtV2, 16 deep; rc4"),
            (fake.ARM, "Arm BRBE, 64 deep; armv9_neoverse_v3/br_retired/"),
        ],
    )
    def test_a_facility_is_named_with_its_depth_and_event(self, machine: Machine, said: str) -> None:
        row = found(machine)[BRANCHES]
        assert (row.state, row.why, row.remedies) == ("yes", said, ())

    @pytest.mark.parametrize(
        ("machine", "said"),
        [
            (replace(fake.SKYLAKE, known_branches=(1 << 17) - 1), ["Intel LBR, 32 deep; r20c4", "no hardware index"]),
            (fake.ZEN3, ["AMD BRS, 16 deep; cpu/branch-brs/", "no hardware index", "branch types"]),
        ],
    )
    def test_what_cannot_be_had_beside_it_is_told(self, machine: Machine, said: list[str]) -> None:
        row = found(machine)[BRANCHES]
        assert row.state == "yes"
        assert row.why.startswith(said[0])
        assert all(word in row.why for word in said)

    @pytest.mark.parametrize("machine", [fake.VM, fake.VM_WITHOUT_LBR, fake.NOTHING, fake.BARE_WITHOUT_LBR])
    def test_without_a_facility_the_reason_is_told_once(self, machine: Machine) -> None:
        rows = found(replace(machine, caps=fake.CAP_PERFMON))
        assert rows[BRANCHES].state == "no"
        assert rows[BRANCHES].why
        for other in (KERNEL, STACKS, SYSTEM):
            assert (rows[other].state, rows[other].why) == ("no", "as hardware branch records")
        assert rows["samples by CPU clock"].state == "yes"

    def test_a_virtual_machine_is_told_what_its_host_would_have_to_do(self) -> None:
        rows = found(fake.VM)
        assert "QEMU/KVM" in rows[BRANCHES].why
        assert rows["hypervisor"].state == "QEMU/KVM"
        assert any("lbr-fmt" in c for c in commands(rows[BRANCHES]))

    @pytest.mark.parametrize(
        ("paranoid", "user", "kernel", "system", "command"),
        [
            (-1, "yes", "yes", "yes", None),
            (0, "yes", "yes", "yes", None),
            (1, "yes", "yes", "no", "paranoid=0"),
            (2, "yes", "no", "no", "paranoid=1"),
            (3, "no", "no", "no", "paranoid=2"),
            (4, "no", "no", "no", "paranoid=2"),
        ],
    )
    def test_the_paranoid_level_and_the_command_that_lowers_it(
        self, paranoid: int, user: str, kernel: str, system: str, command: str | None
    ) -> None:
        rows = found(replace(fake.SKYLAKE, paranoid=paranoid))
        assert [rows[c].state for c in (BRANCHES, KERNEL, SYSTEM)] == [user, kernel, system]
        setting = rows["kernel.perf_event_paranoid"]
        assert setting.state == str(paranoid)
        assert (command is None and not setting.remedies) or (command and command in commands(setting)[0])
        privileged = found(replace(fake.SKYLAKE, paranoid=paranoid, caps=fake.CAP_PERFMON))
        assert {privileged[c].state for c in (BRANCHES, KERNEL, SYSTEM)} == {"yes"}
        assert not privileged["kernel.perf_event_paranoid"].remedies

    @pytest.mark.parametrize(
        ("scope", "caps", "state"),
        [
            (None, 0, "yes"),
            (0, 0, "yes"),
            (1, 0, "no"),
            (2, 0, "no"),
            (3, 0, "no"),
            (1, 1 << 19, "yes"),
            (2, 1 << 19, "yes"),
            (3, 1 << 19, "no"),
        ],
    )
    def test_ptrace_scope(self, scope: int | None, caps: int, state: str) -> None:
        files = {} if scope is None else {"/proc/sys/kernel/yama/ptrace_scope": f"{scope}\n"}
        row = found(replace(fake.SKYLAKE, caps=caps), files)[ATTACH]
        assert row.state == state
        assert bool(row.remedies) == (state == "no" and scope != 3), "scope 3 cannot be lowered"

    def test_the_software_records_need_ptrace_and_a_known_processor(self) -> None:
        assert found(fake.VM)[SOFTWARE].state == found(fake.ARM)[SOFTWARE].state == "yes"
        assert "riscv64" in found(replace(fake.ARM, arch="riscv64"))[SOFTWARE].why
        scope = {"/proc/sys/kernel/yama/ptrace_scope": "2\n"}
        row = found(fake.VM, scope, no_trace=errno.EPERM)[SOFTWARE]
        assert (row.state, commands(row)) == ("no", ["sudo sysctl kernel.yama.ptrace_scope=0"])
        filtered = {"/.dockerenv": "", "/proc/self/status": "CapEff:\t0\nSeccomp:\t2\n"}
        row = found(fake.VM, filtered, no_trace=errno.EPERM)[SOFTWARE]
        assert "seccomp" in row.why
        assert "docker run" in commands(row)[0]

    def test_a_filtered_container_is_told_how_to_start_another(self) -> None:
        filtered = {"/.dockerenv": "", "/proc/self/status": "CapEff:\t0\nSeccomp:\t2\n"}
        rows = found(replace(fake.SKYLAKE, always=errno.EPERM), filtered)
        assert "Docker" in rows[BRANCHES].why
        assert "docker run" in commands(rows[BRANCHES])[0]
        assert rows["seccomp filter"].state == "active"

    def test_smaller_matters(self) -> None:
        rows = found(
            fake.SKYLAKE,
            {
                "/proc/sys/kernel/perf_event_mlock_kb": "64\n",
                "/proc/sys/kernel/kptr_restrict": "1\n",
                "/proc/kallsyms": "0000000000000000 T _text\n",
                "/sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
            },
        )
        assert "mlock_kb=" in commands(rows["kernel.perf_event_mlock_kb"])[0]
        assert "kptr_restrict=0" in commands(rows["addresses of the kernel"])[0]
        assert (rows["kernel lockdown"].state, rows["performance counters"].state) == ("integrity", "yes")
        assert found(fake.VM)["performance counters"].why == "QEMU/KVM shows none"

    def test_every_machine_is_told_something_and_every_command_has_a_scope(self) -> None:
        for machine in fake.MACHINES.values():
            for finding in found(machine).values():
                assert finding.state
                for row in finding.rows:
                    assert len(row) == len(COLUMNS)
                    assert "--engine" not in row[3], "changes nothing of the machine"
                    assert bool(row[3]) == bool(row[4])


class TestTheVerb:
    def test_all_forms_say_the_same(self, run: Callable[..., Ran]) -> None:
        rows = list(csv.DictReader(io.StringIO(run("doctor", "--format", "csv").out)))
        assert rows == json.loads(run("doctor", "--format", "json").out)
        assert list(rows[0]) == list(COLUMNS)
        table = run("doctor").out
        for row in rows:
            assert all(cell in table for cell in row.values())

    @linux
    def test_it_works_without_privileges(self) -> None:
        import os
        import shutil

        if os.getuid() or not shutil.which("setpriv"):
            pytest.skip("needs root to give it up")
        drop = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all"]
        done = subprocess.run(
            [*drop, sys.executable, "-m", "lastbranch", "doctor", "--format", "json"], capture_output=True, text=True
        )
        if "Permission denied" in done.stderr or "No module" in done.stderr:
            pytest.skip("the installation is not readable for others")
        assert done.returncode == 0, done.stderr
        states = {row["capability"]: row["state"] for row in json.loads(done.stdout)}
        assert {BRANCHES, SOFTWARE, ATTACH, "kernel.perf_event_paranoid"} <= set(states)

    @pytest.mark.parametrize("system", ["win32", "darwin", "freebsd14"])
    def test_other_systems_are_told_without_anything_of_linux(
        self, system: str, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Ran]
    ) -> None:
        monkeypatch.setattr(sys, "platform", system)
        for name in [name for name in sys.modules if name.startswith("lastbranch.capture")]:
            monkeypatch.delitem(sys.modules, name)
        for missing in ("fcntl", "resource", "select"):
            monkeypatch.setitem(sys.modules, missing, None)
        from lastbranch.capture import doctor

        rows = {finding.capability: finding for finding in doctor.examine()}
        assert rows["software branch records"].state == "no"
        assert rows["read captures"].state == "yes"
        assert bool(rows[BRANCHES].remedies) == (system == "win32")


@linux
def test_this_machine_is_the_same_before_and_after() -> None:
    """Settings that a command would change are not touched by telling it."""
    from lastbranch.capture.perf_events.linux_kernel import Kernel

    def settings() -> list[str | None]:
        names = ("perf_event_paranoid", "perf_event_mlock_kb", "kptr_restrict", "nmi_watchdog", "yama/ptrace_scope")
        return [Kernel().text(f"/proc/sys/kernel/{name}") for name in names]

    before = settings()
    assert examine()
    assert settings() == before
