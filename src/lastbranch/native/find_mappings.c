/* Which piece of an address space owns an address at a moment: many lookups in the index of `bind/spaces.py`.
 *
 * A slab is a range of keys (space and address) between neighbours of `slabs`; `rows` are its pieces in the order of
 * time, with the number of the slab above `moment_bits` and the first moment below. Neighbouring addresses mostly share
 * a slab and a moment, so each side of a machine keeps its last answer. */
#include "lastbranch.h"

enum { FOUND, DECLINED };
enum { ADDRESS_BITS = 48, RANK_BITS = 32, BY_ADDRESS = 2 };

struct index {
    const u64 *slabs, *bounds, *rows;
    const i64 *row_last, *row_value;
    i64 slab_count, bound_count, row_count, moment_bits; /* bound_count -1: addresses of 48 bits are keys */
};

/* Addresses up to `end`, of one scope: the lowest kernel address, the side that is searched first (0, 1: the kernel's), and
 * where the two sides are searched; no space is below 0. */
struct run {
    i64 end;
    u64 kernel_start;
    i64 side, space[2], moment[2];
};

/* The last answer: it holds for keys from `low` on and below `high`, at this moment. */
struct answer {
    u64 low, high;
    i64 moment, value;
};

/* How many of `values`, which ascend, are at most `wanted`. */
static inline i64 up_to(const u64 *values, i64 count, u64 wanted)
{
    const u64 *base = values;
    for (; count > 1; count -= count / 2) base += base[count / 2 - 1] <= wanted ? count / 2 : 0;
    return base - values + (count > 0 && *base <= wanted);
}

static inline i64 value_at(const struct index *x, struct answer *last, i64 space, i64 moment, u64 address)
{
    u64 key;
    if (x->bound_count < 0) {
        if (address >> ADDRESS_BITS != (space ? 0 : 0xFFFF)) return -1;
        key = (u64)space << ADDRESS_BITS | (address & (((u64)1 << ADDRESS_BITS) - 1));
    } else {
        key = (u64)space << RANK_BITS | (u64)up_to(x->bounds, x->bound_count, address);
    }
    if (key >= last->low && key < last->high && moment == last->moment) return last->value;
    i64 slab = up_to(x->slabs, x->slab_count, key) - 1;
    last->low = slab < 0 ? 0 : x->slabs[slab];
    last->high = slab + 1 < x->slab_count ? x->slabs[slab + 1] : UINT64_MAX;
    last->moment = moment;
    last->value = -1;
    if (slab < 0) return -1;
    u64 most = ((u64)1 << x->moment_bits) - 1, when = (u64)moment < most ? (u64)moment : most;
    i64 row = up_to(x->rows, x->row_count, (u64)slab << x->moment_bits | when) - 1;
    if (row >= 0 && x->rows[row] >> x->moment_bits == (u64)slab && moment < x->row_last[row])
        last->value = x->row_value[row];
    return last->value;
}

/* The value of each of `count` addresses, `stride` bytes apart, or -1. An address that is not found, and belongs to the
 * other side, is searched there. DECLINED for runs that are not of these addresses. */
EXPORT int lb_find_mappings(const struct index *x, const struct run *runs, i64 run_count, const u8 *address, i64 stride,
                            i64 count, i64 *out)
{
    struct answer last[2] = {{0}, {0}}; /* low is high: holds for no key */
    i64 i = 0;
    if (x->moment_bits < 1 || x->moment_bits > 62) return DECLINED;
    for (const struct run *run = runs; run < runs + run_count; run++) {
        if (run->end < i || run->end > count) return DECLINED;
        for (; i < run->end; i++) {
            u64 a;
            memcpy(&a, address + stride * i, 8);
            int above = a >= run->kernel_start, side = run->side == BY_ADDRESS ? above : run->side == 1;
            out[i] = run->space[side] < 0 ? -1 : value_at(x, &last[side], run->space[side], run->moment[side], a);
            if (out[i] < 0 && side != above && run->space[above] >= 0)
                out[i] = value_at(x, &last[above], run->space[above], run->moment[above], a);
        }
    }
    return i == count ? FOUND : DECLINED;
}

/* Module and module address of each of `count` addresses, `stride` bytes apart, by the mapping that owns it: `value` as
 * `lb_find_mappings` has found it, which becomes the module. Mapping i has `module[i]` and lies `bias[i]` above its module
 * addresses. Without a mapping the module is -1 and the address stays. DECLINED for values that are none of `mappings`. */
EXPORT int lb_module_addresses(const u8 *address, i64 stride, i64 count, const i64 *module, const u64 *bias,
                               i64 mappings, i64 *value, u64 *out)
{
    for (i64 i = 0; i < count; i++)
        if (value[i] < -1 || value[i] >= mappings) return DECLINED;
    for (i64 i = 0; i < count; i++) {
        u64 a;
        memcpy(&a, address + stride * i, 8);
        int owned = value[i] >= 0;
        out[i] = owned ? a - bias[value[i]] : a;
        value[i] = owned ? module[value[i]] : -1;
    }
    return FOUND;
}
