"""Rows with equal keys made one, in the order of the keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..model import Array

__all__ = ["group"]


def group(keys: Sequence[Array], values: Sequence[Array], ops: Sequence[np.ufunc]) -> tuple[list[Array], list[Array]]:
    """Make one row of all rows with equal ``keys``, combining each value column by its ufunc; sorted by the keys."""
    if not len(keys[0]):
        return list(keys), list(values)
    narrow = keys[0].itemsize < 4  # a stable sort of those goes by their digits
    order = np.lexsort(tuple(keys)[::-1]) if len(keys) > 1 else np.argsort(keys[0], stable=narrow)
    ordered = [k[order] for k in keys]
    new = np.zeros(len(order), bool)
    new[0] = True
    for k in ordered:
        new[1:] |= k[1:] != k[:-1]
    starts = np.flatnonzero(new)
    return [k[starts] for k in ordered], [op.reduceat(v[order], starts) for v, op in zip(values, ops, strict=True)]
