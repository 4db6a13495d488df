/* The type of each entry of branch stacks: the recorded one, else what is known of the instruction at its source.
 *
 * A table keeps what the caller has found out for each source of a scope. A row is one word, so that many sites stay in
 * the processor's caches: the number of a region (the scope and the upper bits of the source), the low bits, and the
 * value. The table is a cache: a table that has become too large is emptied. Hashes are seeded. */
#include "lastbranch.h"

#include <stdlib.h>

enum { NEW = 0, KNOWN = 1, HIDDEN = 255 }; /* of a site: not looked up yet; 1 + its type; it depends on the target */
enum { PENDING = 255 };                    /* of an entry; the highest type is 31 */
enum { DECLINED = -1, NO_MEMORY = -2 };
enum { AHEAD = 32 }; /* entries whose rows are fetched before they are looked at */
enum { LEAST = 1 << 10, MOST_SITES = 1 << 21 };
enum { LOW_BITS = 24, VALUE_BITS = 8 };

/* number: from 1, 0 where it is free */
struct region {
    u64 high;
    u32 scope, number;
};

struct sites {
    u64 *rows, mask, used, seed;
    struct region *regions;
    u64 region_mask, region_count;
};

EXPORT void lb_sites_free(struct sites *t)
{
    if (!t) return;
    free(t->rows);
    free(t->regions);
    free(t);
}

EXPORT struct sites *lb_sites_new(u64 seed)
{
    struct sites *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    *t = (struct sites){.seed = seed, .mask = LEAST - 1, .region_mask = LEAST - 1};
    t->rows = calloc(LEAST, sizeof *t->rows);
    t->regions = calloc(LEAST, sizeof *t->regions);
    if (t->rows && t->regions) return t;
    lb_sites_free(t);
    return NULL;
}

static inline u64 mixed(u64 value, u64 seed)
{
    u64 h = (value ^ seed) * 0x9E3779B97F4A7C15u;
    return (h ^ h >> 29) * 0xD6E8FEB86659FD93u >> 32;
}

/* The region of a source, or the free place where it belongs. */
static inline struct region *region_of(const struct sites *t, u32 scope, u64 source)
{
    u64 high = source >> LOW_BITS, place = mixed(high ^ (u64)scope << 40, t->seed) & t->region_mask;
    while (t->regions[place].number && (t->regions[place].high != high || t->regions[place].scope != scope))
        place = (place + 1) & t->region_mask;
    return &t->regions[place];
}

static inline u64 key_of(const struct region *region, u64 source)
{
    return (u64)region->number << (LOW_BITS + VALUE_BITS)
        | (source << VALUE_BITS & (((u64)1 << (LOW_BITS + VALUE_BITS)) - 1));
}

/* The row with this key, or the free row for the key. */
static inline u64 *row_of(const struct sites *t, u64 key, u64 place)
{
    place &= t->mask;
    while (t->rows[place] && (t->rows[place] ^ key) >> VALUE_BITS) place = (place + 1) & t->mask;
    return &t->rows[place];
}

static inline u64 place_of(const struct sites *t, u64 key) { return mixed(key, t->seed); }

static int more_rows(struct sites *t)
{
    u64 mask = t->mask * 2 + 1, *old = t->rows, count = t->mask + 1;
    if (!(t->rows = calloc(mask + 1, sizeof *t->rows))) {
        t->rows = old;
        return 0;
    }
    t->mask = mask;
    for (u64 i = 0; i < count; i++) {
        u64 key = old[i] >> VALUE_BITS << VALUE_BITS;
        if (old[i]) *row_of(t, key, place_of(t, key)) = old[i];
    }
    free(old);
    return 1;
}

/* A new region for a source at `free_place`, or NULL. */
static struct region *new_region(struct sites *t, struct region *free_place, u32 scope, u64 source)
{
    if (t->region_count >= t->region_mask / 2) {
        u64 count = t->region_mask + 1;
        struct region *old = t->regions;
        if (!(t->regions = calloc(count * 2, sizeof *old))) {
            t->regions = old;
            return NULL;
        }
        t->region_mask = count * 2 - 1;
        for (u64 i = 0; i < count; i++)
            if (old[i].number) *region_of(t, old[i].scope, old[i].high << LOW_BITS) = old[i];
        free(old);
        free_place = region_of(t, scope, source);
    }
    *free_place = (struct region){source >> LOW_BITS, scope, (u32)++t->region_count};
    return free_place;
}

