"""The viewer and its data as one HTML file, which needs no server and no network."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections import Counter
from contextlib import suppress
from functools import cache
from urllib.parse import urlencode

from ..analysis import Sources, place_of
from ..errors import LastbranchError
from ..model import Progress, counted, visible
from . import page, wire
from .anonymous import Anonymous
from .answer import Answer
from .loaded import Loaded, Parameters
from .questions import ask
from .security import WASM, content_security_policy

__all__ = ["FUNCTIONS", "LARGEST", "single_file"]

FUNCTIONS = 50
"""The heaviest functions whose code is in the file, as far as it fits."""
LARGEST = 25_000_000
"""Bytes of the file."""
_SCREENS: tuple[tuple[str, dict[str, str]], ...] = (
    ("overview", {}), ("timeline", {}), ("hot", {}), ("flame", {}), ("branches", {}), ("capture", {}), ("findings", {}),
    ("flame", {"inline": "1"}), ("time", {}), ("time", {"by": "process"}), ("time", {"by": "thread"}),
)  # fmt: skip
"""The questions of the screens, with the parameters that they add to the filters."""
_COMPARED: tuple[tuple[str, dict[str, str]], ...] = (
    ("diff", {}),
    ("diff", {"by": "edge"}),
    ("diff", {"by": "block"}),
    ("diff_flame", {}),
)
"""The further questions of the screens when two captures are compared."""
_FIRST_CUT = 1 << 16
"""Rows that are tried first of a table that does not fit as a whole; then half of them."""
_CUT = ("hot", "flame", "branches", "diff", "diff_flame")
"""Questions with the parameter ``limit``: the heaviest rows are sent, and the sum of the others."""
_ESTIMATED = ("hot", "branches", "function")
"""Questions with the parameter ``estimate``."""
_PART = '<script type="application/x-lastbranch-{}" data-key="{}">{}</script>'


def single_file(
    loaded: Loaded,
    parameters: Parameters,
    progress: Progress | None = None,
    *,
    source: bool = False,
    anonymise: bool = False,
    largest: int = LARGEST,
) -> bytes:
    """The page with the answers to all questions under the filters ``parameters``, which are fixed in it.

    At most ``largest`` bytes: the heaviest rows of tables, and the code of the heaviest functions. For questions
    without an answer, the file has the reason, which the screen shows. ``source``: the page has the text of source
    files; ``anonymise``: the page has no names (`Anonymous`), and no source text either. ``progress`` gets (done, in
    all).
    """
    hidden = Anonymous(loaded) if anonymise else None
    loaded = hidden.loaded if hidden else loaded
    if not source:
        loaded.sources = Sources(loaded.profile, None)
    hot = ask(loaded, "hot", parameters)
    made = _Parts(loaded, parameters, hidden, largest - len(_page("", "")), hot)
    screens = _SCREENS + (_COMPARED if loaded.before else ())
    places, in_all = _places(hot), len(screens) + FUNCTIONS
    for number, (question, more) in enumerate(screens):
        if progress is not None:
            progress(number, in_all)
        made.add_screen(question, more)
    kept, heaviest = [], places[:FUNCTIONS]
    with suppress(LastbranchError):  # which the answer about each of them says
        loaded.count_places(
            [place_of(loaded.namer, *place[:2]) for place in heaviest],
            loaded.filter(parameters),
            loaded.estimate(parameters),
        )
    for number, (module, start, samples) in enumerate(heaviest):
        if progress is not None:
            progress(len(screens) + number, in_all)
        if made.add_function({"at_module": str(module), "start": f"{start:#x}"}):
            kept.append(samples)
    notes = [_kept(kept, [samples for _, _, samples in places])]
    notes += ["Names are hashes with a key of this file alone, and paths are left out."] if hidden else []
    notes += [] if source and not hidden else ["It has no source text."]
    facts = _encoded(json.dumps({"filters": dict(parameters), "notes": notes}).encode())
    return _page(f'<script type="application/x-lastbranch-file">{facts}</script>', "\n".join(made.parts))


class _Parts:
    """The answers in the file, one script element each, while there is ``room`` (bytes)."""

    def __init__(
        self, loaded: Loaded, parameters: Parameters, hidden: Anonymous | None, room: int, hot: Answer
    ) -> None:
        self._loaded, self._parameters, self._hidden, self._hot = loaded, dict(parameters), hidden, hot
        estimate = self._parameters.pop("estimate", "")
        self._estimate = {"estimate": estimate} if estimate else {}
        self._room = room - _FACTS
        self.parts: list[str] = []

    def add_screen(self, question: str, more: dict[str, str]) -> None:
        """Add an answer, which may take half of the room left, or else the answer's heaviest rows."""
        kind, data = self._answer(question, more)
        limit = _FIRST_CUT
        while question in _CUT and kind == "answer" and len(data) > self._room // 2 and limit:
            kind, data = self._answer(question, {**more, "limit": str(limit)})
            limit //= 2
        if len(data) > self._room // 2:
            kind, data = _failure(f"This takes {len(data) / 1e6:.1f} MB, for which the file has no room.", _WHOLE)
        self._add(question, more, kind, data)

    def add_function(self, place: dict[str, str]) -> bool:
        """Add the code of a function, unless the code is too large; return whether it was added."""
        kind, data = self._answer("function", place)
        fits = len(data) < self._room
        if fits:
            self._add("function", place, kind, data)
            if self._loaded.before is not None:
                self._add("diff_blocks", place, *self._answer("diff_blocks", place))
        return fits and kind == "answer"

    def _answer(self, question: str, more: dict[str, str]) -> tuple[str, str]:
        """(kind of the part, its text)."""
        try:
            known = question == "hot" and not more
            answer = self._hot if known else ask(self._loaded, question, self._asked(question, more))
        except (LastbranchError, OSError) as error:
            return _failure(str(error), error.hint if isinstance(error, LastbranchError) else None, self._hidden)
        return "answer", _encoded(wire.packed(self._hidden.cleaned(question, answer) if self._hidden else answer))

    def _asked(self, question: str, more: dict[str, str]) -> dict[str, str]:
        return {**self._parameters, **(self._estimate if question in _ESTIMATED else {}), **more}

    def _add(self, question: str, more: dict[str, str], kind: str, data: str) -> None:
        part = _PART.format(kind, _key(question, self._asked(question, more)), data)
        self._room -= len(part) + 1
        self.parts.append(part)


