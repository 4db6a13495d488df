/* The branches that a stopped thread is about to take, on x86-64 Linux: its code is executed here, on copies of its registers
 * and of the memory that it reads. The thread itself stays where it is, and nothing of it changes.
 *
 * The processor executes each instruction that only computes: as it is, in a piece of code that loads the thread's registers
 * and keeps the results. A memory operand is replaced by a copy of it. What moves the instruction pointer or the stack is done
 * in C. What cannot be known without the thread ends the run: system calls, clocks, random numbers.
 *
 * Pieces of code are kept by address, with the page that they were decoded from: in each run a page is read again before it is
 * used. */
#define _GNU_SOURCE
#include "x86_instruction.h"

#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__)

#include <cpuid.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

enum { PAGE = 4096, GRANULE = 8, WORDS = PAGE / GRANULE / 64 };
enum { PAGES = 1 << 11, PAGE_SLOTS = 1 << 13, CODE_PAGES = 1 << 12, CODE_SLOTS = 1 << 14 };
enum { INSTRUCTIONS = 1 << 17, SLOTS = 1 << 19, PIECE = 64, LARGEST_PIECE = 512, STUBS = 4096, GUARD = 2 * PAGE };
enum { SAVED = 4, REPETITIONS = 1 << 18 };

/* Why a run ends. The order is that of `WHY` of run_ahead.py. */
enum { FULL, AT_SYSTEM_CALL, UNREADABLE, NOT_MODELLED, FAULTS, STOPS, REPEATS, CHANGED };

enum { CF = 1, PF = 4, AF = 0x10, ZF = 0x40, SF = 0x80, TF = 0x100, DF = 0x400, OF = 0x800, NT = 0x4000, RF = 0x10000, AC = 0x40000, ID = 0x200000 };
enum { SWITCHED = 1 << 16 }; /* of an edge: before it, the stack pointer was set to a lower address */
enum { OWN_FLAGS = CF | PF | AF | ZF | SF | DF | OF, FIXED_FLAGS = TF | NT | AC | ID };
enum { GETREGSET = 0x4204, X_STATE = 0x202, SHADOW_STACK = 0x204 };
/* struct user_regs_struct */
enum { U_RIP = 16, U_FLAGS = 18, U_FS = 21, U_GS = 22 };
static const u8 USER[16] = {10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0}; /* of RAX, RCX, ... R15 */

struct vectors { u8 lanes[32][64]; u64 masks[8]; u8 x87[512]; } __attribute__((aligned(64)));

/* What the pieces of code address, at the beginning of their memory. */
struct state {
    struct vectors v;
    u8 operand[192];
    u64 general[16], flags, host_stack, operand_at, piece;
    u32 control, host_control;
} __attribute__((aligned(64)));

struct page {
    u64 address;
    u8 *bytes, *was;
    u64 loaded[WORDS], stored[WORDS];
    u32 run, branches; /* of the run it was read in; how many branches were known then */
    int readable;
    u32 code; /* 1 + the index of its code page, if code of it was executed in this run */
};

struct code_page { u64 address; u32 space, generation, run; u8 *bytes; };

struct known {
    u64 address;
    struct instruction i;
    u32 space, page, next_page, generation, next_generation;
    u32 piece; /* its offset from the state, 0: none */
    u32 then;  /* the instruction that it branched to last */
    u8 scratch, loads_stack;
};

/* A saved state: the components of it that were saved, and where to. */
struct saved { u64 address, parts; u32 control; struct vectors v; };

/* Components of a state, as XSAVE numbers them. */
enum { X87_PART = 1, XMM_PART = 2, YMM_PART = 4, MASKS_PART = 0x20, ZMM_PART = 0x40, UPPER_PART = 0x80, ALL_PARTS = 0xE7 };

/* What is asked, and what came of it. run_ahead.py has the same. */
struct run {
    u64 memory, thread, space, alone, kinds, wanted, depth, most, room;
    u64 *registers; /* struct user_regs_struct: before, and afterwards at the end of the run */
    u64 *edges;     /* source, target, perf's branch type with the length of the instruction in bits 8 up, stack pointer */
    u64 count, executed, why, address, pages;
};

struct ahead {
    struct state *state;
    u8 *end_of_code, *code, *exits[3], *entries[3], *fault;
    struct page *pages;
    u16 *page_slots; /* 1 + index */
    u32 page_count;
    u8 *page_bytes;
    struct code_page *code_pages;
    u16 *code_slots;
    u32 code_page_count;
    u8 *code_bytes;
    struct known *known;
    u32 *slots;
    u32 known_count;
    u32 number; /* of the run */
    u8 *guard, *signal_stack;
    int lanes; /* bytes of a vector register: 16, 32, 64 */
    u32 offset_high, offset_masks, offset_lanes, offset_upper, x_size;
    u8 *x_state;
    struct saved *saved;
    u32 saved_count, saved_next;
    int has_vectors; /* those of the thread were read in this run */
    int is_full;     /* no more pages or instructions are kept */
    u64 changes;     /* stores and instructions on vectors so far */
    struct run *now;
    struct page *last;
};

/* -- the pieces of code */

static void emit(struct ahead *a, const void *bytes, size_t size)
{
    memcpy(a->code, bytes, size);
    a->code += size;
}

#define EMIT(...) emit(a, (const u8[]){__VA_ARGS__}, sizeof((const u8[]){__VA_ARGS__}))

/* A displacement from the next instruction to `place`, after `more` bytes. */
static void emit_at(struct ahead *a, const void *place, int more)
{
    i32 distance = (i32)((const u8 *)place - (a->code + 4 + more));
    emit(a, &distance, 4);
}

static void emit_general(struct ahead *a, int store, int reg)
{
    EMIT(0x48 | (reg > 7 ? 4 : 0), store ? 0x89 : 0x8B, 5 | (reg & 7) << 3);
    emit_at(a, &a->state->general[reg], 0);
}

static void emit_vectors(struct ahead *a, int store, u32 vectors, u8 masks)
{
    for (int i = 0; i < 32; i++) {
        if (!(vectors >> i & 1)) continue;
        u8 opcode = store ? 0x7F : 0x6F, modrm = (u8)(5 | (i & 7) << 3);
        if (a->lanes == 64) EMIT(0x62, 0xF1 ^ (i & 8 ? 0x80 : 0) ^ (i & 16 ? 0x10 : 0), 0xFE, 0x48, opcode, modrm);
        else if (a->lanes == 32) EMIT(0xC5, 0x7E | (i & 8 ? 0 : 0x80), opcode, modrm);
        else if (i & 8) EMIT(0xF3, 0x44, 0x0F, opcode, modrm);
        else EMIT(0xF3, 0x0F, opcode, modrm);
        emit_at(a, a->state->v.lanes[i], 0);
    }
    for (int i = 0; i < 8; i++) {
        if (!(masks >> i & 1)) continue;
        EMIT(0xC4, 0xE1, 0xF8, store ? 0x91 : 0x90, 5 | i << 3); /* kmovq */
        emit_at(a, &a->state->v.masks[i], 0);
    }
}

