"""Write the table of structure sizes and offsets anew, and have mingw-w64 prove what its headers and libraries have.

python tests/tools/make_etw_layouts.py           # the table only
python tests/tools/make_etw_layouts.py --prove   # with x86_64- and i686-w64-mingw32-gcc
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from lastbranch.etw.structures import LAYOUTS, UNPROVEN, layout_of
from lastbranch.etw.windows import kernel as privilege
from lastbranch.etw.windows import libraries as functions

TABLE = Path(__file__).parents[2] / "src/lastbranch/etw/layouts.json"
COMPILERS = {64: "x86_64-w64-mingw32-gcc", 32: "i686-w64-mingw32-gcc"}
HEADERS = ("windows.h", "wmistr.h", "evntrace.h", "evntcons.h", "evntprov.h")
NOT_ASKED = {("EVENT_TRACE_PROPERTIES", "FlushThreshold"), ("EVENT_HEADER_EXTENDED_DATA_ITEM", "Linkage")}
"""The first is newer than the headers (and a second name of AgeLimit), the other a bit field."""

NOT_IN_LIBRARY = {64: set(), 32: {"TraceQueryInformation", "EventSetInformation"}}
"""Declared by the headers and missing in the import libraries."""


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


def prototypes(bits: int) -> str:
    """A C program that compiles only if every function and callback has the type that the headers declare, and links
    only if the libraries export it with arguments of so many bytes (32 bits: ``_StartTraceW@12``)."""
    proven = {n: f for n, f in functions.FUNCTIONS.items() if n not in functions.UNPROVEN}
    signatures = [(f.result, f.arguments) for f in proven.values()] + list(functions.CALLBACKS.values())
    names = {t for result, arguments in signatures for t in (result, *arguments)} - {"VOID"}
    sizes = {
        n: bits // 8 if functions.c_type(n) is ctypes.c_void_p else ctypes.sizeof(functions.c_type(n)) for n in names
    }
    lines = ["#define _WIN32_WINNT 0x0A00", *(f"#include <{h}>" for h in HEADERS), "#include <stddef.h>"]
    lines += [f'_Static_assert(sizeof({name}) == {size}, "{name}");' for name, size in sorted(sizes.items())]
    lines += [f'_Static_assert(sizeof(TOKEN_PRIVILEGES) == {ctypes.sizeof(privilege.TokenPrivileges)}, "privileges");']
    at = privilege.TokenPrivileges.Luid.offset
    lines += [f'_Static_assert(offsetof(TOKEN_PRIVILEGES, Privileges[0].Luid) == {at}, "luid");']
    lines += ["void callbacks(void) {"]
    for name, (result, arguments) in functions.CALLBACKS.items():
        lines.append(f"{name} of_{name} = ({result} (WINAPI *)({', '.join(arguments)})) 0; (void) of_{name};")
    lines += ["}", "int main(void) {"]
    for name, function in proven.items():
        if name in NOT_IN_LIBRARY[bits]:
            lines += ["#ifdef ONLY_COMPILED"]
        lines += [f'#line 1 "{name}"']  # for the compiler's messages
        arguments = ", ".join(function.arguments) or "void"
        lines.append(f"{function.result} (WINAPI *volatile of_{name})({arguments}) = {name}; (void) of_{name};")
        if name in NOT_IN_LIBRARY[bits]:
            lines += ["#endif"]
    return "\n".join([*lines, "return 0; }"]) + "\n"


def _compiled(program: str, bits: int, *options: str) -> subprocess.CompletedProcess[str]:
    words = [COMPILERS[bits], "-Werror=incompatible-pointer-types", "-x", "c", *options]
    return subprocess.run(words, input=program, capture_output=True, text=True)


def prove(bits: int) -> subprocess.CompletedProcess[str]:
    """Compile the assertions."""
    return _compiled(assertions(bits), bits, "-fsyntax-only", "-")


def prove_functions(bits: int) -> subprocess.CompletedProcess[str]:
    """Compile the prototypes and link them."""
    compiled = _compiled(prototypes(bits), bits, "-fsyntax-only", "-DONLY_COMPILED", "-")
    if compiled.returncode:
        return compiled
    with tempfile.TemporaryDirectory() as folder:
        return _compiled(prototypes(bits), bits, "-o", f"{folder}/program.exe", "-", "-ladvapi32")


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), indent=1) + "\n")
    failed = False
    for bits in COMPILERS if "--prove" in sys.argv else ():
        for what, done in (("structures", prove(bits)), ("functions", prove_functions(bits))):
            print(f"{what}, {bits} bits: {'equal' if done.returncode == 0 else done.stderr}")
            failed |= done.returncode != 0
    sys.exit(failed)
