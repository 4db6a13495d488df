"""Pictures of the viewer's screens, light and dark, in windows of several widths.

They show the demo's capture, and a recording of examples/coin.c.

`make screenshots` runs it. The README's pictures are copies: docs/images.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from lastbranch import demo
from viewer import chromium, loaded, looking_at, serving

_ROOT = Path(__file__).parents[2]
_IMAGES = _ROOT / "docs" / "images"
_SCREENS = {
    "hot": ("demo", "hot"),
    "flame": ("demo", "flame"),
    "flame-table": ("demo", "flame?table=1"),
    "branches": ("demo", "branches"),
    "edges": ("demo", "branches?view=edges"),
    "capture": ("demo", "capture"),
    "function": ("coin", "function?name=sum_chosen&beside=source"),
    "graph": ("coin", "function?name=sum_chosen&beside=graph"),
    "loops": ("coin", "function?name=sum_chosen&beside=loops"),
    "targets": ("demo", "function?name=dispatch&beside=targets"),
}
"""Picture -> (the capture that the picture shows, the fragment of the page's address)."""
_IN_README = ("hot", "function")
_WIDTHS = (1000, 1280, 1400)
"""CSS pixels: the least that is enough, that of the README's pictures, and a large window."""
_README_WIDTH = 1280
_SETTLED_MS = 700
"""For what is drawn after the last answer: canvases and graphs."""


def _coin(folder: Path) -> Path:
    """A recording of examples/coin.c."""
    program, out = folder / "coin", folder / "coin.tb5"
    names = f"-ffile-prefix-map={_ROOT}=/src"  # the pictures name no folder of this machine
    subprocess.run(["gcc", "-g", "-O1", names, "-o", program, _ROOT / "examples" / "coin.c"], check=True)
    record = [sys.executable, "-m", "lastbranch", "record", "--engine", "software", "--no-progress", "-o", out, program]
    subprocess.run(record, check=True, stdout=subprocess.DEVNULL)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    _IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        captures = {"demo": loaded(demo.capture(), demo.symfs()), "coin": loaded(_coin(Path(folder)))}
        captures["coin"].source_roots = (str(_ROOT),)
        with (
            chromium() as browser,
            serving(captures["demo"]) as of_demo,
            serving(captures["coin"]) as of_coin,
        ):
            served = {"demo": of_demo, "coin": of_coin}
            for name, (capture, fragment) in _SCREENS.items():
                for scheme, width in product(("light", "dark"), _WIDTHS):
                    address = f"{served[capture]}#/{fragment}"
                    with looking_at(browser, address, scheme=scheme, width=width) as page:
                        page.locator("main > *").first.wait_for()
                        page.locator("[aria-busy=true], .waiting").first.wait_for(state="detached")
                        page.wait_for_timeout(_SETTLED_MS)
                        page.screenshot(path=out / f"{name}-{scheme}-{width}.png")
    for name in _IN_README:
        shutil.copyfile(out / f"{name}-light-{_README_WIDTH}.png", _IMAGES / f"viewer-{name}.png")


if __name__ == "__main__":
    main()
