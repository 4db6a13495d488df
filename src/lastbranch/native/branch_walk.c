/* The fast path between two stops of a traced thread, on x86-64 Linux: system calls in a row, and the walk.
 *
 * lb_branch_walk() does what BlockStep of capture/software/engines.py does, over the tables of walk_tables.py: it sets
 * breakpoints on the ends of a fork, resumes the thread, finds the end at which the thread stopped and the target of
 * the branch there, and looks up the next fork. The walk returns to Python if the tables lack anything, and at every
 * stop that is not a breakpoint's, with all state that Python needs to go on. Names are those of control_flow.py and
 * successors.py.
 *
 * The tables are Python's own, not input: their indexes are not checked. All memory of the traced program is read by
 * system calls. */
#define _GNU_SOURCE
#include "x86_flags.h"

#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__)

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { POKEUSER = 6, CONT = 7, GETREGS = 12, DEBUG_REGISTER = 848, WALL = 0x40000000 };
enum { MODIFY_ATTRIBUTES = 0x4008240B, BP_ADDR = 56 / 8 };
enum { RCX = 11, RIP = 16, EFLAGS = 18, RSP = 19, REGISTERS = 27, RESUME_FLAG = 1 << 16 };
enum { SLOTS = 4, KNOWN = 3, PAGE = 4096, BLOCK = 512, BLOCKS = 4, NONE = 0xFF };

/* How the branch of an end is evaluated. */
enum { LEFT, GOES_ON, DIRECT, CONDITION, RETURN, REGISTER, MEMORY };
/* How the target of a branch is known before it executes. */
enum { UNKNOWN, BY_REGISTER, BY_WORD };
enum { ON_STACK = 1, HAS_VALUE = 2 };
/* The task of lb_watch_tracer(), and its result. */
enum { NOTHING, WATCH, LEAVE, RAISING, RAISED };
/* Why walk() returns. */
enum { AT_END, BEFORE, CAME, WAITING, FAILED };

struct line { u64 first, last; };

struct step { u64 source, kind; };

struct store {
    i64 displacement;
    u32 size;
    u8 registers[3], terms, scales[3], unused;
};

struct page { u64 address, burst, bytes; };

struct end {
    u64 address, target;
    i64 moved, displacement;
    u32 path, edges;
    u8 how, code, base, index, scale, segment, narrow, length;
    u8 kind, calls, moves, frees, unused[4];
};

struct node {
    u32 page, pages, line, lines, end, ends, store, stores;
    u32 known, known_register, known_flags, family, visits, unused;
    u64 known_branch, known_at, known_value;
};

struct entry {
    u64 key;
    u32 family, node;
};

struct shared { u64 branch, at, was; };

struct passed { u64 end, goes; };

struct block {
    u64 address;
    i64 length;
    u8 bytes[BLOCK];
};

struct context {
    /* the thread, and the tables of its address space */
    u64 tid, memory, struck, alone, burst, counted_kinds;
    u64 *registers;
    struct node *nodes;
    struct end *ends;
    struct step *path;
    struct line *lines;
    struct store *stores;
    u32 *page_lists;
    struct page *pages;
    struct entry *entries;
    u64 mask;
    /* what is to be done: at most so many stops, and branches of the counted kinds, after the first end none from
     * `until` on (ns of CLOCK_MONOTONIC); room for ends that were passed */
    u64 stops, wanted, until, room;
    struct passed *passed;
    /* the thread stands before the run to an end of `node`; the branch ahead of the thread counts if taken */
    u64 node, stack, stack_known, pending, slots_used;
    u64 slots[SLOTS];
    /* breakpoints by perf events, and the attribute of them all; debug registers set by ptrace where that is 0 */
    u64 events[SLOTS];
    u64 *attribute;
    u64 shares;
    struct shared shared[KNOWN];
    /* what came of it */
    u64 ends_passed, stops_made, status, error, before, again;
    u64 was[REGISTERS];
    /* memory at this stop */
    u64 blocks;
    struct block block[BLOCKS];
    u8 scratch[PAGE];
};

/* A system call: its result, or the negative errno. */
static i64 call(i64 number, u64 a, u64 b, u64 c, u64 d)
{
    i64 result = syscall(number, a, b, c, d);
    return result == -1 ? -errno : result;
}

/* Make the calls of `rows` rows: number, four arguments, result. How many are left, the first of them failed. */
EXPORT int lb_system_calls(u64 *row, int rows)
{
    for (; rows; rows--, row += 6) {
        i64 result = call((i64)row[0], row[1], row[2], row[3], row[4]);
        row[5] = (u64)result;
        if (result < 0) break;
    }
    return rows;
}