static void emit_jump(struct ahead *a, const u8 *target)
{
    EMIT(0xE9);
    emit_at(a, target, 0);
}

/* How a piece is entered and left, for each of GENERAL_STATE, VECTOR_STATE and X87_STATE. */
static void emit_stubs(struct ahead *a)
{
    struct state *s = a->state;
    for (int kind = 0; kind < 3; kind++) {
        a->entries[kind] = a->code;
        EMIT(0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57); /* push rbx, rbp, r12 to r15 */
        EMIT(0x48, 0x89, 0x25);
        emit_at(a, &s->host_stack, 0);
        if (kind == X87_STATE) {
            EMIT(0x48, 0x0F, 0xAE, 0x0D); /* fxrstor64 */
            emit_at(a, s->v.x87, 0);
        }
        if (kind) {
            EMIT(0x0F, 0xAE, 0x15); /* ldmxcsr */
            emit_at(a, &s->control, 0);
        }
        /* POPFQ and PUSHFQ would be half of the time of a piece; what they know more, DF, is in C. */
        EMIT(0x8A, 0x05); /* mov al, with OF in bit 3; and al, 8; add al, 0x78: overflows with it */
        emit_at(a, (u8 *)&s->flags + 1, 0);
        EMIT(0x24, 0x08, 0x04, 0x78);
        EMIT(0x8A, 0x25); /* mov ah; sahf: the others */
        emit_at(a, &s->flags, 0);
        EMIT(0x9E);
        for (int i = 0; i < 16; i++)
            if (i != RSP) emit_general(a, 0, i);
        emit_general(a, 0, RSP);
        EMIT(0xFF, 0x25); /* jmp */
        emit_at(a, &s->piece, 0);
    }
    for (int kind = 0; kind < 3; kind++) {
        a->exits[kind] = a->code;
        for (int i = 0; i < 16; i++) emit_general(a, 1, i);
        EMIT(0x48, 0x8B, 0x25);
        emit_at(a, &s->host_stack, 0);
        EMIT(0x0F, 0x90, 0xC0, 0x9F, 0x88, 0x25); /* seto al; lahf; mov, ah */
        emit_at(a, &s->flags, 0);
        EMIT(0xC0, 0xE0, 0x03, 0x8A, 0x25); /* shl al, 3; mov ah */
        emit_at(a, (u8 *)&s->flags + 1, 0);
        EMIT(0x80, 0xE4, 0x04, 0x08, 0xE0, 0x88, 0x05); /* and ah, 4 (DF); or al, ah; mov, al */
        emit_at(a, (u8 *)&s->flags + 1, 0);
        if (kind == X87_STATE) {
            EMIT(0x48, 0x0F, 0xAE, 0x05); /* fxsave64, fninit */
            emit_at(a, s->v.x87, 0);
            EMIT(0xDB, 0xE3);
        }
        if (kind) {
            EMIT(0x0F, 0xAE, 0x1D); /* stmxcsr */
            emit_at(a, &s->control, 0);
            EMIT(0x0F, 0xAE, 0x15);
            emit_at(a, &s->host_control, 0);
            if (a->lanes > 16) EMIT(0xC5, 0xF8, 0x77); /* vzeroupper */
        }
        static const u8 leave[] = {0x41, 0x5F, 0x41, 0x5E, 0x41, 0x5D, 0x41, 0x5C, 0x5D, 0x5B, 0xB8, 0, 0, 0, 0, 0xC3};
        emit(a, leave, sizeof leave);
    }
    a->fault = a->code; /* after a fault: nothing is kept, the result is 1 */
    EMIT(0x48, 0x8B, 0x25);
    emit_at(a, &s->host_stack, 0);
    EMIT(0xDB, 0xE3, 0x0F, 0xAE, 0x15);
    emit_at(a, &s->host_control, 0);
    if (a->lanes > 16) EMIT(0xC5, 0xF8, 0x77);
    static const u8 leave[] = {0x41, 0x5F, 0x41, 0x5E, 0x41, 0x5D, 0x41, 0x5C, 0x5D, 0x5B, 0xB8, 1, 0, 0, 0, 0xC3};
    emit(a, leave, sizeof leave);
}

/* A piece that executes `bytes`, with the address of the operand in register `scratch`, if there is one. Its offset. */
static u32 emit_piece(struct ahead *a, const struct instruction *i, const u8 *code, const u8 *bytes, int size, int scratch)
{
    u8 *begin = a->code, masks = 0;
    u32 vectors = 0;
    if (i->state) x86_vectors(i, code, &vectors, &masks);
    emit_vectors(a, 0, vectors, masks);
    if (scratch != NO_REGISTER) {
        EMIT(0x48 | (scratch > 7 ? 4 : 0), 0x8B, 5 | (scratch & 7) << 3);
        emit_at(a, &a->state->operand_at, 0);
    }
    emit(a, bytes, (size_t)size);
    emit_vectors(a, 1, vectors, masks);
    if (scratch != NO_REGISTER) emit_general(a, 0, scratch);
    emit_jump(a, a->exits[i->state]);
    return (u32)(begin - (u8 *)a->state);
}

/* -- faults in pieces: of the thread's code, or because we took for code what is none */

static __thread struct ahead *running;
static __thread u64 fault_address;
static __thread struct sigaction previous[4];
static const int FAULT[4] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

static void on_fault(int number, siginfo_t *info, void *context)
{
    ucontext_t *c = context;
    struct ahead *a = running;
    u8 *at = (u8 *)c->uc_mcontext.gregs[REG_RIP];
    if (a && at >= (u8 *)a->state && at < a->end_of_code) {
        fault_address = (u64)info->si_addr;
        c->uc_mcontext.gregs[REG_RIP] = (i64)a->fault;
        return;
    }
    for (int i = 0; i < 4; i++)
        if (FAULT[i] == number) sigaction(number, &previous[i], 0); /* of our own: it happens again */
}

static int execute(struct ahead *a, u32 piece, int kind)
{
    a->state->piece = (u64)((u8 *)a->state + piece);
    int (*enter)(void);
    memcpy(&enter, &a->entries[kind], sizeof enter);
    return enter();
}

/* -- the thread's memory: pages are read when they are first needed, and written here only */

