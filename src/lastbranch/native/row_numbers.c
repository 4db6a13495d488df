/* Rows of 64-bit columns numbered as they come, batch after batch: equal rows have one number. By seeded hashes. */
#include "lastbranch.h"

#include <stdlib.h>

enum { NO_MEMORY = -1 };
enum { AHEAD = 16 }; /* rows whose places are fetched before they are looked at */
enum { LEAST = 1 << 10 };

struct numbers {
    u64 *rows;  /* the columns of each row, one after the other, then its hash */
    u32 *slots; /* 1 + a number, 0 where it is free */
    u64 mask, room, seed;
    i64 columns, number;
};

static inline u64 mixed(u64 h, u64 value)
{
    h = (h ^ value) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

EXPORT void lb_numbers_free(struct numbers *t)
{
    if (!t) return;
    free(t->rows);
    free(t->slots);
    free(t);
}

EXPORT struct numbers *lb_numbers_new(u64 seed, i64 columns)
{
    struct numbers *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    *t = (struct numbers){.mask = 2 * LEAST - 1, .room = LEAST, .seed = seed, .columns = columns};
    t->rows = malloc(LEAST * (size_t)(columns + 1) * sizeof *t->rows);
    t->slots = calloc(2 * LEAST, sizeof *t->slots);
    if (t->rows && t->slots) return t;
    lb_numbers_free(t);
    return NULL;
}

static int doubled(struct numbers *t)
{
    if (t->room >= (u64)1 << 31) return 0;
    size_t words = (size_t)t->columns + 1;
    u64 mask = t->mask * 2 + 1;
    u32 *slots = calloc(mask + 1, sizeof *slots);
    u64 *rows = slots ? realloc(t->rows, t->room * 2 * words * sizeof *rows) : NULL;
    if (!rows) {
        free(slots);
        return 0;
    }
    free(t->slots);
    t->slots = slots;
    t->rows = rows;
    t->mask = mask;
    t->room *= 2;
    for (i64 i = 0; i < t->number; i++) {
        u64 slot = rows[(size_t)(i + 1) * words - 1] & mask;
        while (slots[slot]) slot = (slot + 1) & mask;
        slots[slot] = (u32)i + 1;
    }
    return 1;
}

/* Row i has the values column[i], column[count + i], ... and gets number[i]. `first` gets the rows with a new number, in the
 * order of the numbers, and has room for all. How many there are, or NO_MEMORY: then some rows have no number. */
EXPORT i64 lb_numbers_add(struct numbers *t, const u64 *column, i64 count, i64 *number, i64 *first)
{
    i64 columns = t->columns, words = columns + 1, before = t->number;
    u64 hash[AHEAD];
    for (i64 begin = 0, end; begin < count; begin = end) {
        end = begin + AHEAD < count ? begin + AHEAD : count;
        for (i64 i = begin; i < end; i++) {
            u64 h = t->seed;
            for (i64 k = 0; k < columns; k++) h = mixed(h, column[k * count + i]);
            hash[i - begin] = h;
            __builtin_prefetch(&t->slots[h & t->mask]);
        }
        for (i64 i = begin; i < end; i++) {
            u32 slot = t->slots[hash[i - begin] & t->mask];
            if (slot) __builtin_prefetch(&t->rows[(slot - 1) * words]);
        }
        for (i64 i = begin; i < end; i++) {
            u64 place = hash[i - begin];
            u32 slot;
            for (; (slot = t->slots[place & t->mask]); place++) {
                const u64 *row = &t->rows[(slot - 1) * words];
                i64 k = 0;
                while (k < columns && row[k] == column[k * count + i]) k++;
                if (k == columns) break;
            }
            if (!slot) {
                if ((u64)t->number == t->room) {
                    if (!doubled(t)) return NO_MEMORY;
                    place = hash[i - begin];
                    while (t->slots[place & t->mask]) place++;
                }
                u64 *row = &t->rows[t->number * words];
                for (i64 k = 0; k < columns; k++) row[k] = column[k * count + i];
                row[columns] = hash[i - begin];
                first[t->number - before] = i;
                slot = t->slots[place & t->mask] = (u32)++t->number;
            }
            number[i] = slot - 1;
        }
    }
    return t->number - before;
}
