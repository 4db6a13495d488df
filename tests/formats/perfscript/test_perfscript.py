"""Text of perf script as a profile: the same samples as the perf.data it was printed from, and every form of it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captures import REAL, SYNTHETIC, Data
from command_line import run_cli
from lastbranch.analysis import count_stacks
from lastbranch.errors import FormatError
from lastbranch.export import exporter
from lastbranch.export.interface import ExportOptions
from lastbranch.formats.perfscript import text as blocks
from lastbranch.lbr import flag, type_name
from lastbranch.lbr.flags import branch_type
from lastbranch.model import BytesSource, Profile
from lastbranch.opening import open_profile, read_profile

PROFGEN = {
    "artificial-branch": (1, 15), "callback-external-addr": (4, 128), "cmov_3": (39, 1248), "coff-profile": (12, 384),
    "coroutine": (2, 64), "cs-interrupt": (2, 30), "cs-preinline-cost": (996, 15936), "external-address": (7, 15),
    "func-split": (1, 32), "inline-cs-noprobe": (1, 16), "inline-cs-pseudoprobe": (1, 16), "inline-noprobe": (2, 64),
    "inline-noprobe2": (13, 416), "invalid-range": (2, 23), "ip-duplication": (2, 11), "noprobe-skid": (4, 128),
    "noprobe": (3, 96), "noprobe.mmap": (3, 96), "recursion-compression-noprobe": (1, 16),
}  # fmt: skip
"""Samples and entries of llvm-profgen's own test inputs, comments not counted."""
DAMAGED = {
    "ip-duplication": {"branch entry that cannot be read"},  # it has no 0x
    "cs-preinline-cost": {"line that cannot be read"},  # of a wrapper around perf
}


def read(text: str | bytes) -> Profile:
    return read_profile(BytesSource(text.encode() if isinstance(text, str) else text, "text"))


def written(profile: Profile, form: str = "brstack") -> str:
    out = io.BytesIO()
    exporter(form)(profile, out, ExportOptions())
    return out.getvalue().decode()


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("name", [n for n in REAL + SYNTHETIC if not n.startswith("lldlayout")])
def test_perfs_own_text_comes_back(data: Data, name: str) -> None:
    """Addresses, flags, cycles, types, speculation and call chains of 17 captures as perf 6.12 prints them."""
    text = data.golden(name, "perf612-script-brstack.txt.gz")
    assert words(written(read(text))) == words(text)


@pytest.mark.parametrize("name", PROFGEN)
def test_llvm_profgens_inputs(data: Data, name: str) -> None:
    profile = open_profile(data.root / "text" / "llvm-profgen" / f"{name}.perfscript")
    assert (profile.samples, profile.entries) == PROFGEN[name]
    counted = count_stacks(profile, ranges=True, details=False)
    assert (counted.samples, counted.entries) == PROFGEN[name]
    assert {entry.reason for entry in profile.damage} == DAMAGED.get(name, set())
    for _ in range(2):
        assert sum(b.entries for b in profile.batches()) == PROFGEN[name][1]


def test_aggregated_stacks_count_as_often_as_they_say(data: Data) -> None:
    folder = data.root / "text" / "llvm-profgen"
    one, many = open_profile(folder / "noprobe.perfscript"), open_profile(folder / "noprobe.aggperfscript")
    assert (one.samples, many.samples) == (3, 5)
    plain, summed = (written(p).splitlines() for p in (one, many))
    assert summed == [plain[0], plain[1], plain[2], plain[2], plain[2]]
    assert read(" 1 0x10/0x20/P/-/-/1\n99999999999\n 1 0x10/0x20/P/-/-/1\n").damage[0].value == 99999999999


def test_a_capture_of_sep_on_windows(data: Data) -> None:
    profile = open_profile(data.root / "text" / "llvm-profgen" / "coff-profile.perfscript")
    assert [m.short for m in profile.modules] == ["coff-profile.exe"]
    counted = count_stacks(profile, ranges=True, details=False).branches
    at = (counted.a == 0x1482) & (counted.b == 0x1430)  # from the image's base on, as llvm-profgen takes it
    assert (counted.a_module[at].tolist(), bool(counted.count[at].sum() > 100)) == ([0] * int(at.sum()), True)


