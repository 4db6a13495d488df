"""The Python of docs/guides/sessions.md runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from private_registry import registry_at

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "sessions.md"


@pytest.mark.skipif(sys.platform != "linux", reason="the portable kernel runs on Linux")
def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    with registry_at(tmp_path / "registry"):
        for part in GUIDE.read_text().split("```python\n")[1:]:
            exec(part.partition("```")[0], known)
        out = capsys.readouterr().out
        assert "three apples" in out
        assert "\n87 StartTrace" in out
        assert known["etw"].sessions() == []