static struct page *page_of(struct ahead *a, u64 address)
{
    address &= ~(u64)(PAGE - 1);
    if (a->last && a->last->address == address) return a->last;
    u32 place = (u32)((address >> 12) * 0x9E3779B97F4A7C15u >> 51) & (PAGE_SLOTS - 1);
    for (; a->page_slots[place]; place = (place + 1) & (PAGE_SLOTS - 1)) {
        struct page *page = &a->pages[a->page_slots[place] - 1];
        if (page->address == address) return a->last = page;
    }
    if (a->page_count == PAGES) {
        a->is_full = 1;
        return NULL;
    }
    struct page *page = &a->pages[a->page_count];
    a->page_slots[place] = (u16)++a->page_count;
    page->address = address;
    page->run = a->number;
    page->branches = (u32)a->now->count;
    page->code = 0;
    page->readable = pread((int)a->now->memory, page->bytes, PAGE, (off_t)address) == PAGE;
    if (!a->now->alone) {
        memset(page->loaded, 0, sizeof page->loaded + sizeof page->stored);
        if (page->readable) memcpy(page->was, page->bytes, PAGE);
    }
    return a->last = page;
}

static void mark(u64 *bits, u64 offset, u64 size)
{
    for (u64 g = offset / GRANULE; g <= (offset + size - 1) / GRANULE; g++) bits[g / 64] |= (u64)1 << g % 64;
}

enum { REACHES = 1, UNUSED = 2 };

/* `size` bytes at `address`; 0 where they cannot be read. What REACHES beyond a page that can be read is zeros; UNUSED bytes
 * are only there to be overwritten. */
static int load(struct ahead *a, u64 address, void *into, u64 size, int how)
{
    for (u64 done = 0; done < size;) {
        u64 offset = (address + done) & (PAGE - 1), part = PAGE - offset < size - done ? PAGE - offset : size - done;
        struct page *page = page_of(a, address + done);
        if (!page || !page->readable) {
            if (!(how & REACHES) || !done || !page) return 0;
            memset((u8 *)into + done, 0, size - done);
            return 1;
        }
        memcpy((u8 *)into + done, page->bytes + offset, part);
        if (!a->now->alone && !(how & UNUSED))
            for (u64 g = offset / GRANULE; g <= (offset + part - 1) / GRANULE; g++)
                if (!(page->stored[g / 64] >> g % 64 & 1)) page->loaded[g / 64] |= (u64)1 << g % 64;
        done += part;
    }
    return 1;
}

/* What is known of code is compared with the page again before it is executed. */
static void code_changes(struct ahead *a, const struct page *page)
{
    if (page->code) a->code_pages[page->code - 1].run = 0;
}

static int store(struct ahead *a, u64 address, const void *from, u64 size)
{
    a->changes++;
    for (u64 done = 0; done < size;) {
        u64 offset = (address + done) & (PAGE - 1), part = PAGE - offset < size - done ? PAGE - offset : size - done;
        struct page *page = page_of(a, address + done);
        if (!page || !page->readable) return 0;
        code_changes(a, page);
        memcpy(page->bytes + offset, (const u8 *)from + done, part);
        if (!a->now->alone) mark(page->stored, offset, part);
        done += part;
    }
    return 1;
}

static u64 mask_of(int size) { return size == 8 ? ~(u64)0 : ((u64)1 << size * 8) - 1; }

/* `load` of 8 bytes at most, as a number. Processors are slow where a number is read that was written in parts. */
static int load_number(struct ahead *a, u64 address, u64 *number, int size, int how)
{
    u64 offset = address & (PAGE - 1);
    if (offset + (u64)size > PAGE || !a->now->alone) {
        u64 found = 0;
        if (!load(a, address, &found, (u64)size, how)) return 0;
        *number = found;
        return 1;
    }
    struct page *page = page_of(a, address);
    if (!page || !page->readable) return 0;
    memcpy(number, page->bytes + offset, 8); /* there is memory behind the page, too */
    *number &= mask_of(size);
    return 1;
}

static int store_number(struct ahead *a, u64 address, u64 number, int size)
{
    u64 offset = address & (PAGE - 1);
    if (offset + (u64)size > PAGE || !a->now->alone) return store(a, address, &number, (u64)size);
    a->changes++;
    struct page *page = page_of(a, address);
    if (!page || !page->readable) return 0;
    code_changes(a, page);
    switch (size) {
    case 1: page->bytes[offset] = (u8)number; break;
    case 2: memcpy(page->bytes + offset, &number, 2); break;
    case 4: memcpy(page->bytes + offset, &number, 4); break;
    default: memcpy(page->bytes + offset, &number, 8);
    }
    return 1;
}

/* Other threads may have written what was read: the branches from then on may not be the thread's. How many are sure. */
static u64 unchanged_branches(struct ahead *a)
{
    struct run *r = a->now;
    u64 sure = r->count;
    static __thread u8 again[PAGE];
    for (u32 n = 0; n < a->page_count; n++) {
        struct page *page = &a->pages[n];
        u64 any = 0;
        for (int w = 0; w < WORDS; w++) any |= page->loaded[w];
        if (!any || page->branches >= sure) continue;
        if (pread((int)r->memory, again, PAGE, (off_t)page->address) != PAGE) {
            sure = page->branches;
            continue;
        }
        if (!memcmp(again, page->was, PAGE)) continue;
        for (int g = 0; g < PAGE / GRANULE; g++)
            if (page->loaded[g / 64] >> g % 64 & 1 && memcmp(again + g * GRANULE, page->was + g * GRANULE, GRANULE)) {
                sure = page->branches;
                break;
            }
    }
    return sure;
}

/* -- its code */

static void forget_code(struct ahead *a)
{
    memset(a->slots, 0, SLOTS * sizeof *a->slots);
    memset(a->code_slots, 0, CODE_SLOTS * sizeof *a->code_slots);
    a->known_count = a->code_page_count = 0;
    a->code = (u8 *)a->state + STUBS + sizeof *a->state;
}

/* The page of code at `address`, as it is in this run. 0: it cannot be read, else 1 + its index. */
static u32 code_page_of(struct ahead *a, u64 address)
{
    address &= ~(u64)(PAGE - 1);
    u32 space = (u32)a->now->space, place = (u32)(((address >> 12) + space * 77u) * 0x9E3779B97F4A7C15u >> 50) & (CODE_SLOTS - 1);
    struct code_page *page = NULL;
    for (; a->code_slots[place]; place = (place + 1) & (CODE_SLOTS - 1)) {
        struct code_page *one = &a->code_pages[a->code_slots[place] - 1];
        if (one->address == address && one->space == space) {
            page = one;
            break;
        }
    }
    if (page && page->run == a->number) return (u32)(page - a->code_pages) + 1;
    struct page *now = page_of(a, address);
    if (!now || !now->readable) return 0;
    if (!page) {
        if (a->code_page_count == CODE_PAGES) {
            a->is_full = 1;
            return 0;
        }
        page = &a->code_pages[a->code_page_count++];
        a->code_slots[place] = (u16)a->code_page_count;
        page->address = address;
        page->space = space;
        page->generation++;
        memcpy(page->bytes, now->bytes, PAGE);
    } else if (memcmp(page->bytes, now->bytes, PAGE)) {
        page->generation++;
        memcpy(page->bytes, now->bytes, PAGE);
    }
    page->run = a->number;
    return now->code = (u32)(page - a->code_pages) + 1;
}

