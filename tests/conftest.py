"""Fixtures of all tests: the folder of captures, the demo's binaries, and the command line to run."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from captures import Data
from command_line import Ran, run_cli

os.environ["LASTBRANCH_TRACEBACK"] = "1"
"""Also of programs that tests start: `Traceback` in what they print is an error that nobody foresaw."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    """A job in the background has it ignored, and so would have the programs that tests interrupt."""

pytest.register_assert_rewrite(
    "etw_world", "etw_cases_properties", "etw_cases_files", "etw_cases_query", "etw_cases_lbr"
)

_FEW = 30
hypothesis.settings.register_profile(
    "steady",
    max_examples=_FEW,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "any", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("steady")
"""The same examples in each run, without a deadline: no run fails by chance. `make fuzz` draws new examples, and all
that a test names, with the profile ``any``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A property is shown by a third of the examples that its test names; `make fuzz` draws all of them."""
    if hypothesis.settings.get_current_profile_name() != "steady":
        return
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if item.get_closest_marker("hypothesis") is not None and hasattr(test, _SETTINGS):
            found = getattr(test, _SETTINGS)
            if found.max_examples > _FEW:
                setattr(test, _SETTINGS, hypothesis.settings(found, max_examples=max(_FEW, found.max_examples // 3)))


_SETTINGS = "_hypothesis_internal_use_settings"


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


# -- the chain of records, for tests that cut it
