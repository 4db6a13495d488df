/* Sums over equal stacks: rows of a ragged column, with keys, whose values are added up, batch after batch. The last
 * values are not added: their lowest or highest value is kept.
 *
 * A record is a stack in words: the number of frames, the keys, the values, the frames. Records lie one after the
 * other. The table has the beginnings of records, with a part of the hash; hashes are seeded. */
#include "lastbranch.h"

#include <stdlib.h>

enum { ADDED = 0, NO_MEMORY = -1, DECLINED = -2 };
enum { AHEAD = 16 }; /* stacks whose places are fetched before they are looked at */
enum { PLACE_BITS = 40, LEAST_SLOTS = 1 << 10, LEAST_WORDS = 1 << 14 };

struct sums {
    u64 *slots, *words; /* of a slot: 1 + where the record begins, below the upper bits of the hash; 0: free */
    u64 mask, used, room, seed;
    i64 rows, frames, keys, values, sums, lows; /* of the values the first are sums, and after these the lowest ones */
};

static const u64 PLACE = ((u64)1 << PLACE_BITS) - 1;

static inline u64 mixed(u64 h, u64 value)
{
    h = (h ^ value) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

static inline u64 finished(u64 h) { return h * 0xD6E8FEB86659FD93u; }

EXPORT void lb_sums_free(struct sums *t)
{
    if (!t) return;
    free(t->slots);
    free(t->words);
    free(t);
}

/* A table for stacks with so many keys, sums, lowest and highest values. */
EXPORT struct sums *lb_sums_new(u64 seed, i64 keys, i64 sums, i64 lows, i64 highs)
{
    struct sums *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    *t = (struct sums){
        .mask = LEAST_SLOTS - 1, .room = LEAST_WORDS, .seed = seed, .keys = keys, .sums = sums, .lows = lows};
    t->values = sums + lows + highs;
    t->slots = calloc(LEAST_SLOTS, sizeof *t->slots);
    t->words = malloc(LEAST_WORDS * sizeof *t->words);
    if (t->slots && t->words) return t;
    lb_sums_free(t);
    return NULL;
}

static u64 hash_of_record(const struct sums *t, const u64 *record)
{
    u64 h = mixed(t->seed, record[0]);
    for (i64 k = 0; k < t->keys; k++) h = mixed(h, record[1 + k]);
    for (u64 i = 0; i < record[0]; i++) h = mixed(h, record[1 + t->keys + t->values + (i64)i]);
    return finished(h);
}

static inline u64 first_slot(const struct sums *t, u64 hash) { return hash >> 20 & t->mask; }

/* Make room for one more stack, in the table and for a record of `words`. */
static int grown(struct sums *t, u64 words)
{
    if (t->used + words > t->room) {
        u64 room = t->room;
        while (t->used + words > room) room *= 2;
        if (room > PLACE) return 0;
        u64 *more = realloc(t->words, room * sizeof *more);
        if (!more) return 0;
        t->words = more;
        t->room = room;
    }
    if ((u64)t->rows * 2 < t->mask) return 1;
    u64 mask = t->mask * 2 + 1, *slots = calloc(mask + 1, sizeof *slots);
    if (!slots) return 0;
    free(t->slots);
    t->slots = slots;
    t->mask = mask;
    for (u64 at = 0; at < t->used; at += 1 + (u64)(t->keys + t->values) + t->words[at]) {
        u64 hash = hash_of_record(t, t->words + at), slot = first_slot(t, hash);
        while (slots[slot]) slot = (slot + 1) & mask;
        slots[slot] = (hash & ~PLACE) | (at + 1);
    }
    return 1;
}

/* Stack i of `stacks` has the frames offsets[i] to offsets[i + 1], the keys key[i], key[stacks + i], ... and likewise values:
 * sums are modulo 2**64, the others signed. ADDED or a negative number; NO_MEMORY: the stacks before one are added. */
EXPORT int lb_sums_add(struct sums *t, const u64 *key, const u64 *frame, const i64 *offsets, const u64 *value,
                       i64 stacks)
{
    i64 keys = t->keys, values = t->values, head = 1 + keys + values;
    for (i64 i = 0; i < stacks; i++)
        if (offsets[i] < 0 || offsets[i + 1] < offsets[i]) return DECLINED;
    u64 hash[AHEAD];
    for (i64 s = 0, end; s < stacks; s = end) {
        end = s + AHEAD < stacks ? s + AHEAD : stacks;
        for (i64 i = s; i < end; i++) {
            u64 h = mixed(t->seed, (u64)(offsets[i + 1] - offsets[i]));
            for (i64 k = 0; k < keys; k++) h = mixed(h, key[k * stacks + i]);
            for (i64 f = offsets[i]; f < offsets[i + 1]; f++) h = mixed(h, frame[f]);
            hash[i - s] = finished(h);
            __builtin_prefetch(&t->slots[first_slot(t, hash[i - s])]);
        }
        for (i64 i = s; i < end; i++) {
            u64 slot = t->slots[first_slot(t, hash[i - s])];
            if (slot) __builtin_prefetch(&t->words[(slot & PLACE) - 1], 1);
        }
        for (i64 i = s; i < end; i++) {
            u64 size = (u64)(offsets[i + 1] - offsets[i]), h = hash[i - s], slot = first_slot(t, h), *record = NULL;
            for (; t->slots[slot]; slot = (slot + 1) & t->mask, record = NULL) {
                if ((t->slots[slot] ^ h) & ~PLACE) continue;
                record = t->words + (t->slots[slot] & PLACE) - 1;
                if (record[0] != size) continue;
                i64 k = 0;
                while (k < keys && record[1 + k] == key[k * stacks + i]) k++;
                if (k == keys && !memcmp(record + head, frame + offsets[i], size * 8)) break;
            }
            if (!t->slots[slot]) {
                if (!grown(t, (u64)head + size)) return NO_MEMORY;
                slot = first_slot(t, h); /* the table may be another */
                while (t->slots[slot]) slot = (slot + 1) & t->mask;
                t->slots[slot] = (h & ~PLACE) | (t->used + 1);
                record = t->words + t->used;
                record[0] = size;
                for (i64 k = 0; k < keys; k++) record[1 + k] = key[k * stacks + i];
                for (i64 v = 0; v < values; v++) record[1 + keys + v] = v < t->sums ? 0 : value[v * stacks + i];
                memcpy(record + head, frame + offsets[i], size * 8);
                t->used += (u64)head + size;
                t->rows++;
                t->frames += (i64)size;
            }
            u64 *kept = record + 1 + keys;
            i64 v = 0;
            for (; v < t->sums; v++) kept[v] += value[v * stacks + i];
            for (; v < values; v++) {
                i64 more = (i64)value[v * stacks + i], there = (i64)kept[v];
                if (v < t->sums + t->lows ? more < there : more > there) kept[v] = (u64)more;
            }
        }
    }
    return ADDED;
}

/* How many different stacks there are, and how many frames they have. */
EXPORT i64 lb_sums_rows(const struct sums *t) { return t->rows; }
EXPORT i64 lb_sums_frames(const struct sums *t) { return t->frames; }

/* Give all stacks in the order in which they were first seen, in the form of `lb_sums_add`. `offsets` begins with 0. */
EXPORT void lb_sums_read(const struct sums *t, u64 *key, u64 *frame, i64 *offsets, u64 *value)
{
    const u64 *record = t->words;
    i64 rows = t->rows;
    offsets[0] = 0;
    for (i64 i = 0; i < rows; i++) {
        u64 size = *record++;
        for (i64 k = 0; k < t->keys; k++) key[k * rows + i] = *record++;
        for (i64 v = 0; v < t->values; v++) value[v * rows + i] = *record++;
        memcpy(frame + offsets[i], record, size * 8);
        record += size;
        offsets[i + 1] = offsets[i] + (i64)size;
    }
}

/* Forget all stacks. */
EXPORT void lb_sums_clear(struct sums *t)
{
    memset(t->slots, 0, (t->mask + 1) * sizeof *t->slots);
    t->used = 0;
    t->rows = t->frames = 0;
}
