"""Events of the Windows kernel: hook ids and their names (`hooks`), layouts of their payloads (`layouts`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....lazy import lazy_names
from .hooks import (
    ALPC,
    CRIT_SEC,
    DC_END,
    DC_START,
    DISK_IO,
    END,
    FILE_IO,
    GROUPS,
    HEAP,
    IMAGE,
    IMAGE_ID,
    LBR,
    LBR_SAMPLE,
    LOAD,
    META_DATA,
    OBJECT,
    PAGE_FAULT,
    PERF_INFO,
    PMC_SAMPLE,
    PROCESS,
    REGISTRY,
    SAMPLE_CACHE,
    SAMPLED_PROFILE,
    SESSION,
    SET_INTERVAL,
    SPLIT_IO,
    STACK,
    STACK_DEFINITIONS,
    STACK_KEY_KERNEL,
    STACK_KEY_USER,
    STACK_WALK,
    START,
    SYS_CONFIG,
    SYS_CONFIG_EX,
    TCP_IP,
    THREAD,
    THREAD_LIFE,
    THREAD_POOL,
    UDP_IP,
    UNLOAD,
    WIN_SAT,
    Key,
    guid_text,
    hook_provider,
    kernel_key,
    kernel_names,
    opcode_name,
)

if TYPE_CHECKING:
    from .layouts import (
        LAYOUTS,
        kernel_event,
        kernel_layout,
    )

__all__ = [
    "ALPC", "CRIT_SEC", "DC_END", "DC_START", "DISK_IO", "END", "FILE_IO", "GROUPS", "HEAP", "IMAGE", "IMAGE_ID",
    "Key", "LAYOUTS", "LBR", "LBR_SAMPLE", "LOAD", "META_DATA", "OBJECT", "PAGE_FAULT", "PERF_INFO", "PMC_SAMPLE",
    "PROCESS", "REGISTRY", "SAMPLED_PROFILE", "SAMPLE_CACHE", "SESSION", "SET_INTERVAL", "SPLIT_IO", "STACK",
    "STACK_DEFINITIONS", "STACK_KEY_KERNEL", "STACK_KEY_USER", "STACK_WALK", "START", "SYS_CONFIG", "SYS_CONFIG_EX",
    "TCP_IP", "THREAD", "THREAD_LIFE", "THREAD_POOL", "UDP_IP", "UNLOAD", "WIN_SAT", "guid_text", "hook_provider",
    "kernel_event", "kernel_key", "kernel_layout", "kernel_names", "opcode_name",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {"layouts": "LAYOUTS kernel_event kernel_layout"})