static int is_current(struct ahead *a, struct known *k)
{
    struct code_page *page = &a->code_pages[k->page];
    if (page->run != a->number && !code_page_of(a, page->address)) return 0;
    if (page->generation != k->generation) return 0;
    if (k->next_page == k->page) return 1;
    page = &a->code_pages[k->next_page];
    if (page->run != a->number && !code_page_of(a, page->address)) return 0;
    return page->generation == k->next_generation;
}

/* How far an 8-bit displacement of EVEX reaches: it counts in units that depend on the instruction. The processor tells the
 * address at which it cannot read. */
static int scale(struct ahead *a, struct instruction *i, const u8 *code, int scratch)
{
    u8 bytes[LONGEST_INSTRUCTION + 2];
    int size = x86_at_displacement(i, code, scratch, bytes);
    struct state *s = a->state;
    u64 general[16], masks[8], flags = s->flags, unit = i->displacement;
    u8 *begin = a->code;
    memcpy(general, s->general, sizeof general);
    memcpy(masks, s->v.masks, sizeof masks);
    memset(s->v.masks, 0xFF, sizeof masks);
    s->operand_at = (u64)a->guard + 2 * GUARD;
    fault_address = 0;
    int faulted = execute(a, emit_piece(a, i, code, bytes, size, scratch), i->state);
    a->code = begin;
    memcpy(s->general, general, sizeof general);
    memcpy(s->v.masks, masks, sizeof masks);
    s->flags = flags;
    u64 distance = fault_address - ((u64)a->guard + 2 * GUARD);
    if (!faulted || !unit || distance + 128 * 64 > 2 * 128 * 64 || (i64)distance % (i64)unit) return 0;
    i->displacement = distance;
    return 1;
}

static void make_piece(struct ahead *a, struct known *k, const u8 *code)
{
    struct instruction *i = &k->i;
    u8 bytes[LONGEST_INSTRUCTION + 2];
    k->scratch = NO_REGISTER;
    int needs = code[i->opcodes] == 0x62 ? 64 : code[i->opcodes] == 0xC4 || code[i->opcodes] == 0xC5 ? 32 : 16;
    if (i->state == VECTOR_STATE && a->lanes < needs) {
        i->what = UNSUPPORTED;
        return;
    }
    if (!i->memory) {
        k->piece = emit_piece(a, i, code, code, i->length, NO_REGISTER);
        return;
    }
    static const u8 choices[3] = {RSI, RDI, RBX};
    for (int n = 0; n < 3; n++)
        if (choices[n] != i->reg && choices[n] != i->other) {
            k->scratch = choices[n];
            break;
        }
    if (i->scaled && i->displacement && !scale(a, i, code, k->scratch)) {
        i->what = UNSUPPORTED;
        return;
    }
    k->piece = emit_piece(a, i, code, bytes, x86_at_register(i, code, k->scratch, bytes), k->scratch);
}

/* The instruction at `address`; NULL where it cannot be read. It is probably `guess`. */
static struct known *known_at(struct ahead *a, u64 address, struct known *guess)
{
    u32 space = (u32)a->now->space;
    if (guess->address == address && guess->space == space && guess < a->known + a->known_count && is_current(a, guess)) return guess;
    /* Those of a page are next to each other here, too: what is far apart is slow to look at. */
    u32 place = (u32)((address >> 12 ^ (u64)space << 48) * 0x9E3779B97F4A7C15u >> 45);
    place = (place + (u32)(address & (PAGE - 1))) & (SLOTS - 1);
    struct known *k = NULL;
    for (; a->slots[place]; place = (place + 1) & (SLOTS - 1)) {
        struct known *one = &a->known[a->slots[place] - 1];
        if (one->address == address && one->space == space) {
            k = one;
            break;
        }
    }
    if (k && is_current(a, k)) return k;
    u8 bytes[2 * LONGEST_INSTRUCTION];
    u32 page = code_page_of(a, address), next = page;
    if (!page) return NULL;
    u64 offset = address & (PAGE - 1), have = PAGE - offset;
    if (have > LONGEST_INSTRUCTION) have = LONGEST_INSTRUCTION;
    memcpy(bytes, a->code_pages[page - 1].bytes + offset, have);
    struct instruction i;
    if (!x86_decode(&i, bytes, (int)have, address)) {
        if (have == LONGEST_INSTRUCTION || !(next = code_page_of(a, address + have))) return NULL;
        memcpy(bytes + have, a->code_pages[next - 1].bytes, LONGEST_INSTRUCTION);
        if (!x86_decode(&i, bytes, LONGEST_INSTRUCTION, address)) return NULL;
    }
    if (!k) {
        if (a->known_count == INSTRUCTIONS) {
            a->is_full = 1;
            return NULL;
        }
        k = &a->known[a->known_count++];
        a->slots[place] = a->known_count;
    }
    *k = (struct known){.address = address, .i = i, .space = space, .page = page - 1, .next_page = next - 1,
                        .generation = a->code_pages[page - 1].generation, .next_generation = a->code_pages[next - 1].generation};
    k->loads_stack = x86_loads_stack(&i);
    if (i.what == EXECUTED) {
        if (a->end_of_code - a->code < LARGEST_PIECE) k->i.what = UNSUPPORTED, a->is_full = 1;
        else make_piece(a, k, bytes);
    }
    return k;
}

/* -- registers and operands */

static u64 effective(const struct ahead *a, const struct instruction *i)
{
    const u64 *g = a->state->general;
    u64 at = i->displacement;
    if (i->base != NO_REGISTER) at += g[i->base];
    if (i->index != NO_REGISTER) at += g[i->index] << i->shift;
    if (i->address_32) at = (u32)at;
    if (i->segment) at += a->now->registers[i->segment == 1 ? U_FS : U_GS];
    return at;
}

static void set_register(struct ahead *a, int number, u64 value, int size)
{
    u64 *g = &a->state->general[number];
    if (size == 8) *g = value;
    else if (size == 4) *g = (u32)value;
    else *g = (*g & ~mask_of(size)) | (value & mask_of(size));
}

