/* Branches with their sums over samples, stack after stack: what `BranchSums` of analysis/statistics/sample_sums.py adds up.
 *
 * A row has all that is known of a branch of a scope. The table is of rows, with a part of the hash, which is seeded. A branch
 * comes again thousands of stacks later, so its row is rarely in the cache: those of many entries are fetched at once. */
#include "lastbranch.h"

#include <stdlib.h>

enum { SCOPE, FROM, TO, COUNT, MISPREDICTED, PREDICTED, CYCLES, TIMED, SAMPLES, SQUARES, CROSSED, NEWEST, HERE, WORDS };
enum { KEYS = COUNT, VALUES = NEWEST - COUNT }; /* NEWEST and HERE: the stack that had it last, and how often */
enum { AHEAD = 32, LEAST_ROWS = 1 << 10 };

struct branch_sums {
    u64 *slots, *rows; /* of a slot: 1 + the row, below the upper half of the hash; 0: free */
    u64 room, used, seed, stacks;
};

EXPORT void lb_branch_sums_free(struct branch_sums *t)
{
    if (!t) return;
    free(t->slots);
    free(t->rows);
    free(t);
}

EXPORT struct branch_sums *lb_branch_sums_new(u64 seed)
{
    struct branch_sums *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    *t = (struct branch_sums){.room = LEAST_ROWS, .seed = seed};
    t->slots = calloc(2 * LEAST_ROWS, sizeof *t->slots);
    t->rows = malloc(LEAST_ROWS * WORDS * sizeof *t->rows);
    if (t->slots && t->rows) return t;
    lb_branch_sums_free(t);
    return NULL;
}

static inline u64 hash_of(u64 scope, u64 from, u64 to, u64 seed)
{
    u64 h = (from ^ seed) * 0x9E3779B97F4A7C15u;
    h = ((h ^ h >> 32) + to + scope * 0xC2B2AE3D27D4EB4Fu) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static inline u64 slot_of(u64 hash, u64 row) { return hash >> 32 << 32 | (row + 1); }
static inline u64 *row_in(const struct branch_sums *t, u64 slot) { return t->rows + ((u32)slot - 1) * (u64)WORDS; }

/* Twice the room. Slots are never more than half full. */
static int more_room(struct branch_sums *t)
{
    if (t->room > UINT32_MAX / 4) return 0;
    u64 room = 2 * t->room, mask = 2 * room - 1;
    u64 *rows = realloc(t->rows, room * WORDS * sizeof *rows);
    if (!rows) return 0;
    t->rows = rows;
    u64 *slots = calloc(2 * room, sizeof *slots);
    if (!slots) return 0;
    for (u64 i = 0; i < t->used; i++) {
        const u64 *r = rows + i * WORDS;
        u64 hash = hash_of(r[SCOPE], r[FROM], r[TO], t->seed), at = hash & mask;
        while (slots[at]) at = (at + 1) & mask;
        slots[at] = slot_of(hash, i);
    }
    free(t->slots);
    t->slots = slots;
    t->room = room;
    return 1;
}

/* The row of a branch, made if it is new. There is room. */
static inline u64 *row_of(struct branch_sums *t, u64 hash, u64 scope, u64 from, u64 to)
{
    u64 mask = 2 * t->room - 1, at = hash & mask;
    for (; t->slots[at]; at = (at + 1) & mask) {
        u64 *r = row_in(t, t->slots[at]);
        if (t->slots[at] >> 32 == hash >> 32 && r[FROM] == from && r[TO] == to && r[SCOPE] == scope) return r;
    }
    t->slots[at] = slot_of(hash, t->used);
    u64 *r = t->rows + t->used++ * WORDS;
    memset(r, 0, WORDS * sizeof *r);
    r[SCOPE] = scope, r[FROM] = from, r[TO] = to, r[NEWEST] = ~(u64)0;
    return r;
}

/* Add stacks: stack s, which `scope[s]` owns, has `depth[s]` entries, newest first. Its addresses and flags begin `step` bytes
 * times `first[s]` after three bases, and lie `stride` bytes apart. How many rows there are, -1 without memory. */
EXPORT i64 lb_branch_sums_add(struct branch_sums *t, const i64 *scope, const i64 *first, const i64 *depth, i64 samples,
                              const u8 *from, i64 from_step, i64 from_stride, const u8 *to, i64 to_step, i64 to_stride,
                              const u8 *flags, i64 flags_step, i64 flags_stride)
{
    for (i64 s = 0; s < samples; s++, t->stacks++) {
        const u8 *a = from + from_step * first[s], *b = to + to_step * first[s], *f = flags + flags_step * first[s];
        u64 owner = (u64)scope[s], hash[AHEAD];
        for (i64 i = 0, end; i < depth[s]; i = end) {
            end = depth[s] - i > AHEAD ? i + AHEAD : depth[s];
            if (t->room - t->used < AHEAD && !more_room(t)) return -1;
            const u64 *slots = t->slots, mask = 2 * t->room - 1;
            for (i64 k = i; k < end; k++) {
                hash[k - i] = hash_of(owner, at_stride(a, from_stride, k), at_stride(b, to_stride, k), t->seed);
                __builtin_prefetch(&slots[hash[k - i] & mask]);
            }
            for (i64 k = i; k < end; k++) {
                u64 slot = slots[hash[k - i] & mask];
                if (!slot) continue;
                __builtin_prefetch(row_in(t, slot), 1);
                __builtin_prefetch(row_in(t, slot) + WORDS - 1, 1);
            }
            for (i64 k = i; k < end; k++) {
                u64 word = at_stride(f, flags_stride, k), cycles = word >> 4 & 0xFFFF;
                u64 *r = row_of(t, hash[k - i], owner, at_stride(a, from_stride, k), at_stride(b, to_stride, k));
                if (r[NEWEST] != t->stacks) {
                    r[NEWEST] = t->stacks;
                    r[HERE] = 0;
                    r[SAMPLES]++;
                }
                r[SQUARES] += 2 * r[HERE]++ + 1; /* (n + 1)**2 - n**2 */
                r[CROSSED] += (u64)depth[s];
                r[COUNT]++;
                r[MISPREDICTED] += word & 1;
                r[PREDICTED] += word >> 1 & 1;
                r[CYCLES] += cycles;
                r[TIMED] += cycles != 0;
            }
        }
    }
    return (i64)t->used;
}

/* Give all rows as columns of as many elements as `lb_branch_sums_add` said last, and forget them: scope, source and target,
 * then the VALUES columns of `values`. */
EXPORT void lb_branch_sums_take(struct branch_sums *t, u64 *scope, u64 *from, u64 *to, u64 *values)
{
    for (u64 i = 0; i < t->used; i++) {
        const u64 *r = t->rows + i * WORDS;
        scope[i] = r[SCOPE], from[i] = r[FROM], to[i] = r[TO];
        for (u64 k = 0; k < VALUES; k++) values[k * t->used + i] = r[KEYS + k];
    }
    memset(t->slots, 0, 2 * t->room * sizeof *t->slots);
    t->used = 0;
}