FORMS = [
    ("0x10/0x2f/P/-/-/7", (2, 0, 0, 7, "unknown", 0)),
    ("0x10/0x2f/M/X/A/65535/", (1, 1, 1, 65535, "unknown", 0)),
    ("0x10/0x2f/-/-/-/0/COND", (0, 0, 0, 0, "cond", 0)),
    ("0x10/0x2f/P/-/-/3/IND_CALL/-", (2, 0, 0, 3, "ind_call", 0)),
    ("0x10/0x2f/P/-/-/3/FAULT_ALGN/SPEC_WRONG_PATH", (2, 0, 0, 3, "fault_algn", 1)),
    ("0x10/0x2f/P/-/-/0//NON_SPEC_CORRECT_PATH", (2, 0, 0, 0, "unknown", 2)),
    ("0x10/0x2f/MN/-/-/12//-", (1, 0, 0, 12, "unknown", 0)),
    ("0x10/0x2f/N/-/-/12/RET/SPEC_CORRECT_PATH", (0, 0, 0, 12, "ret", 3)),
]


@pytest.mark.parametrize(("entry", "want"), FORMS)
@pytest.mark.parametrize("beside", ["0xffffffff81000000/0x7f0011112222/P/-/-/1", "0x1/0x2/MN/-/-/11//-"])
def test_entries_of_any_width(entry: str, want: tuple[object, ...], beside: str) -> None:
    """Each form by itself and between entries whose addresses have other lengths."""
    (batch,) = read(f" 10 {beside}  {entry}  {beside}\n {entry}\n").batches()
    source, target, flags = batch["branch_from"], batch["branch_to"], batch["branch_flags"]
    for at in (1, 3):
        one = flags[at : at + 1]
        got = [int(one[0] & 3)] + [int(flag(one, n)[0]) for n in ("in_tx", "abort", "cycles")]
        got += [type_name(int(branch_type(one)[0])), int(flag(one, "spec")[0])]
        assert (int(source[at]), int(target[at]), tuple(got)) == (0x10, 0x2F, want)
        assert bool(flag(one, "not_taken")[0]) == ("N/" in entry.split("/-/")[0] + "/")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=5), max_size=12))
def test_any_addresses(stacks: list[list[tuple[int, int]]]) -> None:
    text = " 1 0x1/0x2/P/-/-/0\n" + "".join(
        f" {i:16x} " + "  ".join(f"0x{a:x}/0x{b:x}/P/-/-/{i}//-" for a, b in stack) + "\n"
        for i, stack in enumerate(stacks)
    )
    profile = read(text)
    got = [b.stack(i) for b in profile.batches() for i in range(len(b))]
    pairs = [list(zip(source.tolist(), target.tolist(), strict=True)) for source, target, _ in got]
    assert pairs == [[(1, 2)], *stacks]
    assert not profile.damage


HEADED = """\
# comment with 0x1/0x2/P/-/-/1
my prog  5001/5002  [003]     1.000000: PERF_RECORD_COMM exec: my prog:5001/5002
my prog  5001/5002  [003]     1.000000: PERF_RECORD_MMAP2 5001/5002: [0x400000(0x1000) @ 0 08:01 12 0]: r-xp /bin/a b
my prog  5001/5002  [003]     1.000001:     100003 cycles:u:      400010 0x400010/0x400020/P/-/-/1
my prog  5001/5002  [003]     1.000002: PERF_RECORD_FORK(6001:6001):(5001:5001)
my prog  6001/6001  [001]     1.500000:     100003 cycles:u:      400012 main+0x2 (/bin/a b) 0x400010/0x400020/M/-/-/1
my prog  6001/6001  [001]     1.600000: PERF_RECORD_EXIT(6001:6001):(5001:5001)
my prog  6001/6001  [001]     1.600000: PERF_RECORD_LOST lost 12
other    7/7        [001]     2.250000:          7 branches:      400012
"""


def test_fields_in_front() -> None:
    profile = read(HEADED)
    assert [(e.name, e.branch_select) for e in profile.events] == [("cycles:u", 8), ("branches", 8)]
    (batch,) = profile.batches()
    rows = zip(*(batch[n].tolist() for n in ("time", "ip", "pid", "tid", "cpu", "event", "period")), strict=True)
    assert list(rows) == [
        (1_000_001_000, 0x400010, 5001, 5002, 3, 0, 100003),
        (1_500_000_000, 0x400012, 6001, 6001, 1, 0, 100003),
        (2_250_000_000, 0x400012, 7, 7, 1, 1, 7),
    ]
    assert batch.depth.tolist() == [1, 1, 0]
    assert profile.records == {"COMM": 1, "MMAP2": 1, "FORK": 1, "EXIT": 1, "LOST": 1, "SAMPLE": 3}
    assert profile.clock.frequency == 1_000_000_000
    assert "B /bin/a\\x20b 10 /bin/a\\x20b 20 2 1" in written(profile, "counts")  # the child has its parent's mappings