/* The vectors of the thread, at its first instruction that needs them. */
static int read_vectors(struct ahead *a)
{
    struct iovec to = {a->x_state, a->x_size};
    if (syscall(SYS_ptrace, GETREGSET, a->now->thread, X_STATE, &to) < 0) return 0;
    struct vectors *v = &a->state->v;
    memcpy(v->x87, a->x_state, 512);
    u16 x87_control = get16(a->x_state);
    a->state->control = get32(a->x_state + 24);
    if ((x87_control & 0x3F) != 0x3F || (a->state->control & 0x1F80) != 0x1F80) return 0; /* exceptions would be signals */
    memset(v->lanes, 0, sizeof v->lanes);
    for (int i = 0; i < 16; i++) {
        memcpy(v->lanes[i], a->x_state + 160 + 16 * i, 16);
        if (a->lanes > 16) memcpy(v->lanes[i] + 16, a->x_state + a->offset_high + 16 * i, 16);
        if (a->lanes > 32) memcpy(v->lanes[i] + 32, a->x_state + a->offset_lanes + 32 * i, 32);
        if (a->lanes > 32) memcpy(v->lanes[16 + i], a->x_state + a->offset_upper + 64 * i, 64);
    }
    if (a->lanes > 32) memcpy(v->masks, a->x_state + a->offset_masks, sizeof v->masks);
    return a->has_vectors = 1;
}

static int has_shadow_stack(const struct ahead *a)
{
    u64 pointer;
    struct iovec to = {&pointer, sizeof pointer};
    return syscall(SYS_ptrace, GETREGSET, a->now->thread, SHADOW_STACK, &to) == 0;
}

static int holds(u64 flags, int condition)
{
    int c = 0;
    switch (condition >> 1) {
    case 0: c = (flags & OF) != 0; break;
    case 1: c = (flags & CF) != 0; break;
    case 2: c = (flags & ZF) != 0; break;
    case 3: c = (flags & (CF | ZF)) != 0; break;
    case 4: c = (flags & SF) != 0; break;
    case 5: c = (flags & PF) != 0; break;
    case 6: c = !(flags & SF) != !(flags & OF); break;
    case 7: c = (flags & ZF) != 0 || !(flags & SF) != !(flags & OF); break;
    }
    return c != (condition & 1);
}

static int push(struct ahead *a, u64 value)
{
    u64 *g = a->state->general;
    if (!store_number(a, g[RSP] - 8, value, 8)) return 0;
    g[RSP] -= 8;
    return 1;
}

static int pop(struct ahead *a, u64 *value)
{
    u64 *g = a->state->general;
    if (!load_number(a, g[RSP], value, 8, 0)) return 0;
    g[RSP] += 8;
    return 1;
}

/* The operand of a branch or a push: a register, or 8 bytes of memory. */
static int operand_value(struct ahead *a, const struct instruction *i, u64 *value)
{
    if (!i->memory) {
        *value = a->state->general[i->rm];
        return 1;
    }
    return load_number(a, effective(a, i), value, 8, 0);
}

static void subtract_flags(struct ahead *a, u64 left, u64 right, int size)
{
    u64 top = (u64)1 << (size * 8 - 1), mask = mask_of(size);
    left &= mask;
    right &= mask;
    u64 result = (left - right) & mask, flags = a->state->flags & ~(u64)(CF | PF | AF | ZF | SF | OF);
    if (left < right) flags |= CF;
    if (!result) flags |= ZF;
    if (result & top) flags |= SF;
    if ((left ^ right) & (left ^ result) & top) flags |= OF;
    if ((left ^ right ^ result) & 0x10) flags |= AF;
    if (!(__builtin_popcountll(result & 0xFF) & 1)) flags |= PF;
    a->state->flags = flags;
}

/* MOVS, CMPS, STOS, LODS and SCAS, with their repetitions. */
static int string(struct ahead *a, const struct instruction *i)
{
    u64 *g = a->state->general;
    if (i->address_32) return 0;
    int op = i->opcode & 0xFE, size = i->size;
    u64 step = a->state->flags & DF ? (u64)-(i64)size : (u64)size;
    u64 base = i->segment ? a->now->registers[i->segment == 1 ? U_FS : U_GS] : 0;
    for (u32 n = 0; !i->repeats || g[RCX]; n++) {
        if (n == REPETITIONS) {
            a->is_full = 1;
            return 0;
        }
        u64 left = 0, right = 0, count = 1;
        if (i->repeats && (op == 0xA4 || op == 0xAA) && step == (u64)size && g[RCX] > 1) { /* as much as is in both pages */
            u64 to = (PAGE - (g[RDI] & (PAGE - 1))) / (u64)size, from = (PAGE - ((g[RSI] + base) & (PAGE - 1))) / (u64)size;
            count = op == 0xA4 && from < to ? from : to;
            if (count > g[RCX]) count = g[RCX];
            u64 apart = g[RDI] - g[RSI] - base;
            if (!count || (op == 0xA4 && apart < count * (u64)size)) count = 1; /* what is copied may be copied again */
        }
        u8 many[PAGE];
        if (op == 0xA4) {
            if (!load(a, g[RSI] + base, many, count * (u64)size, 0)) return 0;
        } else if (op == 0xAA)
            for (u64 to = 0; to < count * (u64)size; to += (u64)size) memcpy(many + to, &g[RAX], (size_t)size);
        if (op == 0xA4 || op == 0xAA) {
            if (!store(a, g[RDI], many, count * (u64)size)) return 0;
        }
        if (op == 0xAC || op == 0xA6)
            if (!load(a, g[RSI] + base, &left, (u64)size, 0)) return 0;
        if (op == 0xAE) left = g[RAX];
        if (op == 0xAE || op == 0xA6)
            if (!load(a, g[RDI], &right, (u64)size, 0)) return 0;
        if (op == 0xAC) set_register(a, RAX, left, size);
        if (op == 0xA4 || op == 0xA6 || op == 0xAC) g[RSI] += step * count;
        if (op != 0xAC) g[RDI] += step * count;
        int compares = op == 0xA6 || op == 0xAE;
        if (compares) subtract_flags(a, left, right, size);
        if (!i->repeats) break;
        g[RCX] -= count;
        if (compares && !(a->state->flags & ZF) == (i->repeats == 0xF3)) break;
    }
    return 1;
}

/* BT, BTS, BTR and BTC with a bit number in a register: it may be far from the operand. */
static int bit_string(struct ahead *a, const struct instruction *i)
{
    u64 number = a->state->general[i->reg], value = 0, at = effective(a, i);
    i64 bit = i->size == 8 ? (i64)number : i->size == 4 ? (i64)(i32)number : (i64)(int16_t)number;
    at += (u64)((bit >> (i->size == 8 ? 6 : i->size == 4 ? 5 : 4)) * i->size);
    bit &= i->size * 8 - 1;
    if (!load(a, at, &value, i->size, 0)) return 0;
    a->state->flags = (a->state->flags & ~(u64)CF) | (value >> bit & 1);
    u64 one = (u64)1 << bit;
    if (i->opcode == 0xA3) return 1;
    value = i->opcode == 0xAB ? value | one : i->opcode == 0xB3 ? value & ~one : value ^ one;
    return store(a, at, &value, i->size);
}

