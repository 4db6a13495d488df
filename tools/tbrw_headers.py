"""The C headers of libtbrw, and its exported functions, made from the tables that `lastbranch.tbrw` is made from."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from lastbranch.formats.tb5.layout import POINTERS
from lastbranch.tbrw.c_calls import CALLS, CHECK
from lastbranch.tbrw.calls import FUNCTIONS
from lastbranch.tbrw.status import Status
from lastbranch.tbrw.structures import ALIASES, ENUMERATIONS, NUMBERS, PAIRS, RECORDS, ComputedType, Record

__all__ = ["exports", "samprec_shared_h", "tbrw_h", "tbrw_types_h"]

_TYPES_HEAD = """\
typedef wchar_t TBRW_CHAR;
typedef unsigned char TBRW_U8;
typedef unsigned short TBRW_U16;
typedef unsigned int TBRW_U32;
typedef signed int TBRW_S32;
#if defined(_WIN32)
#define TBRW_OS_WINDOWS
typedef signed __int64 TBRW_S64;
typedef unsigned __int64 TBRW_U64;
#else
#if defined(__APPLE__)
#define TBRW_OS_APPLE
#else
#define TBRW_OS_LINUX
#endif
typedef signed long long TBRW_S64;
typedef unsigned long long TBRW_U64;
#ifndef _wcsdup
#define _wcsdup wcsdup /* the guide's examples call it by its Windows name */
#endif
#endif

typedef void *TBRW_PTR;

#ifndef FALSE
#define FALSE 0
#endif
#ifndef TRUE
#define TRUE 1
#endif

typedef struct TBRW_STRING_OR_ID_s {
    union {
        TBRW_U64 soi_uniqueid; /* where it was read */
        TBRW_CHAR *soi_ptr;    /* where it is to be written */
    };
} TBRW_STRING_OR_ID;

"""
_NAMES = {
    ctypes.c_uint8: "TBRW_U8", ctypes.c_uint16: "TBRW_U16", ctypes.c_uint32: "TBRW_U32", ctypes.c_uint64: "TBRW_U64",
    ctypes.c_int64: "TBRW_S64",
}  # fmt: skip
_DEFINED = (
    "TBRW_FILE_", "TBRW_OSFAMILY_", "TBRW_MODE_", "CPU_ARCHITECTURE_", "TBRW_MODULE_", "TBRW_EVENT_",
)  # fmt: skip
"""Numbers that are no members of an enumeration of the guide."""
_CALLBACKS = (
    ("TBRW_DATA", "void *data, TBRW_U32 data_size, TBRW_U32 num_entries"),
    ("TBRW_PID", "TBRW_PID *pid, TBRW_U32 pid_data_size, TBRW_U32 num_entries"),
    ("TBRW_TID", "TBRW_TID *tid, TBRW_U32 tid_data_size, TBRW_U32 num_entries"),
    ("TBRW_MODULE", "TBRW_MODULE *module, TBRW_U32 module_data_size, TBRW_U32 num_entries"),
    ("TBRW_EVENT", "TBRW_EVENT *event, TBRW_U32 event_data_size, TBRW_U32 num_entries"),
    ("TBRW_DATA_DESC", "TBRW_SAMPREC_DESC_ENTRY *data_desc, TBRW_U32 data_desc_size, TBRW_U32 num_entries"),
    *(
        (f"BIND_{kind}", f"const void *data, TBRW_U32 sizeof_data_buffer, TBRW_U64 num_entries, "
         f"const {kind}_BIND_STRUCT *bind_table, TBRW_U32 sizeof_bind_buffer")
        for kind in ("DATA", "MODULE", "TID")
    ),
)  # fmt: skip


def _header(name: str, about: str, body: str, includes: str = "") -> str:
    guard = name.upper().replace(".", "_")
    return (
        f"/* {about}\n   Written from the TBRW User Guide 2.3 (320237-002US). Made by tools/generate.py. */\n"
        f"#ifndef LASTBRANCH_{guard}\n#define LASTBRANCH_{guard}\n\n{includes}"
        f'#ifdef __cplusplus\nextern "C" {{\n#endif\n\n{body}\n#ifdef __cplusplus\n}}\n#endif\n\n#endif\n'
    )


# -- types


def tbrw_types_h() -> str:
    """Basic types, numbers, structures and callbacks."""
    parts = [_TYPES_HEAD]
    for start in _DEFINED:
        parts += [f"#define {n} {int(v):#x}\n" for n, v in NUMBERS.items() if n.startswith(start) and _alone(v)]
        parts.append("\n")
    parts += [_enumeration(name) for name in ENUMERATIONS if "_DESC_" not in name]
    for name, pair in PAIRS.items():
        parts.append(_structure(name, pair))
    done: set[str] = set()
    for name in RECORDS:
        parts += _with_targets(name, done)
    parts += ["typedef TBRW_CPUID_IA32 TBRW_CPUD_IA32; /* so spelled in 8.3 */\n\n"]
    for name, given in _CALLBACKS:
        parts.append(f"typedef TBRW_U32 {name}_CALLBACK({given}, void *user_ptr);\n")
    return _header(
        "tbrw_types.h",
        "Types of the TBRW API. Structures have the layout of 64-bit systems.",
        "".join(parts),
        "#include <wchar.h>\n\n",
    )


def _alone(value: Any) -> bool:
    return type(value) not in ENUMERATIONS.values() and not isinstance(value, Status)


def _enumeration(name: str) -> str:
    kinds = (ENUMERATIONS[name], ComputedType) if name == "TBRW_DESC_TYPE" else (ENUMERATIONS[name],)
    lines = [f"    {n} = {int(v):#x}" for n, v in NUMBERS.items() if isinstance(v, kinds)]
    return "typedef enum {\n" + ",\n".join(lines) + f"\n}} {name};\n\n"


def _with_targets(name: str, done: set[str]) -> Iterator[str]:
    """A structure, after the structures that it points to; each structure once."""
    if name in done or name == "PID_BIND_STRUCT":
        return
    done.add(name)
    for _, target in POINTERS[name].targets if name in POINTERS else ():
        yield from _with_targets(target, done)
    yield _structure(name, RECORDS[name])
    if name == "TBRW_SampleRecordPC":
        yield f"typedef {name} *TBRW_PSampleRecordPC;\n\n"


def _structure(name: str, kind: Any) -> str:
    lines = list(_members(kind, "    ", ALIASES.get(name, {})))
    if name == "TBRW_SAMPREC_DESC_ENTRY":
        inner = [f"        {line.removeprefix('    ')}" for line in lines]
        lines = ["    union {", "        TBRW_U64 force_8_byte_aligned;", "        struct {"]
        lines += [*(f"    {line}" for line in inner), "        };", "    };"]
    return "\n".join([f"typedef struct {name}_s {{", *lines, f"}} {name};", "", ""])


def _members(kind: Any, indent: str, aliases: dict[str, str]) -> Iterator[str]:
    others = {own: other for other, own in aliases.items()}
    for name, inner, *bits in kind._fields_:
        if name in getattr(kind, "_anonymous_", ()):
            yield f"{indent}{'union' if issubclass(inner, ctypes.Union) else 'struct'} {{"
            yield from _members(inner, indent + "    ", aliases)
            yield f"{indent}}};"
        elif name in others:
            yield f"{indent}union {{"
            yield from (f"{indent}    {_NAMES[inner]} {n};" for n in (name, others[name]))
            yield f"{indent}}};"
        elif issubclass(inner, ctypes._Pointer):
            yield f"{indent}{inner._type_.__name__} *{name};"
        else:
            width = f" : {bits[0]}" if bits else ""
            yield f"{indent}{_NAMES.get(inner, inner.__name__)} {name}{width};"


def samprec_shared_h() -> str:
    """The header of the types of a record's fields."""
    body = "".join(_enumeration(name) for name in ENUMERATIONS if "_DESC_" in name)
    return _header("samprec_shared.h", "Types and subtypes of the fields of a sample record.", body)


