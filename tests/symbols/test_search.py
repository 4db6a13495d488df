"""Where symbol files are looked for, by what they are known, and which paths are not followed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from command_line import time_limit
from hostile_server import ANSWERS, hostile_server
from lastbranch.binaries import read_image
from lastbranch.binaries.files import below, is_remote, open_regular
from lastbranch.binaries.pdb import pdb_identity
from lastbranch.errors import FormatError
from lastbranch.model import BytesSource, Change, Module, ModuleKind, Profile, Segment
from lastbranch.symbols import SymbolOptions, debuginfod
from lastbranch.symbols.cache import Cache, open_cache
from lastbranch.symbols.search import Found, Search, find_files

GUID = UUID("00112233-4455-6677-8899-aabbccddeeff")
SOURCE = """
int work(int x) { return x * 3; }
int main(int count, char **words) { volatile int s = 0; for (int i = 0; i < count; i++) s += work(i); return s & 1; }
"""

needs_gcc = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("objcopy")), reason="no gcc with binutils")


class Built:
    """A program, its stripped copy and the debug file between them."""

    def __init__(self, folder: Path, *flags: str, compiler: str = "gcc") -> None:
        folder.mkdir()
        self.source, self.whole = folder / "t.c", folder / "whole"
        self.debug, self.stripped = folder / "prog.debug", folder / "prog"
        self.source.write_text(SOURCE)
        _run(compiler, "-g", "-O1", "-Wl,--build-id", *flags, str(self.source), "-o", str(self.whole))
        _run("objcopy", "--only-keep-debug", str(self.whole), str(self.debug))
        _run("objcopy", "--strip-all", "--add-gnu-debuglink", str(self.debug), str(self.whole), str(self.stripped))
        self.image = read_image(BytesSource(self.whole.read_bytes()))
        self.build_id = self.image.build_id or b""

    def symbol(self, name: str) -> int:
        """Link address, by nm."""
        lines = subprocess.run(["nm", str(self.whole)], capture_output=True, text=True, check=True).stdout.splitlines()
        return next(int(line.split()[0], 16) for line in lines if line.split()[-1] == name)

    def module(self, binary: Path | None = None, name: str = "/app/prog") -> Module:
        if binary is None:
            return Module(name, build_id=self.build_id, missing="not found")
        segments = tuple(Segment(s.vaddr, s.offset, s.file_size, bool(s.flags & 1)) for s in self.image.segments)
        return Module(name, build_id=self.build_id, segments=segments, binary=str(binary))

    def profile(self, module: Module) -> Profile:
        """With the module mapped as the kernel maps it: its code by whole pages."""
        profile = Profile("p", "perf.data", modules=[module])
        for s in self.image.executable_segments:
            start, end = s.vaddr & ~0xFFF, -(-(s.vaddr + s.memory_size) // 4096) * 4096
            base = 0x555500000000
            profile.timeline.add(
                Change.MAP, 1, 7, module=0, start=base + start, end=base + end, offset=s.offset & ~0xFFF
            )
        return profile


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if not (shutil.which("gcc") and shutil.which("objcopy")):
        pytest.skip("no gcc with binutils")
    return Built(tmp_path_factory.mktemp("built") / "gcc", "-pie", "-fPIE")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = open_cache(str(tmp_path / "cache"))
    assert made is not None
    return made


def by_build_id(root: Path, file: Path, build_id: bytes, end: str = ".debug") -> Path:
    word = build_id.hex()
    path = root / ".build-id" / word[:2] / (word[2:] + end)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, path)
    return path


def find(profile: Profile, *roots: Path, cache: Cache | None = None, debuginfod: bool = False) -> Found:
    options = SymbolOptions(debug_dirs=tuple(map(str, roots)), debuginfod=debuginfod, cache=None)
    return find_files(Search(profile, options, cache), 0)


# -- ELF with its binary


def test_a_binary_with_everything_needs_nothing_else(built: Built) -> None:
    found = find(built.profile(built.module(built.whole)))
    assert found.files is not None
    assert (found.files.binary, found.files.debug, found.why) == (str(built.whole), None, "")
    assert found.addresses.identical


def test_a_debug_link_is_followed_beside_the_binary(built: Built) -> None:
    found = find(built.profile(built.module(built.stripped)))
    assert found.files is not None
    assert (found.files.debug, found.why) == (str(built.debug), "")


@pytest.mark.parametrize("where", [".debug/prog.debug", "root/app/prog.debug", "root{folder}/prog.debug"])
def test_a_debug_link_is_followed_where_gdb_does(built: Built, tmp_path: Path, where: str) -> None:
    binary = tmp_path / "prog"
    shutil.copyfile(built.stripped, binary)
    path = Path(f"{tmp_path}/{where.format(folder=tmp_path)}")
    path.parent.mkdir(parents=True)
    shutil.copyfile(built.debug, path)
    found = find(built.profile(built.module(binary)), tmp_path / "root")
    assert found.files is not None
    assert found.files.debug == str(path)


def test_a_debug_link_to_another_file_is_refused(built: Built, tmp_path: Path, cache: Cache) -> None:
    binary, debug = tmp_path / "prog", tmp_path / "prog.debug"
    shutil.copyfile(built.stripped, binary)
    data = bytearray(built.debug.read_bytes())
    data[-1] ^= 1
    debug.write_bytes(data)
    found = find(built.profile(built.module(binary)), cache=cache)
    assert found.files is not None
    assert found.files.debug is None
    assert "prog.debug has another CRC than the debug link says" in found.why
    assert "stripped" in found.why
    shutil.copyfile(built.debug, debug)
    for _ in range(2):  # the second time from what the cache remembers
        again = find(built.profile(built.module(binary)), cache=cache)
        assert again.files is not None
        assert again.files.debug == str(debug)


def test_the_crc_is_that_of_the_link() -> None:
    """CRC-32 as .gnu_debuglink has it is zlib's (GDB manual, 18.3)."""
    assert zlib.crc32(b"123456789") == 0xCBF43926


