"""The driver of `make fuzz`: it calls each function of the library, and sees what it is for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import fuzz_kernels
from lastbranch import native
from lastbranch.native import build

NOT_FUZZED = {
    "lb_abi": "takes no input",
    "lb_compiler": "takes no input",
    "lb_system_calls": "makes whatever calls the table says",
    "lb_branch_walk": "leads a traced thread over tables of our own (tests/capture/test_walk_parts.py has its parts)",
    "lb_set_watch": "sets a word of our own (tests/capture has attached recordings)",
    "lb_run_ahead": "follows the code of a stopped thread (compare_run_ahead.py has random code and real programs)",
    "lb_ahead_new": "as lb_run_ahead",
    "lb_ahead_free": "as lb_run_ahead",
    "lb_ahead_memory": "as lb_run_ahead, for tests",
    "lb_ahead_vectors": "as lb_run_ahead, for tests",
    "lb_wait_passing": "waits for threads of a program (tests/capture/test_draws.py has many signals)",
    "lb_burst_records": "reads arrays of our own, of what a run found",
    "lb_watch_tracer": "waits for such a word, and sets the priority of a thread of ours",
    "lb_unwind_stack": "reads the memory of a traced thread, on one system (test_unwind_stack.py has any memory)",
}


def test_each_function_is_fuzzed_or_has_a_reason() -> None:
    called = fuzz_kernels.SOURCE.read_text()
    missing = {name for name in native.SIGNATURES if f"{name}(" not in called}
    assert missing == NOT_FUZZED.keys()


def built(folder: Path) -> Path:
    try:
        return fuzz_kernels.build_driver(folder)
    except (OSError, IndexError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no compiler with sanitizers: {error}")


@pytest.mark.parametrize("fault", ["", "past the end", "miscounted"])
def test_faults_are_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "native"
    shutil.copytree(build.HERE, sources, ignore=shutil.ignore_patterns("_lastbranch.*", "__pycache__"))
    kernel = sources / "count_stacks.c"
    right, wrong = {
        "": ("", ""),
        "past the end": ("at_stride(flags, 0, 0)", "at_stride(flags, 8, i + 1 == depth)"),
        "miscounted": ("c->broken += i < ranges;", ""),
    }[fault]
    assert right in kernel.read_text()
    kernel.write_text(kernel.read_text().replace(right, wrong))
    monkeypatch.setattr(build, "HERE", sources)
    monkeypatch.setattr(build, "SANITIZED", [*build.SANITIZED, "-O0"])  # compiled sooner
    monkeypatch.chdir(tmp_path)
    driver = built(tmp_path)
    done = fuzz_kernels.run_driver(driver, "-8", 1, tmp_path)
    failed = tmp_path / "count_stacks.failed"
    assert (done.returncode != 0) == failed.exists() == bool(fault), done.stderr
    if fault:
        again = subprocess.run([driver, "count_stacks", failed], capture_output=True, text=True)
        assert again.returncode != 0
        assert ("AddressSanitizer" if fault == "past the end" else "all ranges are counted") in again.stderr
