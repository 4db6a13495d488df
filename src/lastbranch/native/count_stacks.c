/* Counts the branches of branch stacks, and the fall-through ranges between them, in hash tables.
 *
 * Memory latency decides the speed, not arithmetic. So a row of the first table is half a cache line that answers for
 * two counts: a range (start, end), and the first target that the branch at its end was seen to take. Other targets of
 * that branch, the oldest branch of a stack and branches next to an empty entry go to the second table. Addresses are
 * compacted to the number of a region (16 MiB of one scope, numbered at first sight) and 24 low bits. Hashes are
 * seeded.
 *
 * Stacks are read where they lie, and go through three steps, each of which asks for the memory of the next: a stack is
 * compacted while the ranges of the previous stack are counted, and then the branches of the stack before that. Large
 * tables are on huge pages, or most rows would cost a walk through the page tables beside their own load.
 *
 * A whole stack is counted or nothing. The counter declines entries of branches that were not taken, addresses beyond
 * 48 bits and more regions than numbers, and NumPy counts those. A compacted address is never 0, so that zeroed rows
 * are free. */
#define _DEFAULT_SOURCE /* madvise */
#include "lastbranch.h"

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

enum {
    REGIONS = 255,
    SLOTS = 1024,
    MOST_ROWS = 1 << 19,
    LEAST_ROWS = 1 << 12,
    IN_FLIGHT = 3,
    HUGE_PAGE = 2 << 20,
    MOST_ASKED = 64
};
#define MOST_COUNTED (1u << 30) /* entries: counts of a row have 32 bits */
#define COUNTED_FLAGS 0x3FFFFFFFu /* the flags that are counted are the low ones */
#define NOT_TAKEN (1ull << 33)    /* entries of branches that were not taken are no branches to count */
#define EMPTY 0x80000000u         /* beside them: an address of the entry is 0 */

/* range: 0 where it is free, else start << 32 | end */
struct range_row {
    u64 range;
    u32 target, others, by_tag[4];
};
/* branch: 0 where it is free, else from << 32 | to */
struct branch_row {
    u64 branch;
    u32 by_tag[4];
};
struct detail_row {
    u64 cycles;
    u32 timed, in_tx, aborted;
    u8 type_low, type_high;
};

struct table {
    void *rows;
    struct detail_row *details;
    u64 mask, used;
};

/* A stack on its way. `row` is where the range that ends at each entry belongs. `later` lists the entries that belong to
 * the second table, `place` where. */
struct stack {
    u32 *from, *to, *facts, *row, *later, *place;
    i64 depth, others;
};

struct counter {
    u64 seed;
    struct {
        u64 key;
        u32 number;
    } slots[SLOTS]; /* scope and high bits of an address -> region */
    u64 region_base[REGIONS + 1];
    i64 region_scope[REGIONS + 1];
    u32 regions;
    u64 entries, broken;
    struct table ranges, branches;
    struct stack stacks[IN_FLIGHT];
    u32 *memory; /* of the stacks */
    i64 room;    /* entries that each of them can have */
    int with_branches, with_ranges, with_details;
};

static inline u64 hashed(u64 key, u64 seed)
{
    u64 h = (key ^ seed) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    return h * 0xD6E8FEB86659FD93u >> 20;
}

static void *zeroed(size_t bytes)
{
#if defined(__linux__)
    if (bytes >= HUGE_PAGE) {
        bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        void *memory = aligned_alloc(HUGE_PAGE, bytes);
        if (!memory) return NULL;
        madvise(memory, bytes, MADV_HUGEPAGE); /* where that fails, it is only slower */
        return memset(memory, 0, bytes);
    }
#endif
    return calloc(1, bytes);
}

static int table_of(struct table *t, u64 rows, size_t size, int with_details)
{
    t->rows = zeroed(rows * size);
    t->details = with_details ? zeroed(rows * sizeof *t->details) : NULL;
    t->mask = rows - 1;
    t->used = 0;
    return t->rows && (!with_details || t->details);
}

static void release(struct table *t)
{
    free(t->rows);
    free(t->details);
    t->rows = t->details = NULL;
}

EXPORT void lb_counter_free(struct counter *c)
{
    if (!c) return;
    release(&c->ranges);
    release(&c->branches);
    free(c->memory);
    free(c);
}

