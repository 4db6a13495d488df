/* Counts the branches of branch stacks, and the fall-through ranges between them, in hash tables.
 *
 * Memory latency decides the speed, not arithmetic. So a row of the first table is half a cache line that answers for two
 * counts: a range (start, end), and the first target that the branch at its end was seen to take. Other targets of that
 * branch, the oldest branch of a stack and branches next to an empty entry go to the second table. Addresses are compacted
 * to the number of a region (16 MiB of one scope, numbered at first sight) and 24 low bits. Hashes are seeded.
 *
 * A batch is gathered, and then counted from what was gathered. One thread may gather a batch while another counts the one
 * before, which has the other slot: the first uses the regions, the second the tables.
 *
 * A whole batch is gathered or nothing: DECLINED for addresses beyond 48 bits and for more regions than numbers, and NumPy
 * counts that batch. A compacted address is never 0, so that zeroed rows are free. */
#include "lastbranch.h"

#include <stdlib.h>

enum { COUNTED, DECLINED, FULL, NO_MEMORY };
enum { REGIONS = 255, SLOTS = 1024, AHEAD = 16, MOST_ROWS = 1 << 19, LEAST_ROWS = 1 << 12 };
#define MOST_COUNTED (1u << 30) /* entries: counts of a row have 32 bits */
#define COUNTED_FLAGS 0x3FFFFFFFu /* the flags that are counted are the low ones */
#define EMPTY 0x80000000u         /* beside them: an address of the entry is 0 */

struct range_row { u32 start, end, target, others, by_tag[4]; };
struct branch_row { u32 from, to, by_tag[4]; };
struct detail_row { u64 cycles; u32 timed, in_tx, aborted; u8 type_low, type_high; };

struct table { void *rows; struct detail_row *details; u64 mask, used; };

struct counter {
    u64 seed;
    struct { u64 key; u32 number; } slots[SLOTS]; /* scope and high bits of an address -> region */
    u64 region_base[REGIONS + 1];
    i64 region_scope[REGIONS + 1];
    u32 regions;
    u64 entries, broken;
    struct table ranges, branches;
    struct batch { u32 *from, *to, *facts; i64 *offsets, samples; u64 room, samples_room; } batches[2];
    int with_branches, with_ranges, with_details;
};

static inline u64 hashed(u64 a, u64 b, u64 seed)
{
    u64 h = ((a << 32 | b) ^ seed) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    return h * 0xD6E8FEB86659FD93u >> 20;
}

