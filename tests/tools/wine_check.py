"""Proofs about the Windows code without Windows: programs for Windows, built by mingw-w64 and run by wine.

    python tests/tools/wine_check.py

The first program prints sizes and offsets of the trace API's structures, which are compared with the package's; the
program declares the four structures that mingw-w64's headers lack, as the vendor's pages do. The second looks up every
function by name, enables a privilege with the bytes that the package passes, and makes the calls that fail or, in wine,
only pretend to succeed. The third makes folders as CPython does, and says which access lists they have, and files that
are moved out of them.

Wine has no trace sessions, so nothing else of them is run. If wine or a compiler is missing, the check is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lastbranch.etw.flags import SE_SYSTEM_PROFILE_NAME, LogFileMode
from lastbranch.etw.properties import SessionRequest
from lastbranch.etw.status import Status
from lastbranch.etw.structures import LAYOUTS, UNPROVEN, layout_of
from lastbranch.etw.windows import kernel as privilege
from lastbranch.etw.windows.kernel import INVALID_HANDLES
from lastbranch.etw.windows.libraries import FUNCTIONS, MERGE
from lastbranch.etw.windows.libraries import UNPROVEN as UNPROVEN_FUNCTIONS
from lastbranch.etw.windows.memory import Properties
from make_etw_layouts import COMPILERS, HEADERS, NOT_ASKED

START = 120
"""Seconds for wine's first start, which makes its prefix."""
_HEADERS = ["#define _WIN32_WINNT 0x0A00", *(f"#include <{h}>" for h in HEADERS), "#include <stddef.h>",
            "#include <stdio.h>"]  # fmt: skip
_AS_THE_PAGES_DECLARE = """
#pragma pack(push, 1)
typedef struct ETW_LBR_ENTRY { PVOID FromAddress; PVOID ToAddress; PVOID Information; } ETW_LBR_ENTRY;
typedef struct LBR_TRACE_EVENT_DATA {
  ULONGLONG TimeStamp; ULONG ProcessId; ULONG ThreadId; ULONG Options; ULONG Unused; ETW_LBR_ENTRY Entries[1];
} LBR_TRACE_EVENT_DATA;
#pragma pack(pop)
typedef struct PERFINFO_GROUPMASK { ULONG Masks[8]; } PERFINFO_GROUPMASK;
typedef struct TRACE_STACK_CACHING_INFO {
  BOOLEAN Enabled; ULONG CacheSize; ULONG BucketCount;
} TRACE_STACK_CACHING_INFO;
"""
_NOT_IN_C = NOT_ASKED | {("TRACE_STACK_CACHING_INFO", "Padding")}
"""(structure, member): the last is the gap that a compiler leaves."""


# -- the programs


def asked(name: str, bits: int = 64) -> dict[str, int]:
    """``{"sizeof": bytes, field: offset...}`` of structure ``name``, as far as a program can say it."""
    return {field: at for field, at in layout_of(name, bits).items() if (name, field) not in _NOT_IN_C}


def offsets_program() -> str:
    """Prints ``structure member number`` for each size and offset."""
    lines = [*_HEADERS, _AS_THE_PAGES_DECLARE, "int main(void) {"]
    for name in LAYOUTS:
        for field in asked(name):
            number = f"sizeof({name})" if field == "sizeof" else f"offsetof({name}, {field})"
            lines.append(f'printf("{name} {field} %u\\n", (unsigned) {number});')
    return "\n".join([*lines, "return 0; }"]) + "\n"


def _bytes(data: bytes) -> str:
    return "{" + ", ".join(map(str, data)) + "}"