static u64 parts_of(const struct ahead *a, const struct instruction *i)
{
    int all = (i->reg & 7) >= 4; /* XSAVE, XSAVEC, XSAVEOPT, XRSTOR; else FXSAVE, FXRSTOR */
    return all ? a->state->general[RAX] & ALL_PARTS : X87_PART | XMM_PART;
}

/* XSAVE and its like: what is saved is kept here, and not in memory, until it is restored from the same address. */
static int save_state(struct ahead *a, const struct instruction *i)
{
    u64 at = effective(a, i);
    if (at & ((i->reg & 7) >= 4 ? 63 : 15)) return 0;
    if (!a->has_vectors && !read_vectors(a)) return 0;
    struct saved *to = NULL;
    for (u32 n = 0; n < a->saved_count; n++)
        if (a->saved[n].address == at) to = &a->saved[n];
    if (!to) {
        to = &a->saved[a->saved_next++ % SAVED];
        if (a->saved_count < SAVED) a->saved_count++;
    }
    to->address = at;
    to->parts = parts_of(a, i);
    to->control = a->state->control;
    to->v = a->state->v;
    a->changes++;
    return 1;
}

static int restore_state(struct ahead *a, const struct instruction *i)
{
    u64 at = effective(a, i), parts = parts_of(a, i);
    struct vectors *v = &a->state->v;
    for (u32 n = 0; n < a->saved_count; n++) {
        const struct saved *from = &a->saved[n];
        if (from->address != at || parts & ~from->parts) continue;
        if (parts & X87_PART) memcpy(v->x87, from->v.x87, sizeof v->x87);
        if (parts & (XMM_PART | YMM_PART)) a->state->control = from->control;
        for (int r = 0; r < 16; r++) {
            if (parts & XMM_PART) memcpy(v->lanes[r], from->v.lanes[r], 16);
            if (parts & YMM_PART) memcpy(v->lanes[r] + 16, from->v.lanes[r] + 16, 16);
            if (parts & ZMM_PART) memcpy(v->lanes[r] + 32, from->v.lanes[r] + 32, 32);
            if (parts & UPPER_PART) memcpy(v->lanes[16 + r], from->v.lanes[16 + r], 64);
        }
        if (parts & MASKS_PART) memcpy(v->masks, from->v.masks, sizeof v->masks);
        a->changes++;
        return 1;
    }
    return 0;
}

/* An instruction that the processor executes. FULL, or why the run ends. */
static int executed(struct ahead *a, const struct known *k)
{
    const struct instruction *i = &k->i;
    struct state *s = a->state;
    u8 before[64];
    u64 was = 0, at = 0, size = i->size;
    u8 *operand = s->operand;
    if (i->state) {
        if (!a->has_vectors && !read_vectors(a)) return NOT_MODELLED;
        a->changes++;
    }
    if (i->memory) {
        at = effective(a, i);
        operand += at & 63;
        s->operand_at = (u64)operand;
        int how = i->only_writes ? UNUSED : 0;
        if (size <= 8) {
            if (!load_number(a, at, &was, i->size, how)) return FAULTS;
            memcpy(operand, &was, 8);
        } else {
            if (!load(a, at, operand, size, how | REACHES)) return FAULTS;
            memcpy(before, operand, size);
        }
    }
    if (execute(a, k->piece, i->state)) return FAULTS;
    s->flags &= OWN_FLAGS;
    if (i->memory && size <= 8) { /* what is behind the operand does not change */
        u64 now;
        memcpy(&now, operand, 8);
        if (now != was && !store_number(a, at, now, i->size)) return FAULTS;
    } else if (i->memory && memcmp(before, operand, size)) {
        u64 first = 0; /* only what it wrote: its operand may be smaller, and the next page not there */
        while (before[first] == operand[first]) first++;
        while (before[size - 1] == operand[size - 1]) size--;
        if (!store(a, at + first, operand + first, size - first)) return FAULTS;
    }
    return FULL;
}

/* -- a run */

