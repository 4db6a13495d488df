"""How the package is built, in numbers: ``python tests/house.py [--list] [FOLDER]``. `make lint` prints it.

Modules and their lengths in lines (median, 90 % are no longer, longest), modules that only one other imports, and lines
of code: what is left without imports, ``__all__``, comments, docstrings and blank lines. Then the rules, with what
breaks them:

- Imports make no circle, not through faces either.
- No class has more than 300 lines, no function more than 60, none more than 8 parameters: ``self`` and the commands of
  click apart.
- A package whose ``__init__`` is a list of names (`lazy.lazy_face`) has a face. Others import these names from it, and
  nothing from the modules in it; the modules import from each other. No name of a face is the name of a module beside
  the face. No other ``__init__`` hands on names of its modules. The stub beside each list is made from it
  (tools/faces.py).
- A verb asks `answers` and prints: a module of ``cli`` imports at most `MOST_NAMES` names of the packages `COUNTED_IN`.
- A function says what it does or returns (``merge_ranges``, ``merged_ranges``), a class what it is: no name is a
  participle alone (``_joined``) or a participle with a particle (``looked_up``). A participle before a noun is an
  adjective; a property of type ``bool`` and a context manager may be one alone. `FIXED_TERMS` stay.
- No name is given to more than two classes.

`LIMITS` has the most offenders that a rule may have. Limits change only downwards. A rule with more offenders than its
limit ends the program with 1. The offenders of rules in `LISTED` are printed with ``--list`` only.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from faces import is_current, names_of

PACKAGE = Path(__file__).parents[1] / "src" / "lastbranch"
CLASS_LIMIT, FUNCTION_LIMIT, PARAMETER_LIMIT = 300, 60, 8

COUNTED_IN = ("analysis", "bind", "formats", "model", "symbols")
MOST_NAMES = 8
FORMAT_VERBS = ("dump", "verify")
"""They print a format as it is."""
PARTICIPLE = re.compile(
    r"..+(ed|ing)|begun|bound|broken|caught|chosen|done|drawn|found|given|gone|grown|held|hidden|kept|known|laid|left|lost"
    r"|made|met|said|seen|sent|shown|spent|taken|told|written"
)
"""Irregular ones that are the verb, too, are left out: cut, put, read, set, split."""
NO_PARTICIPLES = ("being", "exceed", "feed", "need", "nothing", "proceed", "seed")
FIXED_TERMS = {
    "Finding": "what a check reports",
    "Mapping": "a range of an address space that maps a file, as in mmap and /proc/PID/maps",
    "Recording": "the act, and the file that it makes",
    "Ring": "a ring buffer, and the processor's ring of branch records",
    "Setting": "an entry of a configuration",
    "mapping": "as the class",
    "meaning": "the noun: what a name or number means",
    "ring": "as the class",
    "string": "text, as in every file format",
    "warning": "the noun: what the user is warned of",
}
"""Names that look like participles and are nouns of the field, with their meaning. They stay."""
PARTICLE = re.compile(
    r"again|ahead|as|at|away|back|by|first|for|from|go|here|in|into|next|now|of|off|on|otherwise|out|over|read|so|then"
    r"|there|to|too|until|up|well|where|with"
)
MOST_CLASSES = 2
LIMITS = {
    "circles": 0,
    "classes": 0,
    "functions": 0,
    "parameters": 1,
    "faces": 0,
    "verbs": 0,
    "participles": 278,
    "class names": 11,
}
"""Rule -> the most offenders that it may have. Only downwards: who mends some lowers the number."""
LISTED = ("participles", "class names")


@dataclass
class Module:
    """One module of the package, by its dotted name."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def face(self) -> dict[str, str]:
        """Name -> the module that has it, of a face; empty for other modules."""
        found = names_of(self.path) if self.is_package else None
        return {name: self.absolute(module, 1) for name, (module, _) in (found or {}).items()}

    def absolute(self, module: str | None, level: int) -> str:
        """The dotted name of what ``from`` ``level`` dots and ``module`` names here."""
        up = len(module or "") - len((module or "").lstrip("."))
        if up:
            module, level = (module or "")[up:], up
        above = self.package.split(".")[: len(self.package.split(".")) - level + 1] if level else []
        return ".".join([*above, *([module] if module else [])])

    @cached_property
    def imports(self) -> list[tuple[str, str]]:
        """(what is imported from, name), as it is written; of ``import a.b`` the name is empty."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom):
                base = self.absolute(node.module, node.level)
                found += [(base, alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                found += [(alias.name, "") for alias in node.names]
        return found


Modules = dict[str, Module]


def modules_in(root: Path) -> Modules:
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        found[name] = Module(name, path)
    return found


def imported(module: Module, modules: Modules) -> set[str]:
    """Which modules ``module`` imports: of a name that a face has, the module that it comes from."""
    found = set()
    for base, name in module.imports:
        if f"{base}.{name}" in modules:
            found.add(f"{base}.{name}")
        elif base in modules:
            found.add(modules[base].face.get(name, base))
    return found & set(modules) - {module.name}


def code_lines(module: Module) -> int:
    """Lines of code in a module."""
    left_out = set()
    for node in module.nodes:
        match node:
            case (
                ast.Import()
                | ast.ImportFrom()
                | ast.Expr(ast.Constant(str()))
                | ast.Assign(targets=[ast.Name("__all__")])
            ):
                left_out |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = {
        n for n, line in enumerate(module.text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")
    }
    return len(lines - left_out)


# -- the rules: each gives its offenders


def circles(modules: Modules) -> Iterator[str]:
    """Modules that import each other, in whatever number of steps."""
    edges = {name: sorted(imported(module, modules)) for name, module in modules.items()}
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        path.append(name)
        for target in edges[name]:
            if target not in order:
                visit(target)
            if target in path:
                low[name] = min(low[name], low[target])
        if low[name] == order[name]:
            at = path.index(name)
            found.append(path[at:])
            del path[at:]

    sys.setrecursionlimit(10_000)
    for name in modules:
        if name not in order:
            visit(name)
    yield from (" <-> ".join(ring) for ring in found if len(ring) > 1)


def classes(modules: Modules) -> Iterator[str]:
    yield from _long({name: module.classes for name, module in modules.items()}, CLASS_LIMIT)


def functions(modules: Modules) -> Iterator[str]:
    yield from _long({name: module.functions for name, module in modules.items()}, FUNCTION_LIMIT)


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _long(definitions: Mapping[str, Sequence[Definition]], limit: int) -> Iterator[str]:
    for module, nodes in definitions.items():
        for node in nodes:
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > limit:
                yield f"{module}.{node.name} ({lines} lines)"


def parameters(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        for node in module.functions:
            if not _is_command(node):
                named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = sum(one.arg not in ("self", "cls") for one in named)
                if count > PARAMETER_LIMIT:
                    yield f"{module.name}.{node.name} ({count})"


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether click calls it, with a parameter for each option."""
    return any("command(" in text or "option" in text for text in map(ast.unparse, node.decorator_list))