_FACTS = 1 << 16
"""Bytes that are kept for what the file says of itself, and for reasons."""
_WHOLE = "`lastbranch view CAPTURE` shows all of it."


def _failure(error: str, hint: str | None, hidden: Anonymous | None = None) -> tuple[str, str]:
    texts = [hidden.text(visible(text)) if hidden and text else visible(text or "") for text in (error, hint)]
    return "failure", _encoded(json.dumps({"error": texts[0], "hint": texts[1] or None}).encode())


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _places(hot: Answer) -> list[tuple[int, int, int]]:
    """(row of the module, address, samples) of the functions with samples that are known, the heaviest first."""
    samples = Counter[tuple[int, int]]()
    for module, start, count in zip(*(hot.columns[name] for name in ("module_row", "start", "samples")), strict=True):
        if int(module) >= 0 and int(start):
            samples[int(module), int(start)] += int(count)
    return [(module, start, count) for (module, start), count in samples.most_common()]


def _kept(kept: list[int], every: list[int]) -> str:
    """The sentence about the functions whose code is in the file, and about the others, by their samples."""
    others = len(every) - len(kept)
    if not others:
        return f"This file has the code of {'the function' if len(kept) == 1 else f'all {len(kept)} functions'}."
    share = 1 - sum(kept) / max(1, sum(every))
    return (
        f"This file has the code of {counted(len(kept), 'function')}; {others} others have {share:.1%} of the samples."
    )


def _key(question: str, parameters: Parameters) -> str:
    """How the page looks an answer up (web/src/provider.ts): the parameters in the order of their names."""
    return urlencode([("question", question), *sorted(parameters.items())]).replace("&", "&amp;")


def _page(facts: str, data: str) -> bytes:
    """index.html with its script and style sheet in it, which a policy allows by their hashes."""
    style, script = page.asset("app.css").decode(), page.asset("app.js").decode()
    policy = content_security_policy(f"{_hash(script)} {WASM}", _hash(style), worker_src="blob:", img_src="data:")
    worker = f'<script type="application/gzip" id="graph.js">{_encoded(_compress("graph.js"))}</script>'
    licences = f'<script type="text/plain" id="licences.txt">{page.asset("licences.txt").decode()}</script>'
    html = page.asset("index.html").decode()
    for mark, text in (
        ("<!-- policy -->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        ('<link rel="stylesheet" href="app.css" />', f"<style>{style}</style>"),
        ('<script src="app.js"></script>', f"{facts}\n{data}\n{licences}\n{worker}\n<script>{script}</script>"),
    ):
        before, found, after = html.partition(mark)
        assert found, mark
        html = before + text + after
    return html.encode()


@cache
def _compress(name: str) -> bytes:
    return gzip.compress(page.asset(name), 9, mtime=0)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