/* Set what is known of `count` sites, as `lb_sites_kinds` has returned them. */
EXPORT void lb_sites_learn(struct sites *t, const i64 *scope, const u64 *source, const u8 *value, i64 count)
{
    for (i64 i = 0; i < count; i++) {
        const struct region *region = region_of(t, (u32)scope[i], source[i]);
        u64 key = key_of(region, source[i]), *row = row_of(t, key, place_of(t, key));
        if (region->number && *row) *row = key | value[i];
    }
}

/* The types of the entries of `samples` stacks; stack s has entries offsets[s] to offsets[s + 1]. Entry i has its
 * source and flags at `stride` bytes times i of two bases, `scope[s]` owns them. The type of an entry is 0 without a
 * type and without a source; types that `lb_sites_resolve` has to find are PENDING, `pending` in number.
 *
 * How many sites are new: `fresh` gets the first entry of each, and has room for all. DECLINED for scopes beyond 32
 * bits. */
EXPORT i64 lb_sites_kinds(struct sites *t, const i64 *scope, const i64 *offsets, i64 samples, const u8 *from,
                          i64 from_stride, const u8 *flags, i64 flags_stride, u8 *kind, i64 *fresh, i64 *pending)
{
    i64 found = 0, left = 0;
    if (t->used > MOST_SITES) {
        memset(t->rows, 0, (t->mask + 1) * sizeof *t->rows);
        memset(t->regions, 0, (t->region_mask + 1) * sizeof *t->regions);
        t->used = t->region_count = 0;
    }
    for (i64 s = 0; s < samples; s++) {
        if (scope[s] < 0 || scope[s] > UINT32_MAX) return DECLINED;
        u32 owner = (u32)scope[s];
        struct region here = {0, 0, 0};
        u64 key[AHEAD], place[AHEAD];
        for (i64 i = offsets[s], end, last = offsets[s + 1]; i < last; i = end) {
            end = i + AHEAD < last ? i + AHEAD : last;
            for (i64 k = i; k < end; k++) {
                u64 source = at_stride(from, from_stride, k);
                if (!here.number || source >> LOW_BITS != here.high) {
                    struct region *found_region = region_of(t, owner, source);
                    if (!found_region->number && !(found_region = new_region(t, found_region, owner, source)))
                        return NO_MEMORY;
                    here = *found_region;
                }
                key[k - i] = key_of(&here, source);
                place[k - i] = place_of(t, key[k - i]);
                __builtin_prefetch(&t->rows[place[k - i] & t->mask], 1);
            }
            for (i64 k = i; k < end; k++) {
                u8 type = branch_type(at_stride(flags, flags_stride, k));
                if (type || !at_stride(from, from_stride, k)) {
                    kind[k] = type;
                    continue;
                }
                u64 *row = row_of(t, key[k - i], place[k - i]);
                if (!*row) {
                    if (t->used >= t->mask / 4 * 3) {
                        if (!more_rows(t)) return NO_MEMORY;
                        row = row_of(t, key[k - i], place[k - i]);
                    }
                    *row = key[k - i] | NEW;
                    t->used++;
                    fresh[found++] = k;
                }
                u8 value = (u8)*row;
                int known = value != NEW && value != HIDDEN;
                kind[k] = known ? (u8)(value - KNOWN) : PENDING;
                left += !known;
            }
        }
    }
    *pending = left;
    return found;
}

/* Set what is now known of PENDING entries; arguments as of `lb_sites_kinds`. How many are of hidden sites: `hidden` gets
 * these, in order, and their type is 0. It has room for all that are pending. */
EXPORT i64 lb_sites_resolve(const struct sites *t, const i64 *scope, const i64 *offsets, i64 samples, const u8 *from,
                            i64 from_stride, u8 *kind, i64 *hidden)
{
    i64 found = 0;
    for (i64 s = 0; s < samples; s++)
        for (i64 i = offsets[s]; i < offsets[s + 1]; i++) {
            if (kind[i] != PENDING) continue;
            u64 source = at_stride(from, from_stride, i), key = key_of(region_of(t, (u32)scope[s], source), source);
            u8 value = (u8)*row_of(t, key, place_of(t, key));
            if (value == HIDDEN) hidden[found++] = i;
            kind[i] = value == NEW || value == HIDDEN ? 0 : (u8)(value - KNOWN);
        }
    return found;
}
