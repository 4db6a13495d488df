"""The functions of chapter 9 as C programs call them: numbers and addresses in, a status out.

libtbrw (folder ``c``) starts an interpreter and asks `fill` for the entry points. Each entry turns its C arguments into
what the Python function of the same name takes, calls that, and stores the OUT values. All rules are those of Python.

A ``TBRW_PTR`` is a number that is never used again, so a closed or made-up one is refused and not followed. Other
pointers are the caller's, and are trusted as in any C library.
"""

from __future__ import annotations

import ctypes
import itertools
import traceback
from collections.abc import Callable
from ctypes import c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ..formats.tb5.layout import POINTERS
from .calls import FUNCTIONS, INPUTS, OUTPUTS, TBRW_PTR
from .handle import Handle
from .status import Status, TbrwError
from .structures import ID_MARK, RECORDS, Record

__all__ = ["CALLS", "CHECK", "Argument", "fill"]

_WIDE = ctypes.sizeof(ctypes.c_wchar)


# -- arguments


class Argument(NamedTuple):
    """One parameter of a C function."""

    name: str
    declared: str
    """Its C type: ``TBRW_U32``, ``void *``..."""
    out: bool = False
    """Whether the function stores a value through it. A buffer that the function fills does not count."""
    optional: bool = False


_WORDS = {"TBRW_U64": c_uint64, "TBRW_U32": c_uint32}
_SPECIAL = {
    ("get_system", "buf_ptr"): "TBRW_SYSTEM *",
    ("convert_utf8_to_wcs", "utf8"): "const char *",
    ("convert_utf8_to_wcs", "wcs"): "wchar_t *",
    ("convert_wcs_to_utf8", "wcs"): "const wchar_t *",
    ("convert_wcs_to_utf8", "utf8"): "char *",
    ("add_data_from_file", "filename"): "TBRW_CHAR *",
}
_TYPES = {
    "filename": "const TBRW_CHAR *", "error_string": "const TBRW_CHAR *", "buffer": "TBRW_CHAR *",
    "string_id": "TBRW_STRING_OR_ID *", "user_ptr": "void *", "buf_ptr": "void *", "data_ptr": "void *",
    "data_entry": "void *", "pid_index": "TBRW_U64", "tid_index": "TBRW_U64", "module_index": "TBRW_U64",
    "start_index": "TBRW_U64",
}  # fmt: skip
_CALLBACKS = {
    "enumerate_processes": "TBRW_PID",
    "enumerate_threads": "TBRW_TID",
    "enumerate_modules": "TBRW_MODULE",
    "enumerate_events": "TBRW_EVENT",
    "enumerate_data_descriptor_entries": "TBRW_DATA_DESC",
    "enumerate_data": "TBRW_DATA",
    "bind_enumerate_threads": "BIND_TID",
    "bind_enumerate_modules": "BIND_MODULE",
    "bind_enumerate_data": "BIND_DATA",
}


def _c_type(function: str, name: str, kind: Any) -> str:
    if name == "section":
        return f"TBRW_{'STREAM_' if 'stream' in function else ''}SECTION_IDENTIFIER"
    if name == "callback_func":
        return f"{_CALLBACKS[function]}_CALLBACK *"
    if kind == TBRW_PTR:
        return "TBRW_PTR"
    if name.startswith("p_"):
        return f"const TBRW_{name[2:].upper()} *"
    if isinstance(kind, type) and kind in RECORDS.values():
        return f"{kind.__name__} *"
    return _SPECIAL.get((function, name)) or _TYPES.get(name, "TBRW_U32")


def _arguments(function: str) -> list[Argument]:
    """The parameters in the guide's order: OUT comes last, except in TBRW_open."""
    given, outs = INPUTS[f"TBRW_{function}"], OUTPUTS[f"TBRW_{function}"]
    inward = [Argument(n, _c_type(function, n, k)) for n, k in given.items() if n not in outs]
    outward = [
        Argument(n, f"{_c_type(function, n, k)} *".replace("* *", "**"), True, n.startswith("size_buffer"))
        for n, k in outs.items()
    ]
    return outward + inward if function == "open" else inward + outward


