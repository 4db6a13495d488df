"""The cache of names: private, whole or absent, bounded, and safe beside other writers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lastbranch.symbols import Function, FunctionTable, Names
from lastbranch.symbols.cache import Cache, CacheRefused, open_cache

KEY = ["elf", "00ff", "auto", [["a.so", 1, 2, 3]]]
ADDRESS = np.array([3, 5, 9], np.uint64)


def names(word: str = "f") -> Names:
    return Names.of_functions(np.array([0, -1, 0]), [Function(word, word, 2, 8)])


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = open_cache(str(tmp_path / "a" / "symbols"))
    assert made is not None
    return made


def test_what_was_kept_is_there(cache: Cache) -> None:
    assert cache.names(KEY) is None
    cache.keep_names(KEY, ADDRESS, names())
    found = Cache(cache.folder).names(KEY)
    assert found is not None
    assert found[0].tolist() == ADDRESS.tolist()
    assert [len(found[1].frames(i)) for i in range(3)] == [1, 0, 1]
    assert cache.names([*KEY, "another version"]) is None
    cache.keep_functions(KEY, FunctionTable(ADDRESS[:1], ADDRESS[1:2], [Function("f", "f", 3, 2)]))
    table = cache.functions(KEY)
    assert table is not None
    assert table.functions == [Function("f", "f", 3, 2)]
    assert not cache.remembers(["crc", 7])
    cache.remember(["crc", 7])
    assert cache.remembers(["crc", 7])


def test_the_folder_is_private(cache: Cache) -> None:
    assert os.stat(cache.folder).st_mode & 0o777 == 0o700
    cache.keep_names(KEY, ADDRESS, names())
    assert {os.stat(e.path).st_mode & 0o077 for e in os.scandir(cache.folder)} == {0}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system has no modes")
def test_a_folder_that_others_can_use_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(CacheRefused, match="mode 755"):
        open_cache(str(folder))
    folder.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(CacheRefused, match="not a folder"):
        open_cache(str(link))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(CacheRefused, match="names are not cached"):
        open_cache(str(file))
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
        with pytest.raises(CacheRefused, match="uid 12345"):
            open_cache(str(folder))


def test_any_damaged_byte_makes_a_file_as_good_as_none(cache: Cache) -> None:
    cache.keep_names(KEY, ADDRESS, names())
    path = Path(cache.path(KEY, "names"))
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        assert cache.names(KEY) is None, at
        path.write_bytes(whole[:at])
        assert cache.names(KEY) is None, at
    path.write_bytes(whole)
    assert cache.names(KEY) is not None
    path.unlink()
    os.mkfifo(path)
    assert cache.names(KEY) is None  # and it does not wait for a writer


def test_a_file_under_another_key_is_not_taken(cache: Cache) -> None:
    cache.keep_names(KEY, ADDRESS, names())
    os.rename(cache.path(KEY, "names"), cache.path(["other"], "names"))
    assert cache.names(["other"]) is None


def test_the_size_is_bounded_and_the_least_used_goes_first(tmp_path: Path) -> None:
    probe = Cache(str(tmp_path))
    probe.keep_names([0], ADDRESS, names())
    size = os.path.getsize(probe.path([0], "names"))
    cache = Cache(str(tmp_path), limit=3 * size + size // 2)
    for i in range(1, 3):
        cache.keep_names([i], ADDRESS, names())
    for i in range(3):
        os.utime(cache.path([i], "names"), (1000 + i, 1000 + i))
    assert cache.names([0]) is not None  # is the newest now
    cache.keep_names([3], ADDRESS, names())
    assert [cache.names([i]) is not None for i in range(4)] == [True, False, True, True]
    small = Cache(str(tmp_path), limit=size // 2)
    small.keep_names([4], ADDRESS, names())
    assert small.names([4]) is None


def test_room_is_made_for_whole_files_only(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), limit=100)
    for at, name in enumerate(("old", "new")):
        (tmp_path / name).write_bytes(bytes(40))
        os.utime(tmp_path / name, (1000 + at, 1000 + at))

    def break_off() -> None:
        with cache.new_file(str(tmp_path / "broken off")) as file:
            file.write(bytes(90))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    with pytest.raises(OSError, match="101 bytes"), cache.new_file(str(tmp_path / "too large")) as file:
        file.write(bytes(101))
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]
    with cache.new_file(str(tmp_path / "whole")) as file:
        file.write(bytes(60))
        assert sorted(os.listdir(tmp_path)) == sorted([os.path.basename(file.name), "new", "old"])
    assert sorted(os.listdir(tmp_path)) == ["new", "whole"]


def test_writers_beside_each_other_leave_whole_files(cache: Cache) -> None:
    program = """
import sys
import numpy as np
from lastbranch.symbols import Function, Names
from lastbranch.symbols.cache import Cache
cache = Cache(sys.argv[1])
address = np.arange(1, 2000, dtype=np.uint64)
for turn in range(30):
    word = sys.argv[2] * 50
    cache.keep_names("key", address, Names.of_functions(np.zeros(len(address), np.int64), [Function(word, word)]))
    found = cache.names("key")
    assert found is not None and found[1].functions[0].name in ("a" * 50, "b" * 50), found
"""
    running = [
        subprocess.Popen([sys.executable, "-c", program, cache.folder, w], stderr=subprocess.PIPE) for w in ("a", "b")
    ]
    for process in running:
        assert process.communicate(timeout=60)[1] == b""
        assert process.returncode == 0
    assert [e.name for e in os.scandir(cache.folder) if e.name.endswith(".new")] == []
