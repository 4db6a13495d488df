"""What tests of captures share: the data folder, the demo's binaries, and the command line to run."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import struct
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
import zstandard

os.environ["LASTBRANCH_TRACEBACK"] = "1"
"""Also of programs that tests start: `Traceback` in what they print is an error that nobody foresaw."""

pytest.register_assert_rewrite(
    "etw_world", "etw_cases_properties", "etw_cases_files", "etw_cases_query", "etw_cases_lbr"
)

hypothesis.settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("steady")
"""What is drawn and how long it takes decides of no run: others are drawn by `pytest --hypothesis-profile default`."""

CRASHED = 70
REAL = (
    "amd_zen4_lbrextv2_spec", "arm_etm_inject_hwindex", "arm_etm_inject_kernel_64deep", "cfl_9700_callgraph_lbr",
    "hsw_5820k_16deep_attr136", "simpleperf_16deep_mmap1", "simpleperf_32deep_lbrloop", "skl_m7_32deep_branch-4.14",
    "skx_6154_32deep_pie", "skx_8173m_32deep_pie_user", "snb_callchain_and_branch-3.4",
    "snb_raw_callchain_branch-3.4", "wsm_x5660_16deep",
)  # fmt: skip
SYNTHETIC = ("demo_pie", "demo_2proc", "demo_hwidx", "demo_features", "lldlayout/demo_pie")
FORMS: dict[str, dict[str, Any]] = {
    f"{'big ' * big}{'pipe' if pipe else 'file'}{f' zstd{z}' * bool(z)}": {"big": big, "pipe": pipe, "compress": z}
    for big in (False, True) for pipe in (False, True) for z in (0, 81, 83)
}  # fmt: skip
"""How a capture can be written: name -> arguments of `perfdata_writer.encode`."""


@dataclass
class Data:
    """The captures that tests may read, and what other programs said of them (SOURCES.md there)."""

    root: Path

    def path(self, name: str) -> Path:
        """The capture called ``name``, one of `REAL` or `SYNTHETIC`."""
        return self.root / f"{name}.perf.data" if name in REAL else self.root / "synthetic" / f"{name}.data"

    def golden(self, name: str, suffix: str) -> str:
        """The stored text ``suffix`` about capture ``name``."""
        stem = name if name in REAL else "synthetic_" + name.replace("lldlayout/demo_pie", "lldlayout")
        path = self.root / "golden" / f"{stem}.{suffix}"
        return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


@dataclass
class Ran:
    """A finished run of the command line."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()


@pytest.fixture(scope="session")
def data() -> Data:
    if "LASTBRANCH_DATA" not in os.environ:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    return Data(Path(os.environ["LASTBRANCH_DATA"]) / "perf")


@pytest.fixture
def symfs(data: Data, tmp_path: Path) -> Callable[[str], Path]:
    """``symfs(name)``: a folder that holds the binaries of synthetic capture ``name`` at their recorded paths."""

    def lay(name: str) -> Path:
        folder = tmp_path / "symfs" / name / "opt" / "lbrdemo"
        folder.mkdir(parents=True, exist_ok=True)
        for binary in ("lbrdemo", "liblbrdemo.so"):
            shutil.copyfile(data.path(name).parent / binary, folder / binary)
        return folder.parents[1]

    return lay


@pytest.fixture(scope="session")
def run() -> Callable[..., Ran]:
    """``run("info", path)``: the command line in this process; ``alone=True``: in a process of its own."""
    return run_cli


def run_cli(*args: str | Path, stdin: bytes = b"", alone: bool = False, env: dict[str, str] | None = None) -> Ran:
    """Anything but an exit is the test's failure, and so is the exit of an error that nobody foresaw."""
    words = [str(a) for a in args]
    if alone:
        command = [sys.executable, "-m", "lastbranch", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=120, env={**os.environ, **(env or {})})
        assert done.returncode != CRASHED, done.stderr.decode(errors="replace")
        return Ran(done.returncode, done.stdout, done.stderr.decode(errors="replace"))
    from lastbranch.cli import main

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n"), io.StringIO()
    given = io.TextIOWrapper(io.BytesIO(stdin))
    patches = mock.patch.object(sys, "argv", ["lastbranch", *words]), mock.patch.object(sys, "stdin", given)
    with patches[0], patches[1], redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main()
    out.flush()
    code = end.value.code
    assert code is None or isinstance(code, int), code
    assert code != CRASHED, err.getvalue()
    assert isinstance(out.buffer, io.BytesIO)
    return Ran(code or 0, out.buffer.getvalue(), err.getvalue())


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Makes a hang a failure (where the system has SIGALRM)."""
    import signal

    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(_number: int, _frame: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- the chain of records, for tests that cut it


def records_of(data: bytes) -> tuple[int, list[tuple[int, int, int]]]:
    """(end of the records, (start, end, type) of each); an AUXTRACE record ends behind its data."""
    order = "<" if data[:8] == b"PERFILE2" else ">"
    (size,) = struct.unpack_from(order + "Q", data, 8)
    at, end = 16, len(data)
    if size != 16:
        at, length = struct.unpack_from(order + "2Q", data, 0x28)
        end = at + length
    out = []
    while at < end:
        kind, _, length = struct.unpack_from(order + "IHH", data, at)
        behind = struct.unpack_from(order + "Q", data, at + 8)[0] if kind == 71 else 0
        out.append((at, at + length + behind, kind))
        at += length + behind
    return end, out


class Whole:
    """An intact file, and how many samples stand whole before each of its bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.end, records = records_of(data)
        self.ends, self.samples = [0], [0]
        order = "<" if data[:8] == b"PERFILE2" else ">"
        stream, text, at, seen = zstandard.ZstdDecompressor().decompressobj(), b"", 0, 0
        for start, end, kind in records:
            if kind in (81, 83):
                body = data[start + 8 : end]
                if kind == 83:
                    (length,) = struct.unpack_from(order + "Q", body)
                    body = body[8 : 8 + length]
                text += stream.decompress(body)
                while at + 8 <= len(text):
                    inner, _, size = struct.unpack_from(order + "IHH", text, at)
                    if at + size > len(text):
                        break
                    seen, at = seen + (inner == 9), at + size
            self.ends.append(end)
            self.samples.append(self.samples[-1] + (kind == 9) + seen)
            seen = 0
        self.borders = {16, *self.ends}
        self.used = self.end
        """Where its last byte stands that means anything."""
        if struct.unpack_from(order + "Q", data, 8)[0] != 16:
            number = sum(word.bit_count() for word in struct.unpack_from(order + "4Q", data, 0x48))
            sections = [struct.unpack_from(order + "2Q", data, self.end + 16 * i) for i in range(number)]
            self.used = max([self.end + 16 * number, *(at + size for at, size in sections)])

    def before(self, cut: int) -> int:
        """Samples in whole records before byte ``cut``."""
        return self.samples[bisect_right(self.ends, cut) - 1]
