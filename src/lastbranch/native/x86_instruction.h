/* One instruction of 64-bit x86 code, as run_ahead.c executes it. */
#ifndef LASTBRANCH_X86_INSTRUCTION_H
#define LASTBRANCH_X86_INSTRUCTION_H

#include "lastbranch.h"

enum { LONGEST_INSTRUCTION = 15, NO_REGISTER = 0xFF };
enum { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI }; /* numbers in instructions, up to 15 */

/* Prefixes and opcodes, those of strings for operands of one byte: the next number is that for larger ones. */
enum { REPNE = 0xF2, REP = 0xF3 };
enum { MOVS = 0xA4, CMPS = 0xA6, STOS = 0xAA, LODS = 0xAC, SCAS = 0xAE };

/* The kinds of instructions for run_ahead.c. */
enum {
    UNSUPPORTED, /* it reads clocks or random numbers, asks the kernel, or changes what only the processor has */
    EXECUTED,    /* the processor executes it, on the values of the thread */
    NOTHING_TO_DO,
    MOVE,
    LOAD_ADDRESS,
    PUSH,
    POP,
    PUSH_FLAGS,
    POP_FLAGS,
    LEAVE_FRAME,
    STRING,
    DIRECTION,
    BIT_STRING,
    SAVE_STATE,
    RESTORE_STATE,
    LOAD_CONTROL,
    STORE_CONTROL,
    READ_BASE,
    READ_SHADOW_STACK,
    ZERO_UPPER,
    /* control flow */
    SYSTEM_CALL,
    CONDITION,
    JUMP,
    CALL,
    RETURN,
    JUMP_TO,
    CALL_TO,
    COUNT
};

/* State that an EXECUTED instruction needs beside the general registers and the flags: vectors, as `x86_vectors` says, and x87. */
enum { GENERAL_STATE, VECTOR_STATE, X87_STATE };

/* A memory operand is at `segment` + base + index << shift + displacement. */
struct instruction {
    u64 displacement; /* with a relative one (RIP), the address itself */
    u64 immediate;    /* the target of a direct branch, else the immediate operand */
    u8 length, what, state, size; /* size: of the operand; in memory at most so many bytes */
    u8 opcode;                    /* its last byte */
    u8 reg, rm;                   /* ModRM.reg; ModRM.rm where that is a register, else NO_REGISTER */
    u8 other;                     /* VEX.vvvv or EVEX.vvvv, else NO_REGISTER */
    u8 memory, base, index, shift, segment; /* memory: it has such an operand; segment: 0, 1 FS, 2 GS */
    u8 address_32, only_writes, repeats;    /* repeats: 0, REPNE, REP */
    u8 has_rex, scaled;                     /* scaled: an 8-bit displacement in units of EVEX */
    /* where its parts are in its bytes */
    u8 prefixes, opcodes, modrm, after_operand;
};

/* Decode the instruction at `address` from `have` bytes. 0 where they end too early; what is not known is UNSUPPORTED, with a
 * length of 1 at least. Intel SDM volume 2, chapter 2 and appendix A. */
int x86_decode(struct instruction *found, const u8 *code, int have, u64 address);

/* Whether an instruction may set the stack pointer to anything: MOV, XCHG, and not the epilogue's from RBP. */
int x86_loads_stack(const struct instruction *of);

/* The bytes of an EXECUTED instruction with its memory operand at [scratch], which is RBX, RSI or RDI. How many: at most
 * LONGEST_INSTRUCTION. */
int x86_at_register(const struct instruction *of, const u8 *code, int scratch, u8 *out);

/* The same for an 8-bit displacement in units of EVEX, with displacement and base [scratch + 8-bit displacement]. */
int x86_at_displacement(const struct instruction *of, const u8 *code, int scratch, u8 *out);

/* The vector registers and the masks that an EXECUTED instruction reads or writes, as bits; some more may be among them. */
void x86_vectors(const struct instruction *of, const u8 *code, u32 *vectors, u8 *masks);

#endif
