/* The type of each entry of branch stacks: the recorded one, else what is known of the instruction at its source.
 *
 * A table keeps what the caller has found out for each source of a scope. It is a cache: it is emptied where it has
 * become too large. Hashes are seeded. */
#include "lastbranch.h"

#include <stdlib.h>

enum { NEW = 0, KNOWN = 1, HIDDEN = 255 }; /* of a site: not looked up yet; 1 + its type; it depends on the target */
enum { PENDING = 255 };                    /* of an entry; the highest type is 31 */
enum { DECLINED = -1, NO_MEMORY = -2 };
enum { LEAST_SITES = 1 << 12, MOST_SITES = 1 << 21 };

struct site { u64 source; u32 scope; u8 used, value; };

struct sites { struct site *rows; u64 mask, used, seed; };

EXPORT void lb_sites_free(struct sites *t)
{
    if (t) free(t->rows);
    free(t);
}

EXPORT struct sites *lb_sites_new(u64 seed)
{
    struct sites *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->seed = seed;
    t->mask = LEAST_SITES - 1;
    if ((t->rows = calloc(LEAST_SITES, sizeof *t->rows))) return t;
    lb_sites_free(t);
    return NULL;
}

/* The row of a site, or the free one where it belongs. */
static inline struct site *site_of(const struct sites *t, u32 scope, u64 source)
{
    u64 h = (source ^ (u64)scope << 40 ^ t->seed) * 0x9E3779B97F4A7C15u;
    struct site *row = &t->rows[(h ^ h >> 29) * 0xD6E8FEB86659FD93u >> 32 & t->mask];
    while (row->used && (row->source != source || row->scope != scope))
        row = row == t->rows + t->mask ? t->rows : row + 1;
    return row;
}

static int grown(struct sites *t)
{
    struct sites old = *t;
    if (!(t->rows = calloc((old.mask + 1) * 2, sizeof *t->rows))) {
        t->rows = old.rows;
        return 0;
    }
    t->mask = old.mask * 2 + 1;
    for (u64 i = 0; i <= old.mask; i++)
        if (old.rows[i].used) *site_of(t, old.rows[i].scope, old.rows[i].source) = old.rows[i];
    free(old.rows);
    return 1;
}

/* Set what is known of `count` sites, as `lb_sites_kinds` has returned them. */
EXPORT void lb_sites_learn(struct sites *t, const i64 *scope, const u64 *source, const u8 *value, i64 count)
{
    for (i64 i = 0; i < count; i++) {
        struct site *row = site_of(t, (u32)scope[i], source[i]);
        if (row->used) row->value = value[i];
    }
}

/* The types of the entries of `samples` stacks; stack s has entries offsets[s] to offsets[s + 1]. Entry i has its source
 * and flags at `stride` bytes times i of two bases, `scope[s]` owns them. Without a type, and without a source, it is 0;
 * those that `lb_sites_resolve` has to find are PENDING, `pending` of them.
 *
 * How many sites are new: `fresh` gets the first entry of each, and has room for all. DECLINED for scopes beyond 32 bits. */
EXPORT i64 lb_sites_kinds(struct sites *t, const i64 *scope, const i64 *offsets, i64 samples, const u8 *from, i64 from_stride,
                          const u8 *flags, i64 flags_stride, u8 *kind, i64 *fresh, i64 *pending)
{
    i64 found = 0, left = 0;
    if (t->used > MOST_SITES) {
        memset(t->rows, 0, (t->mask + 1) * sizeof *t->rows);
        t->used = 0;
    }
    for (i64 s = 0; s < samples; s++) {
        if (scope[s] < 0 || scope[s] > UINT32_MAX) return DECLINED;
        u32 owner = (u32)scope[s];
        for (i64 i = offsets[s]; i < offsets[s + 1]; i++) {
            u64 source = at_stride(from, from_stride, i);
            if ((kind[i] = branch_type(at_stride(flags, flags_stride, i))) || !source) continue;
            struct site *row = site_of(t, owner, source);
            if (!row->used) {
                if (t->used >= t->mask / 2) {
                    if (!grown(t)) return NO_MEMORY;
                    row = site_of(t, owner, source);
                }
                *row = (struct site){source, owner, 1, NEW};
                t->used++;
                fresh[found++] = i;
            }
            int known = row->value != NEW && row->value != HIDDEN;
            kind[i] = known ? (u8)(row->value - KNOWN) : PENDING;
            left += !known;
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
            const struct site *row = site_of(t, (u32)scope[s], at_stride(from, from_stride, i));
            if (row->value == HIDDEN) hidden[found++] = i;
            kind[i] = row->value == NEW || row->value == HIDDEN ? 0 : (u8)(row->value - KNOWN);
        }
    return found;
}
