/* The branches that a stopped thread is about to take, on x86-64 Linux: its code is executed here, on copies of its
 * registers and of the memory that it reads. The thread itself stays at its place, and nothing in the thread changes.
 *
 * The processor executes each instruction that only computes: as it is, in a piece of code that loads the thread's
 * registers and keeps the results. A memory operand is replaced by a copy of it. C code executes instructions that move
 * the instruction pointer or the stack. Instructions whose result only the thread can know end the run: system calls,
 * clocks, random numbers.
 *
 * A run loads from, stores to and executes a page only with the thread's rights: /proc/PID/mem knows no rights, so
 * rights are looked up once for each page and run. An access without the right is a fault in the thread, and ends the
 * run here.
 *
 * Pieces of code are kept by address, with the page that they were decoded from: in each run a page is read again
 * before it is used. */
#define _GNU_SOURCE
#include "x86_flags.h"
#include "x86_instruction.h"

#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__)

#include <cpuid.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

enum { PAGE = 4096, GRANULE = 8, WORDS = PAGE / GRANULE / 64 };
enum { PAGES = 1 << 11, PAGE_SLOTS = 1 << 13, CODE_PAGES = 1 << 12, CODE_SLOTS = 1 << 14 };
enum { INSTRUCTIONS = 1 << 17, SLOTS = 1 << 19, PIECE = 64, LARGEST_PIECE = 512, STUBS = 4096, GUARD = 2 * PAGE };
enum { SAVED = 4, MAPPINGS = 64 };

/* Work, in instructions that only compute: what is moved, and how much is done between two looks at the clock. */
enum { BYTES_MOVED = 64, ELEMENTS_COMPARED = 16, PAGE_READ = 32, BETWEEN_LOOKS = 1024 };

/* Why a run ends. The order is that of `WHY` of run_ahead.py. */
enum { FULL, AT_SYSTEM_CALL, UNREADABLE, NOT_MODELLED, FAULTS, STOPS, REPEATS, CHANGED, LATE };

enum { SWITCHED = 1 << 16 }; /* of an edge: before it, the stack pointer was set to a lower address */
enum { OWN_FLAGS = CF | PF | AF | ZF | SF | DF | OF, FIXED_FLAGS = TF | NT | AC | ID };
enum { GETREGSET = 0x4204, X_STATE = 0x202, SHADOW_STACK = 0x204 };
/* struct user_regs_struct */
enum { U_RIP = 16, U_FLAGS = 18, U_FS = 21, U_GS = 22 };
static const u8 USER[16] = {10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0}; /* of RAX, RCX, ... R15 */

struct vectors {
    u8 lanes[32][64];
    u64 masks[8];
    u8 x87[512];
} __attribute__((aligned(64)));

/* The data of the pieces of code, at the beginning of their memory. */
struct state {
    struct vectors v;
    u64 general[16], flags, host_stack, operand_at, piece;
    u32 control, host_control;
} __attribute__((aligned(64)));

/* Rights of a mapping, as PROCMAP_QUERY has them. */
enum { READ = 1, WRITE = 2, EXECUTE = 4 };

struct mapping {
    u64 begin, end;
    u8 rights;
};

/* The rights of a run to a page. WATCHED: the run may store to the page, unless userfaultfd watches stores there, which
 * must be looked up. PARTLY: the contents of some words of the page are not known. */
enum { WRITABLE, READABLE, CLOSED }; /* pages of a window */
enum { LOADS = 1, STORES = 2, EXECUTES = 4, WATCHED = 8, PARTLY = 16 };

struct page {
    u64 address;
    u8 *bytes, *was;
    u64 loaded[WORDS], stored[WORDS], unknown[WORDS];
    u32 run, branches; /* of the run it was read in; how many branches were known then */
    u8 may, rights;
    u32 code; /* 1 + the index of its code page, if code of it was executed in this run */
};

struct code_page {
    u64 address;
    u32 space, generation, run;
    u8 *bytes;
};

