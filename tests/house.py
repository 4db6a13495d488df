"""How the package is built, in numbers: ``python tests/house.py [FOLDER]``. `make lint` prints it.

Modules and their lengths in lines (median, 90 % are no longer, longest), modules that only one other imports, and lines
of code: what is left without imports, ``__all__``, comments, docstrings and blank lines.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "lastbranch"
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def name_of(path: Path, root: Path) -> str:
    """The dotted name of the module at ``path`` of the package ``root``."""
    return ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, root: Path, names: set[str]) -> set[str]:
    """Which modules, of ``names``, the one at ``path`` imports."""
    own, found = name_of(path, root), set()
    package = own if path.name == "__init__.py" else own.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{a.name}" if f"{base}.{a.name}" in names else base for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & names - {own}


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


def main(root: Path = PACKAGE) -> None:
    modules = {name_of(path, root): path for path in sorted(root.rglob("*.py"))}
    importers = Counter(name for path in modules.values() for name in imported(path, root, set(modules)))
    single = [n for n, path in modules.items() if importers[n] == 1 and path.name != "__init__.py"]
    lengths = sorted(len(path.read_text().splitlines()) for path in modules.values())
    middle, most = lengths[len(lengths) // 2], lengths[int(len(lengths) * 0.9)]
    print(f"{len(modules)} modules, lines: median {middle}, p90 {most}, longest {lengths[-1]}")
    print(f"{len(single)} modules have a single importer: {', '.join(single)}")
    print(f"{sum(map(code_lines, modules.values()))} lines of code")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