EXPORT struct counter *lb_counter_new(u64 seed, int with_branches, int with_ranges, int with_details)
{
    struct counter *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->seed = seed;
    c->with_branches = with_branches;
    c->with_ranges = with_ranges;
    c->with_details = with_details;
    if (table_of(&c->branches, LEAST_ROWS, sizeof(struct branch_row), with_details)
        && table_of(&c->ranges, LEAST_ROWS, sizeof(struct range_row), 0))
        return c;
    lb_counter_free(c);
    return NULL;
}

/* The number of the region of `address`, 0 where there is none. */
static u32 region_of(struct counter *c, i64 scope, u64 address)
{
    u64 high = address >> 24;
    if (high >= 1u << 23 && high < 0xFFFF800000u) return 0; /* not sign-extended from bit 47 */
    u64 key = ((u64)scope + 1) * 0x9E3779B97F4A7C15u ^ (high + 1);
    u64 at = hashed(key, c->seed);
    for (;; at++) {
        u64 i = at & (SLOTS - 1);
        u32 number = c->slots[i].number;
        if (number && c->slots[i].key == key && c->region_scope[number] == scope
            && c->region_base[number] == high << 24)
            return number;
        if (!number) {
            if (c->regions == REGIONS) return 0;
            number = ++c->regions;
            c->slots[i].key = key;
            c->slots[i].number = number;
            c->region_scope[number] = scope;
            c->region_base[number] = high << 24;
            return number;
        }
    }
}

/* The first possible row of a range: the first row of a cache line. */
static inline u64 place_of(u64 range, u64 mask, u64 seed) { return hashed(range, seed) & mask & ~(u64)1; }

static int grown_ranges(struct counter *c)
{
    struct table old = c->ranges, new;
    if (!table_of(&new, (old.mask + 1) * 2, sizeof(struct range_row), 0)) {
        release(&new);
        return 0;
    }
    struct range_row *from = old.rows, *to = new.rows;
    for (u64 i = 0; i <= old.mask; i++) {
        if (!from[i].range) continue;
        u64 at = place_of(from[i].range, new.mask, c->seed);
        while (to[at].range) at = (at + 1) & new.mask;
        to[at] = from[i];
    }
    new.used = old.used;
    release(&old);
    c->ranges = new;
    return 1;
}

static int grown_branches(struct counter *c)
{
    struct table old = c->branches, new;
    if (!table_of(&new, (old.mask + 1) * 2, sizeof(struct branch_row), c->with_details)) {
        release(&new);
        return 0;
    }
    struct branch_row *from = old.rows, *to = new.rows;
    for (u64 i = 0; i <= old.mask; i++) {
        if (!from[i].branch) continue;
        u64 at = hashed(from[i].branch, c->seed) & new.mask;
        while (to[at].branch) at = (at + 1) & new.mask;
        to[at] = from[i];
        if (old.details) new.details[at] = old.details[i];
    }
    new.used = old.used;
    release(&old);
    c->branches = new;
    return 1;
}

/* The branches of the second table. */
static void count_branches(struct counter *c, const struct stack *k)
{
    struct branch_row *rows = c->branches.rows;
    const u64 mask = c->branches.mask;
    for (i64 n = 0; n < k->others; n++) {
        u32 i = k->later[n], facts = k->facts[i];
        u64 at = k->place[n], branch = (u64)k->from[i] << 32 | k->to[i];
        while (rows[at].branch && rows[at].branch != branch) at = (at + 1) & mask;
        if (!rows[at].branch) {
            rows[at].branch = branch;
            c->branches.used++;
            if (c->with_details) c->branches.details[at].type_low = 0xFF;
        }
        rows[at].by_tag[facts & 3]++;
        if (!c->with_details) continue;
        struct detail_row *detail = &c->branches.details[at];
        u32 cycles = facts >> 4 & 0xFFFF;
        u8 type = branch_type(facts);
        detail->cycles += cycles;
        detail->timed += cycles != 0;
        detail->in_tx += facts >> 2 & 1;
        detail->aborted += facts >> 3 & 1;
        if (type < detail->type_low) detail->type_low = type;
        if (type > detail->type_high) detail->type_high = type;
    }
}