struct known {
    u64 address;
    struct instruction i;
    u32 space, page, next_page, generation, next_generation;
    u32 piece; /* its offset from the state, 0: none */
    u32 then;  /* the instruction that it branched to last */
    u8 scratch, loads_stack;
};

/* A saved state: the components of it that were saved, and where to. */
struct saved {
    u64 address, size, parts;
    u32 control;
    struct vectors v;
};

/* Components of a state, as XSAVE numbers them. */
enum { KEYS = 9 };
enum {
    X87_PART = 1,
    XMM_PART = 2,
    YMM_PART = 4,
    MASKS_PART = 0x20,
    ZMM_PART = 0x40,
    UPPER_PART = 0x80,
    ALL_PARTS = 0xE7
};

/* The request for a run, and its result. run_ahead.py has the same structure. `maps` and `pagemap` are file descriptors
 * of those files of the thread's process, `pagemap` -1 where the kernel has none; `most` is of work, `time` is ns of
 * our own thread, 0: any. */
struct run {
    u64 memory, maps, pagemap, thread, space, alone, kinds, wanted, depth, most, time, room;
    u64 *registers; /* struct user_regs_struct: before, and afterwards at the end of the run */
    u64 *edges; /* source, target, perf's branch type with the length of the instruction in bits 8 up, stack pointer */
    u64 count, executed, why, address, pages, work;
};

struct part { u32 size, offset, aligned; };

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
    u8 *windows[2][3]; /* two pages for the operand of a piece, by what may be done with them: `map_operands` */
    struct mapping *mappings; /* of this run: mappings that held pages, or all mappings in order */
    u32 mapping_count, mapping_room, mapping_next;
    int maps_as_text; /* and all are read */
    u64 check, until; /* the work at which the clock is looked at, and when the run is late */
    int lanes; /* bytes of a vector register: 16, 32, 64 */
    u32 offset_high, offset_masks, offset_lanes, offset_upper, x_size, offset_keys;
    struct part parts[64]; /* of a saved state, those that this system has */
    u8 *x_state;
    struct saved *saved;
    u32 saved_count, saved_next;
    int has_vectors; /* those of the thread were read in this run */
    int is_full; /* no more pages or instructions are kept */
    u64 changes; /* stores and instructions on vectors so far */
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
static u32 emit_piece(struct ahead *a, const struct instruction *i, const u8 *code, const u8 *bytes, int size,
                      int scratch)
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

/* -- how long it lasts */

static u64 own_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec;
}

/* Look at the limits when work has reached `check`: FULL, or why the run ends. A run without a branch leaves time to
 * follow the thread. */
static int is_over(struct ahead *a)
{
    struct run *r = a->now;
    if (r->work >= r->most) return STOPS;
    a->check = r->most - r->work < BETWEEN_LOOKS ? r->most : r->work + BETWEEN_LOOKS;
    return r->time && own_time() + (r->count ? 0 : r->time / 2) >= a->until ? LATE : FULL;
}

static int goes_on(struct ahead *a) { return a->now->work < a->check ? FULL : is_over(a); }

/* -- what the thread may do with its memory */

/* struct procmap_query and PROCMAP_QUERY of linux/fs.h, from Linux 6.11 on */
struct query {
    u64 size, flags, address, begin, end, found, page_size, offset, inode;
    u32 major, minor, name_size, id_size;
    u64 name, id;
};
#define QUERY _IOWR('f', 17, struct query)

static struct mapping *new_mapping(struct ahead *a)
{
    if (a->mapping_count == a->mapping_room) {
        u32 room = a->mapping_room * 2;
        struct mapping *more = realloc(a->mappings, room * sizeof *more);
        if (!more) return NULL;
        a->mappings = more;
        a->mapping_room = room;
    }
    return &a->mappings[a->mapping_count++];
}

static const char *hexadecimal(const char *at, const char *end, u64 *number)
{
    for (*number = 0; at < end; at++) {
        int digit = *at >= '0' && *at <= '9' ? *at - '0' : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10 : -1;
        if (digit < 0) break;
        *number = *number << 4 | (u64)digit;
    }
    return at;
}

