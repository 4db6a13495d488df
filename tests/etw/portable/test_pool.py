"""The shared memory of a session: layout, seals, and what is refused of others."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct

import pytest

from lastbranch.etw.portable import pool
from lastbranch.etw.portable.pool import PAGE, Geometry, Mapping, make_pool
from lastbranch.etw.portable.session.writers import Leases
from lastbranch.etw.status import EtwError, Status
from lastbranch.formats.etl.layout import BUFFER_HEADER, packed


def geometry(**changed: int) -> Geometry:
    return Geometry(65536, 8, 4, handle=3, clock=1)._replace(**changed)


@pytest.fixture
def descriptor() -> int:
    made = make_pool(geometry())
    yield made
    os.close(made)


def test_geometry_has_a_descriptor_of_its_own_that_nobody_can_change() -> None:
    made = geometry().sealed()
    try:
        assert Geometry.read(made) == geometry()
        with pytest.raises(PermissionError):
            os.pwrite(made, b"\xff" * 8, 8)
        with pytest.raises(PermissionError):
            mmap.mmap(made, 32)  # shared and writable
        with pytest.raises(PermissionError):
            os.ftruncate(made, 0)
    finally:
        os.close(made)


def test_a_geometry_that_could_be_changed_is_refused() -> None:
    made = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    try:
        os.write(made, geometry().pack())
        for seals in (0, fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW):
            fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
            with pytest.raises(EtwError) as caught:
                Geometry.read(made)
            assert caught.value.status == Status.INVALID_DATA
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        assert Geometry.read(made) == geometry()
    finally:
        os.close(made)


@pytest.mark.parametrize("cut", [0, PAGE, geometry().size - PAGE])
def test_a_pool_of_another_size_is_refused(cut: int) -> None:
    made = make_pool(geometry(buffers=(cut - 5 * PAGE) // 65536) if cut > 5 * PAGE else geometry(buffers=0, slots=0))
    try:
        with pytest.raises(EtwError) as caught:
            Mapping(made, geometry())
        assert caught.value.status == Status.INVALID_DATA
    finally:
        os.close(made)


def test_a_pool_that_could_become_smaller_is_refused() -> None:
    """Whoever reads beyond the end of a mapped file is killed."""
    made = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    try:
        os.truncate(made, geometry().size)
        with pytest.raises(EtwError) as caught:
            Mapping(made, geometry())
        assert caught.value.status == Status.INVALID_DATA
    finally:
        os.close(made)


def test_size(descriptor: int) -> None:
    assert os.fstat(descriptor).st_size == geometry().size == 4096 * 5 + 8 * 65536


def test_slots_and_buffers_do_not_overlap() -> None:
    made = geometry()
    slots = [range(made.slot(n) * 8, made.slot(n) * 8 + 8 * (pool.RING + pool.RING_SIZE)) for n in range(4)]
    assert slots[0].start == 4096
    assert all(slots[n].stop <= slots[n + 1].start for n in range(3))
    assert slots[3].stop <= made.buffer(0)
    assert made.buffer(7) + made.buffer_size == made.size


def test_commit_word_is_aligned_and_in_the_reserved_field_of_the_buffer_header() -> None:
    names = [name for name, _ in BUFFER_HEADER]
    at = packed(BUFFER_HEADER[: names.index("Reserved")]).size
    assert at == pool.COMMIT_AT
    assert at % 8 == 0
    assert all(geometry(buffer_size=size).buffer(1) % 8 == 0 for size in (4096, 5 * 1024, 65536))


@pytest.mark.parametrize("size", [0, 4096, 1 << 30])
def test_size_is_sealed(descriptor: int, size: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, size)


def test_seals_cannot_be_added_to(descriptor: int) -> None:
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_memory_that_is_not_used_costs_nothing() -> None:
    made = make_pool(geometry(buffers=1 << 16))
    try:
        mapping = Mapping(made, geometry(buffers=1 << 16))
        mapping.words[mapping.geometry.buffer(40_000) // 8] = 1
        assert os.fstat(made).st_blocks * 512 <= 4 * 4096
    finally:
        os.close(made)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"LBPOOL1\0",
        bytes(4096),
        geometry(slots=1 << 20).pack(),
        geometry(buffer_size=40).pack(),
        b"LBPOOL9\0" + geometry().pack()[8:],
    ],
    ids=["empty", "cut", "zeros", "too many slots", "no size", "another version"],
)
def test_what_is_no_geometry_is_refused(content: bytes) -> None:
    made = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    try:
        os.write(made, content)
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, pool._CONSTANT)
        with pytest.raises(EtwError) as caught:
            Geometry.read(made)
        assert caught.value.status == Status.INVALID_DATA
    finally:
        os.close(made)


def test_more_memory_than_can_be_mapped() -> None:
    huge = geometry(buffer_size=1 << 31, buffers=1 << 30)
    made = make_pool(huge)
    try:
        with pytest.raises(EtwError) as caught:
            Mapping(made, huge)
        assert caught.value.status == Status.NOT_ENOUGH_MEMORY
    finally:
        os.close(made)


def test_settle_on_processors_that_reorder_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of membarrier is that of this machine here: the call must be one that the system knows."""
    import ctypes

    calls = []
    libc = ctypes.CDLL(None, use_errno=True)
    monkeypatch.setattr(pool, "_BARRIER", {"x86_64": 324, "aarch64": 283}[os.uname().machine])
    real = ctypes.CDLL

    class Recorded:
        def __init__(self, name: None) -> None:
            self._libc = real(name)

        def syscall(self, *arguments: int) -> int:
            calls.append(self._libc.syscall(*arguments))
            return calls[-1]

    monkeypatch.setattr(ctypes, "CDLL", Recorded)
    pool.read_barrier()
    supported = libc.syscall({"x86_64": 324, "aarch64": 283}[os.uname().machine], 0, 0)
    assert calls == [0 if supported > 0 and supported & 1 else -1]
    assert struct.calcsize("P") == 8


