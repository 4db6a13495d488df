"""The viewer and its data as one HTML file, which needs no server and no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

from ..errors import LastbranchError
from ..model import visible
from . import page, wire
from .answers import ask
from .loaded import Loaded, Parameters
from .security import content_security_policy

__all__ = ["FUNCTIONS", "single_file"]

FUNCTIONS = 50
"""The heaviest functions whose code is in the file."""
_SCREENS = ("overview", "hot", "flame", "branches", "capture", "findings")


def single_file(loaded: Loaded, parameters: Parameters, progress: Callable[[int, int], None] | None = None) -> bytes:
    """The page with the answers to all questions under the filters ``parameters``, which are fixed in it.

    What cannot be answered is in the file as its reason, for the screen to show. ``progress`` gets (done, in all).
    """
    parts = []
    for number, (question, asked) in enumerate(_questions(loaded, parameters)):
        if progress is not None:
            progress(number, len(_SCREENS) + FUNCTIONS)
        try:
            kind, data = "answer", wire.packed(ask(loaded, question, asked))
        except (LastbranchError, OSError) as error:
            hint = error.hint if isinstance(error, LastbranchError) else None
            failed = {"error": visible(str(error)), "hint": visible(hint) if hint else None}
            kind, data = "failure", json.dumps(failed).encode()
        text = base64.b64encode(data).decode()
        parts.append(
            f'<script type="application/x-lastbranch-{kind}" data-key="{_key(question, asked)}">{text}</script>'
        )
    fixed = base64.b64encode(json.dumps(dict(parameters)).encode()).decode()
    parts.append(f'<script type="application/x-lastbranch-filters">{fixed}</script>')
    return _page("\n".join(parts))


def _questions(loaded: Loaded, parameters: Parameters) -> Iterator[tuple[str, dict[str, str]]]:
    for question in _SCREENS:
        yield question, dict(parameters)
    hot = ask(loaded, "hot", parameters).columns
    places = dict.fromkeys(zip(hot["module_row"], hot["start"], strict=True))
    for module, start in [(m, s) for m, s in places if m >= 0 and s][:FUNCTIONS]:
        yield "function", {**parameters, "at_module": str(module), "start": f"{start:#x}"}


def _key(question: str, parameters: Parameters) -> str:
    """How the page looks an answer up (web/src/provider.ts): the parameters in the order of their names."""
    return urlencode([("question", question), *sorted(parameters.items())]).replace("&", "&amp;")


def _page(data: str) -> bytes:
    """index.html with its script and style sheet in it, which a policy allows by their hashes."""
    style, script = page.asset("app.css").decode(), page.asset("app.js").decode()
    policy = content_security_policy(_hash(script), _hash(style), worker_src="blob:", img_src="data:")
    html = page.asset("index.html").decode()
    for mark, text in (
        ("<!-- policy -->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        ('<link rel="stylesheet" href="app.css">', f"<style>{style}</style>"),
        ('<script src="app.js"></script>', f"{data}\n<script>{script}</script>"),
    ):
        before, found, after = html.partition(mark)
        assert found, mark
        html = before + text + after
    return html.encode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