/* All mappings from the text of /proc/PID/maps, before Linux 6.11. */
static void read_maps(struct ahead *a)
{
    char text[4 * PAGE];
    u64 have = 0, at = 0;
    for (;;) {
        ssize_t got = pread((int)a->now->maps, text + have, sizeof text - have, (off_t)at);
        if (got <= 0) break;
        at += (u64)got;
        have += (u64)got;
        const char *line = text, *end = text + have, *next;
        for (; (next = memchr(line, '\n', (size_t)(end - line))); line = next + 1) {
            u64 first, last;
            const char *rest = hexadecimal(line, next, &first);
            if (rest < next) rest = hexadecimal(rest + 1, next, &last);
            if (next - rest < 5) continue;
            struct mapping *one = new_mapping(a);
            if (!one) return;
            u8 rights =
                (u8)((rest[1] == 'r' ? READ : 0) | (rest[2] == 'w' ? WRITE : 0) | (rest[3] == 'x' ? EXECUTE : 0));
            *one = (struct mapping){first, last, rights};
        }
        have = (u64)(end - line);
        if (have == sizeof text) break; /* no line is that long */
        memmove(text, line, have);
    }
}

static void forget_mappings(struct ahead *a)
{
    a->mapping_count = a->mapping_next = 0;
    a->maps_as_text = 0;
}

/* The rights of the mapping that has `address`; 0 where there is none, or nobody says. */
static u8 rights_at(struct ahead *a, u64 address)
{
    if (!a->maps_as_text) {
        for (u32 n = 0; n < a->mapping_count; n++)
            if (a->mappings[n].begin <= address && address < a->mappings[n].end) return a->mappings[n].rights;
        struct query q = {.size = sizeof q, .address = address};
        if (!ioctl((int)a->now->maps, QUERY, &q)) {
            struct mapping *one =
                a->mapping_count < MAPPINGS ? new_mapping(a) : &a->mappings[a->mapping_next++ % MAPPINGS];
            *one = (struct mapping){q.begin, q.end, (u8)(q.found & (READ | WRITE | EXECUTE))};
            return one->rights;
        }
        if (errno != ENOTTY) return 0;
        a->maps_as_text = 1;
        a->mapping_count = 0;
        read_maps(a);
    }
    u32 low = 0, high = a->mapping_count;
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (a->mappings[middle].end <= address) low = middle + 1;
        else high = middle;
    }
    return low < a->mapping_count && a->mappings[low].begin <= address ? a->mappings[low].rights : 0;
}

/* A thread that has changed its protection keys uses them, and which mapping has which is in /proc/PID/smaps only, which takes
 * too long. Our own are those with which programs begin. */
static int uses_keys(const struct ahead *a)
{
    if (!a->offset_keys) return 0;
    u32 ours, high, theirs = 0;
    __asm__ volatile(".byte 0x0F, 0x01, 0xEE" : "=a"(ours), "=d"(high) : "c"(0)); /* rdpkru */
    struct iovec to = {a->x_state, a->x_size};
    if (syscall(SYS_ptrace, GETREGSET, a->now->thread, X_STATE, &to) < 0)
        return 0; /* the start-up test: it is our own */
    if (a->x_state[513] & 2) theirs = get32(a->x_state + a->offset_keys);
    return ours != theirs;
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
    page->may = 0;
    page->rights = rights_at(a, address);
    int readable = page->rights && pread((int)a->now->memory, page->bytes, PAGE, (off_t)address) == PAGE;
    if (readable) /* what may be written may be read, on x86; what may be executed only has a protection key */
        page->may = (u8)((page->rights & (READ | WRITE) ? LOADS : 0) | (page->rights & WRITE ? WATCHED : 0)
                         | (page->rights & EXECUTE ? EXECUTES : 0));
    if (!a->now->alone) {
        memset(page->loaded, 0, sizeof page->loaded + sizeof page->stored);
        if (readable) memcpy(page->was, page->bytes, PAGE);
    }
    a->check = a->check > a->now->work + PAGE_READ ? a->check - PAGE_READ : a->now->work;
    return a->last = page;
}