/* The row of a range that is not where it is looked for first, or that is new: `to` is the target of its branch then. */
static struct range_row *row_of(struct counter *c, u64 range, u32 to)
{
    struct range_row *rows = c->ranges.rows;
    u64 at = place_of(range, c->ranges.mask, c->seed);
    while (rows[at].range && rows[at].range != range) at = (at + 1) & c->ranges.mask;
    if (!rows[at].range) {
        rows[at].range = range;
        rows[at].target = to;
        c->ranges.used++;
    }
    return &rows[at];
}

/* The ranges, and the branches that are in their rows; others are listed for `count_branches`. */
static void count_ranges(struct counter *c, struct stack *k)
{
    struct range_row *rows = c->ranges.rows;
    const struct branch_row *branch_rows = c->branches.rows;
    const struct detail_row *details = c->branches.details;
    const u64 branch_mask = c->branches.mask, seed = c->seed;
    const u32 *froms = k->from, *tos = k->to, *all_facts = k->facts, *row = k->row;
    u32 *later = k->later, *place = k->place;
    const int branches = c->with_branches, both = branches && !details;
    const i64 depth = k->depth, ranges = c->with_ranges ? depth - 1 : 0;
    i64 others = 0;
    for (i64 i = 0; i < depth; i++) {
        u32 from = froms[i], to = tos[i], facts = all_facts[i];
        if (i < ranges && !((facts | all_facts[i + 1]) & EMPTY)) {
            u64 range = (u64)tos[i + 1] << 32 | from;
            struct range_row *found = &rows[row[i]];
            found += found->range != range; /* no processor predicts which of the two it is */
            if (found->range != range) found = row_of(c, range, to);
            if (both && found->target == to) {
                found->by_tag[facts & 3]++;
                continue;
            }
            found->others++;
        } else {
            c->broken += i < ranges;
        }
        if (!branches) continue;
        u64 at = hashed((u64)from << 32 | to, seed) & branch_mask;
        __builtin_prefetch(&branch_rows[at], 1);
        if (details) __builtin_prefetch(&details[at], 1);
        later[others] = (u32)i;
        place[others++] = (u32)at;
    }
    k->others = others;
}

/* Compact a stack. Whether the counter knows all its addresses. */
static int compact(struct counter *c, struct stack *k, i64 scope, i64 depth, const u8 *from, i64 from_stride,
                   const u8 *to, i64 to_stride, const u8 *flags, i64 flags_stride)
{
    const struct range_row *rows = c->ranges.rows;
    const u64 mask = c->ranges.mask, seed = c->seed;
    u32 *froms = k->from, *tos = k->to, *facts = k->facts, *row = k->row;
    u64 last_high = ~(u64)0;
    u32 region = 0;
    k->depth = k->others = 0;
    for (i64 i = 0; i < depth; i++, from += from_stride, to += to_stride, flags += flags_stride) {
        u64 a = at_stride(from, 0, 0), b = at_stride(to, 0, 0), word = at_stride(flags, 0, 0);
        if (word & NOT_TAKEN) return 0;
        if (a >> 24 != last_high) {
            last_high = a >> 24;
            if (!(region = region_of(c, scope, a) << 24)) return 0;
        }
        froms[i] = region | (u32)(a & 0xFFFFFF);
        if (b >> 24 != last_high) {
            last_high = b >> 24;
            if (!(region = region_of(c, scope, b) << 24)) return 0;
        }
        tos[i] = region | (u32)(b & 0xFFFFFF);
        facts[i] = (u32)(word & COUNTED_FLAGS) | (a && b ? 0 : EMPTY);
    }
    if (c->with_ranges)
        for (i64 i = 0; i + 1 < depth; i++) {
            u64 at = place_of((u64)tos[i + 1] << 32 | froms[i], mask, seed);
            __builtin_prefetch(&rows[at], 1);
            row[i] = (u32)at;
        }
    k->depth = depth;
    return 1;
}

/* Ask for the entries of a stack: entries that lie in their records begin where no processor expects them. */
static inline void ask_for(const u8 *entries, i64 stride, i64 depth)
{
    i64 bytes = stride * (depth < MOST_ASKED ? depth : MOST_ASKED);
    for (i64 at = 0; at < bytes; at += 64) __builtin_prefetch(entries + at);
}

