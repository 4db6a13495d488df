"""How the package is built, in numbers: ``python tests/house.py [FOLDER]``. `make lint` prints it.

Modules and their lengths in lines (median, 90 % are no longer, longest), modules that only one other imports, and lines
of code: what is left without imports, ``__all__``, comments, docstrings and blank lines.

A verb asks `answers` and prints. The exit code is 1 where a module of ``cli`` imports more than `MOST_NAMES` names of
the packages `COUNTED_IN`.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "lastbranch"
COUNTED_IN = ("analysis", "bind", "formats", "model", "symbols")
MOST_NAMES = 8
FORMAT_VERBS = ("dump.py", "verify.py")
"""They print a format as it is."""
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def name_of(path: Path, root: Path) -> str:
    """The dotted name of the module at ``path`` of the package ``root``."""
    return ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_names(path: Path, root: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each name that the module at ``path`` imports; an empty name: the module itself."""
    own = name_of(path, root)
    package = own if path.name == "__init__.py" else own.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield from ((".".join([*above, *([node.module] if node.module else [])]), a.name) for a in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def imported(path: Path, root: Path, names: set[str]) -> set[str]:
    """Which modules, of ``names``, the one at ``path`` imports."""
    found = {f"{base}.{name}" if f"{base}.{name}" in names else base for base, name in imported_names(path, root)}
    return found & names - {name_of(path, root)}


def names_from_below(path: Path, root: Path) -> int:
    """How many names a module of ``cli`` imports of the packages `COUNTED_IN`."""
    below = tuple(f"{root.name}.{package}" for package in COUNTED_IN)
    return len(
        {name for base, name in imported_names(path, root) if f"{base}.".startswith(tuple(f"{b}." for b in below))}
    )


def code_lines(path: Path) -> int:
    """Lines of code in a module."""
    text, left_out = path.read_text(), set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case (
                ast.Import()
                | ast.ImportFrom()
                | ast.Expr(ast.Constant(str()))
                | ast.Assign(targets=[ast.Name("__all__")])
            ):
                left_out |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for token in tokens if token.type not in _NO_CODE for n in range(token.start[0], token.end[0] + 1)}
    return len(lines - left_out)


def main(root: Path = PACKAGE) -> int:
    modules = {name_of(path, root): path for path in sorted(root.rglob("*.py"))}
    importers = Counter(name for path in modules.values() for name in imported(path, root, set(modules)))
    single = [n for n, path in modules.items() if importers[n] == 1 and path.name != "__init__.py"]
    lengths = sorted(len(path.read_text().splitlines()) for path in modules.values())
    middle, most = lengths[len(lengths) // 2], lengths[int(len(lengths) * 0.9)]
    print(f"{len(modules)} modules, lines: median {middle}, p90 {most}, longest {lengths[-1]}")
    print(f"{len(single)} modules have a single importer: {', '.join(single)}")
    print(f"{sum(map(code_lines, modules.values()))} lines of code")
    verbs = [path for path in modules.values() if path.parent == root / "cli" and path.name not in FORMAT_VERBS]
    numbers = sorted(((names_from_below(path, root), path.name) for path in verbs), reverse=True)
    if numbers:
        print(f"verbs import at most {numbers[0][0]} names of {', '.join(COUNTED_IN)} (cli/{numbers[0][1]})")
    over = [f"cli/{name} imports {number}, more than {MOST_NAMES}" for number, name in numbers if number > MOST_NAMES]
    print("".join(f"error: {one}\n" for one in over), end="", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
