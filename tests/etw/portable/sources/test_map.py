"""Which bits of the masks stand for events of Linux, what is refused and why, and the bytes between the processes."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

import fake_kernel as fake
from fake_kernel import Machine
from lastbranch.etw.flags import GROUPS, KERNEL_LOGGER, EnableFlag, LogFileMode, hook_ids
from lastbranch.etw.portable.enable_map import ROWS, Row, find_unmapped, kinds_of, normalised_masks, rows_of
from lastbranch.etw.portable.sources import argv, check, needed
from lastbranch.etw.portable.sources.kinds import KINDS
from lastbranch.etw.portable.sources.plan import COUNTERS, FOLLOWERS, TASKS
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.status import EtwError, Status
from source_tools import SourceKernel

SYSTEM = SessionRequest("NT Kernel Logger")
ROOT = replace(fake.VM, paranoid=-1)
DOCS = Path(__file__).parents[4] / "docs" / "reference" / "etw-sources.md"


class TestTable:
    def test_every_flag_and_group_has_a_row(self) -> None:
        rows = {(row.word, row.bits): row for row in ROWS}
        assert len(rows) == len(ROWS)
        assert {(0, int(flag)) for flag in EnableFlag} | {(g.word, g.bits) for g in GROUPS.values()} == rows.keys()

    def test_a_row_has_events_or_a_reason_but_for_two_that_enable_nothing(self) -> None:
        assert {row.name for row in ROWS if not row.kinds and not row.why} == {"NO_SYSCONFIG", "ENABLE_RESERVE"}
        assert not [row for row in ROWS if row.kinds and (row.why or not row.linux)]

    def test_every_kind_is_made_by_something(self) -> None:
        followed = {kind for follower in FOLLOWERS for kind in follower.needs}
        assert {kind for row in ROWS for kind in row.kinds} == KINDS.keys() | TASKS | followed | {COUNTERS, "pmc"}

    @pytest.mark.parametrize(
        ("flag", "word", "bit"),
        [
            (0x10, 1, 0x4),
            (0x20, 1, 0x80),
            (0x40, 1, 0x4000),
            (0x80, 2, 0x40),
            (0x800, 1, 0x200),
            (0x4000, 1, 0x8000),
            (0x800000, 1, 0x10),
            (0x1000000, 1, 0x2),
        ],
    )
    def test_aliases_move_to_their_own_words(self, flag: int, word: int, bit: int) -> None:
        words = normalised_masks([flag | 1])
        assert (words[0], words[word], len(words)) == (1, bit, 8)
        assert normalised_masks(words) == words
        assert kinds_of([flag]) == kinds_of(normalised_masks([flag]))

    @pytest.mark.parametrize(
        ("flag", "hooks"),
        [
            (0x10, {0x0524}),
            (0x80, {0x0F33, 0x0F34}),
            (0x800, {0x0532}),
            (0x1000, {0x020A, 0x020E}),
            (0x2000, {0x0220}),
            (0x1000000, {0x0F2E}),
        ],
    )
    def test_a_flag_has_the_events_of_its_page(self, flag: int, hooks: set[int]) -> None:
        assert {KINDS[kind].hook for kind in kinds_of([flag])} == hooks

    def test_bits_without_a_name_are_refused_by_their_number(self) -> None:
        (row,) = find_unmapped([0, 0, 0, 0x8000])
        assert row.name == "bit 0x8000 of mask 3"
        assert [r.name for r in rows_of([7])] == ["PROCESS", "THREAD", "IMAGE_LOAD"]

    def test_the_documents_table_is_this_one(self) -> None:
        listed = re.findall(r"^\| (\d) \| `(0x[0-9a-f]+)` \| (\w+) \| (.*?) \|$", DOCS.read_text(), re.M)
        assert [(int(w), int(b, 16), n) for w, b, n, _ in listed] == [(r.word, r.bits, r.name) for r in ROWS]
        for (_, _, name, text), row in zip(listed, ROWS, strict=True):
            assert (row.linux or row.why or "enables nothing") in text, name


def refused(
    masks: list[int], machine: Machine = ROOT, request: SessionRequest = SYSTEM, tracefs: bool = True
) -> EtwError:
    kernel = SourceKernel(machine, tracefs)
    with pytest.raises(EtwError) as error:
        check(request, masks, kernel=kernel)
    assert not kernel.opened
    return error.value


class TestCheck:
    @pytest.mark.parametrize(
        "request_",
        [
            SYSTEM,
            SessionRequest("nt kernel LOGGER"),
            SessionRequest("x", mode=LogFileMode.SYSTEM_LOGGER_MODE),
            SessionRequest("x", guid=KERNEL_LOGGER),
        ],
    )
    def test_system_loggers_have_sources(self, request_: SessionRequest) -> None:
        assert needed(request_, [1])
        assert not needed(request_, [0])
        assert not needed(request_, [int(EnableFlag.NO_SYSCONFIG)])
        kernel = SourceKernel(ROOT)
        check(request_, [0x01003897, 0, 0], kernel=kernel)
        assert kernel.tried
        assert not kernel.opened

    def test_other_sessions_have_none(self) -> None:
        plain = SessionRequest("x")
        assert not needed(plain, [7])
        check(plain, [0])
        assert refused([7], request=plain).status == Status.INVALID_PARAMETER

    def test_a_process_is_not_needed_for_what_the_software_record_does(self) -> None:
        assert needed(SYSTEM, [0, 0x400])
        assert needed(SYSTEM, [0, 0x400], [19])
        assert not needed(SYSTEM, [0, 0x400], [65])
        assert not needed(SYSTEM, [0, 0x400], [])
        assert needed(SYSTEM, [1, 0x400], [])

    @pytest.mark.parametrize("row", [row for row in ROWS if row.why], ids=lambda row: f"{row.name}-{row.word}")
    def test_what_linux_does_not_have_is_not_supported_by_name(self, row: Row) -> None:
        masks = [0] * 8
        masks[row.word] = row.bits
        error = refused(masks)
        assert error.status == Status.NOT_SUPPORTED
        assert "is not available: " in error.reason

    def test_file_names_of_disk_events_need_disk_events(self) -> None:
        error = refused([0x200])
        assert (error.status, error.reason) == (Status.INVALID_PARAMETER, "DISK_FILE_IO needs DISK_IO")

    @pytest.mark.parametrize("masks", [[1], [2], [4], [0x10], [0x1000], [0x1000000]])
    @pytest.mark.parametrize("paranoid", [1, 2, 4])
    def test_without_rights_the_privilege_is_missing(self, masks: list[int], paranoid: int) -> None:
        error = refused(masks, replace(fake.VM, paranoid=paranoid))
        assert error.status == Status.PRIVILEGE_NOT_HELD
        assert f"kernel.perf_event_paranoid is {paranoid}" in error.reason
        assert "CAP_PERFMON" in error.reason
        check(SYSTEM, masks, kernel=SourceKernel(replace(fake.VM, paranoid=paranoid, caps=fake.CAP_PERFMON)))

    def test_tracepoints_that_are_not_there(self) -> None:
        error = refused([0x80], tracefs=False)
        assert error.status == Status.NOT_SUPPORTED
        assert "offers no tracepoints (raw_syscalls:sys_enter)" in error.reason
        hidden = replace(ROOT, files=dict(ROOT.files, **{"/sys/kernel/tracing/README": ""}))
        error = refused([0x80], hidden, tracefs=False)
        assert error.status == Status.PRIVILEGE_NOT_HELD
        assert "to mount it privately needs CAP_SYS_ADMIN" in error.reason
        check(SYSTEM, [0x10], kernel=SourceKernel(ROOT, tracefs=False))  # context switches have another way

    @pytest.mark.parametrize(
        ("flag", "name"),
        [
            (0x20, "irq:softirq_entry"),
            (0x40, "irq:irq_handler_entry"),
            (0x100, "block:block_rq_complete"),
            (0x400, "block:block_rq_issue"),
            (0x10000, "sock:inet_sock_set_state"),
            (0x200000, "block:block_split"),
        ],
    )
    def test_a_tracepoint_that_this_kernel_lacks_is_named(self, flag: int, name: str) -> None:
        error = refused([flag])
        assert error.status == Status.NOT_SUPPORTED
        assert f"has no tracepoint {name}" in error.reason

    def test_system_calls_of_a_machine_without_a_table(self) -> None:
        error = refused([0x2000000], replace(ROOT, arch="riscv64"))
        assert error.status == Status.NOT_SUPPORTED
        assert "the numbers of system calls of riscv64 are not known" in error.reason

    @pytest.mark.parametrize(
        ("machine", "sentence"),
        [
            (ROOT, "QEMU/KVM exposes no performance counters to this machine"),
            (replace(fake.NOTHING, paranoid=-1), "found no performance counters in this processor"),
        ],
    )
    def test_counters_that_the_machine_does_not_have(self, machine: Machine, sentence: str) -> None:
        error = refused([0, 0x400], machine)
        assert error.status == Status.NOT_SUPPORTED
        assert sentence in error.reason
        check(SYSTEM, [0, 0x400], kernel=SourceKernel(replace(fake.SKYLAKE, paranoid=-1)))

    @pytest.mark.parametrize(
        ("number", "status"),
        [
            (errno.EBUSY, Status.BUSY),
            (errno.EMFILE, Status.NO_SYSTEM_RESOURCES),
            (errno.ENOMEM, Status.NOT_ENOUGH_MEMORY),
            (errno.ENOENT, Status.NOT_SUPPORTED),
            (errno.EINVAL, Status.NOT_SUPPORTED),
            (errno.ENODEV, Status.NOT_SUPPORTED),
            (errno.EACCES, Status.PRIVILEGE_NOT_HELD),
            (errno.EPERM, Status.PRIVILEGE_NOT_HELD),
        ],
    )
    def test_whatever_else_the_kernel_says(self, number: int, status: Status) -> None:
        assert refused([1], replace(ROOT, always=number)).status == status


class TestHooks:
    @pytest.mark.parametrize(
        ("guid", "kind", "hook"),
        [
            ("ce1dbfb4-137e-4da6-87b0-3f59aa102cbc", 0x2E, 0x0F2E),
            ("3d6fa8d1-fe05-11d0-9dda-00c04fd7ba7c", 36, 0x0524),
            ("2cb15d1d-5fc1-11d2-abe1-00a0c911f518", 10, 0x030A),
            ("99134383-5248-43fc-834b-529454e75df3", 32, 0x0C20),
            ("00000000-0000-0000-0000-000000000001", 1, None),
        ],
    )
    def test_of_classic_event_ids(self, guid: str, kind: int, hook: int | None) -> None:
        assert hook_ids([(UUID(guid), kind)]) == ([] if hook is None else [hook])

    def test_the_command_of_the_process(self) -> None:
        assert argv("/x")[1:] == ["-m", "lastbranch.etw.portable.sources", "/x"]