static int run(struct ahead *a)
{
    struct run *r = a->now;
    struct state *s = a->state;
    u64 *g = s->general, at = r->registers[U_RIP], counted = 0;
    u64 seen[17] = {0}, seen_at = 0, seen_changes = 0, value;
    u64 target = 0, switched = 0;
    struct known *k = a->known, *guess = k, *from = NULL; /* from: the branch to k */
    r->address = at;
    if (r->registers[U_FLAGS] & (TF | AC)) return NOT_MODELLED; /* what only computes may trap */
    for (;; r->executed++) {
        r->address = at;
        if (r->executed >= r->most) return STOPS;
        k = known_at(a, at, guess);
        if (!k) return UNREADABLE;
        if (from) from->then = (u32)(k - a->known);
        from = NULL;
        guess = k + 1; /* instructions are kept as they were first executed */
        const struct instruction *i = &k->i;
        u64 next = at + i->length, stack = g[RSP];
        int kind = 0;
        switch (i->what) {
        case EXECUTED: {
            int why = executed(a, k);
            if (why != FULL) return why;
            break;
        }
        case NOTHING_TO_DO: break;
        case MOVE: /* they are so many that a piece would cost more */
            if (i->opcode < 0x8A) {
                if (!i->memory) set_register(a, i->rm, g[i->reg], i->size);
                else if (!store_number(a, effective(a, i), g[i->reg], i->size)) return FAULTS;
            } else {
                if (!i->memory) value = g[i->rm];
                else if (!load_number(a, effective(a, i), &value, i->size, 0)) return FAULTS;
                set_register(a, i->reg, value, i->size);
            }
            break;
        case LOAD_ADDRESS: {
            struct instruction plain = *i;
            plain.segment = 0;
            set_register(a, i->reg, effective(a, &plain), i->size);
            break;
        }
        case PUSH:
            value = i->immediate;
            if ((i->memory || i->rm != NO_REGISTER) && !operand_value(a, i, &value)) return FAULTS;
            if (!push(a, value)) return FAULTS;
            break;
        case POP:
            if (!pop(a, &value)) return FAULTS;
            if (!i->memory) g[i->rm] = value;
            else if (!store(a, effective(a, i), &value, 8)) { /* its address uses the new RSP */
                g[RSP] -= 8;
                return FAULTS;
            }
            break;
        case PUSH_FLAGS:
            if (!push(a, s->flags | (r->registers[U_FLAGS] & ~(u64)(OWN_FLAGS | RF)))) return FAULTS;
            break;
        case POP_FLAGS:
            if (!load(a, g[RSP], &value, 8, 0)) return FAULTS;
            if ((value ^ r->registers[U_FLAGS]) & FIXED_FLAGS) return NOT_MODELLED;
            g[RSP] += 8;
            s->flags = value & OWN_FLAGS;
            break;
        case LEAVE_FRAME:
            if (!load(a, g[RBP], &value, 8, 0)) return FAULTS;
            g[RSP] = g[RBP] + 8;
            g[RBP] = value;
            break;
        case STRING:
            if (!string(a, i)) return FAULTS;
            break;
        case DIRECTION: s->flags = (s->flags & ~(u64)DF) | (i->opcode == 0xFD ? DF : 0); break;
        case BIT_STRING:
            if (!bit_string(a, i)) return FAULTS;
            break;
        case SAVE_STATE:
            if (!save_state(a, i)) return NOT_MODELLED;
            break;
        case RESTORE_STATE:
            if (!restore_state(a, i)) return NOT_MODELLED;
            break;
        case LOAD_CONTROL: {
            u32 control;
            if (!a->has_vectors && !read_vectors(a)) return NOT_MODELLED;
            if (!load(a, effective(a, i), &control, 4, 0)) return FAULTS;
            if ((control & 0x1F80) != 0x1F80 || control >> 16) return NOT_MODELLED;
            s->control = control;
            break;
        }
        case STORE_CONTROL:
            if (!a->has_vectors && !read_vectors(a)) return NOT_MODELLED;
            if (!store(a, effective(a, i), &s->control, 4)) return FAULTS;
            break;
        case READ_BASE:
            set_register(a, i->rm, r->registers[(i->reg & 7) == 0 ? U_FS : U_GS], i->size);
            break;
        case READ_SHADOW_STACK: /* the unwinder of C++ asks; it does nothing in a thread without one */
            if (has_shadow_stack(a)) return NOT_MODELLED;
            break;
        case ZERO_UPPER: /* VZEROUPPER, VZEROALL */
            if (!a->has_vectors && !read_vectors(a)) return NOT_MODELLED;
            for (int n = 0; n < 16; n++)
                if (i->size == 16) memset(s->v.lanes[n] + 16, 0, 48);
                else memset(s->v.lanes[n], 0, 64);
            a->changes++;
            break;
        case SYSTEM_CALL: return AT_SYSTEM_CALL;
        case CONDITION:
            if (holds(s->flags, i->opcode & 15)) target = i->immediate, kind = 1;
            break;
        case JUMP: target = i->immediate, kind = 2; break;
        case CALL:
            if (!push(a, next)) return FAULTS;
            target = i->immediate, kind = 4;
            break;
        case RETURN:
            if (!pop(a, &target)) return FAULTS;
            g[RSP] += i->opcode == 0xC2 ? i->immediate : 0;
            kind = 6;
            break;
        case JUMP_TO:
            if (!operand_value(a, i, &target)) return FAULTS;
            kind = 3;
            break;
        case CALL_TO:
            if (!operand_value(a, i, &target) || !push(a, next)) return FAULTS;
            kind = 5;
            break;
        case COUNT: {
            u64 mask = i->address_32 ? 0xFFFFFFFF : ~(u64)0;
            int form = i->opcode & 3; /* LOOPNE, LOOPE, LOOP, JRCXZ */
            if (form != 3) set_register(a, RCX, g[RCX] - 1, i->address_32 ? 4 : 8);
            int taken = form == 3 ? !(g[RCX] & mask) : (g[RCX] & mask) && (form == 2 || !(s->flags & ZF) == !form);
            if (taken) target = i->immediate, kind = 1;
            break;
        }
        default: return NOT_MODELLED;
        }
        if (k->loads_stack && g[RSP] < stack) switched = SWITCHED;
        if (!kind) {
            at = next;
            continue;
        }
        u64 *edge = r->edges + 4 * r->count++;
        edge[0] = at, edge[1] = target, edge[2] = (u64)kind | (u64)i->length << 8 | switched, edge[3] = g[RSP];
        switched = 0;
        counted += r->kinds >> kind & 1;
        int back = target <= at;
        r->address = at = target;
        from = k, guess = a->known + k->then;
        if ((counted >= r->wanted && r->count >= r->depth) || r->count == r->room) return FULL;
        if (back && !r->alone) { /* it may wait for another thread, which does not run in between as it would */
            if (target == seen_at && a->changes == seen_changes && !memcmp(seen, g, 16 * 8) && seen[16] == s->flags) return REPEATS;
            seen_at = target, seen_changes = a->changes, seen[16] = s->flags;
            memcpy(seen, g, 16 * 8);
        }
    }
}

/* Run ahead as `r` says. 0, or -1 where signals cannot be set up. */
EXPORT int lb_run_ahead(struct ahead *a, struct run *r)
{
    sigset_t all, before;
    sigfillset(&all);
    for (int i = 0; i < 4; i++) sigdelset(&all, FAULT[i]);
    stack_t stack = {.ss_sp = a->signal_stack, .ss_size = 16 * PAGE}, former;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    if (sigprocmask(SIG_SETMASK, &all, &before)) return -1;
    stack.ss_flags = (int)SS_AUTODISARM; /* a thread's stack pointer may point into it */
    if (sigaltstack(&stack, &former)) {
        sigprocmask(SIG_SETMASK, &before, 0);
        return -1;
    }
    u16 x87_control;
    __asm__ volatile("fnstcw %0" : "=m"(x87_control));
    for (int i = 0; i < 4; i++) sigaction(FAULT[i], &action, &previous[i]);
    running = a;
    a->now = r;
    a->last = NULL;
    a->page_count = a->saved_count = a->saved_next = 0;
    a->has_vectors = a->is_full = 0;
    memset(a->page_slots, 0, PAGE_SLOTS * sizeof *a->page_slots);
    if (!++a->number || a->known_count > INSTRUCTIONS - (1 << 12) || a->code_page_count > CODE_PAGES - 512
        || a->end_of_code - a->code < (1 << 12) * PIECE) {
        forget_code(a);
        a->number += !a->number;
    }
    for (int i = 0; i < 16; i++) a->state->general[i] = r->registers[USER[i]];
    a->state->flags = r->registers[U_FLAGS] & OWN_FLAGS;
    __asm__ volatile("stmxcsr %0" : "=m"(a->state->host_control));
    r->count = r->executed = 0;
    r->why = (u64)run(a);
    if (a->is_full) r->why = STOPS;
    for (int i = 0; i < 16; i++) r->registers[USER[i]] = a->state->general[i];
    r->registers[U_RIP] = r->address;
    r->registers[U_FLAGS] = (r->registers[U_FLAGS] & ~(u64)OWN_FLAGS) | (a->state->flags & OWN_FLAGS);
    if (!r->alone && r->count) {
        u64 sure = unchanged_branches(a);
        if (sure < r->count) r->count = sure, r->why = CHANGED;
    }
    r->pages = a->page_count;
    running = NULL;
    __asm__ volatile("fninit; fldcw %0" : : "m"(x87_control));
    for (int i = 0; i < 4; i++) sigaction(FAULT[i], &previous[i], 0);
    sigaltstack(&former, 0);
    sigprocmask(SIG_SETMASK, &before, 0);
    return 0;
}

