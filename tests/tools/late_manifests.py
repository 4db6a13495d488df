"""A log that holds the manifest after the events that it describes."""

from __future__ import annotations

import struct
from typing import Any

import etl_builder as build
from etl_oracle import GUID

MANIFEST = """<instrumentationManifest xmlns="http://schemas.microsoft.com/win/2004/08/events"><instrumentation><events>
<provider name="Late" guid="{12345678-9abc-def0-1122-334455667788}"><tasks><task name="Seven" value="1"/></tasks>
<events><event value="7" version="0" task="Seven" template="Args"/></events>
<templates><template tid="Args"><data name="Count" inType="win:UInt32"/></template></templates>
</provider></events></instrumentation></instrumentationManifest>"""


def late_manifest() -> Any:
    """An event, its manifest, and another event of the same kind."""
    trace = build.Trace()
    for at in (1, 3):
        trace.add(0, build.manifest(GUID, 7, trace.begin + at, struct.pack("<I", 40 + at), task=1))
        if at == 1:
            chunk = struct.pack("<BBBBHH", 1, 1, 0, 0x5B, 1, 0) + MANIFEST.encode()
            trace.add(0, build.manifest(GUID, 0xFFFE, trace.begin + 2, chunk))
    return trace
