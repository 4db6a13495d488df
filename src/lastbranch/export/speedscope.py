"""``--to speedscope``: speedscope's own file format, a ``sampled`` profile for each thread and event.

Fields and their rules are those of src/lib/file-format-spec.ts in github.com/jlfwong/speedscope, whose schema is at
`SCHEMA`. Each sample weighs one, in time order.
"""

from __future__ import annotations

import os
from typing import IO

from ..analysis import Label
from ..model import Profile, visible
from .interface import ExportOptions, ExportResult
from .stack_pass import NamedStacks, json_text, lane_name, spooled, write_array, write_joined

__all__ = ["SCHEMA", "export"]

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the samples of ``profile`` by thread.

    Raises `NotRecordedError` where there are no samples.
    """
    events = len(profile.events)
    with spooled(profile, options, by_event=True) as (done, spool, symbols):
        named, lanes = NamedStacks(done, symbols), done.lanes
        stacks = [json_text(stack) for stack in named.stacks()]
        head = {
            "$schema": SCHEMA,
            "exporter": "lastbranch",
            "name": visible(os.path.basename(profile.name)),
            "activeProfileIndex": 0,
        }
        out.write(json_text(head)[:-1] + b',"shared":{"frames":')
        write_array(out, ([_frame(named, label)] for label in named.labels))
        out.write(b'},"profiles":[')
        used = spool.lanes()
        several = len({number % events for number in used}) > 1
        for i, number in enumerate(used):
            lane, event = divmod(number, events)
            suffix = f": {visible(profile.events[event].name)}" if several else ""
            count = sum(len(rows) for rows in spool.of(number))
            known = {
                "type": "sampled",
                "name": lane_name(profile, lanes[lane]) + suffix,
                "unit": "none",
                "startValue": 0,
                "endValue": count,
            }
            out.write(b"," * bool(i) + json_text(known)[:-1] + b',"samples":[')
            write_joined(out, (b",".join([stacks[n] for n in rows["stack"].tolist()]) for rows in spool.of(number)))
            out.write(b'],"weights":')
            write_array(out, ([1] * len(rows) for rows in spool.of(number)))
            out.write(b"}")
        out.write(b"]}")
        return done.exported(symbols.notes)


def _frame(named: NamedStacks, label: Label) -> dict[str, object]:
    known = {"name": named.shown(label), "file": visible(label.file), "line": label.line}
    return {name: value for name, value in known.items() if value or name == "name"}