/* Whether the run may store to `page`. If userfaultfd write-protects the page, a store waits for another thread: bit 57
 * of the page's entry (Documentation/admin-guide/mm/pagemap.rst). */
static int may_store(struct ahead *a, struct page *page)
{
    if (page->may & WATCHED) {
        u64 entry = 0;
        int said = a->now->pagemap == ~(u64)0
            || pread((int)a->now->pagemap, &entry, 8, (off_t)(page->address >> 12 << 3)) == 8;
        page->may = (u8)((page->may & ~WATCHED) | (said && !(entry >> 57 & 1) ? STORES : 0));
    }
    return page->may & STORES;
}

/* The window in which the processor may do with an operand what the thread may do. */
static u8 *window_of(struct ahead *a, u64 address, u64 size)
{
    struct page *page = page_of(a, address);
    int first = page && may_store(a, page) ? WRITABLE : READABLE, second = first;
    if ((address & (PAGE - 1)) + size > PAGE) {
        page = page_of(a, address + size - 1);
        second = !page || !(page->may & LOADS) ? CLOSED : may_store(a, page) ? WRITABLE : READABLE;
    }
    return a->windows[first][second];
}

static void mark(u64 *bits, u64 offset, u64 size)
{
    for (u64 g = offset / GRANULE; g <= (offset + size - 1) / GRANULE; g++) bits[g / 64] |= (u64)1 << g % 64;
}

static int is_unknown(const struct page *page, u64 offset, u64 size)
{
    for (u64 g = offset / GRANULE; g <= (offset + size - 1) / GRANULE; g++)
        if (page->unknown[g / 64] >> g % 64 & 1) return 1;
    return 0;
}

/* Mark `size` bytes at `address` as not known from now on. 0 if the thread may not store there. */
static int forget(struct ahead *a, u64 address, u64 size)
{
    for (u64 done = 0; done < size;) {
        u64 offset = (address + done) & (PAGE - 1), part = PAGE - offset < size - done ? PAGE - offset : size - done;
        struct page *page = page_of(a, address + done);
        if (!page || !may_store(a, page)) return 0;
        if (!(page->may & PARTLY)) memset(page->unknown, 0, sizeof page->unknown);
        page->may |= PARTLY;
        mark(page->unknown, offset, part);
        done += part;
    }
    return 1;
}

/* Mark the words that `size` stored bytes fill as known. A state that was saved there has changed. */
static void remember(struct ahead *a, struct page *page, u64 offset, u64 size)
{
    for (u32 n = 0; n < a->saved_count; n++)
        if (page->address + offset - a->saved[n].address + size - 1 < a->saved[n].size + size - 1)
            a->saved[n].parts = 0;
    for (u64 g = (offset + GRANULE - 1) / GRANULE; g < (offset + size) / GRANULE; g++)
        page->unknown[g / 64] &= ~((u64)1 << g % 64);
}

enum { REACHES = 1, UNUSED = 2 };

/* `size` bytes at `address`; 0 if the run may not read these bytes, or they are not known. REACHES: bytes in a page
 * that the run may not read are zeros, which nobody may use; UNUSED: all bytes are only there to be overwritten. */
static int load(struct ahead *a, u64 address, void *into, u64 size, int how)
{
    for (u64 done = 0; done < size;) {
        u64 offset = (address + done) & (PAGE - 1), part = PAGE - offset < size - done ? PAGE - offset : size - done;
        struct page *page = page_of(a, address + done);
        if (!page || !(page->may & LOADS)) {
            if (!(how & REACHES) || !done || !page) return 0;
            memset((u8 *)into + done, 0, size - done);
            return 1;
        }
        if (page->may & PARTLY && !(how & UNUSED) && is_unknown(page, offset, part)) return 0;
        memcpy((u8 *)into + done, page->bytes + offset, part);
        if (!a->now->alone && !(how & UNUSED))
            for (u64 g = offset / GRANULE; g <= (offset + part - 1) / GRANULE; g++)
                if (!(page->stored[g / 64] >> g % 64 & 1)) page->loaded[g / 64] |= (u64)1 << g % 64;
        done += part;
    }
    return 1;
}