def test_call_chains_stand_before_the_stack() -> None:
    text = (
        "prog 1/1 5.0: cycles: \n\t  401000 main (/bin/a)\n\t  402000 x\n 0x401000/0x402000/P/-/-/0//-\n\n\t 403000\n\n"
    )
    profile = read(text)
    (batch,) = profile.batches()
    assert [batch.chain(i).tolist() for i in range(2)] == [[0x401000, 0x402000], [0x403000]]
    assert batch.depth.tolist() == [1, 0]
    assert batch.ip.tolist() == [0x401000, 0x403000]


def test_one_process_for_samples_that_name_none() -> None:
    """Of two processes that mapped one address, the later mapping counts."""
    maps = "".join(
        f"PERF_RECORD_MMAP2 {pid}/{pid}: [{start:#x}(0x1000) @ 0x1000 00:00 0 0]: r-xp {name}\n"
        for pid, start, name in ((1, 0x5000, "/a"), (2, 0x5000, "/b"), (2, 0x9000, "/a"))
    )
    counts = written(read(maps + " 5010 0x5010/0x9020/P/-/-/1  0x9030/0x5004/P/-/-/1\n"), "counts")
    assert counts.splitlines() == ["R /b 1004 1010 1", "B /a 1030 /b 1004 1 0", "B /b 1010 /a 1020 1 0"]