# -- functions


def _prototype(name: str) -> str:
    given = ", ".join(f"{a.declared} {a.name}".replace("* ", "*") for a in CALLS[name])
    return f"TBRW_U32 {name}({given})"


def tbrw_h() -> str:
    """Status codes and functions."""
    parts = [f"#define {n} {int(v)} /* {v.text} */\n" for n, v in NUMBERS.items() if isinstance(v, Status)]
    parts.append("\n")
    for name, (chapter, function) in FUNCTIONS.items():
        text = (function.__doc__ or "").partition("\n")[0].replace("``", "")
        parts += [f"/* {chapter}: {text} */\n", f"{_prototype(name)};\n\n"]
    return _header(
        "tbrw.h", "The TBRW API: every function returns a status.", "".join(parts), '#include "tbrw_types.h"\n\n'
    )


_BY_HAND = {"TBRW_abort_cleanup_and_close", "TBRW_add_data", "TBRW_add_data_from_file", "TBRW_done_stream_section"}
"""Functions of libtbrw.c that do more than to call their entry point."""


def exports() -> str:
    """The exported functions of libtbrw: each calls an entry point of `lastbranch.tbrw.c_calls`."""
    lines = [
        "/* The exports of libtbrw. Made by tools/generate.py. */",
        "",
        f"#define CALLS {len(CALLS) + 1}",
        f"#define CHECK {CHECK}u",
        "",
        "static void *calls[CALLS];",
        "static int started(void);",
        "",
    ]
    sized: dict[str, Callable[..., Any] | type[Record]] = {**RECORDS, **PAIRS}
    for name, kind in sized.items():
        if name != "PID_BIND_STRUCT":
            lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(kind)}, "{name}");')
    for number, (name, arguments) in enumerate(CALLS.items()):
        types = ", ".join(a.declared for a in arguments)
        names = ", ".join(a.name for a in arguments)
        call = f"((TBRW_U32 (*)({types}))calls[{number}])({names})"
        if name in _BY_HAND:
            lines += ["", f"static {_prototype(name).replace('TBRW_U32 TBRW_', 'TBRW_U32 call_')}", "{"]
            lines += [f"    return {call};", "}"]
        else:
            lines += ["", f"EXPORT {_prototype(name)}", "{", f"    return started() ? {call} : TBRW_INIT_FAILED;", "}"]
    call = f"((TBRW_U32 (*)(TBRW_PTR, TBRW_U32))calls[{len(CALLS)}])(ptr, stream)"
    lines += ["", "static TBRW_U32 call_record_size(TBRW_PTR ptr, TBRW_U32 stream)", "{", f"    return {call};", "}"]
    return "\n".join([*lines, ""])
