"""What is asked of the kernel on each machine: default events, and as much of the extras as can be had."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import combinations

import pytest

import fake_kernel as fake
from fake_kernel import Attr, FakeKernel, Machine
from lastbranch.capture import Request, Target
from lastbranch.capture.hardware import negotiated
from lastbranch.capture.perf_events.event_set import EventSpec, requested_events, sampling_spec
from lastbranch.capture.perf_events.host import read_host
from lastbranch.errors import LastbranchError, SelectionError, UnavailableError

ME = Target(77)


def sampled(machine: Machine, request: Request | None = None) -> list[tuple[EventSpec, Attr]]:
    """The specs that are opened besides the tracking event, and their final attributes."""
    kernel = FakeKernel(machine)
    specs = negotiated(request or Request(ME), kernel, read_host(kernel), 77)
    assert not kernel.opened, "an event stayed open"
    return [(p, Attr(p.attr)) for p in specs[:-1]]


@pytest.mark.parametrize(
    ("machine", "event", "precise", "branches"),
    [
        (fake.SKYLAKE, (4, 0x20C4), 3, fake.ANY | fake.USER | fake.TYPE_SAVE | fake.HW_INDEX),
        (fake.SANDY_BRIDGE, (4, 0x20C4), 2, fake.ANY | fake.USER | fake.TYPE_SAVE | fake.HW_INDEX),
        (fake.WESTMERE, (4, 0x00C4), 2, fake.ANY | fake.USER | fake.TYPE_SAVE | fake.HW_INDEX),
        (fake.GOLDMONT, (4, 0x80C4), 3, fake.ANY | fake.USER | fake.TYPE_SAVE | fake.HW_INDEX),
        (fake.SAPPHIRE_RAPIDS, (4, 0x20C4), 3, fake.ANY | fake.USER | fake.TYPE_SAVE | fake.HW_INDEX),
        (fake.ZEN4, (4, 0xC4), 0, fake.ANY | fake.USER | fake.TYPE_SAVE | fake.HW_INDEX),
        (fake.ZEN3, (4, 0xC4), 0, fake.ANY | fake.USER),
        (fake.ARM, (8, 0x21), 0, fake.ANY | fake.USER | fake.TYPE_SAVE | fake.HW_INDEX),
    ],
)
def test_the_default_is_the_taken_branch_event_as_precise_as_offered(
    machine: Machine, event: tuple[int, int], precise: int, branches: int
) -> None:
    ((_, attr),) = sampled(machine)
    assert (attr.type, attr.config, attr.precise, attr.branches) == (*event, precise, branches)
    assert attr.period > 16
    assert not attr.flags & fake.FREQ
    assert attr.stacks


def test_a_hybrid_processor_is_opened_once_for_each_kind_of_core() -> None:
    found = sampled(fake.ALDER_LAKE)
    assert [(p.cpus, a.type, a.config, a.precise) for p, a in found] == [
        ((4, 5), 10, 0xC0C4, 3),
        ((0, 1, 2, 3), 4, 0x20C4, 3),
    ]


def test_user_code_only_unless_the_kernel_is_asked_for() -> None:
    ((_, attr),) = sampled(fake.SKYLAKE)
    assert attr.flags >> 4 & 7 == 0b110  # exclude_user 0, exclude_kernel 1, exclude_hv 1
    ((_, attr),) = sampled(replace(fake.SKYLAKE, paranoid=1), Request(ME, branches=fake.ANY | fake.USER | fake.KERNEL))
    assert attr.flags >> 4 & 7 == 0
    ((_, attr),) = sampled(fake.SKYLAKE, Request(ME, event="cycles:u"))
    assert attr.flags >> 4 & 7 == 0b110


def test_call_stack_mode_asks_for_nothing_else_and_for_the_kernels_own_chain() -> None:
    ((_, attr),) = sampled(fake.SKYLAKE, Request(ME, call_stack=True))
    assert (
        attr.branches & ~(fake.TYPE_SAVE | fake.HW_INDEX)
        == fake.CALL_STACK | fake.USER | fake.NO_FLAGS | fake.NO_CYCLES
    )
    assert attr.sample_type >> 5 & 1, "PERF_SAMPLE_CALLCHAIN"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request(ME), (400_009, False)),
        (Request(ME, period=1009), (1009, False)),
        (Request(ME, frequency=99), (99, True)),
        (Request(ME, event="cycles"), (1000, True)),
        (Request(ME, event="cpu/event=0xc4,period=77/"), (77, False)),
        (Request(ME, event="cpu/event=0xc4,freq=77/"), (77, True)),
        (Request(ME, event="cpu/event=0xc4,period=77/", frequency=5), (5, True)),
    ],
)
def test_period_and_frequency(request_: Request, expected: tuple[int, bool]) -> None:
    ((_, attr),) = sampled(fake.SKYLAKE, request_)
    assert (attr.period, bool(attr.flags & fake.FREQ)) == expected


def test_brs_is_opened_by_its_rules_and_refused_by_name_where_they_are_broken() -> None:
    ((_, attr),) = sampled(fake.ZEN3, Request(ME, period=20_011))
    assert (attr.period, attr.branches, attr.config) == (20_011, fake.ANY | fake.USER, 0xC4)
    for request, said in (
        (Request(ME, frequency=99), "fixed period"),
        (Request(ME, period=16), "fixed period"),
        (Request(ME, branches=fake.USER | 1 << 4), "cannot filter them"),
        (Request(ME, event="cycles:u", period=1000), "only with the event branch-brs"),
    ):
        with pytest.raises(UnavailableError, match=said):
            sampled(fake.ZEN3, request)


def test_a_selection_that_contradicts_itself_is_refused_before_the_kernel_is_asked() -> None:
    kernel = FakeKernel(fake.SKYLAKE)
    with pytest.raises(SelectionError, match="CALL_STACK"):
        negotiated(Request(ME, branches=fake.CALL_STACK | fake.ANY | fake.USER), kernel, read_host(kernel), 77)
    assert not kernel.tried


OLD = {
    "3.10": replace(fake.SKYLAKE, known_branches=0x7FF, format_lost=False, build_id=False, max_precise=2),
    "4.14": replace(fake.SKYLAKE, known_branches=(1 << 17) - 1, format_lost=False, build_id=False),
    "5.10": replace(fake.SKYLAKE, known_branches=(1 << 18) - 1, format_lost=False, build_id=False),
    "5.15": replace(fake.SKYLAKE, known_branches=(1 << 18) - 1, format_lost=False),
    "6.12": fake.SKYLAKE,
    "no PEBS": replace(fake.SKYLAKE, max_precise=0),
    "odd": replace(fake.SKYLAKE, known_branches=(1 << 20) - 1 & ~fake.TYPE_SAVE, max_precise=1),
}


@pytest.mark.parametrize("machine", OLD.values(), ids=OLD.keys())
def test_nothing_that_can_be_had_is_given_up(machine: Machine) -> None:
    """Against every subset of the extras: what is kept opens, and no larger subset does."""
    kernel = FakeKernel(machine)
    request, host = Request(ME), read_host(kernel)
    for spec in negotiated(request, kernel, host, 77):
        kept = len(spec.extras) - len(spec.dropped)
        open_with = []
        for count in range(len(spec.extras) + 1):
            for dropped in combinations(spec.extras, count):
                try:
                    kernel.close(kernel.open_event(spec.attr_without(dropped), 77, 0))
                    open_with.append(len(spec.extras) - count)
                except OSError:
                    pass
        assert kept == max(open_with)


def test_what_was_given_up_is_told_and_no_more_than_that() -> None:
    for name, lost, index, types, precise in (
        ("4.14", True, True, False, 3),
        ("5.10", True, False, False, 3),
        ("6.12", False, False, False, 3),
        ("odd", False, False, True, 1),
    ):
        ((spec, attr),) = sampled(OLD[name])
        assert bool(attr.read_format & fake.FORMAT_LOST) != lost
        assert bool(attr.branches & fake.HW_INDEX) != index
        assert bool(attr.branches & fake.TYPE_SAVE) != types
        assert attr.precise == precise
        assert {w.name for w in spec.dropped} >= {
            n for n, on in (("lost", lost), ("index", index), ("type", types)) if on
        }


def test_an_explicit_precise_level_is_not_negotiated() -> None:
    ((_, attr),) = sampled(fake.SKYLAKE, Request(ME, event="r20c4:pp"))
    assert attr.precise == 2
    with pytest.raises(UnavailableError, match="requests precise level 3, but cpu offers only 2"):
        sampled(fake.SANDY_BRIDGE, Request(ME, event="r20c4:ppp"))


def test_build_ids_are_asked_of_the_kernel_in_mappings_where_it_knows_them() -> None:
    for machine, asked in ((OLD["5.10"], False), (OLD["5.15"], True)):
        kernel = FakeKernel(machine)
        tracking = negotiated(Request(ME), kernel, read_host(kernel), 77)[-1]
        assert bool(Attr(tracking.attr).flags & fake.BUILD_ID) == asked


def test_the_kernel_is_asked_no_more_often_than_the_wishes_can_make_it() -> None:
    for machine in fake.MACHINES.values():
        kernel = FakeKernel(replace(machine, always=errno.EINVAL))
        host = read_host(kernel)
        with pytest.raises(LastbranchError):
            negotiated(Request(ME), kernel, host, 77)
        first = sampling_spec(requested_events(Request(ME), host)[0], Request(ME), host, 4096)
        assert len(kernel.tried) == len(first.extras) + 1


def test_a_refusal_that_no_wish_can_change_ends_the_attempts_at_once() -> None:
    for number in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ESRCH, errno.EBUSY, errno.ENOSYS):
        kernel = FakeKernel(replace(fake.BARE_WITHOUT_LBR, always=number))
        with pytest.raises(UnavailableError):
            negotiated(Request(ME), kernel, read_host(kernel), 77)
        assert len(kernel.tried) == 1
