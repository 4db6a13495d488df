/* Equal stacks made one: rows of a ragged column, with keys, by a seeded hash of each and a comparison. */
#include "lastbranch.h"

#include <stdlib.h>

enum { NO_MEMORY = -1, DECLINED = -2 };

/* 1 + the place in `rows`, 0 where it is free; the upper half of the hash */
struct slot { u32 number, digest; };

static inline u64 mixed(u64 h, u64 value)
{
    h = (h ^ value) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

/* Stack i of `stacks` has the values offsets[i] to offsets[i + 1] of `frame`, `size` bytes each (4 or 8). Stacks are
 * equal if they have the same values and the same numbers in each of `keys` columns (`key`: one column after the
 * other).
 *
 * `rows` gets the first stack of each kind, ascending, `which` for each stack its place in them; both have room for
 * all. Returns the number of kinds, or a negative number. */
EXPORT i64 lb_distinct_stacks(const i64 *key, i64 keys, const u8 *frame, i64 size, const i64 *offsets, i64 stacks,
                              u64 seed, i64 *rows, i64 *which)
{
    if ((size != 4 && size != 8) || stacks >= UINT32_MAX) return DECLINED;
    u64 places = 64;
    while (places < (u64)stacks * 2) places *= 2;
    struct slot *slots = calloc(places, sizeof *slots);
    if (!slots) return NO_MEMORY;
    i64 found = 0;
    for (i64 s = 0; s < stacks; s++) {
        const u8 *at = frame + offsets[s] * size;
        size_t length = (size_t)((offsets[s + 1] - offsets[s]) * size);
        u64 h = mixed(seed, length);
        for (i64 k = 0; k < keys; k++) h = mixed(h, (u64)key[k * stacks + s]);
        if (size == 8)
            for (size_t i = 0; i < length; i += 8) {
                u64 value;
                memcpy(&value, at + i, 8);
                h = mixed(h, value);
            }
        else
            for (size_t i = 0; i < length; i += 4) {
                u32 value;
                memcpy(&value, at + i, 4);
                h = mixed(h, value);
            }
        h *= 0xD6E8FEB86659FD93u;
        u32 digest = (u32)(h >> 32);
        for (u64 place = h >> 20;; place++) {
            struct slot *slot = &slots[place & (places - 1)];
            if (!slot->number) {
                *slot = (struct slot){(u32)found + 1, digest};
                which[s] = found;
                rows[found++] = s;
                break;
            }
            if (slot->digest != digest) continue;
            i64 other = rows[slot->number - 1], k = 0;
            if ((size_t)((offsets[other + 1] - offsets[other]) * size) != length) continue;
            while (k < keys && key[k * stacks + other] == key[k * stacks + s]) k++;
            if (k < keys || memcmp(frame + offsets[other] * size, at, length)) continue;
            which[s] = slot->number - 1;
            break;
        }
    }
    free(slots);
    return found;
}
