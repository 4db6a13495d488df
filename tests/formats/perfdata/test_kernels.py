"""Captures of machines whose kernel is not in the upper half of 64 bits, and of virtual machines, made by the
specification: bound as the brute-force oracle says, and as perf says where it says anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import perfdata_writer as pw
from binding_oracle import GUEST_KERNEL, GUEST_USER, KERNEL, USER, Event, GuestMap, KernelMap, Map, Query, bind
from command_line import Ran
from lastbranch.bind import bind as bound
from lastbranch.formats.perfdata.reader import read_perfdata
from lastbranch.model import KERNEL_HALF, BytesSource, Mode, Profile, kernel_start
from perf_script_oracle import needs_perf, perf_script
from perfdata_writer import Builder

PID, HOST_KERNEL, GUEST = 7, None, 0
KALLSYMS, GUEST_KALLSYMS, MODULE = "[kernel.kallsyms]", "[guest.kernel.kallsyms]", "[nf_tables]"


class Layout(NamedTuple):
    """A machine: where its kernel, one of its modules and its processes' code are, and pages that few expect."""

    arch: str
    text: int
    module: int
    user: tuple[tuple[int, str], ...]
    guest: tuple[int, int, int] | None = None
    """Text of a guest's kernel, one of its modules, and code of a process in it."""

    @property
    def maps(self) -> list[tuple[Event, str]]:
        """The mappings, each with the name of what is mapped."""
        found: list[tuple[Event, str]] = [
            (KernelMap(0, self.text, self.text + 0x800000, 0), KALLSYMS),
            (KernelMap(0, self.module, self.module + 0x8000, 1), MODULE),
        ]
        found += [(Map(1, PID, at, at + 0x1000, 2 + i), name) for i, (at, name) in enumerate(self.user)]
        if self.guest is not None:
            text, module, user = self.guest
            found += [
                (KernelMap(0, text, text + 0x800000, 90, GUEST), GUEST_KALLSYMS),
                (KernelMap(0, module, module + 0x8000, 91, GUEST), "[virtio_net]"),
                (GuestMap(2, PID, user, user + 0x1000, 92), "/guest/init"),
            ]
        return found

    @property
    def places(self) -> list[int]:
        """An address in each mapping, and one that nobody owns."""
        return [event.start + 0x10 for event, _ in self.maps] + [0x1000]  # type: ignore[union-attr]


PROGRAM = (0x8048000, "/bin/x")
LAYOUTS = {
    "i686": Layout("i686", 0xC1000000, 0xF8010000, (PROGRAM, (0xB7700000, "/lib/libc.so"))),
    "i686, 2 GiB each": Layout("i686", 0x81000000, 0xF8010000, (PROGRAM, (0x77700000, "/lib/libc.so"))),
    "armv7": Layout("armv7l", 0xC0008000, 0xBF000000, ((0x10000, "/bin/x"), (0xFFFF0000, "[vectors]"))),
    "s390x": Layout("s390x", 0x100000, 0x3FF80000000, ((0x108000, "/bin/x"), (0x3FFF0000000, "/lib/libc.so"))),
    "x86_64": Layout(
        "x86_64", 0xFFFFFFFF81000000, 0xFFFFFFFFC0000000, ((0x400000, "/bin/x"),),
        (0xFFFFFFFF9A000000, 0xFFFFFFFFC0100000, 0x600000),
    ),
    "i686 in x86_64": Layout(
        "x86_64", 0xFFFFFFFF81000000, 0xFFFFFFFFC0000000, ((0x400000, "/bin/x"),), (0xC1000000, 0xF8010000, 0x8048000)
    ),
}  # fmt: skip


def capture(
    layout: Layout, *, kernel: bool = True, modes: tuple[int, ...] = tuple(range(6)), stacks: bool = True
) -> Builder:
    """A sample at each place in each mode, with a branch from it to each place."""
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK * stacks)
    b.feature("ARCH", value=layout.arch)
    b.comm(pid=PID, name="x", time=1)
    for event, name in layout.maps:
        match event:
            case KernelMap(time, start, end, _, guest):
                # perf: pid -1 for the host, 0 for a guest; file offset is the address, for the kernel itself
                text = name.endswith("kallsyms]")
                fields = {"pid": -1 if guest is None else guest, "tid": 0, "pgoff": start if text else 0}
                if kernel:
                    misc = KERNEL if guest is None else GUEST_KERNEL
                    b.mmap(misc, addr=start, length=end - start, name=name + "_text" * text, time=time, **fields)
            case Map(time, pid, start, end) | GuestMap(time, pid, start, end):
                misc = USER if isinstance(event, Map) else GUEST_USER
                b.mmap2(misc, pid=pid, addr=start, length=end - start, pgoff=0, name=name, time=time)
    time = 10
    for mode in modes:
        for place in layout.places:
            branches = {"branches": [(place, to, 1) for to in layout.places]} if stacks else {}
            b.sample(mode, ip=place, pid=PID, time=time, **branches)
            time += 1
    return b