static i64 cpu_time(u32 tid)
{
    struct timespec used = {0, 0};
    clock_gettime((clockid_t)(~tid << 3 | 6), &used); /* CPUCLOCK_SCHED of a thread of ours */
    return used.tv_sec * 1000000000LL + used.tv_nsec;
}

/* While *state is WATCH, give the thread `tid` real-time `priority` if it did not run for so many ns; until LEAVE. */
EXPORT void lb_watch_tracer(u32 *state, u32 tid, int priority, i64 ns)
{
    struct timespec pause = {0, ns};
    struct sched_param raised = {.sched_priority = priority};
    for (u32 now; (now = __atomic_load_n(state, __ATOMIC_ACQUIRE)) != LEAVE;) {
        if (now != WATCH) {
            syscall(SYS_futex, state, FUTEX_WAIT_PRIVATE, now, 0, 0, 0);
            continue;
        }
        i64 before = cpu_time(tid);
        nanosleep(&pause, 0);
        if (cpu_time(tid) != before) continue;
        if (!__atomic_compare_exchange_n(state, &now, RAISING, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) continue;
        sched_setscheduler((pid_t)tid, SCHED_FIFO, &raised);
        __atomic_store_n(state, RAISED, __ATOMIC_RELEASE);
    }
}

/* Tell lb_watch_tracer() what to do from now on. Whether it has raised the priority meanwhile. */
EXPORT int lb_set_watch(u32 *state, u32 next)
{
    u32 now = __atomic_load_n(state, __ATOMIC_ACQUIRE);
    while (now == RAISING || !__atomic_compare_exchange_n(state, &now, next, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        now = __atomic_load_n(state, __ATOMIC_ACQUIRE);
    if (next != NOTHING) syscall(SYS_futex, state, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
    return now == RAISED;
}

static int word_at(struct context *c, u64 address, u64 *word)
{
    u64 offset = address & (BLOCK - 1);
    if (offset > BLOCK - 8) return call(SYS_pread64, c->memory, (u64)word, 8, address) == 8;
    struct block *block = 0;
    for (u64 i = 0; i < c->blocks && i < BLOCKS; i++)
        if (c->block[i].address == address - offset) block = &c->block[i];
    if (!block) {
        block = &c->block[c->blocks++ % BLOCKS];
        block->address = address - offset;
        block->length = call(SYS_pread64, c->memory, (u64)block->bytes, BLOCK, block->address);
    }
    if (block->length < (i64)offset + 8) return 0;
    *word = get64(block->bytes + offset);
    return 1;
}

static int unchanged(struct context *c, const struct node *node)
{
    for (u32 i = 0; i < node->pages; i++) {
        struct page *page = &c->pages[c->page_lists[node->page + i]];
        if (page->burst == c->burst) continue;
        if (call(SYS_pread64, c->memory, (u64)c->scratch, PAGE, page->address) != PAGE) return 0;
        if (memcmp(c->scratch, (const u8 *)page->bytes, PAGE)) return 0;
        page->burst = c->burst;
    }
    return 1;
}

static struct node *found(struct context *c, u32 family, u64 key)
{
    for (u64 at = ((key ^ (u64)family << 48) * 0x9E3779B97F4A7C15u >> 32) & c->mask;; at = (at + 1) & c->mask) {
        const struct entry *entry = &c->entries[at];
        if (entry->family == 0) return 0;
        if (entry->key == key && entry->family == family)
            return entry->node && unchanged(c, &c->nodes[entry->node]) ? &c->nodes[entry->node] : 0;
    }
}

static int overlap(u64 address, u64 size, u64 word) { return word - address < size || address - word < 8; }

/* Whether the target of the branch is known; where it goes then. `stack_known`: the value of RSP. `pushed`: the word
 * there, which is not in memory yet. */
static int known_target(struct context *c, const struct node *node, const u64 *stack_known, const u64 *pushed, u64 *at,
                        u64 *target)
{
    if (node->known == BY_REGISTER) {
        *target = c->registers[node->known_register];
        return 1;
    }
    u64 stack = stack_known ? *stack_known : 0;
    *at = node->known_at;
    if (node->known_flags & ON_STACK) {
        if (!stack_known) return 0;
        *at += stack;
    }
    for (u32 i = 0; i < node->stores; i++) {
        const struct store *store = &c->stores[node->store + i];
        u64 address = store->displacement;
        for (u32 k = 0; k < store->terms; k++) {
            if (store->registers[k] == RSP && !stack_known) return 0;
            address += (store->registers[k] == RSP ? stack : c->registers[store->registers[k]]) * store->scales[k];
        }
        if (overlap(address, store->size, *at)) return 0;
    }
    if (node->known_flags & HAS_VALUE) {
        *target = node->known_value;
        return 1;
    }
    if (pushed && stack_known && *at - stack + 7 < 15) {
        *target = *pushed;
        return *at == stack;
    }
    return word_at(c, *at, target);
}

static const struct end *end_at(struct context *c, const struct node *node, u64 address)
{
    for (u32 i = 0; i < node->ends; i++)
        if (c->ends[node->end + i].address == address) return &c->ends[node->end + i];
    return 0;
}

static i64 poke(struct context *c, u64 slot, u64 value)
{
    i64 result = call(SYS_ptrace, POKEUSER, c->tid, DEBUG_REGISTER + slot * 8, value);
    if (result < 0) c->error = -result;
    return result;
}

/* Move the breakpoint of a slot. */
static i64 move(struct context *c, u64 slot, u64 address)
{
    c->slots[slot] = address;
    if (!c->attribute) return poke(c, slot, address);
    c->attribute[BP_ADDR] = address;
    i64 result = call(SYS_ioctl, c->events[slot], MODIFY_ATTRIBUTES, (u64)c->attribute, 0);
    if (result < 0) c->error = -result;
    return result;
}

/* breakpoints.moves: as few as can be. */
static i64 place(struct context *c, const struct node *node)
{
    const struct end *ends = &c->ends[node->end];
    u32 wanted = 0, is_free = 0, in_way = 0;
    u64 used = c->slots_used;
    for (u32 i = 0; i < node->ends; i++) {
        u64 slot = 0;
        while (slot < used && c->slots[slot] != ends[i].address) slot++;
        if (slot == used) wanted |= 1 << i;
    }
    for (u64 slot = 0; slot < used; slot++) {
        u64 at = c->slots[slot], other = 0;
        while (other < slot && c->slots[other] != at) other++;
        if (other == slot && end_at(c, node, at)) continue;
        is_free |= 1 << slot;
        for (u32 i = 0; i < node->lines; i++) {
            const struct line *line = &c->lines[node->line + i];
            if (line->first <= at && at <= line->last) in_way |= 1 << slot;
        }
    }
    for (int first = 1; first >= 0; first--)
        for (u64 slot = 0; slot < used; slot++) {
            if (!(is_free >> slot & 1) || (int)(in_way >> slot & 1) != first || !(wanted || first)) continue;
            u32 i = wanted ? __builtin_ctz(wanted) : 0;
            wanted &= wanted - 1;
            if (move(c, slot, ends[i].address) < 0) return -1;
        }
    if (!wanted) return 0;
    for (; wanted; wanted &= wanted - 1)
        if (move(c, c->slots_used++, ends[__builtin_ctz(wanted)].address) < 0) return -1;
    return c->attribute ? 0 : poke(c, 7, 0x55 & ((1 << 2 * c->slots_used) - 1));
}

/* Let it run to the next stop. */
static int run(struct context *c)
{
    u32 status = 0;
    i64 result = call(SYS_ptrace, CONT, c->tid, 0, 0);
    if (result >= 0) {
        c->stops--;
        c->stops_made++;
        result = call(SYS_wait4, c->tid, (u64)&status, WALL, 0);
        if (result == -EINTR) return WAITING;
    }
    c->status = status;
    if (result >= 0 && (status & 0xFF) == 0x7F) result = call(SYS_ptrace, GETREGS, c->tid, 0, (u64)c->registers);
    if (result >= 0) return CAME;
    c->error = -result;
    return FAILED;
}

static int astray(struct context *c, const struct end *end)
{
    if (c->stack_known && end->moves && c->stack + end->moved != c->registers[RSP]) return 1;
    for (u64 i = 0; i < c->shares; i++)
        for (u32 k = 0; k < end->edges; k++) {
            u64 word;
            if (c->path[end->path + k].source != c->shared[i].branch) continue;
            if (!word_at(c, c->shared[i].at, &word) || word != c->shared[i].was) return 1;
            break;
        }
    return 0;
}

/* Whether the way of the branch of `end` is known: to `target`, or, with `taken` 0, straight on. */
static int goes(struct context *c, const struct end *end, int *taken, u64 *target)
{
    const u64 *r = c->registers;
    *taken = 1;
    *target = end->target;
    switch (end->how) {
    case GOES_ON: *taken = 0; return 1;
    case DIRECT: return 1;
    case CONDITION: *taken = holds(end->code, r[EFLAGS]); return 1;
    case RETURN: return word_at(c, r[RSP], target);
    case REGISTER: *target = r[end->base]; return 1;
    case MEMORY: {
        u64 address = end->displacement;
        if (end->base != NONE) address += r[end->base];
        if (end->index != NONE) address += r[end->index] << end->scale;
        if (end->narrow) address = (u32)address;
        if (end->segment != NONE) address += r[end->segment];
        return word_at(c, address, target);
    }
    default: return 0;
    }
}

/* Go on to the fork where the branch of `end` leads; 0 where the tables lack it. */
static int follow(struct context *c, const struct end *end, int taken, u64 target)
{
    u64 place = taken ? target : end->address + end->length, pushed = end->address + end->length;
    u64 stack = c->registers[RSP], known = 1, shares = 0;
    struct shared shared[KNOWN];
    int pushes = taken && end->calls;
    if (pushes) stack -= 8;
    if (end->how == RETURN) known = end->frees, stack += end->frees;
    struct node *node = found(c, 1, place);
    if (!node) return 0;
    for (u32 i = 0; i < KNOWN && node->known; i++) {
        u64 at = 0, value;
        if (!known_target(c, node, known ? &stack : 0, pushes ? &pushed : 0, &at, &value)) break;
        if (!c->alone && node->known == BY_WORD && !(node->known_flags & ON_STACK)) {
            shared[shares].branch = node->known_branch;
            shared[shares].at = at;
            shared[shares++].was = value;
        }
        node = found(c, node->family, value);
        if (!node) return 0;
    }
    node->visits++;
    c->node = node - c->nodes;
    c->stack = stack;
    c->stack_known = !!known;
    c->shares = shares;
    for (u64 i = 0; i < shares; i++) c->shared[i] = shared[i];
    return 1;
}

static int is_late(const struct context *c)
{
    struct timespec now;
    if (!c->ends_passed) return 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec >= c->until;
}

/* Lead the thread from end to end; why it stopped. */
EXPORT int lb_branch_walk(struct context *c)
{
    while (c->ends_passed < c->room) {
        const struct node *node = &c->nodes[c->node];
        u64 *r = c->registers;
        c->before = r[RIP];
        c->again = !!end_at(c, node, c->before);
        if (!c->stops || is_late(c) || (c->again && !(r[EFLAGS] & RESUME_FLAG))) return BEFORE;
        if (place(c, node) < 0) return FAILED;
        for (u32 i = 0; i < REGISTERS; i++) c->was[i] = r[i];
        int came = run(c);
        if (came != CAME) return came;
        const struct end *end = c->status == c->struck ? end_at(c, node, r[RIP]) : 0;
        if (!end || !(r[EFLAGS] & RESUME_FLAG)) return CAME;
        int ran = r[RIP] != c->before;
        for (u32 i = 0; i < REGISTERS && !ran; i++)
            ran = c->again && (i != RCX || c->ends_passed) && r[i] != c->was[i]; /* Python counted RCX for LOOP */
        if (!ran) return CAME;
        /* The thread is there. The following branches are only kept if all are known. */
        c->blocks = 0;
        for (;;) {
            u64 counted = c->pending, target;
            int taken;
            for (u32 i = 0; i < end->edges; i++) counted += c->counted_kinds >> c->path[end->path + i].kind & 1;
            if (c->ends_passed == c->room || counted >= c->wanted || astray(c, end) || !goes(c, end, &taken, &target)
                || !follow(c, end, taken, target))
                return AT_END;
            c->wanted -= counted;
            c->pending = taken && c->counted_kinds >> end->kind & 1;
            struct passed *passed = &c->passed[c->ends_passed++];
            passed->end = (u64)(end - c->ends) << 1 | (u64)taken;
            passed->goes = target;
            if (end->length) break;
            /* From a marker the thread goes on at its place, which may be a branch at which the next fork ends. */
            end = end_at(c, &c->nodes[c->node], r[RIP]);
            if (!end) break;
        }
    }
    return BEFORE;
}

#else /* record refuses such a machine before it calls these */

EXPORT int lb_system_calls(u64 *row, int rows)
{
    (void)row;
    return rows;
}

EXPORT int lb_branch_walk(void *c)
{
    (void)c;
    return -1;
}

EXPORT void lb_watch_tracer(u32 *state, u32 tid, int priority, i64 ns)
{ (void)state, (void)tid, (void)priority, (void)ns; }

EXPORT int lb_set_watch(u32 *state, u32 next)
{
    (void)state, (void)next;
    return 0;
}

#endif