def faces(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        if module.face:
            beside = {path.stem for path in module.path.parent.iterdir()}
            yield from (f"{module.name}: {name} is the name of a module" for name in sorted(beside & set(module.face)))
            if not is_current(module.path):
                yield f"{module.name}: its stub is not what its list says (make docs)"
        elif module.is_package:
            handed = {name for base, name in module.imports if base.startswith(f"{module.name}.")}
            yield from (f"{module.name} hands on {name}" for name in sorted(handed & set(_public(module))))
        yield from _past_faces(module, modules)


def _past_faces(module: Module, modules: Modules) -> Iterator[str]:
    for base, name in module.imports:
        target = f"{base}.{name}" if f"{base}.{name}" in modules else base
        if target not in modules:
            continue
        package = modules[target].package
        inside = module.name == package or module.name.startswith(f"{package}.")
        if inside and target == package != module.name and name in modules[package].face:
            yield f"{module.name} imports {name} from its own face"
        if not inside and target != package and modules[package].face and package != PACKAGE.name:
            yield f"{module.name} imports {target} past the face of {package}"
        for face in modules.values():
            listed = face.face.get(name) == base and base.startswith(f"{face.name}.") and face.name != PACKAGE.name
            if listed and not module.name.startswith(f"{face.name}.") and package != face.name:
                yield f"{module.name} imports {name} past the face of {face.name}"


def _public(module: Module) -> list[str]:
    for node in module.tree.body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
            and isinstance(node.value, ast.List)
        ):
            return [str(ast.literal_eval(one)) for one in node.value.elts]
    return []