static int table_of(struct table *t, u64 rows, size_t size, int with_details)
{
    t->rows = calloc(rows, size);
    t->details = with_details ? calloc(rows, sizeof *t->details) : NULL;
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
    for (int slot = 0; slot < 2; slot++) free(c->batches[slot].from), free(c->batches[slot].offsets);
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
    u64 at = hashed(key, high, c->seed);
    for (;; at++) {
        u64 i = at & (SLOTS - 1);
        u32 number = c->slots[i].number;
        if (number && c->slots[i].key == key && c->region_scope[number] == scope && c->region_base[number] == high << 24)
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

static int grown_ranges(struct counter *c)
{
    struct table old = c->ranges, new;
    if (!table_of(&new, (old.mask + 1) * 2, sizeof(struct range_row), 0)) {
        release(&new);
        return 0;
    }
    struct range_row *from = old.rows, *to = new.rows;
    for (u64 i = 0; i <= old.mask; i++) {
        if (!from[i].start) continue;
        u64 at = hashed(from[i].start, from[i].end, c->seed);
        while (to[at & new.mask].start) at++;
        to[at & new.mask] = from[i];
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
        if (!from[i].from) continue;
        u64 at = hashed(from[i].from, from[i].to, c->seed);
        while (to[at & new.mask].from) at++;
        to[at & new.mask] = from[i];
        if (old.details) new.details[at & new.mask] = old.details[i];
    }
    new.used = old.used;
    release(&old);
    c->branches = new;
    return 1;
}

static inline void count_branch(struct counter *c, u32 from, u32 to, u32 tag, u64 flags)
{
    if (!c->with_branches) return;
    struct branch_row *rows = c->branches.rows;
    u64 mask = c->branches.mask, at = hashed(from, to, c->seed) & mask;
    while (rows[at].from && (rows[at].from != from || rows[at].to != to)) at = (at + 1) & mask;
    if (!rows[at].from) {
        rows[at].from = from;
        rows[at].to = to;
        c->branches.used++;
        if (c->with_details) c->branches.details[at].type_low = 0xFF;
    }
    rows[at].by_tag[tag]++;
    if (!c->with_details) return;
    struct detail_row *detail = &c->branches.details[at];
    u64 cycles = flags >> 4 & 0xFFFF, type = branch_type(flags);
    detail->cycles += cycles;
    detail->timed += cycles != 0;
    detail->in_tx += flags >> 2 & 1;
    detail->aborted += flags >> 3 & 1;
    if (type < detail->type_low) detail->type_low = (u8)type;
    if (type > detail->type_high) detail->type_high = (u8)type;
}

static inline void count_both(struct counter *c, u32 start, u32 from, u32 to, u32 tag, u64 flags)
{
    struct range_row *rows = c->ranges.rows;
    u64 mask = c->ranges.mask, at = hashed(start, from, c->seed) & mask;
    while (rows[at].start && (rows[at].start != start || rows[at].end != from)) at = (at + 1) & mask;
    if (!rows[at].start) {
        rows[at].start = start;
        rows[at].end = from;
        rows[at].target = to;
        c->ranges.used++;
    }
    if (rows[at].target == to && c->with_branches && !c->with_details) {
        rows[at].by_tag[tag]++;
    } else {
        rows[at].others++;
        count_branch(c, from, to, tag, flags);
    }
}

static int room_for(struct batch *b, u64 entries, u64 samples)
{
    if (entries > b->room) {
        u32 *more = realloc(b->from, (size_t)entries * 3 * sizeof *more);
        if (!more) return 0;
        b->from = more;
        b->room = entries;
    }
    if (samples >= b->samples_room) {
        i64 *more = realloc(b->offsets, (size_t)(samples + 1) * sizeof *more);
        if (!more) return 0;
        b->offsets = more;
        b->samples_room = samples + 1;
    }
    b->to = b->from + entries;
    b->facts = b->to + entries;
    return 1;
}

/* Gather `samples` stacks in `slot`, 0 or 1; stack s has entries offsets[s] to offsets[s + 1], newest first. Entry i has its
 * addresses and flags at `stride` bytes times i of three bases, `scope[s]` owns them. */
EXPORT int lb_counter_gather(struct counter *c, int slot, const i64 *scope, const i64 *offsets, i64 samples, const u8 *from,
                             i64 from_stride, const u8 *to, i64 to_stride, const u8 *flags, i64 flags_stride)
{
    i64 entries = offsets[samples];
    struct batch *batch = &c->batches[slot & 1];
    batch->samples = 0;
    if (entries <= 0) return COUNTED;
    if (!room_for(batch, (u64)entries, (u64)samples)) return NO_MEMORY;
    i64 last_scope = -1;
    u64 last_high = ~(u64)0;
    u32 last = 0;
    for (i64 s = 0; s < samples; s++) {
        if (scope[s] != last_scope) last_scope = scope[s], last_high = ~(u64)0;
        for (i64 i = offsets[s]; i < offsets[s + 1]; i++) {
            u64 a = at_stride(from, from_stride, i), b = at_stride(to, to_stride, i);
            if (a >> 24 != last_high) {
                last_high = a >> 24;
                if (!(last = region_of(c, last_scope, a))) return DECLINED;
            }
            batch->from[i] = last << 24 | (u32)(a & 0xFFFFFF);
            if (b >> 24 != last_high) {
                last_high = b >> 24;
                if (!(last = region_of(c, last_scope, b))) return DECLINED;
            }
            batch->to[i] = last << 24 | (u32)(b & 0xFFFFFF);
            batch->facts[i] = (u32)(at_stride(flags, flags_stride, i) & COUNTED_FLAGS) | (a && b ? 0 : EMPTY);
        }
    }
    memcpy(batch->offsets, offsets, (size_t)(samples + 1) * sizeof *offsets);
    batch->samples = samples;
    return COUNTED;
}

/* Whether the rows have to be taken before what is in `slot` is counted. */
EXPORT int lb_counter_full(const struct counter *c, int slot)
{
    const struct batch *b = &c->batches[slot & 1];
    u64 entries = b->samples ? (u64)b->offsets[b->samples] : 0;
    return c->entries + entries > MOST_COUNTED || c->ranges.used > MOST_ROWS || c->branches.used > MOST_ROWS;
}

/* Count what was gathered in `slot`, once. */
EXPORT int lb_counter_count(struct counter *c, int slot)
{
    struct batch *batch = &c->batches[slot & 1];
    const u32 *from = batch->from, *to = batch->to, *facts = batch->facts;
    for (i64 s = 0; s < batch->samples; s++) {
        i64 first = batch->offsets[s], end = batch->offsets[s + 1];
        while (c->ranges.used + (u64)(end - first) > c->ranges.mask / 2)
            if (!grown_ranges(c)) return NO_MEMORY;
        while (c->branches.used + (u64)(end - first) > c->branches.mask / 2)
            if (!grown_branches(c)) return NO_MEMORY;
        const struct range_row *rows = c->ranges.rows;
        if (c->with_ranges)
            for (i64 i = first; i + 1 < end; i++)
                __builtin_prefetch(&rows[hashed(to[i + 1], from[i], c->seed) & c->ranges.mask], 1);
        for (i64 i = first; i < end; i++) {
            u32 tag = facts[i] & 3;
            int in_range = 0;
            if (c->with_ranges && i + 1 < end) {
                u32 empty = (facts[i] | facts[i + 1]) & EMPTY;
                c->broken += empty != 0;
                in_range = !empty;
            }
            if (in_range)
                count_both(c, to[i + 1], from[i], to[i], tag, facts[i]);
            else
                count_branch(c, from[i], to[i], tag, facts[i]);
        }
    }
    c->entries += batch->samples ? (u64)batch->offsets[batch->samples] : 0;
    batch->samples = 0;
    return COUNTED;
}

/* Gather and count a batch. FULL: nothing was counted, the rows have to be taken first. */
EXPORT int lb_counter_add(struct counter *c, const i64 *scope, const i64 *offsets, i64 samples, const u8 *from, i64 from_stride,
                          const u8 *to, i64 to_stride, const u8 *flags, i64 flags_stride)
{
    int done = lb_counter_gather(c, 0, scope, offsets, samples, from, from_stride, to, to_stride, flags, flags_stride);
    if (done == COUNTED) done = lb_counter_full(c, 0) ? FULL : lb_counter_count(c, 0);
    return done;
}

/* At most how many rows `lb_counter_take` gives: branches (0) or ranges (1). A branch can be in several rows. */
EXPORT i64 lb_counter_rows(const struct counter *c, int ranges)
{
    return (i64)(ranges ? c->ranges.used : c->branches.used + c->ranges.used);
}

EXPORT i64 lb_counter_broken(const struct counter *c) { return (i64)c->broken; }

static void expand(const struct counter *c, u32 compact, i64 *scope, u64 *address)
{
    *scope = c->region_scope[compact >> 24];
    *address = c->region_base[compact >> 24] | (compact & 0xFFFFFF);
}

/* Write the rows to columns of `lb_counter_rows` elements each: scope, a, b, then count, mispredicted, predicted and, with
 * details, cycles, timed, in_tx, abort, type_low, type_high, which are columns of `values`. How many rows there are. */
EXPORT i64 lb_counter_take(const struct counter *c, int ranges, i64 room, i64 *scope, u64 *a, u64 *b, i64 *values)
{
    i64 n = 0;
    const struct range_row *range = c->ranges.rows;
    for (u64 i = 0; i <= c->ranges.mask && n < room; i++) {
        const u32 *tags = range[i].by_tag;
        i64 sum = (i64)tags[0] + tags[1] + tags[2] + tags[3];
        if (!range[i].start || (!ranges && !sum)) continue;
        expand(c, ranges ? range[i].start : range[i].end, &scope[n], &a[n]);
        expand(c, ranges ? range[i].end : range[i].target, &scope[n], &b[n]);
        values[n] = ranges ? sum + range[i].others : sum;
        values[room + n] = ranges ? 0 : (i64)tags[1] + tags[3];
        values[2 * room + n] = ranges ? 0 : (i64)tags[2] + tags[3];
        n++;
    }
    if (ranges) return n;
    const struct branch_row *branch = c->branches.rows;
    for (u64 i = 0; i <= c->branches.mask && n < room; i++) {
        const u32 *tags = branch[i].by_tag;
        if (!branch[i].from) continue;
        expand(c, branch[i].from, &scope[n], &a[n]);
        expand(c, branch[i].to, &scope[n], &b[n]);
        values[n] = (i64)tags[0] + tags[1] + tags[2] + tags[3];
        values[room + n] = (i64)tags[1] + tags[3];
        values[2 * room + n] = (i64)tags[2] + tags[3];
        if (c->with_details) {
            const struct detail_row *d = &c->branches.details[i];
            i64 sums[] = {(i64)d->cycles, d->timed, d->in_tx, d->aborted, d->type_low, d->type_high};
            for (int k = 0; k < 6; k++) values[(3 + k) * room + n] = sums[k];
        }
        n++;
    }
    return n;
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
