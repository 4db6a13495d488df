"""The two sides of a comparison of captures, as `lastbranch diff` and `lastbranch view --diff` take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from .options import Capture, complete_file, complete_folder, grouped

__all__ = ["SecondSide", "side_options"]


@dataclass(frozen=True, slots=True)
class SecondSide:
    """What is said of the second side."""

    against: tuple[str, ...] = ()
    symfs_b: str | None = None

    def sides(self, capture: Capture) -> list[Capture]:
        """A and B, of the arguments and options of ``capture``."""
        paths = self._paths(capture.paths)
        folders = capture.symfs, self.symfs_b or capture.symfs
        return [
            replace(capture, paths=side, symfs=symfs, weights=weights)
            for side, symfs, weights in zip(paths, folders, _weights_of(paths, capture.weights), strict=True)
        ]

    def _paths(self, words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.against and words:
            return words, self.against
        if len(words) != 2:
            raise click.UsageError("Give A and B, or the captures of A and those of B with --against.")
        return words[:1], words[1:]


def _weights_of(sides: Sequence[Sequence[str]], weights: dict[str, int]) -> list[dict[str, int]]:
    """The weights that name a capture of each side."""
    from ..opening import captures_at, is_called

    files = [captures_at(side).paths if weights else [] for side in sides]
    chosen = [{name: n for name, n in weights.items() if any(is_called(f, name) for f in side)} for side in files]
    for name in weights:
        if not any(name in side for side in chosen):
            raise click.BadParameter(f"no capture is called {name!r}", param_hint="--weight")
    return chosen


side_options = grouped(
    "second",
    SecondSide,
    click.option(
        "--against",
        multiple=True,
        metavar="B",
        shell_complete=complete_file,
        help="A capture of the second side, whose captures are added up (repeatable); all arguments are of the first "
        "then.",
    ),
    click.option(
        "--symfs-b", metavar="DIR", shell_complete=complete_folder, help="As --symfs, of B, if it is another folder."
    ),
)
"""--against and --symfs-b, as one `SecondSide` argument ``second``."""