/* Have decoded code compared with its page again before its next execution. */
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
        if (!page || !may_store(a, page)) return 0;
        code_changes(a, page);
        memcpy(page->bytes + offset, (const u8 *)from + done, part);
        if (page->may & PARTLY) remember(a, page, offset, part);
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
    if (!page || !(page->may & LOADS)) return 0;
    if (page->may & PARTLY && !(how & UNUSED) && is_unknown(page, offset, (u64)size)) return 0;
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
    if (!page || !may_store(a, page)) return 0;
    if (page->may & PARTLY) remember(a, page, offset, (u64)size);
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
    forget_mappings(a);
    for (u32 n = 0; n < a->page_count; n++) {
        struct page *page = &a->pages[n];
        u64 any = 0;
        for (int w = 0; w < WORDS; w++) any |= page->loaded[w];
        if (page->branches >= sure) continue;
        if (rights_at(a, page->address) != page->rights) sure = page->branches;
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

/* The page of code at `address`, read in this run. 0: the page cannot be read, else 1 + its index. */
static u32 code_page_of(struct ahead *a, u64 address)
{
    address &= ~(u64)(PAGE - 1);
    u32 space = (u32)a->now->space,
        place = (u32)(((address >> 12) + space * 77u) * 0x9E3779B97F4A7C15u >> 50) & (CODE_SLOTS - 1);
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
    if (!now || !(now->may & EXECUTES)) return 0;
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

/* Scale an 8-bit displacement of EVEX, which counts in units that depend on the instruction: the processor tells the
 * address at which its read fails. */
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
    if (guess->address == address && guess->space == space && guess < a->known + a->known_count && is_current(a, guess))
        return guess;
    /* Instructions of a page have neighbouring slots, too: distant slots are slow to look up. */
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
    *k = (struct known){.address = address,
                        .i = i,
                        .space = space,
                        .page = page - 1,
                        .next_page = next - 1,
                        .generation = a->code_pages[page - 1].generation,
                        .next_generation = a->code_pages[next - 1].generation};
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
    if ((x87_control & 0x3F) != 0x3F || (a->state->control & 0x1F80) != 0x1F80)
        return 0; /* exceptions would be signals */
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

/* How many elements of `size` bytes from `at` on are in the page of `at`, upwards or `down`. */
static u64 in_page(u64 at, u64 size, int down)
{
    u64 offset = at & (PAGE - 1);
    return !down ? (PAGE - offset) / size : offset + size <= PAGE ? offset / size + 1 : 0;
}

/* MOVS, CMPS, STOS, LODS and SCAS, with their repetitions: as many at a time as are in one page of each operand. FULL, or why
 * the run ends: the registers say how far it came. */
static int string(struct ahead *a, const struct instruction *i)
{
    enum { COMPARED = 512 };
    u64 *g = a->state->general, size = i->size;
    if (i->address_32) return FAULTS;
    int op = i->opcode & 0xFE, down = (a->state->flags & DF) != 0, why;
    int compares = op == CMPS || op == SCAS, reads = op == MOVS || op == CMPS || op == LODS;
    u64 base = i->segment ? a->now->registers[i->segment == 1 ? U_FS : U_GS] : 0, mask = mask_of(i->size);
    u8 from[PAGE + 8], to[PAGE + 8];
    while (!i->repeats || g[RCX]) {
        if ((why = goes_on(a)) != FULL) return why;
        u64 count = i->repeats ? g[RCX] : 1, source = g[RSI] + base, more;
        if (reads && (more = in_page(source, size, down)) < count) count = more;
        if (op != LODS && (more = in_page(g[RDI], size, down)) < count) count = more;
        if (compares && count > COMPARED) count = COMPARED;
        if (op == MOVS && (more = (down ? source - g[RDI] : g[RDI] - source) / size) < count) count = more;
        if (!count) count = 1; /* in two pages; or what is copied is copied again */
        u64 bytes = count * size, below = down ? bytes - size : 0; /* how far the operand begins before its register */
        if (reads && !load(a, source - below, from, bytes, 0)) return FAULTS;
        if (op == STOS)
            for (u64 n = 0; n < bytes; n += size) memcpy(from + n, &g[RAX], size);
        if ((op == MOVS || op == STOS) && !store(a, g[RDI] - below, from, bytes)) return FAULTS;
        if (compares && !load(a, g[RDI] - below, to, bytes, 0)) return FAULTS;
        u64 done = count;
        if (compares) {
            u64 left = g[RAX] & mask, right = 0;
            for (done = 0; done < count;) {
                u64 n = down ? below - done * size : done * size;
                if (op == CMPS) memcpy(&left, from + n, 8);
                memcpy(&right, to + n, 8);
                left &= mask, right &= mask;
                done++;
                if (i->repeats && (left == right) == (i->repeats == REPNE)) break;
            }
            subtract_flags(a, left, right, i->size);
        }
        u64 passed = done * size;
        if (op == LODS) {
            u64 last = 0;
            memcpy(&last, from + (down ? 0 : bytes - size), size);
            set_register(a, RAX, last, i->size);
        }
        if (reads) g[RSI] = down ? g[RSI] - passed : g[RSI] + passed;
        if (op != LODS) g[RDI] = down ? g[RDI] - passed : g[RDI] + passed;
        if (!i->repeats) break;
        a->now->work += compares ? done / ELEMENTS_COMPARED + 1 : passed / BYTES_MOVED + 1;
        g[RCX] -= done;
        if (compares && !(a->state->flags & ZF) == (i->repeats == REP)) break;
    }
    return FULL;
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

/* Bytes that XSAVE and its like write at most (Intel SDM volume 1, 13.4). */
static u64 size_saved(const struct ahead *a, const struct instruction *i)
{
    enum { LEGACY = 512, HEADER = 64 };
    if ((i->reg & 7) < 4) return LEGACY;
    u64 wanted = (a->state->general[RAX] & 0xFFFFFFFF) | a->state->general[RDX] << 32, end = LEGACY + HEADER;
    int compact = i->opcode == 0xC7;
    for (int n = 2; n < 63; n++) {
        const struct part *part = &a->parts[n];
        if (!(wanted >> n & 1) || !part->size) continue;
        if (compact) end = (part->aligned ? (end + 63) & ~(u64)63 : end) + part->size;
        else if (part->offset + part->size > end) end = part->offset + part->size;
    }
    return end;
}

/* XSAVE and its like: what is saved is kept here until it is restored from the same address. Memory would have more, such as
 * the address of the last x87 instruction, which is not known: who reads it there ends the run. */
static int save_state(struct ahead *a, const struct instruction *i)
{
    u64 at = effective(a, i);
    if (at & ((i->reg & 7) >= 4 ? 63 : 15)) return FAULTS;
    if (!a->has_vectors && !read_vectors(a)) return NOT_MODELLED;
    if (!forget(a, at, size_saved(a, i))) return FAULTS;
    struct saved *to = NULL;
    for (u32 n = 0; n < a->saved_count; n++)
        if (a->saved[n].address == at) to = &a->saved[n];
    if (!to) {
        to = &a->saved[a->saved_next++ % SAVED];
        if (a->saved_count < SAVED) a->saved_count++;
    }
    to->address = at;
    to->size = size_saved(a, i);
    to->parts = parts_of(a, i);
    to->control = a->state->control;
    to->v = a->state->v;
    a->changes++;
    return FULL;
}

static int restore_state(struct ahead *a, const struct instruction *i)
{
    u64 at = effective(a, i), parts = parts_of(a, i);
    struct vectors *v = &a->state->v;
    for (u32 n = 0; n < a->saved_count; n++) {
        const struct saved *from = &a->saved[n];
        if (from->address != at || !parts || parts & ~from->parts) continue;
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
    u8 *operand = a->windows[WRITABLE][WRITABLE];
    if (i->state) {
        if (!a->has_vectors && !read_vectors(a)) return NOT_MODELLED;
        a->changes++;
    }
    if (i->memory) {
        at = effective(a, i);
        operand += at & (PAGE - 1);
        int how = i->only_writes ? UNUSED : 0;
        if (size <= 8) {
            if (!load_number(a, at, &was, i->size, how)) return FAULTS;
            memcpy(operand, &was, 8);
        } else {
            if (!load(a, at, operand, size, how | REACHES)) return FAULTS;
            memcpy(before, operand, size);
        }
        /* which bytes an instruction loads and stores, the processor knows: also of stores that change nothing */
        s->operand_at = (u64)(window_of(a, at, size) + (at & (PAGE - 1)));
    }
    if (execute(a, k->piece, i->state)) return FAULTS;
    s->flags &= OWN_FLAGS;
    if (i->memory && size <= 8) { /* what is behind the operand does not change */
        u64 now;
        memcpy(&now, operand, 8);
        if ((now != was || i->only_writes) && !store_number(a, at, now, i->size)) return FAULTS;
    } else if (i->memory && i->only_writes && page_of(a, at)->may & PARTLY) {
        /* Old contents are not known: over other bytes, a second execution leaves the same only where it writes. */
        u8 result[64];
        u64 first = 0, end = 0;
        memcpy(result, operand, size);
        for (u64 n = 0; n < size; n++) operand[n] = (u8)~before[n];
        if (execute(a, k->piece, i->state)) return FAULTS;
        for (u64 n = size; n--;)
            if (result[n] == operand[n]) first = n, end = end ? end : n + 1;
        if (!store(a, at + first, result + first, end - first)) return FAULTS;
    } else if (i->memory && memcmp(before, operand, size)) {
        u64 first = 0; /* only what it wrote: its operand may be smaller, and the next page not there */
        while (before[first] == operand[first]) first++;
        while (before[size - 1] == operand[size - 1]) size--;
        if (!store(a, at + first, operand + first, size - first)) return FAULTS;
    }
    return FULL;
}

/* -- a run */

/* Whether the thread may read there, but execute nothing. */
static int is_data(struct ahead *a, u64 address)
{
    const struct page *page = page_of(a, address);
    return page && page->may & LOADS && !(page->may & EXECUTES);
}

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
    if (uses_keys(a)) return NOT_MODELLED;
    for (;; r->executed++, r->work++) {
        r->address = at;
        int why = goes_on(a);
        if (why != FULL) return why;
        k = known_at(a, at, guess);
        if (!k) return is_data(a, at) ? FAULTS : UNREADABLE;
        if (from) from->then = (u32)(k - a->known);
        from = NULL;
        guess = k + 1; /* instructions are kept as they were first executed */
        const struct instruction *i = &k->i;
        u64 next = at + i->length, stack = g[RSP];
        int kind = 0;
        switch (i->what) {
        case EXECUTED:
            if ((why = executed(a, k)) != FULL) return why;
            break;
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
            else if (!store(a, effective(a, i), &value, 8)) {
                g[RSP] -= 8; /* the address of the store uses the new RSP */
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
            if ((why = string(a, i)) != FULL) return why;
            break;
        case DIRECTION: s->flags = (s->flags & ~(u64)DF) | (i->opcode == 0xFD ? DF : 0); break;
        case BIT_STRING:
            if (!bit_string(a, i)) return FAULTS;
            break;
        case SAVE_STATE:
            if ((why = save_state(a, i)) != FULL) return why;
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
        case READ_BASE: set_register(a, i->rm, r->registers[(i->reg & 7) == 0 ? U_FS : U_GS], i->size); break;
        case READ_SHADOW_STACK: /* the unwinder of C++ asks; nothing to do in a thread without a shadow stack */
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
            if (holds(i->opcode & 15, s->flags)) target = i->immediate, kind = 1;
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
        if (back && !r->alone) { /* the loop may wait for another thread, which stands still meanwhile */
            if (target == seen_at && a->changes == seen_changes && !memcmp(seen, g, 16 * 8) && seen[16] == s->flags)
                return REPEATS;
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
    r->count = r->executed = r->work = 0;
    forget_mappings(a);
    a->check = 0;
    a->until = r->time ? own_time() + r->time : 0;
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

/* `size` bytes at `address` after the last run, for tests. 0 if the run did not use this memory. */
EXPORT int lb_ahead_memory(const struct ahead *a, u64 address, void *into, u64 size)
{
    for (u64 done = 0; done < size;) {
        u64 at = address + done, offset = at & (PAGE - 1),
            part = PAGE - offset < size - done ? PAGE - offset : size - done;
        const struct page *found = NULL;
        for (u32 n = 0; n < a->page_count; n++)
            if (a->pages[n].address == at - offset && a->pages[n].may & LOADS) found = &a->pages[n];
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

/* Find out what this processor saves, and where (Intel SDM volume 1, 13.2): the size of its vectors. */
static void look_at_processor(struct ahead *a)
{
    u32 eax, ebx, ecx, edx, low, high;
    a->lanes = 16;
    a->x_size = 512;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx >> 27 & 1)) return;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    __cpuid_count(13, 0, eax, ebx, ecx, edx);
    a->x_size = ebx;
    for (u32 n = 2; n < 32; n++) {
        if (!(low >> n & 1)) continue;
        __cpuid_count(13, n, eax, ebx, ecx, edx);
        a->parts[n] = (struct part){eax, ebx, ecx >> 1 & 1};
    }
    __cpuid_count(7, 0, eax, ebx, ecx, edx);
    if (ecx >> 4 & 1) a->offset_keys = a->parts[KEYS].offset; /* OSPKE */
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
    for (int n = 0; n < 6; n++)
        if (a->windows[n / 3][n % 3]) munmap(a->windows[n / 3][n % 3], 2 * PAGE);
    if (a->signal_stack) munmap(a->signal_stack, 16 * PAGE);
    free(a->pages);
    free(a->page_slots);
    free(a->code_pages);
    free(a->code_slots);
    free(a->x_state);
    free(a->saved);
    free(a->mappings);
    free(a);
}

/* The same two pages at six addresses, for operands in one page or two: WRITABLE or READABLE, and the second also CLOSED. An
 * operand is as far from their border as it is from a border of pages in the thread. 0: there is no memory. */
static int map_operands(struct ahead *a)
{
    static const int rights[3] = {PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};
    void *first = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int n = 0; n < 6; n++) {
        void *window =
            !n || first == MAP_FAILED ? first : mremap(first, 0, 2 * PAGE, MREMAP_MAYMOVE); /* size 0: once more */
        if (window == MAP_FAILED) return 0;
        a->windows[n / 3][n % 3] = window;
        if (mprotect(window, PAGE, rights[n / 3]) || mprotect((u8 *)window + PAGE, PAGE, rights[n % 3])) return 0;
    }
    return 1;
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
    a->mappings = calloc(a->mapping_room = MAPPINGS, sizeof *a->mappings);
    if (!map_operands(a) || !a->mappings || !a->state || !a->page_bytes || !a->code_bytes || !a->known || !a->slots
        || !a->guard || !a->signal_stack || !a->pages || !a->page_slots || !a->code_pages || !a->code_slots
        || !a->x_state || !a->saved) {
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
EXPORT int lb_ahead_vectors(const void *ahead, void *lanes, void *masks)
{ return (void)ahead, (void)lanes, (void)masks, 0; }
EXPORT int lb_ahead_memory(const void *ahead, u64 address, void *into, u64 size)
{ return (void)ahead, (void)address, (void)into, (void)size, 0; }
EXPORT void lb_ahead_free(void *ahead) { (void)ahead; }
EXPORT void *lb_ahead_new(void) { return 0; }

#endif
