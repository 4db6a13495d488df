"""Windows captures with their PE files: found by Windows' paths, known by identity, disassembled."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import etl_builder as eb
import lastbranch
from command_line import Ran
from etl_kernel_logs import lbr, pmc, process, thread, wide
from lastbranch.analysis import Namer, annotate, find_functions
from lastbranch.binaries import read_image
from lastbranch.binaries.candidates import windows_parts
from lastbranch.binaries.image import Image
from lastbranch.model import BytesSource, Module, Profile
from lastbranch.opening import attach_binaries, code_of, open_profile
from lastbranch.symbols import Symbolizer, SymbolOptions

GCC = "x86_64-w64-mingw32-gcc"
SOURCE = """
__attribute__((noinline)) int work(int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) { sum = sum * 3 + i; __asm__ volatile(""); }
    return sum;
}
int main(int argc, char **argv) { return work(argc); }
"""
BASE = 0x7FF612340000
PATH = "\\Device\\HarddiskVolume3\\Tools\\App.exe"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, below a folder where the path's letters are of the other case."""
    if not shutil.which(GCC):
        pytest.skip(f"{GCC} is not installed")
    folder = tmp_path_factory.mktemp("windows")
    (folder / "app.c").write_text(SOURCE)
    (folder / "root/tools").mkdir(parents=True)
    binary = folder / "root/tools/APP.EXE"
    subprocess.run([GCC, "-g", "-O1", "-o", binary, folder / "app.c"], check=True)
    return binary


def image_of(path: Path) -> Image:
    return read_image(BytesSource(path.read_bytes(), str(path)))


def back_edge(app: Path) -> tuple[int, int, int]:
    """(start of work, target, source) of its only backward jump, as objdump prints them."""
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", app], capture_output=True, text=True, check=True
    ).stdout
    lines = text.partition("<work>:\n")[2].partition("\n\n")[0].splitlines()
    start = int(lines[0].split(":")[0], 16)
    for parts in (line.replace(":", " ").split() for line in lines):
        if parts[1].startswith("j") and int(parts[2], 16) < int(parts[0], 16):
            return start, int(parts[2], 16), int(parts[0], 16)
    raise AssertionError(text)


def capture(app: Path, folder: Path, *, stamp: int | None = None) -> Path:
    """A trace log in which the loop ran nine times round for each of four entries."""
    image, (_, target, source) = image_of(app), back_edge(app)
    moved = BASE - image.image_base
    fixed = struct.pack("<QQIIIIQ4I", BASE, image.image_size, 42, 1, stamp or image.timestamp, 0, BASE, 0, 0, 0, 0)
    trace = eb.Trace()
    for event in (
        process(3, 100, 42, "app.exe"),
        thread(3, 100, 42, 420),
        eb.system(0x1403, 100, fixed + wide(PATH), version=2),
    ):
        trace.add(0, event)
    for i in range(4):
        trace.add(1, pmc(200 + i * 10, target + moved, 420, 6))
        trace.add(1, lbr(201 + i * 10, 42, 420, 0x0, [(source + moved, target + moved, 1)] * 10))
    path = folder / "made.etl"
    path.write_bytes(bytes(trace))
    return path


def code_is_there(profile: Profile, app: Path) -> None:
    (module,) = profile.modules
    assert Path(module.binary).samefile(app)
    start, target, source = back_edge(app)
    code = code_of(module)
    assert code is not None
    assert code.arch == "x86_64"
    section = next(s for s in image_of(app).sections if s.name == ".text")
    at = section.offset + start - section.vaddr
    assert code.read(start, 16) == app.read_bytes()[at : at + 16]
    table = lastbranch.branches(profile)
    assert (table.from_address.tolist(), table.to_address.tolist()) == ([source], [target])


def test_code_below_symfs_is_annotated(app: Path, tmp_path: Path) -> None:
    profile = open_profile(capture(app, tmp_path), symfs=str(app.parents[1]))
    code_is_there(profile, app)
    _, target, source = back_edge(app)
    with Symbolizer(profile, SymbolOptions(cache=None)) as symbolizer:
        (place,) = find_functions(profile, Namer(profile, symbolizer), "work")
        found = annotate(profile, place)
    assert place.start == back_edge(app)[0]
    blocks = found.flow.blocks
    ran = blocks.count[np.flatnonzero(found.flow.address[blocks.first] == target)]
    assert ran.tolist() == [36]  # nine ranges between ten entries, four times
    assert found.flow.text[found.flow.row_of(np.array([source], np.uint64))[0]].startswith("j")
    assert [loop.iterations for loop in found.loops] == [36]


def test_a_symbol_store_has_code_too(app: Path, tmp_path: Path, run: Callable[..., Ran]) -> None:
    image = image_of(app)
    kept = tmp_path / f"store/app.exe/{image.timestamp:08X}{image.image_size:x}/app.exe"
    kept.parent.mkdir(parents=True)
    shutil.copy(app, kept)
    path = capture(app, tmp_path)
    code_is_there(open_profile(path, folders=[str(tmp_path / "store")]), kept)
    store = str(tmp_path / "store")
    ran = run("annotate", str(path), "work", "--symbol-store", store, "--no-symbol-cache", "--format", "json")
    assert ran.code == 0, ran.err
    assert [loop["iterations"] for loop in json.loads(ran.out)["loops"]] == [36]


def test_another_build_is_not_used(app: Path, tmp_path: Path) -> None:
    profile = open_profile(capture(app, tmp_path, stamp=7), symfs=str(app.parents[1]))
    (module,) = profile.modules
    assert (module.binary, module.segments) == ("", ())
    assert module.missing == "PDB or time stamp differs"
    _, target, _ = back_edge(app)
    assert lastbranch.branches(profile).to_address.tolist() == [target - image_of(app).image_base]


def test_a_module_without_identity_says_what_would_be_one() -> None:
    module = Module(PATH)
    attach_binaries([module], "")
    assert module.missing == "not used: no PDB or time stamp was recorded to identify it"


def test_links_out_of_the_folder_are_not_followed(app: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/Tools").symlink_to(app.parent)
    (module,) = open_profile(capture(app, tmp_path), symfs=str(tmp_path / "root")).modules
    assert (module.binary, module.missing) == ("", "not found")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("C:\\Tools\\app.exe", ["Tools", "app.exe"]),
        ("c:/Tools/app.exe", ["Tools", "app.exe"]),
        ("\\Tools\\app.exe", ["Tools", "app.exe"]),
        ("\\??\\C:\\Tools\\app.exe", ["Tools", "app.exe"]),
        ("\\\\?\\C:\\Tools\\app.exe", ["Tools", "app.exe"]),
        ("\\Device\\HarddiskVolume12\\Tools\\app.exe", ["Tools", "app.exe"]),
        ("\\SystemRoot\\system32\\ntoskrnl.exe", ["Windows", "system32", "ntoskrnl.exe"]),
        ("\\SystemRooted\\x", ["SystemRooted", "x"]),
        ("\\\\server\\share\\app.exe", None),
        ("\\\\?\\UNC\\server\\share\\app.exe", None),
        ("C:\\Tools\\..\\app.exe", None),
        ("C:\\Tools\\.\\app.exe", None),
        ("C:\\Tools\\app.exe:stream", None),
        ("C:\\Tools\\\\app.exe", None),
        ("app.exe", None),
        ("C:app.exe", None),
        ("", None),
    ],
)
def test_windows_paths_below_a_folder(name: str, parts: list[str] | None) -> None:
    assert windows_parts(name) == parts
