"""The frame: public names, layers of documentation, examples that run, start-up."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import lastbranch
from lastbranch import analysis, bind, images, lbr, model
from lastbranch.cli import VERBS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("package", [lastbranch, analysis, bind, images, lbr, model], ids=lambda p: p.__name__)
def test_public_names_are_sorted_and_there(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert [getattr(package, n, None) is not None for n in names] == [True] * len(names)
    assert len(set(names)) == len(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lastbranch.nothing  # noqa: B018


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", ["guides/python.md"])
def test_examples_run(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)
    assert len(blocks) > 3
    exec(compile("\n".join(blocks), page, "exec"), {})


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_help_that_says_what_it_does(verb: str) -> None:
    command = import_module(f"lastbranch.cli.{verb}").command
    assert command.help
    assert len(command.help) > 30


def test_version_is_that_of_the_project() -> None:
    assert f'version = "{lastbranch.__version__}"' in (ROOT / "pyproject.toml").read_text()