def names_of(profile: Profile) -> list[tuple[int, int, str | None]]:
    """(mode, address, name of its module) of each sample, and of both ends of its branches."""
    binder, found = bound(profile).binder, []
    for batch in profile.batches():
        scope = binder.scopes(batch)
        each = [scope, np.repeat(scope, batch.depth), np.repeat(scope, batch.depth)]
        where = [batch.ip] + ([batch["branch_from"], batch["branch_to"]] if "branch_from" in batch else [])
        for scopes, address in zip(each, where, strict=False):
            modules = binder.locate(scopes, address)[0].tolist()
            names = [profile.modules[m].name if m >= 0 else None for m in modules]
            found += zip((scopes & 7).tolist(), address.tolist(), names, strict=True)
    return found


def read(b: Builder) -> Profile:
    return read_perfdata(BytesSource(b.build(), "x.data"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_address_in_every_mode_is_bound_as_the_oracle_says(name: str) -> None:
    layout = LAYOUTS[name]
    events = [event for event, _ in layout.maps]
    called = {event.tag: name for event, name in layout.maps}  # type: ignore[union-attr]
    for mode in range(6):
        profile = read(capture(layout, modes=(mode,)))
        assert profile.damage == []
        found = names_of(profile)
        assert len(found) == len(layout.places) * (1 + 2 * len(layout.places))
        for _, address, got in found:
            want = bind(events, Query(PID, address, 99, mode)).tag
            assert got == called.get(want), (mode, hex(address))


@pytest.mark.parametrize("name", ["i686", "i686, 2 GiB each", "armv7"])
def test_check_finds_nothing_where_all_binds(name: str, tmp_path: Path, run: Callable[..., Ran]) -> None:
    """And without the kernel's mappings it says what is missing, and how to get it: not to record earlier."""
    layout, path = LAYOUTS[name], tmp_path / "x.data"
    for kernel in (True, False):
        b = capture(layout, kernel=kernel, modes=())
        for mode, places in ((KERNEL, layout.places[:2]), (USER, layout.places[2:-1])):
            for ip in places:
                b.sample(mode, ip=ip, pid=PID, time=10, branches=[(layout.places[0], layout.places[2], 1)])
        path.write_bytes(b.build())
        out = run("check", path).out
        assert "outside:" not in out
        assert ("no kernel mapping" in out) is not kernel
        if kernel:
            report = run("report", "--by", "module", "--format", "csv", path).out
            assert all(any(module in line for line in report.splitlines()) for module in (KALLSYMS, MODULE, "/bin/x"))


def test_check_on_guests_without_mappings(tmp_path: Path, run: Callable[..., Ran]) -> None:
    path = tmp_path / "x.data"
    path.write_bytes(capture(LAYOUTS["x86_64"]._replace(guest=None), modes=(GUEST_KERNEL, GUEST_USER)).build())
    out = run("check", path).out
    assert "no guest mapping" in out
    assert "guestkallsyms" in out
    assert "outside:" not in out


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tb5_of_it_binds_the_same(name: str, tmp_path: Path, run: Callable[..., Ran]) -> None:
    path, stored = tmp_path / "x.data", tmp_path / "x.tb5"
    path.write_bytes(capture(LAYOUTS[name]).build())
    assert run("convert", path, stored).code == 0
    report = ("report", "--by", "module", "--format", "csv")
    assert run(*report, stored).out == run(*report, path).out
    for verb in ("branches", "ranges"):
        assert run(verb, "--format", "csv", stored).out == run(verb, "--format", "csv", path).out


@pytest.mark.parametrize("name", ["i686", "i686, 2 GiB each", "x86_64"])
def test_an_etl_of_it_binds_the_same(name: str, tmp_path: Path, run: Callable[..., Ran]) -> None:
    """Events have no mode, and no guests: samples of these are left out."""
    layout, path, written = LAYOUTS[name], tmp_path / "x.data", tmp_path / "x.etl"
    b = capture(layout, modes=())
    for mode, places in ((KERNEL, layout.places[:2]), (USER, layout.places[2 : 2 + len(layout.user)])):
        for ip in places:
            b.sample(mode, ip=ip, pid=PID, time=10, branches=[(layout.places[0], layout.places[2], 1)])
    path.write_bytes(b.build())
    assert run("convert", path, written).code == 0
    report = ("report", "--by", "module", "--format", "csv")
    assert run(*report, written).out == run(*report, path).out


def hidden_program(b: Builder) -> None:
    b.record("KSYMBOL", addr=0, length=0x1000, ksym_type=1, name="bpf_trampoline_1", time=0)


def hidden_kernel(b: Builder) -> None:
    b.mmap(KERNEL, pid=-1, tid=0, addr=0, length=0, pgoff=0, name=KALLSYMS, time=0)


@pytest.mark.parametrize("hide", [hidden_program, hidden_kernel])
def test_kernel_code_of_a_hidden_address_does_not_say_where_the_kernel_begins(hide: Callable[[Builder], None]) -> None:
    """perf's and simpleperf's users without rights see 0 for kernel addresses (kernel.kptr_restrict)."""
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    hide(b)
    b.mmap2(USER, pid=PID, addr=0x400000, length=0x1000, pgoff=0, name="/bin/x", time=1)
    for address in (0x10, 0x400010):
        b.sample(USER, ip=address, pid=PID, time=5)
        b.sample(KERNEL, ip=address, pid=PID, time=5)
    profile = read(b)
    assert profile.damage == []
    assert kernel_start(profile.timeline.columns()) == KERNEL_HALF
    assert [(address, name) for _, address, name in names_of(profile)] == [
        (0x10, None),
        (0x10, None),
        (0x400010, "/bin/x"),
        (0x400010, "/bin/x"),
    ]


def test_text_of_a_32_bit_machine_has_modes(tmp_path: Path) -> None:
    """Text names no mode: the kernel's mappings do, in it as elsewhere."""
    from lastbranch.formats.perfscript.reader import read_perfscript

    text = b"""PERF_RECORD_MMAP -1/0: [0xc1000000(0x800000) @ 0xc1000000]: x [kernel.kallsyms]_text
PERF_RECORD_MMAP2 7/7: [0xb7700000(0x1000) @ 0 00:00 0 0]: r-xp /lib/libc.so
 b7700010 0xc1000040/0xb7700020/M/-/-/0
 c1000010 0xb7700010/0xc1000020/M/-/-/0
"""
    profile = read_perfscript(BytesSource(text, "x.txt"))
    (batch,) = profile.batches()
    assert batch.mode.tolist() == [Mode.USER, Mode.KERNEL]
    assert [name for _, _, name in names_of(profile)][:2] == ["/lib/libc.so", KALLSYMS]


@needs_perf
@pytest.mark.parametrize("name", [n for n in LAYOUTS if n != "s390x"])  # perf on x86 resolves no s390 kernel
def test_perf_names_the_same_modules(name: str, tmp_path: Path) -> None:
    """It does for a sample whose address is not one of its mode; of those we know more."""
    layout = LAYOUTS[name]
    options, modes = ("-f", "-F", "ip,dso"), tuple(range(4))
    if layout.guest is not None:  # without this option perf leaves out samples of guests
        kallsyms, text = tmp_path / "kallsyms", layout.guest[0]
        kallsyms.write_text(f"{text:x} T _text\n{text + 0x7FFFFF:x} T _end\n")
        options, modes = (*options, "--guestkallsyms", str(kallsyms)), tuple(range(6))
    b = capture(layout, modes=modes, stacks=False)
    lines = perf_script(b.build(), tmp_path, *options, warnings=True).splitlines()
    theirs = [re.fullmatch(r"\s*([0-9a-f]+).*\((.*)\)", line) for line in lines if line.strip()]
    ours = names_of(read(b))
    assert len(theirs) == len(ours)
    named = 0
    for match, (_, address, module) in zip(theirs, ours, strict=True):
        assert match is not None
        assert int(match[1], 16) == address
        if match[2] != "[unknown]":
            named += 1
            assert match[2] == module, hex(address)
    assert named >= len(layout.maps), "each place, in its own mode"
