"""errno and circumstances to a sentence: every row, and every errno on every machine."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import fake_kernel as fake
from fake_kernel import FakeKernel, Machine
from lastbranch.capture import Request, Target
from lastbranch.capture.hardware import Recording, negotiated
from lastbranch.capture.perf_events.event_set import requested_events
from lastbranch.capture.perf_events.host import REMEDIES, read_host
from lastbranch.capture.perf_events.refusals import OTHER, REFUSALS, Attempt, EventUnavailable, Refusal, explain

ANY_USER = fake.ANY | fake.USER
ME, OTHERS, SYSTEM = Target(77, before_exec=True), Target(77), Target()
DOCKER = {"/.dockerenv": "", "/proc/self/status": "CapEff:\t0000000000000000\nSeccomp:\t2\n"}
DOCKER_NOT_FILTERED = {"/.dockerenv": "", "/proc/self/status": "CapEff:\t0000000000000000\nSeccomp:\t0\n"}
USER_NAMESPACE = {"/proc/self/uid_map": "         0       1000          1\n"}
LOCKED = {"/sys/kernel/security/lockdown": "none integrity [confidentiality]\n"}
WATCHDOG = {"/proc/sys/kernel/nmi_watchdog": "1\n"}
NO_PERF = {"/proc/sys/kernel/perf_event_paranoid": ""}
OLD = replace(fake.SKYLAKE, known_branches=0x3FF)
NO_APIC = replace(fake.SKYLAKE, sampling=False)


def refusal(machine: Machine, request: Request, **fake: Any) -> EventUnavailable:
    """What opening ``request`` on ``machine`` ends with."""
    kernel = FakeKernel(machine, **fake)
    with pytest.raises(EventUnavailable) as caught:
        negotiated(request, kernel, read_host(kernel), request.target.pid)
    assert not kernel.opened
    return caught.value


def files(machine: Machine, more: dict[str, str]) -> Machine:
    return replace(machine, files={**machine.files, **more})


BY_THE_KERNELS_RULES: list[tuple[str, Machine, Request, str, str]] = [
    # The fake refuses these by its own rules: cause, machine, request, errno, a word of the sentence.
    ("no-pmu-vm", fake.VM, Request(ME), "ENOENT", "QEMU/KVM exposes no performance counters"),
    ("no-pmu", fake.NOTHING, Request(ME), "ENOENT", "Linux 6.12.0 found no performance counters"),
    ("hypervisor-no-lbr", fake.VM_WITHOUT_LBR, Request(ME), "EOPNOTSUPP", "QEMU/KVM passes event counters"),
    ("no-lbr", fake.BARE_WITHOUT_LBR, Request(ME), "EOPNOTSUPP", "of this processor (Testing CPU)"),
    ("software-event", fake.SKYLAKE, Request(ME, event="cpu-clock:u"), "EOPNOTSUPP", "cpu-clock is not counted"),
    ("software-event", fake.VM, Request(ME, event="task-clock:u"), "EOPNOTSUPP", "task-clock is not counted"),
    ("no-call-stack", fake.SANDY_BRIDGE, Request(ME, call_stack=True), "EOPNOTSUPP", "no call-stack mode"),
    ("no-call-stack", fake.ZEN4, Request(ME, call_stack=True), "EOPNOTSUPP", "AMD LbrExtV2 has no call-stack mode"),
    ("filter", fake.ZEN4, Request(ME, branches=ANY_USER | fake.IN_TX), "EOPNOTSUPP", "any,in_tx"),
    ("too-precise", fake.SANDY_BRIDGE, Request(ME, event="r20c4:ppp"), "EOPNOTSUPP", "level 3, but cpu offers only 2"),
    ("precise-amd", fake.ZEN4, Request(ME, event="rc4:pp"), "ENOENT", "IBS"),
    ("no-interrupt", NO_APIC, Request(ME, event="cycles:u", branches=0), "EOPNOTSUPP", "cannot sample it"),
    ("brs-selection", fake.ZEN3, Request(ME, branches=fake.USER | fake.COND), "EINVAL", "cannot filter them"),
    ("brs-event", fake.ZEN3, Request(ME, event="cycles:u", period=9999), "EINVAL", "not with cycles"),
    ("brs-period", fake.ZEN3, Request(ME, frequency=99), "EINVAL", "99 Hz"),
    ("brs-period", fake.ZEN3, Request(ME, period=16), "EINVAL", "period 16"),
    ("rate", fake.SKYLAKE, Request(ME, frequency=200_000), "EINVAL", "200000 Hz exceeds"),
    ("paranoid-all", replace(fake.SKYLAKE, paranoid=3), Request(ME), "EACCES", "perf_event_paranoid is 3"),
    ("paranoid-all", replace(fake.SKYLAKE, paranoid=4), Request(SYSTEM), "EACCES", "perf_event_paranoid is 4"),
    ("paranoid-kernel", fake.SKYLAKE, Request(ME, branches=ANY_USER | fake.KERNEL), "EACCES", "is 2: branches"),
    ("paranoid-kernel", fake.SKYLAKE, Request(ME, event="cycles:k"), "EACCES", "need 1 or CAP_PERFMON"),
    ("paranoid-system", fake.SKYLAKE, Request(SYSTEM), "EACCES", "recording the whole system"),
    ("paranoid-system", replace(fake.SKYLAKE, paranoid=1), Request(SYSTEM), "EACCES", "needs 0 or CAP_PERFMON"),
    ("selection", OLD, Request(ME, branches=fake.USER | fake.COND), "EINVAL", "cond"),
]

BY_ERRNO: list[tuple[str, Machine, Request, int, str]] = [
    # What no rule of the fake makes: the errno is given.
    ("no-perf", files(fake.NOTHING, NO_PERF), Request(ME), errno.ENOSYS, "has no performance events"),
    ("seccomp-nosys", files(fake.SKYLAKE, DOCKER), Request(ME), errno.ENOSYS, "perf_event_open is blocked (Docker)"),
    ("seccomp", files(fake.SKYLAKE, DOCKER), Request(ME), errno.EPERM, "a seccomp filter blocks perf_event_open "
        "(Docker)"),
    ("denied", files(fake.SKYLAKE, DOCKER_NOT_FILTERED), Request(ME), errno.EPERM, "security module"),
    ("lockdown", files(fake.SKYLAKE, LOCKED), Request(ME), errno.EPERM, "locked down"),
    ("paranoid-system", fake.SKYLAKE, Request(SYSTEM), errno.EPERM, "perf_event_paranoid is 2"),
    ("other-user", fake.SKYLAKE, Request(OTHERS), errno.EACCES, "process 77 belongs to another user"),
    ("denied", replace(fake.SKYLAKE, caps=fake.CAP_PERFMON), Request(OTHERS), errno.EACCES, "security module"),
    ("denied", replace(fake.SKYLAKE, caps=fake.CAP_SYS_ADMIN), Request(SYSTEM), errno.EPERM, "security module"),
    ("paranoid-all", files(replace(fake.SKYLAKE, caps=fake.CAP_PERFMON, paranoid=3), USER_NAMESPACE), Request(ME),
     errno.EACCES, "capabilities of a user namespace do not count"),
    ("no-event", fake.SKYLAKE, Request(ME, event="rffff:u"), errno.ENOENT, "cpu does not know the event rffff"),
    ("period", fake.SKYLAKE, Request(ME, period=1 << 63), errno.EINVAL, "a period of 9223372036854775808"),
    ("period", fake.SKYLAKE, Request(ME, period=3), errno.EINVAL, "a period of 3"),
    ("precise", fake.SKYLAKE, Request(ME, event="cycles:upp"), errno.EINVAL, "cycles precisely (level 2)"),
    ("invalid", fake.SKYLAKE, Request(ME), errno.EINVAL, "does not accept the event r20c4"),
    ("invalid", fake.SKYLAKE, Request(ME, event="cpu/config3=1/u"), errno.E2BIG, "cpu/config3=1/"),
    ("cpu-gone", fake.ALDER_LAKE, Request(ME), errno.ENODEV, "a processor of cpu_atom went offline"),
    ("cpu-gone", fake.SKYLAKE, Request(ME), errno.ENXIO, "a processor of cpu went offline"),
    ("watchdog", files(fake.SKYLAKE, WATCHDOG), Request(ME), errno.EBUSY, "watchdog"),
    ("busy", fake.SKYLAKE, Request(ME), errno.EBUSY, "Intel PT"),
    ("files", fake.SKYLAKE, Request(ME), errno.EMFILE, "about 4 open files"),
    ("files", fake.SKYLAKE, Request(SYSTEM), errno.ENFILE, "about 4 open files"),
    ("memory", fake.SKYLAKE, Request(ME), errno.ENOMEM, "no memory"),
    ("memory", fake.SKYLAKE, Request(ME), errno.ENOSPC, "no memory"),
    ("gone", fake.SKYLAKE, Request(OTHERS), errno.ESRCH, "process 77 does not exist"),
    ("other", fake.SKYLAKE, Request(ME), errno.EIO, "EIO, Input/output error"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "machine", "request_", "name", "said"), BY_THE_KERNELS_RULES)
def test_what_a_machine_refuses_by_its_own_rules(
    cause: str, machine: Machine, request_: Request, name: str, said: str
) -> None:
    error = refusal(machine, request_)
    assert error.refusal.cause == cause
    assert said in str(error)
    assert str(error).endswith(f"({name})")


@pytest.mark.parametrize(("cause", "machine", "request_", "number", "said"), BY_ERRNO)
def test_what_an_errno_means_in_its_circumstances(
    cause: str, machine: Machine, request_: Request, number: int, said: str
) -> None:
    error = refusal(replace(machine, always=number), request_)
    assert error.refusal.cause == cause
    assert said in str(error)
    assert str(error).endswith(f"({errno.errorcode[number]})")


def test_every_row_is_reached_by_one_of_the_cases_above() -> None:
    reached = {case[0] for case in (*BY_THE_KERNELS_RULES, *BY_ERRNO)}
    assert reached == {row.cause for row in REFUSALS} | {OTHER.cause}


REQUESTS = [
    Request(target, event=event, branches=branches, call_stack=stack)
    for target, event, (branches, stack) in product(
        (ME, OTHERS, SYSTEM),
        (None, "cpu-clock", "cycles:ppp"),
        (
            (ANY_USER, False),
            (ANY_USER | fake.KERNEL, False),
            (fake.USER | fake.COND, False),
            (0, False),
            (ANY_USER, True),
        ),
    )
]
CIRCUMSTANCES: list[tuple[dict[str, str], int, int]] = [
    *((more, 2, 0) for more in (DOCKER, USER_NAMESPACE, LOCKED, WATCHDOG, NO_PERF)),
    *(({}, paranoid, caps) for paranoid in (0, 1, 2, 3) for caps in (0, fake.CAP_PERFMON)),
]
"""Files, perf_event_paranoid, capabilities."""
ERRNOS = sorted({number for row in REFUSALS for number in row.errnos})


@pytest.mark.parametrize("machine", fake.MACHINES.values(), ids=fake.MACHINES.keys())
def test_every_errno_on_every_machine_has_a_sentence_and_a_way_out(machine: Machine) -> None:
    for more, paranoid, caps in CIRCUMSTANCES:
        host = read_host(FakeKernel(replace(files(machine, more), paranoid=paranoid, caps=caps)))
        for request in REQUESTS if (more, paranoid, caps) == ({}, 2, 0) else REQUESTS[::7]:
            for choice, number in product(requested_events(request, host), ERRNOS):
                row = explain(OSError(number, ""), Attempt(request, choice, 1000, False, 4), host)
                assert row.cause != OTHER.cause
                for text in (row.sentence, row.advice):
                    assert text
                    assert not re.search(r"[{}]|None|\.$|  ", text), text
                if caps:
                    assert not row.cause.startswith("paranoid"), "CAP_PERFMON is not bound by the level"


def test_permission_is_never_blamed_on_a_level_that_allows_it() -> None:
    """For each level and request: if the level is blamed, the fake opens it at the level that the hint gives."""
    levels = {"paranoid-process": 2, "paranoid-kernel": 1, "paranoid-system": 0}
    blamed = 0
    for paranoid, request in product((0, 1, 2, 3, 4), REQUESTS):
        machine = replace(fake.SKYLAKE, paranoid=paranoid)
        before = cause_of(machine, request)
        if not before.cause.startswith("paranoid"):
            continue
        blamed += 1
        level = next(levels[c] for c in before.remedies if c in levels)
        assert level < paranoid
        # One step of several, or another reason that was hidden behind this one.
        assert cause_of(replace(machine, paranoid=level), request).cause != before.cause
    assert blamed > 30


def cause_of(machine: Machine, request: Request) -> Refusal:
    """Why it is refused; `OTHER` where it is not."""
    kernel = FakeKernel(machine)
    try:
        negotiated(request, kernel, read_host(kernel), request.target.pid)
    except EventUnavailable as error:
        return error.refusal
    return OTHER


def test_a_hypervisor_is_asked_only_for_what_it_can_pass_on() -> None:
    for vendor, can in (("GenuineIntel", True), ("AuthenticAMD", False)):
        for machine in (fake.VM, fake.VM_WITHOUT_LBR):
            hint = refusal(replace(machine, vendor=vendor), Request(ME)).hint or ""
            assert ("lbr-fmt" in hint, "let QEMU" in hint) == (can, can)


def test_commands_are_known_and_have_a_scope() -> None:
    used = {name for row in REFUSALS for name in row.remedies}
    assert used <= set(REMEDIES)
    for change in REMEDIES.values():
        assert change.command
        assert change.scope


def test_the_hint_has_the_commands_with_their_scope() -> None:
    error = refusal(fake.SKYLAKE, Request(SYSTEM))
    assert error.hint == (
        "record one command or process, or lower it; `lastbranch record COMMAND` (this recording) or `sudo sysctl "
        "kernel.perf_event_paranoid=0` (all users, until the next boot) or `sudo lastbranch record` (this recording)"
    )
    assert error.exit_code == 5


def test_a_recording_that_is_refused_leaves_nothing_open_and_writes_nothing(tmp_path: Any) -> None:
    for machine in fake.MACHINES.values():
        kernel = FakeKernel(replace(machine, always=errno.EBUSY))
        with pytest.raises(EventUnavailable):
            Recording(Request(ME), str(tmp_path / "x"), kernel=kernel)
        assert not kernel.opened
    assert not list(tmp_path.iterdir())
