"""Lists sentences that a reader may have to read twice: ``python tests/tools/riddles.py [--list] [PATH ...]``.

The script reads docstrings, comments and click's help texts of Python modules, comments of C sources, and Markdown.
A sentence is a candidate if its first word hides the subject, or if two or more of its pronouns may refer to anything.
A candidate is a place to look, no verdict. The script prints how many candidates there are; ``--list`` prints each.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[2]
PLACES = ("src", "docs", "README.md", "tests", "benchmarks", "examples")
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


_HELP_TEXTS = ("help", "short_help", "epilog")


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


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


def _python(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and texts of a module's docstrings, comments and help texts."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if docstring := ast.get_docstring(node):
                yield node.body[0].lineno, docstring
        elif isinstance(node, ast.keyword) and node.arg in _HELP_TEXTS:
            yield from ((part.lineno, part.value) for part in ast.walk(node.value) if _is_text(part))
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


def main(arguments: list[str]) -> None:
    """Print the count of candidates by place and kind, after the candidates themselves with ``--list``."""
    paths = [Path(a) for a in arguments if not a.startswith("-")] or [ROOT / place for place in PLACES]
    counts: Counter[tuple[str, str]] = Counter()
    for file, line, kind, sentence in candidates(paths):
        shown = file.resolve().relative_to(ROOT) if file.resolve().is_relative_to(ROOT) else file
        counts[shown.parts[0], kind] += 1
        if "--list" in arguments:
            print(f"{shown}:{line}: {kind}: {sentence}")
    for (place, kind), count in sorted(counts.items()):
        print(f"{count:6} {kind:9} {place}")
    print(f"{sum(counts.values()):6} candidates")


if __name__ == "__main__":
    main(sys.argv[1:])