CALLS: dict[str, list[Argument]] = {name: _arguments(name.removeprefix("TBRW_")) for name in FUNCTIONS}
"""Function -> its parameters in C, in the order of the table of entry points."""
CHECK = crc32(repr(CALLS).encode())
"""Changes with any declaration: libtbrw refuses another version of this package."""


# -- what an address leads to


def _wide(address: int | None) -> str | None:
    if not address:
        return None
    try:
        return ctypes.wstring_at(address)
    except ValueError:
        raise TbrwError(Status.INVALID_STRING, f"the string at {address:#x} is not Unicode") from None


def _record(kind: type[Record], address: int | None) -> Record | None:
    """A copy of a structure of the caller, with its strings and all that its pointers lead to."""
    if not address:
        return None
    found = kind.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(kind)))
    if found.size_field and getattr(found, found.size_field) != found.declared.size:
        return found  # of another version: refused by its size, and nothing else of it is to be trusted
    for name in found.declared.strings():
        word = getattr(found, name).soi_uniqueid
        if not word & ID_MARK:
            setattr(found, name, _wide(word))
    pointer = POINTERS.get(found.declared.name)
    if pointer is not None:
        name, child = pointer.target(getattr(found, "arch_type", 0))
        start = ctypes.cast(getattr(found, name), c_void_p).value
        number, size = getattr(found, pointer.counter), ctypes.sizeof(RECORDS[child])
        if start and number:
            setattr(found, name, [_record(RECORDS[child], start + i * size) for i in range(number)])
    return found


def _memory(address: int | None, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address) if address else None


def _size_at(address: int | None) -> int:
    return int(c_uint32.from_address(address).value) if address else 0


def _callback(address: int | None, bound: bool) -> Callable[..., int] | None:
    """The caller's function as one that takes arrays."""
    if not address:
        return None
    bind = (c_void_p, c_uint32) if bound else ()
    function = ctypes.CFUNCTYPE(c_uint32, c_void_p, c_uint32, c_uint64 if bound else c_uint32, *bind, c_void_p)(address)

    def call(*arguments: Any) -> int:
        return int(function(*(a if isinstance(a, int | None) else _address(a) for a in arguments)))

    return call


def _address(array: Any) -> int:
    if isinstance(array, ctypes.Array | ctypes.Structure):
        return ctypes.addressof(array)
    return int(np.frombuffer(array, np.uint8).ctypes.data)


# -- handles, and what a call returns a pointer to

_numbers = itertools.count(1)
_handles: dict[int, Handle] = {}
_texts: dict[str, Any] = {}
"""Text of a status -> its wide characters, which the caller may keep."""
_lent: dict[tuple[int, str], Record] = {}
"""(handle, OUT parameter) -> the structure that get_one_ returned last."""


def _store(argument: Argument, address: int, value: Any, ptr: int) -> None:
    if argument.name == "ptr":
        number = 0
        if value is not None:
            number = next(_numbers) << 4
            _handles[number] = value
        c_void_p.from_address(address).value = number
    elif argument.name == "error_string":
        if value is not None and value not in _texts:
            _texts[value] = ctypes.create_unicode_buffer(value)
        c_void_p.from_address(address).value = None if value is None else ctypes.addressof(_texts[value])
    elif argument.name.startswith("p_"):
        if value is not None:
            _lent[ptr, argument.name] = value
        c_void_p.from_address(address).value = None if value is None else ctypes.addressof(value)
    else:
        c_uint32.from_address(address).value = value


def _forget(ptr: int) -> None:
    del _handles[ptr]
    for key in [key for key in _lent if key[0] == ptr]:
        del _lent[key]


# -- entry points

_SIZES = {
    "buf_ptr": "size_of_buffer",
    "buffer": "size_of_buffer",
    "data_ptr": "size_of_data",
    "data_entry": "size_of_data_entry",
}
"""Memory of the caller -> the argument with its bytes."""