@pytest.mark.parametrize("size", [1 << 10, 3001, 1 << 14])
def test_blocks_end_anywhere(data: Data, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for name in ("demo_features", "cfl_9700_callgraph_lbr"):
        text = data.golden(name, "perf612-script-brstack.txt.gz")
        whole = written(read(text))
        monkeypatch.setattr(blocks, "BLOCK", size)
        assert written(read(text)) == whole
        assert written(read(text.rstrip("\n"))) == whole
        assert written(read(text.replace("\n", "\r\n"))) == whole
        monkeypatch.undo()


BROKEN = [
    ("0x10/0x2g/P/-/-/1", "0x10/0x2g/P/-/-/1"),
    ("0x10/0x/P/-/-/1", "0x10/0x/P/-/-/1"),
    ("0x1:/0x20/P/-/-/1", "0x1:/0x20/P/-/-/1"),
    ("0x11112222333344445/0x20/P/-/-/1", "/0x20/P/-/-/1"),
    ("0x10/0x20/P/-", "0x10/0x20/P/-"),
    ("0x10/0x20/P/-/-/x", "0x10/0x20/P/-/-/x"),
    ("0x10/0x20", "0x10/0x20"),
]


@pytest.mark.parametrize(("entry", "value"), BROKEN)
def test_a_broken_entry_is_named_and_breaks_its_ranges(entry: str, value: str) -> None:
    good = "0x1000/0x2000/P/-/-/1"
    text = f" 10 {good}  {entry}  {good}\n 10 {good}  {good}\n"
    profile = read(text)
    for _ in range(2):
        (batch,) = profile.batches()
        assert batch["branch_from"].tolist() == [0x1000, 0, 0x1000, 0x1000, 0x1000]
    (damage,) = profile.damage
    assert (damage.field, damage.value) == ("brstack", value.encode())
    assert text.encode()[damage.offset :].startswith(value.encode()[:9])
    assert written(profile, "counts").startswith("R - 2000 ") is False


def test_records_that_cannot_be_read_are_named() -> None:
    bad = "PERF_RECORD_MMAP2 1/1: [0x5000(oops) @ 0 0 0 0]: r-xp /a\n"
    (damage,) = read(" 10 0x10/0x20/P/-/-/1\n" + bad).damage
    assert (damage.offset, damage.field) == (22, "PERF_RECORD")


@pytest.mark.parametrize("text", [b"hello\n", b"1\n2\n3\n", b"x" * 3000, b"\n", b"a,b\n0x1,0x2\n", b"#" * 70000])
def test_other_text_is_no_capture(text: bytes) -> None:
    with pytest.raises(FormatError, match="not a capture that lastbranch can read"):
        read(text)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damaged_text_never_fails(draw: st.DataObject) -> None:
    """Bytes of a text changed, dropped or put in anywhere: no error but one of ours, and both passes agree."""
    text = bytearray(HEADED.encode() * 2 + b" 10 0x10/0x20/P/-/-/1  0xffff/0x30/M/X/A/9/RET/-\n\t400010\n\n")
    for _ in range(draw.draw(st.integers(1, 8))):
        at = draw.draw(st.integers(0, len(text) - 1))
        text[at : at + draw.draw(st.integers(0, 3))] = draw.draw(
            st.sampled_from([b"", b"/", b"0x", b"\n", b" ", b"\xff", b"z" * 40])
        )
    try:
        profile = read(bytes(text))
    except FormatError:
        return
    batches = list(profile.batches())
    assert sum(map(len, batches)) == profile.samples
    assert sum(b.entries for b in batches) == profile.entries
    assert all(np.array_equal(b.depth, np.diff(b.offsets["branch"])) for b in batches)
    written(profile)


def test_the_command_line_reads_it(data: Data, tmp_path: Path) -> None:
    text = tmp_path / "capture.txt"
    text.write_text(HEADED)
    assert run_cli("info", text).code == 0
    assert "cycles:u" in run_cli("report", text).out
    assert run_cli("verify", text).code == 0
    assert run_cli("convert", text, tmp_path / "x.tb5").code == 0
    assert run_cli("export", "--to", "counts", tmp_path / "x.tb5").out == run_cli("export", "--to", "counts", text).out


@pytest.mark.parametrize(
    ("name", "processes"), [("t2b_threads_perf_script.txt", 2), ("t11_comm_tid_ip_sym_brstack.txt", 1)]
)
def test_names_of_threads_that_end_in_numbers(data: Data, name: str, processes: int) -> None:
    """Ten threads with 40 branches each, of two processes or of the only one that has mappings."""
    profile = open_profile(data.root / "asked" / name)
    counted = count_stacks(profile, ranges=False, details=False).branches
    assert int(counted.count[(counted.a == 0x7C0) & (counted.b == 0x7A0)].sum()) == 400
    assert not profile.damage
    threads = {(pid, tid) for pid, tid in profile.seen_threads if pid in (100, 200)}
    assert len(threads) == 10
    assert len({pid for pid, _ in threads}) == processes
    assert {"ET_NET 3", "worker 3", "[ET_NET 0]", "DOM Worker 12"} <= set(profile.timeline.names)


def test_a_number_alone_is_the_process_where_records_say_so() -> None:
    """-F pid and -F tid print the same: records tell which."""
    maps = "".join(
        f"PERF_RECORD_MMAP2 {pid}/{pid}: [0x{pid}000(0x1000) @ 0 0:0 0 0]: r-xp /a/b\n" for pid in (100, 200)
    )

    def sample(number: int) -> str:
        return f"{number:7d}  {0x100010:16x} 0x100010/0x100020/P/-/-/0\n"

    comm = "PERF_RECORD_COMM: x:100/101\nPERF_RECORD_COMM: y:200/202\n"
    processes = read(maps + sample(100) + sample(200))
    threads = read(maps + comm + sample(101) + sample(202))
    for profile, tids in ((processes, [100, 200]), (threads, [101, 202])):
        (batch,) = profile.batches()
        assert (batch.pid.tolist(), batch.tid.tolist()) == ([100, 200], tids)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"])
def test_texts_of_other_encodings(tmp_path: Path, encoding: str) -> None:
    """PowerShell's ``>`` writes UTF-16 with a mark and ends of line of Windows; names may have any letter."""
    text = "".join(
        f"{'café ' + str(n):>16} {n:7d}/{n:<7d} {n:5d}.000000: cycles:  {0x7A0:16x} 0x7c0/0x7a0/P/-/-/0\r\n"
        for n in range(1, 40)
    )
    mark = "\ufeff" if encoding.startswith("utf-16") else ""
    path = tmp_path / "text"
    path.write_bytes((mark + text).encode(encoding))
    profile = open_profile(path)
    assert (profile.samples, profile.entries, profile.damage) == (39, 39, [])
    assert [int(time) for batch in profile.batches() for time in batch.time] == [n * 10**9 for n in range(1, 40)]
    names = set(profile.timeline.names)
    assert names == {f"{'caf?' if mark else 'café'} {n}" for n in range(1, 40)}
