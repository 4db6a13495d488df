/* Walks the stack of a stopped thread on x86-64 Linux, frame by frame, by rows of call frame information.
 *
 * lb_unwind_stack() does what `Unwinder` of capture/software/unwinder.py does for a `Plain` row, and returns to Python
 * for any other. Registers have DWARF's numbers, 16 is the address of the instruction. The rows are Python's own, not
 * input; all memory of the traced program is read by system calls. */
#define _GNU_SOURCE
#include "lastbranch.h"

#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__)

#include <unistd.h>

enum { RSP = 7, RIP = 16, REGISTERS = 17, SAVED = 6, FIRST_READ = 1 << 14, PAGE = 4096 };
enum { EMPTY, PLAIN, LAST, OTHER };
/* Why it returns. */
enum { WHOLE, ASK, LIMIT, UNREADABLE, SWITCHED };
#define KEPT INT32_MIN
static const u8 saved[SAVED] = {3, 6, 12, 13, 14, 15}; /* rbx, rbp, r12 to r15 */

struct row {
    u64 key;
    u32 owner;
    i32 cfa;
    i32 at[SAVED], return_at;
    u8 base, kind, unused[2];
};

struct unwind {
    u64 memory, owner;
    struct row *rows;
    u64 mask;
    u64 *frames, *bases; /* return addresses; the stack pointer after each return */
    u64 room, count;
    u64 registers[REGISTERS];
    u64 exact, largest; /* the address is no return address; the largest frame in bytes */
    u8 *window;         /* memory from `begin` on, as it is at this stop; a copy: the thread has gone on since */
    u64 capacity, begin, length, is_copy;
};

static int word_at(struct unwind *u, u64 address, u64 *word)
{
    if (address < u->begin || address - u->begin > u->length || u->length - (address - u->begin) < 8) {
        if (u->is_copy) return 0;
        u64 size = u->length ? u->capacity : FIRST_READ;
        u->begin = address & ~(u64)(PAGE - 1);
        i64 got = (i64)u->begin < 0 ? -1 : pread((int)u->memory, u->window, size, (i64)u->begin);
        u->length = got > 0 ? (u64)got : 0;
        if (u->length < 8 || address - u->begin > u->length - 8) return 0;
    }
    *word = get64(u->window + (address - u->begin));
    return 1;
}

EXPORT int lb_unwind_stack(struct unwind *u)
{
    u64 *r = u->registers;
    for (;;) {
        u64 key = r[RIP] - !u->exact;
        u64 at = (key ^ u->owner << 48) * 0x9E3779B97F4A7C15u >> 32 & u->mask;
        const struct row *row = &u->rows[at];
        while (row->kind != EMPTY && (row->key != key || row->owner != u->owner))
            row = &u->rows[at = (at + 1) & u->mask];
        if (row->kind == LAST) return WHOLE;
        if (row->kind != PLAIN) return ASK;
        if (u->count == u->room) return LIMIT;
        u64 cfa = r[row->base] + (u64)(i64)row->cfa, values[SAVED], returns;
        if (cfa <= r[RSP] || cfa - r[RSP] > u->largest) return SWITCHED;
        if (!word_at(u, cfa + (u64)(i64)row->return_at, &returns)) return UNREADABLE;
        for (int i = 0; i < SAVED; i++)
            if (row->at[i] != KEPT && !word_at(u, cfa + (u64)(i64)row->at[i], &values[i])) return UNREADABLE;
        for (int i = 0; i < SAVED; i++)
            if (row->at[i] != KEPT) r[saved[i]] = values[i];
        r[RSP] = cfa;
        r[RIP] = returns;
        u->exact = 0;
        if (!returns) return WHOLE;
        u->bases[u->count] = cfa;
        u->frames[u->count++] = returns;
    }
}

#else /* record refuses such a machine before it calls this */

EXPORT int lb_unwind_stack(void *u)
{
    (void)u;
    return -1;
}

#endif
