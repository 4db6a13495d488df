"""Whole numbers of the command line."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["Count"]


class Count(click.IntRange):
    """A whole number, ``least`` or more, that fits in ``bits`` bits: what takes it has no room for others."""

    def __init__(self, least: int = 0, bits: int = 63) -> None:
        super().__init__(min=least)
        self._most = (1 << bits) - 1

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if number > self._most:
            self.fail(f"{value} is more than {self._most}.", param, ctx)
        return number
