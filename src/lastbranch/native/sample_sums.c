/* The branches of a batch of stacks with their sums over samples: what `BranchSums` of analysis/sample_sums.py adds up. */
#include "lastbranch.h"

enum { SCOPE, FROM, TO, COUNT, MISPREDICTED, PREDICTED, CYCLES, TIMED, SAMPLES, SQUARES, CROSSED, NEWEST, HERE, WORDS };

static inline u64 place_of(u64 scope, u64 from, u64 to, u64 seed)
{
    u64 h = (from ^ seed) * 0x9E3779B97F4A7C15u;
    h = ((h ^ h >> 32) + to + scope * 0xC2B2AE3D27D4EB4Fu) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

/* Write a row of WORDS words for each distinct branch of each scope; how many there are. NEWEST and HERE are the sample that
 * had it last, and how often. Stack s has the entries offsets[s] to offsets[s + 1]; entry i is `stride` bytes times i from a
 * base. `slots`, a power of two of zeros, are more than entries, of which there are less than 2**32; `row` has room for all
 * entries. */
EXPORT i64 lb_sample_sums(const i64 *scope, const i64 *offsets, i64 samples, const u8 *from, i64 from_stride, const u8 *to,
                          i64 to_stride, const u8 *flags, i64 flags_stride, u64 seed, u32 *slots, i64 number, u64 *row)
{
    u64 rows = 0, mask = (u64)number - 1;
    for (i64 s = 0; s < samples; s++) {
        u64 owner = (u64)scope[s], depth = (u64)(offsets[s + 1] - offsets[s]);
        for (i64 i = offsets[s]; i < offsets[s + 1]; i++) {
            u64 source = at_stride(from, from_stride, i), target = at_stride(to, to_stride, i);
            u64 word = at_stride(flags, flags_stride, i), cycles = word >> 4 & 0xFFFF, at = place_of(owner, source, target, seed);
            u64 *r;
            for (;; at++) {
                u32 *slot = &slots[at & mask];
                if (!*slot) {
                    *slot = (u32)++rows;
                    r = row + (rows - 1) * WORDS;
                    memset(r, 0, WORDS * sizeof *r);
                    r[SCOPE] = owner, r[FROM] = source, r[TO] = target, r[NEWEST] = ~(u64)0;
                    break;
                }
                r = row + (u64)(*slot - 1) * WORDS;
                if (r[FROM] == source && r[TO] == target && r[SCOPE] == owner) break;
            }
            if (r[NEWEST] != (u64)s) {
                r[NEWEST] = (u64)s;
                r[HERE] = 0;
                r[SAMPLES]++;
            }
            r[SQUARES] += 2 * r[HERE]++ + 1; /* (n + 1)**2 - n**2 */
            r[CROSSED] += depth;
            r[COUNT]++;
            r[MISPREDICTED] += word & 1;
            r[PREDICTED] += word >> 1 & 1;
            r[CYCLES] += cycles;
            r[TIMED] += cycles != 0;
        }
    }
    return (i64)rows;
}