/* Whether the rows have to be taken before `depth` more entries are counted. */
EXPORT int lb_counter_full(const struct counter *c, i64 depth)
{ return c->entries + (u64)depth > MOST_COUNTED || c->ranges.used > MOST_ROWS || c->branches.used > MOST_ROWS; }
/* Count what is on its way: `before` has its ranges to come, `oldest` its branches. */
static void drain(struct counter *c, struct stack *before, struct stack *oldest)
{
    count_branches(c, oldest);
    count_ranges(c, before);
    count_branches(c, before);
    for (int i = 0; i < IN_FLIGHT; i++) c->stacks[i].depth = c->stacks[i].others = 0;
}

static int room_for(struct counter *c, i64 depth)
{
    i64 room = c->room ? c->room : 64;
    while (room < depth) room *= 2;
    u32 *memory = malloc((size_t)room * IN_FLIGHT * 6 * sizeof *memory);
    if (!memory) return 0;
    free(c->memory);
    c->memory = memory;
    c->room = room;
    for (int i = 0; i < IN_FLIGHT; i++) {
        u32 **columns[] = {&c->stacks[i].from, &c->stacks[i].to,    &c->stacks[i].facts,
                           &c->stacks[i].row,  &c->stacks[i].later, &c->stacks[i].place};
        for (int n = 0; n < 6; n++, memory += room) *columns[n] = memory;
    }
    return 1;
}

/* Make room for a stack of `depth` entries: in the tables, which are at most half full, too. */
static int ready(struct counter *c, i64 depth, struct stack *before, struct stack *oldest)
{
    u64 ranges = (u64)(before->depth + depth), branches = ranges + (u64)oldest->depth;
    if (depth <= c->room && c->ranges.used + ranges <= c->ranges.mask / 2
        && c->branches.used + branches <= c->branches.mask / 2)
        return 1;
    drain(c, before, oldest); /* rows move */
    if (depth > c->room && !room_for(c, depth)) return 0;
    while (c->ranges.used + (u64)depth > c->ranges.mask / 2)
        if (!grown_ranges(c)) return 0;
    while (c->branches.used + (u64)depth > c->branches.mask / 2)
        if (!grown_branches(c)) return 0;
    return 1;
}

/* Count stacks: stack s, which `scope[s]` owns, has `depth[s]` entries, newest first. Its addresses and flags begin `step`
 * bytes times `first[s]` after three bases, and lie `stride` bytes apart. How many stacks were counted: fewer than `samples`
 * where the next one does not fit (`lb_counter_full`) or is declined; -1 without memory. */
EXPORT i64 lb_counter_add(struct counter *c, const i64 *scope, const i64 *first, const i64 *depth, i64 samples,
                          const u8 *from, i64 from_step, i64 from_stride, const u8 *to, i64 to_step, i64 to_stride,
                          const u8 *flags, i64 flags_step, i64 flags_stride)
{
    i64 s = 0;
    struct stack *now = &c->stacks[0], *before = &c->stacks[1], *oldest = &c->stacks[2];
    for (; s < samples && depth[s] >= 0 && !lb_counter_full(c, depth[s]); s++) {
        if (!ready(c, depth[s], before, oldest)) return -1;
        if (!compact(c, now, scope[s], depth[s], from + from_step * first[s], from_stride, to + to_step * first[s],
                     to_stride, flags + flags_step * first[s], flags_stride))
            break;
        c->entries += (u64)depth[s];
        if (s + 1 < samples) ask_for(from + from_step * first[s + 1], from_stride, depth[s + 1]);
        count_ranges(c, before);
        count_branches(c, oldest);
        struct stack *free = oldest;
        oldest = before, before = now, now = free;
    }
    drain(c, before, oldest);
    return s;
}

/* At most how many rows `lb_counter_take` gives: branches (0) or ranges (1). A branch can be in several rows. */
EXPORT i64 lb_counter_rows(const struct counter *c, int ranges)
{ return (i64)(ranges ? c->ranges.used : c->branches.used + c->ranges.used); }

EXPORT i64 lb_counter_broken(const struct counter *c) { return (i64)c->broken; }

