"""One browser for all tests of the viewer, and a viewer of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lastbranch import demo
from lastbranch.view.single_file import single_file
from viewer import chromium, loaded, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that `view --html` makes of the demo's capture."""
    out = tmp_path_factory.mktemp("view") / "demo.html"
    out.write_bytes(single_file(loaded(demo.capture(), demo.symfs()), {}))
    return out


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of a viewer that shows the demo's capture."""
    with serving(loaded(demo.capture(), demo.symfs())) as at:
        yield at
