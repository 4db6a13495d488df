"""Access lists on Windows: what a command leaves can be read by whoever could read another program's file there.

CPython (3.11.10, 3.12.4, 3.13 and later) makes of ``os.mkdir(path, 0o700)`` a folder with an access list of its own,
for the system, administrators and the owner. Files in it have that list, and keep it when they are moved out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import etl_builder as eb
from command_line import Ran
from etl_kernel_logs import PAIR, WORLD, lbr, pmc
from lastbranch.model import atomic_output
from lastbranch.symbols import cache
from lastbranch.tbrw import interchange
from windows_fake import fake_windows

NOTHING = (sys.executable, "-S", "-c", "")
LOG = eb.Trace()
for _cpu, _event in [*WORLD, (0, pmc(200, 0x140001010, 420, 6)), (0, lbr(200, 42, 420, 0, PAIR))]:
    LOG.add(_cpu, _event)


class AccessLists:
    """Which folders and files have a list of their own, by the calls that make and move them."""

    def __init__(self) -> None:
        self.own: set[str] = set()
        self._mkdir, self._moves = os.mkdir, {name: getattr(os, name) for name in ("replace", "rename")}

    def mkdir(self, path: Any, mode: int = 0o777, **more: Any) -> None:
        self._mkdir(path, mode, **more)
        if mode == 0o700:
            self.own.add(os.path.abspath(path))

    def move(self, name: str) -> Callable[[Any, Any], None]:
        def moved(one: Any, other: Any) -> None:
            source, target = os.path.abspath(one), os.path.abspath(other)
            self._moves[name](one, other)
            kept = source in self.own or os.path.dirname(source) in self.own
            self.own.discard(target)
            if kept:
                self.own.add(target)

        return moved

    def left(self, folder: Path) -> list[str]:
        """What is in ``folder`` and has a list of its own."""
        return sorted(path.name for path in folder.rglob("*") if str(path) in self.own)


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AccessLists:
    made = AccessLists()  # once `tmp_path` is there, which is made with a list of its own
    monkeypatch.setattr(atomic_output, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(os, "mkdir", made.mkdir)
    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, made.move(name))
    return made


def test_the_fake_sees_what_it_is_for(lists: AccessLists, tmp_path: Path) -> None:
    os.mkdir(tmp_path / "private", 0o700)
    for name in ("a", "b"):
        (tmp_path / "private" / name).touch()
    os.replace(tmp_path / "private" / "a", tmp_path / "a")
    os.rename(tmp_path / "a", tmp_path / "c")
    assert lists.left(tmp_path) == ["c", "private"]


@pytest.mark.parametrize("name", ["x.etl", "x.tb5", "x"])
def test_recordings(lists: AccessLists, run: Callable[..., Ran], tmp_path: Path, name: str) -> None:
    with fake_windows(bytes(LOG)):
        assert run("record", "-o", tmp_path / name, "--filter", "user,kernel,any", "--", *NOTHING).code == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert lists.left(tmp_path) == []


def test_a_recording_that_cannot_be_converted(lists: AccessLists, run: Callable[..., Ran], tmp_path: Path) -> None:
    with fake_windows(b"no trace log"):
        assert run("record", "-o", tmp_path / "x.tb5", "--", *NOTHING).code == 125
    assert len(list(tmp_path.iterdir())) == 1
    assert lists.left(tmp_path) == []


def test_outputs_of_other_verbs(lists: AccessLists, run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "x.etl").write_bytes(bytes(LOG))
    for words in (
        ("convert", "x.etl", "y.etl"),
        ("convert", "x.etl", "x.tb5"),
        ("session", "merge", "--no-images", "x.etl", "z.etl"),
    ):
        done = run(*(tmp_path / word if "." in word else word for word in words))
        assert done.code == 0, (words, done.err)
    interchange.save_exchange(str(tmp_path / "x.tb5"), str(tmp_path / "x.dat"))
    interchange.load_exchange(str(tmp_path / "x.dat"), str(tmp_path / "back.tb5"))
    assert {"back.tb5", "x.dat", "x.etl", "x.tb5", "y.etl", "z.etl"} <= {path.name for path in tmp_path.iterdir()}
    assert lists.left(tmp_path) == []


def test_the_cache_is_whoever_s_the_folder_is(lists: AccessLists, tmp_path: Path) -> None:
    """What an elevated prompt makes is the administrators': with a list of its own, its user could not use it."""
    with pytest.raises(cache.CacheRefused):  # the check of Unix's modes, which Windows does not have
        cache.open_cache(str(tmp_path / "cache"))
    assert lists.left(tmp_path) == []
