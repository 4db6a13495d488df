"""The names that the headers give to structures and numbers: ``EVENT_TRACE_CONTROL_STOP`` is ``Control.STOP``."""

from __future__ import annotations

from functools import cache
from typing import Any

from .flags import (
    GLOBAL_LOGGER,
    GROUPS,
    KERNEL_LOGGER,
    KERNEL_LOGGER_NAME,
    MAX_LBR_EVENTS,
    Control,
    EnableFlag,
    EnableProvider,
    Info,
    LogFileMode,
    WnodeFlag,
)  # fmt: skip
from .structures import LAYOUTS, structure

__all__ = ["constant", "constants"]

_LBR = (
    "FILTER_KERNEL", "FILTER_USER", "FILTER_JCC", "FILTER_NEAR_REL_CALL", "FILTER_NEAR_IND_CALL", "FILTER_NEAR_RET",
    "FILTER_NEAR_IND_JMP", "FILTER_NEAR_REL_JMP", "FILTER_FAR_BRANCH", "CALLSTACK_ENABLE", "SAMPLED",
)  # fmt: skip
_CLASS_WORDS = {"GUID": "Guid", "PMC": "Pmc", "LBR": "Lbr"}


def _class_name(name: str) -> str:
    """``PROFILE_SOURCE_LIST_INFO`` is TraceProfileSourceListInfo."""
    return "Trace" + "".join(_CLASS_WORDS.get(word, word.title()) for word in name.split("_"))


_PROCESS_MODE = "PROCESS_TRACE_MODE_"


@cache
def _process_modes() -> dict[str, Any]:
    from .logfile import ProcessTraceMode  # with what reads trace logs

    return {f"{_PROCESS_MODE}{mode.name}": mode for mode in ProcessTraceMode if mode}


@cache
def constants() -> dict[str, Any]:
    """Name of a header -> number, GUID or ctypes class."""

    made: dict[str, Any] = {name: structure(name) for name in LAYOUTS}
    made |= {f"EVENT_TRACE_{m.name}": m for m in LogFileMode.__members__.values()}
    made |= {f"EVENT_TRACE_FLAG_{m.name}": m for m in EnableFlag}
    made |= {f"EVENT_TRACE_CONTROL_{m.name}": m for m in Control}
    made |= {f"WNODE_FLAG_{m.name}": m for m in WnodeFlag}
    made |= {_class_name(m.name): m for m in Info}
    made |= {f"PERF_{name}": group for name, group in GROUPS.items()}
    made |= {f"EVNTRACE_LBR_{name}": 1 << bit for bit, name in enumerate(_LBR)}
    return made | {
        "EVNTRACE_LBR_FILTER_NONE": 0,
        "TRACE_LBR_CONFIGURATION_NONE": 0,
        "PERFINFO_LOG_TYPE_PMC_INTERRUPT": 0x2F,
        "EVNTRACE_MAX_LBR_EVENTS": MAX_LBR_EVENTS,
        "EVENT_CONTROL_CODE_DISABLE_PROVIDER": EnableProvider.DISABLE,
        "EVENT_CONTROL_CODE_ENABLE_PROVIDER": EnableProvider.ENABLE,
        "EVENT_CONTROL_CODE_CAPTURE_STATE": EnableProvider.CAPTURE_STATE,
        "KERNEL_LOGGER_NAME": KERNEL_LOGGER_NAME,
        "SystemTraceControlGuid": KERNEL_LOGGER,
        "GlobalLoggerGuid": GLOBAL_LOGGER,
    }


def constant(name: str) -> Any:
    """The value of ``name``, ``None`` if the headers have none of that name."""
    return (_process_modes() if name.startswith(_PROCESS_MODE) else constants()).get(name)
