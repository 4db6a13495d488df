"""Small files that ask for much: what is kept is bounded by what is new, by the budgets, and the reader says so.

The files are those of `resource_bombs`, made small, and so are the budgets; ``make fuzz`` runs the large ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resource_bombs as bombs
from binder_checks import assert_equals_brute_force, bound, make
from binding_oracle import History, address_space_histories
from command_line import run_cli, time_limit
from lastbranch.bind import Binder, SpaceIndex
from lastbranch.bind import spaces as space
from lastbranch.errors import FormatError
from lastbranch.formats.etl import TraceLog, read_etl
from lastbranch.formats.perfdata.reader import read_perfdata
from lastbranch.formats.perfscript.reader import read_perfscript
from lastbranch.formats.tb5.layout import Scope, Section, Table, empty_records
from lastbranch.formats.tb5.model_section import pack, unpack
from lastbranch.formats.tb5.profile_reader import read_tb5
from lastbranch.formats.tb5.profile_writer import write_machine
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.writer import Tb5Writer
from lastbranch.model import (
    BytesSource,
    Change,
    Cpu,
    Limits,
    Machine,
    Module,
    ModuleKind,
    Node,
    Profile,
    Timeline,
    limited,
)
from lastbranch.opening import open_source
from perfdata_writer import Builder

SMALL = Limits(memory=2 << 20, expansion=6 << 20, ratio=4)


def read(data: bytes, limits: Limits = SMALL) -> Profile:
    with limited(limits):
        return read_perfdata(BytesSource(data, "bomb.data"))


def budget_notes(profile: Profile) -> list[str]:
    return [str(d) for d in profile.damage if "budget" in d.reason]


@pytest.mark.parametrize("name", bombs.BOMBS)
def test_small_budgets_end_every_bomb(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(bombs.BOMBS[name](0.004))
    for verb in ("info", "verify"):
        done = run_cli(verb, path, "--max-memory", "2M", "--max-expansion", "6M,4x")
        assert done.code in (0, 1, 3), done.err
        assert "Traceback" not in done.err


def test_a_fork_that_changes_nothing_is_counted_and_not_kept() -> None:
    profile = read(bombs.packed(islice(bombs.again(bombs.fork(2, 1, 5)), 1), 1), Limits())
    assert profile.records["FORK"] > 10_000
    assert len(profile.timeline) <= 8  # one for each block
    binder = Binder(profile)
    assert sorted(p.pid for p in binder.processes) == [1] + [2] * len(profile.timeline)


def test_losses_that_stand_there_again_are_all_counted() -> None:
    several = [bombs.record(2, bombs.struct.pack("<QQ", 1, n) + bombs.trailer(n)) for n in range(50)]
    profile = read(bombs.packed(iter([b"".join(several * 40)]), 1))
    assert profile.records["LOST"] == 2000
    assert profile.lost["records"] == 40 * sum(range(50))


@pytest.mark.parametrize("timed", [True, False])
def test_what_is_said_again_after_something_else_still_counts(timed: bool) -> None:
    """Without time stamps the order is all there is: A, B, A is not A, B."""
    kinds = bombs.pw.IP | bombs.pw.TID | (bombs.pw.TIME if timed else 0)
    b = Builder(sample_type=kinds, sample_id_all=timed)
    for i in range(100):
        b.comm(pid=7, name="first" if i % 2 else "other", **({"time": 10 + i} if timed else {}))
    binder = Binder(read(b.build(), Limits()))
    assert [p.name for p in binder.processes] == ["first"]


def test_the_memory_budget_ends_the_index_pass_and_says_where() -> None:
    data = bombs.BOMBS["fork_each_changes"](0.15)
    profile = read(data, Limits(memory=2 << 20))
    (note,) = budget_notes(profile)
    assert "budget of 2 MiB; the rest was not read (at offset" in note
    assert profile.is_budget(profile.damage[0])
    assert profile.damage[0].offset < len(data), "in the file, not in what came out of it"
    assert 0 < len(profile.timeline) == profile.records["FORK"] < 100_000
    whole = read(data, Limits())
    assert not whole.damage
    assert len(whole.timeline) > 150_000


def test_samples_up_to_the_place_are_delivered_and_no_others() -> None:
    data = bombs.BOMBS["samples_of_many_threads"](0.15)
    profile = read(data, Limits(memory=1 << 20))
    assert budget_notes(profile)
    assert 0 < profile.samples == sum(map(len, profile.batches())) < 150_000
    assert read(data, Limits()).samples > 200_000


def test_the_expansion_budget_is_of_bytes_or_of_a_ratio() -> None:
    data = bombs.BOMBS["lost_the_same"](0.05)
    whole = read(data, Limits())
    assert not whole.damage
    in_bytes = read(data, Limits(expansion=1 << 20, ratio=0))
    (note,) = budget_notes(in_bytes)
    assert "budget of 1048576; the rest was not read (at offset" in note
    assert 0 < in_bytes.records["LOST"] < whole.records["LOST"]
    by_ratio = read(data, Limits(expansion=0, ratio=10))
    assert budget_notes(by_ratio)
    assert not read(data, Limits(expansion=0, ratio=1_000_000)).damage


def test_options_set_the_budgets(tmp_path: Path) -> None:
    path = tmp_path / "bomb.data"
    path.write_bytes(bombs.BOMBS["lost_the_same"](0.05))
    assert run_cli("info", path).code == 0
    for option in ("1M", "10x,1M", "2x,1k"):
        done = run_cli("info", path, "--format", "json", "--max-expansion", option)
        assert (done.code, len(json.loads(done.out)["damage"])) == (1, 1)
        assert f"{path}: " in done.err
        assert "budget" in done.err
    for wrong in ("0", "x", "-1", "1Q", "1M,", "٣"):
        assert run_cli("info", path, "--max-expansion", wrong).code == 2
        assert run_cli("info", path, "--max-memory", wrong).code == 2


def test_numa_lists_are_bounded_in_sum() -> None:
    b = Builder()
    b.feature("NUMA_TOPOLOGY", nodes=[(i, 1, 1, "0-40000") for i in range(40)])
    b.comm(pid=1, name="x", time=1)
    profile = read(b.build())
    assert "more than 65536 processors in the lists of all nodes" in str(profile.damage)
    assert sum(len(n.cpus) for n in profile.machine.nodes) <= 65536
    b.feature("NUMA_TOPOLOGY", nodes=[(0, 1, 1, "0-32767"), (1, 1, 1, "32768-65535")])
    fits = read(b.build())
    assert not fits.damage
    assert [len(n.cpus) for n in fits.machine.nodes] == [32768, 32768]
    b.feature("NUMA_TOPOLOGY", nodes=[(0, 1, 1, "7-3")])
    assert "processor list" in str(read(b.build()).damage)


def test_events_of_too_many_layouts_are_left_out() -> None:
    profile = read(bombs.BOMBS["attributes"](0.01), Limits())
    assert "more than 16 sample layouts" in str(profile.damage)
    assert len(profile.streams) <= 16
    assert profile.lost["samples of unknown events"] > 0


# -- binding


@settings(max_examples=60, deadline=None)
@given(history=address_space_histories())
def test_chunks_of_a_space_do_not_show(history: History) -> None:
    """With chunks of two intervals, spaces of the histories have several."""
    before, space._MOST = space._MOST, 2
    try:
        assert_equals_brute_force(1 << 40, history)
    finally:
        space._MOST = before


def test_what_has_no_room_is_not_bound_and_said() -> None:
    t = Timeline()
    t.place(0x100)
    for i in range(100):
        t.add(Change.MAP, i, 7, module=i % 2, start=i << 12, end=(i + 1) << 12)
    t.place(0x5000)
    for i in range(100, 200):
        t.add(Change.MAP, i, 7, module=i % 2, start=i << 12, end=(i + 1) << 12)
    modules = [Module(f"m{i}", ModuleKind.ANONYMOUS) for i in range(2)]
    profile = Profile("test", "test", modules=modules, timeline=t, memory=50_000)
    binder = Binder(profile)
    (damage,) = profile.damage
    assert (damage.offset, damage.field) == (0x5000, "changes")
    last = 200 - damage.value
    assert 100 <= last < 200
    assert bound(binder, [(7, 0x1800, last - 1), (7, (last - 1) << 12, last - 1)]) == [1, (last - 1) % 2]
    assert bound(binder, [(7, 0x1800, last)]) == [-1], "what is mapped then is not known"
    Binder(profile)
    assert profile.damage == [damage], "said once"


def test_forked_copies_are_counted_too() -> None:
    """300 mappings, and 2,000 children that have a copy of each as soon as they map something: 600,000."""
    t = Timeline()
    for i in range(300):
        t.add(Change.MAP, 1, 7, module=0, start=i << 20, end=(i << 20) + 4096)
    for i in range(2000):
        t.add(Change.FORK, 2, 100 + i, tid=100 + i, parent=7)
        t.add(Change.MAP, 3, 100 + i, module=0, start=1 << 40, end=(1 << 40) + 4096)
    profile = Profile("test", "test", modules=[Module("m", ModuleKind.ANONYMOUS)], timeline=t, memory=16 << 20)
    Binder(profile)
    assert "not bound" in str(profile.damage)
    assert not make(t, 1)._last


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_index_without_room_answers_for_the_moments_that_fit(data: st.DataObject) -> None:
    """Small pieces, then large ones one after the other over all of them."""
    small, large = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))
    last = 1 << 62
    pieces = [(1, 10 * i, 10 * i + 5, i, 10) for i in range(small)]
    pieces += [(1, 0, 100, 10 + i, 11 + i if i + 1 < large else last) for i in range(large)]
    columns = [np.array(c, np.uint64 if i in (1, 2) else np.int64) for i, c in enumerate(zip(*pieces, strict=True))]
    values = np.arange(len(pieces))
    whole = SpaceIndex(*columns, values)
    assert whole.last is None
    cut = SpaceIndex(*columns, values, most=data.draw(st.integers(1, 40)))
    until = 30 if cut.last is None else cut.last
    address, moment = (part.ravel() for part in np.meshgrid(np.arange(0, 110), np.arange(0, until + 1)))
    asked = np.ones(len(address), np.int64), moment, address.astype(np.uint64)
    assert cut.find(*asked).tolist() == whole.find(*asked).tolist()


# -- other formats


def test_compressed_buffers_of_a_log_have_the_expansion_budget() -> None:
    data = bombs.BOMBS["etl_processes_again"](0.008)
    whole = read_etl(BytesSource(data, "bomb.etl"))
    with limited(Limits(expansion=2 << 20, ratio=2)):
        source = BytesSource(data, "bomb.etl")
    part = read_etl(source)
    assert not whole.damage
    (damage,) = part.damage
    assert "compressed buffers expand beyond the budget of" in str(damage)
    assert 0 < damage.offset < len(data)
    assert 0 < sum(part.records.values()) < sum(whole.records.values())
    log = TraceLog(source)
    assert sum(log.counts.values()) == sum(1 for _ in log.events(ordered=True)), "in time order up to the same place"


@pytest.mark.parametrize(("name", "read"), [("etl_processes_again", read_etl), ("text_maps", read_perfscript)])
def test_tables_have_the_memory_budget(name: str, read: Callable[[BytesSource], Profile]) -> None:
    data = bombs.BOMBS[name](0.01)
    with limited(Limits(memory=20_000)):
        part = read(BytesSource(data, "bomb"))
    assert "budget of 0 MiB; the rest was not read" in str(part.damage)
    assert not read(BytesSource(data, "bomb")).damage


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tb5_streams", "all tables together are larger than the file"),
        ("tb5_number_of_streams", "impossible stream number"),
    ],
)
def test_tables_of_a_tb5_are_bounded_in_sum(name: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as refused:
        Tb5File(BytesSource(bombs.BOMBS[name](0.04), "bomb.tb5"))
    assert refused.value.offset


def test_bytes_of_a_tree_are_not_counted_twice() -> None:
    nodes, data = pack([b"abcd", b"efgh"], lambda text: 1)
    assert unpack(nodes, data, str) == [b"abcd", b"efgh"]
    for row in nodes[1:]:
        row["value"], row["length"] = 0, len(data)
    with pytest.raises(ValueError, match="bytes of several values are the same"):
        unpack(nodes, data, str)


def test_check_says_that_the_tables_of_a_log_have_no_room(tmp_path: Path) -> None:
    path = tmp_path / "bomb.etl"
    path.write_bytes(bombs.BOMBS["etl_processes_again"](0.004))
    assert "budget of" not in run_cli("check", path).out
    assert "budget of" in run_cli("check", path, "--max-memory", "20k").out


def test_processors_of_nodes_do_not_overlap(tmp_path: Path) -> None:
    """Each node says where its processors begin: they end where the next one's begin, or where they did before."""
    path = tmp_path / "nodes.tb5"
    section = Table(Scope.GLOBAL, 0, Section.HARDWARE, 0)
    with Tb5Writer.create(path) as writer:
        system, nodes, cpus = (
            empty_records(n, k) for n, k in (("TBRW_SYSTEM", 1), ("TBRW_NODE", 40), ("TBRW_CPU", 50))
        )
        nodes["cpu_array"][1::2] = 50
        for part, rows in enumerate((system, nodes, cpus)):
            writer.put(section._replace(part=part), rows)
    profile = read_tb5(open_source(str(path)))
    assert sum(len(node.cpus) for node in profile.machine.nodes) <= 50
    assert len(profile.machine.cpus) <= 50


def test_many_processors_are_stored_at_once(tmp_path: Path) -> None:
    """Siblings are counted, not searched for each."""
    cpus = [Cpu(i, core=i // 2, package=0, node=i % 2) for i in range(40_000)]
    machine = Machine(arch="x86_64", cpus=cpus, nodes=[Node(n, tuple(range(n, 40_000, 2))) for n in range(2)])
    path = tmp_path / "many.tb5"
    with time_limit(60), Tb5Writer.create(path) as writer:
        write_machine(writer, machine)
    with Tb5File(open_source(str(path))) as file:
        stored = file.records(Table(Scope.GLOBAL, 0, Section.HARDWARE, 2))
        assert set(stored["cpu_threads_per_core"].tolist()) == {2}
        assert stored["cpu_number"][:3].tolist() == [0, 2, 4]
