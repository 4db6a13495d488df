"""Draw docs/images/executions.svg: how near observed counts and estimated executions come to what was executed.

python benchmarks/bench_truth.py --json FILE && python tools/executions_figure.py FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "executions.svg"

LEFT, RIGHT, TOP, ROW = 120, 660, 56, 24
LOWEST = 20
"""Percent at the left edge."""
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #333 }
.axis { stroke: #ccc } .way { stroke: #888; stroke-width: 2 }
.observed { fill: #c2571a } .used { fill: #2b6cb0 } .refused { fill: none; stroke: #2b6cb0; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .axis { stroke: #555 } }
"""


def place(part: float) -> float:
    """The place of a part (0 to 1) on the axis."""
    return LEFT + (100 * part - LOWEST) / (100 - LOWEST) * (RIGHT - LEFT)


def drawn(rows: list[dict[str, Any]]) -> str:
    bottom = TOP + ROW * len(rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {RIGHT + 40} {bottom + 28}" role="img" '
        'aria-label="Overlap of branch shares with what was executed, observed and estimated, for each program">',
        f"<style>{STYLE}</style>",
    ]
    keys = (("observed", "observed"), ("used", "executions, estimated"), ("refused", "estimate refused"))
    for i, (kind, text) in enumerate(keys):
        out.append(f'<circle class="{kind}" cx="{LEFT + 180 * i + 6}" cy="16" r="6"/>')
        out.append(f'<text x="{LEFT + 180 * i + 18}" y="20">{text}</text>')
    for percent in range(LOWEST, 101, 20):
        x = place(percent / 100)
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 14}" y2="{bottom}"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{percent} %</text>')
    for i, row in enumerate(rows):
        y, before = TOP + ROW * i, place(row["observed"]["overlap"])
        out.append(f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{row["program"]}</text>')
        if row["estimated"]:
            after, kind = place(row["estimated"]["overlap"]), "used" if row["used"] else "refused"
            if row["used"]:
                out.append(f'<line class="way" x1="{before:.1f}" x2="{after:.1f}" y1="{y}" y2="{y}"/>')
            out.append(f'<circle class="{kind}" cx="{after:.1f}" cy="{y}" r="6"/>')
        out.append(f'<circle class="observed" cx="{before:.1f}" cy="{y}" r="6"/>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    FIGURE.write_text(drawn(json.loads(Path(sys.argv[1]).read_text())["rows"]))