def verbs(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        verb = module.name.removeprefix(f"{PACKAGE.name}.cli.")
        number = names_from_below(module)
        if verb != module.name and verb not in FORMAT_VERBS and number > MOST_NAMES:
            yield f"{verb} imports {number} names of {', '.join(COUNTED_IN)}"


def names_from_below(module: Module) -> int:
    """How many names a module imports of the packages `COUNTED_IN`."""
    below = tuple(f"{PACKAGE.name}.{package}." for package in COUNTED_IN)
    return len({name for base, name in module.imports if f"{base}.".startswith(below)})


def participles(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        for node in (*module.classes, *module.functions):
            if _is_participle(node.name) and not _may_be_adjective(node):
                yield f"{module.name}.{node.name}"


def _is_participle(name: str) -> bool:
    """Whether a name is a participle without a noun behind it."""
    first, *rest = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name.strip("_")) or [""]
    if first in FIXED_TERMS or first.lower() in NO_PARTICIPLES or name.endswith("_"):
        return False
    return bool(PARTICIPLE.fullmatch(first.lower())) and (not rest or bool(PARTICLE.fullmatch(rest[0].lower())))


def _may_be_adjective(node: Definition) -> bool:
    """Whether it is a property of type bool, or a context manager (as ``contextlib.closing``)."""
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    if isinstance(node, ast.ClassDef):
        return False
    of_bool = node.returns is not None and ast.unparse(node.returns) == "bool"
    return "contextmanager" in decorators or ("property" in decorators and of_bool)


def class_names(modules: Modules) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for module in modules.values():
        for node in module.classes:
            found.setdefault(node.name, []).append(module.name)
    for name, places in found.items():
        if len(places) > MOST_CLASSES:
            yield f"{name} ({len(places)} times: {', '.join(places)})"


RULES = {"circles": circles, "classes": classes, "functions": functions, "parameters": parameters,
         "faces": faces, "verbs": verbs, "participles": participles, "class names": class_names}  # fmt: skip


def main(root: Path = PACKAGE, lists: bool = False) -> int:
    modules = modules_in(root)
    importers = Counter(name for module in modules.values() for name in imported(module, modules))
    single = [name for name, module in modules.items() if importers[name] == 1 and not module.is_package]
    lengths = sorted(len(module.text.splitlines()) for module in modules.values())
    middle, long = lengths[len(lengths) // 2], lengths[int(len(lengths) * 0.9)]
    print(f"{len(modules)} modules, lines: median {middle}, p90 {long}, longest {lengths[-1]}")
    print(f"{len(single)} modules have a single importer: {', '.join(single)}")
    print(f"{sum(code_lines(module) for module in modules.values())} lines of code")
    of_verbs = {name: names_from_below(module) for name, module in modules.items() if ".cli." in name}
    if of_verbs:
        most = max(of_verbs, key=lambda name: (name.rpartition(".")[2] not in FORMAT_VERBS, of_verbs[name]))
        print(f"verbs import at most {of_verbs[most]} names of {', '.join(COUNTED_IN)} ({most})")
    broken = []
    for name, rule in RULES.items():
        found = sorted(rule(modules))
        limit = f" (limit {LIMITS[name]})" if LIMITS[name] else ""
        if name not in LISTED:
            print(f"{name}: {len(found)}{limit}{': ' if found else ''}{'; '.join(found)}")
        else:
            print(f"{name}: {len(found)}{limit}", *(found if lists else ()), sep="\n  ")
        if len(found) > LIMITS[name]:
            broken.append(name)
    if broken:
        print(f"broken rules of the house: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:] if argument != "--list"]
    sys.exit(main(folders[0] if folders else PACKAGE, "--list" in sys.argv))
