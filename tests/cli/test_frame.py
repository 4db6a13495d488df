"""The frame: public names, layers of documentation, examples that run, start-up."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest

import lastbranch
from lastbranch import analysis, binaries, bind, demo, lbr, model
from lastbranch.cli import VERBS, cli

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", [lastbranch, analysis, binaries, bind, lbr, model], ids=lambda p: p.__name__)
def test_public_names_are_sorted_and_there(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert [getattr(package, n, None) is not None for n in names] == [True] * len(names)
    assert len(set(names)) == len(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lastbranch.nothing  # noqa: B018


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "tools/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("page", "libraries"), [("guides/python.md", []), ("guides/notebooks.md", ["pandas", "polars", "pyarrow"])]
)
def test_examples_run(page: str, libraries: list[str]) -> None:
    for library in libraries:
        pytest.importorskip(library)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)
    assert len(blocks) > 3
    exec(compile("\n".join(blocks), page, "exec"), {})


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_index_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", (ROOT / "docs" / "index.md").read_text()))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")} - {"index.md"}
    assert pages - linked == set()


def test_the_table_of_the_readme_has_every_verb() -> None:
    cells = re.findall(r"^\| (`[^|]*) \|", (ROOT / "README.md").read_text().replace("\\|", "/"), re.M)
    assert {name for cell in cells for name in re.findall(r"`(\w+)", cell)} >= set(VERBS)


def test_the_example_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened = lastbranch.open(demo.capture(), symfs=demo.symfs())
    monkeypatch.setattr(lastbranch, "open", lambda _path: opened)
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[0] == "lbrdemo+0x13b1 412"


@pytest.mark.parametrize("name", ["BranchTable", "RangeTable", "WeightTable"])
def test_the_api_page_has_the_tables_of_counts(name: str) -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    section = page.split(f"### {name}\n")[1].split("\n### ")[0]
    assert all(f"| `{field.name}` |" in section for field in fields(getattr(analysis, name)))
    assert re.search("-1 (if|where) ", section)


def test_nested_commands_are_in_the_reference() -> None:
    assert "## lbr explain\n" in (ROOT / "docs" / "reference" / "cli.md").read_text()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_help_that_says_what_it_does(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    assert command.help
    assert len(command.help) > 30


def test_version_is_that_of_the_project() -> None:
    assert f'version = "{lastbranch.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_the_demo_shows_a_recording_or_the_packaged_capture() -> None:
    done = subprocess.run([sys.executable, "-m", "lastbranch.demo"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    verbs = re.findall(r"^\$ lastbranch (\w+) ", done.stdout, re.M)
    assert verbs == ["record", "report", "branches", "export"]
    assert ("branches in" in done.stderr) != ("packaged capture" in done.stdout)
    assert re.search(r"^R \S+ [0-9a-f]+ [0-9a-f]+ \d+$", done.stdout, re.M)
