"""Flame's trees in the page's own code: turned over, they are what counting paths from their ends gives."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from viewer import node_modules

_SCRIPT = """
import { flipped, layout } from "./flame.mjs";
import { readFileSync } from "node:fs";
const asked = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(asked.map(({ most, names, ...tree }) => {
  const made = flipped(tree, most);
  const { left, rows } = layout(made, names);
  const lists = Object.entries(made).map(([key, column]) => [key, typeof column === "number" ? column : [...column]]);
  return { ...Object.fromEntries(lists), left: [...left], rows };
})));
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With flame.ts as a module that node runs."""
    modules, made = node_modules(), tmp_path_factory.mktemp("flame")
    words = [modules / ".bin" / "esbuild", "src/flame.ts", "--bundle", "--format=esm", f"--outfile={made}/flame.mjs"]
    subprocess.run(words, cwd=modules.parent, check=True, capture_output=True)
    (made / "script.mjs").write_text(_SCRIPT)
    return made


def random_tree(seed: int) -> dict[str, list[int]]:
    """Parents before their children, whose names differ from each other."""
    chance = random.Random(seed)
    tree: dict[str, list[int]] = {"parent": [], "name": [], "own": []}
    known = set()
    while len(known) < chance.randint(1, 60):
        key = chance.randint(-1, len(known) - 1), chance.randint(0, 6)
        if key not in known:
            known.add(key)
            for name, value in zip(tree, (*key, chance.choice((0, 0, 1, 1, 5, 40))), strict=True):
                tree[name].append(value)
    return tree


def path_of(parent: list[int], name: list[int], node: int) -> tuple[int, ...]:
    """Names, the root's first."""
    return () if node < 0 else (*path_of(parent, name, parent[node]), name[node])


def test_a_tree_from_its_ends_has_the_heaviest_paths(folder: Path) -> None:
    trees = [random_tree(seed) for seed in range(60)]
    limits = [(tree, most) for tree in trees for most in (0, 3, 10, 1000)]
    asked = [{**tree, "most": most, "names": [*"abcdefg"]} for tree, most in limits]
    done = subprocess.run(
        ["node", "script.mjs"],
        cwd=folder,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    closed = 0
    for (tree, most), made in zip(limits, json.loads(done.stdout), strict=True):
        total, own = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
        for node, weight in enumerate(tree["own"]):
            path = path_of(tree["parent"], tree["name"], node)[::-1]
            total.update({path[: depth + 1]: weight for depth in range(len(path))} if weight else {})
            own[path] += weight
        parent, samples = made["parent"], made["samples"]
        paths = [path_of(parent, made["name"], node) for node in range(len(parent))]
        assert all(up < node for node, up in enumerate(parent))
        assert len(set(paths)) == len(paths)
        assert samples == [total[path] for path in paths]
        assert made["own"] == [own[path] for path in paths]
        callers = Counter({path: total[path] - own[path] for path in total})
        children = Counter[tuple[int, ...]]()
        for path in paths:
            children[path[:-1]] += total[path]
        opened = [path for path in paths if children[path]]
        assert all(children[path] == callers[path] for path in opened)  # all callers, or none
        assert len(opened) <= most
        shut = [path for path in paths if callers[path] and not children[path]]
        assert made["closed"] == len(shut)
        heaviest = max((total[path] for path in shut), default=0)
        assert all(2 * total[path] >= heaviest for path in opened)
        if most == 1000:
            assert {path for path in total if total[path]} == set(paths)
        closed += len(shut)
        for row in made["rows"]:  # beside each other, within their parents
            ends = [0.0]
            for node in row:
                up = parent[node]
                assert made["left"][node] >= max(ends[-1], made["left"][up] if up >= 0 else 0)
                ends.append(made["left"][node] + samples[node])
                assert up < 0 or ends[-1] <= made["left"][up] + samples[up]
    assert closed > 0
