"""Captures of perf.data with any fields in their samples, for property tests."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

import perfdata_writer as pw
from perfdata_writer import Attr, Builder

KNOWN_KINDS = (1 << 25) - 1 & ~pw.WEIGHT_STRUCT
SIZES = (*range(64, 152, 8), 160)


def word(rng: random.Random, kind: str) -> int:
    if kind == "i":
        return rng.choice([-1, 0, rng.randrange(1 << 31)])
    if kind == "I":
        return rng.randrange(1 << 31)
    return rng.choice([0, 1, rng.randrange(1 << 16), rng.randrange(1 << 48), rng.randrange(1 << 64), (1 << 64) - 1])


def sample_values(rng: random.Random, attr: Attr) -> dict[str, Any]:
    """Random values for every field of the attribute's samples."""
    out: dict[str, Any] = {}
    for item in pw.sample_spec(attr):
        if isinstance(item, str):
            name, kind = item.split(":")
            if not name.endswith("_nr") and name not in ("raw_size", "stack_size", "aux_size"):
                out[name] = rng.randrange(1 << 62) if name == "time" else word(rng, kind)
            continue
        name, _, kind = item
        some = rng.choice([0, 1, 2, 5, 33])
        if name == "branches":
            out[name] = [(word(rng, "Q"), word(rng, "Q"), word(rng, "Q")) for _ in range(some)]
        elif name == "counters":
            out[name] = [word(rng, "Q") for _ in out["branches"]]
        elif name == "read_values":
            out[name] = [{n: word(rng, "Q") for n in ("value", "read_id", "read_lost")} for _ in range(some)]
        elif name in ("regs_user", "regs_intr"):
            out[name + "_abi"] = rng.choice([0, 1, 2])
            mask = attr[f"sample_{name}"] if out[name + "_abi"] else 0
            out[name] = [word(rng, "Q") for _ in range(mask.bit_count())]
        elif kind == "x":
            out[name] = rng.randbytes(some)
        elif name == "stack_dyn_size":
            out[name] = rng.randrange(100)
        else:
            out[name] = [word(rng, kind) for _ in range(some)]
    if not out.get("stack"):
        out.pop("stack_dyn_size", None)
    return out


@st.composite
def captures(draw: st.DrawFn) -> Builder:
    """A capture with one to three events of any layout, and up to 30 samples with mappings between the samples."""
    rng = random.Random(draw(st.integers(0, 1 << 32)))
    number = draw(st.integers(1, 3))
    weight = draw(st.sampled_from([0, pw.WEIGHT_STRUCT]))  # the kernel refuses both weights at once
    size, trailers = draw(st.sampled_from(SIZES)), draw(st.booleans())
    shared = draw(st.sampled_from([pw.ID, pw.IDENTIFIER])) if number > 1 else 0
    kinds = draw(st.integers(0, KNOWN_KINDS))
    builder: Builder | None = None
    for i in range(number):
        if i and shared == pw.IDENTIFIER:
            kinds = draw(st.integers(0, KNOWN_KINDS))
        kinds = (kinds | shared) & ~(pw.WEIGHT if weight else 0) | weight
        if shared == pw.ID:
            kinds &= ~pw.IDENTIFIER
        fields = {
            "sample_type": kinds,
            "ids": [100 * (i + 1), 100 * (i + 1) + 1],
            "read_format": draw(st.integers(0, 31)),
            "branch_sample_type": draw(st.sampled_from([1, 9])) | draw(st.integers(0, 15)) << 16,
            "sample_regs_user": draw(st.sampled_from([0, 1, 0b1011, (1 << 64) - 1])),
            "sample_regs_intr": draw(st.sampled_from([0, 0xFF0FFF])),
            "size": size,
            "sample_id_all": trailers,
        }
        if builder is None:
            builder = Builder(**fields)
        else:
            builder.attr(**fields)
    assert builder is not None
    for _ in range(draw(st.integers(1, 30))):  # a file without any record looks like one that was not finished
        event = rng.randrange(number)
        attr = builder.capture.attrs[event]
        values = sample_values(rng, attr)
        values |= {n: rng.choice(attr.ids) for n in ("id", "identifier") if n in values}
        builder.sample(rng.randrange(8), event=event, **values)
        if rng.random() < 0.2:
            builder.mmap2(event=event, pid=1, addr=4096, length=4096, pgoff=0, name="/bin/x", time=rng.randrange(99))
    return builder
