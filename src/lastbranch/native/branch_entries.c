/* The entries of last branch records in trace logs: the words of each, and perf's flag word for its LBR_INFO. */
#include "lastbranch.h"

enum { COLLECTED, DECLINED };

/* Entries of `size` bytes a word. */
static inline void columns_of(const u8 *at, i64 count, i64 size, u64 *from, u64 *to, u64 *info)
{
    for (i64 i = 0; i < count; i++, at += 3 * size) {
        from[i] = size == 8 ? get64(at) : get32(at);
        to[i] = size == 8 ? get64(at + size) : get32(at + size);
        info[i] = size == 8 ? get64(at + 2 * size) : get32(at + 2 * size);
    }
}

/* Read, for each record r, the `count[r]` entries from byte `first[r]` of `raw` on, of three words of `size[r]` (8 or
 * 4) bytes each. `out` has three columns of `room` values: from, to and information. DECLINED for what is not in `raw`,
 * or not `room` entries in all. */
EXPORT int lb_branch_entries(const u8 *raw, i64 bytes, const i64 *first, const i64 *count, const u8 *size, i64 records,
                             u64 *out, i64 room)
{
    i64 at = 0;
    for (i64 r = 0; r < records; at += count[r], r++) {
        if (count[r] == 0) continue;
        if (size[r] != 8 && size[r] != 4) return DECLINED;
        if (count[r] < 0 || count[r] > room - at || first[r] < 0 || first[r] > bytes) return DECLINED;
        if (count[r] > (bytes - first[r]) / (3 * size[r])) return DECLINED;
        u64 *from = out + at, *to = from + room, *info = to + room;
        if (size[r] == 8) columns_of(raw + first[r], count[r], 8, from, to, info);
        else columns_of(raw + first[r], count[r], 4, from, to, info);
    }
    return at == room ? COLLECTED : DECLINED;
}

/* Flag words (lbr/words.py) for words of LBR_INFO. `types`: by the type of architectural LBR, which has it in bits 56 to 59
 * and says in bit 60 whether its cycles are valid; other processors have 0 there, and always count. */
EXPORT void lb_info_flags(const u64 *info, i64 count, const u64 *types, u64 *flags)
{
    for (i64 i = 0; i < count; i++) {
        u64 word = info[i], mispredicted = word >> 63, cycles = word & 0xFFFF, type = 0;
        if (word >> 56 & 31) {
            type = types[word >> 56 & 15];
            if (!(word >> 60 & 1)) cycles = 0;
        }
        u64 known =
            mispredicted | (mispredicted ^ 1) << 1 | (word >> 62 & 1) << 2 | (word >> 61 & 1) << 3 | cycles << 4 | type;
        flags[i] = word ? known : 0;
    }
}
