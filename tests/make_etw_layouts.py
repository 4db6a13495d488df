"""Write the table of structure sizes and offsets anew, and have mingw-w64's compiler prove what its headers have.

python tests/make_etw_layouts.py           # the table only
python tests/make_etw_layouts.py --prove   # with x86_64- and i686-w64-mingw32-gcc
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lastbranch.etw.structures import LAYOUTS, UNPROVEN, layout_of

TABLE = Path(__file__).parents[1] / "src/lastbranch/etw/layouts.json"
COMPILERS = {64: "x86_64-w64-mingw32-gcc", 32: "i686-w64-mingw32-gcc"}
HEADERS = ("windows.h", "wmistr.h", "evntrace.h", "evntcons.h", "evntprov.h")
NOT_ASKED = {("EVENT_TRACE_PROPERTIES", "FlushThreshold"), ("EVENT_HEADER_EXTENDED_DATA_ITEM", "Linkage")}
"""The first is newer than the headers (and a second name of AgeLimit), the other a bit field."""


def table() -> dict[str, dict[str, dict[str, int]]]:
    """Structure -> bits -> sizeof and offsets."""
    return {name: {str(bits): layout_of(name, bits) for bits in (64, 32)} for name in LAYOUTS}


def assertions(bits: int) -> str:
    """A C program that compiles only if every size and offset is the headers'."""
    lines = ["#define _WIN32_WINNT 0x0A00", *(f"#include <{h}>" for h in HEADERS), "#include <stddef.h>"]
    for name in LAYOUTS:
        if name in UNPROVEN:
            continue
        layout = layout_of(name, bits)
        lines.append(f'_Static_assert(sizeof({name}) == {layout.pop("sizeof")}, "{name}");')
        asked = {f: at for f, at in layout.items() if (name, f) not in NOT_ASKED}
        lines += [f'_Static_assert(offsetof({name}, {f}) == {at}, "{name}.{f}");' for f, at in asked.items()]
    return "\n".join(lines) + "\n"


def prove(bits: int) -> subprocess.CompletedProcess[str]:
    """Compile the assertions."""
    words = [COMPILERS[bits], "-x", "c", "-fsyntax-only", "-"]
    return subprocess.run(words, input=assertions(bits), capture_output=True, text=True)


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), indent=1) + "\n")
    failed = False
    for bits in COMPILERS if "--prove" in sys.argv else ():
        done = prove(bits)
        print(f"{bits} bits: {'equal' if done.returncode == 0 else done.stderr}")
        failed |= done.returncode != 0
    sys.exit(failed)
