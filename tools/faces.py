"""Write the stubs of faces: what `lazy.lazy_face` imports at first use, as type checkers and editors read it.

    python tools/faces.py [--check]

A face is a package whose ``__init__`` is a list of names. ``--check`` writes nothing and ends with 1 if a stub is not
what its face says.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ROOT", "faces", "imports_of", "is_current", "names_of", "stub_of"]

ROOT = Path(__file__).parents[1] / "src" / "lastbranch"
_HEAD = "# Made by tools/faces.py from the list in __init__.py.\n"
_OPEN = ("etw",)
"""Faces that have more names than they list: constants of the trace API, by their names."""
_TYPED = ("tbrw",)
"""Faces whose stub has the types of what is made from tables: tools/tbrw_types.py makes it."""


def names_of(init: Path) -> dict[str, tuple[str, str]] | None:
    """The list of the face ``init``: public name -> (module, relative to the package; its name there). ``None`` where
    the package has none."""
    calls = [node for node in ast.walk(ast.parse(init.read_text())) if isinstance(node, ast.Call)]
    lists = [call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "lazy_face"]
    if not lists:
        return None
    found = {}
    for module, listed in ast.literal_eval(lists[0]).items():
        for public, _, own in (name.partition("=") for name in listed.split()):
            found[public] = f".{module}", own or public
    return found


def imports_of(init: Path) -> list[str]:
    """The lines of a stub that import the names of the face ``init``."""
    rows = sorted((module, own, public) for public, (module, own) in (names_of(init) or {}).items())
    return [f"from {module} import {own} as {public}" for module, own, public in rows]


def stub_of(init: Path) -> str:
    """The stub of the face ``init``."""
    lines = [f"{line}\n" for line in imports_of(init)]
    names = names_of(init) or {}
    if any(own != public for public, (_, own) in names.items()):  # what is renamed is public only if it is listed
        lines += ["\n__all__ = [\n", *(f'    "{name}",\n' for name in sorted(names)), "]\n"]
    if init.parent.name in _OPEN:
        lines = ["from typing import Any\n\n", *lines, "\ndef __getattr__(name: str) -> Any: ...\n"]
    return _HEAD + "".join(lines)


def faces(root: Path = ROOT) -> Iterator[Path]:
    """The ``__init__`` of each face whose stub is made here."""
    for init in sorted(root.rglob("__init__.py")):
        if init.parent.name not in _TYPED and names_of(init) is not None:
            yield init


def main() -> int:
    stale = [init for init in faces() if not is_current(init)]
    for init in stale:
        if "--check" not in sys.argv:
            init.with_suffix(".pyi").write_text(stub_of(init))
    if stale:
        print("stubs that are not what their faces say:" if "--check" in sys.argv else "written:", *stale)
    return 1 if stale and "--check" in sys.argv else 0


def is_current(init: Path) -> bool:
    """Whether the stub beside the face ``init`` is what its list says. A stub of another tool is not looked at."""
    if init.parent.name in _TYPED:
        return True
    stub = init.with_suffix(".pyi")
    return stub.exists() and stub.read_text() == stub_of(init)


if __name__ == "__main__":
    sys.exit(main())
