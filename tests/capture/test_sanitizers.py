"""Whether a program has LeakSanitizer: what a search of the whole file would say, from a few kilobytes of it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capture_tools import needs_ptrace
from lastbranch.capture import sanitizers, traceable
from lastbranch.capture.sanitizers import file_contains, has_leak_sanitizer

pytestmark = needs_ptrace
ADDRESS, LEAK = "-fsanitize=address", "-fsanitize=leak"
WITH = {"address": [ADDRESS], "address, linked in": [ADDRESS, "-static-libasan"], "leak": [LEAK],
        "leak, linked in": [LEAK, "-static-liblsan"], "leak, static": [LEAK, "-static"]}  # fmt: skip
WITHOUT = {"plain": [], "sysv hash": ["-Wl,--hash-style=sysv"], "static": ["-static"], "static PIE": ["-static-pie"],
           "thread": ["-fsanitize=thread"]}  # fmt: skip
PLAIN = "int main(void) { return 0; }"
OWN = "#include <stddef.h>\nvoid *malloc(size_t n) { return 0; }\n" + PLAIN
TEXT = 'const char *names[] = {"__lsan_do_leak_check", "__asan_init", "libasan.so.8"};\n' + PLAIN


@contextmanager
def opened(path: str | Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def built(folder: Path, source: str, *options: str) -> Path:
    program = folder / "program"
    (folder / "program.c").write_text(source)
    done = subprocess.run(["gcc", *options, "-o", program, folder / "program.c"], capture_output=True)
    if done.returncode:
        pytest.skip(f"gcc cannot: {' '.join(options)}")
    return program


@pytest.mark.parametrize("name", WITH)
def test_programs_with_it(name: str, tmp_path: Path) -> None:
    program = built(tmp_path, PLAIN, *WITH[name])
    for strip in (False, True):
        if strip:
            subprocess.run(["strip", program], check=True)
        with opened(program) as file:
            assert has_leak_sanitizer(file)


@pytest.mark.parametrize("name", WITHOUT)
def test_programs_without_it(name: str, tmp_path: Path) -> None:
    with opened(built(tmp_path, PLAIN, *WITHOUT[name])) as file:
        assert not has_leak_sanitizer(file)


@pytest.mark.parametrize(("source", "searched"), [(PLAIN, False), (TEXT, False), (OWN, True)])
def test_only_a_program_with_its_own_malloc_is_searched(
    source: str, searched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def noted(file: int, words: tuple[bytes, ...]) -> bool:
        calls.append(file)
        return file_contains(file, words)

    monkeypatch.setattr(sanitizers, "file_contains", noted)
    with opened(built(tmp_path, source, "-Wl,--hash-style=gnu")) as file:
        assert not has_leak_sanitizer(file)
        assert calls == [file] * searched


def test_files_that_are_damaged_have_an_answer(tmp_path: Path) -> None:
    whole, draw, path = built(tmp_path, OWN).read_bytes(), random.Random(1), tmp_path / "damaged"
    dynamic = whole.index(b"malloc\0")  # near the tables that matter
    for _ in range(300):
        data = bytearray(whole[: draw.choice([len(whole), draw.randrange(len(whole)), draw.randrange(1024)])])
        for _ in range(draw.randrange(8)):
            at = draw.choice([draw.randrange(64), draw.randrange(1024), dynamic + draw.randrange(-2048, 2048)])
            data[at : at + 1] = bytes([draw.choice([0, 0xFF, draw.randrange(256)])])
        path.write_bytes(data)
        with opened(path) as file:
            assert not has_leak_sanitizer(file)


def test_a_program_is_looked_at_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording executes the same programs again and again."""
    looked: list[int] = []

    def noted(file: int) -> bool:
        looked.append(file)
        return False

    monkeypatch.setattr(traceable, "has_leak_sanitizer", noted)
    program = tmp_path / "cat"
    for _ in range(2):
        program.write_bytes(Path("/bin/cat").read_bytes())
        program.chmod(0o755)
        for _ in range(3):
            with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as running:
                assert traceable.warnings_of(running.pid, str(program)) == []
        program.unlink()
    assert len(looked) == 2


def test_this_interpreter_has_an_answer_as_of_a_search() -> None:
    with opened(sys.executable) as file:
        assert has_leak_sanitizer(file) == file_contains(file, (b"LeakSanitizer does not work under ptrace",))


@pytest.mark.parametrize("before", [0, 100, 0xFFFFC, 0x100000, 0x1FFFFA, 0x200001])
def test_a_word_is_found_wherever_it_is(before: int, tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(bytes(before) + b"needles" + bytes(50))
    with opened(tmp_path / "it") as file:
        assert file_contains(file, (b"other words", b"needles"))
        assert not file_contains(file, (b"needlesx",))
    (tmp_path / "empty").touch()
    with opened(tmp_path / "empty") as file:
        assert not file_contains(file, (b"needles",))
