"""Facts of the architectures on which programs are traced: registers as ptrace gives them, its requests, numbers.

x86-64: Linux arch/x86/include/asm/user_64.h and entry/syscalls/syscall_64.tbl. AArch64: arch/arm64/include/uapi/asm
/ptrace.h and include/uapi/asm-generic/unistd.h; NT_* are in include/uapi/linux/elf.h.
"""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["ARCHITECTURES", "HERE", "Architecture"]


class Architecture(NamedTuple):
    """The layout of registers under ptrace. Registers are indexes into ``words`` words of 64 bits."""

    name: str
    """As ``uname -m`` says."""
    title: str
    elf_machine: int
    """e_machine of its programs."""
    words: int
    pc: int
    stack: int
    flags: int
    mode: tuple[int, int, int]
    """A register, a mask, and what is left of the register where a thread executes 64-bit code."""
    resume_flag: int
    """The bit of ``flags`` with which an instruction is executed although a breakpoint is on it; 0: there is none, and
    such an instruction must be executed by a single step."""
    get_registers: int
    """PTRACE_GETREGS; 0 where only PTRACE_GETREGSET gives them."""
    call_number: int
    """The register with the number of the system call, which the kernel restarts; -1: NT_ARM_SYSTEM_CALL has it."""
    ptrace: int
    wait4: int
    """Numbers of system calls."""
    unwinds: bool
    """Whether `Unwinder` makes call stacks of it."""
    compiled: bool
    """Whether the compiled library has the walks of this architecture (branch_walk.c, unwind_stack.c)."""


ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture(
            "x86_64",
            "64-bit x86",
            elf_machine=62,
            words=27,
            pc=16,
            stack=19,
            flags=18,
            mode=(17, ~0, 0x33),
            resume_flag=1 << 16,
            get_registers=12,
            call_number=15,
            ptrace=101,
            wait4=61,
            unwinds=True,
            compiled=True,
        ),
        Architecture(  # struct user_pt_regs: x0 to x30, sp, pc, pstate; bit 4 of pstate is nRW
            "aarch64",
            "AArch64",
            elf_machine=183,
            words=34,
            pc=32,
            stack=31,
            flags=33,
            mode=(33, 0x10, 0),
            resume_flag=0,
            get_registers=0,
            call_number=-1,
            ptrace=117,
            wait4=260,
            unwinds=False,
            compiled=False,
        ),
    )
}
"""By name. The x86-64 mode is CS: 32-bit code has 0x23 there."""

HERE = ARCHITECTURES.get(os.uname().machine if hasattr(os, "uname") else "", ARCHITECTURES["x86_64"])
"""The architecture of this machine; x86-64 on other machines, where nothing is traced."""
