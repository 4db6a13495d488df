"""Exact versions with hashes of what is installed from a package index: the files of ``requirements/``.

``python lock_requirements.py --uv UV`` writes the files anew, with the newest versions that pyproject.toml allows.
Without ``--uv`` the script compares the files with pyproject.toml and reads nothing else: `make lint` fails where a
requirement has no version that satisfies it, and not where something newer was released.

One file serves all platforms and versions of Python: its lines have markers. A file names no index, so that each user's
own index is asked, and the hashes check that this index gave the same files.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "linux": ("posix", "Linux", "x86_64", "aarch64"),
    "darwin": ("posix", "Darwin", "x86_64", "arm64"),
    "win32": ("nt", "Windows", "AMD64", "ARM64"),
}
"""`sys.platform`: `os.name`, `platform.system()`, and each `platform.machine()`."""


class Environment(NamedTuple):
    """The contents of one file: the package and its build requirements, or not; the package's extras; groups of
    pyproject.toml."""

    package: bool
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


ENVIRONMENTS = {
    "developer": Environment(True, extras=("arrow", "dev")),
    "package": Environment(True),
    "release-trial": Environment(True, groups=("release-trial",)),
    "peers": Environment(True, groups=("peers",)),
    **{name: Environment(False, groups=(name,)) for name in ("musl", "peers-values", "go", "wheels", "lock")},
}
"""Name of the file -> environment. The others have the versions of the first."""


class Pin(NamedTuple):
    requirement: Requirement
    hashes: int

    @property
    def version(self) -> str:
        return next(iter(self.requirement.specifier)).version


def wanted(environment: Environment, project: dict[str, Any]) -> list[Requirement]:
    """The requirements of ``environment`` by pyproject.toml, with the package's extras that extras name."""
    table, found = project["project"], [*environment.extras]
    texts = [*table["dependencies"], *project["build-system"]["requires"]] if environment.package else []
    for extra in found:  # which grows meanwhile
        for text in table["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == table["name"]:
                found.extend(sorted(requirement.extras - {*found}))
            else:
                texts.append(text)
    texts += [text for group in environment.groups for text in project["dependency-groups"][group]]
    return [Requirement(text) for text in texts]


def pins(text: str) -> Iterator[Pin]:
    """The lines of a file of ``requirements/``. Raises `ValueError` for one that is no exact version."""
    for line in text.replace("\\\n", " ").splitlines():
        words = line.partition(" #")[0].split(" --hash=")
        if not words[0].strip() or words[0].lstrip().startswith("#"):
            continue
        requirement = Requirement(words[0].strip())
        (specifier,) = requirement.specifier
        if specifier.operator != "==" or "*" in specifier.version:
            raise ValueError(f"{requirement} is no exact version")
        yield Pin(requirement, len(words) - 1)


def machines() -> Iterator[tuple[str, dict[str, str]]]:
    """(what a user calls it, the values of markers) of each Python on each platform that the package is for."""
    for python in PYTHONS:
        for platform, (os_name, system, *kinds) in PLATFORMS.items():
            for machine in kinds:
                yield (
                    f"Python {python}, {platform} {machine}",
                    {
                        **{key: str(value) for key, value in default_environment().items()},
                        "python_version": python,
                        "python_full_version": f"{python}.0",
                        "implementation_name": "cpython",
                        "platform_python_implementation": "CPython",
                        "os_name": os_name,
                        "sys_platform": platform,
                        "platform_system": system,
                        "platform_machine": machine,
                    },
                )


def faults(name: str, text: str, project: dict[str, Any], first: str) -> Iterator[str]:
    """Why ``text`` of the file ``name`` does not do; ``first`` is the text of the file whose versions it must have."""
    yield from (f"it names an address: {address}" for address in re.findall(r"\S+://\S+", text))
    found, other = [*pins(text)], [*pins(first)]
    yield from (f"{pin.requirement.name} has no hash" for pin in found if not pin.hashes)
    for machine, values in machines():
        here = {}
        for pin in found:
            if pin.requirement.marker is None or pin.requirement.marker.evaluate(values):
                key = canonicalize_name(pin.requirement.name)
                if key in here:
                    yield f"{machine}: {key} has two versions, {here[key]} and {pin.version}"
                here[key] = pin.version
        for requirement in wanted(ENVIRONMENTS[name], project):
            if requirement.marker is None or requirement.marker.evaluate({**values, "extra": ""}):
                version = here.get(canonicalize_name(requirement.name))
                if version is None or not requirement.specifier.contains(version, prereleases=True):
                    yield f"{machine}: pyproject.toml wants {requirement}, and it has {version or 'none'}"
        for pin in other:
            version = here.get(canonicalize_name(pin.requirement.name), pin.version)
            if version != pin.version and (pin.requirement.marker is None or pin.requirement.marker.evaluate(values)):
                yield f"{machine}: {pin.requirement.name} is {version}, and {pin.version} for developers"


def refresh(uv: str, folder: Path, project: dict[str, Any]) -> None:
    """Let uv choose the newest versions and write all files."""
    first = ""
    for name, environment in ENVIRONMENTS.items():
        path = folder / f"{name}.txt"
        words = [uv, "pip", "compile", "--quiet", "--upgrade", "--universal", "--generate-hashes", "--no-annotate"]
        words += ["--python", sys.executable, "--python-version", PYTHONS[0], "--no-emit-index-url"]
        words += ["--custom-compile-command", "make lock"]
        words += [f"--extra={extra}" for extra in environment.extras]
        words += [f"--group={group}" for group in environment.groups]
        words += [f"--constraints={first}"] if first else []
        words += ["pyproject.toml", "-"] if environment.package else []
        builds = "\n".join(project["build-system"]["requires"]) if environment.package else ""
        subprocess.run([*words, f"--output-file={path}"], check=True, cwd=ROOT, text=True, input=builds)
        first = first or str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="The exact versions of what is installed.")
    parser.add_argument("--uv", help="write the files anew, with this program")
    arguments = parser.parse_args()
    folder, project = ROOT / "requirements", tomllib.loads((ROOT / "pyproject.toml").read_text())
    if arguments.uv:
        refresh(arguments.uv, folder, project)
    texts = {name: (folder / f"{name}.txt").read_text() for name in ENVIRONMENTS}
    first = next(iter(texts.values()))
    found = [f"{name}.txt: {fault}" for name, text in texts.items() for fault in faults(name, text, project, first)]
    if found:
        sys.exit("\n".join(f"requirements/{fault}" for fault in found) + "\nmake lock writes these files anew")


if __name__ == "__main__":
    main()