def calls_program() -> str:
    """Prints ``what number`` for each call; properties and privileges are the package's bytes."""
    request = SessionRequest("wine", file="C:\\wine.etl", mode=LogFileMode.FILE_MODE_SEQUENTIAL)
    properties = Properties("StartTrace", request)
    asked = privilege.TokenPrivileges(1, privilege._Luid(), privilege._ENABLED)
    rights, luid_at = privilege._QUERY | privilege._ADJUST, privilege.TokenPrivileges.Luid.offset
    names = [(library, name) for name, f in FUNCTIONS.items() if f.libraries is not MERGE for library in f.libraries]
    lookups = "\n".join(
        f'printf("export {library} {name} %d\\n", GetProcAddress(LoadLibraryA("{library}"), "{name}") != NULL);'
        for library, name in names
    )
    return (
        "\n".join(_HEADERS)
        + f"""
static unsigned char properties[] = {_bytes(bytes(properties._memory))};
static unsigned char query[sizeof properties];
static unsigned char asked[] = {_bytes(bytes(asked))};

static void enable(const wchar_t *name, const char *what) {{
  HANDLE token = NULL;
  printf("%s token %d\\n", what, OpenProcessToken(GetCurrentProcess(), {rights}, &token));
  printf("%s luid %d\\n", what, LookupPrivilegeValueW(NULL, name, (LUID *) (asked + {luid_at})));
  int adjusted = AdjustTokenPrivileges(token, FALSE, (TOKEN_PRIVILEGES *) asked, 0, NULL, NULL);
  unsigned long error = GetLastError();
  printf("%s adjusted %d\\n%s error %lu\\n", what, adjusted, what, error);
  CloseHandle(token);
}}

int main(void) {{
{lookups}
  SetLastError(0);
  void *none = LoadLibraryA("no-such-library.dll");
  printf("library missing %d %lu\\n", none == NULL, GetLastError());
  SetLastError(0);
  none = GetProcAddress(LoadLibraryA("advapi32.dll"), "NoSuchFunctionW");
  printf("function missing %d %lu\\n", none == NULL, GetLastError());
  enable(L"{SE_SYSTEM_PROFILE_NAME}", "held");
  enable(L"SeNoSuchPrivilege", "unknown");
  TRACEHANDLE handle = 0;
  memcpy(query, properties, sizeof properties);
  printf("StartTrace %lu\\n", StartTraceW(&handle, L"wine", (EVENT_TRACE_PROPERTIES *) properties));
  printf("handle %llu\\n", (unsigned long long) handle);
  printf("ControlTrace %lu\\n", ControlTraceW(handle, NULL, (EVENT_TRACE_PROPERTIES *) query, 0));
  printf("unchanged %d\\n", !memcmp(query, properties, sizeof properties));
  ULONG count = 0;
  EVENT_TRACE_PROPERTIES *array[1] = {{(EVENT_TRACE_PROPERTIES *) query}};
  printf("QueryAllTraces %lu\\n", QueryAllTracesW(array, 1, &count));
  wchar_t missing[] = L"C:\\\\no-such-log.etl";
  EVENT_TRACE_LOGFILEW log = {{ .LogFileName = missing, .ProcessTraceMode = PROCESS_TRACE_MODE_EVENT_RECORD }};
  printf("OpenTrace %llu\\n", (unsigned long long) OpenTraceW(&log));
  return 0;
}}
"""
    )


PRIVATE_LIST = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;OW)"
"""The access list of ``os.mkdir(path, 0o700)`` by CPython 3.11.10, 3.12.4, 3.13 and later: full access for the system,
the administrators and the owner, and no rights inherited from the parent folder."""


def access_program() -> str:
    """The source of a program that prints ``what list`` for folders and files in a folder that everybody may read."""
    return (
        "\n".join([*_HEADERS, "#include <sddl.h>", "#include <aclapi.h>"])
        + f"""
static void show(const char *what, wchar_t *path) {{
  PSECURITY_DESCRIPTOR found = NULL;
  wchar_t *text = NULL;
  unsigned long failed = GetNamedSecurityInfoW(path, SE_FILE_OBJECT, DACL_SECURITY_INFORMATION, NULL, NULL, NULL, NULL,
                                               &found);
  if (!failed)
    ConvertSecurityDescriptorToStringSecurityDescriptorW(found, 1, DACL_SECURITY_INFORMATION, &text, NULL);
  printf("%s %ls\\n", what, text ? text : L"?");
}}

static void file(const wchar_t *path) {{
  CloseHandle(CreateFileW(path, GENERIC_WRITE, 0, NULL, CREATE_NEW, 0, NULL));
}}

int main(void) {{
  SECURITY_ATTRIBUTES alone = {{ sizeof alone, NULL, FALSE }};
  wchar_t root[MAX_PATH];
  GetTempPathW(MAX_PATH, root);
  SetCurrentDirectoryW(root);
  ConvertStringSecurityDescriptorToSecurityDescriptorW(L"{PRIVATE_LIST}", 1, &alone.lpSecurityDescriptor, NULL);
  CreateDirectoryW(L"around", NULL);
  CreateDirectoryW(L"around/0o700", &alone);
  CreateDirectoryW(L"around/part", NULL);
  file(L"around/made");
  file(L"around/part/left");
  show("around", L"around");
  show("0o700", L"around/0o700");
  show("part", L"around/part");
  MoveFileExW(L"around/part/left", L"around/left", MOVEFILE_REPLACE_EXISTING);
  show("made", L"around/made");
  show("left", L"around/left");
  return 0;
}}
"""
    )


# -- what they say


def missing(bits: int = 64) -> str:
    """Why the programs cannot be built or run here; empty where they can."""
    if shutil.which(COMPILERS[bits]) is None:
        return f"{COMPILERS[bits]} is not installed (Debian: g++-mingw-w64-x86-64, gcc-mingw-w64-i686)"
    return "" if shutil.which("wine") else "wine is not installed (Debian: wine)"


class NotRunError(RuntimeError):
    """A program that wine does not run, or that fails under wine."""


