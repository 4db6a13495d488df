"""How the compiled library is built, found, refused and done without."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from command_line import Ran
from lastbranch import native
from lastbranch.errors import UnavailableError
from lastbranch.native import build

ROOT = Path(__file__).parents[2]
needs_compiler = pytest.mark.skipif(not build.compiler(), reason="no C compiler")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sources in a folder of their own, which is built instead of the package's."""
    folder = tmp_path / "native"
    shutil.copytree(build.HERE, folder, ignore=shutil.ignore_patterns("_lastbranch.*", "__pycache__"))
    monkeypatch.setattr(build, "HERE", folder)
    for name in ("LASTBRANCH_NATIVE", "LASTBRANCH_NATIVE_BUILD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CFLAGS", "-O0")  # how fast it is matters to no test
    return folder


@needs_compiler
@pytest.mark.parametrize("compiler", ["", "clang", "clang-19"])
def test_all_sources_compile_without_warnings(compiler: str, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the compiler that is in use, and by the one of release wheels: each warns of other things."""
    if compiler and not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    monkeypatch.delenv("CFLAGS")  # some warnings come from optimizing
    if compiler:
        monkeypatch.setenv("CC", compiler)
    made = build.compile_library(copy / f"_lastbranch{native.ENDING}", ["-Werror"])
    loaded, reason = native._load("1", str(made))
    assert loaded is not None, reason


@needs_compiler
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("signatures.py", '"lb_take_runs": "int pointer', '"lb_take_runs": "i64 pointer'),
        ("find_mappings.c", "/*", "/* another meaning */ /*"),
        ("lastbranch.h", "#include <stddef.h>", "#include <stddef.h> // a structure"),
        ("new_kernel.c", "", "int only_here;"),
    ],
)
def test_a_library_of_other_sources_is_refused(file: str, old: str, new: str, copy: Path) -> None:
    path = copy / file
    text = path.read_text() if path.exists() else ""
    assert old in text
    path.write_text(text.replace(old, new, 1))
    made = str(build.build())
    with pytest.warns(RuntimeWarning, match=r"was compiled from other sources .* -m lastbranch.native.build"):
        loaded, reason = native._load("", made)
    assert loaded is None
    assert reason.startswith(f"{made} was compiled from other sources (ABI ")
    with pytest.raises(UnavailableError, match="other sources"):
        native._load("1", made)


@needs_compiler
def test_a_library_compiled_by_other_means_is_refused(copy: Path) -> None:
    made = str(copy / f"_lastbranch{native.ENDING}")
    subprocess.run([*build.compiler(), "-shared", "-fPIC", "-o", made, copy / "abi.c"], check=True)
    with pytest.warns(RuntimeWarning, match="ABI 00000000"):
        assert native._load("", made)[0] is None


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    missing, file = tmp_path / "missing.so", tmp_path / "_lastbranch.so"
    assert native._load("", str(missing)) == (None, f"not compiled ({missing})")
    file.write_bytes(b"no library")
    with pytest.warns(RuntimeWarning, match="NumPy replaces the compiled library"):
        loaded, reason = native._load("", str(file))
    assert loaded is None
    assert "_lastbranch.so" in reason


def test_without_a_compiler(copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stale = copy / "_lastbranch.dll"
    stale.touch()
    monkeypatch.setenv("CC", str(copy / "missing-cc"))
    assert build.build() is None
    assert "missing-cc: No such file" in capsys.readouterr().err
    assert not stale.exists()
    monkeypatch.setenv("LASTBRANCH_NATIVE_BUILD", "require")
    with pytest.raises(build.BuildError, match="missing-cc"):
        build.build()
    monkeypatch.setenv("LASTBRANCH_NATIVE_BUILD", "no")
    assert build.build() is None
    monkeypatch.setenv("LASTBRANCH_NATIVE_BUILD", "perhaps")
    with pytest.raises(build.BuildError, match="auto, require or no"):
        build.build()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CC", "'cc", "CC='cc: No closing quotation"),
        ("CFLAGS", '"-O2', 'CFLAGS="-O2: No closing quotation'),
        ("CC", "true", "true succeeded, but wrote no library"),
        ("CC", "/", "/: Permission denied"),
    ],
)
def test_odd_compilers(
    variable: str,
    value: str,
    message: str,
    copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setenv(variable, value)
    assert build.build() is None
    assert f"lastbranch: {message}; NumPy replaces" in capsys.readouterr().err
    monkeypatch.setenv("LASTBRANCH_NATIVE_BUILD", "require")
    with pytest.raises(build.BuildError, match=re.escape(message)):
        build.build()
    assert not list(copy.glob("_lastbranch*"))


@needs_compiler
@pytest.mark.thorough
def test_empty_variables_are_none(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CFLAGS", "LASTBRANCH_NATIVE_BUILD"):
        monkeypatch.setenv(name, "")
    assert build.build() is not None
    monkeypatch.setenv("CC", " ")
    monkeypatch.setenv("CFLAGS", "-O0")
    assert build.build() is not None


@needs_compiler
def test_errors_of_the_compiler_are_shown(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / "abi.c").write_text("int broken(")
    monkeypatch.setenv("LASTBRANCH_NATIVE_BUILD", "require")
    with pytest.raises(build.BuildError, match="broken"):
        build.build()
    assert not list(copy.glob("_lastbranch*"))


def test_the_switch_of_the_user() -> None:
    for switch, line in (("0", "kernels: NumPy: LASTBRANCH_NATIVE=0"), ("", f"kernels: {native.describe()}")):
        environment = {**os.environ, "LASTBRANCH_NATIVE": switch}
        done = subprocess.run(
            [sys.executable, "-m", "lastbranch", "--version", "-v"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        if switch == "0" or os.environ.get("LASTBRANCH_NATIVE", "") == "":
            assert done.stdout.splitlines()[-1] == line


def test_doctor_shows_which_form_is_in_use(run) -> None:  # type: ignore[no-untyped-def]
    done: Ran = run("doctor", "--format", "csv")
    (row,) = [line for line in done.out.splitlines() if line.startswith("compiled library,")]
    assert row.split(",")[1] == ("no" if native.library() is None else "yes")


@pytest.mark.parametrize("wish", [pytest.param("require", marks=needs_compiler), "no"])
def test_wheels(wish: str, tmp_path: Path) -> None:
    """With the library for this platform and every Python, without it for any platform."""
    pytest.importorskip("hatchling")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("_lastbranch.*", "__pycache__"))
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(words, cwd=source, env={**os.environ, "LASTBRANCH_NATIVE_BUILD": wish, "CFLAGS": "-O0"}, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    libraries = [name for name in zipfile.ZipFile(wheel).namelist() if "/_lastbranch." in name]
    assert wheel.name.endswith("-py3-none-any.whl") == (wish == "no")
    assert len(libraries) == (wish == "require")