/* The vector registers and masks at the end of the last run, for tests. 0 where it needed none. */
EXPORT int lb_ahead_vectors(const struct ahead *a, void *lanes, void *masks)
{
    memcpy(lanes, a->state->v.lanes, sizeof a->state->v.lanes);
    memcpy(masks, a->state->v.masks, sizeof a->state->v.masks);
    return a->has_vectors;
}

/* `size` bytes at `address` as the last run left them, for tests. 0 where it did not use that memory. */
EXPORT int lb_ahead_memory(const struct ahead *a, u64 address, void *into, u64 size)
{
    for (u64 done = 0; done < size;) {
        u64 at = address + done, offset = at & (PAGE - 1), part = PAGE - offset < size - done ? PAGE - offset : size - done;
        const struct page *found = NULL;
        for (u32 n = 0; n < a->page_count; n++)
            if (a->pages[n].address == at - offset && a->pages[n].readable) found = &a->pages[n];
        if (!found) return 0;
        memcpy((u8 *)into + done, found->bytes + offset, part);
        done += part;
    }
    return 1;
}

static void *memory(size_t size, int protection)
{
    void *found = mmap(0, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

/* What this processor saves, and where (Intel SDM volume 1, 13.2): the size of its vectors. */
static void look_at_processor(struct ahead *a)
{
    u32 eax, ebx, ecx, edx, low, high;
    a->lanes = 16;
    a->x_size = 512;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx >> 27 & 1)) return;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    __cpuid_count(13, 0, eax, ebx, ecx, edx);
    a->x_size = ebx;
    if (low >> 2 & 1) {
        a->lanes = 32;
        __cpuid_count(13, 2, eax, a->offset_high, ecx, edx);
    }
    __cpuid_count(7, 0, eax, ebx, ecx, edx);
    int has_512 = (ebx >> 16 & 1) && (ebx >> 30 & 1); /* F and BW */
    if (a->lanes == 32 && has_512 && (low & 0xE0) == 0xE0) {
        a->lanes = 64;
        __cpuid_count(13, 5, eax, a->offset_masks, ecx, edx);
        __cpuid_count(13, 6, eax, a->offset_lanes, ecx, edx);
        __cpuid_count(13, 7, eax, a->offset_upper, ecx, edx);
    }
}

EXPORT void lb_ahead_free(struct ahead *a)
{
    if (!a) return;
    if (a->state) munmap(a->state, (size_t)(a->end_of_code - (u8 *)a->state));
    if (a->page_bytes) munmap(a->page_bytes, (size_t)PAGES * 2 * PAGE);
    if (a->code_bytes) munmap(a->code_bytes, (size_t)CODE_PAGES * PAGE);
    if (a->known) munmap(a->known, (INSTRUCTIONS + 1) * sizeof *a->known);
    if (a->slots) munmap(a->slots, SLOTS * sizeof *a->slots);
    if (a->guard) munmap(a->guard, 4 * GUARD);
    if (a->signal_stack) munmap(a->signal_stack, 16 * PAGE);
    free(a->pages);
    free(a->page_slots);
    free(a->code_pages);
    free(a->code_slots);
    free(a->x_state);
    free(a->saved);
    free(a);
}

/* NULL where the machine grants no memory for code, as some security policies do. */
EXPORT struct ahead *lb_ahead_new(void)
{
    struct ahead *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    look_at_processor(a);
    size_t code = sizeof(struct state) + STUBS + (size_t)INSTRUCTIONS * PIECE;
    a->state = memory(code, PROT_READ | PROT_WRITE | PROT_EXEC);
    a->end_of_code = (u8 *)a->state + code;
    a->page_bytes = memory((size_t)PAGES * 2 * PAGE, PROT_READ | PROT_WRITE);
    a->code_bytes = memory((size_t)CODE_PAGES * PAGE, PROT_READ | PROT_WRITE);
    a->known = memory((INSTRUCTIONS + 1) * sizeof *a->known, PROT_READ | PROT_WRITE);
    a->slots = memory(SLOTS * sizeof *a->slots, PROT_READ | PROT_WRITE);
    a->guard = memory(4 * GUARD, PROT_NONE);
    a->signal_stack = memory(16 * PAGE, PROT_READ | PROT_WRITE);
    a->pages = calloc(PAGES, sizeof *a->pages);
    a->page_slots = calloc(PAGE_SLOTS, sizeof *a->page_slots);
    a->code_pages = calloc(CODE_PAGES, sizeof *a->code_pages);
    a->code_slots = calloc(CODE_SLOTS, sizeof *a->code_slots);
    a->x_state = calloc(1, a->x_size + 64);
    a->saved = aligned_alloc(64, SAVED * sizeof *a->saved);
    if (!a->state || !a->page_bytes || !a->code_bytes || !a->known || !a->slots || !a->guard || !a->signal_stack || !a->pages
        || !a->page_slots || !a->code_pages || !a->code_slots || !a->x_state || !a->saved) {
        if (!a->state) a->end_of_code = NULL;
        lb_ahead_free(a);
        return NULL;
    }
    for (int n = 0; n < PAGES; n++) {
        a->pages[n].bytes = a->page_bytes + (size_t)n * 2 * PAGE;
        a->pages[n].was = a->pages[n].bytes + PAGE;
    }
    for (int n = 0; n < CODE_PAGES; n++) a->code_pages[n].bytes = a->code_bytes + (size_t)n * PAGE;
    a->code = (u8 *)a->state + sizeof *a->state;
    emit_stubs(a);
    if (a->code > (u8 *)a->state + sizeof *a->state + STUBS) {
        lb_ahead_free(a);
        return NULL;
    }
    a->code = (u8 *)a->state + sizeof *a->state + STUBS;
    return a;
}

#else /* this is for x86-64 Linux */

EXPORT int lb_run_ahead(void *ahead, void *run) { return (void)ahead, (void)run, -1; }
EXPORT int lb_ahead_vectors(const void *ahead, void *lanes, void *masks) { return (void)ahead, (void)lanes, (void)masks, 0; }
EXPORT int lb_ahead_memory(const void *ahead, u64 address, void *into, u64 size)
{
    return (void)ahead, (void)address, (void)into, (void)size, 0;
}
EXPORT void lb_ahead_free(void *ahead) { (void)ahead; }
EXPORT void *lb_ahead_new(void) { return 0; }

#endif