static void expand(const struct counter *c, u32 compact, i64 *scope, u64 *address)
{
    *scope = c->region_scope[compact >> 24];
    *address = c->region_base[compact >> 24] | (compact & 0xFFFFFF);
}

/* Whether a row of the first table is written: any row with a range; for branches, only rows with counted branches. */
static int counts(const struct range_row *row, int ranges)
{
    const u32 *tags = row->by_tag;
    return row->range && (ranges || tags[0] | tags[1] | tags[2] | tags[3]);
}

/* The beginning of the rows of each region: binding costs a step for each change of the scope from row to row. */
static void regions_begin(const struct counter *c, int ranges, i64 *begin)
{
    const struct range_row *range = c->ranges.rows;
    const struct branch_row *branch = c->branches.rows;
    memset(begin, 0, (REGIONS + 2) * sizeof *begin);
    for (u64 i = 0; i <= c->ranges.mask; i++)
        if (counts(&range[i], ranges)) begin[((u32)range[i].range >> 24) + 1]++;
    for (u64 i = 0; !ranges && i <= c->branches.mask; i++)
        if (branch[i].branch) begin[(branch[i].branch >> 56) + 1]++;
    for (int r = 1; r <= REGIONS + 1; r++) begin[r] += begin[r - 1];
}

/* Write the rows to columns of `lb_counter_rows` elements each: scope, a, b, then count, mispredicted, predicted and,
 * with details, cycles, timed, in_tx, abort, type_low, type_high, which are columns of `values`. Returns the number of
 * rows. Rows of a region, which has one scope, are neighbours. */
EXPORT i64 lb_counter_take(const struct counter *c, int ranges, i64 room, i64 *scope, u64 *a, u64 *b, i64 *values)
{
    i64 next[REGIONS + 2];
    regions_begin(c, ranges, next);
    const i64 rows = next[REGIONS + 1];
    if (rows > room) return 0;
    const struct range_row *range = c->ranges.rows;
    for (u64 i = 0; i <= c->ranges.mask; i++) {
        if (!counts(&range[i], ranges)) continue;
        const u32 *tags = range[i].by_tag, end = (u32)range[i].range;
        i64 n = next[end >> 24]++, sum = (i64)tags[0] + tags[1] + tags[2] + tags[3];
        expand(c, ranges ? (u32)(range[i].range >> 32) : end, &scope[n], &a[n]);
        expand(c, ranges ? end : range[i].target, &scope[n], &b[n]);
        values[n] = ranges ? sum + range[i].others : sum;
        values[room + n] = ranges ? 0 : (i64)tags[1] + tags[3];
        values[2 * room + n] = ranges ? 0 : (i64)tags[2] + tags[3];
    }
    const struct branch_row *branch = c->branches.rows;
    for (u64 i = 0; !ranges && i <= c->branches.mask; i++) {
        const u32 *tags = branch[i].by_tag;
        if (!branch[i].branch) continue;
        i64 n = next[branch[i].branch >> 56]++;
        expand(c, (u32)(branch[i].branch >> 32), &scope[n], &a[n]);
        expand(c, (u32)branch[i].branch, &scope[n], &b[n]);
        values[n] = (i64)tags[0] + tags[1] + tags[2] + tags[3];
        values[room + n] = (i64)tags[1] + tags[3];
        values[2 * room + n] = (i64)tags[2] + tags[3];
        if (c->with_details) {
            const struct detail_row *d = &c->branches.details[i];
            i64 sums[] = {(i64)d->cycles, d->timed, d->in_tx, d->aborted, d->type_low, d->type_high};
            for (int k = 0; k < 6; k++) values[(3 + k) * room + n] = sums[k];
        }
    }
    return rows;
}

/* Forget everything that was counted, and the regions. Tables keep their size. */
EXPORT void lb_counter_clear(struct counter *c)
{
    memset(c->ranges.rows, 0, (c->ranges.mask + 1) * sizeof(struct range_row));
    memset(c->branches.rows, 0, (c->branches.mask + 1) * sizeof(struct branch_row));
    if (c->branches.details) memset(c->branches.details, 0, (c->branches.mask + 1) * sizeof(struct detail_row));
    memset(c->slots, 0, sizeof c->slots);
    c->ranges.used = c->branches.used = c->entries = 0;
    c->regions = 0;
}