def test_a_build_id_directory_comes_first(built: Built, tmp_path: Path) -> None:
    path = by_build_id(tmp_path, built.debug, built.build_id)
    found = find(built.profile(built.module(built.stripped)), tmp_path)
    assert found.files is not None
    assert found.files.debug == str(path)


def test_another_build_is_not_used_and_named(built: Built, tmp_path: Path) -> None:
    other = Built(tmp_path / "other", "-DOTHER", "-O2")
    path = by_build_id(tmp_path, other.debug, built.build_id)
    found = find(built.profile(built.module(None)), tmp_path)
    assert found.files is None
    assert str(path) in found.why
    assert "another build id" in found.why


def test_a_binary_that_changed_since_is_not_used(built: Built, tmp_path: Path) -> None:
    other = Built(tmp_path / "other", "-O2")
    found = find(built.profile(built.module(other.whole)))
    assert found.files is None
    assert "changed" in found.why


def test_without_debug_information_the_user_is_told(built: Built, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    _run("objcopy", "--strip-debug", str(built.whole), str(bare))
    assert "no lines" in find(built.profile(built.module(bare))).why


def test_packages_and_folders_of_split_dwarf(built: Built, tmp_path: Path) -> None:
    binary = tmp_path / "prog"
    shutil.copyfile(built.whole, binary)
    (tmp_path / "prog.dwp").write_bytes(b"")
    found = find(built.profile(built.module(binary)), tmp_path / "more")
    assert found.files is not None
    assert found.files.dwp == str(tmp_path / "prog.dwp")
    assert found.files.dwo == (str(tmp_path), str(tmp_path / "more"))


# -- ELF without its binary


LINKED = {
    "gcc": (("-pie", "-fPIE"), "gcc"),
    "fixed": (("-no-pie",), "gcc"),
    "one segment": (("-pie", "-fPIE", "-Wl,-z,noseparate-code"), "gcc"),
    "lld": (("-fuse-ld=lld",), "clang-19"),
}


@pytest.mark.parametrize("how", LINKED)
@pytest.mark.parametrize("whole", [False, True])
def test_file_offsets_become_link_addresses_by_the_debug_file(tmp_path: Path, how: str, whole: bool) -> None:
    flags, compiler = LINKED[how]
    if not (shutil.which(compiler) and shutil.which("objcopy")) or (how == "lld" and not shutil.which("ld.lld-19")):
        pytest.skip(f"no {compiler}")
    built = Built(tmp_path / "b", *flags, compiler=compiler)
    by_build_id(tmp_path, built.whole if whole else built.debug, built.build_id, "" if whole else ".debug")
    found = find(built.profile(built.module()), tmp_path)
    assert found.files is not None, found.why
    link = built.symbol("work")
    (code,) = built.image.executable_segments
    offset = np.array([link - code.vaddr + code.offset, 1 << 40], np.uint64)
    there, known = found.addresses.to_file(offset)
    assert known.tolist() == [True, False]
    assert there[0] == link
    back, known = found.addresses.to_module(there[:1])
    assert back.tolist() == offset[:1].tolist()
    assert known.tolist() == [True]


def test_without_a_recorded_build_id_nothing_is_guessed(built: Built, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    shutil.copyfile(built.whole, tmp_path / "app" / "prog")
    assert find(built.profile(built.module()), tmp_path).files is not None
    found = find(built.profile(Module("/app/prog")), tmp_path)
    assert found.files is None
    assert "no build id" in found.why


# -- paths that somebody else wrote


@pytest.mark.parametrize(
    "name",
    [
        "/app/../../secret",
        "/app/folder/../prog",
        "/app/link",
        "/app/fifo",
        "/app/folder",
        "//server/share/prog",
        r"\\server\share\prog",
        "/",
        "",
        "/app/prog\0x",
    ],
)
def test_names_from_captures_do_not_leave_their_root(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "app" / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (root / "app" / "prog").write_text("x")
    (root / "app" / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "app" / "fifo")
    assert below(str(root), name) is None


def test_names_within_their_root_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_text("x")
    (tmp_path / "a" / "inside").symlink_to("f")
    assert below(str(tmp_path), "/a/f") == str(tmp_path / "a" / "f")
    assert below(str(tmp_path), "a/inside") == str(tmp_path / "a" / "f")
    assert below(str(tmp_path), "C:\\a\\f") == str(tmp_path / "a" / "f")
    assert below("//server/share", "f") is None
    assert is_remote(r"\\.\pipe\x")


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    for bad in (tmp_path / "fifo", tmp_path, "/dev/null", "/dev/tty", "//host/file", "a\0b"):
        with pytest.raises(OSError):  # noqa: PT011  which one the system decides
            os.close(open_regular(str(bad)))
    os.close(open_regular(str(tmp_path / "link")))
    with pytest.raises(OSError):  # noqa: PT011
        open_regular(str(tmp_path / "link"), links=False)


# -- debuginfod


@pytest.fixture
def server(built: Built, monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    """Serves the debug file of ``built``, and other things under ids that begin with 00."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.asked.append(self.path)  # type: ignore[attr-defined]
            _, _, word, kind = self.path.split("/")
            if word.startswith("02"):
                self.send_response(302)
                self.send_header("Location", "ftp://127.0.0.1:1/file")
                self.end_headers()
                return
            data = built.debug.read_bytes() if kind == "debuginfo" else built.stripped.read_bytes()
            known = word == built.build_id.hex() or word.startswith("0")
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(data) + word.startswith("01") if known else 0))
            self.end_headers()
            if known:
                self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    made = HTTPServer(("127.0.0.1", 0), Answer)
    made.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("DEBUGINFOD_URLS", f"http://127.0.0.1:{made.server_port}/")
    monkeypatch.setenv("no_proxy", "*")
    yield made
    made.shutdown()
    made.server_close()


def test_debuginfod_is_asked_only_if_wanted(built: Built, tmp_path: Path, cache: Cache, server: HTTPServer) -> None:
    binary = tmp_path / "alone"
    shutil.copyfile(built.stripped, binary)
    profile = built.profile(built.module(binary))
    found = find(profile, cache=cache)
    assert found.files is not None
    assert found.files.debug is None
    assert server.asked == []  # type: ignore[attr-defined]
    for _ in range(2):
        found = find(profile, cache=cache, debuginfod=True)
        assert found.files is not None
        assert found.files.debug is not None
        assert Path(found.files.debug).read_bytes() == built.debug.read_bytes()
    assert len(server.asked) == 1  # type: ignore[attr-defined]


def test_debuginfod_gives_binaries_too(built: Built, cache: Cache, server: HTTPServer) -> None:
    found = find(built.profile(built.module()), cache=cache, debuginfod=True)
    assert found.files is not None, found.why
    assert Path(found.files.binary).read_bytes() == built.stripped.read_bytes()
    assert found.files.debug is not None
    link = built.symbol("work")
    assert found.addresses.to_file(np.array([link], np.uint64))[0].tolist() == [link]


@pytest.mark.parametrize(
    ("build_id", "says"),
    [
        ("00" * 20, "another build id"),
        ("01" * 20, "bytes arrived"),
        ("02" * 20, "redirected"),
        ("aa" * 20, "not found"),
    ],
)
def test_what_servers_send_is_checked(built: Built, cache: Cache, server: HTTPServer, build_id: str, says: str) -> None:
    profile = built.profile(Module("/app/prog", build_id=bytes.fromhex(build_id), missing="not found"))
    found = find(profile, cache=cache, debuginfod=True)
    assert found.files is None
    assert says in found.why
    assert os.listdir(os.path.join(cache.folder, "debuginfod")) == []


@pytest.mark.parametrize("name", ANSWERS)
def test_hostile_answers_cost_their_file_only(
    name: str, built: Built, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a server sends and however slowly, there is an end, a reason, nothing that stays, and nothing that
    goes: what fills the cache makes room for no file that was only announced, or is another."""
    monkeypatch.setattr(debuginfod, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(debuginfod, "ANSWER_SECONDS", 1.5)
    monkeypatch.setattr(debuginfod, "FILE_SECONDS", 1.5)
    monkeypatch.setattr(debuginfod, "SIZE_LIMIT", 4 << 20)
    monkeypatch.setenv("no_proxy", "*")
    profile = built.profile(Module("/app/prog", build_id=bytes.fromhex("07" * 20), missing="not found"))
    body = built.debug.read_bytes()[:1000]
    kept = Path(cache.folder, "debuginfod", "kept.debuginfo")
    kept.parent.mkdir()
    kept.write_bytes(bytes(4 << 20))
    with time_limit(60), hostile_server(ANSWERS[name], body, random.Random(name)) as home:
        monkeypatch.setenv("DEBUGINFOD_URLS", home)
        found = find(profile, cache=cache, debuginfod=True)
    assert found.files is None
    assert "not done after 60" not in found.why
    assert home in found.why or "another build id" in found.why or "is no ELF" in found.why, found.why
    assert os.listdir(kept.parent) == [kept.name]


def test_the_next_server_is_asked_where_one_sends_another_file(
    built: Built, cache: Cache, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hostile_server(ANSWERS["another file"], b"", random.Random(1)) as home:
        monkeypatch.setenv("DEBUGINFOD_URLS", f"{home} {os.environ['DEBUGINFOD_URLS']}")
        found = find(built.profile(built.module()), cache=cache, debuginfod=True)
    assert found.files is not None, found.why
    assert Path(found.files.binary).read_bytes() == built.stripped.read_bytes()


def test_only_http_is_asked(built: Built, cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEBUGINFOD_URLS", f"file://{tmp_path} ftp://127.0.0.1 http://127.0.0.1:1")
    found = find(built.profile(built.module()), cache=cache, debuginfod=True)
    assert found.files is None
    assert "not an HTTP address" in found.why


# -- PE and PDB


def pdb(guid: UUID = GUID, age: int = 3, dbi_age: int | None = None, block: int = 512) -> bytes:
    """A PDB with a PDB stream and a DBI stream (LLVM, docs/PDB/MsfFile)."""
    info = (20000404).to_bytes(4, "little") + bytes(4) + age.to_bytes(4, "little") + guid.bytes_le
    dbi = b"\xff" * 4 + bytes(4) + (age if dbi_age is None else dbi_age).to_bytes(4, "little")
    words = [4, 0, len(info), 0xFFFFFFFF, len(dbi), 5, 6]  # streams, their sizes, their blocks
    directory = b"".join(w.to_bytes(4, "little") for w in words)
    head = b"Microsoft C/C++ MSF 7.00\r\n\x1aDS\0\0\0"
    head += b"".join(w.to_bytes(4, "little") for w in (block, 1, 7, len(directory), 0, 3))
    blocks = [head, b"", b"", (4).to_bytes(4, "little"), directory, info, dbi]
    return b"".join(b.ljust(block, b"\0") for b in blocks)


def windows(**fields: object) -> Profile:
    known = {"pdb_guid": GUID, "pdb_age": 3, "pdb_name": r"D:\build\App.pdb", **fields}
    return Profile("p", "etl", modules=[Module(r"C:\Program Files\App.exe", ModuleKind.FILE, **known)])  # type: ignore[arg-type]


def find_windows(profile: Profile, store: Path) -> Found:
    return find_files(Search(profile, SymbolOptions(symbol_store=(str(store),), cache=None)), 0)


KEY = GUID.hex.upper() + "3"


@pytest.mark.parametrize(
    "where", [f"App.pdb/{KEY}/App.pdb", f"app.PDB/{KEY.lower()}/APP.pdb", "App.pdb", "build/App.pdb"]
)
def test_pdbs_are_found_in_stores(tmp_path: Path, where: str) -> None:
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pdb())
    found = find_windows(windows(), tmp_path)
    assert found.files is not None, found.why
    assert (found.files.kind, found.files.debug, found.identity) == ("pe", str(path), KEY)


@pytest.mark.parametrize("bad", [pdb(age=2), pdb(GUID, 9, 9), pdb(UUID(int=5)), b"BSJB", pdb()[:600], b"\xff" * 4096])
def test_another_pdb_is_not_used_and_named(tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "App.pdb").write_bytes(bad)
    found = find_windows(windows(), tmp_path)
    assert found.files is None
    assert "App.pdb" in found.why.partition(";")[2]


def test_the_age_is_that_of_the_program(tmp_path: Path) -> None:
    """A tool that adds to a PDB raises the age in its PDB stream; the DBI stream keeps the linker's."""
    (tmp_path / "App.pdb").write_bytes(pdb(age=7, dbi_age=3))
    assert find_windows(windows(), tmp_path).files is not None


def test_compressed_stores_are_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "App.pdb" / KEY / "App.pd_"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"MSCF")
    assert "expand" in find_windows(windows(), tmp_path).why


def test_names_of_pdbs_do_not_lead_out_of_a_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "App.pdb").write_bytes(pdb())
    for name in (r"..\App.pdb", "../App.pdb", rf"\\server\{tmp_path}\App.pdb", str(tmp_path / "App.pdb"), ".."):
        assert find_windows(windows(pdb_name=name), store).files is None, name


@pytest.mark.parametrize("block", [1 << bits for bits in range(9, 17)])
def test_blocks_of_every_size(block: int, tmp_path: Path) -> None:
    """Linkers write larger blocks than the documentation has where a PDB is large; what names functions reads them."""
    store = tmp_path / "App.pdb" / KEY
    store.mkdir(parents=True)
    (store / "App.pdb").write_bytes(pdb(age=9, dbi_age=3, block=block))
    found = find_windows(windows(), tmp_path)
    assert found.files is not None, found.why
    assert found.files.debug == str(store / "App.pdb")


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (32, 256, "BlockSize"),
        (32, 1 << 17, "BlockSize"),
        (32, 0, "BlockSize"),
        (0, 0, "FileMagic"),
        (44, 0x7FFFFFF0, "NumDirectoryBytes"),
        (52, 0x7FFFFFF, "BlockMap"),
    ],
)
def test_a_superblock_that_makes_no_sense(at: int, value: int, said: str) -> None:
    data = bytearray(pdb())
    data[at : at + 4] = value.to_bytes(4, "little")
    with pytest.raises(FormatError, match=said):
        pdb_identity(BytesSource(bytes(data)))


def test_pdbs_of_a_linker(tmp_path: Path) -> None:
    if not (shutil.which("clang-19") and shutil.which("lld-link-19")):
        pytest.skip("no clang-19 with lld-link-19")
    (tmp_path / "a.c").write_text("int mainCRTStartup(void) { return 3; }")
    _run(
        "clang-19",
        "--target=x86_64-pc-windows-msvc",
        "-g",
        "-gcodeview",
        "-c",
        f"{tmp_path}/a.c",
        "-o",
        f"{tmp_path}/a.obj",
    )
    _run("lld-link-19", "/debug", "/subsystem:console", f"/out:{tmp_path}/App.exe", f"{tmp_path}/a.obj")
    image = read_image(BytesSource((tmp_path / "App.exe").read_bytes()))
    said = pdb_identity(BytesSource((tmp_path / "App.pdb").read_bytes()))
    assert said.guid == image.pdb_guid
    assert image.pdb_age in said.ages
    store = tmp_path / "store" / "App.exe" / f"{image.timestamp:08X}{image.image_size:x}"
    store.mkdir(parents=True)
    shutil.copyfile(tmp_path / "App.exe", store / "App.exe")
    known = {"pdb_guid": None, "pdb_age": 0, "pdb_name": "", "timestamp": image.timestamp, "size": image.image_size}
    found = find_windows(windows(**known), tmp_path / "store")
    assert found.files is not None
    assert found.files.binary == str(store / "App.exe")
    shutil.copyfile(tmp_path / "App.pdb", store / "App.pdb")  # beside the binary
    found = find_windows(windows(**known), tmp_path / "store")
    assert found.files is not None
    assert found.files.debug == str(store / "App.pdb")
    wrong = tmp_path / "store" / "App.exe" / f"{image.timestamp:08X}1" / "App.exe"
    wrong.parent.mkdir()
    shutil.copyfile(tmp_path / "App.exe", wrong)
    found = find_windows(windows(**{**known, "size": 1}), tmp_path / "store")
    assert found.files is None
    assert f"{wrong} has another time stamp or size" in found.why
