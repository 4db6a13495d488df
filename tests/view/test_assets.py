"""The built files of the page: the ones that the sources make, and part of what is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from lastbranch import demo
from lastbranch.view import page, single_file
from viewer import loaded, node_modules

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "src" / "lastbranch" / "view" / "assets"


def test_all_that_is_served_is_there_and_nothing_else() -> None:
    assert {path.name for path in ASSETS.iterdir()} == set(page.FILES)


def test_the_assets_are_what_the_sources_make(tmp_path: Path) -> None:
    node_modules()
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=ROOT / "web", check=True, timeout=120)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert [name for name in page.FILES if made.pop(name) != page.asset(name)] == [], "run `make web`"
    assert made == {}


def test_the_sources_are_well_typed() -> None:
    compiler = node_modules() / ".bin" / "tsc"
    done = subprocess.run([compiler, "--noEmit"], cwd=ROOT / "web", capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_the_page_computes() -> None:
    """The unit tests in web/test: the wire format, numbers as text, flame graphs, the arithmetic of time charts."""
    node_modules()
    done = subprocess.run(["node", "test/run.mjs"], cwd=ROOT / "web", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n# fail 0\n" in done.stdout


def test_the_page_names_no_other_place() -> None:
    for name in ("index.html", "app.css", "app.js"):
        addresses = set(re.findall(rb"https?://[^\s\"'`)]+", page.asset(name)))
        assert addresses <= {
            b"http://www.w3.org/2000/svg",
            b"http://www.w3.org/1998/Math/MathML",
            b"http://www.w3.org/1999/xhtml",
        }


def test_packages_are_pinned_and_no_registry_is_named() -> None:
    declared = json.loads((ROOT / "web" / "package.json").read_text())
    versions = [*declared["dependencies"].values(), *declared["devDependencies"].values()]
    assert [version for version in versions if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
    assert "resolved" not in (ROOT / "web" / "package-lock.json").read_text()


def test_each_package_in_the_bundle_has_its_licence() -> None:
    declared = json.loads((ROOT / "web" / "package.json").read_text())
    text = page.asset("licences.txt").decode()
    assert [name for name, version in declared["dependencies"].items() if f"{name} {version}, " not in text] == []


def test_what_is_inside_a_package_has_its_whole_licence() -> None:
    """Graphviz and Expat are compiled into the code of one."""
    text = page.asset("licences.txt").decode()
    modules = node_modules()
    script = "import { Graphviz } from '@hpcc-js/wasm-graphviz'; console.log((await Graphviz.load()).version())"
    command = ["node", "--input-type=module", "-e", script]
    version = subprocess.run(command, cwd=modules.parent, capture_output=True, text=True, check=True).stdout.strip()
    held = dict(re.findall(r"^It holds (\w+).*, (\S+)$", text, re.MULTILINE))
    assert f"It holds Graphviz {version}, " in text
    assert held == {"Graphviz": "EPL-2.0", "Expat": "MIT", "Emscripten": "MIT", "fzstd": "MIT"}
    assert all(part in text for part in ("1. DEFINITIONS", "7. GENERAL", "Exhibit A"))
    assert text.count("Permission is hereby granted") == 3 + sum(", MIT\n" in one for one in text.split("----")[1:])
    assert f'id="licences.txt">{text}</script>'.encode() in single_file.single_file(loaded(demo.capture()), {})


def test_sdist_and_the_wheel_made_from_it_have_the_assets(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path), "-t"]
    subprocess.run([*build, "sdist"], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        assert not [name for name in names if "node_modules" in name]
        assert [name for name in names if name.endswith("/web/src/main.tsx")]
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    environment = {**os.environ, "LASTBRANCH_NATIVE_BUILD": "no"}
    subprocess.run([*build, "wheel"], cwd=unpacked, env=environment, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    packed = zipfile.ZipFile(wheel)
    for name in page.FILES:
        assert packed.read(f"lastbranch/view/assets/{name}") == page.asset(name)