def _taker(function: str, argument: Argument) -> Callable[[Any, dict[str, Any]], Any]:
    """Makes the Python argument from a C word and the words before it."""
    name, kind = argument.name, argument.declared
    if kind == "TBRW_PTR":
        return lambda word, _: _handles.get(word)
    if name in _SIZES:
        return lambda word, words: _memory(word, words[_SIZES[name]])
    if kind in ("wchar_t *", "char *"):
        width = _WIDE if kind == "wchar_t *" else 1
        return lambda word, words: _memory(word, _size_at(words[f"{name}_size"]) * width)
    if kind == "const char *":
        return lambda word, _: ctypes.string_at(word) if word else None
    if kind.endswith(("TBRW_CHAR *", "wchar_t *")):
        return lambda word, _: _wide(word)
    if name == "callback_func":
        bound = function.startswith("TBRW_bind")
        return lambda word, _: _callback(word, bound)
    if name == "string_id":
        return lambda word, _: c_uint64.from_address(word).value if word else None
    if kind.removesuffix(" *") in RECORDS:
        record = RECORDS[kind.removesuffix(" *")]
        return lambda word, _: _record(record, word)
    if argument.out:
        return lambda word, _: _size_at(word)
    return lambda word, _: word


def _entry(name: str) -> Any:
    """The C function of a name."""
    arguments, function = CALLS[name], FUNCTIONS[name][1]
    names = [a.name for a in arguments]
    given = INPUTS[name]
    takers = [(n, _taker(name, next(a for a in arguments if a.name == n))) for n in given]
    outs = [next(a for a in arguments if a.name == n) for n in OUTPUTS[name]]
    ends = name in ("TBRW_close", "TBRW_abort_cleanup_and_close")
    types = [_WORDS.get(a.declared, c_uint32 if a.declared.endswith("IDENTIFIER") else c_void_p) for a in arguments]

    def entry(*words: Any) -> int:
        try:
            by_name = dict(zip(names, words, strict=True))
            if any(not by_name[out.name] and not out.optional for out in outs):
                return Status.UNEXPECTED_NULL_PTR
            answer = function(*(take(by_name[n], by_name) for n, take in takers))
            status, *values = answer if outs else (answer,)
            ptr = by_name.get("ptr", 0)
            for out, value in zip(outs, values, strict=True):
                if by_name[out.name]:
                    _store(out, by_name[out.name], value, ptr)
            if ends and status == Status.SUCCESS:
                _forget(ptr)
            return int(status)
        except TbrwError as error:
            return error.status
        except MemoryError:
            return Status.NO_MEMORY
        except Exception:  # a fault of ours, which must not cross into C: printed, and an error there
            traceback.print_exc()
            return Status.SAM_ERROR

    return ctypes.CFUNCTYPE(c_uint32, *types)(entry)


def _record_size(ptr: int | None, stream: int) -> int:
    """Bytes of a record of a stream that is being written and that holds whole records so far, else 0.

    libtbrw keeps whole records of such a stream back, so that it calls once for many.
    """
    handle = _handles.get(ptr or 0)
    return 0 if handle is None else handle.drafts.whole_records(stream)


_entries: list[Any] = []
"""The entries that `fill` handed out, kept for as long as the process lives."""


def fill(table: int, check: int) -> None:
    """Write the entry points of `CALLS`, and of `_record_size`, to the pointers at the address ``table``.

    Raises `RuntimeError` if ``check`` is not `CHECK`: libtbrw was compiled for another version of this package.
    """
    if check != CHECK:
        raise RuntimeError("libtbrw was built for another version of lastbranch; build it again")
    if not _entries:
        _entries.extend(map(_entry, CALLS))
        _entries.append(ctypes.CFUNCTYPE(c_uint32, c_void_p, c_uint32)(_record_size))
    places = (c_void_p * len(_entries)).from_address(table)
    for i, entry in enumerate(_entries):
        places[i] = ctypes.cast(entry, c_void_p).value
