"""The answer to a question of the viewer: facts as JSON, and named columns of numbers and texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..model import Array, Profile, visible

if TYPE_CHECKING:
    from ..analysis import Estimate

__all__ = ["Answer", "Column", "counts_of", "module_names", "ratio", "texts"]

Column = Array | Sequence[str]
"""Numbers, or texts. A float64 NaN and an empty text are "not known"."""


@dataclass(slots=True)
class Answer:
    """``header`` is ready for JSON. ``columns`` may differ in length: columns of one table share the name up to the
    dot, as in ``edges.count``. Numbers have a dtype of `wire.DTYPES`.
    """

    header: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)


def texts(names: Iterable[str | None]) -> list[str]:
    """Names from captures and symbol files, made safe to show."""
    return [visible(name or "") for name in names]


def counts_of(estimate: Estimate) -> dict[str, Any]:
    """The facts in an answer about its counts of branches and instructions: ``basis``, whether counts are ``replaced``,
    whether replacing was ``refused``, and the same ``note`` as the verbs print."""
    note = visible(estimate.note)
    return {
        "basis": estimate.basis,
        "replaced": estimate.replaced,
        "refused": estimate.refused is not None,
        "note": f"{note[:1].upper()}{note[1:]}.",
    }


def module_names(profile: Profile, rows: Iterable[int]) -> list[str]:
    """The short names of modules, empty for -1."""
    names = [*texts(module.short for module in profile.modules), ""]
    return [names[row] for row in rows]


def ratio(part: Array, whole: Array) -> NDArray[np.float64]:
    """float64: ``part / whole``, NaN (not known) where there is nothing to divide by."""
    out = np.full(len(whole), np.nan)
    np.divide(part, whole, out=out, where=whole != 0)
    return out