def run(program: str, folder: Path, bits: int = 64) -> list[str]:
    """Build ``program`` and run it by wine, whose prefix is in ``folder``; its lines.

    Raises `RuntimeError` if the program cannot be built, `NotRunError` if it fails.
    """
    source, binary = folder / "program.c", folder / "program.exe"
    source.write_text(program)
    words = [COMPILERS[bits], "-O1", "-Wall", "-Werror", "-o", str(binary), str(source), "-ladvapi32"]
    built = subprocess.run(words, capture_output=True, text=True)
    if built.returncode:
        raise RuntimeError(built.stderr)
    done = subprocess.run(
        ["wine", str(binary)],
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START,
    )
    if done.returncode or not done.stdout:  # without wine32 it runs nothing and succeeds
        raise NotRunError(f"wine does not run it (exit code {done.returncode})")
    return done.stdout.splitlines()


def _environment(folder: Path) -> dict[str, str]:
    """An environment in which wine makes all its files in ``folder``."""
    return {
        **os.environ,
        "WINEPREFIX": str(folder / "wine"),
        "TMPDIR": str(folder),
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree,mshtml,winemenubuilder.exe=",  # what asks for downloads, and for a desktop
    }


def stop(folder: Path) -> None:
    """End what wine has left running for the prefix in ``folder``."""
    subprocess.run(["wineserver", "-k"], env=_environment(folder), check=False)


def wrong_offsets(lines: list[str], bits: int = 64) -> list[str]:
    """The differences of the first program's lines from the package's layouts."""
    said: dict[str, dict[str, int]] = {}
    for line in lines:
        name, field, number = line.split()
        said.setdefault(name, {})[field] = int(number)
    return [
        f"{name}: the program says {said.get(name)}, the package {asked(name, bits)}"
        for name in LAYOUTS
        if said.get(name) != asked(name, bits)
    ]


EXPECTED = {
    "library missing": f"1 {int(Status.MOD_NOT_FOUND)}", "function missing": f"1 {int(Status.PROC_NOT_FOUND)}",
    "held token": "1", "held luid": "1", "held adjusted": "1", "held error": "0",
    "unknown luid": "0",
    "StartTrace": "0", "handle": str(0xCAFE4242), "ControlTrace": "0", "unchanged": "1",
    "OpenTrace": str(INVALID_HANDLES[1]),
}  # fmt: skip
"""The expected output of the second program. StartTrace and ControlTrace of wine succeed and do nothing; the package
detects this. Wine does not report a privilege that is not held (Windows: 1300), so the program does not ask."""


def checked_calls(lines: list[str]) -> Iterator[tuple[bool, str]]:
    """(whether a call is as expected, its result) for the second program's lines."""
    said = dict(line.rsplit(" ", 1) for line in lines)
    said |= {line.rsplit(" ", 2)[0]: " ".join(line.rsplit(" ", 2)[1:]) for line in lines if " missing " in line}
    for what, wanted in EXPECTED.items():
        yield said.get(what) == wanted, f"{what}: {said.get(what)}" + f", not {wanted}" * (said.get(what) != wanted)
    for name, function in FUNCTIONS.items():
        if function.libraries is MERGE:
            continue
        found = [library for library in function.libraries if said.get(f"export {library} {name}") == "1"]
        if name in UNPROVEN_FUNCTIONS and not found:
            yield True, f"{name}: this wine does not have it"
        else:
            yield bool(found), f"{name}: exported by {' and '.join(found) or 'none'}"


def checked_access(lines: list[str]) -> Iterator[tuple[bool, str]]:
    """(whether a list is as expected, a sentence) for the third program's lines."""
    said = dict(line.split(" ", 1) for line in lines)
    for one, other, same in (("part", "around", True), ("left", "made", True), ("0o700", "around", False)):
        right = said.get(one, "?") != "?" and (said[one] == said.get(other)) is same
        yield right, f"access list of {one} ({said.get(one)}), {'the same as' if same else 'another than'} of {other}"


def _narrow(folder: Path) -> list[str]:
    """The output of a program for 32-bit Windows, if this wine runs such programs."""
    try:
        lines = run(offsets_program(), folder, 32)
    except NotRunError as error:
        return [f"skipped: 32 bits: {error}"]
    return wrong_offsets(lines, 32) or ["pass: the same in 32 bits"]


def main() -> int:
    if why := missing():
        print(f"skipped: {why}")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory(prefix="lastbranch-wine-") as name:
        folder, began = Path(name), time.monotonic()
        wrong = wrong_offsets(run(offsets_program(), folder))
        print(f"wine's first start: {time.monotonic() - began:.1f} s")
        print(
            "\n".join(wrong)
            or f"pass: sizes and offsets of {len(LAYOUTS)} structures, "
            f"{len(UNPROVEN)} of them as the vendor's pages declare them"
        )
        failed += bool(wrong)
        if missing(32):
            print(f"skipped: 32 bits: {missing(32)}")
        else:
            wrong = _narrow(folder)
            print("\n".join(wrong))
            failed += not wrong[0].startswith(("pass", "skipped"))
        for right, what in (
            *checked_calls(run(calls_program(), folder)),
            *checked_access(run(access_program(), folder)),
        ):
            print(f"{'pass' if right else 'FAIL'}: {what}")
            failed += not right
        stop(folder)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
