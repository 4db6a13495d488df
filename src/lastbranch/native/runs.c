/* Ranges of an array, copied one after the other. */
#include "lastbranch.h"

enum { COPIED, DECLINED };

/* Copy `number` ranges of `values`, which has `count` items of `size` bytes: `length[i]` items from `first[i]` on. `room`
 * items fit into `out`. DECLINED for what is not in it. */
EXPORT int lb_take_runs(const u8 *values, i64 count, i64 size, const i64 *first, const i64 *length, i64 number, u8 *out,
                        i64 room)
{
    for (i64 i = 0; i < number; i++) {
        i64 begin = first[i], items = length[i];
        if (items == 0) continue;
        if (items < 0 || items > room || begin < 0 || begin > count || items > count - begin) return DECLINED;
        memcpy(out, values + begin * size, (size_t)(items * size));
        out += items * size;
        room -= items;
    }
    return COPIED;
}