class Home:
    """What `Leases` sees of a pool."""

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    def forget(self, index: int) -> None:
        self.forgotten.append(index)


class Asker:
    """What `Leases` sees of a slot."""

    broken = False
    hungry = True

    def __init__(self, home: Home | None = None) -> None:
        self.pool = home
        self.leased: list[int] = []

    def give(self, index: int) -> None:
        self.leased.append(index)


def test_a_pool_that_became_too_small_gives_two_to_each_and_no_more() -> None:
    """An update may lower MaximumBuffers below what writers have already."""
    leases, early, late = Leases(100, 64), [Asker(), Asker()], Asker()
    assert leases.share(early[:1])
    assert leases.share(early)
    assert [len(slot.leased) for slot in early] == [32, 21]
    leases.maximum = 24
    assert not leases.share([*early, late])
    assert ([len(slot.leased) for slot in early], len(late.leased)) == ([32, 21], 2)
    held = [index for slot in (*early, late) for index in slot.leased]
    assert len(set(held)) == leases.out == 55
    for index in early[0].leased:
        leases.release(index, None)
    early[0].leased.clear()
    assert leases.share([*early, late]) is False
    assert leases.out == 25


def test_a_buffer_that_goes_to_another_pool_leaves_its_memory() -> None:
    """Own free buffers come first, then those of others, then fresh ones; a pool that is gone has nothing to give."""
    leases, one, two = Leases(100, 4), Asker(Home()), Asker(Home())
    one.hungry = two.hungry = False
    assert leases.share([one])
    assert one.leased == [0, 1]
    for index in (0, 1):
        leases.release(index, one.pool)
    one.leased.clear()
    assert leases.share([two])
    assert (sorted(two.leased), sorted(one.pool.forgotten), leases.out) == ([0, 1], [0, 1], 2)
    for index in (0, 1):
        leases.release(index, two.pool)
    two.leased.clear()
    assert leases.share([two])
    assert (sorted(two.leased), two.pool.forgotten) == ([0, 1], [])
    for index in (0, 1):
        leases.release(index, two.pool)
    leases.forget(two.pool)
    assert leases.share([one])
    assert (sorted(one.leased), two.pool.forgotten, leases.out) == ([0, 1], [], 2)


def test_memory_of_a_buffer_is_given_back() -> None:
    """Whole pages of it, and none of its neighbours'."""
    made = make_pool(geometry(buffer_size=10 * 1024))
    try:
        mapping = Mapping(made, geometry(buffer_size=10 * 1024))
        first, past = mapping.geometry.buffer(3), mapping.geometry.buffer(6)
        mapping.memory[first:past] = b"x" * (past - first)
        held = os.fstat(made).st_blocks
        mapping.forget(4)
        begin, end = mapping.geometry.buffer(4), mapping.geometry.buffer(5)
        assert mapping.memory[first:begin] == b"x" * (begin - first)
        assert mapping.memory[end:past] == b"x" * (past - end)
        assert os.fstat(made).st_blocks < held
    finally:
        os.close(made)
