"""Lists sentences that a reader may have to read twice: ``python tests/tools/riddles.py [--list] [PATH ...]``.

The script reads comments and texts of Python modules, comments of C sources, and Markdown. A text is a string of at
least `FEWEST_WORDS` words: docstrings of modules, classes, functions and values, help texts, messages of errors, notes,
and meanings of columns. Strings of tests are input and expected output: only their docstrings are read. A sentence is a
candidate if its first word hides the subject, or if two or more of its pronouns may refer to anything.
A candidate is a place to look, no verdict. The script prints how many candidates each area has; ``--list`` prints the
candidates.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ("src", "docs", "README.md", "CHANGELOG.md", "tests", "benchmarks", "examples", "tools")
_LEFT_OUT = re.compile(
    r"/(data|node_modules|assets|__pycache__|\.venv[^/]*)/|docs/reference/(cli|api|columns|documents)\.md$"
)
OPENERS = re.compile(r"^(Of|That|Those|Where|What|Whose|Whoever|Whatever)\b(?! (is|does|do|are|can|should) [^.]*\?$)")
PRONOUNS = re.compile(r"\b(it|that|those|one|ones|them)\b(?! (hundred|of the|or more))", re.IGNORECASE)
# "that" which joins a clause to the noun or the verb before it is grammar, no riddle.
_RELATIVE = re.compile(
    r"\b(\w+) that (?=(a|an|the|is|are|was|were|has|have|had|can|cannot|may|must|do|does|did|no|each|it|its|they|we"
    r"|only|\w+s|\w+ed)\b)"
)
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`\"(])")
_CODE = re.compile(r"``[^`]*``|`[^`]*`|<[^>]*>|\[([^\]]*)\]\([^)]*\)")


FEWEST_WORDS = 4


def sentences(text: str) -> list[str]:
    """The sentences of a running text; code is replaced by ``X``, and lists and tables end a sentence."""
    found = []
    for paragraph in re.split(r"\n\s*(?:\n|[-*] |\d+\. |\|)", text):
        words = " ".join(_CODE.sub(lambda m: m.group(1) or "X", paragraph).split())
        found += [sentence.strip() for sentence in _SENTENCE.split(words) if sentence.strip()]
    return found


def kind_of(sentence: str) -> str | None:
    """Why a sentence is a candidate: ``opener`` or ``pronouns``; None where it is not."""
    if OPENERS.match(sentence):
        return "opener"
    rest = _RELATIVE.sub(r"\1 ", sentence)
    return "pronouns" if len(PRONOUNS.findall(rest)) >= 2 else None


class _Texts(ast.NodeVisitor):
    """Collects strings, with a field of an f-string as ``X``."""

    def __init__(self, only_docstrings: bool) -> None:
        self.only_docstrings = only_docstrings
        self.found: list[tuple[int, str]] = []

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            self.found.append((node.lineno, inspect.cleandoc(node.value.value)))
        else:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._add(node.lineno, node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = [str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values]
        self._add(node.lineno, "".join(parts))
        for one in node.values:
            if isinstance(one, ast.FormattedValue):
                self.visit(one.value)

    def _add(self, line: int, text: str) -> None:
        if not self.only_docstrings and len(re.findall(r"[a-zA-Z]{2,}", text)) >= FEWEST_WORDS:
            self.found.append((line, text))


def _python(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and texts of a module's strings and comments."""
    text = path.read_text()
    strings = _Texts(only_docstrings=path.resolve().is_relative_to(ROOT / "tests"))
    strings.visit(ast.parse(text))
    yield from strings.found
    block: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or "fmt: skip" in token.string:
            continue
        if block and token.start[0] != last + 1:
            yield start, " ".join(block)
            block = []
        start, last = (start if block else token.start[0]), token.start[0]
        block.append(token.string.lstrip("#: "))
    if block:
        yield start, " ".join(block)


def _c(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and texts of a C source's comments."""
    text = path.read_text()
    for match in re.finditer(r"/\*(.*?)\*/|((?:^[^\S\n]*//[^\n]*\n)+)|//([^\n]*)", text, re.DOTALL | re.MULTILINE):
        comment = next(group for group in match.groups() if group is not None)
        yield text.count("\n", 0, match.start()) + 1, re.sub(r"(?m)^\s*(//|\*)", " ", comment)


def _markdown(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and texts of a page's paragraphs, without code and headings."""
    text = re.sub(r"(?ms)^(```|~~~).*?^\1", lambda m: "\n" * m.group().count("\n"), path.read_text())
    for match in re.finditer(r"(?:^(?!#|\s*$|    ).*\n?)+", text, re.MULTILINE):
        yield text.count("\n", 0, match.start()) + 1, match.group()


READERS = {".py": _python, ".c": _c, ".h": _c, ".md": _markdown}


def candidates(paths: list[Path]) -> Iterator[tuple[Path, int, str, str]]:
    """Path, line, kind and sentence of each candidate in files and folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    for file in files:
        reader = READERS.get(file.suffix)
        if reader is None or _LEFT_OUT.search(str(file)):
            continue
        for line, text in reader(file):
            for sentence in sentences(text):
                if kind := kind_of(sentence):
                    yield file, line, kind, sentence


def area_of(path: Path) -> str:
    """The part of the project that a file belongs to: a package's part, a folder of tests, ``docs``."""
    folders = path.parts[:-1] or path.parts
    return "/".join(folders[1:3] if folders[0] == "src" else folders[: 2 if folders[0] == "tests" else 1])


def main(arguments: list[str]) -> None:
    """Print the count of candidates by area and kind, after the candidates themselves with ``--list``."""
    paths = [Path(a) for a in arguments if not a.startswith("-")] or [ROOT / place for place in PLACES]
    counts: Counter[tuple[str, str]] = Counter()
    for file, line, kind, sentence in candidates(paths):
        shown = file.resolve().relative_to(ROOT) if file.resolve().is_relative_to(ROOT) else file
        counts[area_of(shown), kind] += 1
        if "--list" in arguments:
            print(f"{shown}:{line}: {kind}: {sentence}")
    print("opener pronouns  area")
    for area in sorted({area for area, _ in counts}):
        print(f"{counts[area, 'opener']:6} {counts[area, 'pronouns']:8}  {area}")
    print(f"{counts.total()} candidates")


if __name__ == "__main__":
    main(sys.argv[1:])
